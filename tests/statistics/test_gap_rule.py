import numpy as np
import pytest
import yaml

from helpers.checkpoints import calibration
from helpers.files import PROJECT_ROOT
from helpers.statistics.gap_rule import PENALTIES, fit_rule

REPORTS = PROJECT_ROOT / "reports"


def networks():
    """Predictors, gaps and kinds of networks whose kinds differ."""
    random = np.random.default_rng(0)
    kinds = np.repeat(np.arange(8), 3)
    values = random.normal([0.5, 0.3, 5], [0.1, 0.2, 0.5], size=(24, 3))
    shift_of_kind = random.normal(0, 0.03, size=8)[kinds]
    gaps = 0.9 * values[:, 0] - 0.04 * values[:, 2] + 0.3 + shift_of_kind
    return values, gaps, kinds


def predicted_by_hand(train, gaps, penalty, row):
    """By the normal equations of scaled values, at most half their range outside it."""
    means, deviations = train.mean(0), train.std(0)
    scaled = (train - means) / deviations
    left = scaled.T @ scaled + penalty * np.eye(3)
    coefficients = np.linalg.solve(left, scaled.T @ (gaps - gaps.mean()))
    margin = np.ptp(train, axis=0) / 2
    row = np.clip(row, train.min(0) - margin, train.max(0) + margin)
    return gaps.mean() + coefficients @ ((row - means) / deviations)


def test_the_rule_equals_a_plain_loop():
    values, gaps, kinds = networks()
    best = None
    for penalty in PENALTIES:
        errors = []
        for row, gap, kind in zip(values, gaps, kinds, strict=True):
            others = kinds != kind
            prediction = predicted_by_hand(values[others], gaps[others], penalty, row)
            errors.append(prediction - gap)
        squared = np.mean(np.square(errors))
        if best is None or squared < best[0]:
            best = (squared, penalty, np.quantile(np.abs(errors), 0.8))
    rule = fit_rule(values, gaps, kinds)
    assert rule.penalty == pytest.approx(best[1])
    assert rule.half_width == pytest.approx(best[2])
    far = np.array([[0.5, 0.3, 5.0], [-9.0, 9.0, 5.0], values[0]])
    expected = [predicted_by_hand(values, gaps, best[1], row) for row in far]
    np.testing.assert_allclose(rule.predict(far), expected)


def test_the_rule_of_drop48_is_that_of_the_studies_that_it_names():
    stated = yaml.safe_load((PROJECT_ROOT / "params/drop48.yaml").read_text())["rule"]
    stated["means"][2] += np.log(0.9)  # a tenth of the images was held out
    rule = calibration.rule(calibration.networks(REPORTS))
    for name in ("intercept", "coefficients", "means", "penalty", "half_width"):
        assert getattr(rule, name) == pytest.approx(stated[name], abs=1e-7), name
    judged = calibration.networks(REPORTS, ["drop48_20"], wrong_labels=True)
    assert len(judged) == 10  # two of twelve are left out

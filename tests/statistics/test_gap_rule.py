import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT
from helpers.statistics.gap_rule import PENALTIES, fit_rule, predictors

REPORTS = PROJECT_ROOT / "reports"


def networks(count=24, seed=0):
    """Predictors, gaps and kinds of networks whose kinds differ."""
    generator = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(count // 3), 3)
    values = generator.normal(size=(count, 3)) * [0.1, 0.2, 0.5] + [0.5, 0.3, 5]
    shift_of_kind = generator.normal(size=count)[kinds] * 0.03
    gaps = 0.9 * values[:, 0] - 0.04 * values[:, 2] + 0.3 + shift_of_kind
    return values, gaps, kinds


def ridge_by_hand(values, gaps, penalty):
    """Means, deviations, and coefficients that solve the normal equations."""
    means, deviations = values.mean(0), values.std(0)
    scaled = (values - means) / deviations
    left = scaled.T @ scaled + penalty * np.eye(3)
    return means, deviations, np.linalg.solve(left, scaled.T @ (gaps - gaps.mean()))


def predicted_by_hand(train, gaps, penalty, row):
    means, deviations, coefficients = ridge_by_hand(train, gaps, penalty)
    prediction = gaps.mean()
    for number in range(3):
        low, high = train[:, number].min(), train[:, number].max()
        value = min(max(row[number], low - (high - low) / 2), high + (high - low) / 2)
        scaled = (value - means[number]) / deviations[number]
        prediction += coefficients[number] * scaled
    return prediction


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


def test_predictors_by_hand():
    scores = pd.DataFrame(
        {
            "accuracy_under_augmentation (horizontal translation)": [0.5],
            "accuracy_under_augmentation (vertical translation)": [0.3],
            "mixup_accuracy": [0.7],
        }
    )
    values = predictors([0.9], scores, 100)
    np.testing.assert_allclose(values, [[0.5, 0.2, np.log(100)]])
    scores.iloc[0, 0] = np.nan
    assert np.isnan(predictors([0.9], scores, 100)[0, 0])


def test_undefined_values_are_refused():
    values, gaps, kinds = networks()
    values[0, 0] = np.nan
    with pytest.raises(ValueError, match="NaN"):
        fit_rule(values, gaps, kinds)

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT, read_json, table_of
from helpers.statistics.gap_rule import PENALTIES, fit_rule, predictors
from helpers.studies import StudyFile

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


def published(study):
    """Predictors, gaps and kinds of a study's networks, from its tables alone."""
    folder = REPORTS / study
    models = pd.read_csv(table_of(folder, "catalogue.csv")).set_index("model_id")
    models = models[models["left_out"].isna()]
    scores = pd.read_parquet(table_of(folder, "scores.parquet"))
    scores["column"] = scores["measure"] + " (" + scores["variant"] + ")"
    table = scores.pivot_table(index="model_id", columns="column", values="value")
    table = table.rename(columns={"mixup_accuracy (input)": "mixup_accuracy"})
    all_images = read_json(folder / "records/data.json")["parameters"]
    images = models["images_per_class"].replace(0, all_images["images_per_class"])
    values = predictors(models["train_accuracy"], table.loc[models.index], images)
    return values, models["gap"].to_numpy(), models["kind"].to_numpy()


@pytest.mark.skipif(not REPORTS.is_dir(), reason="no published reports are here")
def test_the_rule_of_drop48_comes_out_of_the_published_records():
    stated = StudyFile.read("drop48").rule
    parts = zip(*(published(study) for study in stated["studies"]), strict=True)
    values, gaps, kinds = map(np.concatenate, parts)
    assert (len(gaps), len(set(kinds))) == (stated["networks"], stated["kinds"])
    for name, number in asdict(fit_rule(values, gaps, kinds)).items():
        np.testing.assert_allclose(number, stated[name], atol=1e-6, err_msg=name)

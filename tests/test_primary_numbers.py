"""The primary numbers of committed reports, recomputed by plain loops.

Nothing of ``helpers`` is used: catalogue and scores are read, and correlations, exact
p-values, errors of held-out kinds and of other studies, and pairs are worked out anew.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

REPORTS = Path(__file__).parents[1] / "reports"
HYPERPARAMETERS = [
    "pretrained",
    "augmentation",
    "architecture",
    "images_per_class",
    "optimizer",
    "learning_rate",
    "weight_decay",
    "batch_size",
    "strong_augmentation",
    "label_smoothing",
    "frozen_stages",
]
SETTING = ["optimizer", "learning_rate", "weight_decay", "batch_size"]
PENALTIES = [10 ** (-2 + k / 2) for k in range(13)]  # 0.01 to 10,000


def place(study, name):
    """Path of a table in the folder of the notebook that wrote it."""
    written = (REPORTS / study).glob(f"[0-9][0-9]_*/tables/{name}")
    return next(written, REPORTS / study / "tables" / name)


def table(study, name):
    return pd.read_csv(place(study, f"{name}.csv"))


def has_baselines(study):
    path = place(study, "primary.csv")
    return path.is_file() and "baseline" in pd.read_csv(path, nrows=1)


STUDIES = [name for name in ("kinds20", "filled20", "kinds24") if has_baselines(name)]


def networks(study):
    """Networks above 80 % training accuracy, sorted by kind, with their measures."""
    models = table(study, "catalogue")
    models = models[models["train_accuracy"] > 0.8].sort_values("kind", kind="stable")
    models = models.reset_index(drop=True)
    scores = pd.read_parquet(place(study, "scores.parquet"))
    listing = pd.read_csv(place(study, "measures.csv"), keep_default_na=False)
    for column in table(study, "primary")["measure"]:
        named = listing[listing["column"] == column]
        if len(named):
            measure, variant = named.iloc[0][["measure", "variant"]]
            chosen = scores["measure"].eq(measure)
            chosen &= scores["variant"].fillna("").eq(variant)
            values = scores[chosen].set_index("model_id")["value"]
            models[column] = models["model_id"].map(values)
    models["log_loss"] = np.log(models["train_loss"])
    return models


def r(x, y):
    """Pearson's correlation by sums."""
    x = [value - sum(x) / len(x) for value in x]
    y = [value - sum(y) / len(y) for value in y]
    products = sum(a * b for a, b in zip(x, y, strict=True))
    return products / math.sqrt(sum(a * a for a in x) * sum(b * b for b in y))


def dummies(models, names):
    columns = []
    for name in names:
        for level in sorted(models[name].unique())[1:]:
            columns.append((models[name] == level).to_numpy(float))
    return columns


def left_over(values, columns):
    """Residuals of least squares on columns and an intercept."""
    x = np.column_stack([np.ones(len(values)), *columns])
    return values - x @ np.linalg.lstsq(x, values, rcond=None)[0]


def ridge(x, y, penalty):
    """Intercept, which is not penalised, and slopes."""
    x = np.column_stack([np.ones(len(x)), x])
    weights = np.diag([0.0] + [penalty] * (x.shape[1] - 1))
    return np.linalg.solve(x.T @ x + weights, x.T @ y)


def predict(known, gap, new):
    """Ridge whose penalty errs least when each network in turn is left out."""
    mean = known.mean(0)
    spread = known.std(0)
    spread = np.where(spread > 0, spread, 1)
    known = (known - mean) / spread
    new = (new - mean) / spread
    errors = []
    for penalty in PENALTIES:
        squares = 0.0
        for out in range(len(gap)):
            rest = np.arange(len(gap)) != out
            fitted = ridge(known[rest], gap[rest], penalty)
            squares += (gap[out] - fitted[0] - known[out] @ fitted[1:]) ** 2
        errors.append(squares)
    fitted = ridge(known, gap, PENALTIES[int(np.argmin(errors))])
    return fitted[0] + new @ fitted[1:]


def columns_of(models, predictor):
    fit = [models["train_accuracy"].to_numpy(), models["log_loss"].to_numpy()]
    if predictor == "hyperparameters":
        columns = []
        for name in HYPERPARAMETERS:
            levels = models[name].unique() if name in models else []
            # Of two levels one indicator says all; of more each level has one.
            for level in levels[1:] if len(levels) == 2 else levels:
                columns.append((models[name] == level).to_numpy(float))
        return np.column_stack(columns)
    if predictor == "training":
        return np.column_stack(fit)
    return np.column_stack([*fit, models[predictor].to_numpy()])


@pytest.fixture(scope="module")
def studies():
    return {study: networks(study) for study in STUDIES}


@pytest.mark.parametrize("study", STUDIES)
def test_correlations_are_those_of_catalogue_and_scores(studies, study):
    models = studies[study]
    gap = models["train_accuracy"] - models["test_accuracy"]
    fit = [models["train_accuracy"].to_numpy(), models["log_loss"].to_numpy()]
    rows = table(study, "primary").set_index("measure")
    start = models["pretrained"].astype(float)
    assert rows.loc["pretrained", "r_gap"] == pytest.approx(r(start, gap), abs=1e-6)
    compared = 0
    for name in rows.index[~rows["baseline"]]:
        values = models[name]
        row = rows.loc[name]
        assert row["r_gap"] == pytest.approx(r(values, gap), abs=1e-6)
        against = r(values, models["test_accuracy"])
        assert row["r_test_accuracy"] == pytest.approx(against, abs=1e-6)
        # The start held fixed: the mean of either start is taken from both.
        x = values - values.groupby(start).transform("mean")
        y = gap - gap.groupby(start).transform("mean")
        assert row["r_gap_given_start"] == pytest.approx(r(x, y), abs=1e-6)
        if models["kind"].is_unique:  # then nothing is left within kinds
            assert math.isnan(row["r_gap_within_kinds"])
            compared += 4
            continue
        held = [*dummies(models, ["kind"]), *fit]
        within = r(left_over(values, held), left_over(gap, held))
        assert row["r_gap_within_kinds"] == pytest.approx(within, abs=1e-6)
        compared += 4
    assert compared == 32


@pytest.mark.parametrize(
    ("study", "drop", "overlap"),
    [
        ("kinds20", (0.95, 0.92, 0.50), (-0.89, -0.95, -0.74)),
        ("filled20", (0.90, 0.88, 0.44), (-0.74, -0.91, -0.59)),
        ("kinds24", (0.76, 0.63, 0.57), (-0.66, -0.71, -0.57)),
    ],
)
def test_drop_and_overlap_are_those_of_another_analysis(study, drop, overlap):
    if study not in STUDIES:
        pytest.skip(f"{study} is not among the reports")
    given = ["train_accuracy", "start_and_training"]
    columns = ["r_gap", *(f"r_gap_given_{name}" for name in given)]
    rows = table(study, "primary").set_index("measure")[columns]
    assert rows.loc["drop"].tolist() == pytest.approx(drop, abs=0.0051)
    assert rows.loc["area_matched_iou"].tolist() == pytest.approx(overlap, abs=0.0051)


def test_few_arrangements_give_the_exact_p():
    """Six orders of three settings: 1/6, 2/6 and 3/6, by refitting each."""
    if "kinds20" not in STUDIES:
        pytest.skip("kinds20 is not among the reports")
    models = networks("kinds20")
    settings = models[SETTING].astype(str).agg(" ".join, axis=1)
    places = [np.flatnonzero(settings == one) for one in sorted(settings.unique())]
    assert [len(part) for part in places] == [10, 10, 10]
    held = [
        *dummies(models, ["kind"]),
        models["train_accuracy"].to_numpy(),
        models["log_loss"].to_numpy(),
    ]
    rest = left_over(models["gap"].to_numpy(), held)
    rows = table("kinds20", "primary").set_index("measure")
    exact = {}
    for name in rows.index[~rows["baseline"]]:
        x = left_over(models[name].to_numpy(), held)
        values = []
        for order in itertools.permutations(range(3)):
            moved = np.empty(len(models))
            for place, source in enumerate(order):
                moved[places[place]] = rest[places[source]]
            values.append(r(x, left_over(moved, held)))
        away = np.abs(np.array(values) - np.mean(values))
        exact[name] = int((away >= away[0] - 1e-9).sum())
        p = rows.loc[name, "r_gap_within_kinds_p"]
        assert p == pytest.approx(exact[name] / 6, abs=1e-7), name
        least = rows.loc[name, "r_gap_within_kinds_least_p"]
        assert least == pytest.approx(1 / 6, abs=1e-7)
    assert exact["area_matched_iou"] == 1
    assert exact["pointing_game"] == 2
    assert exact["mixup_accuracy"] == 3


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize(
    "predictor", ["hyperparameters", "training", "area_matched_iou"]
)
def test_errors_of_held_out_kinds_are_those_of_refits(studies, study, predictor):
    models = studies[study]
    gap = models["gap"].to_numpy()
    columns = columns_of(models, predictor)
    twins = models["kind"].str.partition(" ")[2]  # without the architecture
    errors = np.empty(len(models))
    for one in twins.unique():
        out = (twins == one).to_numpy()
        new = predict(columns[~out], gap[~out], columns[out])
        errors[out] = 100 * np.abs(new - gap[out])
    rows = table(study, "primary").set_index("measure")
    mean = errors.mean()
    assert rows.loc[predictor, "error_with_twins"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.skipif(len(STUDIES) < 2, reason="one study predicts no other")
@pytest.mark.parametrize(
    "predictor", ["hyperparameters", "training", "area_matched_iou"]
)
def test_errors_on_the_other_study_are_those_of_ridge_by_refits(studies, predictor):
    for judged, trained in (("kinds20", "filled20"), ("filled20", "kinds20")):
        both = pd.concat([studies[trained], studies[judged]], ignore_index=True)
        is_new = np.arange(len(both)) >= len(studies[trained])
        columns = columns_of(both, predictor)
        gap = both["gap"].to_numpy()
        new = predict(columns[~is_new], gap[~is_new], columns[is_new])
        error = 100 * np.abs(new - gap[is_new]).mean()
        rows = table(judged, "across").set_index("measure")
        assert set(rows["trained_on"]) == {trained}
        value = rows.loc[predictor, "error_points"]
        assert value == pytest.approx(error, abs=1e-5)


@pytest.mark.parametrize("study", STUDIES)
def test_pairs_differ_in_the_optimizer_alone(studies, study):
    models = studies[study]
    alike = ["kind", "learning_rate", "weight_decay", "batch_size"]
    changes = {}
    for one, other in itertools.permutations(models.to_dict("records"), 2):
        optimizers = (one["optimizer"], other["optimizer"])
        if optimizers == ("sgd", "adam") and all(one[k] == other[k] for k in alike):
            change = [other[name] - one[name] for name in ("gap", "area_matched_iou")]
            changes.setdefault(one["kind"], []).append(change)
    rows = table(study, "pairs").set_index("kind")
    assert set(rows.index) == set(changes)
    for kind, values in changes.items():
        gap, overlap = np.mean(values, axis=0)
        row = rows.loc[kind]
        assert row["pairs"] == len(values)
        assert row["gap"] == pytest.approx(gap, abs=1e-7)
        assert row["area_matched_iou"] == pytest.approx(overlap, abs=1e-7)
        assert gap * overlap < 0  # as the answer says of every kind


@pytest.mark.parametrize("study", STUDIES)
def test_named_results_are_those_of_the_table(study):
    path = REPORTS / study / "04_baselines/results.json"
    results = {item["name"]: item for item in json.loads(path.read_text())}
    rows = table(study, "primary").set_index("measure")
    errors = rows.loc[rows["baseline"].astype(bool), "error_with_twins"]
    assert rows["best_baseline"].dropna().unique().tolist() == [errors.idxmin()]
    for name in ("area_matched_iou", "drop"):
        item = results[f"r_{name}_gap"]
        row = rows.loc[name]
        ends = [row["r_gap"], row["r_gap_low"], row["r_gap_high"]]
        values = np.array([item[key] for key in ("value", "low", "high")], float)
        assert values == pytest.approx(ends, abs=1e-6, nan_ok=True)
        error = results[f"error_{name}"]["value"]
        assert error == pytest.approx(row["error_with_twins"], abs=1e-5)

"""The empty case: no networks, no measures, equal gaps, tables without rows."""

import warnings

import numpy as np
import pandas as pd
import pytest

from helpers.measures import perturbation
from helpers.scores.values import in_columns
from helpers.statistics import beyond, correlate, gap_tables, primary, verdicts
from helpers.statistics.claims import check_claims
from helpers.statistics.correlate import Bootstrap
from tests.report import made

CLAIMS = check_claims(
    [{"claim": "x", "measure": "iou", "question": "r_gap", "side": "below"}]
)
AXES = ["pretrained", "learning_rate"]
MEASURES = list(made.TITLES)
MODELS = correlate.with_log_train_loss(made.measures(made.catalogue()).iloc[::3])
CASES = {
    "all gaps are equal": (MODELS.assign(gap=0.0), MEASURES),
    "no network": (MODELS.iloc[:0], MEASURES),
    "no network, no measure": (MODELS.iloc[:0], []),
    "no measure": (MODELS, []),
    "one network": (MODELS.iloc[:1], MEASURES),
    "undefined measures": (MODELS.assign(**dict.fromkeys(MEASURES, np.nan)), MEASURES),
    "constant measures": (MODELS.assign(**dict.fromkeys(MEASURES, 0.3)), MEASURES),
}


@pytest.mark.parametrize("case", CASES)
def test_no_reader_of_notebook_04_fails_or_warns(case):
    models, measures = CASES[case]
    directions = dict.fromkeys(measures, 1)
    every = Bootstrap(models, draws=5)
    rows = models[primary.primary_rows(models)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn = Bootstrap(rows, draws=5)
        stated = primary.primary_table(drawn, measures, permutations=9)
        kinds = gap_tables.kinds_table(rows)
        field = gap_tables.ranking_table(every, measures, AXES, permutations=9)
        gates = verdicts.condition_table(rows, models, classes=4, of_measures={})
        for claims in ([], CLAIMS):
            verdicts.verdict_table(claims, stated, field, gates)
        gap_tables.correlation_table(every, measures, [0.9, 0.8])
        gap_tables.selection_table(every, directions, [0.9, 0.8])
        few = {"permutations": 9}
        beyond.conditional_table(every, directions, AXES, test_images=100, **few)
        beyond.task_table(models, measures, AXES, "architecture", **few, seed=0)
        gap_tables.confounders(every, measures, AXES)
    stated = stated[~stated["baseline"]]
    assert len(stated) == len(field) == len(measures)
    assert len(kinds) == rows["kind"].nunique()
    if case != "no measure" and len(kinds):
        undefined = "equal" in case or "one" in case
        assert kinds["variance_between_kinds"].isna().all() == undefined
        assert stated["r_gap"].isna().all()


@pytest.mark.parametrize("rows", [0, 2])
def test_scores_without_perturbations_have_no_curves(rows):
    scores = in_columns(pd.DataFrame({"measure": ["iou"] * rows, "value": 0.1}))
    curves = perturbation.curves_of(scores.assign(model_id="m"))
    assert list(curves) == ["model_id", "perturbation", "alpha", "accuracy"]
    assert len(curves) == 0

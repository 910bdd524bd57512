"""Tables of committed reports, from catalogue and scores by the functions of today.

``tests/test_primary_numbers.py`` holds the same tables against plain loops. Intervals
need values of single images, which ``tests/scores/test_published_records.py`` has.
"""

import json

import numpy as np
import pandas as pd
import pytest

from helpers.checkpoints.calibration import errors_across_studies, published_models
from helpers.files import PROJECT_ROOT, table_of
from helpers.measures import registry
from helpers.statistics import gap_tables, primary
from helpers.statistics.correlate import Bootstrap, with_log_train_loss
from helpers.statistics.verdicts import numbers_of_primary
from helpers.training.config import AXES

REPORTS = PROJECT_ROOT / "reports"
STUDIES = {"kinds20": ["filled20"], "kinds24": ["kinds20", "filled20"]}
OF_IMAGES = ("_low", "_high", "_smallest", "images", "reliability")


def committed(study, name):
    path = table_of(REPORTS / study, f"{name}.csv")
    if not path.is_file():
        pytest.skip(f"{study} has no {name}")
    return pd.read_csv(path)


def same(ours, theirs, keys):
    """Rows of equal keys have equal numbers, but for those that need images."""
    columns = ours.columns.intersection(theirs.select_dtypes("number").columns)
    numbers = [
        name for name in columns.difference(keys) if not name.endswith(OF_IMAGES)
    ]
    ours, theirs = (table.set_index(keys)[numbers] for table in (ours, theirs))
    assert theirs.index.isin(ours.index).all()
    for name in numbers:
        # Tables have eight digits, which decide ties among permutations.
        tolerance = 5e-4 if name.endswith(("_p", "_p_adjusted")) else 1e-5
        pair = ours.loc[theirs.index, name].astype(float), theirs[name].astype(float)
        np.testing.assert_allclose(*pair, rtol=0, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module", params=STUDIES)
def study(request):
    models = published_models(REPORTS / request.param)
    models = models[models["left_out"].isna()].reset_index(drop=True)
    return request.param, with_log_train_loss(models)


def test_primary_tables(study):
    name, models = study
    theirs = committed(name, "primary")
    networks = models[primary.primary_rows(models)].reset_index(drop=True)
    measures = theirs.loc[~theirs["baseline"], "measure"].tolist()
    looks = round(0.05 / (1 - theirs["level"][0]))
    drawn = Bootstrap(networks)
    ours = primary.primary_table(drawn, measures, permutations=4999, looks=looks)
    same(ours, theirs, ["measure"])
    assert ours["best_baseline"].equals(theirs["best_baseline"])
    results = json.loads((REPORTS / name / "04_baselines/results.json").read_text())
    results = {result["name"]: result["value"] for result in results}
    for number, value, *_ in numbers_of_primary(theirs):
        assert results[number] == pytest.approx(value, rel=1e-6)
    same(gap_tables.kinds_table(networks), committed(name, "kinds"), ["kind"])
    pairs = gap_tables.optimizer_pairs(networks, ["gap", *measures])
    same(pairs, committed(name, "pairs"), ["kind"])
    titles = dict.fromkeys(measures, "")
    others = [name, *STUDIES[name]]
    across = errors_across_studies(networks, name, others, REPORTS, titles)
    assert name not in [*across["trained_on"]]
    same(across, committed(name, "across"), ["trained_on", "measure"])


def test_tables_of_all_measures(study):
    name, models = study
    bootstrap = Bootstrap(models, draws=9)
    varied = primary.varied_axes(models, AXES)
    theirs = committed(name, "measures_ranking")
    measures = [measure for measure in registry.ranked() if measure in models]
    ours = gap_tables.ranking_table(bootstrap, measures, varied, permutations=4999)
    same(ours, theirs, ["measure"])

"""Networks are measured once, on the same images; a measure of a cell like any other."""

import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from helpers.data.images import images_of_study
from helpers.files import PROJECT_ROOT
from helpers.measures import evidence, registry
from helpers.measures.evidence import MeasureSettings
from helpers.scores import measuring
from helpers.scores.measuring import NOT_RECORDED
from helpers.scores.models import models_of
from helpers.scores.store import NotInRecords, Store
from helpers.study import Study

SETTINGS = MeasureSettings()
FAMILIES = ["localization", "prediction"]
CELL = """
from helpers.measures.registry import measure, provides

POWER = 2

def powered(values):
    return values**POWER

@provides
def largest(probabilities):
    return probabilities.amax(1)

@measure("prediction", 1, "this notebook")
def squared_confidence(largest):
    \"\"\"Mean of the squared largest probability.\"\"\"
    return float(powered(largest).mean())
"""


@pytest.fixture
def lists(monkeypatch):
    """Lists of measures and providers that a test may add to."""
    monkeypatch.setattr(registry, "MEASURES", dict(registry.MEASURES))
    monkeypatch.setattr(registry, "SOURCES", dict(registry.SOURCES))


def test_scores_are_means_of_values_of_images(study, store, networks, scored_on):
    records = measuring.score(store, networks, FAMILIES, SETTINGS, scored_on)
    rows = study.table[study.table["snapshot"] != "none"]
    joined = measuring.with_measures(rows, records.scores())
    right = records.of_images("localization")["correct"].mean(1)
    np.testing.assert_allclose(right, joined["training_accuracy"])
    for family in FAMILIES:
        values = records.of_images(family)
        for name in set(values) & set(joined):
            assert values[name].shape == (2, len(scored_on.rows))
            means = np.nanmean(values[name], axis=1)
            np.testing.assert_allclose(means, joined[name], atol=2e-3, err_msg=name)


def test_every_setting_that_a_measure_reads_decides_its_family():
    """A setting that is left out would leave values of other settings in place."""
    names = {*MeasureSettings.__dataclass_fields__} - {*evidence.INPUTS}
    for family, decisive in measuring.DECISIVE.items():
        needed = {item.name for item in registry.measures_of_families([family])}
        waiting = list(needed)
        while waiting:
            source = registry.SOURCES.get(waiting.pop())
            further = {*registry.needs(source)} - needed if source else set()
            needed |= further
            waiting += further
        of_pass = {"cam_method"}  # that the pass makes maps for localization alone
        assert (needed & names) - of_pass <= set(decisive), family


def test_other_processes_get_a_measure_of_a_cell(lists, study, scored_on, tmp_path):
    """Of the module ``__main__``, which other processes have without the cell."""
    exec(CELL, {"__name__": "__main__"})
    for name in ("cache", "data.json", "runs"):
        (tmp_path / name).symlink_to(study.work / name)
    models = models_of(tmp_path, study.table, study.data)
    store = Store(tmp_path, partial(images_of_study, tmp_path), jobs=2)
    records = measuring.score(store, models, ["prediction"], SETTINGS, scored_on)
    scores = records.scores()
    of_cell = scores[scores["measure"] == "squared_confidence"]
    assert len(of_cell) == 2 and of_cell["value"].between(1 / 9, 1).all()
    table = pd.read_parquet(tmp_path / "scores")
    assert "squared_confidence" not in set(table["measure"])
    joined = measuring.with_measures(study.table, scores)
    assert joined["squared_confidence"].notna().sum() == 2


def test_a_model_without_weights_is_told_others_kept(study, scored_on, tmp_path):
    for name in ("cache", "data.json"):
        (tmp_path / name).symlink_to(study.work / name)
    _, second = study.table.loc[study.table["snapshot"] != "none", "run_id"]
    shutil.copytree(study.work / "runs" / second, tmp_path / "runs" / second)
    models = models_of(tmp_path, study.table, study.data)
    store = Store(tmp_path, lambda: study.data, jobs=1)
    with pytest.raises(NotInRecords, match="lack prediction of 1 of 2 models"):
        measuring.score(store, models, ["prediction"], SETTINGS, scored_on)
    (kept,) = tmp_path.glob("scores/*.parquet")
    assert kept.stem == f"{second}@stop"


def test_a_measure_of_maps_alone_is_scored_from_records(lists, tmp_path):
    """Of a published study there are neither pixels nor weights."""
    if not (PROJECT_ROOT / "reports/filled20/records").is_dir():
        pytest.skip("the published study filled20 is not here")

    @registry.measure("localization", 1, "this test")
    def mean_of_maps(maps):
        """Mean of the maps, in [0, 1]."""
        return float(maps.mean())

    @registry.measure("localization", 1, "this test")
    def mean_of_logits(logits):
        """Mean of all logits."""
        return float(logits.mean())

    study = Study.open("filled20", work_dir=str(tmp_path), device="cpu")
    study.models = study.models[:2]
    scored_on = study.scoring_set()
    measured = study.measure(["localization"], MeasureSettings(), scored_on)
    model_id = measured.models["model_id"].iloc[0]
    maps = measured.records.record("localization", model_id)["maps"]
    assert measured.models["mean_of_maps"].iloc[0] == pytest.approx(maps.mean() / 255)
    assert measured.models["mean_of_logits"].isna().all()
    reasons = measured.undefined().set_index("measure")["reason"]
    assert reasons["mean_of_logits"] == NOT_RECORDED


def test_a_measure_of_weights_of_gone_networks(lists, study, tmp_path, scored_on):
    """Their singular values are recorded."""
    work = tmp_path / study.work.name
    shutil.copytree(study.work, work)
    store = Store(work, partial(images_of_study, work), jobs=1)
    models = models_of(work, study.table, study.data)[:1]
    measuring.score(store, models, ["norms"], SETTINGS, scored_on)

    @registry.measure("norms", -1, "this test")
    def widest(singular_values):
        """Sum of the largest singular values."""
        return sum(values.max() for values in singular_values.values())

    def measured(models):
        scores = measuring.score(store, models, ["norms"], SETTINGS, scored_on).scores()
        return scores.set_index("measure")["value"]["widest"]

    here = measured(models)
    gone = replace(models[0], at_hand=False)
    assert here > 0
    assert measured([gone]) == pytest.approx(here, rel=1e-6)

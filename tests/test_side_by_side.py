from dataclasses import replace

import pandas as pd
import pytest
from conftest import TINY_SCENES

from helpers import measures, model_set, scoring, side_by_side
from helpers.checkpoints import snapshot_path
from helpers.datasets import load_study_data
from helpers.grid import RunConfig
from helpers.training import train_run

SETTINGS = measures.Settings()


@pytest.fixture
def study(tmp_path):
    arguments = TINY_SCENES | {"cache_dir": tmp_path / "cache"}
    data = load_study_data(**arguments)
    run = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1)
    for config in (run, replace(run, repeat=1), replace(run, learning_rate=1e30, optimizer="sgd")):
        train_run(config, data, model_set.run_folder(tmp_path, config))
    return tmp_path, arguments, model_set.catalogue(tmp_path)


def score(study, jobs):
    work, arguments, table = study
    return list(side_by_side.score_side_by_side(work, table, arguments, ["prediction"], SETTINGS, device="cpu", jobs=jobs))


def test_two_processes_give_the_scores_of_one_and_nothing_is_scored_twice(study, tmp_path_factory, monkeypatch):
    work, arguments, table = study
    assert sorted(score(study, 2)) == sorted(table.loc[table["snapshot"] != "none", "model_id"])
    side = scoring.load_scores(work, table, ["prediction"], SETTINGS)
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", lambda *given, **named: pytest.fail("scored again"))
    assert len(score(study, 2)) == 2
    other = tmp_path_factory.mktemp("other")
    (other / "runs").symlink_to(work / "runs")
    assert len(score((other, arguments, table), 1)) == 2
    alone = scoring.load_scores(other, table, ["prediction"], SETTINGS)
    pd.testing.assert_frame_equal(side.drop(columns="seconds"), alone.drop(columns="seconds"), rtol=1e-5)


def test_a_model_that_cannot_be_loaded_is_named_and_the_others_are_scored(study):
    work, _, table = study
    first, second = table.loc[table["snapshot"] != "none", "model_id"]
    snapshot_path(model_set.run_folder(work, first.split("@")[0]), "stop").unlink()
    with pytest.raises(RuntimeError, match=rf"1 of 2 models could not be scored; the others are complete. {first}: FileNotFoundError"):
        score(study, 2)
    assert set(scoring.load_scores(work, table, ["prediction"], SETTINGS)["model_id"]) == {second}

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import kendalltau

from helpers.data import manifest
from helpers.data.images import load_study_data
from helpers.measures.registry import MEASURES
from helpers.measures.transforms import TRANSFORMS
from helpers.scoring import invariance
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES


def test_targets_are_measured_once_on_the_test_images(tmp_path, monkeypatch):
    data = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "cache")
    run = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1)
    for config in (run, replace(run, learning_rate=1e30, optimizer="sgd")):
        train_run(config, data, catalogue.run_folder(tmp_path, config))
    table = catalogue.read_catalogue(tmp_path)
    (model,) = invariance.keep_targets(tmp_path, table, data, 3, "cpu")
    joined = invariance.with_targets(tmp_path, table, 3).set_index("model_id")
    columns = [invariance.target_column(name) for name in TRANSFORMS]
    assert joined.loc[model, columns].between(0, 1).all()
    assert joined.drop(index=model)[columns].isna().all(axis=None)
    assert invariance.with_targets(tmp_path, table, 3, "svhn")[columns].isna().all(axis=None)  # kept apart from other ranges
    monkeypatch.setattr(invariance, "invariance_targets", lambda *given: pytest.fail("measured again"))
    assert list(invariance.keep_targets(tmp_path, table, data, 3, "cpu")) == [model]


def test_targets_of_two_processes_are_those_of_one(tmp_path):
    data = manifest.choose_images(tmp_path, **TINY_SCENES)
    run = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1)
    for config in (run, replace(run, repeat=1)):
        train_run(config, data, catalogue.run_folder(tmp_path, config))
    table = catalogue.read_catalogue(tmp_path)
    found = []
    for jobs in (1, 2):
        shutil.rmtree(tmp_path / "scores", ignore_errors=True)
        assert len(list(invariance.keep_targets(tmp_path, table, data, 3, "cpu", jobs=jobs))) == 2
        found.append(invariance.with_targets(tmp_path, table, 3))
    pd.testing.assert_frame_equal(*found)


def test_a_predictor_is_scored_against_the_accuracy_it_predicts():
    rng = np.random.default_rng(1)
    n = 24
    table = pd.DataFrame({"cell": np.arange(n) // 2, "a": np.arange(n) % 3, "b": np.arange(n) % 2, "gap": rng.random(n)})
    for name in TRANSFORMS:
        target = rng.random(n)
        table[invariance.target_column(name)] = target
        table[MEASURES["accuracy_under_augmentation"].column(name)] = target
        table[MEASURES["gi_score"].column(name)] = target  # grows with the accuracy, the other way than promised
        table[MEASURES["curve_mean"].column(name)] = rng.random(n)
    found = invariance.invariance_table(table, ["a", "b"], resamples=30, seed=0).set_index(["perturbation", "predictor"])
    for name in TRANSFORMS:
        assert found.loc[(name, "accuracy under augmentation"), "kendall"] == pytest.approx(1)
        assert found.loc[(name, "Gi-score"), ["kendall", "direction"]].tolist() == pytest.approx([1, -1])
        tau = kendalltau(table[MEASURES["curve_mean"].column(name)], table[invariance.target_column(name)]).statistic
        row = found.loc[(name, "mean of the curve")]
        assert row["kendall"] == pytest.approx(tau)
        assert row["low"] < row["kendall"] < row["high"]
        assert 0 <= row["information"] < found.loc[(name, "accuracy under augmentation"), "information"]
    assert len(found) == 3 * len(TRANSFORMS)
    undefined = invariance.invariance_table(table.iloc[:2], [], resamples=5, seed=0)
    assert undefined["kendall"].isna().all()

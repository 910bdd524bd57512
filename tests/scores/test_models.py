"""Models are scored once, on the same images, whatever they were fitted to; values of single images lie beside the scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

from helpers.scores import classification, models
from helpers.scores.scoring_set import scoring_set
from helpers.training import catalogue
from helpers.training.config import config_from
from helpers.training.run import images_of_run, train_run


def test_models_are_rows_with_a_snapshot_and_know_their_images(study, networks):
    rows = study.table[study.table["snapshot"] != "none"]
    assert [str(model) for model in networks] == rows["model_id"].tolist()
    assert sorted(model.training_images for model in networks) == [48, 49]
    assert models.models_of(study.work, study.table[:0], study.data) == []
    network = networks[0].load("cpu")
    assert not network.training
    run = study.work / "runs" / networks[0].facts["run_id"]
    saved = safetensors.torch.load_file(run / "snapshot-stop.safetensors")
    assert torch.equal(network.fc.weight, saved["fc.weight"])


def test_right_test_images_give_the_test_accuracy(study, store, networks):
    tested = classification.test_logits(store, networks, study.data)
    right = classification.correct(tested, study.data.test.labels)
    expected = study.table["test_accuracy"].dropna()
    np.testing.assert_allclose(right.mean(1), expected, atol=1e-6)


def test_the_set_is_what_all_runs_share_in_one_order(study, scored_on):
    rows = study.table[study.table["snapshot"] != "none"].to_dict("records")
    both = [set(images_of_run(study.data, config_from(row))[0].names) for row in rows]
    images = scored_on.images_of(study.data)
    assert set(images.names) == both[0] & both[1]
    assert scored_on.shared == len(both[0] & both[1])
    for count in range(len(scored_on.rows) // 3):
        first = images.labels[: 3 * count].bincount(minlength=3)
        assert first.tolist() == [count] * 3
    few = scoring_set(study.table, study.data, 7)
    with pytest.raises(ValueError, match="scored_images is 1, and the study has 3"):
        scoring_set(study.table, study.data, 1)
    assert few.rows == scored_on.rows[:7]
    assert few.name.split("-")[1] != scored_on.name.split("-")[1]
    assert torch.equal(images.labels, study.data.train.labels[list(scored_on.rows)])
    for runs in (study.table, study.table.iloc[::-1]):
        assert scoring_set(runs, study.data) == scored_on
        # One of the two holds nothing out.
        assert scoring_set(runs.assign(images_per_class=0), study.data).shared == 49
    assert len(scoring_set(study.table[:0], study.data).rows) == 54
    # Noisy labels of a run are not those of the data set.
    assert scoring_set(study.table.assign(label_noise=0.5), study.data) == scored_on


def test_runs_that_share_too_few_images_are_refused(study):
    with pytest.raises(ValueError, match=r"\d images of the class synthetic_\w+"):
        scoring_set(study.table.assign(images_per_class=5), study.data)


def test_the_initial_network_is_that_of_the_run(study, networks, tmp_path):
    start = networks[0].initial()
    # Nothing but batch-norm statistics moves.
    config = replace(config_from(networks[0].facts), learning_rate=1e-30)
    train_run(config, study.data, tmp_path / "run")
    trained = safetensors.torch.load_file(tmp_path / "run/snapshot-stop.safetensors")
    assert torch.equal(trained["layer1.0.conv1.weight"], start.layer1[0].conv1.weight)
    lost = study.table.assign(pretrained=True, weights="unknown")
    assert models.models_of(study.work, lost, study.data)[0].initial() is None


def test_a_run_folder_of_an_earlier_version_stays_readable():
    """Written by the version before this one: names of files and fields are a contract."""
    work = Path(__file__).parents[1] / "fixtures/earlier"
    table = catalogue.read_catalogue(work)
    assert table["snapshot"].tolist() == ["first", "stop"]
    for row in table.to_dict("records"):
        assert catalogue.load_network(work, row, 3).fc.weight.shape == (3, 32)
    histories = catalogue.histories(work, table["run_id"].unique())
    assert len(histories) == table["epochs"].iloc[0]

from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from helpers import files, measures
from helpers.cams import overlap
from helpers.data import manifest
from helpers.data.dataset import load_study_data
from helpers.measures import evidence
from helpers.measures.passes import forward_pass
from helpers.networks import resnet
from helpers.scoring import look, models
from helpers.scoring.models import folder_name, initial_network, load_scores, model_images, score_missing, with_measures
from helpers.training import catalogue, pretraining
from helpers.training.config import RunConfig, config_from
from helpers.training.run import train_run
from helpers.training.state import snapshot_path
from tests.conftest import TINY_SCENES

LOOK = {"method": "grad_cam", "threshold": 0.1, "device": "cpu"}


SETTINGS = evidence.MeasureSettings()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = load_study_data(**TINY_SCENES, cache_dir=work / "cache")
    base = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1, images_per_class=5
    )
    for run in (base, replace(base, images_per_class=0), replace(base, learning_rate=1e30, optimizer="sgd")):
        train_run(run, data, catalogue.run_folder(work, run))
    return work, data, catalogue.read_catalogue(work)


def test_each_model_is_scored_once_on_the_images_it_was_fitted_to(study, monkeypatch):
    work, data, table = study
    assert set(table["snapshot"]) == {"stop", "none"}
    scored = list(score_missing(work, table, data, ["localization"], SETTINGS, device="cpu"))
    assert len(scored) == (table["snapshot"] != "none").sum() == 2
    joined = with_measures(table, load_scores(work, table, ["localization"], SETTINGS))
    assert sorted(joined["images_scored"].dropna()) == [15, 36]
    assert np.isnan(joined.loc[joined["snapshot"] == "none", "iou"]).all()
    monkeypatch.setattr(measures, "score", lambda *given, **named: pytest.fail("scored again"))
    assert list(score_missing(work, table, data, ["localization"], SETTINGS, device="cpu")) == scored


def test_another_threshold_is_another_score_and_a_setting_of_other_families_is_none(study):
    same, other = (replace(SETTINGS, **change) for change in ({"flatness_draws": 3}, {"cam_threshold": 0.5}))
    assert folder_name("localization", same) == folder_name("localization", SETTINGS)
    assert folder_name("localization", other) != folder_name("localization", SETTINGS)
    work, _, table = study
    assert len(load_scores(work, table, ["localization"], other)) == 0


def test_the_steps_of_one_image_give_the_score_of_that_image(study):
    work, data, table = study
    model = table[table["snapshot"] == "stop"].iloc[0]
    images = model_images(model, data)
    network = catalogue.load_model(work, model, 3)
    example = resnet.normalise_images(images.images[:1])
    seen = forward_pass(network, images, resnet.normalise_images, "cpu", example, "grad_cam", 256)
    per_image = overlap.image_scores(seen.maps, images.boxes, 16, 0.1)
    steps = look.steps(work, model, images.subset([3]), 3, **LOOK)
    assert steps.iou == pytest.approx(per_image["iou"][3], abs=1e-6)
    assert steps.iou_b == pytest.approx(per_image["iou_b"][3], abs=1e-6)
    assert steps.predicted == int(seen.logits[3].argmax())
    both = (steps.mask & steps.box_mask).sum() / (steps.mask | steps.box_mask).sum()
    assert steps.iou == pytest.approx(float(both), abs=1e-6)


def test_the_initial_network_is_the_one_that_a_run_began_with(study, tmp_path):
    work, data, table = study
    model = table[table["snapshot"] == "stop"].iloc[0]
    start = initial_network(work, model, 3)
    config = config_from(model)
    train_run(replace(config, learning_rate=0.0), data, tmp_path / "run")  # nothing but batch-norm statistics moves
    trained = safetensors.torch.load_file(tmp_path / "run/snapshot-stop.safetensors")
    assert torch.equal(trained["layer1.0.conv1.weight"], start.layer1[0].conv1.weight)
    assert initial_network(work, model.to_dict() | {"pretrained": True, "weights": "unknown"}, 3) is None


def test_overlays_show_images_that_all_models_were_fitted_to(study):
    work, data, table = study
    models = table[table["snapshot"] == "stop"]
    images = look.common_images(models, data, 3, seed=0)
    assert images.labels.sort().values.tolist() == [0, 1, 2]  # one of each class
    for _, model in models.iterrows():
        assert set(images.names) <= set(model_images(model, data).names)
    overlays = look.overlays(work, models, images, 3, **LOOK)
    assert overlays.heat.shape == (2, 3, 16, 16)
    one = look.steps(work, models.iloc[1], images.subset([2]), 3, **LOOK)
    assert float(overlays.ious[1, 2]) == pytest.approx(one.iou, abs=1e-6)


def test_pretraining_on_the_studys_classes_is_refused(study):
    with pytest.raises(ValueError, match=r"share the classes synthetic_disc; set pretrain_class_ids to other classes"):
        pretraining.check_disjoint(["synthetic_disc", "a"], ["b", "synthetic_disc"])
    pretraining.check_disjoint(["a"], ["b"])


def test_weights_made_on_the_spot_start_a_run_and_are_named_by_their_recipe(study, tmp_path):
    _, data, _ = study
    manifest.choose_images(tmp_path, **TINY_SCENES)
    changes = {"class_ids": ["synthetic_ring", "synthetic_star"], "images_per_class": 8}
    images = pretraining.choose_pretraining_images(tmp_path, data.classes["class_id"], **changes)
    assert (len(images.train), len(images.test)) == (2 * 8, 2 * TINY_SCENES["test_images_per_class"])
    assert manifest.of_study(tmp_path).fingerprint == data.fingerprint
    recipes = pretraining.recipes(["resnet18"], images.fingerprint, {"stem": "strided", "width": 0.125, "max_epochs": 1})
    with pytest.raises(RuntimeError, match="left no weights"):
        pretraining.made(recipes, tmp_path)
    assert len(list(pretraining.make(recipes, tmp_path, "cpu", 1))) == 1
    weights = pretraining.made(recipes, tmp_path)["resnet18"]
    assert weights.identity.startswith("resnet18-b64-lr0.001-adam")
    by_path = pretraining.found(weights.source, ["resnet18"])["resnet18"]
    assert len(by_path.identity) == 16
    run = RunConfig(
        "resnet18", 8, 0.0, "sgd", 0.0, False, True, data=data.fingerprint, weights=weights.identity, stem="strided", width=0.125
    )
    state = safetensors.torch.load_file(weights.source)
    pretraining.keep_starts({"resnet18": weights}, tmp_path)
    kept = initial_network(tmp_path, pd.Series(asdict(run)), 3)
    assert torch.equal(kept.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])
    train_run(replace(run, max_epochs=1), data, tmp_path / "run", pretrained=state)
    trained = safetensors.torch.load_file(tmp_path / "run/snapshot-stop.safetensors")
    assert torch.equal(trained["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])  # learning rate 0
    assert trained["fc.weight"].shape == (3, 64)


def test_provenance_names_versions_commit_and_device():
    assert files.versions(("torch", "no-such-package"))["no-such-package"] == "absent"
    assert files.versions(("torch",))["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert files.device_name("cpu").startswith("CPU")
    assert files.commit()


@pytest.fixture
def study_side_by_side(tmp_path):
    data = manifest.choose_images(tmp_path, **TINY_SCENES)
    run = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1)
    for config in (run, replace(run, repeat=1), replace(run, learning_rate=1e30, optimizer="sgd")):
        train_run(config, data, catalogue.run_folder(tmp_path, config))
    return tmp_path, catalogue.read_catalogue(tmp_path)


def score(study_side_by_side, jobs):
    work, table = study_side_by_side
    return list(models.score_side_by_side(work, table, ["prediction"], SETTINGS, device="cpu", jobs=jobs))


def test_two_processes_give_the_scores_of_one_and_nothing_is_scored_twice(study_side_by_side, tmp_path_factory, monkeypatch):
    work, table = study_side_by_side
    assert sorted(score(study_side_by_side, 2)) == sorted(table.loc[table["snapshot"] != "none", "model_id"])
    side = models.load_scores(work, table, ["prediction"], SETTINGS)
    monkeypatch.setattr(models, "ProcessPoolExecutor", lambda *given, **named: pytest.fail("scored again"))
    assert len(score(study_side_by_side, 2)) == 2
    other = tmp_path_factory.mktemp("other")
    for name in ("runs", "cache", "data.json"):
        (other / name).symlink_to(work / name)
    assert len(score((other, table), 1)) == 2
    alone = models.load_scores(other, table, ["prediction"], SETTINGS)
    pd.testing.assert_frame_equal(side.drop(columns="seconds"), alone.drop(columns="seconds"), rtol=1e-5)


def test_a_model_that_cannot_be_loaded_is_named_and_the_others_are_scored(study_side_by_side):
    work, table = study_side_by_side
    first, second = table.loc[table["snapshot"] != "none", "model_id"]
    snapshot_path(catalogue.run_folder(work, first.split("@")[0]), "stop").unlink()
    with pytest.raises(RuntimeError, match=rf"1 of 2 models could not be scored; the others are complete. {first}: FileNotFoundError"):
        score(study_side_by_side, 2)
    assert set(models.load_scores(work, table, ["prediction"], SETTINGS)["model_id"]) == {second}

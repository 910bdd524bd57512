from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
from conftest import TINY_SCENES

from helpers import localization, measures, model_set, pretraining, provenance, scoring
from helpers.datasets import load_study_data
from helpers.grid import RunConfig
from helpers.measures.passes import forward_pass
from helpers.training import train_run

LOOK = {"method": "grad_cam", "threshold": 0.1, "device": "cpu"}
SETTINGS = measures.Settings()


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = load_study_data(**TINY_SCENES, cache_dir=work / "cache")
    base = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1, images_per_class=5
    )
    for run in (base, replace(base, images_per_class=0), replace(base, learning_rate=1e30, optimizer="sgd")):
        train_run(run, data, model_set.run_folder(work, run))
    return work, data, model_set.catalogue(work)


def test_each_model_is_scored_once_on_the_images_it_was_fitted_to(study, monkeypatch):
    work, data, table = study
    assert set(table["snapshot"]) == {"stop", "none"}
    scored = list(scoring.score_missing(work, table, data, ["localization"], SETTINGS, device="cpu"))
    assert len(scored) == (table["snapshot"] != "none").sum() == 2
    joined = scoring.with_measures(table, scoring.load_scores(work, table, ["localization"], SETTINGS))
    assert sorted(joined["images_scored"].dropna()) == [15, 36]
    assert np.isnan(joined.loc[joined["snapshot"] == "none", "iou"]).all()
    monkeypatch.setattr(measures, "score", lambda *given, **named: pytest.fail("scored again"))
    assert list(scoring.score_missing(work, table, data, ["localization"], SETTINGS, device="cpu")) == scored


def test_another_threshold_is_another_score_and_a_setting_of_other_families_is_none(study):
    same, other = (replace(SETTINGS, **change) for change in ({"flatness_draws": 3}, {"cam_threshold": 0.5}))
    assert scoring.folder_name("localization", same) == scoring.folder_name("localization", SETTINGS)
    assert scoring.folder_name("localization", other) != scoring.folder_name("localization", SETTINGS)
    work, _, table = study
    assert len(scoring.load_scores(work, table, ["localization"], other)) == 0


def test_the_steps_of_one_image_give_the_score_of_that_image(study):
    work, data, table = study
    model = table[table["snapshot"] == "stop"].iloc[0]
    images = scoring.model_images(model, data)
    network = model_set.load_model(work, model, 3)
    example = scoring.models.normalise(images.images[:1])
    seen = forward_pass(network, images, scoring.models.normalise, "cpu", example, "grad_cam", 256)
    per_image = localization.image_scores(seen.maps, images.boxes, 16, 0.1)
    steps = scoring.steps(work, model, images.subset([3]), 3, **LOOK)
    assert steps.iou == pytest.approx(per_image["iou"][3], abs=1e-6)
    assert steps.iou_b == pytest.approx(per_image["iou_b"][3], abs=1e-6)
    assert steps.predicted == int(seen.logits[3].argmax())
    both = (steps.mask & steps.box_mask).sum() / (steps.mask | steps.box_mask).sum()
    assert steps.iou == pytest.approx(float(both), abs=1e-6)


def test_the_initial_network_is_the_one_that_a_run_began_with(study, tmp_path):
    work, data, table = study
    model = table[table["snapshot"] == "stop"].iloc[0]
    start = scoring.initial_network(work, model, 3)
    config = scoring.config_from(model)
    train_run(replace(config, learning_rate=0.0), data, tmp_path / "run")  # nothing but batch-norm statistics moves
    trained = safetensors.torch.load_file(tmp_path / "run/snapshot-stop.safetensors")
    assert torch.equal(trained["layer1.0.conv1.weight"], start.layer1[0].conv1.weight)
    assert scoring.initial_network(work, model.to_dict() | {"pretrained": True, "weights": "unknown"}, 3) is None


def test_overlays_show_images_that_all_models_were_fitted_to(study):
    work, data, table = study
    models = table[table["snapshot"] == "stop"]
    images = scoring.common_images(models, data, 3, seed=0)
    assert images.labels.sort().values.tolist() == [0, 1, 2]  # one of each class
    for _, model in models.iterrows():
        assert set(images.names) <= set(scoring.model_images(model, data).names)
    overlays = scoring.overlays(work, models, images, 3, **LOOK)
    assert overlays.heat.shape == (2, 3, 16, 16)
    one = scoring.steps(work, models.iloc[1], images.subset([2]), 3, **LOOK)
    assert float(overlays.ious[1, 2]) == pytest.approx(one.iou, abs=1e-6)


def test_pretraining_on_the_studys_classes_is_refused(study):
    with pytest.raises(ValueError, match=r"share the classes synthetic_disc; set pretrain_class_ids to other classes"):
        pretraining.check_disjoint(["synthetic_disc", "a"], ["b", "synthetic_disc"])
    pretraining.check_disjoint(["a"], ["b"])


def test_weights_made_on_the_spot_start_a_run_and_are_named_by_their_recipe(study, tmp_path):
    _, data, _ = study
    arguments = TINY_SCENES | {"class_ids": ["synthetic_ring", "synthetic_star"], "cache_dir": tmp_path / "cache"}
    images = pretraining.load(arguments, list(data.classes["class_id"]))
    recipes = pretraining.recipes(["resnet18"], images.fingerprint, {"stem": "strided", "width": 0.125, "max_epochs": 1})
    with pytest.raises(RuntimeError, match="left no weights"):
        pretraining.made(recipes, tmp_path)
    assert len(list(pretraining.make(recipes, tmp_path, arguments, "cpu", 1))) == 1
    weights = pretraining.made(recipes, tmp_path)["resnet18"]
    assert weights.identity.startswith("resnet18-b64-lr0.001-adam")
    by_path = pretraining.found(weights.source, ["resnet18"])["resnet18"]
    assert len(by_path.identity) == 16
    run = RunConfig(
        "resnet18", 8, 0.0, "sgd", 0.0, False, True, data=data.fingerprint, weights=weights.identity, stem="strided", width=0.125
    )
    state = safetensors.torch.load_file(weights.source)
    pretraining.keep_starts({"resnet18": weights}, tmp_path)
    kept = scoring.initial_network(tmp_path, pd.Series(asdict(run)), 3)
    assert torch.equal(kept.layer4[1].conv2.weight, state["layer4.1.conv2.weight"])
    train_run(replace(run, max_epochs=1), data, tmp_path / "run", pretrained=state)
    trained = safetensors.torch.load_file(tmp_path / "run/snapshot-stop.safetensors")
    assert torch.equal(trained["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])  # learning rate 0
    assert trained["fc.weight"].shape == (3, 64)


def test_provenance_names_versions_commit_and_device():
    assert provenance.versions(("torch", "no-such-package"))["no-such-package"] == "absent"
    assert provenance.versions(("torch",))["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert provenance.device_name("cpu").startswith("CPU")
    assert provenance.commit()

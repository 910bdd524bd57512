import os
import signal
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from helpers import files
from helpers.cams import overlap
from helpers.data import manifest
from helpers.data.images import load_study_data
from helpers.measures import evidence
from helpers.measures.passes import forward_pass
from helpers.networks import resnet
from helpers.scoring import classification, look, models, side_by_side
from helpers.scoring.common_set import ScoringSet, classes_in_turn, scoring_set
from helpers.scoring.models import initial_network, load_scores, score_missing, with_measures
from helpers.scoring.single_images import (
    correct_on_test,
    folder_name,
    image_values,
    kept_measures,
    read_image_values,
    save_image_values,
)
from helpers.training import catalogue, pretraining
from helpers.training.config import RunConfig
from helpers.training.run import images_of_run, train_run
from helpers.training.state import snapshot_path
from tests.conftest import TINY_SCENES

LOOK = {"method": "grad_cam", "threshold": 0.1, "device": "cpu"}


SETTINGS = evidence.MeasureSettings()


ALL = ScoringSet(tuple(range(36)), "36-all", 36)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = load_study_data(**TINY_SCENES, cache_dir=work / "cache")
    base = RunConfig(
        "resnet18",
        8,
        0.01,
        "adam",
        0.0,
        False,
        False,
        data=data.fingerprint,
        stem="strided",
        width=0.125,
        max_epochs=1,
        images_per_class=10,
    )
    base = replace(base, rule3_split="test")
    for run in (base, replace(base, images_per_class=0), replace(base, learning_rate=1e30, optimizer="sgd")):
        train_run(run, data, catalogue.run_folder(work, run))
    return work, data, catalogue.read_catalogue(work)


@pytest.fixture(scope="module")
def scored_on(study):
    _, data, table = study
    return scoring_set(table, data)


def test_models_of_different_training_size_are_scored_once_and_on_the_same_images(study, scored_on, monkeypatch):
    work, data, table = study
    assert set(table["snapshot"]) == {"stop", "none"}
    seen, compute = [], evidence.score_with_images

    def noted(items, given, *more):
        seen.append(given)
        return compute(items, given, *more)

    monkeypatch.setattr(evidence, "score_with_images", noted)
    scored = list(score_missing(work, table, data, scored_on, ["localization"], SETTINGS, device="cpu"))
    assert len(scored) == (table["snapshot"] != "none").sum() == 2
    assert seen[0]["images"].names == seen[1]["images"].names
    assert sorted(given["training_images"] for given in seen) == [30, 36]
    joined = with_measures(table, load_scores(work, table, scored_on, ["localization"], SETTINGS))
    assert joined["images_scored"].dropna().tolist() == [30, 30]
    assert np.isnan(joined.loc[joined["snapshot"] == "none", "iou"]).all()
    assert joined["whole_image_floor"].nunique() == 1
    assert list(score_missing(work, table, data, scored_on, ["localization"], SETTINGS, device="cpu")) == scored
    assert len(seen) == 2


def test_scores_are_the_means_of_the_values_of_single_images(study, scored_on):
    work, data, table = study
    list(score_missing(work, table, data, scored_on, ["localization", "prediction"], SETTINGS, device="cpu"))
    joined = with_measures(table, load_scores(work, table, scored_on, ["localization", "prediction"], SETTINGS))
    values = image_values(work, table, scored_on, SETTINGS)
    assert values["iou"].shape == (3, 30)
    for name in set(values) - {"mask_area", "correct"}:
        np.testing.assert_allclose(np.nanmean(values[name][:2], axis=1), joined[name][:2], atol=1e-3, err_msg=name)
    np.testing.assert_allclose(np.median(values["mask_area"][:2], axis=1), joined["mask_area"][:2], atol=1e-3)
    assert values["correct"][:2].mean(1).tolist() == pytest.approx(joined["training_accuracy"][:2].tolist())
    assert all(np.isnan(matrix[2]).all() for matrix in values.values())
    for name, matrix in image_values(work, table, scored_on, SETTINGS, "prediction").items():
        if name != "correct":
            np.testing.assert_allclose(matrix[:2].mean(1), joined[name][:2], atol=2e-3, err_msg=name)


def test_values_of_single_images_are_read_as_they_were_kept_and_damaged_ones_are_named_and_go_with_their_scores(tmp_path):
    values = {"iou": np.array([0.25, np.nan, 1], dtype=np.float16), "correct": np.array([True, False, True])}
    save_image_values(tmp_path, "f", "a", values)
    kept = read_image_values(tmp_path, "f", "a")
    assert {name: array.dtype for name, array in kept.items()} == {name: array.dtype for name, array in values.items()}
    for name, array in values.items():
        np.testing.assert_array_equal(kept[name], array)
    assert read_image_values(tmp_path, "f", "b") == {}
    path = tmp_path / "scores/f/a.images.npz"
    row = pd.DataFrame({"measure": ["iou"], "variant": "", "value": 0.5, "seconds": 0.0, "reason": ""})
    catalogue.save_scores(tmp_path, "f", "a", row)
    catalogue.save_scores(tmp_path, "f", "b", row)
    assert kept_measures(tmp_path, "f", "a") == kept_measures(tmp_path, "f", "b") == {"iou"}
    path.write_bytes(path.read_bytes()[:100])
    with pytest.warns(UserWarning, match=r"a\.images\.npz: not as it was written; it is made again"):
        assert read_image_values(tmp_path, "f", "a") == {}
    assert kept_measures(tmp_path, "f", "a") == set()
    assert kept_measures(tmp_path, "f", "b") == {"iou"}  # which never had any
    with pytest.raises(ValueError, match=r"^values of single images of a have lengths \[2, 3\]; there must be one for each image$"):
        save_image_values(tmp_path, "f", "a", {"x": np.zeros(2), "y": np.zeros(3)})


def test_what_is_right_on_the_test_images_gives_the_test_accuracy(study):
    work, data, table = study
    path = classification.logits_path(work, table["model_id"].iloc[0])
    list(classification.keep_test_logits(work, table, data, "cpu"))
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.warns(UserWarning, match="safetensors: not as it was written; it is made again"):
        correct_on_test(work, table, data)
    right = correct_on_test(work, table, data)
    assert right.shape == (3, 18)
    np.testing.assert_allclose(right.mean(1), table["test_accuracy"], atol=1e-6)


def test_flatness_is_searched_again_with_other_draws_of_one_model(study, scored_on):
    work, data, table = study
    settings = replace(SETTINGS, flatness_images=12, flatness_draws=1, flatness_halvings=4)
    found = models.spread_over_seeds(work, table[table["snapshot"] != "none"], data, scored_on, settings, device="cpu", seeds=3)
    assert found["measure"].tolist() == ["pacbayes_flatness", "pacbayes_mag_flatness"]
    assert found["model_id"].nunique() == 1
    assert len(models.spread_over_seeds(work, table[:0], data, scored_on, settings, device="cpu", seeds=3)) == 0
    assert (found["n"] <= 3).all()
    again = models.spread_over_seeds(work, table[table["snapshot"] != "none"], data, scored_on, settings, device="cpu", seeds=3)
    pd.testing.assert_frame_equal(found, again)


def test_the_set_is_what_all_runs_were_fitted_to_in_one_order_of_which_fewer_are_a_prefix(study, scored_on):
    _, data, table = study
    both = [set(images_of_run(data, model.config)[0].names) for model in catalogue.models_of(table)]
    images = scored_on.of(data)
    assert set(images.names) == both[0] & both[1]
    assert scored_on.shared == len(both[0] & both[1]) == 30
    few = scoring_set(table, data, 7)
    assert few.rows == scored_on.rows[:7]
    assert few.name.startswith("7-")
    assert few.name.split("-")[1] != scored_on.name.split("-")[1]
    assert torch.equal(images.labels, data.train.labels[list(scored_on.rows)])
    assert all(images.labels[start : start + 3].sort().values.tolist() == [0, 1, 2] for start in range(0, 30, 3))
    assert scoring_set(table.iloc[::-1], data) == scored_on
    assert len(scoring_set(table[:0], data).rows) == 36
    # Noisy labels of a run are not those of the data set.
    assert scoring_set(table.assign(label_noise=0.5), data) == scored_on


def test_runs_that_share_too_few_images_are_refused(study):
    _, data, table = study
    message = r"^all runs of this study together were fitted to 5 images of the class synthetic_\w+; at least 10 of every class are needed"
    with pytest.raises(ValueError, match=message):
        scoring_set(table.assign(images_per_class=5), data)
    with pytest.raises(ValueError, match=r"^scored_images -1 must be at least 0 \(0 takes all\)$"):
        scoring_set(table, data, -1)


def test_classes_stand_in_turn():
    labels = np.array([4, 4, 4, 4, 7, 7, 1])
    order = classes_in_turn(labels)
    assert order.tolist() == [0, 4, 6, 1, 5, 2, 3]


def test_another_threshold_or_image_is_another_score_and_a_setting_of_other_families_is_none(study, scored_on):
    same, other = (replace(SETTINGS, **change) for change in ({"flatness_draws": 3}, {"cam_threshold": 0.5}))
    name = folder_name("localization", SETTINGS, scored_on)
    assert folder_name("localization", same, scored_on) == name
    assert folder_name("localization", other, scored_on) != name
    work, data, table = study
    assert folder_name("localization", SETTINGS, scoring_set(table, data, 29)) != name
    assert len(load_scores(work, table, scored_on, ["localization"], other)) == 0


def test_the_steps_of_one_image_give_the_score_of_that_image(study, scored_on):
    work, data, table = study
    model = catalogue.models_of(table[table["snapshot"] == "stop"])[0]
    images = scored_on.of(data)
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
    config = catalogue.models_of(table[table["snapshot"] == "stop"])[0].config
    start = initial_network(work, config, 3)
    train_run(replace(config, learning_rate=0.0), data, tmp_path / "run")  # nothing but batch-norm statistics moves
    trained = safetensors.torch.load_file(tmp_path / "run/snapshot-stop.safetensors")
    assert torch.equal(trained["layer1.0.conv1.weight"], start.layer1[0].conv1.weight)
    assert initial_network(work, replace(config, pretrained=True, weights="unknown"), 3) is None


def test_overlays_show_images_that_all_models_were_fitted_to(study):
    work, data, table = study
    models = table[table["snapshot"] == "stop"]
    images = look.common_images(models, data, 3, seed=0)
    assert images.labels.sort().values.tolist() == [0, 1, 2]  # one of each class
    for model in catalogue.models_of(models):
        assert set(images.names) <= set(images_of_run(data, model.config)[0].names)
    overlays = look.overlays(work, models, images, 3, **LOOK)
    assert overlays.heat.shape == (2, 3, 16, 16)
    one = look.steps(work, catalogue.models_of(models)[1], images.subset([2]), 3, **LOOK)
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
    kept = initial_network(tmp_path, run, 3)
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
    return list(models.score_side_by_side(work, table, ALL, ["prediction"], SETTINGS, device="cpu", jobs=jobs))


def test_two_processes_give_the_scores_of_one_and_nothing_is_scored_twice(study_side_by_side, tmp_path_factory, monkeypatch):
    work, table = study_side_by_side
    assert sorted(score(study_side_by_side, 2)) == sorted(table.loc[table["snapshot"] != "none", "model_id"])
    side = models.load_scores(work, table, ALL, ["prediction"], SETTINGS)
    monkeypatch.setattr(side_by_side, "ProcessPoolExecutor", lambda *given, **named: pytest.fail("scored again"))
    assert len(score(study_side_by_side, 2)) == 2
    other = tmp_path_factory.mktemp("other")
    for name in ("runs", "cache", "data.json"):
        (other / name).symlink_to(work / name)
    assert len(score((other, table), 1)) == 2
    alone = models.load_scores(other, table, ALL, ["prediction"], SETTINGS)
    pd.testing.assert_frame_equal(side.drop(columns="seconds"), alone.drop(columns="seconds"), rtol=1e-5)


def deadly(*given):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_is_told_with_its_signal_and_what_to_try(study_side_by_side, monkeypatch):
    monkeypatch.setattr(models, "_score_one", deadly)
    told = r"^2 of 2 models could not be scored; the others are complete\. a process was killed by SIGKILL \(mostly for want of memory"
    with pytest.raises(BrokenProcessPool, match=told):
        score(study_side_by_side, 2)


def test_a_model_that_cannot_be_loaded_is_named_and_the_others_are_scored(study_side_by_side):
    work, table = study_side_by_side
    first, second = table.loc[table["snapshot"] != "none", "model_id"]
    snapshot_path(catalogue.run_folder(work, first.split("@")[0]), "stop").unlink()
    with pytest.raises(RuntimeError, match=rf"1 of 2 models could not be scored; the others are complete. {first}: FileNotFoundError"):
        score(study_side_by_side, 2)
    assert set(models.load_scores(work, table, ALL, ["prediction"], SETTINGS)["model_id"]) == {second}

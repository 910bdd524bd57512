"""Scores under other choices: against independent ways to compute them, and kept on disk."""

import re
import shutil
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from helpers.scoring.common_set import ScoringSet
from helpers.scoring.single_images import folder_name, save_image_values

from helpers.ablations import compute, store
from helpers.ablations.compute import CLOSED_FORMS, AblationSettings
from helpers.cams import attribution, overlap
from helpers.cams.maps import closed_form_cam, layer_maps, normalise_maps
from helpers.data.images import choose_images, load_study_data
from helpers.measures import evidence, registry
from helpers.networks import hooks, resnet
from helpers.training.catalogue import read_catalogue, run_folder, save_scores
from helpers.training.config import RunConfig
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES, captum_grad_cam

SETTINGS = AblationSettings(thresholds=(0.05, 0.3, 0.7), images=10, channels=4, noise_samples=2, steps=2, attributions=("saliency",))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def network():
    """Untrained, with a seed that classifies some images right and some wrong."""
    return resnet.build("resnet18", 3, stem="small", width=0.125, seed=1).eval()


def normalised(images):
    return resnet.normalise_images(images.images)


def chosen(table, **keys):
    return table[(table[list(keys)] == pd.Series(keys)).all(axis=1)]


@pytest.fixture(scope="module")
def closed(network, data):
    return compute.closed_form_scores(network, data.train, {}, SETTINGS, "cpu")


@pytest.fixture(scope="module")
def sampled(network, data):
    return compute.sampled_scores(network, data.train, SETTINGS, "cpu")


@pytest.mark.parametrize(("method", "formula"), CLOSED_FORMS)
def test_closed_form_maps_equal_differentiation_in_double_precision(method, formula, data):
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=0).double().eval()
    images, classes = normalised(data.train.subset(range(6))).double(), torch.tensor([0, 1, 2, 0, 1, 2])
    with torch.no_grad():
        features, _ = hooks.features_and_logits(network, network.layer4, images)
        maps = compute.closed_form_maps(method, formula, features, network.fc.weight, classes)
    expected = layer_maps(method, network, network.layer4, images, classes, torchcam_compat=formula == "torchcam")
    # The constant 1e-8 of the normalisation weighs unequally where a common factor was dropped; the torchcam form keeps the factor.
    tolerance = 1e-10 if formula == "torchcam" else 1e-6
    assert maps.max() > 0.5
    assert (maps - normalise_maps(expected)).abs().max() < tolerance


def test_a_network_whose_last_maps_are_one_pixel_is_refused_with_what_to_change(data):
    network = resnet.build("resnet18", 3, stem="strided", width=0.125, seed=0).eval()
    told = "the maps of layer3, the last of more than one pixel for images of 16 pixels, are not what the network averages"
    with pytest.raises(ValueError, match=rf"^{told}, .* a larger image_size \(01\), a stem that halves less or last_stride 1 \(02\)$"):
        compute.last_stage(network, data.train, "cpu")


def test_other_closed_forms_are_refused():
    message = "there is no closed form of 'grad_cam' by the formula 'torchcam'; choose one of grad_cam (correct), "
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        compute.closed_form_maps("grad_cam", "torchcam", torch.ones(1, 2, 2, 2), torch.ones(3, 2), torch.tensor([0]))


@pytest.mark.parametrize(("method", "formula"), CLOSED_FORMS)
@pytest.mark.parametrize("class_used", ["predicted", "true"])
def test_every_closed_form_is_scored_as_one_by_one(method, formula, class_used, network, data, closed):
    with torch.no_grad():
        features, logits = hooks.features_and_logits(network, network.layer4, normalised(data.train))
        right = logits.argmax(1) == data.train.labels
        classes = logits.argmax(1) if class_used == "predicted" else data.train.labels
        maps = compute.closed_form_maps(method, formula, features, network.fc.weight, classes)
    assert 0 < right.sum() < len(right)
    for threshold in (0.05, 0.1, 0.3, 0.7):
        iou, iou_b = overlap.iou_and_iou_b(maps, data.train.boxes, 16, threshold)
        for subset, part in (("all", right | ~right), ("correct", right), ("wrong", ~right)):
            keys = {"method": method, "formula": formula, "class_used": class_used, "threshold": threshold, "subset": subset}
            (row,) = chosen(closed.table, **keys).to_dict("records")
            assert (row["layer"], row["annotation"], row["image_size"], row["n"]) == ("layer4", "boxes", 16, int(part.sum()))
            # A pixel at the threshold may fall to either side in another layout of memory.
            assert row["iou"] == pytest.approx(float(iou[part].double().mean()), abs=1e-3)
            assert row["iou_b"] == pytest.approx(float(iou_b[part].double().mean()), abs=5e-3)
            assert row["seconds"] > 0
    assert len(closed.table) == len(CLOSED_FORMS) * 2 * 4 * 3


def test_single_images_average_to_the_papers_setting_and_to_the_measure(network, data, closed):
    row = chosen(closed.table, method="grad_cam", class_used="predicted", threshold=0.1, subset="all").iloc[0]
    assert closed.single["iou"].mean() == pytest.approx(row["iou"], rel=1e-12)
    assert closed.single["iou_b"].mean() == pytest.approx(row["iou_b"], rel=1e-12)
    assert tuple(closed.single["name"]) == data.train.names
    assert list(closed.single) == store.IMAGE_COLUMNS[1:]
    given = {"network": network, "images": data.train, "normalise": resnet.normalise_images, "device": "cpu", "initial_network": None}
    items = [item for item in registry.of_families(["localization"]) if item.name == "iou"]
    own, single = evidence.score_with_images(items, given, evidence.MeasureSettings(), ["localization_values"])
    assert own["value"].iloc[0] == pytest.approx(row["iou"], abs=1e-6)
    # The values of 03, in the same order of images, on which the draws depend.
    again = store.single_images(closed.single.assign(model_id="b"), pd.DataFrame({"model_id": ["a", "b"]}))
    np.testing.assert_allclose(again["iou"][1], single["localization_values"]["iou"], atol=1e-3)
    assert np.isnan(again["iou_b"][0]).all()


def test_batches_change_nothing(network, data, closed):
    small = compute.closed_form_scores(network, data.train, {}, replace(SETTINGS, batch_size=7), "cpu")
    # Another size of batch may be convolved in another order: rounding, and a pixel at the threshold with it.
    np.testing.assert_allclose(small.table["iou"], closed.table["iou"], atol=1e-3)
    assert small.table["n"].tolist() == closed.table["n"].tolist()


def test_masks_of_a_machine_are_scored_and_empty_ones_dropped(network, data):
    masks = overlap.box_masks(data.train.boxes, 16)
    same = compute.closed_form_scores(network, data.train, {"fine_grained": masks}, SETTINGS, "cpu").table
    by_boxes, by_masks = (chosen(same, method="grad_cam", class_used="predicted", annotation=kind) for kind in ("boxes", "fine_grained"))
    assert by_boxes["iou"].tolist() == by_masks["iou"].tolist()
    masks[:5] = False
    scores = compute.closed_form_scores(network, data.train, {"fine_grained": masks}, SETTINGS, "cpu")
    row = chosen(scores.table, annotation="fine_grained", threshold=0.1, subset="all").iloc[0]
    assert row["n"] == len(data.train) - 5
    assert row["iou"] == pytest.approx(scores.single["iou"][5:].mean(), rel=1e-9)  # the masks are the boxes
    assert set(scores.table.loc[scores.table["annotation"] == "fine_grained", "method"]) == {"grad_cam"}


def test_undefined_overlaps_are_in_no_mean_and_an_empty_subset_is_nan():
    overlaps = torch.tensor([[[0.2, torch.nan, 0.6]], [[0.1, torch.nan, 0.3]]])
    table = compute.summary(
        overlaps,
        torch.ones(3, dtype=torch.bool),
        AblationSettings(thresholds=(0.1,)),
        2.0,
        method="m",
        formula="f",
        layer="l",
        class_used="predicted",
        annotation="boxes",
        image_size=8,
    )
    assert table["n"].tolist() == [2, 2, 0]
    assert table["iou"].tolist()[:2] == pytest.approx([0.4, 0.4])
    assert table["iou_b"].tolist()[:2] == pytest.approx([0.2, 0.2])
    assert table["iou"].isna().tolist() == [False, False, True]
    assert list(table.columns) == compute.OVERLAP_COLUMNS


def test_smooth_grad_cam_plus_plus_coincides_with_grad_cam_plus_plus_and_torchcams_does_not(sampled):
    correct, compatible = (
        chosen(sampled, method="smooth_grad_cam_plus_plus", formula=formula).iloc[0] for formula in ("correct", "torchcam")
    )
    assert correct["nearest"] == "grad_cam_plus_plus (correct)"
    assert correct["difference"] < 1e-4
    assert compatible["difference"] > 0.01
    at_last = chosen(sampled, method="grad_cam", layer="layer4", image_size=16).iloc[0]
    assert (at_last["nearest"], at_last["difference"] < 1e-4) == ("grad_cam (correct)", True)
    assert (chosen(sampled, layer="layer1")["nearest"] == "").all()


@pytest.mark.parametrize("layer", ["layer1", "layer2", "layer3", "layer4"])
def test_every_layer_is_scored_as_captum_would(layer, network, data, sampled):
    images = compute.sampled_images(data.train, SETTINGS)
    pixels = normalised(images)
    maps = captum_grad_cam(network, network.get_submodule(layer), pixels, network(pixels).argmax(1))
    iou, _ = overlap.iou_and_iou_b(normalise_maps(maps), images.boxes, 16, 0.3)
    row = chosen(sampled, method="grad_cam", layer=layer, threshold=0.3, subset="all", image_size=16).iloc[0]
    assert row["iou"] == pytest.approx(float(iou.double().mean()), abs=3e-3)
    assert row["n"] == len(images) == 10


@pytest.mark.parametrize("side", [8, 32])
def test_another_image_size_is_scored_as_a_pass_over_resized_images(side, network, data, sampled):
    images = compute.sampled_images(data.train, SETTINGS)
    resized = F.interpolate(images.images.float(), size=(side, side), mode="bilinear", antialias=True, align_corners=False)
    with torch.no_grad():
        features, logits = hooks.features_and_logits(network, network.layer4, resnet.normalise_images(resized))
        maps = normalise_maps(closed_form_cam("grad_cam", features, network.fc.weight, logits.argmax(1)))
    iou, _ = overlap.iou_and_iou_b(maps, images.boxes, 16, 0.3)
    row = chosen(sampled, method="grad_cam", image_size=side, threshold=0.3, subset="all").iloc[0]
    assert row["iou"] == pytest.approx(float(iou.double().mean()), abs=3e-3)


def test_a_setting_stands_once_and_named_layers_take_the_place_of_stages(network, data, sampled):
    assert not sampled.duplicated(compute.KEYS).any()
    named = compute.sampled_scores(network, data.train, replace(SETTINGS, layers=("layer2.0",), methods=(), scales=()), "cpu")
    assert set(named["layer"]) == {"layer2.0"}
    assert set(named["method"]) == {"grad_cam", "layer_cam"}


def test_noise_is_seeded_and_vanishing_noise_makes_torchcams_smooth_variant_the_formula_again(network, data, sampled):
    again = compute.sampled_scores(network, data.train, SETTINGS, "cpu")
    columns = [*compute.KEYS, "n", "iou", "iou_b"]
    pd.testing.assert_frame_equal(again[columns], sampled[columns])
    quiet = compute.sampled_scores(network, data.train, replace(SETTINGS, noise_std=0.0), "cpu")
    row = chosen(quiet, method="smooth_grad_cam_plus_plus", formula="torchcam").iloc[0]
    assert row["nearest"] == "grad_cam_plus_plus (correct)"
    assert row["difference"] < 0.05  # torchcam adds 1e-8 to a denominator that is small itself


def test_the_network_is_left_as_it_came(data):
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=1).train()
    network.layer2.eval()
    modes = [module.training for module in network.modules()]
    state = {name: value.clone() for name, value in network.state_dict().items()}
    compute.closed_form_scores(network, data.train, {}, SETTINGS, "cpu")
    compute.sampled_scores(network, data.train, SETTINGS, "cpu")
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks for module in network.modules())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"methods": ("grad_cam",)},
            "methods grad_cam cannot be chosen; choose of grad_cam_plus_plus, smooth_grad_cam_plus_plus, eigen_cam, score_cam",
        ),
        (
            {"attributions": ("lime",)},
            f"attributions lime are unknown; choose of {', '.join(attribution.ATTRIBUTIONS)}",
        ),
        ({"scales": (0.5, 0.0)}, "scales (0.5, 0.0) must be positive multiples of the image size"),
    ],
)
def test_impossible_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        AblationSettings(thresholds=(0.1,), **wrong)


def test_the_papers_threshold_is_added_once_and_sorted():
    assert AblationSettings(thresholds=(0.5, 0.2)).thresholds == (0.1, 0.2, 0.5)
    assert AblationSettings(thresholds=(0.5, 0.1)).thresholds == (0.1, 0.5)


ALL = ScoringSet(tuple(range(36)), "36-all", 36)


EVERY_OTHER = ScoringSet(tuple(range(0, 36, 2)), "18-half", 36)


@pytest.fixture
def study(tmp_path, data, network, monkeypatch):
    """A catalogue of two models whose weights are not on disk, and one diverged run; calls are counted."""
    loaded = []
    monkeypatch.setattr(store, "load_model", lambda work, model, classes, device: loaded.append(model.model_id) or network)
    config = asdict(RunConfig("resnet18", 8, 0.01, "sgd", 0.0, False, False, data="-"))
    rows = [
        config | {"model_id": f"{run}@{snapshot}", "run_id": run, "snapshot": snapshot}
        for run, snapshot in zip("abc", ("stop", "stop", "none"), strict=True)
    ]
    return tmp_path, pd.DataFrame(rows), loaded


def run(study, data, settings=SETTINGS, masks=None, scored_on=ALL):
    work, catalogue, _ = study
    masks = masks or {}
    done = list(store.score_missing_ablations(work, catalogue, data, scored_on, settings, masks, device="cpu"))
    return done, *store.load_ablations(work, catalogue, scored_on, settings, masks)


def test_scores_are_kept_and_never_computed_twice(study, data):
    done, table, single, attributed = run(study, data)
    assert done == ["a@stop", "b@stop"] == study[2]
    assert list(table.columns) == store.ABLATION_COLUMNS
    assert list(single.columns) == store.IMAGE_COLUMNS
    assert single["model_id"].value_counts().to_dict() == {"a@stop": 36, "b@stop": 36}
    assert list(attributed.columns) == store.ATTRIBUTION_COLUMNS
    assert attributed.groupby(["model_id", "method"]).size().eq(10).all()
    assert not table.duplicated(["model_id", "part", *compute.KEYS]).any()
    again = run(study, data)
    assert len(study[2]) == 2
    pd.testing.assert_frame_equal(again[1], table)
    assert not list(study[0].rglob("*.partial"))


def test_a_change_computes_only_the_part_that_it_decides(study, data):
    run(study, data)
    folders = {path.name for path in (study[0] / "ablations").iterdir()}
    run(study, data, replace(SETTINGS, noise_std=0.1))
    more = {path.name for path in (study[0] / "ablations").iterdir()}
    assert [name.split("-")[0] for name in more - folders] == ["sampled"]
    run(study, data, replace(SETTINGS, steps=3))
    third = {path.name for path in (study[0] / "ablations").iterdir()}
    assert [name.split("-")[0] for name in third - more] == ["attributed"]
    masks = torch.ones(36, 16, 16, dtype=torch.bool)
    masks[0] = False
    _, table, *_ = run(study, data, masks={"folder": masks})
    last = {path.name for path in (study[0] / "ablations").iterdir()}
    assert [name.split("-")[0] for name in last - third] == ["closed"]
    assert chosen(table, annotation="folder", threshold=0.1, subset="all")["n"].tolist() == [35, 35]


def test_other_images_are_other_scores_of_the_same_images_for_all_models(study, data):
    *_, every, _ = run(study, data)
    *_, half, _ = run(study, data, scored_on=EVERY_OTHER)
    assert study[2] == ["a@stop", "b@stop"] * 2
    own, other = (half.loc[half["model_id"] == name].reset_index(drop=True) for name in ("a@stop", "b@stop"))
    assert own["name"].tolist() == other["name"].tolist() == [data.train.names[row] for row in EVERY_OTHER.rows]
    whole = every[(every["model_id"] == "a@stop") & every["name"].isin(own["name"])]
    assert whole["iou"].tolist() == pytest.approx(own["iou"].tolist(), abs=1e-6)
    assert compute.sampled_images(EVERY_OTHER.of(data), SETTINGS).names == tuple(own["name"][:10])


def test_a_killed_run_goes_on_with_the_missing_model(study, data):
    run(study, data)
    next(iter((study[0] / "ablations").glob("closed-*/b@stop.parquet"))).unlink()
    _, table, *_ = run(study, data)
    assert study[2] == ["a@stop", "b@stop", "b@stop"]
    assert set(table["model_id"]) == {"a@stop", "b@stop"}


def test_ablations_of_two_processes_are_those_of_one(tmp_path):
    data = choose_images(tmp_path, **TINY_SCENES)
    config = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="small", width=0.125, max_epochs=1)
    for given in (config, replace(config, repeat=1)):
        train_run(given, data, run_folder(tmp_path, given))
    table, found = read_catalogue(tmp_path), []
    masks = {"all": torch.ones(len(data.train), 16, 16, dtype=torch.bool)}
    for jobs in (1, 2):
        shutil.rmtree(tmp_path / "ablations", ignore_errors=True)
        options = {"device": "cpu", "jobs": jobs}
        assert len(list(store.score_missing_ablations(tmp_path, table, data, ALL, SETTINGS, masks, **options))) == 2
        found.append(store.load_ablations(tmp_path, table, ALL, SETTINGS, masks))
    for one, two in zip(*found, strict=True):
        pd.testing.assert_frame_equal(one.drop(columns="seconds", errors="ignore"), two.drop(columns="seconds", errors="ignore"), rtol=1e-5)


def test_nothing_kept_is_an_empty_table(tmp_path):
    table, single, attributed = store.load_ablations(tmp_path, pd.DataFrame({"model_id": ["a@stop"]}), ALL, SETTINGS, {})
    assert (len(table), len(single), len(attributed)) == (0, 0, 0)
    assert list(table.columns) == store.ABLATION_COLUMNS


def test_other_measures_are_joined_from_the_folder_for_the_settings_or_the_only_one(tmp_path):
    settings = evidence.MeasureSettings(flatness_draws=3)
    rows = pd.DataFrame({"measure": ["params", "l2", "iou"], "variant": "", "value": [7.0, 2.0, 0.9], "seconds": 1.0, "reason": ""})
    named = folder_name("localization", settings, ALL)
    for folder in ("norms-0a0a0a0a-36-all", named, "localization-ffffffff-36-all", "localization-0a0a0a0a"):
        save_scores(tmp_path, folder, "a", rows[rows["measure"].eq("iou") == folder.startswith("localization")])
    save_scores(tmp_path, "norms-0a0a0a0a-36-all", "a", rows[:1])  # entered twice
    for folder in ("prediction-00000000-36-all", "prediction-11111111-36-all", "perturbation-00000000-18-half"):
        save_scores(tmp_path, folder, "a", rows.assign(measure="mixup_accuracy"))
    assert store.measure_folders(tmp_path, settings, ALL) == [named, "norms-0a0a0a0a-36-all"]
    mine = pd.DataFrame({"model_id": ["a", "b"], "gap": [0.1, 0.2], "iou": [0.5, 0.6], "iou_b": [0.4, 0.3]})
    save_image_values(tmp_path, "norms-0a0a0a0a-36-all", "a", {"l2": np.full(3, 2.0), "iou": np.full(3, 0.9)})
    joined, directions, images = store.with_other_measures(tmp_path, mine, ALL, settings)
    assert list(images) == ["l2"]
    np.testing.assert_array_equal(images["l2"], [[2, 2, 2], [np.nan] * 3])
    assert joined["iou"].tolist() == [0.5, 0.6]
    assert joined["l2"].tolist()[0] == 2.0
    assert np.isnan(joined["l2"].tolist()[1])
    assert directions["iou"] == directions["iou_b"] == 1
    assert directions["l2"] == registry.ranked()["l2"].direction
    assert "mixup_accuracy" not in directions


SMALL = {"stem": "small", "width": 0.125}  # whose last maps have 2 x 2 pixels at 16 px


@pytest.fixture
def catalogue():
    """Two architectures, as three models of a study."""
    return pd.DataFrame({"architecture": ["resnet18", "resnet34", "resnet18"], "stem": "small", "width": 0.125, "last_stride": 2})


def scores(work, catalogue, data, count, **options):
    return pd.DataFrame(store.random_network_scores(work, catalogue, data, ALL, count, **options))


def test_a_score_is_that_of_the_untrained_network_worked_out_step_by_step(data):
    row = store.random_network_score("resnet18", data.train, data.test, 3, **SMALL, seed=4)
    network = resnet.build("resnet18", 3, **SMALL, seed=4).eval()
    accuracies = []
    with torch.no_grad():
        for images in (data.train, data.test):
            _, logits = hooks.features_and_logits(network, network.layer4, resnet.normalise_images(images.images))
            accuracies.append(float((logits.argmax(1) == images.labels).float().mean()))
        _, logits = hooks.features_and_logits(network, network.layer4, resnet.normalise_images(data.train.images))
        maps = captum_grad_cam(network, network.layer4, resnet.normalise_images(data.train.images), logits.argmax(1))
    iou, iou_b = overlap.iou_and_iou_b(normalise_maps(maps), data.train.boxes, 16)
    assert row["train_accuracy"] == pytest.approx(accuracies[0], abs=1e-6)
    assert row["test_accuracy"] == pytest.approx(accuracies[1], abs=1e-6)
    assert row["gap"] == row["train_accuracy"] - row["test_accuracy"]
    # One pixel that rounding moves over the threshold changes the IoU of an image by some 1 / 100.
    assert (row["iou"], row["iou_b"]) == pytest.approx((float(iou.mean()), float(iou_b.mean())), abs=2e-3)
    assert (row["train_images"], row["test_images"]) == (36, 18)
    assert row["whole_image_floor"] == pytest.approx(float(overlap.box_masks(data.train.boxes, 16).double().mean()))


def test_a_seed_decides_everything_and_another_seed_is_another_network(data):
    one, again, other = (store.random_network_score("resnet18", data.train, data.test, 3, **SMALL, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert one["iou"] != other["iou"]


def test_untrained_networks_know_nothing(data, tmp_path, catalogue):
    table = scores(tmp_path, catalogue, data, 10)
    assert table["train_accuracy"].mean() == pytest.approx(1 / 3, abs=0.1)
    assert table["gap"].mean() == pytest.approx(0, abs=0.1)
    assert table["iou"].between(0, 1).all()
    assert table.groupby("architecture")["seed"].apply(list).to_dict() == {"resnet18": list(range(10)), "resnet34": list(range(10))}


def test_what_is_kept_is_not_computed_again_and_more_are_added(data, tmp_path, catalogue, monkeypatch):
    few = scores(tmp_path, catalogue, data, 2)
    calls = []
    compute = store.random_network_score

    def counted(architecture, *given, **options):
        calls.append(architecture)
        return compute(architecture, *given, **options)

    monkeypatch.setattr(store, "random_network_score", counted)
    more = scores(tmp_path, catalogue, data, 3)
    assert calls == ["resnet18", "resnet34"]
    pd.testing.assert_frame_equal(more[more["seed"] < 2].reset_index(drop=True), few)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("changed", [{"images": 5}, {"method": "layer_cam"}, {"threshold": 0.5}])
def test_other_settings_are_kept_apart(data, tmp_path, catalogue, changed):
    scores(tmp_path, catalogue, data, 1)
    scores(tmp_path, catalogue, data, 1, **changed)
    assert len(list((tmp_path / "ablations").iterdir())) == 2


def test_fewer_images_are_the_same_for_all_networks_and_zero_takes_all(data):
    some = store.some_images(data.train, 7, 3)
    assert len(some) == len(set(some.names)) == 7
    assert some.names == store.some_images(data.train, 7, 3).names
    assert some.names != store.some_images(data.train, 7, 4).names
    places = [data.train.names.index(name) for name in some.names]
    assert places == sorted(places)
    assert store.some_images(data.train, 0, 3).names == store.some_images(data.train, 99, 3).names == data.train.names


def test_no_network_gives_no_row_and_an_unknown_architecture_is_refused(data, tmp_path, catalogue):
    assert not len(scores(tmp_path, catalogue, data, 0))
    message = "architecture 'alexnet' is unknown; choose one of resnet18, resnet34, resnet50, resnet101"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        scores(tmp_path, catalogue.assign(architecture="alexnet"), data, 1)


def test_the_random_state_of_the_process_is_left_alone(data, tmp_path, catalogue):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    scores(tmp_path, catalogue, data, 1)
    assert torch.equal(torch.get_rng_state(), before)

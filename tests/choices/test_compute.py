"""Scores under other choices: against independent ways to compute them, and kept by the store."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F

from helpers.cams import attribution, localize
from helpers.cams.maps import closed_form_cam, normalise_maps
from helpers.choices import compute, tables
from helpers.data.images import box_masks
from helpers.measures import evidence
from helpers.measures.passes import Classifier
from helpers.networks import hooks, resnet
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Store
from helpers.scores.values import CHOICE
from tests.conftest import captum_grad_cam

EVERY = ScoringSet((*range(35, -1, -1),), "36-all", 36)
METHODS = ("grad_cam_plus_plus", "smooth_grad_cam_plus_plus", "eigen_cam", "score_cam")
NOISE = {"noise_samples": 2, "noise_std": 0.3, "channels": 4}
SETTINGS = compute.Settings(
    EVERY,
    {},
    thresholds=(0.05, 0.1, 0.3, 0.7),
    images=10,
    methods=METHODS,
    noise=NOISE,
    scales=(0.5, 2.0),
    attributions=("saliency", "occlusion"),
    steps=2,
)


@pytest.fixture(scope="module")
def network():
    """Untrained, with a seed that classifies some images right and some wrong."""
    return resnet.build("resnet18", 3, stem="small", width=0.125, seed=1).eval()


@pytest.fixture(scope="module")
def given(network, tiny_module_given):
    """A network, images, the first ten of them, and the paper's choice."""
    classifier = Classifier(network, resnet.normalise_images, "cpu", 256)
    images = tiny_module_given["images"]
    of_paper = compute.way_of_paper(classifier, images)
    return SimpleNamespace(
        classifier=classifier,
        images=images,
        few=images.subset(range(10)),
        of_paper=of_paper,
    )


def scores_of(given, ways, images, settings=SETTINGS):
    paper, classifier = given.of_paper, given.classifier
    return compute.scores_of_ways(paper, ways, classifier, images, settings)


def closed_form_scores(given, settings=SETTINGS):
    ways = compute.closed_form_ways(given.of_paper, settings)
    return scores_of(given, ways, given.images, settings)


def sampled_scores(given):
    ways = compute.sampled_ways(given.of_paper, given.classifier.network, SETTINGS)
    return scores_of(given, ways, given.few)


def iou_of(maps, images, thresholds):
    """IoU of maps, that are normalised, with the boxes: (thresholds, images)."""
    in_boxes = box_masks(images.boxes, 16)
    return localize.iou_at(maps, in_boxes, thresholds)[..., 0].double()


def maps_of(given, **way):
    (maps,), _ = compute.maps_of_ways(
        [given.of_paper | way], given.classifier, given.images, SETTINGS
    )
    return maps


@pytest.fixture(scope="module")
def closed(given):
    return closed_form_scores(given)


@pytest.fixture(scope="module")
def sampled(given):
    return sampled_scores(given)


def chosen(table, measure="iou", **keys):
    keys["measure"] = measure
    return table[(table[list(keys)] == pd.Series(keys)).all(axis=1)]


def normalised(images):
    return resnet.normalise_images(images.images)


@pytest.mark.parametrize(("method", "formula"), compute.CLOSED_FORMS)
@pytest.mark.parametrize("class_used", ["predicted", "true"])
def test_closed_forms_one_by_one(method, formula, class_used, network, given, closed):
    images = given.images
    with torch.no_grad():
        features, logits = hooks.features_and_logits(
            network, network.layer4, normalised(images)
        )
    predicted = logits.argmax(1)
    right = predicted == images.labels
    assert 0 < right.sum() < len(right)
    classes = predicted if class_used == "predicted" else images.labels
    weight = network.fc.weight.detach()
    maps = closed_form_cam(method, features, weight, classes, formula == "torchcam")
    iou = iou_of(normalise_maps(maps), images, SETTINGS.thresholds)
    subsets = {"all": right | ~right, "correct": right, "wrong": ~right}
    keys = {"method": method, "formula": formula, "class_used": class_used}
    fixed = {"layer": "layer4", "annotation": "boxes", "image_size": 16}
    for subset, part in subsets.items():
        rows = chosen(closed["scores"], **keys, **fixed, subset=subset)
        assert rows["threshold"].tolist() == list(SETTINGS.thresholds)
        assert set(rows["n"]) == {int(part.sum())}
        # A pixel at the threshold may fall to either side in another memory layout.
        expected = iou[:, part].mean(1)
        np.testing.assert_allclose(rows["value"], expected, atol=1e-3)


def test_the_papers_setting_has_the_values_of_the_measures(given, closed):
    scores = evidence.score_network(given.classifier.network, given.images)
    expected = scores.set_index("measure")["value"]
    keys = {"method": "grad_cam", "class_used": "predicted"}
    row = chosen(closed["scores"], **keys, threshold=0.1, subset="all").iloc[0]
    assert row["value"] == pytest.approx(expected["iou"], abs=1e-6)
    for name in localize.CORRECTED:
        (corrected,) = chosen(closed["scores"], name, **keys)["value"]
        assert corrected == pytest.approx(expected[name], abs=1e-6)


def test_masks_of_a_machine_are_scored_and_empty_ones_dropped(given):
    masks = box_masks(given.images.boxes, 16)
    masks[:5] = False
    settings = replace(SETTINGS, masks={"fine_grained": masks})
    scores = closed_form_scores(given, settings)["scores"]
    row = chosen(scores, annotation="fine_grained", threshold=0.1, subset="all").iloc[0]
    (iou,) = iou_of(maps_of(given), given.images, [0.1])
    assert row["n"] == len(given.images) - 5
    assert row["value"] == pytest.approx(float(iou[5:].mean()), rel=1e-9)
    methods = scores.loc[scores["annotation"] == "fine_grained", "method"]
    assert set(methods) == {"grad_cam"}


def test_smooth_grad_cam_plus_plus_is_grad_cam_plus_plus_and_torchcams_is_not(sampled):
    rows = chosen(sampled["scores"], layer="layer4", image_size=16, subset="all")
    values = rows[rows["threshold"] == 0.3].set_index(["method", "formula"])["value"]
    plain = values["grad_cam_plus_plus", "correct"]
    smooth = values["smooth_grad_cam_plus_plus", "correct"]
    other = values["smooth_grad_cam_plus_plus", "torchcam"]
    assert plain == pytest.approx(smooth, abs=1e-3)
    assert abs(plain - other) > 1e-3


@pytest.mark.parametrize("layer", ["layer1", "layer2", "layer3", "layer4"])
def test_every_layer_is_scored_as_captum_would(layer, network, given, sampled):
    pixels = normalised(given.few)
    explained = network.get_submodule(layer), pixels, network(pixels).argmax(1)
    maps = captum_grad_cam(network, *explained)
    (iou,) = iou_of(normalise_maps(maps), given.few, [0.3])
    keys = {"method": "grad_cam", "layer": layer, "image_size": 16, "subset": "all"}
    row = chosen(sampled["scores"], **keys, threshold=0.3).iloc[0]
    assert row["n"] == 10
    assert row["value"] == pytest.approx(float(iou.mean()), abs=3e-3)


@pytest.mark.parametrize("side", [8, 32])
def test_another_image_size_resizes_the_images(side, network, given, sampled):
    options = {"mode": "bilinear", "antialias": True, "align_corners": False}
    resized = F.interpolate(given.few.images.float(), size=(side, side), **options)
    with torch.no_grad():
        features, logits = hooks.features_and_logits(
            network, network.layer4, resnet.normalise_images(resized)
        )
        weight = network.fc.weight
        maps = closed_form_cam("grad_cam", features, weight, logits.argmax(1))
    (iou,) = iou_of(normalise_maps(maps), given.few, [0.3])
    keys = {"method": "grad_cam", "image_size": side, "subset": "all"}
    row = chosen(sampled["scores"], **keys, threshold=0.3).iloc[0]
    assert row["value"] == pytest.approx(float(iou.mean()), abs=3e-3)


def test_eigen_cam_explains_no_class_and_all_others_the_predicted_one(sampled):
    classes = sampled["scores"].groupby("method")["class_used"].unique()
    assert classes.pop("eigen_cam").tolist() == [compute.NO_CLASS]
    assert len(classes) > 2
    assert {name for names in classes for name in names} == {compute.PREDICTED}


def test_a_choice_stands_once_and_noise_is_seeded(given, sampled):
    assert not sampled["scores"].duplicated(["measure", *CHOICE]).any()
    pd.testing.assert_frame_equal(sampled_scores(given)["scores"], sampled["scores"])


def test_each_pass_over_images_has_noise_of_its_own(given, monkeypatch):
    """Of 600 images the second and the third pass do not repeat the first one's."""
    images = given.images.subset([0] * 600)
    way = given.of_paper | {"method": "smooth_grad_cam_plus_plus"}
    seeds = []

    def layer_maps(method, network, layer, inputs, classes, options):
        seeds.append(options.seed)
        return torch.ones(len(inputs), 2, 2)

    monkeypatch.setattr(compute, "layer_maps", layer_maps)
    scores_of(given, [way], images, replace(SETTINGS, seed=7))
    assert seeds == [7, 8, 9]


def study_of(images):
    train = images.subset(EVERY.rows)  # whose scored images stand as given
    return SimpleNamespace(
        fingerprint="made", classes=range(3), train=train, test=images
    )


def kept(work, given, settings=SETTINGS):
    loaded = []
    network = given.classifier.network
    models = [
        Model(name, load=lambda device, name=name: loaded.append(name) or network)
        for name in "ab"
    ]
    store = Store(work, lambda: study_of(given.images), jobs=1)
    return compute.score_choices(store, models, settings), loaded


def test_a_change_computes_only_the_part_that_it_decides(given, tmp_path):
    first, loaded = kept(tmp_path, given)
    assert loaded == ["a", "b"]
    assert kept(tmp_path, given)[1] == []
    changes = (
        (compute.SAMPLED, {"noise": NOISE | {"noise_std": 0.1}}),
        (compute.SAMPLED, {"methods": METHODS[:1]}),
        (compute.ATTRIBUTED, {"steps": 3}),
        (compute.CLOSED, {"masks": {"all": torch.ones(36, 16, 16).bool()}}),
    )
    for part, change in changes:
        again, _ = kept(tmp_path, given, replace(SETTINGS, **change))
        changed = [name for name in first.keys if again.keys[name] != first.keys[name]]
        assert changed == [part]
    scores = tables.scores_of(first, 0.1)
    parts = scores.loc[scores["changed"] == tables.NOTHING, "part"].tolist()
    assert parts == [compute.CLOSED] * 2 + [compute.SAMPLED] * 2


def test_masks_are_made_once_and_read_where_no_pixels_are(given, tmp_path):
    names = ["spectral_residual"]
    store = Store(tmp_path, lambda: study_of(given.images))
    (made,) = compute.masks_of_images(store, EVERY, names).values()
    assert made.any()
    gone = replace(given.images, images=given.images.images.to("meta"))
    store = Store(tmp_path, lambda: study_of(gone))
    read = compute.masks_of_images(store, EVERY, [*names, "grab_cut"])
    assert list(read) == names
    assert torch.equal(read["spectral_residual"], made)


def test_attributions_are_scored_on_the_same_images(network, given, tmp_path):
    record = kept(tmp_path, given)[0].record(compute.ATTRIBUTED, "a")
    assert set(record["scores"]["method"]) == {"grad_cam", *SETTINGS.attributions}
    inputs = normalised(given.few)
    separated = attribution.with_separate_relus(network)
    predicted = network(inputs).argmax(1)
    maps = attribution.attribution_maps("saliency", separated, inputs, predicted)
    # Of the normalised map; Captum's saliency is nowhere 0.
    maps = maps - maps.amin((1, 2), keepdim=True)
    in_boxes = box_masks(given.few.boxes, 16).float()
    share = torch.einsum("nyx,myx->nm", maps, in_boxes)
    share /= maps.sum((1, 2))[:, None]
    energy = share.diag() - share.gather(1, localize.derangements(10)).mean(1)
    np.testing.assert_allclose(record["energy_in_box, saliency"], energy, atol=3e-4)


def test_untrained_networks_of_a_seed_worked_out_step_by_step(given, tmp_path):
    form = {"stem": "small", "width": 0.125, "last_stride": 2}
    names = ["resnet18", "resnet34", "resnet18"]
    forms = pd.DataFrame({"architecture": names, **form})
    store = Store(tmp_path, lambda: study_of(given.images), jobs=1)
    settings = replace(SETTINGS, images=20, seed=4)
    table = compute.untrained_networks(store, forms, 2, settings)
    assert table["architecture"].tolist() == ["resnet18"] * 2 + ["resnet34"] * 2
    assert table["model_id"].str[-1].tolist() == ["4", "5", "4", "5"]
    row = table.iloc[0]
    network = resnet.build("resnet18", 3, **form, seed=4).eval()
    scores = evidence.score_network(network, given.images.subset(range(20)))
    scores = scores.set_index("measure")["value"]
    assert row["iou"] == pytest.approx(scores["iou"])
    assert row["train_accuracy"] == pytest.approx(scores["training_accuracy"])
    # Images stand class by class, so the first ones would be of few classes.
    order = np.random.default_rng(4).permutation(36)[:20]
    test_images = given.images.subset(order)
    is_right = network(normalised(test_images)).argmax(1) == test_images.labels
    assert row["test_accuracy"] == pytest.approx(float(is_right.double().mean()))
    assert row["gap"] == row["train_accuracy"] - row["test_accuracy"]


def test_values_of_images_are_of_the_predicted_class(given, closed, sampled):
    method, formula = compute.CLOSED_FORMS[0]
    expected, of_true = (
        iou_of(maps_of(given, class_used=class_used), given.images, [0.1])[0]
        for class_used in (compute.PREDICTED, compute.TRUE)
    )
    name = compute.name_of_images("iou", method, formula)
    np.testing.assert_allclose(closed[name], expected, atol=1e-3)
    assert (expected - of_true).abs().max() > 0.01
    np.testing.assert_allclose(sampled[name], closed[name][:10])

import re

import pandas as pd
import pytest
import torch

from helpers import cams, localization, models, random_networks
from helpers.datasets import load_study_data
from tests.conftest import TINY_SCENES

SMALL = {"stem": "small", "width": 0.125}  # whose last maps have 2 x 2 pixels at 16 px


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def catalogue():
    """Two architectures, as three models of a study."""
    return pd.DataFrame({"architecture": ["resnet18", "resnet34", "resnet18"], "stem": "small", "width": 0.125})


def scores(work, catalogue, data, count, **options):
    return pd.DataFrame(random_networks.random_network_scores(work, catalogue, data, count, **options))


def test_a_score_is_that_of_the_untrained_network_worked_out_step_by_step(data):
    row = random_networks.random_network_score("resnet18", data.train, data.test, 3, **SMALL, seed=4)
    network = models.build("resnet18", 3, **SMALL, seed=4).eval()
    accuracies = []
    with torch.no_grad():
        for images in (data.train, data.test):
            _, logits = cams.features_and_logits(network, network.layer4, models.normalise(images.images))
            accuracies.append(float((logits.argmax(1) == images.labels).float().mean()))
        _, logits = cams.features_and_logits(network, network.layer4, models.normalise(data.train.images))
        maps = cams.captum_grad_cam(network, network.layer4, models.normalise(data.train.images), logits.argmax(1))
    iou, iou_b = localization.iou_and_iou_b(cams.normalise(maps), data.train.boxes, 16)
    assert row["train_accuracy"] == pytest.approx(accuracies[0], abs=1e-6)
    assert row["test_accuracy"] == pytest.approx(accuracies[1], abs=1e-6)
    assert row["gap"] == row["train_accuracy"] - row["test_accuracy"]
    # One pixel that rounding moves over the threshold changes the IoU of an image by some 1 / 100.
    assert (row["iou"], row["iou_b"]) == pytest.approx((float(iou.mean()), float(iou_b.mean())), abs=2e-3)
    assert (row["train_images"], row["test_images"]) == (36, 18)


def test_a_seed_decides_everything_and_another_seed_is_another_network(data):
    one, again, other = (
        random_networks.random_network_score("resnet18", data.train, data.test, 3, **SMALL, seed=seed) for seed in (1, 1, 2)
    )
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
    compute = random_networks.random_network_score

    def counted(architecture, *given, **options):
        calls.append(architecture)
        return compute(architecture, *given, **options)

    monkeypatch.setattr(random_networks, "random_network_score", counted)
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
    some = random_networks.some_images(data.train, 7, 3)
    assert len(some) == len(set(some.names)) == 7
    assert some.names == random_networks.some_images(data.train, 7, 3).names
    assert some.names != random_networks.some_images(data.train, 7, 4).names
    places = [data.train.names.index(name) for name in some.names]
    assert places == sorted(places)
    assert random_networks.some_images(data.train, 0, 3).names == random_networks.some_images(data.train, 99, 3).names == data.train.names


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

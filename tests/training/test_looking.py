import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import rel_entr, softmax

from helpers.networks import resnet
from helpers.networks.hooks import captured_output
from helpers.training import looking, run
from helpers.training.augmentation import Draws
from helpers.training.looking import Guide, guide_of_run, map_penalty


@pytest.fixture
def config(config):
    return replace(config, last_stride=1, augmentation=False, weight_decay=0.0)


def guide(arm, *boxes, strength=1.0):
    return Guide(arm, strength, torch.tensor(boxes).unsqueeze(1))


@pytest.mark.parametrize("arm", ["map_in_box", "map_out_of_box"])
def test_the_penalty_is_the_divergence_of_scipy_on_boxes_that_cut_through_places(arm):
    maps = np.random.default_rng(0).normal(size=(3, 4, 4))
    boxes = [[1, 3, 6, 7], [0, 0, 4, 8], [5, 2, 8, 3]]
    expected = []
    for values, (x0, y0, x1, y1) in zip(maps, boxes, strict=True):
        pixels = np.full((8, 8), float(arm == "map_out_of_box"))
        pixels[y0:y1, x0:x1] = arm == "map_in_box"
        wanted = pixels.reshape(4, 2, 4, 2).mean((1, 3))
        expected.append(rel_entr(wanted / wanted.sum(), softmax(values)).sum())
    weak = guide(arm, *boxes, strength=0.3)
    penalty = map_penalty(torch.from_numpy(maps), weak, 8, Draws())
    assert penalty.item() == pytest.approx(0.3 * np.mean(expected), rel=1e-5)


def test_images_that_ask_for_nothing_add_nothing():
    """No box; and a box that is the whole image leaves no place to look away to."""
    maps = torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0))
    boxes = [[0, 0, 0, 0], [0, 0, 4, 4], [0, 0, 2, 2]]
    alone = map_penalty(maps[2:], guide("map_out_of_box", boxes[2]), 4, Draws())
    among = map_penalty(maps, guide("map_out_of_box", *boxes), 4, Draws())
    assert among.item() == pytest.approx(alone.item())
    nothing = map_penalty(maps[:1], guide("map_in_box", boxes[0]), 4, Draws())
    assert nothing.item() == 0


def test_boxes_follow_the_flips_of_their_images():
    maps = torch.tensor([[[0.0, 1.0], [2.0, 5.0]]]).expand(4, 2, 2)
    upper_left = [0, 0, 2, 2]
    flips = torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1]], dtype=torch.bool)
    draws = Draws(*flips.view(2, -1, 1, 1, 1))
    turned = [[0, 0, 2, 2], [2, 0, 4, 2], [0, 2, 2, 4], [2, 2, 4, 4]]
    flipped = map_penalty(maps, guide("map_in_box", *[upper_left] * 4), 4, draws)
    expected = map_penalty(maps, guide("map_in_box", *turned), 4, Draws())
    assert flipped.item() == pytest.approx(expected.item())


def test_controls_take_the_boxes_of_other_images_each_once(data, config):
    own = guide_of_run(replace(config, looking="map_in_box 0.5"), data.train)
    assert torch.equal(own.boxes, data.train.boxes)
    assert (own.arm, own.strength) == ("map_in_box", 0.5)
    control = replace(config, looking="map_in_shuffled_box 0.5")
    boxes = guide_of_run(control, data.train).boxes
    assert not torch.equal(boxes, data.train.boxes)
    assert sorted(boxes.tolist()) == sorted(data.train.boxes.tolist())
    seeds = ({}, {"seed": config.seed + 1}, {"repeat": 1})
    guides = [guide_of_run(replace(control, **seed), data.train) for seed in seeds]
    for one, other in itertools.combinations(guides, 2):
        assert not torch.equal(one.boxes, other.boxes)
    others = looking.other_images(50, np.random.default_rng(1))
    assert sorted(others) == list(range(50))
    assert (others != np.arange(50)).all()


def test_a_guide_without_boxes_is_refused(data, config):
    bare = replace(data.train, boxes=0 * data.train.boxes)
    assert guide_of_run(config, bare) is None
    with pytest.raises(ValueError, match=r"'map_in_box 1' needs boxes"):
        guide_of_run(replace(config, looking="map_in_box 1"), bare)


def test_the_maps_are_those_that_the_logits_are_the_means_of():
    """Zhou et al. 2016: a logit is the mean of its class's map, plus its bias."""
    network = resnet.build("resnet18", 5, stem="strided", width=0.125, seed=0).eval()
    images = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([4, 0, 2])
    with captured_output(network.layer4) as features:
        logits = network(images)
    maps = looking.class_maps(features[0], network.fc.weight, labels)
    expected = logits[torch.arange(3), labels] - network.fc.bias[labels]
    torch.testing.assert_close(maps.mean((1, 2)), expected)


def test_a_strong_penalty_moves_the_map(data, config):
    """After some epochs more of the map lies where each arm wants it."""
    inside = {}
    judge = guide_of_run(replace(config, looking="map_in_box 1"), data.train)
    split = run.resident(data.train, "cpu")
    for arm in ("plain", "map_in_box 5", "map_out_of_box 5"):
        chosen = replace(config, looking=arm)
        network = run.initial_network(chosen, 3)
        optimizer = run.make_optimizer(network, chosen)
        of_arm = split._replace(guide=guide_of_run(chosen, data.train))
        for epoch in range(1, 4):
            run.train_epoch(network, optimizer, of_arm, chosen, epoch)
        network.eval()
        with torch.no_grad(), captured_output(network.layer4) as features:
            network(resnet.normalise_images(split.pixels))
        maps = looking.class_maps(features[0], network.fc.weight, split.labels)
        inside[arm] = map_penalty(maps, judge, 16, Draws()).item()
    assert inside["map_in_box 5"] < inside["plain"] < inside["map_out_of_box 5"]

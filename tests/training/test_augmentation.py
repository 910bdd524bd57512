"""Augmented images against torchvision and by hand, and draws in their ranges."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torchvision.transforms.v2 import functional as reference

from helpers.training import run
from helpers.training.augmentation import (
    Draws,
    augment,
    crop,
    draw,
    mixed_cross_entropy,
)
from helpers.training.config import RunConfig

LEVELS = ("crops", "erasing", "mixup", "cutmix")


def pixels(count, size):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 3, size, size, generator=generator) * 255


def shades(*values, size):
    """Images of one shade each."""
    return torch.stack([torch.full((3, size, size), value) for value in values])


def near(values, expected, count, deviation=0.5):
    """Whether their mean is within four standard errors of the expected one."""
    return abs(values.float().mean() - expected) < 4 * deviation / count**0.5


def drawn(count, generator_seed=3, epoch=1, **changes):
    """Random numbers of a run with some changes."""
    config = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data="d")
    generator = torch.Generator().manual_seed(generator_seed)
    return draw(count, replace(config, **changes), epoch, generator)


def test_each_image_equals_its_own_single_transform():
    images, draws = pixels(6, 8), drawn(6, augmentation=True)
    result = augment(images, draws)
    assert result.is_contiguous(memory_format=torch.channels_last)
    for n, image in enumerate(images):
        expected = reference.horizontal_flip(image) if draws.horizontal[n] else image
        expected = reference.vertical_flip(expected) if draws.vertical[n] else expected
        expected = (expected + draws.brightness[n]) * draws.contrast[n]
        assert torch.equal(result[n], expected.clamp(0, 255)[draws.channels[n]])


def test_draws_differ_between_images_and_occur_half_of_the_time():
    draws = drawn(4000, augmentation=True)
    again = drawn(4000, augmentation=True)
    assert torch.equal(draws.brightness, again.brightness)
    changed = (draws.brightness != 0, draws.contrast != 1)
    for occurs in (draws.horizontal, draws.vertical, *changed):
        assert near(occurs, 0.5, 4000)
    # One permutation of six is the identity.
    is_moved = (draws.channels != torch.arange(3)).any(1)
    assert near(is_moved, 0.5 * 5 / 6, 4000)
    # Of some 2,000 uniform draws the outermost 2 % are missed once in 10^17 times.
    for values, low, high in ((draws.brightness, -32, 32), (draws.contrast, 0.5, 1.5)):
        margin = 0.02 * (high - low)
        assert low <= values.min() < low + margin
        assert high - margin < values.max() <= high
    assert torch.equal(draws.channels.sort(1).values, torch.arange(3).expand(4000, 3))


def test_a_crop_equals_torchvisions_and_one_of_the_whole_leaves_the_image():
    images = pixels(3, 8)
    boxes = torch.tensor([[2, 1, 8, 5], [3, 0, 8, 5], [0, 0, 8, 8]])
    result = crop(images, boxes / 8)
    near = {"rtol": 1e-4, "atol": 1e-3}
    for number, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        place = y0, x0, y1 - y0, x1 - x0, [8, 8]
        expected = reference.resized_crop(images[number], *place, antialias=False)
        # At an edge torchvision repeats the outermost pixel of the rectangle, and a crop
        # within a photograph sees the photograph: compared away from the edge.
        inner = (..., slice(2, -2), slice(2, -2))
        torch.testing.assert_close(result[number][inner], expected[inner], **near)
    torch.testing.assert_close(result[2], images[2], **near)


def test_a_rectangle_is_erased_in_its_colour_by_hand():
    draws = Draws(
        # Pixels are those whose centres it holds: column 2, rows 1 and 2.
        erased=torch.tensor([[0.4, 0.3, 0.85, 0.7]]),
        colours=torch.tensor([[10.0, 20.0, 30.0]]),
    )
    expected = torch.zeros(3, 4, 4)
    expected[:, 1:3, 2] = torch.tensor([[10.0], [20.0], [30.0]])
    assert torch.equal(augment(torch.zeros(1, 3, 4, 4), draws)[0], expected)


def test_images_and_losses_are_mixed_with_the_one_before_by_hand():
    # Of two images the one before is the one behind too: hence three.
    weights = torch.tensor([0.75, 1.0, 0.5])
    draws = Draws(weights=weights)
    mixed = augment(shades(0.0, 100.0, 200.0, size=2), draws)
    assert mixed[:, 0, 0, 0].tolist() == [50.0, 100.0, 150.0]
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    labels = torch.tensor([0, 2, 1])
    shares = torch.tensor([[0.75, 0.25, 0.0], [0.0, 0.0, 1.0], [0.0, 0.5, 0.5]])
    for smoothing in (0.0, 0.3):  # which divides its share among all classes
        targets = (1 - smoothing) * shares + smoothing / 3
        expected = cross_entropy(logits, targets)
        loss = mixed_cross_entropy(logits, labels, draws.weights, smoothing)
        torch.testing.assert_close(loss, expected)
    alone = mixed_cross_entropy(logits, labels, None, 0.3)
    expected = cross_entropy(logits, labels, label_smoothing=0.3)
    torch.testing.assert_close(alone, expected)


def test_cutmix_pastes_a_patch_of_the_image_before_whose_area_is_its_share():
    images = shades(0.0, 100.0, 200.0, size=4)
    patches = torch.tensor([[0.5, 0.25, 0.75, 0.75], [0.0, 0, 0, 0], [0.0, 0, 1, 1]])
    mixed = augment(images, Draws(weights=torch.ones(3), patches=patches))
    expected = images.clone()
    expected[0, :, 1:3, 2] = 200.0  # rows 1 and 2, column 2
    expected[2] = 100.0
    assert torch.equal(mixed, expected)
    draws = drawn(5000, strong_augmentation="crops+cutmix")
    areas = areas_of(draws.patches)
    torch.testing.assert_close(draws.weights, 1 - areas)
    assert near(areas, 0.5, 5000, deviation=12**-0.5)


def areas_of(boxes):
    return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])


def test_draws_are_of_seed_repeat_and_epoch_and_lie_in_their_ranges():
    run_of = {"strong_augmentation": "crops+erasing+mixup", "seed": 1, "repeat": 2}
    draws = drawn(5000, epoch=3, **run_of)
    drawn_by = {"crops": ["crops"], "erasing": ["erased", "colours"]}
    for level, fields in (drawn_by | {"mixup": ["weights"]}).items():
        # Levels share their random numbers, and draw only what they name.
        of_level = drawn(5000, epoch=3, **run_of | {"strong_augmentation": level})
        values = of_level._asdict().items()
        assert {name for name, value in values if value is not None} == {*fields}
        for name in fields:
            assert torch.equal(getattr(draws, name), getattr(of_level, name))
    for other in ({"seed": 0}, {"repeat": 0}, {"epoch": 1}):
        others = drawn(5000, **{"epoch": 3} | run_of | other)
        assert not torch.equal(others.crops, draws.crops)
    areas = areas_of(draws.crops)
    assert 0.26 < areas.min() < 0.36  # 0.35, less where a side would exceed the image
    assert 0.97 < areas.max() <= 1
    for boxes in (draws.crops, draws.erased):
        assert boxes.min() >= 0 and boxes.max() <= 1 + 1e-6
    erased = areas_of(draws.erased)
    assert near(erased > 0, 0.5, 5000)
    assert 0.02 - 1e-6 <= erased[erased > 0].min() < 0.025
    assert 0.3 < erased.max() <= 0.33 + 1e-6
    assert 0.5 <= draws.weights.min() < 0.52
    shares = np.random.default_rng(0).beta(0.2, 0.2, 200_000)
    larger_shares = np.maximum(shares, 1 - shares)
    assert abs(draws.weights.mean() - larger_shares.mean()) < 0.01


@pytest.fixture
def config(config):
    return replace(config, augmentation=False, pretrained=True)


def trained(config, data):
    """A network after its first epoch, and its initial weights."""
    network = run.initial_network(replace(config, pretrained=False, frozen_stages=0), 3)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    for module in run.frozen_modules(network, config.frozen_stages):
        module.requires_grad_(False)
    optimizer = run.make_optimizer(network, config)
    run.train_epoch(network, optimizer, run.resident(data.train, "cpu"), config, 1)
    return network.state_dict(), start


def test_each_level_changes_what_is_learnt(data, config):
    changes = [{}, {"label_smoothing": 0.2}]
    changes += [{"strong_augmentation": name} for name in LEVELS]
    learnt = [trained(replace(config, **change), data)[0] for change in changes]
    weights = {tuple(state["fc.weight"].flatten().tolist()) for state in learnt}
    assert len(weights) == len(changes)


def test_frozen_stages_keep_weights_and_statistics_and_the_others_learn(data, config):
    state, start = trained(replace(config, frozen_stages=2), data)
    frozen = ("conv1.", "bn1.", "layer1.", "layer2.")
    for name, value in state.items():
        assert torch.equal(value, start[name]) == name.startswith(frozen), name


def test_what_cannot_be_is_refused(config):
    with pytest.raises(ValueError, match="in a run from scratch"):
        replace(config, frozen_stages=1, pretrained=False)
    with pytest.raises(
        ValueError, match="needs boxes that strong_augmentation 'crops'"
    ):
        replace(config, looking="map_in_box 1", strong_augmentation="crops")

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torchvision.transforms.v2.functional import resized_crop

from helpers.training import run
from helpers.training.config import RunConfig
from helpers.training.strong_augmentation import (
    change_images,
    crop,
    draw_strong,
    mixed_cross_entropy,
)
from tests.conftest import SEED

LEVELS = ("crops", "erasing", "mixup", "cutmix")


@pytest.fixture
def config(data):
    form = {"stem": "strided", "width": 0.125, "max_epochs": 2, "seed": SEED}
    return RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0005, False, True, data=data.fingerprint, **form
    )


def pixels(count, size):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, 3, size, size, generator=generator) * 255


def test_a_crop_equals_torchvisions():
    images = pixels(2, 8)
    crops = torch.tensor([[1, 2, 4, 6], [0, 3, 5, 5]]) / 8
    result = crop(images, crops)
    for image, cropped, place in zip(images, result, (crops * 8).int(), strict=True):
        top, left, height, width = place.tolist()
        # At an edge torchvision repeats the outermost pixel of the rectangle, and a crop
        # within a photograph sees the photograph: compared away from the edge.
        expected = resized_crop(
            image, top, left, height, width, [8, 8], antialias=False
        )
        torch.testing.assert_close(cropped[:, 2:-2, 2:-2], expected[:, 2:-2, 2:-2])


def test_a_crop_of_the_whole_leaves_the_image():
    images = pixels(1, 7)
    assert torch.equal(crop(images, torch.tensor([[0.0, 0, 1, 1]])), images)


def test_a_rectangle_is_erased_in_its_colour_by_hand():
    images = torch.zeros(1, 3, 4, 4)
    draws = draw_strong("none", 1, 0, 0, 1)._replace(
        erased=torch.tensor([[0.25, 0.5, 0.5, 0.25]]),  # rows 1 and 2, column 2
        colours=torch.tensor([[10.0, 20.0, 30.0]]),
    )
    expected = torch.zeros(3, 4, 4)
    expected[:, 1:3, 2] = torch.tensor([[10.0], [20.0], [30.0]])
    assert torch.equal(change_images(images, draws)[0], expected)


def test_images_and_losses_are_mixed_with_the_one_before_by_hand():
    # Of two images the one before is the one behind too: hence three.
    values = (0.0, 100.0, 200.0)
    images = torch.stack([torch.full((3, 2, 2), value) for value in values])
    weights = torch.tensor([0.75, 1.0, 0.5])
    draws = draw_strong("none", 3, 0, 0, 1)._replace(weights=weights)
    mixed = change_images(images, draws)
    assert mixed[:, 0, 0, 0].tolist() == [50.0, 100.0, 150.0]
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 3.0]])
    labels = torch.tensor([0, 2, 1])
    first = 0.75 * cross_entropy(logits[0], labels[0])
    first += 0.25 * cross_entropy(logits[0], labels[2])
    second = cross_entropy(logits[1], labels[1])
    third = 0.5 * cross_entropy(logits[2], labels[2])
    third += 0.5 * cross_entropy(logits[2], labels[1])
    loss = mixed_cross_entropy(logits, labels, draws, 0.0)
    torch.testing.assert_close(loss, (first + second + third) / 3)


def test_smoothed_labels_divide_their_share_among_all_classes():
    logits = torch.tensor([[2.0, 0.0, -1.0]])
    target = torch.tensor([0.3 / 3, 0.7 + 0.3 / 3, 0.3 / 3])
    expected = -(target * logits[0].log_softmax(0)).sum()
    loss = mixed_cross_entropy(logits, torch.tensor([1]), None, 0.3)
    torch.testing.assert_close(loss, expected)


def test_draws_are_of_seed_repeat_and_epoch_and_lie_in_their_ranges():
    level = "crops+erasing+mixup"
    draws = draw_strong(level, 5000, 1, 2, 3)
    again = draw_strong(level, 5000, 1, 2, 3)
    assert all(torch.equal(one, two) for one, two in zip(draws, again, strict=True))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not torch.equal(draw_strong(level, 5000, *other).crops, draws.crops)
    areas = draws.crops[:, 2] * draws.crops[:, 3]
    assert 0.26 < areas.min() < 0.36  # 0.35, less where a side would exceed the image
    assert 0.97 < areas.max() <= 1
    for place in (draws.crops, draws.erased):
        assert (place[:, :2] >= 0).all()
        assert (place[:, :2] + place[:, 2:] <= 1 + 1e-6).all()
    erased = draws.erased[:, 2] > 0
    # Four standard errors of a share of one half.
    assert abs(erased.float().mean() - 0.5) < 4 * 0.5 / 5000**0.5
    erased_areas = (draws.erased[:, 2] * draws.erased[:, 3])[erased]
    assert 0.02 - 1e-6 <= erased_areas.min() < 0.025
    assert 0.3 < erased_areas.max() <= 0.33 + 1e-6
    assert 0.5 <= draws.weights.min() < 0.52
    # Mean of the larger share of a Beta(a, a): 1/2 + 1 / (a 4^a B(a, a)) = 0.886 for 0.2.
    assert abs(draws.weights.mean() - _mean_of_larger_share(0.2)) < 0.01


def _mean_of_larger_share(alpha):
    shares = np.random.default_rng(0).beta(alpha, alpha, 200_000)
    return np.maximum(shares, 1 - shares).mean()


def test_cutmix_pastes_a_patch_of_the_image_before_whose_area_is_its_share():
    images = torch.stack(
        [torch.full((3, 4, 4), value) for value in (0.0, 100.0, 200.0)]
    )
    patches = torch.tensor([[0.25, 0.5, 0.5, 0.25], [0.0, 0, 0, 0], [0.0, 0, 1, 1]])
    draws = draw_strong("none", 3, 0, 0, 1)._replace(patches=patches)
    mixed = change_images(images, draws)
    expected = images.clone()
    expected[0, :, 1:3, 2] = 200.0  # rows 1 and 2, column 2
    expected[2] = 100.0
    assert torch.equal(mixed, expected)
    draws = draw_strong("crops+cutmix", 5000, 1, 2, 3)
    areas = draws.patches[:, 2] * draws.patches[:, 3]
    torch.testing.assert_close(draws.weights, 1 - areas)
    # Four standard errors of the mean of a uniform number.
    assert abs(areas.mean() - 0.5) < 4 * (12 * 5000) ** -0.5


def test_a_level_draws_only_what_it_names():
    none = draw_strong("none", 4, 0, 0, 1)
    assert torch.equal(change_images(pixels(4, 6), none), pixels(4, 6))
    full = draw_strong("crops+erasing+mixup", 4, 0, 0, 1)
    fields = {"crops": ["crops"], "erasing": ["erased"], "mixup": ["weights"]}
    for name, changed in fields.items():
        one = draw_strong(name, 4, 0, 0, 1)
        for field in ("crops", "erased", "weights"):
            expected = full if field in changed else none
            assert torch.equal(getattr(one, field), getattr(expected, field))


def test_the_epoch_learns_from_changed_images_and_smoothed_labels(data, config):
    """Each hyperparameter changes what is learnt, and at rate 0 reports what it should."""
    split = run.resident(data.train, "cpu")
    learnt = {}
    changes = [{}, {"label_smoothing": 0.2}]
    changes += [{"strong_augmentation": name} for name in LEVELS]
    for change in changes:
        changed = replace(config, **change)
        network = run.initial_network(replace(changed, pretrained=False), 3)
        optimizer = run.make_optimizer(network, changed, torch.device("cpu"))
        run.train_epoch(network, optimizer, split, changed, 1)
        learnt[str(change)] = network.fc.weight.detach().clone()
    weights = list(learnt.values())
    for number, weight in enumerate(weights):
        others = weights[:number] + weights[number + 1 :]
        assert not any(torch.equal(weight, other) for other in others)


def test_frozen_stages_keep_weights_and_statistics_and_the_others_learn(data, config):
    changed = replace(config, frozen_stages=2)
    start = run.initial_network(replace(config, pretrained=False), 3).state_dict()
    start = {name: value.clone() for name, value in start.items()}
    network = run.initial_network(replace(config, pretrained=False), 3)
    for module in run.frozen_modules(network, 2):
        module.requires_grad_(False)
    optimizer = run.make_optimizer(network, changed, torch.device("cpu"))
    run.train_epoch(network, optimizer, run.resident(data.train, "cpu"), changed, 1)
    frozen = ("conv1.", "bn1.", "layer1.", "layer2.")
    for name, value in network.state_dict().items():
        assert torch.equal(value, start[name]) == name.startswith(frozen), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frozen_stages": 1, "pretrained": False}, "in a run from scratch"),
        (
            {"looking": "map_in_box 1", "strong_augmentation": "crops"},
            "needs boxes that strong_augmentation 'crops' would move",
        ),
    ],
)
def test_what_cannot_be_is_refused(config, change, message):
    with pytest.raises(ValueError, match=message):
        replace(config, **change)

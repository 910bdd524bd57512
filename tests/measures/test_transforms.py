"""Transforms and mixtures of images: against torchvision, by hand, and what accuracy they leave."""

import itertools

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as V
from torch import nn

from helpers.measures import transforms
from helpers.measures.passes import Classifier, Sample
from helpers.measures.transforms import TRANSFORMS, Transform


@pytest.fixture
def pixels():
    random = np.random.default_rng(1)
    return torch.from_numpy(random.integers(0, 256, (6, 3, 8, 12), dtype=np.uint8))


class Sides(nn.Module):
    """Class 0 when the left half is brighter than the right, class 1 when it is darker, 2 when neither."""

    def forward(self, images):
        left, right = images[..., :4].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))
        return torch.stack([left - right, right - left, torch.full_like(left, 1e-3)], 1)


def halves(*is_right):
    """8 x 8 images, white on one half."""
    images = torch.zeros(len(is_right), 3, 8, 2, 4, dtype=torch.uint8)
    images[range(len(is_right)), :, :, is_right] = 255
    return images.flatten(3)


@pytest.mark.parametrize(
    ("degrees", "turns"), [(90, 1), (-90, 3), (180, 2), (-180, 2), (0, 0)]
)
def test_a_right_angle_and_a_shift_move_pixels_exactly(pixels, degrees, turns):
    square = pixels[..., :8]
    assert torch.equal(transforms.move(square, degrees), square.rot90(turns, (2, 3)))
    right = TRANSFORMS["horizontal translation"].apply(pixels, 0.25)
    down = TRANSFORMS["vertical translation"].apply(pixels, 0.25)
    assert torch.equal(right[..., 3:], pixels[..., :-3])
    assert torch.equal(down[..., 2:, :], pixels[..., :-2, :])


@pytest.mark.parametrize("alpha", [-1.0, -0.25, 0.1, 0.25, 2.0])
def test_colour_jitter_is_torchvisions_three_adjustments(pixels, alpha):
    expected = pixels.double() / 255
    for adjust in (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation):
        expected = adjust(expected, 1 + alpha)
    found = transforms.jitter_colour(pixels, alpha)
    assert found.dtype == torch.uint8
    # Half a level from rounding, and what float32 leaves of 255.
    torch.testing.assert_close(found.double(), expected * 255, rtol=0, atol=0.501)


@pytest.mark.parametrize("batch_size", [1, 3, 4, 100])
def test_accuracy_on_moved_halves_by_hand(batch_size):
    images = halves(0, 1, 0, 1)
    labels = torch.tensor([0, 1, 1, 1])
    shift = TRANSFORMS["horizontal translation"]
    classifier = Classifier(Sides(), torch.Tensor.float, "cpu", batch_size)

    def accuracy(magnitudes):
        sample = Sample(images, None, labels)
        return transforms.transformed_accuracy(classifier, sample, shift, magnitudes)

    assert accuracy(0.0) == 3 / 4
    # Left becomes right; right leaves the image, and no half is brighter.
    assert accuracy(0.5) == 1 / 4
    assert accuracy([0.0, -0.5, 0.5, 0.0]) == 3 / 4


def test_magnitudes_are_drawn_per_image_from_the_range_by_the_seed():
    sample = Sample(halves(*[0] * 400), None, torch.zeros(400).long())
    classifier = Classifier(Sides(), torch.Tensor.float, "cpu", 400)
    drawn = []
    for seed in (0, 0, 1):
        seen = []
        note = Transform(-3, 1, lambda images, size, to=seen: to.append(size) or images)
        given = classifier, sample, {"one": note}, seed
        assert transforms.accuracies_at_random_magnitudes(*given) == {"one": 1.0}
        assert -3 <= min(seen) < max(seen) < 1
        assert len(set(seen)) > 300
        # Four standard errors of the mean of 400 uniform numbers.
        assert abs(np.mean(seen) + 1) < 4 * 4 / (12 * 400) ** 0.5
        drawn.append(seen)
    assert drawn[0] == drawn[1] != drawn[2]


LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize("kind", transforms.KINDS)
def test_partners_are_drawn_evenly_from_the_right_class(kind):
    counts = np.zeros((12, 12))
    for seed in range(600):
        first, partners = transforms.mixup_partners(LABELS, kind, seed)
        assert first.tolist() == list(range(12))
        counts[np.arange(12), partners] += 1
    same = (LABELS[:, None] == LABELS).numpy()
    allowed = same & ~np.eye(12, dtype=bool) if kind == "intra" else ~same
    assert not counts[~allowed].any()
    share = 1 / allowed.sum(1, keepdims=True) * np.ones((12, 12))
    error = np.sqrt(share * (1 - share) / 600)
    assert (np.abs(counts / 600 - share)[allowed] <= 4.5 * error[allowed]).all()
    first, second = (transforms.mixup_partners(LABELS, kind, 7)[1] for _ in range(2))
    assert torch.equal(first, second)


def test_pairs_are_all_of_a_class_or_as_many_different_ones():
    labels = torch.tensor([3, 1, 3, 3, 1, 7, 3])
    pairs = torch.stack(transforms.class_pairs(labels, 6, 0), 1).tolist()
    every = itertools.combinations(range(7), 2)
    expected = {frozenset((i, j)) for i, j in every if labels[i] == labels[j]}
    assert {frozenset(pair) for pair in pairs} == expected
    labels = torch.tensor([0, 1] * 50)
    pairs = torch.stack(transforms.class_pairs(labels, 30, 0), 1)
    assert (labels[pairs[:, 0]] == labels[pairs[:, 1]]).all()
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs) == 60
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert not torch.equal(pairs[:, 0], transforms.class_pairs(labels, 30, 1)[0])

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as V
from torch import nn

from helpers.measures import transforms
from helpers.measures.transforms import TRANSFORMS, Transform

BILINEAR = V.InterpolationMode.BILINEAR


@pytest.fixture
def images():
    return torch.rand(5, 3, 9, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.fixture
def pixels():
    return torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


class Sides(nn.Module):
    """Class 0 when the left half is brighter than the right, class 1 when it is darker, 2 when neither."""

    def forward(self, images):
        left, right = images[..., :4].sum((1, 2, 3)), images[..., 4:].sum((1, 2, 3))
        return torch.stack([left - right, right - left, torch.full_like(left, 1e-3)], 1)


def halves(*bright):
    """8 x 8 images, white on one half."""
    images = torch.zeros(len(bright), 3, 8, 8, dtype=torch.uint8)
    for image, side in zip(images, bright, strict=True):
        image[..., :4] = 255 * (side == "left")
        image[..., 4:] = 255 * (side == "right")
    return images


def test_the_ranges_are_those_of_schiff():
    assert {name: (item.low, item.high) for name, item in TRANSFORMS.items()} == {
        "rotation": (-180, 179),
        "horizontal translation": (-0.5, 0.5),
        "vertical translation": (-0.5, 0.5),
        "colour jitter": (-0.25, 0.25),
    }


def test_svhn_turns_half_as_far_and_moves_alike():
    ranges = {name: (item.low, item.high) for name, item in transforms.transforms_of("svhn").items()}
    assert ranges.pop("rotation") == (-90, 90)
    assert ranges == {name: (item.low, item.high) for name, item in TRANSFORMS.items() if name != "rotation"}
    with pytest.raises(ValueError, match=r"^transform ranges 'mnist' are unknown; choose one of cifar10, svhn$"):
        transforms.transforms_of("mnist")


GAMMA = "torchvision.transforms.v2.functional:adjust_gamma 0.5 2"


def test_a_transform_of_ones_own_stands_beside_the_built_in_ones(pixels):
    found = transforms.transforms_of(own=[GAMMA])
    assert list(found) == [*TRANSFORMS, "adjust gamma"]
    item = found["adjust gamma"]
    assert (item.low, item.high) == (0.5, 2)
    torch.testing.assert_close(item.apply(pixels, torch.full((6,), 0.7, dtype=torch.float64)), V.adjust_gamma(pixels, 0.7))
    each = item.apply(pixels, torch.linspace(0.5, 2, 6, dtype=torch.float64))
    for image, own, gamma in zip(pixels, each, torch.linspace(0.5, 2, 6, dtype=torch.float64).tolist(), strict=True):
        torch.testing.assert_close(own, V.adjust_gamma(image, gamma))
    curves = transforms.transform_curves(Sides(), halves("left", "right"), torch.tensor([0, 1]), torch.Tensor.float, found, 3)
    assert curves["adjust gamma"].accuracies.tolist() == [1, 1, 1]  # the brighter half stays the brighter


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("adjust_gamma 0.5 2", "it has another form"),
        ("no_such_module_anywhere:f 0 1", "ModuleNotFoundError: No module named 'no_such_module_anywhere'"),
        ("math:no_such_function 0 1", "AttributeError: module 'math' has no attribute 'no_such_function'"),
        ("math:pi 0 1", "ValueError: it is no function, or its range is empty"),
        ("math:sqrt 1 0", "ValueError: it is no function, or its range is empty"),
        ("math:sqrt 0 nan", "ValueError: it is no function, or its range is empty"),
        ("math:sqrt 0 one", "ValueError: could not convert string to float: 'one'"),
    ],
)
def test_a_transform_that_cannot_be_used_is_refused_with_what_to_write(text, why):
    message = (
        f"the transform {text!r} cannot be used ({why}); write 'module:function low high', with a module that Python can import and low "
        "below high"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        transforms.named_transform(text)


def test_a_transform_that_changes_size_or_type_and_one_name_twice_are_refused(pixels):
    item = transforms.named_transform("torchvision.transforms.v2.functional:center_crop 2 4")
    with pytest.raises(ValueError, match=r"^the transform center_crop makes torch.uint8 of shape \(6, 3, 4, 4\) of torch.uint8 of shape"):
        item.apply(pixels, torch.full((6,), 4))
    with pytest.raises(ValueError, match=r"^there are two transforms named 'adjust gamma'; give the functions different names$"):
        transforms.transforms_of(own=[GAMMA, GAMMA])


@pytest.mark.parametrize("degrees", [-180.0, -71.5, -10.0, 33.0, 90.0, 179.0])
def test_rotation_is_torchvisions_on_images_of_any_shape(images, degrees):
    expected = V.rotate(images, degrees, interpolation=BILINEAR)
    torch.testing.assert_close(transforms.rotate(images, degrees), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("degrees", "turns"), [(90, 1), (-90, 3), (180, 2), (-180, 2), (0, 0)])
def test_a_right_angle_moves_pixels_exactly(pixels, degrees, turns):
    assert torch.equal(transforms.rotate(pixels, torch.full((6,), float(degrees))), pixels.rot90(turns, (2, 3)))


@pytest.mark.parametrize("fraction", [-0.5, -0.13, 0.26, 0.5])
def test_translation_is_torchvisions(images, fraction):
    for move, shift in ((transforms.translate_horizontally, [12 * fraction, 0.0]), (transforms.translate_vertically, [0.0, 9 * fraction])):
        expected = V.affine(images, 0.0, shift, 1.0, [0.0, 0.0], interpolation=BILINEAR)
        torch.testing.assert_close(move(images, fraction), expected, rtol=0, atol=1e-10)


def test_translation_by_hand():
    row = torch.tensor([10, 20, 30, 40], dtype=torch.uint8).expand(1, 3, 2, 4)
    assert transforms.translate_horizontally(row, 0.25)[0, 0, 0].tolist() == [0, 10, 20, 30]
    assert transforms.translate_horizontally(row, -0.5)[0, 0, 0].tolist() == [30, 40, 0, 0]
    assert transforms.translate_horizontally(row, 0.125)[0, 0, 0].tolist() == [5, 15, 25, 35]  # half a pixel
    assert transforms.translate_vertically(row, 0.5)[0, 0].tolist() == [[0, 0, 0, 0], [10, 20, 30, 40]]
    assert transforms.translate_vertically(row, -0.5)[0, 0].tolist() == [[10, 20, 30, 40], [0, 0, 0, 0]]


@pytest.mark.parametrize("alpha", [-1.0, -0.25, 0.1, 0.25, 2.0])
def test_colour_jitter_is_torchvisions_three_adjustments(images, alpha):
    expected = images
    for adjust in (V.adjust_brightness, V.adjust_contrast, V.adjust_saturation):
        expected = adjust(expected, 1 + alpha)
    torch.testing.assert_close(transforms.jitter_colour(images, alpha), expected, rtol=0, atol=1e-12)
    if alpha:
        assert not torch.allclose(expected, images)


def test_colour_jitter_by_hand():
    # Grey: brightness 100 -> 125 and 40 -> 50, contrast about their mean: 87.5 +- 1.25 * 37.5 = 134.4 and 40.6; grey has no saturation.
    grey = torch.tensor([100, 40], dtype=torch.uint8).expand(1, 3, 1, 2)
    found = transforms.jitter_colour(grey, 0.25)[0, :, 0]
    # torchvision's grey weights sum to 0.9999, which shifts the values by hundredths.
    assert found.tolist() == [[134, 41]] * 3


@pytest.mark.parametrize("name", TRANSFORMS)
def test_magnitude_zero_leaves_pixels_and_a_batch_is_its_images(name, images, pixels):
    apply = TRANSFORMS[name].apply
    assert torch.equal(apply(pixels, torch.zeros(6)), pixels)
    magnitudes = torch.linspace(TRANSFORMS[name].low, TRANSFORMS[name].high, 5, dtype=torch.float64)
    before = images.clone()
    together = apply(images, magnitudes)
    alone = torch.cat([apply(images[i : i + 1], magnitudes[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)
    assert together.dtype == torch.float64
    assert torch.equal(images, before)
    assert not torch.allclose(together[0], together[4])


@pytest.mark.parametrize("name", TRANSFORMS)
def test_uint8_is_the_rounded_float(name, pixels):
    apply, magnitudes = TRANSFORMS[name].apply, torch.linspace(TRANSFORMS[name].low, TRANSFORMS[name].high, 6)
    found = apply(pixels, magnitudes)
    exact = apply(pixels.double() / 255, magnitudes.double()) * 255
    assert found.dtype == torch.uint8
    # Half a level from rounding, and what float32 leaves of 255.
    torch.testing.assert_close(found.double(), exact, rtol=0, atol=0.5 + 1e-3)


def test_magnitudes_of_another_number_are_refused(pixels):
    message = "magnitudes have shape (4,); 6 images need one number, or one for each"
    for item in TRANSFORMS.values():
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            item.apply(pixels, torch.zeros(4))


@pytest.mark.parametrize("batch_size", [1, 3, 4, 100])
def test_accuracy_on_moved_halves_by_hand(batch_size):
    images, labels = halves("left", "right", "left", "right"), torch.tensor([0, 1, 1, 1])
    move = TRANSFORMS["horizontal translation"]

    def accuracy(magnitudes):
        return transforms.transformed_accuracy(Sides(), images, labels, torch.Tensor.float, move, magnitudes, batch_size)

    assert accuracy(0.0) == 0.75
    # Half a width to the right: left becomes right, right leaves the image and no half is brighter.
    assert accuracy(0.5) == 0.25
    assert accuracy([0.0, -0.5, 0.5, 0.0]) == 0.75
    assert np.isnan(transforms.transformed_accuracy(Sides(), images[:0], labels[:0], torch.Tensor.float, move, 0.0, batch_size))


def test_a_curve_runs_from_low_to_high_and_takes_a_function_of_the_readers():
    seen = []

    def mirror(images, magnitudes):
        seen.append(magnitudes.unique().tolist())
        return torch.where(magnitudes.view(-1, 1, 1, 1) > 2, images.flip(3), images)

    own = {"mirror": Transform("mirror", 1, 4, mirror)}
    images, labels = halves("left", "right"), torch.tensor([0, 1])
    curves = transforms.transform_curves(Sides(), images, labels, torch.Tensor.float, own, 4)
    assert list(curves) == ["mirror"]
    assert seen == [[1], [2], [3], [4]]
    assert curves["mirror"].alphas == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert curves["mirror"].accuracies.tolist() == [1, 1, 0, 0]


def test_magnitudes_are_drawn_per_image_from_the_range_by_the_seed():
    seen = []

    def record(images, magnitudes):
        seen.append(magnitudes)
        return images

    images, labels = halves(*["left"] * 400), torch.zeros(400, dtype=torch.int64)
    own = {name: Transform(name, low, high, record) for name, low, high in (("one", -3, 1), ("two", 10, 20))}
    accuracies = [
        transforms.drawn_accuracies(Sides(), images, labels, torch.Tensor.float, own, seed, size) for seed, size in ((0, 400),) * 2
    ]
    transforms.drawn_accuracies(Sides(), images, labels, torch.Tensor.float, own, 1, 400)
    assert accuracies == [{"one": 1.0, "two": 1.0}] * 2
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[4])
    for magnitudes, low, high in ((seen[0], -3, 1), (seen[1], 10, 20)):
        assert low <= magnitudes.min()
        assert magnitudes.max() < high
        # Four standard errors of the mean of 400 uniform numbers.
        assert abs(float(magnitudes.mean()) - (low + high) / 2) < 4 * (high - low) / (12 * 400) ** 0.5
        assert len(magnitudes.unique()) > 300


def test_invariance_targets_are_the_drawn_accuracies_of_a_set_of_images():
    images = SimpleNamespace(images=halves("left", "right", "left"), labels=torch.tensor([0, 1, 0]))
    found = transforms.invariance_targets(Sides(), images, torch.Tensor.float, 3, "cpu")
    assert found == transforms.drawn_accuracies(Sides(), images.images, images.labels, torch.Tensor.float, TRANSFORMS, 3)
    assert found["vertical translation"] == 1
    assert found["rotation"] < 1


@pytest.mark.parametrize("broken", [False, True])
def test_the_network_is_left_as_it_came(broken):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(3)

        def forward(self, images):
            if broken:
                raise RuntimeError("broken")
            return self.norm(images).mean((2, 3))

    network = Counting().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    arguments = (network, halves("left"), torch.tensor([0]), torch.Tensor.float, TRANSFORMS["rotation"], 3.0)
    if broken:
        with pytest.raises(RuntimeError, match=r"^broken$"):
            transforms.transformed_accuracy(*arguments)
    else:
        transforms.transformed_accuracy(*arguments)
    assert network.training
    assert network.norm.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())

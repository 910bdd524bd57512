"""Shifted images: the same bytes for a seed, the SSIM in their names, by its formula."""

import io

import numpy as np
import pytest
import scipy.ndimage
import torch
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image, ImageEnhance

from helpers.data import shifts
from helpers.data.shifts import in_chunks, ssim, with_noise
from helpers.measures import transforms


def photographs():
    """Smooth random pictures with some grain."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(24, 3, 6, 6, generator=generator) * 255
    smooth = torch.nn.functional.interpolate(coarse, size=(32, 32), mode="bicubic")
    grain = 12 * torch.randn(smooth.shape, generator=generator)
    return (smooth + grain).round().clamp(0, 255).to(torch.uint8)


IMAGES = photographs()


@pytest.mark.parametrize(
    "name", ["blur_0.9", "noise_0.9", "jpeg_0.9", "brightness_1.5", "rotation_15"]
)
def test_every_shift_gives_bytes_of_the_same_shape_and_the_same_ones_again(name):
    before = IMAGES.clone()
    first = shifts.shifted(IMAGES, name, seed=1)
    assert shifts.shifted(IMAGES, name, seed=1) is first  # made once
    second = shifts.shifted(IMAGES.clone(), name, seed=1)
    assert (first.dtype, first.shape) == (torch.uint8, IMAGES.shape)
    assert torch.equal(first, second) and not torch.equal(first, IMAGES)
    assert torch.equal(IMAGES, before)
    of_another_seed = shifts.shifted(IMAGES, name, seed=2)
    assert torch.equal(of_another_seed, first) == (name != "noise_0.9")


@pytest.mark.parametrize(
    ("kind", "within"), [("blur", 0.0021), ("noise", 0.0021), ("jpeg", 0.02)]
)  # qualities are whole numbers
def test_the_mean_ssim_is_that_of_the_name(kind, within):
    for target in (0.9, 0.7):
        found = shifts.shifted(IMAGES, f"{kind}_{target}")
        mean = float(ssim(IMAGES, found).double().mean())
        assert mean == pytest.approx(target, abs=within)


@pytest.mark.parametrize("kind", ["Brightness", "Contrast"])
def test_brightness_and_contrast_equal_another_library(kind):
    picture = Image.fromarray(IMAGES[0].permute(1, 2, 0).numpy())
    theirs = np.asarray(getattr(ImageEnhance, kind)(picture).enhance(0.5)).astype(int)
    ours = shifts.shifted(IMAGES[:1], f"{kind.lower()}_0.5")[0].permute(1, 2, 0)
    assert np.abs(ours.numpy() - theirs).max() <= 2  # each rounds once, or cuts


def test_jpeg_is_that_of_a_quality():
    picture = Image.fromarray(IMAGES[0].permute(1, 2, 0).numpy())
    ours = shifts.shifted(IMAGES, "jpeg_0.8")[0].permute(1, 2, 0).numpy()
    files = [io.BytesIO() for _ in range(100)]
    for quality, file in enumerate(files, 1):
        picture.save(file, "JPEG", quality=quality)
    assert any(np.array_equal(ours, np.asarray(Image.open(file))) for file in files)


def test_rotation_equals_that_of_the_measures():
    for degrees in (15.0, -30.0):
        own = transforms.move(IMAGES, degrees).int()
        turned = shifts.shifted(IMAGES, f"rotation_{degrees:g}")
        assert (turned.int() - own).abs().max() <= 1
    turned = shifts.shifted(IMAGES, "rotation_90")
    assert torch.equal(turned, IMAGES.rot90(1, (2, 3)))


@pytest.mark.parametrize(
    "name",
    ["blur", "blur_1.2", "blur_0", "fog_0.9", "rotation_180.5", "rotation_500", "_0.5"],
)
def test_unknown_names_are_refused(name):
    message = f"targets is '{name}': String should match pattern"
    with pytest.raises(ValueError, match=message):
        shifts.shifted(IMAGES, name)


def test_an_ssim_out_of_reach_is_refused():
    flat = torch.full((2, 3, 16, 16), 90, dtype=torch.uint8)
    with pytest.raises(ValueError, match="the nearest mean SSIM is 1"):
        shifts.shifted(flat, "blur_0.9")


def by_definition(one, other):
    """Wang et al. 2004, equation (13), of every 11 x 11 window within the image."""
    place = np.arange(11) - 5
    weights = np.exp(-(place[:, None] ** 2 + place**2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    x, y = (
        sliding_window_view(image.astype(float), (11, 11), (1, 2))
        for image in (one, other)
    )

    def mean(windows):
        return (weights * windows).sum((-2, -1))

    luminance = 2 * mean(x) * mean(y) + c1, mean(x) ** 2 + mean(y) ** 2 + c1
    covariance = mean(x * y) - mean(x) * mean(y)
    spread = mean(x**2 + y**2) - mean(x) ** 2 - mean(y) ** 2
    ratios = luminance[0] * (2 * covariance + c2) / (luminance[1] * (spread + c2))
    return ratios.mean()


@pytest.mark.parametrize(("height", "width"), [(11, 11), (16, 13), (32, 32)])
def test_ssim_is_the_mean_over_the_windows_within_the_image(height, width):
    generator = torch.Generator().manual_seed(height)
    shape = (3, 3, height, width)
    images = torch.randint(256, shape, generator=generator, dtype=torch.uint8)
    degraded = in_chunks(images, lambda pixels: with_noise(pixels, 30.0, generator))
    pairs = zip(images.numpy(), degraded.numpy(), strict=True)
    expected = [by_definition(one, other) for one, other in pairs]
    found = ssim(images, degraded).numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("deviation", [0.4, 1.3, 6.0])
def test_blur_is_scipys(deviation):
    pixels = np.random.default_rng(0).uniform(0, 255, (2, 3, 32, 32))
    radius = min(int(np.ceil(4 * deviation)), 31)
    deviations = (0, 0, deviation, deviation)
    options = {"mode": "mirror", "radius": radius}
    expected = scipy.ndimage.gaussian_filter(pixels, deviations, **options)
    blurred = shifts.blurred(torch.tensor(pixels), deviation, None)
    np.testing.assert_allclose(blurred, expected, rtol=1e-4)

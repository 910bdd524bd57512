"""Structural similarity against its formula, window by window; blur and noise are tested where strengths are chosen."""

import numpy as np
import pytest
import torch

from helpers.data.degrade import in_chunks, ssim, with_noise


def by_definition(one, other):
    """Wang et al. 2004, equation (13), in float64: every 11 x 11 window that lies within the image, one by one."""
    place = np.arange(11) - 5
    weights = np.exp(-(place[:, None] ** 2 + place**2) / (2 * 1.5**2))
    weights /= weights.sum()
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = []
    for top in range(one.shape[1] - 10):
        for left in range(one.shape[2] - 10):
            x, y = (image[:, top : top + 11, left : left + 11].astype(float) for image in (one, other))
            mean_x, mean_y = (weights * x).sum((1, 2)), (weights * y).sum((1, 2))
            away_x, away_y = x - mean_x[:, None, None], y - mean_y[:, None, None]
            covariance = (weights * away_x * away_y).sum((1, 2))
            spread = (weights * (away_x**2 + away_y**2)).sum((1, 2))
            values.append((2 * mean_x * mean_y + c1) * (2 * covariance + c2) / ((mean_x**2 + mean_y**2 + c1) * (spread + c2)))
    return np.mean(values)


@pytest.mark.parametrize(("height", "width"), [(11, 11), (16, 13), (32, 32)])
def test_ssim_is_the_mean_over_the_windows_within_the_image(height, width):
    generator = torch.Generator().manual_seed(height)
    images = torch.randint(256, (3, 3, height, width), generator=generator, dtype=torch.uint8)
    degraded = in_chunks(images, lambda pixels: with_noise(pixels, 30.0, generator))
    expected = [by_definition(one, other) for one, other in zip(images.numpy(), degraded.numpy(), strict=True)]
    np.testing.assert_allclose(ssim(images, degraded).numpy(), expected, rtol=0, atol=1e-4)


def test_what_happens_at_the_border_alone_counts_where_a_window_reaches_it():
    """A reflected border would count the changed corner several times."""
    images = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    changed = images.clone()
    changed[..., 0, 0] = 255
    assert float(ssim(images, changed)[0]) == pytest.approx(by_definition(images[0].numpy(), changed[0].numpy()), abs=1e-5)


def test_images_without_a_whole_window_are_refused():
    with pytest.raises(ValueError, match="sides of at least 11, got"):
        ssim(*[torch.zeros(1, 3, 32, 10, dtype=torch.uint8)] * 2)

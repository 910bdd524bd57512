"""Blur and noise of images, and how much of an image is left: structural similarity (SSIM)."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure
from torchvision.transforms.v2.functional import gaussian_blur

# Images at a time: few, since the convolutions of small maps are several times faster on a CPU when they stay in its cache.
_CHUNK = 16
LEAST_SIDE = 8
_RADIUS = 5  # of the SSIM's window: 3.5 standard deviations of 1.5 pixels, rounded


def check_images(images: Tensor, least_side: int = LEAST_SIDE) -> None:
    """Refuse what is not (N, 3, H, W) uint8 with sides of at least ``least_side``.

    Raises:
        ValueError: images of another kind.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or min(images.shape[-2:]) < least_side:
        got = f"{tuple(images.shape)} {images.dtype}"
        raise ValueError(f"images must be (N, 3, H, W) uint8 with sides of at least {least_side}, got {got}")


def in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Images changed as floats, some at a time, then rounded and cut to bytes: uint8 (N, 3, H, W) -> as many, on the images' device."""
    if not len(images):
        return images.clone()
    with torch.no_grad():
        parts = [change(chunk.float()) for chunk in images.split(_CHUNK)]
        return torch.cat([part.round().clamp(0, 255).to(images.device, torch.uint8) for part in parts])


def blurred(pixels: Tensor, deviation: float) -> Tensor:
    """Gaussian blur, reflected at the edges: float (N, 3, H, W) -> as many.

    Args:
        pixels: of any range.
        deviation: standard deviation in pixels, above 0.
    """
    # Beyond 4 standard deviations the kernel's weights sum to less than 1e-4, so a wider kernel makes no step in the SSIM.
    radius = min(math.ceil(4 * deviation), min(pixels.shape[-2:]) - 1)
    return gaussian_blur(pixels, [2 * radius + 1] * 2, [deviation] * 2)


def with_noise(pixels: Tensor, deviation: float, draws: torch.Generator) -> Tensor:
    """Pixels with independent Gaussian noise, not cut to any range: float (N, 3, H, W) -> as many.

    Args:
        pixels: grey levels.
        deviation: standard deviation in grey levels.
        draws: of the CPU, so that every device gets the same noise; it goes on from image to image.
    """
    return pixels + deviation * torch.randn(pixels.shape, generator=draws).to(pixels.device)


def ssim(images: Tensor, degraded: Tensor) -> Tensor:
    """Structural similarity of each image with its degraded version; Wang et al. 2004, equation (13).

    Gaussian windows of 11 x 11 pixels and standard deviation 1.5, k1 = 0.01, k2 = 0.03, pixels in [0, 255] (data range 255); mean over the
    windows that lie within the image, and over channels. Equal to scikit-image's ``structural_similarity`` with ``gaussian_weights`` and
    without ``use_sample_covariance``; the map is torchmetrics'.

    Args:
        images: (N, 3, H, W) uint8, sides at least 11.
        degraded: the same shape.

    Returns:
        (N,) float32 in [-1, 1]; 1 for equal images only, up to the rounding of float32, which costs bright flat regions up to 1e-3.

    Raises:
        ValueError: the images are of another kind, or the shapes differ.
    """
    check_images(images, 2 * _RADIUS + 1)
    if images.shape != degraded.shape or degraded.dtype != torch.uint8:
        raise ValueError(f"degraded must be uint8 of shape {tuple(images.shape)}, got {tuple(degraded.shape)} {degraded.dtype}")
    settings = {"sigma": 1.5, "k1": 0.01, "k2": 0.03, "data_range": 255.0, "reduction": "none", "return_full_image": True}
    found = []
    for clean, changed in zip(images.split(_CHUNK), degraded.split(_CHUNK), strict=True):
        _, whole = structural_similarity_index_measure(changed.float(), clean.float(), **settings)
        # The rest of the map has windows that are filled by reflection.
        found.append(whole[..., _RADIUS:-_RADIUS, _RADIUS:-_RADIUS].mean((1, 2, 3)))
    return torch.cat(found)

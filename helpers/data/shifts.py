"""Images degraded and shifted, and how much of them is left (SSIM): blur, noise, rotation."""

import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure
from torchvision.transforms.v2.functional import InterpolationMode, gaussian_blur, rotate

from helpers.files import read_tensors, write_tensors
from helpers.parameters import LIMITS, outside

_FORMAT = 2  # raised when the meaning of a name changes: older copies are then never used
_CHUNK = 16  # since the convolutions of small maps are several times faster on a CPU when they stay in its cache
_RADIUS = 5  # of the SSIM's window: 3.5 standard deviations of 1.5 pixels, rounded
_CALIBRATION_IMAGES = 256  # the mean SSIM of so many is that of all to about 0.01
_CLOSE, _NEAR = 0.002, 0.02  # of the SSIM: where the search ends, and what is taken where it steps over the target
_STEPS = 24


def check_images(images: Tensor, least_side: int = 8) -> None:
    """Raise ValueError for what is not (N, 3, H, W) uint8 with sides of at least ``least_side``."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3 or min(images.shape[-2:]) < least_side:
        raise ValueError(f"images must be (N, 3, H, W) uint8 with sides of at least {least_side}, got {tuple(images.shape)} {images.dtype}")


def in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Images changed as floats, some at a time, then rounded and cut to bytes: uint8 (N, 3, H, W) -> as many, on the images' device."""
    with torch.no_grad():
        parts = [change(chunk.float()) for chunk in images.split(_CHUNK)]
        return torch.cat([part.round().clamp(0, 255).to(images.device, torch.uint8) for part in parts])


def blurred(pixels: Tensor, deviation: float) -> Tensor:
    """Gaussian blur of a standard deviation in pixels, reflected at the edges: float (N, 3, H, W) -> as many."""
    # Beyond 4 standard deviations the kernel's weights sum to less than 1e-4, so a wider kernel makes no step in the SSIM.
    radius = min(math.ceil(4 * deviation), min(pixels.shape[-2:]) - 1)
    return gaussian_blur(pixels, [2 * radius + 1] * 2, [deviation] * 2)


def with_noise(pixels: Tensor, deviation: float, draws: torch.Generator) -> Tensor:
    """Pixels with independent Gaussian noise, in grey levels, drawn on the CPU, so that every device gets the same; not cut to a range."""
    return pixels + deviation * torch.randn(pixels.shape, generator=draws).to(pixels.device)


def ssim(images: Tensor, degraded: Tensor) -> Tensor:
    """Structural similarity of each image with its degraded version; Wang et al. 2004, equation (13).

    Gaussian windows of 11 x 11 pixels and standard deviation 1.5; mean over the windows within the image, and over channels, as
    scikit-image has it with ``gaussian_weights`` and without ``use_sample_covariance``. (N,) float32, to 1e-3 in bright flat regions.
    Raises ValueError for sides below 11.
    """
    check_images(images, 2 * _RADIUS + 1)
    settings = {"sigma": 1.5, "k1": 0.01, "k2": 0.03, "data_range": 255.0, "reduction": "none", "return_full_image": True}
    found = []
    for clean, changed in zip(images.split(_CHUNK), degraded.split(_CHUNK), strict=True):
        _, whole = structural_similarity_index_measure(changed.float(), clean.float(), **settings)
        # The rest of the map has windows that are filled by reflection.
        found.append(whole[..., _RADIUS:-_RADIUS, _RADIUS:-_RADIUS].mean((1, 2, 3)))
    return torch.cat(found)


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise about their centre, bilinear, black where nothing was: uint8 (N, 3, H, W) -> as many."""
    # Without a fill: a fill of 0 would take the border's share of black from it twice.
    return rotate(images, degrees, interpolation=InterpolationMode.BILINEAR)


def parsed(name: str) -> tuple[str, float]:
    """Take a shift's name apart: "blur_0.9" -> ("blur", 0.9), "rotation_30" in degrees; another name is a ValueError."""
    if fault := outside(LIMITS["targets"], name):
        raise ValueError(f"shift {fault}")
    kind, _, number = name.partition("_")
    return kind, float(number)


def at(column: str, shift: str = "") -> str:
    """Column of a quantity on a shifted target: ("test_accuracy", "blur_0.9") -> "test_accuracy@blur_0.9"; "" is no shift."""
    return f"{column}@{shift}" if shift else column


def shifted(images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shift (N, 3, H, W) uint8 images with sides of at least 11; the same images, name (see ``parsed``) and seed give the same bytes.

    Blur has one strength for all images, found so that the mean SSIM of up to 256 of them, drawn by the seed, is the one in the name within
    0.002, or within 0.02 where the SSIM of few images steps over it; else ValueError.
    """
    kind, value = parsed(name)
    check_images(images, 2 * _RADIUS + 1)
    if kind == "rotation":
        return torch.cat([turned(chunk, value) for chunk in images.split(_CHUNK)])
    order = np.random.default_rng(seed).permutation(len(images))[:_CALIBRATION_IMAGES]
    return _blurred(images, _deviation(images[torch.as_tensor(np.sort(order))], value))


def _blurred(images: Tensor, deviation: float) -> Tensor:
    return in_chunks(images, lambda pixels: blurred(pixels, deviation))


def _deviation(sample: Tensor, target: float) -> float:
    """Find the blur, in pixels, that leaves a mean SSIM, by bisection; it is 1 without blur and falls."""
    greatest = min(sample.shape[-2:]) / 4
    low, high, deviation, tried = 0.0, math.inf, greatest / 64, []
    for _ in range(_STEPS):
        reached = float(ssim(sample, _blurred(sample, deviation)).double().mean())
        tried.append((abs(reached - target), deviation, reached))
        if tried[-1][0] <= _CLOSE or (reached > target and deviation == greatest):
            break
        low, high = (deviation, high) if reached > target else (low, deviation)
        deviation = (low + high) / 2 if high < math.inf else min(2 * deviation, greatest)
    miss, deviation, reached = min(tried)
    if miss > _NEAR:
        raise ValueError(f"no blur leaves these images an SSIM of {target:g}: the nearest is {reached:.3f}, at {deviation:g} pixels")
    return deviation


def kept(folder: Path, images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shifted images from a folder, in a file named by shift, seed and the images' bytes; made where it is absent or damaged."""
    digest = blake2b(np.ascontiguousarray(images.numpy()).data, digest_size=8)
    digest.update(f"{name} {seed} {_FORMAT} {tuple(images.shape)}".encode())
    path = folder / f"{name}-{digest.hexdigest()}.safetensors"
    if (found := read_tensors(path)) is None:
        write_tensors(path, {"images": shifted(images, name, seed)})
        found = read_tensors(path)
    return found["images"]

"""Images degraded and shifted, and how much of them is left (SSIM): blur, noise, JPEG, brightness, contrast, rotation."""

import io
import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchmetrics.functional.image import structural_similarity_index_measure
from torchvision.transforms.v2.functional import (
    InterpolationMode,
    adjust_brightness,
    adjust_contrast,
    gaussian_blur,
    rotate,
)

from helpers.files import read_tensors, write_tensors
from helpers.parameters import LIMITS, outside

_FORMAT = (
    2  # raised when the meaning of a name changes: older copies are then never used
)
_CHUNK = 16  # since the convolutions of small maps are several times faster on a CPU when they stay in its cache
_RADIUS = 5  # of the SSIM's window: 3.5 standard deviations of 1.5 pixels, rounded
_CALIBRATION_IMAGES = 256  # the mean SSIM of so many is that of all to about 0.01
_CLOSE, _NEAR = (
    0.002,
    0.02,
)  # of the SSIM: where the search ends, and what is taken where it steps over the target
_STEPS = 24


def in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Images changed as floats, some at a time, then rounded and cut to bytes: uint8 (N, 3, H, W) -> as many, on the images' device."""
    with torch.no_grad():
        parts = [change(chunk.float()) for chunk in images.split(_CHUNK)]
        return torch.cat(
            [
                part.round().clamp(0, 255).to(images.device, torch.uint8)
                for part in parts
            ]
        )


def blurred(pixels: Tensor, deviation: float) -> Tensor:
    """Gaussian blur of a standard deviation in pixels, reflected at the edges: float (N, 3, H, W) -> as many."""
    # Beyond 4 standard deviations the kernel's weights sum to less than 1e-4, so a wider kernel makes no step in the SSIM.
    radius = min(math.ceil(4 * deviation), min(pixels.shape[-2:]) - 1)
    return gaussian_blur(pixels, [2 * radius + 1] * 2, [deviation] * 2)


def with_noise(pixels: Tensor, deviation: float, draws: torch.Generator) -> Tensor:
    """Pixels with independent Gaussian noise, in grey levels, drawn on the CPU, so that every device gets the same; not cut to a range."""
    return pixels + deviation * torch.randn(pixels.shape, generator=draws).to(
        pixels.device
    )


def ssim(images: Tensor, degraded: Tensor) -> Tensor:
    """Structural similarity of each image with its degraded version; Wang et al. 2004, equation (13).

    Gaussian windows of 11 x 11 pixels and standard deviation 1.5; mean over the windows within the image, and over channels, as
    scikit-image has it with ``gaussian_weights`` and without ``use_sample_covariance``. (N, 3, H, W) uint8 with sides of at least 11 ->
    (N,) float32, to 1e-3 in bright flat regions.
    """
    settings = {
        "sigma": 1.5,
        "k1": 0.01,
        "k2": 0.03,
        "data_range": 255.0,
        "reduction": "none",
        "return_full_image": True,
    }
    found = []
    for clean, changed in zip(
        images.split(_CHUNK), degraded.split(_CHUNK), strict=True
    ):
        _, whole = structural_similarity_index_measure(
            changed.float(), clean.float(), **settings
        )
        # The rest of the map has windows that are filled by reflection.
        found.append(whole[..., _RADIUS:-_RADIUS, _RADIUS:-_RADIUS].mean((1, 2, 3)))
    return torch.cat(found)


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise about their centre, bilinear, black where nothing was: uint8 (N, 3, H, W) -> as many."""
    # Without a fill: a fill of 0 would take the border's share of black from it twice.
    return rotate(images, degrees, interpolation=InterpolationMode.BILINEAR)


def _by_jpeg(images: Tensor, strength: float, seed: int) -> Tensor:
    """Images saved as JPEG files of a quality of 100 less the strength, and read again."""
    found = []
    for pixels in images.permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(pixels).save(
            file, "JPEG", quality=max(1, round(100 - strength))
        )
        found.append(np.asarray(Image.open(file, formats=("JPEG",))))
    return (
        torch.from_numpy(np.stack(found))
        .permute(0, 3, 1, 2)
        .contiguous()
        .to(images.device)
    )


def _by_blur(images: Tensor, deviation: float, seed: int) -> Tensor:
    return in_chunks(images, lambda pixels: blurred(pixels, deviation))


def _by_noise(images: Tensor, deviation: float, seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return in_chunks(images, lambda pixels: with_noise(pixels, deviation, draws))


# What is calibrated to the SSIM in its name, with the greatest strength for images of a side; and what takes the number in its name.
_TO_SSIM = {
    "blur": (_by_blur, lambda side: side / 4),
    "noise": (_by_noise, lambda side: 255.0),
    "jpeg": (_by_jpeg, lambda side: 99.0),
}
_BY_NUMBER = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "rotation": turned,
}


def parsed(name: str) -> tuple[str, float]:
    """Take a shift's name apart: "blur_0.9" -> ("blur", 0.9), "rotation_30" in degrees, "contrast_0.5"; another name is a ValueError."""
    if fault := outside(LIMITS["targets"], name):
        raise ValueError(f"shift {fault}")
    kind, _, number = name.partition("_")
    return kind, float(number)


def at(column: str, shift: str = "") -> str:
    """Column of a quantity on a shifted target: ("test_accuracy", "blur_0.9") -> "test_accuracy@blur_0.9"; "" is no shift."""
    return f"{column}@{shift}" if shift else column


def shifted(images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shift (N, 3, H, W) uint8 images with sides of at least 11; the same images, name (see ``parsed``) and seed give the same bytes.

    Blur, noise and JPEG have one strength for all images, found so that the mean SSIM of up to 256 of them, drawn by the seed, is the one
    in the name within 0.002, or within 0.02 where the SSIM of few images steps over it; else ValueError.
    """
    kind, value = parsed(name)
    if kind in _BY_NUMBER:
        return torch.cat(
            [_BY_NUMBER[kind](chunk, value) for chunk in images.split(_CHUNK)]
        )
    order = np.random.default_rng(seed).permutation(len(images))[:_CALIBRATION_IMAGES]
    sample, (change, greatest) = images[torch.as_tensor(np.sort(order))], _TO_SSIM[kind]
    return change(
        images,
        _strength(
            lambda strength: change(sample, strength, seed),
            sample,
            name,
            greatest(min(images.shape[-2:])),
        ),
        seed,
    )


def _strength(
    changed: Callable[[float], Tensor], sample: Tensor, name: str, greatest: float
) -> float:
    """Find the strength that leaves a mean SSIM, by bisection; it is 1 at strength 0 and falls."""
    target, low, high, strength, tried = (
        parsed(name)[1],
        0.0,
        math.inf,
        greatest / 64,
        [],
    )
    for _ in range(_STEPS):
        reached = float(ssim(sample, changed(strength)).double().mean())
        tried.append((abs(reached - target), strength, reached))
        if tried[-1][0] <= _CLOSE or (reached > target and strength == greatest):
            break
        low, high = (strength, high) if reached > target else (low, strength)
        strength = (low + high) / 2 if high < math.inf else min(2 * strength, greatest)
    miss, strength, reached = min(tried)
    if miss > _NEAR:
        raise ValueError(
            f"shift {name!r} cannot be made of these images: the nearest mean SSIM is {reached:.3f}, at strength {strength:g}"
        )
    return strength


def kept(folder: Path, images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shifted images from a folder, in a file named by shift, seed and the images' bytes; made where it is absent or damaged."""
    digest = blake2b(np.ascontiguousarray(images.numpy()).data, digest_size=8)
    digest.update(f"{name} {seed} {_FORMAT} {tuple(images.shape)}".encode())
    path = folder / f"{name}-{digest.hexdigest()}.safetensors"
    if (found := read_tensors(path)) is None:
        write_tensors(path, {"images": shifted(images, name, seed)})
        found = read_tensors(path)
    return found["images"]

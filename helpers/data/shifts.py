"""Images degraded and shifted, and how much of them is left.

Blur, noise and JPEG by the structural similarity (SSIM) that they leave; brightness,
contrast and rotation by their number.
"""

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

# Raised when the meaning of a name changes: older copies are then never used.
_FORMAT = 2
# Convolutions of small maps are several times faster on a CPU within its cache.
_CHUNK = 16
_RADIUS = 5  # of the SSIM's window: 3.5 standard deviations of 1.5 pixels, rounded
_CALIBRATION_IMAGES = 256  # the mean SSIM of so many is that of all to about 0.01
_CLOSE = 0.002  # of the SSIM: where the search ends
_NEAR = 0.02  # what is taken where the SSIM steps over the target
_STEPS = 24


def in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Images changed as floats, some at a time, then rounded and cut to bytes.

    Args:
        images: (N, 3, H, W) uint8.
        change: takes and gives float32 in [0, 255], (n, 3, H, W).

    Returns:
        (N, 3, H, W) uint8, on the images' device.

    Example:
        >>> in_chunks(torch.full((1, 1), 9, dtype=torch.uint8), lambda x: 0.6 * x)
        tensor([[5]], dtype=torch.uint8)
    """
    with torch.no_grad():
        changed = [change(chunk.float()) for chunk in images.split(_CHUNK)]
        return torch.cat(
            [
                chunk.round().clamp(0, 255).to(images.device, torch.uint8)
                for chunk in changed
            ]
        )


def blurred(pixels: Tensor, deviation: float) -> Tensor:
    """Gaussian blur, reflected at the edges.

    Args:
        pixels: (N, 3, H, W) float.
        deviation: standard deviation, pixels.
    """
    # Beyond 4 standard deviations the kernel's weights sum to less than 1e-4, so a
    # wider kernel makes no step in the SSIM.
    radius = min(math.ceil(4 * deviation), min(pixels.shape[-2:]) - 1)
    return gaussian_blur(pixels, [2 * radius + 1] * 2, [deviation] * 2)


def with_noise(pixels: Tensor, deviation: float, draws: torch.Generator) -> Tensor:
    """Pixels with independent Gaussian noise, not cut to a range.

    Args:
        pixels: (N, 3, H, W) float, grey levels.
        deviation: standard deviation, grey levels.
        draws: of the CPU, so that every device gets the same noise.
    """
    noise = torch.randn(pixels.shape, generator=draws)
    return pixels + deviation * noise.to(pixels.device)


def ssim(images: Tensor, degraded: Tensor) -> Tensor:
    """Structural similarity of images with degraded ones; Wang et al. 2004, eq. (13).

    ``(2 m n + c1)(2 s + c2) / ((m^2 + n^2 + c1)(v + w + c2))`` with means m, n,
    variances v, w and covariance s in Gaussian windows of 11 x 11 pixels and standard
    deviation 1.5; mean over the windows within the image, and over channels, as
    scikit-image has it with ``gaussian_weights`` and without
    ``use_sample_covariance``.

    Args:
        images: (N, 3, H, W) uint8 with sides of at least 11.
        degraded: the same images, changed.

    Returns:
        (N,) float32 in [-1, 1], right to 1e-3 in bright flat regions.
    """
    settings = {
        "sigma": 1.5,
        "k1": 0.01,
        "k2": 0.03,
        "data_range": 255.0,
        "reduction": "none",
        "return_full_image": True,
    }
    similarities = []
    for clean, changed in zip(
        images.split(_CHUNK), degraded.split(_CHUNK), strict=True
    ):
        _, whole = structural_similarity_index_measure(
            changed.float(), clean.float(), **settings
        )
        # The rest of the map has windows that are filled by reflection.
        inner = whole[..., _RADIUS:-_RADIUS, _RADIUS:-_RADIUS]
        similarities.append(inner.mean((1, 2, 3)))
    return torch.cat(similarities)


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images turned about their centre, bilinear, black where nothing was.

    Args:
        images: (N, 3, H, W) uint8.
        degrees: counter-clockwise.
    """
    # Without a fill: a fill of 0 would take the border's share of black from it twice.
    return rotate(images, degrees, interpolation=InterpolationMode.BILINEAR)


def _by_jpeg(images: Tensor, strength: float, seed: int) -> Tensor:
    """Images saved as JPEG files of quality 100 less the strength, and read again."""
    read = []
    for pixels in images.permute(0, 2, 3, 1).cpu().numpy():
        file = io.BytesIO()
        Image.fromarray(pixels).save(
            file, "JPEG", quality=max(1, round(100 - strength))
        )
        read.append(np.asarray(Image.open(file, formats=("JPEG",))))
    pixels = torch.from_numpy(np.stack(read)).permute(0, 3, 1, 2)
    return pixels.contiguous().to(images.device)


def _by_blur(images: Tensor, deviation: float, seed: int) -> Tensor:
    return in_chunks(images, lambda pixels: blurred(pixels, deviation))


def _by_noise(images: Tensor, deviation: float, seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return in_chunks(images, lambda pixels: with_noise(pixels, deviation, draws))


# Calibrated to the SSIM in its name, with the greatest strength for images of a side.
_TO_SSIM = {
    "blur": (_by_blur, lambda side: side / 4),
    "noise": (_by_noise, lambda side: 255.0),
    "jpeg": (_by_jpeg, lambda side: 99.0),
}
# What takes the number in its name.
_BY_NUMBER = {
    "brightness": adjust_brightness,
    "contrast": adjust_contrast,
    "rotation": turned,
}


def parsed(name: str) -> tuple[str, float]:
    """Kind and number of a shift.

    Args:
        name: such as "blur_0.9" (by its SSIM), "rotation_30" (degrees), "contrast_0.5".

    Raises:
        ValueError: for another name.

    Example:
        >>> parsed("blur_0.9")
        ('blur', 0.9)
    """
    fault = outside(LIMITS["targets"], name)
    if fault:
        raise ValueError(f"shift {fault}")
    kind, _, number = name.partition("_")
    return kind, float(number)


def at(column: str, shift: str = "") -> str:
    """Column of a quantity on a shifted target.

    Args:
        column: of the quantity.
        shift: its name; "" is no shift.

    Example:
        >>> at("test_accuracy", "blur_0.9"), at("test_accuracy")
        ('test_accuracy@blur_0.9', 'test_accuracy')
    """
    return f"{column}@{shift}" if shift else column


def shifted(images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shift images; the same images, name and seed give the same bytes.

    Blur, noise and JPEG have one strength for all images, by which the mean SSIM of up
    to 256 of them, drawn by the seed, is the one in the name within 0.002, or within
    0.02 where the SSIM of few images steps over it.

    Args:
        images: (N, 3, H, W) uint8 with sides of at least 11.
        name: see ``parsed``.
        seed: of the images that calibrate, and of noise.

    Raises:
        ValueError: for another name, or an SSIM that no strength leaves.
    """
    kind, value = parsed(name)
    if kind in _BY_NUMBER:
        return torch.cat(
            [_BY_NUMBER[kind](chunk, value) for chunk in images.split(_CHUNK)]
        )
    order = np.random.default_rng(seed).permutation(len(images))[:_CALIBRATION_IMAGES]
    sample = images[torch.as_tensor(np.sort(order))]
    change, greatest = _TO_SSIM[kind]
    strength = _strength(
        lambda strength: change(sample, strength, seed),
        sample,
        name,
        greatest(min(images.shape[-2:])),
    )
    return change(images, strength, seed)


def _strength(
    changed: Callable[[float], Tensor], sample: Tensor, name: str, greatest: float
) -> float:
    """The strength that leaves a mean SSIM, by bisection.

    The SSIM is 1 at strength 0 and falls.
    """
    _, target = parsed(name)
    low = 0.0
    high = math.inf
    strength = greatest / 64
    tried = []
    for _ in range(_STEPS):
        reached = float(ssim(sample, changed(strength)).double().mean())
        tried.append((abs(reached - target), strength, reached))
        if tried[-1][0] <= _CLOSE or (reached > target and strength == greatest):
            break
        if reached > target:
            low = strength
        else:
            high = strength
        strength = (low + high) / 2 if high < math.inf else min(2 * strength, greatest)
    miss, strength, reached = min(tried)
    if miss > _NEAR:
        raise ValueError(
            f"shift {name!r} cannot be made of these images: the nearest mean SSIM is "
            f"{reached:.3f}, at strength {strength:g}"
        )
    return strength


def kept(folder: Path, images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shifted images from a file, made where it is absent or damaged.

    Args:
        folder: of the file, which is named by shift, seed and the images' bytes.
        images: (N, 3, H, W) uint8 with sides of at least 11.
        name: see ``parsed``.
        seed: see ``shifted``.
    """
    digest = blake2b(np.ascontiguousarray(images.numpy()).data, digest_size=8)
    digest.update(f"{name} {seed} {_FORMAT} {tuple(images.shape)}".encode())
    path = folder / f"{name}-{digest.hexdigest()}.safetensors"
    tensors = read_tensors(path)
    if tensors is None:
        write_tensors(path, {"images": shifted(images, name, seed)})
        tensors = read_tensors(path)
    return tensors["images"]

"""Shifts of images, such as blur or rotation, of a given strength.

The strength of blur, noise and JPEG compression is given by the structural similarity
(SSIM) of the shifted image to the original one; that of brightness and contrast by a
factor, and that of a rotation in degrees.
"""

import math
from collections.abc import Callable
from functools import cache
from io import BytesIO
from types import ModuleType

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from helpers.parameters import fault_of

# Images at a time: convolutions that fit into a CPU's cache are several times faster.
_CHUNK = 16
_RADIUS = 5  # of the SSIM's window: 3.5 standard deviations of 1.5 pixels, rounded
_CALIBRATION_IMAGES = 256  # their mean SSIM is that of all images to about 0.01
_TOLERANCE = 0.002  # distance from the target SSIM at which the search ends
# Distance that is accepted if the SSIM jumps over the target between two strengths.
_STEP_TOLERANCE = 0.02
_STEPS = 24  # of the bisection, at most


def _torchvision() -> ModuleType:
    """Its transforms of images, whose import takes three seconds."""
    from torchvision.transforms.v2 import functional

    return functional


def in_chunks(images: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Change images as floats, some at a time, and round and clip the result to uint8.

    Args:
        images: (N, 3, H, W) uint8.
        change: function of (n, 3, H, W) float32 in [0, 255] to the same shape and type.

    Returns:
        (N, 3, H, W) uint8, on the images' device.

    Example:
        >>> in_chunks(torch.full((1, 1), 9, dtype=torch.uint8), lambda x: 0.6 * x)
        tensor([[5]], dtype=torch.uint8)
    """
    chunks = []
    with torch.no_grad():
        for chunk in images.split(_CHUNK):
            changed = change(chunk.float()).round().clamp(0, 255)
            chunks.append(changed.to(images.device, torch.uint8))
    return torch.cat(chunks)


def blurred(pixels: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    """Blur images by a Gaussian, reflected at the edges.

    Args:
        pixels: (N, 3, H, W) float.
        deviation: standard deviation, pixels.
        generator: not used.
    """
    # Beyond 4 standard deviations the kernel's weights sum to less than 1e-4, so a
    # wider kernel makes no step in the SSIM.
    radius = min(math.ceil(4 * deviation), min(pixels.shape[-2:]) - 1)
    sides = [2 * radius + 1] * 2
    return _torchvision().gaussian_blur(pixels, sides, [deviation] * 2)


def with_noise(pixels: Tensor, deviation: float, generator: torch.Generator) -> Tensor:
    """Add independent Gaussian noise to pixels; the result is not clipped.

    Args:
        pixels: (N, 3, H, W) float, grey levels.
        deviation: standard deviation, grey levels.
        generator: on the CPU, so that every device gets the same noise.
    """
    noise = torch.randn(pixels.shape, generator=generator)
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
        degraded: (N, 3, H, W) uint8, the same images, changed.

    Returns:
        (N,) float32 in [-1, 1], with an error up to 1e-3 in bright flat regions.
    """
    # Imported here, since it imports torchvision.
    from torchmetrics.functional.image import structural_similarity_index_measure

    settings = {"data_range": 255.0, "reduction": "none", "return_full_image": True}
    similarities = []
    for clean, changed in zip(
        images.split(_CHUNK), degraded.split(_CHUNK), strict=True
    ):
        # (n, 3, H, W): the similarity in a window around each pixel.
        _, in_windows = structural_similarity_index_measure(
            changed.float(), clean.float(), **settings
        )
        # Windows around pixels near the edge reach out of the image: left out.
        inside = in_windows[..., _RADIUS:-_RADIUS, _RADIUS:-_RADIUS]
        similarities.append(inside.mean((1, 2, 3)))
    return torch.cat(similarities)


def compressed(pixels: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Save images as JPEG files of quality 100 less the strength, and read them.

    Args:
        pixels: (N, 3, H, W) float, whole numbers.
        strength: 0 to 99.
        generator: not used.
    """
    quality = max(1, round(100 - strength))
    read = []
    for image in pixels.byte().permute(0, 2, 3, 1).cpu().numpy():
        file = BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=quality)
        read.append(np.array(Image.open(file)))
    return torch.from_numpy(np.stack(read)).permute(0, 3, 1, 2).to(pixels)


# Shifts whose strength is found by the SSIM in their name.
_CALIBRATED = {"blur": blurred, "noise": with_noise, "jpeg": compressed}


def _by_number(images: Tensor, kind: str, number: float) -> Tensor:
    """Shift images by the number in the name of a shift: a factor, or degrees."""
    functional = _torchvision()
    if kind == "rotation":
        # Not fill=0: torchvision would then mix pixels at the border with black twice.
        bilinear = functional.InterpolationMode.BILINEAR
        return functional.rotate(images, number, interpolation=bilinear)
    return getattr(functional, f"adjust_{kind}")(images, number)


@cache
def shifted(images: Tensor, name: str, seed: int = 0) -> Tensor:
    """Shift images; the same images, name and seed give the same bytes, made once.

    Blur, noise and JPEG have one strength for all images. It is the one at which the
    mean SSIM of up to 256 images is the number in the name, to 0.002; or to 0.02 if
    the SSIM jumps over that number, as it may with few images.

    Args:
        images: (N, 3, H, W) uint8 with sides of at least 11.
        name: of the shift, such as "blur_0.9" (an SSIM), "rotation_30" (degrees,
            counter-clockwise) or "contrast_0.5" (a factor).
        seed: for the choice of the images that give the strength, and for noise.

    Raises:
        ValueError: if the name is not that of a shift, or no strength has its SSIM.
    """
    fault = fault_of("targets", name)
    if fault:
        raise ValueError(fault)
    kind, _, number = name.partition("_")
    if kind not in _CALIBRATED:
        chunks = images.split(_CHUNK)
        return torch.cat([_by_number(chunk, kind, float(number)) for chunk in chunks])
    order = np.random.default_rng(seed).permutation(len(images))[:_CALIBRATION_IMAGES]
    sample = images[torch.as_tensor(np.sort(order))]
    greatest = {"blur": min(images.shape[-2:]) / 4, "noise": 255.0, "jpeg": 99.0}

    def changed(images: Tensor, strength: float) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        change = _CALIBRATED[kind]
        return in_chunks(images, lambda pixels: change(pixels, strength, generator))

    error, strength, mean_ssim = _nearest(
        changed, sample, float(number), greatest[kind]
    )
    if error > _STEP_TOLERANCE:
        raise ValueError(
            f"shift {name!r} cannot be made of these images: the nearest mean SSIM is "
            f"{mean_ssim:.3f}, at strength {strength:g}"
        )
    return changed(images, strength)


def _nearest(
    change: Callable[[Tensor, float], Tensor],
    sample: Tensor,
    target: float,
    greatest: float,
) -> tuple[float, float, float]:
    """Find the strength with a mean SSIM, by bisection.

    The SSIM is 1 at strength 0 and falls with the strength.

    Args:
        change: shifts images by a strength.
        sample: (n, 3, H, W) uint8.
        target: the mean SSIM.
        greatest: strength that is tried at most.

    Returns:
        The distance to the target, the strength, and the mean SSIM.
    """
    low = 0.0
    high = math.inf
    strength = greatest / 64
    trials = []
    for _ in range(_STEPS):
        mean_ssim = float(ssim(sample, change(sample, strength)).double().mean())
        error = abs(mean_ssim - target)
        trials.append((error, strength, mean_ssim))
        if mean_ssim > target:
            low = strength
        else:
            high = strength
        if error <= _TOLERANCE or low == greatest:
            break
        # Twice the strength until one is too great, then halfway between the two.
        strength = min((low + high) / 2, 2 * strength, greatest)
    return min(trials)

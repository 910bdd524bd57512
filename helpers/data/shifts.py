"""Shifted copies of images, made once and kept as bytes: blur, noise and JPEG-like loss to a given SSIM, brightness, contrast, rotation."""

import math
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2.functional import InterpolationMode, rgb_to_grayscale, rotate

from helpers.data.degrade import blurred, check_images, in_chunks, ssim, with_noise
from helpers.files import read_tensors, write_tensors

_FORMAT = 1  # raised when the meaning of a name changes: older copies are then never used
_CHUNK = 256
_CALIBRATION_IMAGES = 256  # the mean SSIM of so many is that of all to about 0.01
_CLOSE, _NEAR = 0.002, 0.02  # of the SSIM: where the search ends, and what is taken where it steps over the target
_STEPS = 24
_COARSEST = 100.0  # steps of the JPEG tables, as a multiple of quality 50's

# ITU-T T.81, annex K: quantisation of luminance and chrominance at quality 50, rows of vertical frequencies.
_LUMINANCE = """16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99"""
_CHROMINANCE = """17 18 24 47 99 99 99 99 18 21 26 66 99 99 99 99 24 26 56 99 99 99 99 99 47 66 99 99 99 99 99 99
99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99 99"""
# JFIF: luminance and two differences of colour, of red, green and blue.
_TO_YCC = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))


class Shifted(NamedTuple):
    """Shifted images and how far they were shifted."""

    images: Tensor  # (N, 3, H, W) uint8
    strength: float  # standard deviation in pixels or grey levels, multiple of JPEG's steps, factor, or degrees
    ssim: float  # mean over the images that it was calibrated on, or over as many


def parsed(name: str) -> tuple[str, float]:
    """Take a shift's name apart: "blur_0.9" -> ("blur", 0.9).

    Raises:
        ValueError: an unknown name, or a number out of range.
    """
    kind, _, number = name.partition("_")
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    fits = {"brightness": 0 <= value <= 10, "contrast": 0 <= value <= 10, "rotation": -180 <= value <= 180}
    if not fits.get(kind, kind in _TO_SSIM and 0 < value < 1):
        raise ValueError(
            f"shift {name!r} is unknown; choose blur_S, noise_S or jpeg_S with a mean SSIM S between 0 and 1, brightness_F or "
            f"contrast_F with a factor F in [0, 10], or rotation_D with degrees D in [-180, 180]"
        )
    return kind, value


def at(column: str, shift: str = "") -> str:
    """Column of a quantity on a shifted target: ("test_accuracy", "blur_0.9") -> "test_accuracy@blur_0.9"; "" is no shift."""
    return f"{column}@{shift}" if shift else column


def shifted(images: Tensor, name: str, seed: int = 0) -> Shifted:
    """Shift images; the same images, name and seed give the same bytes.

    Blur, noise and JPEG-like loss have one strength for all images, found so that the mean SSIM of up to 256 of them, drawn by the seed, is
    the one in the name within 0.002, or within 0.02 where the SSIM of few images steps over it.

    Args:
        images: (N, 3, H, W) uint8 RGB, N >= 1, sides at least 11.
        name: what is done and the mean SSIM that it leaves (blur_0.9, noise_0.7, jpeg_0.7), the factor (brightness_0.5, contrast_0.5) or
            the degrees (rotation_15).
        seed: of the noise and of the images for the strength.

    Returns:
        A new tensor with strength and mean SSIM.

    Raises:
        ValueError: an unknown name, images of another kind, or an SSIM that cannot be reached.
    """
    kind, value = parsed(name)
    check_images(images, 11)  # of which the SSIM is defined
    if not len(images):
        raise ValueError("images must be at least one; there is none to shift")
    order = np.random.default_rng(seed).permutation(len(images))[:_CALIBRATION_IMAGES]
    sample = images[torch.as_tensor(np.sort(order))]
    if kind in _TO_SSIM:
        function, greatest = _TO_SSIM[kind]
        strength, reached = _strength(lambda s: function(sample, s, seed), sample, value, greatest(min(images.shape[-2:])), name)
        return Shifted(function(images, strength, seed), strength, reached)
    function = {"brightness": brightened, "contrast": contrasted, "rotation": turned}[kind]
    changed = torch.cat([function(chunk, value) for chunk in images.split(_CHUNK)])
    return Shifted(changed, value, float(ssim(sample, function(sample, value)).double().mean()))


def _strength(apply: Callable[[float], Tensor], sample: Tensor, target: float, greatest: float, name: str) -> tuple[float, float]:
    """Find the strength that leaves a mean SSIM, by bisection, and the SSIM that it leaves; it is 1 at strength 0 and falls."""
    low, high, strength, tried = 0.0, math.inf, greatest / 64, []
    for _ in range(_STEPS):
        reached = float(ssim(sample, apply(strength)).double().mean())
        tried.append((abs(reached - target), strength, reached))
        if tried[-1][0] <= _CLOSE or (reached > target and strength == greatest):
            break
        low, high = (strength, high) if reached > target else (low, strength)
        strength = (low + high) / 2 if high < math.inf else min(2 * strength, greatest)
    miss, strength, reached = min(tried)
    if miss > _NEAR:
        raise ValueError(f"shift {name!r} cannot be made of these images: the nearest mean SSIM is {reached:.3f}, at strength {strength:g}")
    return strength, reached


def brightened(images: Tensor, factor: float) -> Tensor:
    """Pixels times a factor, rounded and cut to [0, 255]: uint8 (N, 3, H, W) -> as many."""
    return (images.float() * factor).round().clamp(0, 255).to(torch.uint8)


def contrasted(images: Tensor, factor: float) -> Tensor:
    """Distance of pixels from the image's mean grey value times a factor, rounded and cut to [0, 255]: uint8 (N, 3, H, W) -> as many."""
    pixels = images.float()
    grey = rgb_to_grayscale(pixels).mean((1, 2, 3), keepdim=True)
    return (grey + factor * (pixels - grey)).round().clamp(0, 255).to(torch.uint8)


def turned(images: Tensor, degrees: float) -> Tensor:
    """Images turned counter-clockwise about their centre, bilinear, black where nothing was: uint8 (N, 3, H, W) -> as many."""
    # Without a fill: a fill of 0 would take the border's share of black from it twice.
    return rotate(images, degrees, interpolation=InterpolationMode.BILINEAR)


def jpeg_like(images: Tensor, coarseness: float) -> Tensor:
    """Images after the lossy part of JPEG (ITU-T T.81): cosine transform of 8 x 8 blocks, divided by steps and rounded, and back.

    The steps are the standard's tables at quality 50 times ``coarseness``, at least 1, not cut to 255 and not rounded, so that the loss is
    a smooth function of the number; quality q of libjpeg is ``50 / q`` below 50 and ``2 - q / 50`` above. Colours are not subsampled, and
    sides that are no multiple of 8 are extended by their last pixels. 0 gives the images themselves.

    Args:
        images: (N, 3, H, W) uint8 RGB.
        coarseness: at least 0.

    Returns:
        (N, 3, H, W) uint8, a new tensor.

    Raises:
        ValueError: a coarseness below 0.
    """
    if not coarseness >= 0:
        raise ValueError(f"coarseness {coarseness} must be at least 0")
    if coarseness == 0:
        return images.clone()
    tables = np.array([[int(step) for step in table.split()] for table in (_LUMINANCE, _CHROMINANCE, _CHROMINANCE)], dtype=np.float64)
    steps = torch.as_tensor((tables * coarseness).clip(1).reshape(3, 1, 1, 8, 8), dtype=torch.float32)
    frequency, place = np.mgrid[:8, :8]
    cosines = np.cos((2 * place + 1) * frequency * math.pi / 16) * np.where(frequency == 0, math.sqrt(1 / 8), 0.5)
    colours = np.array(_TO_YCC)
    matrices = [torch.as_tensor(matrix, dtype=torch.float32) for matrix in (cosines, colours, np.linalg.inv(colours))]
    return torch.cat([_jpeg_chunk(chunk, steps, *matrices) for chunk in images.split(_CHUNK)])


def _jpeg_chunk(images: Tensor, steps: Tensor, cosines: Tensor, colours: Tensor, back: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    pixels = pad(images.float(), (0, -width % 8, 0, -height % 8), mode="replicate")
    # JPEG rounds colours to bytes before the transform; half the range is taken off the luminance alone, the differences being signed.
    ycc = torch.einsum("dc,nchw->ndhw", colours, pixels).round()
    ycc[:, 0] -= 128
    blocks = ycc.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)  # (N, 3, rows, columns, 8, 8)
    kept = (cosines @ blocks @ cosines.T / steps).round() * steps
    ycc = (cosines.T @ kept @ cosines).transpose(3, 4).flatten(4, 5).flatten(2, 3).round()
    ycc[:, 0] += 128
    restored = torch.einsum("dc,nchw->ndhw", back, ycc)[..., :height, :width]
    return restored.round().clamp(0, 255).to(torch.uint8)


def _noise(images: Tensor, deviation: float, seed: int) -> Tensor:
    draws = torch.Generator().manual_seed(seed)
    return in_chunks(images, lambda pixels: with_noise(pixels, deviation, draws))


# What is calibrated to an SSIM: images, strength and seed to images, and the greatest strength for images of a side.
_TO_SSIM: dict[str, tuple[Callable[[Tensor, float, int], Tensor], Callable[[int], float]]] = {
    "blur": (lambda images, strength, seed: in_chunks(images, lambda pixels: blurred(pixels, strength)), lambda side: side / 4),
    "noise": (_noise, lambda side: 255.0),
    "jpeg": (lambda images, strength, seed: jpeg_like(images, strength), lambda side: _COARSEST),
}


def kept(folder: Path, images: Tensor, name: str, seed: int = 0) -> Shifted:
    """Shifted images from a folder, made and written there when they are not there yet; see ``shifted``.

    The file is named by shift, seed and the images' bytes, so copies of other images are never used by mistake. It is read by memory map,
    so that processes share the pages; a damaged one is made again.

    Args:
        folder: where copies are kept; it is made.
        images: as for ``shifted``.
        name: as for ``shifted``.
        seed: as for ``shifted``.
    """
    parsed(name)
    digest = blake2b(np.ascontiguousarray(images.numpy()).data, digest_size=8)
    digest.update(f"{name} {seed} {_FORMAT} {tuple(images.shape)}".encode())
    path = folder / f"{name}-{digest.hexdigest()}.safetensors"
    if (found := read_tensors(path)) is None:
        made = shifted(images, name, seed)
        write_tensors(path, {"images": made.images, "strength_and_ssim": torch.tensor(made[1:], dtype=torch.float64)})
        found = read_tensors(path)
    return Shifted(found["images"], *found["strength_and_ssim"].tolist())

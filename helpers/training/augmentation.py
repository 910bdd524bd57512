"""Augmentation on the device of the images, with random numbers from the CPU.

That of Du et al. 2024 is ``draw`` and ``augment``. What goes beyond it is a level of
the hyperparameter ``strong_augmentation``: "none", or one or more of "crops",
"erasing", and "mixup" or "cutmix" joined by "+". All random numbers of an epoch are
drawn at once on the CPU, so that every device gets the same.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from helpers.data.boxes import box_masks

NONE = "none"
# Third number of the seed sequence, so that each part of a run has its own random
# numbers (3 and 4: ``looking``).
_STREAM = 5
# Smallest and largest area, as a share of the image, and ratio of height to width.
_CROP_AREAS = (0.35, 1.0)
_CROP_SHAPES = (3 / 4, 4 / 3)
_ERASED_AREAS = (0.02, 0.33)  # Zhong et al. 2020
_ERASED_SHAPES = (0.3, 3.3)
_PATCH_AREAS = (0.0, 1.0)  # Yun et al. 2019
_MIXUP_ALPHA = 0.2  # both parameters of the Beta distribution; Zhang et al. 2018


class Draws(NamedTuple):
    """Random numbers of an epoch, one entry per image."""

    horizontal: Tensor  # (N, 1, 1, 1) bool, whether left and right are swapped
    vertical: Tensor  # (N, 1, 1, 1) bool, whether top and bottom are swapped
    brightness: Tensor  # (N, 1, 1, 1), added to pixels in [0, 255]; 0 leaves the image
    contrast: Tensor  # (N, 1, 1, 1), factor on pixels; 1 leaves the image
    channels: Tensor  # (N, 3) int64, a permutation of 0, 1, 2


def draw(count: int, generator: torch.Generator) -> Draws:
    """Draw flips and changes of brightness, contrast and order of channels.

    Each happens to an image with probability 1/2.

    Args:
        count: number of images.
        generator: on the CPU, so that every device gets the same random numbers.
    """
    shape = (count, 1, 1, 1)
    happens = torch.rand(5, *shape, generator=generator) < 0.5
    horizontal, vertical, is_brightened, has_contrast, is_permuted = happens
    brightness = torch.empty(shape).uniform_(-32, 32, generator=generator)
    contrast = torch.empty(shape).uniform_(0.5, 1.5, generator=generator)
    permutations = torch.rand(count, 3, generator=generator).argsort(1)
    return Draws(
        horizontal,
        vertical,
        torch.where(is_brightened, brightness, 0.0),
        torch.where(has_contrast, contrast, 1.0),
        torch.where(is_permuted.view(-1, 1), permutations, torch.arange(3)),
    )


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Augment images by the random numbers of each.

    Args:
        images: (B, 3, H, W) in [0, 255].
        draws: of the B images, on their device.

    Returns:
        (B, 3, H, W) float in [0, 255], channels last in memory.
    """
    pixels = images.float()
    pixels = torch.where(draws.horizontal, pixels.flip(3), pixels)
    pixels = torch.where(draws.vertical, pixels.flip(2), pixels)
    pixels = ((pixels + draws.brightness) * draws.contrast).clamp(0, 255)
    permuted = pixels.take_along_dim(draws.channels[:, :, None, None], 1)
    return permuted.contiguous(memory_format=torch.channels_last)


class StrongDraws(NamedTuple):
    """Random numbers of an epoch, an entry per image; None for changes not made.

    Rectangles are (N, 4): x0, y0, x1, y1 in shares of a side.
    """

    crops: Tensor | None = None
    erased: Tensor | None = None  # a rectangle of zeros erases nothing
    colours: Tensor | None = None  # (N, 3) of the erased rectangle, in [0, 255]
    weights: Tensor | None = None  # (N,) share of the image itself, in [0, 1]
    patches: Tensor | None = None  # of the other image


def draw_strong(
    level: str, count: int, seed: int, repeat: int, epoch: int
) -> StrongDraws:
    """Draw the random numbers of all images in an epoch.

    Args:
        level: of the hyperparameter ``strong_augmentation``, not "none".
        count: number N of images.
        seed: seed of the run.
        repeat: repeat of the run.
        epoch: 1 is the first.
    """
    generator = default_rng([seed, repeat, _STREAM, epoch])
    # All are drawn at every level, so that levels share their random numbers.
    crops = _rectangles(generator, count, _CROP_AREAS, _CROP_SHAPES)
    erased = _rectangles(generator, count, _ERASED_AREAS, _ERASED_SHAPES)
    erased[generator.random(count) < 0.5] = 0
    colours = generator.uniform(0, 255, (count, 3))
    shares = generator.beta(_MIXUP_ALPHA, _MIXUP_ALPHA, count)
    patches = _rectangles(generator, count, _PATCH_AREAS, (1.0, 1.0))
    changes = {
        "crops": {"crops": crops},
        "erasing": {"erased": erased, "colours": colours},
        "mixup": {"weights": np.maximum(shares, 1 - shares)},
        "cutmix": {"weights": 1 - _areas(patches), "patches": patches},
    }
    draws = StrongDraws()
    for name in level.split("+"):
        arrays = changes[name].items()
        tensors = {key: torch.from_numpy(array).float() for key, array in arrays}
        draws = draws._replace(**tensors)
    return draws


def _rectangles(
    generator: Generator,
    count: int,
    areas: tuple[float, float],
    shapes: tuple[float, float],
) -> np.ndarray:
    """Draw rectangles inside the image: (N, 4) x0, y0, x1, y1.

    Their areas and the logarithms of their shapes (height by width) are uniform.
    """
    area = generator.uniform(*areas, count)
    shape = np.exp(generator.uniform(*np.log(shapes), count))
    sides = np.sqrt([area * shape, area / shape]).clip(max=1)  # (2, N) height, width
    starts = generator.random((2, count)) * (1 - sides)  # y0, x0
    return np.concatenate([starts[::-1], (starts + sides)[::-1]]).T


def _areas(rectangles: np.ndarray) -> np.ndarray:
    return np.prod(rectangles[:, 2:] - rectangles[:, :2], axis=1)


def change_images(images: Tensor, draws: StrongDraws) -> Tensor:
    """Crop images, erase a rectangle, and mix each with the one before it in the batch.

    Mixup (Zhang et al. 2018) blends them; CutMix (Yun et al. 2019) pastes a patch.

    Args:
        images: (B, 3, S, S) in [0, 255].
        draws: random numbers of the B images, on their device.

    Returns:
        (B, 3, S, S) float32 in [0, 255]. Image b is ``w_b x_b + (1 - w_b) x_(b-1)``,
        with x cropped and erased; the first is mixed with the last. With a patch it is
        x_(b-1) inside of the patch, whose area is ``1 - w_b``, and x_b outside.
    """
    pixels = images.float()
    size = images.shape[-1]
    if draws.crops is not None:
        pixels = crop(pixels, draws.crops)
    if draws.erased is not None:  # Zhong et al. 2020
        colours = draws.colours[:, :, None, None]
        pixels = torch.where(_inside(draws.erased, size), colours, pixels)
    if draws.weights is None:
        return pixels
    share = draws.weights.view(-1, 1, 1, 1)
    if draws.patches is not None:
        share = (~_inside(draws.patches, size)).float()
    return share * pixels + (1 - share) * pixels.roll(1, 0)


def crop(pixels: Tensor, crops: Tensor) -> Tensor:
    """Cut a rectangle from each image and enlarge it to the image's size, bilinearly.

    Args:
        pixels: (B, C, S, S) float32.
        crops: (B, 4) x0, y0, x1, y1 in shares of the side.

    Returns:
        (B, C, S, S).
    """
    start, end = crops[:, :2], crops[:, 2:]
    # From positions in the result to those in the image, both from -1 to 1.
    centre = (start + end - 1).unsqueeze(2)
    maps = torch.cat([torch.diag_embed(end - start), centre], dim=2)  # (B, 2, 3)
    grid = affine_grid(maps, [*pixels.shape], align_corners=False)
    return grid_sample(pixels, grid, padding_mode="border", align_corners=False)


def _inside(rectangles: Tensor, size: int) -> Tensor:
    """Whether the centre of a pixel lies in the rectangle: (B, 4) -> (B, 1, S, S)."""
    boxes = (rectangles * size - 0.5).ceil()
    return box_masks(boxes.unsqueeze(1), size).unsqueeze(1)


def mixed_cross_entropy(
    logits: Tensor, labels: Tensor, draws: StrongDraws | None, smoothing: float
) -> Tensor:
    """Cross-entropy of mixed images against both their labels, with label smoothing.

    ``w CE(z, y_b) + (1 - w) CE(z, y_(b-1))``, Zhang et al. 2018. CE is the
    cross-entropy against the target ``(1 - s) 1[y] + s / K``, Szegedy et al. 2016.

    Args:
        logits: (B, K) float32.
        labels: (B,) of the images before mixing.
        draws: random numbers of the B images; None if none is changed.
        smoothing: s in [0, 1).

    Returns:
        The mean over the images, a scalar.
    """
    options = {"reduction": "none", "label_smoothing": smoothing}
    losses = cross_entropy(logits, labels, **options)
    if draws is not None and draws.weights is not None:
        others = cross_entropy(logits, labels.roll(1), **options)
        losses = draws.weights * losses + (1 - draws.weights) * others
    return losses.mean()

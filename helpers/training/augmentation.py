"""Augmentation on the device of the images, with random numbers from the CPU.

That of Du et al. 2024 are flips and colours. What goes beyond it is a level of the
hyperparameter ``strong_augmentation``: "none", or one or more of "crops", "erasing",
and "mixup" or "cutmix" joined by "+". All random numbers of an epoch are drawn at once
on the CPU, so that every device gets the same.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.nn.functional import affine_grid, cross_entropy, grid_sample

from helpers.data.images import box_masks
from helpers.training.config import NONE, RunConfig

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
    """Random numbers of an epoch, an entry per image; None for changes not made.

    Rectangles are (N, 4): x0, y0, x1, y1 in shares of a side.
    """

    horizontal: Tensor | None = None  # (N, 1, 1, 1) bool: left and right are swapped
    vertical: Tensor | None = None  # (N, 1, 1, 1) bool: top and bottom are swapped
    brightness: Tensor | None = None  # (N, 1, 1, 1), added to pixels in [0, 255]
    contrast: Tensor | None = None  # (N, 1, 1, 1), factor on pixels
    channels: Tensor | None = None  # (N, 3) int64, a permutation of 0, 1, 2
    crops: Tensor | None = None  # rectangles
    erased: Tensor | None = None  # rectangles; one of zeros erases nothing
    colours: Tensor | None = None  # (N, 3) of the erased rectangle, in [0, 255]
    weights: Tensor | None = None  # (N,) share of the image itself, in [0, 1]
    patches: Tensor | None = None  # rectangles of the other image


def draw(
    count: int, config: RunConfig, epoch: int, generator: torch.Generator
) -> Draws:
    """Draw the random numbers of an epoch.

    Args:
        count: number N of images.
        config: the run.
        epoch: 1 is the first.
        generator: of flips and colours, on the CPU. What goes beyond the paper is drawn
            from seed, repeat and epoch.
    """
    draws = Draws()
    if config.augmentation:
        draws = Draws(*_flips_and_colours(count, generator))
    if config.strong_augmentation != NONE:
        random = default_rng([config.seed, config.repeat, _STREAM, epoch])
        changes = _strong_changes(count, random)
        for name in config.strong_augmentation.split("+"):
            arrays = changes[name].items()
            tensors = {key: torch.from_numpy(array).float() for key, array in arrays}
            draws = draws._replace(**tensors)
    return draws


def _flips_and_colours(count: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Each change happens to an image with probability 1/2."""
    shape = (count, 1, 1, 1)
    happens = torch.rand(5, *shape, generator=generator) < 0.5
    horizontal, vertical, is_brightened, has_contrast, is_permuted = happens
    brightness = torch.empty(shape).uniform_(-32, 32, generator=generator)
    contrast = torch.empty(shape).uniform_(0.5, 1.5, generator=generator)
    permutations = torch.rand(count, 3, generator=generator).argsort(1)
    return (
        horizontal,
        vertical,
        torch.where(is_brightened, brightness, 0.0),
        torch.where(has_contrast, contrast, 1.0),
        torch.where(is_permuted.view(-1, 1), permutations, torch.arange(3)),
    )


def _strong_changes(count: int, random: Generator) -> dict[str, dict[str, np.ndarray]]:
    """Fields of ``Draws`` by change; all are drawn, so that levels share them."""
    crops = _rectangles(random, count, _CROP_AREAS, _CROP_SHAPES)
    erased = _rectangles(random, count, _ERASED_AREAS, _ERASED_SHAPES)
    erased[random.random(count) < 0.5] = 0
    colours = random.uniform(0, 255, (count, 3))
    shares = random.beta(_MIXUP_ALPHA, _MIXUP_ALPHA, count)
    patches = _rectangles(random, count, _PATCH_AREAS, (1.0, 1.0))
    areas = np.prod(patches[:, 2:] - patches[:, :2], axis=1)
    return {
        "crops": {"crops": crops},
        "erasing": {"erased": erased, "colours": colours},
        "mixup": {"weights": np.maximum(shares, 1 - shares)},
        "cutmix": {"weights": 1 - areas, "patches": patches},
    }


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
    ends = starts + sides
    return np.concatenate([starts[::-1], ends[::-1]]).T


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Change images by the random numbers of each.

    Flips and colours; a crop; an erased rectangle; and a mixture of each with the one
    before it in the batch. Mixup (Zhang et al. 2018) blends them, and CutMix (Yun et
    al. 2019) pastes a patch.

    Args:
        images: (B, 3, S, S) in [0, 255].
        draws: of the B images, on their device.

    Returns:
        (B, 3, S, S) float32 in [0, 255]. Image b is ``w_b x_b + (1 - w_b) x_(b-1)``,
        with x changed; the first is mixed with the last. With a patch it is x_(b-1)
        inside of the patch, whose area is ``1 - w_b``, and x_b outside.
    """
    pixels = images.float()
    size = images.shape[-1]
    if draws.horizontal is not None:
        pixels = torch.where(draws.horizontal, pixels.flip(3), pixels)
        pixels = torch.where(draws.vertical, pixels.flip(2), pixels)
        pixels = ((pixels + draws.brightness) * draws.contrast).clamp(0, 255)
        pixels = pixels.take_along_dim(draws.channels[:, :, None, None], 1)
    if draws.crops is not None:
        pixels = crop(pixels, draws.crops)
    if draws.erased is not None:  # Zhong et al. 2020
        colours = draws.colours[:, :, None, None]
        pixels = torch.where(_inside(draws.erased, size), colours, pixels)
    if draws.weights is not None:
        share = draws.weights.view(-1, 1, 1, 1)
        if draws.patches is not None:
            share = (~_inside(draws.patches, size)).float()
        pixels = share * pixels + (1 - share) * pixels.roll(1, 0)
    return pixels.contiguous(memory_format=torch.channels_last)


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
    logits: Tensor, labels: Tensor, weights: Tensor | None, smoothing: float
) -> Tensor:
    """Cross-entropy of mixed images against both their labels, with label smoothing.

    ``w CE(z, y_b) + (1 - w) CE(z, y_(b-1))``, Zhang et al. 2018. CE is the
    cross-entropy against the target ``(1 - s) 1[y] + s / K``, Szegedy et al. 2016.

    Args:
        logits: (B, K) float32.
        labels: (B,) of the images before mixing.
        weights: (B,) w, see ``Draws``; None if none is mixed.
        smoothing: s in [0, 1).

    Returns:
        The mean over the images, a scalar.
    """
    options = {"reduction": "none", "label_smoothing": smoothing}
    losses = cross_entropy(logits, labels, **options)
    if weights is not None:
        others = cross_entropy(logits, labels.roll(1), **options)
        losses = weights * losses + (1 - weights) * others
    return losses.mean()

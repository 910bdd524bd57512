"""Augmentation beyond the paper's: crops, erased rectangles, mixed images.

A level of the hyperparameter ``strong_augmentation`` is "none", or one or more of
"crops", "erasing", and "mixup" or "cutmix" joined by "+". All random numbers of an
epoch are drawn at once on the CPU, so that every device gets the same.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.nn.functional import cross_entropy, grid_sample

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


class StrongDraws(NamedTuple):
    """Random numbers of an epoch, one entry per image; lengths in shares of a side."""

    crops: Tensor  # (N, 4) top, left, height, width; 0, 0, 1, 1 leaves the image
    erased: Tensor  # (N, 4) top, left, height, width; height 0 erases nothing
    colours: Tensor  # (N, 3) of the erased rectangle, in [0, 255]
    weights: Tensor  # (N,) share of the image itself, in [0, 1]; 1 mixes nothing
    patches: Tensor  # (N, 4) of the other image; height 0 pastes nothing


def draw_strong(
    level: str, count: int, seed: int, repeat: int, epoch: int
) -> StrongDraws:
    """Draw the random numbers of all images in an epoch.

    Args:
        level: of the hyperparameter ``strong_augmentation``.
        count: number N of images.
        seed: seed of the run.
        repeat: repeat of the run.
        epoch: 1 is the first.

    Returns:
        Random numbers; those of changes that the level does not name change nothing.

    Example:
        >>> draw_strong("none", 2, seed=0, repeat=0, epoch=1).weights
        tensor([1., 1.])
    """
    generator = default_rng([seed, repeat, _STREAM, epoch])
    crops = _rectangles(generator, count, _CROP_AREAS, _CROP_SHAPES)
    erased = _rectangles(generator, count, _ERASED_AREAS, _ERASED_SHAPES)
    erased[generator.random(count) < 0.5] = 0
    colours = generator.uniform(0, 255, (count, 3))
    shares = generator.beta(_MIXUP_ALPHA, _MIXUP_ALPHA, count)
    weights = np.maximum(shares, 1 - shares)
    patches = _rectangles(generator, count, _PATCH_AREAS, (1.0, 1.0))
    # All are drawn at every level, so that levels share their random numbers.
    changes = level.split("+")
    if "crops" not in changes:
        crops[:] = [0, 0, 1, 1]
    if "erasing" not in changes:
        erased[:] = 0
    if "cutmix" in changes:
        weights = 1 - patches[:, 2] * patches[:, 3]
    elif "mixup" not in changes:
        weights[:] = 1
    if "cutmix" not in changes:
        patches[:] = 0
    arrays = (crops, erased, colours, weights, patches)
    return StrongDraws(*(torch.from_numpy(array).float() for array in arrays))


def _rectangles(
    generator: Generator,
    count: int,
    areas: tuple[float, float],
    shapes: tuple[float, float],
) -> np.ndarray:
    """Draw rectangles inside the image: (N, 4) top, left, height, width.

    Their areas and the logarithms of their shapes (height by width) are uniform.
    """
    area = generator.uniform(*areas, count)
    shape = np.exp(generator.uniform(*np.log(shapes), count))
    height = np.minimum(np.sqrt(area * shape), 1)
    width = np.minimum(np.sqrt(area / shape), 1)
    top = generator.random(count) * (1 - height)
    left = generator.random(count) * (1 - width)
    return np.stack([top, left, height, width], axis=1)


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
    pixels = crop(images.float(), draws.crops)
    inside = _inside(draws.erased, pixels.shape[-1])  # Zhong et al. 2020
    pixels = torch.where(inside, draws.colours[:, :, None, None], pixels)
    others = pixels.roll(1, 0)
    has_patch = draws.patches[:, 2].view(-1, 1, 1, 1) > 0
    share = draws.weights.view(-1, 1, 1, 1)
    blended = share * pixels + (1 - share) * others
    pasted = torch.where(_inside(draws.patches, pixels.shape[-1]), others, pixels)
    return torch.where(has_patch, pasted, blended)


def crop(pixels: Tensor, crops: Tensor) -> Tensor:
    """Cut a rectangle from each image and enlarge it to the image's size, bilinearly.

    Args:
        pixels: (B, C, S, S) float32.
        crops: (B, 4) top, left, height, width in shares of the side.

    Returns:
        (B, C, S, S); an image whose rectangle is the whole image is not changed.
    """
    size = pixels.shape[-1]
    centres = (torch.arange(size, device=pixels.device) + 0.5) / size
    top, left, height, width = crops.unsqueeze(2).unbind(1)  # (B, 1) each
    # (B, S): positions in the image, from -1 to 1 as grid_sample counts.
    rows = 2 * (top + height * centres) - 1
    columns = 2 * (left + width * centres) - 1
    x, y = torch.broadcast_tensors(columns.unsqueeze(1), rows.unsqueeze(2))
    grid = torch.stack([x, y], dim=3)  # (B, S, S, 2)
    cropped = grid_sample(
        pixels, grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    is_whole = (height * width == 1).view(-1, 1, 1, 1)
    return torch.where(is_whole, pixels, cropped)


def _inside(rectangles: Tensor, size: int) -> Tensor:
    """Whether the centre of a pixel lies in the rectangle: (B, 4) -> (B, 1, S, S)."""
    centres = (torch.arange(size, device=rectangles.device) + 0.5) / size
    top, left, height, width = rectangles.unsqueeze(2).unbind(1)  # (B, 1) each
    in_rows = (centres >= top) & (centres < top + height)  # (B, S)
    in_columns = (centres >= left) & (centres < left + width)
    inside = in_rows.unsqueeze(2) & in_columns.unsqueeze(1)  # (B, S, S)
    return inside.unsqueeze(1)


def mixed_cross_entropy(
    logits: Tensor, labels: Tensor, draws: StrongDraws | None, smoothing: float
) -> Tensor:
    """Cross-entropy of mixed images against both their labels, with label smoothing.

    ``w CE(z, y_b) + (1 - w) CE(z, y_(b-1))``, Zhang et al. 2018. CE is the
    cross-entropy against the target ``(1 - s) 1[y] + s / K``, Szegedy et al. 2016.

    Args:
        logits: (B, K) float32.
        labels: (B,) of the images before mixing.
        draws: random numbers of the B images; None if none is mixed.
        smoothing: s in [0, 1).

    Returns:
        The mean over the images, a scalar.
    """
    options = {"reduction": "none", "label_smoothing": smoothing}
    losses = cross_entropy(logits, labels, **options)
    if draws is not None:
        others = cross_entropy(logits, labels.roll(1), **options)
        losses = draws.weights * losses + (1 - draws.weights) * others
    return losses.mean()

"""Rotation, translation and colour jitter by a magnitude, and accuracy under them."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from helpers.measures.passes import Classifier
from helpers.measures.response import hits


class Transform(NamedTuple):
    """A change of images with a magnitude, in the transform's own unit."""

    low: float  # smallest magnitude
    high: float  # largest magnitude
    # (B, 3, H, W) uint8 images and a magnitude -> images of the same size and type.
    apply: Callable[[Tensor, float], Tensor]


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images about their centre, on black.

    Args:
        images: (B, C, H, W) uint8.
        degrees: counter-clockwise; a turn of a square by 90 degrees is exact.
    """
    angle = math.radians(np.float32(degrees))
    height, width = images.shape[-2:]
    cos = math.cos(angle)
    sin = math.sin(angle)
    x_row = [cos, -sin * height / width, 0]
    y_row = [sin * width / height, cos, 0]
    return _resampled(images, [x_row, y_row])


def translate(images: Tensor, right: float, down: float) -> Tensor:
    """Move images, on black.

    Args:
        images: (B, C, H, W) uint8.
        right: fraction of the width.
        down: fraction of the height.
    """
    return _resampled(images, [[1, 0, -2 * right], [0, 1, -2 * down]])


def _resampled(images: Tensor, theta: list[list[float]]) -> Tensor:
    """Images whose pixel at (x, y) is the old one at ``theta (x, y, 1)``.

    x and y run from -1 to 1 between the edges; bilinear, black outside.
    """
    grid = affine_grid(
        torch.tensor([theta], device=images.device),
        [1, *images.shape[1:]],
        align_corners=False,
    )
    pixels = grid_sample(
        images.float(),
        grid.expand(len(images), -1, -1, -1),
        mode="bilinear",
        padding_mode="zeros",
        align_corners=False,
    )
    return pixels.round().clamp(0, 255).to(torch.uint8)


def jitter_colour(images: Tensor, alpha: float) -> Tensor:
    """Change brightness, contrast and saturation of images, in this order.

    The operations of torchvision's ``ColorJitter``. Schiff et al. name neither factors
    nor order: that one alpha drives all three is a choice made here.

    Args:
        images: (B, 3, H, W) uint8.
        alpha: at least -1; each of the three is multiplied by ``1 + alpha``.
    """
    # Late: its import takes two seconds.
    from torchvision.transforms.v2.functional import rgb_to_grayscale

    factor = 1 + torch.tensor(alpha, dtype=torch.float32)

    def away_from(reference: Tensor | float, pixels: Tensor) -> Tensor:
        return (factor * pixels + (1 - factor) * reference).clamp(0, 255)

    pixels = away_from(0.0, images.float())
    mean_grey = rgb_to_grayscale(pixels).mean((1, 2, 3), keepdim=True)
    pixels = away_from(mean_grey, pixels)
    pixels = away_from(rgb_to_grayscale(pixels), pixels)
    return pixels.round().to(torch.uint8)


# Degrees of rotation by data set, of the slides of Schiff et al. 2021; the unit of
# translation and jitter is not printed there.
HORIZONTAL = "horizontal translation"
VERTICAL = "vertical translation"
RANGES = {"cifar10": (-180, 179), "svhn": (-90, 90)}


def transforms_of(ranges: str = "cifar10") -> dict[str, Transform]:
    """The transforms by name.

    Args:
        ranges: of magnitudes, one of ``RANGES``.
    """
    return {
        "rotation": Transform(*RANGES[ranges], rotate),
        **translations(0.5),
        "colour jitter": Transform(-0.25, 0.25, jitter_colour),
    }


def translations(largest: float) -> dict[str, Transform]:
    """Shifts to the right and down, by name.

    Args:
        largest: fraction of the side.
    """
    return {
        HORIZONTAL: Transform(
            -largest, largest, lambda images, right: translate(images, right, 0)
        ),
        VERTICAL: Transform(
            -largest, largest, lambda images, down: translate(images, 0, down)
        ),
    }


TRANSFORMS: Mapping[str, Transform] = transforms_of()


def transformed_hits(
    classifier: Classifier,
    pixels: Tensor,
    labels: Tensor,
    transform: Transform,
    magnitudes: ArrayLike,
) -> Tensor:
    """Mask of the transformed images that are classified correctly.

    Args:
        classifier: the network, and how it takes images.
        pixels: (N, 3, H, W) uint8 on its device.
        labels: (N,).
        transform: of the images.
        magnitudes: (N,), or one for all images.

    Returns:
        (N,) bool.
    """

    def batches() -> Iterator[Tensor]:
        for rows in torch.arange(len(pixels)).split(classifier.batch_size):
            if np.ndim(magnitudes):
                images = [
                    transform.apply(pixels[row : row + 1], float(magnitudes[row]))
                    for row in rows.tolist()
                ]
                batch = torch.cat(images)
            else:
                batch = transform.apply(pixels[rows], float(magnitudes))
            yield classifier.input(batch)

    return hits(classifier.network, batches(), labels)


def accuracies_at_random_magnitudes(
    classifier: Classifier,
    pixels: Tensor,
    labels: Tensor,
    transforms: Mapping[str, Transform],
    seed: int,
) -> dict[str, float]:
    """Accuracy under each transform with a random magnitude for every image.

    Args:
        classifier: the network, and how it takes images.
        pixels: (N, 3, H, W) uint8 on its device.
        labels: (N,).
        transforms: by name.
        seed: of the magnitudes, which are uniform over a transform's range and the same
            for all networks.

    Returns:
        In [0, 1] by the name of the transform.
    """
    positions = np.random.default_rng((seed, 2)).random(len(pixels))  # in the range
    accuracies = {}
    for name, transform in transforms.items():
        magnitudes = transform.low + positions * (transform.high - transform.low)
        correct = transformed_hits(classifier, pixels, labels, transform, magnitudes)
        accuracies[name] = float(correct.double().mean())
    return accuracies

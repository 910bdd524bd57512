"""Transforms of images with a magnitude: rotation, translation, colour jitter, and what accuracy they leave."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from helpers.measures.response import hits
from helpers.networks.hooks import prepared


class Transform(NamedTuple):
    """A change of images with a magnitude, and the range that the magnitude is taken from."""

    low: float  # smallest magnitude, in the transform's own unit
    high: float  # largest magnitude
    apply: Callable[
        [Tensor, float], Tensor
    ]  # (B, 3, H, W) uint8 images and a magnitude -> as many images of the same size and type


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn uint8 images (B, C, H, W) about their centre, counter-clockwise, on black; a turn by 90 degrees of a square is exact."""
    angle, (height, width) = math.radians(np.float32(degrees)), images.shape[-2:]
    cos, sin = math.cos(angle), math.sin(angle)
    return _resampled(
        images, [[cos, -sin * height / width, 0], [sin * width / height, cos, 0]]
    )


def translate(images: Tensor, right: float, down: float) -> Tensor:
    """Move uint8 images (B, C, H, W) by fractions of their width and height, on black."""
    return _resampled(images, [[1, 0, -2 * right], [0, 1, -2 * down]])


def _resampled(images: Tensor, theta: list[list[float]]) -> Tensor:
    """Colours at ``theta`` (x, y, 1), x and y from -1 to 1 over the image's edges; bilinear, black outside."""
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
    """Change brightness, contrast and saturation of uint8 images, in this order, each by the factor ``f = 1 + alpha``, alpha at least -1.

    The operations of torchvision's ``ColorJitter``. Schiff et al. name neither factors nor order: that one alpha drives all three is a
    choice made here.
    """
    from torchvision.transforms.v2.functional import (
        rgb_to_grayscale,
    )  # here: its import takes two seconds

    factor = 1 + torch.tensor(alpha, dtype=torch.float32)
    pixels = (factor * images.float()).clamp(0, 255)
    pixels = (
        factor * pixels
        + (1 - factor) * rgb_to_grayscale(pixels).mean((1, 2, 3), keepdim=True)
    ).clamp(0, 255)
    return (
        (factor * pixels + (1 - factor) * rgb_to_grayscale(pixels))
        .clamp(0, 255)
        .round()
        .to(torch.uint8)
    )


# Degrees of rotation, of the slides of Schiff et al. 2021, by data set; the unit of translation and jitter is not printed there.
RANGES = {"cifar10": (-180, 179), "svhn": (-90, 90)}


def transforms_of(ranges: str = "cifar10") -> dict[str, Transform]:
    """The transforms by name, over the ranges of a data set of Schiff et al. 2021, one of ``RANGES``."""
    return {
        "rotation": Transform(*RANGES[ranges], rotate),
        "horizontal translation": Transform(
            -0.5, 0.5, lambda images, fraction: translate(images, fraction, 0)
        ),
        "vertical translation": Transform(
            -0.5, 0.5, lambda images, fraction: translate(images, 0, fraction)
        ),
        "colour jitter": Transform(-0.25, 0.25, jitter_colour),
    }


TRANSFORMS: Mapping[str, Transform] = transforms_of()


def transformed_hits(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalise: Any,
    batch_size: int,
    transform: Transform,
    magnitudes: ArrayLike,
) -> Tensor:
    """Whether a network is right on images, (N, 3, H, W) uint8 on its device, transformed by magnitudes, (N,) or one for all: (N,) bool."""

    def batches() -> Iterator[Tensor]:
        for rows in torch.arange(len(pixels)).split(batch_size):
            if np.ndim(magnitudes):
                images = torch.cat(
                    [
                        transform.apply(pixels[row : row + 1], float(magnitudes[row]))
                        for row in rows.tolist()
                    ]
                )
            else:
                images = transform.apply(pixels[rows], float(magnitudes))
            yield prepared(images, normalise, pixels.device)

    return hits(network, batches(), labels)


def drawn_accuracies(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalise: Any,
    transforms: Mapping[str, Transform],
    seed: int,
    batch_size: int = 64,
) -> dict[str, float]:
    """Accuracy under each transform with a magnitude of its own for every image, uniform over its range, alike for all networks."""
    share, given = (
        np.random.default_rng((seed, 2)).random(len(pixels)),
        (network, pixels, labels, normalise, batch_size),
    )
    found = {
        name: transformed_hits(*given, item, item.low + share * (item.high - item.low))
        for name, item in transforms.items()
    }
    return {name: float(right.double().mean()) for name, right in found.items()}

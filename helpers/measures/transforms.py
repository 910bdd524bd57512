"""Rotation, translation and colour jitter by a magnitude, and accuracy under them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from helpers.measures.passes import Classifier, Sample, is_right


def _functional() -> Any:
    """torchvision's transforms, whose import takes two seconds."""
    from torchvision.transforms.v2 import functional

    return functional


class Transform(NamedTuple):
    """A change of images with a magnitude, in the transform's own unit."""

    low: float  # smallest magnitude
    high: float  # largest magnitude
    # (B, 3, H, W) uint8 images and a magnitude -> images of the same size and type.
    apply: Callable[[Tensor, float], Tensor]


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turn images about their centre, bilinearly, on black.

    Args:
        images: (B, C, H, W) uint8.
        degrees: counter-clockwise; a turn of a square by 90 degrees is exact.
    """
    bilinear = _functional().InterpolationMode.BILINEAR
    return _functional().rotate(images, float(degrees), bilinear)


def translate(images: Tensor, fraction: float, axis: int) -> Tensor:
    """Move images to the right or down, bilinearly, on black.

    Args:
        images: (B, C, H, W) uint8.
        fraction: of the side.
        axis: 0 moves to the right, 1 down.
    """
    move = [0.0, 0.0]
    move[axis] = fraction * images.shape[3 - axis]
    bilinear = _functional().InterpolationMode.BILINEAR
    return _functional().affine(images, 0.0, move, 1.0, [0.0, 0.0], bilinear)


def jitter_colour(images: Tensor, alpha: float) -> Tensor:
    """Change brightness, contrast and saturation of images, in this order.

    The operations of torchvision's ``ColorJitter``. Schiff et al. name neither factors
    nor order: that one alpha drives all three is a choice made here.

    Args:
        images: (B, 3, H, W) uint8.
        alpha: at least -1; each of the three is multiplied by ``1 + alpha``.
    """
    pixels = images / 255
    for name in ("brightness", "contrast", "saturation"):
        pixels = getattr(_functional(), f"adjust_{name}")(pixels, 1 + alpha)
    return (255 * pixels).round().to(torch.uint8)


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
        name: Transform(-largest, largest, partial(translate, axis=axis))
        for axis, name in enumerate((HORIZONTAL, VERTICAL))
    }


TRANSFORMS: Mapping[str, Transform] = transforms_of()


def transformed_accuracy(
    classifier: Classifier, sample: Sample, transform: Transform, magnitudes: ArrayLike
) -> float:
    """Accuracy on transformed images, in [0, 1].

    Args:
        classifier: the network, and how it takes images.
        sample: N images with labels.
        transform: of the images.
        magnitudes: (N,), or one for all images.
    """
    size = 1 if np.ndim(magnitudes) else classifier.batch_size
    batches = sample.pixels.split(size)
    of_batches = np.broadcast_to(magnitudes, len(batches))
    changed = map(transform.apply, batches, of_batches)
    logits = classifier.logits(torch.cat([*changed]))
    return float(is_right(logits, sample.labels).double().mean())


def accuracies_at_random_magnitudes(
    classifier: Classifier,
    sample: Sample,
    transforms: Mapping[str, Transform],
    seed: int,
) -> dict[str, float]:
    """Accuracy under each transform with a random magnitude for every image.

    Args:
        classifier: the network, and how it takes images.
        sample: N images with labels.
        transforms: by name.
        seed: of the magnitudes, which are uniform over a transform's range and the same
            for all networks.

    Returns:
        In [0, 1] by the name of the transform.
    """
    positions = np.random.default_rng((seed, 2)).random(len(sample.pixels))  # in range
    accuracies = {}
    for name, transform in transforms.items():
        magnitudes = transform.low + positions * (transform.high - transform.low)
        accuracies[name] = transformed_accuracy(
            classifier, sample, transform, magnitudes
        )
    return accuracies

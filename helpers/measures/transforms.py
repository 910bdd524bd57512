"""Changes of training images: mixtures of two, and transforms by a magnitude."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from helpers.measures.passes import Classifier, Sample, in_batches, is_right

Pairs = tuple[Tensor, Tensor]  # (P,) indices i, and (P,) indices j
KINDS = ("intra", "inter")
# Second number of a seed, so that each draw has its own random numbers (4:
# ``perturbation``).
_PARTNER_STREAM = 1
_MAGNITUDE_STREAM = 2
_PAIR_STREAM = 3


def mixup_partners(labels: Tensor, kind: str, seed: int) -> Pairs:
    """Draw a partner for every image that can have one, uniformly.

    Args:
        labels: (N,), on the CPU.
        kind: "intra", a partner of the same class, or "inter", of another.
        seed: of the draw.

    Returns:
        Images i, ascending, and their partners j != i.
    """
    classes = labels.numpy()
    generator = np.random.default_rng((seed, _PARTNER_STREAM))
    is_intra = kind == "intra"
    partners = np.full(len(classes), -1)
    for label in np.unique(classes):
        members = np.flatnonzero(classes == label)
        others = np.flatnonzero((classes == label) == is_intra)
        choices = len(others) - is_intra
        if choices:
            places = generator.integers(choices, size=len(members))
            if is_intra:
                places += places >= np.arange(len(members))  # step over oneself
            partners[members] = others[places]
    images = np.flatnonzero(partners >= 0)
    return torch.from_numpy(images), torch.from_numpy(partners[images])


def class_pairs(labels: Tensor, limit: int, seed: int) -> Pairs:
    """List unordered pairs of images of one class.

    Args:
        labels: (N,), on the CPU.
        limit: largest number of pairs of a class; if there are more, as many are drawn
            at random.
        seed: of the draw.

    Returns:
        Images i, and images j < i of the same class.
    """
    generator = np.random.default_rng((seed, _PAIR_STREAM))
    pairs = []
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        of_class = members[torch.tril_indices(len(members), len(members), -1)]
        count = of_class.shape[1]
        if count > limit:
            of_class = of_class[:, generator.choice(count, limit, replace=False)]
        pairs.append(of_class)
    return torch.cat(pairs, 1).unbind()


@torch.inference_mode()
def mixed_hits(
    network: nn.Module, place: nn.Module, sample: Sample, pairs: Pairs, alpha: float
) -> NDArray[np.bool_]:
    """Mask of the mixtures ``(1 - alpha) h_i + alpha h_j`` classified as image i.

    Args:
        network: in evaluation mode.
        place: one of its modules; h are its outputs.
        sample: N images with labels.
        pairs: P indices i, and P indices j.
        alpha: share of j, in [0, 1].

    Returns:
        (P,).
    """

    def mix(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return torch.lerp(*output.chunk(2), alpha)

    first, second = (indices.to(sample.labels.device) for indices in pairs)
    batches = zip(in_batches(first), in_batches(second), strict=True)
    with place.register_forward_hook(mix):
        logits = [network(sample.inputs[torch.cat(both)]) for both in batches]
    return is_right(torch.cat(logits), sample.labels[first]).cpu().numpy()


class Transform(NamedTuple):
    """A change of images with a magnitude, in the transform's own unit."""

    low: float  # smallest magnitude
    high: float  # largest magnitude
    # (B, 3, H, W) uint8 images and a magnitude -> images of the same size and type.
    apply: Callable[[Tensor, float], Tensor]


def move(
    images: Tensor, degrees: float = 0.0, right: float = 0.0, down: float = 0.0
) -> Tensor:
    """Turn and shift images, bilinearly, on black.

    Args:
        images: (B, C, H, W) uint8.
        degrees: counter-clockwise about the centre; a turn of a square by 90 degrees is
            exact.
        right: fraction of the width.
        down: fraction of the height.
    """
    # Imported here and below, since this import takes two seconds.
    from torchvision.transforms.v2 import InterpolationMode, functional

    height, width = images.shape[2:]
    shift = [float(right * width), float(down * height)]
    bilinear = InterpolationMode.BILINEAR
    return functional.affine(images, -float(degrees), shift, 1.0, [0.0, 0.0], bilinear)


def jitter_colour(images: Tensor, alpha: float) -> Tensor:
    """Change brightness, contrast and saturation of images, in this order.

    The operations of torchvision's ``ColorJitter``. Schiff et al. name neither factors
    nor order: that one alpha drives all three is a choice made here.

    Args:
        images: (B, 3, H, W) uint8.
        alpha: at least -1; each of the three is multiplied by ``1 + alpha``.
    """
    from torchvision.transforms.v2 import functional

    pixels = images / 255
    for name in ("brightness", "contrast", "saturation"):
        pixels = getattr(functional, f"adjust_{name}")(pixels, 1 + alpha)
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
        "rotation": Transform(*RANGES[ranges], move),
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
            -largest, largest, lambda images, part: move(images, right=part)
        ),
        VERTICAL: Transform(
            -largest, largest, lambda images, part: move(images, down=part)
        ),
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
    generator = np.random.default_rng((seed, _MAGNITUDE_STREAM))
    positions = generator.random(len(sample.pixels))  # in a transform's range
    return {
        name: transformed_accuracy(
            classifier, sample, each, each.low + positions * (each.high - each.low)
        )
        for name, each in transforms.items()
    }

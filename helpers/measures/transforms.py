"""Parametric transforms of images, one magnitude per image: rotation, translation, colour jitter, or a function of the reader's own."""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import affine_grid, grid_sample

from helpers.measures.response import Curve, accuracy_curve
from helpers.networks.hooks import evaluation_mode, prepared

# (B, 3, H, W) images and (B,) magnitudes on their device -> as many images of the same size and type.
Apply = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Transform:
    """A change of images with a magnitude, and the range that the magnitude is taken from."""

    name: str  # as a row of tables
    low: float  # smallest magnitude, in the transform's own unit
    high: float  # largest magnitude
    apply: Apply


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Turn images about their centre, counter-clockwise; bilinear, zero (black) where nothing was.

    Args:
        images: (B, C, H, W), uint8 or floating. Zero is black for pixels and the mean colour for normalised images.
        degrees: (B,) one angle per image, or a number for all.

    Returns:
        (B, C, H, W) of the same type, uint8 rounded; a turn by 90 degrees of a square uint8 image is exact.

    Raises:
        ValueError: neither one magnitude nor one per image.
    """
    angles = _per_image(images, degrees).double().deg2rad()
    height, width = images.shape[-2:]
    # Where an output pixel comes from, in units of half the width and half the height, with y downwards.
    x_from = torch.stack([angles.cos(), -angles.sin() * height / width, torch.zeros_like(angles)], 1)
    y_from = torch.stack([angles.sin() * width / height, angles.cos(), torch.zeros_like(angles)], 1)
    return _resample(images, torch.stack([x_from, y_from], 1))


def translate_horizontally(images: Tensor, fractions: Tensor) -> Tensor:
    """Move images to the right by a fraction of their width; bilinear, zero where nothing was. See ``rotate`` for the rest."""
    return _translate(images, fractions, 0)


def translate_vertically(images: Tensor, fractions: Tensor) -> Tensor:
    """Move images down by a fraction of their height; bilinear, zero where nothing was. See ``rotate`` for the rest."""
    return _translate(images, fractions, 1)


def _translate(images: Tensor, fractions: Tensor, axis: int) -> Tensor:
    moved = _per_image(images, fractions).double()
    theta = torch.eye(2, 3, dtype=torch.double, device=images.device).repeat(len(images), 1, 1)
    theta[:, axis, 2] = -2 * moved  # in units of half the side, and backwards: where an output pixel comes from
    return _resample(images, theta)


def jitter_colour(images: Tensor, alphas: Tensor) -> Tensor:
    """Change brightness, contrast and saturation, in this order, each by the factor ``f = 1 + alpha``.

    brightness ``x <- f x``; contrast ``x <- f x + (1 - f) mean(g)``; saturation ``x <- f x + (1 - f) g``, where g is the grey value
    ``0.2989 R + 0.587 G + 0.114 B``; each cut to the range of pixels. The operations are torchvision's ``ColorJitter``. Schiff et al.
    name neither factors nor order: that one alpha drives all three is a choice made here.

    Args:
        images: (B, 3, H, W) pixels, uint8 in [0, 255] or floating in [0, 1]; normalised images have no range to be cut to.
        alphas: (B,) one per image, or a number for all, at least -1.

    Returns:
        (B, 3, H, W) of the same type, uint8 rounded; the images themselves at 0.

    Raises:
        ValueError: neither one magnitude nor one per image.
    """
    from torchvision.transforms.v2.functional import rgb_to_grayscale  # here: its import takes two seconds

    factors = 1 + _per_image(images, alphas).view(-1, 1, 1, 1)
    top = 1.0 if images.is_floating_point() else 255.0
    pixels = (_floating(images) * factors).clamp(0, top)
    pixels = (factors * pixels + (1 - factors) * rgb_to_grayscale(pixels).mean((1, 2, 3), keepdim=True)).clamp(0, top)
    pixels = (factors * pixels + (1 - factors) * rgb_to_grayscale(pixels)).clamp(0, top)
    return _of_type(pixels, images)


def _per_image(images: Tensor, magnitudes: ArrayLike) -> Tensor:
    values = torch.as_tensor(magnitudes, dtype=_floating(images[:0]).dtype, device=images.device)
    if values.shape not in ((), (len(images),)):
        raise ValueError(f"magnitudes have shape {tuple(values.shape)}; {len(images)} images need one number, or one for each")
    return values.expand(len(images))


def _floating(images: Tensor) -> Tensor:
    return images if images.is_floating_point() else images.float()


def _of_type(pixels: Tensor, images: Tensor) -> Tensor:
    return pixels if images.is_floating_point() else pixels.round().clamp(0, 255).to(images.dtype)


def _resample(images: Tensor, theta: Tensor) -> Tensor:
    """Images whose pixels have the colour at ``theta`` (x, y, 1), where x and y run from -1 to 1 over the image's edges."""
    pixels = _floating(images)
    grid = affine_grid(theta.to(pixels), list(images.shape), align_corners=False)
    return _of_type(grid_sample(pixels, grid, mode="bilinear", padding_mode="zeros", align_corners=False), images)


_BUILT_IN = {
    "rotation": rotate,
    "horizontal translation": translate_horizontally,
    "vertical translation": translate_vertically,
    "colour jitter": jitter_colour,
}

# Of the slides of Schiff et al. 2021; the unit of translation and jitter is not printed there.
_MOVED = {"horizontal translation": (-0.5, 0.5), "vertical translation": (-0.5, 0.5), "colour jitter": (-0.25, 0.25)}
RANGES = {"cifar10": {"rotation": (-180, 179)} | _MOVED, "svhn": {"rotation": (-90, 90)} | _MOVED}


def transforms_of(ranges: str = "cifar10", own: Sequence[str] = ()) -> dict[str, Transform]:
    """The built-in transforms over the ranges of a data set of Schiff et al. 2021, then those of the reader.

    Args:
        ranges: one of ``RANGES``.
        own: see ``named_transform``.

    Raises:
        ValueError: unknown ranges, a transform that cannot be used, or two of one name.
    """
    if ranges not in RANGES:
        raise ValueError(f"transform ranges {ranges!r} are unknown; choose one of {', '.join(RANGES)}")
    found = [Transform(name, *RANGES[ranges][name], apply) for name, apply in _BUILT_IN.items()] + [named_transform(text) for text in own]
    names = [item.name for item in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"there are two transforms named {twice[0]!r}; give the functions different names")
    return {item.name: item for item in found}


TRANSFORMS: Mapping[str, Transform] = transforms_of()


def named_transform(text: str) -> Transform:
    """A reader's transform: "module:function low high", such as "torchvision.transforms.functional:adjust_gamma 0.5 2".

    The function takes (B, 3, H, W) uint8 images and one number from low to high, and gives as many of the same size and type. Its module
    is imported from where Python looks for modules: it is run, as it is named. The table calls it by the function's name, in words.

    Raises:
        ValueError: another form, an empty range, or no such function.
    """
    form = re.fullmatch(r"([\w.]+):(\w+) +(\S+) +(\S+)", text)
    try:
        low, high = (float(part) for part in form.groups()[2:])
        function = getattr(importlib.import_module(form[1]), form[2])
        if not (callable(function) and -np.inf < low < high < np.inf):
            raise ValueError("it is no function, or its range is empty")
    except Exception as fault:  # whatever the module does when it is imported
        why = "it has another form" if form is None else f"{type(fault).__name__}: {fault}"
        advice = "write 'module:function low high', with a module that Python can import and low below high"
        raise ValueError(f"the transform {text!r} cannot be used ({why}); {advice}") from fault
    return Transform(form[2].replace("_", " "), low, high, partial(_one_magnitude_at_a_time, function))


def _one_magnitude_at_a_time(function: Callable[[Tensor, float], Tensor], images: Tensor, magnitudes: Tensor) -> Tensor:
    """Images of one magnitude go through the function together, others one by one, which costs more."""
    values = magnitudes.tolist()
    if len(set(values)) == 1:
        found = function(images, values[0])
    else:
        found = torch.cat([function(image, value) for image, value in zip(images.split(1), values, strict=True)])
    if found.shape != images.shape or found.dtype != images.dtype:
        given, made = (f"{item.dtype} of shape {tuple(item.shape)}" for item in (images, found))
        raise ValueError(f"the transform {getattr(function, '__name__', function)} makes {made} of {given}; size and type must stay")
    return found


@torch.no_grad()
def transformed_accuracy(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalise: Callable[[Tensor], Tensor],
    transform: Transform,
    magnitudes: ArrayLike,
    batch_size: int = 256,
) -> float:
    """Accuracy of a network on transformed images; they are transformed as pixels, so that what a move uncovers is black.

    Args:
        network: a classifier; modes and weights are left as they were.
        pixels: (N, 3, H, W) uint8 on the network's device.
        labels: (N,) int64, there too.
        normalise: uint8 images -> input of the network.
        transform: what is done to them.
        magnitudes: (N,) one per image, or a number for all; they need not be in the transform's range.
        batch_size: images per pass.

    Returns:
        A fraction; NaN for no images.
    """
    hits, values = [torch.zeros(0, dtype=torch.bool)], _per_image(pixels, magnitudes)
    for start in range(0, len(pixels), batch_size):
        rows = slice(start, start + batch_size)
        with evaluation_mode(network):
            logits = network(prepared(transform.apply(pixels[rows], values[rows]), normalise, pixels.device))
        hits.append((logits.argmax(1) == labels[rows]).cpu())
    return float(torch.cat(hits).double().mean())


def transform_curves(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalise: Callable[[Tensor], Tensor],
    transforms: Mapping[str, Transform],
    points: int,
    batch_size: int = 256,
) -> dict[str, Curve]:
    """Response curve of each transform over its range, all images by the same magnitude; arguments as in ``transformed_accuracy``.

    Raises:
        ValueError: fewer than 2 points, or an empty range.
    """
    accuracy = partial(transformed_accuracy, network, pixels, labels, normalise, batch_size=batch_size)
    return {name: accuracy_curve(partial(accuracy, item), item.low, item.high, points) for name, item in transforms.items()}


def drawn_accuracies(
    network: nn.Module,
    pixels: Tensor,
    labels: Tensor,
    normalise: Callable[[Tensor], Tensor],
    transforms: Mapping[str, Transform],
    seed: int,
    batch_size: int = 256,
) -> dict[str, float]:
    """Accuracy under each transform with a magnitude of its own for every image, uniform over the transform's range.

    The draw depends on the seed and the number of images only, so that networks are compared on the same images. Arguments and
    values are those of ``transformed_accuracy``.
    """
    share = np.random.default_rng((seed, 2)).random(len(pixels))
    return {
        name: transformed_accuracy(network, pixels, labels, normalise, item, item.low + share * (item.high - item.low), batch_size)
        for name, item in transforms.items()
    }


def invariance_targets(
    network: nn.Module, images: Any, normalise: Any, seed: int, device: Any, transforms: Mapping[str, Transform] = TRANSFORMS
) -> dict[str, float]:
    """Accuracy of the TEST images under each transform, what the invariance experiment predicts (Schiff et al. 2021).

    Args:
        network: a classifier on ``device``.
        images: the test images: ``images`` (N, 3, S, S) uint8 and ``labels`` (N,).
        normalise: uint8 images -> input of the network.
        seed: of the magnitudes, one per image, see ``drawn_accuracies``.
        device: where the network is.
        transforms: what is done to the images.

    Returns:
        A fraction for each transform.
    """
    return drawn_accuracies(network, images.images.to(device), images.labels.to(device), normalise, transforms, seed)

"""Training that tells a network where to look, and its controls.

An arm changes where networks look; its control changes as much, not aligned with the
object, so that the difference of the two is due to looking at the object:

===========================  =======================================================
``plain``                    nothing
``map_in_box``               a penalty on the true class's map outside of the box
``map_in_shuffled_box``      control: the same with the box of another image
``map_out_of_box``           the other direction: a penalty on the map inside the box
``background_swapped``       pixels outside of the box are those of another image
``background_swapped_shuffled``  control: outside of the box of another image
===========================  =======================================================

A level of the hyperparameter ``looking`` is a name with its strength: the factor of
the penalty, or the probability that an image's background is swapped in an epoch.
Boxes are those of training images alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from helpers.data.boxes import box_masks, box_shares
from helpers.data.images import ImageSet
from helpers.training.augmentation import Draws
from helpers.training.config import PLAIN, RunConfig

PENALTIES = ("map_in_box", "map_in_shuffled_box", "map_out_of_box")
SWAPS = ("background_swapped", "background_swapped_shuffled")
CONTROLS = {
    "map_in_box": "map_in_shuffled_box",
    "background_swapped": "background_swapped_shuffled",
}
_SHUFFLED = tuple(CONTROLS.values())
# Numbers that set the random numbers of this module apart from a run's others.
_BOX_STREAM = 3
_SWAP_STREAM = 4


@dataclass(frozen=True)
class Guide:
    """What tells a network where to look, for some images of a run."""

    arm: str  # one of PENALTIES or SWAPS
    strength: float
    boxes: Tensor  # (N, M, 4) integers, half-open pixels; zero rows are padding

    def of(self, images: Tensor | slice) -> "Guide":
        """The guide of some images (integer indices, or a slice)."""
        return Guide(self.arm, self.strength, self.boxes[images])


def arm_and_strength(looking: str) -> tuple[str, float]:
    """Split a level of the hyperparameter into its arm and its strength.

    Example:
        >>> arm_and_strength("map_in_box 0.3")
        ('map_in_box', 0.3)
        >>> arm_and_strength("plain")
        ('plain', 0.0)
    """
    arm, _, strength = looking.partition(" ")
    return arm, float(strength or 0)


def guide_of_run(
    config: RunConfig, fitted: ImageSet, device: torch.device | str = "cpu"
) -> Guide | None:
    """The guide of a run.

    Args:
        config: the run. Controls take the box of another image, the same one in all
            epochs, drawn from the run's seed and repeat.
        fitted: the N images that the run is fitted to.
        device: where the guide's tensors lie.

    Returns:
        The guide of the N images in their order; None for a plain run.

    Raises:
        ValueError: where the images have no boxes.
    """
    if config.looking == PLAIN:
        return None
    if not fitted.has_boxes:
        raise ValueError(
            f"looking {config.looking!r} needs boxes, and the training images have none"
        )
    arm, strength = arm_and_strength(config.looking)
    boxes = fitted.boxes
    if arm in _SHUFFLED:
        generator = np.random.default_rng([config.seed, config.repeat, _BOX_STREAM])
        boxes = boxes[other_images(len(fitted), generator)]
    return Guide(arm, strength, boxes.to(device))


def other_images(count: int, generator: np.random.Generator) -> np.ndarray:
    """Give every image another one, each taken once: the images in a random circle.

    Args:
        count: number of images, at least 2.
        generator: source of the circle.

    Returns:
        (count,) int64, a permutation that leaves no image in its place.
    """
    circle = generator.permutation(count)
    others = np.empty(count, dtype=np.int64)
    others[circle] = np.roll(circle, 1)
    return others


def swap_backgrounds(
    images: Tensor, guide: Guide, config: RunConfig, epoch: int
) -> Tensor:
    """Replace what lies outside of the boxes by the pixels of other images.

    Args:
        images: (N, S, S, 3) uint8, all images of a run.
        guide: the run's, of an arm of ``SWAPS``; its strength is the probability
            that an image is changed in an epoch.
        config: the run, of whose seed and repeat the draws are.
        epoch: 1 is the first; each has draws of its own.

    Returns:
        (N, S, S, 3) uint8. An image without a box stays as it is.
    """
    generator = np.random.default_rng([config.seed, config.repeat, _SWAP_STREAM, epoch])
    donors = torch.from_numpy(other_images(len(images), generator))
    changed = torch.from_numpy(generator.random(len(images)) < guide.strength)
    changed = changed.to(images.device) & guide.boxes.flatten(1).any(1)
    masks = box_masks(guide.boxes, images.shape[1])
    stays = masks | ~changed.view(-1, 1, 1)  # (N, S, S)
    return torch.where(stays.unsqueeze(3), images, images[donors.to(images.device)])


def map_penalty(maps: Tensor, guide: Guide, size: int, draws: Draws | None) -> Tensor:
    """Divergence of where a map should lie from where it lies.

    ``KL(t || softmax(map)) = sum_p t_p (log t_p - log softmax(map)_p)``, with t the
    share of each place that lies in the box (outside of it, to look away), scaled to
    the sum 1. Mean over the images in which there is such a place, times the strength.

    Args:
        maps: (B, h, w) class activation maps of the true classes, not rectified.
        guide: of the B images.
        size: side S of the images, in pixels.
        draws: augmentation of the images, of which the boxes follow the flips.

    Returns:
        A scalar, at least 0; 0 where no image has a box.
    """
    masks = box_masks(guide.boxes, size)
    boxed = masks.flatten(1).any(1)
    if draws is not None:
        per_image = (-1, 1, 1)
        masks = torch.where(draws.horizontal.view(per_image), masks.flip(2), masks)
        masks = torch.where(draws.vertical.view(per_image), masks.flip(1), masks)
    if guide.arm == "map_out_of_box":
        masks = ~masks
    wanted = box_shares(masks, *maps.shape[1:]).flatten(1)  # (B, h * w)
    asked = boxed & (wanted.sum(1) > 0)
    wanted = wanted / wanted.sum(1, keepdim=True).clamp(min=1e-12)
    log_shares = maps.float().flatten(1).log_softmax(1)
    divergence = (torch.xlogy(wanted, wanted) - wanted * log_shares).sum(1)
    count = asked.sum().clamp(min=1)
    return guide.strength * (divergence * asked).sum() / count


def class_maps(features: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Class activation maps of given classes; Zhou et al. 2016: ``sum_k w_ck f_k``.

    Args:
        features: (B, C, h, w) of the last stage.
        weight: (classes, C) of the classifier.
        labels: (B,) classes.

    Returns:
        (B, h, w) float32, not rectified.
    """
    return torch.einsum("bkhw,bk->bhw", features.float(), weight[labels].float())


def in_order(levels: Iterable[str]) -> list[str]:
    """Levels of the hyperparameter: plain first, then each arm before its control.

    Example:
        >>> in_order(["map_in_shuffled_box 1", "map_in_box 1", "plain"])
        ['plain', 'map_in_box 1', 'map_in_shuffled_box 1']
    """
    arms = [PLAIN, *PENALTIES, *SWAPS]

    def place(level: str) -> tuple[float, int]:
        arm, strength = arm_and_strength(level)
        return strength, arms.index(arm)

    return sorted(set(levels), key=place)


def contrasts_of(levels: Iterable[str]) -> list[tuple[str, str]]:
    """Which levels are held against which: an arm against its control, and each plain.

    Example:
        >>> from pprint import pprint
        >>> pprint(contrasts_of(["plain", "map_in_box 1", "map_in_shuffled_box 1"]))
        [('map_in_box 1', 'map_in_shuffled_box 1'),
         ('map_in_box 1', 'plain'),
         ('map_in_shuffled_box 1', 'plain')]
    """
    present = in_order(levels)
    pairs = []
    for level in present:
        arm, strength = arm_and_strength(level)
        control = f"{CONTROLS.get(arm)} {strength:g}"
        if control in present:
            pairs.append((level, control))
    if PLAIN in present:
        pairs += [(level, PLAIN) for level in present if level != PLAIN]
    return pairs

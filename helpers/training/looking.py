"""Training that changes where a network looks, and its controls.

An arm is a kind of training that makes networks look at the object, or away from it.
The control of an arm changes training as much but not in line with the object, so that
a difference between the two is due to looking at the object:

=======================  ============================================================
``plain``                nothing
``map_in_box``           a penalty on the true class's map outside of the box
``map_in_shuffled_box``  its control: the same with the box of another image
``map_out_of_box``       the opposite: a penalty on the map inside the box
=======================  ============================================================

A level of the hyperparameter ``looking`` is the name of an arm with its strength, the
factor of the penalty, such as "map_in_box 0.3". Only the boxes of training images are
used.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from numpy.random import Generator, default_rng
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, kl_div

from helpers.data.images import ImageSet, box_masks
from helpers.training.augmentation import Draws
from helpers.training.config import PLAIN, RunConfig

ARMS = (PLAIN, "map_in_box", "map_in_shuffled_box", "map_out_of_box")
# Third number of the seed sequence, so that each part of a run has its own random
# numbers (5: ``augmentation``).
_BOX_STREAM = 3


class Guide(NamedTuple):
    """An arm with its strength, and the boxes that it uses, for N images of a run."""

    arm: str  # one of ARMS, not plain
    strength: float
    boxes: Tensor  # (N, M, 4) integers, half-open pixels; zero rows are padding


def arm_and_strength(looking: str) -> tuple[str, float]:
    """Split a level of the hyperparameter into its arm and its strength.

    Args:
        looking: the level; ``PLAIN`` has strength 0.

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
    """Make the guide of a run.

    A control takes for each image the box of another one, the same in all epochs,
    which the run's seed and repeat determine.

    Args:
        config: the run.
        fitted: the N images that the run is fitted to.
        device: of the guide's tensors.

    Returns:
        The guide of the N images in their order; None for a plain run.

    Raises:
        ValueError: if the images have no boxes.
    """
    if config.looking == PLAIN:
        return None
    if not fitted.has_boxes:
        raise ValueError(
            f"looking {config.looking!r} needs boxes, and the training images have none"
        )
    arm, strength = arm_and_strength(config.looking)
    boxes = fitted.boxes
    if arm == "map_in_shuffled_box":
        generator = default_rng([config.seed, config.repeat, _BOX_STREAM])
        boxes = boxes[other_images(len(fitted), generator)]
    return Guide(arm, strength, boxes.to(device))


def other_images(count: int, generator: Generator) -> np.ndarray:
    """Assign to each image another one, so that each is assigned once.

    The images are put in a circle in random order, and each gets the one before it.

    Args:
        count: number of images, at least 2.
        generator: of the random order.

    Returns:
        (count,) int64, a permutation that leaves no image in its place.
    """
    circle = generator.permutation(count)
    others = np.empty(count, dtype=np.int64)
    others[circle] = np.roll(circle, 1)
    return others


def map_penalty(maps: Tensor, guide: Guide, size: int, draws: Draws) -> Tensor:
    """Penalty on a class activation map outside of the box, or inside of it.

    It is the divergence of the map from a target, over the cells p of the map:
    ``KL(t || softmax(map)) = sum_p t_p (log t_p - log softmax(map)_p)``. The target t
    is the share of each cell that lies in the box (for "map_out_of_box": outside of
    it), scaled to the sum 1. The penalty is the mean over images with a box and a
    target, times the strength.

    Args:
        maps: (B, h, w) class activation maps of the true classes, not rectified.
        guide: of the B images.
        size: side S of the images, in pixels.
        draws: augmentation of the images: boxes are flipped with their images.

    Returns:
        A scalar, at least 0; 0 where no image has a box.
    """
    masks = box_masks(guide.boxes, size).unsqueeze(1)  # (B, 1, S, S)
    has_box = masks.flatten(1).any(1)
    if draws.horizontal is not None:
        masks = torch.where(draws.horizontal, masks.flip(3), masks)
        masks = torch.where(draws.vertical, masks.flip(2), masks)
    if guide.arm == "map_out_of_box":
        masks = ~masks
    # (B, h * w): share of each cell that the map should fill
    target = adaptive_avg_pool2d(masks.float(), maps.shape[1:]).flatten(1)
    has_target = has_box & (target.sum(1) > 0)
    target = target / target.sum(1, keepdim=True).clamp(min=1e-12)
    log_shares = maps.float().flatten(1).log_softmax(1)
    divergence = kl_div(log_shares, target, reduction="none").sum(1)  # (B,)
    count = has_target.sum().clamp(min=1)
    return guide.strength * (divergence * has_target).sum() / count


def class_maps(features: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Compute class activation maps ``sum_k w_ck f_k``; Zhou et al. 2016.

    Args:
        features: (B, C, h, w) of the last stage.
        weight: (classes, C) of the classifier.
        labels: (B,) classes.

    Returns:
        (B, h, w) float32, not rectified.
    """
    return torch.einsum("bkhw,bk->bhw", features.float(), weight[labels].float())


def in_order(levels: Iterable[str]) -> list[str]:
    """Sort levels: plain first, then by strength, each arm before its control.

    Args:
        levels: of the hyperparameter ``looking``; duplicates are dropped.

    Example:
        >>> in_order(["map_in_shuffled_box 1", "map_in_box 1", "plain"])
        ['plain', 'map_in_box 1', 'map_in_shuffled_box 1']
    """

    def by_strength_and_arm(level: str) -> tuple[float, int]:
        arm, strength = arm_and_strength(level)
        return strength, ARMS.index(arm)

    return sorted(set(levels), key=by_strength_and_arm)


def contrasts_of(levels: Iterable[str]) -> list[tuple[str, str]]:
    """Pair levels to compare, those that differ only in where a network looks first.

    First the map in the box with the map out of it, then with its control, then every
    level with plain training.

    Args:
        levels: of the hyperparameter ``looking`` in a study.

    Example:
        >>> from pprint import pprint
        >>> pprint(contrasts_of(["plain", "map_in_box 1", "map_in_shuffled_box 1"]))
        [('map_in_box 1', 'map_in_shuffled_box 1'),
         ('map_in_box 1', 'plain'),
         ('map_in_shuffled_box 1', 'plain')]
    """
    present = in_order(levels)
    pairs = [
        (level, level.replace("map_in_box", partner))
        for partner in ("map_out_of_box", "map_in_shuffled_box")
        for level in present
    ]
    pairs += [(level, PLAIN) for level in present]
    return [(one, other) for one, other in pairs if one != other and other in present]

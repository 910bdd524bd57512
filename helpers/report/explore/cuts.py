"""The overlap of published maps with boxes by any rule of cutting, for all networks at once."""

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.cams import overlap

PAPER = 0.1  # the threshold of Du et al. 2024
THRESHOLDS = (0.05, PAPER, *(round(0.05 * step, 2) for step in range(3, 20)))
RULES = (
    *(("threshold", level) for level in THRESHOLDS),
    ("area", None),
    ("maximum", None),
)


def mean_overlaps(
    maps: NDArray[np.uint8], boxes: NDArray[np.int64], size: int
) -> dict[tuple[str, float | None], NDArray[np.float64]]:
    """Mean overlap of each network by each of ``RULES``, chance not taken off.

    Of (models, images, h, w) maps, 255 where a normalised map is 1, and (images, M, 4) boxes of ``overlap.box_masks``, an image without one
    left out: (models,) means in [0, 1] of the IoU of mask and box at a threshold; "area", with the mask of the box's area (ties: the larger
    mask); "maximum", the share of images with a maximum of the map in the box.
    """
    inside = overlap.box_masks(torch.as_tensor(boxes), size).flatten(1)
    images = inside.any(1).nonzero().flatten().tolist()
    found = torch.full(
        (len(RULES), len(images), len(maps)), torch.nan, dtype=torch.double
    )
    for place, image in enumerate(images):
        values, box = (
            overlap.upsample(
                torch.from_numpy(maps[:, image]).float() / 255, size
            ).flatten(1),
            inside[image],
        )
        largest = values.topk(int(box.sum()), dim=1).values
        limits = {"area": largest[:, -1:], "maximum": largest[:, :1]}
        for row, (rule, level) in enumerate(RULES):
            mask = values >= limits.get(rule, level)
            common = mask[:, box].sum(1)
            found[row, place] = (
                common > 0
                if rule == "maximum"
                else common.double() / (mask | box).sum(1)
            )
    return dict(zip(RULES, found.mean(1).numpy(), strict=True))

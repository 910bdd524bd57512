"""The overlap of published maps with boxes by any rule of cutting, for all networks at once."""

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.cams import overlap

PAPER = 0.1  # the threshold of Du et al. 2024
THRESHOLDS = (0.05, PAPER, *(round(0.05 * step, 2) for step in range(3, 20)))
RULES = {"threshold": "at a threshold", "area": "to the area of the box", "maximum": "to its maximum"}
TITLES = {"threshold": "IoU of the mask and the box", "area": "area-matched IoU", "maximum": "share of maxima in the box"}
Cut = tuple[str, float | None]


def overlaps(maps: NDArray[np.uint8], boxes: NDArray[np.int64], size: int) -> dict[Cut, NDArray[np.float64]]:
    """Mean overlap of each network by each cut, chance not taken off: at each of ``THRESHOLDS`` and by the rules of ``RULES``.

    Args:
        maps: (models, images, h, w), 255 where a normalised map is 1.
        boxes: (images, M, 4), see ``overlap.box_masks``; an image without one is left out.
        size: side of the images, pixels.

    Returns:
        (models,) means in [0, 1] by rule and threshold (None for a rule that has none): IoU of mask and box at a threshold, the same with
        the largest mask of the box's area (ties: the larger mask), and the share of images with a maximum of the map in the box.
    """
    inside = overlap.box_masks(torch.as_tensor(np.asarray(boxes)), size).flatten(1)
    found: dict[Cut, list[torch.Tensor]] = {
        cut: [] for cut in [*(("threshold", level) for level in THRESHOLDS), ("area", None), ("maximum", None)]
    }
    for image in inside.any(1).nonzero().flatten().tolist():
        values = overlap.upsample(torch.from_numpy(np.ascontiguousarray(maps[:, image])).float() / 255, size).flatten(1)
        box = inside[image]
        for rule, level in found:
            if rule == "maximum":
                found[rule, level].append((values[:, box].amax(1) == values.amax(1)).double())
                continue
            limit = level if rule == "threshold" else values.kthvalue(values.shape[1] - int(box.sum()) + 1, dim=1, keepdim=True).values
            mask = values >= limit
            found[rule, level].append(mask[:, box].sum(1).double() / (mask | box).sum(1))
    return {cut: torch.stack(values).mean(0).numpy() if values else np.full(len(maps), np.nan) for cut, values in found.items()}

"""The overlap of published maps with boxes by any rule of cutting, for all networks at once."""

import numpy as np
import torch
from numpy.typing import NDArray

from helpers.cams import overlap

PAPER = 0.1  # the threshold of Du et al. 2024
THRESHOLDS = (0.05, PAPER, *(round(0.05 * step, 2) for step in range(3, 20)))
RULES = (*(("threshold", level) for level in THRESHOLDS), ("area", None), ("maximum", None))


def overlaps(maps: NDArray[np.uint8], boxes: NDArray[np.int64], size: int) -> dict[tuple[str, float | None], NDArray[np.float64]]:
    """Mean overlap of each network by each of ``RULES``, chance not taken off.

    Args:
        maps: (models, images, h, w), 255 where a normalised map is 1.
        boxes: (images, M, 4), see ``overlap.box_masks``; an image without one is left out.
        size: side of the images, pixels.

    Returns:
        (models,) means in [0, 1] by rule: IoU of mask and box at a threshold; "area", the same with the mask of the box's area (ties: the
        larger mask); "maximum", the share of images with a maximum of the map in the box.
    """
    inside = overlap.box_masks(torch.as_tensor(boxes), size).flatten(1)
    found: dict[tuple[str, float | None], list[torch.Tensor]] = {rule: [] for rule in RULES}
    for image in inside.any(1).nonzero().flatten().tolist():
        values = overlap.upsample(torch.from_numpy(maps[:, image]).float() / 255, size).flatten(1)
        box = inside[image]
        for name, level in RULES:
            if name == "maximum":
                found[name, level].append((values[:, box].amax(1) == values.amax(1)).double())
                continue
            limit = level if name == "threshold" else values.kthvalue(values.shape[1] - int(box.sum()) + 1, dim=1, keepdim=True).values
            mask = values >= limit
            found[name, level].append(mask[:, box].sum(1).double() / (mask | box).sum(1))
    return {rule: torch.stack(values).mean(0).numpy() if values else np.full(len(maps), np.nan) for rule, values in found.items()}

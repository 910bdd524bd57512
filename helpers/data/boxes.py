"""Boxes of objects, as masks of pixels and as shares of the places of a map."""

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d


def box_masks(boxes: Tensor, size: int) -> Tensor:
    """Mark the pixels inside any box of an image; Du et al. 2024, equation (5).

    Args:
        boxes: (B, M, 4) integers x0, y0, x1, y1 in pixels, half-open; rows of zeros
            fill up images with fewer boxes; what lies outside of the image is cut off.
        size: side S of the images, in pixels.

    Returns:
        (B, S, S) bool, rows (y) first.

    Example:
        >>> box_masks(torch.tensor([[[0, 1, 2, 2]]]), 2).int()
        tensor([[[0, 0],
                 [1, 1]]], dtype=torch.int32)
    """
    masks = []
    place = torch.arange(size, device=boxes.device)
    for part in boxes.long().unsqueeze(-1).split(1024):
        x0, y0, x1, y1 = part.unbind(-2)
        rows = (place >= y0) & (place < y1)  # (B, M, S)
        columns = (place >= x0) & (place < x1)
        # A product of matrices: (B, M, S, S) would not fit in memory where one image
        # has many boxes.
        overlapping = torch.einsum("bmy,bmx->byx", rows.float(), columns.float())
        masks.append(overlapping > 0)
    return torch.cat(masks)


def box_shares(masks: Tensor, height: int, width: int) -> Tensor:
    """Share of each place of a map that lies inside the boxes.

    Args:
        masks: (B, S, S) bool, as ``box_masks`` gives them.
        height: rows of the map.
        width: columns of the map.

    Returns:
        (B, height, width) float32 in [0, 1].

    Example:
        >>> box_shares(torch.tensor([[[True, True], [True, False]]]), 1, 1)
        tensor([[[0.7500]]])
    """
    return adaptive_avg_pool2d(masks.float().unsqueeze(1), (height, width)).squeeze(1)

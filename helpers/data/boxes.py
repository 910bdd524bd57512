"""Boxes of objects as masks of pixels, and as shares of the cells of a map."""

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d


def box_masks(boxes: Tensor, size: int) -> Tensor:
    """Mark the pixels inside any box of an image; Du et al. 2024, equation (5).

    Args:
        boxes: (B, M, 4) integers x0, y0, x1, y1 in pixels, half-open, for B images of
            up to M boxes; rows of zeros fill up images with fewer. The part of a box
            outside of the image is ignored.
        size: side S of the images, in pixels.

    Returns:
        (B, S, S) bool, rows (y) first.

    Example:
        >>> box_masks(torch.tensor([[[0, 1, 2, 2]]]), 2).int()
        tensor([[[0, 0],
                 [1, 1]]], dtype=torch.int32)
    """
    masks = []
    pixel = torch.arange(size, device=boxes.device)
    for batch in boxes.long().unsqueeze(-1).split(1024):
        x0, y0, x1, y1 = batch.unbind(-2)  # (B, M, 1) each
        rows = (pixel >= y0) & (pixel < y1)  # (B, M, S)
        columns = (pixel >= x0) & (pixel < x1)
        # The number of boxes that hold each pixel, as a product of matrices. It
        # replaces (rows[..., None] & columns[:, :, None]).sum(1), whose (B, M, S, S)
        # would not fit into memory if one image has many boxes.
        boxes_at_pixel = torch.einsum("bmy,bmx->byx", rows.float(), columns.float())
        masks.append(boxes_at_pixel > 0)
    return torch.cat(masks)


def box_shares(masks: Tensor, height: int, width: int) -> Tensor:
    """Share of each cell of a map that lies inside the boxes.

    Args:
        masks: (B, S, S) bool, the result of ``box_masks``.
        height: rows of the map.
        width: columns of the map.

    Returns:
        (B, height, width) float32 in [0, 1].

    Example:
        >>> box_shares(torch.tensor([[[True, True], [True, False]]]), 1, 1)
        tensor([[[0.7500]]])
    """
    return adaptive_avg_pool2d(masks.float().unsqueeze(1), (height, width)).squeeze(1)

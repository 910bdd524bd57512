"""Boxes of objects as masks of pixels, and as shares of the cells of a map."""

import torch
from torch import Tensor


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

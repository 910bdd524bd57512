"""Masks made by a machine in place of annotated boxes: which provider makes them, and how good they are (Du et al. 2024, Table 7)."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers import localization, saliency, segmentation
from helpers.datasets import ImageSet

PROVIDERS = ("spectral_residual", "folder", "network")


def make_masks(
    provider: str, images: ImageSet, *, path: str = "", architecture: str = "", classes: int = 21, device: torch.device | str = "cpu"
) -> Tensor:
    """Mark the salient object of every image.

    Args:
        provider: "spectral_residual" (Hou and Zhang 2007, needs nothing), "folder" (masks that another program made, such as MCCL's as
            in the paper), or "network" (one of torchvision's segmentation networks with weights of the user).
        images: N images.
        path: the folder of masks, or the weights' file; relative to the project's root.
        architecture: of the network, one of ``saliency.SEGMENTATION_NETWORKS``.
        classes: outputs of the network, see ``saliency.segmentation_network``.
        device: where the network runs.

    Returns:
        (N, S, S) bool on the CPU; a mask may be empty.

    Raises:
        ValueError: an unknown provider, or one that needs a path and has none.
        FileNotFoundError: a mask or the weights are missing.
    """
    if provider not in PROVIDERS:
        raise ValueError(f"saliency provider {provider!r} is unknown; choose one of {', '.join(PROVIDERS)}")
    if provider == "spectral_residual":
        return saliency.spectral_residual_masks(images.images)
    if not path:
        wanted = "folder that holds one mask for each image" if provider == "folder" else "file of the network's weights"
        raise ValueError(f"saliency provider {provider!r} needs a path: the {wanted}")
    if provider == "folder":
        return saliency.masks_from_folder(path, images.names, images.images.shape[-1])
    network = saliency.segmentation_network(architecture, path, classes).to(device)
    return saliency.network_masks(network, images.images, device=device)


def image_quality(masks: Tensor, images: ImageSet, batch_size: int = 256) -> pd.DataFrame:
    """Compare each mask with the boxes of its image.

    Returns:
        One row per image: name, iou in [0, 1] with the union of its boxes (0 for an empty mask, NaN where there is no box either),
        empty (no pixel), share (of the image that is mask).
    """
    ious = _batched(masks, images, batch_size, localization.mask_iou)
    iou = torch.cat(ious).double().numpy() if ious else np.empty(0)
    share = masks.flatten(1).double().mean(1).numpy()
    return pd.DataFrame({"name": images.names, "iou": iou, "empty": saliency.empty(masks).numpy(), "share": share})


def mask_quality(masks: Tensor, images: ImageSet, batch_size: int = 256) -> dict[str, float]:
    """Score the masks against the boxes by the metrics of segmentation, over the pixels of all images whose mask is not empty.

    Returns:
        What ``segmentation.mask_metrics`` gives, then images (N), dropped (empty masks).
    """
    kept = ~saliency.empty(masks)
    parts = _batched(masks[kept], images.subset(np.flatnonzero(kept.numpy())), batch_size, segmentation.pixel_confusion)
    metrics = segmentation.mask_metrics(sum(parts, torch.zeros(2, 2, dtype=torch.int64)))
    return metrics | {"images": len(masks), "dropped": int((~kept).sum())}


def _batched(masks: Tensor, images: ImageSet, batch_size: int, compare: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    size = images.images.shape[-1]
    starts = range(0, len(masks), batch_size)
    return [
        compare(masks[start : start + batch_size], localization.box_masks(images.boxes[start : start + batch_size], size))
        for start in starts
    ]


def from_best_to_worst(quality: pd.DataFrame, count: int = 5) -> list[int]:
    """Choose images evenly from the best mask to the worst, as in the paper's Figure 6; those without an IoU are left out.

    Returns:
        Row numbers of ``image_quality``, at most ``count``, all different.
    """
    order = quality["iou"].dropna().sort_values(ascending=False, kind="stable").index.to_numpy()
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return order[places].tolist()

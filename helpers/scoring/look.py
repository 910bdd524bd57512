"""Models and images to be looked at: maps, overlays and the steps of a map."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from helpers.cams import overlap
from helpers.data.images import ImageSet, StudyData
from helpers.measures import passes
from helpers.networks import hooks, resnet
from helpers.training.catalogue import Model, load_model, models_of
from helpers.training.run import fitted_rows


def to_look_at(table: pd.DataFrame) -> pd.DataFrame:
    """Sort the models that can be pictured by their gap: those of the analysis, or all scored ones where it keeps none.

    Raises:
        ValueError: no model has a score.
    """
    scored = table.dropna(subset=["iou", "gap"])
    kept = scored[scored["left_out"] == ""]
    if not len(scored):
        raise ValueError(f"no model of this study has a score and a gap: {_why_none(table)}")
    return (kept if len(kept) else scored).sort_values("gap", ignore_index=True)


def _why_none(table: pd.DataFrame) -> str:
    """Why no model of a catalogue with its scores can be pictured."""
    left = table[table["snapshot"] != "none"] if "snapshot" in table else table
    if not len(table):
        return "its catalogue is empty; run 02_grid_training"
    if not len(left):
        return f"all {len(table)} runs diverged before they left one; lower learning_rates and run 02_grid_training again"
    without_gap = int(left["gap"].isna().sum())
    if without_gap == len(left):
        return f"none of its {len(left)} models has a training and a test accuracy; look at the table of 02_grid_training"
    return f"the scores of all its {len(left)} models are undefined; their reasons stand in the table of scores, and in work/*/scores"


@torch.inference_mode()
def maps_of(network: torch.nn.Module, images: ImageSet, *, method: str, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute normalised maps of the predicted class for a few images, to be looked at.

    Returns:
        (B, h, w) maps in [0, 1) and (B,) predicted classes, on the CPU.
    """
    example = hooks.prepared(images.images[:1], resnet.normalise_images, device)
    with hooks.evaluation_mode(network):
        seen = passes.forward_pass(network, images, resnet.normalise_images, device, example, method, len(images))
    return passes.maps(seen), seen.logits.argmax(1)


@dataclass(frozen=True)
class Steps:
    """How one model comes to its IoU on one image, step by step."""

    image: torch.Tensor  # (3, S, S) uint8
    heat_map: torch.Tensor  # (h, w) normalised map
    enlarged: torch.Tensor  # (S, S)
    mask: torch.Tensor  # (S, S) bool
    box_mask: torch.Tensor  # (S, S) bool
    boxes: torch.Tensor  # (M, 4)
    cam_box: torch.Tensor  # (4,) rectangle around the mask
    iou: float
    iou_b: float
    label: int
    predicted: int


def steps(work: Path, model: Model, images: ImageSet, classes: int, *, method: str, threshold: float, device: str) -> Steps:
    """Take one model through one image.

    Args:
        work: the study's folder.
        model: one of ``catalogue.models_of``.
        images: exactly one image.
        classes: number of classes of the study.
        method: one of ``closed_form.CLOSED_FORM_METHODS``.
        threshold: of the map.
        device: where to compute.
    """
    maps, predicted = maps_of(load_model(work, model, classes, device), images, method=method, device=device)
    size = images.images.shape[-1]
    mask = overlap.cam_masks(maps, size, threshold)
    iou, iou_b = overlap.iou_and_iou_b(maps, images.boxes, size, threshold)
    return Steps(
        image=images.images[0],
        heat_map=maps[0],
        enlarged=overlap.upsample(maps, size)[0],
        mask=mask[0],
        box_mask=overlap.box_masks(images.boxes, size)[0],
        boxes=images.boxes[0],
        cam_box=overlap.bounding_rectangles(mask)[0],
        iou=float(iou[0]),
        iou_b=float(iou_b[0]),
        label=int(images.labels[0]),
        predicted=int(predicted[0]),
    )


@dataclass(frozen=True)
class Overlays:
    """Where several models look on the same images."""

    images: torch.Tensor  # (models, images, 3, S, S) uint8
    heat: torch.Tensor  # (models, images, S, S) in [0, 1)
    boxes: torch.Tensor  # (models, images, M, 4)
    ious: torch.Tensor  # (models, images)


def overlays(
    work: Path, catalogue: pd.DataFrame, images: ImageSet, classes: int, *, method: str, threshold: float, device: str
) -> Overlays:
    """Take several models through the same few images; arguments as for ``steps``."""
    size, heat, ious = images.images.shape[-1], [], []
    for model in models_of(catalogue):
        maps, _ = maps_of(load_model(work, model, classes, device), images, method=method, device=device)
        heat.append(overlap.upsample(maps, size))
        ious.append(overlap.iou_and_iou_b(maps, images.boxes, size, threshold)[0])
    rows = len(catalogue)
    return Overlays(
        images.images.expand(rows, *images.images.shape),
        torch.stack(heat),
        images.boxes.expand(rows, *images.boxes.shape),
        torch.stack(ious),
    )


def common_images(catalogue: pd.DataFrame, data: StudyData, count: int, seed: int) -> ImageSet:
    """Choose images that all the models of a table were fitted to, of different classes as far as there are."""
    rows = sorted(set.intersection(*(set(fitted_rows(data, model.config).tolist()) for model in models_of(catalogue))))
    order = np.random.default_rng(seed).permutation(rows)
    labels = pd.Series(data.train.labels.numpy()[order])
    spread = order[np.argsort(labels.groupby(labels).cumcount().to_numpy(), kind="stable")]
    return data.train.subset(spread[:count])

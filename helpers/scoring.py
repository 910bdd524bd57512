"""Every model of a catalogue on its own training images: where it looks, scored against the boxes once, and to be looked at."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from helpers import cams, localization, model_set, models
from helpers.datasets import ImageSet, StudyData
from helpers.grid import config_from
from helpers.training import training_images

FAMILY = "localization"


def model_images(model: pd.Series, data: StudyData) -> ImageSet:
    """Give the images that a model of the catalogue was fitted to, with the labels it was fitted to."""
    return training_images(data, config_from(model))[0]


def score_missing(
    work: Path, catalogue: pd.DataFrame, data: StudyData, *, method: str, threshold: float, device: torch.device | str
) -> Iterator[str]:
    """Score the models that have no localization scores for this method and threshold yet; yield each model's id when done.

    Diverged runs without a model are passed over. Scores go to ``scores/<family>`` one file per model, see ``model_set``.
    """
    family = family_name(method, threshold)
    for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows():
        if not model_set.has_scores(work, family, model["model_id"]):
            model_set.save_scores(work, family, model["model_id"], _scores(work, model, data, method, threshold, device))
        yield model["model_id"]


def family_name(method: str, threshold: float) -> str:
    """Name the folder of scores that share a CAM method and a threshold."""
    return f"{FAMILY}-{method}-{threshold:g}"


def _scores(work: Path, model: pd.Series, data: StudyData, method: str, threshold: float, device: torch.device | str) -> pd.DataFrame:
    network = model_set.load_model(work, model, len(data.classes), device)
    started = time.perf_counter()
    per_image = localization.score_images(
        network,
        network.get_submodule(models.CAM_LAYER),
        model_images(model, data),
        normalise_images=models.normalise,
        method=method,
        threshold=threshold,
        device=device,
    )
    summary = localization.model_scores(per_image)
    rows = pd.DataFrame({"measure": list(summary), "value": list(summary.values())})
    return rows.assign(variant=variant(method, threshold), seconds=time.perf_counter() - started)


def variant(method: str, threshold: float) -> str:
    """Name the way in which a localization measure was computed."""
    return f"{method} {threshold:g}"


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame, variant: str) -> pd.DataFrame:
    """Join scores of one variant to the catalogue: one column per measure, NaN where a model has none."""
    wide = scores[scores["variant"] == variant].pivot(index="model_id", columns="measure", values="value")
    return catalogue.merge(wide, how="left", left_on="model_id", right_index=True)


def to_look_at(table: pd.DataFrame) -> pd.DataFrame:
    """Sort the models that can be pictured by their gap: those of the analysis, or all scored ones where it keeps none.

    Raises:
        ValueError: no model has a score.
    """
    scored = table.dropna(subset=["iou", "gap"])
    kept = scored[scored["left_out"] == ""]
    if not len(scored):
        raise ValueError(
            "no model of this study has a defined score: every run diverged; lower learning_rates and run 02_grid_training again"
        )
    return (kept if len(kept) else scored).sort_values("gap", ignore_index=True)


@torch.inference_mode()
def maps_of(network: torch.nn.Module, images: ImageSet, *, method: str, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute normalised maps of the predicted class for a few images, to be looked at.

    Returns:
        (B, h, w) maps in [0, 1) and (B,) predicted classes, on the CPU.
    """
    layer = network.get_submodule(models.CAM_LAYER)
    pixels = models.normalise(images.images.to(device)).contiguous(memory_format=torch.channels_last)
    features, logits = cams.features_and_logits(network, layer, pixels)
    classifier = cams.check_closed_form(network, layer, pixels)
    predicted = logits.argmax(1)
    return cams.normalise(cams.closed_form_cam(method, features, classifier.weight, predicted)).cpu(), predicted.cpu()


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


def steps(work: Path, model: pd.Series, images: ImageSet, classes: int, *, method: str, threshold: float, device: str) -> Steps:
    """Take one model through one image.

    Args:
        work: the study's folder.
        model: a row of the catalogue.
        images: exactly one image.
        classes: number of classes of the study.
        method: one of ``cams.METHODS``.
        threshold: of the map.
        device: where to compute.
    """
    maps, predicted = maps_of(model_set.load_model(work, model, classes, device), images, method=method, device=device)
    size = images.images.shape[-1]
    mask = localization.cam_masks(maps, size, threshold)
    iou, iou_b = localization.iou_and_iou_b(maps, images.boxes, size, threshold)
    return Steps(
        image=images.images[0],
        heat_map=maps[0],
        enlarged=localization.upsample(maps, size)[0],
        mask=mask[0],
        box_mask=localization.box_masks(images.boxes, size)[0],
        boxes=images.boxes[0],
        cam_box=localization.bounding_rectangles(mask)[0],
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
    for _, model in catalogue.iterrows():
        maps, _ = maps_of(model_set.load_model(work, model, classes, device), images, method=method, device=device)
        heat.append(localization.upsample(maps, size))
        ious.append(localization.iou_and_iou_b(maps, images.boxes, size, threshold)[0])
    rows = len(catalogue)
    return Overlays(
        images.images.expand(rows, *images.images.shape),
        torch.stack(heat),
        images.boxes.expand(rows, *images.boxes.shape),
        torch.stack(ious),
    )


def common_images(catalogue: pd.DataFrame, data: StudyData, count: int, seed: int) -> ImageSet:
    """Choose images that all the models of a table were fitted to, of different classes as far as there are."""
    shared = set.intersection(*(set(model_images(model, data).names) for _, model in catalogue.iterrows()))
    rows = [index for index, name in enumerate(data.train.names) if name in shared]
    order = np.random.default_rng(seed).permutation(rows)
    labels = pd.Series(data.train.labels.numpy()[order])
    spread = order[np.argsort(labels.groupby(labels).cumcount().to_numpy(), kind="stable")]
    return data.train.subset(spread[:count])

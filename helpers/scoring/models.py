"""Every model of a catalogue on its own training images: every measure once, and where it looks, to be looked at."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.torch
import torch

from helpers import cams, localization, measures, model_set, models
from helpers.datasets import ImageSet, StudyData
from helpers.grid import config_from
from helpers.measures.evidence import closure
from helpers.training import initial_model, training_images


def model_images(model: pd.Series, data: StudyData) -> ImageSet:
    """Give the images that a model of the catalogue was fitted to, with the labels it was fitted to."""
    return training_images(data, config_from(model))[0]


def initial_network(work: Path, model: pd.Series, classes: int) -> torch.nn.Module | None:
    """Make a model of the catalogue as it was before its first step; None when its pretrained start was not kept."""
    config = config_from(model)
    if not config.pretrained:
        return initial_model(config, classes)
    path = model_set.start_path(work, config.weights)
    return initial_model(config, classes, safetensors.torch.load_file(path)) if path.is_file() else None


def folder_name(family: str, settings: measures.Settings) -> str:
    """Name the folder of a family's scores: the family, and the settings that its values depend on."""
    return f"{family}-{measures.settings_name(measures.of_families([family]), settings)}"


def score_missing(
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    families: Sequence[str],
    settings: measures.Settings,
    *,
    device: torch.device | str,
) -> Iterator[str]:
    """Compute what is missing of some families of measures, for every model; yield each model's id when it has all of them.

    What several measures need, such as the forward pass, is worked out once per model. Diverged runs without a model are passed over.
    Scores go to ``scores/<folder_name>``, one file per model and family, so that a killed run goes on where it stopped.
    """
    folders = {family: folder_name(family, settings) for family in families}
    for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows():
        there = {family: model_set.scored_measures(work, folder, model["model_id"]) for family, folder in folders.items()}
        todo = [item for item in measures.of_families(list(families)) if item.name not in there[item.family]]
        if todo:
            scores = _scores(work, model, data, todo, settings, device)
            for family, rows in scores.groupby(scores["measure"].map({item.name: item.family for item in todo})):
                model_set.save_scores(work, folders[family], model["model_id"], rows)
        yield model["model_id"]


def _scores(
    work: Path, model: pd.Series, data: StudyData, todo: Sequence[measures.Measure], settings: measures.Settings, device: torch.device | str
) -> pd.DataFrame:
    given = {
        "network": model_set.load_model(work, model, len(data.classes), device),
        "images": model_images(model, data),
        "normalise": models.normalise,
        "device": device,
    }
    if "initial_network" in closure(name for item in todo for name in item.needs):
        given["initial_network"] = initial_network(work, model, len(data.classes))
    return measures.score(todo, given, settings)


def load_scores(work: Path, catalogue: pd.DataFrame, families: Sequence[str], settings: measures.Settings) -> pd.DataFrame:
    """Read the scores of some families under these settings: one row per model, measure and variant, see ``model_set.load_scores``."""
    return model_set.load_scores(work, [folder_name(family, settings) for family in families], catalogue["model_id"])


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Join scores to the catalogue: one column per measure and variant (see ``measures.columns``), NaN where a model has none."""
    known = measures.columns().merge(scores, on=["measure", "variant"])
    wide = known.pivot(index="model_id", columns="column", values="value")
    return catalogue.merge(wide[list(dict.fromkeys(known["column"]))], how="left", left_on="model_id", right_index=True)


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
    classifier = cams.closed_form_classifier(network, features, logits)
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

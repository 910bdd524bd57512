"""Ablations of networks that are not here, from stored maps and published tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.ablations.compute import (
    BOXES,
    CLOSED,
    AblationSettings,
    grad_cam_way,
    image_overlaps,
    overlap_rows,
    with_way,
)
from helpers.cams import localize
from helpers.cams.maps import from_integers
from helpers.cams.masks import make_masks
from helpers.data.boxes import box_masks
from helpers.data.images import ImageSet
from helpers.files import json_digest, write_json
from helpers.networks import hooks
from helpers.report.tables import read
from helpers.scoring.models import Model
from helpers.scoring.records import SETTINGS
from helpers.scoring.scoring_set import ScoringSet
from helpers.scoring.store import Records, Store

MASKS = "masks"  # the part of the store that keeps masks of the scored images
SOURCE = "computed_from"  # column with the origin of a row, one of the next two
OF_NETWORKS = "networks, as published"
OF_MAPS = "kept maps"
# Follows the sentence ``Records.left_out``, which says what to do to have all networks.
WITHOUT_NETWORKS = (
    "Until then rows stand as published, and with other parameters Grad-CAM of the "
    "predicted class is computed from its kept maps "
    f"(column `{SOURCE}`)."
)
_VERSION = 1  # of the masks


def masks_of_images(
    store: Store, scored_on: ScoringSet, providers: Sequence[str], path: str = ""
) -> dict[str, Tensor]:
    """Masks of the salient object of each scored image, made once and published.

    Args:
        store: of the study.
        scored_on: the images.
        providers: of ``masks.MASK_PROVIDERS``.
        path: folder of masks that another program made, for the provider "folder",
            which is read again each time where the images are here.

    Returns:
        (N, S, S) bool by provider; a provider is absent where neither pixels nor
        records are here.
    """
    images = scored_on.images_of(store.shared())  # of what all models share: the data
    settings = {"images": scored_on.name, "path": path, "version": _VERSION}
    folder = store.folder / f"{MASKS}-{json_digest(settings)}"
    records = Records({MASKS: folder}, models=(), published=store.published)
    masks = {}
    for provider in providers:
        # In the name of a record, a provider stands in place of a model's id.
        record = records.record(MASKS, provider)
        if images.has_pixels and (provider == "folder" or not record):
            new_masks = make_masks(provider, images, path).numpy()
            record = {"bits": np.packbits(new_masks, axis=-1)}
            write_json(folder / SETTINGS, settings)
            records.write(MASKS, provider, record)
        if record:
            size = images.images.shape[-1]
            bits = np.unpackbits(record["bits"], axis=-1, count=size)
            masks[provider] = torch.from_numpy(bits > 0)
    return masks


def scores_of_maps(
    records: Records,
    images: ImageSet,
    masks: Mapping[str, Tensor],
    settings: AblationSettings,
    layer: str,
) -> dict[str, pd.DataFrame]:
    """Scores of Grad-CAM under every choice that the stored maps allow.

    Maps are of the predicted class; thresholds, masks and subsets of images vary.

    Args:
        records: of the part "localization", at the settings' threshold.
        images: that the models are scored on.
        masks: (N, S, S) bool by provider, beside the annotated boxes.
        settings: of the ablations.
        layer: name of the networks' last stage.

    Returns:
        Tables "scores" and "corrected" of all models, with the columns of
        ``compute.closed_form_scores``. From 8 bits an IoU differs by 1e-4 from that of
        a map that was not rounded. Without rows where records lack maps of some images.
    """
    size = images.images.shape[-1]
    # A way is the choice by which a score is computed: method, layer, annotation, ...
    way = grad_cam_way(layer, size)
    annotations = {BOXES: box_masks(images.boxes, size), **masks}
    scores = []
    corrected = []
    for model_id, record in records.records("localization"):
        if len(record["maps"]) < len(images):
            continue  # published records may have maps of the first images only
        maps = from_integers(record["maps"])
        is_right = torch.from_numpy(np.asarray(record["correct"]) > 0)
        for name, annotated in annotations.items():
            iou = image_overlaps(maps, annotated, settings.thresholds)
            rows = overlap_rows(iou, is_right, settings.thresholds)
            rows = with_way(rows, way | {"annotation": name})
            scores.append(rows.assign(model_id=model_id))
        means = record["scores"].set_index("measure")["value"]
        row = way | {"n": len(images), "model_id": model_id}
        corrected.append(row | means[list(localize.CORRECTED)].to_dict())
    if not scores:
        return {"scores": pd.DataFrame(), "corrected": pd.DataFrame()}
    # Marked as closed-form maps of networks are, beside which they stand.
    return {
        "scores": pd.concat(scores, ignore_index=True).assign(part=CLOSED),
        "corrected": pd.DataFrame(corrected).assign(part=CLOSED),
    }


@torch.inference_mode()
def stage_of(model: Model, size: int) -> str:
    """Name of the last stage of a network that can be built, for images of a size.

    Args:
        model: of the study.
        size: side of the images, pixels.
    """
    network = model.load("cpu")
    layer = hooks.last_maps_layer(network, torch.zeros(1, 3, size, size))
    names = {module: name for name, module in network.named_modules()}
    return names[layer]


def fill_from_published(
    report: Path | None,
    name: str,
    ours: pd.DataFrame,
    keys: Sequence[str] = (),
    *,
    stand: bool = False,
) -> pd.DataFrame:
    """A table in which rows that cannot be computed here stand as they were published.

    Args:
        report: the study's published report; None where all rows could be computed.
        name: of its table.
        ours: rows that were computed here; none is a table without rows.
        keys: columns that name a row; not needed where no row was computed here.
        stand: whether published rows replace ours with the same keys, since they come
            from maps that were not rounded; else ours replace them.

    Returns:
        The published rows in their order, then further ones of ours, with their origin
        in ``SOURCE``. Ours alone if the report has no such table.
    """
    if report is None:
        return ours
    published = read(report, name)
    ours = ours.assign(**{SOURCE: OF_MAPS})
    if published is None:
        return ours
    if SOURCE not in published:
        published = published.assign(**{SOURCE: OF_NETWORKS})
    # Rows that were published of maps are ours to compute again.
    published = published[published[SOURCE] == OF_NETWORKS]
    # An empty text in a .csv is read as NaN.
    texts = published.select_dtypes(exclude=["number", "bool"]).columns
    published = published.fillna(dict.fromkeys(texts, ""))
    if ours.empty:
        return published.reset_index(drop=True)
    of_networks = _by_keys(published, keys)
    rows = of_networks | _by_keys(ours, keys)  # published keys first, in their order
    if stand:
        rows |= of_networks
    columns = dict.fromkeys([*published, *ours])
    return pd.DataFrame(rows.values(), columns=list(columns))


def _by_keys(table: pd.DataFrame, keys: Sequence[str]) -> dict[Any, Any]:
    """Rows of a table by their keys, in which an empty text is read as NaN."""
    named = table[list(keys)].astype(object)
    names = named.where(named.notna(), "").itertuples(index=False, name=None)
    return dict(zip(names, table.to_dict("records"), strict=True))

"""The ablations of every model of a catalogue: computed once, kept on disk, and read back."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers import ablation_scores, measures, model_set, scoring
from helpers.ablation_samples import sampled_scores
from helpers.ablation_scores import Settings, closed_form_scores
from helpers.datasets import StudyData
from helpers.files import complete_or_absent, inside

CLOSED, SAMPLED = "closed", "sampled"  # parts: all images in closed form, a few images by gradients
COLUMNS = ["model_id", *ablation_scores.COLUMNS, "part"]
IMAGE_COLUMNS = ["model_id", "name", "iou", "iou_b", "mask_iou", "right"]


def digest(**decisive: Any) -> str:
    """Name what decides some scores: 8 hex digits over names and values."""
    return hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=4).hexdigest()


def folder_names(settings: Settings, masks: Tensor | None) -> dict[str, str]:
    """Name each part's folder by what its scores depend on: other noise does not compute the closed forms again, nor other masks the noise.

    Masks are told apart by their pixels, wherever they came from.
    """
    options = asdict(settings)
    threshold = options.pop("threshold")
    pixels = "" if masks is None else hashlib.blake2b(np.packbits(masks.cpu().numpy()).tobytes(), digest_size=8).hexdigest()
    closed = digest(thresholds=settings.thresholds, threshold=threshold, masks=pixels)
    return {CLOSED: f"{CLOSED}-{closed}", SAMPLED: f"{SAMPLED}-{digest(**options)}"}


def score_missing(
    work: Path, catalogue: pd.DataFrame, data: StudyData, settings: Settings, masks: Tensor | None, *, device: torch.device | str
) -> Iterator[str]:
    """Compute what is missing, model by model; yield each model's id when it has everything.

    Scores go to ``ablations/<folder>/<model_id>.parquet``; those of single images beside them in ``<model_id>.images.parquet``, which
    is written first. A killed run goes on where it stopped.

    Args:
        work: the study's folder.
        catalogue: the models; diverged runs without one are passed over.
        data: the study's images.
        settings: see there.
        masks: (N, S, S) bool of all training images of the study, made by a machine; None for none.
        device: where to compute.
    """
    places = {part: inside(work / "ablations", name) for part, name in folder_names(settings, masks).items()}
    row_of = {name: row for row, name in enumerate(data.train.names)}
    for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows():
        name = model["model_id"]
        paths = {part: inside(place, f"{name}.parquet") for part, place in places.items()}
        missing = [part for part, path in paths.items() if not path.is_file()]
        if missing:
            network, images = model_set.load_model(work, model, len(data.classes), device), scoring.model_images(model, data)
        if CLOSED in missing:
            own = None if masks is None else masks[[row_of[image] for image in images.names]]
            scores = closed_form_scores(network, images, own, settings, device)
            _keep(inside(places[CLOSED], f"{name}.images.parquet"), scores.single.assign(model_id=name)[IMAGE_COLUMNS])
            _keep(paths[CLOSED], scores.table.assign(model_id=name, part=CLOSED)[COLUMNS])
        if SAMPLED in missing:
            _keep(paths[SAMPLED], sampled_scores(network, images, settings, device).assign(model_id=name, part=SAMPLED)[COLUMNS])
        yield name


def _keep(path: Path, table: pd.DataFrame) -> None:
    with complete_or_absent(path) as temporary:
        table.to_parquet(temporary, index=False)


def load(work: Path, catalogue: pd.DataFrame, settings: Settings, masks: Tensor | None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Read what is kept of some models: the scores (``COLUMNS``), and those of single images at the paper's setting (``IMAGE_COLUMNS``)."""
    names, ids = folder_names(settings, masks), sorted(catalogue["model_id"])
    scores = [table for folder in names.values() for table in _read(work / "ablations" / folder, ids, ".parquet")]
    single = _read(work / "ablations" / names[CLOSED], ids, ".images.parquet")
    return _stacked(scores, COLUMNS), _stacked(single, IMAGE_COLUMNS)


def _read(folder: Path, ids: Iterable[str], ending: str) -> list[pd.DataFrame]:
    return [pd.read_parquet(path) for name in ids if (path := inside(folder, f"{name}{ending}")).is_file()]


def _stacked(tables: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def measure_folders(work: Path, settings: measures.Settings) -> list[str]:
    """Find the scores of 04_baselines: of each family the folder for these settings, or the only one there is.

    Where there are several and none is for these settings, it cannot be known which is meant, and the family is left out.
    """
    chosen = []
    for family in measures.FAMILIES:
        there = sorted(path.name for path in (work / "scores").glob(f"{family}-*") if re.fullmatch(f"{family}-[0-9a-f]{{8}}", path.name))
        wanted = scoring.folder_name(family, settings)
        chosen += [wanted] if wanted in there else there if len(there) == 1 else []
    return chosen


def with_other_measures(work: Path, models: pd.DataFrame, settings: measures.Settings) -> tuple[pd.DataFrame, dict[str, int]]:
    """Join the measures that 04_baselines kept to a table of models that has iou and iou_b.

    Returns:
        The table, and the direction of iou, iou_b and every other ranked measure that is defined for some model.
    """
    scores = model_set.load_scores(work, measure_folders(work, settings), models["model_id"])
    joined = scoring.with_measures(models.drop(columns=["iou", "iou_b"]), scores)
    joined = joined.assign(iou=models["iou"].to_numpy(), iou_b=models["iou_b"].to_numpy())
    found = {name: item.direction for name, item in measures.ranked().items() if name in joined and joined[name].notna().any()}
    return joined, {"iou": 1, "iou_b": 1} | found

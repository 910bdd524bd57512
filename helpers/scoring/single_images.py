"""Values of single images of every model: kept beside its scores, and stacked for statistics that weight images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.data.images import StudyData
from helpers.files import inside, is_known, is_sound, sealed
from helpers.measures import evidence, registry
from helpers.scoring.classification import keep_test_logits, logits_path, read_logits
from helpers.scoring.common_set import ScoringSet
from helpers.training.catalogue import forget_scores, scored_measures

# What gives the values of single images of a family, see ``evidence.PROVIDERS``.
PROVIDED_BY = {"localization": "localization_values", "prediction": "prediction_values"}
_BITS = "bits of "


def folder_name(family: str, settings: evidence.MeasureSettings, scored_on: ScoringSet) -> str:
    """Folder of a family's scores, by what its values depend on: the family, the settings, number and digest of the images."""
    return f"{family}-{evidence.settings_name(registry.of_families([family]), settings)}-{scored_on.name}"


def _path(work: Path, folder: str, model_id: str) -> Path:
    return inside(work / "scores", f"{folder}/{model_id}.images.npz")


def save_image_values(work: Path, folder: str, model_id: str, values: Mapping[str, NDArray[Any]]) -> None:
    """Keep values of single images of a model beside its scores, (images,) each: bool as bits, all others as they are.

    Raises:
        ValueError: the arrays are of different lengths.
    """
    sizes = sorted({len(array) for array in values.values()})
    if len(sizes) != 1:
        raise ValueError(f"values of single images of {model_id} have lengths {sizes}; there must be one for each image")
    arrays = {
        f"{_BITS}{name}" if array.dtype == bool else name: np.packbits(array) if array.dtype == bool else array
        for name, array in values.items()
    }
    with sealed(_path(work, folder, model_id)) as temporary, temporary.open("wb") as file:
        np.savez(file, images=np.int64(sizes[0]), **arrays)


def read_image_values(work: Path, folder: str, model_id: str) -> dict[str, NDArray[Any]]:
    """Read what ``save_image_values`` kept of a model; empty where nothing was, or where it is not what was written."""
    path, values = _path(work, folder, model_id), {}
    if not _there(work, folder, model_id):
        return values
    with np.load(path, allow_pickle=False) as kept:
        count = int(kept["images"])
        for name in sorted({*kept.files} - {"images"}):
            bits = name.startswith(_BITS)
            values[name.removeprefix(_BITS)] = np.unpackbits(kept[name], count=count).astype(bool) if bits else kept[name]
    return values


def _there(work: Path, folder: str, model_id: str) -> bool:
    """Whether values of a model are there; where they are not what was written its scores go too, so that both are made again."""
    path = _path(work, folder, model_id)
    if is_known(path) and not is_sound(path):
        forget_scores(work, folder, model_id)
    return path.is_file()


def kept_measures(work: Path, folder: str, model_id: str) -> set[str]:
    """Measures that a folder of scores has of a model, none where the values of single images beside them are not what was written."""
    _there(work, folder, model_id)
    return scored_measures(work, folder, model_id)


def image_values(
    work: Path, catalogue: pd.DataFrame, scored_on: ScoringSet, settings: evidence.MeasureSettings, family: str = "localization"
) -> dict[str, NDArray[np.float32]]:
    """Values of single images of every model, (models, images) float32 by name: the rows of the catalogue, the images of the scoring set.

    localization: iou, iou_b, iou_above_shuffled, energy_in_box, pointing_game, area_matched_iou and pixel_average_precision, of which the
    measures are the means; mask_area, at the threshold, as a share of the image; correct, 0 or 1. prediction: training_loss,
    prediction_entropy, effective_invariance and correct.

    Args:
        work: the study's folder.
        catalogue: its models.
        scored_on: images they were scored on.
        settings: under which they were scored.
        family: one of ``PROVIDED_BY``.

    Returns:
        NaN rows for models that were not scored, NaN where a value is undefined; empty where no model was scored.
    """
    return stacked_values(work, catalogue, folder_name(family, settings, scored_on))


def stacked_values(work: Path, catalogue: pd.DataFrame, folder: str) -> dict[str, NDArray[np.float32]]:
    """Values of single images of every model from one folder of scores, see ``image_values``."""
    stacked: dict[str, NDArray[np.float32]] = {}
    for row, name in enumerate(catalogue["model_id"]):
        for value, single in read_image_values(work, folder, name).items():
            stacked.setdefault(value, np.full((len(catalogue), len(single)), np.nan, dtype=np.float32))[row] = single
    return stacked


def correct_on_test(work: Path, catalogue: pd.DataFrame, data: StudyData) -> NDArray[np.float32]:
    """Whether every model is right on every test image, by its kept logits: (models, test images) of 0 and 1, NaN rows without a model.

    Logits that are not there, or not what was written, are computed again on the processor. What came of them is kept beside the scores,
    for another machine to which a model goes without weights and logits.
    """
    for _ in keep_test_logits(work, catalogue, data, "cpu"):
        pass
    found, folder = np.full((len(catalogue), len(data.test)), np.nan, dtype=np.float32), f"test-{data.fingerprint}"
    for row, name in enumerate(catalogue["model_id"]):
        if is_sound(logits_path(work, name)):
            found[row] = (read_logits(work, name).argmax(1) == data.test.labels).numpy()
            if not _path(work, folder, name).is_file():
                save_image_values(work, folder, name, {"correct": found[row] > 0})
        elif kept := read_image_values(work, folder, name):
            found[row] = kept["correct"]
    return found

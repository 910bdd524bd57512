"""Every model's map of the predicted class on every scored image, for reports.

Maps are published with the records, one file per model. What all models share stands in
the report itself: boxes, labels and small pictures of the scored images.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from helpers.data.images import ImageSet, StudyData
from helpers.files import RECORDS, complete_or_absent, inside, read_arrays, table_of
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Records

SCORED = "scored_images.npz"  # among the tables of a report
PART = "localization"
_OF_RECORDS = ("maps", "right")  # arrays that the records hold, and not the report
_THUMBNAILS = 48  # number of images shown as small pictures
_SIDE = 96  # longer side of a small picture, pixels


def maps_of_models(
    records: Records, data: StudyData, scored_on: ScoringSet, report: Path
) -> dict[str, Any] | None:
    """Maps of M models on n scored images, with the boxes and labels of the images.

    Args:
        records: of the part "localization".
        data: images of the study.
        scored_on: those that the models are scored on.
        report: published report of the study with these records, whose small pictures
            are taken if the pixels are not here.

    Returns:
        None where no model has maps, else

        - model_ids (M,), and study and part, which name the records;
        - maps (M, n, h, w) uint8, where 255 stands for 1, and right (M, n), whether the
          predicted class is the label;
        - boxes (n, K, 4) half-open, rows of zeros are padding, on images of image_size
          pixels a side; labels (n,) and class_names;
        - thumbnails, JPEGs of the first images.
    """
    maps = _maps_of(records)
    if not maps:
        return None
    images = scored_on.images_of(data).subset(range(maps["maps"].shape[1]))
    boxes = images.boxes.numpy().astype(np.int16)
    published = _shared(report)
    thumbnails: Any = []
    if images.has_pixels:
        thumbnails = [_jpeg(image) for image in images.images[:_THUMBNAILS]]
    elif np.array_equal(published.get("boxes"), boxes):
        thumbnails = published["thumbnails"]
    return maps | {
        "study": report.name,
        "part": records.keys[PART],
        "boxes": boxes,
        "labels": images.labels.numpy().astype(np.int16),
        "image_size": np.int64(images.images.shape[-1]),
        "class_names": np.array(list(data.classes["class_name"]), dtype=str),
        "thumbnails": np.array(thumbnails, dtype=bytes),
    }


def _maps_of(records: Records) -> dict[str, Any]:
    """Maps of the models that have some, and whether they are right on each image."""
    names = []
    maps = []
    right = []
    for name in records.model_ids:
        record = records.record(PART, name)
        if "maps" in record:
            names.append(name)
            maps.append(record["maps"])
            right.append(record["correct"] > 0)
    if not names:
        return {}
    count = min(map(len, maps))  # records keep the maps of fewer images than work
    return {
        "model_ids": np.array(names),
        "maps": np.stack([of_model[:count] for of_model in maps]),
        "right": np.stack([of_model[:count] for of_model in right]),
    }


def publish(folder: Path, maps: dict[str, Any] | None) -> None:
    """Write boxes, labels and small pictures of maps into a report, without the maps.

    Args:
        folder: that the notebook writes to.
        maps: of ``maps_of_models``; None writes nothing.
    """
    if maps is None:
        return
    arrays = {name: maps[name] for name in maps if name not in _OF_RECORDS}
    path = folder / "tables" / SCORED
    with complete_or_absent(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def pictures(maps: dict[str, Any]) -> ImageSet:
    """The first images, from their small pictures, at the size of their boxes.

    Args:
        maps: of ``maps_of_models``.
    """
    size = int(maps["image_size"])
    pixels = []
    for jpeg in maps["thumbnails"]:
        picture = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((size, size))
        pixels.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1))
    first = slice(len(pixels))
    return ImageSet(
        torch.stack(pixels) if pixels else torch.empty(0, 3, size, size),
        torch.from_numpy(maps["labels"][first]).long(),
        torch.from_numpy(maps["boxes"][first]),
        tuple(map(str, range(len(pixels)))),
    )


def _jpeg(image: Tensor) -> bytes:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    buffer = io.BytesIO()
    picture.thumbnail((_SIDE, _SIDE))
    picture.save(buffer, "jpeg", quality=85)
    return buffer.getvalue()


def read_maps(folder: Path) -> dict[str, Any] | None:
    """Maps of a published report.

    Args:
        folder: of the report.

    Returns:
        See ``maps_of_models``; None where the report or its records have none.
    """
    shared = _shared(folder)
    if not shared:
        return None
    # A report may show the networks of another study.
    records = inside(folder.parent, str(shared["study"])) / RECORDS
    any_weights = dict.fromkeys(shared["model_ids"].tolist(), "")
    part = str(shared["part"])
    maps = _maps_of(Records([records], any_weights, {PART: part}))
    return shared | maps if maps else None


def _shared(folder: Path) -> dict[str, Any]:
    """Arrays that ``publish`` wrote; none where it did not."""
    path = table_of(folder, SCORED)
    return read_arrays(path) if path.is_file() else {}

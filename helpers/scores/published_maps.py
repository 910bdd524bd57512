"""Every model's map of the predicted class on every scored image, for reports.

Maps are published with the records, one file per model. What all models share stands in
the report itself: boxes, labels and small pictures of the scored images.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from helpers.data.images import ImageSet, StudyData
from helpers.files import RECORDS, complete_or_absent, inside, read_arrays, table_of
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Records
from helpers.scores.values import read_values

SCORED = "scored_images.npz"  # among the tables of a report
_OF_RECORDS = ("maps", "right")  # arrays that the records hold, and not the report
_THUMBNAILS = 48  # number of images shown as small pictures
_SIDE = 96  # longer side of a small picture, pixels


def maps_of_models(
    records: Records,
    models: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    before: Path | None = None,
) -> dict[str, Any] | None:
    """Maps of M models on n scored images, with the boxes and labels of the images.

    Args:
        records: records of the part "localization".
        models: with a column model_id.
        data: images of the study.
        scored_on: those that the models are scored on.
        before: a published report of the same images, whose small pictures are taken
            if the pixels are not here.

    Returns:
        None where no model has maps, else

        - model_ids (M,), and study and part, which name the records;
        - maps (M, n, h, w) uint8, where 255 stands for 1, and right (M, n), whether the
          predicted class is the label;
        - boxes (n, K, 4) half-open, rows of zeros are padding, on images of image_size
          pixels a side; labels (n,) and class_names;
        - thumbnails, JPEGs of the first images.
    """
    maps: dict[str, NDArray[np.uint8]] = {}
    right: dict[str, NDArray[np.bool_]] = {}
    for name in models["model_id"]:
        record = records.record("localization", name)
        if "maps" in record:
            maps[name] = record["maps"]
            right[name] = record["correct"] > 0
    if not maps:
        return None
    count = min(map(len, maps.values()))
    images = scored_on.images_of(data).subset(np.arange(count))
    return {
        "model_ids": np.array(list(maps)),
        "study": records.study,
        "part": records.keys["localization"],
        "maps": np.stack([of_model[:count] for of_model in maps.values()]),
        "right": np.stack([of_model[:count] for of_model in right.values()]),
        "boxes": images.boxes.numpy().astype(np.int16),
        "labels": images.labels.numpy().astype(np.int16),
        "image_size": np.int64(images.images.shape[-1]),
        "class_names": np.array(list(data.classes["class_name"]), dtype=str),
        "thumbnails": _thumbnails(images, before),
    }


def publish(folder: Path, maps: dict[str, Any] | None) -> Path | None:
    """Write boxes, labels and small pictures of maps into a report, without the maps.

    Args:
        folder: that the notebook writes to.
        maps: of ``maps_of_models``; None writes nothing.

    Returns:
        The file.
    """
    if maps is None:
        return None
    pictures = maps["thumbnails"]
    arrays = {name: maps[name] for name in maps if name not in _OF_RECORDS}
    # All JPEGs in one array of bytes, and the place where each ends.
    arrays["thumbnails"] = np.frombuffer(b"".join(pictures), dtype=np.uint8)
    arrays["ends"] = np.cumsum([len(picture) for picture in pictures], dtype=np.int64)
    path = folder / "tables" / SCORED
    with complete_or_absent(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


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


def _thumbnails(images: ImageSet, before: Path | None) -> list[bytes]:
    """JPEGs of the first images, from their pixels or an earlier report of them."""
    if images.has_pixels:
        return [_jpeg(image) for image in images.images[:_THUMBNAILS]]
    published = _shared(before) if before else None
    if published is None or not np.array_equal(published["boxes"], images.boxes):
        return []
    return published["thumbnails"]


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
        See ``maps_of_models``; None where the report or a model has none.
    """
    shared = _shared(folder)
    if shared is None:
        return None
    records = folder / RECORDS
    if not records.is_dir():  # a report may show the networks of another study
        records = inside(folder.parent, shared["study"]) / RECORDS
    count = len(shared["boxes"])
    maps = []
    right = []
    for model_id in shared["model_ids"]:
        values = read_values(records, model_id)
        if f"{shared['part']}/maps" not in values:
            return None
        maps.append(values[f"{shared['part']}/maps"][:count])
        right.append(values[f"{shared['part']}/correct"][:count] > 0)
    return shared | {"maps": np.stack(maps), "right": np.stack(right)}


def _shared(folder: Path) -> dict[str, Any] | None:
    """Arrays that ``publish`` wrote, with a list of thumbnails; None without them."""
    path = table_of(folder, SCORED)
    if not path.is_file():
        return None
    shared = read_arrays(path)
    for name in ("study", "part"):
        shared[name] = str(shared[name])
        inside(folder, shared[name])
    ends = shared.pop("ends").tolist()
    pictures = shared["thumbnails"].tobytes()
    starts = [0, *ends]
    thumbnails = [pictures[start:end] for start, end in zip(starts, ends, strict=False)]
    return shared | {"thumbnails": thumbnails}

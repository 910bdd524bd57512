"""Every model's map of the predicted class on every scored image, published, so that localization can be recomputed without training."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from helpers.data.images import ImageSet, StudyData
from helpers.files import complete_or_absent, read_arrays
from helpers.scoring.scoring_set import ScoringSet
from helpers.scoring.store import Kept

MAPS = "tables/maps.npz"  # in the folder of a report
_BYTES, _FEWEST_IMAGES = 60_000_000, 200  # of all maps at most, of images at least
_THUMBNAILS, _SIDE = 48, 96  # images that a reader sees, and their side at most, pixels


def publish(
    folder: Path,
    kept: Kept,
    models: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    before: Path | None = None,
) -> Path | None:
    """Write the maps of the scores of "localization" into a report's folder, some 50 kB a model; None where images have no boxes.

    Of so many models that all maps take more than 60 MB, those of the first images, 200 at least.
    Of M models on n scored images: model_ids (M,); maps, (M, n, h, w) uint8, 255 is 1, normalised, of the predicted class, and whether that
    was right (M, n); boxes (n, K, 4) half-open, rows of zeros are padding, on images of image_size pixels a side; labels (n,) and
    class_names; thumbnails, the bytes of a JPEG of each of the first images, one after the other, and their ends. Images without pixels
    have the thumbnails of ``before``, a published report of the same images, or none.
    """
    ids = set(models["model_id"])
    maps: dict[str, NDArray[np.uint8]] = {}
    right: dict[str, NDArray[np.bool_]] = {}
    for name, record in kept.records("localization"):  # one in memory at a time
        if name in ids and "maps" in record:
            bytes_of_image = len(ids) * record["maps"][0].size
            count = max(_FEWEST_IMAGES, _BYTES // bytes_of_image)
            maps[name] = record["maps"][:count].copy()
            right[name] = record["correct"][: len(maps[name])] > 0
    if not maps:
        return None
    count = min(map(len, maps.values()))
    images = scored_on.of(data).subset(np.arange(count))
    pictures = _thumbnails(images, before)
    arrays = {
        "model_ids": np.array(list(maps)),
        "maps": np.stack([of_model[:count] for of_model in maps.values()]),
        "right": np.stack([of_model[:count] for of_model in right.values()]),
        "boxes": images.boxes.numpy().astype(np.int16),
        "labels": images.labels.numpy().astype(np.int16),
        "image_size": np.int64(images.images.shape[-1]),
        "class_names": np.array(list(data.classes["class_name"]), dtype=str),
        "thumbnails": np.frombuffer(b"".join(pictures), dtype=np.uint8),
        "ends": np.cumsum([len(picture) for picture in pictures]),
    }
    with complete_or_absent(folder / MAPS) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return folder / MAPS


def _thumbnails(images: ImageSet, before: Path | None) -> list[bytes]:
    """JPEGs of the first images, made or as they were published of the same images."""
    if images.has_pixels:
        return [_jpeg(image) for image in images.images[:_THUMBNAILS]]
    published = read_maps(before) if before else None
    if published is None or not np.array_equal(published["boxes"], images.boxes):
        return []
    return published["thumbnails"]


def _jpeg(image: Tensor) -> bytes:
    picture, buffer = Image.fromarray(image.permute(1, 2, 0).numpy()), io.BytesIO()
    picture.thumbnail((_SIDE, _SIDE))
    picture.save(buffer, "jpeg", quality=85)
    return buffer.getvalue()


def read_maps(folder: Path) -> dict[str, Any] | None:
    """What ``publish`` wrote into a report's folder, thumbnails one by one; None where it has no maps."""
    if not (folder / MAPS).is_file():
        return None
    found = read_arrays(folder / MAPS)
    ends, pictures = found.pop("ends").tolist(), found["thumbnails"].tobytes()
    return found | {
        "thumbnails": [
            pictures[start:end] for start, end in zip([0, *ends], ends, strict=False)
        ]
    }

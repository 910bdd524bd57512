"""Every network's map of each scored image, and small pictures of these images.

Both are recorded, so that maps can be drawn without weights and images.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from helpers.data.images import ImageSet, StudyData
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Records, Store

PICTURES = "pictures"  # part of the store
_COUNT = 48  # number of images shown as small pictures
_SIDE = 96  # longer side of a small picture, pixels


@dataclass(frozen=True)
class MapsOfNetworks:
    """Maps of the predicted class of M networks on n images."""

    model_ids: list[str]
    maps: NDArray[np.uint8]  # (M, n, h, w), 255 stands for 1
    right: NDArray[np.bool_]  # (M, n), whether the predicted class is the label


def maps_of_networks(records: Records) -> MapsOfNetworks | None:
    """Maps of the networks that have some; None where none has.

    Args:
        records: of the part "localization".
    """
    every = {name: records.record("localization", name) for name in records.model_ids}
    found = {name: record for name, record in every.items() if "maps" in record}
    if not found:
        return None
    # Records keep the maps of fewer images than work does.
    first = slice(min(len(record["maps"]) for record in found.values()))
    return MapsOfNetworks(
        [*found],
        np.stack([record["maps"][first] for record in found.values()]),
        np.stack([record["correct"][first] > 0 for record in found.values()]),
    )


def small_pictures(store: Store, scored_on: ScoringSet) -> list[bytes]:
    """JPEGs of the first scored images, made once; none without pixels or records.

    Args:
        store: of the study.
        scored_on: the images.
    """

    def compute(maker: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The pictures."""
        pixels = scored_on.images_of(data).images[:_COUNT]
        return {PICTURES: {"jpegs": np.array([*map(_jpeg, pixels)])}}

    parts = {PICTURES: {"images": scored_on.name}}
    maker = Model(PICTURES, type(None))
    record = store.each([maker], parts, compute, needed=False).record(
        PICTURES, PICTURES
    )
    return record["jpegs"].tolist() if record else []


def _jpeg(image: Tensor) -> bytes:
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    buffer = io.BytesIO()
    picture.thumbnail((_SIDE, _SIDE))
    picture.save(buffer, "jpeg", quality=85)
    return buffer.getvalue()


def pictured(jpegs: list[bytes], images: ImageSet) -> ImageSet:
    """The first images with the pixels of their small pictures, at their size.

    Args:
        jpegs: of ``small_pictures``.
        images: the scored images, with or without pixels.
    """
    first = images.subset(range(len(jpegs)))
    size = images.images.shape[-1]
    pixels = torch.empty(len(jpegs), 3, size, size, dtype=torch.uint8)
    for row, jpeg in enumerate(jpegs):
        picture = Image.open(io.BytesIO(jpeg)).convert("RGB").resize((size, size))
        pixels[row] = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
    return replace(first, images=pixels)

"""Images of one's own: those that networks were fitted to, with their classes, and those that they were not."""

from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.data import layouts
from helpers.data.decode import Decoded, decode_all
from helpers.data.images import ImageSet, image_set, load_study_data
from helpers.data.layouts import Listing, Record
from helpers.data.selection import pixel_digest
from helpers.data.sources import Source, open_source
from helpers.report.style import count
from helpers.scoring.scoring_set import ScoringSet, classes_in_turn, scoring_set
from helpers.select.calibration import parameters_of

SIDES = (8, 1024)  # of the squares, pixels
LARGEST_SIDE = 224  # where none is given
MOST_LABELLED = 1000
FEWEST_LABELLED = (
    10  # below, the interval of a proportion is about as wide as not knowing it
)
_TEXTS = {"model_id": str, "data": str}  # a digest may look like a number
_COPIES = 0.05  # of the images: a copy here and there is in most collections
_CHOICE = (
    "data_source",
    "image_size",
    "images_per_class",
    "test_images_per_class",
    "minimum_images_per_class",
    "data_seed",
)


class Own(NamedTuple):
    """Images that networks were fitted to, as ``scoring.measuring.score`` takes them."""

    train: ImageSet
    classes: tuple[str, ...]  # in the order of the outputs
    scored_on: ScoringSet
    told: str  # which images, in words
    labelled: ImageSet | None = None  # that they were not fitted to


def training_images(
    path: Path,
    unpacked: Path,
    class_names: Sequence[str] = (),
    *,
    size: int = 0,
    most: int = 0,
) -> Own:
    """Images of a folder or .zip in any layout of a study, the classes in turn: as many of every class, but for rounding, by chance.

    Names of classes stand in the order of the outputs; none are those of the source, sorted. Size 0 is that of the files, ``LARGEST_SIDE``
    at most; ``most`` 0 takes all. ValueError where no image can be used, of fewer than two classes, and for one that is not named.
    """
    source, listing = _listed(path, unpacked)
    classes = tuple(class_names) or tuple(listing.classes)
    if len(classes) < 2:
        raise ValueError(
            f"the images in {path} are of {count(len(classes), 'class')}; a classifier needs 2, best in a folder each"
        )
    if unnamed := [name for name in listing.classes if name not in classes]:
        raise ValueError(
            f"{path} has classes that no output is named after: {', '.join(unnamed[:5])}; name them by --classes"
        )
    records = [record for record in listing.records if record.split == "train"]
    side = size or _natural_size(source, records)
    if not SIDES[0] <= side <= SIDES[1]:
        raise ValueError(
            f"the image size is {side}; it must be {SIDES[0]} to {SIDES[1]} pixels"
        )
    order = np.random.default_rng(0).permutation(len(records))
    labels = np.array([classes.index(record.class_id) for record in records])
    chosen = [
        records[row] for row in order[classes_in_turn(labels[order])][: most or None]
    ]
    images = _image_set(decode_all(source, chosen, side), classes, path)
    name = f"{len(images)}-{digest(images)}"
    told = f"{len(images):,} of {len(records):,} training images of {count(len(listing.classes), 'class')}, at {side} px"
    return Own(
        images, classes, ScoringSet(tuple(range(len(images))), name, len(records)), told
    )


def images_of_report(
    path: Path, model_ids: Sequence[str], reports: Path, most: int, cache: Path
) -> Own | None:
    """Images (``most``, 0 for all) that a study fitted its checkpoints to; None for other checkpoints, ValueError for other images."""
    tables = {
        file.parent.parent: pd.read_csv(file, keep_default_na=False, dtype=_TEXTS)
        for file in sorted(reports.glob("*/tables/checkpoints.csv"))
    }
    folder = next(
        (
            folder
            for folder, table in tables.items()
            if set(model_ids) <= set(table["model_id"])
        ),
        None,
    )
    if folder is None:
        return None
    models, parameters = (
        tables[folder].query("model_id in @model_ids"),
        parameters_of(folder),
    )
    try:
        given = {name: parameters[name] for name in _CHOICE if name in parameters}
        categories = pd.read_csv(
            folder / "tables/table1_categories.csv", dtype=str, keep_default_na=False
        )
        given["class_ids"] = categories["class_id"].tolist()
        data = load_study_data(**given, data_path=str(path.absolute()), cache_dir=cache)
        if set(models["data"]) != {data.fingerprint}:
            raise ValueError("their pixels are others")
    except (
        ValueError
    ) as fault:  # of another layout, without the study's classes, or of other pixels
        read = parameters.get("data_path", "rendered scenes")
        told = f"these checkpoints were trained on images of {folder.name} ({read}), and {path} holds others; give what it read"
        raise ValueError(told) from fault
    scored_on = scoring_set(models.assign(snapshot="stop"), data, most)
    side, shared = data.train.images.shape[-1], scored_on.shared
    told = f"{len(scored_on.rows):,} of the {shared:,} images that the study {folder.name} fitted all of these to, at {side} px"
    return Own(data.train, tuple(data.classes["class_id"]), scored_on, told)


def labelled_images(
    path: Path, own: Own, training_path: Path, unpacked: Path
) -> ImageSet:
    """Held-out images, those for validation where there are any; ValueError for too few, for other classes, and for training images."""
    source, listing = _listed(path, unpacked)
    records = [
        record for record in listing.records if record.split == "test"
    ] or listing.records
    if unknown := sorted({record.class_id for record in records} - set(own.classes)):
        known = f"{', '.join(own.classes[:5])} ({len(own.classes)})"
        raise ValueError(
            f"labels of {path} are none of the classes: {', '.join(unknown[:3])}; the classes are {known}"
        )
    order = np.random.default_rng(0).permutation(len(records))[:MOST_LABELLED]
    found = _image_set(
        decode_all(source, [records[row] for row in order], own.train.images.shape[-1]),
        own.classes,
        path,
    )
    if len(found) < FEWEST_LABELLED:
        raise ValueError(
            f"{len(found)} labelled images are in {path}; at least {FEWEST_LABELLED} are needed, and 100 tell much more"
        )
    if (again := copies(found, own, training_path, unpacked)) > _COPIES * len(found):
        raise ValueError(
            f"{again} of {len(found)} images in {path} are training images, which tell nothing of others; give held-out ones"
        )
    return found


def copies(images: ImageSet, own: Own, training_path: Path, unpacked: Path) -> int:
    """How many images equal, pixel by pixel after decoding, one of all images that the training images were taken from."""
    seen = {pixel_digest(pixels.numpy()) for pixels in own.train.images}
    if len(own.train) < own.scored_on.shared:
        source, listing = _listed(training_path, unpacked)
        decoded = decode_all(
            source,
            [record for record in listing.records if record.split == "train"],
            images.images.shape[-1],
        )
        seen |= {
            pixel_digest(image.pixels) for image in decoded if image.pixels is not None
        }
    return sum(pixel_digest(pixels.numpy()) in seen for pixels in images.images)


def digest(images: ImageSet) -> str:
    """Digest of pixels and labels: 16 hex digits."""
    return blake2b(
        images.images.numpy().tobytes() + images.labels.numpy().tobytes(), digest_size=8
    ).hexdigest()


def _listed(path: Path, unpacked: Path) -> tuple[Source, Listing]:
    source = open_source(path, unpacked)
    return source, layouts.scan(source, layouts.RECOGNISED)


def _natural_size(source: Source, records: Sequence[Record], tried: int = 25) -> int:
    some = records[:: max(1, len(records) // tried)][:tried]
    sides = [
        min(image.width, image.height)
        for image in decode_all(source, some, SIDES[0])
        if image.pixels is not None
    ]
    return (
        int(np.clip(np.median(sides), SIDES[0], LARGEST_SIDE))
        if sides
        else LARGEST_SIDE
    )


def _image_set(
    decoded: Sequence[Decoded], classes: Sequence[str], path: Path
) -> ImageSet:
    usable = [image for image in decoded if image.pixels is not None]
    if not usable:
        faults = [
            f": {image.record.name}: {image.faults[0][1]}" for image in decoded
        ] or ["; none is there"]
        raise ValueError(f"no image in {path} can be used{faults[0]}")
    return image_set(usable, [classes.index(image.record.class_id) for image in usable])

"""The images of a user: those that networks were trained on, and held-out ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helpers.checkpoints.calibration import class_images, parameters_of
from helpers.data import layouts
from helpers.data.annotations import Record
from helpers.data.decode import Crop, Decoded, decode_all
from helpers.data.images import ImageSet, StudyData, image_set, load_study_data
from helpers.data.layouts import Listing
from helpers.data.selection import pixel_digest
from helpers.data.sources import Source, open_source
from helpers.files import table_of
from helpers.report.style import count
from helpers.scoring.scoring_set import ScoringSet, classes_in_turn, scoring_set

SIDES = (8, 1024)  # smallest and largest side of the squares, pixels
LARGEST_SIDE = 224  # largest side if the user gives none, pixels
MOST_LABELLED = 1000  # images
# Labelled images at least: with fewer the interval of an accuracy is too wide to use.
FEWEST_LABELLED = 10
# Share of labelled images that may be copies of training images, as some are in most
# collections.
_MOST_COPIES = 0.05
_NEARLY_SQUARE = 1.05  # ratio of the sides up to which squashing changes little
_COLUMN_TYPES = {"model_id": str, "data": str}  # digests that may look like numbers
# Parameters of notebook 01 by which the images of a study were chosen.
_CHOICE_PARAMETERS = (
    "data_source",
    "image_size",
    "images_per_class",
    "test_images_per_class",
    "minimum_images_per_class",
    "data_seed",
)


@dataclass(frozen=True)
class Preparation:
    """How training turned images into the input of the networks.

    ``resize`` and ``crop`` are the sizes of torchvision's Resize and CenterCrop. With
    timm's ``img_size`` and ``crop_pct``, crop is img_size, and resize is img_size /
    crop_pct. Without them images are squashed to squares of ``side`` pixels.
    """

    side: int = 0  # pixels; 0: that of the files, ``LARGEST_SIDE`` at most
    resize: int = 0  # shorter side before the cut, pixels; 0: images are squashed
    crop: int = 0  # side of the square in the middle, pixels; 0: as ``resize``
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)  # RGB in [0, 1]
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        """Refuse sizes that contradict one another: ValueError."""
        if self.crop and not self.resize:
            raise ValueError(
                f"crop {self.crop} needs resize, the shorter side before the cut; "
                f"where training only cut, give --resize {self.crop} too"
            )
        if self.resize and self.side not in (0, self.crop or self.resize):
            raise ValueError(
                f"image size {self.side} contradicts resize {self.resize} and crop "
                f"{self.crop}; leave out one of them"
            )
        for name in ("side", "resize", "crop"):
            pixels = getattr(self, name)
            if pixels and not SIDES[0] <= pixels <= SIDES[1]:
                raise ValueError(
                    f"the image size ({name}) is {pixels}; it must be "
                    f"{SIDES[0]} to {SIDES[1]} pixels"
                )

    @property
    def cut(self) -> Crop | None:
        """How a square is cut from images; None if they are squashed."""
        return Crop(self.resize, self.crop or self.resize) if self.resize else None


class OwnImages(NamedTuple):
    """Images that networks were trained on, for ``scoring.measuring.score``."""

    train: ImageSet
    classes: tuple[str, ...]  # ids in the order of the outputs
    scored_on: ScoringSet
    description: str  # number, classes and size of the images in words
    remark: str = ""  # a sentence on how they are squashed; "" for none
    shape: int | Crop = 0  # side of squares to which images are squashed, or their cut
    labelled: ImageSet | None = None  # held-out images
    # Number of training images per class by model id; under "" for all other models.
    class_images: Mapping[str, float] | None = None
    # Accuracies of a study's checkpoints on its test images, by model id.
    test_accuracies: Mapping[str, float] | None = None

    def test_accuracy(self, model_id: str) -> float:
        """Accuracy that the study of a checkpoint measured on its test images.

        Args:
            model_id: of the checkpoint.

        Returns:
            In [0, 1]; NaN for a checkpoint that is not of a study.
        """
        return (self.test_accuracies or {}).get(model_id, np.nan)

    def of_a_class(self, model_id: str) -> float:
        """Number of training images per class of a network; NaN if not known.

        Args:
            model_id: of the checkpoint.
        """
        numbers = self.class_images or {}
        return numbers.get(model_id, numbers.get("", np.nan))


def training_images(
    path: Path,
    unpacked: Path,
    class_names: Sequence[str] = (),
    preparation: Preparation | None = None,
    most: int = 0,
) -> OwnImages:
    """Read training images from a folder or .zip, equally many of each class.

    They are drawn at random, one class after the other in turn.

    Args:
        path: of the images, in any layout that a study can have.
        unpacked: folder in which a .zip is unpacked.
        class_names: ids in the order of the outputs; empty for those of the source,
            sorted.
        preparation: how training prepared images; None for the defaults.
        most: number of images to read, at most; 0 reads all.

    Raises:
        ValueError: if no image can be used, if there are fewer than two classes, or if
            a class of the source is not among ``class_names``.
    """
    preparation = preparation or Preparation()
    source, listing = _list_source(path, unpacked)
    classes = tuple(class_names) or tuple(listing.classes)  # ids
    if len(classes) < 2:
        raise ValueError(
            f"the images in {path} are of {count(len(classes), 'class')}; a classifier "
            "needs 2, best in a folder each"
        )
    unnamed = [name for name in listing.classes if name not in classes]
    if unnamed:
        raise ValueError(
            f"{path} has classes that no output is named after: "
            f"{', '.join(unnamed[:5])}; name them by --classes"
        )
    records = [record for record in listing.records if record.split == "train"]
    shape = preparation.cut or preparation.side or _natural_size(source, records)
    order = np.random.default_rng(0).permutation(len(records))
    labels = np.array([classes.index(record.class_id) for record in records])
    first = order[classes_in_turn(labels[order])][: most or None]
    decoded = decode_all(source, [records[row] for row in first], shape)
    images = _image_set(decoded, classes, path)
    scored_on = ScoringSet(
        tuple(range(len(images))), f"{len(images)}-{digest(images)}", len(records)
    )
    description = (
        f"{len(images):,} of {len(records):,} training images of "
        f"{count(len(listing.classes), 'class')}, {_shape_in_words(shape)}"
    )
    return OwnImages(
        images,
        classes,
        scored_on,
        description,
        remark=_note_on_squashing(decoded, shape),
        shape=shape,
        class_images={"": len(records) / len(listing.classes)},
    )


def _shape_in_words(shape: int | Crop) -> str:
    if isinstance(shape, Crop):
        return f"cut as Resize({shape.resize}), CenterCrop({shape.side}) would"
    return f"at {shape} px"


def _note_on_squashing(decoded: Sequence[Decoded], shape: int | Crop) -> str:
    """Remark that images are squashed; "" if most are nearly square, or are cut."""
    if isinstance(shape, Crop):
        return ""
    ratios = [
        image.width / image.height for image in decoded if image.pixels is not None
    ]
    longer_by_shorter = np.maximum(ratios, np.reciprocal(ratios))
    ratio = float(np.median(longer_by_shorter))
    if ratio <= _NEARLY_SQUARE:
        return ""
    return (
        f"Your pictures are squashed to squares (one side is {ratio:.2f} times the "
        "other). If your training cut them, as Resize and CenterCrop do by default in "
        "torchvision and timm, repeat with --resize and --crop: the accuracies change."
    )


def images_of_report(
    path: Path, model_ids: Sequence[str], reports: Path, most: int, cache: Path
) -> OwnImages | None:
    """Choose the images on which a study trained its published checkpoints.

    Args:
        path: of the source of images that the study read.
        model_ids: of the checkpoints.
        reports: folder of the studies' reports.
        most: number of images to score on, at most; 0 takes all.
        cache: folder for decoded images.

    Returns:
        The images; None if the checkpoints are not all of one study.

    Raises:
        ValueError: if the images are not those of the study.
    """
    tables = {
        folder: pd.read_csv(
            table_of(folder, "checkpoints.csv"),
            keep_default_na=False,
            dtype=_COLUMN_TYPES,
        )
        for folder in sorted(reports.glob("*/"))
        if table_of(folder, "checkpoints.csv").is_file()
    }
    folders = [
        folder
        for folder, table in tables.items()
        if set(model_ids) <= set(table["model_id"])
    ]
    if not folders:
        return None
    folder = folders[0]
    models = tables[folder].query("model_id in @model_ids")
    parameters = parameters_of(folder)
    try:
        data = _data_of(folder, path, parameters, cache)
        if set(models["data"]) != {data.fingerprint}:
            raise ValueError("their pixels are others")
    except ValueError as fault:  # another layout, other classes, or other pixels
        read = parameters.get("data_path", "rendered scenes")
        raise ValueError(
            f"these checkpoints were trained on images of {folder.name} ({read}), and "
            f"{path} holds others; give what it read"
        ) from fault
    scored_on = scoring_set(models.assign(snapshot="stop"), data, most)
    side = data.train.images.shape[-1]
    description = (
        f"{len(scored_on.rows):,} of the {scored_on.shared:,} images that the study "
        f"{folder.name} fitted all of these to, at {side} px"
    )
    classes = tuple(data.classes["class_id"])
    numbers = class_images(models, folder)
    return OwnImages(
        data.train,
        classes,
        scored_on,
        description,
        shape=side,
        class_images=dict(zip(models["model_id"], numbers, strict=True)),
        test_accuracies=models.set_index("model_id")["test_accuracy"].to_dict(),
    )


def _data_of(
    folder: Path, path: Path, parameters: dict[str, Any], cache: Path
) -> StudyData:
    """Choose images from ``path`` by the parameters of a report's study."""
    choice = {
        name: parameters[name] for name in _CHOICE_PARAMETERS if name in parameters
    }
    categories = pd.read_csv(
        table_of(folder, "table1_categories.csv"), dtype=str, keep_default_na=False
    )
    return load_study_data(
        **choice,
        class_ids=categories["class_id"].tolist(),
        data_path=str(path.absolute()),
        cache_dir=cache,
    )


def labelled_images(
    path: Path, images: OwnImages, training_path: Path, unpacked: Path
) -> ImageSet:
    """Read held-out images with labels: the test split of a source, or all of it.

    Args:
        path: of the labelled images.
        images: that checkpoints were trained on.
        training_path: of the training images.
        unpacked: folder in which a .zip is unpacked.

    Raises:
        ValueError: if there are too few images, if they are of other classes, or if
            many of them are training images.
    """
    source, listing = _list_source(path, unpacked)
    records = [record for record in listing.records if record.split == "test"]
    records = records or listing.records
    unknown = sorted({record.class_id for record in records} - set(images.classes))
    if unknown:
        raise ValueError(
            f"labels of {path} are none of the classes: {', '.join(unknown[:3])}; the "
            f"classes are {', '.join(images.classes[:5])} ({len(images.classes)})"
        )
    order = np.random.default_rng(0).permutation(len(records))[:MOST_LABELLED]
    decoded = decode_all(source, [records[row] for row in order], images.shape)
    labelled = _image_set(decoded, images.classes, path)
    if len(labelled) < FEWEST_LABELLED:
        raise ValueError(
            f"{len(labelled)} labelled images are in {path}; at least "
            f"{FEWEST_LABELLED} are needed, and 100 give a much narrower interval"
        )
    copied = copies(labelled, images, training_path, unpacked)
    if copied > _MOST_COPIES * len(labelled):
        raise ValueError(
            f"{copied} of {len(labelled)} images in {path} are training images, whose "
            "accuracy is not a test accuracy; give held-out ones"
        )
    return labelled


def copies(
    labelled: ImageSet, images: OwnImages, training_path: Path, unpacked: Path
) -> int:
    """Count the labelled images that equal a training image, pixel by pixel.

    They are compared with all training images of ``training_path``, not only with
    those that are scored.

    Args:
        labelled: held-out images.
        images: that checkpoints were trained on.
        training_path: of the training images.
        unpacked: folder in which a .zip is unpacked.
    """
    digests = {pixel_digest(pixels.numpy()) for pixels in images.train.images}
    if len(images.train) < images.scored_on.shared:
        source, listing = _list_source(training_path, unpacked)
        records = [record for record in listing.records if record.split == "train"]
        decoded = decode_all(source, records, images.shape)
        digests |= {
            pixel_digest(image.pixels) for image in decoded if image.pixels is not None
        }
    return sum(pixel_digest(pixels.numpy()) in digests for pixels in labelled.images)


def digest(images: ImageSet) -> str:
    """Digest of the pixels and labels of images: 16 hex digits.

    Args:
        images: an image set.
    """
    content = images.images.numpy().tobytes() + images.labels.numpy().tobytes()
    return blake2b(content, digest_size=8).hexdigest()


def _list_source(path: Path, unpacked: Path) -> tuple[Source, Listing]:
    source = open_source(path, unpacked)
    return source, layouts.scan(source, layouts.RECOGNISED)


def _natural_size(source: Source, records: Sequence[Record], most: int = 25) -> int:
    """Median of the shorter sides of some files, limited to what can be scored."""
    sample = records[:: max(1, len(records) // most)][:most]
    sides = [
        min(image.width, image.height)
        for image in decode_all(source, sample, SIDES[0])
        if image.pixels is not None
    ]
    if not sides:
        return LARGEST_SIDE
    return int(np.clip(np.median(sides), SIDES[0], LARGEST_SIDE))


def _image_set(
    decoded: Sequence[Decoded], classes: Sequence[str], path: Path
) -> ImageSet:
    usable = [image for image in decoded if image.pixels is not None]
    if not usable:
        faults = [f": {item.record.name}: {item.faults[0][1]}" for item in decoded]
        first = faults[0] if faults else "; none is there"
        raise ValueError(f"no image in {path} can be used{first}")
    return image_set(usable, [classes.index(image.record.class_id) for image in usable])

"""Images of one's own: those that networks were fitted to, and held-out ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helpers.checkpoints.calibration import class_images, parameters_of
from helpers.data import layouts
from helpers.data.decode import Crop, Decoded, decode_all
from helpers.data.images import ImageSet, StudyData, image_set, load_study_data
from helpers.data.layouts import Listing, Record
from helpers.data.selection import pixel_digest
from helpers.data.sources import Source, open_source
from helpers.report.style import count
from helpers.scoring.scoring_set import ScoringSet, classes_in_turn, scoring_set

SIDES = (8, 1024)  # of the squares, pixels
LARGEST_SIDE = 224  # where none is given
MOST_LABELLED = 1000
FEWEST_LABELLED = 10  # below, the interval of a proportion says next to nothing
_COPIES = 0.05  # of the images: a copy here and there is in most collections
_SQUARE = 1.05  # ratio of the sides up to which squashing moves little
_TEXTS = {"model_id": str, "data": str}  # a digest may look like a number
_CHOICE = (
    "data_source",
    "image_size",
    "images_per_class",
    "test_images_per_class",
    "minimum_images_per_class",
    "data_seed",
)


@dataclass(frozen=True)
class Preparation:
    """How training turned pictures into the input of the networks.

    ``resize`` and ``crop`` are torchvision's Resize and CenterCrop. timm's
    ``img_size`` and ``crop_pct`` are crop = img_size, resize = img_size / crop_pct.
    Without them pictures are squashed to squares of ``side`` pixels.
    """

    side: int = 0  # pixels; 0: of the files, ``LARGEST_SIDE`` at most
    resize: int = 0  # the shorter side, pixels; 0: pictures are squashed
    crop: int = 0  # of the middle, pixels; 0: as large as ``resize``
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
        """The square that is cut out; None where pictures are squashed."""
        return Crop(self.resize, self.crop or self.resize) if self.resize else None


class OwnImages(NamedTuple):
    """Images that networks were fitted to, as ``scoring.measuring.score`` takes them.

    ``remark`` is a sentence on how they are read; "" where nothing needs saying.
    """

    train: ImageSet
    classes: tuple[str, ...]  # in the order of the outputs
    scored_on: ScoringSet
    description: str  # which images, in words
    remark: str = ""
    shape: int | Crop = 0  # how pictures become squares
    labelled: ImageSet | None = None  # that the networks were not fitted to
    # Images of a class that networks were fitted to, by model id; "" for all others.
    class_images: Mapping[str, float] | None = None

    # Of a study's checkpoints on its test images, by model id.
    test_accuracies: Mapping[str, float] | None = None

    def test_accuracy(self, model_id: str) -> float:
        """What the study of a checkpoint measured; NaN where there is no study.

        Args:
            model_id: of the checkpoint.
        """
        return (self.test_accuracies or {}).get(model_id, np.nan)

    def of_a_class(self, model_id: str) -> float:
        """Images of a class that a network was fitted to; NaN where not known.

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
    """Images of a folder or .zip in any layout of a study, the classes in turn.

    As many of each class, but for rounding, drawn by chance.

    Args:
        path: of the images.
        unpacked: folder for what has to be unpacked.
        class_names: in the order of the outputs; none are those of the source, sorted.
        preparation: how training prepared images.
        most: images to take; 0 takes all.

    Raises:
        ValueError: where no image can be used, there are fewer than two classes, or
            one has no name.
    """
    preparation = preparation or Preparation()
    source, listing = _listed(path, unpacked)
    classes = tuple(class_names) or tuple(listing.classes)
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
        f"{count(len(listing.classes), 'class')}, {_in_words(shape)}"
    )
    return OwnImages(
        images,
        classes,
        scored_on,
        description,
        remark=_squashing(decoded, shape),
        shape=shape,
        class_images={"": len(records) / len(listing.classes)},
    )


def _in_words(shape: int | Crop) -> str:
    if isinstance(shape, Crop):
        return f"cut as Resize({shape.resize}), CenterCrop({shape.side}) would"
    return f"at {shape} px"


def _squashing(decoded: Sequence[Decoded], shape: int | Crop) -> str:
    """A sentence where most pictures are no squares and are squashed to one."""
    if isinstance(shape, Crop):
        return ""
    ratios = [
        image.width / image.height for image in decoded if image.pixels is not None
    ]
    ratio = float(np.median(np.maximum(ratios, np.reciprocal(ratios))))
    if ratio <= _SQUARE:
        return ""
    return (
        f"Your pictures are squashed to squares (one side is {ratio:.2f} times the "
        "other). If your training cut them, as Resize and CenterCrop do by default in "
        "torchvision and timm, repeat with --resize and --crop: the accuracies change."
    )


def images_of_report(
    path: Path, model_ids: Sequence[str], reports: Path, most: int, cache: Path
) -> OwnImages | None:
    """Images that a study fitted its published checkpoints to.

    Args:
        path: of the images that the study read.
        model_ids: of the checkpoints.
        reports: folder of the studies' reports.
        most: images to take; 0 takes all.
        cache: folder for decoded images.

    Returns:
        None for checkpoints of no study.

    Raises:
        ValueError: where the images are others than the study's.
    """
    tables = {
        file.parent.parent: pd.read_csv(file, keep_default_na=False, dtype=_TEXTS)
        for file in sorted(reports.glob("*/tables/checkpoints.csv"))
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
    """The data of a report's study, chosen from ``path`` as the study chose them."""
    choice = {name: parameters[name] for name in _CHOICE if name in parameters}
    categories = pd.read_csv(
        folder / "tables/table1_categories.csv", dtype=str, keep_default_na=False
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
    """Held-out images: those for validation where there are any, else all.

    Args:
        path: of the labelled images.
        images: that checkpoints were fitted to.
        training_path: of the training images.
        unpacked: folder for what archives hold.

    Raises:
        ValueError: for too few, for other classes, and for training images.
    """
    source, listing = _listed(path, unpacked)
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
    again = copies(labelled, images, training_path, unpacked)
    if again > _COPIES * len(labelled):
        raise ValueError(
            f"{again} of {len(labelled)} images in {path} are training images, whose "
            "accuracy is not a test accuracy; give held-out ones"
        )
    return labelled


def copies(
    labelled: ImageSet, images: OwnImages, training_path: Path, unpacked: Path
) -> int:
    """The number of labelled images that equal a training image, pixel by pixel.

    All images of ``training_path`` are looked at, not only those that are scored.

    Args:
        labelled: held-out images.
        images: that checkpoints were fitted to.
        training_path: of the training images.
        unpacked: folder for what archives hold.
    """
    seen = {pixel_digest(pixels.numpy()) for pixels in images.train.images}
    if len(images.train) < images.scored_on.shared:
        source, listing = _listed(training_path, unpacked)
        records = [record for record in listing.records if record.split == "train"]
        decoded = decode_all(source, records, images.shape)
        seen |= {
            pixel_digest(image.pixels) for image in decoded if image.pixels is not None
        }
    return sum(pixel_digest(pixels.numpy()) in seen for pixels in labelled.images)


def digest(images: ImageSet) -> str:
    """Digest of pixels and labels: 16 hex digits.

    Args:
        images: with labels.
    """
    content = images.images.numpy().tobytes() + images.labels.numpy().tobytes()
    return blake2b(content, digest_size=8).hexdigest()


def _listed(path: Path, unpacked: Path) -> tuple[Source, Listing]:
    source = open_source(path, unpacked)
    return source, layouts.scan(source, layouts.RECOGNISED)


def _natural_size(source: Source, records: Sequence[Record], tried: int = 25) -> int:
    """Median of the shorter sides of some files, in what can be scored."""
    some = records[:: max(1, len(records) // tried)][:tried]
    sides = [
        min(image.width, image.height)
        for image in decode_all(source, some, SIDES[0])
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

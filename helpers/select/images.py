"""Images of one's own: those that networks were fitted to, with their classes, and those that they were not."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from tqdm.auto import tqdm

from helpers.data.dataset import ImageSet, StudyData, load_study_data
from helpers.data.decode import Decoded, decode_image
from helpers.data.layouts import LAYOUTS, Archive, Record, find_root, is_image, open_archive
from helpers.scoring.scoring_set import ScoringSet, classes_in_turn, scoring_set

SIDES = (8, 1024)  # of the squares, pixels
LARGEST_SIDE = 224  # where none is given
MOST_HELD_OUT = 1000  # images of a target, and labelled ones, that are taken at most
FEWEST_LABELLED = 10  # below, the interval of a proportion is about as wide as not knowing it
_COPIES = 0.05  # of the images: a copy here and there is in most collections
_OF_A_STUDY = (
    "data_source",
    "class_ids",
    "image_size",
    "images_per_class",
    "test_images_per_class",
    "minimum_images_per_class",
    "data_seed",
)


class Own(NamedTuple):
    """Images that networks were fitted to, as ``scoring.models.score`` takes them, and others that they were not fitted to."""

    train: ImageSet
    classes: tuple[str, ...]  # in the order of the outputs
    scored_on: ScoringSet
    told: str  # which images, in words
    labelled: ImageSet | None = None
    target: ImageSet | None = None  # whose labels say nothing


def listed(path: Path, held_out: bool = False) -> tuple[Archive, list[Record]]:
    """Images of a folder or .zip with their class: by a layout that studies read, or of folders per class, "" where there are none.

    Args:
        path: of the source.
        held_out: take the test images, where the source has some.

    Raises:
        FileNotFoundError: nothing is there; ValueError: it is neither a folder nor a .zip.
    """
    archive = open_archive(path)
    for source in ("ilsvrc", "tiny_imagenet"):
        try:
            records = LAYOUTS[source].scan(archive, find_root(archive, source), ()).records
        except ValueError:
            continue
        if wanted := [record for record in records if record.split == ("test" if held_out else "train")] or records:
            return archive, wanted
    splits = [name for name in (("val", "test") if held_out else ("train",)) if archive.folders(name)]
    top = f"{splits[0]}/" if splits else ""
    folders = [(name, f"{top}{name}") for name in archive.folders(top.rstrip("/")) if not name.startswith(".")]
    found = [Record(file, name, "train", None) for name, folder in folders for file in _below(archive, folder)]
    return archive, found or [Record(file, "", "train", None) for file in _below(archive, top.rstrip("/"))]


def _below(archive: Archive, folder: str, depth: int = 5) -> list[str]:
    """Images in a folder and in those below it."""
    join = "{}/{}".format if folder else "{}{}".format
    found = [join(folder, name) for name in archive.files(folder) if is_image(name) and not name.startswith(".")]
    inner = [join(folder, name) for name in archive.folders(folder) if not name.startswith(".")] if depth else []
    return found + [file for other in inner for file in _below(archive, other, depth - 1)]


def _decoded(archive: Archive, records: Sequence[Record], size: int, what: str = "") -> Iterator[Decoded]:
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        results = executor.map(partial(decode_image, archive, size=size), records)
        yield from tqdm(results, what, len(records), unit="image", leave=False, disable=not what)


def training_images(path: Path, class_names: Sequence[str] = (), *, size: int = 0, most: int = 0, seed: int = 0) -> Own:
    """Images that networks were fitted to, in an order with the classes in turn: as many of every class, but for rounding, by chance.

    Args:
        path: folder or .zip, a folder per class or a layout that studies read.
        class_names: folders in the order of the outputs, where that is not the sorted one; one that is not there has no image.
        size: side of the square images, pixels; 0 takes that of the files, ``LARGEST_SIDE`` at most.
        most: images to take; 0 takes all.
        seed: of the choice.

    Raises:
        ValueError: no image can be used, they lie in fewer than two folders of classes, or a folder is not named.
    """
    archive, records = listed(path)
    if not records:
        raise ValueError(f"no image is in {path}; give the images that the networks were trained on, a folder per class")
    folders = sorted({record.class_id for record in records})
    if len(folders) < 2:
        raise ValueError(f"the images in {path} lie in no folders of classes, so no label is known; give a folder per class")
    classes = tuple(class_names) or tuple(folders)
    if unnamed := [name for name in folders if name not in classes]:
        raise ValueError(f"{path} has folders that no output is named after: {', '.join(unnamed[:5])}; name them by --classes")
    side = size or _natural_size(archive, records)
    order = np.random.default_rng(seed).permutation(len(records))
    labels = np.array([classes.index(record.class_id) for record in records])
    chosen = [records[row] for row in order[classes_in_turn(labels[order])][: most or None]]
    images = _stacked(_decoded(archive, chosen, side), classes, path)
    name = f"{len(images)}-{pixels_digest(images.images.numpy(), images.labels.numpy())}"
    told = f"{len(images):,} of {len(records):,} training images of {len(folders)} classes, at {side} px"
    return Own(images, classes, ScoringSet(tuple(range(len(images))), name, len(records)), told)


def images_of_report(
    path: Path, study: str, parameters: Mapping[str, Any], checkpoints: pd.DataFrame, most: int, cache: Path
) -> Own | None:
    """Images that a study's published checkpoints were fitted to, found in its source by the parameters by which the study chose them.

    Args:
        path: of the source, wherever it lies.
        study: its name.
        parameters: of the study, see ``calibration.Calibration``.
        checkpoints: rows of its tables/checkpoints.csv.
        most: images to score on; 0 takes all.
        cache: where decoded images are kept.

    Returns:
        The images in the study's own order; None where those at the path are others.
    """
    given = {name: parameters[name] for name in _OF_A_STUDY if name in parameters}
    data: StudyData = load_study_data(**given, data_path=str(path.absolute()), cache_dir=cache)
    if set(checkpoints["data"]) != {data.fingerprint}:
        return None
    scored_on = scoring_set(checkpoints.assign(snapshot="stop"), data, most)
    told = (
        f"{len(scored_on.rows):,} of the {scored_on.shared:,} images that the study {study} fitted all of these to, at "
        f"{data.train.images.shape[-1]} px"
    )
    return Own(data.train, tuple(data.classes["class_id"]), scored_on, told)


def held_out_images(path: Path, own: Own, training_path: Path, what: str, *, labelled: bool, seed: int = 0) -> ImageSet:
    """Images that networks were not fitted to, of the size of the training images; with labels where they are asked for, else 0.

    Args:
        path: folder or .zip; at most ``MOST_HELD_OUT`` are taken.
        own: the training images.
        training_path: where all of these are from.
        what: names the images in messages.
        labelled: whether they lie in folders named as the training images' classes.
        seed: of the choice.

    Raises:
        ValueError: no image can be used, too few are labelled, a label is no class, or more than a twentieth equal training images.
    """
    archive, records = listed(path, held_out=True)
    if labelled and (unknown := sorted({record.class_id for record in records} - set(own.classes))):
        told = ", ".join(name or "none" for name in unknown[:3])
        raise ValueError(
            f"labels of {path} are none of the classes: {told}; the classes are {', '.join(own.classes[:5])} ({len(own.classes)})"
        )
    order = np.random.default_rng(seed).permutation(len(records))[:MOST_HELD_OUT]
    classes = own.classes if labelled else tuple({record.class_id for record in records})
    found = _stacked(_decoded(archive, [records[row] for row in order], own.train.images.shape[-1]), classes, path)
    if labelled and len(found) < FEWEST_LABELLED:
        raise ValueError(f"{len(found)} labelled images are in {path}; at least {FEWEST_LABELLED} are needed, and 100 tell much more")
    again = copies(found, own, training_path)
    if again > _COPIES * len(found):
        raise ValueError(
            f"{again} of {len(found)} {what} images in {path} are training images; the networks were fitted to them, so they tell nothing of "
            "others; give images that were held out"
        )
    return found


def copies(images: ImageSet, own: Own, training_path: Path) -> int:
    """How many images equal, pixel by pixel after decoding, one of all images that the training images were taken from."""
    size = images.images.shape[-1]
    wanted = {pixels_digest(pixels.numpy()): 0 for pixels in images.images}
    seen = {digest for pixels in own.train.images if (digest := pixels_digest(pixels.numpy())) in wanted}
    if len(own.train) < own.scored_on.shared:
        archive, records = listed(training_path)
        for image in _decoded(archive, records, size, "comparing with all training images"):
            if image.pixels is not None and (digest := pixels_digest(image.pixels)) in wanted:
                seen.add(digest)
    return sum(pixels_digest(pixels.numpy()) in seen for pixels in images.images)


def pixels_digest(*arrays: np.ndarray) -> str:
    """Digest of the bytes of arrays: 16 hex digits."""
    digest = blake2b(digest_size=8)
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _natural_size(archive: Archive, records: Sequence[Record], tried: int = 25) -> int:
    some = records[:: max(1, len(records) // tried)][:tried]
    sides = [min(image.width, image.height) for image in _decoded(archive, some, SIDES[0]) if image.pixels is not None]
    return int(np.clip(np.median(sides), SIDES[0], LARGEST_SIDE)) if sides else LARGEST_SIDE


def _stacked(decoded: Iterator[Decoded], classes: Sequence[str], path: Path) -> ImageSet:
    faults, usable = pd.Series(dtype=object), []
    for image in decoded:
        if image.pixels is None:
            faults.loc[len(faults)] = f"{image.record.name}: {image.faults[0][1]}"
        else:
            usable.append(image)
    if not usable:
        raise ValueError(f"no image in {path} can be used: {faults.iloc[0] if len(faults) else 'none has the ending of an image'}")
    pixels = torch.from_numpy(np.stack([image.pixels for image in usable]))
    labels = torch.tensor([list(classes).index(image.record.class_id) for image in usable])
    boxes = torch.zeros(len(usable), 1, 4, dtype=torch.int16)
    return ImageSet(pixels, labels, boxes, tuple(image.record.name for image in usable))

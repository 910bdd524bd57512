"""A user's training images: a folder or a zip, with classes if there are folders of them, with boxes or machine-made ones."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from helpers.cams import object_masks, overlap
from helpers.data.annotations import Annotation, Table, parse_solution, parse_voc
from helpers.data.decode import Decoded, decode_image
from helpers.data.images import ImageSet
from helpers.data.layouts import Record
from helpers.data.sources import Fault, Source, open_source
from helpers.files import from_root
from helpers.scoring.common_set import classes_in_turn

LARGEST = 1024  # pixels a side: 200 such images are 0.6 GB
ANNOTATED, MACHINE_MADE = "annotated", "made by a machine (spectral residual)"


@dataclass(frozen=True)
class OwnImages:
    """Images of one folder, with what is known of them; measures that need a class are undefined where there is none."""

    images: Tensor  # (N, 3, S, S) uint8 RGB
    boxes: Tensor  # (N, B, 4) int16, half-open, zero rows are padding; see ``data.images.ImageSet``
    names: tuple[str, ...]  # paths below the folder
    class_names: tuple[str, ...]  # in the order of the labels; empty where there are no folders of classes
    known_labels: Tensor | None  # (N,) int64
    why_unlabelled: str  # "" where there are labels
    annotated: Tensor  # (N,) bool: the boxes are the user's, and not made by a machine
    found: int  # images in the folder, of which N were taken
    shorter_sides: tuple[int, ...]  # (N) as stored, pixels
    faults: pd.DataFrame  # one row per fault: class_id, split, name, fault, detail

    def __len__(self) -> int:
        """Number of images."""
        return len(self.names)

    @property
    def labels(self) -> Tensor:
        """(N,) int64. Raises ValueError, saying why, where there are none: a measure that asks is undefined with that reason."""
        if self.known_labels is None:
            raise ValueError(self.why_unlabelled)
        return self.known_labels


def load_images(
    path: Path,
    *,
    image_size: int = 224,
    most: int = 200,
    boxes: Path | None = None,
    class_names: Sequence[str] = (),
    seed: int = 0,
    made_boxes: bool = True,
) -> OwnImages:
    """Decode images of a folder, some of every class, to squares, as the training images of the workbook are: squashed bilinearly.

    Args:
        path: folder or .zip. With folders of images in it (or in its folder "train"), each is a class, and the classes are labelled by
            their sorted names, as torchvision's ImageFolder does; images inside such a folder may lie deeper. Images at the top alone
            have no class.
        image_size: side S of the squares, pixels, from 8 to 1,024: that of the training.
        most: images to take, the same number of every class but for rounding, by chance; 0 takes all.
        boxes: where boxes are: a CSV in the format of Kaggle's ``LOC_train_solution.csv`` (by the image's name without ending), or a
            folder of Pascal VOC XML by that name. None takes an .xml beside each image, or a CSV of that name at the top.
        class_names: names of the folders in the order of the network's outputs, where that is not the sorted one. An output whose class
            has no images here may be named too, if every folder is named; folders that are not named are left out if every name has one.
        seed: of the choice.
        made_boxes: whether images without a usable box get one.

    Returns:
        The images. Those without a usable box get one around what the spectral residual marks, or none where it marks nothing.

    Raises:
        FileNotFoundError: nothing is at a path.
        ValueError: no image can be used, a class name has no folder, or an argument is out of range.
    """
    if not 8 <= image_size <= LARGEST or most < 0:
        raise ValueError(f"image_size {image_size} must be from 8 to {LARGEST} and the number of images {most} at least 0 (0 takes all)")
    source = open_source(path, from_root("work/unpacked"))
    top = "train/" if any(name.startswith("train/") and name.count("/") > 1 for name in source.images) else ""
    classes, listed = _listed(source, top, tuple(class_names))
    chosen = _chosen(listed, most, seed)
    annotations, faults = _annotations(source, boxes, [name for name, _ in chosen])
    if boxes is not None and chosen and not annotations:
        raise ValueError(f"the boxes {boxes} are of none of the {len(chosen)} images taken from {path}; name others, or leave them out")
    faults += source.faults
    records = [Record(name, classes[label] if classes else "", "train", annotations.get(name)) for name, label in chosen]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        decoded = list(executor.map(decode_image, [source] * len(records), records, [image_size] * len(records)))
    faults += [Fault(i.record.class_id, "train", i.record.name, kind, detail) for i in decoded for kind, detail in i.faults]
    usable = [(image, label) for image, (_, label) in zip(decoded, chosen, strict=True) if image.pixels is not None]
    if not usable:
        kinds = pd.Series([fault.fault for fault in faults], dtype=object).value_counts()
        found = ", ".join(f"{number} {kind}" for kind, number in kinds.items()) or "none with an ending of an image"
        raise ValueError(f"no image in {path} can be used: {len(listed)} were found, faults: {found}")
    return _stacked(usable, classes, len(listed), faults, made_boxes)


def _listed(source: Source, top: str, class_names: tuple[str, ...]) -> tuple[tuple[str, ...], list[tuple[str, int]]]:
    """Names of the classes, and every image with its label: 0 for all where there is no class."""
    images, folders = [name for name in source.images if name.startswith(top)], {}
    for name in images:
        folder, deeper, _ = name.removeprefix(top).partition("/")
        if deeper:
            folders.setdefault(folder, []).append(name)
    folders = dict(sorted(folders.items()))
    absent, unnamed = [name for name in class_names if name not in folders], [name for name in folders if name not in class_names]
    if len(set(class_names)) < len(class_names) or (absent and (unnamed or not folders)):
        twice = [name for name in dict.fromkeys(class_names) if class_names.count(name) > 1]
        raise ValueError(
            f"classes {', '.join(twice[:3])} are named twice"
            if twice
            else f"no folder of images is named {', '.join(absent[:3])}; not named yet are {', '.join(unnamed[:5]) or 'none'}"
        )
    if not folders:
        return (), [(name, 0) for name in images]
    classes = class_names or tuple(folders)
    return classes, [(file, label) for label, name in enumerate(classes) for file in folders.get(name, ())]


def _chosen(listed: Sequence[tuple[str, int]], most: int, seed: int) -> list[tuple[str, int]]:
    """Take images by chance, class by class in turn, and give them in the order of the list."""
    order = np.random.default_rng(seed).permutation(len(listed))
    labels = pd.Series([listed[index][1] for index in order], dtype=int)
    turn = labels.groupby(labels).cumcount().to_numpy()
    first = order[np.argsort(turn, kind="stable")][: most or None]
    return [listed[index] for index in sorted(first)]


def _annotations(source: Source, boxes: Path | None, names: Sequence[str]) -> tuple[dict[str, Annotation], list[Fault]]:
    """Find what is annotated of some images: by name; a malformed annotation is a fault, a missing one is none."""
    found: dict[str, Annotation] = {}
    faults: list[Fault] = []
    table = _table(source, boxes)
    folder = boxes if boxes is not None and boxes.is_dir() else None
    for name in names:
        path = PurePosixPath(name)
        try:
            if isinstance(row := table.get(path.stem), str):
                raise ValueError(row)
            if row is not None:
                found[name] = row
            elif folder is not None:
                content = _from_folder(folder, path)
                found |= {name: parse_voc(content)} if content is not None else {}
            elif boxes is None and (other := str(path.with_suffix(".xml"))) in source.known:
                found[name] = parse_voc(source.read(other))
        except (ValueError, OSError) as fault:
            faults.append(Fault("", "train", name, "malformed_annotation", str(fault)))
    return found, faults


def _table(source: Source, boxes: Path | None) -> Table:
    """Read annotations, and what is wrong, by name, from a CSV if there is one."""
    if boxes is None:
        name = "LOC_train_solution.csv"
        return parse_solution(source.read(name)) if name in source.known else {}
    if not (boxes.is_file() or boxes.is_dir()):
        raise FileNotFoundError(f"the boxes {boxes} do not exist; name a CSV in the format of LOC_train_solution.csv, or a folder of XML")
    return {} if boxes.is_dir() else parse_solution(boxes.read_bytes())


def _from_folder(folder: Path, image: PurePosixPath) -> bytes | None:
    """Read the XML of an image: at the same place below the folder, in one with its class's name, or by its bare name."""
    parts = image.with_suffix(".xml").parts
    for depth in range(len(parts)):
        place = folder.joinpath(*parts[depth:])
        if place.is_file() and place.resolve().is_relative_to(folder.resolve()):
            return place.read_bytes()
    return None


def _stacked(
    usable: Sequence[tuple[Decoded, int]], classes: tuple[str, ...], found: int, faults: Sequence[Fault], made_boxes: bool
) -> OwnImages:
    pixels = torch.from_numpy(np.stack([image.pixels for image, _ in usable]))
    width = max(1, *(len(image.boxes) for image, _ in usable))
    boxes = torch.zeros(len(usable), width, 4, dtype=torch.int16)
    for row, (image, _) in zip(boxes, usable, strict=True):
        row[: len(image.boxes)] = torch.tensor(image.boxes, dtype=torch.int16).reshape(-1, 4)
    labels = torch.tensor([label for _, label in usable], dtype=torch.int64)
    names = tuple(image.record.name for image, _ in usable)
    annotated = torch.tensor([any(x1 > x0 and y1 > y0 for x0, y0, x1, y1 in image.boxes) for image, _ in usable])
    if made_boxes and not annotated.all():
        boxes = with_made_boxes(ImageSet(pixels, labels, boxes, names), annotated)
    table = pd.DataFrame(faults, columns=list(Fault._fields))
    why = "" if classes else "the images lie in no folders of classes, so no label is known"
    sides = tuple(min(image.width, image.height) for image, _ in usable)
    return OwnImages(pixels, boxes, names, classes, labels if classes else None, why, annotated, found, sides, table)


def with_made_boxes(images: ImageSet, annotated: Tensor) -> Tensor:
    """Fill in one box for each image that has none: the rectangle around its ``pseudo_boxes`` mask; zeros where the mask is empty.

    Args:
        images: N images with boxes (N, B, 4).
        annotated: (N,) bool, which have a usable box.

    Returns:
        (N, B, 4) int16.
    """
    boxes, lacking = images.boxes.clone(), torch.nonzero(~annotated)[:, 0]
    masks = object_masks.make_masks("spectral_residual", images.subset(lacking.numpy()))
    boxes[lacking] = 0
    boxes[lacking, 0] = overlap.bounding_rectangles(masks).to(boxes.dtype)
    return boxes


FEWEST_LABELLED = 10  # below, the interval of a proportion is about as wide as not knowing it
MOST_MET = 1000  # images of a target, and of labelled images, that are taken at most


def load_target(path: Path, training: OwnImages, training_path: Path, *, seed: int = 0) -> OwnImages:
    """Images of where the networks will work, of the size of the training images; labels, if there are any, are not kept.

    Args:
        path: folder or .zip; see ``load_images``. At most ``MOST_MET`` of them are taken.
        training: the training images.
        training_path: where they are from.
        seed: of the choice.

    Raises:
        FileNotFoundError: nothing is at the path.
        ValueError: no image can be used, or the images are the training images.
    """
    found = _held_out(path, training, training_path, "target", seed)
    return replace(found, known_labels=None, class_names=(), why_unlabelled="images of a target have no labels")


def load_labelled(path: Path, training: OwnImages, training_path: Path, *, seed: int = 0) -> OwnImages:
    """Images with labels that the networks were not fitted to: in a folder per class, named as the training images' folders.

    Without classes of the training images the folders stand for the outputs in the order of their names. Arguments as ``load_target``.

    Raises:
        FileNotFoundError: nothing is at the path.
        ValueError: no image can be used, there are fewer than ``FEWEST_LABELLED``, a label is none of the classes, or they are the
            training images.
    """
    found = _held_out(path, training, training_path, "labelled", seed)
    if not found.class_names:
        raise ValueError(f"the labelled images in {path} lie in no folders of classes, so none has a label; give a folder per class")
    classes = training.class_names or found.class_names
    if unknown := [name for name in found.class_names if name not in classes]:
        raise ValueError(
            f"labels of {path} are none of the classes: {', '.join(unknown[:3])}; the classes of the training images are "
            f"{', '.join(classes[:5])}{' and so on' if len(classes) > 5 else ''}"
        )
    if len(found) < FEWEST_LABELLED:
        raise ValueError(f"{len(found)} labelled images are in {path}; at least {FEWEST_LABELLED} are needed, and 50 tell much more")
    place = torch.tensor([classes.index(name) for name in found.class_names])
    return replace(found, known_labels=place[found.labels], class_names=classes)


def _held_out(path: Path, training: OwnImages, training_path: Path, what: str, seed: int) -> OwnImages:
    """Images that are not those of the training, of their size; ``what`` names them in a message."""
    advice = "the networks were fitted to them, so they tell nothing of others; give images that were held out"
    if path.resolve() == training_path.resolve():
        raise ValueError(f"the {what} images {path} are the training images; {advice}")
    found = load_images(path, image_size=training.images.shape[-1], most=MOST_MET, seed=seed, made_boxes=False)
    seen = {image.numpy().tobytes() for image in training.images}
    again = sum(image.numpy().tobytes() in seen for image in found.images)
    if again > _COPIES * min(len(found), len(seen)):
        raise ValueError(f"{again} of {len(found)} {what} images in {path} are training images; {advice}")
    return found


_COPIES = 0.05  # of the fewer images: a copy here and there is in most collections


def box_source(images: OwnImages) -> str:
    """Where the boxes are from: ``ANNOTATED``, ``MADE``, or how many are annotated."""
    count = int(images.annotated.sum())
    return (
        ANNOTATED
        if count == len(images)
        else MACHINE_MADE
        if not count
        else f"{count} of {len(images)} annotated, the others {MACHINE_MADE}"
    )


def in_turn(images: OwnImages) -> OwnImages:
    """Order images by chance, with the classes in turn where they are known: what measures that take the first of them rely on."""
    order = np.random.default_rng(0).permutation(len(images))
    if images.known_labels is not None:
        order = order[classes_in_turn(images.known_labels[torch.from_numpy(order)])]
    tensors = {name: getattr(images, name) for name in ("images", "boxes", "known_labels", "annotated")}
    ordered = {name: tensor[torch.from_numpy(order)] for name, tensor in tensors.items() if tensor is not None}
    lists = {name: tuple(getattr(images, name)[index] for index in order) for name in ("names", "shorter_sides")}
    return replace(images, **ordered, **lists)


def check_outputs(images: OwnImages, outputs: int) -> None:
    """Make sure that a network's outputs can be the images' classes.

    Raises:
        ValueError: the folder has another number of classes; the message says what to give.
    """
    if images.known_labels is not None and outputs != len(images.class_names):
        raise ValueError(
            f"the network has {outputs} outputs and the images lie in {len(images.class_names)} class folders, so no image has a label; "
            f"give --classes (class_names in the notebook): the class folder of each of the {outputs} outputs, in order"
        )


def natural_size(path: Path, most: int = 224) -> int:
    """Choose a side for the squares where none is given: the shorter side of the images in the median of some, at most 224 pixels.

    Raises:
        ValueError: no image can be read.
    """
    sides = load_images(path, image_size=8, most=25, made_boxes=False).shorter_sides
    return max(8, min(most, int(np.median(sides))))

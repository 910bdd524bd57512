"""The images of a study: chosen from a source, decoded once to squares, and kept."""

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from helpers.data import layouts, synthetic
from helpers.data.decode import check_boxes, decode_all
from helpers.data.layouts import Listing
from helpers.data.selection import SPLITS, SYNTHETIC, Choice, pixel_digest, select
from helpers.data.sources import open_source
from helpers.files import (
    LABELS,
    MANIFEST,
    complete_or_absent,
    from_root,
    json_digest,
    read_arrays,
    read_json,
    read_tensors,
    records_of,
    write_json,
    write_tensors,
)

# Raised when the meaning of what is kept changes: older files are then never used.
_FORMAT = 10
_SCENES = 60  # rendered training images of a class, where no number is asked for
_TABLES = ("index", "faults", "classes")
_INDEX = ["name", "class_id", "split", "digest", "label"]
_FAULTS = ["class_id", "split", "name", "fault", "detail"]


@dataclass(frozen=True)
class ImageSet:
    """Images of one split, in memory."""

    images: Tensor  # (N, 3, S, S) uint8 RGB
    labels: Tensor  # (N,) int64
    # (N, B, 4) int16, half-open x0, y0, x1, y1 in pixels of the square; zero rows are
    # padding; B is 0 in a set without boxes.
    boxes: Tensor
    names: tuple[str, ...]  # one per image, relative to the source

    def __len__(self) -> int:
        """Number of images."""
        return len(self.labels)

    @property
    def has_pixels(self) -> bool:
        """Whether the pixels are here; records of a study have all but them."""
        return self.images.device.type != "meta"

    @property
    def has_boxes(self) -> bool:
        """Whether any image has a box."""
        return bool(self.boxes.any())

    def subset(self, indices: Iterable[int]) -> "ImageSet":
        """Take some images, in the given order.

        Args:
            indices: row numbers of the images.
        """
        chosen = torch.as_tensor(np.asarray(indices), dtype=torch.int64)
        names = tuple(self.names[index] for index in chosen.tolist())
        # By its index, torch would import half a second of code for images without
        # pixels.
        images = self.images.index_select(0, chosen.to(self.images.device))
        return ImageSet(images, self.labels[chosen], self.boxes[chosen], names)


@dataclass(frozen=True)
class StudyData:
    """The images of a study."""

    train: ImageSet
    test: ImageSet
    # One row per image, training first: name, class_id, label, split, digest (of the
    # file, or of rendered pixels).
    index: pd.DataFrame
    faults: pd.DataFrame  # one row per fault: class_id, split, name, fault, detail
    classes: pd.DataFrame  # label, class_id, class_name, train_images, test_images
    layout: str  # as which the source was read

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over what the images are.

        Contents of files, labels, splits, boxes and size; not names, not places.
        """
        digest = blake2b(f"{self.train.images.shape[-1]}".encode(), digest_size=8)
        columns = self.index[["digest", "class_id", "label", "split"]]
        for row in columns.astype(str).to_numpy():
            digest.update("\0".join(row).encode())
        for images in (self.train, self.test):
            digest.update(images.boxes.numpy().tobytes())
        return digest.hexdigest()


def load_study_data(*, cache_dir: Path, **parameters: Any) -> StudyData:
    """Load the images of a study, decoded once for the same source and parameters.

    Where a source has boxes, only images with a usable one enter the training split.
    The test split is the source's own, or held out of the training images where it has
    none. Of images with the same pixels the first stays, training before test images.
    The images that a smaller number per class takes are among those of a larger one.

    Args:
        cache_dir: folder of decoded images and unpacked archives.
        parameters: fields of ``Choice``, as notebook 01 has them.

    Returns:
        The images, classes in the order of ``class_ids``.

    Raises:
        FileNotFoundError: where nothing is at ``data_path``.
        ValueError: for a source without two usable classes.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> scenes = {"data_source": "synthetic", "image_size": 16}
        >>> counts = {"images_per_class": 2, "test_images_per_class": 1}
        >>> with TemporaryDirectory() as folder:
        ...     data = load_study_data(cache_dir=Path(folder), **scenes, **counts)
        >>> data.train.images.shape[1:]
        torch.Size([3, 16, 16])
    """
    choice = Choice(**parameters)
    source = None
    if choice.data_source != SYNTHETIC:
        if not choice.data_path:
            raise ValueError(
                f"data_source {choice.data_source!r} needs data_path: the folder or "
                ".zip that holds the images"
            )
        # Class folders to scan; an empty sequence scans all.
        by_folder = choice.data_source in layouts.BY_FOLDER
        classes = choice.class_ids if by_folder else ()
        path = from_root(choice.data_path)
        source = open_source(path, cache_dir / "unpacked", classes)
    # The cache is named by a digest of all that it depends on.
    stamp = source.stamp if source else ""
    decisive = asdict(choice) | {"stamp": stamp, "format": _FORMAT}
    cache = cache_dir / f"images-{json_digest(decisive)}.safetensors"
    labels = cache.with_suffix(".npz")
    pixels = read_tensors(cache)
    if pixels is not None:
        return read_labels(labels, pixels)
    if source:
        listing = layouts.scan(source, choice.data_source, choice.class_ids)
        images = decode_all(source, listing.records, choice.image_size)
        check_boxes(images)
    else:
        listing = _rendered(choice)
        images = listing.records
    data = _study_data(listing, images, choice)
    write_labels(labels, data)
    write_tensors(cache, {"train": data.train.images, "test": data.test.images})
    return data


def _rendered(choice: Choice) -> Listing:
    """The synthetic scenes, as if they were decoded images."""
    counts = (choice.images_per_class or _SCENES, choice.test_images_per_class)
    scenes = [
        synthetic.scenes(split, count, choice.image_size, choice.data_seed)
        for split, count in zip(SPLITS, counts, strict=True)
    ]
    classes = [*(choice.class_ids or synthetic.CLASS_IDS)]
    images = pd.concat(scenes, ignore_index=True).query("class_id in @classes")
    digest = images["pixels"].map(pixel_digest)
    names = {name: name.removeprefix("synthetic_") for name in classes}
    images = images.assign(digest=digest, problems=None)
    return Listing(SYNTHETIC, classes, names, images, [])


def _study_data(listing: Listing, images: pd.DataFrame, choice: Choice) -> StudyData:
    """Choose images and join them to the data of a study.

    Raises:
        ValueError: if fewer than two classes, or no test images, are left.
    """
    tables = [pd.DataFrame(listing.faults)]
    chosen, counts = select(images, listing.classes, choice, tables)
    faults = pd.concat(tables).reindex(columns=_FAULTS).fillna("")
    faults = faults.sort_values(
        ["split", "name"], ascending=[False, True], ignore_index=True
    )
    test_images = counts["test"].sum()
    if len(counts) < 2 or not test_images:
        raise ValueError(
            f"of {len(images)} images of {choice.data_path}, read as "
            f"{listing.layout}, {len(chosen)} are left, {test_images} of them for "
            f"test, of {len(counts)} classes, and a study needs 2; faults: "
            f"{'; '.join(sentences_of_faults(faults)) or 'none'}; "
            f"see docs/images.md, put usable images there, or change {choice}"
        )
    # select returns images class by class, and factorize numbers them as they appear.
    chosen["label"], ids = pd.factorize(chosen["class_id"])
    names = pd.Series([listing.names.get(class_id, class_id) for class_id in ids])
    # ILSVRC has "crane" twice.
    names = names.mask(names.duplicated(keep=False), names + " (" + ids + ")")
    classes = pd.DataFrame({"class_id": ids, "class_name": names}).rename_axis("label")
    classes = classes.join(counts.add_suffix("_images"), on="class_id").reset_index()
    sets = [image_set(rows) for _, rows in chosen.groupby("split", sort=False)]
    return StudyData(*sets, chosen[_INDEX], faults, classes, listing.layout)


def sentences_of_faults(
    faults: Iterable[Mapping[str, str]] | pd.DataFrame,
) -> list[str]:
    """Sentences on what a source holds and a study leaves out.

    Args:
        faults: those of a listing, or ``StudyData.faults``.

    Returns:
        One sentence per kind of fault, with its number and its first one.
    """
    table = pd.DataFrame(faults, columns=_FAULTS, dtype=object).fillna("")
    sentences = []
    for kind, rows in table.groupby("fault", sort=False):
        class_id, _, name, _, detail = rows.iloc[0]
        words = f"{len(rows):,} × {kind.replace('_', ' ')}"
        sentences.append(f"{words}, such as {name or class_id}: {detail}")
    return sentences


def image_set(images: pd.DataFrame) -> ImageSet:
    """Stack decoded images, with their labels and boxes.

    Args:
        images: with the columns name, label, pixels and square_boxes.
    """
    boxes = [
        torch.tensor(boxes, dtype=torch.int16).reshape(-1, 4)
        for boxes in images["square_boxes"]
    ]
    return ImageSet(
        torch.from_numpy(np.stack(images["pixels"])),
        torch.tensor(images["label"].to_numpy()),
        pad_sequence(boxes, batch_first=True),
        tuple(images["name"]),
    )


def box_masks(boxes: Tensor, size: int) -> Tensor:
    """Mark the pixels inside any box of an image; Du et al. 2024, equation (5).

    Args:
        boxes: (B, M, 4) integers x0, y0, x1, y1 in pixels, half-open, for B images of
            up to M boxes; rows of zeros fill up images with fewer. The part of a box
            outside of the image is ignored.
        size: side S of the images, in pixels.

    Returns:
        (B, S, S) bool, rows (y) first.

    Example:
        >>> box_masks(torch.tensor([[[0, 1, 2, 2]]]), 2).int()
        tensor([[[0, 0],
                 [1, 1]]], dtype=torch.int32)
    """
    masks = []
    pixel = torch.arange(size, device=boxes.device)
    for batch in boxes.long().unsqueeze(-1).split(1024):
        x0, y0, x1, y1 = batch.unbind(-2)  # (B, M, 1) each
        rows = (pixel >= y0) & (pixel < y1)  # (B, M, S)
        columns = (pixel >= x0) & (pixel < x1)
        # The number of boxes that hold each pixel, as a product of matrices. It
        # replaces (rows[..., None] & columns[:, :, None]).sum(1), whose (B, M, S, S)
        # would not fit into memory if one image has many boxes.
        boxes_at_pixel = torch.einsum("bmy,bmx->byx", rows.float(), columns.float())
        masks.append(boxes_at_pixel > 0)
    return torch.cat(masks)


# --- files ---


def choose_images(work: Path, **parameters: Any) -> StudyData:
    """Choose and decode the images of a study, and record which in ``work/data.json``.

    Args:
        work: the folder of work of the study.
        parameters: see ``load_study_data``.

    Raises:
        ValueError: as ``load_study_data``.
        FileNotFoundError: as ``load_study_data``.
    """
    data = load_study_data(**parameters, cache_dir=work / "cache")
    write_labels(work / LABELS, data)
    manifest = {"fingerprint": data.fingerprint, "parameters": parameters}
    write_json(work / MANIFEST, manifest)
    return data


def write_labels(path: Path, data: StudyData) -> None:
    """Write all data of a study's images except pixels, a megabyte at most.

    Args:
        path: an ``.npz``: boxes by split, the tables as parquet files, the layout, and
            the side of the images in pixels.
        data: the images.
    """
    contents = {name: getattr(data, name).to_parquet(index=False) for name in _TABLES}
    contents["layout"] = data.layout.encode()
    arrays = {name: np.frombuffer(text, np.uint8) for name, text in contents.items()}
    arrays |= {f"{split}_boxes": getattr(data, split).boxes for split in SPLITS}
    arrays["size"] = data.train.images.shape[-1]
    with complete_or_absent(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_labels(path: Path, pixels: Mapping[str, Tensor] | None = None) -> StudyData:
    """Read the data that ``write_labels`` wrote, which has no pixels.

    Args:
        path: the file.
        pixels: (N, 3, S, S) uint8 by split; where it is None, tensors of images have a
            shape and no values.

    Raises:
        ValueError: if the file is damaged; the message says what to do.
    """
    arrays = read_arrays(path)
    tables = {name: pd.read_parquet(io.BytesIO(arrays[name])) for name in _TABLES}
    size = int(arrays["size"])
    sets = {}
    for split, rows in tables["index"].groupby("split"):
        shape = (len(rows), 3, size, size)
        no_pixels = torch.empty(shape, dtype=torch.uint8, device="meta")
        sets[split] = ImageSet(
            pixels[split] if pixels else no_pixels,
            torch.tensor(rows["label"].to_numpy()),
            torch.from_numpy(arrays[f"{split}_boxes"]),
            tuple(rows["name"]),
        )
    return StudyData(**sets, **tables, layout=arrays["layout"].tobytes().decode())


def images_of_study(work: Path) -> StudyData:
    """Images that notebook 01 chose for a study, from the cache or decoded again.

    Args:
        work: the folder of work of the study.

    Returns:
        The images. If neither the cache nor the source is here, they come from the
        study's records and have no pixels (``ImageSet.has_pixels``).

    Raises:
        FileNotFoundError: if there are no records, and 01 has not run or what it read
            is gone.
        ValueError: if the images are not those that 01 chose.
    """
    record = manifest_of(work)
    try:
        data = load_study_data(**record["parameters"], cache_dir=work / "cache")
    except (FileNotFoundError, ValueError) as fault:
        labels = records_of(work) / LABELS
        if not labels.is_file():
            raise
        if isinstance(fault, ValueError):  # such as a .zip that is half copied
            warnings.warn(f"no image has pixels: {fault}", stacklevel=2)
        data = read_labels(labels)
    if data.fingerprint != record["fingerprint"]:
        raise ValueError(
            f"the images of {record['parameters'].get('data_path')} were changed since "
            f"notebook 01 chose them (fingerprint {data.fingerprint}, not "
            f"{record['fingerprint']}). Put them back, or choose them anew: run `make "
            f"sweep STUDY={work.name} MORE='--forcerun 01_data_subset'`"
        )
    return data


def with_classes(work: Path, class_ids: Sequence[str]) -> StudyData:
    """Images of any classes of a study's source, chosen by its parameters.

    Args:
        work: the folder of work of the study.
        class_ids: of its source.

    Raises:
        ValueError: as ``load_study_data``.
        FileNotFoundError: as ``images_of_study``.
    """
    chosen = manifest_of(work)["parameters"] | {"class_ids": list(class_ids)}
    return load_study_data(**chosen, cache_dir=work / "cache")


def manifest_of(work: Path) -> dict[str, Any]:
    """How notebook 01 chose the images of a study: parameters, and fingerprint.

    Args:
        work: the folder of work of the study.

    Raises:
        FileNotFoundError: where it has not run.
    """
    for folder in (work, records_of(work)):
        if (folder / MANIFEST).is_file():
            return read_json(folder / MANIFEST)
    raise FileNotFoundError(
        f"{work / MANIFEST} is not there: notebook 01 has not chosen the images of the "
        f"study {work.name!r}: run notebooks/01_data_subset.ipynb for it, or `make "
        f"sweep STUDY={work.name} MORE='--forcerun 01_data_subset'`"
    )

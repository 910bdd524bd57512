"""A study of one's own images: ``python -m helpers.new NAME PATH`` writes its file."""

import argparse
from pathlib import Path

import pandas as pd
from ruamel.yaml import YAML

from helpers.data import layouts
from helpers.data.decode import check_boxes, decode_all
from helpers.data.images import sentences_of_faults
from helpers.data.sources import Source, open_source
from helpers.files import PROJECT_ROOT, complete_or_absent, from_root
from helpers.parameters import StudyError, fault_of
from helpers.studies import load, path_of

MOST_CLASSES = 20
MOST_IMAGES = 200  # of a class
SIDES = (32, 48, 64)  # pixels that small networks train on in minutes
# Training images of a class: runs hold out a tenth, and 03 to 06 need 10 of each.
_LEAST_IMAGES = 14
_TRAINING_SHARE = 0.8  # of the images of a class, where none is for test
_LOOKED_AT = 50  # images


def write(name: str, path: Path, root: Path = PROJECT_ROOT) -> Path:
    """Write ``params/<name>.yaml`` for a folder or .zip of images.

    It is the demo with these images: its largest classes, as many training images of
    each as all have, or four fifths of them where none is for test, the side nearest to
    that of the images, and no pretrained start, whose classes the workbook cannot know.

    Args:
        name: of the study.
        path: of the images, in a layout of docs/images.md.
        root: folder of the project.

    Returns:
        Path of the file.

    Raises:
        StudyError: if the name is none of a study, or that of one, or the images do not
            make one.
        ValueError: if the images have no layout that is read.
    """
    if fault_of("study", name) or name.endswith(".yaml"):
        raise StudyError(
            f"{name!r:.100} cannot name a study; take 1 to 100 letters, digits, spaces "
            "and _.+-, of which the first is a letter, a digit or _, and no .yaml"
        )
    file = path_of(name, root)
    if file.exists():
        raise StudyError(f"{file} is there already; take another name, or delete it")
    source = open_source(from_root(path), root / "work" / name / "cache/unpacked")
    listing = layouts.scan(source, layouts.RECOGNISED)
    for sentence in sentences_of_faults(listing.faults):
        print(f"Left out: {sentence}.")
    training = listing.records.query("split == 'train'")
    share = _TRAINING_SHARE if len(training) == len(listing.records) else 1
    boxed = training[training["boxes"].astype(bool)]
    training = boxed if len(boxed) else training  # as 01 chooses them
    middle = _usual_side(source, training)
    counts = (share * training["class_id"].value_counts()).astype(int)
    taken = counts[counts >= _LEAST_IMAGES].head(MOST_CLASSES)
    if len(taken) < 2:
        raise StudyError(
            f"{path} has {len(taken)} of {len(counts)} classes with "
            f"{_LEAST_IMAGES / share:.0f} images for training, with boxes where "
            "some have one, and a study needs 2"
        )
    side = max((size for size in SIDES if size <= middle), default=min(SIDES))
    study = YAML(typ="safe", pure=True).load(path_of("demo", root))
    study["question"] = f"Which networks generalize on the images of {name}?"
    study["subject"] = f"{len(taken)} of {len(counts)} classes of {path.name}."
    study["notebooks"]["01_data_subset"] |= {
        "data_source": listing.layout,
        "data_path": str(path),
        "class_ids": sorted(taken.index),
        "image_size": side,
        "images_per_class": min(MOST_IMAGES, int(taken.min())),
        "test_images_per_class": 0,
    }
    study["notebooks"]["02_grid_training"] |= {"pretrained_levels": [False]}
    study["notebooks"].pop("06_kappa_tradeoff")  # whose further classes nobody named
    with complete_or_absent(file) as temporary:
        YAML(typ="safe", pure=True).dump(study, temporary)
    load(name, root=root)
    return file


def _usual_side(source: Source, images: pd.DataFrame) -> float:
    """Median of the shorter sides of a sample, in pixels; some must be readable."""
    sample = images[:: 1 + len(images) // _LOOKED_AT]
    decoded = decode_all(source, sample, max(SIDES))
    check_boxes(decoded)
    unread = decoded[decoded["pixels"].isna()]
    print(f"Of {len(sample)} images {len(unread)} cannot be read.")
    if len(unread) == len(sample):
        raise StudyError(
            f"none of {len(sample)} images of {source.root} can be read, such as "
            f"{unread['name'].iloc[0]} {unread['problems'].iloc[0]}; save them anew"
        )
    return decoded[["width", "height"]].min(axis=1).median()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="helpers.new", description=write.__doc__)
    parser.add_argument("name")
    parser.add_argument("path", type=Path)
    options = parser.parse_args()
    try:
        file = write(options.name, options.path)
    except (OSError, ValueError) as fault:  # a StudyError is one
        parser.exit(2, f"{fault}\n")
    print(f"wrote {file}; look at it, and run: make sweep STUDY={options.name}")

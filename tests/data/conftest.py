"""Small sources in every layout, written and loaded."""

import json
import zipfile

import numpy as np
import pytest

from helpers.data.images import load_study_data
from tests.conftest import jpeg, voc


def written(folder, files):
    """Write files by name below a folder; give the folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def zipped(path, files, **options):
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def load(tmp_path):
    """Load files, which are written first, or a path: images of 16 px, two test images a class."""

    def call(files, source="auto", place="source", **changes):
        path = written(tmp_path / place, files) if isinstance(files, dict) else files
        arguments = {
            "data_source": source,
            "data_path": str(path),
            "image_size": 16,
            "test_images_per_class": 2,
        }
        return load_study_data(
            **arguments | {"cache_dir": tmp_path / "cache"} | changes
        )

    return call


def kinds(data):
    """How often each fault was counted."""
    return data.faults["fault"].value_counts().to_dict()


def coco(images, categories, annotations):
    """COCO's JSON of (file, width, height), names, and (place of the image, place of the category, x, y, width, height)."""
    table = {"images": [], "categories": [], "annotations": []}
    for number, (name, width, height) in enumerate(images):
        image = {"id": 7 + number, "file_name": name, "width": width, "height": height}
        table["images"].append(image)
    for number, name in enumerate(categories):
        table["categories"].append({"id": 3 + number, "name": name})
    for image, category, *box in annotations:
        item = {"image_id": 7 + image, "category_id": 3 + category, "bbox": box}
        table["annotations"].append(item)
    return json.dumps(table).encode()


def class_folders(top="", count=6, classes=("cat", "dog")):
    """A folder per class without any annotation."""
    names = [f"{top}{name}/{image}.png" for name in classes for image in range(count)]
    return {
        name: jpeg(len(top) * 1000 + number, kind="PNG")
        for number, name in enumerate(names)
    }


def cifar10(count=12, classes=("airplane", "automobile")):
    """CIFAR-10's binary version: one byte of label, then a plane of each colour."""
    rows = np.random.default_rng(0).integers(0, 256, (3, count, 3073), dtype=np.uint8)
    rows[:, :, 0] = np.arange(count) % len(classes)
    names = ("data_batch_1", "data_batch_2", "test_batch")
    files = {"batches.meta.txt": "\n".join(classes).encode()}
    files |= {f"{n}.bin": part.tobytes() for n, part in zip(names, rows, strict=True)}
    return {f"cifar-10-batches-bin/{name}": files[name] for name in files}


def cifar100(count=12):
    rows = np.random.default_rng(1).integers(0, 256, (2, count, 3074), dtype=np.uint8)
    rows[:, :, :2] = np.stack([np.full(count, 5), np.arange(count) % 3], 1)
    return {
        "train.bin": rows[0].tobytes(),
        "test.bin": rows[1].tobytes(),
        "fine_label_names.txt": b"apple\naquarium_fish\nbaby\n",
        "coarse_label_names.txt": b"no\n",
    }


def coco_source(
    places="images/{split}2017/{name}",
    tables="annotations/instances_{split}2017.json",
    count=6,
):
    """Images of 20 x 16 pixels; a cat in the left half, in every second a larger dog on the right."""
    files = {}
    for number, split in enumerate(("train", "val")):
        names = [f"{split}_{image:03d}.jpg" for image in range(count)]
        files |= {
            places.format(split=split, name=name): jpeg(100 * number + image)
            for image, name in enumerate(names)
        }
        marked = [(image, 0, 1, 1, 8, 12) for image in range(count)] + [
            (image, 1, 9, 1, 11, 15) for image in range(0, count, 2)
        ]
        files[tables.format(split=split)] = coco(
            [(name, 20, 16) for name in names], ["cat", "dog"], marked
        )
    return files


def voc_source(
    images="VOC2007/JPEGImages/{}.jpg", marks="VOC2007/Annotations/{}.xml", count=16
):
    """Pascal VOC: XML in a folder of its own, the class by the object."""
    files = {images.format(image): jpeg(image) for image in range(count)}
    return files | {
        marks.format(image): voc((1, 1, 10, 10), name=("cat", "dog")[image % 2])
        for image in range(count)
    }


def csv_source(boxes=True, count=8):
    files = {f"pictures/{image}.jpg": jpeg(image) for image in range(count)}
    box = ",2,2,12,10" if boxes else ""
    rows = [f"{name},{('cat', 'dog')[n % 2]}{box}" for n, name in enumerate(files)]
    head = "path,label,x0,y0,x1,y1" if boxes else "path,label"
    return files | {"labels.csv": "\n".join([head, *rows]).encode()}


def yolo_source(count=6):
    files = {"data.yaml": b"names: {0: cat, 1: dog}\nnc: 2\n"}
    for number, split in enumerate(("train", "val")):
        for image in range(count):
            files[f"images/{split}/{image}.jpg"] = jpeg(100 * number + image)
            files[f"labels/{split}/{image}.txt"] = (
                f"{image % 2} 0.5 0.5 0.5 0.25\n".encode()
            )
    return files


def labelme_source(count=12):
    """labelme's JSON beside each image, the class by the shape."""
    files = {}
    for image in range(count):
        shape = {
            "label": ("cat", "dog")[image % 2],
            "shape_type": "rectangle",
            "points": [[2, 2], [12, 10]],
        }
        table = {"shapes": [shape], "imageWidth": 20, "imageHeight": 16}
        files[f"photos/{image}.jpg"] = jpeg(image)
        files[f"photos/{image}.json"] = json.dumps(table).encode()
    return files

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
    """Load files, which are written first, or a path: 16 px, two test images a class."""

    def call(files, source="auto", place="source", **changes):
        path = written(tmp_path / place, files) if isinstance(files, dict) else files
        choice = {"data_source": source, "data_path": str(path), "image_size": 16}
        choice |= {"test_images_per_class": 2} | changes
        return load_study_data(**choice, cache_dir=tmp_path / "cache")

    return call


def kinds(data):
    """How often each fault was counted."""
    return data.faults["fault"].value_counts().to_dict()


def coco(images, categories, annotations):
    """COCO's JSON; an annotation is image, category, x, y, width and height."""
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


def cifar(labels, *names):
    """Binary files of CIFAR: rows of twelve labels, then a plane of each colour."""
    files = {}
    for seed, name in enumerate(names):
        pixels = np.random.default_rng(seed).integers(0, 256, (12, 3072), np.uint8)
        files[name] = np.hstack([labels, pixels]).astype(np.uint8).tobytes()
    return files


def cifar10():
    labels = np.arange(12)[:, None] % 2
    files = cifar(labels, "data_batch_1.bin", "data_batch_2.bin", "test_batch.bin")
    files["batches.meta.txt"] = b"airplane\nautomobile"
    return {f"cifar-10-batches-bin/{name}": files[name] for name in files}


def cifar100():
    """Of one coarse class, and three fine ones."""
    labels = np.stack([np.full(12, 5), np.arange(12) % 3], 1)
    files = cifar(labels, "train.bin", "test.bin")
    files["fine_label_names.txt"] = b"\xef\xbb\xbfapple\naquarium_fish\nbaby\n"
    return files | {"coarse_label_names.txt": b"no\n"}


def coco_source(
    places="images/{split}2017/{name}", tables="annotations/instances_{split}2017.json"
):
    """Images of 20 x 16 pixels; a cat on the left, in every second a larger dog."""
    files = {}
    for number, split in enumerate(("train", "val")):
        names = [f"{split}_{image}.jpg" for image in range(6)]
        for image, name in enumerate(names):
            picture = jpeg(100 * number + image)
            files[places.format(split=split, name=name)] = picture
        marked = [(image, 0, 1, 1, 8, 12) for image in range(6)]
        marked += [(image, 1, 9, 1, 11, 15) for image in (0, 2, 4)]
        sizes = [(name, 20, 16) for name in names]
        files[tables.format(split=split)] = coco(sizes, ["cat", "dog"], marked)
    return files


def voc_source(images="VOC2007/JPEGImages/{}.jpg", marks="VOC2007/Annotations/{}.xml"):
    """Pascal VOC: XML in a folder of its own, the class by the object."""
    files = {}
    for image in range(16):
        files[images.format(image)] = jpeg(image)
        mark = voc((1, 1, 10, 10), name=("cat", "dog")[image % 2])
        files[marks.format(image)] = mark
    return files


def csv_source(head="path,label,x0,y0,x1,y1", numbers="2,2,12,10"):
    """A table of eight images, with the same numbers for each."""
    files = {f"pictures/{image}.jpg": jpeg(image) for image in range(8)}
    rows = [f"{name},{('cat', 'dog')[n % 2]},{numbers}" for n, name in enumerate(files)]
    return files | {"labels.csv": "\n".join([head, *rows]).encode()}


def yolo_source(numbers="0.5 0.5 0.5 0.25"):
    files = {"data.yaml": b"names: {0: cat, 1: dog}\nnc: 2\n"}
    for number, split in enumerate(("train", "val")):
        for image in range(6):
            files[f"images/{split}/{image}.jpg"] = jpeg(100 * number + image)
            line = f"{image % 2} {numbers}\n"
            files[f"labels/{split}/{image}.txt"] = line.encode()
    return files


def labelme_source():
    """labelme's JSON beside each image, the class by the shape."""
    files = {}
    for image in range(16):
        shape = {
            "label": ("cat", "dog")[image % 2],
            "shape_type": "rectangle",
            "points": [[2, 2], [12, 10]],
        }
        table = {"shapes": [shape], "imageWidth": 20, "imageHeight": 16}
        files[f"photos/{image}.jpg"] = jpeg(image)
        files[f"photos/{image}.json"] = json.dumps(table).encode()
    return files

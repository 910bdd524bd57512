"""Every layout on a small made source: classes, splits and boxes, what is counted, and which layout is recognised."""

from collections import Counter

import numpy as np
import pytest
import torch

from helpers.data import layouts, sources
from tests.conftest import LAYOUTS, ilsvrc, jpeg, tiny_imagenet, voc, voc_folder
from tests.data.conftest import (
    cifar10,
    cifar100,
    class_folders,
    coco,
    coco_source,
    csv_source,
    cub_source,
    kinds,
    labelme_source,
    voc_source,
    written,
    yolo_source,
)

MADE = {
    **{name: (make(), True) for name, make in LAYOUTS.items()},
    "class_folders": (class_folders("train/") | class_folders("val/"), False),
    "cifar": (cifar10(), False),
    "coco": (coco_source(), True),
    "csv": (csv_source(), True),
    "yolo": (yolo_source(), True),
    "voc": (voc_source(), True),
    "labelme": (labelme_source(), True),
    "cub": (cub_source(), True),
    "top_folders": (class_folders(), False),
}
# Tables of CSV and COCO name the images, and so in the letters that these have.
_OTHERS = ("class_folders", "cifar", "yolo", "voc", "labelme")
# Folders whose names are classes, which stay as they are.
_NAMED = {"n01", "n02", "cat", "dog"}
LEFT_OUT = {"coco": {"several_classes": 2}, "cub": {"not_read": 1}}


def _in_capitals(name):
    """A path in capitals, but for the names of classes and of Tiny ImageNet's files."""
    *folders, file = name.split("/")
    stem, dot, ending = file.rpartition(".")
    if not file.startswith(("n0", "val_0", "val_1")):
        stem = stem.upper()
    places = [part if part in _NAMED else part.upper() for part in folders]
    return "/".join([*places, f"{stem}{dot}{ending.upper()}"])


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_each_layout_is_recognised_and_gives_what_it_gives_by_name(load, layout):
    files, boxed = MADE[layout]
    named, found = load(files, layout), load(files)
    assert named.layout == layout
    # Folders are recognised as such; that names of splits are classes is asked for.
    recognised = {"top_folders": "class_folders"}.get(layout, layout)
    assert found.layout == recognised
    assert found.fingerprint == named.fingerprint
    assert kinds(found) == kinds(named) == LEFT_OUT.get(layout, {})
    assert found.train.has_boxes == boxed
    assert found.train.boxes.shape[1:] == (
        (found.train.boxes.shape[1], 4) if boxed else (0, 4)
    )
    assert found.classes["test_images"].tolist() == [2, 2]
    assert (
        torch.bincount(found.train.labels).tolist()
        == found.classes["train_images"].tolist()
    )
    assert not set(found.train.names) & set(found.test.names)
    one = found.classes["class_id"][1]
    alone = load(files, layout, class_ids=[one])
    assert set(alone.train.names) == {
        name
        for name, label in zip(found.train.names, found.train.labels, strict=True)
        if label == 1
    }


@pytest.mark.parametrize("layout", ["tiny_imagenet", "ilsvrc", "voc_folder", *_OTHERS])
def test_names_in_capitals_are_read_as_those_in_small_letters(tmp_path, layout):
    """As copies by way of FAT, and by tools of Windows, write them."""
    listings = []
    for place in ("small", "capitals"):
        files = MADE[layout][0]
        if place == "capitals":
            files = {_in_capitals(name): content for name, content in files.items()}
        source = sources.Source(written(tmp_path / place, files))
        listings.append(layouts.scan(source, "auto"))
    small, capitals = listings
    assert capitals.layout == small.layout
    assert capitals.classes == small.classes
    assert capitals.names == small.names
    counts = [
        Counter((record.class_id, record.split, record.annotation) for record in listed)
        for listed in (small.records, capitals.records)
    ]
    assert counts[0] == counts[1]


def boxes_of(data):
    """Boxes without padding by the end of the image's name."""
    return {
        name.rsplit("/", 1)[-1]: [box for box in boxes if any(box)]
        for images in (data.train, data.test)
        for name, boxes in zip(images.names, images.boxes.tolist(), strict=True)
    }


def test_cifars_pixels_are_the_bytes_and_its_classes_the_fine_ones(load):
    data, row = (
        load(cifar10(), image_size=32),
        np.frombuffer(cifar10()["cifar-10-batches-bin/data_batch_1.bin"], np.uint8)[
            :3073
        ],
    )
    assert data.train.names[0] == "cifar-10-batches-bin/data_batch_1.bin/00000"
    assert torch.equal(data.train.images[0], torch.tensor(row[1:].reshape(3, 32, 32)))
    assert data.classes["train_images"].tolist() == [12, 12]
    assert load(cifar100(), place="100").classes["class_id"].tolist() == [
        "apple",
        "aquarium_fish",
        "baby",
    ]


def test_a_pickled_or_cut_file_of_cifar_is_named(load):
    with pytest.raises(
        ValueError,
        match=r"found test: 2 without an ending are not read: a pickle of CIFAR, which is not opened; give the binary version",
    ):
        load({"train": b"\x80\x04", "test": b"\x80\x04"}, place="pickled")
    cut = {
        name: content[:5000] if name.endswith("1.bin") else content
        for name, content in cifar10().items()
    }
    assert (
        load(cut, place="cut")
        .faults["detail"]
        .item()
        .startswith("5,000 bytes, no rows of 3,073")
    )


def test_an_image_of_coco_is_of_the_class_of_its_largest_box_and_keeps_the_boxes_of_that_class(
    load,
):
    data = load(coco_source(), test_images_per_class=3)
    found = boxes_of(data)
    assert found["train_001.jpg"] == [
        [0, 1, 7, 13]
    ]  # of 20 x 16 to 16 x 16, x times 0.8
    assert found["train_000.jpg"] == [[7, 1, 16, 16]]
    assert data.classes[
        ["class_id", "train_images", "test_images"]
    ].values.tolist() == [["cat", 3, 3], ["dog", 3, 3]]
    assert set(data.faults["detail"]) == {
        "3 images hold objects of several classes; each counts as its largest box"
    }


@pytest.mark.parametrize(
    ("places", "tables"),
    [
        ("{split}/{name}", "{split}/_annotations.coco.json"),  # beside each other
        (
            "my-test-set/{split}2017/{name}",
            "my-test-set/annotations/instances_{split}2017.json",
        ),  # below a folder that is named as a split
        ("pictures/{name}", "{split}.json"),
    ],
)
def test_images_of_a_table_are_found_where_they_lie(load, places, tables):
    assert load(coco_source(places, tables)).classes[
        ["train_images", "test_images"]
    ].values.tolist() == [[3, 2], [3, 2]]


def test_paths_of_another_machine_are_found_and_no_path_leaves_the_source(
    load, tmp_path
):
    files = csv_source()
    (tmp_path / "secret.jpg").write_bytes(jpeg(77))
    table = (
        files["labels.csv"]
        .decode()
        .replace("pictures/0.jpg", "/home/me/pictures/0.jpg")
        .replace("pictures/1.jpg", "C:\\x\\pictures\\1.jpg")
    )
    files["labels.csv"] = (
        table.replace("pictures/2.jpg", "../secret.jpg")
        .replace("pictures/3.jpg", "elsewhere/4.jpg")
        .encode()
    )
    data = load(files, "csv", test_images_per_class=1)
    assert data.faults["detail"].tolist() == [
        "2 named there have no file, such as ../secret.jpg",
        "2 .jpg in pictures are not read",
    ]
    assert {"0.jpg", "1.jpg"} <= set(boxes_of(data)) and "2.jpg" not in boxes_of(data)


def test_a_csv_without_boxes_and_one_of_several_boxes(load):
    assert not load(csv_source(boxes=False)).train.has_boxes
    files = csv_source()
    files["labels.csv"] += (
        b"\npictures/0.jpg,cat,4,4,20,16\npictures/1.jpg,cat,0,0,20,16\npictures/2.jpg,cat,1,1,1,x"
    )
    data = load(files, "csv", place="several", test_images_per_class=1)
    assert boxes_of(data)["0.jpg"] == [[1, 2, 9, 10], [3, 4, 16, 16]]
    assert kinds(data) == {"several_classes": 1, "malformed_annotation": 1}
    assert data.classes["train_images"].sum() + data.classes["test_images"].sum() == 7
    files = csv_source()
    lines = files["labels.csv"].decode().splitlines()
    files["labels.csv"] = "\n".join(
        [*lines[:-1], ",".join(lines[-1].split(",")[:2])]
    ).encode()
    assert kinds(load(files, "csv", place="lacking", test_images_per_class=1)) == {
        "no_object_in_annotation": 1
    }


def test_yolos_boxes_are_shares_of_the_image_and_its_names_are_safe(load):
    files = yolo_source()
    files["labels/train/0.txt"] = b"1 0.5 0.5 0.5 0.25\n0 0.25 0.25 0.5 0.5\n"
    files["labels/train/1.txt"] = b"1 0.5 0.5\n"
    files["labels/train/2.txt"] = b""
    data = load(files, "yolo")
    assert data.train.boxes[
        data.train.names.index("images/train/0.jpg"), 0
    ].tolist() == [0, 0, 8, 8]
    assert kinds(data) == {
        "several_classes": 1,
        "malformed_annotation": 1,
        "no_object_in_annotation": 1,
    }
    for number, content in enumerate(
        (b"names: !!python/object/apply:os.system [exit]", b"names: 3", b"- 1")
    ):
        assert load(yolo_source() | {"data.yaml": content}, place=f"{number}").classes[
            "class_id"
        ].tolist() == ["0", "1"]


@pytest.mark.parametrize(
    ("images", "marks"),
    [
        ("{}.jpg", "{}.xml"),
        ("photos/{}.jpg", "photos/{}.xml"),  # one folder is no class
        ("images/{}.jpg", "annotations/xmls/{}.XML"),
    ],
)
def test_voc_files_are_found_with_their_images(load, images, marks):
    data = load(voc_source(images, marks))
    assert (
        data.layout,
        data.classes[["class_id", "train_images"]].values.tolist(),
    ) == ("voc", [["cat", 6], ["dog", 6]])


def test_images_of_one_name_are_those_in_the_folder_most_like_that_of_the_xml(load):
    parts = [
        voc_source(f"{split}/images/{{}}.jpg", f"{split}/marks/{{}}.xml")
        for split in ("train", "valid")
    ]
    parts[1] = {
        name: jpeg(99 + len(name) * int(name[13:-4])) if name.endswith("jpg") else said
        for name, said in parts[1].items()
    }
    more = {
        "train/marks/77.xml": parts[0]["train/marks/0.xml"],
        "a/9.jpg": jpeg(7),
        "b/9.jpg": jpeg(8),
        "c/9.xml": b"<annotation/>",
    }
    data = load(parts[0] | parts[1] | more, "voc")
    assert data.classes[["train_images", "test_images"]].values.tolist() == [
        [8, 2],
        [8, 2],
    ]
    assert data.faults["detail"].tolist() == [
        "2 named there have no file, such as c/9.xml",
        "is not read",
        "is not read",
    ]  # one is nowhere, one at two places


@pytest.mark.parametrize(
    ("train", "test"),
    [("Train", "Test"), ("training", "testing"), ("TRAIN", "Validation")],
)
def test_splits_have_many_names_and_are_no_classes(load, train, test):
    assert load(class_folders(f"{train}/") | class_folders(f"a/{test}/")).classes[
        "class_id"
    ].tolist() == ["cat", "dog"]
    with pytest.raises(ValueError, match="no class was found"):
        load(
            {
                f"{split}/{number}.png": jpeg(number)
                for split in (train, test)
                for number in range(6)
            },
            place="flat",
        )
    vehicles = {
        f"{name}/{number}.png": jpeg(number + 10 * len(name))
        for name in ("bus", "train")
        for number in range(6)
    }
    assert load(vehicles, place="vehicles").classes["class_id"].tolist() == [
        "bus",
        "train",
    ]


def test_ilsvrc_has_boxes_and_classes_of_test_images_by_xml(load):
    data = load(ilsvrc(), "ilsvrc")
    assert data.train.boxes[0].tolist() == [[1, 2, 9, 10], [3, 4, 16, 16]]
    assert data.classes["class_name"].tolist() == ["name of n01", "name of n02"]


def test_what_tables_promise_and_the_files_do_not_keep_is_counted(load):
    files = tiny_imagenet()
    files["train/n01/n01_boxes.txt"] += (
        b"\nn01_77.JPEG\t1\t1\t9\t9\nn01_78.JPEG\t1\t1\t9\t9"
    )
    files["val/val_annotations.txt"] += (
        b"\nval_77.JPEG\tn02\t1\t1\t9\t9\nval_78.JPEG\tn03\t1\t1\t9\t9"
    )
    data = load(files, "tiny_imagenet", class_ids=["n01", "n02", "n09"])
    assert kinds(data) == {"missing_image": 2, "unknown_class": 1}
    assert "2 named there have no file, such as n01_77.JPEG" in set(
        data.faults["detail"]
    )


def test_a_class_of_the_test_images_alone_is_counted(load):
    files = voc_folder()
    files = {f"train/{name}": content for name, content in files.items()} | {
        f"val/owl/{n}.jpg": jpeg(500 + n) for n in range(3)
    }
    data = load(files, "voc_folder")
    assert data.faults[["class_id", "fault", "detail"]].values.tolist() == [
        ["owl", "unknown_class", "3 images, and none for training"]
    ]


def test_leading_folders_and_a_single_class_are_told_apart(load):
    assert load(class_folders("a/b/")).classes["class_id"].tolist() == ["cat", "dog"]
    assert load(class_folders("a/b/", classes=("cat",)), place="one").classes[
        "class_id"
    ].tolist() == ["cat"]
    assert load(
        class_folders(), "class_folders", place="asked", class_ids=["dog"]
    ).classes["class_id"].tolist() == ["dog"]
    deep = class_folders("animals/") | class_folders("cars/", classes=("van",))
    assert load(deep, "class_folders", place="deep", class_ids=["van", "cat"]).classes[
        "class_id"
    ].tolist() == ["van", "cat"]


def test_what_was_seen_and_not_understood_is_named(load):
    elsewhere = {
        "instances_train.json": coco([("far.jpg", 9, 9)], ["cat"], [(0, 0, 1, 1, 5, 5)])
    }
    files = (
        class_folders("train/")
        | elsewhere
        | {
            "data.parquet": b"",
            "more.tar.gz": b"",
            "alone.jpg": jpeg(9),
            "notes.csv": b"a,b\n",
        }
    )
    data = load(files)
    assert data.layout == "class_folders"
    assert data.faults.set_index("name")["detail"].to_dict() == {
        "data.parquet": "archives, arrays and pickles are not opened",
        "more.tar.gz": "archives, arrays and pickles are not opened",
        "instances_train.json": "its images do not lie here, such as far.jpg",
        "notes.csv": "its first line names no columns path and label",
        "alone.jpg": "is not read",
    }
    with pytest.raises(
        ValueError,
        match=r"found instances_train.json: its images do not lie here, such as far.jpg; looked for ILSVRC.* or ",
    ):
        load(elsewhere, place="alone")


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_a_source_without_an_image_says_what_was_looked_for(tmp_path, load, layout):
    with pytest.raises(
        ValueError,
        match=f"no class was found in .*empty for data_source '{layout}': found a.txt: is not read; looked for .*; check data_path",
    ):
        load(written(tmp_path / "empty", {"a.txt": b""}).parent / "empty", layout)


def test_images_that_lack_their_boxes_are_taken_without_where_the_layout_is_recognised_alone(
    load,
):
    files = {
        name: content
        for name, content in voc_folder().items()
        if not name.endswith("xml")
    }
    assert not load(files).train.has_boxes
    with pytest.raises(
        ValueError,
        match=r"no train image with a box is left .*; faults: .*16 missing_annotation",
    ):
        load(files, "voc_folder")
    few = {
        f"{name}/{image}.xml": voc((1, 1, 10, 10))
        for name in ("cat", "dog")
        for image in range(2)
    }
    data = load(
        files | few, place="few", test_images_per_class=1, minimum_images_per_class=1
    )
    assert (data.layout, len(data.train), len(data.test), kinds(data)) == (
        "voc_folder",
        2,
        2,
        {"missing_annotation": 12},
    )

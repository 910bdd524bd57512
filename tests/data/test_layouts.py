"""Every layout on a small made source: read as docs/images.md has it, or refused."""

import json
import re

import numpy as np
import pytest
import torch

from helpers.data import layouts
from tests.conftest import LAYOUTS, ilsvrc, jpeg, tiny_imagenet, voc
from tests.data.conftest import (
    cifar10,
    cifar100,
    class_folders,
    coco,
    coco_source,
    csv_source,
    kinds,
    labelme_source,
    voc_source,
    yolo_source,
)

MADE = {
    **{name: make() for name, make in LAYOUTS.items()},
    "class_folders": class_folders("data/Train/") | class_folders("data/val/"),
    "cifar": cifar10(),
    "coco": coco_source(),
    "csv": csv_source(),
    "yolo": yolo_source(),
    "labelme": labelme_source(),
}
CLASSES = ("n0", "n1")
WITHOUT_BOXES = ("class_folders", "cifar")


def counts(data):
    return data.classes[["class_id", "train_images", "test_images"]].values.tolist()


@pytest.mark.parametrize("layout", layouts.LAYOUTS)
def test_each_layout_is_recognised_and_gives_what_it_gives_by_name(load, layout):
    named, recognised = load(MADE[layout], layout), load(MADE[layout])
    assert recognised.layout == named.layout == layout
    assert recognised.fingerprint == named.fingerprint
    assert kinds(recognised) == kinds(named) == {}
    assert recognised.train.has_boxes == (layout not in WITHOUT_BOXES)
    assert recognised.classes["test_images"].tolist() == [2, 2]
    assert not set(recognised.train.names) & set(recognised.test.names)
    classes = recognised.classes["class_id"].tolist()[::-1]
    turned = load(MADE[layout], layout, class_ids=classes)
    assert set(turned.train.names) == set(recognised.train.names)


@pytest.mark.parametrize("layout", sorted(layouts.LAYOUTS.keys() - {"class_folders"}))
def test_a_source_of_another_layout_is_refused_by_name_and_what_it_is(load, layout):
    files = {"pictures/0.jpg": jpeg(0), "pictures/1.jpg": jpeg(1)}
    with pytest.raises(ValueError, match=rf"not read as {layout}: .*; {layout} is "):
        load(files, layout)
    with pytest.raises(ValueError, match=r"read as class_folders, .*, and a study nee"):
        load(files)


# --- folders of classes ---


def test_folders_of_classes_may_be_called_train_and_hold_a_folder_images(load):
    data = load(class_folders(classes=("bus", "train", "tram")))
    assert counts(data) == [["bus", 4, 2], ["train", 4, 2], ["tram", 4, 2]]
    classes = ("bus", "train")
    files = class_folders("train/", classes=classes)
    files |= class_folders("val/", classes=classes)
    data = load(files, "class_folders", place="splits", class_ids=classes)
    assert counts(data) == [["bus", 6, 2], ["train", 6, 2]]
    nested = load(moved(FLAT, "/", "/images/"), place="nested")
    assert counts(nested) == [["cat", 4, 2], ["dog", 4, 2]]


FLAT = class_folders()


def moved(files, before, after):
    """The files under other names, by a regular expression."""
    return {re.sub(before, after, name): content for name, content in files.items()}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (moved(FLAT, "cat/", "cat/deep/"), "images are in cat/deep, dog, and not"),
        (moved(FLAT, "cat/", "masks/") | {"0.json": b"{"}, "others are .'0.json'"),
        (class_folders(classes=("train", "test1")), "images are in test1, train"),
        (class_folders("train/") | class_folders("dev/"), "in dev/cat, dev/dog"),
        (
            FLAT | {name.replace("png", "bmp"): b"" for name in FLAT},
            "masks or copies are beside images, such as cat/0 and cat/0",
        ),
        (FLAT | {"dog/3_mask.png": b""}, "masks or copies are beside images"),
    ],
)
def test_other_folders_are_refused(load, files, message):
    with pytest.raises(ValueError, match=f"not read as class_folders: .*{message}"):
        load(files)


def test_files_that_are_not_read_are_counted_by_ending(load):
    more = {"0.tfrecord": b"", "cat/1.heic": b"", "cat/2.HEIC": b"", "README.md": b""}
    data = load(FLAT | more | {"loose.png": b"", "a.csv": b"name,class"})
    assert dict(data.faults[["name", "detail"]].values) == {
        "0.tfrecord": "1 .tfrecord are not read",
        "a.csv": "1 .csv are not read",
        "cat/1.heic": "2 .heic are not read",
        "loose.png": "1 .png are not read",
    }


# --- annotations ---


VAL_OF_ILSVRC = r"(Data/CLS-LOC/val)/(?=ILSVRC2012_val_(.))"


@pytest.mark.parametrize(
    "files",
    [
        voc_source("{}.jpg", "{}.xml"),
        voc_source("photos/{}.jpg", "photos/{}.xml"),  # one folder is no class
        voc_source("images/{}.jpg", "annotations/xmls/{}.XML"),
        coco_source("{split}/{name}", "{split}/_annotations.coco.json"),
        coco_source("set/{split}/{name}", "set/annotations/instances_{split}.json"),
        coco_source("pictures/{name}", "{split}.json"),
        # validation images sorted into folders of classes
        moved(tiny_imagenet(CLASSES), r"val/images/(?=val_(.))", r"val/n\1/images/"),
        moved(tiny_imagenet(CLASSES), r"val/images/(?=val_(.))", r"val/n\1/"),
        moved(ilsvrc(CLASSES), VAL_OF_ILSVRC, r"\1/n\2/"),
    ],
)
def test_annotations_are_of_their_images_wherever_these_lie(load, files):
    data = load(files)
    assert data.classes["test_images"].tolist() == [2, 2]
    assert data.train.has_boxes and data.test.has_boxes
    assert kinds(data) == {}


def test_an_annotation_is_never_that_of_an_image_of_its_name_elsewhere(load):
    files = voc_source("train/images/{}.jpg", "train/labels/{}.xml")
    mark = voc((0, 0, 20, 16), name="dog")
    data = load(files | {"val/labels/0.xml": mark, "val/images/9.jpg": b""})
    assert kinds(data) == {"not_read": 1, "missing_image": 1}
    assert data.faults["name"].tolist() == ["val/images/9.jpg", "val/labels/0.xml"]
    assert counts(data) == [["cat", 6, 2], ["dog", 6, 2]]


def test_a_file_that_cannot_be_read_is_named_and_an_empty_one_is_counted(load):
    files = voc_source()
    marks = [name for name in files if name.endswith("xml")]
    files[marks[0]] = b"<annotation/>"
    assert kinds(load(files)) == {"no_object_in_annotation": 1}
    for number, content in enumerate((b"<annotation", b"", voc((1, 1, "x", 4)))):
        message = f"not read as voc: {marks[1]}: .*; voc is"
        with pytest.raises(ValueError, match=message):
            load(files | {marks[1]: content}, place=f"{number}")


def test_two_kinds_of_annotations_are_refused_and_read_by_name(load):
    files = labelme_source() | voc_source("photos/{}.jpg", "photos/{}.xml")
    message = "has annotations of labelme and voc; name one"
    with pytest.raises(ValueError, match=message):
        load(files)
    for name in ("voc", "labelme"):
        assert load(files, name).layout == name


def test_coco_in_several_files_is_read_whole_and_no_image_twice(load):
    places = "pictures/{name}"
    files = coco_source(places, "a_{split}.json")
    data = load(files | {"captions.json": b'{"images": [], "annotations": []}'})
    assert len(data.train) + len(data.test) == 10
    assert data.faults["name"].tolist() == ["captions.json"]
    with pytest.raises(ValueError, match=r"pictures/\S+ is in two files; remove one"):
        load(files | coco_source(places, "b_{split}.json"), place="twice")


def test_no_path_leaves_the_source_and_a_table_names_whole_folders(load, tmp_path):
    (tmp_path / "secret.jpg").write_bytes(jpeg(77))
    table = csv_source()["labels.csv"].decode()
    for number, path in enumerate(("../secret.jpg", "/etc/0.jpg", "elsewhere/4.jpg")):
        table = table.replace(f"pictures/{number}.jpg", path)
    files = csv_source() | {"labels.csv": table.encode()}
    data = load(files, "csv", test_images_per_class=1, minimum_images_per_class=1)
    assert data.faults["detail"].tolist()[:2] == [
        "3 have no image, or several, such as ../secret.jpg",
        "3 .jpg are not read",
    ]


HEAD = "path,label,x0,y0,x1,y1"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (csv_source(numbers="0.1,0.1,0.6,0.6"), "of 8 images with boxes 8"),  # shares
        (csv_source(f"{HEAD},width,height", "10,10,60,60,20,16"), "boxes 8 have some"),
        (yolo_source("9 8 6 6"), "of 12 images with boxes 12 have some that"),  # pixels
        (csv_source(numbers="12,10,8,7"), "12, 10, 8, 7, whose x1 or y1 is below x0"),
    ],
)
def test_boxes_of_another_measure_are_refused(load, files, message):
    with pytest.raises(ValueError, match=message):
        load(files)


def test_yolos_boxes_are_shares_of_the_image_and_its_names_texts(load):
    files = yolo_source()
    files["labels/train/0.txt"] = (
        b"\xef\xbb\xbf1 0.5 0.5 0.5 0.25\n0 0.25 0.25 0.5 0.5\n"
    )
    files["labels/train/2.txt"] = b""
    data = load(files | {"old.yaml": b"names: [person, bicycle]"})
    row = data.train.names.index("images/train/0.jpg")
    assert data.train.boxes[row, 0].tolist() == [0, 0, 8, 8]
    assert kinds(data) == {"no_object_in_annotation": 1, "not_read": 1}
    data = load(files | {"data.yaml": b"names: [no, 1.0]"}, place="texts")
    assert data.classes["class_id"].tolist() == ["1.0", "no"]
    del files["data.yaml"]
    data = load(files | {"classes.txt": b"\xef\xbb\xbfcat\ndog\n"}, place="txt")
    assert data.classes["class_id"].tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("data.yaml", b"names: !!python/object/apply:os.system [exit]"),
        ("data.yaml", b"- 1"),
        ("classes.txt", b"cat"),
        ("labels/val/3.txt", b"cat 0.5 0.5 0.5 0.25"),
    ],
)
def test_yolos_names_are_of_safe_yaml_and_labels_of_numbers(load, name, content):
    with pytest.raises(ValueError, match="is not read as yolo"):
        load(yolo_source() | {name: content})


def test_a_table_that_is_no_coco_is_counted_and_a_wrong_one_refused(load):
    whole = coco([("0.jpg", 20, 16)], ["cat"], [(0, 0, 1, 1, 8, 8)])
    for number, content in enumerate((whole[:40], b"[]", b"null", b"[" * 10**5)):
        data = load(FLAT | {"table.json": content}, place=f"{number}")
        assert data.faults["detail"].tolist() == ["1 .json are not read"]
    wrong = json.loads(whole) | {"images": [1]}
    with pytest.raises(ValueError, match="is not read as coco"):
        load(FLAT | {"table.json": json.dumps(wrong).encode()}, place="wrong")


# --- published data sets ---


def test_cifars_pixels_are_the_bytes_and_its_classes_the_fine_ones(load):
    data = load(cifar10(), image_size=32)
    content = cifar10()["cifar-10-batches-bin/data_batch_1.bin"]
    row = np.frombuffer(content, np.uint8)[1:3073]
    assert torch.equal(data.train.images[0], torch.tensor(row.reshape(3, 32, 32)))
    fine = load(cifar100(), place="100").classes["class_id"].tolist()
    assert fine == ["apple", "aquarium_fish", "baby"]
    cut = {name: content[:5000] for name, content in cifar10().items()}
    few = cifar10() | {"cifar-10-batches-bin/batches.meta.txt": b"airplane"}
    for files, message in ((cut, "is cut: its 5,000 bytes"), (few, "has labels to 1")):
        with pytest.raises(ValueError, match=rf"data_batch_1.bin {message}"):
            load(files, place=message)


def test_boxes_of_tiny_imagenet_are_those_of_the_class_and_not_of_a_name(load):
    files = {}
    for label, name in enumerate(CLASSES):
        for number in range(4):
            picture = jpeg(100 * label + number, (16, 16))
            files[f"train/{name}/images/{number}.JPEG"] = picture
        lines = [f"{number}.JPEG\t{label}\t1\t9\t9" for number in range(4)]
        files[f"train/{name}/{name}_boxes.txt"] = "\n".join(lines).encode("utf-8-sig")
    data = load(files)
    assert data.train.boxes[:, 0, 0].tolist() == data.train.labels.tolist()
    assert kinds(data) == {}


def test_names_and_accents_of_other_systems_are_those_that_are_asked_for(load):
    decomposed, composed = "cafe\u0301", "caf\u00e9"
    files = class_folders("train/", classes=(decomposed, "NA"))
    assert load(files).classes["class_id"].tolist() == ["NA", composed]
    same = load(files, class_ids=[composed, "NA"])
    assert same.classes["class_id"].tolist() == [composed, "NA"]

"""Every layout on a small made source: read as docs/images.md has it, or refused."""

import json

import numpy as np
import pytest
import torch

from helpers.data import layouts
from helpers.data.layouts import split_of
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
    "class_folders": class_folders("train/") | class_folders("val/"),
    "cifar": cifar10(),
    "coco": coco_source(),
    "csv": csv_source(),
    "yolo": yolo_source(),
    "labelme": labelme_source(),
}
WITHOUT_BOXES = ("class_folders", "cifar")


def counts(data):
    return data.classes[["class_id", "train_images", "test_images"]].values.tolist()


def boxes_of(data):
    """Boxes without padding by the end of the image's name."""
    return {
        name.rsplit("/", 1)[-1]: [box for box in boxes if any(box)]
        for images in (data.train, data.test)
        for name, boxes in zip(images.names, images.boxes.tolist(), strict=True)
    }


def png(seed):
    return jpeg(seed, kind="PNG")


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


@pytest.mark.parametrize(
    ("path", "split"),
    [
        *((path, "train") for path in ("Train", "seg_train", "trainA", "a/train.X1")),
        *((path, "test") for path in ("val2017", "valid", "test1", "train/validation")),
        *((path, "") for path in ("trainers", "valley", "testudo", "eval", "dev", "")),
    ],
)
def test_a_split_is_a_whole_word(path, split):
    assert split_of(path) == split


# --- folders of classes ---


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "test"), ("data/Train", "data/val"), ("seg_train", "seg_test")],
)
def test_folders_of_classes_lie_in_splits(load, train, test):
    files = class_folders(f"{train}/") | class_folders(f"{test}/", count=2)
    assert counts(load(files)) == [["cat", 6, 2], ["dog", 6, 2]]


def test_folders_of_classes_may_be_called_train_and_hold_a_folder_images(load):
    data = load(class_folders(classes=("bus", "train", "tram")))
    assert counts(data) == [["bus", 4, 2], ["train", 4, 2], ["tram", 4, 2]]
    classes = ("bus", "train")
    files = class_folders("train/", classes=classes)
    files |= class_folders("val/", classes=classes)
    data = load(files, "class_folders", place="splits", class_ids=classes)
    assert counts(data) == [["bus", 6, 2], ["train", 6, 2]]
    nested = {name.replace("/", "/images/"): png(n) for n, name in enumerate(FLAT)}
    assert counts(load(nested, place="n")) == [["cat", 4, 2], ["dog", 4, 2]]


FLAT = class_folders()


def moved(before, after):
    return {name.replace(before, after): content for name, content in FLAT.items()}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (moved("cat/", "cat/deep/"), "images are in cat/deep, dog, and not"),
        (moved("cat/", "masks/"), "images are in dog, masks, and not"),
        (class_folders(classes=("train", "test1")), "images are in test1, train"),
        (class_folders("train/") | class_folders("dev/"), "in dev/cat, dev/dog"),
        (class_folders(classes=("trainA", "testA")), "in testA, trainA, and not"),
        (class_folders("amazon/") | class_folders("dslr/"), "in amazon/cat"),
        (
            class_folders("train/") | class_folders("test/") | {"pred/0.png": png(0)},
            "images are in pred, test/cat, test/dog, train/cat, train/dog, and not",
        ),
        (
            FLAT | {name.replace("png", "bmp"): b"" for name in FLAT},
            "masks or copies are beside images, such as cat/0 and cat/0",
        ),
        (FLAT | {"dog/3_mask.png": png(0)}, "masks or copies are beside images"),
    ],
)
def test_other_folders_are_refused(load, files, message):
    with pytest.raises(ValueError, match=f"not read as class_folders: .*{message}"):
        load(files)


def test_files_that_are_not_read_are_counted_by_ending(load):
    more = {"0.tfrecord": b"", "cat/1.heic": b"", "cat/2.HEIC": b"", "README.md": b""}
    data = load(FLAT | more | {"loose.png": png(9), "train.txt": b"cat/0.png"})
    assert dict(data.faults[["name", "detail"]].values) == {
        "0.tfrecord": "1 .tfrecord are not read",
        "cat/1.heic": "2 .heic are not read",
        "loose.png": "1 .png are not read",
        "train.txt": "1 .txt are not read",
    }


# --- annotations ---


@pytest.mark.parametrize(
    ("images", "marks"),
    [
        ("{}.jpg", "{}.xml"),
        ("photos/{}.jpg", "photos/{}.xml"),  # one folder is no class
        ("VOC2007/JPEGImages/{}.jpg", "VOC2007/Annotations/{}.xml"),
        ("images/{}.jpg", "annotations/xmls/{}.XML"),
    ],
)
def test_voc_files_lie_beside_their_images_or_in_folders_of_annotations(
    load, images, marks
):
    data = load(voc_source(images, marks))
    assert data.layout == "voc"
    assert counts(data) == [["cat", 6, 2], ["dog", 6, 2]]


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
    for number, content in enumerate((b"<annotation", voc((1, 1, "x", 4)))):
        message = f"not read as voc: {marks[1]}: .*; voc is"
        with pytest.raises(ValueError, match=message):
            load(files | {marks[1]: content}, place=f"{number}")


def test_two_kinds_of_annotations_are_refused_and_read_by_name(load):
    files = labelme_source() | voc_source("photos/{}.jpg", "photos/{}.xml", count=12)
    message = "has annotations of labelme and voc; name one"
    with pytest.raises(ValueError, match=message):
        load(files)
    assert load(files, "voc").layout == "voc"
    assert load(files, "labelme").layout == "labelme"


def test_an_image_of_coco_is_of_the_class_of_its_largest_box(load):
    found = boxes_of(load(coco_source(), test_images_per_class=3))
    # of 20 x 16 to 16 x 16, x times 0.8
    assert found["train_001.jpg"] == [[0, 1, 7, 13]]
    assert found["train_000.jpg"] == [[7, 1, 16, 16]]


@pytest.mark.parametrize(
    ("places", "tables"),
    [
        ("{split}/{name}", "{split}/_annotations.coco.json"),  # beside each other
        ("test-set/{split}/{name}", "test-set/annotations/instances_{split}.json"),
        ("pictures/{name}", "{split}.json"),
    ],
)
def test_images_of_a_table_are_found_where_they_lie(load, places, tables):
    data = load(coco_source(places, tables))
    assert counts(data) == [["cat", 3, 2], ["dog", 3, 2]]


def test_coco_in_several_files_is_read_whole_and_no_image_twice(load):
    places = "pictures/{name}"
    files = coco_source(places, "a_{split}.json")
    data = load(files | {"captions.json": b'{"images": [], "annotations": []}'})
    assert len(data.train) + len(data.test) == 10
    assert data.faults["name"].tolist() == ["captions.json"]
    with pytest.raises(ValueError, match=r"pictures/\S+ is in two files; remove one"):
        load(files | coco_source(places, "b_{split}.json"), place="twice")


@pytest.mark.parametrize(
    ("head", "numbers"),
    [
        ("path,label,x0,y0,x1,y1", "0.1,0.1,0.6,0.6"),  # shares
        ("path,label,x0,y0,x1,y1,width,height", "10,10,60,60,20,16"),  # sizes
    ],
)
def test_boxes_of_another_measure_are_refused(load, head, numbers):
    rows = [f"pictures/{n}.jpg,{('cat', 'dog')[n % 2]},{numbers}" for n in range(8)]
    table = "\n".join([head, *rows]).encode()
    with pytest.raises(ValueError, match="of 8 images with boxes 8 have some that"):
        load(csv_source() | {"labels.csv": table})


def test_yolos_boxes_in_pixels_are_refused(load):
    files = yolo_source()
    pixels = {name: b"0 9 8 6 6\n" for name in files if name.endswith(".txt")}
    with pytest.raises(ValueError, match="of 12 images with boxes 12 have some that"):
        load(files | pixels)


def test_no_path_leaves_the_source_and_a_table_names_whole_folders(load, tmp_path):
    (tmp_path / "secret.jpg").write_bytes(jpeg(77))
    table = csv_source()["labels.csv"].decode()
    for number, path in enumerate(("../secret.jpg", "/etc/0.jpg", "elsewhere/4.jpg")):
        table = table.replace(f"pictures/{number}.jpg", path)
    files = csv_source() | {"labels.csv": table.encode()}
    options = {"test_images_per_class": 1, "minimum_images_per_class": 1}
    data = load(files, "csv", **options)
    assert data.faults["detail"].tolist()[:2] == [
        "3 have no image, or several, such as ../secret.jpg",
        "3 .jpg are not read",
    ]


def test_a_csv_has_splits_several_boxes_or_none(load):
    assert not load(csv_source(boxes=False)).train.has_boxes
    head, *rows = csv_source()["labels.csv"].decode().splitlines()
    rows = [f"{row},{('train', 'valid')[n > 4]}" for n, row in enumerate(rows)]
    rows.append("pictures/0.jpg,cat,4,4,20,16,train")
    files = csv_source() | {"labels.csv": "\n".join([f"{head},split", *rows]).encode()}
    data = load(files, place="split", test_images_per_class=1)
    assert boxes_of(data)["0.jpg"] == [[1, 2, 9, 10], [3, 4, 16, 16]]
    assert counts(data) == [["cat", 3, 1], ["dog", 2, 1]]


def test_yolos_boxes_are_shares_of_the_image_and_their_names_are_safe(load):
    files = yolo_source()
    files["labels/train/0.txt"] = b"1 0.5 0.5 0.5 0.25\n0 0.25 0.25 0.5 0.5\n"
    files["labels/train/2.txt"] = b""
    data = load(files | {"old.yaml": b"names: [person, bicycle]"})
    row = data.train.names.index("images/train/0.jpg")
    assert data.train.boxes[row, 0].tolist() == [0, 0, 8, 8]
    assert kinds(data) == {"no_object_in_annotation": 1, "not_read": 1}
    del files["data.yaml"]
    data = load(files | {"classes.txt": b"cat\ndog\n"}, place="txt")
    assert data.classes["class_id"].tolist() == ["cat", "dog"]
    data = load(files | {"data.yaml": b"names: [no, 1.0]"}, place="texts")
    assert data.classes["class_id"].tolist() == ["1.0", "no"]
    bad = b"names: !!python/object/apply:os.system [exit]"
    for number, more in enumerate(
        ({}, {"data.yaml": bad}, {"data.yaml": b"names: 3"}, {"data.yaml": b"- 1"})
    ):
        with pytest.raises(ValueError, match="is not read as yolo"):
            load(files | more, place=f"bad{number}")


# --- published data sets ---


def test_cifars_pixels_are_the_bytes_and_its_classes_the_fine_ones(load):
    data = load(cifar10(), image_size=32)
    content = cifar10()["cifar-10-batches-bin/data_batch_1.bin"]
    row = np.frombuffer(content, np.uint8)[1:3073]
    assert data.train.names[0] == "cifar-10-batches-bin/data_batch_1.bin/00000"
    assert torch.equal(data.train.images[0], torch.tensor(row.reshape(3, 32, 32)))
    assert data.classes["train_images"].tolist() == [12, 12]
    fine = load(cifar100(), place="100").classes["class_id"].tolist()
    assert fine == ["apple", "aquarium_fish", "baby"]


def test_a_pickled_or_cut_file_of_cifar_is_refused(load):
    cut = {name: content[:5000] for name, content in cifar10().items()}
    with pytest.raises(ValueError, match=r"data_batch_1.bin is cut: its 5,000 bytes"):
        load(cut, place="cut")
    with pytest.raises(ValueError, match=r"test: 2 without an ending are not read"):
        load({"train": b"\x80", "test": b"\x80"}, place="pickle")


def test_boxes_of_tiny_imagenet_are_those_of_the_class_and_not_of_a_name(load):
    files = {
        f"train/{name}/images/{number}.JPEG": jpeg(100 * label + number, (16, 16))
        for label, name in enumerate(("n01", "n02"))
        for number in range(4)
    }
    for label, name in enumerate(("n01", "n02")):
        lines = [f"{number}.JPEG\t{label}\t1\t9\t9" for number in range(4)]
        files[f"train/{name}/{name}_boxes.txt"] = "\n".join(lines).encode()
    data = load(files)
    assert data.train.boxes[:, 0, 0].tolist() == data.train.labels.tolist()


@pytest.mark.parametrize("place", ["val/{}/images/", "val/{}/"])
def test_validation_images_of_tiny_imagenet_may_be_sorted_into_classes(load, place):
    files = {}
    for name, content in tiny_imagenet(val=3).items():
        wnid = f"n0{int(name[15]) + 1}" if name.startswith("val/images/") else ""
        files[name.replace("val/images/", place.format(wnid))] = content
    data = load(files, "tiny_imagenet", test_images_per_class=3)
    assert counts(data) == [["n01", 6, 3], ["n02", 6, 3]]
    assert data.test.has_boxes


def test_validation_images_of_ilsvrc_may_be_sorted_into_classes(load):
    files = {}
    for name, content in ilsvrc().items():
        before = "Data/CLS-LOC/val/"
        after = f"{before}n0{int(name[-7]) + 1}/" if before in name else ""
        files[name.replace(before, after)] = content
    data = load(files)
    assert counts(data) == [["n01", 4, 2], ["n02", 4, 2]]
    assert data.test.has_boxes


def test_images_without_a_box_are_counted_where_others_have_one(load):
    files = ilsvrc(train=6)
    marks = [name for name in files if name.endswith(".xml")]
    del files[marks[0]]
    files[marks[1]] = b"<annotation/>"
    assert kinds(load(files)) == {"not_read": 1, "no_object_in_annotation": 1}


def test_names_and_accents_of_other_systems_are_those_that_are_asked_for(load):
    decomposed, composed = "cafe\u0301", "caf\u00e9"
    data = load(class_folders("train/", classes=(decomposed, "tea")))
    assert data.classes["class_id"].tolist() == [composed, "tea"]
    files = class_folders("train/", classes=(decomposed, "tea"))
    same = load(files, class_ids=["tea", composed])
    assert same.classes["class_id"].tolist() == ["tea", composed]
    nothing = load(class_folders(classes=("NA", "None")), place="na")
    assert nothing.classes["class_id"].tolist() == ["NA", "None"]


def test_a_truncated_table_is_refused_or_counted_and_never_ends_in_a_traceback(load):
    whole = coco([("0.jpg", 20, 16)], ["cat"], [(0, 0, 1, 1, 8, 8)])
    for number, content in enumerate((whole[:40], b"[]", b"null", b"[" * 10**5)):
        data = load(FLAT | {"table.json": content}, place=f"{number}")
        assert data.faults["detail"].tolist() == ["1 .json are not read"]
    wrong = json.loads(whole) | {"images": [1]}
    with pytest.raises(ValueError, match="is not read as coco"):
        load(FLAT | {"table.json": json.dumps(wrong).encode()}, place="wrong")

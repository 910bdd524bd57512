"""Which images are for training and which for test, where files say so."""

import pytest

from helpers.data.images import sentences_of_faults
from tests.data.conftest import (
    class_folders,
    csv_source,
    kinds,
    voc_source,
    yolo_source,
)


def splits(data):
    """Names of the images of each split, without folders and endings."""
    return {
        split: sorted(
            name.rpartition("/")[2].partition(".")[0] for name in images.names
        )
        for split, images in (("train", data.train), ("test", data.test))
    }


def numbers(start, stop):
    return sorted(map(str, range(start, stop)))


def lines(first, last, form="{}\n"):
    return "".join(form.format(image) for image in range(first, last)).encode()


def test_voc_has_its_own_test_images_and_lists_of_a_class_are_none(load):
    main = "VOC2007/ImageSets/Main"
    files = voc_source() | {
        f"{main}/train.txt": lines(0, 8),
        f"{main}/val.txt": lines(8, 12),
        f"{main}/trainval.txt": lines(0, 12),
        f"{main}/cat_train.txt": lines(0, 16, "{}  1\n"),
        "VOC2007/ImageSets/Layout/test.txt": lines(0, 3),
        "VOC2007/ImageSets/Segmentation/test.txt": lines(0, 3),
    }
    data = load(files, test_images_per_class=0)
    assert splits(data) == {"train": numbers(0, 8), "test": numbers(8, 12)}
    sentences = sentences_of_faults(data.faults.itertuples())
    assert any(
        "ImageSets/Main/train.txt: 4 images are in no list there, such as" in sentence
        for sentence in sentences
    )


def test_trainval_is_for_training_but_for_what_is_in_a_list_of_test(load):
    lists = {
        "VOC2007/ImageSets/Main/trainval.txt": lines(0, 16),
        "VOC2007/ImageSets/Main/test.txt": lines(12, 16),
    }
    data = load(voc_source() | lists, test_images_per_class=0)
    assert splits(data) == {"train": numbers(0, 12), "test": numbers(12, 16)}


@pytest.mark.parametrize("form", ["/home/me/darknet/obj/{}.jpg\n", "obj\\{}.jpg 0\n"])
def test_yolo_in_one_folder_is_split_by_lists_of_paths(load, form):
    files = {}
    for name, content in yolo_source(8).items():
        if "/train/" in name:
            files[f"obj/{name.rpartition('/')[2]}"] = content
    files |= {
        "obj.names": b"cat\ndog\n",
        "train.txt": lines(0, 4, form),
        "valid.txt": lines(4, 8, form),
    }
    data = load(files, test_images_per_class=0)
    assert data.layout == "yolo"
    assert splits(data) == {"train": numbers(0, 4), "test": numbers(4, 8)}
    assert data.boxes_from.startswith("8 .txt in obj")
    assert "not_read" not in kinds(data)


def test_a_list_of_test_images_leaves_the_others_for_training(load):
    """Paths without an ending, as Food-101 has them."""
    tested = b"cat/4\ncat/5\ndog/4\ndog/5\n"
    data = load(class_folders() | {"meta/test.txt": tested}, test_images_per_class=0)
    expected = {"train": 2 * ["0", "1", "2", "3"], "test": ["4", "4", "5", "5"]}
    expected = {name: sorted(images) for name, images in expected.items()}
    assert splits(data) == expected
    whatever_name = load(class_folders(), "top_folders", test_images_per_class=0)
    assert splits(whatever_name) == expected
    # Where classes are asked for, only their folders and those of lists are looked into.
    by_name = {"class_ids": ["cat", "dog"], "test_images_per_class": 0}
    assert splits(load(class_folders(), "class_folders", **by_name)) == expected


def test_a_list_in_a_folder_that_may_be_a_class_is_none_whoever_asks(load):
    files = class_folders(classes=("cat", "dog", "fox")) | {"fox/test.txt": b"cat/1\n"}
    by_name = {"class_ids": ["cat", "dog"], "test_images_per_class": 2}
    for source, choice in (("auto", {}), ("class_folders", by_name)):
        data = load(files, source, **choice)
        chosen = data.index.query("class_id == 'cat' and split == 'test'")
        assert len(chosen) == 2


@pytest.mark.parametrize(
    "content", [b"a recipe for cats\n", b"\xff\xfe\x00", b"cat/99\n", b""]
)
def test_a_file_that_names_no_image_is_no_list(load, content):
    data = load(class_folders() | {"test.txt": content, "train.txt": content})
    assert sorted(splits(data)["test"]) != []
    assert len(data.train) + len(data.test) == 12
    assert "2 .txt are not read" in " ".join(data.faults["detail"])


def test_a_column_of_a_table_says_the_split(load):
    table = csv_source(boxes=False)["labels.csv"].decode().splitlines()
    words = ["split", *["Training"] * 4, *["VALIDATION"] * 2, *["test"] * 2]
    text = "\n".join(f"{line},{word}" for line, word in zip(table, words, strict=True))
    data = load(csv_source() | {"labels.csv": text.encode()}, test_images_per_class=0)
    assert splits(data) == {"train": numbers(0, 4), "test": numbers(4, 8)}


def test_of_several_sets_of_lists_the_first_counts_and_others_are_named(load):
    """DTD has ten, by number."""
    lists = {}
    for number, tested in ((1, "45"), (2, "01")):
        names = [
            f"{name}/{'deep/' * (image == 0)}{image}"
            for name in ("cat", "dog")
            for image in range(6)
        ]
        parts = {
            "train": [name for name in names if name[-1] not in tested],
            "test": [name for name in names if name[-1] in tested],
        }
        for split, paths in parts.items():
            lists[f"splits/{split}{number}.txt"] = "\n".join(paths).encode()
    data = load(class_folders() | lists, test_images_per_class=0)
    assert splits(data)["test"] == ["4", "4", "5", "5"]
    assert splits(data)["train"] == sorted(2 * "0123")
    assert list(data.faults["detail"]) == ["2 .txt in splits are not read"]

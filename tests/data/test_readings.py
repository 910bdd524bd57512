"""What a source could be mistaken for: splits, masks, domains, other files."""

import io
import json
import unicodedata

import numpy as np
import pytest
from PIL import Image

from helpers.data import class_folders, images, layouts
from helpers.data.annotations import Annotation
from helpers.data.class_folders import Question, folder_tree
from helpers.data.records import Record
from helpers.data.sources import Source
from tests.conftest import ilsvrc, jpeg, tiny_imagenet, voc
from tests.data.conftest import (
    class_folders as folders_of,
)
from tests.data.conftest import (
    coco,
    coco_source,
    csv_source,
    cub_source,
    kinds,
    labelme_source,
    stanford_dogs,
    voc_source,
    written,
    yolo_source,
)


def read(paths):
    """Class and split of folders, for images in folders."""
    top = folder_tree([f"{path}/{image}.png" for path in paths for image in range(2)])
    return {
        (folder.path, folder.class_id, folder.split)
        for folder in class_folders.class_folders_of(top)
    }


def of(classes, *places):
    return [f"{place}/{name}" for place in places for name in classes]


@pytest.mark.parametrize(
    ("train", "test", "beside"),
    [
        ("train", "val", ()),
        ("seg_train/seg_train", "seg_test/seg_test", ("seg_pred/seg_pred",)),
        ("train2017", "val2017", ()),
        ("training_set", "validation", ()),
        ("data/Train", "data/Test", ("data/unlabeled",)),
        ("my-train-set", "my-test-set", ()),
        ("trainset", "testset", ("extra",)),
        ("TrainData", "TestData", ("Samples",)),
        ("DogsTrain", "DogsTest", ("DogsPredict",)),
        ("train_images", "validation", ()),
    ],
)
def test_folders_of_splits_are_no_classes(train, test, beside):
    found = read([*of(("cat", "dog"), train), *of(("cat", "dog"), test), *beside])
    assert found == {
        (f"{place}/{name}", name, split)
        for place, split in ((train, "train"), (test, "test"))
        for name in ("cat", "dog")
    }


def test_parts_of_a_split_belong_together():
    found = read([*of("ab", "train.X1"), *of("cd", "train.X2"), *of("abcd", "val.X")])
    assert {(class_id, split) for _, class_id, split in found} == {
        (name, split) for name in "abcd" for split in ("train", "test")
    }


def test_test_images_without_classes_leave_the_training_images():
    found = read([*of(("cat", "dog"), "train_images"), "test_images"])
    assert {class_id for _, class_id, _ in found} == {"cat", "dog"}


@pytest.mark.parametrize(
    "paths",
    [
        ["bullet_train", "test_tube"],  # nothing else in common
        ["bullet_train/front", "bus/back"],
        ["train", "bus"],
        ["cat/images", "dog/images"],
        ["with_mask", "without_mask"],
        ["mask", "no_mask"],
    ],
)
def test_classes_whose_names_look_like_splits_or_masks_stay_classes(paths):
    if paths == ["bullet_train", "test_tube"]:
        assert {item[1] for item in read(paths)} == set(paths)
        return
    assert {item[1] for item in read(paths)} == {path.split("/")[0] for path in paths}
    assert not class_folders.find_masks([f"{path}/0.png" for path in paths])


def test_splits_within_classes_are_read():
    found = read(["cat/train", "cat/test", "dog/train", "dog/test"])
    assert {(class_id, split) for _, class_id, split in found} == {
        (name, split) for name in ("cat", "dog") for split in ("train", "test")
    }


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (
            of(("bike", "mug"), "amazon", "dslr"),
            "amazon, dslr hold folders of the same",
        ),
        (
            ["train2017", "val2017"],
            "train2017, val2017 name splits, and hold no folder",
        ),
        (["seg_train", "seg_test", "extra"], "seg_test, seg_train name splits"),
        (of(("red", "blue"), "train", "bus"), "bus, train hold folders of the same"),
    ],
)
def test_two_possible_readings_are_a_question(paths, message, tmp_path, load):
    with pytest.raises(Question, match=message):
        read(paths)
    files = {f"{path}/{image}.png": jpeg(len(path) * 9 + image, kind="PNG")
             for path in paths for image in range(6)}  # fmt: skip
    with pytest.raises(ValueError, match="--layout top_folders"):
        load(files)
    data = load(tmp_path / "source", "top_folders")
    assert set(data.classes["class_id"]) == {path.split("/")[0] for path in paths}


@pytest.mark.parametrize(
    ("shared", "message"), [(2, "hold folders of the same"), (1, "hold no images")]
)
def test_folders_hold_the_same_where_half_of_the_smaller_one_is_alike(shared, message):
    both = ["x", "y"][:shared]
    ours = of([*both, "p", "q"], "amazon")
    theirs = of([*both, "s", "t", "u", "v"], "dslr")
    with pytest.raises(Question, match=message):
        read(ours + theirs)


def test_a_folder_that_repeats_those_beside_it_is_a_question():
    paths = of(("cat", "dog"), "thumbs")
    with pytest.raises(Question, match="thumbs holds folders with the names of those"):
        read([*paths, "cat", "dog"])
    assert {name for _, name, _ in read(["cat/deep", "dog"])} == {"cat", "dog"}


def test_labels_that_differ_in_capitals_alone_are_named(tmp_path):
    files = {f"JPEGImages/{i}.jpg": jpeg(i) for i in range(4)}
    files |= {
        f"Annotations/{i}.xml": voc((1, 1, 9, 9), name=("Cat", "cat")[i % 2])
        for i in range(4)
    }
    listing = layouts.scan(Source(written(tmp_path, files)), "auto")
    assert listing.classes == ["Cat", "cat"]
    (sentence,) = images.sentences_of_faults(listing.faults)
    assert "the labels 'Cat' and 'cat' differ in capitals alone" in sentence


def test_images_are_those_that_files_name_in_letters_of_any_case(tmp_path):
    """Also where an XML has another name than its image, and states it."""
    files = {f"data/{i}.JPG": jpeg(i) for i in range(4)}
    marked = [(i, i % 2, 1, 1, 8, 8) for i in range(4)]
    table = coco([(f"{i}.jpg", 20, 16) for i in range(4)], ["cat", "dog"], marked)
    listing = layouts.scan(
        Source(written(tmp_path / "a", files | {"A.JSON": table})), "auto"
    )
    assert listing.layout == "coco"
    assert len(listing.records) == 4
    both = {f"data/{i}.jpg": jpeg(9 + i) for i in range(4)}
    source = Source(written(tmp_path / "a", both))
    names = [record.name for record in layouts.scan(source, "coco").records]
    assert names == [f"data/{i}.jpg" for i in range(4)]
    stated = {
        f"Annotations/{i}a.xml": voc((1, 1, 9, 9), name=("cat", "dog")[i % 2]).replace(
            b"<annotation>", f"<annotation><filename>{i}.jpg</filename>".encode()
        )
        for i in range(4)
    }
    listing = layouts.scan(Source(written(tmp_path / "b", files | stated)), "auto")
    assert listing.layout == "voc"
    assert [record.class_id for record in listing.records] == ["cat", "dog"] * 2


@pytest.mark.parametrize(("others", "differ"), [(2, False), (3, True)])
def test_folders_and_objects_agree_where_four_of_five_labels_are_the_folders(
    others, differ
):
    records = [
        Record(f"{folder}/{image}.png", folder, "train", Annotation(((label, None),)))
        for folder, labels in (
            ("a", ["cat"] * (10 - others) + ["dog"] * others),
            ("b", ["dog"] * (10 - others) + ["cat"] * others),
        )
        for image, label in enumerate(labels)
    ]
    assert bool(class_folders.disagreement(records)) == differ


@pytest.mark.parametrize(
    ("images_at", "masks_at"),
    [
        ("images/{}/{}.jpg", "segmentations/{}/{}.png"),
        ("{}/images/{}.jpg", "{}/masks/{}.png"),
        ("{}/{}.jpg", "{}/{}_mask.png"),
        ("{}/{}.jpg", "{}/{}_depth.png"),
        ("{}/{}.jpg", "masks/{}/{}.png"),
    ],
)
def test_masks_are_no_images_of_a_class_and_are_named(load, images_at, masks_at):
    files = {}
    for name in ("cat", "dog"):
        for image in range(6):
            seed = image + 100 * len(files)
            files[images_at.format(name, image)] = jpeg(seed)
            files[masks_at.format(name, image)] = jpeg(seed, mode="L", kind="PNG")
    data = load(files)
    assert data.classes["class_id"].tolist() == ["cat", "dog"]
    assert all(name.endswith(".jpg") for name in data.index["name"])
    (sentence,) = set(data.faults["detail"].str.replace(r" in \w+", "", regex=True))
    assert sentence.endswith(".png are not read: masks of images")


def test_folders_and_objects_that_name_other_classes_are_a_question(load, tmp_path):
    """Folders are dates; each holds cats and dogs."""
    files = {}
    for number in range(16):
        place = f"{('monday', 'friday')[number % 2]}/{number}"
        files[f"{place}.jpg"] = jpeg(number)
        name = ("cat", "dog")[number // 2 % 2]
        files[f"{place}.xml"] = voc((1, 1, 10, 10), name=name)
    with pytest.raises(
        Question, match=r"folders say friday, monday, and objects .* cat"
    ):
        load(files)
    path = tmp_path / "source"
    assert load(path, "voc").classes["class_id"].tolist() == ["cat", "dog"]
    assert load(path, "voc_folder").classes["class_id"].tolist() == ["friday", "monday"]


def test_annotations_of_a_few_images_do_not_hide_the_folders(load):
    files = folders_of() | {"labels.csv": b"path,label\ncat/1.png,sick\ndog/1.png,well"}
    with pytest.raises(Question, match=r"csv\) are of 2 of 12 images.*class_folders"):
        load(files)


def test_stanford_dogs_boxes_lie_in_a_tree_of_their_own(load):
    data = load(stanford_dogs())
    assert data.layout == "voc_folder"
    assert data.classes["class_id"].tolist() == ["n01-Chihuahua", "n02-Pug"]
    assert data.train.boxes[0].tolist() == [[4, 2, 12, 10]]  # 20 x 16 to 16 x 16
    assert data.boxes_from == "12 files in Annotation"
    assert not len(data.faults)


def test_cub_has_boxes_of_corner_and_size_and_its_own_split(load):
    data = load(cub_source())
    assert data.train.boxes[0].tolist() == [[4, 2, 12, 10]]
    assert data.classes["train_images"].tolist() == [6, 6]
    assert sorted(data.test.names)[0] == "images/001.Auk/0.jpg"
    assert set(data.classes["class_id"]) == {"001.Auk", "002.Owl"}


@pytest.mark.parametrize("make", [tiny_imagenet, ilsvrc])
def test_validation_images_sorted_into_folders_are_the_test(load, make):
    files = {}
    for name, content in make().items():
        if name.startswith("val/images/"):  # val_0_1.JPEG is of the first class
            file = name.removeprefix("val/images/")
            name = f"val/n0{int(file[4]) + 1}/images/{file}"
        if name.startswith("ILSVRC/Data/CLS-LOC/val/"):
            file = name.rpartition("/")[2]
            name = f"ILSVRC/Data/CLS-LOC/val/n0{int(file[15]) + 1}/{file}"
        files[name] = content
    plain, sorted_ = load(make(), place="plain"), load(files)
    assert sorted_.layout == plain.layout == make.__name__
    assert sorted_.fingerprint == plain.fingerprint
    one = load(files, make.__name__, class_ids=["n02"])
    assert set(one.classes["class_id"]) == {"n02"} and not len(one.faults)


def test_both_validation_and_test_images_are_the_test(load):
    files = folders_of("train/") | folders_of("val/", 1) | folders_of("test-12/", 6)
    data = load(files, test_images_per_class=0)
    assert data.classes["test_images"].tolist() == [7, 7]


def test_names_that_differ_in_the_form_of_their_letters_are_one_class(load):
    apart = unicodedata.normalize("NFD", "café")
    files = folders_of("train/", classes=(apart, "thé"))
    files |= folders_of("val/", classes=("café", "thé"))
    data = load(files, class_ids=["café", "thé"])
    assert data.classes[
        ["class_id", "train_images", "test_images"]
    ].values.tolist() == [
        ["café", 6, 2],
        ["thé", 6, 2],
    ]
    found = Source(written(data_path(load), {}), ["café"])
    assert all("th" not in name for name in found.names)


def data_path(load):
    """The folder into which ``load`` writes."""
    return load.__closure__[0].cell_contents / "source"


def test_of_two_yaml_files_data_yaml_counts_and_others_are_a_question(load):
    other = {"old.yaml": b"names: [person, bicycle]"}
    data = load(yolo_source() | other)
    assert data.classes["class_id"].tolist() == ["cat", "dog"]
    assert data.faults["name"].tolist() == ["old.yaml"]
    files = yolo_source() | other
    files["new.yaml"] = files.pop("data.yaml")
    with pytest.raises(Question, match=r"new.yaml and old.yaml name the classes diff"):
        load(files, place="question")


def test_yolos_names_may_stand_in_lines_and_labels_beside_the_images(load):
    files = yolo_source()
    del files["data.yaml"]
    bare = load(files, place="bare")
    assert bare.classes["class_id"].tolist() == ["0", "1"]
    assert "2 classes have a number and no name" in bare.faults["detail"].item()
    beside = {
        name.replace("labels/", "data/").replace("images/", "data/"): content
        for name, content in files.items()
    }
    beside["data/classes.txt"] = b"no\nnull\n"
    data = load(beside, place="beside")
    assert (data.layout, data.classes["class_id"].tolist()) == ("yolo", ["no", "null"])
    quoted = files | {"data.yaml": b"names: [no, 7]"}
    assert load(quoted, place="yaml").classes["class_id"].tolist() == ["7", "no"]


def test_boxes_in_shares_of_a_coco_file_are_shares_and_it_is_said(load):
    files = coco_source()
    for name in [name for name in files if name.endswith("json")]:
        table = json.loads(files[name])
        for mark in table["annotations"]:
            x, y, width, height = mark["bbox"]
            mark["bbox"] = [x / 20, y / 16, width / 20, height / 16]
        files[name] = json.dumps(table).encode()
    shares, pixels = load(files), load(coco_source(), place="pixels")
    assert shares.fingerprint == pixels.fingerprint
    assert (
        "no number exceeds 1"
        in images.sentences_of_faults(shares.faults.itertuples())[0]
    )


def test_yolo_in_pixels_is_refused_with_the_reason(load):
    files = yolo_source()
    for name in [name for name in files if name.startswith("labels/")]:
        files[name] = b"0 10 8 6 4"
    with pytest.raises(
        ValueError, match=r"no class was found.*12 malformed.*divide pix"
    ):
        load(files)


def test_folders_of_folders_are_a_question_and_class_ids_answer_it(load):
    species = ("canis/dog", "canis/wolf", "felis/cat", "felis/lynx")
    names = [f"train/{one}/{number}.jpg" for one in species for number in range(6)]
    files = {name: jpeg(number) for number, name in enumerate(names)}
    with pytest.raises(Question, match="canis, felis hold no images but several"):
        load(files)
    data = load(files, class_ids=["cat", "wolf"])
    assert data.classes["class_id"].tolist() == ["cat", "wolf"]
    data = load(files, "top_folders")
    assert data.classes["class_id"].tolist() == ["canis", "felis"]


def test_labels_that_look_like_paths_are_ids_of_classes_and_two_are_never_one(load):
    images_of = {f"{number}.jpg": jpeg(number) for number in range(12)}
    csv = "path,label\n" + "".join(
        f"{number},{('bus/tram', '../car')[number % 2]}\n" for number in range(12)
    )
    data = load(images_of | {"a.csv": csv.encode()})
    assert data.classes["class_id"].tolist() == ["..-car", "bus-tram"]
    with pytest.raises(Question, match="'bus-tram' and 'bus/tram' would both be"):
        load(images_of | {"a.csv": csv.replace("../car", "bus-tram").encode()})


def test_deep_grey_images_are_told_of_in_the_first_lines(load):
    deep = io.BytesIO()
    Image.fromarray(np.full((9, 9), 4000, np.uint16)).save(deep, "PNG")
    shallow = folders_of("train/")
    data = load(shallow | {"train/cat/deep.png": deep.getvalue()})
    (sentence,) = images.sentences_of_faults(data.faults.itertuples())
    assert sentence.startswith("1 image cannot be read, such as train/cat/deep.png: ")
    assert "not of 8 bits; save them as an image of 8 bits" in sentence
    with pytest.raises(ValueError, match="not of 8 bits; save them"):
        load(dict.fromkeys(shallow, deep.getvalue()))


def test_everything_that_is_not_read_is_named_with_its_reason(load):
    files = folders_of("train/") | {
        "train/cat/x.heic": b"",
        "train/cat/y.heic": b"",
        "notes.txt": b"",
        "README.md": b"",
    }
    files |= {f"train/dog/{number}.json": b"{}" for number in range(3)}
    data = load(files)
    assert set(kinds(data)) == {"not_read"}
    assert data.faults["detail"].tolist() == [
        "3 .json in train are not read: it does not hold images, annotations and "
        "categories as COCO has them",
        "2 .heic in train are not read: save them as JPEG or PNG",
        "is not read",
    ]


def test_a_voc_tree_in_folders_of_splits_is_read_by_its_objects(load):
    data = load(voc_source("JPEGImages/train/{}.jpg", "Annotations/train/{}.xml"))
    assert data.layout == "voc"
    assert layouts.LAYOUTS["voc"].by_folder is False


def test_two_tables_that_contradict_each_other_are_a_question(load):
    table = csv_source(boxes=False)
    other = table["labels.csv"].replace(b"cat", b"red")
    with pytest.raises(Question, match=r"labels\.csv and other\.csv disagree about"):
        load(table | {"other.csv": other})
    moved = csv_source()
    other = moved["labels.csv"].replace(b"2,2,12,10", b"3,2,12,10")
    with pytest.raises(Question, match=r"disagree about pictures/0\.jpg"):
        load(moved | {"other.csv": other})


def test_a_table_that_repeats_another_changes_nothing(load):
    table = csv_source()
    labels = csv_source(boxes=False)["labels.csv"]
    tables = {
        "all.csv": labels,
        "boxes_test.csv": b"\n".join(table["labels.csv"].splitlines()[:5]),
        "boxes_train.csv": b"\n".join(
            table["labels.csv"].splitlines()[:1] + table["labels.csv"].splitlines()[5:]
        ),
    }
    del table["labels.csv"]
    data = load(table | tables, test_images_per_class=0)
    assert (len(data.train), len(data.test), kinds(data)) == (4, 4, {})
    assert data.train.has_boxes


def test_an_example_of_an_answer_has_no_labels(load):
    table = csv_source(boxes=False)
    answer = b"id,label\n" + b"".join(b"t%d,cat\n" % image for image in range(4))
    files = {f"test/t{image}.jpg": jpeg(50 + image) for image in range(4)}
    data = load(table | files | {"sample_submission.csv": answer})
    assert not any("test/" in name for name in data.index["name"])
    assert "example of an answer" in " ".join(data.faults["detail"])


def test_a_class_of_test_images_that_is_spelt_otherwise_is_named(load):
    files = folders_of("train/", classes=("Cat", "hot-dog"))
    files |= folders_of("val/", count=3, classes=("cat", "hot_dog"))
    sentences = images.sentences_of_faults(load(files).faults.itertuples())
    assert any(
        "cat (3 images, and none for training; it differs from 'Cat' in" in sentence
        and "it differs from 'hot-dog' in" in sentence
        for sentence in sentences
    )


def test_boxes_that_reach_out_of_many_images_are_named_in_the_first_lines(load):
    """COCO's box is x, y, width, height; here are corners."""
    marked = [(image, image % 2, 9, 7, 18, 14) for image in range(12)]
    names = [(f"{image}.jpg", 20, 16) for image in range(12)]
    files = {name: jpeg(image) for image, (name, _, _) in enumerate(names)}
    wrong = coco(names, ["cat", "dog"], marked)
    sentences = images.sentences_of_faults(
        load(files | {"a.json": wrong}).faults.itertuples()
    )
    assert any(
        "of 12 images with boxes 12 have some that reach out, such as 0.jpg "
        "(9.0, 7.0, 27.0, 21.0)" in sentence
        for sentence in sentences
    )
    right = coco(names, ["cat", "dog"], [(*item[:4], 11.5, 9.5) for item in marked])
    faults = load(files | {"a.json": right}, place="other").faults["fault"]
    assert set(faults) == {"box_outside_clipped"}


def test_labelme_in_a_folder_of_its_own_names_its_images(load):
    files = {}
    for name, content in labelme_source().items():
        if name.endswith(".json"):
            image = name.rpartition("/")[2].replace("json", "jpg")
            table = json.loads(content) | {"imagePath": f"..\\photos\\{image}"}
            files[f"marks/of_{image}.json"] = json.dumps(table).encode()
        else:
            files[name] = content
    assert load(files).layout == "labelme"


def test_masks_beside_the_annotations_are_no_images(load):
    """Oxford's pets: annotations/xmls and annotations/trimaps, of the same names."""
    files = voc_source("images/{}.jpg", "annotations/xmls/{}.xml")
    files |= {
        f"annotations/trimaps/{image}.png": jpeg(90 + image, kind="PNG")
        for image in range(16)
    }
    data = load(files)
    assert all(name.startswith("images/") for name in data.index["name"])
    assert "16 .png in annotations are not read: masks" in data.faults["detail"][0]


def test_a_file_that_one_reader_understands_is_not_called_no_file_of_another(load):
    """A COCO file whose objects are masks of runs is no labelme file, and need not be."""
    names = [(f"{image}.jpg", 20, 16) for image in range(4)]
    table = json.loads(coco(names, ["cat", "dog"], [(image, 0) for image in range(4)]))
    for mark in table["annotations"]:
        del mark["bbox"]
        mark["segmentation"] = {"counts": "abc", "size": [16, 20]}
    files = folders_of() | {name: jpeg(50) for name, _, _ in names}
    faults = load(files | {"a.json": json.dumps(table).encode()}).faults
    details = " ".join(faults["detail"])
    assert "as coco, 4 malformed annotation: an object has a mask of runs" in details
    assert "labelme" not in details

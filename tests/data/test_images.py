"""Which images a study gets, their fingerprint, and what is kept of them."""

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.data import images
from tests.conftest import LAYOUTS, jpeg, tiny_imagenet, voc_folder
from tests.data.conftest import class_folders, csv_source, kinds, written, zipped


def same(first, second):
    assert first.fingerprint == second.fingerprint
    assert torch.equal(first.train.images, second.train.images)
    assert torch.equal(first.test.images, second.test.images)
    assert first.faults.astype(str).equals(second.faults.astype(str))


def counts(data):
    return data.classes[["train_images", "test_images"]].values.tolist()


def ppm(number):
    """A picture of 20 x 16 pixels whose bytes no library decides."""
    pixels = bytes((number * 7 + pixel * pixel * 5) % 256 for pixel in range(960))
    return b"P6 20 16 255\n" + pixels


# Computed by commit 2a53f50d, before the readers were rewritten: runs and records of
# published studies name their images so.
EARLIER = {
    "tiny_imagenet": "f4adaecdb02f52d2",
    "ilsvrc": "14e4917f21544b75",
    "voc": "f0da0bc4cff00ca1",
}


@pytest.mark.parametrize("layout", EARLIER)
def test_the_fingerprint_is_that_of_earlier_commits(load, layout):
    files = LAYOUTS[layout]() if layout != "voc" else voc_folder(count=9)
    for number, name in enumerate(sorted(files)):
        if name.lower().endswith(("jpg", "jpeg")):
            files[name] = ppm(number)
    data = load(files, layout, images_per_class=3)
    assert data.fingerprint == EARLIER[layout]


def test_the_fingerprint_is_what_the_images_are_and_not_where_they_lie(tmp_path, load):
    files = tiny_imagenet()
    here, elsewhere = (
        written(tmp_path / name, files) for name in ("here", "elsewhere")
    )
    prints = {load(path).fingerprint for path in (here, elsewhere)}
    prints.add(load(here, image_size=24).fingerprint)
    prints.add(load(here, class_ids=["n02", "n01"]).fingerprint)
    (elsewhere / "train/n01/images/n01_0.JPEG").write_bytes(jpeg(99, (16, 16)))
    prints.add(load(elsewhere).fingerprint)
    boxes = here / "train/n01/n01_boxes.txt"
    boxes.write_text(boxes.read_text().replace("12\t13", "12\t14"))
    prints.add(load(here).fingerprint)
    assert len(prints) == 5


def test_a_cache_is_read_and_a_damaged_one_made_again(tmp_path, load, monkeypatch):
    path = zipped(tmp_path / "a.zip", tiny_imagenet())
    first = load(path)
    with monkeypatch.context() as patch:
        patch.delattr(images, "decode_all")
        same(first, load(path))
    (cache,) = (tmp_path / "cache").glob("images-*.safetensors")
    content = cache.read_bytes()
    cache.unlink()  # not in place: what is mapped must stay
    cache.write_bytes(content[:-1])
    message = r"images-\w+.safetensors is damaged .*; it is made again"
    with pytest.warns(UserWarning, match=message):
        same(first, load(path))


def test_every_damage_is_counted_and_the_rest_is_used(load):
    files = tiny_imagenet(classes=("n01", "n02", "n03"), train=12)
    image = "train/n01/images/n01_{}.JPEG".format
    files[image(0)] = files[image(0)][: len(files[image(0)]) // 2]  # cut
    files[image(1)] = b"this is a text file"
    files[image(3)] = files[image(4)]  # the same file twice
    lines = [f"n01_{n}.JPEG\t1\t1\t9\t9" for n in range(12)]
    lines[5] = "n01_5.JPEG\t-4\t-4\t9\t9"  # reaches outside
    lines[6] = "n01_6.JPEG\t30\t30\t20\t20"  # inverted, and wholly outside
    del lines[10]  # no annotation
    files["train/n01/n01_boxes.txt"] = "\n".join(lines).encode()
    del files["train/n03/n03_boxes.txt"]
    # a training image among the test images
    files["val/images/val_0_0.JPEG"] = files["train/n02/images/n02_0.JPEG"]
    classes = ["n01", "n02", "n03", "n77"]
    data = load(files, "tiny_imagenet", class_ids=classes, test_images_per_class=3)
    assert kinds(data) == {
        "unreadable_image": 2,
        "duplicate_image": 1,
        "contradictory_labels": 1,
        "box_outside_clipped": 1,
        "box_without_area": 1,
        "no_usable_box": 1,
        "not_read": 1,
        "class_left_out": 2,
    }
    assert data.classes["class_id"].tolist() == ["n01", "n02"]
    used = {name.rsplit("/", 1)[1] for name in data.train.names if "n01" in name}
    # 4 is 3's double
    assert used == {f"n01_{number}.JPEG" for number in (2, 3, 5, 7, 8, 9, 11)}


def test_test_images_with_the_pixels_of_training_images_are_counted_and_left_out(load):
    """The same picture saved anew as another file, of either class."""
    files = class_folders("train/") | class_folders("val/")
    for name, original in (
        ("val/cat/1.png", "train/cat/1.png"),
        ("val/dog/1.png", "train/cat/2.png"),
    ):
        files[name] = saved(Image.open(io.BytesIO(files[original])), "BMP")
    data = load(files, test_images_per_class=0)
    assert dict(data.faults[["name", "fault"]].values) == {
        "val/cat/1.png": "duplicate_image",
        "val/dog/1.png": "contradictory_labels",
    }
    assert "train/cat/2.png, which is of the class cat" in data.faults["detail"].iloc[1]
    assert counts(data) == [[6, 5], [6, 5]]
    train = class_folders("train/")
    again = {name: content + b" " for name, content in train.items()}
    val = {name.replace("train", "val"): content for name, content in again.items()}
    message = r"12 are left, 0 of them for test, of 2 .*; faults: 12 × duplicate image"
    with pytest.raises(ValueError, match=message):
        load(train | val, place="copies")


def test_training_and_test_images_are_of_the_same_classes(load):
    files = class_folders("train/", classes=("cat", "dog", "owl"))
    files |= class_folders("val/", classes=("cat", "dog", "emu"))
    data = load(files, images_per_class=5)
    assert data.classes["class_id"].tolist() == ["cat", "dog"]
    assert counts(data) == [[5, 2], [5, 2]]
    assert set(data.faults["class_id"]) == {"emu", "owl"}
    with pytest.raises(ValueError, match=r"of 0 images .* faults: 2 × class left out"):
        load(files, class_ids=["elk", "ewe"])
    rest = load(files, images_per_class=5, test_images_per_class=0)
    assert rest.classes["test_images"].tolist() == [7, 7, 1]  # what training leaves


def photograph(seed, side=40):
    """Pixels of a smooth random picture, which stays itself when it is saved anew."""
    small = np.random.default_rng(seed).integers(0, 200, (8, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((side, side)))


def saved(pixels, kind="JPEG"):
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, kind, quality=90)
    return buffer.getvalue()


def changed(pixels):
    """Copies of a photograph: saved anew, mirrored, turned, lighter, smaller."""
    smaller = np.asarray(Image.fromarray(pixels).resize((24, 30)))
    return pixels, pixels[:, ::-1], np.rot90(pixels), pixels + 40, smaller


@pytest.mark.parametrize("by_roboflow", [False, True])
def test_no_photograph_is_on_both_sides_of_a_split_that_is_drawn(load, by_roboflow):
    """Roboflow's copies are cut, with other pixels, and are found by their names."""
    files = {}
    for name, number in itertools.product(("cat", "dog"), range(6)):
        seed = [ord(name[0]), number]
        for copy, pixels in enumerate(changed(photograph(seed))):
            path = f"{name}/{number}_{copy}.jpg"
            if by_roboflow:
                path = f"{name}/{number}_jpg.rf.{copy}.jpg"
                pixels = photograph([*seed, copy])
            files[path] = saved(pixels)
    data = load(files)

    def shown(names):
        return {name.partition("_")[0] for name in names}

    tested = shown(data.test.names)
    others = {name for name in files if not shown([name]) & tested}
    assert set(data.train.names) == others
    assert kinds(data) == {"copy_of_test_image": 60 - len(others) - len(data.test)}


def test_a_copy_in_the_sources_own_test_images_is_told_and_stays(load):
    folders = ("train/cat", "train/dog", "val/cat", "val/dog")
    files = {
        f"{folders[seed]}/{number}.jpg": saved(photograph([seed, number]))
        for seed, number in itertools.product(range(4), range(4))
    }
    assert kinds(load(files)) == {}
    again = saved(changed(photograph([2, 0]))[1])
    data = load(files | {"train/dog/9.jpg": again}, test_images_per_class=4)
    assert counts(data) == [[4, 4], [5, 4]]
    (fault,) = data.faults[["name", "fault", "detail"]].values.tolist()
    assert fault[:2] == ["train/dog/9.jpg", "copy_of_test_image"]
    assert fault[2] == "it shows the test image val/cat/0.jpg"


def test_the_held_out_test_split_is_seeded_and_disjoint(tmp_path, load):
    path = written(tmp_path / "s", voc_folder(count=10))
    one, again, other = (
        load(path, data_seed=seed, test_images_per_class=3, image_size=size)
        for seed, size in ((0, 16), (0, 24), (1, 16))
    )
    assert one.test.names == again.test.names != other.test.names
    assert not set(one.train.names) & set(one.test.names)
    assert len(one.train) == 14
    files = csv_source()
    table = files["labels.csv"].replace(b"0.jpg,cat,2,2,12,10", b"0.jpg,cat,,,,")
    files["labels.csv"] = table
    boxed = load(files, place="boxed", images_per_class=2, test_images_per_class=0)
    assert (counts(boxed), kinds(boxed)) == ([[2, 1], [2, 2]], {"no_usable_box": 1})
    # a class of few images is not held out whole
    few = load(voc_folder(count=5), place="few", test_images_per_class=50)
    assert counts(few) == [[3, 2], [3, 2]]
    assert kinds(few) == {}


def test_no_number_of_test_images_takes_all_that_training_leaves(load):
    files = tiny_imagenet(train=6, val=3)
    boxes = files["train/n01/n01_boxes.txt"].decode().splitlines()
    boxes[0] = "n01_0.JPEG\t5\t5\t5\t9"  # no area: it is tested, not fitted
    files["train/n01/n01_boxes.txt"] = "\n".join(boxes).encode()
    data = load(files, images_per_class=4, test_images_per_class=0)
    assert counts(data) == [[4, 5], [4, 5]]
    assert not set(data.train.names) & set(data.test.names)
    assert any("n01_0." in name for name in data.test.names)
    options = {"place": "voc", "test_images_per_class": 0}
    whole = load(voc_folder(count=8), images_per_class=5, **options)
    assert counts(whole) == [[5, 3], [5, 3]]


def test_fewer_images_are_a_subset_and_labels_in_order_of_classes(tmp_path, load):
    path = written(tmp_path / "s", tiny_imagenet(train=9))
    counts = (2, 5, 0)
    names = {n: {*load(path, images_per_class=n).train.names} for n in counts}
    assert names[2] < names[5] < names[0]
    turned = load(path, "tiny_imagenet", images_per_class=2, class_ids=["n02", "n01"])
    assert turned.classes["class_id"].tolist() == ["n02", "n01"]
    assert set(turned.train.names) == names[2]
    is_first = ["n02" in name for name in turned.train.names]
    assert is_first == (turned.train.labels == 0).tolist()


def test_classes_of_one_name_are_told_apart_by_id(load):
    words = b"\xef\xbb\xbfn01\tcrane, bird\nn02\tcrane, machine\nn03\towl"
    data = load(tiny_imagenet(classes=("n01", "n02", "n03")) | {"words.txt": words})
    assert data.classes["class_name"].tolist() == ["crane (n01)", "crane (n02)", "owl"]

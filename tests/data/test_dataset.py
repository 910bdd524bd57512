import io
import os
import shutil
import warnings
import zipfile
from dataclasses import fields

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.data import dataset, layouts
from helpers.data.dataset import fault_counts, load_study_data
from tests.conftest import LAYOUTS, REAL_DATA, ilsvrc, jpeg, tiny_imagenet, voc, voc_folder


@pytest.fixture
def load(tmp_path):
    def call(path, source="tiny_imagenet", **changes):
        arguments = {
            "data_source": source,
            "data_path": str(path),
            "image_size": 16,
            "test_images_per_class": 2,
            "cache_dir": tmp_path / "cache",
        }
        return load_study_data(**arguments | changes)

    return call


def kinds(data):
    return data.faults["fault"].value_counts().to_dict()


def same(first, second):
    assert first.fingerprint == second.fingerprint
    for split in ("train", "test"):
        for field in fields(dataset.ImageSet):
            a, b = (getattr(getattr(data, split), field.name) for data in (first, second))
            assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, (split, field.name)
    for table in ("index", "faults", "classes"):
        assert getattr(first, table).astype(str).equals(getattr(second, table).astype(str)), table


@pytest.mark.parametrize("source", LAYOUTS)
def test_each_layout_as_folder_and_zip_gives_images_labels_and_boxes(store, load, source):
    data = load(store(LAYOUTS[source]()), source)
    assert kinds(data) == {}
    assert data.train.images.dtype == torch.uint8
    assert data.train.images.shape[1:] == (3, 16, 16)
    assert len(data.index) == len(data.train) + len(data.test)
    assert data.classes["test_images"].tolist() == [2, 2]
    assert data.classes["train_images"].tolist() == ([6, 6] if source == "voc_folder" else [6, 6] if source == "tiny_imagenet" else [4, 4])
    assert torch.bincount(data.train.labels).tolist() == data.classes["train_images"].tolist()
    assert not set(data.train.names) & set(data.test.names)


def test_pixels_are_those_of_the_file_squashed_and_boxes_scaled_and_truncated(store, load):
    files = ilsvrc(classes=("n01",), train=2)
    data = load(store(files), "ilsvrc")
    content = files["ILSVRC/Data/CLS-LOC/train/n01/n01_0.JPEG"]
    expected = Image.open(io.BytesIO(content)).resize((16, 16), Image.Resampling.BILINEAR)
    assert np.array_equal(data.train.images[0].numpy().transpose(1, 2, 0), np.asarray(expected))
    # 20 x 16 squashed to 16 x 16: x times 0.8, y unchanged, truncated; half-open.
    assert data.train.boxes[0].tolist() == [[1, 2, 9, 10], [3, 4, 16, 16]]


def test_ilsvrc_boxes_agree_between_xml_and_csv(store, load):
    files = ilsvrc()
    without_xml = {name: content for name, content in files.items() if "Annotations" not in name}
    without_csv = {name: content for name, content in files.items() if "solution" not in name}
    both, table, xml = (load(store(part, name), "ilsvrc") for part, name in ((files, "a"), (without_xml, "b"), (without_csv, "c")))
    assert both.fingerprint == table.fingerprint == xml.fingerprint
    assert both.classes["class_name"].tolist() == ["name of n01", "name of n02"]


def test_the_fingerprint_is_what_the_images_are_and_not_where_they_lie(tmp_path, load):
    files = tiny_imagenet()
    paths = []
    for name in ("here", "elsewhere"):
        for file, content in files.items():
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).write_bytes(content)
        paths.append(tmp_path / name)
    zipped = shutil.make_archive(str(tmp_path / "zipped"), "zip", paths[0])
    prints = {load(path).fingerprint for path in [*paths, zipped]}
    assert len(prints) == 1
    (paths[1] / "train/n01/images/n01_0.JPEG").write_bytes(jpeg(99, (16, 16)))
    prints.add(load(paths[1]).fingerprint)
    boxes = paths[0] / "train/n01/n01_boxes.txt"
    boxes.write_text(boxes.read_text().replace("12\t13", "12\t14"))
    prints.add(load(paths[0]).fingerprint)
    prints.add(load(zipped, image_size=24).fingerprint)
    prints.add(load(zipped, class_ids=["n02", "n01"]).fingerprint)
    assert len(prints) == 5


def test_the_second_start_reads_the_cache_and_decodes_nothing(store, load, monkeypatch):
    path = store(tiny_imagenet())
    first = load(path)
    monkeypatch.setattr(dataset, "decode_image", lambda *arguments: pytest.fail("decoded again"))
    same(first, load(path))


@pytest.mark.parametrize(
    "change", [{"image_size": 24}, {"images_per_class": 3}, {"test_images_per_class": 1}, {"data_seed": 1}, {"class_ids": ["n02"]}]
)
def test_a_cache_made_from_other_parameters_is_not_used(store, load, change):
    path = store(tiny_imagenet())
    load(path)
    changed = load(path, **change)
    shutil.rmtree(path.parent / "cache")
    same(changed, load(path, **change))


def altered(path, other):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()  # not in place: what is mapped must stay
    path.write_bytes(content)


def replaced(path, other):
    path.unlink()
    shutil.copy(other, path)
    shutil.copy(other.with_name(f".{other.name}.seal"), path.with_name(f".{path.name}.seal"))


def emptied(path, other):
    path.unlink()
    path.touch()


@pytest.mark.parametrize("damage", [altered, replaced, emptied])
def test_a_damaged_cache_is_named_and_made_again(store, load, damage):
    source = store(tiny_imagenet())
    first = load(source)
    (path,) = (source.parent / "cache").glob("images-*.safetensors")
    load(source, data_seed=1)
    (other,) = {*(source.parent / "cache").glob("images-*.safetensors")} - {path}
    damage(path, other)
    with pytest.warns(UserWarning, match=r"images-\w+.safetensors: .*; it is made again"):
        same(first, load(source))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        same(first, load(source))


def test_what_cannot_be_read_now_is_counted_and_not_kept(store, load, monkeypatch):
    source, read, failing = store(tiny_imagenet()), layouts.Folder.read, {"n01_0.JPEG", "val_annotations.txt"}
    if source.suffix == ".zip":
        pytest.skip("a zip is one file")

    def passing(self, name):
        if name.rsplit("/", 1)[-1] in failing:
            raise OSError(5, "Input/output error")
        return read(self, name)

    monkeypatch.setattr(layouts.Folder, "read", passing)
    assert kinds(load(source))["unreadable_now"] == 2
    failing.clear()
    assert kinds(load(source)) == {}


def test_a_changed_source_is_decoded_again(tmp_path, load):
    for file, content in tiny_imagenet().items():
        (tmp_path / "s" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / file).write_bytes(content)
    before = load(tmp_path / "s")
    (tmp_path / "s/train/n01/images/n01_3.JPEG").write_bytes(jpeg(77, (16, 16)))
    assert load(tmp_path / "s").fingerprint != before.fingerprint


def test_every_damage_is_counted_and_the_rest_is_used(store, load):
    files = tiny_imagenet(classes=("n01", "n02", "n03"), train=12)
    image = "train/n01/images/n01_{}.JPEG".format
    files[image(0)] = files[image(0)][: len(files[image(0)]) // 2]  # cut
    files[image(1)] = b"this is a text file"
    files[image(2)] = b""
    files[image(3)] = files[image(4)]  # the same file twice
    lines = [f"n01_{n}.JPEG\t1\t1\t9\t9" for n in range(12)]
    lines[5] = "n01_5.JPEG\t-4\t-4\t9\t9"  # reaches outside
    lines[6] = "n01_6.JPEG\t20\t20\t30\t30"  # wholly outside
    lines[7] = "n01_7.JPEG\t5\t5\t5\t9"  # no area
    lines[8] = "n01_8.JPEG\t9\t9\t5\t5"  # turned round
    lines[9] = "n01_9.JPEG\t1\t1\tx\t9"  # malformed
    del lines[10]  # no annotation
    files["train/n01/n01_boxes.txt"] = "\n".join(lines).encode()
    del files["train/n03/n03_boxes.txt"]
    files["val/val_annotations.txt"] += b"\nval_x.JPEG\tn99\t0\t0\t8\t8"
    files["val/images/val_x.JPEG"] = jpeg(4711, (16, 16))
    files["val/images/val_0_0.JPEG"] = files["train/n02/images/n02_0.JPEG"]  # a training image among the test images
    data = load(store(files), class_ids=["n01", "n02", "n03", "n77"], test_images_per_class=3)
    assert kinds(data) == {
        "unreadable_image": 3,
        "duplicate_file": 1,
        "contradictory_labels": 1,
        "box_outside_clipped": 1,
        "box_outside_dropped": 1,
        "box_without_area": 2,
        "malformed_annotation": 1,
        "missing_annotation": 1 + 12,
        "unknown_class": 2,
        "class_with_too_few_images": 1,
        "fewer_test_images_than_asked": 1,
    }
    assert data.classes["class_id"].tolist() == ["n01", "n02"]
    used = {name.rsplit("/", 1)[1] for name in data.train.names if "n01" in name}
    assert used == {"n01_3.JPEG", "n01_5.JPEG", "n01_11.JPEG"}  # 4 is 3's double
    clipped = data.train.subset([i for i, name in enumerate(data.train.names) if name.endswith("n01_5.JPEG")])
    assert clipped.boxes[0].tolist() == [[0, 0, 9, 9]]
    counts = fault_counts(data.faults).set_index("class_id")
    assert counts.loc["n01", "unreadable_image"] == 3
    assert counts.loc["n03", "missing_annotation"] == 12


def test_an_empty_class_is_counted_and_does_not_stop_the_run(store, load):
    files = tiny_imagenet() | {"train/n00/n00_boxes.txt": b""}
    data = load(store(files))
    assert data.classes["class_id"].tolist() == ["n01", "n02"]
    assert data.faults[["class_id", "fault"]].values.tolist() == [["n00", "class_with_too_few_images"]]


@pytest.mark.parametrize(
    ("mode", "kind"), [("L", "JPEG"), ("CMYK", "JPEG"), ("P", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("1", "PNG"), ("I;16", "PNG")]
)
def test_every_mode_becomes_rgb(store, load, mode, kind):
    files = voc_folder()
    files["cat/0.jpg"] = jpeg(1, mode=mode, kind=kind) if mode != "I;16" else _sixteen_bit()
    data = load(store(files), "voc_folder")
    assert kinds(data) == ({} if mode != "I;16" else {"rescaled_to_8_bits": 1})
    assert data.train.images.shape[1] == 3


def _sixteen_bit():
    buffer = io.BytesIO()
    Image.fromarray(np.arange(320, dtype=np.uint16).reshape(16, 20) * 200).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("dtype", ["uint16", ">u2", "int32", "float32"])
def test_deep_grey_values_are_rescaled_from_their_own_range_or_refused_and_never_blank(store, load, dtype):
    values = np.linspace(-0.5 if dtype == "float32" else 0, 1 if dtype == "float32" else 4095, 256).reshape(16, 16)
    files = voc_folder()
    for number, pixels in enumerate([values, np.full((16, 16), 7.0), np.where(values > 0.9, np.nan, values)]):
        if not (number == 2 and dtype != "float32"):
            buffer = io.BytesIO()
            Image.fromarray(pixels.astype(dtype)).save(buffer, "TIFF")
            files[f"cat/{number}.tif"] = buffer.getvalue()
            files[f"cat/{number}.xml"] = voc((1, 1, 10, 10), size=(16, 16))
            files.pop(f"cat/{number}.jpg")
    data = load(store(files), "voc_folder", test_images_per_class=1)
    assert kinds(data) == {"rescaled_to_8_bits": 1, "unreadable_image": 2 if dtype == "float32" else 1}
    names, images = (*data.train.names, *data.test.names), torch.cat([data.train.images, data.test.images])
    (row,) = [number for number, name in enumerate(names) if name.endswith("cat/0.tif")]
    assert (images[row].float() - torch.arange(256).view(16, 16)).abs().max() <= 1


def test_exif_rotation_is_applied_only_where_the_annotation_says_so(tmp_path, load):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned: stored 20 x 16, seen 16 x 20
    turned = jpeg(3, exif=exif, quality=100, subsampling=0)
    plain = jpeg(3, quality=100, subsampling=0)
    for name, content, size in (("as_stored", turned, (20, 16)), ("as_seen", turned, (16, 20)), ("no_exif", plain, (16, 20))):
        for number in range(4):
            folder = tmp_path / name / "cat"
            folder.mkdir(parents=True, exist_ok=True)
            extra = b"" if number == 0 else bytes([number])
            (folder / f"{number}.jpg").write_bytes(content + extra)  # trailing bytes: other files, same picture
            (folder / f"{number}.xml").write_bytes(voc((0, 0, 8, 8), size=size))
    stored, seen, without = (load(tmp_path / name, "voc_folder") for name in ("as_stored", "as_seen", "no_exif"))
    assert kinds(stored) == kinds(seen) == {"fewer_test_images_than_asked": 1} or kinds(stored) == kinds(seen) == {}
    assert kinds(without)["size_differs_from_annotation"] == 4
    assert torch.equal(stored.train.images[0], without.train.images[0])
    assert not torch.equal(stored.train.images[0], seen.train.images[0])
    # Orientation 6 is a quarter turn; of a square squashed from it the turned pixels agree but for resampling.
    turned_back = stored.train.images[0].rot90(-1, (1, 2)).float()
    assert (turned_back - seen.train.images[0].float()).abs().mean() < 12
    assert seen.train.boxes[0].tolist() == [[0, 0, 8, 6]]  # 16 x 20 to 16 x 16
    assert stored.train.boxes[0].tolist() == [[0, 0, 6, 8]]


def test_boxes_are_scaled_by_the_size_that_their_annotation_states(store, load):
    files = voc_folder()
    files["cat/0.xml"] = voc((20, 16, 40, 32), size=(40, 32))
    data = load(store(files), "voc_folder", test_images_per_class=1)
    assert kinds(data) == {"size_differs_from_annotation": 1}
    row = [name.endswith("cat/0.jpg") for name in (*data.train.names, *data.test.names)].index(True)
    boxes = [*data.train.boxes.tolist(), *data.test.boxes.tolist()]
    assert boxes[row] == [[8, 8, 16, 16]]


def test_the_held_out_test_split_is_seeded_and_disjoint(store, load):
    path = store(voc_folder(count=10))
    one, again, other = (load(path, "voc_folder", data_seed=seed, test_images_per_class=3) for seed in (0, 0, 1))
    assert one.test.names == again.test.names != other.test.names
    assert not set(one.train.names) & set(one.test.names)
    assert len(one.train) == 14


def test_no_number_of_test_images_takes_all_that_training_leaves(store, load):
    files = tiny_imagenet(train=6, val=3)
    boxes = files["train/n01/n01_boxes.txt"].decode().splitlines()
    files["train/n01/n01_boxes.txt"] = "\n".join(boxes[1:]).encode()  # the first image has no box: it is tested, not fitted
    data = load(store(files), images_per_class=4, test_images_per_class=0)
    assert data.classes[["train_images", "test_images"]].values.tolist() == [[4, 5], [4, 5]]
    assert not set(data.train.names) & set(data.test.names)
    assert any("n01_0." in name for name in data.test.names)
    whole = load(store(voc_folder(count=8), "voc"), "voc_folder", images_per_class=5, test_images_per_class=0)
    assert whole.classes[["train_images", "test_images"]].values.tolist() == [[5, 3], [5, 3]]


def test_nothing_left_to_test_on_is_refused_with_what_to_set(store, load):
    with pytest.raises(ValueError, match=r"^no test image is left in .* set images_per_class or test_images_per_class above 0$"):
        load(store(voc_folder(count=8)), "voc_folder", images_per_class=0, test_images_per_class=0)
    with pytest.raises(ValueError, match=r"^test_images_per_class is 0, and of rendered scenes there is no end"):
        load("", "synthetic", data_path="", test_images_per_class=0)


def test_a_class_of_few_images_is_not_held_out_whole(store, load):
    data = load(store(voc_folder(count=5)), "voc_folder", test_images_per_class=50)
    assert data.classes[["train_images", "test_images"]].values.tolist() == [[3, 2], [3, 2]]
    assert kinds(data) == {"fewer_test_images_than_asked": 2}


def test_fewer_images_are_a_subset_whatever_other_classes_are_asked_for(store, load):
    path = store(tiny_imagenet(train=9))
    names = {count: set(load(path, images_per_class=count).train.names) for count in (2, 5, 0)}
    assert names[2] < names[5] < names[0]
    alone = load(path, images_per_class=2, class_ids=["n02"])
    assert set(alone.train.names) == {name for name in names[2] if "n02" in name}


def test_labels_follow_the_order_of_the_classes_asked_for(store, load):
    data = load(store(tiny_imagenet()), class_ids=["n02", "n01"])
    assert data.classes["class_id"].tolist() == ["n02", "n01"]
    assert all(("n02" in name) == (label == 0) for name, label in zip(data.train.names, data.train.labels.tolist(), strict=True))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("tiny_imagenet", "looked for train/<wnid>/images"),
        ("ilsvrc", "looked for ILSVRC/Data/CLS-LOC/train/<wnid>"),
        ("voc_folder", "no class was found"),
    ],
)
def test_a_source_without_a_class_says_what_was_looked_for_and_where(tmp_path, load, source, message):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "empty", source)


def test_no_usable_class_names_the_faults(store, load):
    files = {name: content for name, content in tiny_imagenet().items() if not name.endswith("boxes.txt")}
    with pytest.raises(ValueError, match=r"no usable class .* of 18 images listed .*faults: 12 missing_annotation"):
        load(store(files))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data_source": "imagenet"}, "data_source 'imagenet' is unknown; choose one of synthetic, ilsvrc, tiny_imagenet, voc_folder"),
        ({"image_size": 4}, "image_size is 4; it must be a whole number of at least 8"),
        ({"image_size": 16.5}, "image_size is 16.5; it must be a whole number of at least 8"),
        ({"images_per_class": -1}, "images_per_class is -1; it must be a whole number of at least 0"),
        ({"data_seed": -1}, "data_seed is -1; it must be a whole number of at least 0"),
        ({"class_ids": ["a", "a"]}, "class_ids names a class twice"),
        ({"data_path": ""}, "needs data_path"),
        (
            {"data_source": "synthetic", "class_ids": ["synthetic_cat"]},
            "class_ids holds synthetic_cat; the synthetic classes are synthetic_disc",
        ),
    ],
)
def test_refuses_arguments_by_name(tmp_path, change, message):
    with pytest.raises(ValueError, match=message):
        load_study_data(**{"data_source": "tiny_imagenet", "data_path": "x", "cache_dir": tmp_path, **change})


def test_the_real_ilsvrc_sample(real_data, load):
    data = load(real_data / "ilsvrc2012-sample.zip", "ilsvrc", minimum_images_per_class=1, test_images_per_class=50)
    assert (len(data.train), len(data.test), len(data.classes)) == (199, 100, 20)
    assert set(data.faults["fault"]) <= {"fewer_test_images_than_asked", "box_without_area"}
    assert data.train.boxes.shape[1] > 1  # some have several boxes


@pytest.mark.parametrize("name", ["tiny-imagenet-20.zip", "tiny-imagenet-pretrain-30.zip"])
def test_two_classes_of_the_real_tiny_imagenet(real_data, load, name):
    classes = layouts.open_archive(real_data / name).folders(f"{name.removesuffix('.zip')}/train")[:2]
    data = load(real_data / name, class_ids=classes, image_size=64, test_images_per_class=50)
    assert data.classes["test_images"].tolist() == [50, 50]
    assert set(data.faults["fault"]) <= {"box_without_area"}
    assert len(data.train) + (data.faults["split"] == "train").sum() == 1000


def test_where_the_real_data_is_looked_for():
    assert REAL_DATA.parts[-2:] == ("shared", "data")


def test_boxes_that_collapse_in_the_square_have_no_area(store, load):
    files = voc_folder()
    files["cat/0.xml"] = voc((3, 3, 3.6, 12))  # within one pixel of the square
    files["cat/1.xml"] = voc((0.1, 0.1, 0.9, 0.9))  # shares of the image, not pixels
    files["cat/2.xml"] = voc((3, 3, 3.6, 12), (2, 2, 12, 12))
    data = load(store(files), "voc_folder", test_images_per_class=1)
    assert kinds(data) == {"box_without_area": 3}
    boxes = torch.cat([data.train.boxes[:, 0], data.test.boxes[:, 0]])
    assert (boxes[:, 2:] > boxes[:, :2]).all()
    assert len(data.index) == 14


def test_classes_of_one_name_are_told_apart_by_id(store, load):
    files = tiny_imagenet(classes=("n01", "n02", "n03"))
    files["words.txt"] = b"n01\tcrane, bird\nn02\tcrane, machine\nn03\towl"
    assert load(store(files)).classes["class_name"].tolist() == ["crane (n01)", "crane (n02)", "owl"]
    files["words.txt"] = b"n01\tcrane, bird\nn02\tcrane, machine\nn03\tcrane (n01)"
    names = load(store(files, "odd")).classes["class_name"].tolist()
    assert names == ["crane (n01) (n01)", "crane (n02)", "crane (n01) (n03)"]


def test_a_line_of_a_table_that_cannot_be_read_costs_one_image(store, load):
    files = {name: content for name, content in ilsvrc(train=8).items() if "Annotations" not in name}
    lines = files["LOC_train_solution.csv"].decode().splitlines()
    lines[1] = "n01_0,n01 nan 2 12 10"
    lines[2] = "n01_1,n01 2 2\r12 10"
    lines[3] = "n01_2," + "n01 2 2 12 10 " * 1000 + " " * 130_000
    lines[4] = '"n01_3","n01 2 2 12 10"'
    lines[5] = "n01_4,n01 2 2 12 1e999"
    lines[6] = "\xff\x00,,,\x00"
    files["LOC_train_solution.csv"] = "\n".join(lines).encode("latin-1")
    data = load(store(files), "ilsvrc")
    assert kinds(data) == {"malformed_annotation": 3, "missing_annotation": 1}
    assert len(data.train) == 12


def test_xml_of_an_unknown_encoding_is_malformed(store, load):
    files = voc_folder()
    for number, encoding in enumerate(["klingon", "utf-7", "utf-16", ""]):
        files[f"cat/{number}.xml"] = f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + voc((1, 1, 9, 9))
    assert kinds(load(store(files), "voc_folder"))["malformed_annotation"] == 4


def test_what_is_no_regular_file_is_counted_and_never_waited_for(tmp_path, load):
    for name, content in voc_folder().items():
        (tmp_path / "s" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / name).write_bytes(content)
    cat = tmp_path / "s/cat"
    for name in ("pipe", "nowhere", "itself", "outside"):
        (cat / f"{name}.xml").write_bytes(voc((1, 1, 10, 10)))
    os.mkfifo(cat / "pipe.JPEG")
    os.mkfifo(cat / "0.pipe.xml")
    (cat / "nowhere.jpg").symlink_to("nothing")
    (cat / "itself.jpg").symlink_to("itself.jpg")
    (cat / "outside.jpg").symlink_to("/dev/zero")
    (cat / "looped").symlink_to(cat)
    os.link(cat / "1.jpg", os.fsencode(cat) + b"/not-\xff-utf8.jpg")
    (tmp_path / "s" / os.fsdecode(b"klasse-\xe4")).mkdir()
    for _ in range(2):  # the second time from the cache
        data = load(tmp_path / "s", "voc_folder")
        assert kinds(data) == {"unreadable_image": 4, "name_not_utf8": 2, "missing_annotation": 1}
        assert data.classes["class_id"].tolist() == ["cat", "dog"]
        assert "cat/not-\\udcff-utf8.jpg" in set(data.faults["name"])


def test_what_tables_promise_and_the_files_do_not_keep_is_counted(store, load):
    files = tiny_imagenet()
    files["train/n01/n01_boxes.txt"] += b"\nn01_77.JPEG\t1\t1\t9\t9\nn01_78.JPEG\t1\t1\t9\t9"
    files["val/val_annotations.txt"] += b"\nval_77.JPEG\tn02\t1\t1\t9\t9\nval_0_0.JPEG\tn02\t1\t1\t9\t9"
    files["train/n02/images/n02_0.JPEG"] = files["train/n01/images/n01_0.JPEG"]
    data = load(store(files), images_per_class=6)
    assert kinds(data) == {"missing_image": 2, "contradictory_labels": 2, "fewer_training_images_than_asked": 1}
    details = data.faults.set_index("fault")["detail"]
    assert "2 named there have no file, such as n01_77.JPEG" in details["missing_image"].tolist()
    assert details["fewer_training_images_than_asked"] == "5 of 6"
    first, second = sorted(details["contradictory_labels"])
    assert first == "n01 and n02; the first is taken"
    assert second.endswith("train/n01/images/n01_0.JPEG, which is of the class n01")


def test_faults_are_the_same_each_time(store, load):
    files = voc_folder() | {"cat/0.jpg": b"text", "cat/1.jpg": jpeg(1)[:200], "cat/2.jpg": b"\x89PNG\r\n\x1a\n" + b"\0" * 40}
    source = store(files)
    first = load(source, "voc_folder").faults
    shutil.rmtree(source.parent / "cache")
    assert first.equals(load(source, "voc_folder").faults)
    assert len(first) == 3
    assert not first["detail"].str.contains("0x").any()


def test_a_member_that_unpacks_too_large_is_not_read_and_a_cut_zip_is_called_that(tmp_path, load, monkeypatch):
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (voc_folder() | {"cat/0.jpg": bytes(100_000)}).items():
            archive.writestr(name, content)
    monkeypatch.setattr(layouts, "LARGEST_FILE", 50_000)
    data = load(path, "voc_folder")
    assert data.faults["detail"].tolist() == ["cat/0.jpg cannot be read from s.zip: cat/0.jpg has 100000 bytes; at most 50000 are read"]
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"s.zip is a .zip that was cut or damaged .*; fetch it again"):
        load(path, "voc_folder")


def test_an_image_with_very_many_boxes_is_counted_and_costs_the_others_no_room(store, load):
    files = voc_folder()
    files["cat/0.xml"] = voc(*[(1, 1, 9, 9)] * 1001)
    files["cat/1.xml"] = voc(*[(1, 1, 9, 9)] * 1000)
    data = load(store(files), "voc_folder", test_images_per_class=1)
    assert kinds(data) == {"too_many_boxes": 1}
    assert data.train.boxes.shape == (13, 1000, 4)


def test_a_class_folder_that_is_a_link_out_of_the_source_is_counted(tmp_path, load):
    files = voc_folder(classes=("cat", "dog", "owl"))
    for name, content in files.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(content)
    (tmp_path / "source/owl").rename(tmp_path / "owl")
    (tmp_path / "source/owl").symlink_to(tmp_path / "owl")
    (tmp_path / "source/loop").symlink_to(tmp_path / "source")
    data = load(tmp_path / "source", "voc_folder", class_ids=[])
    assert data.classes["class_id"].tolist() == ["cat", "dog"]
    assert kinds(data) == {"link_out_of_source": 2}
    assert load(tmp_path / "source", "voc_folder", class_ids=["dog", "cat", "../owl"]).classes["class_id"].tolist() == ["dog", "cat"]


def zipped(path, files, **options):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", **options) as archive:
        warnings.simplefilter("ignore")  # a name stands twice
        for name, content in files:
            archive.writestr(name, content)
    return path


def test_rows_that_give_a_validation_image_two_classes_are_counted(store, load):
    files = {name: content for name, content in ilsvrc().items() if "Annotations" not in name}
    files["LOC_val_solution.csv"] += b"\nILSVRC2012_val_00,n02 0 0 9 9"
    data = load(store(files), "ilsvrc")
    assert kinds(data) == {"contradictory_labels": 1}
    assert data.faults["detail"].item() == "n01 and n02; the first is taken"


def test_what_macos_adds_to_an_archive_is_no_class_and_names_outside_are_counted(tmp_path, load):
    files = voc_folder()
    whole = load(zipped(tmp_path / "plain.zip", files.items()), "voc_folder")
    packed = [(f"animals/{name}", content) for name, content in files.items()]
    added = [("__MACOSX/animals/cat/._0.jpg", b"\0"), ("/animals/cat/99.jpg", jpeg(99)), ("animals/../cat/98.jpg", jpeg(98))]
    data = load(zipped(tmp_path / "odd.zip", [*packed, *added]), "voc_folder")
    assert data.fingerprint == whole.fingerprint
    assert sorted(data.faults[data.faults["fault"] == "name_out_of_source"]["name"]) == ["/animals/cat/99.jpg", "animals/../cat/98.jpg"]
    with zipfile.ZipFile(tmp_path / "odd.zip") as archive:
        archive.extractall(tmp_path / "unpacked", [name for name in archive.namelist() if ".." not in name and name[0] != "/"])
    assert load(tmp_path / "unpacked", "voc_folder").fingerprint == whole.fingerprint


def test_a_postscript_file_with_the_ending_of_an_image_is_not_opened(tmp_path, load, monkeypatch):
    """Pillow hands it to Ghostscript where that is installed."""
    from PIL import EpsImagePlugin

    monkeypatch.setattr(EpsImagePlugin.EpsImageFile, "_open", lambda image: pytest.fail("opened"))
    files = voc_folder() | {"cat/0.jpg": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 20 16\n%%EndComments\n"}
    data = load(zipped(tmp_path / "a.zip", files.items()), "voc_folder")
    assert kinds(data) == {"unreadable_image": 1}


def test_a_zip_with_names_that_are_written_otherwise_or_twice(tmp_path, load):
    files = voc_folder()
    whole = load(zipped(tmp_path / "plain.zip", files.items()), "voc_folder")
    odd = [(f"./{name.replace('/', '//')}", content) for name, content in files.items()]
    assert load(zipped(tmp_path / "odd.zip", odd), "voc_folder").fingerprint == whole.fingerprint
    twice = [*files.items(), ("cat/0.jpg", files["cat/0.jpg"]), ("dog/0.jpg", jpeg(9))]
    data = load(zipped(tmp_path / "twice.zip", twice), "voc_folder")
    assert kinds(data) == {"unreadable_image": 1}  # the same content twice is one file
    assert data.faults["detail"].item().endswith("it stands there 2 times, with other contents")


@pytest.mark.parametrize("compression", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_member_that_cannot_be_unpacked_is_unreadable_for_good(tmp_path, load, compression):
    path = zipped(tmp_path / "a.zip", voc_folder().items(), compression=compression)
    content = bytearray(path.read_bytes())
    content[100:300] = bytes(200)
    path.write_bytes(content)
    assert kinds(load(path, "voc_folder")) == {"unreadable_image": 1}


def test_an_ilsvrc_image_that_is_annotated_as_another_class_is_counted(store, load):
    files = ilsvrc()
    name = "ILSVRC/Annotations/CLS-LOC/train/n01/n01_0.xml"
    files[name] = files[name].replace(b"n01", b"n02")
    assert kinds(load(store(files), "ilsvrc")) == {"contradictory_labels": 1}

"""A study file for one's own images: what is found in them decides its values, and it passes the check."""

import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image

from helpers.files import PROJECT_ROOT
from helpers.sweep import new
from helpers.sweep.study import further_faults, load_study
from helpers.training.config import RunConfig
from tests.conftest import jpeg, voc
from tests.data.conftest import coco


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project with this one's notebooks, whose networks take a second an epoch and have learnt after ten."""
    (tmp_path / "notebooks").symlink_to(PROJECT_ROOT / "notebooks")
    (tmp_path / "params").mkdir()
    monkeypatch.setattr(new, "probe", lambda *given: ([0.3] * 9 + [0.92], 1.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(new.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(new.images, "from_root", lambda path: tmp_path / path)
    (tmp_path / "helpers").mkdir()
    return tmp_path


def folder(place, classes, images, size=(70, 60), boxes=True):
    for number in range(classes):
        kind = place / f"kind{number}"
        kind.mkdir(parents=True)
        for image in range(images):
            (kind / f"{image}.jpg").write_bytes(jpeg(100 * number + image, size))
            if boxes:
                mark = voc((1, 1, 9, 9), size=size, name=kind.name)
                (kind / f"{image}.xml").write_bytes(mark)
    return place


def written(root, name):
    content = yaml.safe_load((root / f"params/{name}.yaml").read_text())
    return {"common": content["common"]} | content["notebooks"]


def test_a_placeof_images_becomes_a_study_that_passes_the_check(root, capsys):
    folder(root / "birds", 3, 40)
    assert new.write_new("birds", str(root / "birds"), 60, root=root) == 0
    first, second = (
        written(root, "birds")[name] for name in ("01_data_subset", "02_grid_training")
    )
    assert (first["data_source"], first["data_path"], first["class_ids"]) == (
        "voc",
        "birds",
        ["kind0", "kind1", "kind2"],
    )
    assert (
        first["image_size"],
        first["test_images_per_class"],
        first["images_per_class"],
    ) == (48, 10, 30)
    # Twice ten epochs of a second; two side by side in 40 % of an hour: 144 runs, so all 32.
    assert (
        second["max_epochs"],
        second["run_count"],
        second["pretrained_levels"],
        second["stem"],
    ) == (20, 32, [False], "strided")
    assert written(root, "birds")["common"] == {
        "minimum_train_accuracy": 0.67,
        "accuracy_thresholds": [0.95, 0.9, 0.8, 0.67],
    }
    assert "flatness" in written(root, "birds")["04_baselines"]["families"]
    assert len(load_study("birds", root=root).executions) == 8
    printed = capsys.readouterr().out
    assert (
        "max_epochs 20: a probing run reached 92% training accuracy after 10 epochs"
        in printed
    )
    assert "python -m helpers.sweep birds --plan" in printed


def test_less_time_is_fewer_runs_without_what_costs_much_and_slow_learners_get_four_times_the_probe(
    root, monkeypatch, capsys
):
    folder(root / "birds", 3, 40)
    assert new.write_new("birds", str(root / "birds"), 5, root=root) == 0
    found, printed = written(root, "birds"), capsys.readouterr().out
    assert found["02_grid_training"]["run_count"] == int(5 * 60 * 0.4 * 2 / 20)
    assert (
        "flatness" not in found["04_baselines"]["families"]
        and "05_robustness_ablations" not in found
    )
    assert "supports no claim" in printed
    monkeypatch.setattr(new, "probe", lambda *given: ([0.3] * 15, 4.0))
    assert new.write_new("hasty", str(root / "birds"), 0.001, root=root) == 0
    grid = written(root, "hasty")["02_grid_training"]
    assert (grid["run_count"], grid["max_epochs"]) == (4, 60)
    assert "reached 30% training accuracy after 15 epochs" in capsys.readouterr().out


def test_more_images_than_can_be_learnt_from_in_the_time_are_not_taken(
    root, monkeypatch
):
    folder(root / "birds", 9, 48)
    monkeypatch.setattr(new, "probe", lambda *given: ([0.3] * 9 + [0.92], 6.0))
    assert new.write_new("birds", str(root / "birds"), 10, root=root) == 0
    found = written(
        root, "birds"
    )[
        "01_data_subset"
    ]  # 4 runs of 40 epochs of 6 s have twice the 480 s that there are: half of the images
    assert (len(found["class_ids"]), found["images_per_class"]) == (
        round(9 * 0.5**0.5),
        round(36 * 0.5**0.5),
    )


def test_images_without_boxes_are_a_study_without_localization(root, capsys):
    folder(root / "boxless", 2, 16, boxes=False)
    assert new.write_new("boxless", str(root / "boxless"), 60, root=root) == 0
    found = written(root, "boxless")
    assert list(found) == [
        "common",
        "01_data_subset",
        "02_grid_training",
        "04_baselines",
        "10_all_measures",
        "11_classification",
        "08_unlabelled_images",
    ]
    assert found["01_data_subset"]["data_source"] == "class_folders"
    assert found["04_baselines"]["families"] == [
        "prediction",
        "norms",
        "flatness",
        "perturbation",
    ]
    assert (
        "no boxes: where the networks look is not measured" in capsys.readouterr().out
    )
    assert further_faults(load_study("boxless", root=root)) == []


def test_a_class_without_test_images_is_no_class_of_the_study_and_is_named(
    root, capsys
):
    folder(root / "birds/train", 3, 12, boxes=False)
    folder(root / "birds/val", 2, 4, size=(40, 40), boxes=False)
    assert new.write_new("birds", str(root / "birds"), 60, root=root) == 0
    found = written(root, "birds")["01_data_subset"]
    assert found["class_ids"] == ["kind0", "kind1"]
    assert capsys.readouterr().out.splitlines()[1:4] == [
        "  class_folders: 24 training images in 2 classes, 8 test images",
        "  classes: kind0 (12 + 4 test), kind1 (12 + 4 test)",
        "  left out: 1 × class without test images, such as kind2: its 12 training "
        "images are left out too",
    ]


def test_what_is_written_leaves_enough_images_of_every_class_for_scores(root):
    """Rule 3 holds out a tenth by chance: of 3 classes of 12 images 7 were left of one."""
    for classes, least in ((2, 12), (3, 12), (20, 14)):
        assert new.least_training_images(classes) == least
        assert new.fewest_fitted(least - 1, classes) < 10
        assert all(new.fewest_fitted(count, classes) >= 10 for count in (least, 30))
    folder(root / "birds", 3, 15, boxes=False)
    assert new.write_new("birds", str(root / "birds"), 60, root=root) == 0
    subset = written(root, "birds")["01_data_subset"]
    assert subset["minimum_images_per_class"] == subset["images_per_class"] == 12
    data = new.images.load_study_data(
        **subset | {"data_path": str(root / "birds")}, cache_dir=root / "cache"
    )
    rows, _ = new.rows_of_run(data.train.labels, new._recipe(32))
    assert torch.bincount(data.train.labels[rows]).min() >= 10


def test_a_class_whose_images_turn_out_to_be_copies_is_left_out_and_named(root, capsys):
    place = folder(root / "birds", 3, 16, boxes=False)
    for image in range(1, 5):
        (place / f"kind1/{image}.jpg").write_bytes(jpeg(100, (70, 60)))
    assert new.write_new("birds", str(place), 60, root=root) == 0
    assert written(root, "birds")["01_data_subset"]["class_ids"] == ["kind0", "kind2"]
    assert "such as kind1: " in capsys.readouterr().out
    for image in range(1, 5):
        (place / f"kind2/{image}.jpg").write_bytes(jpeg(200, (70, 60)))
    assert new.write_new("again", str(place), 60, root=root) == 2
    message = capsys.readouterr().err
    assert "1 classes are left" in message and "kind1: " in message
    assert not (root / "params/again.yaml").exists()


def test_boxes_are_looked_at_before_a_study_with_boxes_is_written(root, capsys):
    """COCO whose boxes lie outside of every image, and 16-bit grey among the images."""
    place = root / "outside"
    images, marks = [], []
    for image in range(40):
        name = f"{image}.jpg"
        place.mkdir(exist_ok=True)
        (place / name).write_bytes(jpeg(image, (40, 40)))
        images.append((name, 40, 40))
        marks.append((image, image % 2, 90, 90, 20, 20))
    (place / "marks.json").write_bytes(coco(images, ["cat", "dog"], marks))
    deep = np.arange(1600, dtype=np.uint16).reshape(40, 40)
    Image.fromarray(deep).save(place / "0.jpg", "PNG")
    assert new.write_new("outside", str(place), 60, root=root) == 2
    assert "have some that reach out of it, such as 1.jpg" in capsys.readouterr().err


def test_a_probing_run_ends_when_the_network_has_learnt_or_the_time_is_over(tmp_path):
    threads = torch.get_num_threads()
    subset = {
        "data_source": "synthetic",
        "class_ids": ["synthetic_disc", "synthetic_bars"],
        "image_size": 16,
    }
    subset |= {"images_per_class": 8, "test_images_per_class": 2}
    recipe = RunConfig(
        "resnet18",
        8,
        0.01,
        "sgd",
        0.0,
        False,
        False,
        "unknown",
        stem="small",
        width=0.0625,
    )
    accuracies, seconds = new.probe(subset, recipe, tmp_path, "cpu", 0.0)
    assert len(accuracies) == 1 and 0 <= accuracies[0] <= 1 and seconds > 0
    accuracies, _ = new.probe(subset, recipe, tmp_path, "cpu", 30.0)
    torch.set_num_threads(threads)
    assert all(value < 0.9 for value in accuracies[:-1]) and (
        accuracies[-1] >= 0.9 or len(accuracies) > 1
    )


def test_a_zip_with_classes_to_spare_pretrains_on_them(root):
    files = {}
    for number in range(25):
        names = [f"n{number:02d}_{image}.JPEG" for image in range(14)]
        place = f"train/n{number:02d}"
        files |= {
            f"{place}/images/{name}": jpeg(100 * number + image, (16, 16))
            for image, name in enumerate(names)
        }
        boxes = "\n".join(f"{name}\t1\t1\t12\t13" for name in names)
        files[f"{place}/n{number:02d}_boxes.txt"] = boxes.encode()
        for image in range(2):
            path = f"val/n{number:02d}/images/val_{number}_{image}.JPEG"
            files[path] = jpeg(100 * number + 50 + image, (16, 16))
    with zipfile.ZipFile(root / "tiny.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert new.write_new("tiny", str(root / "tiny.zip"), root=root) == 0
    first, second = (
        written(root, "tiny")[name] for name in ("01_data_subset", "02_grid_training")
    )
    assert (first["data_source"], len(first["class_ids"])) == ("tiny_imagenet", 20)
    assert (first["image_size"], first["test_images_per_class"]) == (32, 2)
    assert second["pretrained_levels"] == [True, False]
    assert not set(second["pretrain_class_ids"]) & set(first["class_ids"])


def test_one_bad_image_and_names_that_look_like_numbers_stop_no_study(root, capsys):
    """A header that asks for 60,000 pixels a side, a class named 1e3, and one whose name is no text."""
    place = folder(root / "odd", 3, 20)
    (place / "kind0").rename(place / "1e3")
    for mark in (place / "1e3").glob("*.xml"):
        mark.write_bytes(mark.read_bytes().replace(b"kind0", b"1e3"))
    Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9")).mkdir()
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IEND", b""))
    content = b"".join(
        struct.pack(">I", len(data))
        + kind
        + data
        + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )
    (place / "1e3/0.jpg").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    for image in range(16):
        Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9/%d.jpg" % image)).write_bytes(
            jpeg(900 + image, (70, 60))
        )
        Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9/%d.xml" % image)).write_bytes(
            voc((1, 1, 9, 9), size=(70, 60))
        )
    assert new.write_new("odd", str(place), 10, root=root) == 0, capsys.readouterr().err
    assert load_study("odd", root=root).executions[0].parameters["class_ids"] == [
        "1e3",
        "kind1",
        "kind2",
    ]


def test_what_cannot_be_a_study_is_told_and_nothing_is_written(root, capsys):
    folder(root / "birds", 2, 16)
    folder(root / "few", 2, 14)
    (root / "empty").mkdir()
    (root / "params/there.yaml").write_text("mine")
    (root / "text.zip").write_text("no zip")
    for name, data, minutes, message in (
        ("there", "birds", 60, "params/there.yaml exists"),
        ("../out", "birds", 60, "study is '../out'"),
        ("new", "nowhere", 60, "nowhere does not exist"),
        ("new", "text.zip", 60, "is neither a folder nor a .zip"),
        ("new", "empty", 60, "is not read as class_folders"),
        (
            "new",
            "few",
            60,
            "fewer than 2 classes have 15 training images with boxes, which leave 10 of "
            "every class for scores after those that are held out; it was read as "
            "voc: classes: kind0 (14), kind1 (14); boxes: from 28 .xml",
        ),
        ("new", "birds", 60, "--layout nowhere: must be one of auto, ilsvrc"),
        ("new", "birds", 0, "--minutes above 0"),
        ("new", "birds", float("nan"), "--minutes above 0"),
    ):
        layout = "nowhere" if "--layout nowhere" in message else "auto"
        given = (name, str(root / data), minutes)
        assert new.write_new(*given, layout=layout, root=root) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in (root / "params").iterdir()] == ["there.yaml"]
    assert (root / "params/there.yaml").read_text() == "mine"

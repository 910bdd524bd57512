"""A study file for one's own images: what is found in them decides its values, and it passes the check."""

import os
import struct
import zipfile
import zlib
from pathlib import Path

import pytest
import yaml

from helpers.files import PROJECT_ROOT
from helpers.sweep import new, plan
from helpers.sweep.study import load_study
from tests.conftest import jpeg, tiny_imagenet, voc


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A project with this one's notebooks, whose networks take a millisecond an image."""
    (tmp_path / "notebooks").symlink_to(PROJECT_ROOT / "notebooks")
    (tmp_path / "params").mkdir()
    monkeypatch.setattr(plan, "time_step", lambda *given: (0.0008, 0.0002, 1))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    monkeypatch.setattr(new.torch.cuda, "is_available", lambda: False)
    (tmp_path / "helpers").mkdir()
    return tmp_path


def folder(place, classes, images, size=(70, 60), boxes=True):
    for number in range(classes):
        kind = place / f"kind{number}"
        kind.mkdir(parents=True)
        for image in range(images):
            (kind / f"{image}.jpg").write_bytes(jpeg(100 * number + image, size))
            if boxes:
                (kind / f"{image}.xml").write_bytes(voc((1, 1, 9, 9), size=size))
    return place


def written(root, name):
    return yaml.safe_load((root / f"params/{name}.yaml").read_text())["notebooks"]


def test_a_folder_of_images_becomes_a_study_that_passes_the_check(root, capsys):
    folder(root / "birds", 3, 40)
    assert new.write_new("birds", str(root / "birds"), 10, root=root) == 0
    first, second = (written(root, "birds")[name] for name in ("01_data_subset", "02_grid_training"))
    assert (first["data_source"], first["data_path"], first["class_ids"]) == ("voc_folder", "birds", ["kind0", "kind1", "kind2"])
    assert (first["image_size"], first["test_images_per_class"], first["images_per_class"]) == (48, 10, 30)
    # 3 classes of 30 images, 24 epochs of a millisecond an image: 2.16 s a run; 2 side by side for 60 % of 10 minutes, so all 32.
    assert (second["run_count"], second["pretrained_levels"], second["stem"]) == (32, [False], "strided")
    assert len(load_study("birds", root=root).executions) == 5
    printed = capsys.readouterr().out
    assert "run_count 32 of 32" in printed
    assert "python -m helpers.sweep birds --plan" in printed


def test_less_time_is_fewer_runs_and_what_they_cannot_bear_is_said(root, capsys):
    folder(root / "birds", 3, 40)
    assert new.write_new("birds", str(root / "birds"), 0.25, root=root) == 0
    assert written(root, "birds")["02_grid_training"]["run_count"] == int(0.25 * 60 * 0.6 * 2 / 2.16)
    assert "bears no claim" in capsys.readouterr().out
    assert new.write_new("hasty", str(root / "birds"), 0.001, root=root) == 0
    assert written(root, "hasty")["02_grid_training"]["run_count"] == 4


def test_a_zip_with_classes_to_spare_pretrains_on_them(root):
    files = tiny_imagenet([f"n{number:02d}" for number in range(25)], train=10, val=2)
    with zipfile.ZipFile(root / "tiny.zip", "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert new.write_new("tiny", str(root / "tiny.zip"), root=root) == 0
    first, second = (written(root, "tiny")[name] for name in ("01_data_subset", "02_grid_training"))
    assert (first["data_source"], len(first["class_ids"]), first["image_size"], first["test_images_per_class"]) == (
        "tiny_imagenet",
        20,
        32,
        2,
    )
    assert second["pretrained_levels"] == [True, False]
    assert not set(second["pretrain_class_ids"]) & set(first["class_ids"])


def test_one_bad_image_and_names_that_look_like_numbers_stop_no_study(root, capsys):
    """A header that asks for 60,000 pixels a side, a class named 1e3, and one whose name is no text."""
    place = folder(root / "odd", 3, 12)
    (place / "kind0").rename(place / "1e3")
    Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9")).mkdir()
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IEND", b""))
    content = b"".join(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)
    (place / "1e3/0.jpg").write_bytes(b"\x89PNG\r\n\x1a\n" + content)
    for image in range(12):
        Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9/%d.jpg" % image)).write_bytes(jpeg(900 + image, (70, 60)))
        Path(os.fsdecode(os.fsencode(place) + b"/caf\xe9/%d.xml" % image)).write_bytes(voc((1, 1, 9, 9), size=(70, 60)))
    assert new.write_new("odd", str(place), 10, root=root) == 0, capsys.readouterr().err
    assert load_study("odd", root=root).executions[0].parameters["class_ids"] == ["1e3", "kind1", "kind2"]


def test_what_cannot_be_a_study_is_told_and_nothing_is_written(root, capsys):
    folder(root / "birds", 2, 12)
    folder(root / "boxless", 2, 12, boxes=False)
    (root / "empty").mkdir()
    (root / "params/there.yaml").write_text("mine")
    (root / "text.zip").write_text("no zip")
    for name, data, minutes, message in (
        ("there", "birds", 60, "params/there.yaml exists"),
        ("../out", "birds", 60, "study is '../out'"),
        ("new", "nowhere", 60, "nowhere does not exist"),
        ("new", "text.zip", 60, "is neither a folder nor a .zip"),
        ("new", "empty", 60, "has no 2 classes of 10 training images"),
        ("new", "boxless", 60, "has no 2 classes of 10 training images with boxes"),
        ("new", "birds", 0, "--minutes above 0"),
        ("new", "birds", float("nan"), "--minutes above 0"),
    ):
        assert new.write_new(name, str(root / data), minutes, root=root) == 2
        assert message in capsys.readouterr().err
    assert [path.name for path in (root / "params").iterdir()] == ["there.yaml"]
    assert (root / "params/there.yaml").read_text() == "mine"

"""The manifest of a study's images: what is written is what is read again."""

import json
import os
import re

import pytest
import torch

from helpers.data import images
from helpers.data.images import load_study_data
from tests.conftest import TINY_SCENES, tiny_imagenet
from tests.data.conftest import written, zipped

COMMAND = re.escape("`make sweep STUDY=mine MORE='--forcerun 01_data_subset'`")


@pytest.fixture
def source(tmp_path):
    return written(tmp_path / "source", tiny_imagenet())


def chosen(source, work, **changes):
    given = {"data_path": str(source), "image_size": 16, "test_images_per_class": 2}
    return images.choose_images(work, **given | changes)


def test_every_reader_has_the_images_that_were_chosen_and_the_file_says_which(tmp_path):
    work = tmp_path / "mine"
    data = images.choose_images(work, **TINY_SCENES)
    plain = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "elsewhere")
    for found in (images.images_of_study(work), plain):
        assert found.fingerprint == data.fingerprint
        assert torch.equal(found.train.images, data.train.images)
        assert torch.equal(found.test.boxes, data.test.boxes)
    record = json.loads((work / "data.json").read_text())
    assert record == {"parameters": TINY_SCENES, "fingerprint": data.fingerprint}


def test_further_classes_follow_those_of_the_study_and_leave_its_images(tmp_path):
    work = tmp_path / "mine"
    source = written(tmp_path / "source", tiny_imagenet(("n01", "n02", "n03")))
    study = chosen(source, work, class_ids=["n03", "n02"], images_per_class=3)
    data = images.with_classes(work, ["n03", "n02", "n01"])
    assert data.classes["class_id"].tolist() == ["n03", "n02", "n01"]
    assert data.train.names[:6] == study.train.names
    assert data.test.names[:4] == study.test.names
    assert images.manifest_of(work)["parameters"]["class_ids"] == ["n03", "n02"]


@pytest.mark.parametrize("read", [images.images_of_study, images.manifest_of])
def test_a_study_without_images_names_the_command_that_chooses_them(tmp_path, read):
    message = rf"data.json is not there: .*'mine'.*01_data_subset.ipynb.*{COMMAND}"
    with pytest.raises(FileNotFoundError, match=message):
        read(tmp_path / "mine")


def test_touched_files_and_another_place_give_the_same_images(source, tmp_path):
    work = tmp_path / "mine"
    data = chosen(source, work)
    for path in source.rglob("*.JPEG"):
        os.utime(path, (1, 1))
    assert images.images_of_study(work).fingerprint == data.fingerprint
    source.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError, match=r"source is no folder and no .zip; pu"):
        images.images_of_study(work)
    moved = chosen(tmp_path / "moved", work)
    assert moved.fingerprint == data.fingerprint
    assert images.images_of_study(work).fingerprint == data.fingerprint


def test_changed_images_are_told(source, tmp_path):
    work = tmp_path / "mine"
    chosen(source, work)
    again = (source / "train/n02/images/n02_0.JPEG").read_bytes()
    (source / "train/n01/images/n01_0.JPEG").write_bytes(again)
    message = "source were changed since notebook 01 chose them"
    with pytest.raises(ValueError, match=f"the images of .*{message}.*{COMMAND}"):
        images.images_of_study(work)


def test_a_zip_that_is_half_copied_leaves_what_records_have(tmp_path, monkeypatch):
    path = zipped(tmp_path / "source.zip", tiny_imagenet())
    work = tmp_path / "mine"
    data = chosen(path, work)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"source.zip is damaged"):
        images.images_of_study(work)
    monkeypatch.setattr(images, "records_of", lambda work: work)
    with pytest.warns(UserWarning, match=r"no image has pixels: .*source.zip"):
        again = images.images_of_study(work)
    assert again.fingerprint == data.fingerprint
    assert not again.train.has_pixels

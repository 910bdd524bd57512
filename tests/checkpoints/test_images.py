import csv
import json

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from helpers.checkpoints import images
from helpers.data.images import load_study_data
from tests.checkpoints.conftest import models_table
from tests.conftest import jpeg


def test_classes_stand_in_turn_and_fewer_images_are_the_first_of_more(
    folders, tmp_path
):
    path = folders(classes=("cat", "dog", "emu"), count=6)
    every, some = (
        images.training_images(path, tmp_path / "zip", most=most) for most in (0, 7)
    )
    assert every.classes == ("cat", "dog", "emu")
    assert np.bincount(every.train.labels).tolist() == [6, 6, 6]
    assert np.ptp(np.bincount(some.train.labels)) == 1
    assert some.train.names == every.train.names[:7]
    assert every.train.images.shape == (18, 3, 16, 16)
    assert every.scored_on.name != some.scored_on.name
    # Networks were trained on all images of a class, however many are read here.
    assert every.of_a_class("any.pt") == some.of_a_class("any.pt") == 6


def test_images_of_a_report_are_found_by_its_classes_and_pixels_wherever_they_lie(
    folders, reports, tmp_path
):
    """Of a part of the source's classes; "NA" is a name and no missing value."""
    source, cache, place = (
        folders(classes=("NA", "dog", "emu"), count=40),
        tmp_path / "cache",
        reports("a study"),
    )
    story = [
        {
            "kind": "parameters",
            "values": {
                "data_source": "class_folders",
                "image_size": "16",
                "test_images_per_class": "5",
            },
        }
    ]
    (place / "a study/story/01_data_subset.json").write_text(json.dumps(story))
    pd.DataFrame({"class_id": ["NA", "emu"]}).to_csv(
        place / "a study/tables/table1_categories.csv", index=False
    )
    fitted = {
        "data_source": "class_folders",
        "class_ids": ["NA", "emu"],
        "image_size": 16,
        "test_images_per_class": 5,
    }
    data = load_study_data(**fitted, data_path=str(source), cache_dir=cache)
    models = models_table().assign(
        data=data.fingerprint, images_per_class=0, seed=0, test_accuracy=0.5
    )
    models.head(3).to_csv(place / "a study/tables/checkpoints.csv", index=False)
    names = models["model_id"].tolist()
    own = images.images_of_report(source, names[:2], place, 20, cache)
    assert (own.classes, own.train.names, len(own.scored_on.rows)) == (
        ("NA", "emu"),
        data.train.names,
        20,
    )
    assert own.test_accuracy(names[1]) == 0.5
    assert np.isnan(own.test_accuracy(""))
    assert images.images_of_report(source, names[2:4], place, 20, cache) is None
    with pytest.raises(ValueError, match="trained on images of a study"):
        images.images_of_report(
            folders("others", ("NA", "emu"), 40, seed=3), names[:2], place, 20, cache
        )


def test_a_table_of_boxes_is_read_as_folders_are(folders, tmp_path):
    path = folders()
    names = sorted(path.rglob("*.png"))
    with (path / "boxes.csv").open("w", newline="") as file:
        rows = [
            [name.relative_to(path).as_posix(), name.parent.name, 1, 1, 9, 9]
            for name in names
        ]
        csv.writer(file).writerows([["path", "label", "x0", "y0", "x1", "y1"], *rows])
    boxed = images.training_images(path, tmp_path / "zip")
    (path / "boxes.csv").unlink()
    plain = images.training_images(path, tmp_path / "zip")
    assert boxed.scored_on.name == plain.scored_on.name


def test_the_order_of_the_outputs_may_be_named(folders, tmp_path):
    own = images.training_images(
        folders(),
        tmp_path / "zip",
        ["dog", "emu", "cat"],
        images.Preparation(side=8),
    )
    assert own.classes == ("dog", "emu", "cat")
    assert set(own.train.labels.tolist()) == {0, 2}
    with pytest.raises(ValueError, match=r"no output is named after: dog"):
        images.training_images(folders(), tmp_path / "zip", ["cat", "emu"])


def test_what_can_be_no_training_images_is_named(folders, tmp_path):
    for path, said in (
        (folders("one", ("cat",)), "it has 1 of 12 images"),
        (tmp_path / "none", "does not exist"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            images.training_images(path, tmp_path / "zip")
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat/a.txt").write_text("no picture")
    with pytest.raises(ValueError, match=r"flat is not read as .*a\.txt: 1 \.txt"):
        images.training_images(tmp_path / "flat", tmp_path / "zip")
    with pytest.raises(ValueError, match="8 to 1024"):
        images.Preparation(side=4)
    broken = folders("broken", count=1)
    for path in broken.rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"can be used: cat/0\.png: it is not JPEG, "):
        images.training_images(
            broken, tmp_path / "zip", preparation=images.Preparation(side=16)
        )


def test_held_out_images_that_are_training_images_are_found_among_all_of_them(
    folders, tmp_path
):
    path, new = folders(), folders("new", seed=5)
    own = images.training_images(
        path, tmp_path / "zip", most=2
    )  # a few are scored; the copies are of the others
    given = {"images": own, "training_path": path, "unpacked": tmp_path / "zip"}
    found = images.labelled_images(new, **given)
    assert (len(found), images.copies(found, own, path, tmp_path / "zip")) == (24, 0)
    with pytest.raises(ValueError, match="24 of 24 images"):
        images.labelled_images(path, **given)
    (new / "cat/copy.png").write_bytes(jpeg(3, (16, 16), kind="PNG"))
    assert (
        images.copies(images.labelled_images(new, **given), own, path, tmp_path / "zip")
        == 1
    )
    (new / "cat/second.png").write_bytes(jpeg(4, (16, 16), kind="PNG"))
    with pytest.raises(ValueError, match="2 of 26 images"):  # more than 5 %
        images.labelled_images(new, **given)


def test_labels_are_checked(folders, tmp_path):
    path = folders()
    given = {
        "images": images.training_images(path, tmp_path / "zip"),
        "training_path": path,
        "unpacked": tmp_path / "zip",
    }
    with pytest.raises(
        ValueError, match="none of the classes: wolf; the classes are cat, dog"
    ):
        images.labelled_images(folders("other", ("cat", "wolf"), seed=5), **given)
    with pytest.raises(ValueError, match="4 labelled images"):
        images.labelled_images(folders("few", count=2, seed=7), **given)


@pytest.mark.parametrize("size", [(64, 32), (32, 64), (33, 47), (32, 32)])
def test_images_are_cut_as_torchvision_cuts_them(tmp_path, size):
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        content = jpeg(1, size, kind="PNG")
        (tmp_path / "images" / label / "0.png").write_bytes(content)
    cut = images.training_images(
        tmp_path / "images",
        tmp_path / "zip",
        preparation=images.Preparation(resize=24, crop=20),
    )
    as_in_training = v2.Compose([v2.Resize(24), v2.CenterCrop(20), v2.PILToTensor()])
    with Image.open(tmp_path / "images/cat/0.png") as picture:
        torch.testing.assert_close(
            cut.train.images[0], as_in_training(picture), rtol=0, atol=0
        )
    assert cut.remark == ""


def test_pictures_that_are_no_squares_and_squashed_are_worth_a_sentence(
    folders, tmp_path
):
    assert images.training_images(folders(), tmp_path / "zip").remark == ""
    for label in ("cat", "dog"):
        for number in range(3):
            path = tmp_path / "wide" / label / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(number, (30, 20), kind="PNG"))
    wide = images.training_images(tmp_path / "wide", tmp_path / "zip")
    assert "squashed to squares (one side is 1.50 times the other)" in wide.remark
    assert "--resize and --crop" in wide.remark


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ({"crop": 32}, "crop 32 needs resize"),
        ({"side": 32, "resize": 40, "crop": 24}, "image size 32 contradicts resize 40"),
        ({"resize": 4}, "8 to 1024"),
    ],
)
def test_sizes_that_contradict_one_another_are_refused(sizes, said):
    with pytest.raises(ValueError, match=said):
        images.Preparation(**sizes)


def test_what_is_cut_and_its_image_size_may_both_be_given():
    assert images.Preparation(side=24, resize=32, crop=24).cut == (32, 24)
    assert images.Preparation(resize=32).cut == (32, 32)


@pytest.mark.parametrize(("width", "is_squashed"), [(105, False), (106, True)])
def test_a_side_that_is_a_twentieth_longer_is_no_squashing(
    tmp_path, width, is_squashed
):
    for label in ("cat", "dog"):
        (tmp_path / "images" / label).mkdir(parents=True)
        content = jpeg(1, (width, 100), kind="PNG")
        (tmp_path / "images" / label / "0.png").write_bytes(content)
    own = images.training_images(tmp_path / "images", tmp_path / "zip")
    assert ("squashed" in own.remark) == is_squashed


def test_squares_are_of_the_median_side_of_the_files(tmp_path):
    for label, sides in (("cat", (12, 40)), ("dog", (14, 500, 8))):
        (tmp_path / "images" / label).mkdir(parents=True)
        for side in sides:
            path = tmp_path / "images" / label / f"{side}.png"
            path.write_bytes(jpeg(side, (2 * side, side), kind="PNG"))
    own = images.training_images(tmp_path / "images", tmp_path / "zip")
    assert own.train.images.shape == (5, 3, 14, 14)

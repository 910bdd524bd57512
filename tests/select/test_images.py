import csv
import json

import numpy as np
import pandas as pd
import pytest

from helpers.data.images import load_study_data
from helpers.select import images
from tests.conftest import jpeg
from tests.select.conftest import models_table


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
    models = models_table().assign(data=data.fingerprint, images_per_class=0, seed=0)
    models.head(3).to_csv(place / "a study/tables/checkpoints.csv", index=False)
    names = models["model_id"].tolist()
    own = images.images_of_report(source, names[:2], place, 20, cache)
    assert (own.classes, own.train.names, len(own.scored_on.rows)) == (
        ("NA", "emu"),
        data.train.names,
        20,
    )
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
        folders(), tmp_path / "zip", ["dog", "emu", "cat"], size=8
    )
    assert own.classes == ("dog", "emu", "cat")
    assert set(own.train.labels.tolist()) == {0, 2}
    with pytest.raises(ValueError, match=r"no output is named after: dog"):
        images.training_images(folders(), tmp_path / "zip", ["cat", "emu"])


def test_what_can_be_no_training_images_is_named(folders, tmp_path):
    for path, said in (
        (folders("one", ("cat",)), "of 1 class;"),
        (tmp_path / "none", "does not exist"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=said):
            images.training_images(path, tmp_path / "zip")
    with pytest.raises(ValueError, match="8 to 1024"):
        images.training_images(folders(), tmp_path / "zip", size=4)
    broken = folders("broken", count=1)
    for path in broken.rglob("*.png"):
        path.write_bytes(b"no picture")
    with pytest.raises(ValueError, match=r"can be used: cat/0\.png: Unidentified"):
        images.training_images(broken, tmp_path / "zip", size=16)


def test_held_out_images_that_are_training_images_are_found_among_all_of_them(
    folders, tmp_path
):
    path, new = folders(), folders("new", seed=5)
    own = images.training_images(
        path, tmp_path / "zip", most=2
    )  # a few are scored; the copies are of the others
    given = {"own": own, "training_path": path, "unpacked": tmp_path / "zip"}
    found = images.labelled_images(new, **given)
    assert (len(found), images.copies(found, own, path, tmp_path / "zip")) == (24, 0)
    with pytest.raises(ValueError, match="24 of 24 images"):
        images.labelled_images(path, **given)
    (new / "cat/copy.png").write_bytes(jpeg(3, (16, 16), kind="PNG"))
    assert (
        images.copies(images.labelled_images(new, **given), own, path, tmp_path / "zip")
        == 1
    )


def test_labels_are_checked(folders, tmp_path):
    path = folders()
    given = {
        "own": images.training_images(path, tmp_path / "zip"),
        "training_path": path,
        "unpacked": tmp_path / "zip",
    }
    with pytest.raises(
        ValueError, match="none of the classes: wolf; the classes are cat, dog"
    ):
        images.labelled_images(folders("other", ("cat", "wolf"), seed=5), **given)
    with pytest.raises(ValueError, match="4 labelled images"):
        images.labelled_images(folders("few", count=2, seed=7), **given)

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.select.images import MACHINE_MADE, box_source, check_outputs, in_turn, load_images, load_labelled, load_target, natural_size

XML = "<annotation><size><width>40</width><height>20</height></size>{}</annotation>"


BOX = "<object><name>a</name><bndbox><xmin>10</xmin><ymin>5</ymin><xmax>30</xmax><ymax>15</ymax></bndbox></object>"


def draw(path, seed=0, size=(40, 20)):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 40, (size[1], size[0], 3), dtype=np.uint8)
    pixels[5:12, 8:20] = 230
    Image.fromarray(pixels).save(path, quality=95)


@pytest.fixture
def folder(tmp_path):
    for number, name in enumerate(["cat", "dog"]):
        for index in range(4):
            draw(tmp_path / "images" / name / f"{index}.jpg", 10 * number + index)
    return tmp_path / "images"


def test_folders_are_classes_in_sorted_order(folder):
    images = load_images(folder, image_size=16)
    assert images.class_names == ("cat", "dog")
    assert images.labels.tolist() == [0] * 4 + [1] * 4
    assert images.images.shape == (8, 3, 16, 16)
    assert images.images.dtype == torch.uint8
    assert images.shorter_sides == (20,) * 8


def test_named_classes_give_the_order_of_the_outputs(folder):
    images = load_images(folder, image_size=16, class_names=["dog", "cat"])
    assert [images.class_names[label] for label in images.labels] == [name.split("/")[0] for name in images.names]
    assert images.class_names == ("dog", "cat")
    with pytest.raises(ValueError, match="named bird; not named yet are cat, dog"):
        load_images(folder, class_names=["bird"])
    with pytest.raises(ValueError, match="cat are named twice"):
        load_images(folder, class_names=["cat", "cat", "dog"])


def test_outputs_without_images_may_be_named_where_every_folder_is(folder):
    images = load_images(folder, image_size=16, class_names=["bird", "dog", "fish", "cat"])
    assert sorted(images.labels.tolist()) == [1] * 4 + [3] * 4
    check_outputs(images, 4)


def test_images_without_folders_have_no_label_and_say_so(tmp_path):
    draw(tmp_path / "a.jpg")
    images = load_images(tmp_path, image_size=16)
    assert images.class_names == ()
    with pytest.raises(ValueError, match="no folders of classes"):
        images.labels  # noqa: B018


def test_a_network_with_other_outputs_is_refused_with_what_to_give(folder):
    images = load_images(folder, image_size=16)
    check_outputs(images, 2)
    with pytest.raises(ValueError, match=r"7 outputs and the images lie in 2 class folders.*--classes"):
        check_outputs(images, 7)


def test_an_xml_beside_an_image_gives_its_box_scaled_to_the_square(folder):
    (folder / "cat/0.xml").write_text(XML.format(BOX))
    images = load_images(folder, image_size=16)
    assert images.annotated.tolist() == [True] + [False] * 7
    assert images.boxes[0, 0].tolist() == [4, 4, 12, 12]
    assert box_source(images).startswith("1 of 8 annotated")


@pytest.mark.parametrize("place", ["cat/0.xml", "0.xml"])
def test_a_folder_of_xml_is_searched_by_name(folder, tmp_path, place):
    path = tmp_path / "boxes" / place
    path.parent.mkdir(parents=True)
    path.write_text(XML.format(BOX))
    images = load_images(folder, image_size=16, boxes=tmp_path / "boxes")
    assert images.boxes[0, 0].tolist() == [4, 4, 12, 12]


def test_a_csv_gives_boxes_by_name(folder, tmp_path):
    (tmp_path / "b.csv").write_text("ImageId,PredictionString\n2,n1 0 0 20 10\n")
    images = load_images(folder, image_size=16, boxes=tmp_path / "b.csv")
    assert images.annotated.tolist() == [False, False, True, False] * 2
    assert images.boxes[2, 0].tolist() == [0, 0, 8, 8]
    with pytest.raises(FileNotFoundError, match="do not exist"):
        load_images(folder, boxes=tmp_path / "c.csv")


def test_boxes_of_none_of_the_images_are_refused_and_a_damaged_line_is_counted(folder, tmp_path):
    table = tmp_path / "boxes.csv"
    for content in (b"", b"\0\xff", b"ImageId,PredictionString\nother,n1 1 2 9 9\n"):
        table.write_bytes(content)
        with pytest.raises(ValueError, match=r"boxes.csv are of none of the 8 images taken from .*images; name others, or leave them out"):
            load_images(folder, image_size=16, boxes=table)
    table.write_text("ImageId,PredictionString\n0,n1 1 2 9 9\n1,n1 1 2 x 9\n")
    images = load_images(folder, image_size=16, boxes=table)
    assert images.annotated.sum() == 2
    assert images.faults["fault"].tolist() == ["malformed_annotation"] * 2


def test_a_class_folder_that_is_a_link_out_of_the_source_is_counted(folder, tmp_path):
    (folder / "dog").rename(tmp_path / "dog")
    (folder / "dog").symlink_to(tmp_path / "dog")
    images = load_images(folder, image_size=16)
    assert (images.class_names, images.faults["fault"].tolist()) == (("cat",), ["link_not_followed"])


def test_a_made_box_is_where_the_object_is(folder):
    images = load_images(folder, image_size=40)
    assert not images.annotated.any()
    x0, y0, x1, y1 = images.boxes[:, 0].double().mean(0).tolist()
    assert x0 < 14 < x1
    assert y0 < 17 < y1
    assert box_source(images) == MACHINE_MADE


def test_images_are_taken_evenly_by_a_seed(folder):
    images = load_images(folder, image_size=16, most=4, seed=1)
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert images.found == 8
    assert images.names == load_images(folder, image_size=16, most=4, seed=1).names


def test_names_with_markup_are_text_and_links_do_not_leave(folder, tmp_path):
    draw(folder / "<b>&.." / "x.jpg")
    draw(tmp_path / "secret" / "s.jpg")
    (folder / "out").symlink_to(tmp_path / "secret")
    images = load_images(folder, image_size=16)
    assert images.class_names == ("<b>&..", "cat", "dog")
    assert not any("s.jpg" in name for name in images.names)


def test_a_broken_image_is_a_fault_and_none_left_is_an_error(folder, tmp_path):
    (folder / "cat/9.jpg").write_bytes(b"no image")
    images = load_images(folder, image_size=16)
    assert images.faults["fault"].tolist() == ["unreadable_image"]
    assert len(images) == 8
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/a.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match=r"1 were found.*1 unreadable_image"):
        load_images(tmp_path / "bad")
    for size in (4, 100_000):
        with pytest.raises(ValueError, match=f"image_size {size} must be from 8 to 1024"):
            load_images(folder, image_size=size)


def test_the_natural_size_is_the_shorter_side_and_at_most_224(folder, tmp_path):
    assert natural_size(folder) == 20
    draw(tmp_path / "big/a.jpg", size=(500, 375))
    assert natural_size(tmp_path / "big") == 224


def test_classes_in_turn_keep_what_belongs_to_an_image(folder, tmp_path):
    images = load_images(folder, image_size=16)
    ordered = in_turn(images)
    places = [images.names.index(name) for name in ordered.names]
    assert sorted(places) == list(range(8))
    assert [set(ordered.labels[start : start + 2].tolist()) for start in range(0, 8, 2)] == [{0, 1}] * 4
    for name in ("images", "boxes", "labels", "annotated"):
        assert torch.equal(getattr(ordered, name), getattr(images, name)[places])
    draw(tmp_path / "alone" / "a.jpg")
    draw(tmp_path / "alone" / "b.jpg", 1)
    assert sorted(in_turn(load_images(tmp_path / "alone", image_size=16)).names) == ["a.jpg", "b.jpg"]


def test_a_target_has_the_size_of_the_training_images_and_no_labels(folder, tmp_path):
    training = load_images(folder, image_size=16)
    for index in range(3):
        draw(tmp_path / "there" / f"{index}.png", 500 + index)
    found = load_target(tmp_path / "there", training, folder)
    assert found.images.shape == (3, 3, 16, 16)
    assert found.known_labels is None
    assert not found.boxes.any()  # none is made: no measure of a target needs one
    with pytest.raises(FileNotFoundError):
        load_target(tmp_path / "nowhere", training, folder)


def test_a_target_of_training_images_is_refused_by_place_and_by_content(folder, tmp_path):
    training = load_images(folder, image_size=16)
    with pytest.raises(ValueError, match=r"the target images .* are the training images; the networks were fitted to them"):
        load_target(folder, training, folder)
    shutil.copytree(folder / "cat", tmp_path / "copy")
    draw(tmp_path / "copy/new.png", 900)
    with pytest.raises(ValueError, match=r"4 of 5 target images in .* are training images"):
        load_target(tmp_path / "copy", training, folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"no image in .*empty can be used"):
        load_target(tmp_path / "empty", training, folder)


def test_labelled_images_have_the_labels_of_the_training_folders(folder, tmp_path):
    training = load_images(folder, image_size=16)
    for index in range(12):
        draw(tmp_path / "held/dog" / f"{index}.png", 600 + index)
    found = load_labelled(tmp_path / "held", training, folder)
    assert found.class_names == ("cat", "dog")
    assert found.labels.tolist() == [1] * 12
    with pytest.raises(ValueError, match=r"the labelled images .* are the training images"):
        load_labelled(folder, training, folder)
    with pytest.raises(ValueError, match="lie in no folders of classes"):
        load_labelled(tmp_path / "held/dog", training, folder)
    draw(tmp_path / "held/cow/1.png", 700)
    with pytest.raises(ValueError, match="none of the classes: cow; the classes of the training images are cat, dog"):
        load_labelled(tmp_path / "held", training, folder)
    for index in range(9):
        draw(tmp_path / "few/cat" / f"{index}.png", 800 + index)
    with pytest.raises(ValueError, match=r"9 labelled images are in .*few; at least 10 are needed"):
        load_labelled(tmp_path / "few", training, folder)

"""Parsers of annotation files: what each reads, and that nothing is read as if."""

import json

import pytest

from helpers.data.annotations import (
    Row,
    read_coco,
    read_csv,
    read_labelme,
    read_tiny,
    read_voc,
    read_yolo,
)
from helpers.data.layouts import Record, record_of
from tests.conftest import voc
from tests.data.conftest import coco

NAMES = {"0": "cat", "1": "dog"}
NO_BOX = "is not a box of 4 finite numbers"
CSV = "path,label,x0,y0,x1,y1\n"


def record(rows):
    """The record of the only image in a file."""
    rows = list(rows)
    assert {row.image for row in rows} <= {"", "a.jpg"}
    return record_of("a.jpg", "file", rows)


def labelme(points, kind="rectangle"):
    shape = {"label": "cat", "shape_type": kind, "points": points}
    table = {"shapes": [shape], "imageWidth": 20, "imageHeight": 16}
    return record(read_labelme("1.json", json.dumps(table).encode()))


def of_coco(change=(), **more):
    table = json.loads(coco([("a.jpg", 20, 16)], ["cat"], [(0, 0, 1, 2, 3, 4)]))
    table["annotations"][0] |= dict(change)
    return record(read_coco("a.json", json.dumps(table | more).encode()))


def of_csv(text):
    return record(read_csv("a.csv", text.encode()))


def of_voc(*boxes, **options):
    return record(read_voc("1.xml", voc(*boxes, **options)))


def of_yolo(text):
    return record(read_yolo("1.txt", text.encode(), NAMES))


def test_files_without_an_object_have_no_record_and_sizes_of_0_are_none():
    boxes = ((1, 2, 3, 4), (5, 6, 7, 8))
    found = of_voc(*boxes, name="cat")
    assert found == Record("a.jpg", "cat", "train", boxes, (20, 16))
    assert of_voc((1, 2, 3, 4), size=(0, 0)).size is None
    assert of_voc() is of_yolo("") is None


def test_a_shape_of_labelme_has_the_box_around_its_points():
    corners = [[9, 2], [3, 7]]
    assert labelme(corners) == ("a.jpg", "cat", "train", ((3, 2, 9, 7),), (20, 16), b"")
    for kind in ("rotation", "polygon", None):
        turned = labelme([[5, 1], [9, 4], [7, 8], [3, 5]], kind)
        assert turned.boxes == ((3, 1, 9, 8),)
    with pytest.raises(ValueError, match="a shape is a circle, no rectangle"):
        labelme(corners, "circle")


def test_coco_has_boxes_or_the_bounds_of_polygons_and_no_crowds():
    polygon = [[5, 1, 9, 4, 7, 8], [3, 5, 4, 6, 4, 5]]
    assert of_coco().boxes == ((1, 2, 4, 6),)
    found = of_coco({"bbox": [0, 0, 0, 0], "segmentation": polygon})
    assert (found.boxes, found.size) == (((3, 1, 9, 8),), (20, 16))
    assert of_coco({"iscrowd": 1}) is None


@pytest.mark.parametrize(
    "head",
    [
        "path,label,x0,y0,x1,y1",
        "image,class,x1,y1,x2,y2",
        "filename,class,xmin,ymin,xmax,ymax",
        '"file_name","category","x1","y1","x2","y2"',
    ],
)
def test_a_csv_has_the_corners_of_boxes_under_three_names(head):
    row = "a.jpg,NA,1,2,3,4"
    found = of_csv(f"\ufeff{head}\n{row}\n{row}")
    assert found == Record("a.jpg", "NA", "train", ((1, 2, 3, 4),) * 2)


def test_columns_of_a_csv_may_state_split_and_size():
    head = "width,height,path,label,x0,y0,x1,y1,split"
    found = of_csv(f"{head}\n20,16,a.jpg,cat,1,2,3,4,valid")
    assert found == Record("a.jpg", "cat", "test", ((1, 2, 3, 4),), (20, 16))
    for row in (",,a.jpg,dog,,,,,", ",,a.jpg,dog"):
        assert of_csv(f"{head}\n{row}") == Record("a.jpg", "dog", "train")


ROTATED = b"<annotation><object><name>a</name><robndbox/></object></annotation>"
ENTITY = b'<!DOCTYPE a [<!ENTITY e SYSTEM "file:///x">]><annotation>&e;</annotation>'
TWO_CATS = [{"id": 3, "name": "cat"}, {"id": 3, "name": "dog"}]


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (of_voc, (1, 2, 3, "x"), "could not convert string to float: 'x'"),
        (of_voc, (1, 2, 3, "nan"), NO_BOX),
        (lambda xml: record(read_voc("1.xml", xml)), ROTATED, NO_BOX),
        (lambda xml: record(read_voc("1.xml", xml)), ENTITY, "EntitiesForbidden"),
        (lambda name: of_voc((1, 2, 3, 4), name=name), "", "cannot be the name of"),
        (lambda name: of_voc((1, 2, 3, 4), name=name), "../cat", "cannot be the name"),
        (of_yolo, "0 0.5 0.5 0.5 0.5 0.9", "with 4 shares"),  # confidence, or a track
        (of_yolo, "2 0.5 0.5 0.5 0.5", "is not a class of 0, 1"),
        (of_coco, {"image_id": 99}, "of the image 99 and the category 3, which are"),
        (of_coco, {"category_id": 99}, "of the image 7 and the category 99, which are"),
        (of_coco, {"bbox": [1, 2, 3, 4, 0.5]}, "no bbox of 4 numbers"),
        (of_coco, {"bbox": None, "segmentation": {"counts": [1]}}, "and no polygon"),
        (lambda items: of_coco(categories=items), TWO_CATS, "have one id"),
        (of_csv, f"{CSV}a.jpg,cat,1,2,3,4,5,6", "Expected 6 fields in line 2, saw 8"),
        (of_csv, "path,label,x,y,w,h\na.jpg,cat,1,2,3,4", "its columns .* are not"),
        (of_csv, "path,label,x1,y1\na.jpg,cat,1,2", "could not convert .* float: ''"),
        (of_csv, "path,image,label\na.jpg,a.jpg,cat", "duplicate labels"),
        (of_csv, "path,label,split\na.jpg,cat,dev", "its split 'dev' is none of"),
        (lambda row: record(read_tiny("n/t.txt", row)), b"a.jpg\t1\t2\t3", NO_BOX),
    ],
)
def test_a_file_of_another_kind_is_refused(read, content, message):
    with pytest.raises(ValueError, match=message):
        read(content)


def test_an_image_is_of_its_largest_object():
    def largest(**boxes):
        rows = [Row("", label, box) for label, box in boxes.items()]
        return record_of("a.jpg", "", [*rows, Row("", "dog", boxes["dog"])])

    found = largest(cat=(0, 0, 2, 2), dog=(0, 0, 5, 5))
    assert (found.class_id, found.boxes) == ("dog", ((0, 0, 5, 5),) * 2)
    with pytest.raises(ValueError, match=r"has the labels .* and no box"):
        largest(cat=None, dog=None)

"""Parsers of annotation files: what each reads, and that nothing is read as if."""

import json

import pytest

from helpers.data.annotations import (
    Annotation,
    of_largest,
    read_coco,
    read_csv,
    read_labelme,
    read_tiny,
    read_voc,
    read_yolo,
)
from tests.conftest import voc
from tests.data.conftest import coco

NAMES = {"0": "cat", "1": "dog"}
NO_BOX = "is not a box of 4 finite numbers"


def one(annotations):
    """The annotation in a file of one image."""
    ((name, annotation),) = annotations
    assert name in ("", "a.jpg")
    return annotation


def labelme(points, kind="rectangle"):
    shape = {"label": "cat", "shape_type": kind, "points": points}
    return json.dumps({"shapes": [shape], "imageWidth": 20, "imageHeight": 16}).encode()


def test_a_voc_file_has_labels_boxes_and_the_size():
    found = one(read_voc("1.xml", voc((1, 2, 3, 4), (5, 6, 7, 8), name="cat")))
    assert found.objects == [("cat", (1, 2, 3, 4)), ("cat", (5, 6, 7, 8))]
    assert found.size == (20, 16)
    assert one(read_voc("1.xml", voc((1, 2, 3, 4), size=(0, 0)))).size is None
    ((name, _),) = read_voc("a/1.xml", voc((1, 2, 3, 4)), ending=".JPEG")
    assert name == "1.JPEG"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (voc((1, 2, 3, "x")), "could not convert string to float: 'x'"),
        (voc((1, 2, 3, "nan")), NO_BOX),
        (voc((1, 2, 3, 4), name=""), "cannot be the name of a class"),
        (voc((1, 2, 3, 4), name="../cat"), "cannot be the name of a class"),
        (
            b"<annotation><object><name>a</name><robndbox><cx>1</cx></robndbox>"
            b"</object></annotation>",
            NO_BOX,
        ),
        (
            b'<!DOCTYPE a [<!ENTITY e SYSTEM "file:///etc/hostname">]><annotation>'
            b"<object><name>&e;</name></object></annotation>",
            "EntitiesForbidden",
        ),
    ],
)
def test_a_voc_file_of_another_kind_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        one(read_voc("1.xml", content))


def test_a_shape_of_labelme_has_the_box_around_its_points():
    corners = [[9, 2], [3, 7]]
    found = one(read_labelme("1.json", labelme(corners)))
    assert found == Annotation([("cat", (3, 2, 9, 7))], (20, 16))
    turned = [[5, 1], [9, 4], [7, 8], [3, 5]]
    for kind in ("rotation", "polygon", None):
        found = one(read_labelme("1.json", labelme(turned, kind)))
        assert found.objects == [("cat", (3, 1, 9, 8))]
    for kind in ("point", "circle", "linestrip", "mask"):
        with pytest.raises(ValueError, match=f"a shape is a {kind}, no rectangle"):
            one(read_labelme("1.json", labelme(corners, kind)))


def test_a_line_of_yolo_is_a_centre_and_a_size():
    lines = b"1 0.5 0.25 0.5 0.5\n\n0 0.5 0.5 1 1\r\n"
    found = one(read_yolo("1.txt", lines, NAMES))
    objects = [("dog", (0.25, 0, 0.75, 0.5)), ("cat", (0, 0, 1, 1))]
    assert found == Annotation(objects, (1, 1))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.5", NO_BOX),
        ("0 0.5 0.5 0.5 0.5 0.9", NO_BOX),  # a confidence, or a track
        ("0 0.1 0.1 0.9 0.1 0.9 0.9", NO_BOX),  # an outline
        ("0 0.5 0.5 0.5 0.5 0.4 0.4 0.6 0.6", NO_BOX),  # key points
        ("0 24 24 10 10", "are no shares of the image"),
        ("0 0.5 0.5 -0.5 0.5", "are no shares of the image"),
        ("0 0.5 0.5 0.5 nan", NO_BOX),
        ("2 0.5 0.5 0.5 0.5", "the class 2 has no name"),
        ("cat 0.5 0.5 0.5 0.5", "the class cat has no name"),
    ],
)
def test_any_other_line_of_yolo_is_refused(line, message):
    with pytest.raises(ValueError, match=message):
        one(read_yolo("1.txt", line.encode(), NAMES))


def test_coco_has_boxes_or_the_bounds_of_polygons_and_no_crowds():
    objects = [(0, 0, 1, 2, 3, 4), (0, 0, 0, 0, 0, 0)]
    table = json.loads(coco([("a.jpg", 20, 16)], ["cat"], objects))
    polygon = [[5, 1, 9, 4, 7, 8], [3, 5, 4, 6, 4, 5]]
    table["annotations"][1]["segmentation"] = polygon
    table["annotations"].append(table["annotations"][0] | {"iscrowd": 1})
    found = one(read_coco("a.json", json.dumps(table).encode()))
    objects = [("cat", (1, 2, 4, 6)), ("cat", (3, 1, 9, 8))]
    assert found == Annotation(objects, (20, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 99}, "of the image 99 and the category 3, which are not both"),
        ({"category_id": 99}, "of the image 7 and the category 99, which are not both"),
        ({"bbox": [1, 2, 3, 4, 0.5]}, "operands could not be broadcast"),
        ({"bbox": [1, 2, 3, None]}, NO_BOX),
        ({"bbox": None}, "no bbox and no polygon"),
        ({"bbox": None, "segmentation": {"counts": [1]}}, "no bbox and no polygon"),
    ],
)
def test_an_object_of_coco_of_another_kind_is_refused(change, message):
    table = json.loads(coco([("a.jpg", 20, 16)], ["cat"], [(0, 0, 1, 2, 3, 4)]))
    table["annotations"][0] |= change
    with pytest.raises(ValueError, match=message):
        one(read_coco("a.json", json.dumps(table).encode()))


def test_an_id_of_coco_stands_for_one_item():
    table = json.loads(coco([("a.jpg", 20, 16)], ["cat", "dog"], []))
    table["categories"][1]["id"] = table["categories"][0]["id"]
    with pytest.raises(ValueError, match="two items of it with a name have one id"):
        one(read_coco("a.json", json.dumps(table).encode()))


def csv_images(text):
    return dict(read_csv("a.csv", text.encode()))


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
    found = csv_images(f"\ufeff{head}\n{row}\n{row}")
    assert found == {"a.jpg": Annotation([("NA", (1, 2, 3, 4))] * 2)}


def test_columns_of_a_csv_may_state_split_and_size():
    head = "width,height,path,label,x0,y0,x1,y1,split"
    lines = "20,16,a.jpg,cat,1,2,3,4,valid\n,,b.jpg,dog,,,,,\n,,c.jpg,cat"
    found = csv_images(f"{head}\n{lines}")
    assert found["a.jpg"] == Annotation([("cat", (1, 2, 3, 4))], (20, 16), "valid")
    assert found["b.jpg"] == Annotation([("dog", None)])
    assert found["c.jpg"] == Annotation([("cat", None)])


@pytest.mark.parametrize(
    "head",
    [
        "path,label,x,y,w,h",
        "path,label,bbox",
        "path,label,x1,y1",
        "path,label,x0,y0,x1,y1,x2,y2",
        "path,label,x0,y0,x1,y1,angle",
        "path,image,label",
        "path,label,class",
    ],
)
def test_a_csv_of_other_columns_is_refused(head):
    row = ",".join("1" for _ in head.split(","))
    with pytest.raises(ValueError, match=r"its columns .* are not path"):
        csv_images(f"{head}\n{row}")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a.jpg,cat,1,2,3,x", "could not convert"),
        ("a.jpg,cat,1,2,3", NO_BOX),
        ("a.jpg,cat,1,2,3,4,5,6", r"has the cells \['5', '6'\] beyond the columns"),
    ],
)
def test_a_malformed_line_of_a_table_is_refused(row, message):
    with pytest.raises(ValueError, match=message):
        csv_images(f"path,label,x0,y0,x1,y1\n{row}")
    cells = row.encode().replace(b",cat", b"").replace(b",", b"\t")
    with pytest.raises(ValueError, match=r"could not convert|is not a box of 4"):
        list(read_tiny("n02/t.txt", cells))


def test_an_image_is_of_its_largest_object():
    small, large, other = (0, 0, 2, 2), (0, 0, 5, 5), (1, 1, 3, 3)
    objects = [("cat", small), ("dog", large), ("dog", other)]
    assert of_largest(Annotation(objects)) == ("dog", (large, other))
    assert of_largest(Annotation([("cat", None), ("cat", None)])) == ("cat", ())
    with pytest.raises(ValueError, match="it has the labels cat, dog and no box"):
        of_largest(Annotation([("cat", None), ("dog", None)]))

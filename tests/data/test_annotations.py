"""Parsers of annotation files: what each reads, and that nothing is read as if."""

import json

import pytest

from helpers.data.annotations import (
    Annotation,
    of_largest,
    parse_coco,
    parse_csv,
    parse_labelme,
    parse_tiny,
    parse_voc,
    parse_yolo,
    parts_of_coco,
    parts_of_csv,
    parts_of_tiny,
)
from tests.conftest import voc
from tests.data.conftest import coco

NAMES = {"0": "cat", "1": "dog"}


def labelme(points, kind="rectangle"):
    shape = {"label": "cat", "shape_type": kind, "points": points}
    return json.dumps({"shapes": [shape], "imageWidth": 20, "imageHeight": 16}).encode()


def test_a_voc_file_has_labels_boxes_and_the_size():
    found = parse_voc(voc((1, 2, 3, 4), (5, 6, 7, 8), name="cat"))
    assert found.objects == [("cat", (1, 2, 3, 4)), ("cat", (5, 6, 7, 8))]
    assert found.size == (20, 16)
    assert parse_voc(voc((1, 2, 3, 4), size=(0, 0))).size is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (voc((1, 2, 3, "x")), "could not convert string to float: 'x'"),
        (voc((1, 2, 3, "nan")), "is not a box of 4 finite numbers"),
        (voc((1, 2, 3, 4), name=""), "cannot be the name of a class"),
        (voc((1, 2, 3, 4), name="../cat"), "cannot be the name of a class"),
        (
            b"<annotation><object><name>a</name><robndbox><cx>1</cx></robndbox>"
            b"</object></annotation>",
            "is not a box of 4 finite numbers",
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
        parse_voc(content)


def test_a_shape_of_labelme_has_the_box_around_its_points():
    corners = [[9, 2], [3, 7]]
    assert parse_labelme(labelme(corners)).objects == [("cat", (3, 2, 9, 7))]
    turned = [[5, 1], [9, 4], [7, 8], [3, 5]]
    for kind in ("rotation", "polygon", None):
        assert parse_labelme(labelme(turned, kind)).objects == [("cat", (3, 1, 9, 8))]
    for kind in ("point", "circle", "linestrip", "mask"):
        with pytest.raises(ValueError, match=f"a shape is a {kind}, no rectangle"):
            parse_labelme(labelme(corners, kind))


def test_a_line_of_yolo_is_a_centre_and_a_size():
    found = parse_yolo(b"1 0.5 0.25 0.5 0.5\n\n0 0.5 0.5 1 1\r\n", NAMES)
    assert found.objects == [("dog", (0.25, 0, 0.75, 0.5)), ("cat", (0, 0, 1, 1))]
    assert found.size == (1, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0 0.5 0.5 0.5", "is not a box of 4 finite numbers"),
        (
            "0 0.5 0.5 0.5 0.5 0.9",
            "is not a box of 4 finite numbers",
        ),  # a confidence, or a track
        (
            "0 0.5 0.5 0.5 0.5 0.9 3",
            "is not a box of 4 finite numbers",
        ),  # both, or an outline
        ("0 0.1 0.1 0.9 0.1 0.9 0.9", "is not a box of 4 finite numbers"),
        (
            "0 0.5 0.5 0.5 0.5 0.4 0.4 0.6 0.6",
            "is not a box of 4 finite numbers",
        ),  # key points
        ("0 24 24 10 10", "are no shares of the image"),
        ("0 0.5 0.5 -0.5 0.5", "are no shares of the image"),
        ("0 0.5 0.5 0.5 nan", "is not a box of 4 finite numbers"),
        ("2 0.5 0.5 0.5 0.5", "the class 2 has no name"),
        ("cat 0.5 0.5 0.5 0.5", "the class cat has no name"),
    ],
)
def test_any_other_line_of_yolo_is_refused(line, message):
    with pytest.raises(ValueError, match=message):
        parse_yolo(line.encode(), NAMES)


def coco_image(table):
    """The annotation of the one image of a table of COCO."""
    ((name, items),) = parts_of_coco("a.json", json.dumps(table).encode())
    assert name == "a.jpg"
    return parse_coco(items)


def test_coco_has_boxes_or_the_bounds_of_polygons_and_no_crowds():
    table = json.loads(
        coco([("a.jpg", 20, 16)], ["cat"], [(0, 0, 1, 2, 3, 4), (0, 0, 0, 0, 0, 0)])
    )
    polygon = [[5, 1, 9, 4, 7, 8], [3, 5, 4, 6, 4, 5]]
    table["annotations"][1]["segmentation"] = polygon
    table["annotations"].append(table["annotations"][0] | {"iscrowd": 1})
    found = coco_image(table)
    assert found.objects == [("cat", (1, 2, 4, 6)), ("cat", (3, 1, 9, 8))]
    assert found.size == (20, 16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image_id": 99}, "of the image 99 and the category 3, which are not both"),
        ({"category_id": 99}, "of the image 7 and the category 99, which are not both"),
        ({"bbox": [1, 2, 3, 4, 0.5]}, "is not a box of 4 finite numbers"),
        ({"bbox": [1, 2, 3, None]}, "is not a box of 4 finite numbers"),
        ({"bbox": None}, "no bbox and no polygon"),
        ({"bbox": None, "segmentation": {"counts": [1]}}, "no bbox and no polygon"),
    ],
)
def test_an_object_of_coco_of_another_kind_is_a_fault(change, message):
    table = json.loads(coco([("a.jpg", 20, 16)], ["cat"], [(0, 0, 1, 2, 3, 4)]))
    table["annotations"][0] |= change
    with pytest.raises(ValueError, match=message):
        coco_image(table)


def test_an_id_of_coco_stands_for_one_item():
    table = json.loads(coco([("a.jpg", 20, 16)], ["cat", "dog"], []))
    table["categories"][1]["id"] = table["categories"][0]["id"]
    with pytest.raises(ValueError, match="two items of it with a name have one id"):
        coco_image(table)


def csv_images(text):
    return {
        name: parse_csv(rows) for name, rows in parts_of_csv("a.csv", text.encode())
    }


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
    found = csv_images(f"{head}\n20,16,a.jpg,cat,1,2,3,4,valid\n,,b.jpg,dog,,,,,")
    assert found["a.jpg"] == Annotation([("cat", (1, 2, 3, 4))], (20, 16), "valid")
    assert found["b.jpg"] == Annotation([("dog", None)])


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


def test_a_malformed_line_is_a_fault_of_its_image_alone():
    lines = "path,label,x0,y0,x1,y1\na.jpg,cat,1,2,3,x\nb.jpg,cat\nc.jpg,cat,1,,3,4"
    lines += "\nd.jpg,cat,1,2,3,4,5"
    rows = dict(parts_of_csv("a.csv", lines.encode()))
    assert parse_csv(rows["b.jpg"]).objects == [("cat", None)]
    for name in ("a.jpg", "c.jpg"):
        with pytest.raises(ValueError, match=r"could not convert|is not a box of 4"):
            parse_csv(rows[name])
    with pytest.raises(ValueError, match=r"has the cells \['5'\] beyond the columns"):
        parse_csv(rows["d.jpg"])
    cells = dict(
        parts_of_tiny(
            "n02/t.txt", b"a.JPEG\t1\t1\tx\t9\nb.JPEG\tn01\t0\t1\t2\t3\nc.JPEG"
        )
    )
    assert parse_tiny(cells["b.JPEG"]).objects == [("n01", (0, 1, 2, 3))]
    for name in ("a.JPEG", "c.JPEG"):
        with pytest.raises(ValueError, match=r"could not convert|is not a box of 4"):
            parse_tiny(cells[name])


def test_an_image_is_of_its_largest_object():
    small, large, other = (0, 0, 2, 2), (0, 0, 5, 5), (1, 1, 3, 3)
    objects = [("cat", small), ("dog", large), ("dog", other)]
    assert of_largest(Annotation(objects)) == ("dog", (large, other))
    assert of_largest(Annotation([("cat", None), ("cat", None)])) == ("cat", ())
    with pytest.raises(ValueError, match="it has the labels cat, dog and no box"):
        of_largest(Annotation([("cat", None), ("dog", None)]))

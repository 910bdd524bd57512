"""Annotations by hand, and what is wrong with them."""

import json

import pytest

from helpers.data.annotations import (
    Annotation,
    parse_coco,
    parse_csv,
    parse_labelme,
    parse_names,
    parse_tiny_boxes,
    parse_voc,
    parse_yolo,
)
from tests.conftest import voc
from tests.data.conftest import coco


def test_voc_by_hand_in_any_namespace():
    given = voc((1, 2, 3, 4), (5.5, 6, 7, 8), size=(500, 333), name="n1")
    found = parse_voc(given)
    assert found == Annotation(
        (("n1", (1, 2, 3, 4)), ("n1", (5.5, 6, 7, 8))), (500, 333)
    )
    assert (
        parse_voc(
            b"\xef\xbb\xbf"
            + given.replace(
                b"<annotation>", b'<annotation xmlns="http://example.org/voc">'
            )
        )
        == found
    )
    assert [
        parse_voc(voc(size=size)).size for size in (None, (0, 0), ("inf", 9), ("?", 9))
    ] == [None] * 4  # as some tools write "unknown"


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation><object><name>&b;</name></object></annotation>'
OUTSIDE = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]><annotation><object><name>&f;</name></object></annotation>'
ENCODED = [
    f'<?xml version="1.0" encoding="{name}"?>'.encode() + voc((1, 1, 9, 9))
    for name in ("klingon", "utf-7", "utf-16", "")
]


@pytest.mark.parametrize(
    "content",
    [
        *(
            b"",
            b"not xml",
            b"<annotation><object></annotation>",
            voc((1, 2, 3, "x")),
            voc((1, 2, 3, "nan")),
            voc((1, 2, 3, "inf")),
        ),
        *(
            b"<annotation><object><name>a</name></object></annotation>",
            BOMB,
            OUTSIDE,
            *ENCODED,
        ),
    ],
)
def test_malformed_xml_and_entities_are_refused(content):
    assert parse_voc(content).fault


def test_tiny_boxes_by_hand_and_a_wrong_line_costs_one_image():
    found = parse_tiny_boxes(
        b"\xef\xbb\xbfx.JPEG\t1\t2\t3\t4\ny.JPEG\t1\t2\t3\nx.JPEG\t5\t6\t7\t8\r\n\nz.JPEG\t1\t2\tq\t4\nx.JPEG\t1\t2\t3\t4"
    )
    assert found["x.JPEG"].boxes == (
        (1, 2, 3, 4),
        (5, 6, 7, 8),
    )  # a line that stands twice says nothing new
    assert found["y.JPEG"].fault == "['1', '2', '3'] is not a box of 4 finite numbers"
    assert found["z.JPEG"].fault
    assert parse_tiny_boxes(b"v.JPEG\tn1\t1\t2\t3\t4")["v.JPEG"].objects == (
        ("n1", (1, 2, 3, 4)),
    )


def test_a_csv_has_boxes_or_none_in_columns_of_any_order():
    lines = [
        "label, Path,x0,y0,x1,y1",
        'cat,"a,b.png",1,2,3,4',
        'dog,"a,b.png",5,6,7,8',
        "",
        "dog,c.png,,,,",
        "dog,d.png,1,2,,",
    ]
    found = parse_csv("\n".join([*lines, 'cat,"e', "cat,f.png"]).encode("utf-8-sig"))
    assert found["a,b.png"].objects == (("cat", (1, 2, 3, 4)), ("dog", (5, 6, 7, 8)))
    assert (
        found["c.png"]
        == found["f.png"]._replace(objects=(("dog", None),))
        == Annotation((("dog", None),))
    )
    assert found["d.png"].fault
    assert parse_csv(b"path;label;x0;y0;x1;y1\r\na.png;cat;1;2;3;4")["a.png"].boxes == (
        (1, 2, 3, 4),
    )
    with pytest.raises(ValueError, match="field larger"):
        parse_csv(b"path,label\n" + b"a" * 200_000)
    for content in (b"", b"name,class\na,b"):
        with pytest.raises(ValueError, match="names no columns path and label"):
            parse_csv(content)


@pytest.mark.parametrize(
    "lines",
    [
        "filename,class,xmin,ymin,xmax,ymax\n{},cat,1,2,3.5,4",
        "image_id,label,x,y,w,h\n{},cat,1,2,2.5,2",
        "file_name,label,x,y,width,height\n{},cat,1,2,2.5,2",
        "path\tlabel\tx0\ty0\tx1\ty1\n{}\tcat\t1\t2\t3.5\t4",
        "path;label;x0;y0;x1;y1\r\n{};cat;1,0;2,0;3,5;4,0\r\n",
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_csv_of_other_tools_has_the_same_box(lines, encoding):
    found = parse_csv(lines.format("tür.png").encode(encoding))
    assert found == {"tür.png": Annotation((("cat", (1, 2, 3.5, 4)),))}


def test_width_and_height_beside_corners_are_of_the_image():
    head = b"filename,width,height,class,xmin,ymin,xmax,ymax\n"
    assert parse_csv(head + b"a.png,32,16,cat,1,2,3,4")["a.png"].size == (32, 16)


def test_a_class_of_yolo_written_as_a_float_has_its_name():
    assert parse_yolo(b"1.0 0.5 0.5 1 1", {"1": "dog"}).objects[0][0] == "dog"
    assert parse_yolo(b"2.0 0.5 0.5 1 1", {"1": "dog"}).objects[0][0] == "2"
    saved = b"1.000000000000000000e+00 5e-1 5e-1 1e+00 1e+00"
    assert parse_yolo(saved, {"1": "dog"}).objects == (("dog", (0, 0, 1, 1)),)


def test_a_mask_of_runs_without_a_box_is_named():
    table = json.loads(coco([("a.png", 9, 9)], ["cat"], [(0, 1, 2, 3, 4, 5)]))
    (mark,) = table["annotations"]
    mark["segmentation"] = {"size": [9, 9], "counts": "51n"}
    assert parse_coco(json.dumps(table).encode())["a.png"].boxes
    del mark["bbox"]
    assert "mask of runs" in parse_coco(json.dumps(table).encode())["a.png"].fault


def test_a_csv_whose_letters_or_numbers_are_not_known_is_named():
    with pytest.raises(ValueError, match="not UTF-8; save it as UTF-8"):
        parse_csv("path,label\na.png,tür".encode("latin-1"))
    found = parse_csv(b"path,label,x,y,w,h\na.png,cat,1,2,,4\nb.png,cat,,,,")
    assert "is not a box of 4 finite numbers" in found["a.png"].fault
    assert found["b.png"] == Annotation((("cat", None),))


def test_coco_by_hand():
    given = json.loads(
        coco(
            [("a.png", 20, 16), ("b.png", 0, 0), ("c.png", 9, 9)],
            ["cat", "dog"],
            [(0, 1, 2, 3, 4, 5), (2, 0, 1, 1, 2)],
        )
    )
    given["annotations"].append(
        {"image_id": 8, "category_id": 3, "bbox": [0, 0, 9, 9], "iscrowd": 1}
    )
    given["images"] += [
        {"id": 5, "file_name": "d.png", "width": None},
        {"id": 6, "file_name": "e.png", "width": float("inf"), "height": 9},
    ]
    found = parse_coco(json.dumps(given).encode())
    assert found["a.png"] == Annotation((("dog", (2, 3, 6, 8)),), (20, 16))
    assert [found[name] for name in ("b.png", "d.png", "e.png")] == [Annotation(())] * 3
    assert found["c.png"].fault
    for content in (
        b"",
        b"[]",
        b"{",
        b"[" * 100_000,
        b'{"images": 1, "annotations": [], "categories": []}',
    ):
        with pytest.raises(ValueError, match=r"as COCO has them|it is not JSON"):
            parse_coco(content)


def test_yolo_by_hand():
    found = parse_yolo(b"1 0.5 0.5 0.5 0.25\n\n7 0.25 0.25 0.5 0.5\n", {"1": "cat"})
    assert found == Annotation(
        (("cat", (0.25, 0.375, 0.75, 0.625)), ("7", (0.0, 0.0, 0.5, 0.5))), (1, 1)
    )
    for content in (
        b"1 0.5 0.5 0.5",
        b"1 x 1 1 1",
        b"1 x 1 1 1 2 2",
    ):
        assert parse_yolo(content, {}).fault
    assert "divide pixels by its width" in parse_yolo(b"1 24 30 12 9", {}).fault
    outline = parse_yolo(b"0 0.1 0.3 0.4 0.2 0.3 0.9", {"0": "cat"})
    assert outline.objects == (("cat", (0.1, 0.2, 0.4, 0.9)),)
    assert parse_yolo(b"-1 0.5 0.5 1 1", {}).fault == "-1 is not the number of a class"
    certain = parse_yolo(b"0 0.1 0.3 0.4 0.2 0.3 0.9 0.77", {"0": "cat"})
    assert certain == outline
    certain = parse_yolo(b"0 0.5 0.5 0.5 0.25 0.77", {"0": "cat"})
    assert certain.boxes == ((0.25, 0.375, 0.75, 0.625),)
    pose = parse_yolo(b"0 0.5 0.5 0.5 0.25 0.1 0.1", {}, keypoints=True)
    assert pose.boxes == ((0.25, 0.375, 0.75, 0.625),)


def test_labelme_by_hand():
    shapes = [
        ("cat", "rectangle", [[8, 9], [2, 3]]),
        ("cat", "polygon", [[1, 1], [5, 2], [3, 7]]),
        ("dog", "circle", [[10, 10], [13, 14]]),
        ("dog", "point", [[1, 1]]),
    ]
    table = {
        "shapes": [
            {"label": label, "shape_type": kind, "points": points}
            for label, kind, points in shapes
        ],
        "imageWidth": 20,
        "imageHeight": 16,
    }
    assert parse_labelme(json.dumps(table).encode()) == Annotation(
        (
            ("cat", (2, 3, 8, 9)),
            ("cat", (1, 1, 5, 7)),
            ("dog", (5, 5, 15, 15)),
            ("dog", None),
        ),
        (20, 16),
    )
    table["shapes"][0]["points"] = [["a", 1], [2, 3]]
    assert parse_labelme(json.dumps(table).encode()).fault
    for content in (b"", b"[]", b'{"images": []}'):
        with pytest.raises(
            ValueError, match=r"no shapes as labelme has them|it is not JSON"
        ):
            parse_labelme(content)


def test_coco_of_outlines_ids_as_text_and_objects_of_no_image():
    table = {
        "images": [{"id": "7", "file_name": "a.png"}, {"id": 8, "file_name": "b.png"}],
        "categories": [{"id": "1", "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            {
                "image_id": 7,
                "category_id": 1.0,
                "segmentation": [[1, 5, 4, 2, 3, 9], [0, 3, 2, 3, 2, 4]],
            },
            {"image_id": "8", "category_id": "2", "segmentation": []},
            {"image_id": 8, "category_id": 2, "bbox": []},
        ],
    }
    assert parse_coco(json.dumps(table).encode()) == {
        "a.png": Annotation((("cat", (0, 2, 4, 9)),)),
        "b.png": Annotation((("dog", None), ("dog", None))),
    }
    table["images"] = [{"id": 9, "file_name": "a.png"}]
    with pytest.raises(ValueError, match="none of its 3 objects is of an image"):
        parse_coco(json.dumps(table).encode())


@pytest.mark.parametrize(
    ("block", "name", "words"),
    [("categories", "name", "'cat' and for 'fox'"), ("images", "file_name", "'a.png'")],
)
def test_an_id_of_coco_that_stands_for_two_things_is_named(block, name, words):
    table = json.loads(coco([("a.png", 9, 9)], ["cat"], [(0, 0, 1, 1, 2, 2)]))
    table[block].append(table[block][0] | {name: "fox"})
    with pytest.raises(ValueError, match=f"stands for {words}"):
        parse_coco(json.dumps(table).encode())
    table[block][-1] = table[block][0]  # the same once more
    assert parse_coco(json.dumps(table).encode())["a.png"].labels == {"cat"}


def test_names_keep_the_first_synonym():
    assert parse_names(
        b"\xef\xbb\xbfn1\tgoldfish, Carassius\nn2 tree frog\n\nbroken"
    ) == {"n1": "goldfish", "n2": "tree frog"}


def test_a_row_without_size_and_split_leaves_those_of_the_rows_before():
    table = b"path,label,x0,y0,x1,y1,width,height,split\n"
    table += b"a.png,cat,0,0,1,1,8,6,train\na.png,dog,1,1,2,2,,,\n"
    annotation = parse_csv(table)["a.png"]
    assert (annotation.size, annotation.split) == ((8, 6), "train")
    assert len(annotation.objects) == 2

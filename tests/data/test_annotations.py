"""Annotations by hand, and what is wrong with them."""

import json

import pytest

from helpers.data.annotations import (
    Annotation,
    parse_coco,
    parse_csv,
    parse_names,
    parse_solution,
    parse_tiny_boxes,
    parse_voc,
    parse_yolo,
)
from tests.conftest import voc
from tests.data.conftest import coco


def test_voc_by_hand():
    found = parse_voc(voc((1, 2, 3, 4), (5.5, 6, 7, 8), size=(500, 333), name="n1"))
    assert found == Annotation(((1, 2, 3, 4), (5.5, 6, 7, 8)), ("n1", "n1"), (500, 333))
    assert parse_voc(voc(size=None)).size is None
    assert [parse_voc(voc(size=size)).size for size in ((0, 0), ("inf", 9), ("?", 9))] == [None] * 3  # as some tools write "unknown"


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation><object><name>&b;</name></object></annotation>'
OUTSIDE = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]><annotation><object><name>&f;</name></object></annotation>'
ENCODED = [f'<?xml version="1.0" encoding="{name}"?>'.encode() + voc((1, 1, 9, 9)) for name in ("klingon", "utf-7", "utf-16", "")]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"not xml", b"<annotation><object></annotation>", voc((1, 2, 3, "x")), voc((1, 2, 3, "nan")), voc((1, 2, 3, "inf"))),
        *(b"<annotation><object><name>a</name></object></annotation>", BOMB, OUTSIDE, *ENCODED),
    ],
)
def test_malformed_xml_and_entities_are_refused(content):
    with pytest.raises(ValueError):
        parse_voc(content)


def test_solution_csv_by_hand_and_a_wrong_line_costs_one_image():
    lines = ["ImageId,PredictionString", "a,n1 1 2 3 4 n2 5 6 7 8 ", "b,n1 1 2 3", "c,n1 1 2 x 4", "d,", "", '"e","n1 1 2 3 4"']
    lines += ["f,n1 1 2\r3 4", f"g,{'n1 1 2 3 4 ' * 1000}{' ' * 130_000}", "h,n1 1 2 3 1e999", "\xff\0,,,\0"]
    found = parse_solution("\n".join(lines).encode("latin-1"))
    assert found["a"] == Annotation(((1, 2, 3, 4), (5, 6, 7, 8)), ("n1", "n2"))
    assert found["e"].boxes == ((1, 2, 3, 4),)
    assert len(found["g"].boxes) == 1000
    assert {name for name, marked in found.items() if isinstance(marked, str)} >= {"b", "c", "d", "f", "h"}
    assert found["b"] == "line 3: (1.0, 2.0, 3.0) is no box of 4 finite numbers"


def test_rows_of_one_image_add_up_and_one_that_stands_twice_says_nothing():
    rows = (b"a,n1 1 2 3 4 \n", b"a,n2 1 2 3 4 n1 5 6 7 8\n", b"a,n1 1 2 3 4 \n")
    found = parse_solution(b"ImageId,PredictionString\n" + b"".join(rows))["a"]
    assert found == Annotation(((1, 2, 3, 4), (1, 2, 3, 4), (5, 6, 7, 8)), ("n1", "n2", "n1"))


def test_tiny_boxes_by_hand():
    found = parse_tiny_boxes(b"x.JPEG\t1\t2\t3\t4\ny.JPEG\t1\t2\t3\nx.JPEG\t5\t6\t7\t8\r\n\nz.JPEG\t1\t2\tq\t4")
    assert found["x.JPEG"].boxes == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert [isinstance(found[name], str) for name in ("y.JPEG", "z.JPEG")] == [True, True]
    assert parse_tiny_boxes(b"v.JPEG\tn1\t1\t2\t3\t4")["v.JPEG"].objects == ("n1",)


def test_a_csv_has_boxes_or_none_in_columns_of_any_order():
    found = parse_csv(
        b'\xef\xbb\xbflabel, Path,x0,y0,x1,y1\ncat,"a,b.png",1,2,3,4\ncat,"a,b.png",5,6,7,8\n\ndog,c.png,,,,\ndog,d.png,1,2,,\n,e.png\n'
    )
    assert found["a,b.png"] == Annotation(((1, 2, 3, 4), (5, 6, 7, 8)), ("cat", "cat"))
    assert found["c.png"] == Annotation((), ("dog",))
    assert [isinstance(found[name], str) for name in ("d.png", "e.png")] == [True, True]
    assert parse_csv(b"path;label;x0;y0;x1;y1\r\na.png;cat;1;2;3;4")["a.png"] == Annotation(((1, 2, 3, 4),), ("cat",))
    with pytest.raises(ValueError, match="field larger"):
        parse_csv(b"path,label\n" + b"a" * 200_000)
    with pytest.raises(ValueError, match="names no columns path and label"):
        parse_csv(b"name,class\na,b")


def test_coco_by_hand():
    given = json.loads(coco([("a.png", 20, 16), ("b.png", 0, 0), ("c.png", 9, 9)], ["cat", "dog"], [(0, 1, 2, 3, 4, 5), (2, 0, 1, 1, 2)]))
    given["annotations"].append({"image_id": 8, "category_id": 3, "bbox": [0, 0, 9, 9], "iscrowd": 1})
    given["images"] += [{"id": 5, "file_name": "d.png", "width": None}, {"id": 6, "file_name": "e.png", "width": float("inf"), "height": 9}]
    found = parse_coco(json.dumps(given).encode())
    assert [found[name].size for name in ("d.png", "e.png")] == [None, None]
    assert found["a.png"] == Annotation(((2, 3, 6, 8),), ("dog",), (20, 16))
    assert found["b.png"] == Annotation((), (), None)
    assert isinstance(found["c.png"], str)
    for content in (b"", b"[]", b"{", b"[" * 100_000, b'{"images": 1, "annotations": [], "categories": []}'):
        with pytest.raises(ValueError, match="as COCO has them"):
            parse_coco(content)


def test_yolo_by_hand():
    assert parse_yolo(b"1 0.5 0.5 0.5 0.25\n\n7 0.25 0.25 0.5 0.5\n", {1: "cat"}) == Annotation(
        ((0.25, 0.375, 0.75, 0.625), (0.0, 0.0, 0.5, 0.5)), ("cat", "7"), (1, 1)
    )
    for content in (b"1 0.5 0.5 0.5", b"cat 0.5 0.5 0.5 0.5", b"1 0.1 0.1 0.2 0.2 0.3 0.3"):
        with pytest.raises(ValueError):
            parse_yolo(content, {})


def test_a_mark_of_byte_order_and_a_namespace_change_nothing():
    spaced = voc((1, 2, 3, 4)).replace(b"<annotation>", b'<annotation xmlns="http://example.org/voc">')
    assert parse_voc(b"\xef\xbb\xbf" + spaced) == parse_voc(voc((1, 2, 3, 4)))
    assert set(parse_tiny_boxes(b"\xef\xbb\xbfx.JPEG\t1\t2\t3\t4")) == {"x.JPEG"}


def test_names_keep_the_first_synonym():
    assert parse_names(b"\xef\xbb\xbfn1\tgoldfish, Carassius\nn2\tlion\n\nbroken", "\t") == {"n1": "goldfish", "n2": "lion"}
    assert parse_names(b"n1 tree frog, tree-frog", None) == {"n1": "tree frog"}

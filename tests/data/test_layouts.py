import pytest
from conftest import voc

from helpers.annotations import parse_names, parse_solution, parse_tiny_boxes, parse_voc


def test_voc_by_hand():
    annotation = parse_voc(voc((1, 2, 3, 4), (5.5, 6, 7, 8), size=(500, 333), name="n1"))
    assert annotation.boxes == ((1, 2, 3, 4), (5.5, 6, 7, 8))
    assert annotation.objects == ("n1", "n1")
    assert annotation.size == (500, 333)
    assert parse_voc(voc(size=None)).size is None
    assert parse_voc(voc(size=(0, 0))).size is None  # "unknown", as some tools write it


BOMB = b'<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><annotation><object><name>&b;</name></object></annotation>'
OUTSIDE = b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/hostname">]><annotation><object><name>&f;</name></object></annotation>'


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not xml",
        b"<annotation><object></annotation>",
        voc((1, 2, 3, "x")),
        voc((1, 2, 3, "nan")),
        voc((1, 2, 3, "inf")),
        b"<annotation><object><name>a</name></object></annotation>",
        BOMB,
        OUTSIDE,
    ],
)
def test_malformed_xml_and_entities_are_refused(content):
    with pytest.raises(ValueError):
        parse_voc(content)


def test_solution_csv_by_hand():
    content = b"ImageId,PredictionString\na,n1 1 2 3 4 n2 5 6 7 8 \nb,n1 1 2 3\nc,n1 1 2 x 4\nd,\n\n"
    annotations, faults = parse_solution(content)
    assert annotations["a"].boxes == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert annotations["a"].objects == ("n1", "n2")
    assert annotations["a"].size is None
    assert set(faults) == {"b", "c", "d"}
    assert faults["b"].startswith("line 3: 4 words")


def test_tiny_boxes_by_hand():
    annotations, faults = parse_tiny_boxes(
        b"x.JPEG\t1\t2\t3\t4\ny.JPEG\t1\t2\t3\nx.JPEG\t5\t6\t7\t8\r\n\nz.JPEG\t1\t2\tq\t4", with_class=False
    )
    assert annotations["x.JPEG"].boxes == ((1, 2, 3, 4), (5, 6, 7, 8))
    assert set(faults) == {"y.JPEG", "z.JPEG"}


def test_a_validation_line_with_a_bad_box_keeps_its_class():
    annotations, faults = parse_tiny_boxes(b"v.JPEG\tn1\t1\t2\t3\nw.JPEG\tn2\t1\t2\t3\t4", with_class=True)
    assert annotations["v.JPEG"].objects == ("n1",)
    assert annotations["v.JPEG"].boxes == ()
    assert annotations["w.JPEG"].boxes == ((1, 2, 3, 4),)
    assert set(faults) == {"v.JPEG"}


def test_names_keep_the_first_synonym():
    assert parse_names(b"n1\tgoldfish, Carassius\nn2\tlion\n\nbroken", "\t") == {"n1": "goldfish", "n2": "lion"}
    assert parse_names(b"n1 tree frog, tree-frog", None) == {"n1": "tree frog"}

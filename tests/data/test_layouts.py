import zipfile

import pytest

from helpers.data.layouts import Folder, Zip, open_archive, parse_names, parse_solution, parse_tiny_boxes, parse_voc
from tests.conftest import voc


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


def test_rows_of_one_image_add_up_and_one_that_stands_twice_says_nothing():
    rows = (b"a,n1 1 2 3 4 \n", b"a,n2 1 2 3 4 n1 5 6 7 8\n", b"a,n1 1 2 3 4 \n")
    annotations, faults = parse_solution(b"ImageId,PredictionString\n" + b"".join(rows))
    assert annotations["a"].objects == ("n1", "n2", "n1")
    assert annotations["a"].boxes == ((1, 2, 3, 4), (1, 2, 3, 4), (5, 6, 7, 8))
    assert not faults
    lines = b"x.JPEG\tn1\t1\t2\t3\t4\nx.JPEG\tn1\t1\t2\t3\t4\nx.JPEG\tn2\t1\t2\t3\t4"
    assert parse_tiny_boxes(lines, with_class=True)[0]["x.JPEG"].objects == ("n1", "n2")


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


def test_a_mark_of_byte_order_and_a_namespace_change_nothing():
    spaced = voc((1, 2, 3, 4)).replace(b"<annotation>", b'<annotation xmlns="http://example.org/voc">')
    assert parse_voc(b"\xef\xbb\xbf" + spaced) == parse_voc(voc((1, 2, 3, 4)))
    assert set(parse_tiny_boxes(b"\xef\xbb\xbfx.JPEG\t1\t2\t3\t4", with_class=False)[0]) == {"x.JPEG"}
    assert parse_names(b"\xef\xbb\xbfn1\tcrane", "\t") == {"n1": "crane"}


def test_a_name_is_what_a_figure_can_show():
    assert parse_names(b"n1\tcr\0a\x1b[1mne\nn2\t" + b"x" * 9999, "\t") == {"n1": "cra[1mne", "n2": "x" * 100}


def test_names_keep_the_first_synonym():
    assert parse_names(b"n1\tgoldfish, Carassius\nn2\tlion\n\nbroken", "\t") == {"n1": "goldfish", "n2": "lion"}
    assert parse_names(b"n1 tree frog, tree-frog", None) == {"n1": "tree frog"}


def test_a_folder_and_its_zip_list_and_read_the_same(store):
    archive = open_archive(store({"a/b/x.txt": b"1", "a/y.txt": b"2", "z.txt": b"3"}))
    root = "" if "z.txt" in archive.files("") else "top/"
    assert archive.folders(root) == ["a"]
    assert archive.files(root) == ["z.txt"]
    assert archive.files(f"{root}a") == ["y.txt"]
    assert archive.folders(f"{root}a/") == ["b"]
    assert archive.read(f"{root}a/b/x.txt") == b"1"
    assert archive.exists(f"{root}a/y.txt")
    assert not archive.exists(f"{root}a/b")
    assert archive.files(f"{root}nowhere") == archive.folders(f"{root}nowhere") == []


def test_names_that_leave_the_archive_do_not_exist(tmp_path):
    with zipfile.ZipFile(tmp_path / "slip.zip", "w") as archive:
        archive.writestr("../outside.txt", "x")
        archive.writestr("/absolute.txt", "x")
        archive.writestr("inside.txt", "x")
    opened = Zip(tmp_path / "slip.zip")
    assert opened.files("") == ["inside.txt"]
    assert opened.folders("") == []
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match="leaves the folder"):
        Folder(tmp_path / "folder").read("../outside.txt")


def test_a_damaged_member_is_an_error_of_reading(tmp_path):
    path = tmp_path / "damaged.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.txt", b"some content that is long enough" * 9)
    content = bytearray(path.read_bytes())
    content[40:60] = b"\0" * 20
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a.txt cannot be read from damaged.zip"):
        Zip(path).read("a.txt")
    with pytest.raises(ValueError, match=r"missing.txt cannot be read"):
        Zip(path).read("missing.txt")


def test_the_stamp_changes_when_a_file_does(tmp_path):
    (tmp_path / "a.txt").write_text("1")
    archive = open_archive(tmp_path)
    before = archive.stamp(["a.txt"])
    assert archive.stamp(["a.txt"]) == before
    (tmp_path / "a.txt").write_text("22")
    assert archive.stamp(["a.txt"]) != before


def test_refuses_what_is_neither_folder_nor_zip(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"data_path .*nothing does not exist; put the images there"):
        open_archive(tmp_path / "nothing")
    (tmp_path / "file.tar").write_text("x")
    with pytest.raises(ValueError, match=r"file.tar is neither a folder nor a .zip"):
        open_archive(tmp_path / "file.tar")

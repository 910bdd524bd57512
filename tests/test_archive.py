import zipfile

import pytest

from helpers.archive import Folder, Zip, open_archive


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
    with pytest.raises(OSError, match=r"a.txt cannot be read from damaged.zip"):
        Zip(path).read("a.txt")
    with pytest.raises(OSError, match=r"missing.txt cannot be read"):
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

"""Folders and zips: what is listed, what is left out, and what is refused."""

import os
import zipfile
from pathlib import Path

import pytest

from helpers.data.sources import Source, open_source
from tests.conftest import LAYOUTS, voc_folder
from tests.data.conftest import kinds, written, zipped


def test_hidden_files_and_folders_of_systems_are_left_out(tmp_path):
    names = ["a/b/x.JPEG", ".z.png", "a/._0.jpg", "b.txt", "a/0.Webp"]
    systems = (".x", "__MACOSX", "@eaDir", "$RECYCLE.BIN", "#recycle", "thumbnails")
    files = [f"a/{system}/y.png" for system in systems]
    source = Source(written(tmp_path, dict.fromkeys(names + files, b"1")))
    assert source.names == ["a/0.Webp", "a/b/x.JPEG", "b.txt"]
    assert source.images == ["a/0.Webp", "a/b/x.JPEG"]
    assert source.read("a/b/x.JPEG") == b"1"
    (fault,) = source.faults
    assert (fault["name"], fault["fault"]) == (".z.png", "passed_over")
    assert fault["detail"].startswith("8 ")


def test_links_and_unusable_names_are_one_fault_a_folder(tmp_path, load):
    cat = written(tmp_path / "s", voc_folder(classes=("cat", "dog", "owl"))) / "cat"
    (tmp_path / "s/owl").rename(tmp_path / "owl")
    (tmp_path / "s/owl").symlink_to(tmp_path / "owl")
    (tmp_path / "s/loop").symlink_to(tmp_path / "s")
    (tmp_path / "s/bad\\name").mkdir()
    (tmp_path / "s" / os.fsdecode(b"klasse-\xe4")).mkdir()
    os.link(cat / "1.jpg", os.fsencode(cat) + b"/not-\xff-utf8.jpg")
    data = load(tmp_path / "s")
    assert data.classes["class_id"].tolist() == ["cat", "dog"]
    told = data.faults.set_index("name")["detail"]
    assert kinds(data) == {"name_not_usable": 1, "link_not_followed": 1}
    assert told["bad\\name"].startswith("3 names with a backslash")
    assert told["loop"].startswith("2 links lead to folders, out of the folder")


def test_what_is_no_regular_file_is_counted_and_never_waited_for(tmp_path, load):
    cat = written(tmp_path / "s", voc_folder()) / "cat"
    (tmp_path / "elsewhere.jpg").write_bytes(b"3")
    os.mkfifo(cat / "pipe.JPEG")
    for name, target in (
        ("nowhere", "nothing"),
        ("itself", "itself.jpg"),
        ("device", "/dev/zero"),
        ("outside", tmp_path / "elsewhere.jpg"),
    ):
        (cat / f"{name}.jpg").symlink_to(target)
    (cat / "inside.txt").symlink_to("../dog/0.xml")
    for _ in range(2):  # the second time from the cache
        data = load(tmp_path / "s", "voc")
        assert data.faults["detail"].str.partition(" ")[0].tolist() == ["4", "1", "1"]
        assert kinds(data) == {"not_read": 2, "link_not_followed": 1}
    content = Source(tmp_path / "s").read("cat/inside.txt")
    assert content == (tmp_path / "s/dog/0.xml").read_bytes()


def test_what_is_neither_folder_nor_zip_is_refused_without_reading_it(tmp_path, load):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", "pipe"):
        with pytest.raises(FileNotFoundError, match="is no folder and no"):
            load(tmp_path / path)
    (tmp_path / "file.tar").write_text("x")
    with pytest.raises(ValueError, match="is damaged"):
        load(tmp_path / "file.tar")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_zip_is_its_folder_and_unpacked_once(tmp_path, load, layout, monkeypatch):
    files = LAYOUTS[layout]()
    inside = {f"top/{name}": content for name, content in files.items()}
    path = zipped(tmp_path / "a.zip", inside)
    assert load(path, layout).fingerprint == load(files, layout).fingerprint
    monkeypatch.delattr(zipfile.ZipFile, "extractall")
    load(path, layout, image_size=24)


def test_no_name_in_a_zip_leaves_the_folder_and_a_link_is_a_file(tmp_path):
    link = zipfile.ZipInfo("link.txt")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "slip.zip", "w") as archive:
        for name in ("../../outside.txt", "/absolute.txt", "inside.txt"):
            archive.writestr(name, "x")
        archive.writestr(link, "/etc/hostname")
    found = open_source(tmp_path / "slip.zip", tmp_path / "work/unpacked")
    assert {path.name for path in tmp_path.iterdir()} == {"slip.zip", "work"}
    assert not Path("/absolute.txt").exists()
    assert found.read("link.txt") == b"/etc/hostname"
    with pytest.raises(ValueError, match="leaves the folder"):
        found.read("../../slip.zip")


def test_names_in_a_zip_are_utf8_and_others_are_refused(tmp_path, load):
    """macOS writes UTF-8 that is not marked as such; PowerShell 5 writes backslashes."""
    path = zipped(tmp_path / "a.zip", {"caf\u00e9/1.png": b"x"})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"\x00\x08", b"\x00\x00"))
    assert open_source(path, tmp_path / "unpacked").names == ["caf\u00e9/1.png"]
    path.write_bytes(path.read_bytes().replace("\u00e9".encode(), b"\xe9x"))
    with pytest.raises(ValueError, match=r"is damaged .'utf-8' codec"):
        open_source(path, tmp_path / "unpacked")
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data\\cat\\0.png", "..\\..\\outside.png"):
            archive.writestr(zipfile.ZipInfo(name), b"x")
    with pytest.raises(ValueError, match="2 names with a backslash"):
        load(path)
    assert not (tmp_path / "outside.png").exists()


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_damaged_zip_is_refused_by_name_and_leaves_nothing(tmp_path, compression):
    path = zipped(tmp_path / "a.zip", voc_folder(), compression=compression)
    whole = path.read_bytes()
    for damaged in (whole[:100] + bytes(200) + whole[300:], whole[:-100]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.zip is damaged"):
            open_source(path, tmp_path / "unpacked")
        assert not list((tmp_path / "unpacked").glob("*"))


@pytest.mark.parametrize("name", ["0.jpg", "1.xml"])
def test_what_cannot_be_read_now_ends_the_loading(tmp_path, load, monkeypatch, name):
    source, read = written(tmp_path / "s", voc_folder()), Path.read_bytes

    def read_bytes(path):
        if path.name == name:
            raise OSError(5, "Input/output error")
        return read(path)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="output error"):
        patch.setattr(Path, "read_bytes", read_bytes)
        load(source, "voc")
    assert kinds(load(source, "voc")) == {}


def test_the_stamp_changes_when_a_file_does(tmp_path):
    written(tmp_path / "s", {"a/0.jpg": b"1"})
    stamps = {Source(tmp_path / "s").stamp for _ in range(2)}
    os.utime(tmp_path / "s/a/0.jpg", (1, 1))
    stamps.add(Source(tmp_path / "s").stamp)
    (tmp_path / "s/a/0.jpg").rename(tmp_path / "s/a/1.jpg")
    stamps.add(Source(tmp_path / "s").stamp)
    assert len(stamps) == 3

import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import files
from helpers.files import PROJECT_ROOT, complete_or_absent, from_root, inside, read_json, write_json


def test_a_failure_leaves_neither_half_a_file_nor_a_temporary_one(tmp_path):
    write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(RuntimeError, match="amid"), complete_or_absent(tmp_path / "a.json") as temporary:
        temporary.write_text("half")
        raise RuntimeError("amid")
    assert read_json(tmp_path / "a.json") == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_the_file_appears_at_the_end_only_and_folders_are_made(tmp_path):
    path = tmp_path / "new/folder/a.txt"
    with complete_or_absent(path) as temporary:
        temporary.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/etc/passwd", ".", ""])
def test_names_that_leave_a_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"leaves the folder .*; use a plain file name"):
        inside(tmp_path, name)
    assert inside(tmp_path, "a/b..c") == tmp_path.resolve() / "a/b..c"


def test_a_link_out_of_the_folder_is_followed_before_it_is_judged(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leaves the folder"):
        inside(tmp_path / "folder", "link/secret")


def test_paths_are_those_of_the_project_wherever_the_kernel_starts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert from_root("notebooks") == PROJECT_ROOT / "notebooks"
    assert from_root(tmp_path) == tmp_path


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_json_that_cannot_be_read_is_one_clear_error(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"a.json is not readable JSON \(.*\); delete it and run again"):
        read_json(tmp_path / "a.json")


@pytest.fixture
def two(tmp_path):
    """Two sealed files of tensors in folders of their own."""
    paths = [tmp_path / folder / "a.safetensors" for folder in ("one", "two")]
    for number, path in enumerate(paths):
        files.write_tensors(path, {"x": torch.arange(4.0) + number, "y": torch.ones(2, 3).T})
    return paths


def test_what_was_written_is_read_and_the_seal_is_hidden(two):
    found = files.read_tensors(two[1])
    assert torch.equal(found["x"], torch.arange(1.0, 5))
    assert torch.equal(found["y"], torch.ones(3, 2))
    assert sorted(path.name for path in two[0].parent.iterdir()) == [".a.safetensors.seal", "a.safetensors"]
    assert files.read_tensors(two[0].with_name("absent")) is None


def flipped(path, other):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def with_seal(path, other):
    shutil.copy(other, path)
    shutil.copy(other.with_name(".a.safetensors.seal"), path.parent)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (flipped, "not as it was written"),
        (lambda path, other: path.write_bytes(path.read_bytes()[:-1]), "not as it was written"),
        (lambda path, other: path.write_bytes(b""), "not as it was written"),
        (lambda path, other: path.unlink(), "it was deleted"),
        (lambda path, other: shutil.copy(other, path), "not as it was written"),
        (with_seal, "it belongs to two/a.safetensors"),
        (lambda path, other: path.with_name(".a.safetensors.seal").write_bytes(b"\xff"), "its seal is damaged"),
        (lambda path, other: path.with_name(".a.safetensors.seal").write_text(""), "its seal is damaged"),
    ],
)
def test_what_is_not_as_it_was_written_is_named_and_removed(two, damage, told):
    damage(*two)
    with pytest.warns(UserWarning, match=f"one/a.safetensors: {told}; it is made again"):
        assert not files.is_sound(two[0])
    assert not list(two[0].parent.iterdir())
    assert files.is_sound(two[1])


def test_a_file_from_before_there_were_seals_is_read_in_silence_and_given_up_where_it_cannot_be(two):
    two[0].with_name(".a.safetensors.seal").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert files.read_tensors(two[0])["x"].tolist() == [0, 1, 2, 3]
    two[0].write_bytes(two[0].read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"a.safetensors: .*; it is made again"):
        assert files.read_tensors(two[0]) is None
    assert not two[0].exists()


def test_a_folder_in_place_of_a_file_is_named_with_what_to_do(tmp_path):
    (tmp_path / "a.json").mkdir()
    with pytest.raises(IsADirectoryError, match=r"a folder lies where a file belongs; move it away: '.*a\.json'"):
        files.write_json(tmp_path / "a.json", {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def without_seal(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("ending", [".parquet", ".npz", ".safetensors"])
def test_a_file_without_a_seal_that_cannot_be_read_is_named_and_removed(tmp_path, ending):
    path = tmp_path / f"a{ending}"
    if ending == ".parquet":
        pd.DataFrame({"x": range(99)}).to_parquet(path)
    elif ending == ".npz":
        np.savez(path, x=np.arange(99))
    else:
        files.write_tensors(path, {"x": torch.arange(99)})
        path.with_name(f".{path.name}.seal").unlink()
    whole = path.read_bytes()
    assert files.is_sound(path)
    header = [whole.replace(b'{"index_columns"', b'{\xff"index_column"')] if ending == ".parquet" else []  # that pandas alone reads
    for damaged in (whole[: len(whole) // 2], b"", bytes(len(whole)), *header):
        with pytest.warns(UserWarning, match=rf"a{ending}: cannot be read \(.+\); it is made again"):
            assert not files.is_sound(without_seal(path, damaged))
        assert not path.exists()


def test_a_disk_that_fails_now_costs_no_file(tmp_path, monkeypatch):
    path = without_seal(tmp_path / "a.parquet", b"")
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(OSError, match="Input/output"):
        files.is_sound(path)
    assert path.exists()


def test_a_kill_between_file_and_seal_leaves_what_is_read(two, monkeypatch):
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        real = files.os.replace
        patch.setattr(files.os, "replace", lambda old, new: real(old, new) if new == two[0] else (_ for _ in ()).throw(KeyboardInterrupt))
        files.write_tensors(two[0], {"x": torch.zeros(1)})
    assert files.read_tensors(two[0])["x"].tolist() == [0]

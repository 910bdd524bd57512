"""Files that are complete or absent, and names that stay in their folder."""

import os
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import files
from helpers.files import (
    PROJECT_ROOT,
    complete_or_absent,
    from_root,
    inside,
    read_json,
    write_json,
)


def test_a_file_appears_whole_at_the_end_or_stays_as_it_was(tmp_path):
    path = tmp_path / "new/folder/a.json"
    with complete_or_absent(path) as temporary:
        temporary.write_text("[1]")
        assert not path.exists()
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"x": float("nan")})  # undefined is no number
    with pytest.raises(RuntimeError), complete_or_absent(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert read_json(path) == [1]
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize("name", ["..", "../x", "a/../../x", "/etc/passwd", ".", ""])
def test_names_that_leave_a_folder_are_refused(tmp_path, name):
    with pytest.raises(ValueError, match=r"leaves the folder .*; use a plain file na"):
        inside(tmp_path, name)
    assert inside(tmp_path, "a/b..c") == tmp_path.resolve() / "a/b..c"


def test_a_link_out_of_the_folder_is_followed_before_it_is_judged(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leaves the folder"):
        inside(tmp_path / "folder", "link/secret")


def test_paths_are_those_of_the_project_wherever_the_kernel_starts(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert from_root("notebooks") == PROJECT_ROOT / "notebooks"
    assert from_root(tmp_path) == tmp_path


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_json_that_cannot_be_read_is_one_clear_error(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"a.json is not readable JSON \(.*\); delete it and run again"
    ):
        read_json(tmp_path / "a.json")


@pytest.mark.parametrize("length", [-1, 60, 0])
def test_tensors_that_were_written_are_read_and_damaged_ones_are_named(
    tmp_path, length
):
    path = tmp_path / "new/a.safetensors"
    assert files.read_tensors(path) is None
    files.write_tensors(path, {"x": torch.arange(4.0), "y": torch.ones(2, 3).T})
    tensors = files.read_tensors(path)
    assert torch.equal(tensors["x"], torch.arange(4.0))
    assert torch.equal(tensors["y"], torch.ones(3, 2))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.warns(UserWarning, match=r"a.safetensors is damaged .*made again"):
        assert files.read_tensors(path) is None


def listed(arrays):
    return {name: values.tolist() for name, values in arrays.items()}


TABLE = pd.DataFrame({"x": [0.5, np.nan] * 9, "y": ["a", None] * 9})
RECORD = {"gap": 0.123456789, "seed": 3}
# By kind: how a file of it is written, and its values as they are read.
KINDS = {
    "npz": (
        lambda path: np.savez_compressed(path, x=np.arange(99.0), y=np.ones(3)),
        lambda path: listed(files.read_arrays(path)),
    ),
    "parquet": (
        lambda path: files.write_table(path, TABLE),
        lambda path: files.read_table(path).to_csv(),
    ),
    "json": (
        lambda path: write_json(path, RECORD, sealed=True),
        lambda path: {name: read_json(path)[name] for name in RECORD},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_named_and_never_another_value(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    write, read = KINDS[kind]
    write(path)
    whole = path.read_bytes()
    value = read(path)
    refused = 0
    for place in np.linspace(0, len(whole) - 1, 24).astype(int):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        try:
            assert read(path) == value
        except ValueError as fault:
            assert path.name in str(fault)
            refused += 1
    assert refused > 12


@pytest.mark.parametrize("content", [b"", b"text", b"<html>", bytes(99)])
def test_what_is_no_npz_is_called_so_without_advice_to_unpickle_it(tmp_path, content):
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    message = r"a\.npz is damaged \(it is not an \.npz\); put"
    with pytest.raises(ValueError, match=message):
        files.read_arrays(path)


def test_a_stamp_changes_with_names_and_times(tmp_path):
    """The sum of the sizes stays the same throughout."""
    folder = tmp_path / "s"
    for name, content in (("cat/0.png", b"a"), ("dog/1.png", b"b"), ("t.csv", b"1")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
        os.utime(folder / name, (5, 5))
    (folder / "nowhere").symlink_to("nothing")
    stamps = [files.change_stamp(folder)]
    assert files.change_stamp(folder) == stamps[0]
    (folder / "cat/0.png").rename(folder / "dog/0.png")  # a label is corrected
    stamps.append(files.change_stamp(folder))
    of_file = files.change_stamp(folder / "t.csv")
    (folder / "t.csv").write_bytes(b"2")
    stamps.append(files.change_stamp(folder))
    assert len(set(stamps)) == 3
    assert files.change_stamp(folder / "t.csv") != of_file
    assert files.change_stamp(tmp_path / "absent") != of_file


def test_a_commit_says_changes_of_the_code_and_not_of_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PROJECT_ROOT", tmp_path)
    assert files.commit() == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for name in ("code.py", "reports/study/page.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    clean = files.commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (tmp_path / "reports/study/page.html").write_text("second")
    assert files.commit() == clean
    (tmp_path / "code.py").write_text("second")
    assert files.commit() == f"{clean}+changes"


def test_a_table_that_another_program_rewrote_is_not_read(tmp_path):
    path = tmp_path / "table.parquet"
    files.write_table(path, pd.DataFrame({"gap": [1.0, 2.0]}))
    assert files.read_table(path)["gap"].tolist() == [1, 2]
    pd.DataFrame({"gap": [1.0, 3.0]}).to_parquet(path)
    with pytest.raises(files.DamagedFileError, match="its checksum is none"):
        files.read_table(path)


def test_a_table_is_that_of_the_execution_that_wrote_it(tmp_path):
    path = tmp_path / "03_cam_scoring/tables/iou.csv"
    path.parent.mkdir(parents=True)
    path.touch()
    failed = tmp_path / "02_grid_training.failed/tables/iou.csv"
    failed.parent.mkdir(parents=True)
    failed.touch()
    assert files.table_of(tmp_path, "iou.csv") == path
    assert not files.table_of(tmp_path, "norms.csv").exists()

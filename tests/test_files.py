"""Files that are complete or absent, and names that stay in their folder."""

import os
import re
import subprocess

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import files
from helpers.files import complete_or_absent, inside, read_json, write_json


def test_a_file_appears_whole_at_the_end_or_stays_as_it_was(tmp_path):
    path = tmp_path / "new/folder/a.json"
    with complete_or_absent(path) as temporary:
        temporary.write_text("[1]")
        assert not path.exists()
    os.link(path, tmp_path / "old")  # as a reader has it open
    write_json(path, [2])
    with pytest.raises(ValueError, match="Out of range float"):
        write_json(path, {"x": float("nan")})  # undefined is no number
    with pytest.raises(RuntimeError), complete_or_absent(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert (read_json(tmp_path / "old"), read_json(path)) == ([1], [2])
    assert [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    "name", ["..", "../x", "a/../../x", "/etc/passwd", ".", "", "link/x"]
)
def test_names_that_leave_a_folder_are_refused(tmp_path, name):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(ValueError, match="leaves the folder"):
        inside(tmp_path, name)
    assert inside(tmp_path, "a/b..c") == tmp_path.resolve() / "a/b..c"


@pytest.mark.parametrize("length", [-1, 60, 0])
def test_tensors_are_read_as_written_and_damaged_ones_named(tmp_path, length):
    path = tmp_path / "new/a.safetensors"
    assert files.read_tensors(path) is None
    files.write_tensors(path, {"x": torch.arange(4.0), "y": torch.ones(2, 3).T})
    tensors = files.read_tensors(path)
    assert torch.equal(tensors["x"], torch.arange(4.0))
    assert torch.equal(tensors["y"], torch.ones(3, 2))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.warns(UserWarning, match=r"a.safetensors is damaged .*made again"):
        assert files.read_tensors(path) is None


TABLE = pd.DataFrame({"x": [0.5, np.nan] * 9, "y": ["a", None] * 9})
# By kind: how a file of it is written, and how it is read.
KINDS = {
    "npz": (lambda path: np.savez_compressed(path, x=np.ones(99)), files.read_arrays),
    "parquet": (lambda path: files.write_table(path, TABLE), files.read_table),
    "json": (
        lambda path: write_json(path, {"gap": 0.123456789}, sealed=True),
        lambda path: read_json(path)["gap"],
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_named_and_never_another_value(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    write, read = KINDS[kind]
    write(path)
    whole = path.read_bytes()
    value = str(read(path))
    refused = 0
    for place in np.linspace(0, len(whole) - 1, 24).astype(int):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(changed)
        try:
            assert str(read(path)) == value
        except ValueError as fault:
            assert path.name in str(fault)
            refused += 1
    assert refused > 12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"<html>", b"[" * 100_000])
def test_what_is_none_of_its_kind_is_one_error_that_names_it(tmp_path, kind, content):
    """And none that advises to unpickle it, as NumPy's does."""
    path = tmp_path / f"a.{kind}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.{kind} is (?!.*pickle)"):
        KINDS[kind][1](path)


def test_a_table_that_another_program_rewrote_is_not_read(tmp_path):
    TABLE.to_parquet(tmp_path / "a.parquet")
    with pytest.raises(files.DamagedFileError, match="its checksum is none"):
        files.read_table(tmp_path / "a.parquet")


def test_a_table_that_is_replaced_while_it_is_read_is_the_earlier_one(
    tmp_path, monkeypatch
):
    path, read = tmp_path / "a.parquet", pd.read_parquet

    def replaced_first(source):
        files.write_table(path, pd.concat([TABLE] * 3, ignore_index=True))
        return read(source)

    files.write_table(path, TABLE)
    monkeypatch.setattr(pd, "read_parquet", replaced_first)
    pd.testing.assert_frame_equal(files.read_table(path), TABLE)


def test_a_stamp_changes_with_names_and_times(tmp_path):
    """The sum of the sizes stays the same throughout."""
    for name in ("cat/0.png", "dog/1.png", "t.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
        os.utime(tmp_path / name, (5, 5))
    (tmp_path / "nowhere").symlink_to("nothing")
    stamps = [files.change_stamp(tmp_path)]
    assert files.change_stamp(tmp_path) == stamps[0]
    (tmp_path / "cat/0.png").rename(tmp_path / "dog/0.png")  # a label is corrected
    stamps.append(files.change_stamp(tmp_path))
    of_file = files.change_stamp(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(b"2")
    stamps.append(files.change_stamp(tmp_path))
    assert len(set(stamps)) == 3
    assert files.change_stamp(tmp_path / "t.csv") != of_file


def test_a_commit_says_changes_of_the_code_and_not_of_reports(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "PROJECT_ROOT", tmp_path)
    assert files.commit() == "unknown"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "reports").mkdir()
    for name in ("code.py", "reports/page.html"):
        (tmp_path / name).write_text("first")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    clean = files.commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (tmp_path / "reports/page.html").write_text("second")
    assert files.commit() == clean
    (tmp_path / "code.py").write_text("second")
    assert files.commit() == f"{clean}+changes"


def test_a_table_is_that_of_the_execution_that_wrote_it(tmp_path):
    for place in ("02_grid_training.failed", "03_cam_scoring"):
        path = tmp_path / place / "tables/iou.csv"
        path.parent.mkdir(parents=True)
        path.touch()
    assert files.table_of(tmp_path, "iou.csv") == path
    assert not files.table_of(tmp_path, "norms.csv").exists()

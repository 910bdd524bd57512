"""What happens at night: a full disk, a folder that cannot be written."""

import subprocess

import nbformat
import pytest

from tests.sweep.conftest import Project

pytestmark = pytest.mark.nightly

NOTES = """with open("begun.txt", "a") as file:
    file.write("{0} ")"""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 40 MB; skipped where none can be mounted."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", str(place)],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def project(tmp_path):
    made = Project(tmp_path / "project")
    made.notebook("01_a", "a: int = 1  # one", NOTES.format("01"))
    return made


def begun(project):
    path = project.root / "begun.txt"
    found = path.read_text().split() if path.is_file() else []
    path.unlink(missing_ok=True)
    return found


def test_a_full_disk_is_told_in_a_sentence_and_what_was_complete_stays(
    project, small_disk
):
    fills = "with open(work_dir + '/filler', 'wb', buffering=0) as file:\n    while file.write(bytes(2**20)):\n        pass"
    project.notebook("02_b", "b: int = 1  # two", NOTES.format("02"), fills)
    project.study(
        common={
            "work_dir": f"{small_disk}/work",
            "reports_dir": f"{small_disk}/reports",
        },
        notebooks={"01_a": {}, "02_b": {}},
    )
    code, out, err = project.run()
    assert code == 1 and begun(project) == ["01", "02"]
    assert "No space left on device" in out + err and "Traceback" not in out + err
    kept = (small_disk / "reports/demo/01_a.ipynb").read_bytes()
    assert (
        nbformat.reads(kept.decode(), as_version=4).metadata.papermill.exception is None
    )
    (small_disk / "work/filler").unlink()
    project.notebook("02_b", "b: int = 1  # two", NOTES.format("02"))
    assert project.run()[0] == 0 and begun(project) == ["02"]
    assert (small_disk / "reports/demo/01_a.ipynb").read_bytes() == kept
    assert not list(small_disk.rglob("*.partial"))


def test_a_reports_folder_that_becomes_read_only_is_told_and_the_same_command_goes_on(
    project, small_disk
):
    project.notebook(
        "02_b",
        "b: int = 1  # two",
        NOTES.format("02"),
        f"import os\nos.system('mount -o remount,ro {small_disk}')",
    )
    project.study(
        common={"reports_dir": f"{small_disk}/reports"},
        notebooks={"01_a": {}, "02_b": {}},
    )
    code, out, err = project.run()
    assert code == 1 and begun(project) == ["01", "02"]
    assert (
        "02_b failed: OSError: [Errno 30] Read-only file system" in out
        and "Traceback" not in out + err
    )
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    project.notebook("02_b", "b: int = 1  # two", NOTES.format("02"))
    assert project.run()[0] == 0 and begun(project) == ["02"]

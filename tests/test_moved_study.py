"""A study that one machine begins and another one finishes gives the same tables."""

import copy
import os
import shutil
import signal
import time

import pandas as pd
import pytest
import yaml

from helpers.files import table_of
from helpers.scores import records
from tests.conftest import TINY_STUDY
from tests.project import sweep

pytestmark = pytest.mark.nightly

NOTEBOOKS = ("01_data_subset", "02_grid_training", "03_cam_scoring", "04_baselines")
TABLES = ("catalogue", "localization", "table3_iou", "table4_iou", "primary", "kinds")
# Seconds differ, and so does the machine.
OF_TIME = ["seconds", "device"]


def begin(folder):
    """A sweep with its folders of work and reports below a folder."""
    study = copy.deepcopy(TINY_STUDY)
    study["notebooks"] = {name: study["notebooks"][name] for name in NOTEBOOKS}
    study["notebooks"]["02_grid_training"]["run_count"] = 8
    folder.mkdir(exist_ok=True)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(study))
    places = [f"{name}_dir={folder / name}" for name in ("work", "reports")]
    return sweep(folder / "tiny.yaml", changed=places)


def finish(folder):
    process = begin(folder)
    output = process.communicate()[0]
    assert process.returncode == 0, output
    report = folder / "reports/tiny"
    tables = {name: pd.read_csv(table_of(report, f"{name}.csv")) for name in TABLES}
    return {
        name: tables[name].drop(columns=OF_TIME, errors="ignore") for name in TABLES
    }


def trained(folder):
    """When the runs of a study were complete, by their folder."""
    results = folder.glob("work/tiny/runs/*/result.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in results}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    return finish(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def killed(tmp_path):
    """The folder of a study that was killed when three of its eight runs were trained."""
    folder = tmp_path / "first"
    process = begin(folder)
    while len(trained(folder)) < 3:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert 3 <= len(trained(folder)) < 8
    return folder


def check(tables, expected):
    near = {"rtol": 1e-6, "atol": 1e-9}
    for name, table in tables.items():
        pd.testing.assert_frame_equal(table, expected[name], **near, obj=name)


def test_a_killed_study_goes_on_in_a_moved_folder(killed, uninterrupted, tmp_path):
    before = trained(killed)
    second = tmp_path / "second"
    killed.rename(second)
    tables = finish(second)
    after = trained(second)
    assert len(after) == 8
    assert after.items() >= before.items()  # none of them was trained anew
    check(tables, uninterrupted)


def test_records_of_a_killed_study_are_finished(killed, uninterrupted, tmp_path):
    """Three networks are gone that were not scored yet: these are trained again."""
    records.publish(killed / "work/tiny", killed / "reports/tiny/records")
    second = tmp_path / "second"
    shutil.copytree(killed / "reports", second / "reports")
    shutil.rmtree(killed)
    check(finish(second), uninterrupted)
    assert len(trained(second)) == 8

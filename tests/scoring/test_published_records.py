"""Committed reports are what their records give: tables are computed again without images and weights."""

import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from helpers import Study
from helpers.data.images import without_pixels
from helpers.files import PROJECT_ROOT
from helpers.measures import registry
from helpers.report.tables import read
from helpers.scoring.store import Store
from helpers.statistics.draws import Draws
from helpers.statistics.primary import kinds_table
from helpers.statistics.tables import correlation_table, selection_table

STUDIES = sorted(
    path.parent.parent.name for path in PROJECT_ROOT.glob("reports/*/records/data.json")
)


@pytest.fixture(scope="module", params=STUDIES)
def study(request, tmp_path_factory):
    """A published study in a clone: its report, and its models with a column per measure."""
    report = PROJECT_ROOT / "reports" / request.param
    if not (report / "tables/scores.parquet").is_file():
        pytest.skip(f"{request.param} has no scores")
    folder = str(tmp_path_factory.mktemp("work"))
    opened = Study.open(request.param, work_dir=folder, device="cpu")
    # Whether the images are on this machine or not.
    opened.images = without_pixels(report / "records/images.npz")
    opened.store = Store(opened.work, lambda: opened.images, jobs=1)
    table = opened.models
    scored = opened.scores(["localization", "norms"])
    return report, table, scored


def test_a_study_that_is_not_there_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        Study.open("filled2O", work_dir=str(tmp_path))
    assert str(refused.value) == (
        f"no study 'filled2O' is in {tmp_path} or has records in "
        f"{PROJECT_ROOT / 'reports'} (did you mean 'filled20'?); run `python -m "
        f"helpers.sweep filled2O`, or open one of {', '.join(STUDIES)}"
    )
    assert not any(tmp_path.iterdir())


def same(ours, published, columns):
    """Whether columns agree to the digits of a table."""
    for name in columns:
        np.testing.assert_allclose(
            ours[name].to_numpy(float),
            published[name].to_numpy(float),
            rtol=1e-6,
            atol=1e-6,
            err_msg=name,
        )


def test_models_and_their_overlaps_are_those_of_the_tables(study):
    report, table, scored = study
    published = read(report, "catalogue")
    assert table["model_id"].tolist() == published["model_id"].tolist()
    same(table, published, ["train_loss", "test_accuracy", "gap", "epochs", "width"])
    overlaps = read(report, "localization").set_index("model_id")
    overlaps = overlaps.loc[scored["model_id"]]
    assert {"iou", "area_matched_iou", "pointing_game"} <= {*overlaps}
    same(scored, overlaps, overlaps.columns)


def test_correlations_and_picked_models_are_those_of_the_tables(study):
    report, _, scored = study
    draws = Draws(scored, draws=0)
    accuracies = [0.95, 0.9, 0.85, 0.8]
    rows = ["measure", "architecture", "threshold"]
    ours = correlation_table(draws, ["iou", "iou_b"], accuracies)
    table3 = read(report, "table3_correlations")
    table3 = ours[rows].merge(table3, on=rows, how="left")
    same(ours, table3, ["pearson_r", "kendall_tau", "n"])
    picked = selection_table(draws, {"iou": 1, "iou_b": 1}, accuracies)
    table4 = read(report, "table4_selection")
    same(picked, picked[rows].merge(table4, on=rows, how="left"), ["accuracy", "ties"])
    ranking = read(report, "measures_ranking").set_index("measure")
    names = [name for name in registry.ranked() if name in scored]
    assert len(names) > 15
    r = draws.correlations(names, tau=False).set_index("measure")
    same(
        r.loc[names],
        ranking.loc[names].rename(columns={"r_gap": "pearson_r"}),
        ["pearson_r"],
    )
    same(kinds_table(scored), read(report, "kinds"), ["models", "gap"])


# By notebook, tables of filled20 that rest on nothing which its records lack. Intervals,
# p-values and reliabilities rest on values of single images, which for most measures
# were not published.
TABLES = {
    "03_cam_scoring": ["localization", "central_map", "table3_iou", "table4_iou"],
    "04_baselines": ["kinds"],
    "10_all_measures": ["table3_correlations", "table4_selection"],
    "08_unlabelled_images": ["targets", "target_scores", "unlabelled"],
}
OF_IMAGES = re.compile("low|high|reliability")


@pytest.mark.nightly
@pytest.mark.parametrize("name", TABLES)
def test_notebooks_of_filled20_leave_the_committed_tables(name, tmp_path):
    command = [sys.executable, "-m", "papermill", f"notebooks/{name}.ipynb"]
    options = ["-p", "study", "filled20", "-p", "work_dir", str(tmp_path), "--cwd", "."]
    subprocess.run(
        [*command, str(tmp_path / "out.ipynb"), *options], check=True, cwd=PROJECT_ROOT
    )
    for table in TABLES[name]:
        path = tmp_path / f"filled20/scratch/{name}/tables/{table}.csv"
        ours = pd.read_csv(path)
        published = pd.read_csv(PROJECT_ROOT / "reports/filled20/tables" / path.name)
        same_columns = [column for column in ours if not OF_IMAGES.search(column)]
        pd.testing.assert_frame_equal(
            ours[same_columns],
            published[same_columns],
            rtol=1e-6,
            atol=1e-6,
            obj=path.name,
        )

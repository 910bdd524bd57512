"""Committed reports are what their records give, without images and weights."""

import os
import shutil
import subprocess
import sys
from itertools import product
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from helpers.data.images import read_labels
from helpers.files import PROJECT_ROOT, table_of
from helpers.measures.evidence import MeasureSettings
from helpers.report import explore
from helpers.report.tables import read
from helpers.scores.measuring import NO_INTERVAL, NOT_RECORDED, with_measures
from helpers.scores.store import Store
from helpers.statistics.correlate import FEWEST, Bootstrap
from helpers.statistics.gap_tables import correlation_table, correlations
from helpers.studies import NEED_SCORES
from helpers.study import Study
from tests.conftest import tracked

STUDIES = [path.parent.parent.name for path in tracked("reports/*/records/data.json")]


def opened(name, folder):
    """A published study in a clone, whether its images are on this machine or not."""
    study = Study.open(name, work_dir=str(folder), device="cpu")
    study.images = read_labels(study.reports / "records/images.npz")
    study.store = Store(study.work, lambda: study.images, jobs=1)
    return study


@pytest.fixture(scope="module", params=STUDIES)
def study(request, tmp_path_factory):
    """Its report, all models, those analysed with measures, what is drawn, warnings."""
    report = PROJECT_ROOT / "reports" / request.param
    if not table_of(report, "measures_ranking.csv").is_file():
        pytest.skip(f"notebook 10 of {request.param} is not published")
    study = opened(request.param, tmp_path_factory.mktemp("work"))
    table = study.models
    families = ["localization", "norms", "reliance"]
    measured = study.measure(families, MeasureSettings(), study.scoring_set())
    sentences = []
    drawn = study.bootstrap(measured, draws=0, seed=0, warn=sentences.append)
    scored = measured.models
    return SimpleNamespace(
        report=report, table=table, scored=scored, drawn=drawn, sentences=sentences
    )


def test_a_study_that_is_not_there_is_refused_with_the_nearest_name(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        Study.open("filled2O", work_dir=str(tmp_path))
    words = str(refused.value)
    assert "(did you mean 'filled20'?)" in words
    offered = words.partition("or open one of ")[2].split(", ")
    assert {*STUDIES} <= {*offered}  # those of a user, too
    assert not any(tmp_path.iterdir())


def same(ours, published, columns):
    """Whether columns agree to the digits of a table."""
    for name in columns:
        pair = (table[name].to_numpy(float) for table in (ours, published))
        np.testing.assert_allclose(*pair, rtol=1e-6, atol=1e-6, err_msg=name)


def test_reliance_has_an_interval_only_where_its_images_are_recorded(study):
    """The values of single images were not recorded when these studies were scored."""
    is_early = study.report.name in ("kinds20", "filled20")
    expected = {"object_reliance"} if is_early else set()
    assert set(study.drawn.no_interval) == expected
    assert (NO_INTERVAL in study.sentences) == is_early


def test_models_and_their_overlaps_are_those_of_the_tables(study):
    published = read(study.report, "catalogue")
    assert study.table["model_id"].tolist() == published["model_id"].tolist()
    columns = ["train_loss", "test_accuracy", "gap", "epochs", "width"]
    same(study.table, published, columns)
    overlaps = read(study.report, "localization").set_index("model_id")
    overlaps = overlaps.loc[study.scored["model_id"]]
    assert {"iou", "area_matched_iou", "pointing_game"} <= {*overlaps}
    same(study.scored, overlaps, overlaps.columns)


def test_intervals_of_r_are_those_of_the_tables_with_images_drawn(study):
    names = ["iou", "area_matched_iou", "pointing_game", "fro_over_spec"]
    draws = Bootstrap(study.scored, study.drawn.images, draws=2000, seed=0)
    ranking = read(study.report, "measures_ranking").set_index("measure").loc[names]
    columns = {"r_gap_low": "ci_low", "r_gap_high": "ci_high"}
    ours = correlations(draws, names)
    same(ours, ranking.rename(columns=columns), columns.values())
    table3 = read(study.report, "table3_iou")
    ours = correlation_table(draws, ["iou"], [0.8])
    theirs = table3[
        table3["measure"].eq("iou") & table3["training accuracy above (%)"].eq(80)
    ]
    assert ours["architecture"].tolist() == theirs["architecture"].tolist()
    enough = (ours["cells"] >= FEWEST).to_numpy()
    same(ours[enough], theirs[enough], ["pearson_r", "ci_low", "ci_high"])


def test_drops_are_the_recorded_accuracies_less_those_of_changed_images(tmp_path):
    """From records alone; what was never recorded has a reason in place of a value."""
    study = opened("kinds24", tmp_path)
    settings = MeasureSettings(perturbation_fraction=0.3, perturbation_points=7)
    measured = study.measure(["perturbation"], settings, study.scoring_set())
    changed = read(study.reports, "scores", ".parquet").pivot(
        index="model_id", columns=["measure", "variant"], values="value"
    )
    models = measured.models.set_index("model_id")
    shifted = changed["accuracy_under_augmentation"]
    shifted = shifted[["horizontal translation", "vertical translation"]].mean(axis=1)
    expected = models["train_accuracy"] - shifted
    pd.testing.assert_series_equal(models["drop"], expected, check_names=False)
    assert round(models["drop"].corr(models["gap"]), 2) == 0.76
    expected = models["train_accuracy"] - changed["mixup_accuracy", "input"]
    pd.testing.assert_series_equal(models["drop_mixup"], expected, check_names=False)
    assert models["drop_small_shift"].isna().all()
    undefined = measured.undefined().set_index("measure").loc["drop_small_shift"]
    assert undefined[["reason", "models"]].tolist() == [NOT_RECORDED, len(models)]


def test_explorers_show_the_correlations_of_the_text(study):
    """Of the networks that one opens with; pages keep five digits of a value."""
    ranking = read(study.report, "measures_ranking").set_index("title")["r_gap"]
    primary = read(study.report, "primary")["title"]
    published = ranking[[title for title in primary if title in ranking]]
    assert len(published) > 4
    listing = read(study.report, "measures").query("direction != 0")
    titles = dict(zip(listing["column"], listing["title"], strict=True))
    scores = read(study.report, "scores", ".parquet")
    analysed = study.table[study.table["left_out"] == ""]
    models = with_measures(analysed, scores)
    of_measures = explore.measures(models, titles)
    values = {row["title"]: row["values"] for row in of_measures["measures"]}
    shown = pd.DataFrame(values, dtype=float)[published.index]
    gaps = pd.DataFrame(of_measures["models"])["gap"].astype(float)
    (networks,) = (row for row in of_measures["axes"] if row["title"] == "networks")
    opened = np.array(networks["of"]) == networks["start"]
    r = shown[opened].corrwith(gaps[opened])
    np.testing.assert_allclose(r, published, atol=5e-4)


# Notebooks of a published study that compute tables from its records.
FROM_RECORDS = (
    "03_cam_scoring",
    "04_baselines",
    "05_robustness_ablations",
    "07_your_checkpoints",
    "08_unlabelled_images",
    "10_all_measures",
)


def is_computed(case):
    """Whether a report has the notebook, and its records all that it reads."""
    study_name, name = case
    report = PROJECT_ROOT / "reports" / study_name
    part = NEED_SCORES.get(name[:2], "")
    settings = (report / "records/settings").glob(f"{part}*.json")
    return (report / name / f"{name}.ipynb").is_file() and any(settings)


CASES = [
    *filter(is_computed, product(("filled20", "kinds20", "kinds24"), FROM_RECORDS))
]


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone without images."""
    root = tmp_path_factory.mktemp("clone")
    shutil.copytree(PROJECT_ROOT / "helpers", root / "helpers")
    for name in ("notebooks", "params", "reports"):
        (root / name).symlink_to(PROJECT_ROOT / name)
    return root


@pytest.mark.nightly
@pytest.mark.parametrize(("study_name", "name"), CASES)
def test_notebooks_from_records_leave_the_committed_tables(study_name, name, clone):
    command = [sys.executable, "-m", "papermill", f"notebooks/{name}.ipynb"]
    command += ["executed.ipynb", "--cwd", ".", "-p", "study", study_name]
    environment = os.environ | {"PYTHONPATH": str(clone)}
    subprocess.run(command, check=True, cwd=clone, env=environment)
    written = sorted(clone.glob(f"work/{study_name}/scratch/{name}/tables/*.csv"))
    assert written
    for path in written:
        report = PROJECT_ROOT / "reports" / study_name
        ours, published = (
            pd.read_csv(place).drop(columns="seconds", errors="ignore")
            for place in (path, table_of(report, path.name))
        )
        pd.testing.assert_frame_equal(
            ours, published, rtol=1e-6, atol=1e-6, obj=path.name
        )

"""All notebooks end to end on a tiny study, as a user's command runs them."""

import json

import nbformat
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT, table_of
from helpers.measures import registry
from tests.conftest import TINY_STUDY
from tests.project import run_study

pytestmark = pytest.mark.smoke


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a study with all notebooks."""
    return run_study(tmp_path_factory.mktemp("smoke"), "tiny", TINY_STUDY)


def test_every_notebook_leaves_its_report_without_an_error(report):
    names = {path.stem for path in (PROJECT_ROOT / "notebooks").glob("*.ipynb")}
    names.remove("12_across_studies")  # of published studies
    assert {path.name for path in report.iterdir()} == names | {"records"}
    for name in names:
        executed = nbformat.read(report / name / f"{name}.ipynb", as_version=4)
        assert executed.metadata.papermill.exception is None
        outputs = [item for cell in executed.cells for item in cell.get("outputs", ())]
        assert not [item for item in outputs if "Warning" in item.get("text", "")], name
    assert not list(report.parents[1].rglob("*.partial*"))


def test_runs_images_and_overlaps_are_those_that_were_asked_for(report):
    names = ("catalogue", "table1_categories", "table3_iou", "table3_correlations")
    catalogue, images, iou, correlations = (
        pd.read_csv(table_of(report, f"{name}.csv")) for name in names
    )
    assert catalogue["run_id"].nunique() == 4
    gap = catalogue["train_accuracy"] - catalogue["test_accuracy"]
    assert (catalogue["gap"] - gap).abs().max() < 2e-8  # tables have eight digits
    assert images[["train_images", "test_images"]].values.tolist() == [[14, 5]] * 3
    # two architectures and pooled, two thresholds, two measures; five methods
    assert (len(iou), len(correlations)) == (3 * 2 * 2, 3 * 2 * 5)


def test_every_measure_of_every_model_has_a_value_or_a_reason(report):
    scores = pd.read_parquet(table_of(report, "scores.parquet"))
    catalogue = pd.read_csv(table_of(report, "catalogue.csv"))
    ids = {*catalogue.loc[catalogue["snapshot"] != "none", "model_id"]}
    asked = pd.DataFrame(map(vars, registry.MEASURES.values()), [*registry.MEASURES])
    asked = asked[asked["family"] != "unlabelled"]  # which 08 scores
    assert {*scores["measure"]} == {*asked.index}
    assert (scores["value"].notna() | (scores["reason"].str.len() > 0)).all()
    models = scores.groupby("measure")["model_id"].agg(set)
    assert models[asked.index[asked["direction"] != 0]].eq(ids).all()
    curves = pd.read_csv(table_of(report, "perturbation_curves.csv"))
    at_half = "perturbation == 'horizontal translation' and alpha == 0.5"
    (mean,) = curves.query(at_half).to_dict("records")
    variant = "horizontal translation @ 0.500000"
    of_models = scores.query(f"measure == 'response_curve' and variant == {variant!r}")
    assert mean["count"] == len(ids)
    assert mean["mean"] == pytest.approx(of_models["value"].mean())


def test_what_sentences_speak_of_has_a_name(report):
    without = ("01", "07", "09")
    names = [name for name in TINY_STUDY["notebooks"] if name[:2] not in without]
    for name in names:
        results = json.loads((report / name / "results.json").read_text())
        defined = [item for item in results if item["value"] is not None]
        assert defined and len(results) >= 5, name  # of four networks few have an r
        for item in defined:
            ends = item["low"], item["high"]
            assert None in ends or ends[0] <= item["value"] <= ends[1], item

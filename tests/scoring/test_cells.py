"""A measure that stands in a notebook cell is scored like any other, in other processes too."""

import shutil
from functools import partial

import nbformat
import numpy as np
import papermill
import pytest

from helpers.data.images import images_of_study
from helpers.files import PROJECT_ROOT, json_digest
from helpers.measures import evidence, localization, outside, registry
from helpers.measures.evidence import MeasureSettings
from helpers.scoring import measuring
from helpers.scoring.models import Model, models_of
from helpers.scoring.scoring_set import scoring_set
from helpers.scoring.store import NotInRecords, Store
from helpers.study import Study

# Digests of the settings under which values of earlier versions are kept.
DIGESTS = {
    "localization": "67111374",
    "prediction": "2cdb76cc",
    "norms": "60afcd45",
    "flatness": "3a53a83f",
    "perturbation": "04fa1b46",
    "unlabelled": "f44d0017",
    "reliance": "864d9aa3",
}
CELLS = (
    """
from helpers.measures.evidence import provides
from helpers.measures.registry import measure

POWER = 2

def powered(values):
    return values**POWER

@provides
def largest(probabilities):
    return probabilities.amax(1)

@measure("prediction", 1, "this notebook")
def squared_confidence(largest):
    \"\"\"Mean of the squared largest probability.\"\"\"
    return float(powered(largest).mean())
""",
    """
from functools import partial
from pathlib import Path
from helpers.data.images import images_of_study
from helpers.measures.evidence import MeasureSettings
from helpers.scoring import measuring, models, scoring_set, store
from helpers.training import catalogue

work = Path(work_dir)
data = images_of_study(work)
table = catalogue.read_catalogue(work)
shelf = store.Store(work, partial(images_of_study, work), jobs=2)
kept = measuring.score(
    shelf,
    models.models_of(work, table, data),
    ["prediction"],
    MeasureSettings(),
    scoring_set.scoring_set(table, data),
)
measuring.score_table(kept).to_csv(work / "scores.csv")
measuring.score_table(kept).query("measure == 'squared_confidence'")["value"].tolist()
""",
)


@pytest.fixture
def lists(monkeypatch):
    """Lists of measures and providers that a test may add to."""
    monkeypatch.setattr(registry, "MEASURES", dict(registry.MEASURES))
    monkeypatch.setattr(evidence, "PROVIDERS", dict(evidence.PROVIDERS))


@pytest.mark.nightly
def test_a_notebook_with_a_measure_in_a_cell_is_scored_with_two_processes(
    study, tmp_path
):
    """As papermill runs a notebook; the mean of its square is what the cell says."""
    cells = [f"work_dir = {str(study.work)!r}", *CELLS]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cell) for cell in cells],
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}},
    )
    nbformat.write(notebook, tmp_path / "cell.ipynb")
    executed = papermill.execute_notebook(
        tmp_path / "cell.ipynb",
        tmp_path / "executed.ipynb",
        cwd=PROJECT_ROOT,
        progress_bar=False,
    )
    values = eval(executed.cells[-1].outputs[-1]["data"]["text/plain"])
    assert len(values) == 2 and all(1 / 9 <= value <= 1 for value in values)
    kept = {path.parent.name for path in study.work.glob("kept/*/*.npz")}
    parts = {name.partition("-")[0] for name in kept}
    assert parts == {"prediction", "prediction.squared_confidence"}


def test_other_processes_get_a_cells_measure_and_a_model_that_fails_is_named(
    lists, study, tmp_path, monkeypatch
):
    """Of the module ``__main__``, which other processes have without the cell."""
    monkeypatch.setattr(outside.inspect, "getsource", lambda function: CELLS[0])
    exec(CELLS[0], {"__name__": "__main__"})
    for name in ("cache", "data.json"):
        (tmp_path / name).symlink_to(study.work / name)
    first, second = study.table.loc[study.table["snapshot"] != "none", "run_id"]
    shutil.copytree(study.work / "runs" / second, tmp_path / "runs" / second)
    models = models_of(tmp_path, study.table, study.data)
    scored_on = scoring_set(study.table, study.data)
    asked = (models, ["prediction"], MeasureSettings(), scored_on)
    store = Store(tmp_path, partial(images_of_study, tmp_path), jobs=2)
    message = (
        "1 of 2 failed; the others are complete. "
        rf"{first}@stop: FileNotFoundError"
    )
    with pytest.raises(RuntimeError, match=message):
        measuring.score(store, *asked)
    files = list(store.folder.glob("*/*.npz"))
    parts = {path.parent.name.partition("-")[0] for path in files}
    assert parts == {"prediction", "prediction.squared_confidence"}
    assert {path.stem for path in files} == {f"{second}@stop"}
    with np.load(*store.folder.glob("prediction.*/*.npz")) as file:
        assert file["scores|measure"].tolist() == ["squared_confidence"]
        assert 1 / 9 <= file["scores|value"][0] <= 1


def test_values_of_earlier_versions_are_found():
    for family, expected in DIGESTS.items():
        names = [item.name for item in measuring.measures_by_part([family])[family]]
        assert (
            json_digest(measuring.cache_key(family, MeasureSettings(), names))
            == expected
        )


def test_a_new_measure_is_kept_by_itself_and_leaves_the_others_where_they_are(lists):
    @registry.measure("flatness", 1, "nowhere")
    def new(sigma):
        return 0.0

    parts = measuring.measures_by_part(["flatness", "norms"])
    assert {"flatness", "flatness.new", "norms"} <= parts.keys()
    names = [item.name for item in parts["flatness"]]
    key = measuring.cache_key("flatness", MeasureSettings(), names)
    assert json_digest(key) == DIGESTS["flatness"]
    assert measuring.measures_by_part(
        ["flatness"], ["new", "sharpness_init"]
    ).keys() == {"flatness"}


def entered(code):
    """A measure of a module that is not of the workbook."""
    namespace = {"__name__": "elsewhere", "measure": registry.measure}
    exec(code, namespace)
    return registry.MEASURES["mine"]


def test_the_source_of_a_cell_decides_under_which_name_its_values_are_kept(
    lists, monkeypatch
):
    cell = '@measure("norms", 1, "x")\ndef mine(params):\n    return factor()\n'
    texts = {"cell": cell}

    def read(function):
        return texts["cell" if function.__name__ == "mine" else "factor"]

    monkeypatch.setattr(outside.inspect, "getsource", read)
    sources = []
    for factor in (
        "def factor():\n    return LEVEL\n",
        "def factor():\n    return LEVEL + 1\n",
    ):
        for level in (1, 2):
            texts["factor"] = factor
            item = entered(f"LEVEL = {level}\n{factor}{cell}")
            sources.append(outside.source_of(item.function))
            key = measuring.cache_key("norms", MeasureSettings(), ["mine"])
            assert key["sources"] == {"mine": sources[-1]}
    assert len(set(sources)) == 4


def test_a_source_that_cannot_be_read_is_refused(lists):
    item = entered('@measure("norms", 1, "x")\ndef mine(params):\n    return 1.0\n')
    with pytest.raises(ValueError, match="source of 'mine' cannot be read"):
        outside.source_of(item.function)


def test_a_cell_that_runs_again_replaces_its_measure_and_no_other(lists):
    for value in ("1.0", "2.0"):
        cell = f'@measure("norms", 1, "x")\ndef mine(params):\n    return {value}\n'
        item = entered(cell)
    assert item.function(0) == 2.0
    with pytest.raises(ValueError, match="'iou' already exists, in helpers"):
        entered('@measure("norms", 1, "x")\ndef iou(params):\n    return 1.0\n')


def test_what_lacks_a_measure_is_not_kept(lists, study, monkeypatch, tmp_path):
    whole = evidence.score

    def without_one(measures, *rest):
        scores, images = whole(measures, *rest)
        return scores[scores["measure"] != "training_loss"], images

    monkeypatch.setattr(evidence, "score", without_one)
    store = Store(tmp_path, lambda: study.data, jobs=1)
    models = models_of(study.work, study.table, study.data)[:1]
    scored_on = scoring_set(study.table, study.data)
    with pytest.raises(RuntimeError, match="no row of training_loss; nothing of pred"):
        measuring.score(store, models, ["prediction"], MeasureSettings(), scored_on)
    assert not list(tmp_path.rglob("*.npz"))


@pytest.mark.parametrize("records", [{}, {"p": {}}])
def test_a_part_of_which_nothing_was_computed_is_not_kept(records, tmp_path):
    store = Store(tmp_path, lambda: None, jobs=1)
    compute = lambda model, shared, parts: {"q": {"x": np.ones(1)}} | records  # noqa: E731
    with pytest.raises(RuntimeError, match="nothing was computed of p"):
        store.each([Model("a", lambda device: None)], {"p": {}, "q": {}}, compute)
    assert not list(tmp_path.rglob("*.npz"))


def test_a_measure_of_maps_is_scored_from_records_and_one_of_logits_is_not(
    lists, tmp_path, monkeypatch
):
    """Of a published study there are neither pixels nor weights."""
    read = []
    inputs_from_record = localization.inputs_from_record

    def noted(record):
        read.append(record)
        return inputs_from_record(record)

    monkeypatch.setattr(localization, "inputs_from_record", noted)

    @registry.measure("localization", 1, "this test")
    def mean_of_maps(maps):
        """Mean of the maps, in [0, 1]."""
        return float(maps.mean())

    @registry.measure("localization", 1, "this test")
    def highest_of_maps(kept_maps):
        """Highest value of the kept maps, in [0, 1]."""
        return float(kept_maps.max() / np.iinfo(kept_maps.dtype).max)

    study = Study.open("filled20", work_dir=str(tmp_path), device="cpu")
    study.models = study.models[:2]
    table = study.scores(["localization"])
    assert table["mean_of_maps"].between(0.05, 0.95).all()
    assert (table["highest_of_maps"] == 1).all()
    assert len(read) == 2, "maps are read once, for all measures"
    record = PROJECT_ROOT / "reports/filled20/records/kept"
    model_id = table["model_id"].iloc[0]
    (path,) = record.glob(f"localization-*/{model_id}.npz")
    with np.load(path) as file:
        expected = file["maps"].mean() / 255
    assert table["mean_of_maps"].iloc[0] == pytest.approx(expected)

    @registry.measure("localization", 1, "this test")
    def mean_of_logits(logits):
        """Mean of all logits."""
        return float(logits.mean())

    with pytest.raises(NotInRecords):
        study.scores(["localization"])


@pytest.mark.parametrize(
    "name",
    ["03_cam_scoring", "04_baselines", "05_robustness_ablations", "10_all_measures"],
)
def test_notebooks_list_measures_after_they_score(name):
    """A measure may be written in any cell above the one that scores."""
    path = PROJECT_ROOT / f"notebooks/{name}.ipynb"
    sources = [cell.source for cell in nbformat.read(path, 4).cells]
    lists = [row for row, text in enumerate(sources) if "registry.columns()" in text]
    scores = [row for row, text in enumerate(sources) if "this_study.measure(" in text]
    assert lists and scores
    assert min(lists) > min(scores)

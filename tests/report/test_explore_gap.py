"""What predicts the gap: fit and correlations follow measure, colour and filters, as in the tables of the reports."""

import io

import numpy as np
import pandas as pd
import pytest
from ipywidgets import Dropdown
from PIL import Image

from helpers.report import explore, style
from helpers.report.explore.gap import ANY, _scatter
from helpers.report.explore.panel import Panel, View, blank, figure_png
from helpers.statistics import tables

TITLES = {"iou": "IoU", "flat": "a constant", "never": "never defined", "some": "sometimes defined", "absent": "not of this study"}


AXES = ["architecture", "learning_rate", "pretrained"]


RESAMPLES = 200


@pytest.fixture(autouse=True)
def a_reader(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "1")


@pytest.fixture(scope="module")
def models():
    rng = np.random.default_rng(0)
    count = 48
    gap = rng.uniform(0.1, 0.7, count)
    table = pd.DataFrame({"model_id": [f"run-{number:02d}@stop" for number in range(count)], "gap": gap})
    table = table.assign(
        architecture=np.resize(["resnet101", "resnet18"], count),
        learning_rate=np.resize([0.1, 0.1, 0.01, 0.001], count),
        pretrained=np.resize([True, True, True, False, False], count),
        cell=[f"cell{number // 2}" for number in range(count)],
        train_accuracy=rng.uniform(0.5, 1, count),
        iou=1 - gap + rng.normal(0, 0.1, count),
        flat=0.25,
        never=np.nan,
        some=np.where(np.arange(count) % 3, rng.normal(size=count), np.inf),
    )
    diverged = table.iloc[[0]].assign(model_id="run-99@none", gap=np.nan, train_accuracy=np.nan)
    return pd.concat([table, diverged], ignore_index=True)


@pytest.fixture
def panel(models):
    return explore.what_predicts(models, TITLES, AXES, resamples=RESAMPLES)


def of_the_tables(models, measure, above=0.0):
    """The row of the reports' table for all architectures together."""
    options = {"resamples": RESAMPLES, "kendall_resamples": RESAMPLES}
    rows = tables.correlation_table(models.dropna(subset="gap"), [measure], [above], **options)
    (row,) = rows[rows["architecture"] == tables.TOTAL].to_dict("records")
    return {name: row[name] for name in row if name not in ("architecture", "threshold", "measure")}


def same(ours, theirs):
    assert set(ours) == set(theirs)
    np.testing.assert_array_equal([ours[name] for name in theirs], list(theirs.values()))


def test_measures_of_the_study_are_offered_by_title(panel):
    assert list(panel.controls["measure"].options) == [(title, name) for name, title in TITLES.items() if name != "absent"]


@pytest.mark.parametrize("measure", ["iou", "some", "flat", "never"])
@pytest.mark.parametrize("above", [0.0, 0.75])
def test_the_numbers_are_those_of_the_correlation_table(panel, models, measure, above):
    panel.controls["measure"].value, panel.controls["above"].value = measure, above
    assert not panel.fault
    same(panel.numbers, of_the_tables(models, measure, above))


def test_filters_add_up_and_any_takes_them_back(panel, models):
    everything = dict(panel.numbers)
    panel.controls["architecture"].value = "resnet18"
    same(panel.numbers, of_the_tables(models[models["architecture"] == "resnet18"], "iou"))
    panel.controls["pretrained"].value = "False"
    chosen = (models["architecture"] == "resnet18") & ~models["pretrained"].astype(bool)
    same(panel.numbers, of_the_tables(models[chosen], "iou"))
    assert panel.numbers["n"] == chosen.sum() < everything["n"]
    panel.controls["architecture"].value = panel.controls["pretrained"].value = ANY
    same(panel.numbers, everything)


def test_levels_are_offered_in_order(panel):
    assert list(panel.controls["architecture"].options) == ["any", "resnet18", "resnet101"]
    assert list(panel.controls["pretrained"].options) == ["any", "False", "True"]
    assert set(panel.controls["learning_rate"].options) == {"any", "0.001", "0.01", "0.1"}


def test_numbers_in_the_sentence_are_those_shown(panel):
    found = panel.numbers
    assert f"Pearson r = <b>{found['pearson_r']:.3f} (95 % interval {found['ci_low']:.3f} to {found['ci_high']:.3f})" in panel.reading.value
    tau = f"{found['kendall_tau']:.3f} (95 % interval {found['kendall_low']:.3f} to {found['kendall_high']:.3f})"
    assert tau in panel.reading.value
    assert "48 models from 24 hyperparameter cells" in panel.reading.value


@pytest.mark.parametrize(("measure", "n", "words"), [("flat", 48, "undefined"), ("never", 0, "48 models without a value left out")])
def test_an_undefined_correlation_is_told_and_drawn(panel, measure, n, words):
    panel.controls["measure"].value = measure
    assert not panel.fault
    assert panel.numbers["n"] == n
    assert np.isnan(panel.numbers["pearson_r"])
    assert words in panel.reading.value
    assert "nan" not in panel.reading.value


def test_filters_that_leave_no_model_are_told(panel):
    panel.controls["above"].value = 0.99
    panel.controls["architecture"].value, panel.controls["learning_rate"].value = "resnet18", "0.001"
    panel.controls["pretrained"].value = "True"
    assert not panel.fault
    assert panel.numbers["n"] in (0, 1)
    assert np.isnan(panel.numbers["kendall_tau"])


def test_every_control_moves_the_picture(panel, models):
    some = models["model_id"].iloc[7]
    for name, value in {"measure": "some", "hue": "pretrained", "above": 0.8, "architecture": "resnet101", "picked": some}.items():
        if name == "picked":
            panel.controls["above"].value = 0.0
            panel.controls["architecture"].value = "any"
            panel.controls["measure"].value = "iou"
        before = panel.picture.value
        panel.controls[name].value = value
        assert panel.picture.value != before, name
        assert not panel.fault


def pixels(picture):
    return np.asarray(Image.open(io.BytesIO(picture))).astype(int)


@pytest.mark.parametrize("number", [3, 20])
def test_the_ring_lies_around_the_picked_model(panel, models, number):
    model = models.iloc[number]
    with style.style():
        figure, _ = _scatter(models.dropna(subset="gap"), "iou", "IoU", "architecture")
        bare = pixels(figure_png(figure))
    x, y = figure.axes[0].transData.transform((model["iou"], 100 * model["gap"]))
    panel.controls["picked"].value = model["model_id"]
    rows, columns = (pixels(panel.picture.value) != bare).any(-1).nonzero()
    assert (columns.min() + columns.max()) / 2 == pytest.approx(x, abs=1.5)
    assert (rows.min() + rows.max()) / 2 == pytest.approx(len(bare) - y, abs=1.5)


def other_explorer(offered):
    drawn = []
    controls = {"left": Dropdown(options=[(f"model {name}", name) for name in offered])}
    return Panel("look", controls, lambda left: drawn.append(left) or View(blank(), "", {})), drawn


def test_a_picked_model_opens_where_it_looks(models):
    ids = models["model_id"].tolist()
    look, drawn = other_explorer(ids[:10])
    panel = explore.what_predicts(models, TITLES, AXES, look, resamples=0)
    panel.controls["picked"].value = ids[4]
    assert (look.controls["left"].value, drawn[-1]) == (ids[4], ids[4])
    assert panel.box.children[-1] is look.box
    panel.controls["picked"].value = ids[20]  # is not offered there
    assert look.controls["left"].value == ids[4]
    assert ids[20] in panel.reading.value


def test_models_are_picked_in_the_order_of_their_gap(panel, models):
    assert [name for _, name in panel.controls["picked"].options] == models.dropna(subset="gap").sort_values("gap")["model_id"].tolist()


def test_a_picked_model_that_the_filters_leave_out_is_told(panel, models):
    panel.controls["picked"].value = models.loc[models["architecture"] == "resnet18", "model_id"].iloc[0]
    assert "leave the picked model out" not in panel.reading.value
    panel.controls["architecture"].value = "resnet101"
    assert "leave the picked model out" in panel.reading.value


def test_a_single_model_is_shown_without_a_correlation(models):
    shown = explore.what_predicts(models.head(1), TITLES, [], resamples=RESAMPLES)
    assert not shown.fault
    assert (shown.numbers["n"], shown.numbers["cells"]) == (1, 1)
    assert np.isnan(shown.numbers["pearson_r"])
    assert "1 model from 1 hyperparameter cell" in shown.reading.value


def test_names_are_shown_as_text(models):
    shown = explore.what_predicts(models.assign(model_id="<b>" + models["model_id"]), {"iou": "<i>IoU"}, AXES, resamples=0)
    assert not shown.fault
    assert "<b>run" not in shown.reading.value
    assert "<i>" not in shown.reading.value


@pytest.mark.parametrize(("rows", "titles"), [(slice(48, None), TITLES), (slice(None), {"absent": "x"}), (slice(None), {})])
def test_nothing_to_show_is_refused(models, rows, titles):
    with pytest.raises(ValueError, match=r"^\d+ models with a gap and \d of their measures: there is nothing to show$"):
        explore.what_predicts(models[rows], titles, AXES)

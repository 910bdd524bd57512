"""What predicts the gap: correlations follow measure, target and filters as in the tables of the reports; a click opens a model."""

import base64
import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest

from helpers.report import explore
from helpers.report.explore.gap import details_figure, with_model
from helpers.statistics import tables
from helpers.statistics.resampling import correlated

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
        run_id=[f"run-{number:02d}" for number in range(count)],
        architecture=np.resize(["resnet101", "resnet18"], count),
        learning_rate=np.resize([0.1, 0.1, 0.01, 0.001], count),
        pretrained=np.resize([True, True, True, False, False], count),
        cell=[f"cell{number // 2}" for number in range(count)],
        train_accuracy=rng.uniform(0.5, 1, count),
        test_accuracy=rng.uniform(0.3, 0.9, count),
        iou=1 - gap + rng.normal(0, 0.1, count),
        flat=0.25,
        never=np.nan,
        some=np.where(np.arange(count) % 3, rng.normal(size=count), np.inf),
    )
    table["test_accuracy@blur_0.7"] = rng.uniform(0.2, 0.8, count)
    diverged = table.iloc[[0]].assign(model_id="run-99@none", gap=np.nan, train_accuracy=np.nan)
    return pd.concat([table, diverged], ignore_index=True)


@pytest.fixture
def panel(models):
    return explore.what_predicts(models, TITLES, AXES, resamples=RESAMPLES)


def drawn(panel):
    """The points of the scatter: model to (x, y), without the rings of opened models."""
    (plot,) = panel.views
    traces = [trace for trace in json.loads(plot.figure)["data"] if not trace["name"].startswith("opened")]
    points = [zip(trace["customdata"], decoded(trace["x"]), decoded(trace["y"]), strict=True) for trace in traces]
    return {name: (x, y) for part in points for name, x, y in part}


def decoded(values):
    if isinstance(values, list):
        return values
    return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"]).tolist()


def of_the_tables(models, measure, above=0.0):
    """The row of the reports' table for all architectures together."""
    rows = tables.correlation_table(models.dropna(subset="gap"), [measure], [above], resamples=RESAMPLES)
    (row,) = rows[rows["architecture"] == tables.TOTAL].to_dict("records")
    return {name: row[name] for name in row if name not in ("architecture", "threshold", "measure")}


def same(ours, theirs):
    np.testing.assert_array_equal([ours[name] for name in theirs], list(theirs.values()))


def test_measures_of_the_study_are_offered_by_title(panel):
    assert list(panel.controls["measure"].options) == [(title, name) for name, title in TITLES.items() if name != "absent"]


def test_any_measure_and_accuracy_is_offered_as_target(panel):
    assert {"gap", "train_accuracy", "test_accuracy", "test_accuracy@blur_0.7", "iou", "some"} <= {
        name for _, name in panel.controls["target"].options
    }


@pytest.mark.parametrize("measure", ["iou", "some", "flat", "never"])
@pytest.mark.parametrize("above", [0.0, 0.75])
def test_the_numbers_are_those_of_the_correlation_table(panel, models, measure, above):
    panel.controls["measure"].value, panel.controls["above"].value = measure, above
    assert not panel.fault
    same(panel.numbers, of_the_tables(models, measure, above))


def test_another_target_is_correlated_and_drawn(panel, models):
    panel.controls["target"].value = "test_accuracy@blur_0.7"
    measured = models.dropna(subset="gap")
    (expected,) = correlated(measured, ["iou"], target="test_accuracy@blur_0.7", draws=RESAMPLES).to_dict("records")
    assert panel.numbers["pearson_r"] == expected["pearson_r"]
    assert drawn(panel)["run-07@stop"] == pytest.approx((models["iou"][7], models["test_accuracy@blur_0.7"][7]))


def test_several_levels_of_several_filters_add_up_and_none_takes_them_back(panel, models):
    everything = dict(panel.numbers)
    panel.controls["learning_rate"].value = ("0.01", "0.001")
    chosen = models["learning_rate"].isin([0.01, 0.001])
    same(panel.numbers, of_the_tables(models[chosen], "iou"))
    panel.controls["pretrained"].value = ("False",)
    chosen &= ~models["pretrained"].astype(bool)
    same(panel.numbers, of_the_tables(models[chosen], "iou"))
    assert set(drawn(panel)) == set(models.loc[chosen, "model_id"])
    panel.controls["learning_rate"].value = panel.controls["pretrained"].value = ()
    same(panel.numbers, everything)


def test_levels_are_offered_in_order(panel):
    assert list(panel.controls["architecture"].options) == ["resnet18", "resnet101"]
    assert list(panel.controls["pretrained"].options) == ["False", "True"]


def test_a_level_keeps_its_colour_whatever_is_filtered(panel):
    def colours():
        return {trace["name"]: trace["marker"]["color"] for trace in json.loads(panel.views[0].figure)["data"]}

    before = colours()
    panel.controls["architecture"].value = ("resnet101",)
    assert colours() == {"resnet101": before["resnet101"]}


def test_numbers_in_the_sentence_are_those_shown(panel):
    found = panel.numbers
    r, over = f"Pearson r = <b>{found['pearson_r']:.3f}", "95 % interval over cells"
    assert f"{r} ({over} {found['ci_low']:.3f} to {found['ci_high']:.3f})" in panel.reading.value
    assert f"{found['kendall_tau']:.3f} ({over} {found['kendall_low']:.3f} to {found['kendall_high']:.3f})" in panel.reading.value
    assert "48 models from 24 hyperparameter cells" in panel.reading.value


@pytest.mark.parametrize(("measure", "n", "words"), [("flat", 48, "undefined"), ("never", 0, "48 models without a value left out")])
def test_an_undefined_correlation_is_told(panel, measure, n, words):
    panel.controls["measure"].value = measure
    assert not panel.fault
    assert panel.numbers["n"] == n
    assert words in panel.reading.value and "nan" not in panel.reading.value


@pytest.mark.parametrize(
    ("name", "value"), [("measure", "some"), ("target", "iou"), ("colour", "pretrained"), ("symbol", "pretrained"), ("logarithmic", True)]
)
def test_every_control_moves_the_picture(panel, name, value):
    before = panel.views[0].figure
    panel.controls[name].value = value
    assert not panel.fault
    assert panel.views[0].figure != before


def test_a_click_opens_a_model_and_another_closes_it():
    chosen = ()
    for name in "abcd":
        chosen = with_model(chosen, name)
    assert chosen == ("a", "b", "c", "d")
    assert with_model(chosen, "e") == ("b", "c", "d", "e")
    assert with_model(chosen, "b") == ("a", "c", "d")


def click(panel, name):
    (plot,) = panel.views
    plot.clicked = {"id": name, "count": plot.clicked.get("count", 0) + 1}


def test_clicked_models_are_told_and_ringed(panel, models):
    for name in ("run-04@stop", "run-20@stop"):
        click(panel, name)
        assert name in panel.reading.value
    rings = [trace for trace in json.loads(panel.views[0].figure)["data"] if trace["name"].startswith("opened")]
    for ring, number in zip(rings, (4, 20), strict=True):
        x, y = (decoded(ring[axis])[0] for axis in "xy")
        assert (x, y) == pytest.approx((models["iou"][number], 100 * models["gap"][number]))
    click(panel, "run-04@stop")
    assert panel.controls["chosen"].value == ("run-20@stop",)
    click(panel, "of another study")
    assert panel.controls["chosen"].value == ("run-20@stop",)


@dataclass
class Confusions:
    """What the details ask of the looks of a study."""

    model_ids: tuple = ("run-04@stop",)
    class_names: tuple = ("cat", "<b>")

    def of_model(self, name):
        return self

    confusion = np.array([[3, 1], [0, 0]])


def test_curves_and_confusions_of_the_opened_models(models):
    opened = models.set_index("model_id", drop=False).loc[["run-04@stop", "run-05@stop"]]
    history = pd.DataFrame({"run_id": ["run-04", "run-04", "run-05"], "epoch": [1, 2, 1], "train_loss": [2.0, 1.0, 3.0]})
    history["train_accuracy"] = [0.2, 0.6, 0.1]
    traces = details_figure(opened, history, Confusions()).data
    lines = {(trace.name[0], trace.xaxis): list(trace.y) for trace in traces if trace.type == "scatter"}
    assert lines["1", "x"] == [2.0, 1.0] and lines["2", "x"] == [3.0]
    assert lines["1", "x2"] == pytest.approx([20, 60])
    (heat,) = [trace for trace in traces if trace.type == "heatmap"]  # the other model is not among the looks
    assert heat.z.tolist() == [[75, 25], [0, 0]]
    assert heat.x[1] == "&lt;b&gt;"
    assert not details_figure(opened, None, None).data
    assert "click on a point" in details_figure(opened.head(0), history, None).layout.annotations[0].text


def test_a_single_model_is_shown_without_a_correlation(models):
    shown = explore.what_predicts(models.head(1), TITLES, [], resamples=RESAMPLES)
    assert not shown.fault
    assert np.isnan(shown.numbers["pearson_r"])
    assert "1 model from 1 hyperparameter cell" in shown.reading.value


def test_names_are_shown_as_text(models):
    named = models.assign(model_id="<b>" + models["model_id"])
    shown = explore.what_predicts(named, {"iou": "<i>IoU"}, AXES, resamples=0)
    click(shown, "<b>run-04@stop")
    assert not shown.fault
    assert "<b>run" not in shown.reading.value and "<i>" not in shown.reading.value
    assert "&lt;b&gt;run-04@stop" in shown.reading.value


@pytest.mark.parametrize(("rows", "titles"), [(slice(48, None), TITLES), (slice(None), {"absent": "x"}), (slice(None), {})])
def test_nothing_to_show_is_refused(models, rows, titles):
    with pytest.raises(ValueError, match=r"^\d+ models with a gap and \d of their measures: there is nothing to show$"):
        explore.what_predicts(models[rows], titles, AXES)

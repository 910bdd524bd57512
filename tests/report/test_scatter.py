"""A measure against a target as a plotly figure: fixed marks, what is drawn, what the mouse tells."""

import numpy as np
import pandas as pd
import pytest

from helpers.report.scatter import axis_title, hover_texts, level_marks, measure_scatter, shown_values


@pytest.fixture
def models():
    return pd.DataFrame(
        {
            "model_id": list("abcdef"),
            "architecture": ["resnet18", "resnet101", "resnet18", "resnet34", "resnet34", "resnet101"],
            "optimizer": ["adam", "sgd", "sgd", "adam", "sgd", "adam"],
            "gap": [0.1, 0.2, 0.3, 0.4, np.nan, 0.5],
            "iou": [0.5, 0.4, np.inf, 0.3, 0.2, 0.1],
        }
    )


def test_a_level_keeps_colour_and_symbol_whatever_is_left_out(models):
    marks = level_marks(models, "architecture")
    assert list(marks) == ["resnet18", "resnet34", "resnet101"]
    assert len({colour for colour, _ in marks.values()}) == 3
    for kept in ([True] * 6, models["architecture"] != "resnet18"):
        figure = measure_scatter(models, "iou", "gap", {}, ["optimizer"], colour="architecture", symbol="architecture", kept=kept)
        assert {trace.name: (trace.marker.color, trace.marker.symbol) for trace in figure.data}.items() <= marks.items()


def test_every_finite_model_is_one_point_with_its_id_and_the_gap_in_points(models):
    figure = measure_scatter(models, "iou", "gap", {"iou": "IoU"}, ["optimizer"], colour="architecture", symbol="optimizer")
    points = {name: (x, y) for trace in figure.data for name, x, y in zip(trace.customdata, trace.x, trace.y, strict=True)}
    assert points == {
        name: pytest.approx(place) for name, place in {"a": (0.5, 10), "b": (0.4, 20), "d": (0.3, 40), "f": (0.1, 50)}.items()
    }
    assert {trace.name for trace in figure.data} == {"resnet18 · adam", "resnet34 · adam", "resnet101 · sgd", "resnet101 · adam"}
    assert figure.layout.xaxis.title.text == "IoU"
    assert figure.layout.yaxis.title.text == "generalization gap (points)"


@pytest.mark.parametrize(("logarithmic", "kinds"), [("", ("linear", "linear")), ("x", ("log", "linear")), ("xy", ("log", "log"))])
def test_an_axis_is_logarithmic_where_it_is_asked_for(models, logarithmic, kinds):
    figure = measure_scatter(models, "iou", "gap", {}, [], logarithmic=logarithmic)
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == kinds
    assert len(figure.data) == 1


def test_names_from_data_are_text(models):
    nasty = models.assign(optimizer="<img src=x onerror=alert(1)>")
    figure = measure_scatter(nasty, "iou", "gap", {"iou": "<b>"}, ["optimizer"], colour="optimizer")
    assert "<img" not in figure.to_json().replace("\\u003c", "<")
    assert hover_texts(nasty, ["optimizer"])[0].split("<br>")[0] == "optimizer: &lt;img src=x onerror=alert(1)&gt;"
    assert axis_title("iou", {"iou": "<b>"}) == "&lt;b&gt;"


def test_what_is_not_finite_is_not_drawn(models):
    assert shown_values(models, "iou").isna().tolist() == [False, False, True, False, False, False]
    assert shown_values(models, "gap").iloc[0] == pytest.approx(10)

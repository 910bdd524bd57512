"""Figures that notebooks share, and the sentences below them: they draw and say what the table holds."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.report import figures, style


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_rows_stand_from_above_with_their_intervals():
    _, ax = plt.subplots()
    r, low, high = [0.1, -0.4, 0.3], [0, -0.6, np.nan], [0.2, -0.2, np.nan]
    figures.forest(ax, list("abc"), r, low, high)
    assert [text.get_text() for text in ax.get_yticklabels()] == list("abc")
    assert ax.yaxis_inverted()
    segments = np.array(ax.collections[0].get_segments()[:2])
    np.testing.assert_allclose(segments[:, :, 0], [[0, 0.2], [-0.6, -0.2]])
    np.testing.assert_array_equal(ax.lines[1].get_xdata(), r)


def test_long_labels_leave_the_axis_of_a_forest_a_third_of_the_figure():
    with plt.rc_context():
        style.use()
        figure, ax = plt.subplots(figsize=(8, 2))
        labels = ["resnet18, Smooth Grad-CAM++ as torchcam computes it, 48 images"] * 2
        figures.forest(ax, labels, [0.1, -0.4], [0, np.nan], [0.2, np.nan])
        figure.savefig(io.BytesIO())
    assert ax.get_position().width > 0.3


def test_correlations_stand_in_panels_by_their_titles():
    table = pd.DataFrame({"pearson_r": [0.1, -0.4, 0.3]}, index=[4, 7, 9])
    table["ci_low"] = table["pearson_r"] - 0.1
    table["ci_high"] = table["pearson_r"] + 0.1
    table["published_r"] = [0.5, np.nan, np.nan]
    figure = figures.forest_of_correlations(table, list("abc"), ["x", "y", "x"])
    upper, lower = figure.axes
    assert [upper.get_title(loc="left"), lower.get_title(loc="left")] == ["x", "y"]
    assert [text.get_text() for text in upper.get_yticklabels()] == ["a", "c"]
    np.testing.assert_array_equal(upper.lines[1].get_xdata(), [0.1, 0.3])
    np.testing.assert_array_equal(upper.lines[2].get_xdata(), [0.5, np.nan])
    np.testing.assert_array_equal(lower.lines[1].get_xdata(), [-0.4])


def test_the_first_rows_hold_the_claimed_ones_in_any_case():
    table = pd.DataFrame({"measure": [f"m{number}" for number in range(54)]})
    shown = figures.first_rows(table, ["m3", "m53"], most=10)["measure"].tolist()
    assert shown == [f"m{number}" for number in range(9)] + ["m53"]


def test_numbers_are_written_one_way():
    counts = [style.count(*pair) for pair in ((1, "model"), (1200, "model"))]
    assert counts == ["1 model", "1,200 models"]
    assert style.count(3, "class") == "3 classes"
    assert style.listed(list("abcdef"), 4) == "a, b, c, d and 2 more"
    percents = [style.percent(value) for value in (0.814, 0.05, 0.996, 1, np.nan)]
    assert percents == ["81 %", "5 %", "99.6 %", "100 %", "undefined"]
    assert style.with_interval(-0.19, -0.37, 0.01) == "-0.19 (-0.37 to 0.01)"
    assert style.with_interval(0.5, np.nan, np.nan) == "0.50 (no interval)"
    assert style.points(0.057) == "5.7 points"


def test_names_stand_in_the_order_of_their_numbers_and_keep_their_colours():
    names = pd.Series(["resnet101", "resnet18", "resnet34", "resnet18"])
    assert style.in_order(names) == ["resnet18", "resnet34", "resnet101"]
    assert style.in_order(pd.Series([10.0, 2.0])) == [2.0, 10.0]
    assert len(set(style.colours(list("abcdefghijkl")).values())) == 12


def test_kinds_of_training_have_the_hue_of_their_start_and_darken_with_images():
    few, many = "pretrained, 125 a class", "pretrained, augmented"
    shades = style.colours([few, many, "pretrained", "ResNet18, from scratch"])
    lightness = [sum(shades[name]) for name in (few, "pretrained", many)]
    assert lightness == sorted(lightness, reverse=True)
    assert shades[many][2] > shades[many][0]  # blue
    red, _, blue = shades["ResNet18, from scratch"]
    assert red > blue  # orange


def test_without_a_correlation_an_empty_panel_is_drawn():
    table = pd.DataFrame({"pearson_r": [], "ci_low": [], "ci_high": []}, dtype=float)
    (ax,) = figures.forest_of_correlations(table, []).axes
    assert ax.get_xlim() == (-1.05, 1.05) and not ax.lines

"""Figures and sentences that notebooks share draw and say what the table or the map holds."""

from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from torch.nn.functional import pad

from helpers.cams.localize import bounding_rectangles, chance_scores, upsample
from helpers.data import synthetic
from helpers.data.images import image_set
from helpers.report import figures, style

SIZE, THRESHOLD = 32, 0.5


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_correlations_stand_in_panels_by_their_titles():
    table = pd.DataFrame({"pearson_r": [0.1, -0.4, 0.3]}, index=[4, 7, 9])
    table["ci_low"] = table["pearson_r"] - 0.1
    table["ci_high"] = table["pearson_r"] + 0.1
    table["published_r"] = [0.5, np.nan, np.nan]
    figure = figures.forest_of_correlations(table, list("abc"), ["x", "y", "x"])
    upper, lower = figure.axes
    assert [upper.get_title(loc="left"), lower.get_title(loc="left")] == ["x", "y"]
    assert [text.get_text() for text in upper.get_yticklabels()] == ["a", "c"]
    assert upper.yaxis_inverted()  # the first row is on top
    segments = np.array(upper.collections[0].get_segments())
    np.testing.assert_allclose(segments[:, :, 0], [[0, 0.2], [0.2, 0.4]])
    np.testing.assert_array_equal(upper.lines[1].get_xdata(), [0.1, 0.3])
    np.testing.assert_array_equal(upper.lines[2].get_xdata(), [0.5, np.nan])
    np.testing.assert_array_equal(lower.lines[1].get_xdata(), [-0.4])
    (ax,) = figures.forest_of_correlations(table.iloc[:0], []).axes
    assert ax.get_xlim() == (-1.05, 1.05) and not ax.lines


def test_the_first_rows_hold_the_claimed_ones_in_any_case():
    table = pd.DataFrame({"measure": [f"m{number}" for number in range(54)]})
    shown = figures.first_rows(table, ["m3", "m53"], most=10)["measure"].tolist()
    assert shown == [f"m{number}" for number in range(9)] + ["m53"]


@pytest.fixture(scope="module")
def scenes():
    table = synthetic.scenes("train", 2, SIZE, 0)[:6]
    images = image_set(table.assign(label=[0, 0, 1, 1, 2, 2], name=[*"abcdef"]))
    return replace(images, boxes=pad(images.boxes, (0, 0, 0, 1)))  # a row of padding


@pytest.fixture(scope="module")
def maps():
    """Of nobody, for the six scenes."""
    return torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(0))


def outlines(ax):
    """Half-open boxes of the rectangles on an axis; pixel centres are whole numbers."""
    corners = [patch.get_bbox().extents + 0.5 for patch in ax.patches]
    return [box.tolist() for box in corners]


def test_an_example_is_a_right_prediction_with_the_middle_overlap():
    iou = np.array([0.9, 0.1, 0.5, 0.4, 0.2, 0.3])
    right = np.array([0, 1, 1, 1, 1, 1])  # the largest overlap is of a wrong one
    assert figures.row_of_right_prediction(iou, right) == 5  # of .1 .2 .3 .4 .5
    assert figures.row_of_right_prediction(iou, 0 * right) == 0


def test_steps_show_what_they_are_given(scenes, maps):
    figure = figures.step_by_step(maps, scenes, 1, THRESHOLD, "maximum")
    scores = chance_scores(maps, scenes.boxes, SIZE, THRESHOLD).loc[1]
    image, of_stage, enlarged, masked = figure.axes
    heat = upsample(maps[1:2], SIZE)
    mask = heat >= THRESHOLD
    boxes = scenes.boxes[1].tolist()
    np.testing.assert_array_equal(of_stage.images[0].get_array(), maps[1])
    np.testing.assert_array_equal(enlarged.images[1].get_array(), heat[0])
    assert outlines(image) == boxes[:1]  # the second row is padding
    assert outlines(masked) == [boxes[0], bounding_rectangles(mask)[0].tolist()]
    np.testing.assert_array_equal(masked.images[1].get_alpha() > 0, ~mask[0].numpy())
    numbers = f"IoU {scores['iou']:.2f}\nits rectangle: IoU-B {scores['iou_b']:.2f}"
    assert masked.get_title() == f"mask: {numbers}"


def test_overlays_have_a_row_per_model_and_a_column_per_image(scenes, maps):
    few = [0, 2, 4]
    both, images = torch.stack([maps[few], 1 - maps[few]]), scenes.subset(few)
    titles = ["small gap", "large gap"]
    figure = figures.overlays(both, images, THRESHOLD, titles, list("abc"), "maximum")
    axes = np.array(figure.axes).reshape(2, 3)
    for row, column in np.ndindex(2, 3):
        ax = axes[row, column]
        iou = chance_scores(both[row], images.boxes, SIZE, THRESHOLD)["iou"][column]
        heat = upsample(both[row], SIZE)[column]
        np.testing.assert_allclose(ax.images[1].get_array(), heat)
        assert outlines(ax) == images.boxes[column, :1].tolist()
        name = "" if row else f"{'abc'[column]}\n"
        assert ax.get_title() == f"{name}IoU {iou:.2f}"
    assert [axes[row, 0].texts[0].get_text() for row in range(2)] == titles


def test_numbers_are_written_one_way():
    counts = [style.count(*pair) for pair in ((1, "model"), (1200, "model"))]
    assert counts == ["1 model", "1,200 models"]
    assert (style.count(3, "class"), style.points(0.1)) == ("3 classes", "10.0 points")
    assert style.listed(list("abcdef"), 4) == "a, b, c, d and 2 more"
    percents = [style.percent(value) for value in (0.814, 0.05, 0.996, 1, np.nan)]
    assert percents == ["81 %", "5 %", "99.6 %", "100 %", "undefined"]
    assert style.with_interval(-0.19, -0.37, 0.01) == "-0.19 (-0.37 to 0.01)"
    assert style.with_interval(0.5, np.nan, np.nan) == "0.50 (no interval)"


def test_kinds_of_training_have_a_colour_each():
    kinds = ["pretrained, 125 a class", "pretrained", "pretrained, augmented"]
    for names in ([*kinds, "ResNet18, from scratch"], list("abcdefghijkl")):
        assert len(set(style.colours(names).values())) == len(names)

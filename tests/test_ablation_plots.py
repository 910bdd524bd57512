"""Figures of the ablations: what is drawn is what the table holds."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from helpers import ablation_plots, confounders


@pytest.fixture(autouse=True)
def closed_figures():
    yield
    plt.close("all")


def correlations(**changes):
    table = {"n": [20, 12, 2], "pearson_r": [-0.8, 0.1, np.nan], "ci_low": [-0.9, -0.4, np.nan], "ci_high": [-0.5, 0.5, np.nan]}
    return pd.DataFrame(table | changes)


def dots(ax, marker):
    return [(line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines if line.get_marker() == marker]


def texts(figure):
    return [text.get_text() for ax in figure.axes for text in [*ax.texts, ax.title, *ax.get_yticklabels(), *ax.get_xticklabels()]]


def test_correlations_are_drawn_at_their_value_with_interval_n_and_the_papers_hollow():
    figure = ablation_plots.correlations(correlations(published_r=[-0.9, np.nan, np.nan]), ["one", "two", "three"])
    (ax,) = figure.axes
    np.testing.assert_array_equal(dots(ax, "o")[0][0], [-0.8, 0.1, np.nan])
    np.testing.assert_array_equal(dots(ax, "D")[0][0], [-0.9, np.nan, np.nan])
    segments = [segment for segment in ax.collections[0].get_segments() if len(segment)]  # none for an undefined interval
    assert [segment[:, 0].tolist() for segment in segments] == [[-0.9, -0.5], [-0.4, 0.5]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one  (n = 20)", "two  (n = 12)", "three  (n = 2)"]
    bottom, top = ax.get_ylim()
    assert bottom > top  # the first row on top
    without = ablation_plots.correlations(correlations(), ["one", "two", "three"])
    assert not dots(without.axes[0], "D")
    assert len(without.legends[0].get_texts()) == 1


def test_thresholds_are_a_line_per_way_and_a_band_for_the_first_only():
    rows = {"threshold": [0.5, 0.1, 0.3], "pearson_r": [-0.1, -0.5, -0.3], "ci_low": -0.6, "ci_high": 0.0}
    table = pd.concat([pd.DataFrame(rows).assign(way=way) for way in ("a", "b")])
    figure = ablation_plots.by_threshold(table, 0.1)
    (ax,) = figure.axes
    lines = [line for line in ax.lines if line.get_marker() in ("o", "s")]
    assert [line.get_xdata().tolist() for line in lines] == [[0.1, 0.3, 0.5]] * 2
    assert lines[0].get_ydata().tolist() == [-0.5, -0.3, -0.1]
    assert len(ax.collections) == 1
    assert "paper: 0.1" in texts(figure)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_numbers_of_images_show_error_spread_and_draws():
    rows = {"images": [50, 100, 110], "half_width": [0.1, 0.05, 0.0], "pearson_r": -0.5, "ci_low": [-0.9, -0.7, -0.5], "ci_high": -0.2}
    figure = ablation_plots.by_images(pd.DataFrame(rows), 0.03)
    left, right = figure.axes
    assert dots(left, "o") == [([50, 100, 110], [0.1, 0.05, 0.0])]
    assert any(line.get_ydata()[0] == 0.03 for line in left.lines)
    assert [label.get_text() for label in left.get_xticklabels()] == ["50", "110"]  # 100 would run into 110
    assert len(right.collections) == 1
    assert len(ablation_plots.by_images(pd.DataFrame(rows), np.nan).axes[0].lines) == 1


def test_masks_stand_below_their_images():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    images[0] = 255
    made, boxes = torch.zeros(2, 4, 4, dtype=torch.bool), torch.ones(2, 4, 4, dtype=torch.bool)
    figure = ablation_plots.masks(images, made, boxes, ["IoU 0.00", "IoU 0.10"])
    shown = [ax.images[0].get_array() for ax in figure.axes]
    assert [np.asarray(picture).max() for picture in shown] == [255, 0, 0, 0, 1, 1]
    assert {"IoU 0.00", "IoU 0.10"} <= set(texts(figure))
    assert [ax.get_ylabel() for ax in figure.axes][::2] == ["image", "mask of the machine", "annotated boxes"]


def confounding(count=24):
    rng = np.random.default_rng(0)
    models = pd.DataFrame({"rate": np.arange(count) % 3 * 0.1, "pretrained": np.arange(count) % 2 == 0, "cell": np.arange(count) // 2})
    models = models.assign(gap=rng.uniform(0, 1, count), iou=rng.uniform(0, 1, count), l2=rng.uniform(0, 1, count))
    return confounders.confounders(models, {"iou": 1, "l2": -1}, ["rate", "pretrained"], resamples=50)


def test_pooled_stands_against_within_for_one_measure_and_for_all():
    table = confounding()
    figure = ablation_plots.pooled_against_within(table, {"iou": "IoU"})
    left, right = figure.axes
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels[:2] == ["pooled  (n = 24)", "given all hyperparameters  (n = 24)"]
    assert [label.split("  ")[0] for label in labels[2:]] == [
        "given rate",
        "rate = 0.0",
        "rate = 0.1",
        "rate = 0.2",
        "given pretrained",
        "pretrained = True",
        "pretrained = False",
    ]
    own = table[(table["measure"] == "iou") & (table["kind"] == "within a level")]
    assert dots(left, "s")[0][0] == own["strength"].tolist()
    strengths = table[table["kind"] == "pooled"].set_index("measure")["strength"]
    order = strengths.abs().sort_values(ascending=False).index
    assert dots(right, "o")[0][0] == strengths[order].tolist()
    given = table[table["kind"] == "given all"].set_index("measure")["strength"]
    assert dots(right, "D")[0][0] == given[order].tolist()
    assert {"IoU", "l2"} == {label.get_text() for label in right.get_yticklabels()}
    assert len(ablation_plots.pooled_against_within(table, {}, most=1).axes[1].get_yticklabels()) == 1


def undefined():
    none = correlations(pearson_r=np.nan)
    nothing = torch.zeros(0, 3, 4, 4, dtype=torch.uint8), *[torch.zeros(0, 4, 4, dtype=torch.bool)] * 2
    table = confounding()
    return {
        "correlations": lambda: ablation_plots.correlations(none, ["a", "b", "c"]),
        "by_threshold": lambda: ablation_plots.by_threshold(none.assign(way="a", threshold=0.1), 0.1),
        "by_images": lambda: ablation_plots.by_images(pd.DataFrame({"images": [], "half_width": []}), np.nan),
        "masks": lambda: ablation_plots.masks(*nothing, []),
        "without axes": lambda: ablation_plots.pooled_against_within(table[table["kind"] == "pooled"], {}),
        "without values": lambda: ablation_plots.pooled_against_within(table.assign(strength=np.nan), {}),
    }


@pytest.mark.parametrize("name", list(undefined()))
def test_nothing_to_draw_is_said_in_words(name):
    figure = undefined()[name]()
    (ax,) = figure.axes
    assert ax.texts[0].get_text().endswith(".")
    assert not ax.lines


def test_the_style_of_others_is_left_alone():
    before = dict(plt.rcParams)
    ablation_plots.correlations(correlations(), ["a", "b", "c"])
    assert dict(plt.rcParams) == before

import io
import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from helpers import classification, metric_plots

NAMES = [f"class number {k}" for k in range(20)]


@pytest.fixture(autouse=True)
def without_a_window():
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.fixture(scope="module")
def scene():
    """A thousand images of twenty classes; the later a class, the better it is told. Class 7 has none, class 3 is never predicted."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 20, 1000)
    labels[labels == 7] = 8
    logits = rng.normal(size=(1000, 20)) + np.eye(20)[labels] * np.linspace(0.5, 4, 20)
    logits[:, 3] -= 12
    return logits, labels


def drawn(figure):
    """Draw for real, so that what only fails at drawing fails here; return its axes."""
    figure.savefig(io.BytesIO(), format="png", dpi=50)
    return figure.axes


def words(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def labelled(ax):
    """Lines of an axis by their label."""
    return {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}


def assert_nothing_is_cut(figure):
    figure.canvas.draw()  # at the figure's own resolution, on which its layout rests
    frame, renderer = figure.bbox.padded(2), figure.canvas.get_renderer()
    texts = [
        text for ax in figure.axes for text in (ax.xaxis.label, ax.yaxis.label, *ax.get_xticklabels(), *ax.get_yticklabels(), *ax.texts)
    ]
    texts += [text for legend in figure.findobj(matplotlib.legend.Legend) for text in legend.get_texts()]
    for text in texts:
        box = text.get_window_extent(renderer)
        if text.get_text():
            assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1, text.get_text()


def test_confusion_draws_shares_of_the_true_class(scene):
    matrix = classification.confusion(*scene)
    figure = metric_plots.confusion_heatmap(matrix, NAMES)
    ax, bar = drawn(figure)
    shown = np.ma.filled(ax.images[0].get_array(), np.nan)
    present = np.arange(20) != 7
    np.testing.assert_allclose(shown[present], 100 * matrix[present] / matrix[present].sum(1, keepdims=True))
    assert np.isnan(shown[7]).all()
    assert (ax.images[0].norm.vmin, ax.images[0].norm.vmax) == (0, 100)
    assert [label.get_text() for label in ax.get_xticklabels()] == NAMES
    assert [label.get_text() for label in ax.get_yticklabels()][7:9] == [
        "class number 7 (n = 0)",
        f"class number 8 (n = {matrix[8].sum()})",
    ]
    assert not ax.texts  # twenty classes leave no room for counts
    assert (ax.get_xlabel(), ax.get_ylabel(), bar.get_ylabel()) == (
        "predicted class",
        "true class (n images)",
        "share of the true class (%)",
    )


def test_confusion_of_few_classes_says_its_counts():
    figure = metric_plots.confusion_heatmap(np.array([[1234, 1], [2, 0]]), ["cat", "dog"])
    ax = drawn(figure)[0]
    counts = {text.get_position(): (text.get_text(), text.get_color()) for text in ax.texts}
    assert counts == {(0, 0): ("1,234", "white"), (1, 0): ("1", "black"), (0, 1): ("2", "white"), (1, 1): ("0", "black")}


def test_confusion_of_many_classes_names_some_of_them():
    names = [f"{k}" for k in range(100)]
    ax = drawn(metric_plots.confusion_heatmap(np.eye(100, dtype=int), names))[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == names[::3]
    assert ax.get_xticks().tolist() == list(range(0, 100, 3))


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (2,)])
def test_a_matrix_without_names_is_refused(shape):
    message = f"2 classes need a (2, 2) matrix, got shape {shape}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        metric_plots.confusion_heatmap(np.ones(shape), ["cat", "dog"])


def test_precision_recall_draws_every_class_and_marks_break_even(scene):
    points = classification.precision_recall_points(*scene, NAMES)
    figure = metric_plots.precision_recall_curves(points)
    (ax,) = drawn(figure)
    lines = labelled(ax)
    counts = np.bincount(scene[1], minlength=20)
    best, worst = (next(name for name in lines if word in name) for word in ("largest", "smallest"))
    assert list(lines) == [
        f"each of 19 classes (n = {min(counts[counts > 0])} to {counts.max()})",
        best,
        worst,
        "micro average (n = 1,000)",
        f"break-even point: {100 * classification.break_even_point(points[points['class'] == 'micro average']):.1f} %",
    ]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(lines)
    grey = [line for line in ax.lines if to_hex(line.get_color()) == to_hex("grey")]
    curves = [curve for name, curve in points.groupby("class", sort=False) if name != "micro average"]
    for line, curve in zip(grey, curves, strict=True):
        np.testing.assert_array_equal(np.transpose(line.get_data()), curve[["recall", "precision"]])
    (x,), (y,) = list(lines.values())[-1].get_data()
    assert x == y == pytest.approx((scene[0].argmax(1) == scene[1]).mean(), abs=0.05)  # near the accuracy, as seldom two are called
    assert max(line.get_linewidth() for line in grey) < lines["micro average (n = 1,000)"].get_linewidth()


def test_the_named_curves_have_the_largest_and_smallest_area(scene):
    table = classification.per_class_metrics(*scene, NAMES).dropna(subset="auc").set_index("class")
    (ax,) = drawn(metric_plots.roc_curves(classification.roc_points(*scene, NAMES)))
    for word, name in (("largest", table["auc"].idxmax()), ("smallest", table["auc"].idxmin())):
        assert f"{word} area: {name} (n = {table.loc[name, 'n']})" in labelled(ax)


def test_roc_draws_every_class_and_chance(scene):
    points = classification.roc_points(*scene, NAMES)
    (ax,) = drawn(metric_plots.roc_curves(points))
    assert labelled(ax)["chance"].get_xydata().tolist() == [[0, 0], [1, 1]]
    pooled = points[points["class"] == "micro average"][["false_positive_rate", "true_positive_rate"]]
    np.testing.assert_array_equal(labelled(ax)["micro average (n = 1,000)"].get_xydata(), pooled)
    assert "19 classes" in next(iter(labelled(ax)))
    assert ax.get_xlabel() == "false positive rate (% of the other images)"
    assert ax.get_ylabel() == "true positive rate (% of the images of the class)"


def test_curves_without_a_micro_average_or_of_two_classes_are_drawn():
    points = classification.precision_recall_points(np.eye(2)[[0, 1, 1]], [0, 1, 0], ["cat", "dog"])
    (ax,) = drawn(metric_plots.precision_recall_curves(points[points["class"] != "micro average"]))
    assert list(labelled(ax)) == ["each of 2 classes (n = 1 to 2)"]


def test_bars_are_sorted_by_f1_and_carry_every_number(scene):
    table = classification.per_class_metrics(*scene, NAMES)
    (ax,) = drawn(metric_plots.per_class_bars(table))
    sorted_table = table.sort_values("f1", ascending=False, kind="stable", na_position="last")
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        f"{row['class']} (n = {row['n']})" for row in sorted_table.to_dict("records")
    ]
    for bars, column in zip(ax.containers, ("precision", "recall", "f1"), strict=True):
        np.testing.assert_allclose([bar.get_width() for bar in bars], 100 * sorted_table[column])
    assert ax.yaxis.get_inverted()  # the best on top
    said = [(round(text.get_position()[1]), text.get_text()) for text in ax.texts]
    assert sorted(said) == [(18, "precision undefined"), (19, "F1 undefined"), (19, "precision undefined"), (19, "recall undefined")]


def test_of_many_classes_the_best_and_the_worst_are_drawn():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"class": [f"c{k}" for k in range(100)], "n": 50, **dict.fromkeys(("precision", "recall", "f1"), rng.random(100))})
    figure = metric_plots.per_class_bars(table)
    (ax,) = drawn(figure)
    widths = [bar.get_width() for bar in ax.containers[2]]
    np.testing.assert_allclose(widths, 100 * np.sort(table["f1"])[::-1][[*range(20), *range(80, 100)]])
    assert "20 highest and 20 lowest F1 of 100 classes" in words(figure)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (metric_plots.confusion_heatmap, (np.zeros((2, 2), int), ["cat", "dog"]), "There is no classified image."),
        (metric_plots.confusion_heatmap, (np.zeros((0, 0), int), []), "There is no classified image."),
        (metric_plots.precision_recall_curves, (pd.DataFrame(),), "There is no point of a precision-recall curve."),
        (metric_plots.roc_curves, (pd.DataFrame(),), "There is no point of a ROC curve."),
        (metric_plots.per_class_bars, (pd.DataFrame(),), "There is no class to score."),
    ],
)
def test_nothing_to_draw_is_said_in_words(function, arguments, message):
    figure = function(*arguments)
    drawn(figure)
    assert words(figure) == [message]


def test_no_text_is_cut_and_the_style_is_gone_afterwards(scene):
    before = dict(matplotlib.rcParams)
    names = [f"a rather long name {k}" for k in range(20)]
    figures = [
        metric_plots.confusion_heatmap(classification.confusion(*scene), names),
        metric_plots.confusion_heatmap(np.eye(2, dtype=int), names[:2]),
        metric_plots.precision_recall_curves(classification.precision_recall_points(*scene, names)),
        metric_plots.roc_curves(classification.roc_points(*scene, names)),
        metric_plots.per_class_bars(classification.per_class_metrics(*scene, names)),
        metric_plots.per_class_bars(classification.per_class_metrics(np.eye(2), [0, 1], names[:2])),
    ]
    assert dict(matplotlib.rcParams) == before
    for figure in figures:
        assert_nothing_is_cut(figure)

import io
import re

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch
from helpers.scoring.look import Overlays
from matplotlib.colors import to_hex

from helpers.report import cams, style, training
from helpers.scoring import classification
from helpers.statistics import tables
from helpers.statistics.tables import correlation_table, selection_table
from helpers.training.config import RunConfig

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
    figure = training.confusion_heatmap(matrix, NAMES)
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
    figure = training.confusion_heatmap(np.array([[1234, 1], [2, 0]]), ["cat", "dog"])
    ax = drawn(figure)[0]
    counts = {text.get_position(): (text.get_text(), text.get_color()) for text in ax.texts}
    assert counts == {(0, 0): ("1,234", "white"), (1, 0): ("1", "black"), (0, 1): ("2", "white"), (1, 1): ("0", "black")}


def test_confusion_of_many_classes_names_some_of_them():
    names = [f"{k}" for k in range(100)]
    ax = drawn(training.confusion_heatmap(np.eye(100, dtype=int), names))[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == names[::3]
    assert ax.get_xticks().tolist() == list(range(0, 100, 3))


@pytest.mark.parametrize("shape", [(2, 3), (3, 3), (2,)])
def test_a_matrix_without_names_is_refused(shape):
    message = f"2 classes need a (2, 2) matrix, got shape {shape}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        training.confusion_heatmap(np.ones(shape), ["cat", "dog"])


def test_precision_recall_draws_every_class_and_marks_break_even(scene):
    points = classification.precision_recall_points(*scene, NAMES)
    figure = training.precision_recall_curves(points)
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
    (ax,) = drawn(training.roc_curves(classification.roc_points(*scene, NAMES)))
    for word, name in (("largest", table["auc"].idxmax()), ("smallest", table["auc"].idxmin())):
        assert f"{word} area: {name} (n = {table.loc[name, 'n']})" in labelled(ax)


def test_roc_draws_every_class_and_chance(scene):
    points = classification.roc_points(*scene, NAMES)
    (ax,) = drawn(training.roc_curves(points))
    assert labelled(ax)["chance"].get_xydata().tolist() == [[0, 0], [1, 1]]
    pooled = points[points["class"] == "micro average"][["false_positive_rate", "true_positive_rate"]]
    np.testing.assert_array_equal(labelled(ax)["micro average (n = 1,000)"].get_xydata(), pooled)
    assert "19 classes" in next(iter(labelled(ax)))
    assert ax.get_xlabel() == "false positive rate (% of the other images)"
    assert ax.get_ylabel() == "true positive rate (% of the images of the class)"


def test_curves_without_a_micro_average_or_of_two_classes_are_drawn():
    points = classification.precision_recall_points(np.eye(2)[[0, 1, 1]], [0, 1, 0], ["cat", "dog"])
    (ax,) = drawn(training.precision_recall_curves(points[points["class"] != "micro average"]))
    assert list(labelled(ax)) == ["each of 2 classes (n = 1 to 2)"]


def test_bars_are_sorted_by_f1_and_carry_every_number(scene):
    table = classification.per_class_metrics(*scene, NAMES)
    (ax,) = drawn(training.per_class_bars(table))
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
    figure = training.per_class_bars(table)
    (ax,) = drawn(figure)
    widths = [bar.get_width() for bar in ax.containers[2]]
    np.testing.assert_allclose(widths, 100 * np.sort(table["f1"])[::-1][[*range(20), *range(80, 100)]])
    assert "20 highest and 20 lowest F1 of 100 classes" in words(figure)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (training.confusion_heatmap, (np.zeros((2, 2), int), ["cat", "dog"]), "There is no classified image."),
        (training.confusion_heatmap, (np.zeros((0, 0), int), []), "There is no classified image."),
        (training.precision_recall_curves, (pd.DataFrame(),), "There is no point of a precision-recall curve."),
        (training.roc_curves, (pd.DataFrame(),), "There is no point of a ROC curve."),
        (training.per_class_bars, (pd.DataFrame(),), "There is no class to score."),
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
        training.confusion_heatmap(classification.confusion(*scene), names),
        training.confusion_heatmap(np.eye(2, dtype=int), names[:2]),
        training.precision_recall_curves(classification.precision_recall_points(*scene, names)),
        training.roc_curves(classification.roc_points(*scene, names)),
        training.per_class_bars(classification.per_class_metrics(*scene, names)),
        training.per_class_bars(classification.per_class_metrics(np.eye(2), [0, 1], names[:2])),
    ]
    assert dict(matplotlib.rcParams) == before
    for figure in figures:
        assert_nothing_is_cut(figure)


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]


def models(count=30, slope=-1.0, seed=0):
    """A catalogue whose gap falls (slope -1) or rises with IoU; two models a cell."""
    generator = np.random.default_rng(seed)
    iou = generator.uniform(0.2, 0.8, count)
    return pd.DataFrame(
        {
            "model_id": [f"m{n}" for n in range(count)],
            "run_id": [f"r{n // 2}" for n in range(count)],
            "cell": [f"c{n // 2}" for n in range(count)],
            "architecture": np.where(np.arange(count) % 4 < 2, "resnet18", "resnet34"),
            "snapshot": "stop",
            "status": "complete",
            "stop_reason": "rules 1+2",
            "epochs": 7,
            "seconds": 60.0,
            "left_out": "",
            "pretrained": True,
            "train_accuracy": generator.uniform(0.96, 1, count),
            "gap": 0.5 + slope * (iou - 0.5) * 0.4 + generator.normal(0, 0.02, count),
            "iou": iou,
            "iou_b": iou * 0.9,
            "whole_image_floor": 0.4,
            "mask_area": 0.75,
            "images_scored": 100,
            "images_without_overlap": 0,
            "images_with_empty_map": 1,
        }
    )


def published(measure="iou"):
    return pd.DataFrame({"method": [measure], "architecture": ["Total"], "threshold": [0.8], "pearson_r": [-0.8159]})


def test_counts_percentages_and_lists():
    assert style.count(1, "class") == "1 class"
    assert style.count(2, "class") == "2 classes"
    assert style.count(1200, "model") == "1,200 models"
    assert style.points(0.1234) == "12.3 points"
    assert style.points(float("nan")) == "undefined"
    assert style.percent(float("nan")) == "undefined"
    assert style.listed(list("abcdef"), 2) == "a, b and 4 more"


def test_what_is_left_out_is_counted_by_reason():
    table = models(4)
    table.loc[0, "left_out"] = "diverged before a snapshot"
    assert training.models_left_out(table) == "3 models enter the analysis; left out: 1 × diverged before a snapshot."
    assert training.models_left_out(models(4)) == "All 4 models enter the analysis."


def test_convergence_is_judged_by_the_median_change():
    still = pd.DataFrame({"run_id": "a", "relative_loss_change": [0.01, -0.02, 0.5], "loss_change_of_run": [0.001, -0.002, 0.05]})
    moving = pd.DataFrame({"run_id": "b", "relative_loss_change": [-0.2, -0.3, 0.0], "loss_change_of_run": [-0.02, -0.03, 0.0]})
    both = training.late_convergence(pd.concat([still, moving]))
    assert "Of 2 runs at the cap, 1 still changed" in both
    assert "Over the last 3 epochs the loss changed by +2% in the median of the runs, by -44% to +48%." in both
    assert training.late_convergence(moving).endswith("in the whole run, as the article has it, 0 did.")
    assert "they had not converged" in training.late_convergence(moving) and "converged" not in training.late_convergence(still)
    assert training.late_convergence(still.iloc[:0]).startswith("No run ended at the epoch cap")


@pytest.mark.parametrize("empty", [training.gap_by_architecture, training.gap_spread])
def test_no_model_is_said_in_words(empty):
    text = empty(models(4).iloc[:0])
    assert "No model is kept" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("low", "high", "words"), [(-0.9, -0.1, "as the paper expects"), (0.1, 0.9, "against the paper"), (-0.1, 0.1, "cannot be said")]
)
def test_the_verdict_follows_the_interval(low, high, words):
    assert words in cams.interval_says(low, high)
    assert "too few models" in cams.interval_says(np.nan, high)


@pytest.mark.parametrize(("slope", "words"), [(-1.0, "as the paper expects"), (1.0, "against the paper"), (0.0, "cannot be said")])
def test_the_lead_sentence_says_what_the_data_were_made_to_hold(slope, words):
    table = models(60, slope)
    text = cams.iou_against_gap(table, 400, 0)
    assert words in text
    assert numbers(text)[1] == pytest.approx(np.corrcoef(table["iou"], table["gap"])[0, 1], abs=0.0006)


def test_table_2_has_the_levels_of_the_runs_and_no_others():
    axes = {"architecture": ["resnet18", "resnet34"], "batch_size": [32], "augmentation": [True, False], "images_per_class": [0]}
    chosen = [(batch, augmentation) for batch in (64, 32) for augmentation in (False, True)]
    runs = [RunConfig("resnet18", batch, 0.1, "sgd", 0.0, augmentation, False, data="d") for batch, augmentation in chosen]
    table2 = pd.DataFrame({"hyperparameter": ["batch_size"], "levels": ["16, 32, 64"]})
    shown = training.axes_table(axes, runs, table2).set_index("hyperparameter")
    assert shown["levels"].to_dict() == {
        "architecture": "resnet18",
        "batch_size": "32, 64",
        "augmentation": "True, False",
        "images_per_class": "all",
    }
    assert shown["published"].to_list() == ["—", "16, 32, 64", "—", "—"]


def test_two_models_have_no_correlation_and_the_sentence_says_so():
    assert cams.iou_against_gap(models(2), 10, 0) == "With 2 models the correlation is undefined."


def test_ours_stands_beside_the_paper_with_the_difference_where_it_has_a_value():
    table = correlation_table(models(), ["iou"], [0.95, 0.8], resamples=50, kendall_resamples=0)
    joined = tables.beside_published(table, published())
    assert len(joined) == len(table)
    row = joined[(joined["architecture"] == "Total") & (joined["threshold"] == 0.8)].iloc[0]
    assert row["published_r"] == -0.8159
    assert row["difference"] == pytest.approx(row["pearson_r"] + 0.8159)
    assert joined["published_r"].notna().sum() == 1


def test_tables_are_read_with_their_counts():
    table = correlation_table(models(), ["iou", "iou_b"], [0.95, 0.8], resamples=100, kendall_resamples=0)
    text = cams.say_correlations(tables.beside_published(table, published()))
    assert f"Of 12 cells of the table, {int(table['ci_low'].notna().sum())} have an interval below 0, 0 above 0" in text
    assert "the paper's -0.816" in text
    assert "every interval lies on the same side of 0" in cams.say_accuracy_thresholds(table[table["ci_low"].notna()])


def test_selection_is_held_against_a_coin():
    accuracy = pd.DataFrame({"method": ["iou"], "architecture": ["Total"], "threshold": [0.8], "accuracy_percent": [73.82]})
    for slope, words in ((-1.0, "better than a coin"), (1.0, "worse than a coin")):
        table = selection_table(models(40, slope), {"iou": 1}, [0.8], resamples=100)
        text = cams.say_selection(tables.beside_published(table, accuracy))
        assert words in text
        assert "the paper reports 73.8 %" in text
        assert "Of 780 pairs" in text


def test_where_the_paper_has_no_number_the_sentences_say_so_or_are_silent():
    accuracy = pd.DataFrame({"method": ["iou"], "architecture": ["Total"], "threshold": [0.8], "accuracy_percent": [73.82]})
    table3 = correlation_table(models(), ["iou", "iou_b"], [0.5], resamples=50, kendall_resamples=0)
    table4 = selection_table(models(), {"iou": 1}, [0.5], resamples=50)
    text = cams.say_correlations(tables.beside_published(table3, published()))
    assert "the paper gives none at this threshold" in text
    assert "nan" not in text
    assert "the paper" not in cams.say_selection(tables.beside_published(table4, accuracy))


def test_overlays_average_the_images_of_each_model():
    ious = torch.tensor([[0.2, 0.4], [0.6, float("nan")]])
    text = cams.say_overlays(models(2), Overlays(torch.zeros(2, 2, 3, 4, 4), torch.zeros(2, 2, 4, 4), torch.zeros(2, 2, 1, 4), ious))
    assert "0.300" in text
    assert "0.600" in text


def test_scores_and_models_are_counted():
    table = models(10)
    table.loc[0, ["iou", "iou_b"]] = np.nan
    text = cams.scores_found(table)
    assert "over 9 models" in text
    assert "covers the whole image has 0.400; " in text
    assert "The mask covers 75.0 % of an image (median)" in text
    assert "1.0 % of the maps" in text
    assert "**10** of them, from 5 hyperparameter cells" in cams.models_analysed(table)

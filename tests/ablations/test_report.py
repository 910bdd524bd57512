"""Sentences of the ablations: their numbers are those of the table, and what is undefined is said in words."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from helpers.ablations import report, tables, wrong_labels
from helpers.statistics import hyperparameters

NAN = float("nan")


def rows(r=(-0.8, 0.1, 0.6), low=(-0.9, -0.4, 0.3), high=(-0.5, 0.5, 0.8), **columns):
    table = pd.DataFrame({"n": [20] * 3}).assign(pearson_r=r, ci_low=low, ci_high=high)
    return table.assign(**columns)


def methods(**changes):
    table = rows(architecture="Total", threshold=0.8, published_r=NAN, same_map_as="", images=[9.0, 9.0, 9.0], formula="correct")
    table = table.assign(method=["grad_cam", "grad_cam_plus_plus", "smooth_grad_cam_plus_plus"])
    other = table.assign(architecture="resnet18", published_r=[-0.89, -0.88, -0.86], pearson_r=[-0.7, -0.6, -0.5])
    return pd.concat([other, table, table.assign(threshold=0.95, pearson_r=-0.99)], ignore_index=True).assign(**changes)


def test_a_correlation_is_written_with_interval_and_n_or_as_undefined():
    assert report.with_interval(rows().iloc[0]) == "-0.80 (95 % interval -0.90 to -0.50, n = 20)"
    assert report.with_interval(rows(low=NAN).iloc[0]) == "-0.80 (no interval, n = 20)"
    assert report.with_interval(rows(r=NAN).iloc[0]) == "undefined (n = 20)"


def test_signs_are_counted_by_the_interval():
    text = report.signs(pd.concat([rows(), rows().iloc[:1], rows(low=NAN).iloc[:1]]), "row")
    assert text == (
        "Of 5 rows: in 2 the interval lies below 0, as the paper expects, in 1 the interval lies above 0, against the paper, "
        "in 1 the interval contains 0, in 1 there is no interval for want of models"
    )
    assert report.signs(rows().iloc[:1], "row") == "Of 1 row: in 1 the interval lies below 0, as the paper expects"


def test_methods_are_read_pooled_on_the_same_images_at_the_lowest_accuracy():
    text = report.say_cam_methods(methods())
    assert text.startswith("On the same 9 images r runs from -0.80 (Grad-CAM) to 0.60 (Smooth Grad-CAM++). Of 3 maps: ")
    assert "one map" not in text
    assert "Grad-CAM -0.70 (-0.89), Grad-CAM++ -0.60 (-0.88), Smooth Grad-CAM++ -0.50 (-0.86)." in text
    assert "On ResNet-18" not in report.say_cam_methods(methods(published_r=NAN))
    whole = methods().query("method == 'grad_cam'").assign(images=100.0, pearson_r=-0.75)
    assert "On all 100 images Grad-CAM has -0.75." in report.say_cam_methods(pd.concat([methods(), whole]))


def test_one_map_by_theory_is_said_and_gets_one_verdict():
    same = np.where(methods()["method"].str.startswith("smooth"), "grad_cam_plus_plus (correct)", "")
    table = methods(same_map_as=same)
    text = report.say_cam_methods(table)
    assert "Smooth Grad-CAM++ and Grad-CAM++ are one map, as theory has it" in text
    assert text.startswith("On the same 9 images r runs from -0.80 (Grad-CAM) to 0.10 (Grad-CAM++). Of 2 maps: ")
    assert report.distinct(report.lowest_pooled(table))["method"].tolist() == ["grad_cam", "grad_cam_plus_plus"]
    labels = report.ways(report.pictured(table))
    assert labels[2:] == [
        "resnet18, Smooth Grad-CAM++ (the map of Grad-CAM++), 9 images",
        "all, Grad-CAM, 9 images",
        "all, Grad-CAM++, 9 images",
    ]


def test_pictured_are_all_pooled_maps_and_those_beside_the_paper():
    table = report.pictured(methods())
    assert table["architecture"].tolist() == ["resnet18"] * 3 + ["Total"] * 3
    assert set(table["threshold"]) == {0.8}
    labels = report.ways(table)
    assert (labels[0], labels[-1]) == ("resnet18, Grad-CAM, 9 images", "all, Smooth Grad-CAM++, 9 images")
    assert report.way(pd.Series({"method": "grad_cam_plus_plus", "formula": "torchcam"})) == "Grad-CAM++ as torchcam computes it"


def untrained(low, high, tells):
    row = {"architecture": "Total", "n": 2, "images": 30.0, "pearson_r": 0.2, "ci_low": low, "ci_high": high, "tells": tells}
    return pd.DataFrame([row | {"architecture": "resnet18", "published_r": -0.1544, "published_tells": "cannot tell"}, row]).assign(
        published_r=[-0.1544, -0.0094], published_tells=["cannot tell", "nothing"]
    )


@pytest.mark.parametrize(
    ("low", "high", "tells", "words"),
    [
        (-0.1, 0.15, "nothing", "the whole interval lies within ±0.2: without learning the overlap tells nothing of the gap, as it must"),
        (
            -0.3,
            0.2,
            "cannot tell",
            "nothing is shown; even an r of 0 takes 97 networks",
        ),  # 1.96 / sqrt(94) < atanh 0.2
        (0.1, 0.5, "something", "which a valid measure must not"),
        (NAN, NAN, "cannot tell", "nothing is shown"),
    ],
)
def test_untrained_networks_tell_nothing_only_by_an_interval_around_0(low, high, tells, words):
    networks = pd.DataFrame({"train_accuracy": [0.2, 0.4], "iou": [0.31, 0.25]})
    assert tables.tells(low, high) == tells
    text = report.say_random(untrained(low, high, tells), networks)
    assert words in text
    assert text.startswith("2 untrained networks on 30 training images, training accuracy 30.0 % on average, IoU 0.250 to 0.310: r = 0.20")
    assert text.endswith("By the same rule the paper's -0.01 pooled tells nothing; each architecture alone: resnet18 -0.15 (cannot tell).")


def test_masks_are_read_beside_the_floor_and_one_below_it_is_called_that():
    quality = pd.DataFrame(
        {"provider": ["spectral_residual", "fine_grained"], "box_iou": [0.2, 0.4], "whole_image_floor": 0.3, "dropped": [3, 0]}
    )
    assert report.say_machine_masks(quality) == (
        "Mean IoU with the boxes, where marking the whole image gives 0.300 (the floor): spectral residual 0.200, **below the floor**, "
        "so worse than marking every pixel, 3 empty masks dropped; fine grained 0.400, above the floor."
    )
    assert "cannot be compared" in report.say_machine_masks(quality.assign(box_iou=NAN))
    assert report.say_examples([0.9, 0.1]).endswith("0.90, 0.10.")


def test_boxes_and_masks_stand_side_by_side_with_the_paper():
    table = rows().iloc[:2].assign(threshold=0.8, method=["annotated_boxes", "fine_grained"])
    both = pd.concat(
        [table.assign(architecture="Total", published_r=NAN), table.assign(architecture="resnet18", published_r=[-0.89, -0.82])]
    )
    text = report.say_annotations(both)
    assert text.startswith("Pooled r: annotated boxes -0.80 (")
    assert "; fine grained 0.10 (" in text
    assert text.endswith("; the paper's ResNet-18: -0.89 with boxes and -0.82 with saliency masks.")
    assert report.say_annotations(both.iloc[:1]) == "There are no masks of a machine."


def test_thresholds_say_where_the_sign_changes_and_that_choosing_flatters():
    text = report.say_map_thresholds(rows(threshold=[0.1, 0.3, 0.5]), 0.1)
    assert "At the paper's threshold 0.1 r is -0.80" in text
    assert "over 3 thresholds from 0.1 to 0.5 its sign changes between 0.1 and 0.3" in text
    assert "most negative at 0.1 (-0.80)" in text
    assert "flatters" in text
    assert "its sign is the same at all of them" in report.say_map_thresholds(rows(r=-0.5, threshold=[0.1, 0.3, 0.5]), 0.1)


def test_choices_are_listed_in_their_order():
    text = report.say_choices(rows(), ["a", "b", "c"], "layer")
    assert text.startswith("r by layer: a: -0.80 (95 % interval -0.90 to -0.50, n = 20); b: 0.10")


def test_repeats_and_snapshots_are_read_by_level_and_change():
    levels = rows().iloc[:2].assign(column="snapshot", level=["first", "stop"], mean=0.4, mean_gap=0.3)
    change = rows().iloc[:1].assign(column="snapshot", level="change between levels", mean=0.012, mean_gap=0.043)
    single = rows().iloc[:1].assign(column="repeat", level="0", mean=0.4, mean_gap=0.3)
    text = report.say_repeats(pd.concat([levels, change, single]))
    assert "r by snapshot: first: -0.80" in text
    assert "IoU differs by 0.012 on average and the gap by 4.3 points; r of the two changes is -0.80" in text
    assert text.endswith("This study has one repeat only (0).")


def test_right_and_wrong_images_are_compared():
    single = pd.DataFrame({"right": [True, True, False, False], "iou": [0.6, 0.4, 0.2, 0.3]})
    assert report.right_and_wrong(single) == "Mean IoU is 0.500 on images classified as labelled and 0.250 on the others."
    assert "classified alike" in report.right_and_wrong(single.iloc[:2])


def test_survival_counts_the_settings_of_the_same_sign():
    text = report.survival({"layers": rows(), "sizes": rows(r=(-0.2, NAN, -0.1))}, -0.4)
    assert text.startswith("At the paper's setting r is **-0.40**; under 3 of 5 settings tried it has the same sign")
    assert "(layers 1 of 3, sizes 2 of 2), and it runs from -0.80 to 0.60." in text


def undefined():
    nothing = rows(r=NAN, low=NAN, high=NAN, level=["0.0", "0.1", "0.2"], threshold=[0.1, 0.2, 0.3], column="snapshot")
    nothing = nothing.assign(mean=NAN, mean_gap=NAN, images=[1, 2, 3], half_width=NAN, architecture="Total", method="annotated_boxes")
    two = pd.concat([nothing.iloc[:1], nothing.iloc[:1].assign(method="fine_grained")]).assign(published_r=NAN)
    networks = pd.DataFrame({"train_accuracy": [0.2], "iou": [0.0]})
    return {
        "methods": report.say_cam_methods(methods(pearson_r=NAN, ci_low=NAN, ci_high=NAN)),
        "random": report.say_random(nothing.assign(published_r=0.1, tells="cannot tell"), networks),
        "examples": report.say_examples([]),
        "annotations": report.say_annotations(two),
        "thresholds": report.say_map_thresholds(nothing, 0.1),
        "choices": report.say_choices(nothing, ["a", "b", "c"], "layer"),
        "repeats": report.say_repeats(nothing),
        "noise": wrong_labels.say_label_noise(nothing),
        "right": report.right_and_wrong(pd.DataFrame({"right": [True, False, True], "iou": NAN})),
        "survival": report.survival({"layers": nothing}, NAN),
    }


@pytest.mark.parametrize("name", list(undefined()))
def test_what_is_undefined_is_said_in_words(name):
    text = undefined()[name]
    assert text.endswith(".")
    assert not re.search(r"\bnan\b", text.lower())


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
    figure = report.correlations_figure(correlations(published_r=[-0.9, np.nan, np.nan]), ["one", "two", "three"])
    (ax,) = figure.axes
    np.testing.assert_array_equal(dots(ax, "o")[0][0], [-0.8, 0.1, np.nan])
    np.testing.assert_array_equal(dots(ax, "D")[0][0], [-0.9, np.nan, np.nan])
    segments = [segment for segment in ax.collections[0].get_segments() if len(segment)]  # none for an undefined interval
    assert [segment[:, 0].tolist() for segment in segments] == [[-0.9, -0.5], [-0.4, 0.5]]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one  (n = 20)", "two  (n = 12)", "three  (n = 2)"]
    bottom, top = ax.get_ylim()
    assert bottom > top  # the first row on top
    without = report.correlations_figure(correlations(), ["one", "two", "three"])
    assert not dots(without.axes[0], "D")
    assert len(without.legends[0].get_texts()) == 1


def test_thresholds_are_a_line_per_way_and_a_band_for_the_first_only():
    rows = {"threshold": [0.5, 0.1, 0.3], "pearson_r": [-0.1, -0.5, -0.3], "ci_low": -0.6, "ci_high": 0.0}
    table = pd.concat([pd.DataFrame(rows).assign(way=way) for way in ("a", "b")])
    figure = report.threshold_figure(table, 0.1)
    (ax,) = figure.axes
    lines = [line for line in ax.lines if line.get_marker() in ("o", "s")]
    assert [line.get_xdata().tolist() for line in lines] == [[0.1, 0.3, 0.5]] * 2
    assert lines[0].get_ydata().tolist() == [-0.5, -0.3, -0.1]
    assert len(ax.collections) == 1
    assert "paper: 0.1" in texts(figure)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_masks_stand_below_their_images():
    images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    images[0] = 255
    made, boxes = torch.zeros(2, 4, 4, dtype=torch.bool), torch.ones(2, 4, 4, dtype=torch.bool)
    figure = report.masks(images, made, boxes, ["IoU 0.00", "IoU 0.10"])
    shown = [ax.images[0].get_array() for ax in figure.axes]
    assert [np.asarray(picture).max() for picture in shown] == [255, 0, 0, 0, 1, 1]
    assert {"IoU 0.00", "IoU 0.10"} <= set(texts(figure))
    assert [ax.get_ylabel() for ax in figure.axes][::2] == ["image", "mask of the machine", "annotated boxes"]


def confounding(count=24):
    rng = np.random.default_rng(0)
    models = pd.DataFrame({"rate": np.arange(count) % 3 * 0.1, "pretrained": np.arange(count) % 2 == 0, "cell": np.arange(count) // 2})
    models = models.assign(gap=rng.uniform(0, 1, count), iou=rng.uniform(0, 1, count), l2=rng.uniform(0, 1, count))
    return hyperparameters.confounders(models, ["iou", "l2"], ["rate", "pretrained"], resamples=50)


def test_pooled_stands_against_within_for_one_measure_and_for_all():
    table = confounding()
    figure = report.pooled_against_within(table, {"iou": "IoU"})
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
    assert dots(left, "s")[0][0] == own["r"].tolist()
    strengths = table[table["kind"] == "pooled"].set_index("measure")["r"]
    order = strengths.abs().sort_values(ascending=False).index
    assert dots(right, "o")[0][0] == strengths[order].tolist()
    given = table[table["kind"] == "given all"].set_index("measure")["r"]
    assert dots(right, "D")[0][0] == given[order].tolist()
    assert {"IoU", "l2"} == {label.get_text() for label in right.get_yticklabels()}
    assert len(report.pooled_against_within(table, {}, most=1).axes[1].get_yticklabels()) == 1


def undefined_ablation_plots():
    none = correlations(pearson_r=np.nan)
    nothing = torch.zeros(0, 3, 4, 4, dtype=torch.uint8), *[torch.zeros(0, 4, 4, dtype=torch.bool)] * 2
    table = confounding()
    return {
        "correlations": lambda: report.correlations_figure(none, ["a", "b", "c"]),
        "by_threshold": lambda: report.threshold_figure(none.assign(way="a", threshold=0.1), 0.1),
        "masks": lambda: report.masks(*nothing, []),
        "without axes": lambda: report.pooled_against_within(table[table["kind"] == "pooled"], {}),
        "without values": lambda: report.pooled_against_within(table.assign(r=np.nan), {}),
    }


@pytest.mark.parametrize("name", list(undefined_ablation_plots()))
def test_nothing_to_draw_is_said_in_words(name):
    figure = undefined_ablation_plots()[name]()
    (ax,) = figure.axes
    assert ax.texts[0].get_text().endswith(".")
    assert not ax.lines


def test_the_style_of_others_is_left_alone():
    before = dict(plt.rcParams)
    report.correlations_figure(correlations(), ["a", "b", "c"])
    assert dict(plt.rcParams) == before


def test_moments_are_read_apart_and_said():
    rng = np.random.default_rng(0)
    gap = rng.uniform(0.1, 0.5, 40)
    models = pd.DataFrame({"gap": gap, "cell": [f"c{k // 2}" for k in range(40)], "snapshot": ["first", "stop"] * 20})
    models["energy"] = np.where(models["snapshot"] == "first", gap, -gap)
    found = tables.by_moment(models, ["energy", "absent"], {}, 100, 0)
    assert found[["measure", "level", "n"]].to_numpy().tolist() == [["energy", "first", 20], ["energy", "stop", 20]]
    assert found["pearson_r"].tolist() == pytest.approx([1, -1])
    text = report.say_moments(found, {"energy": "Energy"})
    assert "Energy first 1.00 (95 % interval 1.00 to 1.00, n = 20) and stop -1.00" in text
    none = tables.by_moment(models, ["absent"], {}, 100, 0)
    assert report.say_moments(none, {}).endswith("too few models.")

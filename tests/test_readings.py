"""Sentences: every number in them is computed again here, and what is undefined is said in words."""

import re

import numpy as np
import pandas as pd
import pytest
import torch

from helpers import findings, readings
from helpers.datasets import ImageSet
from helpers.scoring import Overlays
from helpers.statistics import correlation_table, selection_table


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
            "images_scored": 100,
            "images_without_overlap": 0,
            "images_with_empty_map": 1,
        }
    )


def published(measure="iou"):
    return pd.DataFrame({"method": [measure], "architecture": ["Total"], "threshold": [0.8], "pearson_r": [-0.8159]})


def test_counts_percentages_and_lists():
    assert readings.count(1, "class") == "1 class"
    assert readings.count(2, "class") == "2 classes"
    assert readings.count(1200, "model") == "1,200 models"
    assert readings.points(0.1234) == "12.3 points"
    assert readings.points(float("nan")) == "undefined"
    assert readings.percent(float("nan")) == "undefined"
    assert readings.listed(list("abcdef"), 2) == "a, b and 4 more"


def test_box_sizes_by_hand():
    boxes = torch.tensor([[[0, 0, 5, 10], [0, 0, 1, 1]], [[0, 0, 10, 10], [0, 0, 0, 0]]], dtype=torch.int16)
    images = ImageSet(torch.zeros(2, 3, 10, 10, dtype=torch.uint8), torch.tensor([0, 1]), boxes, ("a", "b"))
    text = readings.box_sizes(images)
    assert "75.0 % of it in the median" in text
    assert "1 image of 2 have more than one" in text
    assert "IoU of 0.750 on average" in text


def test_faults_are_named_most_frequent_first():
    faults = pd.DataFrame({"fault": ["duplicate_file", "unreadable_image", "unreadable_image"]})
    assert readings.faults_found(faults) == "3 faults: 2 × unreadable image, 1 × duplicate file."
    assert readings.faults_found(faults.iloc[:0]).startswith("Nothing was found wrong")


def test_categories_stand_beside_the_papers_counts():
    classes = pd.DataFrame({"class_id": ["n1", "n2"], "train_images": [5, 6]})
    table = readings.categories(classes, pd.DataFrame({"wnid": ["n1"], "n": [579]}))
    assert table["published"].iloc[0] == 579
    assert np.isnan(table["published"].iloc[1])


def test_what_is_left_out_is_counted_by_reason():
    table = models(4)
    table.loc[0, "left_out"] = "diverged before a snapshot"
    assert readings.models_left_out(table) == "3 models enter the analysis; left out: 1 × diverged before a snapshot."
    assert readings.models_left_out(models(4)) == "All 4 models enter the analysis."


def test_convergence_is_judged_by_the_median_change():
    still = pd.DataFrame({"run_id": "a", "relative_loss_change": [0.01, -0.02, 0.5]})
    moving = pd.DataFrame({"run_id": "b", "relative_loss_change": [-0.2, -0.3, 0.0]})
    assert "Of 2 runs at the cap, 1 still changed" in readings.late_convergence(pd.concat([still, moving]))
    assert "all had settled" in readings.late_convergence(still)
    assert readings.late_convergence(still.iloc[:0]).startswith("No run ended at the epoch cap")


@pytest.mark.parametrize("empty", [readings.gap_by_architecture, readings.gap_spread])
def test_no_model_is_said_in_words(empty):
    text = empty(models(4).iloc[:0])
    assert "No model is kept" in text
    assert "nan" not in text


@pytest.mark.parametrize(
    ("low", "high", "words"), [(-0.9, -0.1, "as the paper expects"), (0.1, 0.9, "against the paper"), (-0.1, 0.1, "cannot be said")]
)
def test_the_verdict_follows_the_interval(low, high, words):
    assert words in findings.verdict(low, high)
    assert "too few models" in findings.verdict(np.nan, high)


@pytest.mark.parametrize(("slope", "words"), [(-1.0, "as the paper expects"), (1.0, "against the paper"), (0.0, "cannot be said")])
def test_the_lead_sentence_says_what_the_data_were_made_to_hold(slope, words):
    table = models(60, slope)
    text = findings.iou_against_gap(table, 400, 0)
    assert words in text
    assert numbers(text)[1] == pytest.approx(np.corrcoef(table["iou"], table["gap"])[0, 1], abs=0.0006)


def test_two_models_have_no_correlation_and_the_sentence_says_so():
    assert findings.iou_against_gap(models(2), 10, 0) == "With 2 models the correlation is undefined."


def test_ours_stands_beside_the_paper_with_the_difference_where_it_has_a_value():
    table = correlation_table(models(), ["iou"], [0.95, 0.8], resamples=50, kendall_resamples=0)
    joined = findings.beside_published(table, published())
    assert len(joined) == len(table)
    row = joined[(joined["architecture"] == "Total") & (joined["threshold"] == 0.8)].iloc[0]
    assert row["published_r"] == -0.8159
    assert row["difference"] == pytest.approx(row["pearson_r"] + 0.8159)
    assert joined["published_r"].notna().sum() == 1


def test_tables_are_read_with_their_counts():
    table = correlation_table(models(), ["iou", "iou_b"], [0.95, 0.8], resamples=100, kendall_resamples=0)
    text = findings.correlations_read(findings.beside_published(table, published()))
    assert "Of 12 cells of the table, 12 have an interval below 0, 0 above 0" in text
    assert "the paper's -0.816" in text
    assert "its sign does not depend on the threshold" in findings.thresholds_read(table)


def test_selection_is_held_against_a_coin():
    accuracy = pd.DataFrame({"method": ["iou"], "architecture": ["Total"], "threshold": [0.8], "accuracy_percent": [73.82]})
    for slope, words in ((-1.0, "better than a coin"), (1.0, "worse than a coin")):
        table = selection_table(models(40, slope), {"iou": 1}, [0.8], resamples=100)
        text = findings.selection_read(findings.beside_published(table, accuracy))
        assert words in text
        assert "the paper reports 73.8 %" in text
        assert "Of 780 pairs" in text


def test_overlays_average_the_images_of_each_model():
    ious = torch.tensor([[0.2, 0.4], [0.6, float("nan")]])
    text = findings.overlays_read(models(2), Overlays(torch.zeros(2, 2, 3, 4, 4), torch.zeros(2, 2, 4, 4), torch.zeros(2, 2, 1, 4), ious))
    assert "0.300" in text
    assert "0.600" in text


def test_scores_and_models_are_counted():
    table = models(10)
    table.loc[0, ["iou", "iou_b"]] = np.nan
    text = findings.scores_found(table)
    assert "over 9 models" in text
    assert "1.0 % of the maps" in text
    assert "**10** of them, from 5 hyperparameter cells" in findings.models_analysed(table)

import numpy as np
import pandas as pd
import pytest

from helpers import schiff_published, verdicts
from helpers.measures import MEASURES, columns

TITLES = {"a": "Alpha", "b": "Beta", "c": "Gamma", "iou": "IoU", "nuclear_norm": "nuclear norm"}


def ranked(*rows):
    return pd.DataFrame(rows, columns=["measure", "kendall", "kendall_low", "kendall_high"]).assign(
        title=lambda t: t["measure"].map(TITLES)
    )


def rivals(*rows):
    return pd.DataFrame(rows, columns=["measure", "difference", "low", "high"])


def test_a_clear_winner_is_said_to_win_over_the_rivals_that_it_beats():
    table = ranked(("a", 0.8, 0.7, 0.9), ("b", 0.6, 0.4, 0.7), ("c", 0.1, -0.2, 0.3))
    differences = rivals(("a", 0, 0, 0), ("b", -0.2, -0.4, 0.05), ("c", -0.7, -0.9, -0.5))
    text = verdicts.winner(table, differences, TITLES)
    assert text.startswith("**Alpha** is first with Kendall's tau 0.80 (95 % interval 0.70 to 0.90). ")
    assert (
        "ahead of 1 of 2 rivals beyond chance; from 1 it cannot be told apart, nearest Beta (difference -0.20, 95 % interval -0.40 to 0.05)"
        in text
    )
    assert "cannot be told apart" not in verdicts.winner(table, differences[differences["measure"] != "b"], TITLES)


def test_a_first_whose_interval_holds_0_is_no_winner():
    text = verdicts.winner(ranked(("a", 0.2, -0.1, 0.5), ("b", 0.1, -0.2, 0.3)), rivals(), TITLES)
    assert text.endswith("its interval does not lie above 0, so no measure can be said to tell the gap here.")
    unknown = verdicts.winner(ranked(("a", 0.2, np.nan, np.nan), ("b", 0.1, np.nan, np.nan)), rivals(), TITLES)
    assert "no interval: too few models" in unknown
    assert "Fewer than two measures" in verdicts.winner(ranked(("a", np.nan, np.nan, np.nan)), rivals(), TITLES)
    few = verdicts.winner(ranked(("a", 0.8, 0.7, 0.9), ("b", 0.1, 0, 1)), rivals(("b", -0.7, np.nan, np.nan)), TITLES)
    assert "its lead cannot be judged" in few


def test_the_ranking_counts_those_that_work_those_reversed_and_those_like_chance():
    text = verdicts.ranking_read(ranked(("a", 0.5, 0.2, 0.7), ("b", 0.0, -0.2, 0.2), ("c", -0.5, -0.7, -0.1)))
    assert text.startswith("Of 3 measures, 1 have an interval above 0")
    assert "(Alpha); 1 have one below 0" in text
    assert "(Gamma); 1 cannot be told from chance. Of so many intervals some 0 would lie above 0 by luck." in text
    assert "Too few" in verdicts.ranking_read(ranked(("a", 0.5, np.nan, np.nan)))


def test_values_that_are_missing_are_grouped_by_their_reason():
    scores = pd.DataFrame(
        {
            "model_id": ["m", "n", "m", "n"],
            "measure": ["iou", "iou", "images_scored", "images_scored"],
            "variant": "",
            "value": [0.5, np.nan, 9, 9],
            "seconds": [1.0, 3.0, 0, 0],
            "reason": ["", "no map", "", ""],
        }
    )
    missing = verdicts.not_computed(scores)
    assert missing.to_dict("records") == [{"measure": "iou", "variant": "", "reason": "no map", "models": 1}]
    assert verdicts.scores_computed(scores, columns()) == "**1 measure** (with variants 1) of 2 models: 2 values, of which 1 are undefined."
    assert verdicts.costs(scores)["iou"] == 2.0
    assert "iou" in MEASURES


def test_costs_name_the_cheapest_and_the_dearest():
    table = pd.DataFrame({"title": ["Alpha", "Beta"], "seconds": [0.01, 5.0]})
    assert verdicts.costs_read(table) == "From 0.01 s a model (Alpha) to 5 s (Beta), in the median."
    assert verdicts.costs_read(table.assign(seconds=np.nan)) == "No cost was recorded."


def test_methods_are_read_in_our_order_and_in_the_papers():
    table = pd.DataFrame(
        {
            "architecture": ["Total", "Total", "resnet18"],
            "threshold": 0.8,
            "measure": ["iou", "nuclear_norm", "iou"],
            "pearson_r": [-0.2, -0.5, -0.9],
            "ci_low": [-0.4, np.nan, -1],
            "ci_high": [0.1, np.nan, 0],
            "published_r": [-0.8, -0.4, -0.9],
        }
    )
    text = verdicts.methods_read(table, TITLES)
    assert text.startswith("Pooled r, most negative first: nuclear norm -0.50 (no interval: too few models); IoU -0.20 (95 % interval")
    assert text.endswith("The paper: IoU -0.80, nuclear norm -0.40.")
    assert "The paper" not in verdicts.methods_read(table.assign(published_r=np.nan), TITLES)
    assert verdicts.methods_read(table.assign(pearson_r=np.nan), TITLES) == "No method has a defined correlation."


def test_curves_say_how_often_the_better_model_has_the_lower_score():
    curves = pd.DataFrame({"perturbation": ["p", "p", "q", "q"], "model": ["small", "large"] * 2, "score": [0.1, 0.3, 0.4, 0.2]})
    text = verdicts.curves_read(curves, {"small": 0.05, "large": 0.4})
    assert "smaller gap (5.0 against 40.0 points)" in text
    assert "under 1 of 2 perturbations" in text
    assert "not two models" in verdicts.curves_read(curves[curves["model"] == "small"], {"small": 0.05})


def test_invariance_counts_where_the_gi_score_is_ahead():
    rows = [("rotation", "Gi-score", 0.5), ("rotation", "mean of the curve", 0.4), ("rotation", "accuracy under augmentation", 0.3)]
    rows += [
        ("colour jitter", "Gi-score", 0.1),
        ("colour jitter", "mean of the curve", 0.4),
        ("colour jitter", "accuracy under augmentation", 0.3),
    ]
    table = pd.DataFrame(rows, columns=["perturbation", "predictor", "kendall"])
    text = verdicts.invariance_read(table, schiff_published.invariance_scores())
    assert "under 1 of 2 perturbations" in text
    assert "In the paper it is ahead in 14 of 16 cases." in text
    assert "enough models" in verdicts.invariance_read(table.assign(kendall=np.nan), schiff_published.invariance_scores())


def test_the_published_averages_are_the_means_of_the_published_tasks():
    table = schiff_published.pgdl_scores().set_index("measure")
    means = table[list(schiff_published.TASKS)].mean(axis=1)
    np.testing.assert_allclose(means, table["published_average"], atol=0.01)  # both were rounded to two places


def test_measures_that_go_together_are_counted():
    table = pd.DataFrame([[1, 0.9, -0.9], [0.9, 1, np.nan], [-0.9, np.nan, 1]], index=list("abc"), columns=list("abc"))
    text = verdicts.alike_read(table, TITLES)
    assert text.startswith("Of 2 pairs of measures, 50.0 % order the models nearly alike")
    assert "the most opposed are Gamma and Alpha (-0.90)" in text
    assert verdicts.alike_read(table * np.nan, TITLES) == "No two measures can be compared."


def test_tasks_name_the_best_here_and_in_the_paper():
    table = pd.DataFrame({"measure": ["a", "b"], "average": [10.0, 20.0], "published_average": [5.0, 1.0]})
    assert verdicts.tasks_read(table, TITLES) == "Highest average here: Beta with 20.0 of 100; in the paper Alpha with 5.0."
    assert "no score" in verdicts.tasks_read(table.assign(average=np.nan), TITLES)


@pytest.mark.parametrize("column", ["source", "title", "family", "summary"])
def test_the_listing_of_measures_is_complete(column):
    assert columns()[column].str.len().gt(0).all()

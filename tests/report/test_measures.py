import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from helpers.measures.registry import MEASURES, columns
from helpers.report import claims, measures
from helpers.statistics.published import published_table

TITLES = {"a": "Alpha", "b": "Beta", "c": "Gamma", "iou": "IoU", "nuclear_norm": "nuclear norm"}


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
    missing = measures.not_computed(scores)
    assert missing.to_dict("records") == [{"measure": "iou", "variant": "", "reason": "no map", "models": 1}]
    assert measures.scores_computed(scores, columns()) == "**1 measure** (with variants 1) of 2 models: 2 values, of which 1 are undefined."
    assert measures.costs(scores)["iou"] == 2.0
    assert "iou" in MEASURES


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
    text = measures.say_methods(table, TITLES)
    assert text.startswith("Pooled r, most negative first: nuclear norm -0.50 (no interval: too few models); IoU -0.20 (95 % interval")
    assert text.endswith("The paper: IoU -0.80, nuclear norm -0.40.")
    assert "The paper" not in measures.say_methods(table.assign(published_r=np.nan), TITLES)
    assert measures.say_methods(table.assign(pearson_r=np.nan), TITLES) == "No method has a defined correlation."


def test_curves_say_how_often_the_better_model_has_the_lower_score():
    curves = pd.DataFrame({"perturbation": ["p", "p", "q", "q"], "model": ["small", "large"] * 2, "score": [0.1, 0.3, 0.4, 0.2]})
    text = measures.say_curves(curves, {"small": 0.05, "large": 0.4})
    assert "smaller gap (5.0 against 40.0 points)" in text
    assert "under 1 of 2 perturbations" in text
    assert "not two models" in measures.say_curves(curves[curves["model"] == "small"], {"small": 0.05})


def test_invariance_counts_where_the_gi_score_is_ahead():
    rows = [("rotation", "Gi-score", -0.5), ("rotation", "mean of the curve", 0.4), ("rotation", "accuracy under augmentation", 0.3)]
    rows += [
        ("colour jitter", "Gi-score", -0.1),
        ("colour jitter", "mean of the curve", 0.4),
        ("colour jitter", "accuracy under augmentation", 0.3),
    ]
    table = pd.DataFrame(rows, columns=["perturbation", "predictor", "kendall"])
    table = table.assign(direction=np.where(table["predictor"] == "Gi-score", -1, 1))
    text = measures.say_invariance(table, published_table("schiff2021_invariance"))
    assert "Gi-score -0.30, mean of the curve 0.40, accuracy under augmentation 0.30" in text
    assert "as promised under 1 of 2 perturbations" in text
    assert "in the paper under 14 of 16." in text
    assert "enough models" in measures.say_invariance(table.assign(kendall=np.nan), published_table("schiff2021_invariance"))


def test_the_published_averages_are_the_means_of_the_published_tasks():
    table = published_table("schiff2021_pgdl").set_index("measure")
    means = table.drop(columns="published_average").select_dtypes("number").mean(axis=1)
    np.testing.assert_allclose(means, table["published_average"], atol=0.01)  # both were rounded to two places


def test_measures_that_go_together_are_counted():
    table = pd.DataFrame([[1, 0.9, -0.9], [0.9, 1, np.nan], [-0.9, np.nan, 1]], index=list("abc"), columns=list("abc"))
    text = measures.say_alike(table, TITLES)
    assert text.startswith("Of 2 pairs of measures, 50.0 % order the models nearly alike")
    assert "the most opposed are Gamma and Alpha (-0.90)" in text
    assert measures.say_alike(table * np.nan, TITLES) == "No two measures can be compared."


def test_tasks_name_the_best_here_and_in_the_paper():
    table = pd.DataFrame({"measure": ["a", "b"], "average": [10.0, 20.0], "average_p_adjusted": 0.02, "published_average": [5.0, 1.0]})
    found = measures.say_tasks(table, TITLES)
    assert found == "Highest average here: Beta with 20.0 of 100 (adjusted p 0.02); in the paper Alpha with 5.0."
    assert "no score" in measures.say_tasks(table.assign(average=np.nan), TITLES)


@pytest.mark.parametrize("column", ["source", "title", "family", "summary"])
def test_the_listing_of_measures_is_complete(column):
    assert columns()[column].str.len().gt(0).all()


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts(figure):
    return [text.get_text() for text in figure.findobj(plt.Text) if text.get_text()]


def test_each_method_has_a_panel_with_our_value_and_the_papers():
    table = pd.DataFrame(
        {
            "architecture": ["resnet18", "resnet34", "Total"] * 2,
            "threshold": 0.8,
            "measure": ["iou"] * 3 + ["nuclear_norm"] * 3,
            "n": 10,
            "pearson_r": [-0.5, -0.45, -0.4, -0.2, -0.3, np.nan],
            "ci_low": -0.6,
            "ci_high": -0.1,
            "published_r": [-0.89, -0.85, -0.82, -0.2, -0.3, -0.4],
        }
    )
    lower = table.assign(threshold=0.5, pearson_r=0.3, published_r=np.nan)
    figure = measures.methods_figure(pd.concat([table, lower]), {"iou": "IoU", "nuclear_norm": "nuclear norm", "absent": "none"})
    assert [ax.get_title() for ax in figure.axes] == ["IoU", "nuclear norm"]
    ours, theirs = (line.get_xdata().tolist() for line in figure.axes[0].lines[:2])
    assert ours == [-0.5, -0.45, -0.4]
    assert theirs == [-0.89, -0.85, -0.82]
    assert "Pearson r with the gap, models above 80% training accuracy" in texts(figure)  # the lowest at which both stand
    alone = measures.methods_figure(table[table["architecture"] != "resnet34"], {"iou": "IoU"})
    assert alone.axes[0].lines[0].get_xdata().tolist() == [-0.5]  # the total of one architecture is that architecture
    assert "above 50%" in measures.methods_figure(lower, {"iou": "IoU"}).get_supxlabel()
    assert "resnet18\nn = 10" in texts(figure)
    assert "enough models" in texts(measures.methods_figure(table.assign(pearson_r=np.nan), {"iou": "IoU"}))[0]


def test_two_equals_are_told_apart_by_their_gi_scores():
    curves = pd.DataFrame({"model": ["one", "one", "two", "two"], "alpha": [0, 1, 0, 1], "accuracy": [1, 0.5, 1, 0.51]})
    curves = curves.assign(gap=[0.3, 0.3, 0.1, 0.1])
    assert measures.say_alike_but_for_gi(curves.assign(score=[0.2, 0.2, 0.1, 0.1])) == (
        "Two models that are accurate to 51.0 % and 50.0 % of the halfway mixtures (1.0 points apart) have Gi-scores 0.100 and 0.200, and "
        "gaps of 10.0 and 30.0 points: the gap is smaller where Gi is lower, as it should be. They were chosen for the difference, and "
        "prove nothing."
    )
    assert "not two models" in measures.say_alike_but_for_gi(curves.iloc[:2].assign(score=0.2))


def curve(perturbation, model, score):
    alphas = np.linspace(0, 1, 5)
    return pd.DataFrame({"perturbation": perturbation, "model": model, "alpha": alphas, "accuracy": 1 - alphas * score, "score": score})


def test_every_perturbation_has_a_panel_and_every_model_a_line():
    curves = pd.concat([curve(p, m, s) for p in "pqrst" for m, s in (("good", 0.1), ("bad", 0.5))], ignore_index=True)
    figure = measures.response_curves_figure(curves)
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == list("pqrst")
    assert [line.get_label() for line in shown[0].lines] == ["Gi 0.10", "Gi 0.50"]
    assert shown[0].lines[1].get_ydata()[-1] == pytest.approx(0.5)
    assert "No model has a response curve." in texts(measures.response_curves_figure(curves.iloc[:0]))


def test_the_heat_map_leaves_out_what_is_defined_nowhere():
    table = pd.DataFrame([[1, 0.5, np.nan], [0.5, 1, np.nan], [np.nan] * 3], index=list("abc"), columns=list("abc"))
    figure = measures.measure_heatmap(table, {"a": "Alpha", "b": "Beta", "c": "Gamma"})
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["Alpha", "Beta"]
    assert "Fewer than two" in texts(measures.measure_heatmap(table * np.nan, {}))[0]


def test_predictors_stand_beside_each_other_for_each_perturbation():
    rows = [(p, m, t) for p, t in (("rotation", 0.3), ("colour jitter", 0.5)) for m in ("one", "two")]
    table = pd.DataFrame(rows, columns=["perturbation", "predictor", "kendall"]).assign(low=0.1, high=0.6)
    figure = measures.invariance_figure(table, ["one", "two"])
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["rotation", "colour jitter"]
    assert ax.lines[0].get_ydata().tolist() == [0.3, 0.5]
    assert ax.lines[0].get_xdata()[0] < 0 < ax.lines[1].get_xdata()[0]
    assert "enough models" in texts(measures.invariance_figure(table.assign(kendall=np.nan), ["one"]))[0]


def test_the_spread_of_flatness_over_draws_stands_beside_that_between_models():
    drawn = pd.DataFrame({"measure": ["pacbayes_flatness", "other"], "n": [4, 4], "mean": [2.0, 1.0], "spread": [0.1, 1.0]})
    models = pd.DataFrame({"pacbayes_flatness": [1.0, 2.0, 3.0, np.inf, np.nan]})
    told = claims.say_spread_over_seeds(drawn, models, {"pacbayes_flatness": "PAC-Bayes flatness"})
    spreads = "PAC-Bayes flatness spreads by 5.0 % of its mean over 4 seeds of its noise, between models by 50.0 %"
    assert told == f"With other draws, for one model: {spreads}."
    for nothing in (drawn.assign(n=1), drawn[1:], drawn[:0]):
        assert "is not known" in claims.say_spread_over_seeds(nothing, models, {})

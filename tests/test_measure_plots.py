import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt

from helpers import measure_plots


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def texts(figure):
    return [text.get_text() for text in figure.findobj(plt.Text) if text.get_text()]


def ranking_table(rows=5):
    rng = np.random.default_rng(0)
    tau = np.sort(rng.uniform(-0.5, 0.8, rows))[::-1]
    families = ["localization", "prediction", "norms", "flatness", "perturbation"]
    return pd.DataFrame(
        {
            "title": [f"measure {number}" for number in range(rows)],
            "family": [families[number % 5] for number in range(rows)],
            "kendall": tau,
            "kendall_low": tau - 0.2,
            "kendall_high": tau + 0.1,
            "seconds": 10.0 ** rng.uniform(-2, 2, rows),
        }
    )


def test_the_ranking_has_the_strongest_on_top_and_every_value_at_its_place():
    table = ranking_table()
    ax, cost = measure_plots.ranking(table).axes
    assert [label.get_text() for label in ax.get_yticklabels()] == table["title"].tolist()[::-1]
    drawn = {float(line.get_ydata()[0]): float(line.get_xdata()[0]) for line in ax.lines if line.get_label() in set(table["family"])}
    assert [drawn[row] for row in range(5)] == pytest.approx(table["kendall"].tolist()[::-1])
    assert cost.get_xscale() == "log"
    assert len(cost.lines) == 5


def test_what_has_no_rank_correlation_is_not_drawn():
    table = ranking_table()
    table.loc[2, "kendall"] = np.nan
    assert len(measure_plots.ranking(table).axes[0].get_yticklabels()) == 4
    assert "No measure has a defined rank correlation" in texts(measure_plots.ranking(table.assign(kendall=np.nan)))[0]


def test_each_method_has_a_panel_with_our_value_and_the_papers():
    table = pd.DataFrame(
        {
            "architecture": ["resnet18", "Total"] * 2,
            "measure": ["iou", "iou", "nuclear_norm", "nuclear_norm"],
            "n": 10,
            "pearson_r": [-0.5, -0.4, -0.2, np.nan],
            "ci_low": -0.6,
            "ci_high": -0.1,
            "published_r": [-0.89, -0.82, -0.2, -0.4],
        }
    )
    figure = measure_plots.beside_published(table, {"iou": "IoU", "nuclear_norm": "nuclear norm", "absent": "none"})
    assert [ax.get_title() for ax in figure.axes] == ["IoU", "nuclear norm"]
    ours, theirs = (line.get_xdata().tolist() for line in figure.axes[0].lines[:2])
    assert ours == [-0.5, -0.4]
    assert theirs == [-0.89, -0.82]
    assert "resnet18\nn = 10" in texts(figure)
    assert "enough models" in texts(measure_plots.beside_published(table.assign(pearson_r=np.nan), {"iou": "IoU"}))[0]


def curve(perturbation, model, score):
    alphas = np.linspace(0, 1, 5)
    return pd.DataFrame({"perturbation": perturbation, "model": model, "alpha": alphas, "accuracy": 1 - alphas * score, "score": score})


def test_every_perturbation_has_a_panel_and_every_model_a_line():
    curves = pd.concat([curve(p, m, s) for p in "pqrst" for m, s in (("good", 0.1), ("bad", 0.5))], ignore_index=True)
    figure = measure_plots.response_curves(curves)
    shown = [ax for ax in figure.axes if ax.axison]
    assert [ax.get_title() for ax in shown] == list("pqrst")
    assert [line.get_label() for line in shown[0].lines] == ["Gi 0.10", "Gi 0.50"]
    assert shown[0].lines[1].get_ydata()[-1] == pytest.approx(0.5)
    assert "No model has a response curve." in texts(measure_plots.response_curves(curves.iloc[:0]))


def test_the_heat_map_leaves_out_what_is_defined_nowhere():
    table = pd.DataFrame([[1, 0.5, np.nan], [0.5, 1, np.nan], [np.nan] * 3], index=list("abc"), columns=list("abc"))
    figure = measure_plots.measure_heatmap(table, {"a": "Alpha", "b": "Beta", "c": "Gamma"})
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["Alpha", "Beta"]
    assert "Fewer than two" in texts(measure_plots.measure_heatmap(table * np.nan, {}))[0]


def test_predictors_stand_beside_each_other_for_each_perturbation():
    rows = [(p, m, t) for p, t in (("rotation", 0.3), ("colour jitter", 0.5)) for m in ("one", "two")]
    table = pd.DataFrame(rows, columns=["perturbation", "predictor", "kendall"]).assign(low=0.1, high=0.6)
    figure = measure_plots.invariance(table, ["one", "two"])
    ax = figure.axes[0]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["rotation", "colour jitter"]
    assert ax.lines[0].get_ydata().tolist() == [0.3, 0.5]
    assert ax.lines[0].get_xdata()[0] < 0 < ax.lines[1].get_xdata()[0]
    assert "enough models" in texts(measure_plots.invariance(table.assign(kendall=np.nan), ["one"]))[0]

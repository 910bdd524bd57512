"""What predicts the gap: a measure against the gap, by hyperparameter, with fit, correlations and intervals."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from ipywidgets import Dropdown, FloatSlider, SelectionSlider
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from helpers.report import cams, style
from helpers.report.explore.panel import Backdrop, Panel, View, control_layout, html_table, number
from helpers.report.style import count
from helpers.statistics.resampling import correlated

ANY = "any"  # level of a filter that keeps every model


_MARKERS = ("o", "s", "^", "D", "v", "P")


def kept_models(models: pd.DataFrame, above: float, levels: Mapping[str, str]) -> pd.DataFrame:
    """Take the models above a training accuracy, with the asked level of each hyperparameter (as text, or ``ANY``)."""
    kept = models["train_accuracy"] > above
    for axis, level in levels.items():
        if level != ANY:
            kept &= models[axis].astype(str) == level
    return models[kept]


def group_correlation(models: pd.DataFrame, measure: str, resamples: int, seed: int) -> dict[str, float]:
    """Correlate a measure with the gap, as ``tables.correlation_table`` does for one group of models.

    Returns:
        n, dropped (not finite), cells, pearson_r, ci_low, ci_high, kendall_tau, kendall_low, kendall_high; NaN where undefined.
    """
    (found,) = correlated(models, [measure], tau=True, draws=resamples, seed=seed).drop(columns="measure").to_dict("records")
    return found


def gap_explorer(
    models: pd.DataFrame, titles: Mapping[str, str], axes: Sequence[str], look: Panel | None, *, resamples: int, seed: int
) -> Panel:
    """Make the explorer; see ``explore.what_predicts``."""
    models = models.dropna(subset="gap")  # in their order, on which the resampling depends
    titles = {name: title for name, title in titles.items() if name in models}
    if not len(models) or not titles:
        raise ValueError(f"{len(models)} models with a gap and {len(titles)} of their measures: there is nothing to show")

    @lru_cache(256)
    def numbers(measure: str, above: float, levels: tuple[tuple[str, str], ...]) -> dict[str, float]:
        return group_correlation(kept_models(models, above, dict(levels)), measure, resamples, seed)

    @lru_cache(16)
    def backdrop(measure: str, hue: str, above: float, levels: tuple[tuple[str, str], ...]) -> tuple[Backdrop, Line2D]:
        with style.style():
            figure, ring = _scatter(kept_models(models, above, dict(levels)), measure, titles[measure], hue)
            return Backdrop(figure, [ring]), ring

    def draw(measure: str, hue: str, above: float, picked: str, **levels: str) -> View:
        asked = (above, tuple(levels.items()))
        found, (figure, ring) = numbers(measure, *asked), backdrop(measure, hue, *asked)
        model, kept = models[models["model_id"] == picked], kept_models(models, above, levels)
        inside = picked in set(kept["model_id"])
        ring.set_data(*(model[[measure, "gap"]].to_numpy(dtype=float).T * [[1], [100]]) if inside else ([], []))
        return View(figure.png(), _reading(found) + _of_one(model.iloc[0], titles[measure], measure, inside), found)

    panel = Panel("What predicts the gap?", _controls(models, titles, axes), draw)
    if look is not None:
        _connect(panel, look)
    return panel


def _controls(models: pd.DataFrame, titles: Mapping[str, str], axes: Sequence[str]) -> dict[str, Any]:
    usual, narrow = control_layout("30rem"), control_layout("18rem")
    by_gap = models.sort_values("gap", kind="stable")["model_id"]
    ranks = [(f"{rank} of {len(by_gap)} by gap", name) for rank, name in enumerate(by_gap, 1)]
    hues = [*axes] or ["architecture"]
    controls = {
        "measure": Dropdown(options=[(title, name) for name, title in titles.items()], description="measure", **usual),
        "hue": Dropdown(options=[(name.replace("_", " "), name) for name in hues], description="colour by", **narrow),
        "above": FloatSlider(
            value=0, min=0, max=0.99, step=0.01, readout_format=".0%", description="train accuracy above", **control_layout()
        ),
        "picked": SelectionSlider(options=ranks, description="picked model", **control_layout("36rem")),
    }
    for axis in axes:
        levels = [str(level) for level in style.levels_in_order(models[axis])]
        controls[axis] = Dropdown(options=[ANY, *levels], description=axis.replace("_", " "), **narrow)
    return controls


def _connect(panel: Panel, look: Panel) -> None:
    """Let the model that is picked here be the upper one there, and show that explorer below this one."""
    offered = {value for _, value in look.controls["left"].options}

    def open_model(change: Mapping[str, Any]) -> None:
        if change["new"] in offered:
            look.controls["left"].value = change["new"]

    panel.controls["picked"].observe(open_model, "value")
    panel.box.children += (look.box,)


def _scatter(kept: pd.DataFrame, measure: str, title: str, hue: str) -> tuple[Figure, Line2D]:
    """Draw the models that have the measure, the least-squares line with its band, and a ring to be put around one of them."""
    figure = Figure(figsize=(8.6, 4.2))
    ax = figure.add_axes((0.1, 0.14, 0.6, 0.8))  # fixed, because fitting the layout costs a second drawing
    finite = np.isfinite(kept[[measure, "gap"]].astype(float)).all(axis=1)
    shown = kept[finite]
    levels = style.levels_in_order(shown[hue])
    colours = style.colours(levels)
    for index, level in enumerate(levels):
        points = shown[shown[hue] == level]
        ax.plot(points[measure], 100 * points["gap"], _MARKERS[index % 6], color=colours[level], alpha=0.75, label=str(level))
    style.fit_band(ax, shown[measure].to_numpy(dtype=float), 100 * shown["gap"].to_numpy())
    (ring,) = ax.plot([], [], "o", markersize=15, markeredgewidth=2, markeredgecolor="black", fillstyle="none")
    _label(ax, title, hue)
    if not len(shown):
        ax.text(0.5, 0.5, "no model has this measure and passes the filters", ha="center", transform=ax.transAxes)
    return figure, ring


def _label(ax: Axes, title: str, hue: str) -> None:
    ax.set(xlabel=title, ylabel="generalization gap (percentage points)")
    ax.xaxis.set_major_locator(MaxNLocator(5))
    handles, labels = ax.get_legend_handles_labels()
    if labels:
        ax.legend(handles, labels, title=hue.replace("_", " "), loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize="small")


def _reading(found: Mapping[str, float]) -> str:
    def with_interval(value: str, low: str, high: str) -> str:
        if not np.isfinite(found[low]):
            return f"{number(found[value])} (no interval, too few hyperparameter cells)"
        return f"{number(found[value])} (95 % interval {number(found[low])} to {number(found[high])})"

    r, tau = with_interval("pearson_r", "ci_low", "ci_high"), with_interval("kendall_tau", "kendall_low", "kendall_high")
    rest = f", {count(found['dropped'], 'model')} without a value left out" if found["dropped"] else ""
    cells = count(found["cells"], "hyperparameter cell")
    return f"<p>Pearson r = <b>{r}</b>; Kendall τ = <b>{tau}</b>; {count(found['n'], 'model')} from {cells}{rest}.</p>"


def _of_one(model: pd.Series, title: str, measure: str, kept: bool) -> str:
    row = {"picked": model["model_id"], "is": cams.model_title(model), title: number(float(model[measure]), 4)}
    return html_table([row]) + ("" if kept else "<p>The filters leave the picked model out.</p>")

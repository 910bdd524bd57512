"""What predicts the gap: any measure against any target; a click on a point opens that model, up to four beside each other."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from ipywidgets import Checkbox, Dropdown, FloatSlider, Widget
from numpy.typing import ArrayLike
from plotly.subplots import make_subplots

from helpers.report import cams
from helpers.report.explore.look import MODEL_COLOURS, MOST_MODELS, at_most
from helpers.report.explore.panel import Panel, Plot, View, choice_of_several, control_layout, html_table, number
from helpers.report.scatter import IN_PERCENT, measure_scatter, shown_values
from helpers.report.style import count, levels_in_order
from helpers.scoring.looks import Looks
from helpers.statistics.resampling import correlated, drawn_with_images, of_models

_CURVES = {"train_loss": "training loss (nats)", "train_accuracy": "training accuracy (%)", "monitor_accuracy": "held-out accuracy (%)"}


def kept_models(models: pd.DataFrame, above: float, levels: Mapping[str, Sequence[str]]) -> pd.Series:
    """Which models are above a training accuracy and have one of the asked levels (as text) of each hyperparameter; no level keeps all."""
    kept = models["train_accuracy"] > above
    for axis, asked in levels.items():
        if asked:
            kept &= models[axis].astype(str).isin(asked)
    return kept


def with_model(chosen: Sequence[str], clicked: str) -> tuple[str, ...]:
    """The chosen models after a click on one: it joins them, and the first goes where it is one too many; a chosen one leaves them."""
    rest = tuple(name for name in chosen if name != clicked)
    return rest if clicked in chosen else (*rest, clicked)[-MOST_MODELS:]


def gap_explorer(
    models: pd.DataFrame,
    titles: Mapping[str, str],
    axes: Sequence[str],
    looks: Looks | None,
    histories: pd.DataFrame | None,
    look: Panel | None,
    *,
    images: Mapping[str, ArrayLike] | None = None,
    resamples: int,
    seed: int,
) -> Panel:
    """The explorer; see ``explore.what_predicts``."""
    has = models["gap"].notna().to_numpy()
    models = models[has].reset_index(drop=True)  # in their order, on which the resampling depends
    images = {name: np.asarray(values)[has] for name, values in (images or {}).items()}
    titles = {name: title for name, title in titles.items() if name in models}
    shifted = {name: f"test accuracy on {name.partition('@')[2]} (fraction)" for name in models if name.startswith("test_accuracy@")}
    if not len(models) or not titles:
        raise ValueError(f"{len(models)} models with a gap and {len(titles)} of their measures: there is nothing to show")
    points, details = Plot(), Plot()
    rows = models.set_index("model_id", drop=False)

    @lru_cache(8)
    def drawn(*names: str) -> dict[str, np.ndarray]:
        return drawn_with_images(models, names, images, resamples, seed)

    @lru_cache(256)
    def numbers(measure: str, target: str, above: float, levels: tuple) -> dict[str, Any]:
        kept, own = kept_models(models, above, dict(levels)), drawn(measure, target)
        draws = {"draws": resamples, "tau_draws": resamples, "seed": seed, "drawn": of_models(own, kept)}
        found = correlated(models[kept], [measure], target=target, **draws).drop(columns="measure").iloc[0].to_dict()
        return found | {"units": "cells and images" if own else "cells"}

    def draw(
        measure: str, target: str, colour: str, symbol: str, logarithmic: bool, above: float, chosen: Sequence[str], **levels: Sequence[str]
    ) -> View:
        kept, marks = kept_models(models, above, levels), {"colour": colour, "symbol": symbol, "logarithmic": "x" if logarithmic else ""}
        figure = measure_scatter(models, measure, target, titles | shifted, axes, kept=kept, **marks)
        opened = rows.loc[list(at_most(chosen))]
        points.draw(_with_marks(figure, opened, measure, target))
        details.draw(details_figure(opened, histories, looks))
        found = numbers(measure, target, above, tuple(levels.items()))
        table = _opened_table(opened, axes, {measure: titles[measure]})
        return View(_reading(found) + table, found | {"kept": int(kept.sum())})

    below = [details, look.box] if look is not None else [details]
    panel = Panel("What predicts the gap?", _controls(models, titles, shifted, axes), draw, [points], below)

    def clicked(change: Mapping[str, Any]) -> None:
        if change["new"].get("id") in rows.index:
            panel.controls["chosen"].value = with_model(panel.controls["chosen"].value, change["new"]["id"])

    points.observe(clicked, "clicked")
    if look is not None:
        _connect(panel, look)
    return panel


def _controls(models: pd.DataFrame, titles: Mapping[str, str], shifted: Mapping[str, str], axes: Sequence[str]) -> dict[str, Widget]:
    usual = control_layout()
    targets = [(title, name) for name, title in IN_PERCENT.items() if name in models]
    targets += [(title, name) for name, title in {**shifted, **titles}.items() if name not in IN_PERCENT]
    named = [(name.replace("_", " "), name) for name in axes]
    by_gap = models.sort_values("gap", kind="stable")
    opened = [(f"{cams.model_title(model)} · {model['model_id']}", model["model_id"]) for _, model in by_gap.iterrows()]
    controls = {
        "measure": Dropdown(options=[(title, name) for name, title in titles.items()], description="measure", **control_layout("30rem")),
        "target": Dropdown(options=targets, description="target", **control_layout("26rem")),
        "colour": Dropdown(options=[*named, ("nothing", "")], description="colour by", **usual),
        "symbol": Dropdown(options=[("nothing", ""), *named], description="symbol by", **usual),
        "logarithmic": Checkbox(description="logarithmic measure", indent=False, **control_layout("14rem")),
        "above": FloatSlider(max=0.99, step=0.01, readout_format=".0%", description="train accuracy above", **control_layout("26rem")),
        "chosen": choice_of_several(opened, f"opened (click, up to {MOST_MODELS})", rows=4, width="48rem"),
    }
    for axis in axes:
        levels = [str(level) for level in levels_in_order(models[axis])]
        controls[axis] = choice_of_several(levels, axis.replace("_", " "), rows=4)
    return controls


def _connect(panel: Panel, look: Panel) -> None:
    """Let the models that are opened here be those that are looked at there, as far as they are offered."""
    offered = {value for _, value in look.controls["models"].options}

    def open_models(change: Mapping[str, Any]) -> None:
        if there := [name for name in at_most(change["new"]) if name in offered]:
            look.controls["models"].value = tuple(there)

    panel.controls["chosen"].observe(open_models, "value")


def _with_marks(figure: go.Figure, opened: pd.DataFrame, measure: str, target: str) -> go.Figure:
    """Mark the opened models in the colours that their maps and curves have."""
    for place, (name, _) in enumerate(opened.iterrows()):
        x, y = (shown_values(opened.loc[[name]], column) for column in (measure, target))
        marker = {"size": 20, "symbol": "circle-open", "color": MODEL_COLOURS[place], "line": {"width": 3}}
        figure.add_trace(
            go.Scatter(x=x, y=y, mode="markers", marker=marker, customdata=[name], name=f"opened {place + 1}", hoverinfo="skip")
        )
    return figure.update_layout(height=440, uirevision=f"{measure} {target}", clickmode="event")


def details_figure(opened: pd.DataFrame, histories: pd.DataFrame | None, looks: Looks | None) -> go.Figure:
    """Training curves of some models in one colour each, and the confusion of each on the test images.

    Args:
        opened: up to four rows of the catalogue, by their id.
        histories: run_id, epoch, and what was measured in each; no curves when None.
        looks: of the study, with the confusion of its models; none when None, or where it does not hold a model.
    """
    confusions = {name: looks.of_model(name).confusion for name in opened.index if name in looks.model_ids} if looks else {}
    heads = [*_CURVES.values(), "", *(f"{place + 1}: true class by predicted (%)" for place in range(len(opened)))]
    figure = make_subplots(2, 4, subplot_titles=heads, vertical_spacing=0.16, horizontal_spacing=0.06)
    figure.update_layout(template="plotly_white", margin={"l": 40, "r": 10, "t": 30, "b": 30}, height=520 if len(opened) else 60)
    if not len(opened):
        text = {"text": "A click on a point opens its model: hyperparameters, curves, confusion, maps.", "showarrow": False, "x": 0}
        return go.Figure(layout=figure.layout).update_layout(annotations=[text], xaxis_visible=False, yaxis_visible=False)
    for place, (name, model) in enumerate(opened.iterrows()):
        mark = {"line": {"color": MODEL_COLOURS[place]}, "name": f"{place + 1}: {cams.model_title(model)}", "legendgroup": name}
        run = histories[histories["run_id"] == model["run_id"]] if histories is not None else pd.DataFrame({"epoch": []})
        for column, metric in enumerate(_CURVES):
            if metric in run:
                values = run[metric] * (100 if metric.endswith("accuracy") else 1)
                figure.add_trace(go.Scatter(x=run["epoch"], y=values, mode="lines+markers", showlegend=column == 0, **mark), 1, column + 1)
        if name in confusions:
            figure.add_trace(_heatmap(confusions[name], looks.class_names), 2, place + 1)
            figure.update_yaxes(autorange="reversed", showticklabels=False, row=2, col=place + 1)
            figure.update_xaxes(showticklabels=False, row=2, col=place + 1)
    return figure.update_layout(legend={"x": 0.78, "y": 1}, font_size=11).update_annotations(font_size=12)


def _heatmap(matrix: np.ndarray, names: Sequence[str]) -> go.Heatmap:
    shares = 100 * matrix / np.maximum(1, matrix.sum(1, keepdims=True))
    said = "true %{y}<br>predicted %{x}<br>%{z:.0f} %<extra></extra>"
    labels = [escape(name) for name in names]
    return go.Heatmap(z=shares, x=labels, y=labels, zmin=0, zmax=100, colorscale="Blues", showscale=False, hovertemplate=said)


def _reading(found: Mapping[str, float]) -> str:
    def with_interval(value: str, low: str, high: str) -> str:
        if not np.isfinite(found[low]):
            return f"{number(found[value])} (no interval, too few hyperparameter cells)"
        return f"{number(found[value])} (95 % interval over {found['units']} {number(found[low])} to {number(found[high])})"

    r, tau = with_interval("pearson_r", "ci_low", "ci_high"), with_interval("kendall_tau", "kendall_low", "kendall_high")
    rest = f", {count(int(found['dropped']), 'model')} without a value left out" if found["dropped"] else ""
    cells = count(int(found["cells"]), "hyperparameter cell")
    return f"<p>Pearson r = <b>{r}</b>; Kendall τ = <b>{tau}</b>; {count(int(found['n']), 'model')} from {cells}{rest}.</p>"


def _opened_table(opened: pd.DataFrame, axes: Sequence[str], measures: Mapping[str, str]) -> str:
    """Hyperparameters, accuracies and measure of the opened models, a column each."""
    if not len(opened):
        return ""
    columns = {name: opened[name].map(str) for name in (*axes, "snapshot", "epoch", "stop_reason") if name in opened}
    columns |= {title: shown_values(opened, name).map(number) for name, title in {**IN_PERCENT, **measures}.items() if name in opened}
    columns["model"] = opened.index
    numbered = [str(place + 1) for place in range(len(opened))]
    return html_table([{"": name.replace("_", " ")} | dict(zip(numbered, values, strict=True)) for name, values in columns.items()])

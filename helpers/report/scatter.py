"""A measure against a target as a plotly figure: one point per model, coloured and shaped by hyperparameters."""

from collections.abc import Mapping, Sequence
from html import escape

import matplotlib.colors
import numpy as np
import pandas as pd
import plotly.graph_objects as go

from helpers.report import style

SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross", "x", "star")
# What is a fraction in the tables and is read in percent or percentage points.
IN_PERCENT = {
    "gap": "generalization gap (points)",
    "train_accuracy": "training accuracy (%)",
    "test_accuracy": "test accuracy (%)",
}


def level_marks(models: pd.DataFrame, hyperparameter: str) -> dict[str, tuple[str, str]]:
    """Colour (hex) and plotly symbol of each level of a hyperparameter, by the levels of all models given.

    Give all models of a study, not the filtered ones: then a level keeps its mark whatever is left out. Without a hyperparameter ("")
    there is one level, "", for all.
    """
    if not hyperparameter:
        return {"": ("#0173b2", SYMBOLS[0])}
    levels = [str(level) for level in style.levels_in_order(models[hyperparameter])]
    colours = style.colours(levels)
    return {level: (matplotlib.colors.to_hex(colours[level]), SYMBOLS[place % len(SYMBOLS)]) for place, level in enumerate(levels)}


def shown_values(models: pd.DataFrame, column: str) -> pd.Series:
    """Values of a column as they are drawn: accuracies and the gap times 100, all else as it is; NaN where it is not finite."""
    values = models[column].astype(float).replace([np.inf, -np.inf], np.nan)
    return 100 * values if column in IN_PERCENT else values


def hover_texts(models: pd.DataFrame, hyperparameters: Sequence[str]) -> list[str]:
    """What a reader sees of each model under the mouse: its hyperparameters, accuracies and gap, its id last; escaped."""
    shown = {name: shown_values(models, name) for name in IN_PERCENT if name in models}
    texts = []
    for row in models.index:
        lines = [f"{name.replace('_', ' ')}: {models.at[row, name]}" for name in hyperparameters]
        lines += [f"{IN_PERCENT[name]}: {values[row]:.1f}" for name, values in shown.items()]
        texts.append("<br>".join(escape(line) for line in [*lines, str(models.at[row, "model_id"])]))
    return texts


def measure_scatter(
    models: pd.DataFrame,
    x: str,
    y: str,
    titles: Mapping[str, str],
    hyperparameters: Sequence[str],
    *,
    colour: str = "",
    symbol: str = "",
    kept: Sequence[bool] | None = None,
    logarithmic: str = "",
) -> go.Figure:
    """A plotly figure of one column against another, with a trace for each colour and symbol that occurs.

    Args:
        models: a row per model: model_id, the two columns, the hyperparameters. All models of the study, because their levels decide
            which colour and symbol a level has.
        x: column to the right; accuracies and the gap are shown in percent and points.
        y: column upwards.
        titles: of measures, by column.
        hyperparameters: told under the mouse.
        colour: hyperparameter by whose level a point is coloured; "" for one colour.
        symbol: hyperparameter by whose level its symbol is chosen; "" for one symbol.
        kept: (models,) which are drawn; all when None. A model without a finite value of both columns is not drawn.
        logarithmic: axes that are logarithmic: "", "x", "y" or "xy".

    Returns:
        Traces whose ``customdata`` are the ids of the models, so that a click or a selection knows which they are.
    """
    right, up, texts = shown_values(models, x), shown_values(models, y), pd.Series(hover_texts(models, hyperparameters), models.index)
    drawn = right.notna() & up.notna() & (True if kept is None else np.asarray(kept, dtype=bool))
    figure = go.Figure()
    for level, (hue, _) in level_marks(models, colour).items():
        for form, (_, mark) in level_marks(models, symbol).items():
            own = drawn & (models[colour].astype(str) == level if colour else True)
            own &= models[symbol].astype(str) == form if symbol else True
            if not own.any():
                continue
            name = " · ".join(dict.fromkeys(part for part in (level, form) if part)) or "models"
            marker = {"color": hue, "symbol": mark, "size": 10, "opacity": 0.8}
            hover = {"text": texts[own], "hovertemplate": "%{text}<br>x %{x:.4g}, y %{y:.4g}<extra></extra>"}
            points = {"x": right[own], "y": up[own], "customdata": models.loc[own, "model_id"]}
            figure.add_trace(go.Scatter(mode="markers", name=escape(name), marker=marker, **points, **hover))
    figure.update_layout(template="plotly_white", margin={"l": 60, "r": 20, "t": 20, "b": 50}, legend={"itemsizing": "constant"})
    for axis, column in (("x", x), ("y", y)):
        kind = "log" if axis in logarithmic else "linear"
        figure.update_layout({f"{axis}axis": {"title": {"text": axis_title(column, titles)}, "type": kind}})
    return figure


def axis_title(column: str, titles: Mapping[str, str]) -> str:
    """Title of an axis: with its unit for what is a fraction in the tables, else the title of the measure; escaped."""
    return IN_PERCENT.get(column) or escape(titles.get(column, column.replace("_", " ")))

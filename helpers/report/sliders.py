"""Sliders and dropdowns over the networks of a study, in JupyterLab alone."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from helpers.report.style import interactive
from helpers.report.tables import PERCENT, in_shown_units


def scatter_with_menus(
    networks: pd.DataFrame,
    columns: Mapping[str, str],
    colours: Mapping[str, str],
    *,
    x: str,
) -> Any:
    """Scatter plot with menus for axes and colour, and a slider that leaves out.

    Args:
        networks: a row per network, with train_accuracy; the slider leaves out networks
            below a training accuracy. Fractions are shown in percent or points.
        columns: columns that can stand on an axis, with their labels; the first one is
            the vertical axis at first.
        colours: columns that can give the colour, with their labels.
        x: column on the horizontal axis at first.

    Returns:
        The controls with their figure; in an executed report, where controls do not
        work, a line that says where they do.

    Example:
        >>> numbers = {"gap": "gap", "iou": "IoU"}
        >>> scatter_with_menus(analysed, numbers, {"kind": "kind"}, x="iou")
        ... # doctest: +SKIP
    """
    networks = in_shown_units(networks)
    columns = {
        name: label + PERCENT.get(name, "")
        for name, label in columns.items()
        if name in networks
    }
    if not interactive() or not len(networks):
        return Markdown(
            "*Opened in JupyterLab (`make lab`), this cell plots any two numbers of "
            "the networks against each other, by menus and a slider.*"
        )
    from ipywidgets import Dropdown, FloatSlider, HBox, VBox, interactive_output

    numbers = [(label, name) for name, label in columns.items()]
    lowest = float(np.floor(networks["train_accuracy"].min()))
    controls = {
        "x": Dropdown(options=numbers, value=x, description="across"),
        "y": Dropdown(options=numbers, description="up"),
        "colour": Dropdown(
            options=[(label, name) for name, label in colours.items()],
            description="colour",
        ),
        "least": FloatSlider(
            min=lowest,
            max=100.0,
            step=1.0,
            value=lowest,
            description="at least (%)",
            continuous_update=False,
        ),
    }

    def draw(x: str, y: str, colour: str, least: float) -> None:
        shown = networks[networks["train_accuracy"] >= least]
        figure = scatter(shown, columns, x, y, colour)
        display(figure, Markdown(correlation(shown, columns, x, y)))
        plt.close(figure)

    output = interactive_output(draw, controls)
    return VBox([HBox(list(controls.values())), output])


def scatter(
    networks: pd.DataFrame, columns: Mapping[str, str], x: str, y: str, colour: str
) -> Figure:
    """Networks by two of their numbers, coloured by a third fact."""
    figure, ax = plt.subplots(figsize=(7, 4.5))
    seaborn.scatterplot(networks, x=x, y=y, hue=colour, style=colour, ax=ax)
    ax.set(xlabel=columns[x], ylabel=columns[y])
    if ax.get_legend():
        seaborn.move_legend(
            ax, "center left", bbox_to_anchor=(1, 0.5), fontsize="small"
        )
    return figure


def correlation(
    networks: pd.DataFrame, columns: Mapping[str, str], x: str, y: str
) -> str:
    """Pearson's r and Kendall's tau of two numbers in a sentence, with their n."""
    pairs = networks[[x, y]].astype(float).replace([np.inf, -np.inf], np.nan).dropna()
    if x == y or len(pairs) < 3 or pairs.nunique().min() < 2:
        return f"{len(pairs)} networks: no correlation is defined."
    r = pairs[x].corr(pairs[y])
    tau = pairs[x].corr(pairs[y], method="kendall")
    return (
        f"{columns[x]} and {columns[y]} of {len(pairs)} networks: r = {r:.2f}, "
        f"Kendall's tau = {tau:.2f}. Patterns found by browsing are hypotheses, not "
        "results."
    )

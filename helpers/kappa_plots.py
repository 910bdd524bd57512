"""Every figure of error and Kappa over noise, unseen classes and size, drawn from tables (Huang, Yu and Zhang 2025, Figs 2 to 5)."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from helpers.kappa import AXES
from helpers.plots import colours, empty, style
from helpers.tradeoff import Surface, TradeoffPoint

_COLUMNS = 4  # panels in a row
_MARKERS = ("o", "s", "^", "D", "v", "P")
_NAMES = {
    "ssim": "SSIM (1 is clean)",
    "unseen_fraction": "backbone-unseen classes (fraction)",
    "weights": "weights (millions)",
    "error_mean": "error rate, mean over classes",
    "kappa_loss_mean": "Kappa loss (1 - Kappa), mean over classes",
    "divergence": "divergence from the clean cell (nats)",
}


def _by_size(table: pd.DataFrame) -> list[str]:
    """Models by their number of weights, then by name."""
    return list(table[["model", "weights"]].drop_duplicates("model").sort_values(["weights", "model"])["model"])


def _in_millions(weights: float) -> str:
    return f"{weights / 1e6:,.3g} M" if weights < 1e9 else f"{weights / 1e6:,.0f} M"


def _broken(label: str) -> str:
    """Break a label before its bracket or after its comma, so that it fits beside a small panel."""
    return label.replace(" (", "\n(", 1).replace(", ", ",\n", 1)


def _panels(count: int, width: float, height: float, **options: object) -> tuple[Figure, list[Axes]]:
    """Lay panels out in rows; those left over are switched off."""
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    size = (1.3 + width * columns, 0.9 + height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False, **options)
    for number, ax in enumerate(axes.flat):
        ax.set_visible(number < count)
    return figure, list(axes.flat[:count])


@style()
def heat_maps(table: pd.DataFrame, column: str) -> Figure:
    """Draw a number over SSIM and unseen fraction, a panel per model by size, one colour scale; Huang et al. 2025, Figs 2 and 5.

    Args:
        table: model, weights, ssim, unseen_fraction and ``column``; a cell that is missing or NaN is crossed out. The levels stand at
            equal distances, whatever they are.
        column: what is drawn: "error_mean", "kappa_loss_mean" or "divergence"; lower is better for all three.
    """
    if not len(table) or not np.isfinite(table[column].astype(float)).any():
        return empty(f"No cell has a defined {_NAMES.get(column, column)}.")
    ssim, unseen = (np.unique(table[name]) for name in ("ssim", "unseen_fraction"))
    values = table[column].astype(float).where(np.isfinite(table[column].astype(float)))
    models, limits = _by_size(table), {"vmin": values.min(), "vmax": values.max()}
    width, height = 0.9 + 0.34 * len(unseen), 0.7 + 0.26 * len(ssim)
    figure, axes = _panels(len(models), max(width, 2.4), max(height, 2.0))
    for number, (ax, model) in enumerate(zip(axes, models, strict=True)):
        rows = table[table["model"] == model].assign(value=values)
        grid = rows.pivot(index="ssim", columns="unseen_fraction", values="value").reindex(index=ssim, columns=unseen).to_numpy()
        image = ax.imshow(grid, origin="lower", aspect="auto", cmap="viridis", **limits)
        missing = np.argwhere(np.isnan(grid))
        ax.plot(missing[:, 1], missing[:, 0], "x", color="grey")
        ax.set_title(f"{model} ({_in_millions(rows['weights'].iloc[0])})", fontsize="small")
        last, first = number + _COLUMNS >= len(models), number % _COLUMNS == 0
        ax.set_xticks(range(len(unseen)), [f"{level:.2g}" if last else "" for level in unseen], rotation=90, fontsize="x-small")
        ax.set_yticks(range(len(ssim)), [f"{level:.3g}" if first else "" for level in ssim], fontsize="x-small")
        ax.grid(visible=False)
    figure.supxlabel(_NAMES["unseen_fraction"], fontsize="small")
    figure.supylabel(_NAMES["ssim"], fontsize="small")
    bar = figure.colorbar(image, ax=axes, fraction=0.05)
    bar.set_label(_broken(_NAMES.get(column, column)), fontsize="small")
    bar.ax.tick_params(labelsize="x-small")
    return figure


@style()
def kappa_error_diagram(classes: pd.DataFrame) -> Figure:
    """Draw every class by its error and Kappa loss, a colour and marker per noise level, a panel per model; Huang et al. 2025, Fig. 3.

    Args:
        classes: model, weights, ssim, error in [0, 1], kappa_loss in [0, 2] (NaN for a class without test images, left out).
    """
    kept = classes.dropna(subset=["error", "kappa_loss"])
    if not len(kept):
        return empty("No class has test images, so there is no Kappa to draw.")
    levels = sorted(kept["ssim"].unique(), reverse=True)
    colour, models = colours(levels), _by_size(kept)
    figure, axes = _panels(len(models), 2.7, 2.5, sharex=True, sharey=True)
    for ax, model in zip(axes, models, strict=True):
        rows = kept[kept["model"] == model]
        for number, level in enumerate(levels):
            points = rows[rows["ssim"] == level]
            ax.plot(points["error"], points["kappa_loss"], _MARKERS[number % 6], color=colour[level], alpha=0.6, markersize=4)
        ax.set_title(f"{model}, n = {len(rows):,}", fontsize="small")
        ax.axhline(1, color="black", linewidth=0.8, linestyle=":")
        ax.set(xlim=(-0.03, 1.03), ylim=(-0.05, max(1.1, 1.05 * kept["kappa_loss"].max())))
    figure.supxlabel("error rate of the class", fontsize="small")
    figure.supylabel("Kappa loss (1 - Kappa; dotted: chance)", fontsize="small")
    handles = [plt.Line2D([], [], color=colour[x], marker=_MARKERS[n % 6], linestyle="", label=f"{x:.3g}") for n, x in enumerate(levels)]
    figure.legend(handles=handles, title="SSIM", loc="outside right center", frameon=False)
    return figure


def _size_axis(ax: Axes) -> None:
    """Log scale with plain numbers, in millions; within a factor of 5 round numbers at equal distances, of which there is room for few."""
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if high / low > 5 else MaxNLocator(4))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())


@style()
def marginal_curves(marginals: pd.DataFrame, surface: Surface, point: TradeoffPoint) -> Figure:
    """Draw the marginals of error and Kappa loss along each axis, with the trade-off point on them; Huang et al. 2025, Fig. 4.

    The band is one standard deviation over the classes, averaged over the cells; the dashed line is the polynomial that the bounds are
    read from, and the star the reading.

    Args:
        marginals: see ``kappa.marginals``.
        surface: of the same cells.
        point: the trade-off point of the surface.
    """
    if not marginals["error_mean"].notna().any():
        return empty("No marginal is defined, because cells are missing.")
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6), layout="constrained", sharey="row", sharex="col")
    rows = (("error", surface.error_fits, point.generalization_bound), ("kappa_loss", surface.kappa_fits, point.diversity_bound))
    for line, (name, fits, bound) in enumerate(rows):
        for column, axis in enumerate(AXES):
            ax, table = axes[line, column], marginals[marginals["axis"] == axis]
            scale = 1e6 if axis == "weights" else 1
            x, mean, spread = table["level"] / scale, table[f"{name}_mean"], table[f"{name}_std"]
            ax.plot(x, mean, "o-", color=f"C{line}", label="marginal")
            ax.fill_between(x, mean - spread, mean + spread, color=f"C{line}", alpha=0.2, linewidth=0, label="± standard deviation")
            at = np.geomspace(*x.iloc[[0, -1]], 200) if axis == "weights" else np.linspace(*x.iloc[[0, -1]], 200)
            fitted = fits[column](np.log(at * scale) if axis == "weights" else at)
            ax.plot(at, fitted, "--", color="black", linewidth=1, label="polynomial")
            ax.axvline(getattr(point, axis) / scale, color="black", linewidth=0.8, linestyle=":")
            ax.plot(getattr(point, axis) / scale, getattr(bound, axis), "*", color="black", markersize=13, label="trade-off point")
            ax.set_title(f"bound {getattr(bound, axis):.3f}, degree {surface.degrees[column]}", fontsize="small")
            if line == 1:
                ax.set_xlabel(_NAMES[axis], fontsize="small")
            if axis == "weights" and len(x) > 1:
                _size_axis(ax)
        axes[line, 0].set_ylabel(_broken(_NAMES[f"{name}_mean"]), fontsize="small")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


@style()
def sensitivity_curves(table: pd.DataFrame, reported: float | None = 1.0) -> Figure:
    """Draw how the trade-off point moves with lambda: its three coordinates and its two bounds.

    Args:
        table: see ``tradeoff.sensitivity``.
        reported: the lambda that is reported, marked by a dotted line; None for no mark.
    """
    if not len(table):
        return empty("No lambda was tried.")
    table = table.sort_values("lambda")
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.2), layout="constrained")
    for ax, axis in zip(axes, AXES, strict=False):
        ax.plot(table["lambda"], table[axis] / (1e6 if axis == "weights" else 1), ".-", color="C0")
        ax.set_ylabel(_broken(_NAMES[axis]), fontsize="small")
    for number, (name, label) in enumerate((("generalization_bound", "generalization"), ("diversity_bound", "diversity"))):
        axes[3].plot(table["lambda"], table[name], _MARKERS[number] + "-", markersize=4, color=f"C{number}", label=label)
    axes[3].set_ylabel("bound\n(mean of the three readings)", fontsize="small")
    axes[3].legend(frameon=False, fontsize="small")
    positive = table.loc[table["lambda"] > 0, "lambda"]
    for ax in axes:
        if len(positive) > 1:
            place_for_0 = {"value": "symlog", "linthresh": positive.min()}
            ax.set_xscale(**(place_for_0 if len(positive) < len(table) else {"value": "log"}))
        if reported is not None:
            ax.axvline(reported, color="black", linewidth=0.8, linestyle=":")
        ax.set_xlabel("lambda", fontsize="small")
        ax.yaxis.set_major_locator(MaxNLocator(5))
    return figure

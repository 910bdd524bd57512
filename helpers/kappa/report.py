"""What notebook 06 shows: error and Kappa over noise, unseen classes and size (Huang, Yu and Zhang 2025, Figures 2 to 5)."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import ArrayLike, NDArray

from helpers.kappa.statistics import AXES
from helpers.kappa.tables import published_sign_errors
from helpers.kappa.tradeoff import Surface, TradeoffPoint
from helpers.report.markup import in_words
from helpers.report.style import colours, count, listed, nothing_to_draw, percent, style

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
    """Draw a number over SSIM and unseen fraction, a panel per model by size, one colour scale; Huang et al. 2025, Figure 4.

    Args:
        table: model, weights, ssim, unseen_fraction and ``column``; a cell that is missing or NaN is crossed out. The levels stand at
            equal distances, whatever they are.
        column: what is drawn: "error_mean", "kappa_loss_mean" or "divergence"; lower is better for all three.
    """
    if not len(table) or not np.isfinite(table[column].astype(float)).any():
        return nothing_to_draw(f"No cell has a defined {_NAMES.get(column, column)}.")
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
        ax.set_title(f"{model}\n({_in_millions(rows['weights'].iloc[0])})", fontsize="small")
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
    """Draw every class by its error and Kappa loss, a colour and marker per noise level, a panel per model; Huang et al. 2025, Figure 3.

    Args:
        classes: model, weights, ssim, error in [0, 1], kappa_loss in [0, 2] (NaN for a class without test images, left out).
    """
    kept = classes.dropna(subset=["error", "kappa_loss"])
    if not len(kept):
        return nothing_to_draw("No class has test images, so there is no Kappa to draw.")
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
def marginal_curves(marginals: pd.DataFrame, fits: pd.DataFrame, point: TradeoffPoint, ends: pd.DataFrame) -> Figure:
    """Draw the three marginals of error and Kappa loss, with the trade-off point on each; Huang et al. 2025, Figure 2.

    Bars, the band around the fit and the cross at the star are 95 % intervals over classes and test images; of too few classes there are
    none. The bound is read where the fit (the dashed line) meets the point.

    Args:
        marginals: of one family, see ``statistics.marginals``, with error_mean_low, error_mean_high and likewise kappa_loss_mean.
        fits: of the same family, see ``intervals.Spread``.
        point: the trade-off point.
        ends: index quantity, low and high of the point and its readings, see ``tables.beside_table2``.
    """
    if not marginals["error_mean"].notna().any():
        return nothing_to_draw("No marginal is defined, because cells are missing.")
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6), layout="constrained", sharey="row", sharex="col")
    rows = (("error_mean", "generalization_bound"), ("kappa_loss_mean", "diversity_bound"))
    for line, (name, bound) in enumerate(rows):
        for column, axis in enumerate(AXES):
            ax, scale = axes[line, column], 1e6 if axis == "weights" else 1
            table, fit = (given[given["axis"] == axis] for given in (marginals, fits))
            x, mean, colour = table["level"] / scale, table[name], f"C{line}"
            ax.errorbar(x, mean, _arms(mean, table[f"{name}_low"], table[f"{name}_high"]), fmt="o-", color=colour, label="marginal")
            at = fit["level"] / scale
            ax.plot(at, fit[name], "--", color="black", linewidth=1, label="fit")
            if fit[f"{name}_low"].notna().all():
                ends_of_fit = fit[f"{name}_low"], fit[f"{name}_high"]
                ax.fill_between(at, *ends_of_fit, color=colour, alpha=0.2, linewidth=0, label="95 % band of the fit")
            place, reading = getattr(point, axis) / scale, getattr(getattr(point, bound), axis)
            across, up = (ends.loc[row, ["low", "high"]] for row in (_MILLIONS.get(axis, axis), f"{bound}_by_{axis}"))
            cross = {"xerr": _arms(place, *across), "yerr": _arms(reading, *up), "color": "black", "markersize": 13}
            ax.errorbar(place, reading, fmt="*", elinewidth=1, label="trade-off point", **cross)
            ax.set_title(f"bound {reading:.3f}{_between(ends, f'{bound}_by_{axis}')}", fontsize="small")
            if line == 1:
                ax.set_xlabel(_NAMES[axis], fontsize="small")
            if axis == "weights" and len(x) > 1:
                _size_axis(ax)
        axes[line, 0].set_ylabel(_broken(_NAMES[name]), fontsize="small")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False)
    return figure


def _arms(value: ArrayLike, low: ArrayLike, high: ArrayLike) -> NDArray | None:
    """Lengths of error bars, (2, n); None where there is no interval. An end beyond the value itself, by resampling, has length 0."""
    arms = np.array([np.subtract(value, low), np.subtract(high, value)], dtype=float).reshape(2, -1)
    return arms.clip(0) if np.isfinite(arms).all() else None


@style()
def sign_error_figure(errors: pd.DataFrame, cells: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw the sign error of every complexity measure, and the slices that it is taken against; Huang et al. 2025, Figure 5.

    Left: one row per defined measure by mean rank, a marker per slice, the printed values (ImageNet) hollow; dotted 0.5, a coin; dashed
    the least mean over the slices that chance reaches (95 %). Right: the error of each network, darker is larger, along the unseen
    fraction at the largest SSIM and along SSIM at the smallest unseen fraction; the mean over classes, dashed the 10th percentile.

    Args:
        errors: of one family, see ``statistics.slice_sign_errors``.
        cells: of the same family, see ``probing.cells``.
        titles: of the measures.
    """
    ranked = errors.dropna(subset="mean_rank")
    if not len(ranked):
        return nothing_to_draw(f"{cells['model'].nunique()} networks: no sign error is defined.")
    slices = [column for column in ranked if "_over_" in column]
    figure = plt.figure(figsize=(11, max(5.5, 1.6 + 0.23 * len(ranked))), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=[1.5, 1])
    ax, rows = figure.add_subplot(grid[:, 0]), np.arange(len(ranked))
    printed = published_sign_errors().set_index(["measure", "slice"])["published_imagenet"]
    for number, name in enumerate(slices):
        look, at = {"marker": _MARKERS[number], "linestyle": "", "color": f"C{number}"}, rows + 0.18 * (number - 1.5)
        ax.plot(ranked[name], at, markersize=4, label=_SLICES[name], **look)
        theirs = [printed.get((measure, name), np.nan) for measure in ranked["measure"]]
        ax.plot(theirs, at, markersize=7, markerfacecolor="none", **look)
    ax.axvline(0.5, color="black", linewidth=0.8, linestyle=":")
    if np.isfinite(ranked["band"].iloc[0]):
        ax.axvline(ranked["band"].iloc[0], color="black", linewidth=0.8, linestyle="--")
    ax.set_yticks(rows, [titles.get(name, name) for name in ranked["measure"]], fontsize="x-small")
    ax.set(ylim=(len(rows) - 0.5, -0.5), xlim=(-0.03, 1.03))
    ax.set_xlabel("sign error (0 in order, 1 reversed; hollow: the paper)", fontsize="small")
    clean, seen = cells["ssim"] == cells["ssim"].max(), cells["unseen_fraction"] == cells["unseen_fraction"].min()
    for place, axis, part in ((grid[0, 1], "unseen_fraction", cells[clean]), (grid[1, 1], "ssim", cells[seen])):
        _slice_panel(figure.add_subplot(place), part, axis)
    figure.axes[1].set_title("one line per network, darker is larger", fontsize="small")
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize="small")
    return figure


def _slice_panel(ax: Axes, part: pd.DataFrame, axis: str) -> None:
    models = _by_size(part)
    for shade, model in zip(np.linspace(0.85, 0.1, len(models)), models, strict=True):
        rows = part[part["model"] == model].sort_values(axis)
        for column, line in (("error_mean", "-"), ("error_10th_percentile", "--")):
            ax.plot(rows[axis], rows[column], line, marker=".", color=plt.get_cmap("viridis")(shade), linewidth=1)
    ax.set_xlabel(_NAMES[axis], fontsize="small")
    ax.set_ylabel("error rate of the classes\n(mean; dashed 10th percentile)", fontsize="small")


@style()
def sensitivity_curves(table: pd.DataFrame, reported: float | None = 1.0) -> Figure:
    """Draw how the trade-off point moves with lambda: its three coordinates and its two bounds.

    Args:
        table: see ``tradeoff.sensitivity``.
        reported: the lambda that is reported, marked by a dotted line; None for no mark.
    """
    if not len(table):
        return nothing_to_draw("No lambda was tried.")
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


_SLICES = {
    f"{statistic}_over_{axis}": f"{words}, over {place}"
    for axis, place in (("unseen_fraction", "unseen classes"), ("ssim", "noise"))
    for statistic, words in (("error_mean", "mean error"), ("error_10th_percentile", "10th percentile of the error"))
}

_WHAT = {"error_mean": "mean error", "kappa_loss_mean": "mean Kappa loss", "divergence": "divergence from the clean cell"}
_MILLIONS = {"weights": "weights_millions"}  # rows of Table 2
_AXES = {"ssim": "SSIM", "unseen_fraction": "the backbone-unseen fraction", "weights": "size"}


def _millions(weights: float) -> str:
    return f"{weights / 1e6:,.3g} million weights"


def weights_named(origins: Sequence[str]) -> str:
    """Where the weights of some networks come from, in a few words for a title."""
    each = list(dict.fromkeys(origins))
    return listed([f"{origin} weights" if origin == "random" else f"weights {origin}" for origin in each], 3)


def family_named(family: str) -> str:
    """Name of a family of networks as the field writes it: "efficientnet-like" is "EfficientNet-like"."""
    return "-".join(in_words(part) for part in family.split("-"))


def heading(name: str, cells: pd.DataFrame) -> str:
    """Title a section with the family and its weights, so that random ones are never taken for trained ones."""
    title = family_named(name)
    return f"### {title[0].upper()}{title[1:]}: {weights_named(cells['origin'])}"


def weights_title(table: pd.DataFrame) -> str:
    """Open a figure's reading with where the weights come from: "**Random weights.**"."""
    text = weights_named(table["origin"])
    return f"**{text[0].upper()}{text[1:]}.**"


def classes_named(names: Sequence[str], seen: int, trained: bool) -> str:
    """Sentences on which classes the backbones have seen, and what "unseen" means here.

    Args:
        names: all classes, the seen ones first.
        seen: how many they are.
        trained: whether any backbone was adapted to the seen classes; False with random weights or a library's.
    """
    unseen = names[seen:]
    begin = f"{count(seen, 'class')} {'adapt the backbones' if trained else 'count as seen, though no backbone was adapted to them'}"
    if not unseen:
        return f"**{begin}, and no class is backbone-unseen**: this study measures noise and size alone."
    return (
        f"**{begin}; {count(len(unseen), 'more class')} {'is' if len(unseen) == 1 else 'are'} backbone-unseen**: {listed(unseen, 10)}. "
        "The linear probe is fitted to images of every class that it is tested on, so this is no zero-shot claim."
    )


def say_made(made: pd.DataFrame) -> str:
    """Sentence on the networks that were made on the spot: how many, how long, and what their own heads read of the test images."""
    if not len(made):
        return "No network was made on the spot."
    best, worst = (made.loc[place(made["test_accuracy"])] for place in (pd.Series.idxmax, pd.Series.idxmin))
    classes, passes, minutes = int(best["classes"]), count(int(best["epochs"]), "pass"), made["seconds"].sum() / 60
    return (
        f"**{count(len(made), 'network')} made on the spot**, {passes} over {classes} classes each, {minutes:,.3g} minutes in all. "
        f"Of the test images of these classes their own heads read {percent(worst['test_accuracy'])} ({worst['model']}) to "
        f"{percent(best['test_accuracy'])} ({best['model']}), where guessing gives {percent(1 / classes)}."
    )


def say_cells(cells: pd.DataFrame, classes: pd.DataFrame) -> str:
    """Sentence on what range the cells take and how many classes had no test images; the clean, all-seen cell first."""
    clean = cells[(cells["ssim"] == cells["ssim"].max()) & (cells["unseen_fraction"] == cells["unseen_fraction"].min())]
    counted = f"**{count(len(cells), 'cell')}** from {count(len(classes), 'row')} of one class each; "
    counted += f"{count(int(cells['dropped'].sum()), 'class')} without test images dropped."
    if not clean["error_mean"].notna().any():
        return f"{counted} No clean cell has a class with test images."
    best, chance = clean.loc[clean["error_mean"].idxmin()], 1 - 1 / clean["classes"].max()
    return (
        f"{counted} Clean and with seen classes only, the mean error runs from {percent(best['error_mean'])} ({best['model']}) to "
        f"{percent(clean['error_mean'].max())}, where guessing gives {percent(chance)}."
    )


def say_heat(cells: pd.DataFrame, column: str) -> str:
    """Sentence on how much a number grows from the clean cell with seen classes to the noisiest, and to the largest unseen fraction."""
    clean, seen = cells["ssim"].max(), cells["unseen_fraction"].min()
    noisy, unseen = cells["ssim"].min(), cells["unseen_fraction"].max()
    grid = cells.pivot(index="model", columns=["ssim", "unseen_fraction"], values=column)
    start, with_noise, with_unseen = (grid[place].median() for place in ((clean, seen), (noisy, seen), (clean, unseen)))
    if not np.isfinite([start, with_noise, with_unseen]).all():
        return f"The {_WHAT[column]} is undefined at the ends of the grid."
    return (
        f"The {_WHAT[column]}, median over {count(len(grid), 'network')}: {start:.3f} clean and seen, "
        f"{with_noise:.3f} at SSIM {noisy:.2f}, {with_unseen:.3f} with {percent(unseen)} of the classes backbone-unseen."
    )


def say_diagram(classes: pd.DataFrame) -> str:
    """Sentence on where the classes lie in the clean and in the noisiest images, and how many are no better than chance."""
    kept = classes.dropna(subset=["error", "kappa_loss"])
    if not len(kept):
        return "No class has test images."
    each = []
    for level in sorted(kept["ssim"].unique(), reverse=True):
        part = kept[kept["ssim"] == level]
        chance = int((part["kappa_loss"] >= 1).sum())
        each.append(
            f"at SSIM {level:.2f} the median class has an error of {percent(part['error'].median())}, {chance} of {len(part):,} "
            "are no better than chance"
        )
    return f"One point is one class of one network: {'; '.join(each)}."


def say_divergence(cells: pd.DataFrame) -> str:
    """Sentence on the most and the least stable network by the mean divergence of its cells from its clean cell."""
    moved = cells[cells["divergence"] > 0].groupby("model")["divergence"].mean().dropna().sort_values()
    if not len(moved):
        return "No cell has moved from its clean cell."
    if len(moved) == 1:
        return f"{moved.index[0]} moves from its clean cell by {moved.iloc[0]:.2f} nats on average."
    fewest = int(cells["classes"].min())
    return (
        f"The most stable network is {moved.index[0]} ({moved.iloc[0]:.2f} nats from its clean cell on average), the least "
        f"{moved.index[-1]} ({moved.iloc[-1]:.2f}). With {count(fewest, 'class')} in a cell the histograms are coarse, and the numbers are "
        "mostly the share of classes that left their bin."
    )


def say_point(name: str, point: TradeoffPoint, surface: Surface, strength: float, ends: pd.DataFrame | None = None) -> str:
    """Sentences on the trade-off point of a family with its bounds, read on three marginals each, and where it lies on an edge.

    Args:
        name: of the family.
        point: its point.
        surface: of the same family.
        strength: lambda.
        ends: index quantity, low and high, see ``tables.beside_table2``; None where no intervals were drawn, of which nothing is said.
    """
    text = (
        f"**{family_named(name)}**, lambda {strength:g}: the balance lies at SSIM {point.ssim:.3f}{_between(ends, 'ssim')}, an unseen "
        f"share of {point.unseen_fraction:.3f}{_between(ends, 'unseen_fraction')} and "
        f"{_millions(point.weights)}{_between(ends, 'weights_millions')}."
    )
    for bound, what in (("generalization_bound", "mean error"), ("diversity_bound", "mean Kappa loss")):
        found, words = getattr(point, bound), bound.replace("_", " ")
        read = [f"{getattr(found, axis):.3f}{_between(ends, f'{bound}_by_{axis}')} along {_AXES[axis]}" for axis in AXES]
        text += f" The {words}, the {what} there, is {listed(read)}; their mean is {found.mean:.3f}{_between(ends, bound)}."
    if ends is not None:
        drawn = np.isfinite(ends["low"]).any()
        text += " Brackets are 95 % intervals over classes and test images." if drawn else " There are too few classes for intervals."
    levels = dict(zip(AXES, surface.levels, strict=True))
    single = [axis for axis in AXES if len(levels[axis]) == 1]
    edge = [axis for axis in AXES if axis not in single and np.isclose(getattr(point, axis), levels[axis][[0, -1]], rtol=1e-6).any()]
    if edge:
        text += f" It lies on the edge of what was measured in {listed([_AXES[axis] for axis in edge])}."
    if single:
        text += f" {listed([_AXES[axis] for axis in single]).capitalize()} has one level only, so nothing was traded there."
    return text


def _between(ends: pd.DataFrame | None, quantity: str) -> str:
    low, high = (np.nan, np.nan) if ends is None else ends.loc[quantity, ["low", "high"]]
    return f" ({low:.3g} to {high:.3g})" if np.isfinite([low, high]).all() else ""


def say_sensitivity(table: pd.DataFrame) -> str:
    """Sentence on how far the point and its bounds move over the values of lambda."""
    ends = table.sort_values("lambda").iloc[[0, -1]]
    low, high = (row for _, row in ends.iterrows())
    spread = np.ptp(table["generalization_bound"])
    return (
        f"from lambda {low['lambda']:g} to {high['lambda']:g} the point moves from SSIM {low['ssim']:.2f}, "
        f"{percent(low['unseen_fraction'])} unseen and {_millions(low['weights'])} to SSIM {high['ssim']:.2f}, "
        f"{percent(high['unseen_fraction'])} and {_millions(high['weights'])}; the generalization bound takes values that differ by up to "
        f"{spread:.3f}. Lambda is a choice, not a finding."
    )


def say_sign_errors(tables: Mapping[str, pd.DataFrame], titles: Mapping[str, str]) -> str:
    """Sentence on the three measures that order the networks best, family by family, how many networks that rests on, what is undefined."""
    parts = []
    for name, table in tables.items():
        ranked = table.dropna(subset="mean_rank")
        networks = int(table["n"].max()) if len(table) else 0
        if not len(ranked):
            parts.append(f"**{family_named(name)}**: {count(networks, 'network')} can be ordered, so no sign error is defined.")
            continue
        slices = [column for column in ranked if "_over_" in column]
        best = [
            f"{titles.get(row['measure'], row['measure'])} ({row[slices].mean():.2f}, adjusted p {row['p_adjusted']:.2g})"
            for _, row in ranked.head(3).iterrows()
        ]
        pairs = networks * (networks - 1) // 2
        least = ranked["band"].iloc[0]
        chance = f"; chance alone brings the best of {count(len(ranked), 'measure')} down to {least:.2f}" if np.isfinite(least) else ""
        absent = [titles.get(measure, measure) for measure in table.loc[table["mean_rank"].isna(), "measure"]]
        undefined = f" Undefined for these networks: {listed(absent, 10)}." if absent else ""
        parts.append(
            f"**{family_named(name)}**, {count(networks, 'network')} and {count(pairs, 'pair')}: {listed(best)}{chance}.{undefined}"
        )
    return "Lowest mean sign error (0 every pair in order, 0.5 a coin): " + " ".join(parts)


def points_beside_published(table2: pd.DataFrame) -> str:
    """Sentence on how the points stand to the published ones, and why they need not be alike."""
    row = table2[table2["quantity"] == "generalization_bound"]
    theirs = row.filter(like="published_").iloc[0]
    own = [f"{value:.3f}" for value in (row["value"].min(), row["value"].max())]
    return (
        f"Generalization bound {own[0]}{f' to {own[1]}' if own[1] != own[0] else ''} here, {theirs.min():.3f} to {theirs.max():.3f} "
        "in the paper, whose networks were pretrained on hundreds of millions of images or on ImageNet; other classes and sizes, so only "
        "the way of reading is shared."
    )


def kappa_answer(points: Mapping[str, TradeoffPoint], origins: Mapping[str, Sequence[str]], strength: float, table2: pd.DataFrame) -> str:
    """Answer the notebook's question: how much noise and how many unseen classes each family takes, at what size and error.

    Args:
        points: by family.
        origins: where the weights of each family come from.
        strength: lambda.
        table2: see ``tables.beside_table2``.
    """
    each = []
    for name, point in points.items():
        ends = table2[table2["family"] == name].set_index("quantity")
        each.append(
            f"{family_named(name)} ({weights_named(origins[name])}) balances at SSIM {point.ssim:.2f}{_between(ends, 'ssim')}, an unseen "
            f"share of {point.unseen_fraction:.2f}{_between(ends, 'unseen_fraction')} and {_millions(point.weights)}"
            f"{_between(ends, 'weights_millions')}, where the mean error is {point.generalization_bound.mean:.2f}"
            f"{_between(ends, 'generalization_bound')}"
        )
    drawn = " Brackets are 95 % intervals." if table2["low"].notna().any() else ""
    return f"The trade-off point at lambda {strength:g}. {'; '.join(each)}.{drawn}"

"""What notebook 04 shows: which measure is first, by how much, beside the published values, and what the hyperparameters leave."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn
from matplotlib.figure import Figure

from helpers.report.style import count, interval, listed, nothing_to_draw, percent, say_reliable, style
from helpers.statistics.hyperparameters import ALL, GIVEN_ALL, GIVEN_ONE, GRANULATED, POOLED
from helpers.statistics.tables import TOTAL, pools


@style()
def methods_figure(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw Pearson's r of several methods per architecture, ours with its interval and the paper's hollow, a panel per method.

    Drawn is the lowest threshold of training accuracy at which both stand; where there is none, the lowest.

    Args:
        table: architecture, threshold, measure, n, pearson_r, ci_low, ci_high, published_r.
        titles: measure to what the panel is called.
    """
    both = table.dropna(subset=["pearson_r", "published_r"])
    threshold = (both if len(both) else table)["threshold"].min()
    table = table[table["threshold"] == threshold]
    if not table["pearson_r"].notna().any():
        return nothing_to_draw("No architecture has enough models above this threshold for a correlation.")
    names, chosen = pools(table), [name for name in titles if name in set(table["measure"])]
    figure, axes = plt.subplots(
        1, len(chosen), figsize=(1.5 + 2.1 * len(chosen), 1.6 + 0.4 * len(names)), layout="constrained", sharey=True
    )
    for ax, measure in zip(np.atleast_1d(axes), chosen, strict=True):
        rows = table[table["measure"] == measure].set_index("architecture").reindex(names)
        at = np.arange(len(names))
        ax.hlines(at - 0.12, rows["ci_low"], rows["ci_high"], color="C0", linewidth=2, alpha=0.6)
        ax.plot(rows["pearson_r"], at - 0.12, "o", color="C0", label="here, 95 % interval")
        ax.plot(rows["published_r"], at + 0.12, "D", color="C1", fillstyle="none", label="Du et al. 2024")
        ax.axvline(0, color="black", linewidth=0.8)
        ax.set(title=titles[measure], xlim=(-1.1, 1.1), xticks=[-1, 0, 1], ylim=(-0.5, len(names) - 0.5))
        ax.set_yticks(at, [f"{name}\nn = {int(n)}" for name, n in zip(names, rows["n"].fillna(0), strict=True)])
    np.atleast_1d(axes)[0].invert_yaxis()
    figure.supxlabel(f"Pearson r with the gap, models above {threshold:.0%} training accuracy", fontsize="medium")
    handles, labels = np.atleast_1d(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


@style()
def response_curves_figure(curves: pd.DataFrame) -> Figure:
    """Draw accuracy under growing perturbation, a panel per perturbation and a line per model (Schiff et al. 2021, Figure 2).

    Args:
        curves: perturbation, model (a label), alpha in [0, 1], accuracy (fraction), and score (Gi of the curve).
    """
    if not len(curves):
        return nothing_to_draw("No model has a response curve.")
    perturbations, models = list(curves["perturbation"].unique()), list(curves["model"].unique())
    columns = min(4, len(perturbations))
    rows = -(-len(perturbations) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(0.8 + 2.9 * columns, 0.9 + 2.6 * rows), layout="constrained", squeeze=False, sharex=True, sharey=True
    )
    for ax, perturbation in zip(axes.flat, perturbations, strict=False):
        for number, model in enumerate(models):
            curve = curves[(curves["perturbation"] == perturbation) & (curves["model"] == model)]
            label = f"Gi {curve['score'].iloc[0]:.2f}" if len(curve) else "none"
            ax.plot(curve["alpha"], curve["accuracy"], "os^D"[number % 4] + "-", markersize=4, color=f"C{number}", label=label)
        ax.set_title(perturbation, fontsize="medium")
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.05))
        ax.legend(fontsize="x-small", loc="best", frameon=True)
    for ax in axes.flat[len(perturbations) :]:
        ax.set_axis_off()
    figure.supxlabel("magnitude of the perturbation, rescaled", fontsize="medium")
    figure.supylabel("accuracy", fontsize="medium")
    handles = [plt.Line2D([], [], color=f"C{number}", marker="os^D"[number % 4], label=model) for number, model in enumerate(models)]
    figure.legend(handles=handles, loc="outside upper center", ncols=min(2, len(models)) if columns > 2 else 1, frameon=False)
    return figure


@style()
def measure_heatmap(table: pd.DataFrame, titles: Mapping[str, str]) -> Figure:
    """Draw how the measures order the models relative to each other: Kendall's tau, red alike, blue opposed, blank undefined.

    Args:
        table: square, see ``tables.measure_correlations``.
        titles: column to label.
    """
    defined = [name for name in table.columns if table[name].notna().any()]
    if len(defined) < 2:
        return nothing_to_draw("Fewer than two measures are defined, so there is nothing to compare.")
    shown = table.loc[defined, defined].rename(index=titles, columns=titles)
    side = 2.5 + 0.2 * len(defined)
    figure, ax = plt.subplots(figsize=(side + 0.8, side), layout="constrained")
    seaborn.heatmap(
        shown,
        ax=ax,
        cmap="vlag",
        center=0,
        vmin=-1,
        vmax=1,
        square=True,
        cbar_kws={"label": "Kendall's tau", "shrink": 0.6},
        rasterized=True,  # thousands of squares, each a path, would make most of a report's size
    )
    ax.set_xticks(np.arange(len(defined)) + 0.5, shown.columns, rotation=90, fontsize="x-small")
    ax.set_yticks(np.arange(len(defined)) + 0.5, shown.index, rotation=0, fontsize="x-small")
    ax.set(xlabel="", ylabel="")
    return figure


@style()
def invariance_figure(table: pd.DataFrame, predictors: Sequence[str]) -> Figure:
    """Draw how well each predictor tells the test accuracy under a perturbation: Kendall's tau with its interval, grouped.

    Args:
        table: perturbation, predictor, kendall, low, high, in the sign of the raw predictor.
        predictors: their order.
    """
    if not table["kendall"].notna().any():
        return nothing_to_draw("No perturbation leaves enough models for a rank correlation.")
    perturbations = list(table["perturbation"].unique())
    figure, ax = plt.subplots(figsize=(2 + 1.9 * len(perturbations), 3.8), layout="constrained")
    for number, name in enumerate(predictors):
        rows = table[table["predictor"] == name].set_index("perturbation").reindex(perturbations)
        at = np.arange(len(perturbations)) + (number - (len(predictors) - 1) / 2) * 0.2
        ax.vlines(at, rows["low"], rows["high"], color=f"C{number}", linewidth=2, alpha=0.6)
        ax.plot(at, rows["kendall"], "os^D"[number % 4], color=f"C{number}", label=name)
    ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xticks(range(len(perturbations)), perturbations)
    ax.grid(axis="x", visible=False)
    ax.set(ylabel="Kendall's tau with test accuracy\nunder the perturbation", ylim=(-1.05, 1.05))
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(predictors), frameon=False)
    return figure


def not_computed(scores: pd.DataFrame) -> pd.DataFrame:
    """Group the values that are missing: measure, variant, reason, models."""
    missing = scores[scores["value"].isna()]
    return missing.groupby(["measure", "variant", "reason"], dropna=False)["model_id"].nunique().rename("models").reset_index()


def scores_computed(scores: pd.DataFrame, listing: pd.DataFrame) -> str:
    """Sentence on how many values there are, of how many measures, and how many are undefined."""
    claims = scores[scores["measure"].isin(listing.loc[listing["direction"] != 0, "measure"])]
    return (
        f"**{count(claims['measure'].nunique(), 'measure')}** (with variants {len(claims[['measure', 'variant']].drop_duplicates())}) of "
        f"{count(claims['model_id'].nunique(), 'model')}: {len(claims):,} values, "
        f"of which {int(claims['value'].isna().sum()):,} are undefined."
    )


def costs(scores: pd.DataFrame) -> pd.Series:
    """Median seconds per model of each measure with all it needs; indexed by measure."""
    return scores.groupby("measure")["seconds"].median()


def _interval(low: float, high: float) -> str:
    return interval(low, high, absent="no interval: too few models")


def say_methods(table3: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Put the paper's five methods in our order and in the paper's, pooled over the architectures at the lowest threshold."""
    pooled = table3[table3["architecture"] == TOTAL]
    rows = pooled[pooled["threshold"] == pooled["threshold"].min()].dropna(subset="pearson_r").sort_values("pearson_r")
    if not len(rows):
        return "No method has a defined correlation."
    each = [
        f"{titles[row['measure']]} {row['pearson_r']:.2f} ({_interval(row['ci_low'], row['ci_high'])}{say_reliable(row)})"
        for _, row in rows.iterrows()
    ]
    theirs = rows.dropna(subset="published_r").sort_values("published_r")
    order = ", ".join(f"{titles[row.measure]} {row.published_r:.2f}" for row in theirs.itertuples())
    return f"Pooled r, most negative first: {'; '.join(each)}. The paper: {order}." if len(theirs) else f"Pooled r: {'; '.join(each)}."


def say_curves(curves: pd.DataFrame, gaps: Mapping[str, float]) -> str:
    """Compare the two models' Gi-scores, perturbation by perturbation; two models illustrate and prove nothing."""
    wide = curves.drop_duplicates(["perturbation", "model"]).pivot(index="perturbation", columns="model", values="score")
    if wide.shape[1] < 2:
        return "There are not two models to compare."
    small, large = sorted(wide.columns, key=gaps.get)[:: len(wide.columns) - 1]
    lower = int((wide[small] < wide[large]).sum())
    return (
        f"The model with the smaller gap ({100 * gaps[small]:.1f} against {100 * gaps[large]:.1f} points) has the lower Gi-score, as it "
        f"should, under {lower} of {count(len(wide), 'perturbation')}. Two models illustrate and prove nothing."
    )


def say_alike_but_for_gi(curves: pd.DataFrame) -> str:
    """Sentence on two models of equal accuracy at the end of one response curve and different Gi-scores.

    Args:
        curves: rows of the two: model (a label), alpha, accuracy, score, gap.
    """
    ends = curves.sort_values("alpha").drop_duplicates("model", keep="last").sort_values("score")
    if len(ends) < 2:
        return "There are not two models with a response curve to compare."
    low, high = ends.iloc[0], ends.iloc[-1]
    apart = 100 * abs(low["accuracy"] - high["accuracy"])
    known = f"accurate to {percent(low['accuracy'])} and {percent(high['accuracy'])} of the halfway mixtures ({apart:.1f} points apart)"
    told = (
        "the gap is smaller where Gi is lower, as it should be" if low["gap"] < high["gap"] else "the gap is not smaller where Gi is lower"
    )
    return (
        f"Two models that are {known} have Gi-scores {low['score']:.3f} and {high['score']:.3f}, and gaps of {100 * low['gap']:.1f} and "
        f"{100 * high['gap']:.1f} points: {told}. They were chosen for the difference, and prove nothing."
    )


def _ahead(wide: pd.DataFrame) -> int:
    return int((wide["Gi-score"] > wide.drop(columns="Gi-score").max(axis=1)).sum())


def say_invariance(table: pd.DataFrame, published: pd.DataFrame) -> str:
    """Sentence on under how many perturbations the Gi-score is ahead of the two plain predictors, here and in the paper; a mere count."""
    promised = table.assign(kendall=table["kendall"] * table["direction"])
    wide = promised.pivot(index="perturbation", columns="predictor", values="kendall").dropna()
    if not len(wide):
        return "No perturbation leaves enough models for a rank correlation."
    theirs = published.set_index(["perturbation", "predictor"]).stack().unstack("predictor")
    means = table[table["perturbation"].isin(wide.index)].groupby("predictor", sort=False)["kendall"].mean()
    each = [f"{name} {value:.2f}" for name, value in means.items()]
    return (
        f"Mean tau with the accuracy under a perturbation, by the raw predictor (a lower Gi-score promises more): {listed(each)}. "
        f"The Gi-score has the strongest as promised under {_ahead(wide)} of {count(len(wide), 'perturbation')}, a count that no interval "
        f"backs; in the paper under {_ahead(theirs)} of {len(theirs)}."
    )


def say_alike(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Sentence on how much the measures are copies of each other: pairs whose order of the models is nearly the same or reversed."""
    values = table.to_numpy()
    rows, columns = np.tril_indices(len(table), -1)
    pairs = values[rows, columns]
    defined = np.isfinite(pairs)
    if not defined.any():
        return "No two measures can be compared."
    high, low = int((pairs[defined] > 0.8).sum()), int((pairs[defined] < -0.8).sum())
    worst = np.flatnonzero(defined)[np.argmin(pairs[defined])]
    one, other = titles[table.index[rows[worst]]], titles[table.columns[columns[worst]]]
    return (
        f"Of {count(int(defined.sum()), 'pair')} of measures, {percent(high / defined.sum())} order the models nearly alike "
        f"(tau above 0.8) and {percent(low / defined.sum())} nearly the other way round; the most opposed are {one} and {other} "
        f"({pairs[worst]:.2f}), although both are signed to promise a small gap."
    )


def say_tasks(table: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Sentence on the measure with the highest average competition score here, and the one in the paper."""
    ours, theirs = table.dropna(subset="average"), table.dropna(subset="published_average")
    if not len(ours):
        return "No task leaves models to condition on, so there is no score."
    best, known = ours.loc[ours["average"].idxmax()], theirs.loc[theirs["published_average"].idxmax()]
    return (
        f"Highest average here: {titles[best['measure']]} with {best['average']:.1f} of 100 (adjusted p {best['average_p_adjusted']:.2g}); "
        f"in the paper {titles[known['measure']]} with {known['published_average']:.1f}."
    )


def _row(table: pd.DataFrame, kind: str, hyperparameter: str = ALL) -> pd.Series | None:
    found = table[(table["kind"] == kind) & (table["hyperparameter"] == hyperparameter)]
    return found.iloc[0] if len(found) and np.isfinite(found["r"].iloc[0]) else None


def _clear(row: pd.Series) -> bool:
    """Whether an interval leaves 0 out."""
    return bool(row["ci_low"] > 0 or row["ci_high"] < 0)


def _words(row: pd.Series) -> str:
    return f"{row['r']:.2f} ({interval(row['ci_low'], row['ci_high'])})"


def say_confounding(table: pd.DataFrame, measure: str, title: str) -> str:
    """Sentence on what is left of a measure's pooled correlation with the gap given the hyperparameters, all of them and one by one.

    Args:
        table: see ``hyperparameters.confounders``.
        measure: its column.
        title: its name in the sentence.
    """
    own = table[table["measure"] == measure]
    pooled, left = _row(own, POOLED), _row(own, GIVEN_ALL)
    if pooled is None:
        return f"The pooled correlation of {title} with the gap is undefined, so nothing can be said to be left of it."
    text = f"Pooled over {count(int(pooled['n']), 'model')}, {title} has r = **{_words(pooled)}**"
    single = own[(own["kind"] == GIVEN_ONE) & own["r"].notna()]
    axes = own.loc[own["kind"] == GIVEN_ONE, "hyperparameter"].nunique()
    if not axes:
        return text + "; no hyperparameter has two levels, so none can be behind it."
    alone = f"with one of them held fixed, r is {single['r'].min():.2f} to {single['r'].max():.2f}" if len(single) > 1 else ""
    if left is None:
        text += f"; {count(axes, 'hyperparameter')} leave no degree of freedom for what is left given all of them"
        return text + (f", but {alone}." if alone else ".")
    share = left["r"] / pooled["r"]
    given = "the one hyperparameter that varies" if axes == 1 else f"all {axes} hyperparameters"
    part = f", {percent(share)} of it" if 0 <= share <= 1 else ", none of it" if share < 0 else ", all of it and more"
    text += f"; given {given} **{_words(left)}** is left{part if _clear(pooled) else ''}"
    return f"{text}: {_verdict(pooled, left, share)}" + (f"; {alone}." if alone else ".")


def _verdict(pooled: pd.Series, left: pd.Series, share: float) -> str:
    if not np.isfinite(left["ci_low"]):
        return "with too few models for an interval, no claim"
    if not _clear(left):
        if not _clear(pooled):
            return "neither can be told from 0"
        if left["ci_low"] <= pooled["r"] <= left["ci_high"]:
            return "with these models what is left can be told neither from 0 nor from the pooled r"
        return "what is left can be told from the pooled r but not from 0, so the pooled correlation is that of the hyperparameters"
    if not _clear(pooled):
        return "a correlation that the pooled models hide shows when the hyperparameters are held fixed"
    if share < 0:
        return "the correlation turns round when the hyperparameters are held fixed (Simpson's paradox)"
    if share < 0.5:
        return "more than half of the pooled correlation is that of the hyperparameters, but not all"
    return "the hyperparameters are not what makes it"


def say_field(table: pd.DataFrame) -> str:
    """Count the measures whose correlation survives, fades or turns round when the hyperparameters are held fixed."""
    wide = table[table["kind"].isin([POOLED, GIVEN_ALL])].set_index(["measure", "kind"])
    rows = [wide.loc[name].reindex([POOLED, GIVEN_ALL]) for name in wide.index.unique("measure")]
    defined = [row for row in rows if row["r"].notna().all() and row["ci_low"].notna().all()]
    if not defined:
        return "For no measure both the pooled r and what is left given the hyperparameters can be had with intervals."
    clear = [row for row in defined if _clear(row.loc[POOLED])]
    alike = [row for row in clear if _clear(row.loc[GIVEN_ALL]) and row["r"].prod() > 0]
    turned = [row for row in clear if _clear(row.loc[GIVEN_ALL]) and row["r"].prod() < 0]
    lost = len(clear) - len(alike) - len(turned)
    return (
        f"Of {count(len(defined), 'measure')}, {len(clear)} have a pooled interval clear of 0; given all hyperparameters {len(alike)} of "
        f"these keep their sign beyond doubt, {len(turned)} turn round, and {lost} cannot be told from 0 any more."
    )


def say_granulated(table: pd.DataFrame, measure: str, title: str) -> str:
    """Sentence on the granulated Kendall of a measure: its mean over the hyperparameters, and how far these differ."""
    own = table[(table["measure"] == measure) & (table["kind"] == GRANULATED)].dropna(subset="r")
    single = own[own["hyperparameter"] != ALL]
    if not len(single):
        return f"No two cells differ in one hyperparameter only, so {title} has no granulated Kendall."
    mean = own.loc[own["hyperparameter"] == ALL, "r"].iloc[0]
    return (
        f"While one hyperparameter changes at a time, Kendall's tau of {title} with the gap is {mean:.2f} on average (granulated), "
        f"{single['r'].min():.2f} to {single['r'].max():.2f} over {count(len(single), 'hyperparameter')}."
    )

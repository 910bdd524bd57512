"""What notebook 07 shows: who is first and how surely, and how accurate checkpoints will be on a target."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.report.style import count, fit_band, listed, nothing_to_draw, percent, points, style
from helpers.select.images import OwnImages, box_source
from helpers.select.moved import Moved
from helpers.select.prediction import Trial
from helpers.select.ranking import JUDGED, NEEDS_LABELS, NOT_JUDGED, NOT_SCORED, PASSED_OVER, RANKED, RankingResult
from helpers.select.target import TargetResult

_LONGEST = 38  # characters of a name


def label(name: str) -> str:
    """Write a checkpoint's name as plain text of a figure: nothing in it is read as mathematics, and its middle is cut when it is long."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2 - 1]}…{text[-_LONGEST // 2 :]}"
    return text.replace("$", r"\$")


@style()
def checkpoints_figure(table: pd.DataFrame, level: float, truth: pd.Series | None = None, most: int = 30) -> Figure:
    """Draw each checkpoint's predicted gap with its interval, the smallest on top, and the probability that it truly is the best.

    Args:
        table: see ``ranking.RANKING_COLUMNS``.
        level: of the intervals.
        truth: true gap by checkpoint, where it is known; drawn hollow.
        most: checkpoints that are drawn.
    """
    every = table[table["verdict"].isin([RANKED, JUDGED])]
    table = every.head(most).iloc[::-1]
    if not len(table):
        return nothing_to_draw("No checkpoint is judged, so there is no ranking to draw.")
    size = (9.5, 1.7 + 0.3 * len(table))
    figure, (ax, chance) = plt.subplots(1, 2, figsize=size, layout="constrained", sharey=True, width_ratios=[3, 1])
    rows, low, high = np.arange(len(table)), 100 * table["gap_low"], 100 * table["gap_high"]
    inside = (table["measures_outside"] == 0).to_numpy()
    ax.hlines(rows, low, high, color="C0", linewidth=2, alpha=0.5, label=f"{level:.0%} interval")
    for marker, chosen, words in (("o", inside, "predicted"), ("X", ~inside, "predicted, outside the study's range")):
        if chosen.any():
            ax.plot(100 * table["predicted_gap"][chosen], rows[chosen], marker, color="C0", label=words)
    if truth is not None:
        ax.plot(100 * table["checkpoint"].map(truth), rows, "D", color="C1", fillstyle="none", label="true")
    ax.set_yticks(rows, [label(name) for name in table["checkpoint"]], fontsize="small")
    ax.set(xlabel="generalization gap (percentage points)", ylim=(-0.7, len(table) - 0.3))
    ax.set_title(f"the first {len(table)} of {len(every)} checkpoints" if len(table) < len(every) else "", fontsize="small")
    ax.grid(axis="y", visible=False)
    if table["predicted_gap"].isna().all():
        ax.set_xticks([])
        ax.text(0.5, 0.5, "order alone: no number of points\nwithout labelled images", transform=ax.transAxes, ha="center", va="center")
    chance.barh(rows, 100 * table["probability_best"], height=0.6, color="C2")
    chance.set(xlabel="probability of having\nthe smallest gap (%)", xlim=(0, np.nanmax([5, 105 * table["probability_best"].max()])))
    chance.grid(axis="y", visible=False)
    chance.tick_params(labelleft=False)
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    return figure


@style()
def among_the_study(
    models: pd.DataFrame, own: pd.DataFrame, ranking: pd.DataFrame, measures: Sequence[str], titles: dict[str, str]
) -> Figure:
    """Draw the study's models, measure against gap, and the user's checkpoints at their predicted gap, a panel per measure.

    Checkpoints that have no predicted gap are marked at the bottom.

    Args:
        models: of the study: gap (fraction) and the measures.
        own: one row per checkpoint, a column per measure.
        ranking: see ``ranking.RANKING_COLUMNS``.
        measures: columns to draw.
        titles: measure to what it is called.
    """
    if not len(measures) or not len(models):
        return nothing_to_draw("The study and the checkpoints share no defined measure, so they cannot be drawn together.")
    judged = ranking[ranking["verdict"].isin([RANKED, JUDGED])].set_index("checkpoint")["predicted_gap"]
    guess, bare = judged.dropna(), judged[judged.isna()]
    figure, axes = plt.subplots(
        1, len(measures), figsize=(1.4 + 3.7 * len(measures), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    for ax, name in zip(axes[0], measures, strict=True):
        ax.plot(models[name], 100 * models["gap"], "o", color="C0", alpha=0.75, label=f"models of the study (n = {len(models)})")
        fit_band(ax, models[name].to_numpy(dtype=float), 100 * models["gap"].to_numpy())
        words = f"your checkpoints, at their predicted gap (n = {len(guess)})"
        ax.plot(own.loc[guess.index, name], 100 * guess, "X", color="C1", markersize=8, markeredgecolor="black", label=words)
        if len(bare):
            foot = {"transform": ax.get_xaxis_transform(), "clip_on": False, "label": f"without a predicted gap (n = {len(bare)})"}
            ax.plot(own.loc[bare.index, name], np.full(len(bare), 0.02), "X", color="C1", alpha=0.6, **foot)
        ax.axvspan(models[name].min(), models[name].max(), color="C0", alpha=0.06, linewidth=0, label="calibrated range")
        ax.xaxis.set_major_locator(MaxNLocator(4))
        ax.set_xlabel(titles.get(name, name))
    axes[0, 0].set_ylabel("generalization gap\n(percentage points)")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def code(name: str) -> str:
    """Write a name that comes from a file as literal text of Markdown: no tag, link or emphasis in it is followed."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    return f"`{text.replace('`', chr(39)) or ' '}`"


def images_found(images: OwnImages) -> str:
    """Sentence on which images were taken, of which classes, and where their boxes are from."""
    classes = f"of {count(len(images.class_names), 'class')}" if images.class_names else "without classes (no folders of classes)"
    faults = f" {count(len(images.faults), 'fault')} in images or boxes, see own_faults.csv." if len(images.faults) else ""
    made = (
        "" if images.annotated.all() else " A made box is a weaker guide than an annotated one, so is every measure of localization here."
    )
    return (
        f"**{count(len(images), 'image')}** of {images.found:,} {classes}, at {images.images.shape[-1]} px; boxes: {box_source(images)}."
        f"{made}{faults}"
    )


def checkpoints_scored(facts: pd.DataFrame, scores: pd.DataFrame) -> str:
    """Sentence on how many checkpoints could be scored, with how many measures, why not the others, and how many files are none."""
    passed = int(facts["fault"].str.startswith(PASSED_OVER).sum())
    facts = facts[~facts["fault"].str.startswith(PASSED_OVER)]
    good = facts[facts["fault"] == ""]
    text = f"**{len(good)} of {count(len(facts), 'checkpoint')}** could be scored"
    kinds = good["architecture"].value_counts()
    text += f" ({listed([f'{n} × {code(name)}' for name, n in kinds.items()])})" if len(kinds) else ""
    text += f", with {count(scores['measure'].nunique(), 'measure')} each." if len(good) else "."
    undefined = scores[~np.isfinite(scores["value"].astype(float))].drop_duplicates(["checkpoint", "measure"]) if len(scores) else scores
    if len(undefined):
        reasons = undefined["reason"].value_counts()
        text += f" {count(len(undefined), 'value')} undefined, most often because {code(str(reasons.index[0]))}."
    text += f" {count(passed, 'file')} passed over, being no checkpoint." if passed else ""
    return text + "".join(
        f" Not scored: {code(row.checkpoint)} ({code(row.fault)})." for row in facts[facts["fault"] != ""].head(5).itertuples()
    )


def say_first(verdict: RankingResult, level: float) -> str:
    """Sentences on what is not judged, in what the case is another, then who is first, by how much and how surely.

    One checkpoint, and several that are told apart by nothing, have no rank.
    """
    table = verdict.ranking[verdict.ranking["verdict"].isin([RANKED, JUDGED])]
    text = _not_judged(verdict.ranking)
    if not len(table):
        return text.rstrip() or "No checkpoint is there to be judged."
    text += _another_case(verdict, table) + say_moved(verdict.moved)
    first = table.iloc[0]
    said = code(first["checkpoint"])
    if np.isfinite(first["predicted_gap"]):
        said += f", predicted gap **{points(first['predicted_gap'])}** ({level:.0%} interval {span(first, 'gap')})"
    idle = " In the study, though, the measures hardly help to tell a gap." if _idle(verdict.trial) else ""
    if len(table) == 1:
        return f"{text}Judged: {said}. It is the only one, so there is no rank.{idle}"
    if np.isnan(first["rank"]):
        return (
            f"{text}Judged, not ranked: {count(len(table), 'checkpoint')} with one prediction for all, {points(first['predicted_gap'])} "
            f"({level:.0%} interval {span(first, 'gap')}). The study's measures tell them not apart.{idle}"
        )
    text += f"First of {count(len(table), 'checkpoint')}: {said}; it truly has the smallest gap with probability "
    text += f"**{percent(first['probability_best'])}**, by lot it would be {percent(1 / len(table))}.{idle}"
    return text + (
        " Its interval lies below that of the last one."
        if table["gap_high"].iloc[0] < table["gap_low"].iloc[-1]
        else " Read the order as a hint, and measure the first few on held-out images."
    )


def _not_judged(ranking: pd.DataFrame, most: int = 3) -> str:
    """Which checkpoints have no verdict, with the reason of the first few; "" where all have one."""
    without = ranking[ranking["verdict"].isin([NOT_JUDGED, NOT_SCORED])]
    if not len(without):
        return ""
    kinds = [kind for kind in (NOT_JUDGED, NOT_SCORED) if (without["verdict"] == kind).any()]
    reasons = "; ".join(f"{code(row.checkpoint)}: {code(row.note)}" for row in without.head(most).itertuples())
    others = f"; and {len(without) - most} more, see the table" if len(without) > most else ""
    all_said = f"none of {count(len(without), 'checkpoint')}" if len(without) == ranking["verdict"].ne(PASSED_OVER).sum() else ""
    opening = f"Judged: {all_said}" if all_said else f"{listed(kinds).capitalize()}: {count(len(without), 'checkpoint')}"
    return f"**{opening}** ({reasons}{others}). "


def _another_case(verdict: RankingResult, table: pd.DataFrame) -> str:
    """In what the case, or some checkpoint, lies outside what the study has seen; "" where nothing does."""
    parts = list(verdict.differing)
    if outside := int((table["measures_outside"] > 0).sum()):
        parts.append(f"measures of {count(outside, 'checkpoint')}")
    if not parts:
        return ""
    text = f"**Outside what the study has seen**: {listed(parts, 8)}. "
    bare = int(table["predicted_gap"].isna().sum())
    return text + (say_unnumbered(bare, len(table)) if bare else "")


def say_unnumbered(bare: int, of: int) -> str:
    """Sentence on checkpoints that have a place in the order and no number, with a space after it."""
    some = "" if bare == of else f" for {bare} of {count(of, 'checkpoint')}"
    return f"There the order of the predictions may hold and their level does not: no number of points is given{some}; {NEEDS_LABELS}. "


def say_moved(moved: Moved | None) -> str:
    """Sentence on how far labelled images move all predictions, with a space after it; "" without them."""
    if moved is None:
        return ""
    return (
        f"**The labelled images move every predicted accuracy by {100 * moved.shift:+.1f} points** (interval {100 * moved.shift_low:+.1f} "
        f"to {100 * moved.shift_high:+.1f}); the checkpoints keep their order. "
    )


def _idle(trial: Trial) -> bool:
    """Whether the prediction errs about as much as the mean gap does, which needs no measure."""
    return bool(trial.error >= 0.95 * trial.mean_error)


def span(row: pd.Series, what: str) -> str:
    """An interval from the columns <what>_low and <what>_high: an accuracy in percent, all else in points."""
    low, high = row[f"{what}_low"], row[f"{what}_high"]
    return "undefined" if np.isnan(low) or np.isnan(high) else f"{100 * low:.1f} to {percent(high) if what == 'accuracy' else points(high)}"


def say_calibration(verdict: RankingResult, study: str, titles: Mapping[str, str]) -> str:
    """Sentences on what the prediction rests on, how often its intervals held, and whether it beats one without any measure."""
    trial = verdict.trial
    if np.isnan(trial.coverage):
        return f"The study {code(study)} is too small to try the prediction on models left out, so no interval can be vouched for."
    named = listed([f"{titles.get(name, name)} ({100 * slope:+.1f})" for name, slope in zip(verdict.chosen, verdict.slopes, strict=True)])
    text = (
        f"Calibrated on {count(trial.models, 'model')} in {count(trial.groups, 'hyperparameter cell')} of the study {code(study)}, by "
        f"{named or 'no measure'} (points of gap per standard deviation). Tried on cells left out, {percent(trial.coverage)} of the true "
        f"gaps fell in their {trial.level:.0%} interval, of {points(trial.width)} in the median (proven is {_proven(trial.level)}); the "
        f"prediction is off by {points(trial.error)} on average, and the mean gap of the other models, which needs no measure, by "
        f"{points(trial.mean_error)}: "
    )
    text += (
        "the measures help."
        if not _idle(trial)
        else "**the measures hardly help in this study**, so neither gap nor order should be relied on."
    )
    return text + _transfer(verdict.transfer)


def _proven(level: float) -> str:
    """Coverage that is proven of the jackknife+ with cells left out; Barber et al. 2021, theorem 1."""
    return f"at least {max(0.0, 2 * level - 1):.0%}, for one model a cell and a new one drawn from the same cells"


def _transfer(trial: Trial) -> str:
    if np.isnan(trial.coverage):
        return " It has one architecture only, so what happens on another one could not be tried."
    return (
        f" With a whole architecture left out, {percent(trial.coverage)} fell in their interval and the prediction was off by "
        f"{points(trial.error)}: that is the price of a step to networks of another kind."
    )


def say_distance(differences: pd.DataFrame, measured: pd.DataFrame, used: Sequence[str]) -> str:
    """Sentence in plain words on how far the study is from the user's case."""
    other = differences[differences["same"].eq(False)]
    near = measured[measured["measure"].isin(used)]
    inside = int((near["outside"] == 0).sum())
    text = "The set-up of the study is that of your case in all that is compared: architecture, images, classes."
    if len(other):
        parts = [f"{row.what} ({code(row.study)} there, {code(row.own)} here)" for row in other.itertuples()]
        text = f"**The study differs from your case** in {listed(parts, 7)}."
    if not len(measured):
        return text + " It shares no measure with your checkpoints."
    out = int((measured["outside"] > 0.5).sum())
    text += (
        f" Of {count(len(measured), 'measure')} that both have, {out} lie outside the study's range for most of your checkpoints; these "
        f"are not used where others are there. Of the {len(near)} used, {inside} lie inside it for every checkpoint."
    )
    far = not len(near) or (near["outside"] > 0.5).all()
    if far:
        return text + " So the prediction is an **extrapolation**: take the intervals as a lower bound on the doubt."
    if len(other):
        return text + " The coverage of the intervals was measured on the study's own kind of models; for another kind nothing is promised."
    return text


@style()
def target_figure(result: TargetResult, level: float, titles: Mapping[str, str], truth: pd.Series | None = None, most: int = 30) -> Figure:
    """Draw each checkpoint's predicted accuracy on the target with its interval, the highest on top; in a mere order, the measure's value.

    Args:
        result: see ``target.predict_on_target``.
        level: of the intervals.
        titles: measure to what it is called.
        truth: true accuracy by checkpoint, where it is known; drawn hollow.
        most: checkpoints that are drawn.
    """
    table = result.table[result.table["value"].notna()].head(most).iloc[::-1]
    if not result.method or not len(table):
        return nothing_to_draw("The study and the checkpoints share no measure of images without labels, so nothing is predicted.")
    figure, ax = plt.subplots(figsize=(8, 1.7 + 0.3 * len(table)), layout="constrained")
    rows, known = np.arange(len(table)), table["predicted_accuracy"].notna().to_numpy()
    if known.any():
        low, high = 100 * table["accuracy_low"], 100 * table["accuracy_high"]
        ax.hlines(rows, low, high, color="C0", linewidth=2, alpha=0.5, label=f"{level:.0%} interval")
        for marker, chosen, words in (("o", ~table["beyond"], "predicted"), ("X", table["beyond"], "predicted, beyond the study's range")):
            if (chosen & known).any():
                ax.plot(100 * table["predicted_accuracy"][chosen], rows[chosen], marker, color="C0", label=words)
        if truth is not None:
            ax.plot(100 * table["checkpoint"].map(truth), rows, "D", color="C1", fillstyle="none", label="true")
        ax.set_xlabel("accuracy on the target (%)")
    else:
        ax.plot(table["value"], rows, "o", color="C0", label="order alone: no number of points without labelled images")
        ax.set_xlabel(f"{titles.get(result.method, result.method)}, on the target")
    ax.set_yticks(rows, [label(name) for name in table["checkpoint"]], fontsize="small")
    ax.set_ylim(-0.7, len(table) - 0.3)
    ax.grid(axis="y", visible=False)
    figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


def say_target(result: TargetResult, images: OwnImages, level: float, titles: Mapping[str, str], truth: pd.Series | None = None) -> str:
    """Sentences on the accuracy on a target: a shift beyond the study's range first, then the first checkpoint, and how the method did."""
    table, found = result.table[result.table["value"].notna()], f"the {count(len(images), 'image')} of the target"
    if not len(table):
        first = [f": {code(row.checkpoint)}, {code(row.note)}" for row in result.table.head(1).itertuples()]
        return f"Of {found} nothing is predicted{''.join(first)}."
    beyond = int(table["beyond"].sum())
    without = result.table[result.table["note"].str.startswith("not predicted")]
    text = (
        f"**Not predicted on the target: {count(len(without), 'checkpoint')}** ({code(without['note'].iloc[0])}). " if len(without) else ""
    )
    if beyond:
        text += f"**The target is shifted beyond what the study has seen** for {beyond} of {count(len(table), 'checkpoint')}. "
    if result.differing:
        text += f"**Another case than the study's**: {listed(list(result.differing), 8)}. "
    if bare := int(table["predicted_accuracy"].isna().sum()):
        text += say_unnumbered(bare, len(table))
    text += say_moved(result.moved)
    first, said = table.iloc[0], code(table.iloc[0]["checkpoint"])
    if np.isfinite(first["predicted_accuracy"]):
        said += f", predicted accuracy **{percent(first['predicted_accuracy'])}** ({level:.0%} interval {span(first, 'accuracy')})"
    ranked = f"first of {count(len(table), 'checkpoint')}" if np.isfinite(first["rank"]) else "not ranked"
    text += f"On {found}, {ranked}: {said}, by {titles.get(result.method, result.method)}, which goes most with accuracy in the study."
    if truth is not None and table["predicted_accuracy"].notna().any():
        own = table["checkpoint"].map(truth)
        held = int(own.between(table["accuracy_low"], table["accuracy_high"]).sum())
        text += f" Here the truth is known: {held} of {len(table)} accuracies lie in their interval."
    return text + _tried_on_targets(result)


def _tried_on_targets(result: TargetResult) -> str:
    trial, other = result.trial, result.transfer
    if np.isnan(trial.coverage):
        return " The study is too small to try the prediction on models left out, so no interval can be vouched for."
    text = (
        f" Tried on cells of the study left out, {percent(trial.coverage)} of the accuracies fell in their {trial.level:.0%} interval "
        f"(proven is {_proven(trial.level)}, on a target like the study's), off by {points(trial.error)} on average, and their "
        f"mean by {points(trial.mean_error)}"
    )
    if np.isnan(other.coverage):
        return text + "; it has one target only, so what another shift does could not be tried."
    return text + f"; with a whole target left out, {percent(other.coverage)} and {points(other.error)}: so much for an unseen shift."


def say_labels(*tables: pd.DataFrame, titles: Mapping[str, str] | None = None) -> str:
    """Answer whether each prediction is worth more than labelling images, from tables of ``labelling.against_labelling``."""
    tables = [table for table in tables if len(table) > 1 and np.isfinite(table["error"].iloc[1])]
    if not tables:
        return "The study is too small to say when a measure is worth more than labelled images."
    said = []
    for table in tables:
        plain, own = table.iloc[0], table.iloc[1]
        equal = f"as {own['labelled_images']:,.0f} would" if np.isfinite(own["labelled_images"]) else "as no number of them would"
        said.append(
            f"{(titles or {}).get(own['method'], own['method'])}: off by {points(own['error'])}, {equal}, and so worth "
            f"{'more' if own['worth_more'] else 'less'} than these, which are off by {points(plain['error'])}"
        )
    return f"When is a measure worth more than {tables[0].iloc[0]['method']}? In the study, cells left out, {'; '.join(said)}."

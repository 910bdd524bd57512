"""Sentences on a user's own checkpoints: who is first and how surely, what the prediction is worth, how far the study is from the case."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from helpers.gap_prediction import Trial
from helpers.own_images import OwnImages, box_source
from helpers.own_ranking import Verdict
from helpers.readings import count, listed, percent, points


def code(name: str) -> str:
    """Write a name that comes from a file as literal text of Markdown: no tag, link or emphasis in it is followed."""
    text = " ".join("".join(sign if sign.isprintable() else " " for sign in name).split())
    return f"`{text.replace('`', chr(39)) or ' '}`"


def images_found(images: OwnImages) -> str:
    """Say which images were taken, of which classes, and where their boxes are from."""
    classes = f"of {count(len(images.class_names), 'class')}" if images.class_names else "without classes (no folders of classes)"
    faults = f" {count(len(images.faults), 'fault')} in images or boxes, see the table." if len(images.faults) else ""
    made = (
        "" if images.annotated.all() else " A made box is a weaker guide than an annotated one, so is every measure of localization here."
    )
    return (
        f"**{count(len(images), 'image')}** of {images.found:,} {classes}, at {images.images.shape[-1]} px; boxes: {box_source(images)}."
        f"{made}{faults}"
    )


def checkpoints_scored(facts: pd.DataFrame, scores: pd.DataFrame) -> str:
    """Say how many checkpoints could be scored, with how many measures, and why not the others."""
    good = facts[facts["fault"] == ""]
    text = f"**{len(good)} of {count(len(facts), 'checkpoint')}** could be scored"
    kinds = good["architecture"].value_counts()
    text += f" ({listed([f'{n} × {code(name)}' for name, n in kinds.items()])})" if len(kinds) else ""
    text += f", with {count(scores['measure'].nunique(), 'measure')} each." if len(good) else "."
    undefined = scores[~np.isfinite(scores["value"].astype(float))].drop_duplicates(["checkpoint", "measure"]) if len(scores) else scores
    if len(undefined):
        reasons = undefined["reason"].value_counts()
        text += f" {count(len(undefined), 'value')} undefined, most often because {code(str(reasons.index[0]))}."
    return text + "".join(
        f" Not scored: {code(row.checkpoint)} ({code(row.fault)})." for row in facts[facts["fault"] != ""].head(5).itertuples()
    )


def ranking_read(verdict: Verdict, level: float) -> str:
    """Say who is first, with which predicted gap, interval and probability, and whether that is more than chance."""
    table = verdict.ranking.dropna(subset="predicted_gap")
    if not len(table):
        return "No checkpoint has a predicted gap: the study and the checkpoints share no defined measure, or the study is too small."
    first, chance = table.iloc[0], 1 / max(1, table["probability_best"].notna().sum())
    text = f"First of {count(len(table), 'checkpoint')}: {code(first['checkpoint'])}, predicted gap **{points(first['predicted_gap'])}**"
    text += f" ({level:.0%} interval {_span(first)})"
    text += f"; it truly has the smallest gap with probability **{percent(first['probability_best'])}**, by lot it would be "
    text += f"{percent(chance)}."
    if table["note"].str.contains("training accuracy not above").all():
        text += " **None of them fits its training images as the study's models do**, so each gap is small at most for want of accuracy"
        text += " to lose: check class order, normalisation and image size before anything is read into this order."
    if behind := int(table["probability_best"].isna().sum()):
        text += f" {count(behind, 'checkpoint')} that fit their training images too badly stand last, whatever their gap."
    if _idle(verdict.trial):
        text += " In the study, though, the measures hardly help to tell a gap."
    if first["predicted_gap"] == table["predicted_gap"].iloc[-1]:
        return text + " All predictions are equal: the study's measures tell these checkpoints not apart, and the order means nothing."
    clear = len(table) > 1 and table["gap_high"].iloc[0] < table["gap_low"].iloc[-1]
    return text + (
        " Its interval lies below that of the last one."
        if clear
        else " The intervals of the first and the last overlap: read the order as a hint, and measure the first few on held-out images."
        if len(table) > 1
        else ""
    )


def _idle(trial: Trial) -> bool:
    """Say whether the prediction errs about as much as the mean gap does, which needs no measure."""
    return bool(trial.error >= 0.95 * trial.mean_error)


def _span(row: pd.Series) -> str:
    if np.isnan(row["gap_low"]) or np.isnan(row["gap_high"]):
        return "undefined"
    return f"{100 * row['gap_low']:.1f} to {points(row['gap_high'])}"


def calibration_read(verdict: Verdict, study: str, titles: Mapping[str, str]) -> str:
    """Say on what the prediction rests, how often its intervals held, and whether it beats a prediction without any measure."""
    trial = verdict.trial
    if np.isnan(trial.coverage):
        return f"The study {code(study)} is too small to try the prediction on models left out, so no interval can be vouched for."
    named = listed([f"{titles.get(name, name)} ({100 * slope:+.1f})" for name, slope in zip(verdict.chosen, verdict.slopes, strict=True)])
    text = (
        f"Calibrated on {count(trial.models, 'model')} in {count(trial.groups, 'hyperparameter cell')} of the study {code(study)}, by "
        f"{named or 'no measure'} (points of gap per standard deviation). Tried on cells left out, {percent(trial.coverage)} of the true "
        f"gaps fell in their {trial.level:.0%} interval, of {points(trial.width)} in the median; the prediction is off by "
        f"{points(trial.error)} on average, and the mean gap of the other models, which needs no measure, by {points(trial.mean_error)}: "
    )
    text += (
        "the measures help."
        if not _idle(trial)
        else "**the measures hardly help in this study**, so neither gap nor order should be relied on."
    )
    return text + _transfer(verdict.transfer)


def _transfer(trial: Trial) -> str:
    if np.isnan(trial.coverage):
        return " It has one architecture only, so what happens on another one could not be tried."
    return (
        f" With a whole architecture left out, {percent(trial.coverage)} fell in their interval and the prediction was off by "
        f"{points(trial.error)}: that is the price of a step to networks of another kind."
    )


def distance_read(differences: pd.DataFrame, measured: pd.DataFrame, used: Sequence[str]) -> str:
    """Say in plain words how far the study is from the user's case."""
    other = differences[differences["same"].eq(False)]
    near = measured[measured["measure"].isin(used)]
    inside = int((near["outside"] == 0).sum())
    text = "The study is of the same kind as your case in all that is compared."
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


def truth_read(ranking: pd.DataFrame, truth: pd.Series) -> str:
    """Say how the prediction did where the truth is known."""
    table = ranking.assign(gap=ranking["checkpoint"].map(truth)).dropna(subset=["predicted_gap", "gap", "gap_low"])
    if not len(table):
        return "No checkpoint has both a predicted and a true gap."
    held = table["gap"].between(table["gap_low"], table["gap_high"])
    best = table["gap"].idxmin()
    place = int(table["predicted_gap"].rank(method="min").loc[best])
    return (
        f"These checkpoints are the study's own and were left out of the calibration, so the truth is known: {int(held.sum())} of "
        f"{len(table)} true gaps lie in their interval, and the one with the smallest true gap, {code(table.loc[best, 'checkpoint'])}, was "
        f"ranked {place} of {len(table)}."
    )

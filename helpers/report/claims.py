"""What a study may claim, in tables and words: the gates first, each claim with its verdict, and what a measure adds."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from helpers.measures import registry
from helpers.measures.localization import above_chance
from helpers.report.style import count, interval, listed, nothing_to_draw, percent, style
from helpers.statistics import questions
from helpers.statistics.claims import ADDED, KeptClaims, kept_claims
from helpers.statistics.gates import ANY_MEASURE, gate_table
from helpers.statistics.reliability import intraclass_correlation, reliability
from helpers.statistics.verdicts import CANNOT_TELL, CONTRADICTED, NOT_TESTED, SIGNIFICANT, STATED_COLUMNS, SUPPORTED, judged

BASELINES = {
    "train_accuracy": "training accuracy",
    "log_train_loss": "training loss, logarithm",
    "images_per_class": "training images a class",
}
COLUMNS_OF_QUESTIONS = ("r_gap", "tau_gap", "r_test_accuracy", "r_gap_given_fit", "r_gap_given_all")
_RANKING_COLUMNS = ["measure", "title", "family", "baseline", "n", "images", "reliability"]
_RANKING_COLUMNS += [f"{name}{end}" for name in COLUMNS_OF_QUESTIONS for end in ("", "_low", "_high")]
_RANKING_COLUMNS += [f"{questions.BETWEEN_CELLS}{end}" for end in ("", "_low", "_high")]
_RANKING_COLUMNS += ["p_adjusted", *(f"{ADDED}{end}" for end in ("", "_low", "_high")), "seconds"]
# Localization measures from which chance is taken away already; the others are held against the overlap above shuffled boxes.
_STAND_AS_BASELINES = ("training_accuracy", "training_loss")
_ABOVE_CHANCE = ("iou_above_shuffled", "energy_in_box", "pointing_game", "pixel_average_precision")
_THRESHOLDED = ("iou", "iou_b")
# Formulas of one map: a claim on several of them is one claim with variants.
_ALIKE = (_THRESHOLDED, (*_ABOVE_CHANCE, "area_matched_iou"))
_NO_MEAN = "no mean over images, so its halves would have to be scored anew"


def mask_areas(models: pd.DataFrame) -> pd.DataFrame:
    """Share of an image that boxes and masks cover, per model: as measured, else solved from the four metrics of its masks.

    With the share f of the pixels in boxes, ``frequency-weighted IoU = f IoU_object + (1 - f) IoU_background`` gives f; pixel accuracy
    and the object's IoU then give false and true positives (Long et al. 2015 for the metrics). All images are of one size, so f is also
    what a map that covers the whole image scores in IoU, on the images that this model was scored on.

    Returns:
        box and mask, in [0, 1], NaN where the metrics are absent or both IoUs are equal.
    """
    if {"whole_image_floor", "mask_area"} <= set(models):
        return models[["whole_image_floor", "mask_area"]].astype(float).set_axis(["box", "mask"], axis=1)
    names = ["mask_agreement", *(f"mask_agreement ({part})" for part in ("IoU of the object", "frequency-weighted IoU", "pixel accuracy"))]
    mean, item, weighted, accuracy = (models[name] if name in models else pd.Series(np.nan, models.index) for name in names)
    background = 2 * mean - item
    box = (weighted - background) / (item - background).where(item != background)
    extra = (item * box + 1 - box - accuracy) / (1 - item).where(item < 1)
    return pd.DataFrame({"box": box, "mask": item * (box + extra) + extra})


def study_gates(
    models: pd.DataFrame, classes: int, values: Mapping[str, ArrayLike] | None = None, claimed: Collection[str] = ()
) -> pd.DataFrame:
    """May this study speak: every gate for every measure that it concerns, see ``gates.gate_table``.

    Args:
        models: that enter the analysis: gap, test_accuracy, cell, stop_reason and a column per measure.
        classes: of the data set.
        values: (models, images) values of single images by name, of the same models; what is not there is not known, and does not pass.
        claimed: measures that something is claimed of, whose reliability is asked for although no values of single images were kept.
    """
    values = values or {}
    items = {name: item for name, item in registry.ranked().items() if name in models}
    unknown, areas = np.full((len(models), 1), np.nan), mask_areas(models)
    corrected = {name: above_chance(values, name) for name, item in items.items() if item.family == "localization"}
    corrected = {name: unknown if found is None else found for name, found in corrected.items()}
    wanted = {*corrected, *values, *claimed}
    reads = [name for name, item in items.items() if name in wanted and item.family != "norms"]  # norms are of the weights alone
    means = (*_THRESHOLDED, *_ALIKE[1], "box_found", "training_loss", "prediction_entropy", "effective_invariance")
    reasons = {name: "values of single images were not kept" if name in means else _NO_MEAN for name in reads if name not in values}
    return gate_table(
        models.assign(finished=~models["stop_reason"].fillna("").str.startswith("epoch cap")),
        classes=classes,
        mask_areas={name: areas["mask"] for name in _THRESHOLDED if name in items},
        floor=float(areas["box"].mean()),
        corrected=corrected,
        reliabilities={name: reliability(values[name]) if name in values else np.nan for name in reads},
        unknown=reasons,
    )


def reliabilities(gates: pd.DataFrame) -> pd.Series:
    """Reliability of each measure that a study gates, by measure; NaN where it is not known."""
    return gates[gates["gate"] == "models differ"].set_index("concerns")["value"]


def ranking(
    models: pd.DataFrame,
    axes: Sequence[str],
    seconds: Mapping[str, float],
    values: Mapping[str, ArrayLike] | None = None,
    *,
    read: Mapping[str, int] | None = None,
    draws: int,
    permutations: int,
    seed: int,
) -> questions.Ranking:
    """Every measure and every baseline by the same questions, the largest |r| with the gap first; see ``questions.ranking_table``.

    Args:
        models: that enter the analysis, with a column per measure and train_loss.
        axes: hyperparameters with more than one level.
        seconds: median per model, by measure.
        values: (models, images) values of single images, by measure, and of test_accuracy.
        read: number of images that each measure reads, see ``evidence.images_read``; 0 for the weights alone.
        draws: of the intervals; 0 gives point values alone.
        permutations: of the null.
        seed: of both.

    Returns:
        The table with title, family, direction (0 for a baseline), baseline and seconds, and the bands.
    """
    models = questions.with_fit(models)
    items = {name: item for name, item in registry.ranked().items() if name in models and name not in _STAND_AS_BASELINES}
    names = [*items, *BASELINES]
    table, bands = questions.ranking_table(models, names, axes, images=values, draws=draws, permutations=permutations, seed=seed)
    facts = {
        "title": [items[name].title if name in items else BASELINES[name] for name in names],
        "family": [items[name].family if name in items else "baseline" for name in names],
        "direction": [items[name].direction if name in items else 0 for name in names],
        "baseline": [name in BASELINES for name in names],
        "images": table["images"].fillna(table["measure"].map(read or {})),
        "seconds": [seconds.get(items[name].name, np.nan) if name in items else 0.0 for name in names],
    }
    table = table.assign(**facts)
    order = np.argsort(-table["r_gap"].abs().fillna(-1), kind="stable")
    return questions.Ranking(table.iloc[order].reset_index(drop=True), bands)


def ranking_columns(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of ``measures_ranking.csv``, NaN where point values alone were asked for."""
    return table.reindex(columns=_RANKING_COLUMNS)


def judged_claims(work: Path, table: pd.DataFrame, gates: pd.DataFrame) -> tuple[pd.DataFrame, KeptClaims]:
    """Verdicts on the claims of a study (see ``verdicts.judged``), and since when they stand; no row where nothing was claimed."""
    kept = kept_claims(work)
    return judged(kept.claims, table, gates, _ALIKE), kept


def claimed_measures(work: Path) -> list[str]:
    """Measures that a study claims something of."""
    return [claim["measure"] for claim in kept_claims(work).claims]


def stated(claims: pd.DataFrame, kept: KeptClaims) -> pd.DataFrame:
    """What was claimed and when: a row for each of ``judged_claims``, in its order.

    Returns:
        claim, measure, question, side, variant_of, primary, digest of all, first_seen (UTC), runs that were there by then.
    """
    return claims[["claim", *STATED_COLUMNS, "primary"]].assign(digest=kept.digest, first_seen=kept.first_seen, runs=kept.runs)


def _gate_value(row: Any) -> str:
    if not np.isfinite(row.value):
        return "not known"
    if row.gate == "gaps differ":
        return f"{row.value:.1f} points"
    if row.gate in ("networks learnt", "networks finished"):
        return percent(row.value)
    return f"{row.value:.0f}" if row.gate == "enough cells" else f"{row.value:.2f}"


def say_gates(gates: pd.DataFrame) -> str:
    """Answer in one sentence whether the study may speak: which gates are closed, for what, with what value."""
    closed = gates[~gates["passes"].astype(bool)]
    if not len(closed):
        return f"**This study may speak**: all {len(gates)} gates are passed."
    for_all, single = (closed[(closed["concerns"] == ANY_MEASURE) == every] for every in (True, False))
    parts = [f"{row.gate} ({_gate_value(row)}; {row.limit})" for row in for_all.itertuples()]
    if parts:
        own = int((gates["concerns"] != ANY_MEASURE).sum())
        more = f", and {len(single)} of the {own} that concern one measure" if len(single) else ""
        return f"**This study may not speak**: of the gates that concern every claim these are closed: {'; '.join(parts)}{more}."
    titles = {name: registry.ranked()[name].title if name in registry.ranked() else name for name in single["concerns"].unique()}
    for name, rows in single.groupby("gate", sort=False):
        unknown = rows["value"].isna().sum()
        why = f"not known for {unknown} of {len(rows)}" if unknown else _gate_value(next(rows.itertuples())) if len(rows) == 1 else ""
        parts.append(f"{name} ({listed([titles[item] for item in rows['concerns']], 2)}{': ' if why else ''}{why})")
    return (
        f"**This study may speak of some measures only**. Nothing is judged of {listed(list(titles.values()), 10)}, since of "
        f"{len(gates)} gates {len(closed)} are closed to them: {'; '.join(parts)}. Limits: table `gates`."
    )


def _numbers(row: Any) -> str:
    unit = " points" if row.question == ADDED else ""
    text = f"{row.ours:.2f}{unit} ({interval(row.ci_low, row.ci_high)})" if np.isfinite(row.ours) else "undefined"
    text += f", published {row.published:.2f}" if np.isfinite(row.published) else ""
    return f"{text}, n = {row.n:.0f}"


def claim_sentence(row: Any) -> str:
    """One claim with its verdict and the numbers it stands on, a row of ``judged_claims``."""
    text = f"{row.claim}: **{row.verdict}**; here {_numbers(row)}"
    if np.isfinite(row.p_adjusted):
        text += f", adjusted p {row.p_adjusted:.2g}"
    if row.verdict == CANNOT_TELL and row.question == ADDED and row.p_adjusted < SIGNIFICANT:  # any other dealing of it does worse
        text += ", that of r given fit and hyperparameters: it says something of the gap, but not that error is saved"
    text += _between(row)
    if np.isfinite(row.between_cells) and _apart(row.ci_low, row.ci_high) and not _apart(row.between_cells_low, row.between_cells_high):
        text += ", so it need not hold between networks that are trained differently"
    untold = row.verdict not in (NOT_TESTED, SUPPORTED, CONTRADICTED) and not _apart(row.ci_low, row.ci_high)
    if untold and np.isfinite(row.smallest_r):
        text += f"; {row.smallest_r:.2f}{' points' if row.question == ADDED else ''} could have been told from 0"
    return text


def _between(row: Any) -> str:
    if not np.isfinite(row.between_cells):
        return ""
    return f"; means of cells {row.between_cells:.2f} ({interval(row.between_cells_low, row.between_cells_high)})"


def _apart(low: float, high: float) -> bool:
    return low > 0 or high < 0


def say_claims(claims: pd.DataFrame, *, primary: bool = True) -> str:
    """The primary claims, or all others, each with its verdict, its numbers, and its variants below it."""
    claims = claims.assign(variant_of=claims["variant_of"].fillna(""))  # as it is read back from a table
    chosen = claims[(claims["primary"].astype(bool) == primary) & (claims["variant_of"] == "")]
    if not len(chosen):
        return "Nothing was claimed before the first run, so every number here is exploration and none is a verdict." if primary else ""
    lines = []
    for row in chosen.itertuples():
        lines.append(f"- {claim_sentence(row)}.")
        below = claims[(claims["variant_of"] == row.claim) & (claims["question"] == row.question)]
        lines += [
            f"    - as a variant, not judged apart: {other.claim}: {_numbers(other)}{_between(other)}." for other in below.itertuples()
        ]
    return "\n".join(lines)


def say_stated(facts: pd.DataFrame) -> str:
    """Sentence on whether the claims are older than the first run, and by which hash they are known; "" where there are none."""
    if not len(facts):
        return ""
    row = facts.iloc[0]
    age = f"when {count(int(row['runs']), 'run')} were there already, so not beforehand" if row["runs"] else "before the first run"
    return f"The claims (hash `{row['digest']}`) were first seen on {row['first_seen']} UTC, {age}."


def say_ranking(table: pd.DataFrame, bands: Mapping[str, float]) -> str:
    """Sentence on the measures that go with the gap beyond what chance gives the best of so many, as promised or the other way."""
    own = table[~table["baseline"].astype(bool)].dropna(subset="r_gap")
    if not len(own) or "r_gap_p_adjusted" not in own or not own["r_gap_low"].notna().any():
        return "Too few models or cells for a ranking with intervals."
    text = f"Of {count(len(own), 'measure')}"
    for question, words in (("r_gap", "alone"), ("r_gap_given_fit", "given the fit"), ("r_gap_given_all", "given fit and hyperparameters")):
        clear = own[own[f"{question}_p_adjusted"] < 0.05]
        kept = np.sign(clear[question]) == -clear["direction"]
        some = f", {int(kept.sum())} as promised and {int((~kept).sum())} the other way ({listed(clear['title'].tolist(), 3)})"
        text += f"; {words} {len(clear) or 'none'} go with the gap{some if len(clear) else ''}"
    first = own.iloc[0]
    seen = f" on {first['images']:.0f} images" if first["images"] > 0 else ""
    promise = "as promised" if np.sign(first["r_gap"]) == -first["direction"] else "the other way"
    return (
        f"{text.replace(';', ',', 1)} (adjusted p below 0.05 over all of them). Largest: **{first['title']}**, r = {first['r_gap']:.2f} "
        f"({interval(first['r_gap_low'], first['r_gap_high'])}, n = {int(first['n'])}{seen}), {promise}, "
        f"adjusted p {first['p_adjusted']:.2g}. Chance alone moves one of all by up to {bands.get('r_gap', np.nan):.2f} from what the "
        f"snapshots of the same cells give it, {own['r_gap_null'].min():.2f} to {own['r_gap_null'].max():.2f}."
    )


def say_field_answer(table: pd.DataFrame, gates: pd.DataFrame) -> str:
    """Sentence on how many measures tell the gap alone, given fit and hyperparameters, and in what they add, beyond chance."""
    own = table[~table["baseline"].astype(bool)].dropna(subset="r_gap")
    if not len(own) or "r_gap_p_adjusted" not in own:
        return "Too few models or cells to tell one measure from another."
    alone, given = (int((own[f"{question}_p_adjusted"] < 0.05).sum()) for question in ("r_gap", "r_gap_given_all"))
    adds = int((own[f"{ADDED}_low"] > 0).sum())
    verdict = "" if gates["passes"].all() else " Not all gates are passed, so this is no verdict."
    return (
        f"Of {count(len(own), 'measure')} {alone} go with the gap beyond what chance gives the best of so many, {given} given fit and "
        f"hyperparameters too, and {adds} lower the error of the gap predicted without them, each by its own interval.{verdict}"
    )


def say_added(table: pd.DataFrame, known: pd.DataFrame) -> str:
    """Sentence on what is known of the gap in advance, and which measures lower the error of its prediction.

    Args:
        table: rows of ``ranking``.
        known: see ``questions.known_in_advance``.
    """
    errors = known.set_index("known")["error_points"]
    if not errors.notna().all():
        return "Too few cells to predict the gap of one from the others."
    each = ", ".join(f"{name} by {value:.2f}" for name, value in errors.items())
    text = f"Error of the predicted gap of cells left out, in points: {each}."
    own = table[~table["baseline"].astype(bool)].dropna(subset=[f"{ADDED}_low"]).sort_values(ADDED, ascending=False)
    if not len(own):
        return f"{text} There are too few cells for an interval of what a measure adds."
    better, worse = own[own[f"{ADDED}_low"] > 0], own[own[f"{ADDED}_high"] < 0]
    named = zip(better["title"], better[ADDED], better[f"{ADDED}_low"], better[f"{ADDED}_high"], strict=True)
    names = [f"{title} {gain:.2f} ({interval(low, high)})" for title, gain, low, high in list(named)[:4]]
    lowered = f" ({'; '.join(names)})" if names else ""
    return (
        f"{text} Beside hyperparameters and fit, {len(better)} of {count(len(own), 'measure')} lower it with an interval above 0{lowered}, "
        f"{len(worse)} raise it; each interval stands alone, and {0.025 * len(own):.1f} of so many would lie above 0 by luck alone."
    )


@style()
def added_figure(table: pd.DataFrame, known: pd.DataFrame, most: int = 40) -> Figure:
    """Draw by how many points each measure lowers the error of the predicted gap beside hyperparameters and fit, with its interval."""
    every = table[~table["baseline"].astype(bool)].dropna(subset=ADDED).sort_values(ADDED, ascending=False)
    own = every.head(most).iloc[::-1]
    if not len(own):
        return nothing_to_draw("Too few cells to predict the gap of one from the others.")
    figure, ax = plt.subplots(figsize=(8.5, 1.6 + 0.25 * len(own)), layout="constrained")
    at = np.arange(len(own))
    ax.axvline(0, color="black", linewidth=0.8)
    ax.hlines(at, own[f"{ADDED}_low"], own[f"{ADDED}_high"], color="C0", linewidth=2, alpha=0.6)
    ax.plot(own[ADDED], at, "o", color="C0")
    ax.set_yticks(at, [f"{row.title} (n = {row.n})" for row in own.itertuples()], fontsize="small")
    errors = known.set_index("known")["error_points"]
    ax.set(ylim=(-0.7, len(own) - 0.3), xlabel="points by which the measure lowers the error (95 % interval over cells)")
    part = f"the first {len(own)} of {len(every)} measures; " if len(own) < len(every) else ""
    ax.set_title(f"{part}error without it: " + ", ".join(f"{name} {value:.2f}" for name, value in errors.items()), fontsize="small")
    return figure


_PANELS = {
    "tau_gap": "Kendall's tau\nwith the gap",
    "r_gap": "r with the gap",
    "r_test_accuracy": "r with\ntest accuracy",
    "r_gap_given_fit": "r with the gap,\ngiven the fit",
    "r_gap_given_all": "given fit and\nhyperparameters",
}


@style()
def ranking_figure(table: pd.DataFrame, bands: Mapping[str, float]) -> Figure:
    """Draw every measure by every question with its interval, in the sign of the raw measure, and what it costs per model.

    Filled markers have the sign that the measure promises, hollow ones the other, grey ones are baselines; the shaded band holds
    all measures in 95 % of the permutations, around what the snapshots within cells give each.

    Args:
        table: see ``ranking``.
        bands: by question.
    """
    table = table.dropna(subset="r_gap").iloc[::-1]
    if not len(table):
        return nothing_to_draw("No measure has a defined correlation with the gap.")
    size = (3.6 + 1.9 * len(_PANELS), 2 + 0.25 * len(table))
    figure, axes = plt.subplots(1, len(_PANELS) + 1, figsize=size, layout="constrained", sharey=True, width_ratios=[2] * len(_PANELS) + [1])
    at = np.arange(len(table))
    for ax, (question, title) in zip(axes, _PANELS.items(), strict=False):
        if np.isfinite(bands.get(question, np.nan)):
            centre = table[f"{question}_null"].to_numpy(dtype=float)
            ax.barh(at, 2 * bands[question], left=centre - bands[question], height=1, color="0.9", linewidth=0, zorder=0)
        ax.axvline(0, color="black", linewidth=0.8)
        promised = table["direction"] * (1 if question == "r_test_accuracy" else -1)
        kind = np.where(table["baseline"].astype(bool), 0, np.where(np.sign(table[question]) == promised, 1, 2))
        for number, (colour, marker, filled) in enumerate([("0.45", "s", "full"), ("C0", "o", "full"), ("C0", "o", "none")]):
            own = table[kind == number].reindex(columns=[question, f"{question}_low", f"{question}_high"])
            ends = own[[f"{question}_low", f"{question}_high"]].assign(gap=np.nan).to_numpy(dtype=float).ravel()  # one path for all
            ax.plot(ends, np.repeat(at[kind == number], 3), color=colour, linewidth=1.8, alpha=0.6, solid_capstyle="butt")
            ax.plot(own[question], at[kind == number], marker, color=colour, fillstyle=filled, markersize=5)
        ax.set(xlim=(-1.05, 1.05), xticks=[-1, 0, 1])
        ax.set_title(title, fontsize="small")
    reliable = [f" ({row.reliability:.2f})" if np.isfinite(row.reliability) else "" for row in table.itertuples()]
    names = [f"{row.title}{' [baseline]' if row.baseline else known}" for row, known in zip(table.itertuples(), reliable, strict=True)]
    axes[0].set_yticks(at, names, fontsize="x-small")
    axes[0].set_ylim(-0.7, len(table) - 0.3)
    shown = table["seconds"].to_numpy(dtype=float) > 0
    axes[-1].plot(table["seconds"][shown], at[shown], "o", color="C1", markersize=4)
    axes[-1].set(xscale="log" if shown.any() else "linear")
    axes[-1].set_title("seconds\nper model", fontsize="small")
    words = "filled: the sign that the measure promises; hollow: the other; shaded: chance for the farthest of all; (reliability)"
    figure.supxlabel(words, fontsize="small")
    return figure


def say_conditional(table: pd.DataFrame, undefined: str, titles: Mapping[str, str]) -> str:
    """Sentence on the measure with the highest conditional information and the lowest sign error, each with its adjusted p.

    Args:
        table: see ``tables.conditional_table``.
        undefined: why the sign error is, in words; "" where it is not.
        titles: measure to its name.
    """
    parts = []
    for name, words, best in (
        ("conditional_information", "highest conditional information", "idxmax"),
        ("sign_error", "lowest sign error of a worst environment", "idxmin"),
    ):
        if name not in table or not table[name].notna().any():
            continue
        row = table.loc[getattr(table[name], best)()]
        parts.append(f"{words}: {titles[row['measure']]} with {row[name]:.2f}, adjusted p {row[f'{name}_p_adjusted']:.2g}")
    text = "; ".join(parts)
    if text:
        text = f"{text[0].upper()}{text[1:]}, of {count(len(table), 'measure')} by {table['permutations'].iloc[0]:,} permutations. "
    return f"{text}The sign error is undefined for every measure: {undefined}." if undefined else text.strip()


def say_reliability(table: pd.DataFrame) -> str:
    """Sentence on how reliable the measures that read images are, and on how many images."""
    known = table.dropna(subset="reliability")
    if not len(known):
        return "The reliability of no measure is known, since no values of single images were kept."
    low = known[known["reliability"] < 0.8]
    worst = known.loc[known["reliability"].idxmin()]
    return (
        f"Of {count(len(known), 'measure')} with values of single images, {len(low)} have a reliability below 0.8; the lowest is "
        f"{worst['title']} with {worst['reliability']:.2f} on {worst['images']:.0f} images, so its |r| can hardly exceed "
        f"{percent(np.sqrt(max(worst['reliability'], 0)))} of 1."
    )


def repeatability(models: pd.DataFrame, titles: Mapping[str, str]) -> pd.DataFrame:
    """Intraclass correlation ICC(1) of gap, test accuracy and every measure over runs that differ in their seed alone.

    Args:
        models: gap, test_accuracy, cell, snapshot, repeat and a column per measure.
        titles: measure to its name.

    Returns:
        measure, title, icc (at most 1: nothing but the cell moves it), groups of repeats and n models in them; no row without repeats.
    """
    group = models["cell"].astype(str) + "@" + models["snapshot"].astype(str)
    again = models[models.groupby(group)["repeat"].transform("nunique") > 1]
    names = {"gap": "gap", "test_accuracy": "test accuracy"} | {name: title for name, title in titles.items() if name in models}
    shared = group[again.index]
    rows = [(name, title, intraclass_correlation(again[name], shared), again[name].notna().sum()) for name, title in names.items()]
    table = pd.DataFrame(rows, columns=["measure", "title", "icc", "n"]).assign(groups=shared.nunique())
    return table if len(again) else table.iloc[:0]


def say_repeatability(table: pd.DataFrame) -> str:
    """Sentence on how much of the variance of the gap lies between cells, and of which measure the least does."""
    if not len(table):
        return "No two models that are analysed differ in their seed alone, so what a seed moves is not known."
    gap, known = table.iloc[0], table.iloc[2:].dropna(subset="icc")
    text = f"Of the variance of the gap {percent(gap['icc'])} lies between the {gap['groups']} cells with repeats, the rest between seeds"
    if not len(known):
        return f"{text}."
    least = known.loc[known["icc"].idxmin()]
    few = int((known["icc"] < 0.5).sum())
    return f"{text}; {few} of {count(len(known), 'measure')} have less than half there, least {least['title']} ({least['icc']:.2f})."


def say_spread_over_seeds(spread: pd.DataFrame, models: pd.DataFrame, titles: Mapping[str, str]) -> str:
    """Sentence on how far the noise of flatness moves with its draws, beside how far it lies apart between models.

    Args:
        spread: of ``scoring.spread_over_seeds``.
        models: those that are analysed, with columns of measures where these were scored.
        titles: measure to its name.
    """
    told = []
    for row in spread[spread["measure"].isin(models.columns) & (spread["n"] > 1)].itertuples():
        values = models[row.measure].replace([np.inf, -np.inf], np.nan)
        said = f"{titles[row.measure]} spreads by {percent(row.spread / row.mean)} of its mean over {count(row.n, 'seed')} of its noise"
        told.append(f"{said}, between models by {percent(values.std() / values.mean())}")
    if not told:
        return "Flatness was not scored, or is undefined, so what its draws move is not known."
    return f"With other draws, for one model: {'; '.join(told)}."

"""What a study answers, in plain words with the numbers of its tables."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.report.markup import inert
from helpers.report.style import count, listed, percent, with_interval
from helpers.statistics.baselines import START
from helpers.statistics.draws import FEWEST_CONFIGURATIONS
from helpers.statistics.primary import (
    PAPER_ACCURACY,
    SETTING,
    WITHIN_SETTINGS,
    primary_rows,
)
from helpers.statistics.published import published_table
from helpers.statistics.verdicts import (
    ANY_MEASURE,
    LARGER,
    NOT_REPRODUCED,
    REPRODUCED,
    SMALLER,
    claimed,
    verdict,
    word,
)

# Of a report, by name, see ``findings.READ``; what is absent is named.
Tables = Mapping[str, pd.DataFrame]
CAUSAL = (
    "We varied training, not attention: this can show that a kind of training lowers "
    "the gap, and cannot show that looking at the object does."
)
PAPER, PAPER_ARCHITECTURE, PAPER_THRESHOLD = "iou", "resnet18", 0.8
# Where a network looks, chance taken off; what it needs.
LOOKING = ("area_matched_iou", "pointing_game", "object_reliance")
HEADS = ["question", "answer", "number", "how far to trust it"]
# Share of networks that did not learn, above which a study answers nothing.
MOST_UNLEARNT = 0.6
# A condition that does not hold, as a reader's sentence.
_REASONS = {
    "the mask can miss": "The mask covers {share} of the image.",
    "boxes leave room": "Boxes fill {share} of the image.",
    "beats a fixed central map": "A fixed central spot scores higher than {rest} of the networks.",
    "the map depends on the image": "The maps of only {share} of the networks depend on the image.",
    "models differ": "Two halves of the images disagree on the networks (reliability {value:.2f}).",
    "gaps differ": "Gaps span only {value:.0f} points.",
    "networks learnt": "The median test accuracy is only {share} of the way from chance to perfect.",
    "networks finished": "Only {share} of the networks stopped by a rule.",
    "enough configurations": "There are only {value:.0f} configurations.",
}


class Row(NamedTuple):
    """A row of ``HEADS``."""

    question: str
    answer: str
    number: str
    trust: str


class Answer(NamedTuple):
    """What stands first on a study's page and in its FINDINGS, Markdown."""

    warning: str  # why there are no verdicts, or nothing at all; "" where there are
    sentences: tuple[str, ...]
    rows: pd.DataFrame  # of ``HEADS``, one a question; empty where nothing is concluded


def answer(tables: Tables) -> Answer:
    """The answer of a study.

    Args:
        tables: of its report, see ``primary.primary_table``,
            ``baselines.across_studies``, ``baselines.matched_pairs``,
            ``verdicts.judged`` and ``verdicts.gate_table``.

    Returns:
        Sentences and a row per question; a warning alone where nothing is concluded.
    """
    nothing = pd.DataFrame(columns=HEADS)
    stop = _nothing_said(tables)
    if stop is not None:
        return Answer(stop, (), nothing)
    table = tables["primary"]
    table = table.assign(title=table["title"].map(_short))
    table = table.set_index("measure", drop=False)
    measures = table[~table["baseline"].astype(bool)]
    warning = _warning(measures, tables)
    answered = [
        _paper(measures, tables, bool(warning)),
        _looking(table, measures, tables),
        _other_study(tables),
        _held_out(table, measures),
        _pairs(tables),
        ("", _cause(measures, tables)),
    ]
    sentences = tuple(sentence for sentence, _ in answered if sentence)
    rows = [row for _, row in answered if row is not None]
    return Answer(
        warning, () if warning else sentences, pd.DataFrame(rows, columns=HEADS)
    )


def _short(title: str) -> str:
    """A title as text; that chance is taken off is said once for all, see ``meant``."""
    return inert(title).removesuffix(", above chance")


def _nothing_said(tables: Tables) -> str | None:
    """Why a study answers nothing at all; "" without networks, None where it answers."""
    unlearnt = not_learnt(tables.get("catalogue"))
    if unlearnt:
        return unlearnt
    if "primary" not in tables:
        if "catalogue" not in tables:
            return ""
        return (
            "This report holds no primary analysis (table `primary`), so it gives no "
            "answer as a whole; run notebook 04 of it anew."
        )
    if "baseline" not in tables["primary"] and len(tables["primary"]):
        return (
            "The primary analysis of this report is of an earlier version, which holds "
            "measures against no baselines; run notebook 04 of it anew."
        )
    if not len(tables["primary"]) or tables["primary"]["baseline"].astype(bool).all():
        return _nothing_primary(tables.get("catalogue"))
    return None


def _warning(measures: pd.DataFrame, tables: Tables) -> str:
    """Why a study that answers gives no verdicts; "" where it does."""
    if not np.isfinite(measures["r_gap_low"]).any():
        networks = count(int(measures["n"].max()), "network")
        return (
            f"With {networks} above 80 % training accuracy this study is too small for "
            f"verdicts; its numbers show how a report reads."
        )
    if not len(tables.get("claims", ())):
        return (
            "Nothing was claimed before the first run, so there are no verdicts here: "
            "every number is exploration."
        )
    return ""


def not_learnt(catalogue: pd.DataFrame | None) -> str:
    """The sentence of a study in which too few networks learnt, with the remedy; "" where enough did."""
    if catalogue is None or not len(catalogue):
        return ""
    # Snapshots are in the order of their names: first, stop.
    last = catalogue.drop_duplicates("run_id", keep="last")
    failed = last[
        last["left_out"].astype(str).str.startswith("train accuracy not above")
        | last["snapshot"].eq("none")
    ]
    if len(failed) <= MOST_UNLEARNT * len(last):
        return ""
    low, high = failed["train_accuracy"].min(), failed["train_accuracy"].max()
    reached = ""
    if np.isfinite(low):
        reached = f" (training accuracy {percent(low)} to {percent(high)})"
    epochs = 2 * int(last["max_epochs"].max())
    return (
        f"{len(failed)} of {count(len(last), 'network')} did not learn enough{reached}, "
        f"so nothing is concluded: give them {epochs} epochs (`max_epochs`) or more "
        f"images."
    )


def _nothing_primary(catalogue: pd.DataFrame | None) -> str:
    """Why a primary analysis has no measure, and the remedy."""
    if catalogue is None or not len(catalogue) or primary_rows(catalogue).any():
        return (
            "None of the measures of the primary analysis has a value here, so nothing "
            "is concluded: name others in `primary_measures`, or add their `families`."
        )
    last = catalogue[catalogue["snapshot"].ne("first")]
    networks = count(len(last), "network")
    best = last["train_accuracy"].max()
    highest = f" (the highest: {percent(best)})" if np.isfinite(best) else ""
    return (
        f"None of {networks} reached {percent(PAPER_ACCURACY)} training accuracy on "
        f"right labels{highest}, as the primary analysis asks, so nothing is "
        f"concluded: give them more epochs (`max_epochs`)."
    )


def published_r(architecture: str = PAPER_ARCHITECTURE) -> float:
    """The paper's r of IoU and gap above 80 % training accuracy: Du et al. 2024, Table 3.

    Args:
        architecture: one of the table, or "Total".
    """
    table = published_table("du2024_table3").set_index(
        ["method", "architecture", "threshold"]
    )
    return float(table.loc[(PAPER, architecture, PAPER_THRESHOLD), "pearson_r"])


def reasons(tables: Tables, measure: str) -> str:
    """The conditions that a measure ("all": any measure) does not meet, in words, three at most."""
    if "gates" not in tables:
        return ""
    gates = tables["gates"]
    concerned = gates["concerns"].eq(measure) & ~gates["passes"].astype(bool)
    words = []
    for gate, value in gates.loc[concerned, ["gate", "value"]].head(3).to_numpy():
        form = _REASONS.get(gate, f"{gate}: no.")
        if not np.isfinite(value):
            form = f"{gate}: not known."
        sentence = form.format(
            value=value, share=percent(value), rest=percent(1 - value)
        )
        words.append(" " + sentence)
    return "".join(words).replace("100 % of the networks", "every network")


def _r(row: pd.Series, question: str) -> str:
    ends = [question, f"{question}_low", f"{question}_high"]
    return "r = " + with_interval(*row[ends])


def _size(measures: pd.DataFrame) -> str:
    networks = count(int(measures["n"].max()), "network")
    kinds = count(int(measures["kinds"].max()), "kind")
    return f"{networks} of {kinds} of training"


def _missing(measures: pd.DataFrame, tables: Tables) -> str:
    """The measures that some networks have no value of; "" where all have all."""
    networks = int(measures["n"].max())
    if len(tables.get("catalogue", ())):
        networks = max(networks, int(primary_rows(tables["catalogue"]).sum()))
    fewer = measures[measures["n"] < networks]
    if not len(fewer):
        return ""
    each = [
        f"{row['title']} in {networks - row['n']:.0f}" for _, row in fewer.iterrows()
    ]
    return (
        f" Values are missing: {listed(each)} of {count(networks, 'network')} (the table "
        f"not_computed and notebook 04 give the reason)."
    )


def _paper(
    measures: pd.DataFrame, tables: Tables, mute: bool
) -> tuple[str, Row | None]:
    question = (
        "Does the paper's measure, the overlap of map and box (IoU), correlate with the "
        "gap above 80 % training accuracy?"
    )
    if PAPER not in measures.index or not np.isfinite(measures.loc[PAPER, "r_gap"]):
        sentence = (
            "The paper's measure, the overlap of a network's map with the object's box "
            "(IoU), could not be asked of this study."
        )
        return sentence, Row(question, "Not asked.", "–", _size(measures))
    row = measures.loc[PAPER]
    result = claimed(PAPER, "r_gap", tables.get("claims"))
    if result is None:
        ends = row[["r_gap_low", "r_gap_high", "r_gap_p"]]
        result = verdict(-1, *ends, published_r(), significant=1 - row["level"])
    number = (
        f"{_r(row, 'r_gap')}; the paper: {published_r():.2f} in ResNet18, "
        f"{published_r('Total'):.2f} in all its architectures"
    )
    models = tables.get("catalogue", pd.DataFrame({"left_out": []}))
    out = int((models["left_out"].notna() & models["left_out"].ne("")).sum())
    short = f"; {out} that learnt less left out" if out else ""
    shown = "No verdict" if mute else result.capitalize()
    return _paper_sentence(row, result), Row(
        question,
        f"**{shown}.**{reasons(tables, PAPER)}",
        number,
        f"{_size(measures)}{short}.{_missing(measures, tables)}",
    )


def _paper_sentence(row: pd.Series, result: str) -> str:
    numbers = f"(r = {row['r_gap']:.2f}; the paper: {published_r():.2f})"
    overlap = "the overlap of map and box (IoU)"
    if result == REPRODUCED:
        return (
            f"The paper's result is reproduced: networks in which {overlap} is larger "
            f"have smaller gaps {numbers}."
        )
    if result == NOT_REPRODUCED:
        strength = "correlates less with the gap"
        if row["r_gap_low"] <= 0 <= row["r_gap_high"]:
            strength = "hardly correlates with the gap"
        elif row["r_gap_low"] > 0:
            strength = "is larger where the gap is larger"
        return f"The paper's result is not reproduced: {overlap} {strength} {numbers}."
    return (
        f"Whether the paper's result holds cannot be told here: the correlation of "
        f"{overlap} with the gap is too uncertain {numbers}."
    )


def _looking(
    table: pd.DataFrame, measures: pd.DataFrame, tables: Tables
) -> tuple[str, Row | None]:
    question = (
        "Do networks with smaller gaps point more at the object, beyond what their "
        "start, pretrained or not, explains?"
    )
    asked = measures.reindex(LOOKING).dropna(subset=["r_gap", "r_gap_given_start"])
    if not len(asked):
        absent = "Not asked: no measure of it is defined here."
        return "", Row(question, absent, "–", _size(measures))
    claims = tables.get("claims")
    each = [
        f"**{_given_start(row, claims)}**: {row['title']}.{reasons(tables, name)}"
        for name, row in asked.iterrows()
    ]
    numbers = [
        f"{row['title']}: {_r(row, 'r_gap')}, with the start held fixed "
        f"{_r(row, 'r_gap_given_start')}"
        for _, row in asked.iterrows()
    ]
    if START in table.index:
        numbers.append(f"pretrained alone: {_r(table.loc[START], 'r_gap')}")
    trust = [*_between_kinds(tables), *_within(asked.iloc[0], claims, tables)]
    # The first, not that of the largest r, which would be chosen for its luck.
    sentence = _looking_sentence(asked.iloc[0], table, claims)
    return sentence, Row(question, " ".join(each), "; ".join(numbers), " ".join(trust))


def _given_start(row: pd.Series, claims: pd.DataFrame | None) -> str:
    """The verdict given the start, as a word of a table."""
    found = word(row, "r_gap_given_start", claims)
    named = {SMALLER: "Yes, smaller gaps", LARGER: "No, larger gaps"}
    return named.get(found, found.capitalize())


def _looking_sentence(
    row: pd.Series, table: pd.DataFrame, claims: pd.DataFrame | None
) -> str:
    r = row["r_gap"]
    if word(row, "r_gap", None) != SMALLER:
        return (
            f"Networks with smaller gaps do not clearly point more at the object "
            f"({row['title']}: r = {r:.2f})."
        )
    points = (
        f"Networks with smaller gaps point more at the object ({row['title']}: "
        f"r = {r:.2f})"
    )
    if START not in table.index:
        return f"{points}; all networks have the same start."
    start = table.loc[START, "r_gap"]
    says = "says as much"
    if abs(start) > abs(r) + 0.05:
        says = "says more"
    elif abs(start) < abs(r) - 0.05:
        says = "says less"
    rest = {
        SMALLER: "with the start held fixed the correlation remains",
        LARGER: "with the start held fixed it turns round",
    }.get(
        word(row, "r_gap_given_start", claims),
        "whether a correlation remains with the start held fixed cannot be told",
    )
    given = row["r_gap_given_start"]
    return (
        f"{points}; whether they started pretrained {says} (r = {start:.2f}); "
        f"{rest} (r = {given:.2f})."
    )


def _between_kinds(tables: Tables) -> list[str]:
    kinds = tables.get("kinds", ())
    if not len(kinds):
        return []
    between = kinds["variance_between_kinds"].iloc[0]
    if not np.isfinite(between):
        return []
    share = percent(np.clip(between, 0, 1))
    return [f"{share} of the variance of the gap lies between kinds of training."]


def _within(row: pd.Series, claims: pd.DataFrame | None, tables: Tables) -> list[str]:
    """What is left of the first measure among networks trained alike, and its power."""
    r = row["r_gap_within_kinds"]
    if not np.isfinite(r):
        return []
    verdict_within = word(row, "r_gap_within_kinds", claims)
    sentences = [
        f"Within kinds, given training accuracy and loss, {row['title']} has "
        f"r = {r:.2f}: {verdict_within}."
    ]
    least = row["r_gap_within_kinds_least_p"]
    settings = _settings(tables)
    if least >= 1 - row["level"]:
        sentences.append(
            f"That test has no power: with so few arrangements its p cannot be below "
            f"{least:.2f}."
        )
    elif 1 < settings < FEWEST_CONFIGURATIONS:
        sentences.append(
            f"Only {count(settings, 'combination')} of optimizer, rate, decay and batch "
            f"size were run; an interval needs {FEWEST_CONFIGURATIONS}."
        )
    fixed = row[WITHIN_SETTINGS]
    p = row[f"{WITHIN_SETTINGS}_p"]
    if np.isfinite(p):
        smallest = row[f"{WITHIN_SETTINGS}_smallest"]
        power = ""
        if p >= 1 - row["level"] and np.isfinite(smallest):
            power = f"; this test could only tell an r beyond ±{smallest:.2f}"
        sentences.append(
            f"With optimizer, rate and decay held fixed for each start as well, "
            f"r = {fixed:.2f} (p = {p:.2g}){power}."
        )
    return sentences


def _settings(tables: Tables) -> int:
    """Combinations of what varies within kinds of training; each counts once, since kinds that share one are shifted alike."""
    models = tables.get("catalogue", ())
    if not len(models):
        return 0
    rows = models[primary_rows(models)]
    return len(rows.filter(items=SETTING).drop_duplicates())


def _least(table: pd.DataFrame, error: str) -> pd.Series | None:
    """The row with the least error; None where there is none."""
    defined = table.dropna(subset=error)
    return defined.loc[defined[error].idxmin()] if len(defined) else None


def _other_study(tables: Tables) -> tuple[str, Row | None]:
    """What networks of another study, other classes and images, predict."""
    across = tables.get("across")
    if across is None or not len(across):
        return "", None
    sentences, rows = [], []
    for trained_on, part in across.groupby("trained_on", sort=True):
        part = part.assign(title=part["title"].map(_short))
        is_baseline = part["baseline"].astype(bool)
        rival = _least(part[is_baseline], "error_points")
        best = _least(part[~is_baseline], "error_points")
        if best is None or rival is None:
            continue
        name = inert(str(trained_on))
        sentences.append(
            f"Trained on the networks of {name}, with other classes, training accuracy, "
            f"training loss and {best['title']} predict the gap with a mean error of "
            f"{best['error_points']:.1f} points; knowing how a network was trained "
            f"({rival['title']}) gives {rival['error_points']:.1f}."
        )
        better = "No measure clearly predicts it better"
        if best["error_points_high"] < rival["error_points_low"]:
            better = f"{best['title']} predicts it better"
        baselines = [
            f"{row['title']} {_points(row)}" for _, row in part[is_baseline].iterrows()
        ]
        rows.append(
            Row(
                "What predicts the gap on other classes, from the networks of another "
                "study?",
                f"**{better}** than {rival['title']}.",
                f"mean error in points, trained on {name}: with {best['title']} "
                f"{_points(best)}; {'; '.join(baselines)}",
                f"One other study, {count(int(best['n']), 'network')} judged; the best of "
                f"{(~is_baseline).sum()} measures, chosen on the same networks.",
            )
        )
    if not rows:
        return "", None
    return sentences[0], rows[0]


def _points(row: pd.Series) -> str:
    value = f"{row['error_points']:.1f}"
    low, high = row["error_points_low"], row["error_points_high"]
    return f"{value} ({low:.1f} to {high:.1f})" if np.isfinite(low) else value


def _held_out(table: pd.DataFrame, measures: pd.DataFrame) -> tuple[str, Row | None]:
    """What predicts the gap of a kind of training that was held out."""
    question = "What predicts the gap of a kind of training that was held out?"
    complete = measures[measures["n"] == measures["n"].max()]
    best = _least(complete, "error_with_twins")
    if best is None or not np.isfinite(best["error_best_twins"]):
        absent = "Cannot tell: there are too few kinds to hold one out."
        return "", Row(question, absent, "–", _size(measures))
    rival = table.loc[best["best_baseline"]]
    where = " in every architecture" if best["twins"] < best["kinds"] else ""
    low = best["saved_from_best_points_low"]
    high = best["saved_from_best_points_high"]
    p = best["saved_from_best_points_p_adjusted"]
    saved = best["saved_from_best_points"]
    clear = p < 1 - best["level"] and low > 0
    result = "no measure clearly predicts it better"
    if clear:
        result = f"{best['title']} predicts it better"
    elif saved <= 0:
        result = "no measure predicts it better"
    errors = f"{best['error_with_twins']:.1f}"
    sentence = (
        f"For kinds of training that were held out{where}, {rival['title']} have a mean "
        f"error of {best['error_best_twins']:.1f} points; {result} (with training "
        f"accuracy and loss, {best['title']}: {errors})."
    )
    baselines = [
        f"{row['title']} {row['error_with_twins']:.1f}"
        for _, row in table[table["baseline"].astype(bool)].iterrows()
    ]
    ends = f" ({low:.1f} to {high:.1f})" if np.isfinite(low) else ""
    return sentence, Row(
        question,
        f"**{result[0].upper()}{result[1:]}** than {rival['title']}.",
        f"mean error in points: with {best['title']} {errors}; {'; '.join(baselines)}",
        f"The best of {len(complete)} measures, chosen on the same networks, saves "
        f"{saved:.1f}{ends} points (p = {p:.2g}, adjusted).",
    )


def _pairs(tables: Tables) -> tuple[str, Row | None]:
    """What changes with the optimizer, in pairs of networks that are otherwise alike."""
    pairs = tables.get("pairs")
    if pairs is None or not len(pairs) or "area_matched_iou" not in pairs:
        return "", None
    change = pairs["gap"] * pairs["area_matched_iou"]
    opposite = int((change < 0).sum())
    larger = pairs[pairs["gap"] > 0]
    smaller = pairs[pairs["gap"] < 0]
    numbers = []
    for part, words in ((larger, "larger"), (smaller, "smaller")):
        if len(part):
            sizes = 100 * part["gap"].abs()
            numbers.append(
                f"gap {words} by {sizes.min():.1f} to {sizes.max():.1f} points in "
                f"{count(len(part), 'kind')}"
            )
    count_pairs = int(pairs["pairs"].sum())
    return "", Row(
        "What does Adam in place of SGD change, all else equal?",
        f"In {opposite} of {count(len(pairs), 'kind')} of training, area-matched overlap "
        f"and gap move in opposite directions.",
        "; ".join(numbers),
        f"{count(count_pairs, 'pair')} of networks that differ in the optimizer alone; "
        f"table pairs.",
    )


def _cause(measures: pd.DataFrame, tables: Tables) -> Row:
    kinds = int(measures["kinds"].max())
    return Row(
        "Does looking at the object lower the gap?",
        "**Not tested.** We varied training, not attention."
        + reasons(tables, ANY_MEASURE),
        "–",
        f"Intervals resample configurations within these {kinds} kinds of training and "
        f"are too narrow for others.",
    )

"""What a study answers, in plain words with the numbers of its tables: three sentences, four questions, the last of what it cannot say."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.report.markup import inert
from helpers.report.style import count, percent, with_interval
from helpers.statistics.draws import FEWEST_CONFIGURATIONS
from helpers.statistics.primary import PAPER_ACCURACY, SETTING, primary_rows
from helpers.statistics.published import published_table
from helpers.statistics.verdicts import ANY_MEASURE, NOT_REPRODUCED, REPRODUCED, verdict

_Told = tuple[
    str, str, str, str, str
]  # a sentence, "" for none, and a row of ``HEADS``
Tables = Mapping[
    str, pd.DataFrame
]  # of a report, by name, see ``findings.READ``; what is absent is said
CAUSAL = (
    "What was varied is how networks were trained, not where they look: this can show that a kind of training lowers the gap, "
    "and cannot show that looking at the object does."
)
PAPER, PAPER_ARCHITECTURE, PAPER_THRESHOLD = "iou", "resnet18", 0.8
LOOKING = (
    "area_matched_iou",
    "pointing_game",
    "object_reliance",
)  # where a network looks, chance taken off; what it needs
HEADS = ["question", "answer", "number", "how far to trust it"]
NAMED = "mixup_accuracy"  # always told of beside the best predictor
MOST_UNLEARNT = (
    0.6  # share of networks that did not learn, above which a study answers nothing
)
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


class Answer(NamedTuple):
    """What stands first on a study's page and in its FINDINGS, Markdown."""

    warning: str  # why there are no verdicts, or nothing at all; "" where there are
    sentences: tuple[str, ...]
    rows: pd.DataFrame  # of ``HEADS``, one a question; empty where nothing can be said


def answer(tables: Tables) -> Answer:
    """The answer of a study from its tables; see ``primary.primary_table``, ``verdicts.judged`` and ``verdicts.gate_table``."""
    nothing = pd.DataFrame(columns=HEADS)
    if unlearnt := not_learnt(tables.get("catalogue")):
        return Answer(unlearnt, (), nothing)
    if "primary" not in tables:
        told = "This report holds no primary analysis (table `primary`), so it gives no answer as a whole; run notebook 04 of it anew."
        return Answer(told if "catalogue" in tables else "", (), nothing)
    if not len(tables["primary"]):
        return Answer(_nothing_primary(tables.get("catalogue")), (), nothing)
    primary = (
        tables["primary"]
        .assign(title=tables["primary"]["title"].map(inert))
        .set_index("measure")
    )
    warning = ""
    if not np.isfinite(primary["r_gap_low"]).any():
        networks = count(int(primary["n"].max()) if len(primary) else 0, "network")
        warning = f"With {networks} above 80 % training accuracy this study is too small for verdicts; its numbers show how a report reads."
    elif not len(tables.get("claims", ())):
        warning = "Nothing was claimed before the first run, so there are no verdicts here: every number is exploration."
    answered = (
        _paper(primary, tables, bool(warning)),
        _looking(primary, tables),
        _prediction(primary, tables),
        _limits(primary, tables),
    )
    sentences = (
        () if warning else tuple(sentence for sentence, *_ in answered if sentence)
    )
    return Answer(
        warning, sentences, pd.DataFrame([row for _, *row in answered], columns=HEADS)
    )


def not_learnt(catalogue: pd.DataFrame | None) -> str:
    """The sentence of a study in which too few networks learnt, with the remedy; "" where enough did."""
    if catalogue is None or not len(catalogue):
        return ""
    last = catalogue.drop_duplicates(
        "run_id", keep="last"
    )  # snapshots are in the order of their names: first, stop
    failed = last[
        last["left_out"].astype(str).str.startswith("train accuracy not above")
        | last["snapshot"].eq("none")
    ]
    if len(failed) <= MOST_UNLEARNT * len(last):
        return ""
    low, high = failed["train_accuracy"].min(), failed["train_accuracy"].max()
    reached = (
        f" (training accuracy {percent(low)} to {percent(high)})"
        if np.isfinite(low)
        else ""
    )
    remedy = f"give them {2 * int(last['max_epochs'].max())} epochs (`max_epochs`) or more images"
    return f"{len(failed)} of {count(len(last), 'network')} did not learn enough{reached}, so nothing is concluded: {remedy}."


def _nothing_primary(catalogue: pd.DataFrame | None) -> str:
    """Why a primary analysis has no rows, and the remedy."""
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
    """The paper's r of IoU and gap above 80 % training accuracy, of one architecture or "Total": Du et al. 2024, Table 3."""
    table = published_table("du2024_table3").set_index(
        ["method", "architecture", "threshold"]
    )
    return float(table.loc[(PAPER, architecture, PAPER_THRESHOLD), "pearson_r"])


def reasons(tables: Tables, measure: str) -> str:
    """In words, the conditions that a measure ("all": any measure of the study) does not meet, three at most."""
    if "gates" not in tables:
        return ""
    gates = tables["gates"]
    shut = gates[gates["concerns"].eq(measure) & ~gates["passes"].astype(bool)].head(3)
    told = []
    for gate, value in zip(shut["gate"], shut["value"], strict=True):
        form = (
            _REASONS.get(gate, f"{gate}: no.")
            if np.isfinite(value)
            else f"{gate}: not known."
        )
        told.append(
            " "
            + form.format(value=value, share=percent(value), rest=percent(1 - value))
        )
    return "".join(told).replace("100 % of the networks", "every network")


def _side(row: pd.Series, question: str) -> int:
    """-1 or 1 where the interval lies on that side of 0, else 0."""
    return -1 if row[f"{question}_high"] < 0 else 1 if row[f"{question}_low"] > 0 else 0


def _r(row: pd.Series, question: str) -> str:
    return "r = " + with_interval(
        *row[[question, f"{question}_low", f"{question}_high"]]
    )


def _size(primary: pd.DataFrame) -> str:
    networks, kinds = (
        int(primary[name].max()) if len(primary) else 0 for name in ("n", "kinds")
    )
    return f"{count(networks, 'network')} of {count(kinds, 'kind')} of training"


def _paper(primary: pd.DataFrame, tables: Tables, mute: bool) -> _Told:
    question = "Does the paper's measure, the overlap of map and box (IoU), go with the gap above 80 % training accuracy?"
    if PAPER not in primary.index or not np.isfinite(primary.loc[PAPER, "r_gap"]):
        told = "The paper's measure, the overlap of a network's map with the object's box (IoU), could not be asked of this study."
        return told, question, "Not asked.", "–", _size(primary)
    row = primary.loc[PAPER]
    stated = (
        tables["claims"].query("measure == @PAPER and question == 'r_gap'")
        if len(tables.get("claims", ()))
        else ()
    )
    told = (
        stated["verdict"].iloc[0]
        if len(stated)
        else verdict(
            -1,
            *row[["r_gap_low", "r_gap_high", "r_gap_p"]],
            published_r(),
            significant=1 - row["level"],
        )
    )
    overlap, r = (
        "a network's map overlaps the object's box (IoU)",
        f"r = {row['r_gap']:.2f}",
    )
    how = {
        -1: "correlates less with its gap than in the paper",
        1: "goes with a larger gap",
    }
    how[0] = f"{how[-1]}, if at all"
    sentence = {
        REPRODUCED: f"The paper's result holds here: the more {overlap}, the smaller its gap, {r}.",
        NOT_REPRODUCED: f"The paper's result is not reproduced: how much {overlap} {how[_side(row, 'r_gap')]}, {r}.",
    }.get(
        told,
        f"Whether the paper's result holds cannot be told here: how much {overlap} goes with its gap is too uncertain, {r}.",
    )
    shown = (
        f"**{'No verdict' if mute else told.capitalize()}.**{reasons(tables, PAPER)}"
    )
    number = f"{_r(row, 'r_gap')}; the paper: {published_r():.2f} in ResNet18, {published_r('Total'):.2f} in all its architectures"
    models = tables.get("catalogue", pd.DataFrame({"left_out": []}))
    out = (models["left_out"].notna() & models["left_out"].ne("")).sum()
    return (
        sentence,
        question,
        shown,
        number,
        f"{_size(primary)}{f'; {out} that learnt less left out' if out else ''}.",
    )


def _looking(primary: pd.DataFrame, tables: Tables) -> _Told:
    question = "Does where a network looks go with its gap among networks trained alike (within kinds, given the fit)?"
    known = primary.reindex(LOOKING).dropna(subset=["r_gap", "r_gap_within_kinds"])
    if not len(known):
        return (
            "",
            question,
            "Not asked: no measure of it is defined here.",
            "–",
            _size(primary),
        )
    settings = _settings(tables)
    if few := 1 < settings < FEWEST_CONFIGURATIONS:
        known = known.assign(
            r_gap_within_kinds_low=np.nan, r_gap_within_kinds_high=np.nan
        )
    best = known.iloc[
        0
    ]  # not that of the largest r, which would be chosen for its luck
    within = (
        "it still does"
        if _side(best, "r_gap_within_kinds") == -1
        else "this cannot be told"
        if few
        else "nothing clear is left"
    )
    r, p = (
        best.get("r_gap_within_settings", np.nan),
        best.get("r_gap_within_settings_p", np.nan),
    )
    if np.isfinite(p) and _side(best, "r_gap_within_kinds") == -1:
        within += (
            ""
            if r < 0 and p < 1 - best["level"]
            else ", but not clearly with start, optimizer and rate the same"
        )
    goes = f"correlates with its gap, r = {best['r_gap']:.2f}; among networks trained alike {within}"
    goes = (
        goes
        if _side(best, "r_gap") == -1
        else f"does not clearly correlate with a smaller gap, r = {best['r_gap']:.2f}"
    )
    words = {-1: "Yes", 0: "Cannot tell", 1: "The other way round"}
    sides = {
        name: words[_side(row, "r_gap_within_kinds")] for name, row in known.iterrows()
    }
    each = [
        f"**{sides[name]}**: {inert(row['title'])}.{reasons(tables, name)}"
        for name, row in known.iterrows()
    ]
    numbers = "; ".join(
        _r(row, "r_gap_within_kinds") for _, row in known.iterrows()
    ) + (", respectively" if len(known) > 1 else "")
    trust = (
        f"Over all kinds r = {', '.join(f'{value:.2f}' for value in known['r_gap'])}"
    )
    others = primary.drop(index=[PAPER, *LOOKING], errors="ignore").dropna(
        subset="r_gap"
    )
    if len(others):
        strongest = others.loc[others["r_gap"].abs().idxmax()]
        trust += (
            f"; of {inert(strongest['title'])}, without boxes, {strongest['r_gap']:.2f}"
        )
    if len(kinds := tables.get("kinds", ())):
        trust += f"; {percent(np.clip(kinds['variance_between_kinds'].iloc[0], 0, 1))} of the differences in gap lie between kinds"
    trust += "."
    if settings > 1:
        combined = f"Optimizer, rate, decay and batch have {count(settings, 'combination')}, which shift all kinds alike"
        trust += f" {combined}{f': {FEWEST_CONFIGURATIONS} are needed' if few else ''}."
        trust += (
            f" With these held fixed for each start, the first has r = {r:.2f} (p = {p:.2g})."
            if np.isfinite(p)
            else ""
        )
    return (
        f"Where a network looks, by the {inert(best['title'])}, {goes}.",
        question,
        " ".join(each),
        numbers,
        trust,
    )


def _settings(tables: Tables) -> int:
    """Combinations of what varies within kinds of training; each counts once, since kinds that share one are shifted alike."""
    models = tables.get("catalogue", ())
    return (
        len(models[primary_rows(models)].filter(items=SETTING).drop_duplicates())
        if len(models)
        else 0
    )


def _prediction(primary: pd.DataFrame, tables: Tables) -> _Told:
    group = "kind of training"
    question, known = (
        f"What predicts the gap of a {group} that was not seen?",
        primary.dropna(subset="error_with"),
    )
    if not len(known):
        return (
            "",
            question,
            "Cannot be told: there are too few kinds to leave one out.",
            "–",
            _size(primary),
        )
    best = (
        known[known["n"] == known["n"].max()].sort_values("error_with").iloc[0]
    )  # errors of other networks are not to be compared
    end = "_twins" if best.get("twins", np.nan) < best["kinds"] else ""
    without, error, advance = (
        best.get(f"error_{name}{end}", np.nan) for name in ("without", "with", "known")
    )
    where = " in any architecture" if end else ""
    saved, low, high, p = best[
        [
            "saved_error_points",
            "saved_error_points_low",
            "saved_error_points_high",
            "saved_error_points_p",
        ]
    ]
    if low > 0:
        by = f"by training accuracy, training loss and the best measure, “{inert(best['title'])}”,"
        few = (
            ""
            if p < 1 - best["level"]
            else ", among these kinds: too few to say so of others"
        )
        no_better = (
            ", no better than by hyperparameters and fit" if advance <= error else ""
        )
        within = f"to within {error:.1f} points on average{no_better}{few}"
        sentence = (
            f"The gap of a {group} that was not seen{where} is predicted {by} {within}."
        )
        shown = f"**The fit with {inert(best['title'])}** errs least of measures{no_better or ', among these kinds'}."
    else:
        told = "No measure clearly adds to training accuracy and loss, which predict the gap of a"
        sentence = f"{told} {group} that was not seen{where} to {without:.1f} points."
        shown = "**No measure clearly adds** to training accuracy and loss (the fit)."
    number = [f"error of the fit {without:.1f} points"]
    number += (
        [f"of hyperparameters and fit {advance:.1f}"] if np.isfinite(advance) else []
    )
    number += [
        f"with {inert(row['title'])} {row[f'error_with{end}']:.1f}"
        for name, row in known.iterrows()
        if name in (best.name, NAMED)
    ]
    ends = f" ({low:.1f} to {high:.1f})" if np.isfinite(low) else ""
    known_twin = ", where the kind is known in another architecture" if end else ""
    trust = f"The best of {len(known)} measures, chosen on the same networks, saves {saved:.1f}{ends} points beside the fit{known_twin}."
    return sentence, question, shown, "; ".join(number), trust


def _limits(primary: pd.DataFrame, tables: Tables) -> _Told:
    told = f"**Not tested.** Training was varied, looking was not.{reasons(tables, ANY_MEASURE)}"
    kinds = int(primary["kinds"].max()) if len(primary) else 0
    trust = f"Intervals and p draw configurations, not kinds: of kinds other than these {kinds} they say too much."
    return "", "Does looking at the object lower the gap?", told, "–", trust

"""What is said of judged checkpoints: one line of answer, why some are not judged, what it rests on, and a card for each."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.files import complete_or_absent, inside
from helpers.measures import registry
from helpers.networks.weights import Form
from helpers.report.style import count, listed, percent, points
from helpers.select.calibration import Calibration
from helpers.select.described import described
from helpers.select.judging import NOT_JUDGED, NOT_READ, ORDERED, Scored

AS_GOOD = 0.1  # probability of being better than the first from which on a checkpoint is as good within error
_LIMITS = "It replaces no test on held-out images, and says nothing of images of another kind, of fairness, or of robustness."
_LIKE = "on images like your training images"


def span(low: float, high: float) -> str:
    """An interval of fractions, in percent or points: "55 to 67"."""
    return f"{100 * low:.0f} to {100 * high:.0f}"


def _with_span(value: float, low: float, high: float) -> str:
    return f"{100 * value:.1f} ({span(low, high)})" if np.isfinite(value) else ""


def answer(table: pd.DataFrame) -> str:
    """Who will do best, by how much, and who is as good within error, in one line; ``table`` as ``judging.verdicts`` gives it."""
    known, ordered = table[table["accuracy"].notna()], table[table["verdict"].eq(ORDERED)]
    if not len(known):
        if len(ordered) > 1:
            return f"In order, without numbers: {listed(ordered['checkpoint'].tolist(), 6)}; {ordered['note'].iloc[0]}."
        return f"None of {count(len(table), 'checkpoint')} is judged."
    first = known.iloc[0]
    said = f"{percent(first['accuracy'])} ({span(first['accuracy_low'], first['accuracy_high'])}) {_LIKE}"
    if len(known) + len(ordered) == 1:
        return f"{first['checkpoint']}: {said}."
    text = f"{first['checkpoint']} will do best: {said}"
    others = table[table["better_than_first"].ge(AS_GOOD) & table["checkpoint"].ne(first["checkpoint"]) & table["accuracy"].notna()]
    if len(others):
        text += f"; {listed(others['checkpoint'].tolist(), 3)} {'is' if len(others) == 1 else 'are'} as good within error"
    if len(before := ordered[ordered["rank"] < first["rank"]]):
        text += f"; {listed(before['checkpoint'].tolist(), 3)}, of which no accuracy can be said, may be better still"
    elif (best := table.loc[table["probability_best"].idxmax(), "checkpoint"]) != first["checkpoint"]:
        chance = percent(table["probability_best"].max())
        text += f"; {best} has the larger probability of being best ({chance}), since less is known of it"
    return f"{text}."


def not_judged(table: pd.DataFrame) -> list[str]:
    """Why each checkpoint without a number has none, a sentence each; of several with one reason, once."""
    rows = table[table["verdict"].isin([NOT_READ, NOT_JUDGED])]
    return [
        f"{listed(names.tolist(), 4)} {'is' if len(names) == 1 else 'are'} {verdict}: {note}."
        for (verdict, note), names in rows.groupby(["verdict", "note"], sort=False)["checkpoint"]
    ]


def counted(table: pd.DataFrame, images: int) -> list[str]:
    """Accuracy of each checkpoint on the labelled images alone, with its 95 % interval."""
    return [
        f"{row.checkpoint}: accuracy on your {images:,} labelled images: "
        f"{100 * row.labelled_right:.1f} % ({span(row.counted_low, row.counted_high)})."
        for row in table[table["labelled_right"].notna()].itertuples()
    ]


def same_files(facts: pd.DataFrame) -> list[str]:
    """Which checkpoints have the same bytes, a sentence each."""
    return [f"{' and '.join(names)} are the same file." for _, names in facts.groupby("bytes", sort=False)["checkpoint"] if len(names) > 1]


def rests_on(found: Scored, study: Calibration) -> str:
    """Which study predicts, by what, and how far it errs on kinds of training that it has not seen."""
    titles, by = registry.columns().set_index("column")["title"], found.predictor
    error, kinds = (by.left_out["truth"] - by.left_out["predicted"]).abs().mean(), study.models["kind"].nunique()
    left_out = "a kind" if kinds > 1 else "a configuration"
    known = f"{count(len(study.models), 'network')} of {count(kinds, 'kind')} of training in {study.study}"
    measures = "".join(f", {titles[name]}" for name in by.chosen)
    text = f"Predicted from training accuracy, training loss{measures}, as {known} show it"
    text += f"; {left_out} that it has not seen is missed by {points(error)} on average"
    text += f", and {by.level:.0%} of its errors are at most {points(by.half)}."
    return text + (f" The study's tables have no {' and no '.join(study.lacking)}, which may predict better." if study.lacking else "")


def differs(facts: pd.DataFrame, classes: int, size: int, images: int, study: Calibration) -> str:
    """In what the networks and images are not those of the study, in one sentence; "" where nothing differs."""
    forms = study.models[list(Form._fields)].drop_duplicates().to_dict("records")
    theirs = {described(Form(**form).network(2)).words for form in forms}
    ours = set(facts.loc[facts["fault"].eq(""), "network"])
    parts = [f"networks ({'; '.join(sorted(theirs))} there, {'; '.join(sorted(ours)[:3])} here)"] if ours - theirs else []
    pairs = {
        "image size": (study.parameters.get("image_size", size), size),
        "classes": (study.parameters.get("classes", classes), classes),
        "images that measures are read on": (study.images or images, images),
    }
    parts += [f"{name} ({there:,} there, {here:,} here)" for name, (there, here) in pairs.items() if there != here]
    return f"Another case than the study's: {', '.join(parts)}. Intervals are promised for its own kind of networks." if parts else ""


def target_answer(table: pd.DataFrame, images: int) -> str:
    """Who will do best on a target, by its images without labels; ``table`` as in ``case.Judged``."""
    first = table.sort_values("predicted", ascending=False).iloc[0]
    said = f"On the {images:,} images of the target {first['checkpoint']} will do best, by {first['chosen'].replace('_', ' ') or 'the fit'}"
    if not first["residual"]:
        return f"{said}; no number is given, since it is no ResNet as the study's networks are."
    said += f": {percent(first['predicted'])} ({span(first['low'], first['high'])})"
    return f"{said}; trust it little, since the target lies {first['beyond']}." if first["beyond"] else f"{said}."


def printed(table: pd.DataFrame) -> str:
    """The table for a terminal: rank, accuracy and gap with intervals, and notes."""
    shown = pd.DataFrame({"rank": table["rank"].map("{:.0f}".format).replace("nan", "")})
    for name, title in {"accuracy": "accuracy (%)", "gap": "gap (points)"}.items():
        shown[title] = [
            _with_span(*ends) or verdict for *ends, verdict in table[[name, f"{name}_low", f"{name}_high", "verdict"]].to_numpy()
        ]
    for name, title in {"probability_best": "best", "train_accuracy": "training"}.items():
        shown[title] = table[name].map(percent).replace("undefined", "")
    notes = table["note"].where(table["verdict"].ne(NOT_JUDGED), "")
    names = table["checkpoint"] + notes.map("  ({})".format).replace("  ()", "")
    lines = shown.to_string(index=False).split("\n")
    return "\n".join(f"{line}  {name}" for line, name in zip(lines, ["checkpoint", *names], strict=True))


def write_cards(folder: Path, table: pd.DataFrame, names: pd.Series, basis: Sequence[str], most: int = 8) -> list[Path]:
    """Model cards (Mitchell et al. 2019) of the first checkpoints that could be read, one Markdown file each.

    Args:
        table: see ``judging.verdicts``.
        names: of the files, without ending, by checkpoint.
        basis: sentences on what the numbers rest on.
    """
    rows = table[table["verdict"].ne(NOT_READ)].head(most).set_index("checkpoint")
    for checkpoint, row in rows.iterrows():
        values = {name: f"{value:.3f}" if isinstance(value, float) else value for name, value in row.items()}
        lines = [f"# `{checkpoint.replace('`', chr(39))}`", "", "| fact | value |", "|---|---|"]
        lines += [f"| {name.replace('_', ' ')} | {value} |" for name, value in values.items() if value not in ("", "nan")]
        with complete_or_absent(inside(folder, f"{names[checkpoint]}.md")) as temporary:
            temporary.write_text("\n".join([*lines, "", *basis, "", _LIMITS, ""]), encoding="utf-8", errors="backslashreplace")
    return [folder / f"{names[checkpoint]}.md" for checkpoint in rows.index]

"""What is said of judged checkpoints: one line of answer, why some are not judged, what it rests on, and a card for each."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import complete_or_absent, inside
from helpers.measures import registry
from helpers.networks.portable import Form
from helpers.report.style import count, listed, percent, points
from helpers.select.calibration import Calibration
from helpers.select.described import described
from helpers.select.judging import AS_GOOD, NOT_JUDGED, NOT_READ, ORDERED, Scored

_LIKE = "on images like your training images"


def span(low: float, high: float) -> str:
    """An interval of fractions, in percent or points: "55 to 67"."""
    return f"{100 * low:.0f} to {100 * high:.0f}"


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
    best = table.loc[table["probability_best"].idxmax(), "checkpoint"]
    others = [name for name in table.loc[table["better_than_first"].ge(AS_GOOD), "checkpoint"] if name != first["checkpoint"]]
    text = f"{first['checkpoint']} will do best: {said}"
    if others:
        text += f"; {listed(others, 3)} {'is' if len(others) == 1 else 'are'} as good within error"
    if best != first["checkpoint"]:
        text += f"; {best} has the larger probability of being best ({percent(table['probability_best'].max())}), since less is known of it"
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
        f"{row.checkpoint}: accuracy on your {images:,} labelled images: {100 * row.labelled_right:.1f} % ({span(row.counted_low, row.counted_high)})."
        for row in table[table["labelled_right"].notna()].itertuples()
    ]


def rests_on(found: Scored, study: Calibration) -> str:
    """Which study predicts, by what, and how far it errs on kinds of training that it has not seen."""
    titles = registry.columns().set_index("column")["title"]
    left_out = found.predictor.left_out
    error = (left_out["truth"] - left_out["predicted"]).abs().mean()
    return (
        f"Predicted from training accuracy, training loss, {listed([titles[name] for name in found.predictor.chosen], 3) or 'and nothing else'}, "
        f"as {count(len(study.models), 'network')} of {count(study.models['kind'].nunique(), 'kind')} of training in the study {study.study} "
        f"show it; a kind that it has not seen is missed by {points(error)} on average, {found.predictor.level:.0%} of its errors being at "
        f"most {points(found.predictor.half)}."
    )


def differs(facts: pd.DataFrame, classes: int, size: int, study: Calibration) -> str:
    """In what the networks and images are not those of the study, in one sentence; "" where nothing differs."""
    forms = study.models[list(Form._fields)].drop_duplicates().to_dict("records")
    theirs = {described(Form(**form).network(2)).words for form in forms}
    ours = set(facts.loc[facts["fault"].eq(""), "network"])
    parts = [f"networks ({'; '.join(sorted(theirs))} there, {'; '.join(sorted(ours)[:3])} here)"] if ours - theirs else []
    if (side := study.parameters.get("image_size", size)) != size:
        parts.append(f"image size ({side} px there, {size} px here)")
    if (known := study.classes or classes) != classes:
        parts.append(f"classes ({known} there, {classes} here)")
    return f"Another case than the study's: {', '.join(parts)}. Intervals are promised for its own kind of networks." if parts else ""


def target_answer(table: pd.DataFrame, images: int) -> str:
    """Who will do best on a target, by its images without labels; ``table`` as ``judging.on_target`` gives it, with checkpoint."""
    first = table.sort_values("predicted", ascending=False).iloc[0]
    beyond = f" The target lies {first['beyond']}." if first["beyond"] else ""
    return (
        f"On the {images:,} images of the target {first['checkpoint']} will do best: {percent(first['predicted'])} "
        f"({span(first['low'], first['high'])}), by {first['chosen'].replace('_', ' ') or 'the fit alone'}.{beyond}"
    )


def printed(table: pd.DataFrame) -> str:
    """The table for a terminal: rank, accuracy, gap and training accuracy with intervals, and notes."""
    lines = [f"{'rank':>4}  {'accuracy (%)':>18}  {'gap (points)':>18}  {'best':>6}  {'training':>8}  checkpoint"]
    for row in table.itertuples():
        ends = {name: (getattr(row, name), getattr(row, f"{name}_low"), getattr(row, f"{name}_high")) for name in ("accuracy", "gap")}
        spans = [f"{100 * value:.1f} ({span(low, high)})" if np.isfinite(value) else row.verdict for value, low, high in ends.values()]
        rank = f"{row.rank:.0f}" if np.isfinite(row.rank) else ""
        best = percent(row.probability_best) if np.isfinite(row.probability_best) else ""
        note = f"  ({row.note})" if row.note and row.verdict != NOT_JUDGED else ""
        lines.append(f"{rank:>4}  {spans[0]:>18}  {spans[1]:>18}  {best:>6}  {percent(row.train_accuracy):>8}  {row.checkpoint}{note}")
    return "\n".join(lines)


_CARD = """# {checkpoint}

{network}; {outputs} outputs.

| | |
|---|---|
| verdict | {verdict} |
| predicted accuracy on images like the training images | {accuracy} |
| predicted generalization gap | {gap} |
| probability of being the best of those judged together | {best} |
| training accuracy on {images} | {train} |
| accuracy on labelled images that were held out | {counted} |

{note}{basis} It replaces no test on held-out images, and says nothing of images of another kind, of fairness, or of robustness.
"""


def write_cards(folder: Path, table: pd.DataFrame, facts: pd.DataFrame, images: str, basis: str, most: int = 8) -> list[Path]:
    """Model cards (Mitchell et al. 2019) of the first checkpoints that could be read, one Markdown file each.

    Args:
        folder: of the cards.
        table: see ``judging.verdicts``.
        facts: see ``judging.verdicts``.
        images: which training images, in words.
        basis: see ``rests_on``.
        most: cards.
    """
    rows = table[table["verdict"].ne(NOT_READ)].head(most).merge(facts[["checkpoint", "model_id", "outputs"]], on="checkpoint")
    paths = []
    for row in rows.to_dict("records"):
        path = inside(folder, f"{re.sub(r'[^A-Za-z0-9._-]+', '-', row['model_id'])}.md")
        with complete_or_absent(path) as temporary:
            temporary.write_text(_card(row, images, basis), encoding="utf-8", errors="backslashreplace")
        paths.append(path)
    return paths


def _card(row: Mapping[str, Any], images: str, basis: str) -> str:
    interval = f" ({span(row['accuracy_low'], row['accuracy_high'])})" if np.isfinite(row["accuracy"]) else ""
    gap = f" ({span(row['gap_low'], row['gap_high'])})" if np.isfinite(row["gap"]) else ""
    own = (
        f"{percent(row['labelled_right'])} ({span(row['counted_low'], row['counted_high'])})"
        if np.isfinite(row["labelled_right"])
        else "none"
    )
    return _CARD.format(
        checkpoint=f"`{row['checkpoint'].replace('`', chr(39))}`",
        network=row["network"],
        outputs=row["outputs"],
        verdict=row["verdict"],
        accuracy=f"{percent(row['accuracy'])}{interval}",
        gap=f"{points(row['gap'])}{gap}",
        best=percent(row["probability_best"]),
        images=images,
        train=percent(row["train_accuracy"]),
        counted=own,
        note=f"{row['note']}. " if row["note"] else "",
        basis=basis,
    )

"""Sentences and a table on judged checkpoints: answer, reasons, and their basis.

The words are in ``templates/sentences.txt.j2``; this module computes the values.
"""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import pandas as pd

from helpers.checkpoints.builders import describe
from helpers.checkpoints.calibration import TITLES, Calibration
from helpers.checkpoints.judging import NOT_JUDGED, NOT_READ, Scored
from helpers.checkpoints.prediction import LEVEL
from helpers.networks.weights import ResNetForm
from helpers.report.style import count, listed, percent, points

_TEMPLATES = Path(__file__).parent / "templates"
# A training accuracy is remarked on if it is lower by this than the accuracy that the
# file states.
_NOTED_MARGIN = 0.1


def span(low: float, high: float) -> str:
    """Write an interval of fractions in percent or points: "55 to 67".

    Args:
        low: lower end, a fraction.
        high: upper end, a fraction.
    """
    return f"{100 * low:.0f} to {100 * high:.0f}"


def answer(table: pd.DataFrame) -> str:
    """Say which checkpoint is expected to be best, or which cannot be told apart.

    Args:
        table: result of ``judging.verdicts``.
    """
    judged = table[table["accuracy"].notna()]
    if not len(judged):
        return _sentence("none_judged", checkpoints=len(table))
    first = judged.iloc[0].to_dict()
    others = judged.iloc[1:]
    if not len(others):
        return _sentence("alone", first=first)
    overlapping = others[others["accuracy_high"] >= first["accuracy_low"]]
    if not len(overlapping):
        return _sentence("best", first=first)
    names = [first["checkpoint"], *overlapping["checkpoint"]]
    return _sentence("not_told_apart", first=first, names=names)


def remarks(table: pd.DataFrame, facts: pd.DataFrame, labelled: int) -> list[str]:
    """Write sentences on labelled images, refused and equal files, notes and truths.

    Args:
        table: result of ``judging.verdicts``.
        facts: table with the columns ``case.FACTS``.
        labelled: number of labelled images.
    """
    counted = table[table["labelled_right"].notna()].to_dict("records")
    sentences = [_sentence("labelled", row=row, images=labelled) for row in counted]
    without_verdict = table[table["verdict"].isin([NOT_READ, NOT_JUDGED])]
    for (verdict, reason), rows in without_verdict.groupby(
        ["verdict", "note"], sort=False
    ):
        names = rows["checkpoint"].tolist()
        sentences.append(
            _sentence("refused", names=names, verdict=verdict, reason=reason)
        )
    # Files that cannot be read have no checksum.
    readable = facts[facts["weights"].ne("")]
    for _, rows in readable.groupby("weights", sort=False):
        if len(rows) > 1:
            names = rows["checkpoint"].tolist()
            sentences.append(_sentence("same_weights", names=names))
    for row in facts[facts["notes"].ne("")].itertuples():
        sentences.append(_sentence("note", checkpoint=row.checkpoint, text=row.notes))
    return sentences + _too_low(table, facts) + _truth(table)


def _too_low(table: pd.DataFrame, facts: pd.DataFrame) -> list[str]:
    """A sentence on each checkpoint that is worse on training images than it states."""
    noted = facts.set_index("checkpoint")["noted_accuracy"]
    train_accuracy = table.set_index("checkpoint")["train_accuracy"]
    too_high = noted[noted - train_accuracy > _NOTED_MARGIN]
    return [
        _sentence("too_low", checkpoint=name, noted=value, found=train_accuracy[name])
        for name, value in too_high.items()
    ]


def _truth(table: pd.DataFrame) -> list[str]:
    """Compare predictions with the test accuracies that a study measured."""
    measured = table[table["known_accuracy"].notna()]
    if not len(measured):
        return []
    best = measured.loc[measured["known_accuracy"].idxmax()].to_dict()
    predicted = measured[measured["accuracy"].notna()]
    truth = predicted["known_accuracy"]
    is_inside = truth.between(predicted["accuracy_low"], predicted["accuracy_high"])
    return [
        _sentence(
            "truth",
            best=best,
            error=(predicted["accuracy"] - truth).abs().mean(),
            inside=int(is_inside.sum()),
            predicted=len(predicted),
        )
    ]


def rests_on(scored: Scored, study: Calibration) -> str:
    """Say from which study and columns gaps are predicted, and with which error.

    Args:
        scored: the judged checkpoints.
        study: the study that calibrates.
    """
    gap_predictor = scored.predictor
    held_out = gap_predictor.left_out
    half_width = gap_predictor.half_width_at_0  # where the leverage is 0
    kinds = study.models["kind"].nunique()
    return _sentence(
        "rests_on",
        columns=[TITLES[name] for name in gap_predictor.ranges.index],
        snapshots=len(study.models),
        kinds=kinds,
        study=study.study,
        held_out="kinds" if kinds > 1 else "configurations",
        error=(held_out["truth"] - held_out["predicted"]).abs().mean(),
        level=LEVEL,
        near=half_width * np.sqrt(1 + held_out["leverage"].median()),
        far=half_width * np.sqrt(1 + gap_predictor.largest_leverage),
    )


def differs(
    facts: pd.DataFrame, classes: int, size: int, images: int, study: Calibration
) -> list[str]:
    """Say in what networks and images differ from those of the study.

    Args:
        facts: table with the columns ``case.FACTS``.
        classes: number of classes.
        size: side of the images, pixels.
        images: number of training images.
        study: the study that calibrates.

    Returns:
        One sentence in a list; empty if nothing differs.
    """
    forms = study.models[list(ResNetForm._fields)].drop_duplicates().to_dict("records")
    networks_of_study = {describe(ResNetForm(**form).network(2))[0] for form in forms}
    networks_of_files = set(facts.loc[facts["fault"].eq(""), "network"])
    differences = []  # name, value of the study, value of the user
    if networks_of_files - networks_of_study:
        of_study = "; ".join(sorted(networks_of_study))
        of_files = "; ".join(sorted(networks_of_files)[:3])
        differences.append(("networks", of_study, of_files))
    if study.classes and classes not in study.classes:
        of_studies = " or ".join(map(str, sorted(set(study.classes))))
        differences.append(("classes", of_studies, str(classes)))
    pairs = {
        "image size": (study.parameters.get("image_size", size), size),
        "images that measures are read on": (study.images or images, images),
    }
    differences += [
        (name, f"{of_study:,}", f"{of_files:,}")
        for name, (of_study, of_files) in pairs.items()
        if of_study != of_files
    ]
    if not differences:
        return []
    return [_sentence("differs", differences=differences)]


def _sentence(name: str, **values: Any) -> str:
    """Fill values into a sentence: a macro of the template."""
    return getattr(_template().module, name)(**values)


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES), undefined=jinja2.StrictUndefined
    )
    words = {
        "count": count,
        "listed": listed,
        "percent": percent,
        "points": points,
        "span": span,
    }
    return environment.get_template("sentences.txt.j2", globals=words)


def printed(table: pd.DataFrame) -> str:
    """Format a table for a terminal: rank, accuracy and gap with intervals, and notes.

    Args:
        table: rows of ``judging.verdicts``.
    """
    rank = table["rank"].map("{:.0f}".format).replace("nan", "")
    columns = pd.DataFrame({"rank": rank})
    for name, title in {"accuracy": "accuracy (%)", "gap": "gap (points)"}.items():
        numbers = table[[name, f"{name}_low", f"{name}_high"]].to_numpy()
        texts = pd.Series(
            [f"{100 * value:.1f} ({span(low, high)})" for value, low, high in numbers]
        )
        columns[title] = texts.where(table[name].notna(), table["verdict"])
    if table["known_accuracy"].notna().any():
        columns["known (%)"] = [
            f"{100 * value:.1f}" if np.isfinite(value) else ""
            for value in table["known_accuracy"]
        ]
    columns["training"] = table["train_accuracy"].map(percent)
    columns["checkpoint"] = table["checkpoint"]
    columns["note"] = table["note"].where(table["verdict"].ne(NOT_JUDGED), "")
    return columns.to_string(index=False)

"""What is written of judged checkpoints: the answer, reasons, and what it rests on."""

import numpy as np
import pandas as pd

from helpers.checkpoints.calibration import CANDIDATES, LOG_CLASS_IMAGES, Calibration
from helpers.checkpoints.judging import NOT_JUDGED, NOT_READ, Scored
from helpers.checkpoints.load import described
from helpers.checkpoints.prediction import LEVEL
from helpers.networks.weights import Form
from helpers.report.style import count, listed, percent, points

_LOST = 0.1  # accuracy below the one that a file notes from which on it is said


def span(low: float, high: float) -> str:
    """An interval of fractions, in percent or points: "55 to 67".

    Args:
        low: a fraction.
        high: a fraction.
    """
    return f"{100 * low:.0f} to {100 * high:.0f}"


def answer(table: pd.DataFrame) -> str:
    """Who will do best, by how much, or who is not told apart, in one line.

    Args:
        table: as ``judging.verdicts`` gives it.
    """
    judged = table[table["accuracy"].notna()]
    if not len(judged):
        return f"None of {count(len(table), 'checkpoint')} is judged."
    first = judged.iloc[0]
    interval = span(first["accuracy_low"], first["accuracy_high"])
    accuracy = f"{percent(first['accuracy'])} ({interval})"
    where = "on images like your training images"
    if len(judged) == 1:
        return f"{first['checkpoint']}: {accuracy} {where}."
    others = judged.iloc[1:]
    overlapping = others[others["accuracy_high"] >= first["accuracy_low"]]
    if not len(overlapping):
        return f"{first['checkpoint']} will do best: {accuracy} {where}."
    names = [first["checkpoint"], *overlapping["checkpoint"]]
    return (
        f"Not told apart: {listed(names, 4)}, whose intervals overlap. The highest "
        f"prediction is {accuracy} {where}, for {first['checkpoint']}."
    )


def remarks(table: pd.DataFrame, facts: pd.DataFrame, labelled: int) -> list[str]:
    """A sentence each on labelled images, refusals, equal files, notes and truths.

    Args:
        table: as ``judging.verdicts`` gives it.
        facts: as ``case.FACTS``.
        labelled: number of labelled images.
    """
    counted = [
        f"{row.checkpoint}: accuracy on your {labelled:,} labelled images: "
        f"{100 * row.labelled_right:.1f} % ({span(row.counted_low, row.counted_high)})."
        for row in table[table["labelled_right"].notna()].itertuples()
    ]
    rows = table[table["verdict"].isin([NOT_READ, NOT_JUDGED])]
    reasons = rows.groupby(["verdict", "note"], sort=False)["checkpoint"]
    refused = [
        f"{listed(names.tolist(), 4)} {'is' if len(names) == 1 else 'are'} "
        f"{verdict}: {note}."
        for (verdict, note), names in reasons
    ]
    # Files that cannot be read have no digest.
    digests = facts[facts["bytes"].ne("")].groupby("bytes", sort=False)["checkpoint"]
    same = [
        f"{' and '.join(names)} are the same file."
        for _, names in digests
        if len(names) > 1
    ]
    notes = [
        f"{name}: {note}."
        for name, note in facts[["checkpoint", "notes"]].to_numpy()
        if note
    ]
    return counted + refused + same + notes + _too_low(table, facts) + _truth(table)


def _too_low(table: pd.DataFrame, facts: pd.DataFrame) -> list[str]:
    """A sentence on each checkpoint that is worse on its training images than noted."""
    noted = facts.set_index("checkpoint")["noted_accuracy"]
    train_accuracy = table.set_index("checkpoint")["train_accuracy"]
    low = noted[noted - train_accuracy > _LOST]
    return [
        f"{name}: its file notes an accuracy of {percent(low[name])}, and only "
        f"{percent(train_accuracy[name])} of these training images are right. Check "
        "--resize and --crop, --image-size, --mean and --std, and --classes."
        for name in low.index
    ]


def _truth(table: pd.DataFrame) -> list[str]:
    """What a study measured of its own checkpoints, beside what is predicted."""
    measured = table[table["known_accuracy"].notna()]
    if not len(measured):
        return []
    best = measured.loc[measured["known_accuracy"].idxmax()]
    text = (
        f"Known from the study's test images: the best is {best['checkpoint']} with "
        f"{100 * best['known_accuracy']:.1f} %"
    )
    predicted = measured[measured["accuracy"].notna()]
    if not len(predicted):
        return [f"{text}."]
    truth = predicted["known_accuracy"]
    missed = (predicted["accuracy"] - truth).abs().mean()
    is_inside = truth.between(predicted["accuracy_low"], predicted["accuracy_high"])
    inside = int(is_inside.sum())
    return [
        f"{text}; predictions miss the known accuracies by {points(missed)} on "
        f"average, and {inside} of {len(predicted)} intervals hold."
    ]


def rests_on(scored: Scored, study: Calibration) -> str:
    """Which study predicts, by what, and how far it errs on kinds not seen.

    Args:
        scored: the judged checkpoints.
        study: that predicts.
    """
    by = scored.predictor
    error = (by.left_out["truth"] - by.left_out["predicted"]).abs().mean()
    kinds = study.models["kind"].nunique()
    words = {
        "train_accuracy": "training accuracy",
        "log_train_loss": "training loss",
        LOG_CLASS_IMAGES: "training images of a class",
    } | CANDIDATES
    columns = "; ".join(words[name] for name in by.ranges.index)
    snapshots = count(len(study.models), "snapshot")
    seen = "kinds" if kinds > 1 else "configurations"
    near = by.scale * np.sqrt(1 + by.left_out["leverage"].median())
    far = by.scale * np.sqrt(1 + by.farthest)
    return (
        f"Predicted from {columns}, as {snapshots} of networks of "
        f"{count(kinds, 'kind')} of training in {study.study} show it. The mean error "
        f"on {seen} left out of it is {points(error)}; an interval of {LEVEL:.0%} is "
        f"{points(near)} to either side near the studies' networks, up to "
        f"{points(far)} far from them, and beyond that nothing is predicted."
    )


def differs(
    facts: pd.DataFrame, classes: int, size: int, images: int, study: Calibration
) -> list[str]:
    """In what networks and images are not those of the study, in one sentence.

    Args:
        facts: a row per checkpoint.
        classes: number of them.
        size: side of the images, pixels.
        images: number of training images.
        study: that predicts.
    """
    forms = study.models[list(Form._fields)].drop_duplicates().to_dict("records")
    theirs = {described(Form(**form).network(2))[0] for form in forms}
    ours = set(facts.loc[facts["fault"].eq(""), "network"])
    differences = []
    if ours - theirs:
        of_study = "; ".join(sorted(theirs))
        of_files = "; ".join(sorted(ours)[:3])
        differences.append(f"networks (there {of_study}; here {of_files})")
    pairs = {
        "image size": (study.parameters.get("image_size", size), size),
        "classes": (study.parameters.get("classes", classes), classes),
        "images that measures are read on": (study.images or images, images),
    }
    differences += [
        f"{name} (there {of_study:,}; here {of_files:,})"
        for name, (of_study, of_files) in pairs.items()
        if of_study != of_files
    ]
    if not differences:
        return []
    return [
        f"Another case than the study's: {', '.join(differences)}. Intervals were "
        "checked for its own kind of networks."
    ]


def printed(table: pd.DataFrame) -> str:
    """The table for a terminal: rank, accuracy and gap with intervals, and notes.

    Args:
        table: of judged checkpoints.
    """
    rank = table["rank"].map("{:.0f}".format).replace("nan", "")
    shown = pd.DataFrame({"rank": rank})
    for name, title in {"accuracy": "accuracy (%)", "gap": "gap (points)"}.items():
        ends = table[[name, f"{name}_low", f"{name}_high"]].to_numpy()
        texts = pd.Series(
            [f"{100 * value:.1f} ({span(low, high)})" for value, low, high in ends]
        )
        shown[title] = texts.where(table[name].notna(), table["verdict"])
    if table["known_accuracy"].notna().any():
        shown["known (%)"] = [
            f"{100 * value:.1f}" if np.isfinite(value) else ""
            for value in table["known_accuracy"]
        ]
    shown["training"] = table["train_accuracy"].map(percent)
    shown["checkpoint"] = table["checkpoint"]
    shown["note"] = table["note"].where(table["verdict"].ne(NOT_JUDGED), "")
    return shown.to_string(index=False)

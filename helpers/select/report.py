"""What is said of judged checkpoints: one line of answer, why some are not judged, and what it rests on."""

import pandas as pd

from helpers.networks.weights import Form
from helpers.report.style import count, listed, percent, points
from helpers.select.calibration import CANDIDATES, Calibration
from helpers.select.judging import NOT_JUDGED, NOT_READ, Scored
from helpers.select.load import described
from helpers.select.prediction import LEVEL

_LOST = 0.1  # accuracy below the one that a file notes from which on it is said
AS_GOOD = 0.1  # probability of being better than the first from which on a checkpoint is as good within error


def span(low: float, high: float) -> str:
    """An interval of fractions, in percent or points: "55 to 67"."""
    return f"{100 * low:.0f} to {100 * high:.0f}"


def answer(table: pd.DataFrame) -> str:
    """Who will do best, by how much, and who is as good within error, in one line; ``table`` as ``judging.verdicts`` gives it."""
    if not len(known := table[table["accuracy"].notna()]):
        return f"None of {count(len(table), 'checkpoint')} is judged."
    first = known.iloc[0]
    said = f"{percent(first['accuracy'])} ({span(first['accuracy_low'], first['accuracy_high'])}) on images like your training images"
    if len(known) == 1:
        return f"{first['checkpoint']}: {said}."
    text = f"{first['checkpoint']} will do best: {said}"
    if len(others := known.iloc[1:].query("better_than_first >= @AS_GOOD")):
        text += f"; {listed(others['checkpoint'].tolist(), 3)} {'is' if len(others) == 1 else 'are'} as good within error"
    return f"{text}."


def remarks(table: pd.DataFrame, facts: pd.DataFrame, labelled: int) -> list[str]:
    """A sentence each: accuracy on labelled images alone, why checkpoints have no number (each reason once), equal files, and notes."""
    counted = [
        f"{row.checkpoint}: accuracy on your {labelled:,} labelled images: "
        f"{100 * row.labelled_right:.1f} % ({span(row.counted_low, row.counted_high)})."
        for row in table[table["labelled_right"].notna()].itertuples()
    ]
    rows = table[table["verdict"].isin([NOT_READ, NOT_JUDGED])]
    refused = [
        f"{listed(names.tolist(), 4)} {'is' if len(names) == 1 else 'are'} {verdict}: {note}."
        for (verdict, note), names in rows.groupby(["verdict", "note"], sort=False)[
            "checkpoint"
        ]
    ]
    same = [
        f"{' and '.join(names)} are the same file."
        for _, names in facts.groupby("bytes", sort=False)["checkpoint"]
        if len(names) > 1
    ]
    notes = [
        f"{name}: {note}."
        for name, note in facts[["checkpoint", "notes"]].to_numpy()
        if note
    ]
    return counted + refused + same + notes + _too_low(table, facts)


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


def rests_on(found: Scored, study: Calibration) -> str:
    """Which study predicts, by what, and how far it errs on kinds of training that it has not seen."""
    by = found.predictor
    error, kinds = (
        (by.left_out["truth"] - by.left_out["predicted"]).abs().mean(),
        study.models["kind"].nunique(),
    )
    measures = "; ".join(
        [
            "training accuracy",
            "training loss",
            *(CANDIDATES[name] for name in by.chosen),
        ]
    )
    known = f"{count(len(study.models), 'snapshot')} of networks of {count(kinds, 'kind')} of training in {study.study}"
    text = f"Predicted from {measures}; as {known} show it; {'kinds' if kinds > 1 else 'configurations'} left out of it are missed by"
    return f"{text} {points(error)} on average, and {LEVEL:.0%} of the errors are at most {points(by.half)}."


def differs(
    facts: pd.DataFrame, classes: int, size: int, images: int, study: Calibration
) -> list[str]:
    """In what the networks and images are not those of the study, in one sentence; none where nothing differs."""
    forms = study.models[list(Form._fields)].drop_duplicates().to_dict("records")
    theirs = {described(Form(**form).network(2))[0] for form in forms}
    ours = set(facts.loc[facts["fault"].eq(""), "network"])
    parts = (
        [
            f"networks (there {'; '.join(sorted(theirs))}; here {'; '.join(sorted(ours)[:3])})"
        ]
        if ours - theirs
        else []
    )
    pairs = {
        "image size": (study.parameters.get("image_size", size), size),
        "classes": (study.parameters.get("classes", classes), classes),
        "images that measures are read on": (study.images or images, images),
    }
    parts += [
        f"{name} (there {there:,}; here {here:,})"
        for name, (there, here) in pairs.items()
        if there != here
    ]
    return (
        [
            f"Another case than the study's: {', '.join(parts)}. Intervals are promised for its own kind of networks."
        ]
        if parts
        else []
    )


def printed(table: pd.DataFrame) -> str:
    """The table for a terminal: rank, accuracy and gap with intervals, and notes."""
    shown = pd.DataFrame(
        {"rank": table["rank"].map("{:.0f}".format).replace("nan", "")}
    )
    for name, title in {"accuracy": "accuracy (%)", "gap": "gap (points)"}.items():
        ends = table[[name, f"{name}_low", f"{name}_high"]].to_numpy()
        told = pd.Series(
            [f"{100 * value:.1f} ({span(low, high)})" for value, low, high in ends]
        )
        shown[title] = told.where(table[name].notna(), table["verdict"])
    shown["training"] = table["train_accuracy"].map(percent)
    shown["checkpoint"] = table["checkpoint"]
    shown["note"] = table["note"].where(table["verdict"].ne(NOT_JUDGED), "")
    return shown.to_string(index=False)

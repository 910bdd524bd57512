"""A model card per checkpoint, in Markdown: what is predicted of it, on what grounds, and every measure (Mitchell et al. 2019)."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from helpers import measures
from helpers.files import complete_or_absent, inside
from helpers.own_images import OwnImages
from helpers.own_ranking import Verdict
from helpers.readings import percent, points
from helpers.selection_readings import code, images_found


def file_name(name: str) -> str:
    """Name the card of a checkpoint: its readable letters and a hash of it all; no name meets another or leaves a folder."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60] or "checkpoint"
    return f"{readable}-{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=4).hexdigest()}.md"


def card(row: pd.Series, scores: pd.DataFrame, verdict: Verdict, images: OwnImages, *, study: str, level: float, distance: str) -> str:
    """Write one card.

    Args:
        row: of ``own_ranking.COLUMNS``.
        scores: of this checkpoint: measure, variant, value, reason; see ``own_scores.COLUMNS``.
        verdict: of all the checkpoints.
        images: that it was scored on.
        study: that calibrates.
        level: of the interval.
        distance: how far the study is from the case, as a sentence.

    Returns:
        Markdown. Names stand in it as literal text.
    """
    lines = [f"# Model card: {code(row['checkpoint'])}", "", *_verdict(row, len(verdict.ranking), level, study), ""]
    lines += ["## What it rests on", "", images_found(images), ""]
    lines += [f"Calibrated on the study {code(study)}. {distance}", ""]
    lines += [
        "This card predicts from training images alone. It replaces no test on held-out images, and says nothing of images of another",
        "",
    ]
    lines[-2] += " kind, of fairness, or of robustness."
    return "\n".join([*lines, *_measures(scores, verdict), ""])


def _verdict(row: pd.Series, count: int, level: float, study: str) -> list[str]:
    facts = {
        "architecture": code(row["architecture"]) if row["architecture"] else "unknown",
        "outputs": str(int(row["outputs"])) if row["outputs"] else "unknown",
        "rank": f"{row['rank']:.0f} of {count}" if np.isfinite(row["rank"]) else "none",
        "predicted gap": points(row["predicted_gap"]),
        f"{level:.0%} interval of the gap": " to ".join(points(row[name]) for name in ("gap_low", "gap_high")),
        "probability of the smallest gap": percent(row["probability_best"]),
        "training accuracy on these images": percent(row["train_accuracy"]),
        "predicted test accuracy": percent(row["predicted_test_accuracy"]),
        "note": code(row["note"]) if row["note"] else "",
    }
    return ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value)]


def _measures(scores: pd.DataFrame, verdict: Verdict) -> list[str]:
    """Table every measure, beside its range among the study's models."""
    if not len(scores):
        return ["## Measures", "", "None could be computed."]
    known = measures.columns().merge(scores, on=["measure", "variant"])
    known = known.merge(verdict.measured.rename(columns={"measure": "column"}), on="column", how="left")
    rows = ["## Measures", "", "| measure | value | in the study | promises a small gap when |", "|---|---|---|---|"]
    for item in known.itertuples():
        value = f"{item.value:.4g}" if np.isfinite(item.value) else f"undefined: {code(str(item.reason))}"
        span = f"{item.calibrated_low:.4g} to {item.calibrated_high:.4g}" if np.isfinite(item.calibrated_low) else "not calibrated"
        promise = {1: "large", -1: "small", 0: "is a count"}[item.direction]
        rows.append(f"| {_cell(item.title)} | {_cell(value)} | {span} | {promise} |")
    return rows


def _cell(text: str) -> str:
    return text.replace("|", r"\|")


def write_all(
    folder: Path, verdict: Verdict, scores: pd.DataFrame, images: OwnImages, *, study: str, level: float, distance: str
) -> Mapping[str, Path]:
    """Write the card of every checkpoint into a folder; arguments as for ``card``. Gives the path of each by its checkpoint's name."""
    written = {}
    for _, row in verdict.ranking.iterrows():
        own = scores[scores["checkpoint"] == row["checkpoint"]]
        path = inside(folder, file_name(row["checkpoint"]))
        with complete_or_absent(path) as temporary:
            text = card(row, own, verdict, images, study=study, level=level, distance=distance)
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        written[row["checkpoint"]] = path
    return written

"""A model card per checkpoint (Mitchell et al. 2019): what is predicted of it, on what that rests, and every measure."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.files import complete_or_absent, inside
from helpers.measures import registry
from helpers.report.style import percent, points
from helpers.select.images import OwnImages
from helpers.select.ranking import PASSED_OVER, RankingResult
from helpers.select.report import code, images_found, span
from helpers.select.target import TargetResult


def file_name(name: str) -> str:
    """Name of a checkpoint's card: its readable letters and a hash of it all; no name meets another or leaves a folder."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:60] or "checkpoint"
    return f"{readable}-{hashlib.blake2b(name.encode('utf-8', 'surrogateescape'), digest_size=4).hexdigest()}.md"


def card(
    row: pd.Series,
    scores: pd.DataFrame,
    verdict: RankingResult,
    images: OwnImages,
    *,
    study: str,
    level: float,
    distance: str,
    target: TargetResult | None = None,
) -> str:
    """Write one card.

    Args:
        row: of ``ranking.RANKING_COLUMNS``.
        scores: of this checkpoint: measure, variant, value, reason; see ``scores.OWN_SCORE_COLUMNS``.
        verdict: of all the checkpoints.
        images: that it was scored on.
        study: that calibrates.
        level: of the interval.
        distance: how far the study is from the case, as a sentence.
        target: what is predicted of images without labels; None where there are none.

    Returns:
        Markdown. Names stand in it as literal text.
    """
    lines = [f"# Model card: {code(row['checkpoint'])}", "", *_verdict(row, int(verdict.ranking["rank"].notna().sum()), level, target), ""]
    lines += ["## What it rests on", "", images_found(images), ""]
    lines += [f"Calibrated on the study {code(study)}. {distance}", ""]
    lines += [
        "This card predicts from training images alone. It replaces no test on held-out images, and says nothing of images of another"
        " kind, of fairness, or of robustness.",
        "",
    ]
    return "\n".join([*lines, *_measures(scores, verdict), ""])


def _verdict(row: pd.Series, count: int, level: float, target: TargetResult | None) -> list[str]:
    met = target.table[target.table["checkpoint"] == row["checkpoint"]] if target else ()
    facts = {
        "architecture": code(row["architecture"]) if row["architecture"] else "unknown",
        "outputs": str(int(row["outputs"])) if row["outputs"] else "unknown",
        "verdict": f"ranked {row['rank']:.0f} of {count}" if np.isfinite(row["rank"]) else row["verdict"],
        "predicted gap": points(row["predicted_gap"]),
        f"{level:.0%} interval of the gap": " to ".join(points(row[name]) for name in ("gap_low", "gap_high")),
        "probability of the smallest gap": percent(row["probability_best"]),
        "training accuracy on these images": percent(row["train_accuracy"]),
        "predicted test accuracy": percent(row["predicted_test_accuracy"]),
        "note": code(row["note"]) if row["note"] else "",
    }
    if len(met):
        own = met.iloc[0]
        facts |= {"predicted accuracy on the target": percent(own["predicted_accuracy"])}
        facts |= {f"{level:.0%} interval of the accuracy on the target": span(own, "accuracy"), "note on the target": code(own["note"])}
    return ["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in facts.items() if value)]


def _measures(scores: pd.DataFrame, verdict: RankingResult) -> list[str]:
    """Table every measure, beside its range among the study's models."""
    if not len(scores):
        return ["## Measures", "", "None could be computed."]
    known = registry.columns().merge(scores, on=["measure", "variant"])
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


def write_cards(
    folder: Path,
    verdict: RankingResult,
    scores: pd.DataFrame,
    images: OwnImages,
    *,
    study: str,
    level: float,
    distance: str,
    target: TargetResult | None = None,
    most: int | None = None,
) -> Mapping[str, Path]:
    """Write the card of every checkpoint, or of the first ``most``, into a folder; other arguments as for ``card``.

    Files that are no checkpoints have none.

    Returns:
        The path of each by its checkpoint's name.
    """
    written = {}
    for _, row in verdict.ranking[verdict.ranking["verdict"] != PASSED_OVER].head(most).iterrows():
        own = scores[scores["checkpoint"] == row["checkpoint"]]
        path = inside(folder, file_name(row["checkpoint"]))
        with complete_or_absent(path) as temporary:
            text = card(row, own, verdict, images, study=study, level=level, distance=distance, target=target)
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        written[row["checkpoint"]] = path
    return written

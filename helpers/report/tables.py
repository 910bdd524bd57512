"""Tables as a reader has them on a page: headers with units, what is the same in all rows said once, long names last."""

import csv
import math
from pathlib import Path
from typing import Any

from helpers.report.markup import in_words

MOST_ROWS = 300  # of a table on a page; all rows are in its CSV

_HEADERS = {
    "accuracy_high": "accuracy: to",  # in 07, at the level that is chosen there
    "accuracy_low": "accuracy: from",
    "added_error_points": "error saved (points)",
    "area_matched_iou": "area-matched IoU, above chance",
    "auc": "area under ROC",
    "ci_high": "95 % to",
    "ci_low": "95 % from",
    "gap": "gap (fraction)",
    "gap_high": "gap: to",
    "gap_low": "gap: from",
    "image_size": "image side (px)",
    "iou": "IoU",
    "iou_above_shuffled": "IoU above shuffled boxes",
    "iou_b": "IoU-B",
    "kendall": "Kendall τ",
    "kendall_tau": "Kendall τ",
    "mask_area": "mask (share of image)",
    "p_adjusted": "p, adjusted",
    "pearson_r": "Pearson r",
    "predicted_gap": "predicted gap (fraction)",
    "r_gap": "r with gap",
    "r_gap_between_cells": "r with gap, means of cells",
    "r_gap_given_all": "r given fit and hyperparameters",
    "r_gap_given_fit": "r given fit",
    "r_test_accuracy": "r with test accuracy",
    "rank_high": "rank: to",
    "rank_low": "rank: from",
    "seconds": "time (s)",
    "spearman": "Spearman ρ",
    "tau_gap": "τ with gap",
    "test_accuracy": "test accuracy (fraction)",
    "test_loss": "test loss (nats)",
    "top1": "top-1 (fraction)",
    "top5": "top-5 (fraction)",
    "train_accuracy": "training accuracy (fraction)",
    "train_loss": "training loss (nats)",
    "unseen_fraction": "unseen classes (fraction)",
    "weights_millions": "weights (millions)",
    "whole_image_floor": "floor: whole image",
}
HYPERPARAMETERS = (
    "architecture",
    "batch_size",
    "learning_rate",
    "optimizer",
    "weight_decay",
    "augmentation",
    "pretrained",
    "images_per_class",
)
HYPERPARAMETERS += ("label_noise", "repeat", "snapshot")  # first, for they say which model a row is
_LONG = ("model_id", "run_id", "cell", "data", "weights", "fingerprint", "device", "model")  # last, where there is anything else


def column_header(column: str) -> str:
    """Header of a column in words, with its unit where it has one: "train_loss" is "training loss (nats)"."""
    for end, words in (("_low", "95 % from"), ("_high", "95 % to")):
        stem = column.removesuffix(end)
        if stem != column and column not in _HEADERS:
            return f"{column_header(stem)}: {words}"
    return _HEADERS.get(column) or in_words(column)


def table_content(path: Path, most: int = MOST_ROWS) -> dict[str, Any]:
    """What a page shows of a table in CSV.

    Args:
        path: of the table.
        most: rows to show.

    Returns:
        header and rows (numbers as numbers, None where a value is undefined), in the order of the file, hyperparameters first and long
        names last; same, header to value of the columns that have one value in three rows or more; and total, the number of rows in
        the file.
    """
    with path.open(newline="", encoding="utf-8") as file:
        names, *lines = [*csv.reader(file)] or [[]]
    columns = dict(zip(names, zip(*lines, strict=True), strict=True)) if lines else dict.fromkeys(names, ())
    constant = {name for name, values in columns.items() if len(lines) >= 3 and len(set(values)) == 1}
    constant = constant if len(constant) < len(columns) else set()
    order = sorted((name for name in columns if name not in constant), key=lambda name: (name in _LONG, name not in HYPERPARAMETERS))
    rows = [[_value(columns[name][row]) for name in order] for row in range(min(most, len(lines)))]
    same = {column_header(name): _value(values[0]) for name, values in columns.items() if name in constant and values[0]}
    return {"header": [column_header(name) for name in order], "rows": rows, "same": same, "total": len(lines)}


def _value(text: str) -> str | float | int | None:
    if text in ("", "nan", "NaN"):
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    if not math.isfinite(number):
        return "∞" if number > 0 else "-∞"
    return int(number) if number == int(number) and abs(number) < 1e15 else float(f"{number:.6g}")

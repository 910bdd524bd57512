"""Tables for readers, the same on a page and in JupyterLab.

The model comes first with a readable name, and numbers have two digits.
"""

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import read_table, table_of
from helpers.report.markup import in_words
from helpers.report.style import short_name

MOST_ROWS = 10  # of a table on a page; all rows are in its file
_HEADERS = {
    "cells": "configurations",
    "diversity_bound": "mean Kappa loss",
    "ended_by_a_rule": "stopped by a rule",
    "error_points": "error (points)",
    "error_with": "error, kind held out (points)",
    "error_without": "error of training accuracy and loss (points)",
    "generalization_bound": "mean error",
    "kendall": "Kendall's tau",
    "kendall_tau": "Kendall's tau",
    "models_above_the_blob": "networks above the fixed central map",
    "model_id": "model",
    "n": "models",
    "ours": "here",
    "p_adjusted": "p, adjusted",
    "pearson_r": "Pearson's r",
    "r_gap": "r with the gap",
    "r_gap_given_start": "r given the start",
    "r_gap_given_start_and_training": "r given start, training accuracy and loss",
    "r_gap_given_train_accuracy": "r given training accuracy",
    "r_gap_within_kinds": "r within kinds, given training accuracy and loss",
    "r_test_accuracy": "r with test accuracy",
    "saved_error_points": "error saved (points)",
    "saved_from_best_points": "error saved from the best baseline (points)",
    "seconds": "time (s)",
    "smallest": "could have been told",
    "title": "measure",
    "train_accuracy": "training accuracy",
    "train_loss": "training loss",
    "unseen_fraction": "share of added classes",
    "weights_millions": "weights (millions)",
    "worst_points": "largest error (points)",
}
# Words that the end of a column's name adds to the header.
_ENDS = {
    "_twins": ", in every architecture",
    "_low": ": from",
    "_high": ": to",
    "_p": ": p",
    "_p_adjusted": ": p, adjusted",
    "_over_ssim": ", over noise",
    "_over_unseen_fraction": ", over added classes",
}
# Ends of the names of columns that stand in files and are not shown.
_NOT_SHOWN = ("_smallest", "_null", "_least_p")
# Column of the value of an interval, where the ends have another name than the value.
_OF_INTERVAL = {"ci": "pearson_r", "kendall": "kendall_tau"}
# Fractions that are read in percent, or as points.
PERCENT = {
    "train_accuracy": " (%)",
    "test_accuracy": " (%)",
    "ended_by_a_rule": " (%)",
    "models_above_the_blob": " (%)",
    "accuracy_swapped": " (%)",
    "gap": " (points)",
    "gap_at_equal_training_accuracy": " (points)",
    "gap_least": " (points)",
    "gap_most": " (points)",
}
# Columns of names, which are shown in words.
_NAMES = (
    "measure",
    "kind",
    "architecture",
    "concerns",
    "hyperparameter",
    "question",
    "quantity",
    "slice",
    "axis",
)
# Columns that are shown first and last.
_FIRST = ("model_id", "model", "checkpoint", "claim", "verdict")
_LAST = ("run_id", "cell", "file", "data", "weights", "device")


def read(folder: Path, name: str, suffix: str = ".csv") -> pd.DataFrame | None:
    """A table of a report.

    Args:
        folder: of the report, reports/<study>.
        name: of the table, without ending.
        suffix: ".csv" or ".parquet".

    Returns:
        The table, with or without rows; None if the report has no such file, or a file
        without columns.

    Raises:
        helpers.files.DamagedFileError: if a parquet is damaged.
    """
    path = table_of(folder, f"{name}{suffix}")
    if not path.is_file():
        return None
    try:
        table = (
            read_table(path)
            if suffix == ".parquet"
            else pd.read_csv(path, keep_default_na=False, na_values=["", "nan", "NaN"])
        )
    except pd.errors.EmptyDataError:
        return None
    if "variant" in table:  # of a measure; "" is the measure itself
        table["variant"] = table["variant"].astype(object).fillna("")
    return table


def model_names(catalogue: pd.DataFrame | None) -> dict[str, str]:
    """Short name of each model by its id.

    Args:
        catalogue: of the models; None gives no names.
    """
    rows = [] if catalogue is None else catalogue.to_dict("records")
    short_names = [short_name(row) for row in rows]
    names = {}
    for row, name in zip(rows, short_names, strict=True):
        run = f", #{row['run_id'][-4:]}" if short_names.count(name) > 1 else ""
        names[row["model_id"]] = name + run
    return names


def header(column: str) -> str:
    """Header of a column in words.

    Example:
        >>> header("r_gap_low")
        'r with the gap: from'
    """
    for end, words in _ENDS.items():
        if column.endswith(end) and column not in _HEADERS:
            return header(column.removesuffix(end)) + words
    return (_HEADERS.get(column) or in_words(column)) + PERCENT.get(column, "")


def two_digits(value: Any) -> str:
    """Text of a value for readers.

    Two digits; one decimal from 10 on; whole numbers as they are; "–" for an undefined
    value.
    """
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.number):
        return "–" if value is None else str(value)
    if math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if (value == round(value) or abs(value) >= 99.5) and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 9.95 else f"{value:#.2g}"


def in_shown_units(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with accuracies, gaps and shares in percent or points.

    Columns that are not shown are left out.
    """
    frame = frame.drop(columns=[name for name in frame if name.endswith(_NOT_SHOWN)])
    for name in PERCENT:
        if name in frame and pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = 100 * frame[name]
    return frame


def with_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with "0.50 (0.40 to 0.60)" in place of a value and its ends."""
    for start in [name.removesuffix("_low") for name in frame if name.endswith("_low")]:
        value = _OF_INTERVAL.get(start, start)
        columns = [value, f"{start}_low", f"{start}_high"]
        if {*columns} <= {*frame}:
            texts = [_estimate(*row) for row in frame[columns].to_numpy(dtype=float)]
            frame = frame.assign(**{value: texts}).drop(columns=columns[1:])
    return frame


def _estimate(value: float, low: float, high: float) -> str:
    text = two_digits(value)
    if math.isfinite(low):
        text += f" ({two_digits(low)} to {two_digits(high)})"
    return text


def arrange(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """A table with its model first, and headers and names in words.

    Args:
        frame: ``in_shown_units``.
        names: of models, see ``model_names``.
    """
    names = names or {}
    keys = [name for name in _FIRST if name in frame]
    if {"measure", "title"} <= {*frame}:
        frame = frame.drop(columns="measure")  # the title names it in words
    columns = [*keys, *frame.columns.difference([*keys, *_LAST], sort=False)]
    columns += [name for name in _LAST if name in frame]
    frame = frame[columns].copy()
    for name in _NAMES:
        if name in frame and pd.api.types.is_string_dtype(frame[name]):
            frame[name] = frame[name].map(
                lambda value: names.get(value) or header(value), "ignore"
            )
    for name in keys:
        frame[name] = [names.get(value, value) for value in frame[name]]
    return frame.rename(columns=header)


def html(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None, rows: int = MOST_ROWS
) -> str:
    """The table as HTML, with texts escaped.

    Columns with the same value in all rows are listed below it.

    Args:
        frame: all rows.
        names: of models, see ``model_names``.
        rows: number of first rows that are shown, ``MOST_ROWS`` at most.
    """
    frame = with_intervals(in_shown_units(frame))
    is_constant = frame.nunique(dropna=False).eq(1) & (len(frame) > 2)
    constant = [] if is_constant.all() else frame.columns[is_constant].tolist()
    shown = frame.drop(columns=constant).head(min(rows, MOST_ROWS))
    with pd.option_context("display.max_colwidth", None):
        table = arrange(shown, names).map(two_digits).to_html(index=False, border=0)
    facts = ", ".join(
        f"{header(name)} {two_digits(frame[name].iloc[0])}" for name in constant
    )
    if facts:
        table += f'<p class="small">The same in all rows: {escape(facts)}.</p>'
    return table

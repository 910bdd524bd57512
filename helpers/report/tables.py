"""Tables for readers, the same on a page and in JupyterLab.

The model comes first with a readable name, and numbers have two digits.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from IPython.display import HTML

from helpers.files import DamagedFileError, read_table, table_of
from helpers.report.markup import in_words
from helpers.report.style import short_name

MOST_ROWS = 10  # of a table on a page; all rows are in its file
_HEADERS = {
    "cells": "configurations",
    "ci": "interval",
    "diversity_bound": "mean Kappa loss",
    "ended_by_a_rule": "stopped by a rule",
    "error_points": "error (points)",
    "error_with": "error, kind held out (points)",
    "error_without": "error of training accuracy and loss (points)",
    "generalization_bound": "mean error",
    "kendall": "Kendall's tau",
    "kendall_tau": "Kendall's tau",
    "models_above_the_blob": "networks above the fixed central map",
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
    "_by_ssim": ", along SSIM",
    "_by_unseen_fraction": ", along added classes",
    "_by_weights": ", along size",
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
# Columns that are shown last.
_LAST = ("run_id", "cell", "file", "data", "weights", "fingerprint", "device")


class Estimate(NamedTuple):
    """A value and the ends of its interval, one cell of a table."""

    value: float
    low: float
    high: float


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Turn any error in reading a file into one ValueError that names the file.

    Readers raise errors of nearly every class where a file is damaged.
    """
    try:
        yield
    except (MemoryError, DamagedFileError):
        raise
    except Exception as fault:
        raise ValueError(
            f"{path} is damaged ({fault}); take it from the repository again, or run "
            "its notebook again"
        ) from fault


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
        ValueError: if the file is damaged; it names the file and what to do.
    """
    path = table_of(folder, f"{name}{suffix}")
    if not path.is_file():
        return None
    with intact(path):
        if suffix == ".parquet":
            table = read_table(path)
        elif not path.read_text(encoding="utf-8").strip():
            return None
        else:
            table = pd.read_csv(
                path, keep_default_na=False, na_values=["", "nan", "NaN"]
            )
    return table if table.shape[1] else None


def model_names(
    catalogue: pd.DataFrame | None, measures: pd.DataFrame | None = None
) -> dict[str, str]:
    """Names of models and measures for readers.

    Args:
        catalogue: of the models.
        measures: of ``registry.columns``.

    Returns:
        The short name of each model by its id, and the title of each measure by its
        column.
    """
    names = {}
    if measures is not None:
        names |= dict(zip(measures["column"], measures["title"], strict=True))
    if catalogue is not None:
        rows = catalogue.to_dict("records")
        short_names = [short_name(row) for row in rows]
        twice = {name for name in short_names if short_names.count(name) > 1}
        for row, name in zip(rows, short_names, strict=True):
            run = f", #{row['run_id'][-4:]}" if name in twice else ""
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
    if isinstance(value, Estimate):
        text = two_digits(value.value)
        if math.isfinite(value.low):
            text += f" ({two_digits(value.low)} to {two_digits(value.high)})"
        return text
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
    """The table with an ``Estimate`` in place of a value and its interval's ends."""
    for start in [name.removesuffix("_low") for name in frame if name.endswith("_low")]:
        value = _OF_INTERVAL.get(start, start)
        low = f"{start}_low"
        high = f"{start}_high"
        if {value, low, high} <= {*frame}:
            rows = frame[[value, low, high]].to_numpy(dtype=float)
            estimates = [Estimate(*row) for row in rows]
            column = pd.Series(estimates, frame.index, dtype=object)
            frame = frame.assign(**{value: column}).drop(columns=[low, high])
    return frame


def arrange(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """A table with its model first, and headers and names in words.

    Args:
        frame: ``in_shown_units``.
        names: of models and measures, see ``model_names``.
    """
    names = names or {}
    keys = [name for name in ("model_id", "model", "checkpoint") if name in frame]
    if {"measure", "title"} <= {*frame}:
        frame = frame.drop(columns="measure")  # the title names it in words
    columns = sorted(frame, key=lambda name: (name in _LAST, name not in keys))
    frame = frame[columns].copy()
    for name in _NAMES:
        if name in frame and pd.api.types.is_string_dtype(frame[name]):
            frame[name] = frame[name].map(
                lambda value: names.get(value) or header(value), "ignore"
            )
    for name in keys[:1]:
        frame[name] = [names.get(value, value) for value in frame[name]]
    headers = [
        header(name.removesuffix("_id") if name in keys else name) for name in columns
    ]
    return frame.set_axis(headers, axis=1)


def html(frame: pd.DataFrame, names: Mapping[str, str] | None = None) -> str:
    """The table as HTML, with texts escaped.

    Columns with the same value in all rows are listed below it.

    Args:
        frame: all rows; ``MOST_ROWS`` are shown.
        names: of models and measures, see ``model_names``.
    """
    frame = with_intervals(in_shown_units(frame))
    constant = []
    if len(frame) > 2:
        constant = [name for name in frame if frame[name].nunique(dropna=False) == 1]
    if len(constant) == frame.shape[1]:
        constant = []
    shown = arrange(frame.drop(columns=constant).head(MOST_ROWS), names)
    heads = "".join(f"<th>{escape(name)}</th>" for name in shown)
    body = "".join(
        f"<tr>{''.join(map(cell, row))}</tr>"
        for row in shown.itertuples(index=False, name=None)
    )
    facts = ", ".join(
        f"{header(name)} {two_digits(frame[name].iloc[0])}" for name in constant
    )
    note = f"The same in all rows: {escape(facts)}." if facts else ""
    return (
        '<div class="table"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
        + (f'<p class="small">{note}</p>' if note else "")
    )


def cell(value: Any) -> str:
    """A cell as HTML; numbers stand at the right."""
    text = escape(two_digits(value))
    value = value.value if isinstance(value, Estimate) else value
    is_number = isinstance(value, int | float | np.number)
    if isinstance(value, bool | np.bool_) or not is_number:
        return f'<td class="long">{text}</td>' if len(text) > 40 else f"<td>{text}</td>"
    return f'<td class="number">{text}</td>'


def sortable(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None, *, rows: int = 20
) -> HTML:
    """A table as a notebook shows it.

    Args:
        frame: all rows.
        names: of models and measures, see ``model_names``.
        rows: number of first rows that are shown, ``MOST_ROWS`` at most.
    """
    return HTML(html(frame.head(rows), names))

"""Tables for readers, the same on a page and in JupyterLab.

Names are readable, and numbers have two digits.
"""

import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.files import read_table, table_of
from helpers.report.style import in_words, short_name

CORRELATION = re.compile(r"r_(\w+)_gap")  # name of a result: its measure
MOST_ROWS = 10  # of a table on a page; all rows are in its file
# Headers of columns whose names say too little.
_HEADERS = {
    "ended_by_a_rule": "stopped by a rule",
    "error_with": "error, kind held out",
    "kendall": "Kendall's tau",
    "kendall_tau": "Kendall's tau",
    "models_above_the_blob": "networks above the fixed central map",
    "model_id": "model",
    "n": "models",
    "pearson_r": "Pearson's r",
    "r_gap": "r with the gap",
    "r_test_accuracy": "r with test accuracy",
    "seconds": "time (s)",
    "smallest": "could have been told",
    "title": "measure",
}
# Columns, and ends of names of columns, that stand in files and are not shown.
_FOR_FILES = ("run_id", "cell", "data", "device")
_NOT_SHOWN = ("_smallest", "_least_p")
# Beginning of the names of an interval's ends, where it is not that of its value.
_STARTS = {"pearson_r": "ci", "kendall_tau": "kendall"}
# Fractions that are read in percent, or as points.
_IN_PERCENT = ("train_accuracy", "test_accuracy", "accuracy_swapped")
_IN_PERCENT += ("ended_by_a_rule", "models_above_the_blob")
_IN_POINTS = ("gap", "gap_at_equal_training_accuracy", "gap_least", "gap_most")
PERCENT = dict.fromkeys(_IN_PERCENT, " (%)") | dict.fromkeys(_IN_POINTS, " (points)")
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
    """Header of a column, or a named result, in words.

    Example:
        >>> header("r_gap_given_start")
        'r with the gap given start'
        >>> header("r_iou_gap")
        'r of IoU with the gap'
    """
    correlation = CORRELATION.fullmatch(column)
    if correlation:
        return f"r of {header(correlation[1])} with the gap"
    name, given, held_fixed = column.partition("_given_")
    if given:
        return f"{header(name)} given {in_words(held_fixed)}"
    return (_HEADERS.get(column) or in_words(column)) + PERCENT.get(column, "")


def two_digits(value: Any) -> str:
    """Text of a value for readers.

    Two digits; one decimal from 10 on; whole numbers as they are; "–" for an undefined
    value.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if pd.isna(value):
        return "–"
    if (value == round(value, 0) or abs(value) >= 99.5) and abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.1f}" if 9.95 <= abs(value) < 99.5 else f"{value:#.2g}"


def texts(frame: pd.DataFrame, names: Mapping[str, str] | None = None) -> pd.DataFrame:
    """A table in words: readable headers and names, two digits, values with intervals.

    Accuracies, gaps and shares are in percent or points. A value and the ends of its
    interval are one column, "0.50 (0.40 to 0.60)".

    Args:
        frame: of numbers and names.
        names: of models, see ``model_names``.
    """
    hidden = {*_FOR_FILES, *(name for name in frame if name.endswith(_NOT_SHOWN))}
    if {"measure", "title"} <= {*frame}:
        hidden.add("measure")  # the title names it in words
    written = {}
    for name, column in frame.items():
        value_of = re.sub("_(low|high)$", "", name)
        if value_of in PERCENT and pd.api.types.is_numeric_dtype(column):
            column = 100 * column
        words = {**(names or {})}
        if name in _NAMES:
            words = {value: header(value) for value in column if isinstance(value, str)}
        written[name] = [words.get(value) or two_digits(value) for value in column]
    shown = pd.DataFrame(written, frame.index, dtype=object)
    for name in frame:
        low, high = (f"{_STARTS.get(name, name)}_{end}" for end in ("low", "high"))
        if {low, high} <= {*frame}:
            interval = " (" + shown[low] + " to " + shown[high] + ")"
            shown[name] += interval.where(shown[low].ne("–"), "")
            hidden |= {low, high}
    return shown.drop(columns=hidden, errors="ignore").rename(columns=header)


def html(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None, rows: int = MOST_ROWS
) -> str:
    """The table as HTML, with texts escaped.

    Columns with the same text in all rows are listed below it.

    Args:
        frame: all rows.
        names: of models, see ``model_names``.
        rows: number of first rows that are shown.
    """
    shown = texts(frame, names)
    is_constant = shown.nunique().eq(1).to_numpy() & (len(shown) > 2)
    if is_constant.all():
        is_constant[:] = False
    first = shown.loc[:, ~is_constant].head(rows)
    with pd.option_context("display.max_colwidth", None):
        table = first.to_html(index=False, border=0)
    facts = [f"{name} {text}" for name, text in shown.iloc[0][is_constant].items()]
    if facts:
        same = escape(", ".join(facts))
        table += f'<p class="small">The same in all rows: {same}.</p>'
    return table

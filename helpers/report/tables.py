"""Tables as a reader has them, on a page and in JupyterLab alike: the model first and short, two digits, sortable."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from IPython.display import HTML

from helpers.files import STAGING, DamagedFileError, inside, read_table
from helpers.report.markup import in_words
from helpers.report.style import short_name

MOST_ROWS = 150  # of a table on a page; all rows are in its file
_HEADERS = {
    "n": "models",
    "p_adjusted": "p, adjusted",
    "r_gap": "r with the gap",
    "seconds": "time (s)",
    "ci": "interval",
}
_HEADERS |= {
    "pearson_r": "Pearson's r",
    "kendall_tau": "Kendall's tau",
    "kendall": "Kendall's tau",
    "cells": "configurations",
}
_HEADERS |= {
    "saved_error_points": "error saved (points)",
    "train_accuracy": "training accuracy",
    "train_loss": "training loss",
}
_HEADERS |= {
    "title": "measure",
    "ours": "here",
    "error_without": "error of training accuracy and loss (points)",
    "error_with": "error, kind held out (points)",
}
_HEADERS |= {
    "r_gap_within_kinds": "r within kinds, given training accuracy and loss",
    "r_gap_given_start": "r given the start",
    "r_test_accuracy": "r with test accuracy",
    "saved_from_best_points": "error saved from the best baseline (points)",
    "error_points": "error (points)",
    "worst_points": "largest error (points)",
}
_ENDS = {
    "_twins": ", in every architecture",
    "_low": ": from",
    "_high": ": to",
    "_p": ": p",
    "_p_adjusted": ": p, adjusted",
}
_ENDS |= {
    "_by_ssim": ", along SSIM",
    "_by_unseen_fraction": ", along added classes",
    "_by_weights": ", along size",
}
_ENDS |= {"_over_ssim": ", over noise", "_over_unseen_fraction": ", over added classes"}
_UNREAD = (
    "_smallest",
    "_null",
    "_least_p",
)  # ends of columns that stand in the file alone
_OF_INTERVAL = {
    "ci": "pearson_r",
    "kendall": "kendall_tau",
}  # the value that ends belong to, where their names do not say so
# Fractions that are read in percent, or as points.
_PERCENT = dict.fromkeys(
    ("train_accuracy", "test_accuracy", "ended_by_a_rule", "models_above_the_blob"),
    " (%)",
)
_PERCENT |= dict.fromkeys(("gap", "gap_least", "gap_most"), " (points)")
_HEADERS |= {
    "r_gap_within_settings": "r with settings by start fixed too",
    "ended_by_a_rule": "stopped by a rule",
}
_HEADERS |= {
    "models_above_the_blob": "networks above the fixed central map",
    "unseen_fraction": "share of added classes",
}
_HEADERS |= {
    "generalization_bound": "mean error",
    "diversity_bound": "mean Kappa loss",
    "weights_millions": "weights (millions)",
}
# Columns of names, which a reader has in words.
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
_LAST = ("run_id", "cell", "file", "data", "weights", "fingerprint", "device")


class Estimate(NamedTuple):
    """A value and the ends of its interval, one cell of a table."""

    value: float
    low: float
    high: float


@contextmanager
def intact(path: Path) -> Iterator[None]:
    """Make one ValueError that names a file of whatever is raised while it is read: readers of damaged files raise nearly every kind."""
    try:
        yield
    except (MemoryError, DamagedFileError):
        raise
    except Exception as fault:
        raise ValueError(
            f"{path} is damaged ({fault}); take it from the repository again, or run its notebook again"
        ) from fault


def read(folder: Path, name: str, suffix: str = ".csv") -> pd.DataFrame | None:
    """A table of a report.

    Args:
        folder: of the report, reports/<study>.
        name: of the table, without ending.
        suffix: ".csv" or ".parquet".

    Returns:
        The table, with or without rows; None where the report does not hold it, or
        holds one without any column, which says as much.

    Raises:
        ValueError: if the file is damaged; it names the file and what to do.
    """
    path = inside(folder / "tables", f"{name}{suffix}")
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
    """The short name of each model of a catalogue, by its id, and the title of each measure of ``registry.columns``, by its column."""
    titles = (
        {}
        if measures is None
        else dict(zip(measures["column"], measures["title"], strict=True))
    )
    return (
        titles
        if catalogue is None
        else titles
        | {row["model_id"]: short_name(row) for row in catalogue.to_dict("records")}
    )


def header(column: str) -> str:
    """Header of a column in words: "r_gap_low" is "r with the gap: from"."""
    for end, words in _ENDS.items():
        if column.endswith(end) and column not in _HEADERS:
            return header(column.removesuffix(end)) + words
    return (_HEADERS.get(column) or in_words(column)) + _PERCENT.get(column, "")


def two_digits(value: Any) -> str:
    """One value for a reader: two digits, one decimal from 10 on, whole numbers as they are, "–" for what is undefined."""
    if isinstance(value, Estimate):
        ends = (
            f" ({two_digits(value.low)} to {two_digits(value.high)})"
            if math.isfinite(value.low)
            else ""
        )
        return two_digits(value.value) + ends
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.number):
        return "–" if value is None else str(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    whole = (value == round(value) or abs(value) >= 99.5) and abs(value) < 1e9
    return (
        f"{value:,.0f}"
        if whole
        else f"{value:.1f}"
        if abs(value) >= 9.95
        else f"{value:#.2g}"
    )


def in_units(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with accuracies, gaps and shares in percent or points, and without columns that are for the file alone."""
    kept = frame.drop(columns=[name for name in frame if name.endswith(_UNREAD)])
    return kept.assign(
        **{
            name: 100 * kept[name]
            for name in _PERCENT
            if name in kept and pd.api.types.is_numeric_dtype(kept[name])
        }
    )


def with_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with an ``Estimate`` in place of each value and the ends of its interval, which follow it in columns of their own."""
    for start in [name.removesuffix("_low") for name in frame if name.endswith("_low")]:
        ends, value = [f"{start}_low", f"{start}_high"], _OF_INTERVAL.get(start, start)
        if {value, *ends} <= {*frame}:
            cells = pd.Series(
                [Estimate(*row) for row in frame[[value, *ends]].to_numpy(dtype=float)],
                frame.index,
                dtype=object,
            )
            frame = frame.assign(**{value: cells}).drop(columns=ends)
    return frame


def arranged(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None
) -> pd.DataFrame:
    """A table ``in_units`` with its model first, by the short name where one is known, and headers in words."""
    keys = [name for name in ("model_id", "model", "checkpoint") if name in frame]
    frame = (
        frame.drop(columns="measure") if {"measure", "title"} <= {*frame} else frame
    )  # which the title says in words
    frame = frame[sorted(frame, key=lambda name: (name in _LAST, name not in keys))]
    named = [
        name
        for name in _NAMES
        if name in frame and pd.api.types.is_string_dtype(frame[name])
    ]
    names = names or {}
    frame = frame.assign(
        **{
            name: frame[name].map(
                lambda value: names.get(value) or header(value), "ignore"
            )
            for name in named
        }
    )
    if keys:
        frame = frame.assign(
            **{keys[0]: [names.get(value, value) for value in frame[keys[0]]]}
        )
    return frame.set_axis(
        [header(name.removesuffix("_id") if name in keys else name) for name in frame],
        axis=1,
    )


def html(frame: pd.DataFrame, names: Mapping[str, str] | None = None) -> str:
    """The table as HTML, each text as text, and below it what is the same in all rows; pages.js makes long ones sort and search."""
    frame = with_intervals(in_units(frame))
    same = [
        name
        for name in frame
        if len(frame) > 2 and frame[name].nunique(dropna=False) == 1
    ]
    same = same if len(same) < frame.shape[1] else []
    shown = arranged(frame.drop(columns=same).head(MOST_ROWS), names)
    heads = "".join(f"<th>{escape(name)}</th>" for name in shown)
    body = "".join(
        f"<tr>{''.join(map(cell, row))}</tr>"
        for row in shown.itertuples(index=False, name=None)
    )
    facts = ", ".join(
        f"{header(name)} {two_digits(frame[name].iloc[0])}" for name in same
    )
    told = (
        f'<p class="small">The same in all rows: {escape(facts)}.</p>' if facts else ""
    )
    return f'<div class="table"><table class="sortable"><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>{told}'


def cell(value: Any) -> str:
    """A cell, with its number for sorting where two digits are not all of it."""
    text = escape(two_digits(value))
    value = value.value if isinstance(value, Estimate) else value
    if isinstance(value, bool | np.bool_) or not isinstance(
        value, int | float | np.number
    ):
        return f'<td class="long">{text}</td>' if len(text) > 40 else f"<td>{text}</td>"
    order = f"{value:.6g}" if math.isfinite(value) else ""
    return (
        f'<td class="number">{text}</td>'
        if order == text
        else f'<td class="number" data-order="{order}">{text}</td>'
    )


def interactive() -> bool:
    """Whether somebody can touch what is shown: Jupyter names the notebook to the kernels that it starts, and a sweep marks its own."""
    return bool(os.environ.get("JPY_SESSION_NAME")) and not os.environ.get(STAGING)


def sortable(
    frame: pd.DataFrame, names: Mapping[str, str] | None = None, *, rows: int = 20
) -> Any:
    """What a notebook shows of a table: one that sorts and searches all rows in JupyterLab, the first rows as HTML in a report."""
    if not interactive():
        return HTML(html(frame.head(rows), names))
    from itables.widget import ITable

    shown, looks = (
        arranged(in_units(frame), names),
        {"pageLength": 10, "text_in_header_can_be_selected": False},
    )  # so that a click on it sorts
    return ITable(
        shown.map(two_digits) if len(shown) > MOST_ROWS else shown.round(4),
        maxBytes=0,
        allow_html=False,
        **looks,
    )

"""Names of the numbers of notebook 04, which findings take."""

import re
from collections.abc import Iterator

import numpy as np
import pandas as pd

from helpers.statistics.verdicts import verdict, word

# Name, value, low, high, unit: the arguments of ``Report.result``.
Named = tuple[str, float | str, float, float, str]
_NONE = (np.nan, np.nan, "")
# What an error of a predictor may be: held against the best baseline.
_BETTER = {"larger": "better", "smaller": "worse"}


def key_of(predictor: str) -> str:
    """A predictor in letters, digits and underscores.

    Args:
        predictor: a column of the models.

    Example:
        >>> key_of("curve_mean (rotation)")
        'curve_mean_rotation'
    """
    return re.sub(r"\W+", "_", predictor).strip("_")


def numbers_of_primary(
    primary: pd.DataFrame, claims: pd.DataFrame | None = None
) -> Iterator[Named]:
    """The numbers of the primary table, by name.

    Args:
        primary: see ``gap_tables.primary_table``.
        claims: the judged claims, see ``verdicts.word``.

    Yields:
        For each predictor X and question Q (``gap``, ``gap_given_start``, ...): r_X_Q,
        p_X_Q, smallest_X_Q and verdict_X_Q; error_X, and saved_X with its p, smallest
        and verdict. Undefined numbers have no name.
    """
    adjusted = [re.fullmatch(r"r_(.+)_p_adjusted", name) for name in primary]
    questions = [match[1] for match in adjusted if match]
    for _, row in primary.iterrows():
        key = key_of(row["measure"])
        for question in questions:
            if np.isnan(row[f"r_{question}"]):
                continue
            yield _with_ends(f"r_{key}_{question}", row, f"r_{question}")
            p = row[f"r_{question}_p_adjusted"]
            yield (f"p_{key}_{question}", p, *_NONE)
            smallest = row[f"r_{question}_smallest"]
            yield (f"smallest_{key}_{question}", smallest, *_NONE)
            judged = word(row, f"r_{question}", claims)
            yield (f"verdict_{key}_{question}", judged, *_NONE)
        ends = row["error_with_low"], row["error_with_high"]
        yield (f"error_{key}", row["error_with_twins"], np.nan, np.nan, "points")
        yield (f"error_{key}_kinds", row["error_with"], *ends, "points")
        if np.isnan(row["saved_from_best_points"]):
            continue
        saved = "saved_from_best_points"
        yield _with_ends(f"saved_{key}", row, saved, "points")
        p = row[f"{saved}_p_adjusted"]
        yield (f"p_saved_{key}", p, *_NONE)
        yield (f"smallest_saved_{key}", row[f"{saved}_smallest"], *_NONE[:2], "points")
        ends = row[f"{saved}_low"], row[f"{saved}_high"]
        judged = verdict(*ends, p, significant=1 - row["level"])
        yield (f"verdict_saved_{key}", _BETTER.get(judged, judged), *_NONE)
    measures = primary.dropna(subset="best_baseline").head(1)
    for _, row in measures.iterrows():
        yield ("best_baseline", row["best_baseline"], *_NONE)
        error = row["error_best_twins"]
        yield ("error_best_baseline", error, np.nan, np.nan, "points")


def numbers_of_errors(starts: pd.DataFrame, across: pd.DataFrame) -> Iterator[Named]:
    """r among networks of one start, and errors across studies, by name.

    Args:
        starts: see ``gap_tables.starts_table``.
        across: see ``gap_tables.across_studies``.

    Yields:
        r_X_gap_pretrained, r_X_gap_scratch and error_across_X_from_STUDY.
    """
    for _, row in starts.dropna(subset="r").iterrows():
        yield _with_ends(f"r_{key_of(row['measure'])}_gap_{row['start']}", row, "r")
    for _, row in across.dropna(subset="error_points").iterrows():
        study = key_of(row["trained_on"])
        name = f"error_across_{key_of(row['measure'])}_from_{study}"
        yield _with_ends(name, row, "error_points", "points")


def _with_ends(name: str, row: pd.Series, column: str, unit: str = "") -> Named:
    """A number with its interval, of a row."""
    prefix = "" if column == "r" else f"{column}_"
    return name, row[column], row[f"{prefix}low"], row[f"{prefix}high"], unit

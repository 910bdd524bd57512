"""May this study speak: conditions on the images, maps, networks and gaps that hold before a claim can be tested."""

from collections.abc import Collection, Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

ANY_MEASURE = "all"
GATE_COLUMNS = ["gate", "concerns", "value", "limit", "passes"]
NOT_KNOWN = "; not known: "  # between a limit and the reason why a value is not known
SMALLEST_MASK, LARGEST_MASK, HIGHEST_FLOOR = 0.05, 0.60, 0.40
STANDARD_ERRORS, SHARE_ABOVE = 3, 0.5
LEAST_RELIABILITY = 0.8
LEAST_SPAN = 20  # points
TIMES_CHANCE, LEAST_ACCURACY = 5, 0.40
LEAST_FINISHED = 0.80
ENOUGH_CELLS = 40


def share_above_chance(corrected: ArrayLike, errors: float = STANDARD_ERRORS) -> float:
    """Fraction of models whose chance-corrected measure is more than so many of its standard errors above 0.

    Args:
        corrected: (n, images) per-image values less their chance, such as IoU above shuffled boxes; NaN is left out.
        errors: standard errors of the mean over images.

    Returns:
        In [0, 1] of the models with 2 images at least; NaN where none has.
    """
    table = np.asarray(corrected, dtype=float)
    known = np.isfinite(table)
    count = known.sum(1)
    table, count = table[count > 1], count[count > 1]
    if not len(table):
        return np.nan
    mean = np.nansum(table, axis=1) / count
    error = np.sqrt(np.nansum((table - mean[:, None]) ** 2, axis=1) / (count - 1) / count)
    return float((mean > errors * error).mean())


def gate_table(
    models: pd.DataFrame,
    *,
    classes: int,
    mask_areas: Mapping[str, ArrayLike] | None = None,
    floor: float = np.nan,
    corrected: Mapping[str, ArrayLike] | None = None,
    reliabilities: Mapping[str, float] | None = None,
    unknown: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Whether each condition of a study holds, and which measures it concerns.

    Args:
        models: one row per analysed model: gap, test_accuracy (fractions), cell, and finished, whether its run stopped by a rule and not
            at the cap.
        classes: of the data set; chance is one in so many.
        mask_areas: by measure that has a fixed threshold, such as iou: areas of masks as fractions of the image, any shape.
        floor: mean area of the boxes, as a fraction: what a mask over the whole image scores.
        corrected: by localization measure: (n, images) values less their chance.
        reliabilities: by measure that reads images, see ``reliability.reliability``.
        unknown: by measure, why a value of it is not known.

    Returns:
        ``GATE_COLUMNS``: gate, concerns (a measure, or "all"), value (fraction; points for gaps; a count for cells), limit in words, and
        passes. A value that is not known, NaN, does not pass; the limit then ends with ``NOT_KNOWN`` and the reason.

    Raises:
        ValueError: an absent column, or fewer than 2 classes.
    """
    if absent := [name for name in ("gap", "test_accuracy", "cell", "finished") if name not in models]:
        raise ValueError(f"the models have no column {', '.join(absent)}; gates need gap, test_accuracy, cell and finished")
    if classes < 2:
        raise ValueError(f"classes is {classes}; accuracy has a chance level for 2 classes or more")
    least = max(TIMES_CHANCE / classes, LEAST_ACCURACY)
    span = 100 * float(models["gap"].quantile(0.9) - models["gap"].quantile(0.1))
    accuracy, finished = float(models["test_accuracy"].median()), float(models["finished"].mean())
    rows = []
    for name, areas in (mask_areas or {}).items():
        area = float(np.nanmedian(areas)) if np.isfinite(np.asarray(areas, dtype=float)).any() else np.nan
        limit = f"median area of the mask from {SMALLEST_MASK:.0%} to {LARGEST_MASK:.0%} of the image"
        rows.append(("the mask can miss", name, area, limit, SMALLEST_MASK <= area <= LARGEST_MASK))
        rows.append(("boxes leave room", name, floor, f"whole image scores at most {HIGHEST_FLOOR:.2f}", floor <= HIGHEST_FLOOR))
    limit = f"over {STANDARD_ERRORS} standard errors above chance in at least {SHARE_ABOVE:.0%} of models"
    for name, values in (corrected or {}).items():
        share = share_above_chance(values)
        rows.append(("the map depends on the image", name, share, limit, share >= SHARE_ABOVE))
    for name, value in (reliabilities or {}).items():
        rows.append(("models differ", name, value, f"reliability at least {LEAST_RELIABILITY}", value >= LEAST_RELIABILITY))
    rows.append(("gaps differ", ANY_MEASURE, span, f"10th to 90th percentile at least {LEAST_SPAN} points", span >= LEAST_SPAN))
    rows.append(("networks learnt", ANY_MEASURE, accuracy, f"median test accuracy at least {100 * least:.3g} %", accuracy >= least))
    rows.append(
        ("networks finished", ANY_MEASURE, finished, f"at least {100 * LEAST_FINISHED:g} % stopped by a rule", finished >= LEAST_FINISHED)
    )
    cells = models["cell"].nunique()
    rows.append(("enough cells", ANY_MEASURE, float(cells), f"at least {ENOUGH_CELLS} cells", cells >= ENOUGH_CELLS))
    table = pd.DataFrame(rows, columns=GATE_COLUMNS).astype({"passes": bool})
    reasons = table["concerns"].map({name: f"{NOT_KNOWN}{reason}" for name, reason in (unknown or {}).items()}, na_action="ignore")
    return table.assign(limit=table["limit"] + reasons.where(table["value"].isna()).astype(object).fillna(""))


def failed(gates: pd.DataFrame, measures: Collection[str]) -> list[str]:
    """Gates that these measures, or all, do not pass: what stands between a claim on them and a verdict; in the table's order."""
    concerned = gates["concerns"].isin([ANY_MEASURE, *measures])
    return list(dict.fromkeys(gates.loc[concerned & ~gates["passes"], "gate"]))

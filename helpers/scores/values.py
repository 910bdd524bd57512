"""Files of scores and arrays, a table and a file of arrays for each network.

``scores/<network>.parquet`` has a row per value, with the columns ``COLUMNS``;
``arrays/<network>.npz`` has values of single images, maps and predictions. Both lie in
``work/<study>`` and, published, in ``reports/<study>/records``. A reader takes all
networks at once: ``pandas.read_parquet("reports/kinds20/records/scores")``.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock
from numpy.typing import NDArray

from helpers.files import (
    complete_or_absent,
    inside,
    read_arrays,
    read_table,
    write_table,
)

SCORES = "scores"
ARRAYS = "arrays"
SETTINGS = "settings"
# How maps were made, and what they are compared with.
CHOICE = (
    "method",
    "formula",
    "layer",
    "class_used",
    "annotation",
    "image_size",
    "threshold",
    "subset",
)
# A part is a group of values that are computed together, such as a family of measures;
# its settings decide the values. A score without a value has a reason.
COLUMNS = (
    "part",
    "settings",
    "weights",
    "measure",
    "variant",
    *CHOICE,
    "n",
    "value",
    "reason",
)
_NUMBERS = ("image_size", "threshold", "n", "value")
# A part of arrays alone has one row of this measure, which says that it is complete.
COMPLETE = "complete"


def in_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of scores with all ``COLUMNS``: "" and NaN where they have none.

    Args:
        rows: with columns of ``COLUMNS``, "measure" and "value" among them.
    """
    table = rows.reindex(columns=[*COLUMNS])
    texts = [name for name in COLUMNS if name not in _NUMBERS]
    table[texts] = table[texts].astype(object).fillna("").astype(str)
    table[[*_NUMBERS]] = table[[*_NUMBERS]].astype(float)
    return table


def keys_of(scores: pd.DataFrame) -> pd.Series:
    """Part and settings of each score, as "<part>-<settings>".

    Args:
        scores: ``COLUMNS``.
    """
    return scores["part"] + "-" + scores["settings"]


def read_scores(folder: Path, model_id: str) -> pd.DataFrame:
    """Scores of a network in a folder of work or of records; no row without a file.

    Args:
        folder: that has ``scores``.
        model_id: of the network.

    Raises:
        DamagedFileError: where the file is damaged.
    """
    path = inside(folder / SCORES, f"{model_id}.parquet")
    return in_columns(read_table(path) if path.is_file() else pd.DataFrame())


def read_values(
    folder: Path, model_id: str, keys: Collection[str]
) -> dict[str, NDArray[Any]]:
    """Arrays of a network in a folder of work or of records; none without a file.

    Args:
        folder: that has ``arrays``.
        model_id: of the network.
        keys: of parts.

    Returns:
        By "<part>-<settings>/<name>".

    Raises:
        DamagedFileError: where the file is damaged.
    """
    path = inside(folder / ARRAYS, f"{model_id}.npz")
    values = read_arrays(path) if path.is_file() else {}
    return {
        name: array for name, array in values.items() if name.rpartition("/")[0] in keys
    }


def add_values(
    folder: Path,
    model_id: str,
    scores: pd.DataFrame,
    arrays: Mapping[str, NDArray[Any]],
) -> None:
    """Add scores and arrays to those of a network, in place of those of the same parts.

    Scores are written last, since they say what is there.

    Args:
        folder: of work or of records.
        model_id: of the network.
        scores: ``COLUMNS``.
        arrays: by "<part>-<settings>/<name>".
    """
    path = inside(folder / SCORES, f"{model_id}.parquet")
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.stem}.lock")  # not read with the folder
    with FileLock(lock):  # notebooks that run side by side score the same networks
        before = read_scores(folder, model_id)
        before = before[~keys_of(before).isin(keys_of(scores))]
        values = read_values(folder, model_id, {*keys_of(before)}) | arrays
        if values:
            of_arrays = folder / ARRAYS / f"{model_id}.npz"
            with complete_or_absent(of_arrays) as part, part.open("wb") as file:
                np.savez_compressed(file, **values)
        write_table(path, pd.concat([before, scores], ignore_index=True))

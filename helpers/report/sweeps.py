"""Combinations of a sweep: a table of their results, and a small picture of each."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn
from matplotlib.figure import Figure

from helpers.files import from_root, inside, read_json
from helpers.parameters import near_names
from helpers.report import style, tables

_MOST_PANELS = 9


def named_results(notebook: Path) -> dict[str, Any]:
    """Named results of an executed notebook.

    Args:
        notebook: path of the executed notebook.

    Returns:
        The value of each result, such as ``r_iou_gap``, and the ends of its interval,
        ``r_iou_gap_low`` and ``r_iou_gap_high``; none where it named none.
    """
    path = notebook.with_name("results.json")
    values = {}
    for item in read_json(path) if path.is_file() else []:
        values[item["name"]] = item["value"]
        values[f"{item['name']}_low"] = item["low"]
        values[f"{item['name']}_high"] = item["high"]
    return values


def sweep_results(
    study: str, notebook: str, reports_dir: str = "reports"
) -> pd.DataFrame:
    """Combinations of a study's sweep, with the named results of its notebook.

    Args:
        study: name of the study.
        notebook: name of the swept notebook, such as ``"03_cam_scoring"``.
        reports_dir: where reports are published.

    Returns:
        See ``results_of``.

    Raises:
        FileNotFoundError: where the study has no sweep of this notebook.

    Example:
        >>> table = sweep_results("kinds20", "03_cam_scoring")  # doctest: +SKIP
        >>> table[["cam_threshold", "r_iou_gap"]]  # doctest: +SKIP
    """
    report = inside(from_root(reports_dir), study)
    folder = inside(report, f"sweeps/{notebook}")
    if not folder.is_dir():
        near = near_names(notebook, [path.name for path in report.glob("sweeps/*/")])
        raise FileNotFoundError(
            f"{folder} has no combination{near}; make sweep STUDY={study} "
            f"VARY={notebook}.NAME=VALUE,VALUE makes them"
        )
    return results_of(folder)


def results_of(folder: Path) -> pd.DataFrame:
    """Combinations of a sweep that were executed, with their named results.

    Args:
        folder: ``reports/<study>/sweeps/<notebook>``.

    Returns:
        A row for each combination: its swept values, each result, and the ends of its
        interval in ``<result>_low`` and ``<result>_high`` if it has one. ``attrs`` has
        the names of ``parameters``.
    """
    rows = []
    parameters: dict[str, None] = {}
    for path in sorted(folder.glob(f"*/{folder.name}/{folder.name}.ipynb")):
        combination = path.parents[1].name
        values = read_json(path)["metadata"]["papermill"]["parameters"]
        swept = {name: values[name] for name in re.findall(r"(\w+)=", combination)}
        parameters |= dict.fromkeys(swept)
        rows.append(swept | named_results(path))
    frame = pd.DataFrame(rows).dropna(axis=1, how="all")
    if rows:
        frame = frame.sort_values([*parameters], ignore_index=True)
    frame.attrs = {"parameters": [*parameters]}
    return frame


def drawn_results(frame: pd.DataFrame) -> list[str]:
    """Results that differ between combinations: correlations, else all numbers.

    Args:
        frame: of ``results_of``.
    """
    numbers = frame.drop(columns=frame.attrs["parameters"]).select_dtypes("number")
    names = [
        name
        for name in numbers
        if numbers[name].nunique() > 1 and not name.endswith(("_low", "_high"))
    ]
    correlations = [name for name in names if tables.CORRELATION.fullmatch(name)]
    return (correlations or names)[:_MOST_PANELS]


def small_multiples(frame: pd.DataFrame) -> Figure:
    """Draw each result against the parameter with most values, on the same scales.

    Args:
        frame: of ``results_of``; the other parameters give colour and dashes.
    """
    style.use()
    parameters = sorted(
        frame.attrs["parameters"], key=lambda name: -frame[name].nunique()
    )
    names = drawn_results(frame)
    long = frame.melt(parameters, names, "result", "value")
    long["result"] = long["result"].map(tables.header)
    long[parameters] = long[parameters].astype(object)
    long = long.rename(columns=tables.header)
    first, second, third = [*map(tables.header, parameters), None, None][:3]
    grid = seaborn.relplot(
        long,
        x=first,
        y="value",
        hue=second,
        style=third,
        col="result",
        kind="line",
        marker="o",
        height=2.8,
        aspect=1.2,
        col_wrap=min(3, len(names)) or None,
        palette="viridis" if second else None,
    )
    grid.set(ylabel="").set_titles("{col_name}", size="small")
    grid.refline(y=0)
    return grid.figure


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """The combinations with the results that are drawn, with intervals, in words.

    Args:
        frame: of ``results_of``.
    """
    names = drawn_results(frame)
    ends = [f"{name}{end}" for name in names for end in ("_low", "_high")]
    return tables.texts(frame.filter([*frame.attrs["parameters"], *names, *ends]))

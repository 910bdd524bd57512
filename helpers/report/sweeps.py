"""Combinations of a sweep: a table of their results, and a small picture of each."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn
from matplotlib.figure import Figure

from helpers.files import read_json
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
        name = item["name"]
        ends = {f"{name}_low": item["low"], f"{name}_high": item["high"]}
        values |= {name: item["value"]} | ends
    return values


def results_of(folder: Path) -> pd.DataFrame:
    """Combinations of a sweep that were executed, with their named results.

    Args:
        folder: ``reports/<study>/sweeps/<notebook>``.

    Returns:
        A row for each combination, by its swept values: each result, and the ends of
        its interval in ``<result>_low`` and ``<result>_high`` if it has one.
    """
    rows = []
    names: list[str] = []
    for path in sorted(folder.glob(f"*/{folder.name}/{folder.name}.ipynb")):
        values = read_json(path)["metadata"]["papermill"]["parameters"]
        names = re.findall(r"(\w+)=", path.parents[1].name)
        rows.append({name: values[name] for name in names} | named_results(path))
    frame = pd.DataFrame(rows).dropna(axis=1, how="all")
    return frame.set_index(names).sort_index() if names else frame


def drawn_results(frame: pd.DataFrame) -> list[str]:
    """Results that differ between combinations: correlations, else all numbers.

    Args:
        frame: of ``results_of``.
    """
    numbers = frame.select_dtypes("number")
    differing = numbers.columns[numbers.nunique() > 1]
    names = [name for name in differing if not name.endswith(("_low", "_high"))]
    correlations = [name for name in names if tables.CORRELATION.fullmatch(name)]
    return (correlations or names)[:_MOST_PANELS]


def small_multiples(frame: pd.DataFrame) -> Figure:
    """Draw each result against the parameter with most values, on the same scales.

    Args:
        frame: of ``results_of``; two more parameters give colours and dashes.
    """
    style.use()
    swept = sorted(frame.index.names, key=lambda name: -frame.index.unique(name).size)
    x, hue, dashes = [*map(tables.header, swept), None, None][:3]
    names = drawn_results(frame)
    long = frame[names].melt(var_name="result", ignore_index=False).reset_index()
    long = long.astype(dict.fromkeys(swept, object)).rename(columns=tables.header)
    grid = seaborn.relplot(
        long.assign(result=long["result"].map(tables.header)),
        x=x,
        y="value",
        hue=hue,
        style=dashes,
        col="result",
        kind="line",
        marker="o",
        height=2.8,
        aspect=1.2,
        col_wrap=min(3, len(names)) or None,
        palette="viridis" if hue else None,
    )
    grid.set(ylabel="").set_titles("{col_name}", size="small")
    grid.refline(y=0)
    return grid.figure


def draw(folder: Path) -> bool:
    """Draw a sweep into ``figures/results.png``, where its page shows it.

    Args:
        folder: ``reports/<study>/sweeps/<notebook>``.

    Returns:
        Whether a combination has results.
    """
    frame = results_of(folder)
    if len(frame):
        (folder / "figures").mkdir(exist_ok=True)
        small_multiples(frame).savefig(folder / "figures/results.png", dpi=90)
    return len(frame) > 0


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """The combinations with the results that are drawn, with intervals, in words.

    Args:
        frame: of ``results_of``.
    """
    drawn = frame.filter(regex=f"^({'|'.join(drawn_results(frame))})(_low|_high)?$")
    return tables.texts(drawn.reset_index())

"""Combinations of a sweep: a table of their results, and a small picture of each."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import seaborn
from IPython.display import Markdown, display
from matplotlib.figure import Figure

from helpers.files import STAGING, from_root, inside, read_json
from helpers.parameters import near_names
from helpers.report import style, tables

_CORRELATION = re.compile(r"r_(\w+)_gap")  # name of a result: its measure
_MOST_PANELS = 9


def sweeps_of(report: Path) -> list[Path]:
    """Folders of the sweeps of a report, one for each swept notebook."""
    return sorted(path for path in report.glob("sweeps/*/") if any(path.glob("*=*/")))


def results_of_notebook(path: Path) -> list[dict[str, Any]]:
    """Named results of an executed notebook.

    Args:
        path: of the executed notebook.

    Returns:
        Each with name, value, low, high and unit; none where it named none.
    """
    file = path.with_name("results.json")
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else []


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
    if folder not in sweeps_of(report):
        near = near_names(notebook, [path.name for path in sweeps_of(report)])
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
        ``parameters`` and ``results``, by name.
    """
    rows = []
    swept: dict[str, None] = {}
    results: dict[str, None] = {}
    name = f"{folder.name}.ipynb"
    for path in sorted([*folder.glob(f"*/{name}"), *folder.glob(f"*/*/{name}")]):
        named = results_of_notebook(path)
        if not named:
            continue  # it failed
        combination = path.relative_to(folder).parts[0]
        values = read_json(path)["metadata"]["papermill"]["parameters"]
        row = {each: values[each] for each in re.findall(r"(\w+)=", combination)}
        swept |= dict.fromkeys(row)
        for item in named:
            row[item["name"]] = item["value"]
            row[f"{item['name']}_low"] = item["low"]
            row[f"{item['name']}_high"] = item["high"]
            results[item["name"]] = None
        rows.append(row)
    frame = pd.DataFrame(rows).dropna(axis=1, how="all")
    if swept and len(frame):
        frame = frame.sort_values(list(swept), ignore_index=True)
    results_there = [each for each in results if each in frame]
    frame.attrs = {"parameters": list(swept), "results": results_there}
    return frame


def drawn_results(frame: pd.DataFrame) -> list[str]:
    """Results that differ between combinations: correlations, else all numbers.

    Args:
        frame: of ``results_of``.
    """
    numbers = frame[frame.attrs["results"]].select_dtypes("number")
    names = [name for name in numbers if numbers[name].nunique() > 1]
    correlations = [name for name in names if _CORRELATION.fullmatch(name)]
    return (correlations or names)[:_MOST_PANELS]


def title(name: str) -> str:
    """A result in words.

    Example:
        >>> title("r_iou_gap")
        'r of IoU with the gap'
    """
    correlation = _CORRELATION.fullmatch(name)
    if correlation:
        return f"r of {tables.header(correlation[1])} with the gap"
    return tables.header(name)


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
    long["result"] = long["result"].map(title)
    long[parameters] = long[parameters].astype(object)
    first, second, third = [*parameters, None, None][:3]
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
        palette="colorblind" if second else None,
    )
    grid.set(ylabel="").set_titles("{col_name}", size="small")
    for ax in grid.axes.flat:
        ax.axhline(0, color="0.6", linewidth=1)
    return grid.figure


def table(frame: pd.DataFrame) -> pd.DataFrame:
    """The combinations with the results that are drawn, with intervals, in words.

    Args:
        frame: of ``results_of``.
    """
    names = drawn_results(frame)
    ends = [f"{name}{end}" for name in names for end in ("_low", "_high")]
    columns = [*frame.attrs["parameters"], *names, *ends]
    shown = tables.with_intervals(frame[[name for name in columns if name in frame]])
    return shown.rename(columns={name: title(name) for name in names}).map(
        tables.two_digits
    )


def show(study: str, notebook: str, reports_dir: str = "reports") -> Any:
    """Draw a published sweep in a notebook that is opened by hand.

    Args:
        study: name of the study.
        notebook: the swept notebook.
        reports_dir: where reports are published.

    Returns:
        The table of combinations, after a figure; a sentence where there is no sweep;
        None while a sweep executes the notebook.
    """
    if os.environ.get(STAGING):
        return None
    try:
        frame = sweep_results(study, notebook, reports_dir)
    except FileNotFoundError as absent:
        return Markdown(f"No sweep is published: {absent}.")
    figure = small_multiples(frame)
    display(figure)
    figure.clear()
    return table(frame)

"""Comparison of the combinations of a sweep: a table, and small pictures."""

import math
import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from IPython.display import Markdown, display
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from helpers.files import (
    PUBLISHED_VALUES,
    STAGING,
    SWEEP_LISTING,
    complete_or_absent,
    from_root,
    inside,
    read_json,
)
from helpers.parameters import near_names
from helpers.report import style, tables
from helpers.report.figure_files import as_file
from helpers.report.notebook import results_file

_SIZE = (3.6, 2.6)  # of a picture on a page, in inches
_DPI = 90
_ROWS = 30  # combinations that a page shows before it parts its table
# Ratio of the largest to the smallest value of a parameter that asks for a log axis.
_LOG_RATIO = 20.0
_CORRELATION = r"r_(\w+)_gap(_\w+)?"  # name of a result: its measure, and a condition
# A correlation that moves by less is not reported as moved by maps that were rounded to
# 8 bits, see ``_of_rounded_maps``.
_LEAST_SHIFT = 1e-4


def sweeps_of(report: Path) -> list[Path]:
    """Folders of the sweeps of a report, one for each swept notebook."""
    return sorted(path.parent for path in report.glob(f"sweeps/*/{SWEEP_LISTING}"))


def sweep_results(
    study: str, notebook: str, reports_dir: str = "reports"
) -> pd.DataFrame:
    """Combinations of a study's sweep, with the named results of its notebooks.

    Args:
        study: name of the study.
        notebook: name of the swept notebook, such as ``"03_cam_scoring"``.
        reports_dir: where reports are published.

    Returns:
        A row for each combination: its values; each result, with the ends of its
        interval in columns ``<result>_low`` and ``<result>_high`` if it has one;
        failed, its error or ""; and folder, that of its executed notebook. Results of
        another notebook of the chain are ``<notebook>.<result>``; undefined ones are
        NaN. ``attrs`` has ``parameters`` (swept), ``results``, ``units``, and
        ``of_study``, the values of the study's own report, empty where it has none.

    Raises:
        FileNotFoundError: where the study has no sweep of this notebook.

    Example:
        >>> table = sweep_results("kinds20", "03_cam_scoring")  # doctest: +SKIP
        >>> table[["cam_threshold", "r_iou_gap"]]  # doctest: +SKIP
    """
    report = inside(from_root(reports_dir), study)
    folder = inside(report, f"sweeps/{notebook}")
    if not (folder / SWEEP_LISTING).is_file():
        near = near_names(notebook, [path.name for path in sweeps_of(report)])
        raise FileNotFoundError(
            f"{folder / SWEEP_LISTING} is not there{near}; `python -m helpers.sweep "
            f"{study} --vary {notebook}.NAME=VALUE,VALUE` makes it"
        )
    return results_of(folder)


def results_of(folder: Path) -> pd.DataFrame:
    """``sweep_results`` of a folder ``reports/<study>/sweeps/<notebook>``."""
    with tables.intact(folder / SWEEP_LISTING):  # names the file if it is damaged
        listing = read_json(folder / SWEEP_LISTING)
        parameters = listing["parameters"]
        chain = listing["notebooks"]
        rows = []
        units: dict[str, str] = {}
        for item in listing["combinations"]:
            row = {name: _as_cell(item["values"][name]) for name in parameters}
            place = inside(folder, item["folder"])
            for stem in chain:
                if stem not in item["failed"]:
                    row |= _results(place, stem, chain[0], units)
            failed = [f"{stem}: {fault}" for stem, fault in item["failed"].items()]
            rows.append(row | {"failed": "\n".join(failed), "folder": item["folder"]})
    frame = pd.DataFrame(rows)
    last = ["failed", "folder"]
    frame = frame[[name for name in frame if name not in last] + last]
    ends = [name for name in frame if name.endswith(("_low", "_high"))]
    frame = frame.drop(columns=[name for name in ends if frame[name].isna().all()])
    frame.attrs = {
        "parameters": parameters,
        "results": [name for name in units if name in frame],
        "units": units,
        "of_study": _values_of_study(folder, parameters),
    }
    return frame


def _values_of_study(folder: Path, parameters: list[str]) -> dict[str, Any]:
    """Values of the swept parameters in the report that has the sweep, by name."""
    path = folder.parents[1] / PUBLISHED_VALUES
    if not path.is_file():
        return {}
    with tables.intact(path):
        of_notebook = read_json(path)["parameters"].get(folder.name, {})
        return {
            name: _as_cell(of_notebook[name])
            for name in parameters
            if name in of_notebook
        }


def is_of_study(frame: pd.DataFrame) -> pd.Series:
    """Whether each combination has the values of the study's own report.

    Args:
        frame: of ``sweep_results``.
    """
    of_study = frame.attrs["of_study"]
    is_own = pd.Series(bool(of_study), frame.index)
    for name in frame.attrs["parameters"]:
        is_own &= frame[name].eq(of_study.get(name))
    return is_own


def what_it_shows(frame: pd.DataFrame) -> list[str]:
    """Sentences on a sweep: where each correlation lies, and what records change.

    Args:
        frame: of ``sweep_results``.
    """
    # Those of the swept notebook: names of others begin with their notebook's.
    correlations = [
        name for name in drawn_results(frame) if re.fullmatch(_CORRELATION, name)
    ]
    swept = varied(frame)
    # Of several parameters, that with the fewest values parts the sentences.
    fewest = min(swept, key=lambda name: frame[name].nunique(), default="")
    parted_by = fewest if len(swept) > 1 else ""
    sentences = [_range_in_words(frame, name, parted_by) for name in correlations]
    return [*sentences, *_of_rounded_maps(frame, correlations)]


def _range_in_words(frame: pd.DataFrame, name: str, parted_by: str = "") -> str:
    """Say between which values a correlation lies, and whether its intervals overlap.

    Args:
        frame: of ``sweep_results``.
        name: of the correlation.
        parted_by: parameter for each of whose values the range is given; "" for none.

    Example:
        "r of IoU with the gap: -0.31 to -0.21; all intervals overlap."
    """
    rows = frame.dropna(subset=name)
    ranges = {"": _range(rows[name])}
    if parted_by:
        ranges = {
            f"{parted_by} {value} ": _range(group[name])
            for value, group in rows.groupby(parted_by, sort=False)
        }
    if len(set(ranges.values())) == 1:
        ranges = {"": _range(rows[name])}
    values = ", ".join(f"{group}{words}" for group, words in ranges.items())
    sentence = f"{title(frame, name)}: {values}"
    if f"{name}_low" not in rows:
        return f"{sentence}."
    overlap = rows[f"{name}_low"].max() <= rows[f"{name}_high"].min()
    return f"{sentence}; {'all' if overlap else 'not all'} intervals overlap."


def _range(values: pd.Series) -> str:
    """Smallest and largest value, such as "-0.31 to -0.21"; one if they are equal."""
    ends = [f"{values.min():.2f}", f"{values.max():.2f}"]
    return " to ".join(dict.fromkeys(ends))


def not_compared(frame: pd.DataFrame, folder: Path) -> list[str]:
    """Folders of combinations that an earlier sweep made and this one does not list.

    Args:
        frame: of ``results_of``.
        folder: of the sweep.
    """
    made = {path.parent.name for path in folder.glob("*/*.ipynb")}
    return sorted(made - set(frame["folder"]))


def _of_rounded_maps(frame: pd.DataFrame, correlations: list[str]) -> list[str]:
    """Say that values of the study's own report are not of rounded maps, if so.

    A correlation that is the same in all other combinations does not depend on what is
    swept. Where it differs at the study's own values, these were read from records, and
    all others were computed from the recorded maps. Kept maps of 16 bits move it by
    less than ``_LEAST_SHIFT``.

    Returns:
        One sentence in a list; empty without such a correlation.
    """
    is_own = is_of_study(frame)
    own = frame[is_own]
    others = frame[~is_own]
    differences = {}
    for name in correlations:
        elsewhere = others[name].dropna()
        if len(elsewhere) > 1 and elsewhere.nunique() == 1:
            shift = (own[name] - elsewhere.iloc[0]).abs().max()
            if shift >= _LEAST_SHIFT:  # False where there is no row of the study's own
                differences[name] = shift
    if not differences:
        return []
    names = " and ".join(title(frame, name) for name in differences)
    parameters = " and ".join(frame.attrs["parameters"])
    return [
        "In the study's own row recorded values are read; in every other row all is "
        "computed from the recorded maps, which have 8 bits. This alone moves "
        f"{names}, independent of {parameters}, by "
        f"{max(differences.values()):.4f} at most."
    ]


def _as_cell(value: Any) -> Any:
    """A value of a parameter for a table; lists and mappings become texts."""
    return value if isinstance(value, bool | int | float | str) else str(value)


def _results(place: Path, stem: str, swept: str, units: dict[str, str]) -> dict:
    """Named results of an executed notebook by column; fills in ``units``."""
    path = place / results_file(stem)
    if not path.is_file():
        return {}
    row = {}
    with tables.intact(path):
        for result in read_json(path):
            name = result["name"] if stem == swept else f"{stem}.{result['name']}"
            units[name] = result["unit"]
            row[name] = result["value"]
            row[f"{name}_low"] = result["low"]
            row[f"{name}_high"] = result["high"]
    return row


def drawn_results(frame: pd.DataFrame) -> list[str]:
    """Results that are numbers and differ between combinations."""
    numbers = frame[frame.attrs["results"]].select_dtypes("number")
    return [name for name in numbers if numbers[name].nunique() > 1]


def varied(frame: pd.DataFrame) -> list[str]:
    """Swept parameters that have more than one value."""
    return [name for name in frame.attrs["parameters"] if frame[name].nunique() > 1]


def title(frame: pd.DataFrame, name: str) -> str:
    """A result in words, with its unit."""
    stem, _, result = name.rpartition(".")
    unit = frame.attrs["units"].get(name, "")
    words = tables.header(result)
    correlation = re.fullmatch(_CORRELATION, result)
    if correlation:
        measure, condition = correlation.groups()
        words = f"r of {tables.header(measure)} with the gap"
        # A condition begins with "_", which its header has as a blank.
        words += f",{tables.header(condition)}" if condition else ""
    words += f" ({unit})" if unit else ""
    return f"{stem[:2]}: {words}" if stem else words


def colours(frame: pd.DataFrame, parameter: str) -> dict[Any, tuple]:
    """Colour of each value of a parameter."""
    return style.colours(style.in_order(frame[parameter])) if parameter else {}


def draw(
    ax: Axes, frame: pd.DataFrame, result: str, parameter: str, second: str = ""
) -> None:
    """Draw a result against a parameter, with intervals, coloured by a second one.

    Args:
        ax: to draw on.
        frame: of ``sweep_results``.
        result: name of the result, on the vertical axis.
        parameter: name of the parameter, on the horizontal axis.
        second: name of the parameter that gives the colour; "" for one colour.
    """
    defined = frame.dropna(subset=result)
    levels = style.in_order(frame[parameter])
    numeric = all(type(level) in (int, float) for level in frame[parameter].tolist())
    is_log = _is_log(levels, numeric)
    place = {level: number for number, level in enumerate(levels)}  # along the axis
    if is_log:
        place = {level: math.log10(level) for level in levels}
    elif numeric:
        place = {level: level for level in levels}
    groups = {"": defined} if not second else dict(tuple(defined.groupby(second)))
    palette = colours(frame, second)
    span = max(place.values()) - min(place.values())
    for number, (group, rows) in enumerate(groups.items()):
        # Groups are shifted, so that equal values and intervals stay visible.
        shift = 0.015 * span * (number - (len(groups) - 1) / 2)
        x = rows[parameter].map(place).astype(float)
        rows = rows.assign(x=x).sort_values("x", kind="stable")
        # With a third parameter a place has several values, and no line joins them.
        line = "-" if rows["x"].is_unique else ""
        x = rows["x"] + shift
        if is_log:
            x = 10**x
        ends = _ends(rows, result)
        look = {"color": palette.get(group, "C0"), "markersize": 5, "linewidth": 1.2}
        ax.errorbar(x, rows[result], ends, marker="o", linestyle=line, **look)
    if is_log:
        ax.set_xscale("log")
    if not numeric or len(levels) <= 6:
        shown = _labels_that_fit(levels, place, span)
        ticks = [level if is_log else place[level] for level in shown]
        ax.set_xticks(ticks, [f"{level}" for level in shown])
        ax.minorticks_off()
    if not numeric:
        ax.margins(x=0.2)
    bottom, top = ax.get_ylim()
    if bottom < 0 < top:
        ax.axhline(0, color="black", linewidth=0.8)
    ax.set_xlabel(parameter)


def _labels_that_fit(levels: list, place: dict[Any, float], span: float) -> list:
    """Values whose labels fit side by side on an axis, the first one always."""
    shown: list = []
    for level in levels:
        if not shown or place[level] - place[shown[-1]] >= 0.12 * span:
            shown.append(level)
    return shown


def _is_log(levels: list, numeric: bool) -> bool:
    """Whether values of a parameter are so far apart that they need a log axis."""
    return numeric and levels[0] > 0 and levels[-1] >= _LOG_RATIO * levels[0]


def _ends(rows: pd.DataFrame, result: str) -> np.ndarray | None:
    """Distances of the ends of each interval from its value, (2, rows); or None."""
    if f"{result}_low" not in rows:
        return None
    value = rows[result].astype(float)
    low = rows[f"{result}_low"].astype(float)
    high = rows[f"{result}_high"].astype(float)
    return np.maximum(np.stack([value - low, high - value]), 0)


def small_multiples(frame: pd.DataFrame, parameter: str, second: str = "") -> Figure:
    """Draw each result that differs between combinations in a panel of its own.

    Args:
        frame: of ``sweep_results``.
        parameter: on the horizontal axes.
        second: gives the colours; "" for one colour.

    Returns:
        The figure, three panels a row.
    """
    names = list(drawn_results(frame))
    rows = max(1, math.ceil(len(names) / 3))
    look = {"figsize": (10, 2.8 * rows), "squeeze": False, "layout": "constrained"}
    figure, axes = plt.subplots(rows, 3, **look)
    for ax, name in zip(axes.flat, names, strict=False):
        draw(ax, frame, name, parameter, second)
        ax.set_title(title(frame, name), fontsize="small")
    for ax in axes.flat[len(names) :]:
        ax.set_axis_off()
    handles = [
        plt.Line2D([], [], color=colour, marker="o", label=f"{second} {value}")
        for value, colour in colours(frame, second).items()
    ]
    if handles:
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def legend(frame: pd.DataFrame, parameter: str) -> list[tuple[str, str]]:
    """Colour and label of each value of a parameter, for a page."""
    return [
        (to_hex(colour), f"{parameter} {value}")
        for value, colour in colours(frame, parameter).items()
    ]


def write_pictures(
    frame: pd.DataFrame, folder: Path, parameter: str, second: str = ""
) -> list[tuple[str, str, int, int]]:
    """Draw each result of a sweep against a parameter into a file of its own.

    Args:
        frame: of ``results_of``.
        folder: of the sweep; the files are ``figures/<result>-<parameter>.svg``.
        parameter: on the horizontal axes.
        second: gives the colours; "" for one colour.

    Returns:
        Title, path from the folder, width and height (px) of each.
    """
    pictures = []
    for name in drawn_results(frame):
        with plt.rc_context():
            style.use()
            figure, ax = plt.subplots(figsize=_SIZE)
            draw(ax, frame, name, parameter, second)
            content = as_file(figure, format="svg", dpi=_DPI)
            plt.close(figure)
        path = inside(folder, f"figures/{name}-{parameter}.svg")
        with complete_or_absent(path) as temporary:
            temporary.write_bytes(content)
        width, height = (round(_DPI * side) for side in _SIZE)
        pictures.append((title(frame, name), f"figures/{path.name}", width, height))
    return pictures


def show(study: str, notebook: str, reports_dir: str = "reports") -> Any:
    """Draw a published sweep in a notebook that is opened by hand.

    Args:
        study: name of the study.
        notebook: the swept notebook.
        reports_dir: where reports are published.

    Returns:
        The table of combinations, after a figure for each parameter; a sentence where
        there is no sweep; None while a sweep executes the notebook.
    """
    if os.environ.get(STAGING):
        return None
    try:
        frame = sweep_results(study, notebook, reports_dir)
    except FileNotFoundError as absent:
        return Markdown(f"No sweep is published: {absent}.")
    swept = varied(frame)
    for name in swept:
        second = next((other for other in swept if other != name), "")
        display(small_multiples(frame, name, second))
    plt.close("all")
    return tables.sortable(frame, rows=len(frame))


def table_html(frame: pd.DataFrame, notebook: str) -> str:
    """All combinations as a table that sorts, with a link to each executed notebook."""
    parameters = frame.attrs["parameters"]
    results = frame.attrs["results"]
    heads = [*parameters, *(title(frame, name) for name in results)]
    shown = tables.with_intervals(frame).assign(is_own=is_of_study(frame))
    lines = []
    for row in shown.to_dict("records"):
        # a parameter's value as it was written, a result with two digits
        first, *others = [escape(str(row[name])) for name in parameters]
        cells = [f"<td>{_linked(first, row, notebook)}</td>"]
        cells += [f"<td>{value}</td>" for value in others]
        cells += [tables.cell(row[name]) for name in results]
        mark = ' class="own"' if row["is_own"] else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return (
        f'<div class="table"><table class="sortable" data-rows="{_ROWS}">'
        f"<thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _linked(value: str, row: Mapping[str, Any], notebook: str) -> str:
    """A value as a link to its combination's executed notebook, or that it failed."""
    if row["failed"]:
        return f"{value} (failed)"
    place = escape(f"{row['folder']}/{notebook}.html")
    return f'<a href="{place}">{value}</a>'

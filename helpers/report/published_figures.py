"""Figures of a published execution, shown again where they cannot be drawn anew."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.files import inside, read_json

# Parameters that name places and machines, on which no figure depends.
_PLACES = {"study", "work_dir", "reports_dir", "device", "jobs", "shard"}


@dataclass(frozen=True)
class PublishedFigure:
    """A figure of a published report."""

    path: Path  # of the PNG; an SVG may lie beside it
    caption: str  # of the execution that drew it
    finished: str  # when that execution ended, UTC


def published_figure(
    report: Path, notebook: str, name: str, parameters: Mapping[str, Any]
) -> PublishedFigure | None:
    """The figure that an execution with the same parameters published.

    Args:
        report: ``reports/<study>``.
        notebook: its name without suffix.
        name: of the figure.
        parameters: values in force now, see ``is_of_parameters``.

    Returns:
        None where the report has no such figure, or one of other parameters.
    """
    if not is_of_parameters(report, notebook, parameters):
        return None
    try:
        story = read_json(report / "story" / f"{notebook}.json")
        finished = _content(story, "provenance")["facts"]["finished (UTC)"]
        figure = next(
            item for item in story if item["kind"] == "figure" and item["name"] == name
        )
        path = inside(report, figure["path"])
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return None  # nothing is published, or it is damaged
    if not path.is_file():
        return None
    origin = figure.get("origin") or {
        "caption": figure["reading"],
        "finished": finished,
    }
    return PublishedFigure(path, origin["caption"], origin["finished"])


def is_of_parameters(
    report: Path, notebook: str, parameters: Mapping[str, Any]
) -> bool:
    """Whether a report has an execution of a notebook with the same parameters.

    Args:
        report: ``reports/<study>``.
        notebook: its name without suffix.
        parameters: values in force now. Those that name places and machines may differ
            from the published ones, and parameters that one of the two lacks are
            ignored.
    """
    try:
        story = read_json(report / "story" / f"{notebook}.json")
        published = _content(story, "parameters")["values"]
    except (OSError, ValueError, LookupError, TypeError, StopIteration):
        return False
    names = (published.keys() & parameters.keys()) - _PLACES
    return all(_is_value(parameters[each], published[each]) for each in names)


def _is_value(value: Any, text: str) -> bool:
    """Whether a text stands for a value, in any order of its keys."""
    if str(value) == text:
        return True
    try:
        return ast.literal_eval(text) == value
    except (ValueError, SyntaxError):
        return False  # a text that is not a literal


def _content(story: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next(item for item in story if item["kind"] == kind)

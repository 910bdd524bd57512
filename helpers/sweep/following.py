"""Where a notebook is while it is executed: its cell, and the progress bar of that cell, kept in a small file for whoever asks."""

import html
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

from helpers.files import write_json

ENGINE = "followed"

_EVERY = 1.0  # seconds between two writes

_VIEW = "application/vnd.jupyter.widget-view+json"
_STATE = "application/vnd.jupyter.widget-state+json"

# How tqdm writes a bar: "runs:  25%|██ | 3/12 [00:10<00:30, 3.3s/it, epoch 4, loss 0.31]"; a widget has label and numbers apart.
_COUNTS = re.compile(r"(\d+)/(\d+) \[([\d:]+)<[^,\]]*,[^,\]]*(?:, (.*))?\]\s*$")
_LABEL = re.compile(r"^\s*([^:|%]+?): +\d+%")


class Bar(NamedTuple):
    """A progress bar as it was last drawn."""

    label: str  # what is counted
    done: int
    total: int
    seconds: float  # since it began
    now: str  # what it says of what runs now, such as epoch and loss


def bar_of(label: str, numbers: str) -> Bar | None:
    """Read a bar of tqdm from its label and its numbers, which may be one text; None where it is none, or has no total."""
    label, numbers = (" ".join(html.unescape(text).split()) for text in (label, numbers))  # widgets have spaces as wide as digits
    found, name = _COUNTS.search(numbers), _LABEL.match(label)
    if not found or not int(found[2]):
        return None
    seconds = 0
    for part in found[3].split(":"):
        seconds = seconds * 60 + int(part)
    return Bar(name[1] if name else "", int(found[1]), int(found[2]), float(seconds), found[4] or "")


def settle_bars(notebook: Any) -> None:
    """Put the last line of each bar in place of its widget, as tqdm prints it where there are none.

    What stays of a widget otherwise says 0 % wherever no kernel runs, and its state is as large as a figure. A notebook that shows
    any other widget is left as it is.
    """
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    views = [output for output in outputs if _VIEW in output.get("data", {})]
    states = notebook.metadata.get("widgets", {}).get(_STATE, {}).get("state", {})
    lines = [_line(states, view["data"][_VIEW].get("model_id", "")) for view in views]
    if not views or not all(lines):
        return
    for output, line in zip(views, lines, strict=True):
        output.clear()
        output.update(nbformat.v4.new_output("stream", name="stderr", text=f"{line}\n"))
    del notebook.metadata["widgets"]


def _line(states: dict[str, Any], model: str) -> str:
    """Label and numbers of a bar of tqdm; "" where the model is none."""
    row = states.get(model, {}).get("state", {}).get("children", [])
    parts = [states.get(name.removeprefix("IPY_MODEL_"), {}) for name in row]
    if [part.get("model_name") for part in parts] != ["HTMLModel", "FloatProgressModel", "HTMLModel"]:
        return ""
    return " ".join(html.unescape(f"{parts[0]['state'].get('value', '')} {parts[2]['state'].get('value', '')}").split())


class _Client(PapermillNotebookClient):
    """Papermill's client, which also notes where it is."""

    def __init__(self, nb_man: Any, path: Path, **options: Any) -> None:
        super().__init__(nb_man, **options)
        self._path, self._began, self._written = path, time.time(), 0.0
        self._widgets: dict[str, dict[str, Any]] = {}
        self._cell, self._bar = 0, None

    def execute_cell(self, cell: Any, cell_index: int, *given: Any, **options: Any) -> Any:
        self._cell, self._bar = cell_index, None
        if cell["cell_type"] == "code":
            self._note(always=True)
        return super().execute_cell(cell, cell_index, *given, **options)

    def process_message(self, message: dict[str, Any], *given: Any, **options: Any) -> Any:
        bar = self._drawn(message["msg_type"], message["content"])
        if bar:
            self._bar = bar
            self._note(always=bar.done == bar.total)
        return super().process_message(message, *given, **options)

    def _drawn(self, kind: str, content: dict[str, Any]) -> Bar | None:
        """Read the bar that a message draws; None where it draws none."""
        if kind == "stream":
            last = content.get("text", "").rstrip().rpartition("\r")[2]
            return bar_of(last, last)
        state = content.get("data", {}).get("state") if kind in ("comm_open", "comm_msg") else None
        if not isinstance(state, dict):
            return None
        self._widgets.setdefault(content["comm_id"], {}).update({key: state[key] for key in ("value", "children") if key in state})
        numbers = state.get("value")
        if not isinstance(numbers, str):
            return None
        mine = f"IPY_MODEL_{content['comm_id']}"
        row = next((item["children"] for item in self._widgets.values() if mine in item.get("children", ())), [mine])
        return bar_of(str(self._widgets.get(row[0].removeprefix("IPY_MODEL_"), {}).get("value", "")), numbers)

    def _note(self, *, always: bool) -> None:
        if not always and time.monotonic() - self._written < _EVERY:
            return
        self._written = time.monotonic()
        line = next((line.strip() for line in self.nb.cells[self._cell]["source"].splitlines() if line.strip()), "")
        place = {"began": self._began, "cell": self._cell + 1, "cells": len(self.nb.cells), "line": line}
        try:
            write_json(self._path, place | {"bar": self._bar._asdict() if self._bar else None})
        except OSError:
            return  # a full disk stops the notebook when it matters


class FollowedEngine(NBClientEngine):
    """Papermill's engine with that client."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
        """Execute a notebook, noting where it is in the file ``place``, and leave its bars as text; all else as papermill's own engine."""
        settings = {"kernel_name": kernel_name, "startup_timeout": options.get("start_timeout", 60), "timeout": None}
        executed = _Client(nb_man, Path(options["place"]), **settings).execute()
        settle_bars(nb_man.nb)
        return executed


papermill_engines.register(ENGINE, FollowedEngine)

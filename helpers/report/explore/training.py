"""Sweep monitor: the runs of a study as they train, told from the files that they leave on disk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from ipywidgets import Dropdown, Play

from helpers.files import read_json
from helpers.locks import LockHolder
from helpers.report.explore.panel import Panel, Plot, View, control_layout, html_table, number
from helpers.report.style import count
from helpers.training import state as training_state
from helpers.training.config import RunConfig, run_id

STATES = ("done", "diverged", "running", "interrupted", "waiting")
MONITOR_COLUMNS = ["run_id", "state", "epoch", "epochs_at_most", "train_loss", "train_accuracy", "seconds", "where"]
ANY_LEVEL = "all"
_ROWS, _CURVES = 15, 8


@dataclass
class Tally:
    """Where the executions of one stage stand."""

    total: int
    done: int = 0
    running: int = 0
    failed: int = 0
    retried: int = 0
    seconds: list[float] = field(default_factory=list)  # measured durations of what is done

    @property
    def waiting(self) -> int:
        """Count what has not been started."""
        return self.total - self.done - self.running - self.failed

    def seconds_left(self, slots: int) -> float | None:
        """Estimate the time to the end from the mean of the measured durations; None before the first one.

        What runs counts as half done. With n executions left on ``slots`` places, ceil(n / slots) rounds are to come.
        """
        left = self.waiting + self.running / 2
        if not left:
            return 0.0
        return sum(self.seconds) / len(self.seconds) * left / max(1, min(slots, self.waiting + self.running)) if self.seconds else None


def duration(seconds: float | None) -> str:
    """Write a time span for a reader: 4 s, 12 min, 3 h 20 min; unknown is a question mark."""
    if seconds is None:
        return "?"
    minutes = round(seconds / 60)
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


def states(folder: Path, owner: LockHolder, names: Sequence[str] | None = None) -> pd.DataFrame:
    """Where every run stands, from the disk.

    A run is "done" or "diverged" when its result is there, "running" when a living process has claimed it, "interrupted" when it was
    begun and nobody trains it, and "waiting" when it is named and has no folder. The same call goes on with interrupted runs.

    Args:
        folder: of the runs.
        owner: of the claims of that folder; kept from look to look, because processes elsewhere are watched by their heartbeats.
        names: ids of all runs; those with a folder when None.

    Returns:
        One row per run, sorted by state and name: ``COLUMNS``; epoch, loss, accuracy (fraction) and seconds are of the last complete
        epoch, NaN before the first one; ``where`` is the machine of a running one and the reason of a diverged one.
    """
    found = sorted(path.parent.name for path in folder.glob("*/config.json"))
    rows = [_state(folder / name, owner, name) for name in (found if names is None else dict.fromkeys(names))]
    rows.sort(key=lambda row: (STATES.index(row["state"]), row["run_id"]))
    return pd.DataFrame(rows, columns=MONITOR_COLUMNS)


def _state(folder: Path, owner: LockHolder, name: str) -> dict[str, Any]:
    row = dict.fromkeys(MONITOR_COLUMNS, np.nan) | {"run_id": name, "state": "waiting", "epoch": 0, "where": ""}
    if (folder / "config.json").is_file():
        row["epochs_at_most"] = read_json(folder / "config.json")["max_epochs"]
        row["state"] = "interrupted"
    if (folder / "result.json").is_file():
        result = read_json(folder / "result.json")
        last = (result["snapshots"] or [{}])[-1]
        row |= {"state": "diverged" if result["status"] == "diverged" else "done", "epoch": result["epochs"], "seconds": result["seconds"]}
        row |= {key: last[key] for key in ("train_loss", "train_accuracy") if last.get(key) is not None}
        return row | {"where": result["stop_reason"]}
    history = training_state.history(folder)
    if history:
        row |= {key: history[-1][key] for key in ("epoch", "train_loss", "train_accuracy")}
        row["seconds"] = sum(epoch["seconds"] for epoch in history)
    if holder := owner.holder(name):
        row |= {"state": "running", "where": str(holder.get("machine", "")).partition("|")[0]}
    return row


def tally_of(runs: pd.DataFrame) -> Tally:
    """Count the runs as the sweep counts executions; diverged ones as failed, and the time left from what is done."""
    counts = runs["state"].value_counts()
    seconds = runs.loc[runs["state"] == "done", "seconds"].tolist()
    return Tally(len(runs), counts.get("done", 0), counts.get("running", 0), counts.get("diverged", 0), seconds=seconds)


def training_explorer(work: Path, runs: Sequence[RunConfig] | None) -> Panel:
    """Make the explorer; see ``explore.sweep_monitor``."""
    folder = work / "runs"
    owner = LockHolder(folder / ".claims")  # looks and claims nothing
    names = None if runs is None else [run_id(run) for run in runs]
    controls = {
        "tick": Play(value=0, min=0, max=10**6, interval=5000, playing=True, description="look again every 5 s"),
        "state": Dropdown(options=[ANY_LEVEL, *STATES], description="list", **control_layout()),
    }

    curves = Plot()

    def draw(tick: int, state: str) -> View:
        now = states(folder, owner, names)
        tally = tally_of(now)
        left = duration(tally.seconds_left(max(1, tally.running)))
        counts = {name: int((now["state"] == name).sum()) for name in STATES}
        curves.draw(_curves(now[now["state"].isin(("running", "interrupted"))], folder))
        summary = ", ".join(f"{value} {name}" for name, value in counts.items())
        reading = f"<p>{count(len(now), 'run')}: {summary}; time left: about {left}.</p>"
        return View(reading + _listed(now, state), counts | {"runs": len(now), "time_left": left})

    return Panel("How far is the training?", controls, draw, [curves])


def _listed(runs: pd.DataFrame, state: str) -> str:
    chosen = runs if state == ANY_LEVEL else runs[runs["state"] == state]
    rows = [
        {
            "run": run.run_id,
            "state": run.state,
            "epoch": f"{run.epoch} of at most {run.epochs_at_most:.0f}" if np.isfinite(run.epochs_at_most) else "none yet",
            "training loss": number(run.train_loss),
            "training accuracy": number(run.train_accuracy),
            "time": duration(run.seconds) if np.isfinite(run.seconds) else "none yet",
            "where, or why it ended": run.where,
        }
        for run in chosen.head(_ROWS).itertuples()
    ]
    more = f"<p>and {len(chosen) - _ROWS} more</p>" if len(chosen) > _ROWS else ""
    return html_table(rows) + more


def _curves(runs: pd.DataFrame, folder: Path) -> go.Figure:
    """The training loss of the runs under way."""
    title = f"under way, {min(_CURVES, len(runs))} of {len(runs)}" if len(runs) else "no run is under way"
    figure = go.Figure(layout={"template": "plotly_white", "height": 320, "title": title, "uirevision": "same"})
    for name in runs["run_id"].head(_CURVES):
        history = training_state.history(folder / name)
        epochs, losses = ([epoch[key] for epoch in history] for key in ("epoch", "train_loss"))
        figure.add_scatter(x=epochs, y=losses, mode="lines+markers", name=name)
    return figure.update_layout(xaxis_title="epoch", yaxis_title="training loss (nats)")

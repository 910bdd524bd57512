"""How far a sweep is: one table in the terminal and from the disk, and a log with one line per event."""

import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from helpers.sweep.executions import Places
from helpers.sweep.publication import readable
from helpers.sweep.study_file import Execution
from helpers.tally import Tally, duration

PARTS = ", parts"  # ends the name of the stage of a notebook's parts
_COLUMNS = ("done", "running", "failed", "retried", "waiting")


def stages(executions: Iterable[Execution]) -> dict[str, list[Execution]]:
    """Put executions into the order in which they may run: the parts of a notebook side by side, then the whole, then the next."""
    found: dict[str, list[Execution]] = {}
    for execution in executions:
        found.setdefault(f"{execution.notebook.stem}{PARTS}" if execution.part else execution.notebook.stem, []).append(execution)
    return found


def progress_table(tallies: Mapping[str, Tally], slots: int = 1) -> list[str]:
    """Write one line per stage: how many are done, running, failed, retried and waiting, and the time left."""
    width = max([len(name) for name in tallies] + [8])
    lines = [f"{'':{width}}  " + "  ".join(f"{name:>7}" for name in _COLUMNS) + "  time left"]
    for name, tally in tallies.items():
        counts = "  ".join(f"{getattr(tally, column):7d}" for column in _COLUMNS)
        lines.append(f"{name:{width}}  {counts}  {duration(tally.seconds_left(slots)):>9}")
    return lines


def place_file(places: Places, execution: Execution) -> Path:
    """File in which a worker notes where a notebook is while it is executed."""
    return places.record(execution).with_suffix(".now.json")


_FEW = 0.1  # share of the steps that is to be done before the rest is foreseen


def where_it_is(places: Places, execution: Execution) -> str:
    """Where a running notebook is: time since it began, cell, steps done of all with what runs now, and the time they still take.

    The time that is left is that of the steps of the cell that runs, from the steps measured so far, once a tenth of them is done.
    """
    place = readable(place_file(places, execution))
    try:
        told = (
            f"{execution.name}: {duration(time.time() - place['began'])}, cell {place['cell']} of {place['cells']} ({place['line'][:60]})"
        )
        if bar := place["bar"]:
            now = f" ({bar['now'][:100]})" if bar["now"] else ""
            told += f", {bar['label'] or 'steps'} {bar['done']} of {bar['total']}{now}"
            if bar["done"] < bar["total"]:
                few = not bar["done"] or bar["done"] < _FEW * bar["total"]
                left = None if few else bar["seconds"] * (bar["total"] - bar["done"]) / bar["done"]
                told += ", time left known after the first tenth" if few else f", {duration(left)} left"
        return told
    except (TypeError, KeyError, ValueError):
        return f"{execution.name}: starts"


def from_disk(
    executions: Sequence[Execution],
    places: Places,
    holder: Callable[[str], Mapping[str, Any] | None],
    reasons: Mapping[str, str] | None = None,
) -> tuple[dict[str, Tally], list[str]]:
    """Where a study stands, from the disk alone, whoever runs it.

    Args:
        executions: of the study.
        places: its folders.
        holder: gives who runs an execution, None where nobody does.
        reasons: by the name of an execution why it has to run (again); "" or absent is complete.

    Returns:
        The tallies by stage, and one line per execution that runs or failed.
    """
    tallies, lines, reasons = {}, [], reasons or {}
    for stage, members in stages(executions).items():
        tally = tallies[stage] = Tally(len(members))
        for execution in members:
            record = (
                readable(places.record(execution), items={"seconds": float, "attempts": int}) if places.report(execution).is_file() else {}
            )
            failure = readable(places.failure(execution), items={"message": str, "attempts": int})
            owner = holder(execution.name)
            tally.retried += max(0, ((failure or record).get("attempts") or 1) - 1)
            if owner:
                tally.running += 1
                lines.append(f"running: {execution.name} on {owner['machine'].partition('|')[0]}, process {owner['pid']}")
                lines.append(f"  {where_it_is(places, execution)}")
            elif failure:
                tally.failed += 1
                lines.append("failed: " + failure["message"])
            elif record and reasons.get(execution.name):
                lines.append(f"waiting: {execution.name}: {reasons[execution.name]}")
            elif record:
                tally.done += 1
                tally.seconds.append(record.get("seconds", 0.0))
    return tallies, lines


@dataclass
class Display:
    """The live table of a terminal, drawn again in place; elsewhere one line per event, and what runs every half minute."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    every: float = 30.0  # seconds between two looks at what runs, where there is no terminal
    _began: float = field(default_factory=time.monotonic)
    _noted: float = field(default_factory=time.monotonic)
    _drawn: int = 0

    def say(self, line: str) -> None:
        """Print a line that stays, above the table."""
        self._erase()
        print(line, file=self.stream, flush=True)

    def draw(self, lines: Sequence[str], now: Sequence[str] = ()) -> None:
        """Draw the table and what runs now where they stood; without a terminal say what runs now, if it is time to."""
        if self.stream.isatty():
            self._erase()
            wide = shutil.get_terminal_size().columns - 1  # a line that wraps could not be erased
            lines = [*lines, *(line[:wide] for line in now)]
            lines += [f"{duration(time.monotonic() - self._began)} since the start"] if now else []
            print("\n".join(lines), file=self.stream, flush=True)
            self._drawn = len(lines)
        elif now and time.monotonic() - self._noted >= self.every:
            self._noted = time.monotonic()
            print("\n".join(now), file=self.stream, flush=True)

    def _erase(self) -> None:
        if self._drawn:
            print(f"\x1b[{self._drawn}A\x1b[J", end="", file=self.stream)
            self._drawn = 0


def log_event(path: Path, event: str, name: str, detail: str = "") -> None:
    """Append one line to the log: UTC time, machine and process, event, execution, detail. A log that cannot be written stops nothing."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    line = " ".join(f"{stamp} {socket.gethostname()}:{os.getpid()} {event} {name} {detail}".split()) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as log:
            log.write(line.encode())  # one write in append mode: lines of several processes do not mix
    except OSError:
        return

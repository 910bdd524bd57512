"""What a notebook leaves for its readers: figures, tables and sentences, shown in place and recorded for the index page."""

import base64
import io
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure

from helpers import files
from helpers.files import PROJECT_ROOT, complete_or_absent, from_root, inside, write_json
from helpers.notebook_parameters import declared
from helpers.report import style

_DPI = 90


@dataclass
class Report:
    """One notebook's part of a study's report."""

    folder: Path  # reports/<study>
    notebook: str
    story: list[dict[str, Any]] = field(default_factory=list)  # what was shown, in order

    def record(self, kind: str, **content: Any) -> None:
        """Add an item and write the story, so that it is complete up to where a notebook fails."""
        self.story.append({"kind": kind, **content})
        write_json(self.folder / "story" / f"{self.notebook}.json", self.story)


def open_report(*, study: str, notebook: str, reports_dir: str = "reports") -> Report:
    """Start a notebook's report anew; what an earlier execution recorded for the index page is forgotten."""
    report = Report(inside(from_root(reports_dir), study), notebook)
    write_json(report.folder / "story" / f"{notebook}.json", [])
    return report


def parameters(report: Report, values: Mapping[str, Any]) -> None:
    """Show and record the value of every parameter that the notebook declares.

    Args:
        report: this notebook's.
        values: ``globals()`` of the notebook.
    """
    names = declared(PROJECT_ROOT / "notebooks" / f"{report.notebook}.ipynb")
    rows = [{"parameter": name, "value": str(values[name]), "meaning": item.comment} for name, item in names.items()]
    display(HTML("<details><summary>Parameters of this report</summary>" + _html(pd.DataFrame(rows)) + "</details>"))
    report.record("parameters", values={row["parameter"]: row["value"] for row in rows})


def tell(report: Report, text: str, *, answer: bool = False) -> None:
    """Show and record a computed sentence (Markdown); an answer to the study's question also stands on top of its index page."""
    display(Markdown(text))
    report.record("text", text=text, answer=answer)


def show_figure(report: Report, figure: Figure, name: str, reading: str) -> None:
    """Write a figure to ``figures/<notebook>-<name>.png``, show it with its reading as alternative text, and close it."""
    buffer = io.BytesIO()
    with style.style():  # colours such as C0 are looked up only now
        figure.savefig(buffer, format="png", dpi=_DPI, bbox_inches="tight", facecolor="white")
    plt.close(figure)
    path = inside(report.folder, f"figures/{report.notebook}-{name}.png")
    with complete_or_absent(path) as temporary:
        temporary.write_bytes(buffer.getvalue())
    alternative = plain(reading)
    picture = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": alternative}
    display(picture, raw=True, metadata={"image/png": {"alt": alternative}})
    display(Markdown(reading))
    report.record("figure", name=name, path=f"figures/{path.name}", reading=reading, alt=alternative)


def show_table(report: Report, frame: pd.DataFrame, name: str, reading: str = "", *, rows: int = 20) -> None:
    """Write a table to ``tables/<name>.csv``, show its first rows, and say how many there are."""
    path = inside(report.folder, f"tables/{name}.csv")
    with complete_or_absent(path) as temporary:
        frame.to_csv(temporary, index=False)
    shown = frame.head(rows)
    note = f"<p>{len(shown)} of {len(frame):,} rows; all of them: <code>tables/{path.name}</code></p>"
    display(HTML(_html(shown) + (note if len(shown) < len(frame) else f"<p><code>tables/{path.name}</code></p>")))
    if reading:
        display(Markdown(reading))
    report.record("table", name=name, path=f"tables/{path.name}", reading=reading, rows=len(frame))


def provenance(report: Report, seconds: float, device: object = "cpu") -> None:
    """Show and record what made this report: commit, versions, device, time and duration."""
    facts = {"commit": files.commit(), "device": files.device_name(device), **files.all_versions()}
    facts |= {"finished (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "seconds": f"{seconds:.0f}"}
    display(HTML(_html(pd.DataFrame({"what": list(facts), "value": list(facts.values())}))))
    report.record("provenance", facts=facts)


def plain(markdown: str) -> str:
    """Strip the emphasis of a sentence, for alternative text."""
    return markdown.replace("**", "").replace("`", "")


def cell_text(value: Any) -> str:
    """Write one value of a table for a reader: short numbers, and undefined in words."""
    if isinstance(value, float):
        if math.isnan(value):
            return "—"
        return f"{value:.4g}" if value != round(value) or abs(value) >= 1e6 else f"{value:.0f}"
    return str(value)


def _html(frame: pd.DataFrame) -> str:
    text = frame.map(cell_text) if len(frame) else frame
    return text.to_html(index=False, border=0, escape=True)

"""A notebook's report: figures, tables, sentences and named numbers for readers.

Each is shown in the notebook and goes to a file in the folder of this execution.
"""

import math
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Image, Markdown, display
from matplotlib.figure import Figure

from helpers import files
from helpers.files import PROJECT_ROOT, from_root, inside, write_json, write_table
from helpers.parameters import WITHOUT_EFFECT_ON_RESULTS, declared
from helpers.report import style, tables
from helpers.report.style import figure_title, inert
from helpers.studies import in_force, work_study

_PACKAGES = ("torch", "torchvision", "captum", "numpy", "scipy", "pandas", "papermill")
_DPI = 90
_DIGITS = "%.8g"  # of a number in a table


@dataclass
class Report:
    """One notebook's part of a study's report.

    Example:
        >>> report = Report.begin("03_cam_scoring", globals())  # doctest: +SKIP
        >>> report.figure(fig, "iou-against-gap", "Each point is a network.")
        ... # doctest: +SKIP
    """

    notebook: str
    folder: Path  # where this execution writes; a sweep publishes it as a whole
    work: Path  # work/<study>; a study that extends another one has that one's
    reports: Path  # reports/<study>
    parameters: SimpleNamespace = field(default_factory=SimpleNamespace)  # in force
    figures: int = 0  # number of figures so far
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def begin(cls, notebook: str, namespace: Mapping[str, Any]) -> "Report":
        """Open a notebook's report with the parameters in force, and show them.

        Only a sweep publishes. A notebook that a user runs writes to
        ``work/<study>/scratch/<notebook>``, and says so.

        Args:
            notebook: its name without suffix.
            namespace: ``globals()`` of the notebook. It is read, not changed.

        Raises:
            StudyError: if a name or a value is wrong.
        """
        values = in_force(notebook, namespace)
        study = values["study"]
        work, reports = places(study, values["work_dir"], values["reports_dir"])
        point_to_records(work, reports)
        by_hand = inside(work / "scratch", notebook)
        folder = Path(os.environ.get(files.STAGING, by_hand))
        (folder / "results.json").unlink(missing_ok=True)
        style.use()
        report = cls(notebook, folder, work, reports, SimpleNamespace(**values))
        names = declared(PROJECT_ROOT / f"notebooks/{notebook}.ipynb")
        rows = [(name, str(values[name]), item.comment) for name, item in names.items()]
        _show_folded("Parameters", rows, ["parameter", "value", "meaning"])
        if folder == by_hand:
            place = os.path.relpath(folder, PROJECT_ROOT)
            report.tell(
                f"Tables and figures of this run go to `{place}`; "
                f"`make sweep STUDY={study}` publishes a report."
            )
        return report

    def figure(
        self, figure: Figure | None, name: str, caption: str, missing: str = ""
    ) -> None:
        """Write a figure, show it with number, title and caption, and close it.

        Args:
            figure: goes to ``figures/<name>.png``; None shows the caption alone, or the
                published figure.
            name: words joined by hyphens, of which the title is made.
            caption: what is drawn and what to see, in Markdown.
            missing: why the figure cannot be drawn here, and what would help. Where the
                published execution had these parameters, its figure is shown.

        Raises:
            ValueError: if the name would leave the folder.
        """
        place = f"figures/{name}.png"
        path = inside(self.folder, place)
        title = figure_title(name)
        published = self.published / self.notebook / place
        if figure is not None:
            with files.complete_or_absent(path) as temporary:
                figure.savefig(temporary, format="png", dpi=_DPI)
            plt.close(figure)
        elif missing and self.repeats_published and published.is_file():
            with files.complete_or_absent(path) as temporary:
                shutil.copy(published, temporary)
            caption += f" *As published. {missing}*"
        else:
            self.tell(f"**{title}** is left out. {missing}" if missing else caption)
            return
        self.figures += 1
        title = f"Figure {int(self.notebook[:2])}.{self.figures}. {title}."
        display(Image(path, alt=title))
        self.tell(f"**{title}** {caption}")

    @property
    def published(self) -> Path:
        """The published report that has the records of the study's networks.

        It is that of the study, or of the one that it extends.
        """
        return files.records_of(self.work).parent

    @property
    def repeats_published(self) -> bool:
        """Whether the published execution of this notebook had these parameters."""
        path = self.published / self.notebook / f"{self.notebook}.ipynb"
        if not path.is_file():
            return False
        values = vars(self.parameters)
        published = files.read_json(path)["metadata"]["papermill"]["parameters"]
        names = values.keys() & published.keys() - {*WITHOUT_EFFECT_ON_RESULTS, "shard"}
        return all(values[name] == published[name] for name in names)

    def table(
        self, frame: pd.DataFrame, name: str, caption: str = "", *, rows: int = 10
    ) -> None:
        """Write a table to ``tables/<name>.csv`` and show its first rows.

        Args:
            frame: all rows are written; without rows only the caption is shown.
            name: of the file.
            caption: in Markdown; "" for none.
            rows: number of rows that are shown; 0 where a figure shows them.

        Raises:
            ValueError: if the name would leave the folder.
        """
        path = inside(self.folder, f"tables/{name}.csv")
        with files.complete_or_absent(path) as temporary:
            frame.to_csv(temporary, index=False, float_format=_DIGITS)
        place = f"<code>tables/{path.name}</code>"
        rows = min(rows, tables.MOST_ROWS)
        if 0 < rows < len(frame):
            place = f"{rows} of {len(frame):,} rows; all of them: {place}"
        if len(frame):
            shown = tables.html(frame, self.names, rows) if rows else ""
            display(HTML(f"{shown}<p>{place}</p>"))
        if caption:
            self.tell(caption)

    def save_table(self, frame: pd.DataFrame, name: str) -> None:
        """Write a table that is too long to be read to ``tables/<name>.parquet``.

        Raises:
            ValueError: if the name would leave the folder.
        """
        path = inside(self.folder, f"tables/{name}.parquet")
        write_table(path, frame, index=False, compression="zstd")

    def tell(self, text: str, *, answer: bool = False) -> None:
        """Show a sentence, in Markdown; names from data in it make no HTML or links.

        Args:
            text: with its numbers filled in.
            answer: whether it answers the study's question; findings quote it.
        """
        display(Markdown(inert(text)))
        if answer:
            self.result("answer", text)

    def result(
        self,
        name: str,
        value: float | str,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
    ) -> None:
        """Name a number of this notebook, so that sweeps and findings can read it.

        A name that comes again replaces the earlier value in ``results.json``.

        Args:
            name: letters, digits and underscores, such as ``r_iou_gap``.
            value: a number or a text; NaN where it is undefined, kept as null.
            low: lower end of its interval, None or NaN without one.
            high: upper end of its interval, None or NaN without one.
            unit: of value and interval, such as ``"points"``.

        Raises:
            ValueError: if the name has other signs.

        Example:
            >>> report.result("r_iou_gap", -0.21, -0.58, 0.21)  # doctest: +SKIP
        """
        if not name.isidentifier():
            raise ValueError(
                f"the result {name!r} needs a name of letters, digits and underscores"
            )
        content = {"name": name, "value": value, "low": low, "high": high, "unit": unit}
        self.results[name] = {key: _plain(item) for key, item in content.items()}
        write_json(self.folder / "results.json", [*self.results.values()])

    def end(self, device: object = "cpu") -> None:
        """Show the named results, and what made this report.

        Args:
            device: that the notebook computed on.
        """
        if self.results:
            _show_folded("Results by name", self.results.values())
        facts = {
            "commit": files.commit(),
            "device": files.device_name(device),
            **files.versions(_PACKAGES),
            "finished (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "seconds": f"{time.perf_counter() - self.began:.0f}",
        }
        frame = pd.DataFrame(facts.items(), columns=["what", "value"])
        display(HTML(frame.to_html(index=False, border=0)))

    def table_of(self, name: str) -> Path:
        """Path of a table that another notebook of this study has written.

        That of this combination of a sweep, or of a notebook that was run by hand,
        comes first, then that of the study's report.

        Args:
            name: such as "scores.parquet".
        """
        beside = files.table_of(self.folder.parent, name)
        return beside if beside.is_file() else files.table_of(self.reports, name)

    @property
    def names(self) -> dict[str, str]:
        """Short name of each model by its id, once notebook 02 has run or published."""
        path = self.work / "catalogue.parquet"
        is_here = path.is_file()
        return tables.model_names(
            files.read_table(path)
            if is_here
            else tables.read(self.published, "catalogue")
        )


def _show_folded(
    title: str, rows: Iterable, columns: Sequence[str] | None = None
) -> None:
    """Show a table that opens by a click on its title."""
    with pd.option_context("display.max_colwidth", None):
        table = pd.DataFrame(rows, columns=columns).to_html(index=False, border=0)
    display(HTML(f"<details><summary>{title}</summary>{table}</details>"))


def _plain(value: Any) -> Any:
    """A number or text as JSON has it; None for what is undefined."""
    plain = value.item() if hasattr(value, "item") else value
    is_undefined = isinstance(plain, float) and not math.isfinite(plain)
    return None if is_undefined else plain


def select_shard(items: Sequence, shard: str) -> Sequence:
    """Select the items that one of several processes works on.

    Args:
        items: in order.
        shard: ``"2/4"`` selects every fourth item from the second on; ``""`` all.

    Example:
        >>> select_shard(["a", "b", "c"], "1/2")
        ['a', 'c']
    """
    number, count = map(int, (shard or "1/1").split("/"))
    return items[number - 1 :: count]


def places(study: str, work_dir: str, reports_dir: str) -> tuple[Path, Path]:
    """Folders of a study's work and of its report.

    Work is that of the study that it extends, if it does.

    Args:
        study: its name.
        work_dir: folder of the work of all studies.
        reports_dir: folder of all reports.

    Raises:
        ValueError: if the name would leave the folders.
    """
    work = inside(from_root(work_dir), work_study(study))
    return work, inside(from_root(reports_dir), study)


def point_to_records(work: Path, reports: Path) -> None:
    """Note in a study's folder of work where its records lie, if not beside it.

    Args:
        work: of ``places``.
        reports: of ``places``.
    """
    records = reports.with_name(work.name) / files.RECORDS
    if records != files.records_of(work):
        write_json(work / files.POINTER, {"folder": str(records)})

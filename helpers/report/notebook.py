"""A notebook's report: figures, tables and sentences for readers.

They are shown in the notebook and recorded for the pages.
"""

import base64
import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure

from helpers import files
from helpers.files import (
    PROJECT_ROOT,
    complete_or_absent,
    from_root,
    inside,
    read_table,
    write_json,
    write_table,
)
from helpers.parameters import StudyError, declared, name_of_values
from helpers.relations import relation_faults
from helpers.report import style, tables
from helpers.report.figure_files import as_file, is_photographs, resize
from helpers.report.markup import figure_title, inert
from helpers.report.published_figures import (
    PublishedFigure,
    is_of_parameters,
    published_figure,
)
from helpers.statistics.claims import check_claims, keep_claims
from helpers.study_files import resolve_parameters

_PACKAGES = (
    "torch",
    "torchvision",
    "captum",
    "numpy",
    "scipy",
    "pandas",
    "seaborn",
    "papermill",
    "ipywidgets",
    "jupyterlab",
)
_DPI = 90
# Of pictures in the executed notebook, which holds them as text: two thirds the size.
_DPI_SHOWN = 72
_DIGITS = "%.8g"  # of a number in a table
# Type under which scrapbook stores a value in a notebook, so that it can read ours.
_SCRAP = "application/scrapbook.scrap.json+json"


@dataclass
class Report:
    """One notebook's part of a study's report.

    Example:
        >>> report = Report.begin("03_cam_scoring", globals())  # doctest: +SKIP
        >>> report.figure(fig, "iou-against-gap", "Each point is a network.")
        ... # doctest: +SKIP
    """

    folder: Path  # where tables and figures are written; a sweep publishes from there
    notebook: str
    work: Path  # work/<study>; a study that extends another one has that one's
    reports: Path | None = None  # reports/<study>, of the study itself
    parameters: SimpleNamespace = field(default_factory=SimpleNamespace)  # in force
    story: list[dict[str, Any]] = field(default_factory=list)  # what was shown
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def begin(cls, notebook: str, namespace: Mapping[str, Any]) -> "Report":
        """Open a notebook's report with the parameters in force, and show them.

        Args:
            notebook: its name without suffix.
            namespace: ``globals()`` of the notebook, with the values of its parameters
                cell and of papermill's cell. It is read, not changed.

        Returns:
            The report; its ``parameters`` have a value per name: what papermill
            injected, else what was changed in the first cell, else the study file's.

        Raises:
            StudyError: if a name or a value is wrong, or the notebook is another
                clone's.
        """
        check_clone(Path.cwd())
        values, origins, study_file = resolve_parameters(notebook, namespace)
        faults = relation_faults(values)
        if faults:
            raise StudyError(*faults)
        report = open_report(
            study=values["study"],
            notebook=notebook,
            work_dir=values["work_dir"],
            reports_dir=values["reports_dir"],
            work_study=study_file["work_study"],
            changed=study_file["changed"],
        )
        report.parameters = SimpleNamespace(**values)
        report._show_parameters(origins)
        combination = os.environ.get(files.COMBINATION)
        if combination:
            report.tell(f"Of a sweep, the combination `{Path(combination).name}`.")
        # Writes the claims down with the number of runs that are trained so far; where
        # a sweep runs the notebook, it has done so.
        if not os.environ.get(files.STAGING):
            keep_claims(report.work, check_claims(study_file.get("claims") or []))
        report._tell_what_differs(study_file)
        return report

    def figure(self, figure: Figure | None, name: str, caption: str) -> None:
        """Write a figure, show it with number, title and caption, and close it.

        Args:
            figure: goes to ``figures/<notebook>-<name>.png`` and ``.svg``; one that is
                mostly photographs has no SVG, which would hold the same pixels. None
                shows the caption alone.
            name: words joined by hyphens, of which the title is made.
            caption: what is drawn and what to see, in Markdown.

        Raises:
            ValueError: if the name would leave the folder.
        """
        if figure is None:
            self.tell(caption)
            return
        path = inside(self.folder, f"figures/{self.notebook}-{name}.png")
        caption = inert(caption)  # names from data make no HTML, links or images
        picture = as_file(figure, dpi=_DPI)
        shown = as_file(figure, dpi=_DPI_SHOWN)
        vector = as_file(figure, format="svg", dpi=_DPI)
        plt.close(figure)
        contents = {path: picture}
        if not is_photographs(vector):
            contents[path.with_suffix(".svg")] = vector
        self._show_figure(contents, shown, name, caption)

    def published_figure(self, name: str, reason: str) -> None:
        """Show the published version of a figure that cannot be drawn here.

        Its caption names the execution that drew it. If neither this combination of a
        sweep nor the study has such a figure, or only one of other parameters, a
        sentence says that it is left out.

        Args:
            name: as of ``figure``.
            reason: why it cannot be drawn here, and what would help, in Markdown.

        Raises:
            ValueError: if the name would leave the folder.
        """
        path = inside(self.folder, f"figures/{self.notebook}-{name}.png")
        reason = inert(reason)
        origin = self._published_figure(name)
        if origin is None:
            self.tell(f"**{figure_title(name)}** is left out. {reason}")
            return
        contents = {
            path.with_suffix(published.suffix): published.read_bytes()
            for published in (origin.path, origin.path.with_suffix(".svg"))
            if published.is_file()
        }
        shown = resize(contents[path], _DPI_SHOWN / _DPI)
        caption = (
            f"{origin.caption} *This figure is of the execution of {origin.finished} "
            f"(UTC), as published. {reason}*"
        )
        facts = {"caption": origin.caption, "finished": origin.finished}
        self._show_figure(contents, shown, name, caption, origin=facts)

    def _published_figure(self, name: str) -> PublishedFigure | None:
        """A published figure of the same parameters; None if there is none.

        Of this combination of a sweep, else of the study, else of the one that it
        extends.
        """
        values = vars(self.parameters)
        combination = os.environ.get(files.COMBINATION)
        reports = [Path(combination)] if combination else []
        if self.reports:
            reports.append(self.reports)
        for report in (*reports, self.published):
            figure = published_figure(report, self.notebook, name, values)
            if figure:
                return figure
        return None

    def _show_figure(
        self,
        contents: Mapping[Path, bytes],
        shown: bytes,
        name: str,
        caption: str,
        **facts: Any,
    ) -> None:
        """Write the files of a figure, show it with its caption, and record it.

        Args:
            contents: of its files, the PNG first.
            shown: PNG for the notebook.
            name: of the figure.
            caption: in Markdown.
            facts: further items of its record.
        """
        for place, content in contents.items():
            with complete_or_absent(place) as temporary:
                temporary.write_bytes(content)
        number = 1 + sum(item["kind"] == "figure" for item in self.story)
        chapter = int(self.notebook[:2])
        title = f"Figure {chapter}.{number}. {figure_title(name)}."
        data = {"image/png": base64.b64encode(shown).decode(), "text/plain": title}
        display(data, raw=True, metadata={"image/png": {"alt": title}})
        display(Markdown(f"**{title}** {caption}"))
        picture = next(iter(contents)).name
        content = {"path": f"figures/{picture}", "reading": caption, "alt": title}
        self.record("figure", name=name, **content, **facts)

    def table(
        self, frame: pd.DataFrame, name: str, caption: str = "", *, rows: int = 20
    ) -> None:
        """Write a table to ``tables/<name>.csv`` and show its first rows.

        Args:
            frame: all rows are written; without rows only the caption is shown.
            name: of the file.
            caption: in Markdown; "" for none.
            rows: number of rows that are shown; JupyterLab lets one see all.

        Raises:
            ValueError: if the name would leave the folder.
        """
        path = inside(self.folder, f"tables/{name}.csv")
        caption = inert(caption)
        with complete_or_absent(path) as temporary:
            frame.to_csv(temporary, index=False, float_format=_DIGITS)
        if len(frame):
            self._show_rows(frame, path.name, rows)
        if caption:
            display(Markdown(caption))
        self.record(
            "table",
            name=name,
            path=f"tables/{path.name}",
            reading=caption,
            rows=len(frame),
        )

    def _show_rows(self, frame: pd.DataFrame, file: str, rows: int) -> None:
        place = f"<code>tables/{file}</code>"
        if rows < len(frame):
            place = f"{rows} of {len(frame):,} rows; all of them: {place}"
        note = f"<p>{place}</p>"
        shown = tables.sortable(frame, self.names, rows=rows)
        if isinstance(shown, HTML):  # in JupyterLab it is a widget instead
            display(HTML(f"{shown.data}{note}"))
        else:
            display(shown, HTML(note))

    def save_table(self, frame: pd.DataFrame, name: str) -> None:
        """Write a table that is too long to be read to ``tables/<name>.parquet``.

        It is not shown.

        Raises:
            ValueError: if the name would leave the folder.
        """
        path = inside(self.folder, f"tables/{name}.parquet")
        write_table(path, frame, index=False, compression="zstd")

    def tell(self, text: str, *, answer: bool = False) -> None:
        """Show and record a sentence with its numbers filled in.

        Args:
            text: in Markdown.
            answer: also show it on the index page of a study without networks of its
                own.
        """
        text = inert(text)
        display(Markdown(text))
        self.record("text", text=text, answer=answer)

    def result(
        self,
        name: str,
        value: float | str,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
    ) -> None:
        """Name a number of this notebook, so that sweeps and programs can read it.

        It is kept in ``<notebook>.results.json`` beside the executed notebook, and in
        the notebook in the form of scrapbook's ``glue``. A name that comes again
        replaces the earlier value.

        Args:
            name: letters, digits and underscores, such as ``r_iou_gap``.
            value: a number or a text; NaN where it is undefined, kept as null.
            low: lower end of its interval, None or NaN without one.
            high: upper end of its interval, None or NaN without one.
            unit: of value and interval, such as ``"points"``.

        Raises:
            ValueError: if the name has other signs, or a value is no number.

        Example:
            >>> report.result("r_iou_gap", -0.21, -0.58, 0.21)  # doctest: +SKIP
        """
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,99}", name):
            raise ValueError(
                f"the result {name!r} needs a name of letters, digits and underscores"
            )
        numbers = {"value": value, "low": low, "high": high}
        content = {key: _plain_number(name, item) for key, item in numbers.items()}
        content["unit"] = unit
        self.results[name] = content
        write_json(
            self.folder / results_file(self.notebook),
            [{"name": key, **item} for key, item in self.results.items()],
        )
        scrap = {"name": name, "data": content, "encoder": "json", "version": 1}
        options = {"scrapbook": {"name": name, "data": True, "display": False}}
        display({_SCRAP: scrap}, raw=True, metadata=options)

    def end(self, device: object = "cpu") -> None:
        """Show the named results, and record what made this report.

        Args:
            device: that the notebook computed on.
        """
        if self.results:
            rows = [{"result": name, **item} for name, item in self.results.items()]
            _show_folded("Results by name", tables.html(pd.DataFrame(rows)))
        facts = {
            "commit": files.commit(),
            "device": files.device_name(device),
            **files.versions(_PACKAGES),
            "finished (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
            "seconds": f"{time.perf_counter() - self.began:.0f}",
        }
        frame = pd.DataFrame({"what": list(facts), "value": list(facts.values())})
        display(HTML(tables.html(frame)))
        self.record("provenance", facts=facts)

    def record(self, kind: str, **content: Any) -> None:
        """Add an item to the story and write the story to its file.

        If the notebook fails, the story is complete up to that cell.
        """
        self.story.append({"kind": kind, **content})
        write_json(self.folder / "story" / f"{self.notebook}.json", self.story)

    def record_work_file(self, path: Path) -> None:
        """Record that a file was written to ``work/<study>`` for other notebooks.

        If it is changed later, the sweep runs this notebook again.

        Raises:
            ValueError: if the file is in another folder.
        """
        place = inside(self.work, os.path.relpath(path, self.work))
        self.record("work_file", path=str(place.relative_to(self.work.resolve())))

    @property
    def published(self) -> Path:
        """The published report that has the records of the study's networks.

        It is that of the study, or of the one that it extends.
        """
        return files.records_of(self.work).parent

    @property
    def repeats_published(self) -> bool:
        """Whether the published execution of this notebook had these parameters."""
        return is_of_parameters(self.published, self.notebook, vars(self.parameters))

    def find(self, file: str, *folders: Path) -> Path | None:
        """The folder with a file that another notebook has written.

        Args:
            file: path inside of a report, such as ``"tables/scores.parquet"``.
            folders: where it may be.

        Returns:
            The report of this combination of a sweep if it has the file, else the
            folder with the newest file; None if no folder has it.
        """
        combination = os.environ.get(files.COMBINATION)
        if combination and (Path(combination) / file).is_file():
            return Path(combination)
        holding = [folder for folder in folders if (folder / file).is_file()]
        return max(holding, key=lambda one: (one / file).stat().st_mtime, default=None)

    @property
    def names(self) -> dict[str, str]:
        """Short name of each model by its id, once notebook 02 has run."""
        path = self.work / "catalogue.parquet"
        return tables.model_names(read_table(path)) if path.is_file() else {}

    def _show_parameters(self, origins: Mapping[str, str]) -> None:
        declarations = declared(PROJECT_ROOT / "notebooks" / f"{self.notebook}.ipynb")
        values = {name: str(getattr(self.parameters, name)) for name in declarations}
        rows = [
            {
                "parameter": name,
                "value": values[name],
                "from": origins[name],
                "meaning": item.comment,
            }
            for name, item in declarations.items()
        ]
        title = "Parameters of this report"
        counts = Counter(origins[name] for name in declarations)
        if len(counts) > 1:
            parts = [f"{number} from {origin}" for origin, number in counts.items()]
            title += f": {', '.join(parts)}"
        with pd.option_context("display.max_colwidth", None):
            table = pd.DataFrame(rows).to_html(index=False, border=0)
        _show_folded(title, table)
        self.record("parameters", values=values)

    def _tell_what_differs(self, study_file: Mapping[str, Any]) -> None:
        """Show the values in which a study differs from the one that it extends."""
        others = study_file.get("extended", {})
        values = vars(self.parameters)
        differing = [
            f"{name} {value!r} ({others[name]!r})"
            for name, value in values.items()
            if others.get(name, value) != value
        ]
        if differing:
            self.tell(
                f"This notebook differs from that of `{study_file['extends']}`: "
                f"{', '.join(differing)}."
            )


def _show_folded(title: str, table: str) -> None:
    """Show a table, as HTML, that opens by a click on its title."""
    display(HTML(f"<details><summary>{title}</summary>{table}</details>"))


def results_file(notebook: str) -> str:
    """Name of the file with a notebook's named results, beside the executed one."""
    return f"{notebook}.results.json"


def _plain_number(name: str, value: Any) -> Any:
    """A number or text as JSON has it; None for what is undefined."""
    if value is None or isinstance(value, str):
        return value
    try:
        number = value.item() if hasattr(value, "item") else value
        defined = math.isfinite(number)
    except (TypeError, ValueError):
        raise ValueError(
            f"the result {name} is {value!r:.100}, and must be a number or a text"
        ) from None
    return number if defined else None


def check_clone(folder: Path, root: Path = PROJECT_ROOT) -> None:
    """Refuse to run a notebook of one clone with the modules of another.

    A notebook that is opened from a second clone finds the modules that are installed,
    which would read and write the folders of the first clone.

    Args:
        folder: where the notebook runs: JupyterLab takes the notebook's own folder.
        root: of the clone whose modules are imported.

    Raises:
        StudyError: where the folder lies in another clone.
    """
    for parent in (folder.resolve(), *folder.resolve().parents):
        is_clone = (parent / "helpers/report/notebook.py").is_file()
        if is_clone and parent != root:
            raise StudyError(
                f"this notebook runs in the clone {parent}, and its modules are those "
                f"of {root}, whose studies it would read and write; activate the "
                f"environment of {parent}, or install it there: make setup"
            )
        if is_clone:
            return


def select_shard(items: Any, shard: str) -> Any:
    """Select the items that one of several processes works on.

    Args:
        items: a list, or a table of which rows are selected.
        shard: ``"2/4"`` selects every fourth item from the second on; ``""`` all.

    Raises:
        ValueError: if the first number is not between 1 and the second.

    Example:
        >>> select_shard(["a", "b", "c"], "1/2")
        ['a', 'c']
    """
    number, count = map(int, (shard or "1/1").split("/"))
    if not 1 <= number <= count:
        raise ValueError(
            f"the shard is {shard!r}; write i/n with i from 1 to n, such as 2/4"
        )
    rows = items.iloc if isinstance(items, pd.DataFrame) else items
    return rows[number - 1 :: count]


def open_report(
    *,
    study: str,
    notebook: str,
    work_dir: str = "work",
    reports_dir: str = "reports",
    work_study: str = "",
    changed: Mapping[str, Any] | None = None,
) -> Report:
    """Open a notebook's report, and delete what an earlier execution recorded in it.

    Only a sweep publishes: its kernels write to a folder that it copies into the
    study's report when the notebook succeeds. A notebook that a user runs writes to
    ``work/<study>/scratch/<notebook>``, and says so. From here on all figures have the
    project's style.

    Args:
        study: name of the study.
        notebook: name of the notebook without suffix.
        work_dir: folder of all studies' runs and scores.
        reports_dir: folder of all reports.
        work_study: the study whose folder of work is used, if it is another one.
        changed: values that are not the study's; such a run has a folder of its own.

    Raises:
        ValueError: if a name would leave its folder.
    """
    style.use()
    work = work_folder(work_study or study, work_dir)
    staging = os.environ.get(files.STAGING, "")
    scratch = inside(work / "scratch", notebook)
    if changed:
        scratch = inside(scratch, name_of_values(changed))
    folder = Path(staging) if staging else scratch
    of_study = inside(from_root(reports_dir), study)
    report = Report(folder, notebook, work, of_study)
    if not staging:
        _tell_where_files_go(report.folder, study, reports_dir)
    point_to_records(work, reports_dir)
    write_json(report.folder / "story" / f"{notebook}.json", [])
    (report.folder / results_file(notebook)).unlink(missing_ok=True)
    return report


def work_folder(study: str, work_dir: str) -> Path:
    """The folder of work of a study; if a sweep runs this kernel, the sweep's."""
    of_sweep = os.environ.get(files.WORK, "")
    return Path(of_sweep) if of_sweep else inside(from_root(work_dir), study)


def point_to_records(work: Path, reports_dir: str) -> Path:
    """Note in a study's folder of work where its records lie, if not beside it.

    Args:
        work: the folder of work.
        reports_dir: folder of all reports.

    Returns:
        The folder of the records, which need not exist.
    """
    records = inside(from_root(reports_dir), work.name) / files.RECORDS
    if records != files.records_of(work):
        write_json(work / files.POINTER, {"folder": str(records)})
    return records


def _tell_where_files_go(folder: Path, study: str, reports_dir: str) -> None:
    place = folder
    if folder.is_relative_to(PROJECT_ROOT):
        place = folder.relative_to(PROJECT_ROOT)
    display(
        Markdown(
            f"Tables and figures of this run go to `{place}`; `{reports_dir}/{study}` "
            f"is left as it is (`python -m helpers.sweep {study}` publishes it)."
        )
    )

"""What a notebook leaves for its readers: figures, tables and sentences, shown in place and recorded for the pages."""

import base64
import io
import math
import os
import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

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
from helpers.parameters import StudyError, declared, in_force, name_of_values
from helpers.report import style, tables
from helpers.report.markup import figure_title, inert
from helpers.statistics.claims import check_claims, keep_claims

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
_DPI_SHOWN = (
    72  # in the executed notebook, which holds its pictures as text: half the size
)
_DIGITS = "%.8g"  # of a number in a table
# As scrapbook keeps a value in a notebook, so that its readers find it.
_SCRAP = "application/scrapbook.scrap.json+json"


@dataclass
class Report:
    """One notebook's part of a study's report."""

    folder: (
        Path  # where tables and figures are written; a sweep publishes them from there
    )
    notebook: str
    work: Path  # work/<study>, of the study that it extends where it extends one
    story: list[dict[str, Any]] = field(
        default_factory=list
    )  # what was shown, in order
    began: float = field(default_factory=time.perf_counter)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)  # by name

    def result(
        self,
        name: str,
        value: float | str,
        low: float | None = None,
        high: float | None = None,
        unit: str = "",
    ) -> None:
        """Name a number that this notebook finds, so that sweeps and programs find it.

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

    def record(self, kind: str, **content: Any) -> None:
        """Add an item and write the story, so that it is complete up to where a notebook fails."""
        self.story.append({"kind": kind, **content})
        write_json(self.folder / "story" / f"{self.notebook}.json", self.story)

    @property
    def published(self) -> Path:
        """The folder of the study's report as it is published now."""
        return files.records_of(self.work).parent

    def find(self, file: str, *folders: Path) -> Path | None:
        """The folder with a file that another notebook made.

        Args:
            file: path inside of a report, such as ``"tables/scores.parquet"``.
            folders: where it may be.

        Returns:
            The report of this combination of a sweep where that has the file, else the
            folder whose file is the newest; None where none has it.
        """
        combination = os.environ.get(files.COMBINATION)
        if combination and (Path(combination) / file).is_file():
            return Path(combination)
        found = [folder for folder in folders if (folder / file).is_file()]
        return max(found, key=lambda one: (one / file).stat().st_mtime, default=None)

    @property
    def names(self) -> dict[str, str]:
        """Short name of each model of the study, by its id, once notebook 02 has left the catalogue."""
        path = self.work / "catalogue.parquet"
        return tables.model_names(read_table(path)) if path.is_file() else {}


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
                f"this notebook runs in the clone {parent}, and its modules are those of "
                f"{root}, whose studies it would read and write; activate the environment "
                f"of {parent}, or install it there: make setup"
            )
        if is_clone:
            return


def begin(notebook: str, values: dict[str, Any]) -> Report:
    """Put the parameters in force into ``globals()`` of a notebook (by its name without suffix), open its report and show them."""
    check_clone(Path.cwd())
    found, origins, content = in_force(notebook, values)
    values.update(found)
    given = {"work_dir": found["work_dir"], "reports_dir": found["reports_dir"]}
    report = open_report(
        study=found["study"],
        notebook=notebook,
        work_study=content["work_study"],
        changed=content["changed"],
        **given,
    )
    _show_parameters(report, found, origins)
    if not os.environ.get(files.STAGING):
        keep_claims(report.work, check_claims(content.get("claims") or []))
    other = content.get("extended", {})
    if differs := [
        f"{name} {value!r} ({other[name]!r})"
        for name, value in found.items()
        if other.get(name, value) != value
    ]:
        tell(
            report,
            f"This notebook differs from that of `{content['extends']}`: {', '.join(differs)}.",
        )
    return report


def end(report: Report, device: object = "cpu") -> None:
    """Show the named results, and record what made this report: commit, versions, device, time and duration."""
    if report.results:
        rows = [{"result": name, **item} for name, item in report.results.items()]
        shown = tables.html(pd.DataFrame(rows))
        summary = "<summary>Results by name</summary>"
        display(HTML(f"<details>{summary}{shown}</details>"))
    facts = {
        "commit": files.commit(),
        "device": files.device_name(device),
        **files.versions(_PACKAGES),
    }
    facts |= {
        "finished (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "seconds": f"{time.perf_counter() - report.began:.0f}",
    }
    display(
        HTML(
            tables.html(
                pd.DataFrame({"what": list(facts), "value": list(facts.values())})
            )
        )
    )
    report.record("provenance", facts=facts)


def share(items: Any, shard: str) -> Any:
    """The share of a list or of a table's rows that "2/4" names: every fourth from the second on; "" takes all. Raises ValueError."""
    number, count = map(int, (shard or "1/1").split("/"))
    if not 1 <= number <= count:
        raise ValueError(
            f"the shard is {shard!r}; write i/n with i from 1 to n, such as 2/4"
        )
    return (
        items.iloc[number - 1 :: count]
        if isinstance(items, pd.DataFrame)
        else items[number - 1 :: count]
    )


def open_report(
    *,
    study: str,
    notebook: str,
    work_dir: str = "work",
    reports_dir: str = "reports",
    work_study: str = "",
    changed: Mapping[str, Any] | None = None,
) -> Report:
    """A notebook's report, begun anew; what an earlier execution recorded is forgotten. Figures have the one style from now on.

    Only a sweep publishes: its kernels write to a folder from which it copies into the study's report when the notebook has
    ended well. A notebook that is run otherwise writes to ``work/<study>/scratch/<notebook>``, and says so; with values
    that are not the study's (``changed``) to a folder below it that is named after them.
    """
    style.use()
    given, staging = os.environ.get(files.WORK, ""), os.environ.get(files.STAGING, "")
    work = Path(given) if given else inside(from_root(work_dir), work_study or study)
    scratch = inside(work / "scratch", notebook)
    if changed:
        scratch = inside(scratch, name_of_values(changed))
    report = Report(Path(staging) if staging else scratch, notebook, work)
    if not staging:
        place = (
            os.path.relpath(report.folder, PROJECT_ROOT)
            if report.folder.is_relative_to(PROJECT_ROOT)
            else report.folder
        )
        published, command = (
            f"{reports_dir}/{study}",
            f"python -m helpers.sweep {study}",
        )
        display(
            Markdown(
                f"Tables and figures of this run go to `{place}`; `{published}` is left as it is (`{command}` publishes it)."
            )
        )
    records = inside(from_root(reports_dir), work.name) / files.RECORDS
    if records != files.records_of(work):
        write_json(work / files.POINTER, {"folder": str(records)})
    write_json(report.folder / "story" / f"{notebook}.json", [])
    (report.folder / results_file(notebook)).unlink(missing_ok=True)
    return report


def made_for_others(report: Report, path: Path) -> None:
    """Record a file of ``work/<study>`` that other notebooks read, so that a change of it is noticed; ValueError for one elsewhere."""
    report.record(
        "work_file",
        path=str(
            inside(report.work, os.path.relpath(path, report.work)).relative_to(
                report.work.resolve()
            )
        ),
    )


def _show_parameters(
    report: Report, values: Mapping[str, Any], origins: Mapping[str, str]
) -> None:
    names = declared(PROJECT_ROOT / "notebooks" / f"{report.notebook}.ipynb")
    rows = [
        {
            "parameter": name,
            "value": str(values[name]),
            "from": origins[name],
            "meaning": item.comment,
        }
        for name, item in names.items()
    ]
    counts = Counter(origins[name] for name in names)
    said = (
        f": {', '.join(f'{number} from {origin}' for origin, number in counts.items())}"
        if len(counts) > 1
        else ""
    )
    shown = tables.html(pd.DataFrame(rows))
    display(
        HTML(
            f"<details><summary>Parameters of this report{said}</summary>{shown}</details>"
        )
    )
    report.record("parameters", values={name: str(values[name]) for name in names})


def tell(report: Report, text: str, *, answer: bool = False) -> None:
    """Show and record a computed sentence (Markdown); an answer also stands on the index of a study without networks of its own."""
    text = inert(text)
    display(Markdown(text))
    report.record("text", text=text, answer=answer)


def show_figure(report: Report, figure: Figure | None, name: str, reading: str) -> None:
    """Write a figure to ``figures/<notebook>-<name>.png`` and ``.svg``, show it with number, title and reading below, and close it.

    One that is mostly photographs has no SVG, which would hold the same pixels. None in place of a figure shows the reading alone:
    what needs no picture is said.
    """
    if figure is None:
        tell(report, reading)
        return
    path, reading = (
        inside(report.folder, f"figures/{report.notebook}-{name}.png"),
        inert(reading),
    )
    picture, shown, vector = (
        as_file(figure, **look)
        for look in ({"dpi": _DPI}, {"dpi": _DPI_SHOWN}, {"format": "svg", "dpi": _DPI})
    )
    plt.close(figure)
    photographs = 2 * sum(
        map(len, re.findall(rb"data:image/png;base64,[^\"]+", vector))
    ) > len(vector)
    for place, content in [(path, picture)] + [(path.with_suffix(".svg"), vector)] * (
        not photographs
    ):
        with complete_or_absent(place) as temporary:
            temporary.write_bytes(content)
    title = f"Figure {int(report.notebook[:2])}.{1 + sum(item['kind'] == 'figure' for item in report.story)}. {figure_title(name)}."
    data = {"image/png": base64.b64encode(shown).decode(), "text/plain": title}
    display(data, raw=True, metadata={"image/png": {"alt": title}})
    display(Markdown(f"**{title}** {reading}"))
    report.record(
        "figure", name=name, path=f"figures/{path.name}", reading=reading, alt=title
    )


def _show_names_as_written(figure: Figure) -> None:
    """Take ``$`` in names for a character; only labels of log scales are formulas."""
    for axes in figure.axes:
        # Texts of ticks are set when they are asked for.
        axes.get_xticklabels()
        axes.get_yticklabels()
    for text in figure.findobj(Text):
        if "$" in text.get_text() and r"\math" not in text.get_text():
            text.set_parse_math(False)


def as_file(figure: Figure, **look: Any) -> bytes:
    """A figure as a file, small, and the same bytes each time: PNG with 256 colours, or SVG with two decimals and without metadata."""
    _show_names_as_written(figure)
    file = io.BytesIO()
    with plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "workbook"}):
        metadata = {"Date": None} if look.get("format") == "svg" else None
        figure.savefig(
            file, bbox_inches="tight", facecolor="white", metadata=metadata, **look
        )
    if metadata:
        text = re.sub(rb"<metadata>.*?</metadata>\n", b"", file.getvalue(), flags=re.S)
        text = re.sub(
            rb' (?:d|x|y)="[^"]*"',
            lambda found: re.sub(rb"(\.\d\d)\d+", rb"\1", found[0]).replace(
                b" \n", b"\n"
            ),
            text,
        )
        return re.sub(
            rb"font-family: [^;\"]*",
            b"font-family: Arial, 'DejaVu Sans', sans-serif",
            re.sub(rb"\n +", b"\n", text),
        )
    small = io.BytesIO()
    Image.open(file).convert("RGB").quantize(
        256, kmeans=4, dither=Image.Dither.NONE
    ).save(small, "png", optimize=True)
    return small.getvalue()


def show_table(
    report: Report, frame: pd.DataFrame, name: str, reading: str = "", *, rows: int = 20
) -> None:
    """Write a table to ``tables/<name>.csv`` and show it: its first rows, in JupyterLab all; of a table without rows only the reading."""
    path, reading = inside(report.folder, f"tables/{name}.csv"), inert(reading)
    with complete_or_absent(path) as temporary:
        frame.to_csv(temporary, index=False, float_format=_DIGITS)
    if len(frame):
        shown = tables.sortable(frame, report.names, rows=rows)
        first = (
            f"{rows} of {len(frame):,} rows; all of them: " if rows < len(frame) else ""
        )
        note = f"<p>{first}<code>tables/{path.name}</code></p>"
        display(
            *(
                [HTML(shown.data + note)]
                if isinstance(shown, HTML)
                else [shown, HTML(note)]
            )
        )
    if reading:
        display(Markdown(reading))
    report.record(
        "table", name=name, path=f"tables/{path.name}", reading=reading, rows=len(frame)
    )


def keep_table(report: Report, frame: pd.DataFrame, name: str) -> None:
    """Write a table that is too long to be read to ``tables/<name>.parquet``; it is not shown."""
    path = inside(report.folder, f"tables/{name}.parquet")
    write_table(path, frame, index=False, compression="zstd")

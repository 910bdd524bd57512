"""What a notebook leaves for its readers: figures, tables and sentences, shown in place and recorded for the index page."""

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
import numpy as np
import pandas as pd
from IPython.display import HTML, Markdown, display
from matplotlib.figure import Figure
from PIL import Image

from helpers import files
from helpers.files import PROJECT_ROOT, complete_or_absent, from_root, inside, write_json
from helpers.parameters import declared, in_force
from helpers.report import style
from helpers.report.markup import figure_title, inert
from helpers.statistics.claims import check_claims, keep_claims

_DPI = 90
_DPI_SHOWN = 72  # in the executed notebook, which holds its pictures as text: half the size
_DIGITS = "%.8g"  # of a number in a table
_DRAWN = 20_000  # colours at most of what is drawn; photographs have more
_MOVED, _MOVED_PIXELS = 12, 100  # of 255 that a colour may change by a palette, and in how many pixels of areas it may by more


@dataclass
class Report:
    """One notebook's part of a study's report."""

    folder: Path  # where tables and figures are written; the launcher publishes them from there
    notebook: str
    work: Path  # work/<study>, of the study that it extends where it extends one
    story: list[dict[str, Any]] = field(default_factory=list)  # what was shown, in order
    began: float = field(default_factory=time.perf_counter)

    def record(self, kind: str, **content: Any) -> None:
        """Add an item and write the story, so that it is complete up to where a notebook fails."""
        self.story.append({"kind": kind, **content})
        write_json(self.folder / "story" / f"{self.notebook}.json", self.story)


def begin(notebook: str, values: dict[str, Any]) -> Report:
    """Put the parameters in force into the globals of a notebook, open its report, show them, and start the clock.

    Args:
        notebook: name without suffix.
        values: ``globals()`` of the notebook.
    """
    found, origins, content = in_force(notebook, values)
    values.update(found)
    given = {"work_dir": found["work_dir"], "reports_dir": found["reports_dir"]}
    report = open_report(study=found["study"], notebook=notebook, work_study=content["work_study"], **given)
    parameters(report, found, origins)
    if not os.environ.get(files.STAGING):
        keep_claims(report.work, check_claims(content.get("claims") or []))
    if differs := [f"{name} {value!r} ({content['extended'][name]!r})" for name, value in found.items() if _differs(content, name, value)]:
        tell(report, f"This notebook differs from that of `{content['extends']}`: {', '.join(differs)}.")
    return report


def _differs(content: Mapping[str, Any], name: str, value: Any) -> bool:
    return name in content.get("extended", {}) and content["extended"][name] != value


def end(report: Report, device: object = "cpu") -> None:
    """Show and record what made this report, and how long it took."""
    provenance(report, time.perf_counter() - report.began, device)


def share(items: Any, shard: str) -> Any:
    """The share of a list or of a table's rows that "2/4" names: every fourth from the second on; "" takes all. Raises ValueError."""
    number, count = map(int, (shard or "1/1").split("/"))
    if not 1 <= number <= count:
        raise ValueError(f"the shard is {shard!r}; write i/n with i from 1 to n, such as 2/4")
    return items.iloc[number - 1 :: count] if isinstance(items, pd.DataFrame) else items[number - 1 :: count]


def open_report(*, study: str, notebook: str, work_dir: str = "work", reports_dir: str = "reports", work_study: str = "") -> Report:
    """A notebook's report, begun anew; what an earlier execution recorded for the index page is forgotten.

    Only a sweep publishes: its kernels write to a folder from which it copies into the study's report when the notebook has
    ended well. A notebook that is run otherwise writes to ``work/<study>/scratch/<notebook>``, and says so.
    """
    given, staging = os.environ.get(files.WORK, ""), os.environ.get(files.STAGING, "")
    work = Path(given) if given else inside(from_root(work_dir), work_study or study)
    report = Report(Path(staging) if staging else inside(work / "scratch", notebook), notebook, work)
    if not staging:
        place = os.path.relpath(report.folder, PROJECT_ROOT) if report.folder.is_relative_to(PROJECT_ROOT) else report.folder
        published, command = f"{reports_dir}/{study}", f"python -m helpers.sweep {study}"
        display(Markdown(f"Tables and figures of this run go to `{place}`; `{published}` is left as it is (`{command}` publishes it)."))
    write_json(report.folder / "story" / f"{notebook}.json", [])
    return report


def made_for_others(report: Report, path: Path) -> None:
    """Record a file in the study's folder of work that other notebooks read, so that a change of it is noticed.

    Raises:
        ValueError: the file lies outside ``work/<study>``.
    """
    report.record("work_file", path=str(inside(report.work, os.path.relpath(path, report.work)).relative_to(report.work)))


def parameters(report: Report, values: Mapping[str, Any], origins: Mapping[str, str] | None = None) -> None:
    """Show and record the value of every parameter that the notebook declares, and where it is from.

    Args:
        report: this notebook's.
        values: ``globals()`` of the notebook.
        origins: of each value, see ``first_cell.parameters_in_force``.
    """
    names = declared(PROJECT_ROOT / "notebooks" / f"{report.notebook}.ipynb")
    origins = origins or {}
    rows = [
        {"parameter": name, "value": str(values[name]), "from": origins.get(name, ""), "meaning": item.comment}
        for name, item in names.items()
    ]
    counts = Counter(row["from"] for row in rows if row["from"])
    said = f": {', '.join(f'{number} from {origin}' for origin, number in counts.items())}" if len(counts) > 1 else ""
    display(HTML(f"<details><summary>Parameters of this report{said}</summary>" + _html(pd.DataFrame(rows)) + "</details>"))
    report.record("parameters", values={row["parameter"]: row["value"] for row in rows})


def tell(report: Report, text: str, *, answer: bool = False, first: bool = False) -> None:
    """Show and record a computed sentence (Markdown); an answer also stands on top of the study's index page, first ones before it."""
    text = inert(text)
    display(Markdown(text))
    report.record("text", text=text, answer=answer, first=first)


def show_figure(report: Report, figure: Figure | None, name: str, reading: str) -> None:
    """Write a figure to ``figures/<notebook>-<name>.png`` and ``.svg``, show it with number, title and reading below, and close it.

    One that is mostly photographs has no SVG, which would hold the same pixels. None in place of a figure shows the reading alone:
    what needs no picture is said.
    """
    if figure is None:
        tell(report, reading)
        return
    picture, shown_picture, vector = _drawn(figure)
    path, reading = inside(report.folder, f"figures/{report.notebook}-{name}.png"), inert(reading)
    for place, content in [(path, picture)] + [(path.with_suffix(".svg"), vector)] * (not _mostly_pixels(vector)):
        with complete_or_absent(place) as temporary:
            temporary.write_bytes(content)
    number = f"{int(report.notebook[:2])}.{1 + sum(item['kind'] == 'figure' for item in report.story)}"
    title = f"Figure {number}. {figure_title(name)}."
    shown = {"image/png": base64.b64encode(shown_picture).decode(), "text/plain": title}
    display(shown, raw=True, metadata={"image/png": {"alt": title}})
    display(Markdown(f"**{title}** {reading}"))
    report.record("figure", name=name, path=f"figures/{path.name}", reading=reading, alt=title)


def _drawn(figure: Figure) -> tuple[bytes, bytes, bytes]:
    """A figure as PNG with a palette, for the page and smaller for the notebook, and as SVG; the same bytes each time it is drawn."""
    pixels, shown, vector = io.BytesIO(), io.BytesIO(), io.BytesIO()
    shared = {"bbox_inches": "tight", "facecolor": "white"}
    with style.style(), plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "workbook"}):  # colours such as C0 are looked up only now
        figure.savefig(pixels, format="png", dpi=_DPI, **shared)
        figure.savefig(shown, format="png", dpi=_DPI_SHOWN, **shared)
        figure.savefig(vector, format="svg", dpi=_DPI, metadata={"Date": None}, **shared)
    plt.close(figure)
    return _with_palette(pixels.getvalue()), _with_palette(shown.getvalue()), _shortened(vector.getvalue())


def _mostly_pixels(vector: bytes) -> bool:
    return 2 * sum(map(len, re.findall(rb"data:image/png;base64,[^\"]+", vector))) > len(vector)


def _with_palette(picture: bytes) -> bytes:
    """A PNG with a palette: of 64 colours, of more where areas of one colour would change theirs, and of 256 for photographs."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    pixels = np.asarray(image).astype(np.int16)
    area = np.zeros(pixels.shape[:2], dtype=bool)
    area[:, 1:] = (pixels[:, 1:] == pixels[:, :-1]).all(axis=2)
    for colours in (64, 128, 256) if image.getcolors(_DRAWN) else (256,):
        reduced = image.quantize(colours, kmeans=4, dither=Image.Dither.NONE)
        moved = np.abs(np.asarray(reduced.convert("RGB")) - pixels).max(axis=2)
        if (moved[area] > _MOVED).sum() < _MOVED_PIXELS:
            break
    small = io.BytesIO()
    reduced.save(small, "png", optimize=True)
    return small.getvalue()


def _shortened(vector: bytes) -> bytes:
    """An SVG of a quarter of its size: two decimals, of points, one list of fonts, each style once, photographs with a palette.

    Indents, names of groups and the metadata of matplotlib are left out.
    """
    vector = re.sub(rb' (?:d|x|y)="[^"]*"', lambda found: re.sub(rb"(\.\d\d)\d+", rb"\1", found[0]).replace(b" \n", b"\n"), vector)
    vector = re.sub(rb"font-family: [^;\"]*", b"font-family: Arial, 'DejaVu Sans', sans-serif", vector)
    vector = re.sub(rb' transform="rotate\(-?0 [^"]*"', b"", re.sub(rb"\n +", b"\n", vector))
    vector = _styled_once(re.sub(rb'(?<=<g) id="[^"]*"|<metadata>.*?</metadata>\n', b"", vector, flags=re.S))
    return re.sub(rb"(?<=data:image/png;base64,)[^\"]+", _opaque_with_palette, vector)


def _styled_once(vector: bytes) -> bytes:
    """Styles that stand more than once as classes, which what draws them names."""
    counts = Counter(re.findall(rb' style="([^"]*)"', vector))
    names = {text: b"s%d" % number for number, text in enumerate(text for text, count in counts.items() if count > 1)}
    vector = re.sub(rb' style="([^"]*)"', lambda found: b' class="%s"' % names[found[1]] if found[1] in names else found[0], vector)
    listed = b"".join(b"\n.%s{%s}" % (name, text) for text, name in names.items())
    return vector.replace(b"</style>", b"%s</style>" % listed, 1)


def _opaque_with_palette(found: re.Match[bytes]) -> bytes:
    picture = base64.b64decode(found[0])
    if Image.open(io.BytesIO(picture)).convert("RGBA").getextrema()[3][0] < 255:  # a palette has no transparency here
        return found[0]
    return base64.b64encode(_with_palette(picture))


def show_table(report: Report, frame: pd.DataFrame, name: str, reading: str = "", *, rows: int = 20) -> None:
    """Write a table to ``tables/<name>.csv``, show its first rows, and how many there are; of a table without rows only the reading."""
    path, reading = inside(report.folder, f"tables/{name}.csv"), inert(reading)
    with complete_or_absent(path) as temporary:
        frame.to_csv(temporary, index=False, float_format=_DIGITS)
    shown = frame.head(rows)
    note = f"{len(shown)} of {len(frame):,} rows; all of them: " if len(shown) < len(frame) else ""
    if len(frame):
        display(HTML(f"{_html(shown)}<p>{note}<code>tables/{path.name}</code></p>"))
    if reading:
        display(Markdown(reading))
    report.record("table", name=name, path=f"tables/{path.name}", reading=reading, rows=len(frame))


def keep_table(report: Report, frame: pd.DataFrame, name: str) -> None:
    """Write a table that is too long to be read to ``tables/<name>.parquet``; it is not shown."""
    with complete_or_absent(inside(report.folder, f"tables/{name}.parquet")) as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")


def provenance(report: Report, seconds: float, device: object = "cpu") -> None:
    """Show and record what made this report: commit, versions, device, time and duration."""
    facts = {"commit": files.commit(), "device": files.device_name(device), **files.all_versions()}
    facts |= {"finished (UTC)": time.strftime("%Y-%m-%d %H:%M", time.gmtime()), "seconds": f"{seconds:.0f}"}
    display(HTML(_html(pd.DataFrame({"what": list(facts), "value": list(facts.values())}))))
    report.record("provenance", facts=facts)


def plain(markdown: str) -> str:
    """A sentence without its emphasis."""
    return markdown.replace("**", "").replace("`", "")


def cell_text(value: Any) -> str:
    """Write one value of a table for a reader: short numbers, and undefined in words."""
    if isinstance(value, float):
        if math.isnan(value):
            return "—"
        if math.isinf(value):
            return "∞" if value > 0 else "-∞"
        return f"{value:.4g}" if value != round(value) or abs(value) >= 1e6 else f"{value:.0f}"
    return str(value)


def _html(frame: pd.DataFrame) -> str:
    text = frame.map(cell_text) if len(frame) else frame
    return re.sub(r">\n *<", "><", text.to_html(index=False, border=0, escape=True))  # without indents, two thirds of the size

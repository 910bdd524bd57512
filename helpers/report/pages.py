"""HTML pages of reports.

A study's index, a page per executed notebook, its explorers, and a list of all studies.
Pages need the folder ``reports/assets`` beside the studies and nothing else: they open
from disk and load nothing from the internet.
"""

import json
import os
import re
import zipfile
from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from html import escape, unescape
from pathlib import Path
from typing import Any

import jinja2
import mistune
import nbformat
import pandas as pd
from markupsafe import Markup
from PIL import Image

from helpers.files import (
    PROJECT_ROOT,
    SWEEP_LISTING,
    complete_or_absent,
    inside,
)
from helpers.parameters import declared
from helpers.report import explore, findings, opening, sweeps, tables
from helpers.report.findings import Findings
from helpers.report.markup import inert
from helpers.report.style import count

_TEMPLATES = Path(__file__).parent / "templates"
_GLOSSARY = PROJECT_ROOT / "docs/glossary.md"
# The file of a table, which stands below the rows that a notebook shows.
_TABLE = re.compile(r"<code>tables/([\w.-]+)\.csv</code>")
_DAMAGED = (
    "<figcaption>{} is damaged, so the smaller picture of the notebook stands here; "
    "run the notebook again to draw it anew.</figcaption>"
)
_TEASER_PARAGRAPHS = 3  # paragraphs of an answer in the list of studies
# Tags that stay in the HTML of notebooks, beside those that bleach allows.
_TAGS = {
    "br",
    "details",
    "div",
    "h1",
    "h2",
    "h3",
    "h4",
    "hr",
    "p",
    "pre",
    "span",
    "sub",
    "summary",
    "sup",
    "table",
    "tbody",
    "td",
    "th",
    "thead",
    "tr",
}


def write(folder: Path, unchanged: Collection[str] = ()) -> Path:
    """Write all pages of a report, their shared files and the list of studies.

    Args:
        folder: of the report, reports/<study>.
        unchanged: notebooks that were not executed since their pages were written,
            which stay as they are.

    Returns:
        The index of the study.
    """
    _write_assets(folder.parent / "assets")
    opening.write(folder)
    changed = [
        path
        for path in executed_notebooks(folder)
        if path.stem not in unchanged or not path.with_suffix(".html").is_file()
    ]
    for path in changed:
        _write_notebook(path)
    if changed and tables.read(folder, "catalogue") is not None:
        _write_explorers(folder)
    for sweep in sweeps.sweeps_of(folder):
        _write_sweep(sweep)
    index = _write_index(folder)
    _write_studies(folder.parent)
    return index


def executed_notebooks(folder: Path) -> list[Path]:
    """The executed notebooks of a report, in order."""
    return sorted(
        path
        for path in folder.glob("[0-9][0-9]_*.ipynb")
        if not path.name.endswith(".partial.ipynb")
    )


def _write_assets(folder: Path) -> None:
    """Write style, scripts, glossary, and libraries if they are missing."""
    contents = {
        name: (_TEMPLATES / name).read_text(encoding="utf-8")
        for name in ("pages.css", "pages.js", "explore.css", "explore.js")
    }
    page = _environment().get_template("page.html.j2")
    contents["glossary.html"] = page.render(
        title="Glossary", body=_markdown(_glossary()), assets="."
    )
    if not all(
        (folder / name).is_file()
        for name in ("plotly.min.js", "itables.js", "itables.css")
    ):
        contents |= _libraries()
    for name, content in contents.items():
        _write_text(folder / name, content)


def _libraries() -> dict[str, str]:
    """plotly.js, and DataTables as a script: browsers load no modules from disk."""
    import itables
    from plotly.offline import get_plotlyjs

    bundle = Path(itables.__file__).parent / "html"
    text = (bundle / "dt_bundle.js").read_text(encoding="utf-8")
    # The module ends in: export {a as b, c};
    # The script has in its place: window.itables={b:a,c};
    statement = re.compile(r"\bexport\s*\{([^}]*)\};?")
    (exported,) = statement.findall(text)
    pairs = [":".join(reversed(name.split(" as "))) for name in exported.split(",")]
    assigned = f"window.itables={{{','.join(pairs)}}};"
    script = statement.sub(lambda _: assigned, text)
    styled = (bundle / "dt_bundle.css").read_text(encoding="utf-8")
    return {
        "itables.js": f"(()=>{{{script}\n}})();\n",
        "itables.css": styled,
        "plotly.min.js": get_plotlyjs(),
    }


def _write_text(path: Path, content: str) -> Path:
    with complete_or_absent(path) as temporary:
        temporary.write_text(content, encoding="utf-8")
    return path


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, loader=jinja2.FileSystemLoader(_TEMPLATES)
    )
    environment.filters["written"] = _findings_html
    environment.filters["sentence"] = _sentence
    return environment


def _markdown(text: str) -> Markup:
    """Markdown as HTML; HTML in it is shown as text."""
    return Markup(
        mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])(text)
    )


def _findings_html(text: str) -> Markup:
    """Markdown of findings as HTML; names from data are inert in it already.

    No line breaks within "r = ".
    """
    no_break = "r\u00a0=\u00a0"
    return Markup(_markdown(text).replace("r = ", no_break))


def _sentence(text: str) -> Markup:
    """A sentence that may quote data, as HTML within a paragraph."""
    html = _findings_html(inert(text)).strip()
    return Markup(html.removeprefix("<p>").removesuffix("</p>"))


def _page(folder: Path, name: str, template: str, title: str, **content: Any) -> Path:
    """Write a page of a report, or of a sweep below it, with its links to others."""
    study = _report_of(folder)
    up = f"{os.path.relpath(study.parent, folder)}/"
    # Address, label, and the rest of the label, which is set smaller.
    links = [(f"{os.path.relpath(study, folder)}/index.html", study.name, "")]
    if folder == study:
        links = [("index.html", study.name, "")]
        if tables.read(folder, "catalogue") is not None:
            links.append(("explore.html", "Explore", ""))
    elif folder.parent.parent != study:  # a combination, below its sweep
        links.append(("../index.html", "Sweep", ""))
    links += [
        (f"{path.stem}.html", path.stem[:2], path.stem[2:].replace("_", " "))
        for path in executed_notebooks(folder)
    ]
    links += [
        (f"{up}index.html", "All studies", ""),
        (f"{up}assets/glossary.html", "Glossary", ""),
    ]
    shared = {
        "study": study.name,
        "title": title,
        "file_name": f"{name}.html",
        "assets": f"{up}assets",
        "links": links,
    }
    text = _environment().get_template(template).render(**shared, **content)
    if name != "explore":  # which has no running text
        text = _with_glossary_links(text, f"{up}assets")
    return _write_text(folder / f"{name}.html", text)


def _report_of(folder: Path) -> Path:
    """The report that a folder is, or that has it as a folder of a sweep.

    Sweeps lie in ``<report>/sweeps/<notebook>``, their combinations in folders there.
    """
    for sweep in (folder, folder.parent):
        if sweep.parent.name == "sweeps" and (sweep / SWEEP_LISTING).is_file():
            return sweep.parent.parent
    return folder


def _write_sweep(folder: Path) -> Path:
    """``index.html`` of a sweep, and a page for each notebook that it executed."""
    frame = sweeps.results_of(folder)
    for place in frame.loc[frame["failed"] == "", "folder"]:
        for path in executed_notebooks(inside(folder, place)):
            _write_notebook(path)
    swept = sweeps.varied(frame)
    pictures = []
    for name in swept:
        # The first of the other swept parameters gives the colours.
        second = next((other for other in swept if other != name), "")
        names = sweeps.write_pictures(frame, folder, name, second)
        pictures.append((name, sweeps.legend(frame, second), names))
    counts = [
        f"{count(frame[name].nunique(), 'value')} of {name}"
        for name in frame.attrs["parameters"]
    ]
    failed = frame[frame["failed"] != ""]
    source = PROJECT_ROOT / "notebooks" / f"{folder.name}.ipynb"
    declarations = declared(source) if source.is_file() else {}
    return _page(
        folder,
        "index",
        "sweep.html.j2",
        f"Sweep of {folder.name.replace('_', ' ')}",
        counts=f"{count(len(frame), 'combination')}: {', '.join(counts)}.",
        sentences=sweeps.what_it_shows(frame),
        meanings=[
            (name, declarations[name].comment)
            for name in frame.attrs["parameters"]
            if name in declarations
        ],
        own_values=frame.attrs["of_study"],
        has_own_row=sweeps.is_of_study(frame).any(),
        not_compared=len(sweeps.not_compared(frame, folder)),
        table=Markup(sweeps.table_html(frame, folder.name)),
        pictures=pictures,
        failed=failed[["folder", "failed"]].to_numpy().tolist(),
        notebook=folder.name,
    )


def _glossary() -> str:
    """The glossary, Markdown, without its links to other documents."""
    return re.sub(
        r"\[([^]]+)\]\([\w./-]+\.md[^)]*\)",
        r"\1",
        _GLOSSARY.read_text(encoding="utf-8"),
    )


def _with_glossary_links(page: str, assets: str) -> str:
    """Link each word of the glossary where it first occurs in the text of a page.

    Short words are not linked, since they have other meanings too, except those with
    capitals, such as IoU.

    Args:
        page: HTML.
        assets: path of the folder that holds the glossary.
    """
    rows = re.findall(r"^\| ([^|]+?) \| (.+?) \|$", _glossary(), re.M)
    meanings = dict(rows[1:])  # without the heads of the columns
    meanings = {
        word: meaning
        for word, meaning in meanings.items()
        if len(word) > 7 or not word.islower()
    }
    words = "|".join(map(re.escape, sorted(meanings, key=len, reverse=True)))

    linked_words = set()

    def with_link(match: re.Match[str]) -> str:
        word = match[2]  # None where the match is not running text
        if not word or word in linked_words:
            return match[0]
        linked_words.add(word)
        meaning = escape(meanings[word])
        return f'<a href="{assets}/glossary.html" title="{meaning}">{word}</a>'

    # Elements whose text is not linked, and tags.
    not_running_text = (
        r"<(a|button|code|h1|h2|h3|script|strong|summary|table|title)\b.*?</\1>|<[^>]*>"
    )
    pattern = rf"{not_running_text}|\b({words})\b"
    return re.sub(pattern, with_link, page, flags=re.S)


def _is_hidden(output: Mapping[str, Any]) -> bool:
    """Whether an output of a cell is a progress bar or a value for programs."""
    kinds = output.get("data", {})
    return any("widget-view" in kind or "scrapbook" in kind for kind in kinds)


def _write_notebook(path: Path) -> Path:
    """The page of an executed notebook: all outputs, and the code folded away."""
    from nbconvert import HTMLExporter

    folder = path.parent
    notebook = _read_notebook(path)
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        cell["outputs"] = [output for output in outputs if not _is_hidden(output)]
    report = _report_of(folder)  # a sweep's executions have no catalogue of their own
    names = tables.model_names(
        tables.read(report, "catalogue"), tables.read(report, "measures")
    )
    # What the notebook recorded when it ran: figures by their alternative texts.
    paths = {
        item["alt"]: item["path"]
        for item in findings.story(folder, path.stem)
        if item["kind"] == "figure"
    }
    filters = {
        "clean": _clean,
        "table": partial(_table, folder, names),
        "figure": partial(_figure, folder, paths),
    }
    exporter = HTMLExporter(
        template_name="notebook",
        extra_template_basedirs=[str(_TEMPLATES)],
        filters=filters,
    )
    body = exporter.from_notebook_node(notebook)[0]
    heads = re.findall(
        r'<h2 id="([^"]+)">(.*?)(?:<a class="anchor-link".*?)?</h2>', body
    )
    contents = [(name, unescape(re.sub("<[^>]+>", "", text))) for name, text in heads]
    return _page(
        folder,
        path.stem,
        "page.html.j2",
        path.stem.replace("_", " "),
        body=Markup(body),
        contents=contents,
        code=True,
    )


def _read_notebook(path: Path) -> nbformat.NotebookNode:
    with tables.intact(path):
        return nbformat.read(path, as_version=4)


def _clean(text: str) -> str:
    """HTML of a notebook without elements that could run or load anything."""
    import bleach

    return bleach.clean(
        text,
        tags=bleach.ALLOWED_TAGS | _TAGS,
        attributes={"*": ["id", "class"], "a": ["href", "title"]},
        strip=True,
    )


def _size(picture: Path) -> tuple[int, int] | None:
    """Width and height of a picture in pixels; None where it is absent or damaged."""
    if not picture.is_file():
        return None
    try:
        with Image.open(picture, formats=["PNG"]) as image:
            image.load()
            return image.size
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _figure(
    folder: Path, paths: Mapping[str, str], output: Mapping[str, Any]
) -> Markup:
    """Image element for a figure's file, with its size so that the layout is stable.

    Without a file it is the smaller picture in the notebook itself.
    """
    alt = output["metadata"].get("image/png", {}).get("alt", "")
    path = inside(folder, paths[alt]) if alt in paths else None
    size = _size(path) if path else None
    if not path or not size:
        is_damaged = path and path.is_file()
        note = Markup(_DAMAGED).format(path.name) if is_damaged else ""
        form = '<figure><img src="data:image/png;base64,{}" alt="{}">{}</figure>'
        return Markup(form).format(output["data"]["image/png"].strip(), alt, note)
    ending = ".svg" if path.with_suffix(".svg").is_file() else path.suffix
    larger = Path(paths[alt]).with_suffix(ending)
    form = (
        '<figure><a href="{}"><img src="{}" alt="{}" width="{}" height="{}" '
        'loading="lazy"></a></figure>'
    )
    return Markup(form).format(larger, paths[alt], alt, *size)


def _table(folder: Path, names: Mapping[str, str], shown: str) -> Markup:
    """The whole table whose first rows a notebook shows; "" for other HTML."""
    match = _TABLE.search(shown)
    frame = tables.read(folder, match[1]) if match else None
    if frame is None or not len(frame):
        return Markup("")
    first = f"The first {tables.MOST_ROWS} of " if len(frame) > tables.MOST_ROWS else ""
    rows = f"{first}{count(len(frame), 'row')}"
    link = f'<a href="tables/{match[1]}.csv">{match[1]}.csv</a>'
    return Markup(f'{tables.html(frame, names)}<p class="small">{rows}: {link}</p>')


def _figures(folder: Path, of_study: Findings) -> list[dict[str, Any]]:
    """Figures at the top of the page, with their sizes so that the layout is stable.

    Damaged ones are left out. The wide picture comes with one for phones.
    """
    shown = []
    for path, caption in findings.figures(folder, of_study):
        size = _size(inside(folder, path))
        if size is None:
            continue
        narrow = opening.NARROW if path == opening.WIDE else ""
        if narrow and _size(inside(folder, narrow)) is None:
            narrow = ""
        shown.append(
            {
                "path": path,
                "narrow": narrow,
                "caption": caption,
                "width": size[0],
                "height": size[1],
            }
        )
    return shown


def _write_index(folder: Path) -> Path:
    """``index.html``: the answer with its figures and tables, and the notebooks."""
    of_study = findings.of_report(folder)
    facts = []
    for stem in sorted(path.stem for path in folder.glob("story/*.json")):
        for item in findings.story(folder, stem):
            # "values" of parameters, and "facts" of provenance
            of_item = item.get("values", {}) | item.get("facts", {})
            facts += [(stem, name, value) for name, value in of_item.items()]
    provenance = findings.Part(
        "Parameters, commit, versions, device and time",
        pd.DataFrame(facts, columns=["notebook", "what", "value"]),
    )
    return _page(
        folder,
        "index",
        "index.html.j2",
        "Answer",
        findings=of_study,
        figures=_figures(folder, of_study),
        folded=[*of_study.folded, provenance],
        notebooks=[_notebook_link(path) for path in executed_notebooks(folder)],
        sweeps=[_sweep_link(sweep) for sweep in sweeps.sweeps_of(folder)],
        explorers=tables.read(folder, "catalogue") is not None,
        files=sorted(path.name for path in (folder / "tables").glob("*.*")),
    )


def _sweep_link(folder: Path) -> tuple[str, str, str]:
    """Page, title and description of a sweep, for the index of its study."""
    frame = sweeps.results_of(folder)
    names = " and ".join(frame.attrs["parameters"])
    page = f"sweeps/{folder.name}/index.html"
    combinations = f"{count(len(frame), 'combination')} of {names}"
    content = f"{combinations}: how results depend on the choice."
    return page, f"Sweep of {folder.name[:2]}", content


def _notebook_link(path: Path) -> tuple[str, str, str]:
    """Page, title and question of a notebook; its first cell states the last two."""
    cells = _read_notebook(path).cells
    words = [cell.source for cell in cells if cell.cell_type == "markdown"]
    text = words[0] if words else ""
    title = re.search(r"^# (.*)", text, re.M)
    question = re.search(r"^\*\*Question\.\*\* (.*)", text, re.M)
    return (
        f"{path.stem}.html",
        title[1] if title else path.stem,
        question[1] if question else "",
    )


def _write_explorers(folder: Path) -> Path:
    """``explore.html``, where a reader moves controls and clicks on networks."""
    from helpers.report.explore.content import of_report

    contents = of_report(folder)
    kinds = [content["kind"] for content in contents]
    titles = [(kind, explore.TITLES[kind]) for kind in kinds]
    values = Markup(json.dumps(contents, allow_nan=False).replace("<", "\\u003c"))
    return _page(
        folder, "explore", "explore.html.j2", "Explore", values=values, contents=titles
    )


def write_comparison(reports: Path, **content: Any) -> Path:
    """``reports/comparison.html``, see ``comparison.write``."""
    page = {"title": "Studies side by side", "assets": "assets"}
    template = _environment().get_template("comparison.html.j2")
    path = _write_text(reports / "comparison.html", template.render(**page, **content))
    _write_studies(reports)
    return path


def in_reading_order(folders: Sequence[Path]) -> list[Path]:
    """Reports in the order of the index.

    Args:
        folders: of reports.

    Returns:
        Those with the most notebooks first; a study whose question names another one
        comes after it.
    """
    order = sorted(folders, key=lambda path: (-len(executed_notebooks(path)), path))
    for folder in list(order):
        # move each study behind the last study that its question names
        question, _ = findings.question_and_subject(folder.name)
        position = order.index(folder)
        words = set(re.findall(r"\w+", question))
        named = [place for place, other in enumerate(order) if other.name in words]
        if named and max(named) > position:
            # The pop moves that study forward by one, so its old place lies behind it.
            order.insert(max(named), order.pop(position))
    return order


def _write_studies(reports: Path) -> Path:
    """``reports/index.html``: every study with its question and its answer."""
    folders = [index.parent for index in reports.glob("*/index.html")]
    studies = []
    for folder in in_reading_order(folders):
        # A study that cannot be read, such as an old one, must not affect the others.
        try:
            of_study = findings.of_report(folder)
            figure = next(iter(_figures(folder, of_study)), {})
        except (OSError, ValueError, AttributeError, KeyError, TypeError) as fault:
            question, subject = findings.question_and_subject(folder.name)
            warning = f"Its tables cannot be read ({fault!r}); run it again."
            of_study = Findings(
                question=question,
                subject=subject,
                warning=warning,
                answer="",
                definitions="",
                parts=(),
                folded=(),
            )
            figure = {}
        paragraphs = of_study.answer.split("\n\n")
        teaser = "\n\n".join(paragraphs[:_TEASER_PARAGRAPHS])
        studies.append((folder.name, of_study, teaser, figure))
    template = _environment().get_template("studies.html.j2")
    text = template.render(
        title="All studies",
        assets="assets",
        studies=studies,
        compared=(reports / "comparison.html").is_file(),
    )
    return _write_text(reports / "index.html", text)


def share(folder: Path, to: Path, *, checkpoints: bool = False) -> Path:
    """Pack a report and the files that its pages need into one zip.

    Args:
        folder: of the report.
        to: path of the zip.
        checkpoints: whether the networks' weights are packed too.

    Returns:
        The path of the zip.

    Raises:
        FileNotFoundError: if the report has no pages.
    """
    if not (folder / "index.html").is_file():
        raise FileNotFoundError(
            f"{folder / 'index.html'} is not there; run the study first"
        )
    with (
        complete_or_absent(to) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        paths = [*folder.rglob("*"), *(folder.parent / "assets").rglob("*")]
        for path in sorted(paths):
            if path.is_file() and (checkpoints or path.suffix != ".safetensors"):
                packed.write(path, path.relative_to(folder.parent))
    return to

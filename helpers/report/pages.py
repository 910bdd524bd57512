"""Pages that a colleague opens: a study's index, a page per executed notebook, its explorers, and a list of all studies.

Each page is complete with the folder ``reports/assets`` beside the studies, opens from disk, and asks no other host for anything.
"""

import argparse
import json
import re
import struct
import sys
import zipfile
from collections.abc import Mapping, Sequence
from functools import cache, partial
from html import escape, unescape
from pathlib import Path
from typing import Any

import jinja2
import mistune
import nbformat
import pandas as pd
from markupsafe import Markup

from helpers.files import PROJECT_ROOT, complete_or_absent, inside, read_json
from helpers.report import explore, findings, tables
from helpers.report.answers import CAUSAL, Answer, answer
from helpers.report.markup import inert

_TEMPLATES, _GLOSSARY = Path(__file__).parent / "templates", PROJECT_ROOT / "docs/glossary.md"
_QUESTION = "Which of these networks will generalize, and by how much will accuracy drop?"
_TABLE = re.compile(r"<code>tables/([\w.-]+)\.csv</code>")  # below a table that a notebook shows
_TAGS = {*"a b blockquote br code dd del details div dl dt em h1 h2 h3 h4 hr i li ol p pre s span strong sub summary sup".split()}
_TAGS |= {*"table tbody td th thead tr ul".split()}


def write(folder: Path) -> Path:
    """Write all pages of a report (reports/<study>), the files that they share and the list of studies; give the index of the study."""
    _write_assets(folder.parent / "assets")
    for path in executed_notebooks(folder):
        _write_notebook(path)
    if tables.read(folder, "catalogue") is not None:
        _write_explorers(folder)
    index = _write_index(folder)
    _write_studies(folder.parent)
    return index


def executed_notebooks(folder: Path) -> list[Path]:
    """The executed notebooks of a report, in order."""
    return sorted(path for path in folder.glob("[0-9][0-9]_*.ipynb") if not path.name.endswith(".partial.ipynb"))


def _write_assets(folder: Path) -> None:
    """Style, scripts and glossary; plotly.js and DataTables, which plotly and itables carry, where they are not there yet."""
    contents = {name: (_TEMPLATES / name).read_text(encoding="utf-8") for name in ("pages.css", "pages.js", "explore.css", "explore.js")}
    contents["pages.css"] += _highlighting()
    glossary = _markdown(_GLOSSARY.read_text(encoding="utf-8")) if _GLOSSARY.is_file() else ""
    contents["glossary.html"] = _environment().get_template("page.html.j2").render(title="Words", body=glossary, assets=".")
    if not all((folder / name).is_file() for name in ("plotly.min.js", "itables.js", "itables.css")):
        contents |= _libraries()
    for name, content in contents.items():
        _put(folder / name, content)


def _libraries() -> dict[str, str]:
    """plotly.js, and DataTables as a script that opens from disk, where a browser loads no module."""
    import itables
    from plotly.offline import get_plotlyjs

    bundle = Path(itables.__file__).parent / "html"
    text = (bundle / "dt_bundle.js").read_text(encoding="utf-8")
    (exported,) = re.findall(r"\bexport\s*\{([^}]*)\};?", text)
    given = ",".join(":".join(reversed(name.split(" as "))) for name in exported.split(","))
    script = re.sub(r"\bexport\s*\{[^}]*\};?", lambda _: f"window.itables={{{given}}};", text)
    styled = (bundle / "dt_bundle.css").read_text(encoding="utf-8")
    return {"itables.js": f"(()=>{{{script}\n}})();\n", "itables.css": styled, "plotly.min.js": get_plotlyjs()}


def _highlighting() -> str:
    from pygments.formatters import HtmlFormatter

    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n.highlight {{ background: none; }}\n"


def _put(path: Path, content: str) -> Path:
    if not path.is_file() or path.read_text(encoding="utf-8") != content:
        with complete_or_absent(path) as temporary:
            temporary.write_text(content, encoding="utf-8")
    return path


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(autoescape=True, loader=jinja2.FileSystemLoader(_TEMPLATES))
    environment.filters["markdown"] = lambda text: _markdown(inert(text))
    environment.filters["sentence"] = _sentence
    return environment


def _markdown(text: str) -> Markup:
    """Markdown as HTML; HTML in it is shown as text."""
    return Markup(mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])(text))


def _sentence(text: str) -> Markup:
    return Markup(_markdown(inert(text)).strip().removeprefix("<p>").removesuffix("</p>").replace("r = ", "r\u00a0=\u00a0"))


def _page(folder: Path, name: str, template: str, title: str, **known: Any) -> Path:
    links = [("index.html", "Answer", "")] + [("explore.html", "Explore", "")] * (tables.read(folder, "catalogue") is not None)
    links += [(f"{path.stem}.html", path.stem[:2], path.stem[2:].replace("_", " ")) for path in executed_notebooks(folder)]
    links += [("../index.html", "All studies", ""), ("../assets/glossary.html", "Words", "")]
    shared = {"study": folder.name, "title": title, "own": f"{name}.html", "assets": "../assets", "links": links}
    text = _environment().get_template(template).render(**shared, **known)
    return _put(folder / f"{name}.html", text if name == "explore" else _with_words(text))


@cache
def _words() -> dict[str, str]:
    """The words that the glossary explains, longest first, each with what it means."""
    rows = re.findall(r"^\| ([^|]+?) \| (.+?) \|$", _GLOSSARY.read_text(encoding="utf-8"), re.M) if _GLOSSARY.is_file() else []
    words = {word.strip(): meaning.replace("`", "") for names, meaning in rows[1:] for word in names.split(",")}
    return dict(sorted(words.items(), key=lambda item: -len(item[0])))


def _with_words(page: str) -> str:
    """The page, each word of the glossary linked where it first stands in running text."""
    left = dict(_words())
    apart = r"<(a|button|code|h1|h2|h3|script|strong|summary|table|title)\b.*?</\1>|<[^>]*>"

    def linked(found: re.Match[str]) -> str:
        if found[2] not in left:
            return found[0]
        return f'<a href="../assets/glossary.html" title="{escape(left.pop(found[2]))}">{found[2]}</a>'

    return re.sub(rf"{apart}|\b({'|'.join(map(re.escape, left))})\b", linked, page, flags=re.S) if left else page


# A notebook


def _write_notebook(path: Path) -> Path:
    """The page of an executed notebook: all that it shows in its order, under its headings, its code folded."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:  # a progress bar is nothing to read
        cell["outputs"] = [
            output for output in cell.get("outputs", []) if not any("widget-view" in kind for kind in output.get("data", {}))
        ]
    body = _exporter(path.parent, path.stem).from_notebook_node(notebook)[0]
    heads = re.findall(r'<h2 id="([^"]+)">(.*?)(?:<a class="anchor-link".*?)?</h2>', body)
    contents = [(name, unescape(re.sub("<[^>]+>", "", text))) for name, text in heads]
    return _page(path.parent, path.stem, "page.html.j2", path.stem.replace("_", " "), body=Markup(body), contents=contents, code=True)


def _exporter(folder: Path, notebook: str) -> Any:
    from nbconvert import HTMLExporter

    names = tables.model_names(tables.read(folder, "catalogue"))
    filters = {"clean": _clean, "table": partial(_table, folder, names), "figure": partial(_figure, _figures(folder, notebook))}
    return HTMLExporter(template_name="notebook", extra_template_basedirs=[str(_TEMPLATES)], filters=filters)


def _clean(text: str) -> str:
    """HTML of a notebook without what could run or load anything."""
    import bleach

    return bleach.clean(text, tags=_TAGS, attributes={"*": ["id", "class"], "a": ["href", "title"]}, strip=True)


def _figures(folder: Path, notebook: str) -> dict[str, tuple[str, int, int]]:
    """The figures of a notebook by the text that stands for each in it: path, width and height."""
    listed = [(item["alt"], item["path"]) for item in _story(folder, notebook) if item["kind"] == "figure"]
    return {alt: (path, *size) for alt, path in listed if (size := _size(inside(folder, path)))}


def _story(folder: Path, notebook: str) -> list[dict[str, Any]]:
    path = inside(folder / "story", f"{notebook}.json")
    story = read_json(path) if path.is_file() else []
    if not isinstance(story, list) or not all(isinstance(item, dict) and "kind" in item for item in story):
        raise ValueError(f"{path} is not what a notebook records; take it from the repository again, or run the notebook again")
    return story


def _size(picture: Path) -> tuple[int, int] | None:
    """Width and height of a PNG; None where there is none."""
    head = picture.read_bytes()[:24] if picture.is_file() else b""
    return struct.unpack(">II", head[16:24]) if head[:8] == b"\x89PNG\r\n\x1a\n" else None


def _figure(figures: Mapping[str, tuple[str, int, int]], output: Mapping[str, Any]) -> Markup:
    """The figure's file with its size, so that nothing moves; the picture in the notebook itself where there is no file."""
    alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
    if alt not in figures:
        return Markup(
            f'<figure><img src="data:image/png;base64,{escape(output["data"]["image/png"].strip())}" alt="{escape(alt)}"></figure>'
        )
    path, width, height = figures[alt]
    picture = f'<img src="{escape(path)}" alt="{escape(alt)}" width="{width}" height="{height}" loading="lazy">'
    return Markup(f'<figure><a href="{escape(path)}">{picture}</a></figure>')


def _table(folder: Path, names: Mapping[str, str], shown: str) -> Markup:
    """The table of which a notebook shows the first rows, as far as a page has room; "" for HTML that is none."""
    found = _TABLE.search(shown)
    frame = tables.read(folder, found[1]) if found else None
    if frame is None or not len(frame):
        return Markup("")
    rows = f"The first {tables.MOST_ROWS} of {len(frame):,} rows; all: " if len(frame) > tables.MOST_ROWS else f"{len(frame):,} rows: "
    return Markup(f'{tables.html(frame, names)}<p class="small">{rows}<a href="tables/{found[1]}.csv">{found[1]}.csv</a></p>')


# Index, explorers, list of studies, zip


def _told(folder: Path) -> tuple[Answer, list[str]]:
    """The answer of a study from its tables; where it trains no networks of its own, what its notebooks answer."""
    found = findings.read(folder)
    stories = [item for path in executed_notebooks(folder) for item in _story(folder, path.stem)] if "catalogue" not in found else []
    return answer(found), [item["text"] for item in stories if item.get("answer")]


def _write_index(folder: Path) -> Path:
    """``index.html``: the answer with its figure and four questions, the notebooks, and folded what stands behind it."""
    told, others = _told(folder)
    size = _size(folder / findings.FIGURE) if told.rows else None
    known = {"answer": told, "others": others, "causal": CAUSAL, "meant": findings.MEANT, "heads": findings.HEADS}
    known |= {"figure": (findings.FIGURE, findings.CAPTION, *size) if size else None}
    notebooks = executed_notebooks(folder)
    made = [(path.stem, name, value) for path in notebooks for item in _story(folder, path.stem) for name, value in _facts(item).items()]
    folded = [
        *(findings.folded(findings.read(folder)) if told.rows else []),
        ("Parameters, commit, versions, device and time", pd.DataFrame(made)),
    ]
    known |= {"notebooks": map(_line, notebooks), "folded": folded, "explorers": tables.read(folder, "catalogue") is not None}
    known["files"] = [path.name for path in sorted((folder / "tables").glob("*.*"))]
    return _page(folder, "index", "index.html.j2", "Answer", question=study_question(folder.name)[0] or _QUESTION, **known)


def _facts(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return item["values"] if item["kind"] == "parameters" else item["facts"] if item["kind"] == "provenance" else {}


def _line(path: Path) -> tuple[str, str, str]:
    """Page, title and question of a notebook, which its first cell holds."""
    text = next((cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"), "")
    title, question = re.search(r"^# (.*)", text, re.M), re.search(r"^\*\*Question\.\*\* (.*)", text, re.M)
    return f"{path.stem}.html", title[1] if title else path.stem, question[1] if question else ""


def study_question(study: str) -> tuple[str, str]:
    """The question that the first comment of a study's file opens with, and the sentence after it; "" for what is not there."""
    path = inside(PROJECT_ROOT / "params", f"{study}.yaml")
    comment = re.match(r"(?:#[^\n]*\n)*", path.read_text(encoding="utf-8") if path.is_file() else "")[0]
    asked = re.match(r"([^.?]*\?)\s*(.*?\.(?=\s|$))?", " ".join(line.lstrip("# ") for line in comment.splitlines()))
    return (asked[1], asked[2] or "") if asked else ("", "")


def _write_explorers(folder: Path) -> Path:
    """``explore.html``, where a reader moves controls and clicks on networks."""
    contents = explore.of_report(folder)
    shown = [
        (content["kind"], explore.TITLES[content["kind"]], "" if content["models"] else explore.ABSENT[content["kind"]])
        for content in contents
    ]
    values = Markup(json.dumps(contents, allow_nan=False).replace("<", "\\u003c"))
    return _page(folder, "explore", "explore.html.j2", "Explore", shown=shown, values=values, contents=shown)


def _write_studies(reports: Path) -> Path:
    """``reports/index.html``: every study with its question and its answer."""
    studies = []
    for index in sorted(reports.glob("*/index.html")):
        told, others = _told(index.parent)
        picture = f"{index.parent.name}/{findings.FIGURE}" if told.rows and (index.parent / findings.FIGURE).is_file() else ""
        studies.append((index.parent.name, " ".join(study_question(index.parent.name)), [told.warning, *told.sentences, *others], picture))
    text = _environment().get_template("studies.html.j2").render(title="All studies", assets="assets", studies=studies)
    return _put(reports / "index.html", text)


def share(folder: Path, to: Path, *, checkpoints: bool = False) -> Path:
    """Pack a report with all that its pages need into one zip, the networks' weights only where asked for."""
    if not (folder / "index.html").is_file():
        raise FileNotFoundError(f"{folder / 'index.html'} is not there; run the study first")
    with complete_or_absent(to) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed:
        for path in (path for part in (folder, folder.parent / "assets") for path in sorted(part.rglob("*")) if path.is_file()):
            if checkpoints or path.suffix != ".safetensors":
                packed.write(path, path.relative_to(folder.parent))
    return to


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages of a study's report anew from what is published of it, or pack it; 2 where there is no such report."""
    parser = argparse.ArgumentParser(prog="python -m helpers.report.pages", description="Write or pack the pages of a study's report.")
    parser.add_argument("study")
    parser.add_argument("--share", action="store_true", help="pack the report into work/share/<study>.zip")
    parser.add_argument("--checkpoints", action="store_true", help="with the networks' weights in the zip")
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    given = parser.parse_args(arguments)
    try:
        folder = inside(given.reports, given.study)
        if given.share:
            packed = share(folder, PROJECT_ROOT / "work/share" / f"{folder.name}.zip", checkpoints=given.checkpoints)
            print(f"{packed}, {packed.stat().st_size / 1e6:.1f} MB: unpack it anywhere and open {folder.name}/index.html")
        elif executed_notebooks(folder):
            print(f"wrote {write(folder)} and the pages that it links to")
        else:
            raise FileNotFoundError(f"{folder} holds no executed notebook; run the study first")
    except (FileNotFoundError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Pages that a colleague opens: a study's index, its findings, its figures that answer to the mouse, and one page per notebook.

Each page is complete with the folder ``reports/assets`` beside the studies, and asks no other host for anything.
"""

import argparse
import base64
import csv
import gzip
import io
import json
import os
import re
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import mistune
from jinja2.utils import markupsafe

from helpers.files import PROJECT_ROOT, complete_or_absent, inside, read_json
from helpers.report.markup import figure_title, inert, table_title
from helpers.report.tables import table_content
from helpers.report.variants import read_listing, side_by_side

FINDINGS = "FINDINGS.md"
_ASSETS = Path(__file__).parent / "assets"
_CHANGED = re.compile(r"(<!--changed-->).*?(<!--/changed-->)", re.S)  # in the index: what is no longer as it was published
_PLAIN_CODE = re.compile(r'<span class="(?:n|p|o|w)">([^<]*)</span>')  # names, brackets, operators: most marks, without a colour
_SHOWN = ("text", "figure", "table", "parameters", "provenance")


def write_pages(folder: Path) -> Path:
    """Write every page of a study's report; give the index."""
    inner_pages(folder)
    return study_page(folder, [path.stem for path in executed_notebooks(folder)])


def inner_pages(folder: Path) -> list[Path]:
    """Write all pages of a report but its index, and the assets that they share; give them."""
    write_assets(_reports(folder))
    made = [notebook_page(path) for path in executed_notebooks(folder)]
    return made + [page for page in (findings_html(folder), explore_page(folder)) if page]


def executed_notebooks(folder: Path) -> list[Path]:
    """List the executed notebooks of a report: those that its listing names, or all that are there where it has none."""
    names = read_listing(folder).get("notebooks")
    if isinstance(names, list):
        return [path for name in names if (path := folder / f"{name}.ipynb").is_file()]
    return sorted(path for path in folder.glob("[0-9][0-9]_*.ipynb") if not path.name.endswith(".partial.ipynb"))


def write_assets(reports: Path) -> None:
    """Write what the pages of all studies share to ``reports/assets``: their style and scripts, plotly.js and itables.

    plotly.js is the one that plotly carries, compressed to two fifths of its size; itables.js the DataTables that itables carries, as a
    script that opens from disk, where a browser loads no module. These two are left as they are where they are.

    Raises:
        ValueError: the bundle of itables has another form than this knows.
    """
    folder = reports / "assets"
    contents = {name: (_ASSETS / name).read_text(encoding="utf-8") for name in ("pages.css", "pages.js", "explore.js")}
    contents["pages.css"] += _highlighting()
    if not all((folder / name).is_file() for name in ("plotly.packed.js", "itables.js", "itables.css")):
        contents |= _libraries()
    for name, content in contents.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != content:
            with complete_or_absent(path) as temporary:
                temporary.write_text(content, encoding="utf-8")


def _libraries() -> dict[str, str]:
    import itables
    from plotly.offline import get_plotlyjs

    bundle = Path(itables.__file__).parent / "html"
    text = (bundle / "dt_bundle.js").read_text(encoding="utf-8")
    (exported,) = re.findall(r"\bexport\s*\{([^}]*)\};?", text) or [""]
    names = [part.split(" as ") for part in exported.split(",")]
    if not exported or not all(len(name) == 2 for name in names):
        raise ValueError(f"{bundle / 'dt_bundle.js'} exports nothing that is known; install the itables that constraints.txt names")
    given = ",".join(f"{other.strip()}:{own.strip()}" for own, other in names)
    script = re.sub(r"\bexport\s*\{[^}]*\};?", lambda _: f"window.itables={{{given}}};", text)
    styled = (bundle / "dt_bundle.css").read_text(encoding="utf-8")
    drawing = get_plotlyjs()
    licence = (re.match(r"\s*(/\*.*?\*/)", drawing, flags=re.DOTALL) or [""])[0]
    plotly = f'{licence.strip()}\nwindow.plotlyPacked = "{compressed(drawing)}";\n'
    return {"itables.js": f"(()=>{{{script}\n}})();\n", "itables.css": styled, "plotly.packed.js": plotly}


def say_changed(folder: Path, changes: Sequence[str]) -> None:
    """Write on top of a study's index which files are no longer as they were published; nothing where all are."""
    page = folder / "index.html"
    text = page.read_text(encoding="utf-8") if page.is_file() else ""
    lines = "".join(f"<li>{escape(item)}</li>" for item in changes)
    note = f'<div class="answer"><p><strong>Changed since it was published</strong>; run the study again:</p><ul>{lines}</ul></div>'
    marked = _CHANGED.sub(lambda match: f"{match[1]}{note if changes else ''}{match[2]}", text, count=1)
    if marked != text:
        with complete_or_absent(page) as temporary:
            temporary.write_text(marked, encoding="utf-8")


def study_question(path: Path) -> tuple[str, str]:
    """The question that the first comment of a study's file opens with, and the sentence after it; "" for what is not there."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    comment = " ".join(line.lstrip("# ") for line in re.match(r"(?:#[^\n]*\n)*", text)[0].splitlines())
    asked = re.match(r"([^.?]*\?)\s*(.*?\.(?=\s|$))?", comment)
    return (asked[1], asked[2] or "") if asked else ("", "")


def study_page(folder: Path, notebooks: list[str]) -> Path:
    """Write ``index.html``: the question of the study, its verdicts, what each notebook told, and where its figures and tables are."""
    chapters = [_chapter(folder, name) for name in notebooks]
    items = [chapter.pop("all") for chapter in chapters]
    first = [found for own in items if (found := [item for item in own if item.get("first")])]
    answers = [*(first[-1] if first else []), *(item for own in items for item in own if item.get("answer"))]
    answers = [*{item["text"]: item for item in answers}.values()]  # gates and claims of the last notebook that judged them
    listing = read_listing(folder)
    known = {"variant": folder.name if folder.parent.name == "variants" else "", "chapters": chapters, "answers": answers}
    for chapter in chapters:  # what an answer on top repeats is said there
        chapter["texts"] = [text for text in chapter["texts"] if not any(text in answer["text"] for answer in answers)]
    known |= {"shared": listing.get("shared", []), "files": listing.get("files", {}), "reports": side_by_side(folder)}
    question, setting = study_question(PROJECT_ROOT / "params" / f"{_study(folder)}.yaml")
    stated = [item["reading"] for own in items for item in own if item.get("name") == "claims_stated"]
    known |= {"question": question, "setting": setting, "verdicts": _verdicts(folder), "stated": "".join(stated[-1:])}
    return _write(folder, "index", "Index", "index", known)


def notebook_page(executed: Path) -> Path:
    """Write the page of an executed notebook beside it: its text, figures, tables and sentences in order, its code folded."""
    notebook = json.loads(executed.read_text(encoding="utf-8"))
    items = _items(executed.parent, executed.stem)
    blocks = list(_blocks(notebook["cells"], items))
    return _write(executed.parent, executed.stem, executed.stem.replace("_", " "), "notebook", {"blocks": blocks})


def findings_html(folder: Path) -> Path | None:
    """Write ``findings.html`` from the study's FINDINGS.md; None where there is none."""
    path = folder / FINDINGS
    return _write(folder, "findings", "Findings", "findings", {"text": path.read_text(encoding="utf-8")}) if path.is_file() else None


def explore_page(folder: Path) -> Path | None:
    """Write ``explore.html``, whose figures answer to the mouse, from the tables of a report; None where they hold no models."""
    if not (folder / "tables/catalogue.csv").is_file():
        return None
    from helpers.report.interactive import interactive_content  # late: it loads pandas and plotly

    content = interactive_content(folder / "tables")
    if content is None:
        return None
    names = [column["name"] for column in content["columns"]]
    for place, column in enumerate(content["columns"]):
        column["place"] = place
    known = {"content": content, "x": next((name for name in ("iou", *names) if name in names and name != "gap"), "gap")}
    return _write(folder, "explore", "Explore by hand", "explore", known)


def _write(folder: Path, name: str, title: str, template: str, known: Mapping[str, Any]) -> Path:
    page = folder / f"{name}.html"
    shared = {"study": _study(folder), "own": name, "title": title, "pages": _navigation(folder), "assets": _assets_from(folder)}
    text = _environment().get_template(f"{template}.html.jinja").render(**shared, **known)
    with complete_or_absent(page) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return page


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(autoescape=True, loader=jinja2.FileSystemLoader(_ASSETS))
    written = mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])

    def markdown(text: str) -> markupsafe.Markup:
        broad = written(text).replace("<table>", '<div class="scroll plain" tabindex="0"><table>').replace("</table>", "</table></div>")
        return markupsafe.Markup(broad)

    environment.filters["authored"] = markdown  # of the project: its links live
    environment.filters["markdown"] = lambda text: markdown(inert(text))
    environment.filters["sentence"] = lambda text: markupsafe.Markup(markdown(inert(text)).strip().removeprefix("<p>").removesuffix("</p>"))
    environment.filters["packed"] = packed
    return environment


def packed(value: Any) -> str:
    """A value as compressed JSON; ``unpacked`` of pages.js reads it."""
    return compressed(json.dumps(value, allow_nan=False))


def compressed(text: str) -> str:
    """A text compressed by gzip, about a third of its size, in letters that mean nothing to HTML; ``decompressed`` of pages.js reads it."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _reports(folder: Path) -> Path:
    return folder.parents[2] if folder.parent.name == "variants" else folder.parent


def _study(folder: Path) -> str:
    return read_listing(folder).get("study", folder.parents[1].name if folder.parent.name == "variants" else folder.name)


def _assets_from(folder: Path) -> str:
    return Path(os.path.relpath(_reports(folder) / "assets", folder)).as_posix()


def _navigation(folder: Path) -> list[dict[str, str]]:
    """Every page of a report by name and title, the findings first."""
    pages = [("findings", "Findings")] if (folder / FINDINGS).is_file() else []
    pages += [("index", "Overview")]
    pages += [("explore", "Explore by hand")] if (folder / "explore.html").is_file() or (folder / "tables/catalogue.csv").is_file() else []
    pages += [(path.stem, path.stem.replace("_", " ")) for path in executed_notebooks(folder)]
    return [{"name": name, "title": title} for name, title in pages]


def _chapter(folder: Path, name: str) -> dict[str, Any]:
    cells = json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    first = next(("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"), "")
    title = next((line.lstrip("# ") for line in first.splitlines() if line.startswith("# ")), name)
    question = next((line.removeprefix("**Question.** ") for line in first.splitlines() if line.startswith("**Question.**")), "")
    items = _items(folder, name)
    said = [item for item in items if item["kind"] == "text" or item.get("total") == 0]  # an empty table leaves its reading
    told = [item.get("text", item.get("said")) for item in said if not (item.get("answer") or item.get("first"))]  # those stand on top
    texts = [text for text in told if not text.startswith("#")]  # nothing stands here below a heading between figures
    shown = {"texts": texts, "figures": [item for item in items if item["kind"] == "figure"]}
    shown |= {"tables": [item for item in items if item.get("total")], "all": items}
    return {"name": name, "title": title, "question": question} | shown


def _items(folder: Path, notebook: str) -> list[dict[str, Any]]:
    """What a notebook showed, in order, figures with number, title and files, tables with their content."""
    path = folder / "story" / f"{notebook}.json"
    story = read_json(path) if path.is_file() else []
    figures = 0
    for item in story:
        if item["kind"] == "figure":
            figures += 1
            picture = inside(folder, item["path"])
            vector = Path(item["path"]).with_suffix(".svg")
            size = _size(picture)
            item |= {"number": f"{int(notebook[:2])}.{figures}", "title": figure_title(item["name"]), "size": size}
            item |= {"wide": bool(size) and size[0] > 620, "svg": vector.as_posix() if (folder / vector).is_file() else ""}
        elif item["kind"] == "table":
            content = table_content(inside(folder, item["path"]))
            item |= {"title": table_title(item["name"]), "content": content, "total": content["total"]}
    captions = {item["reading"] for item in story if item["kind"] == "figure"}
    for item in story:  # a table and the figure of it may have one reading; it stands below the figure
        item["said"] = "" if item["kind"] == "table" and item["reading"] in captions else item.get("reading", "")
    return story


def _size(picture: Path) -> tuple[int, int] | None:
    head = picture.read_bytes()[:24] if picture.is_file() else b""
    return struct.unpack(">II", head[16:24]) if head[:8] == b"\x89PNG\r\n\x1a\n" else None


def _verdicts(folder: Path) -> list[dict[str, str]]:
    """The claims of a study with what became of each, as text; none where it has no table of them."""
    paths = [folder / f"tables/{name}.csv" for name in ("claims", "claims_stated")]
    if not all(path.is_file() for path in paths):
        return []
    claims, stated = (list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8")))) for path in paths)

    def number(row: Mapping[str, str], name: str, form: str = ".2f") -> str:
        return format(float(row[name]), form) if row.get(name) not in (None, "", "nan") else "–"

    return [
        {"claim": row["claim"], "published": number(row, "published"), "n": number(row, "n", ".0f"), "p": number(row, "p_adjusted", ".2g")}
        | {"here": f"{number(row, 'ours')}{' points' if fact['question'].endswith('points') else ''}"}
        | {"interval": f"{number(row, 'ci_low')} to {number(row, 'ci_high')}" if row.get("ci_low") else "none", "verdict": row["verdict"]}
        for row, fact in zip(claims, stated, strict=True)
    ]


def _blocks(cells: Sequence[Mapping[str, Any]], items: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What a notebook's page shows, in order; not the cells of parameters, which a table holds, and no progress bars."""
    waiting = [item for item in items if item["kind"] in _SHOWN]
    code: list[str] = []
    printed: list[str] = []
    said = ""  # with the figure or table before: a notebook shows it as an output of its own
    for cell in cells:
        if cell["cell_type"] == "markdown":
            yield from _folded(code, printed)
            yield {"kind": "markdown", "text": "".join(cell["source"])}
        elif cell["cell_type"] == "code" and not {"parameters", "injected-parameters"} & {*cell["metadata"].get("tags", [])}:
            code.append("".join(cell["source"]))
            for output in cell.get("outputs", []):
                shown = _shown(output, waiting, said)
                if shown and shown["kind"] == "output":
                    printed.append(shown["text"])
                elif shown:
                    said = shown.get("reading", "")
                    yield from _folded(code, printed)
                    yield shown
    yield from _folded(code, printed)


def _folded(code: list[str], printed: list[str]) -> list[dict[str, Any]]:
    """The code of the cells since the last item as one block, and what they printed as another; empties both lists."""
    from pygments import highlight
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import PythonLexer

    blocks: list[dict[str, Any]] = []
    if code:
        marked = highlight("\n\n".join(code), PythonLexer(), HtmlFormatter(nowrap=True))
        blocks.append({"kind": "code", "code": markupsafe.Markup(_PLAIN_CODE.sub(r"\1", marked))})
    if printed:
        blocks.append({"kind": "output", "text": "".join(printed)})
    code.clear()
    printed.clear()
    return blocks


def _highlighting() -> str:
    from pygments.formatters import HtmlFormatter

    light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n.highlight {{ background: none; }}\n"


def _shown(output: Mapping[str, Any], waiting: list[dict[str, Any]], said: str) -> dict[str, Any] | None:
    """What a page shows of one output: the item of the story that it shows, or the output itself where the story does not know it."""
    if output["output_type"] == "stream":
        text = "".join(output["text"])
        return {"kind": "output", "text": text} if output["name"] == "stdout" and text.strip() else None
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items() if isinstance(value, str | list)}
    if "application/vnd.jupyter.widget-view+json" in output.get("data", {}):
        return None  # a progress bar
    if "image/png" in data:
        alternative = output.get("metadata", {}).get("image/png", {}).get("alt", "")
        return _next(waiting, ("figure",)) or {"kind": "picture", "data": data["image/png"], "alt": alternative}
    if "text/html" in data and (found := _next(waiting, ("table", "parameters", "provenance"))):
        return found
    if text := data.get("text/markdown"):
        empty = _next(waiting, ("text", "table"), text)
        captioned = bool(said) and (text == said or (text.startswith("**Figure ") and text.endswith(said)))
        return empty or (None if captioned else {"kind": "text", "text": text})
    return {"kind": "output", "text": data["text/plain"]} if data.get("text/plain") and "text/html" not in data else None


def _next(waiting: list[dict[str, Any]], kinds: Sequence[str], text: str | None = None) -> dict[str, Any] | None:
    """Take the next item of these kinds, with this text where one is given: what is told, or is all that is shown of an empty table."""
    for place, item in enumerate(waiting):
        says = item.get("text") if item["kind"] == "text" else item.get("reading") if not item.get("total") else None
        if item["kind"] in kinds and (says == text if text is not None else item.get("total") != 0):
            return waiting.pop(place)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the pages of a study's report anew from what is published of it; 2 where there is no such report."""
    parser = argparse.ArgumentParser(prog="python -m helpers.report.pages", description="Write the pages of a study's report anew.")
    parser.add_argument("study")
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    given = parser.parse_args(arguments)
    folder = inside(given.reports, given.study)
    if not executed_notebooks(folder):
        print(f"{folder} holds no executed notebook; run the study first", file=sys.stderr)
        return 2
    print(f"wrote {write_pages(folder)} and the pages that it links to")
    return 0


if __name__ == "__main__":
    sys.exit(main())

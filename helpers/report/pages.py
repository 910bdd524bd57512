"""Pages of all reports by Sphinx: ``python -m helpers.report.pages`` builds them.

They are made of executed notebooks and of FINDINGS.md, open from disk, and load nothing
from the internet; ``docs/conf.py`` has the settings.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.files import PROJECT_ROOT, from_root, read_json
from helpers.report import findings, sweeps

SITE = "_site"  # in the folder of all reports
_TEMPLATES = Path(__file__).parent / "templates"
_TABLE = re.compile(r"(?:`|<code>)(tables/[\w.-]+)(?:`|</code>)")
_EXPLORER = "*Explore by hand*"  # how notebooks name the page with the explorers
_NO_PAGES = shutil.ignore_patterns(
    "records", "checkpoints", "tables", "explorers", "*.md"
)


def build(reports: Path, source: Path) -> Path:
    """Build the pages of all reports.

    Args:
        reports: folder of all reports.
        source: folder of what Sphinx reads; the folder that it is in is made anew.

    Returns:
        The first page.

    Raises:
        RuntimeError: if Sphinx fails.
    """
    from plotly.offline import get_plotlyjs
    from sphinx.application import Sphinx

    shutil.rmtree(source.parent, ignore_errors=True)
    static = source / "_static"
    static.mkdir(parents=True)
    for name in ("pages.css", "explore.css", "explore.js"):
        shutil.copy(_TEMPLATES / name, static)
    (static / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")
    shutil.copy(PROJECT_ROOT / "docs/glossary.md", source)
    studies = [path for path in sorted(reports.iterdir()) if [*executions(path)]]
    for folder in studies:
        write_study(folder, source / folder.name)
    (source / "index.md").write_text(_first_page(studies, source), encoding="utf-8")
    # myst-nb writes beside the pages, too.
    made = source.with_name("made") / "html"
    sphinx = Sphinx(
        source,
        PROJECT_ROOT / "docs",
        made,
        source.with_name("doctrees"),
        "html",
        {"html_static_path": [str(static)]},
        status=None,
    )
    sphinx.build(force_all=True)
    if sphinx.statuscode:
        raise RuntimeError(f"Sphinx could not build pages from {source}")
    site = reports / SITE
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(made, site)
    return site / "index.html"


def executions(folder: Path) -> Iterator[Path]:
    """Executed notebooks of a report, or of a combination of a sweep, in order.

    Args:
        folder: ``reports/<study>``. Each execution has a folder, that of a failed one
            ends in ``.failed``.
    """
    yield from sorted(folder.glob("[0-9][0-9]_*/[0-9][0-9]_*.ipynb"))


def write_study(report: Path, target: Path) -> None:
    """Write what Sphinx reads of a study: its first page and those behind it.

    Args:
        report: ``reports/<study>``.
        target: folder of what Sphinx reads.
    """
    shutil.copytree(report, target, ignore=_NO_PAGES)
    findings.draw_sweeps(target)
    for path in target.rglob("[0-9][0-9]_*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        place = path.parent.relative_to(target)
        page = report.parent / SITE / report.name / place
        explorer = os.path.relpath(target / "explore.md", path.parent)
        clean(notebook, os.path.relpath(report / place, page), explorer)
        nbformat.write(notebook, path)
    pages = [str(path.relative_to(target)) for path in executions(target)]
    pages += [_write_sweep(sweep) for sweep in sorted(target.glob("sweeps/*/"))]
    text = _findings(report)
    explorers = [*report.glob("[0-9][0-9]_*/explorers/*.json")]
    if explorers:
        (target / "explore.md").write_text(_explorers(explorers), encoding="utf-8")
        title, rest = text.split("\n", 1)
        text = f"{title}\n\n[Explore its networks by hand](explore)\n{rest}"
        pages.insert(0, "explore")
    (target / "index.md").write_text(f"{text}\n{_contents(pages)}", encoding="utf-8")


def _findings(report: Path) -> str:
    """The findings of a study, with links to those of others as pages have them."""
    return findings.text_of(report).replace(findings.PAGE, "index.md")


def clean(notebook: NotebookNode, folder: str, explorer: str) -> None:
    """Make an executed notebook a page.

    Code is folded, names of tables and of the explorers become links, and an error
    stands first.

    Args:
        notebook: is changed.
        folder: with ``tables``, as a link from the page.
        explorer: link to the page with the explorers.
    """
    link = rf'<a href="{folder}/\1"><code>\1</code></a>'
    explorer = f"[{_EXPLORER}]({explorer})"
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
        for output in cell.outputs:
            data = output.get("data", {})
            for kind in {"text/html", "text/markdown"} & {*data}:
                text = _TABLE.sub(link, "".join(data[kind]))
                data[kind] = text.replace(_EXPLORER, explorer)
    failed = error_of(notebook)
    if failed:
        warning = nbformat.v4.new_markdown_cell(f":::{{error}}\n{failed}\n:::")
        notebook.cells.insert(1, warning)


def error_of(notebook: NotebookNode) -> str:
    """The error that ended an execution, in a line; "" without one."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return f"This notebook failed: {output.ename}: {output.evalue}"
    return ""


def _write_sweep(folder: Path) -> str:
    """Write the page of a sweep and its combinations; its place in the contents."""
    name = folder.name.replace("_", " ")
    parts = [f"# Sweep of {name}", "Each combination, executed:"]
    combinations = []
    for path in sorted(folder.glob("*/*/*.ipynb")):
        place = path.relative_to(folder)
        combinations.append(f"{place.parts[0]} <{place}>")
        error = error_of(nbformat.read(path, as_version=4))
        if error:
            parts.append(f"- {place.parts[0]}: {error}")
    frame = sweeps.results_of(folder)
    if len(frame):
        picture = "![Each result against the swept parameters](figures/results.png)"
        parts[1:1] = [picture, sweeps.table(frame).to_markdown(index=False)]
    text = "\n\n".join([*parts, _contents(combinations)])
    (folder / "index.md").write_text(text, encoding="utf-8")
    return f"sweeps/{folder.name}/index"


def _explorers(paths: Sequence[Path]) -> str:
    """The page with a study's explorers: of each kind, that of the last notebook."""
    contents = {path.name: read_json(path) for path in sorted(paths)}
    places = "".join(
        f'<h2>{one["question"]}</h2><div class="explorer" data-kind="{one["kind"]}">'
        "</div>"
        for one in contents.values()
    )
    values = json.dumps([*contents.values()]).replace("<", "\\u003c")
    template = (_TEMPLATES / "explore.md").read_text(encoding="utf-8")
    return template.replace("PLACES", places).replace("VALUES", values)


def _contents(pages: Sequence[str]) -> str:
    """The pages behind a page, as Sphinx reads them."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```", ""])


def _first_page(studies: Sequence[Path], source: Path) -> str:
    """The page of all studies: each question, with a picture and its answer."""
    parts = {}  # by question: parts of one study have one
    for report in studies:
        title, *rest = _findings(report).split("\n\n")
        pictures = [text for text in rest if text.startswith("![")][:1]
        answers = [text for text in rest if text.startswith("**")][:1]
        text = "\n\n".join([*pictures, *answers] or rest[:1])
        if (source / report.name / "explore.md").is_file():
            text += "\n\n[Explore its networks by hand](explore)"
        text = re.sub(r"\]\((?!http)", f"]({report.name}/", text)
        heading = f"## [{title.removeprefix('# ')}]({report.name}/index)"
        parts.setdefault(title.partition(": ")[2], f"{heading}\n\n{text}")
    pages = [f"{report.name} <{report.name}/index>" for report in studies]
    title = "# Which image classifiers will generalize?"
    return "\n\n".join([title, *parts.values(), _contents([*pages, "glossary"])])


if __name__ == "__main__":
    print(build(PROJECT_ROOT / "reports", from_root("work/pages/source")))

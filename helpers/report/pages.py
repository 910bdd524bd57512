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

from helpers.files import PROJECT_ROOT, from_root
from helpers.report import explore, findings, sweeps
from helpers.report.explore import content

SITE = "_site"  # in the folder of all reports
_TEMPLATES = Path(__file__).parent / "templates"
_TABLE = re.compile(r"(?:`|<code>)(tables/[\w.-]+)(?:`|</code>)")
_EXPLORER = "*Explore by hand*"  # how notebooks name the page with the explorers
_NO_PAGES = shutil.ignore_patterns("records", "checkpoints", "tables", "*.md")


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
    studies = [
        folder for folder in sorted(reports.iterdir()) if any(executions(folder))
    ]
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
    for path in target.rglob("[0-9][0-9]_*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        place = path.parent.relative_to(target)
        folder = os.path.relpath(
            report / place, report.parent / SITE / report.name / place
        )
        clean(notebook, folder, os.path.relpath(target / "explore.md", path.parent))
        nbformat.write(notebook, path)
    pages = [_name(path, target) for path in executions(target)]
    pages += [_write_sweep(sweep, report) for sweep in sorted(target.glob("sweeps/*/"))]
    text = _findings(report)
    contents = content.of_report(report)
    if contents:
        (target / "explore.md").write_text(_explorers(contents), encoding="utf-8")
        title, rest = text.split("\n", 1)
        text = f"{title}\n\n[Explore its networks by hand](explore)\n{rest}"
        pages.insert(0, "explore")
    (target / "index.md").write_text(f"{text}\n{_contents(pages)}", encoding="utf-8")


def _findings(report: Path) -> str:
    """The findings of a study, with links to those of others as pages have them."""
    return findings.text_of(report).replace(findings.PAGE, "index.md")


def _name(path: Path, folder: Path) -> str:
    """Name of a notebook's page in the contents of a page in a folder."""
    return str(path.relative_to(folder).with_suffix(""))


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


def _write_sweep(folder: Path, report: Path) -> str:
    """Write the page of a sweep and its combinations; its name in the contents."""
    combinations = []
    failed = ""
    for path in sorted(folder.glob("*/*/*.ipynb")):
        name = path.relative_to(folder).parts[0]
        combinations.append(f"{name} <{_name(path, folder)}>")
        error = error_of(nbformat.read(path, as_version=4))
        failed += f"- {name}: {error}\n" if error else ""
    place = f"sweeps/{folder.name}"
    frame = sweeps.results_of(report / place)
    text = f"# Sweep of {folder.name.replace('_', ' ')}\n\n"
    if len(frame):
        sweeps.small_multiples(frame).savefig(folder / "results.png", dpi=90)
        text += "![Each result against the swept parameters](results.png)\n\n"
        text += sweeps.table(frame).to_markdown(index=False) + "\n\n"
    if failed:
        text += f"Failed:\n\n{failed}\n"
    text += "Each combination, executed:\n\n" + _contents(combinations)
    (folder / "index.md").write_text(text, encoding="utf-8")
    return f"{place}/index"


def _explorers(contents: Sequence[content.Content]) -> str:
    """The page with the explorers of a study."""
    values = json.dumps(contents, allow_nan=False).replace("<", "\\u003c")
    places = "".join(
        f"<h2>{explore.TITLES[one['kind']]}</h2>"
        f'<div class="explorer" data-kind="{one["kind"]}"></div>'
        for one in contents
    )
    template = (_TEMPLATES / "explore.md").read_text(encoding="utf-8")
    return template.replace("PLACES", places).replace("VALUES", values)


def _contents(pages: Sequence[str]) -> str:
    """The pages behind a page, as Sphinx reads them."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```", ""])


def _first_page(studies: Sequence[Path], source: Path) -> str:
    """The page of all studies: each question, with a picture and its answer."""
    parts = ["# Which image classifiers will generalize?\n"]
    questions = set()
    for report in studies:
        title, *rest = _findings(report).split("\n\n")
        question = title.partition(": ")[2]
        if question in questions:
            continue  # parts of one study have one question
        questions.add(question)
        parts.append(f"## [{title.removeprefix('# ')}]({report.name}/index)\n")
        answers = [text for text in rest if text.startswith("**")][:1]
        pictures = [text for text in rest if text.startswith("![")][:1]
        text = "\n\n".join([*pictures, *answers] or rest[:1])
        parts.append(re.sub(r"\]\((?!http)", f"]({report.name}/", text) + "\n")
        if (source / report.name / "explore.md").is_file():
            parts.append(f"[Explore its networks by hand]({report.name}/explore)\n")
    pages = [f"{report.name} <{report.name}/index>" for report in studies]
    return "\n".join([*parts, _contents([*pages, "glossary"])])


if __name__ == "__main__":
    print(build(PROJECT_ROOT / "reports", from_root("work/pages/source")))

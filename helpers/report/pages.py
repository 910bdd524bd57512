"""Pages of all reports by Sphinx: ``python -m helpers.report.pages`` builds them.

They are made of executed notebooks and of FINDINGS.md, open from disk, and load nothing
from the internet; ``docs/conf.py`` has the settings.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.files import PROJECT_ROOT, from_root, read_json
from helpers.report import findings, sweeps

SITE = "_site"  # in the folder of all reports
_TEMPLATE = Path(__file__).parent / "templates/explore.md"
_TABLE = re.compile(r"(?:`|<code>)(tables/[\w.-]+)(?:`|</code>)")
_EXPLORER = "*Explore by hand*"  # how notebooks name the page with the explorers
_TO_EXPLORER = "[Explore its networks by hand](explore)"
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
    from sphinx.application import Sphinx

    shutil.rmtree(source.parent, ignore_errors=True)
    executed = reports.glob("*/[0-9][0-9]_*/[0-9][0-9]_*.ipynb")
    studies = sorted({path.parents[1] for path in executed})
    texts = {path.name: write_study(path, source / path.name) for path in studies}
    shutil.copy(PROJECT_ROOT / "docs/glossary.md", source)
    (source / "index.md").write_text(_first_page(texts), encoding="utf-8")
    # myst-nb writes beside the pages, too.
    made = source.with_name("made") / "html"
    settings = PROJECT_ROOT / "docs"
    sphinx = Sphinx(source, settings, made, made.parent, "html", status=None)
    sphinx.build(force_all=True)
    if sphinx.statuscode:
        raise RuntimeError(f"Sphinx could not build pages from {source}")
    site = reports / SITE
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(made, site)
    return site / "index.html"


def write_study(report: Path, target: Path) -> str:
    """Write what Sphinx reads of a study: its first page and those behind it.

    Args:
        report: ``reports/<study>``.
        target: folder of what Sphinx reads.

    Returns:
        The first page, Markdown.
    """
    shutil.copytree(report, target, ignore=_NO_PAGES)
    for path in target.rglob("[0-9][0-9]_*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        clean(notebook, path.parent.relative_to(target.parent))
        nbformat.write(notebook, path)
    for sweep in target.glob("sweeps/*/"):
        write_sweep(sweep)
    # Links to the findings of other studies are those of pages.
    text = findings.text_of(report).replace(findings.PAGE, "index.md")
    explorers = sorted(report.glob("[0-9][0-9]_*/explorers/*.json"))
    if explorers:
        (target / "explore.md").write_text(_explorers(explorers), encoding="utf-8")
        text = text.replace("\n", f"\n\n{_TO_EXPLORER}\n", 1)
    contents = _contents("explor*", "[0-9]*/*", "sweeps/*/index")
    (target / "index.md").write_text(text + contents, encoding="utf-8")
    return text


def clean(notebook: NotebookNode, place: Path) -> None:
    """Make an executed notebook a page.

    Code is folded, names of tables and of the explorers become links.

    Args:
        notebook: is changed.
        place: its folder in that of all reports.
    """
    to_site = "../" * len(place.parts)
    table = rf'<a href="{to_site}../{place}/\1"><code>\1</code></a>'
    explorer = f"[{_EXPLORER}]({to_site}{place.parts[0]}/explore.html)"
    for cell in notebook.cells:
        cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            for kind in {"text/html", "text/markdown"} & {*data}:
                text = _TABLE.sub(table, data[kind])
                data[kind] = text.replace(_EXPLORER, explorer)


def error_of(path: Path) -> str:
    """The error that ended an execution, in a line; "" without one.

    Args:
        path: of the executed notebook.
    """
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                return f": this notebook failed: {output.ename}: {output.evalue}"
    return ""


def write_sweep(folder: Path) -> None:
    """Write the page of a sweep and its combinations.

    Args:
        folder: with a folder for each combination.
    """
    parts = [f"# Sweep of {folder.name.replace('_', ' ')}"]
    if sweeps.draw(folder):
        table = sweeps.table(sweeps.results_of(folder)).to_markdown(index=False)
        parts += ["![Each result against what is varied](figures/results.png)", table]
    parts.append("Each combination, executed:")
    paths = [path.relative_to(folder) for path in sorted(folder.glob("*/*/*.ipynb"))]
    for path in paths:
        parts.append(f"- [{path.parts[0]}](<{path}>){error_of(folder / path)}")
    pages = [f"{path.parts[0]} <{path}>" for path in paths]
    text = "\n\n".join(parts) + _contents(*pages, option=":hidden:")
    (folder / "index.md").write_text(text, encoding="utf-8")


def _explorers(paths: Sequence[Path]) -> str:
    """The page with a study's explorers: of each kind, that of the last notebook."""
    contents = {path.name: read_json(path) for path in paths}
    places = "".join(
        f'<h2>{one["question"]}</h2><div class="explorer" data-kind="{one["kind"]}">'
        "</div>"
        for one in contents.values()
    )
    values = json.dumps([*contents.values()]).replace("<", "\\u003c")
    text = _TEMPLATE.read_text(encoding="utf-8").replace("PLACES", places)
    return text.replace("VALUES", values)


def _contents(*pages: str, option: str = ":maxdepth: 1") -> str:
    """The pages behind a page, or patterns of their names, as Sphinx reads them."""
    lines = ("\n\n```{toctree}", ":glob:", option, "", *pages, "```", "")
    return "\n".join(lines)


def _first_page(texts: dict[str, str]) -> str:
    """The page of all studies: each question, with a picture and its answer.

    Args:
        texts: first page of each study by its name.
    """
    parts = {}  # by question: parts of one study have one
    for name, text in texts.items():
        title, *rest = text.split("\n\n")
        first = {part[:2]: part for part in reversed(rest)}  # that begins so
        shown = [first.get(start, "") for start in ("![", "**", _TO_EXPLORER[:2])]
        links = re.sub(r"\]\((?!http)", f"]({name}/", "\n\n".join(shown))
        heading = f"## [{title.removeprefix('# ')}]({name}/index)"
        parts.setdefault(title.partition(": ")[2], f"{heading}\n\n{links}")
    contents = _contents(*(f"{name} <{name}/index>" for name in texts), "glossary")
    title = "# Which image classifiers will generalize?"
    return "\n\n".join([title, *parts.values()]) + contents


if __name__ == "__main__":
    print(build(PROJECT_ROOT / "reports", from_root("work/pages/source")))

"""Pages of all reports by Sphinx: ``python -m helpers.report.pages`` builds them.

They are made of executed notebooks and of FINDINGS.md, open from disk, and load nothing
from the internet.
"""

import argparse
import json
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from helpers.files import PROJECT_ROOT, complete_or_absent, from_root, inside
from helpers.report import findings, sweeps

SITE = "_site"  # in the folder of all reports
_TEMPLATES = Path(__file__).parent / "templates"
_SETTINGS = {
    "project": "Which image classifiers will generalize?",
    "extensions": "myst_nb",
    "html_theme": "sphinx_book_theme",
    "html_title": "Which image classifiers will generalize?",
    "html_theme_options": {
        "home_page_in_toc": True,
        "show_navbar_depth": 1,
        "navbar_persistent": [],
        "use_download_button": False,
    },
    "html_context": {"default_mode": "auto"},
    "html_css_files": ["pages.css"],
    "html_copy_source": False,
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "nb_code_prompt_show": "code",
    "nb_code_prompt_hide": "code",
    "nb_ipywidgets_js": {},  # else pages load two scripts of other hosts
    "myst_enable_extensions": [],  # no formulas: MathJax is another host's, too
    "suppress_warnings": [
        "mystnb.unknown_mime_type",
        "myst.header",
        "myst.xref_missing",
    ],
}
# Outputs that are no part of a page: progress bars, menus, values for programs.
_HIDDEN = re.compile("widget-view|scrapbook")
_TABLE = re.compile(r"(?:`|<code>)(tables/[\w.-]+)(?:`|</code>)")
_SUBJECTS = (findings.PAGE, "index.md")


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
    (source / "index.md").write_text(_first_page(studies), encoding="utf-8")
    settings = _SETTINGS | {"html_static_path": [str(static)]}
    # myst-nb writes beside the pages, too.
    made = source.with_name("made") / "html"
    doctrees = source.with_name("doctrees")
    sphinx = Sphinx(source, None, made, doctrees, "html", settings, status=None)
    sphinx.build(force_all=True)
    if sphinx.statuscode:
        raise RuntimeError(f"Sphinx could not build pages from {source}")
    site = reports / SITE
    shutil.rmtree(site, ignore_errors=True)
    shutil.move(made, site)
    return site / "index.html"


def write(report: Path, unchanged: Sequence[str] = ()) -> Path:
    """``index.html`` of a report, which says how its pages are built.

    Args:
        report: ``reports/<study>``.
        unchanged: notebooks that were not executed.
    """
    place = report / "index.html"
    page = f"../{SITE}/{report.name}/index.html"
    place.write_text(f'make pages builds <a href="{page}">the pages</a>.\n')
    return place


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
    target.mkdir(parents=True)
    text = findings.text_of(report).replace(*_SUBJECTS)
    for place in re.findall(r"!\[[^\]]*\]\(([^):]+)\)", text):
        source = inside(report, place)
        if source.is_file():
            picture = inside(target, place)
            picture.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, picture)
    pages = [_write_notebook(path, report, target) for path in executions(report)]
    for sweep in sweeps.sweeps_of(report):
        pages.append(_write_sweep(sweep, report, target))
    if _write_explorers(report, target):
        text += "\n[Explore its networks by hand](explore): measures, maps, curves.\n"
        pages.insert(0, "explore")
    (target / "index.md").write_text(f"{text}\n{_contents(pages)}", encoding="utf-8")


def _write_notebook(path: Path, report: Path, target: Path) -> str:
    """Write the page of an executed notebook; its name in the contents."""
    place = target / path.relative_to(report)
    place.parent.mkdir(parents=True, exist_ok=True)
    has_tables = (path.parent / "tables").is_dir()
    tables = path.parent if has_tables else report
    page = report.parent / SITE / report.name / path.relative_to(report)
    notebook = nbformat.read(path, as_version=4)
    clean(notebook, os.path.relpath(tables, page.parent))
    nbformat.write(notebook, place)
    return str(place.relative_to(target).with_suffix(""))


def clean(notebook: NotebookNode, folder: str) -> None:
    """Make an executed notebook a page.

    Code is folded, widgets go, names of tables become links, and an error stands first.

    Args:
        notebook: is changed.
        folder: with ``tables``, as a link from the page.
    """
    notebook.metadata.pop("widgets", None)
    link = rf'<a href="{folder}/\1"><code>\1</code></a>'
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        cell.metadata.tags = [*cell.metadata.get("tags", []), "hide-input"]
        cell.outputs = [
            output
            for output in cell.outputs
            if not _HIDDEN.search(" ".join(output.get("data", {})))
        ]
        for output in cell.outputs:
            data = output.get("data", {})
            for kind in ("text/html", "text/markdown"):
                if kind in data:
                    data[kind] = _TABLE.sub(link, "".join(data[kind]))
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


def _write_sweep(sweep: Path, report: Path, target: Path) -> str:
    """Write the page of a sweep and its combinations; its name in the contents."""
    combinations = []
    failed = []
    for path in sorted(sweep.glob("*/")):
        pages = [_write_notebook(one, report, target) for one in executions(path)]
        for page in pages:
            place = os.path.relpath(page, f"sweeps/{sweep.name}")
            combinations.append(f"{path.name} <{place}>")
        for one in executions(path):
            error = error_of(nbformat.read(one, as_version=4))
            failed += [f"- {path.name}: {error}"] if error else []
    place = target / "sweeps" / sweep.name
    place.mkdir(parents=True, exist_ok=True)
    frame = sweeps.results_of(sweep)
    text = f"# Sweep of {sweep.name.replace('_', ' ')}\n\n"
    if len(frame):
        sweeps.small_multiples(frame).savefig(place / "results.png", dpi=90)
        text += "![Each result against the swept parameters](results.png)\n\n"
        text += sweeps.table(frame).to_markdown(index=False) + "\n\n"
    if failed:
        text += "Failed:\n\n" + "\n".join(failed) + "\n\n"
    text += "Each combination, executed:\n\n" + _contents(combinations)
    (place / "index.md").write_text(text, encoding="utf-8")
    return f"sweeps/{sweep.name}/index"


def _write_explorers(report: Path, target: Path) -> bool:
    """Write the page with the explorers of a study; False where it has none."""
    from helpers.report import explore
    from helpers.report.explore import content

    contents = content.of_report(report)
    if not contents:
        return False
    values = json.dumps(contents, allow_nan=False).replace("<", "\\u003c")
    places = "".join(
        f"<h2>{explore.TITLES[one['kind']]}</h2>"
        f'<div class="explorer" data-kind="{one["kind"]}"></div>'
        for one in contents
    )
    template = (_TEMPLATES / "explore.md").read_text(encoding="utf-8")
    page = template.replace("PLACES", places).replace("VALUES", values)
    (target / "explore.md").write_text(page, encoding="utf-8")
    return True


def _contents(pages: Sequence[str]) -> str:
    """The pages behind a page, as Sphinx reads them."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", "", *pages, "```", ""])


def _first_page(studies: Sequence[Path]) -> str:
    """The page of all studies: the question and the first sentences of each."""
    parts = [f"# {_SETTINGS['project']}\n"]
    for report in studies:
        paragraphs = findings.text_of(report).replace(*_SUBJECTS).split("\n\n")
        title, *rest = paragraphs
        link = f"[{title.removeprefix('# ')}]({report.name}/index)"
        answers = [text for text in rest if text.startswith("**")][:1]
        pictures = [text for text in rest if text.startswith("![")][:1]
        text = "\n\n".join([*pictures, *answers] or rest[:1])
        text = re.sub(r"\]\((?!http)", f"]({report.name}/", text)
        parts.append(f"## {link}\n\n{text}\n")
    pages = [f"{report.name}/index" for report in studies]
    return "\n".join([*parts, _contents([*pages, "glossary"])])


def share(report: Path, to: Path) -> Path:
    """Pack a study's report and the pages into one zip, without weights of networks.

    Args:
        report: ``reports/<study>``.
        to: path of the zip.

    Raises:
        FileNotFoundError: if the pages are not built.
    """
    site = report.parent / SITE
    if not (site / report.name / "index.html").is_file():
        raise FileNotFoundError(f"{site}/{report.name} has no pages; run: make pages")
    of_pages = [site / "_static", site / report.name]
    paths = [path for part in (report, *of_pages) for path in part.rglob("*")]
    paths += [*site.glob("*.html"), *site.glob("*.js")]
    with (
        complete_or_absent(to) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for path in sorted(paths):
            if path.is_file() and path.suffix != ".safetensors":
                packed.write(path, path.relative_to(report.parent))
    return to


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the pages, and pack a study with ``--share``."""
    parser = argparse.ArgumentParser(description="Pages of all reports, by Sphinx.")
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    parser.add_argument("--share", default="", help="study to pack with its pages")
    options = parser.parse_args(arguments)
    print(build(options.reports, from_root("work/pages/source")))
    if options.share:
        report = inside(options.reports, options.share)
        print(share(report, from_root(f"work/share/{options.share}.zip")))
    return 0


if __name__ == "__main__":
    sys.exit(main())

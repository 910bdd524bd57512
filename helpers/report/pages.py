"""Pages that a colleague opens: HTML beside each executed notebook, and the study's index from question to answer."""

import csv
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import jinja2
import mistune

from helpers.files import complete_or_absent
from helpers.report.markup import inert
from helpers.report.variants import read_listing, side_by_side

_ROWS = 12


_CHANGED = re.compile(r"(<!--changed-->).*?(<!--/changed-->)", re.S)  # in the index: what is no longer as it was published


# Anything that a browser would fetch from another host: script and style elements, and imports inside a script.
_OUTSIDE = (
    re.compile(r'<script[^>]*\bsrc="https?://[^"]*"[^>]*>\s*</script>'),
    re.compile(r'<link[^>]*\bhref="https?://[^"]*"[^>]*/?>'),
    re.compile(r'<script type="module">(?:(?!</script>).)*?\bimport\b[^"\']*["\']https?://.*?</script>', re.S),
)


def write_pages(folder: Path) -> Path:
    """Write the HTML of every executed notebook of a study, and its index; give the index."""
    notebooks = executed_notebooks(folder)
    for path in notebooks:
        notebook_page(path)
    return study_page(folder, [path.stem for path in notebooks])


def executed_notebooks(folder: Path) -> list[Path]:
    """List the executed notebooks of a report: those that its listing names, or all that are there where it has none."""
    names = read_listing(folder).get("notebooks")
    if isinstance(names, list):
        return [path for name in names if (path := folder / f"{name}.ipynb").is_file()]
    return sorted(path for path in folder.glob("[0-9][0-9]_*.ipynb") if not path.name.endswith(".partial.ipynb"))


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


def notebook_page(executed: Path) -> Path:
    """Convert an executed notebook to HTML beside it, without any request to another host."""
    import nbformat
    from nbconvert import HTMLExporter

    exporter = HTMLExporter(template_name="lab")
    urls = ("require_js_url", "jquery_url", "mathjax_url", "mermaid_js_url", "jupyter_widgets_base_url", "widget_renderer_url")
    for name in urls:
        if exporter.has_trait(name):
            setattr(exporter, name, "")
    notebook = nbformat.read(executed, as_version=4)
    notebook.metadata.pop("widgets", None)  # progress bars, for which the page would ask another host for a script
    body, _ = exporter.from_notebook_node(notebook, {"metadata": {"name": executed.stem}})
    for pattern in _OUTSIDE:
        body = pattern.sub("", body)
    body = body.replace("<main>", '<main><p style="margin:1em"><a href="index.html">← the whole study</a></p>', 1)
    page = executed.with_suffix(".html")
    with complete_or_absent(page) as temporary:
        temporary.write_text(body, encoding="utf-8")
    return page


def study_page(folder: Path, notebooks: list[str]) -> Path:
    """Write ``index.html``: for each notebook its question, what it told, its figures and tables, and links to the whole."""
    chapters = [_chapter(folder, name) for name in notebooks]
    answers = [item for chapter in chapters for item in chapter["items"] if item.get("answer")]
    first = [items for chapter in chapters if (items := [item for item in chapter["items"] if item.get("first")])]
    answers = [*(first[-1] if first else []), *answers]  # gates and claims of the last notebook that judged them
    environment = jinja2.Environment(autoescape=True)
    markdown = mistune.create_markdown(escape=True, plugins=["table", "strikethrough"])
    environment.filters["markdown"] = lambda text: jinja2.utils.markupsafe.Markup(markdown(inert(text)))
    page, listing = folder / "index.html", read_listing(folder)
    known = {"study": listing.get("study", folder.name), "variant": folder.name if folder.parent.name == "variants" else ""}
    known |= {"shared": listing.get("shared", []), "files": listing.get("files", {}), "reports": side_by_side(folder)}
    known |= {"chapters": chapters, "answers": answers}
    with complete_or_absent(page) as temporary:
        temporary.write_text(environment.from_string(_PAGE).render(**known), encoding="utf-8")
    return page


def _chapter(folder: Path, name: str) -> dict[str, Any]:
    cells = json.loads((folder / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    first = next(("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"), "")
    story = json.loads(path.read_text()) if (path := folder / "story" / f"{name}.json").is_file() else []
    title = next((line.lstrip("# ") for line in first.splitlines() if line.startswith("# ")), name)
    question = next((line.removeprefix("**Question.** ") for line in first.splitlines() if line.startswith("**Question.**")), "")
    for item in story:
        if item["kind"] == "table":
            item["header"], item["cells"] = _head(folder / item["path"])
    return {"name": name, "title": title, "question": question, "items": story}


def _head(path: Path) -> tuple[list[str], list[list[str]]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for _, row in zip(range(_ROWS + 1), csv.reader(file), strict=False)]
    return (rows[0], [[_short(value) for value in row] for row in rows[1:]]) if rows else ([], [])


def _short(value: str) -> str:
    """Shorten a long decimal to four digits; an empty cell is an undefined value."""
    if not value:
        return "—"
    try:
        return f"{float(value):.4g}" if "." in value and len(value) > 7 else value
    except ValueError:
        return value


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ study }} · generalization workbook</title>
<style>
:root { color-scheme: light dark; --line: #8886; --soft: #8881; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1rem; }
.answer { border-left: 4px solid #0173b2; background: var(--soft); padding: .3rem 1rem; margin: 1.5rem 0; }
.question { font-size: 1.15rem; font-style: italic; }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
.table { overflow-x: auto; margin: 1rem 0; } table { border-collapse: collapse; font-size: .82rem; }
th, td { padding: .2rem .55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; }
summary { cursor: pointer; } nav li { margin: .3rem 0; } small, .small { opacity: .75; font-size: .85rem; }
</style>
</head>
<body>
<h1>Which of these networks will generalize, and by how much will accuracy drop?</h1>
<!--changed--><!--/changed-->
<p>{% if variant %}Variant <strong>{{ variant }}</strong> of study{% else %}Study{% endif %} <strong>{{ study }}</strong> of the
generalization workbook. A set of networks is trained over a grid of hyperparameters, each with
a known drop from training to test accuracy; each is scored by how far it looks at the object; and the scores are held against the drop.</p>
<nav><ol>{% for chapter in chapters %}
<li><a href="#{{ chapter.name }}">{{ chapter.title }}</a>: {{ chapter.question }}</li>{% endfor %}
</ol></nav>
{% if variant %}<p>Here stands what differs from the <a href="../../index.html">main report</a>.{% if shared %} The same in both:
{% for name in shared %}<a href="../../{{ name }}.html">{{ name }}</a>{{ ", " if not loop.last else "." }}{% endfor %}{% endif %}</p>
{% endif %}
{% if reports %}<section id="variants"><h2>Variants</h2><div class="table"><table>
<tr><th>report</th><th>differs in</th><th>primary numbers</th></tr>
{% for row in reports %}<tr><td><a href="{{ row.page }}">{{ row.name }}</a></td>
<td style="white-space: normal">{% for name, value in row.differs.items() %}{{ name }}: {{ value }}<br>{% endfor %}</td>
<td>{% for name, value in row.numbers.items() %}{{ name }}: {{ value }}<br>{% endfor %}</td></tr>
{% endfor %}</table></div></section>
{% endif %}{% for item in answers %}<div class="answer">{{ item.text | markdown }}</div>
{% endfor %}{% for chapter in chapters %}
<section id="{{ chapter.name }}">
<h2>{{ chapter.title }}</h2>
<p class="question">{{ chapter.question }}</p>
<p class="small">In full: <a href="{{ chapter.name }}.html">page</a>, <a href="{{ chapter.name }}.ipynb">executed notebook</a></p>
{% for item in chapter["items"] %}
{% if item.kind == "text" %}{{ item.text | markdown }}
{% elif item.kind == "figure" %}<figure><img src="{{ item.path }}" alt="{{ item.alt }}">
<figcaption>{{ item.reading | markdown }}</figcaption></figure>
{% elif item.kind == "table" %}{{ item.reading | markdown }}
<details><summary>{{ item.name }} ({{ "{:,}".format(item.rows) }} rows)</summary><div class="table"><table>
<tr>{% for name in item.header %}<th>{{ name }}</th>{% endfor %}</tr>
{% for row in item.cells %}<tr>{% for value in row %}<td>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</table></div><p class="small"><a href="{{ item.path }}">{{ item.path }}</a>{% if item.rows > item.cells | length %}:
the first {{ item.cells | length }} of {{ "{:,}".format(item.rows) }} rows are shown{% endif %}</p></details>
{% elif item.kind == "parameters" %}<details><summary>Parameters</summary><div class="table"><table>
{% for name, value in item["values"].items() %}<tr><td>{{ name }}</td><td style="white-space: normal">{{ value }}</td></tr>
{% endfor %}</table></div></details>
{% elif item.kind == "provenance" %}<details><summary>Where these numbers come from</summary><div class="table"><table>
{% for name, value in item.facts.items() %}<tr><td>{{ name }}</td><td>{{ value }}</td></tr>
{% endfor %}</table></div></details>
{% endif %}{% endfor %}
</section>
{% endfor %}
{% if files %}<details><summary>Published files and their digests (BLAKE2b, 8 bytes)</summary><div class="table"><table>
{% for name, digest in files.items() %}<tr><td>{{ name }}</td><td>{{ digest }}</td></tr>
{% endfor %}</table></div></details>
{% endif %}</body>
</html>
"""

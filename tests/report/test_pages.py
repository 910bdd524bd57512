"""Pages of a report: what stands on them, what does not, and in which order."""

import base64
import gzip
import json
import re

import nbformat
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs

from helpers.files import PROJECT_ROOT
from helpers.report import markup, pages


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "write_assets", lambda reports: None)
    folder = tmp_path / "reports/my"
    (folder / "story").mkdir(parents=True)
    (folder / "tables").mkdir()
    return folder


def cell(source, *outputs, tags=()):
    made = [nbformat.v4.new_output("display_data", {kind: text}) for kind, text in outputs]
    return nbformat.v4.new_code_cell(source, outputs=made, metadata={"tags": [*tags]})


def published(folder, cells, story, name="04_baselines"):
    first = nbformat.v4.new_markdown_cell("# 04 Rank\n\n**Question.** Which is best?")
    nbformat.write(nbformat.v4.new_notebook(cells=[first, *cells]), folder / f"{name}.ipynb")
    (folder / f"story/{name}.json").write_text(json.dumps(story))
    return (pages.write_pages(folder)).read_text(), (folder / f"{name}.html").read_text()


def test_a_notebook_page_has_no_cell_of_parameters_and_no_progress_bar(folder):
    bar = ("application/vnd.jupyter.widget-view+json", {"model_id": "x"})
    cells = [
        cell("defaults = 1", tags=["parameters"]),
        cell("study = 'my'", tags=["injected-parameters"]),
        cell("values_shown()", ("text/html", "<details>all</details>")),
        cell("work()", bar),
        cell("print(1)"),
    ]
    cells[-1].outputs = [
        nbformat.v4.new_output("stream", name="stderr", text="10%|#"),
        nbformat.v4.new_output("stream", name="stdout", text="1 < 2"),
    ]
    _, page = published(folder, cells, [{"kind": "parameters", "values": {"draws": "100"}}])
    for absent in ("defaults", "injected", "10%|#", "widget"):
        assert absent not in page
    assert page.count("draws") == 1
    assert "1 &lt; 2" in page
    assert page.count('<details class="code">') == 3  # before the table, before what is printed, and what is printed
    assert page.count('id="code-button"') == 1


def test_what_the_index_says_on_top_it_says_once(folder):
    story = [
        {"kind": "text", "text": "It may speak.", "answer": False, "first": True},
        {"kind": "text", "text": "An aside.", "answer": False, "first": False},
        {"kind": "text", "text": "### A heading", "answer": False, "first": False},
        {"kind": "text", "text": "It **does**.", "answer": True, "first": False},
    ]
    cells = [cell("told()", *(("text/markdown", item["text"]) for item in story))]
    index, page = published(folder, cells, story)
    texts = ("It may speak.", "It <strong>does</strong>.", "An aside.")
    assert [index.count(text) for text in texts] == [1, 1, 1]
    assert [page.count(text) for text in texts] == [1, 1, 1]
    assert [*texts] == sorted(texts, key=index.index)
    assert "A heading" in page
    assert "A heading" not in index


def test_a_table_is_given_to_the_script_of_the_page_escaped(folder):
    pd.DataFrame({"class": ["</script><b>"], "n": [3]}).to_csv(folder / "tables/classes.csv", index=False)
    story = [{"kind": "table", "name": "classes", "path": "tables/classes.csv", "reading": "One class.", "rows": 1}]
    outputs = (("text/html", "<table></table>"), ("text/markdown", "One class."))
    index, page = published(folder, [cell("table()", *outputs)], story)
    assert page.count("One class.") == 1
    assert "</script><b>" not in page
    given = page.partition('<script type="application/gzip">')[2].partition("</script>")[0]
    assert json.loads(gzip.decompress(base64.b64decode(given)))["rows"] == [["</script><b>", 3]]
    assert '<a href="04_baselines.html#table-classes">Classes</a> (1)' in index
    assert 'id="table-classes"' in page


def test_one_reading_of_a_table_and_of_its_figure_stands_once(folder):
    (folder / "tables/r.csv").write_text("r\n1\n")
    (folder / "figures").mkdir()
    (folder / "figures/04_baselines-r.png").write_bytes(b"")
    story = [{"kind": "table", "name": "r", "path": "tables/r.csv", "reading": "r is 1.", "rows": 1}]
    story += [{"kind": "figure", "name": "r", "path": "figures/04_baselines-r.png", "reading": "r is 1.", "alt": ""}]
    outputs = (
        ("text/html", "<table></table>"),
        ("text/markdown", "r is 1."),
        ("image/png", ""),
        ("text/markdown", "**Figure 4.1. R.** r is 1."),
    )
    _, page = published(folder, [cell("both()", *outputs)], story)
    assert page.count("r is 1.") == 1
    assert page.index("tables/r.csv") < page.index("r is 1.")


def test_verdicts_stand_on_the_index_and_findings_come_first(folder):
    rows = {
        "claim": ["IoU < gap", "other"],
        "published": [-0.82, None],
        "ours": [0.5, 4.8],
        "ci_low": [0.36, None],
        "ci_high": [0.64, None],
        "p_adjusted": [0.2808, None],
    }
    pd.DataFrame(rows | {"n": [60, 0], "verdict": ["not tested here", "undecided"]}).to_csv(folder / "tables/claims.csv", index=False)
    pd.DataFrame({"question": ["r_gap", "added_error_points"]}).to_csv(folder / "tables/claims_stated.csv", index=False)
    (folder / "FINDINGS.md").write_text("# What my says\n\n| a | b |\n|---|---|\n| [c](tables/claims.csv) | <i>d</i> |\n")
    index, page = published(folder, [], [])
    assert "<td>IoU &lt; gap</td>" in index
    assert "0.36 to 0.64" in index
    assert '<td class="number">0.50</td>' in index
    assert '<td class="number">0.28</td>' in index
    assert '<td class="number">4.80 points</td>' in index
    assert index.index("not tested here") < index.index("undecided") < index.index("04 Rank")
    for text in (index, page):
        links = [part.split(".html")[0] for part in text.split('href="')[1:] if ".html" in part[:40]]
        assert links[0] == "findings"
    findings = (folder / "findings.html").read_text()
    assert '<a href="tables/claims.csv">c</a>' in findings
    assert "&lt;i&gt;d&lt;/i&gt;" in findings


@pytest.mark.parametrize(
    ("title_of", "name", "title"),
    [
        (markup.table_title, "table3_iou", "IoU (Table 3 of the paper)"),
        (markup.table_title, "images_enough", "Images enough"),
        (markup.figure_title, "cam-methods", "CAM methods"),
        (markup.figure_title, "huang-figure-4-divergence", "Distance from the clean cell (Figure 4 of the paper)"),
    ],
)
def test_the_title_of_a_table_or_figure_is_in_words(title_of, name, title):
    assert title_of(name) == title


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "# Does the score hold when\n# labels are wrong? Of 0.5 width, on two cores. make it\nx: 1\n",
            ("Does the score hold when labels are wrong?", "Of 0.5 width, on two cores."),
        ),
        ("# Does it rain?\ncommon: {}\n", ("Does it rain?", "")),
        ("# A grid. Is it large?\ncommon: {}\n", ("", "")),
        ("common: {}\n# Is it?\n", ("", "")),
    ],
)
def test_a_study_is_introduced_by_the_question_that_its_file_opens_with(tmp_path, text, found):
    (tmp_path / "study.yaml").write_text(text)
    assert pages.study_question(tmp_path / "study.yaml") == found


@pytest.mark.parametrize("path", sorted((PROJECT_ROOT / "params").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_asks_something(path):
    question, setting = pages.study_question(path)
    assert question and setting


def test_the_demo_says_that_it_is_rendered_shapes():
    assert "rendered shapes" in pages.study_question(PROJECT_ROOT / "params/demo.yaml")[1].lower()


def test_the_shared_libraries_are_scripts_that_open_from_disk(tmp_path):
    pages.write_assets(tmp_path)
    script = (tmp_path / "assets/itables.js").read_text()
    assert "window.itables={" in script
    assert "\nexport" not in script
    packed = tmp_path / "assets/plotly.packed.js"
    before = packed.stat().st_mtime_ns
    pages.write_assets(tmp_path)
    assert packed.stat().st_mtime_ns == before


def test_plotly_is_carried_whole_with_its_licence_and_smaller(tmp_path):
    pages.write_assets(tmp_path)
    text = (tmp_path / "assets/plotly.packed.js").read_text()
    assert "Licensed under the MIT license" in text[:300]
    (letters,) = re.findall(r'^window\.plotlyPacked = "([A-Za-z0-9+/=]+)";$', text, flags=re.MULTILINE)
    assert gzip.decompress(base64.b64decode(letters)).decode() == get_plotlyjs()
    assert len(text) < 0.5 * len(get_plotlyjs())


def test_committed_pages_have_the_style_and_scripts_that_are_written_today(tmp_path):
    pages.write_assets(tmp_path)
    for name in ("pages.css", "pages.js", "explore.js"):
        assert (PROJECT_ROOT / "reports/assets" / name).read_text() == (tmp_path / "assets" / name).read_text(), (
            "make pages STUDY=compact20"
        )


def test_no_figure_has_the_button_that_sends_it_to_another_host():
    scripts = [path.read_text() for path in (PROJECT_ROOT / "helpers/report/assets").glob("*.js")]
    drawing = [text for text in scripts if "Plotly.react" in text]
    assert drawing
    assert all('modeBarButtonsToRemove: ["sendChartToCloud"' in text for text in drawing)


def test_the_pages_of_a_study_that_is_not_there_are_refused(tmp_path, capsys):
    assert pages.main(["none", "--reports", str(tmp_path)]) == 2
    assert "run the study first" in capsys.readouterr().err

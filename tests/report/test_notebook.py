import json
import re

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest

from helpers.report import notebook as report_notebook
from helpers.report import pages
from helpers.report.notebook import cell_text, open_report, parameters, provenance, show_figure, show_table, tell


@pytest.fixture
def report(tmp_path, monkeypatch):
    monkeypatch.setattr(report_notebook, "from_root", lambda path: tmp_path / path)
    shown = []
    monkeypatch.setattr(report_notebook, "display", lambda content, **options: shown.append((content, options)))
    opened = open_report(study="my", notebook="01_data_subset")
    return opened, shown


def finish(report):
    first = nbformat.v4.new_markdown_cell("# 01 Title <b>\n\n**Question.** Is it & how?")
    notebook = nbformat.v4.new_notebook(cells=[first, nbformat.v4.new_code_cell("1")])
    nbformat.write(notebook, report.folder / "01_data_subset.ipynb")
    return pages.write_pages(report.folder)


def test_a_table_is_written_whole_and_shown_in_part(report):
    opened, shown = report
    frame = pd.DataFrame({"name": ["<script>x</script>", "b", "c"], "value": [0.123456, np.nan, 2.0]})
    show_table(opened, frame, "scores", "**Three** rows.", rows=2)
    pd.testing.assert_frame_equal(pd.read_csv(opened.folder / "tables/scores.csv"), frame)
    html = shown[0][0].data
    assert "2 of 3 rows" in html
    assert "0.1235" in html
    assert "—" in html
    assert "<script>" not in html
    page = finish(opened).read_text()
    assert "<script>x" not in page
    assert "<strong>Three</strong> rows." in page
    assert "my" in page
    assert "01 Title &lt;b&gt;" in page
    assert "Is it &amp; how?" in page


def test_a_figure_is_written_closed_and_carries_its_reading_as_alternative_text(report):
    opened, shown = report
    figure, _ = plt.subplots()
    show_figure(opened, figure, "curve", 'r is **0.5**, "not" 0')
    assert not plt.fignum_exists(figure.number)
    assert (opened.folder / "figures/01_data_subset-curve.png").read_bytes()[:4] == b"\x89PNG"
    assert shown[0][1]["metadata"]["image/png"]["alt"] == 'r is 0.5, "not" 0'
    page = finish(opened).read_text()
    assert 'alt="r is 0.5, &#34;not&#34; 0"' in page
    assert 'src="figures/01_data_subset-curve.png"' in page


def test_names_stay_inside_the_report(report):
    opened, _ = report
    with pytest.raises(ValueError, match="leaves the folder"):
        show_table(opened, pd.DataFrame(), "../../outside")
    with pytest.raises(ValueError, match="leaves the folder"):
        open_report(study="../outside", notebook="01_data_subset")


def test_an_answer_stands_on_top_of_the_index(report):
    opened, _ = report
    tell(opened, "Aside.")
    assert '<div class="answer">' not in finish(opened).read_text()
    tell(opened, "It **does**.", answer=True)
    page = finish(opened).read_text()
    assert page.index("It <strong>does</strong>.") < page.index("Aside.")


def test_the_story_is_complete_up_to_where_a_notebook_fails_and_starts_anew(report):
    opened, _ = report
    tell(opened, "One.")
    tell(opened, "Two.")
    path = opened.folder / "story/01_data_subset.json"
    assert [item["text"] for item in json.loads(path.read_text())] == ["One.", "Two."]
    open_report(study="my", notebook="01_data_subset")
    assert json.loads(path.read_text()) == []


def test_pages_ask_no_other_host_for_anything(report):
    opened, _ = report
    provenance(opened, 3.2)
    index = finish(opened)
    for page in (index, opened.folder / "01_data_subset.html"):
        text = page.read_text()
        assert not re.search(r"<(script|link|img|iframe)[^>]+(src|href)=[\"']?(https?:)?//", text), page
        assert not re.search(r"import\b[^;\n]*[\"']https?://", text), page
        assert "@import" not in text, page
    assert 'href="index.html"' in (opened.folder / "01_data_subset.html").read_text()
    for link in re.findall(r'(?:href|src)="([^"#]+)"', index.read_text()):
        assert (opened.folder / link).exists(), link


@pytest.mark.parametrize(
    ("value", "text"), [(np.nan, "—"), (0.123456, "0.1235"), (2.0, "2"), (-0.9144, "-0.9144"), ("a", "a"), (True, "True"), (12345, "12345")]
)
def test_cells_are_short_and_undefined_is_a_dash(value, text):
    assert cell_text(value) == text


def test_parameters_shows_what_the_notebook_declares_with_the_values_in_force(report):
    opened, shown = report
    from helpers.files import PROJECT_ROOT
    from helpers.notebook_parameters import declared

    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    parameters(opened, {name: item.default for name, item in names.items()} | {"image_size": 99, "unrelated": 1})
    values = json.loads((opened.folder / "story/01_data_subset.json").read_text())[0]["values"]
    assert values["image_size"] == "99"
    assert set(values) == set(names)
    assert "unrelated" not in shown[0][0].data

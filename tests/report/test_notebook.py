import base64
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
from IPython.display import HTML
from matplotlib.colors import to_rgb
from PIL import Image

from helpers.files import STAGING
from helpers.report import notebook as report_notebook
from helpers.report import pages, style
from helpers.report.notebook import (
    cell_text,
    keep_table,
    made_for_others,
    open_report,
    parameters,
    provenance,
    show_figure,
    show_table,
    tell,
)


@pytest.fixture(scope="module")
def assets(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reports")
    pages.write_assets(folder)
    return folder / "assets"


@pytest.fixture
def report(tmp_path, monkeypatch, assets):
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports/assets").symlink_to(assets)
    monkeypatch.setattr(report_notebook, "from_root", lambda path: tmp_path / path)
    monkeypatch.setenv(STAGING, str(tmp_path / "reports/my"))
    shown = []
    monkeypatch.setattr(report_notebook, "display", lambda content, **options: shown.append((content, options)))
    opened = open_report(study="my", notebook="01_data_subset")
    return opened, shown


def notebook_of(outputs):
    first = nbformat.v4.new_markdown_cell("# 01 Title <b>\n\n**Question.** Is it & how?")
    return nbformat.v4.new_notebook(cells=[first, nbformat.v4.new_code_cell("1", outputs=outputs)])


def finish(report):
    nbformat.write(notebook_of([]), report.folder / "01_data_subset.ipynb")
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
    assert '<a href="01_data_subset.html#table-scores">Scores</a> (3)' in page
    assert "<script>x" not in page + (opened.folder / "01_data_subset.html").read_text()
    assert "my" in page
    assert "01 Title &lt;b&gt;" in page
    assert "Is it &amp; how?" in page


def test_a_figure_is_written_twice_closed_and_numbered_and_captioned_once(report):
    opened, shown = report
    for name in ("first", "iou-against-gap"):
        figure, ax = plt.subplots()
        ax.plot([0, 1], [1, 0])
        show_figure(opened, figure, name, 'r is **0.5**, "not" 0')
        assert not plt.fignum_exists(figure.number)
    assert (opened.folder / "figures/01_data_subset-iou-against-gap.png").read_bytes()[:4] == b"\x89PNG"
    assert "<svg" in (opened.folder / "figures/01_data_subset-iou-against-gap.svg").read_text()
    assert shown[2][1]["metadata"]["image/png"]["alt"] == "Figure 1.2. IoU against gap."
    assert shown[3][0].data == '**Figure 1.2. IoU against gap.** r is **0.5**, "not" 0'
    outputs = [
        nbformat.v4.new_output("display_data", item if isinstance(item, dict) else {"text/markdown": item.data}) for item, _ in shown
    ]
    nbformat.write(notebook_of(outputs), opened.folder / "01_data_subset.ipynb")
    index = pages.write_pages(opened.folder)
    page = (opened.folder / "01_data_subset.html").read_text()
    for text in (index.read_text(), page):
        assert text.count("<strong>Figure 1.2. IoU against gap.</strong>") == 1
        assert 'alt="Figure 1.2: IoU against gap"' in text
    assert page.count("r is <strong>0.5</strong>, &quot;not&quot; 0") == 2  # one for each figure
    assert 'href="01_data_subset.html#figure-1.2"' in index.read_text()
    assert 'id="figure-1.2"' in page
    for end in ("png", "svg"):
        assert f'href="figures/01_data_subset-iou-against-gap.{end}"' in page


def test_the_same_figure_is_the_same_files(report):
    opened, _ = report
    contents = []
    for _ in range(2):
        figure, ax = plt.subplots()
        ax.plot([0, 1, 2], [1, 0, 3])
        show_figure(opened, figure, "curve", "One.")
        contents.append([(opened.folder / f"figures/01_data_subset-curve.{end}").read_bytes() for end in ("png", "svg")])
    assert contents[0] == contents[1]


def test_a_long_table_is_kept_whole_and_not_shown(report):
    frame = pd.DataFrame({"model_id": ["a", "b"], "value": [0.1, np.nan]})
    opened = report[0]
    keep_table(opened, frame, "scores")
    pd.testing.assert_frame_equal(pd.read_parquet(opened.folder / "tables/scores.parquet"), frame)
    assert opened.story == []
    with pytest.raises(ValueError, match="outside"):
        keep_table(opened, frame, "../../outside")


def test_what_needs_no_picture_and_a_table_without_rows_are_told(report):
    opened, shown = report
    show_figure(opened, None, "class-counts", "Every class has 10.")
    show_table(opened, pd.DataFrame({"fault": []}), "faults", "Nothing is wrong.")
    assert [item.data for item, _ in shown] == ["Every class has 10.", "Nothing is wrong."]
    assert (opened.folder / "tables/faults.csv").read_text() == "fault\n"
    page = finish(opened).read_text()
    assert "Nothing is wrong." in page
    assert "0 rows" not in page


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
        assert link.startswith("data:") or (opened.folder / link).exists(), link


@pytest.mark.parametrize(
    ("value", "text"), [(np.nan, "—"), (0.123456, "0.1235"), (2.0, "2"), (-0.9144, "-0.9144"), ("a", "a"), (True, "True"), (12345, "12345")]
)
def test_cells_are_short_and_undefined_is_a_dash(value, text):
    assert cell_text(value) == text


def test_parameters_shows_what_the_notebook_declares_with_the_values_in_force(report):
    opened, shown = report
    from helpers.files import PROJECT_ROOT
    from helpers.parameters import declared

    names = declared(PROJECT_ROOT / "notebooks/01_data_subset.ipynb")
    parameters(opened, {name: item.default for name, item in names.items()} | {"image_size": 99, "unrelated": 1})
    values = json.loads((opened.folder / "story/01_data_subset.json").read_text())[0]["values"]
    assert values["image_size"] == "99"
    assert set(values) == set(names)
    assert "unrelated" not in shown[0][0].data


def test_a_notebook_that_the_launcher_does_not_run_leaves_the_report_alone_and_says_where_its_files_go(report, monkeypatch, tmp_path):
    opened, shown = report
    show_table(opened, pd.DataFrame({"x": [1]}), "scores")
    monkeypatch.delenv(STAGING)
    shown.clear()
    own = open_report(study="my", notebook="01_data_subset")
    assert shown[0][0].data.count("\n") == 0
    assert "work/my/scratch/01_data_subset" in shown[0][0].data
    assert "python -m helpers.sweep my" in shown[0][0].data
    show_table(own, pd.DataFrame({"x": [2]}), "scores")
    assert (tmp_path / "work/my/scratch/01_data_subset/tables/scores.csv").read_text() == "x\n2\n"
    assert (tmp_path / "reports/my/tables/scores.csv").read_text() == "x\n1\n"


def test_a_file_for_others_is_recorded_from_the_folder_of_work_and_one_elsewhere_is_refused(report, tmp_path):
    opened, _ = report
    made_for_others(opened, tmp_path / "work/my/catalogue.parquet")
    assert opened.story[-1] == {"kind": "work_file", "path": "catalogue.parquet"}
    with pytest.raises(ValueError, match="leaves the folder"):
        made_for_others(opened, tmp_path / "other.parquet")


class Elements(HTMLParser):
    """Every tag of a page, with what it would do."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


NASTY = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[k](javascript:alert(1))",
    "![k](http://evil.example/x.png)",
    "[k]: http://evil.example",
    "https://evil.example/x",
    "`<iframe src=x>`",
    "``` <svg onload=alert(1)>",
    "</p><a href=javascript:alert(1)>k</a>",
    "<!--",
    "&#60;img src=x onerror=alert(1)&#62;",
    "a|b\n\n<video src=x onerror=alert(1)>",
]


@pytest.mark.parametrize("name", NASTY)
def test_a_class_name_from_data_is_text_in_every_page(report, name):
    opened, shown = report
    tell(opened, f"The class {name} and `{name}` are **easy**.", answer=True)
    figure, _ = plt.subplots()
    show_figure(opened, figure, "curve", f"Class {name} leads.")
    show_table(opened, pd.DataFrame({"class": [name], name: [1]}), "classes", f"Class {name} has 1.")
    outputs = [
        nbformat.v4.new_output("display_data", {"text/html" if isinstance(item, HTML) else "text/markdown": item.data}, metadata=options)
        for item, options in shown
        if not isinstance(item, dict)
    ]
    cell = nbformat.v4.new_code_cell("1", outputs=outputs)
    first = nbformat.v4.new_markdown_cell("# 01 Title")
    nbformat.write(nbformat.v4.new_notebook(cells=[first, cell]), opened.folder / "01_data_subset.ipynb")
    pages.write_pages(opened.folder)
    for page in ("index.html", "01_data_subset.html"):
        found = Elements((opened.folder / page).read_text()).found
        assert not [tag for tag, values in found if any(key.startswith("on") for key in values)]
        assert not [tag for tag, _ in found if tag in ("iframe", "svg", "video")]
        assert not [values for tag, values in found if tag == "img" and not values.get("src", "").startswith(("figures/", "data:"))]
        links = [values.get("href", "") for tag, values in found if tag == "a"]
        assert not [link for link in links if "evil" in link or "javascript" in link], links
        assert not [1 for tag, values in found if tag == "script" and "evil" in str(values)]
    assert "alert(1)</script>" not in (opened.folder / "index.html").read_text()


def test_infinite_values_stop_no_table(report):
    opened, shown = report
    show_table(opened, pd.DataFrame({"norm": [np.inf, -np.inf, np.nan]}), "norms", "Infinite.")
    assert [text in shown[0][0].data for text in (">∞<", ">-∞<", ">—<")] == [True] * 3
    finish(opened)
    assert pages.table_content(opened.folder / "tables/norms.csv")["rows"] == [["∞"], ["-∞"], [None]]


def test_paths_of_a_vector_picture_keep_two_decimals_and_nothing_else_is_touched():
    given = b'<path id="p1.23456" d="M 10.123456 -0.98765 L 3 4.5" style="stroke-width: 1.23456"/><use x="7.77777" y="8" href="#m0.12345"/>'
    wanted = b'<path id="p1.23456" d="M 10.12 -0.98 L 3 4.5" style="stroke-width: 1.23456"/><use x="7.77" y="8" href="#m0.12345"/>'
    assert report_notebook._shortened(given) == wanted


def test_a_style_that_stands_twice_stands_once_and_each_shape_has_the_one_that_it_had():
    figure, ax = plt.subplots()
    ax.plot([0, 1, 2], color="#123456", marker="o")
    ax.plot([2, 1, 2], color="#654321", marker="o")
    before = io.BytesIO()
    with style.style(), plt.rc_context({"svg.fonttype": "none", "svg.hashsalt": "workbook"}):
        figure.savefig(before, format="svg")
    after = report_notebook._shortened(before.getvalue()).decode()
    given = dict(re.findall(r"\.(s\d+){([^}]*)}", after))
    told = re.findall(r' (?:style|class)="([^"]*)"', after)
    fonts = re.compile(r"font-family: [^;\"]*")
    had = [fonts.sub("f", text) for text in re.findall(r' style="([^"]*)"', before.getvalue().decode())]
    assert [fonts.sub("f", given.get(text, text)) for text in told] == had
    assert max(Counter(re.findall(r' style="([^"]*)"', after)).values(), default=1) == 1 < max(Counter(had).values())
    ElementTree.fromstring(after)


def test_photographs_in_vector_pictures_have_a_palette_and_see_through_ones_stay_as_they_are(report):
    opened, _ = report
    figure, axes = plt.subplots(1, 2)
    photograph = np.random.default_rng(0).normal([90, 140, 60], 20, size=(64, 64, 3)).clip(0, 255).astype(np.uint8)
    axes[0].imshow(photograph, interpolation="none")
    axes[1].imshow(np.dstack([photograph, np.full((64, 64), 120, np.uint8)]), interpolation="none")
    text = report_notebook._drawn(figure)[2].decode()
    show_figure(opened, figure, "photograph", "Its vector picture would hold the same pixels.")
    assert [path.name for path in (opened.folder / "figures").iterdir()] == ["01_data_subset-photograph.png"]
    assert "font-family: Arial, 'DejaVu Sans', sans-serif" in text
    ElementTree.fromstring(text)
    embedded = [Image.open(io.BytesIO(base64.b64decode(found))) for found in re.findall(r'data:image/png;base64,([^"]*)', text)]
    assert [image.mode for image in embedded] == ["P", "RGBA"]
    differences = [np.abs(np.asarray(image.convert("RGB")).astype(int) - photograph) for image in embedded]
    assert differences[0].mean() < 6
    assert differences[1].max() <= 1


def test_areas_of_a_heat_map_keep_their_colours_and_the_ends_of_its_scale(report):
    opened, _ = report
    values = np.linspace(-1, 1, 900).reshape(30, 30)
    figure, ax = plt.subplots()
    ax.pcolormesh(np.random.default_rng(0).permuted(values.ravel()).reshape(30, 30), cmap="vlag", vmin=-1, vmax=1)
    show_figure(opened, figure, "heat", "Nine hundred.")
    picture = Image.open(opened.folder / "figures/01_data_subset-heat.png").convert("RGB")
    drawn = np.array([colour for _, colour in picture.getcolors(256)])
    for value in np.linspace(0, 1, 33):
        wanted = np.array(plt.get_cmap("vlag")(value)[:3]) * 255
        assert np.abs(drawn - wanted).max(axis=1).min() <= report_notebook._MOVED


def test_a_picture_keeps_the_colours_of_its_lines(report):
    opened, _ = report
    figure, ax = plt.subplots()
    colours = plt.rcParams["axes.prop_cycle"].by_key()["color"]
    for number, colour in enumerate(colours):
        ax.plot([0, 1], [number, number + 1], color=colour, linewidth=3)
    show_figure(opened, figure, "lines", "Ten.")
    picture = Image.open(opened.folder / "figures/01_data_subset-lines.png")
    assert picture.mode == "P"
    drawn = np.array([colour for _, colour in picture.convert("RGB").getcolors(64)])
    for colour in colours:
        assert np.abs(drawn - np.round(255 * np.array(to_rgb(colour)))).max(axis=1).min() <= 8

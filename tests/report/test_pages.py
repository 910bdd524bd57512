"""Pages of a report: they show what the notebook shows, ask no other host, and run nothing that stands in a name."""

import json
import re
import shutil
import zipfile

import pytest

from helpers.files import PROJECT_ROOT
from helpers.report import __main__ as command
from helpers.report import findings, pages
from tests.conftest import tracked
from tests.report import made

STUDIES = sorted({path.parent for path in tracked("reports/*/[0-9][0-9]_*.ipynb")})


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """A written report; a test that changes it makes its own."""
    folder = made.write_report(tmp_path_factory.mktemp("reports") / "made")
    pages.write(folder)
    return folder


def test_every_page_is_there_and_what_it_links_to(report):
    written = {path.name for path in report.glob("*.html")}
    assert written == {"index.html", "explore.html", "04_baselines.html"}
    for path in [
        *report.glob("*.html"),
        report.parent / "index.html",
        report.parent / "assets/glossary.html",
    ]:
        page = made.Page(path)
        links = (
            page.of("a", "href")
            + page.of("link", "href")
            + page.of("script", "src")
            + page.of("img", "src")
        )
        for link in links:
            if not link.startswith(("#", "data:")):
                assert (path.parent / link.partition("#")[0]).is_file(), (
                    f"{path.name}: {link}"
                )


def test_no_page_asks_another_host_or_lets_a_name_run(report):
    for path in [*report.glob("*.html"), report.parent / "index.html"]:
        page = made.Page(path)
        assert not [
            value
            for _, _, value in page.attributes
            if value and re.match(r"(https?:)?//", value)
        ], path.name
        assert not [name for _, name, _ in page.attributes if name.startswith("on")]
        assert "default-src 'none'" in " ".join(
            filter(None, page.of("meta", "content"))
        )
        assert (
            page.tags.count("script") == (6 if path.name == "explore.html" else 2)
            and "b" not in page.tags
        )
        text = path.read_text()
        assert (
            made.HOSTILE not in text.replace("\\u003c", "<")
            or path.name == "explore.html"
        )
    assert made.HOSTILE in (report / "explore.html").read_text().replace(
        "\\u003c", "<"
    ), "as a text of its script"


def test_the_index_holds_answer_figure_tables_notebooks_and_details_in_this_order(
    report,
):
    text = (report / "index.html").read_text()
    page = made.Page(report / "index.html")
    assert "have a mean error of" in page.text
    places = [
        text.index(part)
        for part in (
            '<div class="answer">',
            findings.FIGURE,
            "What predicts the gap, baselines first",
            "Which measure predicts the gap?",
            "<details>",
        )
    ]
    assert places == sorted(places)
    assert (
        page.text.count("commit") == 2 and "abc" in page.text
    )  # a heading, and the fact itself
    (width,) = page.of("img", "width")
    assert width == "320"


def test_a_page_of_a_notebook_shows_all_of_it_under_its_headings(report):
    text = (report / "04_baselines.html").read_text()
    page = made.Page(report / "04_baselines.html")
    assert '<h2 id="What-is-seen">' in text and "#What-is-seen" in page.of("a", "href")
    assert page.of("img", "src") == ["figures/04_baselines-other.png"] and page.of(
        "img", "width"
    ) == ["320"]
    assert "Figure 4.1. Other." in page.text and "a bar" not in page.text
    assert page.tags.count("tr") == 1 + len(made.catalogue()), (
        "the whole table, not its first row"
    )
    assert "if 1 < 2:" in page.text and "kept" in page.text
    assert page.text.index("if 1 < 2:") < page.text.index("printed\n")


def test_a_word_of_the_glossary_is_linked_once_and_not_in_headings_or_code(report):
    text = (report / "04_baselines.html").read_text()
    links = re.findall(
        r'<a href="../assets/glossary.html" title="[^"]+">([^<]+)</a>', text
    )
    assert links.count("pointing game") == 1 and len(links) == len(set(links))
    assert not re.search(r"<(h1|h2|summary|code)\b[^>]*>[^<]*<a href=\"../assets", text)


def test_what_the_report_does_not_hold_is_not_explored_and_its_figure_is_that_of_the_notebook(
    tmp_path,
):
    folder = made.write_report(tmp_path / "made")
    for name in (
        "tables/scored_images.npz",
        "tables/histories.parquet",
        "figures/04_baselines-other.png",
    ):
        (folder / name).unlink()
    pages.write(folder)
    values = json.loads(
        re.search(r'id="values">(.*?)</script>', (folder / "explore.html").read_text())[
            1
        ]
    )
    assert (
        [item["kind"] for item in values]
        == made.Page(folder / "explore.html").of("div", "data-kind")
        == ["measures"]
    )
    assert (
        made.Page(folder / "04_baselines.html")
        .of("img", "src")[0]
        .startswith("data:image/png;base64,")
    )


def test_the_page_of_a_notebook_that_did_not_run_stays_as_it_is(tmp_path):
    folder = made.write_report(tmp_path / "reports/made")
    page = folder / "04_baselines.html"
    pages.write(folder, ["04_baselines"])
    whole = page.read_bytes()  # it was absent
    page.write_text("as it was")
    (folder / "explore.html").write_text("as it was")
    pages.write(folder, ["04_baselines"])
    assert page.read_text() == "as it was"
    assert (folder / "explore.html").read_text() == "as it was"
    pages.write(folder)
    assert page.read_bytes() == whole
    assert (folder / "explore.html").stat().st_size > 1000


def test_a_study_without_networks_of_its_own_gives_what_its_notebooks_answer(tmp_path):
    folder = made.write_report(tmp_path / "made")
    for path in (folder / "tables").iterdir():
        path.unlink()
    story, figure = (
        folder / "story/04_baselines.json",
        {"kind": "figure", "name": "huang-figure-2-marginals-a", "alt": "Figure 4.2"},
    )
    told = [
        figure | {"path": "figures/04_baselines-other.png"},
        {"kind": "text", "text": f"SSIM is 0.85 {made.HOSTILE}", "answer": True},
    ]
    story.write_text(json.dumps([*json.loads(story.read_text()), *told]))
    pages.write(folder)
    for path in (folder / "index.html", folder.parent / "index.html"):
        assert "is 0.85" in made.Page(path).text and "b" not in made.Page(path).tags
        assert [
            source.endswith("04_baselines-other.png")
            for source in made.Page(path).of("img", "src")
        ] == [True]


DAMAGED = [
    *[
        ("story/04_baselines.json", text, "04_baselines.json is damaged")
        for text in ("{", "[1]", "[{}]")
    ],
    *[
        ("story/04_baselines.json", text, "lacks what")
        for text in ('[{"kind": "figure"}]', '[{"kind": "parameters", "values": [1]}]')
    ],
    (
        "story/04_baselines.json",
        '[{"kind": "figure", "alt": "Figure 4.1. Other.", "path": "../../../etc/passwd"}]',
        "leaves the folder",
    ),
    ("tables/catalogue.csv", "model_id,gap\na,0.1\n", "lacks what"),
    ("tables/scores.parquet", "PAR1", "scores.parquet is damaged"),
    ("04_baselines.ipynb", "[]", "04_baselines.ipynb is damaged"),
]


def test_a_damaged_report_or_a_name_that_leaves_it_is_one_sentence(tmp_path, capsys):
    folder = made.write_report(tmp_path / "made")
    for place, content, said in DAMAGED:
        whole = (folder / place).read_bytes()
        (folder / place).write_text(content)
        assert command.main(["pages", "made", "--reports", str(tmp_path)]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
        (folder / place).write_bytes(whole)


def test_a_report_is_shared_without_checkpoints_unless_asked_for(report, tmp_path):
    (report / "checkpoints").mkdir()
    (report / "checkpoints/a.safetensors").write_bytes(b"x")
    for asked in (False, True):
        with zipfile.ZipFile(
            pages.share(report, tmp_path / "made.zip", checkpoints=asked)
        ) as packed:
            names = packed.namelist()
        assert ("made/checkpoints/a.safetensors" in names) is asked
        assert {"made/index.html", "assets/pages.js", "assets/plotly.min.js"} <= {
            *names
        }
    with pytest.raises(FileNotFoundError, match="run the study first"):
        pages.share(tmp_path, tmp_path / "none.zip")


def test_the_question_of_a_study_is_that_of_its_file():
    for path in tracked("params/*.yaml"):
        question, subject = findings.question_and_subject(path.stem)
        assert (
            question.endswith("?")
            and subject.endswith(".")
            and "#" not in question + subject
        ), path
    assert (
        findings.question_and_subject("demo")[0]
        != findings.question_and_subject("none")[0]
        and findings.question_and_subject("none")[1] == ""
    )


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_committed_pages_are_what_the_code_makes_of_the_committed_tables(
    study, tmp_path
):
    """The index, FINDINGS.md and the page of a notebook; others are made alike and take long."""
    folder = shutil.copytree(
        study,
        tmp_path / study.name,
        ignore=shutil.ignore_patterns("checkpoints", "cards", "*.html"),
    )
    if (study / findings.PAGE).is_file():
        assert findings.differences(folder) == []
        unfolded = findings.page(folder).partition("<details>")[0]
        assert len(unfolded.split()) <= 900
    for page in (
        pages._write_index(folder),
        pages._write_notebook(pages.executed_notebooks(folder)[0]),
    ):
        assert page.read_text() == (study / page.name).read_text(), (
            f"run `make pages STUDY={study.name}`"
        )


def test_a_study_that_asks_about_another_one_comes_after_it(monkeypatch):
    notebooks = {"a": 9, "b": 8, "c": 7, "d": 8}
    questions = {"a": "Do findings of b hold?", "b": "What of b?", "d": "Or a b?"}
    monkeypatch.setattr(
        pages, "executed_notebooks", lambda folder: [""] * notebooks[folder.name]
    )
    monkeypatch.setattr(
        findings,
        "question_and_subject",
        lambda name: (questions.get(name, ""), ""),
    )
    order = pages.in_reading_order([PROJECT_ROOT / name for name in "cabd"])
    assert [folder.name for folder in order] == ["b", "a", "d", "c"]


@pytest.mark.parametrize("folder", STUDIES, ids=lambda folder: folder.name)
def test_published_values_are_those_that_notebooks_were_executed_with(folder):
    published = json.loads((folder / "published.json").read_text())["parameters"]
    for notebook, values in published.items():
        executed = json.loads((folder / f"{notebook}.ipynb").read_text())
        assert values == executed["metadata"]["papermill"]["parameters"], notebook

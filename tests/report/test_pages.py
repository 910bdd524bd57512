"""Pages by Sphinx: they hold what was executed, ask no other host, and say what failed."""

import re

import pytest

from helpers.report import pages
from tests.report.made_reports import HOSTILE, write_reports


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    write_reports(folder / "reports")
    first = pages.build(folder / "reports", folder / "pages/source")
    assert first == folder / "reports/_site/index.html"
    assert {path.name for path in (folder / "reports").iterdir()} == {"made", "_site"}
    return first.parent


def test_the_first_page_has_every_study_and_explorers_stand_on_one(site):
    text = (site / "index.html").read_text()
    for told in ("made: which networks?", "<strong>Some.</strong>", "glossary.html"):
        assert told in text
    assert 'href="made/index.html"' in text
    text = (site / "made/explore.html").read_text()
    assert '<h2>Which measure?</h2><div class="explorer" data-kind="measures">' in text
    assert "alert(1)" in text and HOSTILE not in text


def test_a_page_has_outputs_folded_code_and_links_to_tables(site):
    page = site / "made/04_baselines/04_baselines.html"
    text = page.read_text()
    links = re.findall(r'href="([^"]+scores\.csv)"', text)
    assert len(links) == 2
    assert all((page.parent / link).is_file() for link in links)
    assert "secret_code" in text
    assert "hide-input" in text
    assert "widget" not in re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_no_page_asks_another_host(site):
    for page in site.rglob("*.html"):
        loads = re.findall(
            r'<(?:script|link|img)[^>]+(?:src|href)="([^"]+)"', page.read_text()
        )
        assert [place for place in loads if "//" in place] == []


def test_what_failed_is_told_on_its_page_and_on_that_of_its_sweep(site):
    failed = site / "made/05_ablations.failed/05_ablations.html"
    assert "no box" in re.sub("<[^>]+>", "", failed.read_text())
    sweep = (site / "made/sweeps/03_cam_scoring/index.html").read_text()
    text = re.sub("<[^>]+>", "", sweep)
    assert "cam_threshold=0.6: this notebook failed: ValueError: no box" in text
    assert "-0.30 (-0.40 to -0.20)" in text
    link = "cam_threshold%3D0.1/03_cam_scoring/03_cam_scoring.html"
    assert f'href="{link}"><span class="std std-doc">cam_threshold=0.1' in sweep

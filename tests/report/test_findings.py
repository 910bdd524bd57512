"""Findings: numbers by the names that notebooks gave them, and no stale sentence."""

import jinja2
import pytest

from helpers.report import findings
from tests.report.made_reports import write_reports

SENTENCE = """# made
{% call holds(of04.r_iou_gap_high < 0) %}
Overlap has r = {{ "%.2f" | format(of04.r_iou_gap) }} in {{ of04.networks }} networks.
{% endcall %}
{{ figure("04_baselines", "primary", "All.") }}
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setattr(findings, "PROJECT_ROOT", tmp_path)
    (tmp_path / "params").mkdir()
    (tmp_path / "params/made.md.j2").write_text(SENTENCE)
    return write_reports(tmp_path / "reports")


def test_a_sentence_has_the_numbers_of_its_notebook(study):
    (study / "04_baselines/figures").mkdir()
    (study / "04_baselines/figures/primary.png").touch()
    assert findings.page(study) == (
        "# made\nOverlap has r = -0.50 in 7 networks.\n"
        "![All.](04_baselines/figures/primary.png)\n\n*All.*\n"
    )


def test_a_sentence_that_no_longer_holds_is_refused(study):
    path = study / "04_baselines/results.json"
    path.write_text(path.read_text().replace("-0.1", "0.1"))
    with pytest.raises(findings.StaleSentence, match=r"Overlap has r = -0\.50"):
        findings.page(study)


def test_a_number_that_no_notebook_named_is_refused(study):
    template = findings.PROJECT_ROOT / "params/made.md.j2"
    template.write_text("{{ of04.r_iuo_gap }}")
    with pytest.raises(jinja2.UndefinedError, match="r_iuo_gap"):
        findings.page(study)


def test_a_study_without_sentences_has_the_general_ones(study):
    (findings.PROJECT_ROOT / "params/made.md.j2").unlink()
    text = findings.page(study)
    assert text.startswith("# made: which of these networks will generalize?")


def test_the_command_writes_checks_and_names_what_is_stale(study, capsys):
    given = ["made", "--reports", str(study.parent)]
    assert findings.main(given) == 1
    assert findings.main([*given, "--write"]) == 0
    assert findings.main(given) == 0
    assert "every number" in capsys.readouterr().out
    (findings.PROJECT_ROOT / "params/made.md.j2").write_text("{{ of04.nothing }}")
    assert findings.main(given) == 2
    assert "params/made.md.j2" in capsys.readouterr().err

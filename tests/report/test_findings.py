"""Findings: numbers by the names that notebooks gave them, and no stale sentence."""

import jinja2
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT, table_of
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


def test_a_sentence_that_no_longer_holds_or_asks_for_no_number_is_refused(study):
    path = study / "04_baselines/results.json"
    path.write_text(path.read_text().replace("-0.1", "0.1"))
    with pytest.raises(findings.StaleSentence, match=r"Overlap has r = -0\.50"):
        findings.page(study)
    (findings.PROJECT_ROOT / "params/made.md.j2").write_text("{{ of04.r_iuo_gap }}")
    with pytest.raises(jinja2.UndefinedError, match="r_iuo_gap"):
        findings.page(study)


@pytest.mark.parametrize(
    ("low", "answer"),
    [(0.4, "the larger its gap**: r ="), (-0.2, "**No clear correlation of the gap")],
)
def test_a_study_without_a_template_is_told_by_its_primary_table(study, low, answer):
    (findings.PROJECT_ROOT / "params/made.md.j2").unlink()
    table = pd.read_csv(table_of(PROJECT_ROOT / "reports/kinds20", "primary.csv"))
    table.loc[table["measure"] == "drop", "r_gap_low"] = low
    table.to_csv(study / "04_baselines/tables/primary.csv", index=False)
    text = findings.page(study)
    assert answer in text
    overlap = table.set_index("measure").loc["area_matched_iou"]
    ends = [overlap[f"r_gap_given_train_accuracy{end}"] for end in ("_low", "_high")]
    assert "({:.2f} to {:.2f})".format(*ends) in text
    assert f"| {overlap['title']} | {overlap['r_gap']:.2f} (" in text


def test_the_command_writes_checks_and_names_what_is_stale(study, capsys):
    assert findings.main(study.name, False) == 1
    assert findings.main(study.name, True) == 0
    assert (study / "sweeps/03_cam_scoring/figures/results.png").is_file()
    assert findings.main(study.name, False) == 0
    assert "every number" in capsys.readouterr().out
    (findings.PROJECT_ROOT / "params/made.md.j2").write_text("{{ of04.nothing }}")
    assert findings.main(study.name, False) == 2
    assert "params/made.md.j2" in capsys.readouterr().err

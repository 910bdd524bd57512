"""Findings: numbers by the names that notebooks gave them, and no stale sentence."""

import jinja2
import pandas as pd
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


def primary_table(low):
    """Rows of the primary table: the baseline, and a measure that it does not beat."""
    table = pd.DataFrame({"measure": ["drop", "area_matched_iou"]})
    columns = {"n": 30, "kinds": 10, "units": 10, "level": 0.95, "r_gap_smallest": 0.5}
    columns |= {"error_with_twins": 4.2, "error_best_twins": 4.0}
    for given in ("", "_train_accuracy", "_start", "_start_and_training"):
        name = f"r_gap_given{given}" if given else "r_gap"
        ends = {"": [0.8, -0.7], "_low": [low, -0.9], "_high": [0.9, -0.3]}
        columns |= {f"{name}{end}": values for end, values in ends.items()}
    columns["saved_from_best_points_low"] = -1
    columns["saved_from_best_points_p_adjusted"] = 1
    return table.assign(title=table["measure"], baseline=[True, False], **columns)


@pytest.mark.parametrize(
    ("low", "answer"),
    [
        (0.4, "the larger its gap**: r = 0.80 (0.40 to 0.90)."),
        (-0.2, "The smallest r that this study could detect is 0.50."),
    ],
)
def test_the_general_sentences_follow_the_primary_table(study, low, answer):
    (findings.PROJECT_ROOT / "params/made.md.j2").unlink()
    path = study / "04_baselines/tables/primary.csv"
    primary_table(low).to_csv(path, index=False)
    text = findings.page(study)
    assert answer in text
    assert "have higher test accuracy: r with the gap = -0.70 (-0.90 to -0.30)" in text
    assert "| area_matched_iou | -0.70 (-0.90 to -0.30) |" in text
    assert "a mean error of 4.0 points. No measure is clearly better." in text
    assert "30 networks of 10 kinds of training" in text


def test_the_command_writes_checks_and_names_what_is_stale(study, capsys):
    assert findings.main(study.name, False) == 1
    assert findings.main(study.name, True) == 0
    assert (study / "sweeps/03_cam_scoring/figures/results.png").is_file()
    assert findings.main(study.name, False) == 0
    assert "every number" in capsys.readouterr().out
    (findings.PROJECT_ROOT / "params/made.md.j2").write_text("{{ of04.nothing }}")
    assert findings.main(study.name, False) == 2
    assert "params/made.md.j2" in capsys.readouterr().err

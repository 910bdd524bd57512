"""FINDINGS.md: short, of the tables' numbers alone, checked against them; names in it are text."""

import re

import pytest

from helpers.report import __main__ as command
from helpers.report import findings
from tests.report import made


@pytest.fixture
def folder(tmp_path):
    return made.write_report(tmp_path / "made")


def test_a_written_page_is_what_the_tables_give_and_a_changed_number_is_found(folder):
    text = findings.write(folder).read_text()
    assert findings.differences(folder) == []
    number = re.search(r"\d\.\d\d", text)
    changed = "8.88" if number[0] != "8.88" else "7.77"
    (folder / findings.PAGE).write_text(
        text[: number.start()] + changed + text[number.end() :]
    )
    there, given = [
        line
        for line in findings.differences(folder)
        if line[0] in "-+" and line[:3] not in ("---", "+++")
    ]
    assert changed in there and number[0] in given


def test_tables_fold_what_they_hold_with_intervals_and_leave_out_what_is_empty(folder):
    tables = findings.read(folder)
    parts = dict(findings.folded(tables))
    row = tables["primary"].iloc[-2]
    assert (
        f"{row['r_gap']:.2f} ({row['r_gap_low']:.2f} to {row['r_gap_high']:.2f})"
        in set(parts["The primary analysis, baselines first"]["r with the gap"])
    )
    assert (
        len(parts["Conditions that do not hold"]) == (~tables["gates"]["passes"]).sum()
    )
    assert "Error of the predicted gap without any measure, all models" not in parts
    assert len(dict(findings.folded({}))) == 0


def test_names_from_data_make_no_html_and_no_links(folder):
    text = findings.page(folder)
    assert made.HOSTILE not in text and "<b>" not in text and "](http" not in text
    assert re.sub("\u200c", "", text).count(made.HOSTILE) == 1


def test_the_command_checks_writes_and_refuses(folder, capsys):
    given = ["--reports", str(folder.parent)]
    assert command.main(["findings", "made", *given]) == 0
    assert "has no FINDINGS.md" in capsys.readouterr().out
    assert (
        command.main(["findings", "made", "--write", *given])
        == command.main(["findings", "made", *given])
        == 0
    )
    assert "every number" in capsys.readouterr().out
    (folder / findings.PAGE).write_text("r = 0.99\n")
    assert command.main(["findings", "made", *given]) == 1
    for name, said in (
        ("none", "run the study first"),
        ("../../etc", "leaves the folder"),
    ):
        assert command.main(["findings", name, *given]) == 2
        assert said in capsys.readouterr().err
    (folder / "tables/primary.csv").write_text("measure,baseline\niou,False\n")
    assert command.main(["findings", "made", *given]) == 2
    assert "lacks what" in capsys.readouterr().err
    (folder / "tables/primary.csv").unlink()
    (folder / "tables/catalogue.csv").unlink()
    assert command.main(["findings", "made", "--write", *given]) == 0
    assert "trains no networks" in capsys.readouterr().out

"""FINDINGS.md: short, of the tables' numbers alone, checked against them; names in it are text."""

import re

import pandas as pd
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


def test_the_page_holds_answer_tables_and_folded_parts_without_empty_ones(folder):
    found = findings.of_report(folder)
    primary = findings.read(folder)["primary"]
    titles = [part.title for part in found.parts]
    assert titles[0] == "What predicts the gap, baselines first"
    assert titles[1].endswith("24 pretrained, 12 from scratch")
    row = primary.iloc[-2]
    interval = f"{row['r_gap']:.2f} ({row['r_gap_low']:.2f} to {row['r_gap_high']:.2f})"
    assert interval in set(found.parts[0].table["r with the gap"])
    baselines = primary["baseline"].astype(bool)
    gaps = found.parts[0].table["gap of networks with larger values"]
    assert set(gaps[baselines]) == {"–"}
    assert set(gaps[~baselines]) <= {"smaller", "larger", "cannot tell"}
    unmet = [part for part in found.folded if part.title.startswith("Conditions")]
    gates = findings.read(folder)["gates"]
    assert len(unmet[0].table) == (~gates["passes"]).sum()
    assert "Error on other classes" not in "".join(part.title for part in found.folded)
    assert not findings.of_report(folder.parent / "none").folded


def test_a_study_of_ones_own_is_told_its_best_network_and_what_it_cannot_tell(folder):
    pd.DataFrame({"test_images": [500]}).to_csv(folder / "tables/images.csv")
    found = findings.of_report(folder)
    best = made.catalogue().sort_values("test_accuracy").iloc[-1]
    accuracy = 100 * best["test_accuracy"]
    assert f"has the highest test accuracy: {accuracy:.2g} %" in found.answer
    assert f"drops by {100 * best['gap']:.1f} points" in found.answer
    assert "of the other 35 networks are not told apart from it" in found.answer
    assert "larger values of these measures have smaller gaps" in found.answer
    assert "mixup accuracy" in found.answer
    assert "pretrained has, alone, r = " in found.answer
    assert "We varied training, not attention" in found.answer


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

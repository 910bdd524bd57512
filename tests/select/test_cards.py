from types import SimpleNamespace

import pandas as pd
import pytest

from helpers.select import cards
from helpers.select.ranking import PASSED_OVER, RANKED


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs/a.pt", "..", "", "a/b.pt", "<b>.pt", "x" * 500, "ü\n|`.pt", "\udcff.pt"])
def test_no_name_leaves_the_folder_of_cards(name, tmp_path):
    file = cards.file_name(name)
    assert (tmp_path / file).resolve().parent == tmp_path.resolve()
    assert not file.startswith(".")
    assert file.isascii()
    assert len(file) < 90
    assert file.endswith(".md")


def test_names_that_read_alike_have_cards_of_their_own():
    assert cards.file_name("a/b.pt") != cards.file_name("a b.pt")
    assert cards.file_name("a/b.pt") == cards.file_name("a/b.pt")


def test_the_first_checkpoints_alone_have_cards_where_no_more_are_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(cards, "card", lambda row, *given, **more: row["checkpoint"])
    ranking = pd.DataFrame({"checkpoint": ["no.txt", "a.pt", "b.pt", "c.pt"], "verdict": [PASSED_OVER, RANKED, RANKED, RANKED]})
    given = {"study": "s", "level": 0.8, "distance": ""}
    for most, names in ((2, ["a.pt", "b.pt"]), (None, ["a.pt", "b.pt", "c.pt"])):
        folder = tmp_path / str(most)
        folder.mkdir()
        verdict = SimpleNamespace(ranking=ranking)
        written = cards.write_cards(folder, verdict, pd.DataFrame({"checkpoint": names}), None, most=most, **given)
        assert list(written) == names == [path.read_text() for path in written.values()]
        assert len(list(folder.iterdir())) == len(names)

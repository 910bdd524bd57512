import pytest

from helpers.select import cards


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

"""Tables as a page shows them: headers, order, what is the same in all rows, and values."""

import pytest

from helpers.report.tables import column_header, table_content


def content(tmp_path, text, **options):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return table_content(path, **options)


@pytest.mark.parametrize(
    ("column", "header"),
    [
        ("train_loss", "training loss (nats)"),
        ("gap", "gap (fraction)"),
        ("batch_size", "batch size"),
        ("ssim_reached", "SSIM reached"),
        ("r_gap_low", "r with gap: 95 % from"),
        ("gap_low", "gap: from"),  # at a level that is chosen
        ("accuracy_high", "accuracy: to"),
        ("kendall_high", "Kendall τ: 95 % to"),
    ],
)
def test_a_header_is_in_words_with_its_unit(column, header):
    assert column_header(column) == header


def test_long_names_stand_last_and_what_is_the_same_in_all_rows_is_said_once(tmp_path):
    found = content(tmp_path, "model_id,status,gap,device\na@stop,complete,0.5,\nb@stop,complete,,\nc@stop,complete,-inf,\n")
    assert found == {
        "header": ["gap (fraction)", "model id"],
        "rows": [[0.5, "a@stop"], [None, "b@stop"], ["-∞", "c@stop"]],
        "same": {"status": "complete"},
        "total": 3,
    }


def test_a_table_that_is_the_same_throughout_is_shown_all_the_same(tmp_path):
    found = content(tmp_path, "x\n1\n1\n1\n")
    assert (found["header"], found["rows"], found["same"]) == (["x"], [[1], [1], [1]], {})


def test_a_long_table_is_shown_in_part_and_counted_whole(tmp_path):
    found = content(tmp_path, "x,y\n" + "".join(f"{k},{k / 7}\n" for k in range(12)), most=5)
    assert found["rows"] == [[k, pytest.approx(k / 7, rel=1e-5)] for k in range(5)]
    assert found["total"] == 12


@pytest.mark.parametrize("text", ["", "x,y\n"])
def test_a_table_without_rows_has_none(tmp_path, text):
    found = content(tmp_path, text)
    assert (found["rows"], found["total"]) == ([], 0)


def test_a_row_of_another_length_is_refused(tmp_path):
    with pytest.raises(ValueError):
        content(tmp_path, "x,y\n1,2\n1\n")

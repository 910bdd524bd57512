"""Tables for readers: the model first and short, two digits, exact numbers for sorting, names as text."""

import math
import re

import numpy as np
import pandas as pd
import pytest

from helpers.files import DamagedFileError
from helpers.report import tables
from tests.report import made


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *[
            (0.8778, "0.88"),
            (0.000123, "0.00012"),
            (-0.5, "-0.50"),
            (12.34, "12.3"),
            (12345.6, "12,346"),
            (99.8, "100"),
        ],
        *[(3.0, "3"), (7, "7"), (0, "0")],
        *[
            (math.nan, "–"),
            (math.inf, "∞"),
            (-math.inf, "−∞"),
            (None, "–"),
            (True, "yes"),
            (np.False_, "no"),
            ("a", "a"),
        ],
    ],
)
def test_two_digits(value, text):
    assert tables.two_digits(value) == text


def test_the_model_stands_first_by_its_short_name_and_long_names_last():
    models = made.catalogue()
    names = tables.model_names(models)
    shown = tables.arrange(models[["cell", "gap", "model_id"]], names)
    assert list(shown) == ["model", "gap (points)", "cell"]
    row = models.iloc[0]
    assert shown["model"][0] == names[row["model_id"]]
    assert shown["model"][0].startswith("ResNet18, pretrained, augmented, adam 0.001")
    assert len(set(names.values())) == len(models)
    assert (
        tables.arrange(pd.DataFrame({"model_id": ["unknown"]}), names)["model"][0]
        == "unknown"
    )
    estimate = {
        "r_gap": [-0.21],
        "r_gap_low": [-0.58],
        "r_gap_high": [0.2],
        "r_gap_null": [0.0],
        "gap": [0.432],
    }
    shown = tables.html(pd.DataFrame({"measure": ["iou"], "title": ["IoU"]} | estimate))
    heads = re.findall("<th>(.*)</th>", shown)
    assert heads == ["measure", "r with the gap", "gap (points)"]
    assert ">-0.21 (-0.58 to 0.20)</td>" in shown
    assert ">43.2</td>" in shown


def test_html_says_constants_once_and_takes_names_as_text():
    frame = pd.DataFrame(
        {
            "name": [made.HOSTILE, "b", "c"],
            "value": [0.123456789, 2.0, math.nan],
            "same": 5,
        }
    )
    text = tables.html(frame)
    assert re.findall("<td>(.*)</td>", text)[1::2] == ["0.12", "2", "–"]
    assert made.HOSTILE not in text
    assert "&lt;b&gt;x" in text
    assert "<th>same</th>" not in text
    assert "The same in all rows: same 5." in text
    assert "The same" not in tables.html(pd.DataFrame({"a": [1] * 5}))


def test_a_column_is_called_constant_by_all_rows_and_ten_are_shown_at_most():
    frame = pd.DataFrame({"a": [1] * 999 + [2], "b": range(1000)})
    text = tables.html(frame, rows=20)
    assert text.count("<tr>") == tables.MOST_ROWS
    assert "The same" not in text
    assert tables.html(frame, rows=3).count("<tr>") == 3


def test_what_is_not_there_is_none_and_what_is_damaged_is_named(tmp_path):
    (tmp_path / "tables").mkdir()
    assert tables.read(tmp_path, "a") is None
    (tmp_path / "tables/empty.csv").write_text("\n")
    assert tables.read(tmp_path, "empty") is None  # no column, so no table
    (tmp_path / "tables/a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DamagedFileError, match=r"a\.parquet"):
        tables.read(tmp_path, "a", ".parquet")
    with pytest.raises(ValueError, match="leaves the folder"):
        tables.read(tmp_path, "../../a")

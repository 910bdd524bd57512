"""Tables for readers: short names of models, two digits, names as text."""

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
        *((0.8778, "0.88"), (0.000123, "0.00012"), (-0.5, "-0.50"), (12.34, "12.3")),
        *((12345.6, "12,346"), (99.8, "100"), (3.0, "3"), (7, "7"), (0, "0")),
        *((math.nan, "–"), (None, "–"), (math.inf, "inf"), (1.2e30, "1.2e+30")),
        *((True, "yes"), (np.False_, "no"), ("a", "a")),
    ],
)
def test_numbers_have_two_digits(value, text):
    assert tables.two_digits(value) == text


def test_models_have_their_short_names_and_what_is_for_files_is_not_shown():
    models = made.catalogue()
    names = tables.model_names(models)
    shown = tables.texts(models[["model_id", "gap", "cell"]], names)
    assert list(shown) == ["model", "gap (points)"]
    assert shown["model"][0].startswith("ResNet18, pretrained, augmented, adam 0.001")
    assert len(set(shown["model"])) == len(models)
    unknown = tables.texts(pd.DataFrame({"model_id": ["unknown"]}), names)
    assert unknown.iat[0, 0] == "unknown"


def test_a_value_and_its_ends_are_one_text_in_shown_units():
    estimate = {"measure": "iou", "title": "IoU", "kind": "resnet18 scratch plain"}
    estimate |= {"r_gap": -0.21, "r_gap_low": -0.58, "r_gap_high": 0.2}
    estimate |= {"pearson_r": 0.5, "ci_low": math.nan, "ci_high": math.nan}
    estimate |= {"gap": 0.432, "gap_least": 0.1, "gap_most": 0.5}
    table = pd.DataFrame([estimate])
    shown = tables.texts(table)
    assert list(tables.texts(table.iloc[:0])) == list(shown)
    assert shown.iloc[0].to_dict() == {
        "measure": "IoU",
        "kind": "ResNet18, from scratch",
        "r with the gap": "-0.21 (-0.58 to 0.20)",
        "Pearson's r": "0.50",
        "gap (points)": "43.2",
        **{"gap least (points)": "10", "gap most (points)": "50"},
    }


def test_html_says_constants_once_and_takes_names_as_text():
    values = [0.123456789, 2.0, math.nan]
    frame = pd.DataFrame({"name": [made.HOSTILE, "b", "c"], "value": values, "same": 5})
    text = tables.html(frame)
    assert re.findall("<td>(.*)</td>", text)[1::2] == ["0.12", "2", "–"]
    assert "<b>" not in text and "&lt;b&gt;x" in text
    assert "<th>same</th>" not in text
    assert "The same in all rows: same 5." in text
    assert "The same" not in tables.html(pd.DataFrame({"a": [1] * 5}))


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

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT
from helpers.statistics.published import number_beside, published_table


def test_every_table_of_print_says_where_it_stands():
    folder = PROJECT_ROOT / "helpers/statistics/published"
    sources = published_table("sources")
    tables = {path.stem for path in folder.glob("*.csv")} - {"sources"}
    assert set(sources["table"]) == tables and sources.notna().all(axis=None)


@pytest.mark.parametrize(
    ("query", "column", "numbers"),
    [
        ("measure == 'iou'", "pearson_r", (-0.5, -0.9)),
        ("measure == 'none'", "pearson_r", (np.nan, np.nan)),
        ("measure == 'iou'", "tau", (np.nan, np.nan)),
    ],
)
def test_a_number_stands_beside_that_of_its_row(tmp_path, query, column, numbers):
    (tmp_path / "tables").mkdir()
    columns = ["measure", "pearson_r", "published_r"]
    table = pd.DataFrame([("iou", -0.5, -0.9), ("iou_b", 0.9, -0.8)], columns=columns)
    table.to_csv(tmp_path / "tables/table3.csv", index=False)
    found = number_beside(tmp_path, "table3", query, column)
    np.testing.assert_equal(found, numbers)
    absent = number_beside(tmp_path, "table9", query, column)
    np.testing.assert_equal(absent, (np.nan, np.nan))

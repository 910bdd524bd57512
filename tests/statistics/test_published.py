import numpy as np
import pytest

from helpers.files import PROJECT_ROOT
from helpers.statistics.published import published_table
from helpers.training import config


def test_the_classes_and_the_grid_of_du():
    table = published_table("du2024_table1")
    assert (
        len(table),
        table["wnid"].nunique(),
        table["name"].nunique(),
        table["n"].sum(),
    ) == (20, 20, 20, 11_173)
    assert (table["n"].min(), table["n"].max()) == (
        421,
        925,
    )  # "450-925" in the text; the table prints 421 for the grey whale
    table = published_table("du2024_table2").set_index("hyperparameter")
    assert table["count"].prod() == 864 and tuple(table.index) == config.PAPER_AXES
    assert table["levels"].str.split(", ").str.len().tolist() == table["count"].tolist()


@pytest.mark.parametrize(
    ("number", "rows"), [(3, 5 * 5 * 4), (4, 5 * 4), (5, 5), (6, 3 * 4), (7, 2 * 4)]
)
def test_tables_of_du_are_tidy(number, rows):
    table = published_table(f"du2024_table{number}")
    assert len(table) == rows and not table.isna().any(axis=None)
    assert not table.duplicated(
        [name for name in ("method", "architecture", "threshold") if name in table]
    ).any()
    assert number == 5 or set(table["threshold"]) == {0.95, 0.90, 0.85, 0.80}
    if number > 5:  # rows repeated from table 3
        third = published_table("du2024_table3").query(
            "method == 'iou' and architecture == 'resnet18'"
        )["pearson_r"]
        own = table.loc[
            table["method"].isin(["grad_cam", "annotated_boxes"]), "pearson_r"
        ]
        assert own.tolist() == third.tolist()


@pytest.mark.parametrize(
    ("table", "row", "value"),
    [
        (
            "du2024_table3",
            {"method": "iou", "architecture": "resnet18", "threshold": 0.95},
            {"pearson_r": -0.9144},
        ),
        (
            "du2024_table3",
            {"method": "iou", "architecture": "Total", "threshold": 0.80},
            {"pearson_r": -0.8159},
        ),
        (
            "du2024_table3",
            {
                "method": "spectral_norm (raw)",
                "architecture": "resnet34",
                "threshold": 0.80,
            },
            {"pearson_r": 0.0424},
        ),
        (
            "du2024_table4",
            {"architecture": "resnet18", "threshold": 0.95},
            {"accuracy_percent": 76.10},
        ),
        ("du2024_table5", {"architecture": "Total"}, {"pearson_r": -0.0094}),
        (
            "du2024_table7",
            {"method": "saliency_masks", "threshold": 0.85},
            {"pearson_r": -0.8322},
        ),
        (
            "huang2025_table2",
            {"dataset": "imagenet", "family": "clip"},
            {"ssim": 0.874, "unseen_fraction": 0.285, "weights_millions": 116},
        ),
    ],
)
def test_values_are_those_of_print(table, row, value):
    found = published_table(table)
    found = found[
        np.logical_and.reduce([found[name] == level for name, level in row.items()])
    ]
    assert found[list(value)].to_dict("records") == [value]


def test_the_sign_errors_of_huang_of_which_18_are_counts_of_28_pairs():
    table = published_table("huang2025_table3")
    assert (
        len(table) == 3 * 2 * 2 * 2
        and not table.duplicated(["measure", "dataset", "axis", "statistic"]).any()
    )
    counts = 28 * table["sign_error"]
    assert (np.abs(counts - counts.round()) < 28 * 1e-6).sum() == 18


def test_every_table_of_print_says_where_it_stands():
    tables, sources = (
        {
            path.stem
            for path in (PROJECT_ROOT / "helpers/statistics/published").glob("*.csv")
        },
        published_table("sources"),
    )
    assert set(sources["table"]) == tables - {"sources"} and sources.notna().all(
        axis=None
    )

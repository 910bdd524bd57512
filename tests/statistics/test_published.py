import numpy as np
import pytest

from helpers import grid, published


def test_table_1_holds_20_classes_of_11173_images():
    table = published.du2024_table1()
    assert table.columns.tolist() == ["wnid", "name", "n"]
    assert (len(table), table["wnid"].nunique(), table["name"].nunique()) == (20, 20, 20)
    assert table["n"].sum() == 11_173
    assert (table["n"].min(), table["n"].max()) == (421, 925)  # "450-925" in the text; the table prints 421 for the grey whale
    assert table["wnid"].str.fullmatch(r"n\d{8}").all()
    assert table.set_index("wnid").loc["n02129604"].tolist() == ["tiger", 542]


def test_table_2_is_the_grid_of_864_in_our_names():
    table = published.du2024_table2().set_index("hyperparameter")
    assert table["count"].prod() == 864
    assert tuple(table.index) == grid.PAPER_AXES
    assert table.loc["learning_rate", "levels"] == "0.125, 0.00125, 1.25e-05"
    assert table["levels"].str.split(", ").str.len().tolist() == table["count"].tolist()


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        (published.du2024_table3, 5 * 5 * 4),
        (published.du2024_table4, 5 * 4),
        (published.du2024_table5, 5),
        (published.du2024_table6, 3 * 4),
        (published.du2024_table7, 2 * 4),
    ],
)
def test_tables_are_tidy(table, rows):
    frame = table()
    assert len(frame) == rows
    assert not frame.isna().any(axis=None)
    keys = [name for name in ("method", "architecture", "threshold") if name in frame]
    assert not frame.duplicated(keys).any()
    assert set(frame["architecture"]) <= {*published.ARCHITECTURES, "Total"}
    if "threshold" in frame:
        assert set(frame["threshold"]) == {0.95, 0.90, 0.85, 0.80}
    if "pearson_r" in frame:
        assert frame["pearson_r"].abs().max() < 1


@pytest.mark.parametrize(
    ("method", "architecture", "threshold", "value"),
    [
        ("iou", "resnet18", 0.95, -0.9144),
        ("iou", "Total", 0.80, -0.8159),
        ("iou_b", "resnet50", 0.85, -0.8131),
        ("effective_invariance", "resnet101", 0.90, -0.8021),
        ("nuclear_norm", "resnet101", 0.80, -0.489),
        ("nuclear_norm", "resnet34", 0.95, -0.4963),
        ("spectral_norm", "resnet34", 0.80, 0.0424),
    ],
)
def test_values_of_table_3(method, architecture, threshold, value):
    table = published.du2024_table3().set_index(["method", "architecture", "threshold"])["pearson_r"]
    assert table.loc[(method, architecture, threshold)] == value


def test_table_3_is_negative_but_for_the_complexity():
    table = published.du2024_table3()
    assert ((table["pearson_r"] > 0) == (table["method"] == "spectral_norm")).all()


def test_values_of_the_other_tables():
    fourth = published.du2024_table4().set_index(["architecture", "threshold"])["accuracy_percent"]
    assert (fourth.loc[("resnet18", 0.95)], fourth.loc[("Total", 0.80)]) == (76.10, 73.82)
    assert fourth.between(50, 100).all()
    fifth = published.du2024_table5().set_index("architecture")["pearson_r"]
    assert (fifth["resnet50"], fifth["Total"]) == (0.2246, -0.0094)
    sixth = published.du2024_table6().set_index(["method", "threshold"])["pearson_r"]
    assert sixth.loc[("grad_cam_plus_plus", 0.80)] == -0.8879
    assert sixth.loc[("smooth_grad_cam_plus_plus", 0.90)] == -0.8873
    seventh = published.du2024_table7().set_index(["method", "threshold"])["pearson_r"]
    assert seventh.loc[("saliency_masks", 0.85)] == -0.8322


def test_rows_repeated_from_table_3_are_equal_to_it():
    third = published.du2024_table3().query("method == 'iou' and architecture == 'resnet18'")["pearson_r"].to_numpy()
    for table, method in ((published.du2024_table6(), "grad_cam"), (published.du2024_table7(), "annotated_boxes")):
        np.testing.assert_array_equal(table.loc[table["method"] == method, "pearson_r"], third)

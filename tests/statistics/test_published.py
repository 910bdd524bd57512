import numpy as np
import pytest

from helpers.files import PROJECT_ROOT
from helpers.statistics.published import published_table
from helpers.training import config


def test_table_1_holds_20_classes_of_11173_images():
    table = published_table("du2024_table1")
    assert table.columns.tolist() == ["wnid", "name", "n"]
    assert (len(table), table["wnid"].nunique(), table["name"].nunique()) == (20, 20, 20)
    assert table["n"].sum() == 11_173
    assert (table["n"].min(), table["n"].max()) == (421, 925)  # "450-925" in the text; the table prints 421 for the grey whale
    assert table["wnid"].str.fullmatch(r"n\d{8}").all()
    assert table.set_index("wnid").loc["n02129604"].tolist() == ["tiger", 542]


def test_table_2_is_the_grid_of_864_in_our_names():
    table = published_table("du2024_table2").set_index("hyperparameter")
    assert table["count"].prod() == 864
    assert tuple(table.index) == config.PAPER_AXES
    assert table.loc["learning_rate", "levels"] == "0.125, 0.00125, 1.25e-05"
    assert table["levels"].str.split(", ").str.len().tolist() == table["count"].tolist()


@pytest.mark.parametrize(
    ("table", "rows"),
    [
        ("du2024_table3", 5 * 5 * 4),
        ("du2024_table4", 5 * 4),
        ("du2024_table5", 5),
        ("du2024_table6", 3 * 4),
        ("du2024_table7", 2 * 4),
    ],
)
def test_tables_are_tidy(table, rows):
    frame = published_table(table)
    assert len(frame) == rows
    assert not frame.isna().any(axis=None)
    keys = [name for name in ("method", "architecture", "threshold") if name in frame]
    assert not frame.duplicated(keys).any()
    assert set(frame["architecture"]) <= {"resnet18", "resnet34", "resnet50", "resnet101", "Total"}
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
        ("spectral_norm (raw)", "resnet34", 0.80, 0.0424),
    ],
)
def test_values_of_table_3(method, architecture, threshold, value):
    table = published_table("du2024_table3").set_index(["method", "architecture", "threshold"])["pearson_r"]
    assert table.loc[(method, architecture, threshold)] == value


def test_table_3_is_negative_but_for_the_complexity():
    table = published_table("du2024_table3")
    assert ((table["pearson_r"] > 0) == (table["method"] == "spectral_norm (raw)")).all()


def test_values_of_the_other_tables():
    fourth = published_table("du2024_table4").set_index(["architecture", "threshold"])["accuracy_percent"]
    assert (fourth.loc[("resnet18", 0.95)], fourth.loc[("Total", 0.80)]) == (76.10, 73.82)
    assert fourth.between(50, 100).all()
    fifth = published_table("du2024_table5").set_index("architecture")["pearson_r"]
    assert (fifth["resnet50"], fifth["Total"]) == (0.2246, -0.0094)
    sixth = published_table("du2024_table6").set_index(["method", "threshold"])["pearson_r"]
    assert sixth.loc[("grad_cam_plus_plus", 0.80)] == -0.8879
    assert sixth.loc[("smooth_grad_cam_plus_plus", 0.90)] == -0.8873
    seventh = published_table("du2024_table7").set_index(["method", "threshold"])["pearson_r"]
    assert seventh.loc[("saliency_masks", 0.85)] == -0.8322


def test_rows_repeated_from_table_3_are_equal_to_it():
    third = published_table("du2024_table3").query("method == 'iou' and architecture == 'resnet18'")["pearson_r"].to_numpy()
    for table, method in ((published_table("du2024_table6"), "grad_cam"), (published_table("du2024_table7"), "annotated_boxes")):
        np.testing.assert_array_equal(table.loc[table["method"] == method, "pearson_r"], third)


def test_table_1_holds_5_clip_networks_and_8_efficientnets_by_size():
    table = published_table("huang2025_table1")
    assert table.groupby("family")["model"].nunique().to_dict() == {"clip": 5, "efficientnet": 8}
    assert table.groupby("family")["weights_millions"].apply(lambda sizes: sizes.is_monotonic_increasing).all()
    sizes = table.set_index("model")["weights_millions"]
    assert (sizes["RN50"], sizes["RN50x64"], sizes["efficientnet_b0"], sizes["efficientnet_b7"]) == (38, 420, 5.3, 66)


def test_table_2_has_a_point_per_dataset_and_family_within_the_measured_box():
    table = published_table("huang2025_table2").merge(
        published_table("huang2025_table1").groupby("family")["weights_millions"].agg(["min", "max"]), on="family"
    )
    assert len(table) == 4 and not table.duplicated(["dataset", "family"]).any()
    assert set(table["dataset"]) == {"imagenet", "cifar100"} and set(table["family"]) == {"clip", "efficientnet"}
    assert table["ssim"].between(0.6, 1).all() and table["unseen_fraction"].between(0, 0.5).all()
    assert table["weights_millions"].between(table["min"], table["max"]).all()


@pytest.mark.parametrize(
    ("dataset", "family", "values"),
    [
        ("imagenet", "clip", [0.279, 0.276, 0.874, 0.285, 116]),
        ("imagenet", "efficientnet", [0.284, 0.280, 0.805, 0.295, 20]),
        ("cifar100", "clip", [0.657, 0.668, 0.949, 0.182, 163]),
        ("cifar100", "efficientnet", [0.600, 0.608, 0.937, 0.258, 22]),
    ],
)
def test_values_of_table_2(dataset, family, values):
    assert published_table("huang2025_table2").set_index(["dataset", "family"]).loc[(dataset, family)].tolist() == values


def test_table_3_is_tidy():
    table = published_table("huang2025_table3")
    keys = ["measure", "dataset", "axis", "statistic"]
    assert len(table) == 3 * 2 * 2 * 2 and not table.duplicated(keys).any() and not table.isna().any(axis=None)
    assert table["sign_error"].between(0, 1).all()
    assert (table.groupby(["dataset", "axis"])["p_value"].nunique() == 1).all()


def test_18_values_of_table_3_are_counts_of_28_pairs():
    counts = 28 * published_table("huang2025_table3")["sign_error"]
    assert (np.abs(counts - counts.round()) < 28 * 1e-6).sum() == 18


@pytest.mark.parametrize(
    ("measure", "dataset", "axis", "statistic", "value", "p_value"),
    [
        ("INVERSE_MARGIN", "imagenet", "unseen_fraction", "error_mean", 0.428571, 4.718e-10),
        ("LOG_SUM_OF_FRO", "cifar100", "unseen_fraction", "error_10th_percentile", 0.607143, 8.786e-10),
        ("LOG_SUM_OF_FRO", "imagenet", "ssim", "error_10th_percentile", 0.821429, 1.207e-10),
        ("PARAM_NORM", "cifar100", "ssim", "error_mean", 0.10, 1.504e-10),
        ("PARAM_NORM", "imagenet", "ssim", "error_mean", 0.785714, 1.207e-10),
    ],
)
def test_values_of_table_3_kappa_published(measure, dataset, axis, statistic, value, p_value):
    table = published_table("huang2025_table3").set_index(["measure", "dataset", "axis", "statistic"]).sort_index()
    assert table.loc[(measure, dataset, axis, statistic)].tolist() == [value, p_value]


def test_every_table_of_print_says_where_it_stands_and_what_it_holds():
    tables = {path.stem for path in (PROJECT_ROOT / "helpers/statistics/published").glob("*.csv")}
    sources = published_table("sources")
    assert set(sources["table"]) == tables - {"sources"}
    assert sources.notna().all(axis=None)


def test_an_unknown_table_is_refused_with_those_that_there_are():
    with pytest.raises(ValueError, match=r"^no published table is called '\.\./x'; there are du2024_table1, "):
        published_table("../x")

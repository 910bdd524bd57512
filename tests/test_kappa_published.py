import numpy as np
import pytest

from helpers import kappa_published as published


def test_the_citation_names_the_paper():
    assert "Scientific Reports 2025, 15, 9747" in published.CITATION


def test_table_1_holds_5_clip_networks_and_8_efficientnets_by_size():
    table = published.huang2025_table1()
    assert table.groupby("family")["model"].nunique().to_dict() == {"clip": 5, "efficientnet": 8}
    assert table.groupby("family")["weights_millions"].apply(lambda sizes: sizes.is_monotonic_increasing).all()
    sizes = table.set_index("model")["weights_millions"]
    assert (sizes["RN50"], sizes["RN50x64"], sizes["efficientnet_b0"], sizes["efficientnet_b7"]) == (38, 420, 5.3, 66)


def test_table_2_has_a_point_per_dataset_and_family_within_the_measured_box():
    table = published.huang2025_table2().merge(
        published.huang2025_table1().groupby("family")["weights_millions"].agg(["min", "max"]), on="family"
    )
    assert len(table) == 4 and not table.duplicated(["dataset", "family"]).any()
    assert set(table["dataset"]) == set(published.DATASETS) and set(table["family"]) == set(published.FAMILIES)
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
    assert published.huang2025_table2().set_index(["dataset", "family"]).loc[(dataset, family)].tolist() == values


def test_table_3_is_tidy():
    table = published.huang2025_table3()
    keys = ["measure", "dataset", "axis", "statistic"]
    assert len(table) == 3 * 2 * 2 * 2 and not table.duplicated(keys).any() and not table.isna().any(axis=None)
    assert table["sign_error"].between(0, 1).all()
    assert (table.groupby(["dataset", "axis"])["p_value"].nunique() == 1).all()


def test_18_values_of_table_3_are_counts_of_28_pairs():
    counts = 28 * published.huang2025_table3()["sign_error"]
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
def test_values_of_table_3(measure, dataset, axis, statistic, value, p_value):
    table = published.huang2025_table3().set_index(["measure", "dataset", "axis", "statistic"]).sort_index()
    assert table.loc[(measure, dataset, axis, statistic)].tolist() == [value, p_value]

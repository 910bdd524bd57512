import numpy as np
import pandas as pd
import pytest

from helpers.kappa import statistics, tables, tradeoff
from tests.kappa.conftest import classes_of, uneven_grid


@pytest.fixture(scope="module")
def cells():
    return statistics.cells_of(classes_of())


def test_table_2_has_the_papers_rows_with_intervals_beside_the_published_numbers():
    point = tradeoff.trade_off_point(*uneven_grid(0))
    shifts = [0, *np.linspace(-1, 1, 401)]
    rows = pd.DataFrame([pd.Series(point) + shift for shift in shifts])
    table = tables.table2({"clip": rows}, 8).set_index("quantity")
    weights = table.loc["weights_millions"]
    assert weights["value"] == pytest.approx(point["weights"] / 1e6)
    assert weights["high"] == pytest.approx((point["weights"] + 0.95) / 1e6)
    others = table.drop("weights_millions")
    np.testing.assert_allclose(others["low"], others["value"] - 0.95)
    assert table["published_cifar100_efficientnet"].dropna().to_dict() == {
        "generalization_bound": 0.6,
        "diversity_bound": 0.608,
        "ssim": 0.937,
        "unseen_fraction": 0.258,
        "weights_millions": 22.0,
    }
    few = tables.table2({"clip": rows}, 7)
    assert few[["low", "high"]].isna().all(axis=None) and few["value"].notna().all()


def test_table_3_puts_the_published_measures_and_their_p_values_beside_ours(cells):
    complexities = pd.DataFrame({"param_norm": [1, 2], "l2": [2, 1]}, index=["a", "b"])
    table = tables.table3({"all": statistics.sign_errors(complexities, cells)})
    assert len(table) == 2 * 4
    rows = table.set_index(["measure", "slice"])
    row = rows.loc["param_norm", "error_mean_over_unseen_fraction"]
    assert row["published_imagenet"] == 0.366667
    assert row["published_cifar100"] == 0.714286
    assert row["published_p_imagenet"] == 4.718e-10
    assert row["published_p_cifar100"] == 8.786e-10
    assert rows.loc["l2", "published_imagenet"].isna().all()


def test_networks_stand_by_size_with_slices_and_the_divergence_of_cells_not_clean():
    models = [("a", "clip", 5.0), ("b", "clip", 1.0), ("c", "clip", 2.0)]
    classes = classes_of((*models, ("d", "other", 1.0)))
    shift = classes["model"].map({"a": 0.0, "b": 0.3, "c": 0.1, "d": 0.0})
    cells = statistics.cells_of(classes.assign(error=classes["error"] + shift))
    table = tables.networks(cells).set_index("model")
    assert table.index.tolist() == ["b", "c", "a", "d"]
    assert table["weights_millions"].tolist() == [1.0, 2.0, 5.0, 1.0]
    # Classes err by 0.1 to 0.4, and at half added classes by 0.05 more.
    mean = table["error_mean_over_unseen_fraction"]
    assert mean["a"] == pytest.approx(0.25 + 0.025)
    assert mean["b"] == pytest.approx(0.25 + 0.025 + 0.3)
    of_a = cells[cells["model"] == "a"]["divergence"]  # 0 in one of its four cells
    assert table.loc["a", "divergence"] == pytest.approx(of_a.sum() / 3)

import numpy as np
import pandas as pd
import pytest

from helpers.kappa import probing, statistics, tables, tradeoff
from helpers.kappa.intervals import Spread, readings
from tests.kappa.conftest import grid


@pytest.fixture(scope="module")
def cells():
    return probing.cells(grid())


def test_networks_stand_beside_the_published_sizes(cells):
    networks = tables.beside_table1(cells.assign(model=cells["model"].map({"a": "efficientnet_b0", "b": "RN50"})))
    assert networks.set_index("model")["published_weights_millions"].to_dict() == {"efficientnet_b0": 5.3, "RN50": 38.0}
    assert networks["weights_millions"].tolist() == [5.0, 20.0]


def spread_of(point, shifts):
    """A spread whose draws are the point shifted."""
    row = readings(point) | {axis: getattr(point, axis) for axis in statistics.AXES} | {"F": point.F}
    return Spread(pd.DataFrame([{name: value + shift for name, value in row.items()} for shift in shifts]), pd.DataFrame(), pd.DataFrame())


def test_table_2_has_the_papers_rows_with_intervals_beside_the_published_numbers(cells):
    point = tradeoff.trade_off_point(tradeoff.fit_surface(cells), 0.5)
    shifts = np.linspace(-1, 1, 401)
    table = tables.beside_table2({"clip": point}, {"clip": spread_of(point, shifts)}, 8).set_index("quantity")
    assert table.loc["generalization_bound", "value"] == point.generalization_bound.mean
    assert table.loc["diversity_bound_by_ssim", "value"] == point.diversity_bound.ssim
    assert table.loc["weights_millions", "value"] == pytest.approx(point.weights / 1e6)
    assert table.loc["weights_millions", "high"] == pytest.approx((point.weights + 0.95) / 1e6)
    np.testing.assert_allclose(table["low"].drop("weights_millions"), table["value"].drop("weights_millions") - 0.95)
    published = {"generalization_bound": 0.6, "diversity_bound": 0.608, "ssim": 0.937, "unseen_fraction": 0.258, "weights_millions": 22.0}
    assert table["published_cifar100_efficientnet"].dropna().to_dict() == published
    assert list(table.index[:4]) == ["generalization_bound", *(f"generalization_bound_by_{axis}" for axis in statistics.AXES)]


def test_too_few_classes_leave_table_2_without_intervals(cells):
    point = tradeoff.trade_off_point(tradeoff.fit_surface(cells))
    table = tables.beside_table2({"clip": point}, {"clip": spread_of(point, [0.0, 1.0])}, 7)
    assert table[["low", "high"]].isna().all(axis=None) and table["value"].notna().all()


def test_table_3_puts_the_three_published_measures_and_their_p_values_beside_ours(cells):
    complexities = pd.DataFrame({"param_norm": [1.0, 2.0], "l2": [2.0, 1.0]}, index=["a", "b"])
    table = tables.beside_table3({"all": statistics.slice_sign_errors(complexities, cells)})
    assert len(table) == 2 * 4
    row = table[(table["measure"] == "param_norm") & (table["slice"] == "error_mean_over_unseen_fraction")].iloc[0]
    assert (row["published_imagenet"], row["published_cifar100"]) == (0.366667, 0.714286)
    assert (row["published_p_imagenet"], row["published_p_cifar100"]) == (4.718e-10, 8.786e-10)
    assert table.loc[table["measure"] == "l2", "published_imagenet"].isna().all()

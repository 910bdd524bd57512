import numpy as np
import pandas as pd
import pytest

from helpers.kappa import report, statistics, tradeoff
from helpers.kappa.intervals import Spread
from tests.kappa.conftest import classes_of


@pytest.fixture(scope="module")
def cells():
    return statistics.cells_of(classes_of())


def spread_of(point, shifts):
    """A spread whose draws are the point shifted."""
    return Spread(
        pd.DataFrame(
            [{name: value + shift for name, value in point.items()} for shift in shifts]
        ),
        pd.DataFrame(),
        pd.DataFrame(),
    )


def test_table_2_has_the_papers_rows_with_intervals_beside_the_published_numbers(cells):
    point = tradeoff.trade_off_point(*statistics.cell_array(cells), 0.5)
    table = report.table2(
        {"clip": point}, {"clip": spread_of(point, np.linspace(-1, 1, 401))}, 8
    ).set_index("quantity")
    assert table.loc["generalization_bound", "value"] == point["generalization_bound"]
    assert table.loc["weights_millions", "value"] == pytest.approx(
        point["weights"] / 1e6
    )
    assert table.loc["weights_millions", "high"] == pytest.approx(
        (point["weights"] + 0.95) / 1e6
    )
    np.testing.assert_allclose(
        table["low"].drop("weights_millions"),
        table["value"].drop("weights_millions") - 0.95,
    )
    published = {
        "generalization_bound": 0.6,
        "diversity_bound": 0.608,
        "ssim": 0.937,
        "unseen_fraction": 0.258,
        "weights_millions": 22.0,
    }
    assert table["published_cifar100_efficientnet"].dropna().to_dict() == published
    assert list(table.index[:4]) == [
        "generalization_bound",
        *(f"generalization_bound_by_{axis}" for axis in statistics.AXES),
    ]
    few = report.table2({"clip": point}, {"clip": spread_of(point, [0.0, 1.0])}, 7)
    assert few[["low", "high"]].isna().all(axis=None) and few["value"].notna().all()


def test_table_3_puts_the_three_published_measures_and_their_p_values_beside_ours(
    cells,
):
    complexities = pd.DataFrame(
        {"param_norm": [1.0, 2.0], "l2": [2.0, 1.0]}, index=["a", "b"]
    )
    table = report.table3({"all": statistics.sign_errors(complexities, cells)})
    assert len(table) == 2 * 4
    row = table[
        (table["measure"] == "param_norm")
        & (table["slice"] == "error_mean_over_unseen_fraction")
    ].iloc[0]
    assert (row["published_imagenet"], row["published_cifar100"]) == (
        0.366667,
        0.714286,
    )
    assert (row["published_p_imagenet"], row["published_p_cifar100"]) == (
        4.718e-10,
        8.786e-10,
    )
    assert table.loc[table["measure"] == "l2", "published_imagenet"].isna().all()


def moved(**networks):
    """Cells of networks at two levels of noise: clean error, noisy error, and divergence of the noisy cell."""
    rows = []
    for name, (clean, noisy, divergence) in networks.items():
        for ssim, error, far in ((1.0, clean, 0.0), (0.6, noisy, divergence)):
            rows.append(
                {
                    "family": "f",
                    "model": name,
                    "ssim": ssim,
                    "unseen_fraction": 0.0,
                    "error_mean": error,
                    "divergence": far,
                }
            )
            rows.append(rows[-1] | {"unseen_fraction": 0.5, "divergence": far + 2})
    return pd.DataFrame(rows)


def test_networks_stand_by_how_far_their_cells_move_beside_their_errors():
    table = report.stability(
        moved(good=(0.1, 0.9, 16.0), poor=(0.6, 0.9, 4.0), middle=(0.3, 0.8, 10.0))
    )
    assert table["model"].tolist() == ["poor", "middle", "good"]
    # The mean over the three cells other than the clean one: (4 + 2 + 6) / 3.
    assert table.loc[
        0, ["clean_error", "noisy_error", "divergence"]
    ].tolist() == pytest.approx([0.6, 0.9, 4.0])


def test_slices_stand_by_size():
    models = [("a", "clip", 5.0), ("b", "clip", 1.0), ("c", "clip", 2.0)]
    classes = classes_of((*models, ("d", "other", 1.0)))
    smaller = {"a": 0.0, "b": 0.3, "c": 0.1, "d": 0.0}
    shift = classes["model"].map(smaller)
    cells = statistics.cells_of(classes.assign(error=classes["error"] + shift))
    table = report.slices_by_size(cells)
    assert table["model"].tolist() == ["b", "c", "a", "d"]
    assert table["weights_millions"].tolist() == [1.0, 2.0, 5.0, 1.0]
    # Classes err by 0.1 to 0.4, and at half added classes by 0.05 more.
    mean = table.set_index("model")["error_mean_over_unseen_fraction"]
    assert mean["a"] == pytest.approx(0.25 + 0.025)
    assert mean["b"] == pytest.approx(0.25 + 0.025 + 0.3)


def test_shares_of_sign_errors_above_half_leave_out_ties_and_undefined_ones():
    table = pd.DataFrame(
        {
            "family": ["f"] * 5 + ["g"],
            "slice": ["s"] * 4 + ["t", "s"],
            "sign_error": [0.5, 0.6, 0.2, np.nan, 0.9, np.nan],
        }
    )
    shares = report.sign_error_shares(table)
    assert shares.values.tolist() == [
        ["f", "s", 3, pytest.approx(1 / 3)],
        ["f", "t", 1, 1.0],
    ]


def test_a_family_has_the_means_of_its_grid_and_the_divergence_of_cells_not_clean(
    cells,
):
    sizes = statistics.averaged(cells)
    shares = pd.DataFrame(
        {"family": ["clip"] * 2, "measures": [3, 1], "share_above_half": [1 / 3, 1.0]}
    )
    table = report.families(sizes, shares).set_index("family")
    assert table["networks"].to_dict() == {"efficientnet": 1, "clip": 1}
    for name in statistics.CELL_STATISTICS:
        of_clip = [
            row[name] for row in sizes.to_dict("records") if row["family"] == "clip"
        ]
        assert table.loc["clip", name] == pytest.approx(sum(of_clip) / 4)
    far = sizes.query("family == 'clip' and (ssim < 1 or unseen_fraction > 0)")
    assert table.loc["clip", "divergence"] == pytest.approx(far["divergence"].sum() / 3)
    assert table.loc["clip", "sign_errors_above_half"] == pytest.approx(2 / 4)
    assert np.isnan(table.loc["efficientnet", "sign_errors_above_half"])

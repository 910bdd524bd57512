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


def test_the_most_stable_network_is_said_to_have_least_to_lose_where_that_is_so():
    table = report.stability(
        moved(good=(0.1, 0.9, 16.0), poor=(0.6, 0.9, 4.0), middle=(0.3, 0.8, 10.0))
    )
    assert table["model"].tolist() == ["poor", "middle", "good"]
    # The mean over the three cells other than the clean one: (4 + 2 + 6) / 3.
    assert table.loc[
        0, ["clean_error", "noisy_error", "divergence"]
    ].tolist() == pytest.approx([0.6, 0.9, 4.0])
    assert report.say_stability(table) == (
        "Least moves poor (4.00 nats; it errs in 60 % of clean images), most good (12.00 nats; it errs in 10 % of clean images). "
        "3 networks allow no correlation."
    )
    four = moved(
        good=(0.1, 0.2, 1.0),
        poor=(0.6, 0.9, 9.0),
        middle=(0.3, 0.8, 5.0),
        worst=(0.7, 0.9, 10.0),
    )
    assert "over 4 networks: 1.00;" in report.say_stability(report.stability(four))
    assert "Of one network alone" in report.say_stability(
        report.stability(moved(alone=(0.1, 0.9, 16.0)))
    )


def test_a_point_is_said_with_its_intervals_and_where_it_lies_on_an_edge(cells):
    point = {
        "generalization_bound": 0.7219,
        "diversity_bound": 0.5,
        "ssim": 0.6,
        "unseen_fraction": 0.25,
        "weights": 2e7,
        "F": 1.0,
    }
    point |= {
        f"{bound}_by_{axis}": 0.5
        for bound in tradeoff.BOUNDS
        for axis in statistics.AXES
    } | {"penalty": 1.0, "objective": 2.0}
    marginals = statistics.marginals(cells)
    rows = report.table2(
        {"clip": point}, {"clip": spread_of(point, np.linspace(-0.1, 0.1, 401))}, 8
    )
    said = report.say_point(rows, marginals, 0.5)
    assert (
        "SSIM 0.6 (0.505 to 0.695)" in said
        and "a mean error of 0.722 (0.627 to 0.817)" in said
    )
    assert said.endswith("measured in SSIM and weights.")
    said = report.say_point(rows.replace({"value": {0.6: 1.0}}), marginals, 1)
    assert (
        "on clean images: no noise is affordable here" in said
        and "SSIM and" not in said
    )
    marginals = marginals[marginals["axis"] != "weights"]
    one_size = pd.concat(
        [marginals, pd.DataFrame({"axis": ["weights"], "level": [2e7]})]
    )
    assert report.say_point(rows.assign(low=np.nan), one_size, 1).endswith(
        "measured in SSIM."
    ), "one size is no edge"

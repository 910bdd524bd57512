"""Numbers of a published study, recomputed from its tables by the functions of 06."""

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT, table_of
from helpers.kappa import statistics, tradeoff
from helpers.measures import registry

REPORT = PROJECT_ROOT / "reports/kappa_tiny20"


@pytest.fixture(scope="module")
def cells():
    return pd.read_parquet(table_of(REPORT, "kappa_cells.parquet"))


def test_cells_are_those_of_the_published_classes(cells):
    classes = pd.read_parquet(table_of(REPORT, "kappa_classes.parquet"))
    classes = classes[classes["model"].isin(classes["model"].unique()[:2])]
    classes = classes.astype({"error": float, "kappa_loss": float})
    again = statistics.cells_of(classes)
    keys = ["model", "ssim", "unseen_fraction"]
    both = cells.merge(again, on=keys, suffixes=("", "_again"))
    assert len(both) == len(again) > 0
    for name in (*statistics.CELL_STATISTICS, "classes", "divergence"):
        atol = 0.2 if name == "divergence" else 1e-6  # float32 moves some into a bin
        np.testing.assert_allclose(both[f"{name}_again"], both[name], atol=atol)


def test_marginals_and_trade_off_points_are_the_published_ones(cells):
    names = ("marginals", "table2_tradeoff", "sensitivity")
    published = [pd.read_csv(table_of(REPORT, f"{name}.csv")) for name in names]
    axes, columns = list(statistics.AXES), list(statistics.CELL_STATISTICS)
    for family, part in cells.groupby("family"):
        means, points, moved = (rows[rows["family"] == family] for rows in published)
        table = part.set_index(axes)[columns].sort_index()
        levels = [np.array(of_axis, float) for of_axis in table.index.levels]
        grid = table.to_numpy().reshape(*map(len, levels), 6)
        again = tradeoff.marginals(levels, np.stack([grid, grid], axis=3), 20)
        np.testing.assert_allclose(again[columns], means[columns], rtol=1e-6)
        point = tradeoff.trade_off_point(levels, grid)
        point["weights_millions"] = point["weights"] / 1e6
        again = [point[name] for name in points["quantity"]]
        np.testing.assert_allclose(again, points["value"], rtol=1e-6)
        for row in moved.to_dict("records"):
            point = tradeoff.trade_off_point(levels, grid, row["lambda"])
            for name in ("F", *axes):
                assert point[name] == pytest.approx(row[name], rel=1e-6)


def test_sign_errors_are_the_published_ones(cells):
    scores = pd.read_csv(table_of(REPORT, "complexity_scores.csv"))
    scores = scores.fillna({"variant": ""})
    names = {"ResNet": "resnet", "MobileNetV": "mobilenet_v"}
    scores["model"] = scores["model"].replace(names, regex=True)
    ranked = registry.columns().query("direction != 0 and column == measure")
    known = scores.merge(ranked, on=["measure", "variant"]).eval(
        "complexity = -1 * direction * value"
    )
    complexities = known.pivot(index="model", columns="measure", values="complexity")
    published = pd.read_csv(table_of(REPORT, "table3_sign_error.csv"))
    errors = {
        name: statistics.sign_errors(complexities, part, draws=9)
        for name, part in cells.groupby("family")
    }
    keys = ["family", "measure", "slice"]
    both = published.merge(statistics.table3(errors), on=keys, suffixes=("", "_again"))
    assert both["measure"].nunique() > 30
    numbers = published.select_dtypes("number").columns.drop("mean_rank")
    assert published["published_p_imagenet"].notna().any()
    for name in numbers:
        np.testing.assert_allclose(both[f"{name}_again"], both[name], rtol=1e-6)


def test_slices_of_networks_are_the_published_ones(cells):
    published = pd.read_csv(table_of(REPORT, "slices.csv"))
    pd.testing.assert_frame_equal(statistics.networks(cells), published, rtol=1e-6)

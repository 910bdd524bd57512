"""Numbers of a published study, recomputed from its tables by the functions that notebook 06 calls."""

import numpy as np
import pandas as pd
import pytest

from helpers.files import PROJECT_ROOT, table_of
from helpers.kappa import statistics, tables, tradeoff
from helpers.measures import registry

REPORT = PROJECT_ROOT / "reports/kappa_tiny20"


@pytest.fixture(scope="module")
def cells():
    return pd.read_parquet(table_of(REPORT, "kappa_cells.parquet"))


def exact_kappa(cell):
    """Kappa of each class of a cell from counts, of which it was published in float32."""
    images = cell["n"].to_numpy(float)[:, None]
    false_negatives = (cell["error"].to_numpy()[:, None] * images).round()
    true_positives = images - false_negatives
    others = images.sum() - images
    # Of all numbers of false positives that whose Kappa is nearest to the published one.
    false_positives = np.arange(others.max() + 1)[None]
    true_negatives = others - false_positives
    chance = (true_positives + false_positives) * (false_positives + true_negatives)
    chance = chance + images * (false_negatives + true_negatives)
    both = true_positives * true_negatives - false_negatives * false_positives
    kappa = 2 * both / chance
    nearest = np.abs(kappa - cell["kappa"].to_numpy()[:, None]).argmin(1)
    return kappa[np.arange(len(cell)), nearest]


def test_cells_are_those_of_the_published_classes(cells):
    classes = pd.read_parquet(table_of(REPORT, "kappa_classes.parquet")).astype(
        {"error": float, "kappa": float}
    )
    classes = classes[classes["model"].isin(classes["model"].unique()[:2])]
    cells = cells[cells["model"].isin(classes["model"])].reset_index(drop=True)
    keys = ["model", "ssim", "unseen_fraction"]
    exact = [
        cell.assign(
            error=(cell["error"] * cell["n"]).round() / cell["n"],
            kappa_loss=1 - exact_kappa(cell),
        )
        for _, cell in classes.groupby(keys, sort=False)
    ]
    found = cells[keys].merge(statistics.cells_of(pd.concat(exact)), on=keys)
    for name in (*statistics.CELL_STATISTICS, "classes", "dropped"):
        np.testing.assert_allclose(found[name], cells[name], atol=1e-7)
    np.testing.assert_allclose(found["divergence"], cells["divergence"], atol=1e-6)


def test_marginals_and_trade_off_points_are_the_published_ones(cells):
    marginals, points, moved = (
        pd.read_csv(table_of(REPORT, f"{name}.csv"))
        for name in ("marginals", "table2_tradeoff", "sensitivity")
    )
    for family, part in statistics.averaged(cells).groupby("family"):
        grid, own = (
            statistics.cell_array(part),
            {
                name: table[table["family"] == family]
                for name, table in (("m", marginals), ("p", points))
            },
        )
        for name in statistics.CELL_STATISTICS:
            np.testing.assert_allclose(
                statistics.marginals(part)[name], own["m"][name], rtol=1e-6
            )
        point = tradeoff.trade_off_point(*grid, 1.0)
        point["weights_millions"] = point["weights"] / 1e6
        assert [point[name] for name in own["p"]["quantity"]] == pytest.approx(
            own["p"]["value"].tolist(), rel=1e-6
        )
        for row in moved[moved["family"] == family].to_dict("records"):
            found = tradeoff.trade_off_point(*grid, row["lambda"])
            assert [
                found[name] for name in ("F", "penalty", *statistics.AXES)
            ] == pytest.approx(
                [row[name] for name in ("F", "penalty", *statistics.AXES)], rel=1e-6
            )


def test_sign_errors_are_the_published_ones(cells):
    scores = pd.read_csv(table_of(REPORT, "complexity_scores.csv"))
    scores = scores.fillna({"variant": ""})
    scores["model"] = scores["model"].str.replace("ResNet", "resnet")
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
    both = published.merge(tables.table3(errors), on=keys, suffixes=("", "_again"))
    assert both["measure"].nunique() > 30
    np.testing.assert_allclose(both["sign_error_again"], both["sign_error"], rtol=1e-6)
    assert both["n_again"].equals(both["n"])

"""Tables of the ablations, on scores made so that every correlation is known."""

import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.ablations import report, tables
from helpers.ablations.compute import ATTRIBUTED, WAY
from helpers.cams import localize
from helpers.scoring.models import Model
from helpers.scoring.store import Records
from helpers.statistics.correlate import Bootstrap, kendall, of_table
from helpers.statistics.published import published_table
from helpers.statistics.reliability import reliability


def pearson(x, y):
    return np.corrcoef(np.asarray(x, float), np.asarray(y, float))[0, 1]


KEYS = [*WAY, "threshold", "subset"]
PAPER = {
    "method": "grad_cam",
    "formula": "correct",
    "class_used": "predicted",
    "annotation": "boxes",
    "part": "closed",
    "subset": "all",
}


@pytest.fixture
def models():
    rng, number = np.random.default_rng(0), np.arange(30)
    models = pd.DataFrame(
        {
            "model_id": [f"m{k:02d}" for k in number],
            "architecture": np.where(number % 3, "resnet18", "resnet34"),
        }
    )
    return models.assign(
        cell=number // 2,
        gap=rng.uniform(0.1, 0.9, 30),
        train_accuracy=rng.uniform(0.81, 1, 30),
    )


@pytest.fixture
def draws(models):
    return Bootstrap(models, draws=100, seed=0)


def setting(models, slope, seed, part="closed", **keys):
    """Rows of one setting for every model and two thresholds; IoU falls with the gap by the slope."""
    rng = np.random.default_rng(seed)
    fixed = {
        "method": "grad_cam",
        "formula": "correct",
        "layer": "layer4",
        "class_used": "predicted",
        "annotation": "boxes",
    }
    fixed |= {"image_size": 32, "subset": "all", "n": 100 if part == "closed" else 9}
    rows = []
    for threshold, factor in ((0.1, 1), (0.5, -1)):
        iou = (
            0.5
            - factor * slope * (models["gap"] - 0.5)
            + rng.normal(0, 0.02, len(models))
        )
        rows.append(
            pd.DataFrame(
                {"model_id": models["model_id"], "iou": iou, "threshold": threshold}
            )
        )
    table = pd.concat(rows).assign(**fixed | keys, part=part)
    return table.assign(
        of_paper=(table[list(PAPER)] == pd.Series(PAPER)).all(axis=1)
        & (table["threshold"] == 0.1)
    )


@pytest.fixture
def scores(models):
    few = {"part": "sampled"}
    parts = [
        {},
        {"annotation": "fine_grained", "n": 90},
        {"class_used": "true"},
        *(
            {"class_used": used, "subset": subset}
            for used in ("predicted", "true")
            for subset in ("correct", "wrong")
        ),
        {"method": "grad_cam_plus_plus"},
        {"method": "grad_cam_plus_plus", "formula": "torchcam"},
        {"method": "grad_cam_plus_plus", **few},
        {"method": "smooth_grad_cam_plus_plus", **few},
        {"method": "smooth_grad_cam_plus_plus", "formula": "torchcam", **few},
        {"method": "eigen_cam", "class_used": "none", **few},
        *(
            {"method": name, "layer": layer, **few}
            for layer, name in itertools.product(
                ("layer1", "layer4"), ("grad_cam", "layer_cam")
            )
        ),
        {"image_size": 16, **few},
    ]
    table = pd.concat(
        [setting(models, 0.3, seed, **keys) for seed, keys in enumerate(parts)],
        ignore_index=True,
    )
    return table[["model_id", *KEYS, "n", "iou", "part", "of_paper"]]


def iou_of(models, scores, **keys):
    chosen = scores[(scores[list(keys)] == pd.Series(keys)).all(axis=1)].set_index(
        "model_id"
    )["iou"]
    assert chosen.index.is_unique
    return chosen.reindex(models["model_id"]).to_numpy()


def test_correlations_are_those_of_the_statistics_and_a_missing_model_is_dropped(
    models, draws, scores
):
    paper = scores[
        (scores[list(PAPER)] == pd.Series(PAPER)).all(axis=1)
        & (scores["model_id"] != "m03")
    ]
    table = tables.correlations(draws, paper, ["threshold"])
    assert table["threshold"].tolist() == [0.1, 0.5]
    x, kept, row = (
        iou_of(models, scores, **PAPER, threshold=0.1),
        models["model_id"] != "m03",
        table.iloc[0],
    )
    assert row["pearson_r"] == pytest.approx(pearson(x[kept], models["gap"][kept]))
    assert row["kendall_tau"] == pytest.approx(
        of_table(kendall, x[kept][:, None], models["gap"][kept])[0]
    )
    assert (row["n"], row["dropped"], row["cells"], row["images"]) == (29, 1, 15, 100)
    assert (
        row["ci_low"]
        <= row["pearson_r"]
        <= row["ci_high"]
        < 0
        < table["pearson_r"].iloc[1]
    )


def test_no_choice_has_an_interval_of_drawn_images_that_others_have_not(models, scores):
    own = models.assign(
        iou=iou_of(models, scores, **PAPER, threshold=0.1),
        test_accuracy=models["train_accuracy"] - models["gap"],
    )
    images = {
        name: own[name].to_numpy()[:, None] + np.array([-0.3, -0.1, 0.1, 0.3])
        for name in ("iou", "test_accuracy")
    }
    of_models = Bootstrap(own, images, draws=50, seed=3)
    drawn, facts = tables.measures_by_choice(of_models, scores, [*KEYS, "part"])
    np.testing.assert_array_equal(drawn.weights, of_models.weights)
    assert (
        all(drawn.resampled(name) is None for name in facts["measure"])
        and drawn.resampled("gap") is not None
    )


def test_a_mean_of_a_handful_of_images_is_none(draws, scores):
    few = scores["model_id"].isin(["m00", "m01"]) & (scores["subset"] == "wrong")
    scores = scores.assign(
        n=scores["n"]
        .mask(few, tables.FEWEST_IMAGES - 1)
        .mask(scores["subset"] == "correct", tables.FEWEST_IMAGES)
    )
    own, facts = tables.measures_by_choice(draws, scores, [*KEYS, "part"])
    lacking = (
        own.models[facts["measure"]]
        .isna()
        .sum()
        .set_axis(facts["subset"])
        .groupby(level=0)
        .agg(["min", "max"])
    )
    assert lacking.loc["wrong"].tolist() == [2, 2] and lacking.loc[
        ["all", "correct"]
    ].eq(0).all(axis=None)


def test_table6_compares_on_the_same_images_beside_the_paper(models, draws, scores):
    table = tables.cam_methods(draws, scores, 0.1, [0.95, 0.8])
    ways = table.drop_duplicates(["method", "formula", "images"])
    # Closed forms on all images, then the others, beside Grad-CAM on the same few.
    assert ways["images"].tolist() == [100] * 3 + [9] * 4
    assert ways["method"].tolist() == [
        *("grad_cam", "grad_cam_plus_plus", "grad_cam_plus_plus", "grad_cam"),
        *["smooth_grad_cam_plus_plus"] * 2,
        "eigen_cam",
    ]
    assert len(table) == len(ways) * 3 * 2
    theirs = published_table("du2024_table6").set_index(["method", "threshold"])[
        "pearson_r"
    ]
    for row in table.itertuples():
        known = (
            row.architecture == "resnet18"
            and (row.method, row.threshold) in theirs.index
        )
        assert (
            (row.published_r == theirs[row.method, row.threshold])
            if known
            else np.isnan(row.published_r)
        )
    last = report.at_lowest_threshold(table).iloc[-len(ways) :]
    assert set(last["architecture"]) == {"Total"}
    row = last[(last["method"] == "grad_cam") & (last["images"] == 100)].iloc[0]
    assert row["pearson_r"] == pytest.approx(
        pearson(iou_of(models, scores, **PAPER, threshold=0.1), models["gap"])
    )


def test_intervals_of_table6_draw_the_scored_images_where_they_are_kept(
    models, draws, scores
):
    paper = {**PAPER, "threshold": 0.1}
    iou = iou_of(models, scores, **paper)
    noise = np.random.default_rng(1).normal(0, 0.3, (len(models), 40))
    single = iou[:, None] + noise - noise.mean(1, keepdims=True)
    first = ("grad_cam", "correct", "closed")
    with_images = tables.cam_methods(draws, scores, 0.1, [0.8], {first: single})
    without = tables.cam_methods(draws, scores, 0.1, [0.8])
    width = [
        (table["ci_high"] - table["ci_low"]).iloc[0] for table in (with_images, without)
    ]
    assert width[0] > 1.2 * width[1]
    other = (without["method"] != "grad_cam") | (without["images"] < 100)
    pd.testing.assert_frame_equal(with_images[other], without[other])


def test_table7_stands_beside_the_paper(models, draws, scores):
    table = tables.annotations(draws, scores, 0.1, [0.8])
    assert table["method"].unique().tolist() == ["annotated_boxes", "fine_grained"]
    assert table.groupby("method")["images"].first().to_dict() == {
        "annotated_boxes": 100,
        "fine_grained": 90,
    }
    mine = (
        table[table["architecture"] == "resnet18"]
        .set_index("method")["published_r"]
        .to_dict()
    )
    theirs = (
        published_table("du2024_table7")
        .query("threshold == 0.8")
        .set_index("method")["pearson_r"]
    )
    assert mine == {
        "annotated_boxes": theirs["annotated_boxes"],
        "fine_grained": theirs["saliency_masks"],
    }
    masks = iou_of(
        models, scores, **PAPER | {"annotation": "fine_grained"}, threshold=0.1
    )
    row = table[
        (table["architecture"] == "Total") & (table["method"] == "fine_grained")
    ].iloc[0]
    assert row["pearson_r"] == pytest.approx(pearson(masks, models["gap"]))


def test_every_threshold_of_every_way_stands_once(draws, scores):
    by_threshold = tables.by_threshold(draws, scores, 0.8, 0.1)
    by_threshold["way"] = report.row_titles(by_threshold)
    many = [
        "Grad-CAM, 100 images",
        "Grad-CAM, masks by fine grained, 90 images",
        "Grad-CAM++, 100 images",
    ]
    few = [
        "Smooth Grad-CAM++, 9 images",
        "Smooth Grad-CAM++ by torchcam, 9 images",
        "Eigen-CAM, 9 images",
    ]
    assert by_threshold["way"].unique().tolist() == [
        *many,
        "Grad-CAM++ by torchcam, 100 images",
        *few,
    ]
    known = by_threshold.dropna(subset="published_r")
    expected = ["Grad-CAM, 100 images", 0.1, tables.published_pooled(0.8)["iou"]]
    assert known[["way", "threshold", "published_r"]].to_numpy().tolist() == [expected]


def test_untrained_networks_stand_beside_the_trained_and_the_paper(models, scores):
    trained = Bootstrap(
        models.assign(iou=iou_of(models, scores, **PAPER, threshold=0.1)), draws=100
    )
    networks = pd.DataFrame(
        np.random.default_rng(1).normal(size=(40, 2)), columns=["gap", "iou"]
    )
    networks = networks.assign(
        model_id=range(40), architecture=["resnet18", "resnet34"] * 20
    )
    networks = networks.assign(train_images=9, train_accuracy=0.2, test_accuracy=0.2)
    table = tables.validity(networks, trained).set_index("architecture")
    assert table["n"].tolist() == [20, 20, 40]
    assert table.loc["Total", "pearson_r"] == pytest.approx(
        pearson(networks["iou"], networks["gap"])
    )
    assert table["trained_n"].tolist() == [20, 10, 30]
    theirs = published_table("du2024_table5").set_index("architecture")["pearson_r"]
    assert table.loc["resnet18", "published_r"] == theirs["resnet18"]
    # Fifty networks of each architecture; the paper has four.
    for name, freedom in (("resnet18", 50 - 3), ("Total", 4 * 50 - 3)):
        ends = table.loc[name, ["published_low", "published_high"]].astype(float)
        half_width = 1.96 / np.sqrt(freedom)
        assert (np.arctanh(ends) - np.arctanh(theirs[name])).tolist() == pytest.approx(
            [-half_width, half_width]
        )


@pytest.mark.parametrize(
    ("interval", "told"),
    [
        ((-0.1, 0.2), "nothing"),
        ((-0.3, 0.1), "cannot tell"),
        ((0.05, 0.1), "nothing"),
        ((0.1, 0.5), "something"),
    ],
)
def test_that_an_interval_contains_0_shows_nothing(interval, told):
    assert tables.equivalence_verdict(*interval) == told


def test_attributions_are_compared_with_grad_cam_on_the_same_images(models, tmp_path):
    rng, slopes = (
        np.random.default_rng(0),
        {"grad_cam": 1, "saliency": 0.02, "occlusion": -1},
    )
    kept = Records(
        {ATTRIBUTED: tmp_path}, [Model(name, load=None) for name in models["model_id"]]
    )
    costs = pd.DataFrame(
        {
            "method": list(slopes),
            "seconds": 0.5,
            "forward_passes": 1.0,
            "backward_passes": 0.0,
            "reason": "",
        }
    )
    for row in models.itertuples():
        single = {
            method: (-slope * row.gap + 0.01 * rng.normal(size=40)).astype(np.float32)
            for method, slope in slopes.items()
        }
        named = {
            f"{measure}, {method}": values
            for measure in localize.LESS_CHANCE
            for method, values in single.items()
        }
        kept.write(ATTRIBUTED, row.model_id, named | {"costs": costs})
    table = tables.attributions_compared(Bootstrap(models, draws=100), kept)
    assert table["measure"].unique().tolist() == list(localize.LESS_CHANCE)
    rows, stacked = (
        table[table["measure"] == "pointing_game"].set_index("method"),
        kept.stacked(ATTRIBUTED),
    )
    for method in slopes:
        values = stacked[f"pointing_game, {method}"]
        assert rows.loc[method, "pearson_r"] == pytest.approx(
            pearson(values.mean(1), models["gap"]), rel=1e-5
        )
        assert rows.loc[method, "reliability"] == pytest.approx(reliability(values))
        assert rows.loc[method, ["images", "n"]].tolist() == [40, 30]
    assert rows.loc[
        "grad_cam", ["minus_cam", "minus_cam_low", "minus_cam_high"]
    ].tolist() == [0, 0, 0]
    assert rows.loc["occlusion", "minus_cam"] == pytest.approx(
        rows.loc["occlusion", "pearson_r"] - rows.loc["grad_cam", "pearson_r"]
    )
    assert rows.loc["occlusion", "minus_cam_low"] > 1.5


def test_shifts_of_pairs_that_differ_in_labels_alone():
    rng, n = np.random.default_rng(0), 20
    right = pd.DataFrame(
        {
            "cell": [f"c{k}" for k in range(n)],
            "rate": range(n),
            "label_noise": 0.0,
            "gap": rng.normal(size=n),
        }
    )
    right = right.assign(
        follows=-2 * right["gap"] + 0.01 * rng.normal(size=n), flat=1.0
    )
    right["turns"] = right["gap"] + 0.01 * rng.normal(size=n)
    wrong = right.assign(
        label_noise=0.2,
        gap=right["gap"] + 1,
        follows=right["follows"] - 2,
        turns=right["turns"] - 1,
    )
    found = tables.shifts(
        Bootstrap(pd.concat([right, wrong]), draws=200),
        ["gap", "follows", "turns", "flat"],
        "label_noise",
        ["rate"],
    )
    found = found.set_index("measure")
    assert found["n"].tolist() == [n] * 4
    assert found["cells"].tolist() == [n] * 4
    assert found["change"].tolist() == pytest.approx([1, -2, -1, 0])
    assert found.loc["follows", "shift"] == pytest.approx(-2 / right["follows"].std())
    assert found.loc["follows", "promised"] == pytest.approx(
        pearson(right["follows"], right["gap"]) / right["gap"].std()
    )
    assert found["kept"].tolist() == [
        tables.AS_PROMISED,
        tables.AS_PROMISED,
        tables.REVERSED,
        tables.UNDECIDED,
    ]
    assert (
        len(tables.shifts(Bootstrap(right, draws=9), ["gap"], "label_noise", ["rate"]))
        == 0
    )


def test_choices_without_intervals_are_not_counted_as_intervals():
    ends = [(-0.7, -0.3), (-0.2, 0.1), (np.nan, np.nan)]
    table = pd.DataFrame(ends, columns=["ci_low", "ci_high"])
    assert report.number_below_zero(table) == "1 of 2"
    assert report.number_below_zero(table.iloc[2:]) == "0 of 0"

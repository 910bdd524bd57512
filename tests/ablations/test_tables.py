"""Tables of the ablations, on scores made so that every correlation is known."""

import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.ablations import store
from helpers.ablations.compute import OVERLAP_COLUMNS
from helpers.ablations.tables import (
    annotations,
    by_class,
    by_image_size,
    by_layer,
    by_threshold,
    cam_methods,
    correlations,
    paper_scores,
    published_pooled,
    validity,
)
from helpers.statistics.correlations import kendall, pearson
from helpers.statistics.published import published_table

METHODS = ("grad_cam", "layer_cam")


RESAMPLING = {"resamples": 100, "seed": 0}


@pytest.fixture
def models():
    rng = np.random.default_rng(0)
    count = 30
    return pd.DataFrame(
        {
            "model_id": [f"m{number:02d}" for number in range(count)],
            "architecture": np.where(np.arange(count) % 3 == 0, "resnet34", "resnet18"),
            "cell": [f"c{number // 2}" for number in range(count)],
            "gap": rng.uniform(0.1, 0.9, count),
            "train_accuracy": rng.uniform(0.81, 1, count),
        }
    )


def setting(models, slope, seed, part="closed", **keys):
    """Rows of one setting for every model and two thresholds; IoU falls with the gap by the slope."""
    rng = np.random.default_rng(seed)
    fixed = {"method": "grad_cam", "formula": "correct", "layer": "layer4", "class_used": "predicted", "annotation": "boxes"}
    fixed |= {"image_size": 32, "subset": "all", "n": 100 if part == "closed" else 9, "nearest": "", "difference": np.nan, "seconds": 1.0}
    tables = []
    for threshold, factor in ((0.1, 1), (0.5, -1)):
        iou = 0.5 - factor * slope * (models["gap"] - 0.5) + rng.normal(0, 0.02, len(models))
        tables.append(pd.DataFrame({"model_id": models["model_id"], "iou": iou, "iou_b": iou / 2, "threshold": threshold}))
    return pd.concat(tables).assign(**fixed | keys, part=part)


@pytest.fixture
def scores(models):
    close = {"difference": 1e-6, "nearest": "grad_cam_plus_plus (correct)"}
    few = {"part": "sampled"}
    parts = [
        {},
        {"annotation": "fine_grained", "n": 90},
        {"class_used": "true"},
        *({"class_used": used, "subset": subset} for used in ("predicted", "true") for subset in ("correct", "wrong")),
        {"method": "grad_cam_plus_plus"},
        {"method": "grad_cam_plus_plus", "formula": "torchcam"},
        {"method": "grad_cam_plus_plus", **few, **close},
        {"method": "smooth_grad_cam_plus_plus", **few, **close},
        {"method": "smooth_grad_cam_plus_plus", "formula": "torchcam", **few, **close, "difference": 0.4},
        {"method": "eigen_cam", "class_used": "none", **few},
        *(
            {"method": method, "layer": layer, **few}
            for layer, method in itertools.product(("layer1", "layer4"), ("grad_cam", "layer_cam"))
        ),
        {"image_size": 16, **few},
    ]
    table = pd.concat([setting(models, 0.3, seed, **keys) for seed, keys in enumerate(parts)], ignore_index=True)
    assert set(store.ABLATION_COLUMNS) == set(table)
    return table[["model_id", *OVERLAP_COLUMNS, "part"]]


def iou_of(models, scores, **keys):
    chosen = scores[(scores[list(keys)] == pd.Series(keys)).all(axis=1)].set_index("model_id")["iou"]
    assert chosen.index.is_unique
    return chosen.reindex(models["model_id"]).to_numpy()


PAPER = {"method": "grad_cam", "formula": "correct", "class_used": "predicted", "annotation": "boxes", "part": "closed", "subset": "all"}


def test_correlations_are_those_of_the_statistics_and_a_missing_model_is_dropped(models, scores):
    paper = scores[(scores[list(PAPER)] == pd.Series(PAPER)).all(axis=1) & (scores["model_id"] != "m03")]
    table = correlations(models, paper, ["threshold"], **RESAMPLING)
    assert table["threshold"].tolist() == [0.1, 0.5]
    x = iou_of(models, scores, **PAPER, threshold=0.1)
    kept = models["model_id"] != "m03"
    row = table.iloc[0]
    assert row["pearson_r"] == pytest.approx(pearson(x[kept], models["gap"][kept]))
    assert row["kendall_tau"] == pytest.approx(kendall(x[kept], models["gap"][kept]))
    assert (row["n"], row["dropped"], row["cells"], row["images"]) == (29, 1, 15, 100)
    assert row["ci_low"] <= row["pearson_r"] <= row["ci_high"] < 0 < table["pearson_r"].iloc[1]


def test_the_papers_setting_is_one_score_per_model(models, scores):
    table = paper_scores(models.assign(iou=9.0), scores, 0.1)
    np.testing.assert_array_equal(table["iou"], iou_of(models, scores, **PAPER, threshold=0.1))
    assert len(table) == len(models)


def test_table6_compares_on_the_same_images_beside_the_paper_and_names_one_map(models, scores):
    table = cam_methods(models, scores, 0.1, [0.95, 0.8], **RESAMPLING)
    ways = table.drop_duplicates(["method", "formula", "images"])
    assert ways["images"].tolist() == [9] * 6 + [100]
    assert (ways["method"].iloc[-1], ways["formula"].iloc[-1]) == ("grad_cam", "correct")
    assert len(table) == len(ways) * 3 * 2
    theirs = published_table("du2024_table6").set_index(["method", "threshold"])["pearson_r"]
    for row in table.itertuples():
        known = row.architecture == "resnet18" and (row.method, row.threshold) in theirs.index
        assert (row.published_r == theirs[row.method, row.threshold]) if known else np.isnan(row.published_r)
    smooth = table[table["method"] == "smooth_grad_cam_plus_plus"].groupby("formula")["same_map_as"].unique()
    assert smooth["correct"].tolist() == ["grad_cam_plus_plus (correct)"]
    assert smooth["torchcam"].tolist() == [""]
    assert (table.loc[table["method"] == "grad_cam_plus_plus", "same_map_as"] == "").all()  # which is no other than itself
    row = table[(table["method"] == "grad_cam") & (table["images"] == 100) & (table["architecture"] == "Total")].iloc[-1]
    assert row["pearson_r"] == pytest.approx(pearson(iou_of(models, scores, **PAPER, threshold=0.1), models["gap"]))
    few = PAPER | {"part": "sampled", "layer": "layer4", "image_size": 32}
    row = table[(table["method"] == "grad_cam") & (table["images"] == 9) & (table["architecture"] == "Total")].iloc[-1]
    assert row["pearson_r"] == pytest.approx(pearson(iou_of(models, scores, **few, threshold=0.1), models["gap"]))
    one = scores.assign(nearest=np.where(scores["model_id"] == "m05", "layer_cam (correct)", scores["nearest"]))
    again = cam_methods(models, one, 0.1, [0.8], **RESAMPLING)
    assert (again["same_map_as"] == "").all()


def test_table7_stands_beside_the_paper(models, scores):
    table = annotations(models, scores, 0.1, [0.8], **RESAMPLING)
    assert table["method"].unique().tolist() == ["annotated_boxes", "fine_grained"]
    assert table.groupby("method")["images"].first().to_dict() == {"annotated_boxes": 100, "fine_grained": 90}
    mine = table[(table["architecture"] == "resnet18")].set_index("method")["published_r"].to_dict()
    theirs = published_table("du2024_table7").query("threshold == 0.8").set_index("method")["pearson_r"]
    assert mine == {"annotated_boxes": theirs["annotated_boxes"], "fine_grained": theirs["saliency_masks"]}
    masks = iou_of(models, scores, **PAPER | {"annotation": "fine_grained"}, threshold=0.1)
    row = table[(table["architecture"] == "Total") & (table["method"] == "fine_grained")].iloc[0]
    assert row["pearson_r"] == pytest.approx(pearson(masks, models["gap"]))


def test_table5_puts_untrained_networks_beside_the_trained_and_the_paper(models, scores):
    rng = np.random.default_rng(1)
    networks = pd.DataFrame({"architecture": ["resnet18"] * 9 + ["resnet101"] * 9, "seed": [*range(9), *range(9)]})
    numbers = {name: rng.uniform(0, 1, 18) for name in ("train_accuracy", "test_accuracy", "gap", "iou")}
    trained = paper_scores(models, scores, 0.1)
    table = validity(networks.assign(**numbers, train_images=50), trained, **RESAMPLING).set_index("architecture")
    assert table["published_r"].to_dict() == {"resnet18": -0.1544, "resnet101": -0.0585, "Total": -0.0094}
    assert table["n"].tolist() == table["cells"].tolist() == [9, 9, 18]
    assert table.loc["Total", "pearson_r"] == pytest.approx(pearson(numbers["iou"], numbers["gap"]))
    assert table.loc["Total", "trained_r"] == pytest.approx(pearson(trained["iou"], trained["gap"]))
    assert np.isnan(table.loc["resnet101", "trained_r"])
    assert table["tells"].isin(["nothing", "something", "cannot tell"]).all()
    # Fisher's interval of 50 and, pooled, 200 networks: the paper shows its claim pooled, and for no architecture alone.
    assert table["published_tells"].to_dict() == {"resnet18": "cannot tell", "resnet101": "cannot tell", "Total": "nothing"}
    assert table.loc["resnet18", ["published_low", "published_high"]].tolist() == pytest.approx([-0.4149, 0.1295], abs=1e-4)
    assert table.loc["Total", ["published_low", "published_high"]].tolist() == pytest.approx([-0.1480, 0.1295], abs=1e-4)


def test_thresholds_begin_with_the_papers_way_and_carry_its_value_once(models, scores):
    table = by_threshold(models, scores, 0.8, 0.1, **RESAMPLING)
    assert table["way"].iloc[0] == "grad-cam"
    assert not table.duplicated(["way", "threshold"]).any()
    assert table["way"].nunique() == 7  # three closed forms, masks, three sampled; not the closed forms again on a few images
    known = table.dropna(subset="published_r")
    assert known[["way", "threshold", "published_r"]].values.tolist() == [["grad-cam", 0.1, -0.8159]]
    assert by_threshold(models, scores, 0.7, 0.1, **RESAMPLING)["published_r"].isna().all()
    assert by_threshold(models, scores, 0.8, 0.5, **RESAMPLING)["published_r"].isna().all()


def test_pooled_values_of_the_paper_are_looked_up_by_accuracy():
    expected = (
        published_table("du2024_table3").query("architecture == 'Total' and threshold == 0.9").set_index("method")["pearson_r"].to_dict()
    )
    assert published_pooled(0.9) == expected
    assert published_pooled(0.5) == {}


def test_layers_classes_and_sizes_are_one_row_each(models, scores):
    layers = by_layer(models, scores, 0.1, **RESAMPLING)
    names = [("grad_cam", "layer1"), ("grad_cam", "layer4"), ("layer_cam", "layer1"), ("layer_cam", "layer4")]
    assert list(layers[["method", "layer"]].itertuples(index=False, name=None)) == names
    classes = by_class(models, scores, 0.1, **RESAMPLING)
    assert sorted(classes["class_used"] + " " + classes["subset"]) == [
        "predicted all",
        "predicted correct",
        "predicted wrong",
        "true all",
        "true wrong",
    ]
    sizes = by_image_size(models, scores, 0.1, **RESAMPLING)
    assert sizes["image_size"].tolist() == [16, 32]
    assert (sizes["images"] == 9).all()


def test_too_few_models_leave_every_table_whole_with_nan(models, scores):
    few = models.iloc[:2]
    mine = scores[scores["model_id"].isin(few["model_id"])]
    tables = [
        cam_methods(few, mine, 0.1, [0.95, 0.8], **RESAMPLING),
        annotations(few, mine, 0.1, [0.8], **RESAMPLING),
        by_threshold(few, mine, 0.8, 0.1, **RESAMPLING),
        by_layer(few, mine, 0.1, **RESAMPLING),
        by_class(few, mine, 0.1, **RESAMPLING),
        by_image_size(few, mine, 0.1, **RESAMPLING),
    ]
    for table in tables:
        assert len(table)
        assert table["pearson_r"].isna().all()
        assert (table["n"] <= 2).all()

"""Correlations under other choices: against plain statistics, and beside the paper's."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy.stats import pearsonr

from helpers.cams import localize
from helpers.choices import tables
from helpers.choices.compute import ATTRIBUTED
from helpers.scores.models import Model
from helpers.scores.store import Store
from helpers.statistics.correlate import Bootstrap
from helpers.statistics.gap_tables import reliability
from helpers.statistics.published import published_table

PAPER = {
    "part": "closed",
    "measure": "iou",
    "method": "grad_cam",
    "formula": "correct",
    "layer": "layer4",
    "class_used": "predicted",
    "annotation": "boxes",
    "image_size": 32,
    "subset": "all",
}


@pytest.fixture
def models():
    random = np.random.default_rng(0)
    number = np.arange(30)
    return pd.DataFrame(
        {
            "model_id": [f"m{k:02d}" for k in number],
            "architecture": np.where(number % 3, "resnet18", "resnet34"),
            "cell": number // 2,
            "gap": random.uniform(0.1, 0.9, 30),
            "train_accuracy": random.uniform(0.81, 1, 30),
        }
    )


@pytest.fixture
def bootstrap(models):
    return Bootstrap(models, draws=100, seed=0)


def rows_of(models, seed, **keys):
    """A choice at two thresholds; IoU falls with the gap at the first, rises at the other."""
    random = np.random.default_rng(seed)
    images = 9 if keys.get("part") == "sampled" else 100
    parts = []
    for threshold, slope in ((0.1, -0.3), (0.5, 0.3)):
        noise = random.normal(0, 0.02, len(models))
        value = 0.5 + slope * (models["gap"] - 0.5) + noise
        parts.append(models[["model_id"]].assign(value=value, threshold=threshold))
    return pd.concat(parts).assign(**{"n": images} | PAPER | keys)


@pytest.fixture
def scores(models):
    few = {"part": "sampled"}
    choices = [
        {},
        {"annotation": "grab_cut", "n": 90},
        {"class_used": "true"},
        {"subset": "wrong"},
        {"method": "grad_cam_plus_plus"},
        {"method": "grad_cam_plus_plus", "formula": "torchcam"},
        {"method": "grad_cam_plus_plus", **few},
        {"method": "smooth_grad_cam_plus_plus", "formula": "torchcam", **few},
        {"method": "eigen_cam", "class_used": "none", **few},
        {"layer": "layer1", **few},
        {"layer": "layer1", "method": "layer_cam", **few},
        few,
        {"method": "layer_cam", **few},
        {"image_size": 16, **few},
    ]
    rows = [rows_of(models, seed, **keys) for seed, keys in enumerate(choices)]
    columns = ["model_id", *tables.KEYS, "n", "value"]
    table = pd.concat(rows, ignore_index=True)[columns]
    return tables.scores_of(SimpleNamespace(scores=lambda: table), 0.1)


def chosen_of(table, **keys):
    """Rows of the paper's choice but for some keys."""
    keys = PAPER | {"threshold": 0.1} | keys
    return table[(table[list(keys)] == pd.Series(keys)).all(axis=1)]


def values_of(models, scores, **keys):
    chosen = chosen_of(scores, **keys)
    return chosen.set_index("model_id")["value"].reindex(models["model_id"]).to_numpy()


def test_each_choice_has_a_correlation_of_its_models(models, bootstrap, scores):
    is_lost = (scores["model_id"] == "m03") & (scores["method"] == "grad_cam")
    table = tables.by_choice(bootstrap, scores[~is_lost])
    assert len(table) == len(scores) / len(models)
    paper = chosen_of(table).iloc[0]
    kept = models["model_id"] != "m03"
    x = values_of(models, scores)
    r = pearsonr(x[kept], models["gap"][kept]).statistic
    assert paper["pearson_r"] == pytest.approx(r)
    assert (paper["n"], paper["cells"], paper["images"]) == (29, 15, 100)
    assert paper["mean"] == pytest.approx(x[kept].mean())
    assert paper["ci_low"] <= paper["pearson_r"] <= paper["ci_high"] < 0
    assert chosen_of(table, threshold=0.5)["pearson_r"].item() > 0


def test_a_mean_over_a_handful_of_images_is_left_out(models, bootstrap, scores):
    few = scores["model_id"].isin(["m00", "m01"]) & (scores["subset"] == "wrong")
    scores = scores.assign(n=scores["n"].mask(few, tables.FEWEST_IMAGES - 1))
    table = tables.by_choice(bootstrap, scores).set_index("subset")
    assert set(table.loc["wrong", "n"]) == {28}
    assert set(table.loc["all", "n"]) == {30}


def test_intervals_draw_scored_images_that_are_given(models, bootstrap, scores):
    iou = values_of(models, scores)
    noise = np.random.default_rng(1).normal(0, 0.3, (len(models), 40))
    of_images = iou[:, None] + noise - noise.mean(1, keepdims=True)
    overlaps = chosen_of(scores)
    images = {"closed": {"iou, grad_cam, correct": of_images}}
    drawn, fixed = (
        tables.by_choice(bootstrap, overlaps, (), records).iloc[0]
        for records in (SimpleNamespace(of_images=images.get), None)
    )
    width = fixed["ci_high"] - fixed["ci_low"]
    assert drawn["ci_high"] - drawn["ci_low"] > 1.2 * width


def test_table6_compares_on_the_same_images_beside_the_paper(models, bootstrap, scores):
    table = tables.cam_methods(bootstrap, scores, [0.95, 0.8], None)
    ways = table.drop_duplicates(["method", "formula", "images"])
    # Closed forms on all images, then the others, beside Grad-CAM on the same few.
    closed_forms = ["grad_cam", "grad_cam_plus_plus", "grad_cam_plus_plus"]
    others = ["smooth_grad_cam_plus_plus", "eigen_cam", "grad_cam"]
    assert ways["method"].tolist() == closed_forms + others
    assert ways["images"].tolist() == [100] * 3 + [9] * 3
    theirs = published_table("du2024_table6").set_index(["method", "threshold"])
    keys = pd.MultiIndex.from_frame(table[["method", "above"]])
    is_theirs = table["architecture"].eq("resnet18").to_numpy()
    expected = theirs["pearson_r"].reindex(keys).where(is_theirs)
    np.testing.assert_array_equal(table["published_r"], expected)
    difference = table["pearson_r"].to_numpy() - expected
    np.testing.assert_array_equal(table["difference"], difference)
    is_total = (table["architecture"] == "Total") & (table["above"] == 0.8)
    row = table[is_total & (table["method"] == "grad_cam")].iloc[0]
    r = pearsonr(values_of(models, scores), models["gap"]).statistic
    assert row["pearson_r"] == pytest.approx(r)
    titles = tables.titles(table[is_total])
    assert titles[2] == "Grad-CAM++ by torchcam, 100 images"


def test_table7_stands_beside_the_paper(models, bootstrap, scores):
    table = tables.annotations(bootstrap, scores, [0.8])
    ours = table[table["architecture"] == "resnet18"].set_index("method")
    theirs = published_table("du2024_table7").query("threshold == 0.8")
    theirs = theirs.set_index("method")["pearson_r"]
    assert ours["published_r"].to_dict() == {
        "annotated_boxes": theirs["annotated_boxes"],
        "grab_cut": theirs["saliency_masks"],
    }
    total = table[table["architecture"] == "Total"].set_index("method")
    x = values_of(models, scores, annotation="grab_cut")
    r = pearsonr(x, models["gap"]).statistic
    assert total.loc["grab_cut", "pearson_r"] == pytest.approx(r)


def test_a_choice_that_differs_in_one_thing_is_named_by_it(bootstrap, scores):
    table = tables.by_choice(bootstrap, scores)
    at_paper = table[table["threshold"] == 0.1]
    assert at_paper.groupby("changed").size().to_dict() == {
        # Layer-CAM at layer1 differs in two things; the part is no choice.
        "": 1,
        tables.NOTHING: 2,
        tables.METHOD: 6,
        tables.ANNOTATION: 1,
        tables.CLASS: 2,
        tables.LAYER: 1,
        tables.SIZE: 1,
    }
    for threshold, changed in ((0.1, tables.NOTHING), (0.5, tables.THRESHOLD)):
        assert chosen_of(table, threshold=threshold)["changed"].tolist() == [changed]


def test_untrained_networks_stand_beside_the_paper():
    random = np.random.default_rng(1)
    networks = pd.DataFrame(random.normal(size=(40, 2)), columns=["gap", "iou"])
    networks[["train_accuracy", "test_accuracy"]] = 0.2
    networks["model_id"] = networks.index.astype(str)
    networks["architecture"] = ["resnet18", "resnet34"] * 20
    table = tables.validity(networks, 100, 0).set_index("architecture")
    assert table["n"].tolist() == [20, 20, 40]
    r = pearsonr(networks["iou"], networks["gap"]).statistic
    assert table.loc["Total", "pearson_r"] == pytest.approx(r)
    # An interval that merely contains 0 does not show that there is no correlation.
    assert table.loc["Total", "verdict"] == "cannot tell"
    theirs = published_table("du2024_table5").set_index("architecture")["pearson_r"]
    ours = table["published_r"].dropna()
    assert len(ours) > 1
    assert ours.to_dict() == theirs[ours.index].to_dict()


def test_attributions_are_compared_with_grad_cam_on_the_same_images(models, tmp_path):
    random = np.random.default_rng(0)
    slopes = {"grad_cam": 1, "saliency": 0.02, "occlusion": -1}
    networks = [Model(name, load=None) for name in models["model_id"]]
    gaps = models.set_index("model_id")["gap"]
    store = Store(tmp_path, lambda: None, jobs=1)
    for network in networks:
        record, means = {}, []
        for method, slope in slopes.items():
            values = -slope * gaps[network.model_id] + 0.01 * random.normal(size=40)
            mean = {"method": method, "value": values.mean(), "n": 40}
            for measure in localize.LESS_CHANCE:
                record[f"{measure}, {method}"] = values
                means.append(mean | {"measure": measure})
        scores = {"scores": pd.DataFrame(means)}
        store.write(network, ATTRIBUTED, {}, record | scores)
    records = store.records(networks, {ATTRIBUTED: {}})
    table = tables.attributions_compared(Bootstrap(models, draws=100), records)
    assert table["measure"].unique().tolist() == list(localize.LESS_CHANCE)
    rows = table[table["measure"] == "pointing_game"].set_index("method")
    of_images = records.of_images(ATTRIBUTED)
    for method in slopes:
        values = of_images[f"pointing_game, {method}"]
        r = pearsonr(values.mean(1), models["gap"]).statistic
        assert rows.loc[method, "pearson_r"] == pytest.approx(r, rel=1e-4)
        assert rows.loc[method, "reliability"] == pytest.approx(reliability(values))
        assert rows.loc[method, ["images", "n"]].tolist() == [40, 30]
    minus = ["minus_cam", "minus_cam_low", "minus_cam_high"]
    assert rows.loc["grad_cam", minus].tolist() == [0, 0, 0]
    difference = rows.loc["occlusion", "pearson_r"] - rows.loc["grad_cam", "pearson_r"]
    assert rows.loc["occlusion", "minus_cam"] == pytest.approx(difference)
    assert rows.loc["occlusion", "minus_cam_low"] > 1.5


def test_shifts_of_pairs_that_differ_in_labels_alone():
    random = np.random.default_rng(0)
    right = pd.DataFrame(random.normal(size=(20, 2)), columns=["gap", "noise"])
    right = right.assign(
        cell=right.index.astype(str),
        rate=right.index,
        label_noise=0.0,
        follows=0.01 * right["noise"] - 2 * right["gap"],
        flat=1.0,
    )
    wrong = right.assign(label_noise=0.2)
    wrong["gap"] += 1
    wrong["follows"] -= 2
    measures = ["gap", "follows", "flat"]
    both = Bootstrap(pd.concat([right, wrong], ignore_index=True), draws=200)
    table = tables.shifts(both, measures, "label_noise", ["rate"]).set_index("measure")
    assert table["n"].tolist() == [20, 20, 0]  # what does not vary has no spread
    assert table.loc["follows", "shift"] == pytest.approx(-2 / right["follows"].std())
    r = pearsonr(right["follows"], right["gap"]).statistic
    promised = r / right["gap"].std()
    assert table.loc["follows", "promised"] == pytest.approx(promised)
    assert tables.shifts(Bootstrap(right), ["gap"], "label_noise", ["rate"]).empty

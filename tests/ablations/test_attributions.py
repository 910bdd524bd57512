"""Attributions scored in the boxes: against the measures of the same names, and what becomes of them over models."""

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.ablations import attributions
from helpers.ablations.compute import AblationSettings
from helpers.cams import attribution, chance, overlap
from helpers.data.images import load_study_data
from helpers.measures import evidence, registry
from helpers.networks import resnet
from helpers.statistics.correlations import kendall, pearson
from helpers.statistics.reliability import reliability
from tests.conftest import TINY_SCENES

SETTINGS = AblationSettings(thresholds=(0.1,), images=10, steps=2, attributions=("saliency", "guided_grad_cam", "deep_lift"))
MEASURES = list(attributions.LOCALIZATIONS)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache")).train


@pytest.fixture(scope="module")
def network():
    return resnet.build("resnet18", 3, stem="small", width=0.125, seed=1).eval()


@pytest.fixture(scope="module")
def scored(network, images):
    return attributions.attribution_scores(network, images, SETTINGS, "cpu")


def test_every_method_is_scored_on_the_same_first_images_with_its_cost(scored, images):
    assert list(scored) == attributions.ATTRIBUTION_COLUMNS[1:]
    assert scored["method"].unique().tolist() == ["grad_cam", "saliency", "guided_grad_cam", "deep_lift"]
    for _, rows in scored.groupby("method"):
        assert rows["name"].tolist() == list(images.names[:10])
        assert rows[MEASURES].notna().all(axis=None)
        assert rows["seconds"].gt(0).all()
    passes = scored.groupby("method")[["forward_passes", "backward_passes"]].first()
    assert passes.loc["grad_cam"].tolist() == [1, 0]
    assert passes.loc["guided_grad_cam"].tolist() == [2, 2]


def test_grad_cam_has_the_values_of_the_measures_of_these_names(scored, network, images):
    given = {"network": network, "images": images.subset(range(10)), "normalise": resnet.normalise_images, "device": "cpu"}
    given["initial_network"] = None
    wanted = [item for item in registry.of_families(["localization"]) if item.name in MEASURES]
    expected = evidence.score(wanted, given, evidence.MeasureSettings()).set_index("measure")["value"]
    means = scored[scored["method"] == "grad_cam"][MEASURES].mean()
    np.testing.assert_allclose(means[MEASURES], expected[MEASURES], atol=1e-6)


def test_energy_is_the_share_of_the_map_in_the_box(scored, network, images):
    some = images.subset(range(10))
    inputs = resnet.normalise_images(some.images)
    own = attribution.with_own_activations(network)
    maps = attribution.attribution_maps("saliency", own, inputs, network(inputs).argmax(1)).maps
    maps = maps - maps.amin((1, 2), keepdim=True)  # of the normalised map; Captum's saliency is nowhere 0
    boxes = overlap.box_masks(some.boxes, 16).float()
    share = torch.einsum("nyx,myx->nm", maps, boxes) / maps.sum((1, 2))[:, None]
    energy = share.diag() - share.gather(1, chance.derangements(10)).mean(1)
    found = scored.loc[scored["method"] == "saliency", "energy_in_box"].to_numpy()
    np.testing.assert_allclose(found, energy, atol=1e-4)


def test_what_a_network_does_not_allow_is_undefined_with_a_reason(network, images, monkeypatch):
    def refused(method, *given):
        raise ValueError("DeepLift's shares miss")

    monkeypatch.setattr(attribution, "attribution_maps", refused)
    table = attributions.attribution_scores(network, images, SETTINGS, "cpu").set_index("method")
    assert table.loc["grad_cam", MEASURES].notna().all(axis=None)
    assert table.drop("grad_cam")[MEASURES].isna().all(axis=None)
    assert set(table.drop("grad_cam")["reason"]) == {"DeepLift's shares miss"}


def made(slopes, models=24, count=40, noise=0.01):
    """Scores of single images that fall with the gap by a slope for each method; the same for each measure."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"model_id": [f"m{number:02d}" for number in range(models)], "gap": rng.uniform(0, 1, models)})
    table["cell"] = table["model_id"]
    parts = []
    for method, slope in slopes.items():
        values = -slope * table["gap"].to_numpy()[:, None] + noise * rng.normal(size=(models, count))
        for number, row in enumerate(values):
            parts.append(pd.DataFrame({"model_id": table["model_id"][number], "method": method, "name": [f"i{n}" for n in range(count)]}))
            parts[-1] = parts[-1].assign(**dict.fromkeys(MEASURES, row), seconds=0.5, forward_passes=1.0, backward_passes=0.0, reason="")
    return table, pd.concat(parts, ignore_index=True)


def test_correlation_reliability_and_difference_are_those_of_the_statistics():
    models, scored = made({"grad_cam": 1, "saliency": 0.02, "occlusion": -1})
    table = attributions.attributions_compared(models, scored, resamples=100, seed=0)
    assert table["measure"].unique().tolist() == MEASURES
    rows = table[table["measure"] == "pointing_game"].set_index("method")
    for method in ("grad_cam", "saliency", "occlusion"):
        values = scored[scored["method"] == method].pivot(index="model_id", columns="name", values="pointing_game")
        assert rows.loc[method, "pearson_r"] == pytest.approx(pearson(values.mean(axis=1), models["gap"]))
        assert rows.loc[method, "kendall_tau"] == pytest.approx(float(kendall(values.mean(axis=1), models["gap"])[0]))
        assert rows.loc[method, "reliability"] == pytest.approx(reliability(values))
        assert rows.loc[method, ["images", "n"]].tolist() == [40, 24]
        assert rows.loc[method, "ci_low"] <= rows.loc[method, "pearson_r"] <= rows.loc[method, "ci_high"]
    assert rows.loc["grad_cam", ["minus_cam", "minus_cam_low", "minus_cam_high"]].tolist() == [0, 0, 0]
    assert rows.loc["occlusion", "minus_cam"] == pytest.approx(rows.loc["occlusion", "pearson_r"] - rows.loc["grad_cam", "pearson_r"])
    assert rows.loc["occlusion", "minus_cam_low"] > 1.5


@pytest.mark.parametrize(
    ("slopes", "words"),
    [
        (
            {"grad_cam": 1, "saliency": 1, "occlusion": 1},
            "2 have its sign beyond doubt and 0 differ from it: the overlap tells",
        ),
        ({"grad_cam": 1, "saliency": -1, "occlusion": -1}, "0 have its sign beyond doubt and 2 differ from it: it is the CAM that tells"),
        ({"grad_cam": 0, "saliency": 1}, "Grad-CAM's own r cannot be told from 0"),
        ({"grad_cam": 1, "saliency": 1, "occlusion": 0}, "whether the overlap tells or the CAM is open"),
    ],
)
def test_the_sentence_says_whether_the_overlap_tells_or_the_cam(slopes, words):
    models, scored = made(slopes, noise=0.05)
    text = attributions.say_attributions(attributions.attributions_compared(models, scored, resamples=200, seed=0))
    assert text.startswith("energy in the box: r of Grad-CAM ")
    assert words in text
    assert "Lowest reliability" in text


def test_too_few_models_and_undefined_methods_are_said_in_words():
    models, scored = made({"grad_cam": 1, "deep_lift": 1}, models=2)
    undefined = scored["method"] == "deep_lift"
    scored.loc[undefined, MEASURES], scored.loc[undefined, "reason"] = np.nan, "DeepLift's shares miss"
    table = attributions.attributions_compared(models, scored, resamples=20, seed=0)
    assert table["pearson_r"].isna().all()
    text = attributions.say_attributions(table)
    assert "energy in the box: there are too few models for an interval." in text
    assert text.endswith("No reliability is defined: too few models. deep lift is undefined for some models: DeepLift's shares miss.")
    assert "nan" not in text.lower()

from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from helpers.data.images import load_study_data
from helpers.kappa import backbones, networks, probe
from helpers.kappa.networks import Member, as_complexity, check_asked, chosen_models, classifier, complexities
from helpers.measures import evidence
from helpers.networks import resnet
from helpers.training.config import RunConfig
from tests.conftest import TINY_SCENES


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache")).train


SETTINGS = evidence.MeasureSettings(flatness_images=12, flatness_draws=1, flatness_halvings=4, sharpness_images=6, sharpness_steps=1)


def small(seed=0, name="small"):
    """A backbone of 64 features at an eighth of ResNet18's width."""
    return backbones.own_backbone(name, resnet.build("resnet18", 3, stem="strided", width=0.125, seed=seed), origin="random")


def catalogue():
    rows = [
        ("a@stop", "resnet18", 0.3, False, "", "stop"),
        ("b@stop", "resnet18", 0.1, False, "", "stop"),
        ("c@stop", "resnet18", 0.2, True, "", "stop"),
        ("d@stop", "resnet34", 0.5, False, "too low", "stop"),
        ("e@none", "resnet34", np.nan, False, "diverged", "none"),
        ("f@stop", "resnet34", 0.4, False, "", "stop"),
    ]
    return pd.DataFrame(rows, columns=["model_id", "architecture", "train_loss", "pretrained", "left_out", "snapshot"])


def test_models_are_chosen_by_training_loss_within_their_architecture():
    table = chosen_models(catalogue(), 0, False)
    assert table["model_id"].tolist() == ["b@stop", "a@stop", "f@stop"]
    assert table["model"].tolist() == ["resnet18 no. 1", "resnet18 no. 2", "resnet34 no. 1"]
    assert chosen_models(catalogue(), 1, False)["model_id"].tolist() == ["b@stop", "f@stop"]


def test_pretrained_models_come_in_only_when_asked_for():
    assert chosen_models(catalogue(), 0, True)["model_id"].tolist() == ["b@stop", "c@stop", "a@stop", "f@stop"]


def test_where_the_analysis_keeps_no_model_those_left_out_are_taken_but_no_diverged_one():
    left_out = catalogue().assign(left_out="too low")
    assert chosen_models(left_out, 0, False)["model_id"].tolist() == ["b@stop", "a@stop", "f@stop", "d@stop"]


def test_a_catalogue_without_a_model_from_scratch_is_refused():
    with pytest.raises(ValueError, match="no model trained from scratch; set include_pretrained, or name other networks"):
        chosen_models(catalogue().assign(pretrained=True), 0, False)


@pytest.mark.parametrize(
    ("names", "seen", "message"),
    [
        ([], 4, r"kappa_families is \[\]; name at least one"),
        (["RN50", "RN50"], 4, "each once"),
        (["resnet19"], 4, "network 'resnet19' is unknown"),
        (["model set"], 4, "trained on all 6 classes of the study, so seen_classes must be 0"),
    ],
)
def test_a_choice_of_networks_that_cannot_be_had_is_refused(names, seen, message):
    with pytest.raises(ValueError, match=message):
        check_asked(names, "openai", seen, 6)


@pytest.mark.parametrize("weights", ["made", "random"])
@pytest.mark.parametrize("name", sum(backbones.NETWORK_FAMILIES.values(), ()))
def test_no_network_of_a_published_name_goes_without_its_weights(name, weights):
    message = f"kappa_weights is '{weights}', and {name} stand for the weights that they were published with: name these"
    with pytest.raises(ValueError, match=message):
        check_asked(["resnet18 w0.25", name], weights, 6, 6)


def test_a_choice_that_can_be_had_passes():
    check_asked(["model set", "RN50", "efficientnet_b0"], "openai", 6, 6)
    check_asked(["resnet18 w0.25", "efficientnet-like w0.5 d0.5"], "made", 4, 6)


def fitted(given, images):
    return probe.fit_probe(backbones.backbone_features(given, images.images, "cpu", 36), images.labels)


def test_a_classifier_gives_the_logits_of_its_probe(images):
    given = small()
    fit = fitted(given, images)
    network = classifier(given.network, probe.probe_layer(fit))
    with torch.inference_mode():
        found = network(backbones.backbone_input(images.images, given)).softmax(1)
    wanted = fit.predict_proba(backbones.backbone_features(given, images.images, "cpu", 36))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_complexities_are_those_of_the_network_with_its_probe(images, tmp_path):
    given = small()
    fit = fitted(given, images)
    scores = complexities(Member(given, "resnet", "small"), fit, images, SETTINGS, "cpu", tmp_path).set_index(["measure", "variant"])
    predicted = fit.predict(backbones.backbone_features(given, images.images, "cpu", 36))
    assert scores.loc[("training_accuracy", ""), "value"] == pytest.approx((predicted == images.labels.numpy()).mean())
    assert set(scores["model"]) == {"small"}
    if ("fro_dist", "") in scores.index:
        assert np.isnan(scores.loc[("fro_dist", ""), "value"])  # no start is known
        assert scores.loc[("fro_dist", ""), "reason"]


def test_the_distance_from_an_untrained_start_is_that_of_the_probe_alone(images, tmp_path):
    given = small()
    fit = fitted(given, images)
    scores = complexities(Member(given, "resnet", "small", start=given.network), fit, images, SETTINGS, "cpu", tmp_path)
    scores = scores.set_index(["measure", "variant"])["value"]
    if ("fro_dist", "") not in scores.index:
        pytest.skip("the norms are not registered")
    head = float(probe.probe_layer(fit).weight.double().square().sum())
    assert scores["fro_dist", ""] == pytest.approx(np.sqrt(head / len(images)), rel=1e-4)


def test_complexity_is_the_value_against_its_direction():
    rows = [("a", "training_accuracy", "", 0.9), ("a", "training_loss", "", 0.4), ("b", "training_accuracy", "", np.nan)]
    rows += [("b", "training_loss", "", 0.7), ("a", "output_margin", "5th percentile", 3.0), ("a", "output_margin", "10th percentile", 5.0)]
    table = pd.DataFrame(rows + rows[:1], columns=["model", "measure", "variant", "value"]).assign(reason="")
    off = {"model": "a", "measure": "params", "variant": "", "value": np.nan, "reason": "not computed: it was not asked for"}
    table = as_complexity(pd.concat([table, pd.DataFrame([off])]))
    assert table.loc["a"].to_dict() == {"training_accuracy": -0.9, "training_loss": 0.4, "output_margin": -5.0}
    assert table.loc["b", "training_loss"] == 0.7
    assert table.loc["b", ["training_accuracy", "output_margin"]].isna().all()


def test_models_of_the_catalogue_become_members(tmp_path, monkeypatch):
    network = resnet.build("resnet18", 3, stem="strided", width=0.125, seed=0)
    monkeypatch.setattr(networks, "load_model", lambda work, model, classes: network)
    config = asdict(RunConfig("resnet18", 8, 0.01, "sgd", 0.0, False, False, data="-"))
    table = catalogue()
    chosen = chosen_models(table.assign(run_id="r", **{name: config[name] for name in config.keys() - {*table}}), 1, False)
    first, second = networks.own_members(tmp_path, chosen, 3)
    assert (first.family, first.architecture, first.model_id) == ("model set", "resnet18", "b@stop")
    assert (second.backbone.name, second.backbone.origin) == ("resnet34 no. 1", "trained on 3 classes")
    assert not any(isinstance(module, nn.Linear) for module in first.backbone.network.modules())

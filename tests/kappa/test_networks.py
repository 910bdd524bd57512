from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from helpers.data.dataset import load_study_data
from helpers.kappa import backbones, networks, probe
from helpers.kappa.networks import Member, as_complexity, check_asked, chosen_models, classifier, complexities, made_weights
from helpers.measures import evidence
from helpers.networks import resnet, weights
from helpers.training.config import RunConfig
from tests.conftest import TINY_SCENES


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache")).train


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
        check_asked(names, seen, 6)


def test_a_choice_that_can_be_had_passes():
    check_asked(["model set", "RN50", "efficientnet_b0"], 6, 6)
    check_asked(["resnet18"], 4, 6)


def test_made_weights_are_made_once_and_leave_their_start_as_it_was(images, tmp_path):
    start = small()
    before = {name: value.clone() for name, value in start.network.state_dict().items()}
    path = made_weights(start, images, tmp_path, epochs=1, seed=0, device="cpu")
    written = path.stat().st_mtime_ns
    assert made_weights(start, images, tmp_path, epochs=1, seed=0, device="cpu") == path
    assert path.stat().st_mtime_ns == written
    assert made_weights(start, images, tmp_path, epochs=1, seed=1, device="cpu") != path
    assert made_weights(start, images.subset(range(20)), tmp_path, epochs=1, seed=0, device="cpu") != path
    assert all(torch.equal(value, before[name]) for name, value in start.network.state_dict().items())
    assert not any(parameter.requires_grad for parameter in start.network.parameters())
    assert not start.network.training
    assert not list(tmp_path.glob("*.partial*"))


def test_made_weights_are_the_same_for_the_same_seed_whatever_was_drawn_before(images, tmp_path):
    first = made_weights(small(), images, tmp_path / "a", epochs=1, seed=0, device="cpu")
    torch.rand(7)
    state = torch.random.get_rng_state()
    second = made_weights(small(), images, tmp_path / "b", epochs=1, seed=0, device="cpu")
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.read_bytes() == second.read_bytes()


def test_made_features_tell_the_seen_classes_apart_better_than_random_ones(images, tmp_path):
    """A probe held back by a strong penalty fits the shapes better on features that were learnt from them."""
    start, made = small(), small()
    path = made_weights(start, images, tmp_path, epochs=30, seed=0, device="cpu")
    weights.load_backbone(made.network, weights.read_weights(str(path), "resnet18"))
    losses = []
    for given in (start, made):
        found = backbones.backbone_features(given, images.images, "cpu", 36)
        right = probe.fit_probe(found, images.labels, l2=1).predict_proba(found)[range(36), images.labels]
        losses.append(-np.log(right).mean())
    assert losses[1] < 0.85 * losses[0]


def test_training_without_a_pass_is_refused(images, tmp_path):
    with pytest.raises(ValueError, match="made_epochs is 0"):
        made_weights(small(), images, tmp_path, epochs=0, seed=0, device="cpu")


def test_named_networks_know_their_start_where_it_is_known(images, tmp_path):
    options = {"epochs": 1, "seed": 0, "device": "cpu"}
    (random,) = networks.published_members(["model set", "resnet18"], "random", images, tmp_path, **options)
    assert (random.family, random.architecture, random.backbone.origin) == ("resnet", "resnet18", "random")
    assert random.start is random.backbone.network
    few = images.subset(range(0, 36, 12))
    (made,) = networks.published_members(["resnet18"], "made", few, tmp_path, **options)
    assert made.backbone.origin == "made on 3 classes"
    assert weights.weights_digest(made.start.state_dict()) == random.backbone.identity != made.backbone.identity
    path = next(tmp_path.glob("made-resnet18-*.safetensors"))
    (found,) = networks.published_members(["resnet18"], str(path), images, tmp_path, **options)
    assert found.start is None
    assert found.backbone.identity == made.backbone.identity


def fitted(given, images):
    return probe.fit_probe(backbones.backbone_features(given, images.images, "cpu", 36), images.labels)


def test_a_classifier_gives_the_logits_of_its_probe(images):
    given = small()
    fit = fitted(given, images)
    network = classifier(given.network, fit)
    with torch.inference_mode():
        found = network(backbones.backbone_input(images.images, given)).softmax(1)
    wanted = fit.predict_proba(backbones.backbone_features(given, images.images, "cpu", 36))
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_complexities_are_those_of_the_network_with_its_probe(images):
    given = small()
    fit = fitted(given, images)
    scores = complexities(Member(given, "resnet", "small"), fit, images, evidence.MeasureSettings(), "cpu").set_index(
        ["measure", "variant"]
    )
    predicted = fit.predict(backbones.backbone_features(given, images.images, "cpu", 36))
    assert scores.loc[("training_accuracy", ""), "value"] == pytest.approx((predicted == images.labels.numpy()).mean())
    assert set(scores["model"]) == {"small"}
    if ("fro_dist", "") in scores.index:
        assert np.isnan(scores.loc[("fro_dist", ""), "value"])  # no start is known
        assert scores.loc[("fro_dist", ""), "reason"]


def test_the_distance_from_an_untrained_start_is_that_of_the_probe_alone(images):
    given = small()
    fit = fitted(given, images)
    scores = complexities(Member(given, "resnet", "small", start=given.network), fit, images, evidence.MeasureSettings(), "cpu")
    scores = scores.set_index(["measure", "variant"])["value"]
    if ("fro_dist", "") not in scores.index:
        pytest.skip("the norms are not registered")
    head = float(probe.probe_layer(fit).weight.double().square().sum())
    assert scores["fro_dist", ""] == pytest.approx(np.sqrt(head / len(images)), rel=1e-4)


def test_complexity_is_the_value_against_its_direction():
    rows = [("a", "training_accuracy", "", 0.9), ("a", "training_loss", "", 0.4), ("b", "training_accuracy", "", np.nan)]
    rows += [("b", "training_loss", "", 0.7), ("a", "output_margin", "5th percentile", 3.0), ("a", "output_margin", "10th percentile", 5.0)]
    table = as_complexity(pd.DataFrame(rows + rows[:1], columns=["model", "measure", "variant", "value"]))
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

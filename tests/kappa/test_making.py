from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.data.images import choose_images, images_of_study
from helpers.kappa import making, networks
from helpers.kappa.making import (
    Recipe,
    efficientnet_like,
    family_made,
    made_models,
    make,
    run_of,
)
from helpers.training import run
from tests.conftest import TINY_SCENES

NAMES = ["resnet18 w0.0625", "efficientnet-like w0.25 d0.25"]
RECIPE = Recipe(epochs=2, seed=0)


@pytest.fixture
def work(tmp_path):
    """A study whose seen classes are chosen."""
    choose_images(tmp_path / making.FOLDER, **TINY_SCENES)
    return tmp_path


def test_a_made_network_says_what_it_is_by_its_name():
    names = [
        "resnet18 w0.25",
        "resnet101 w1",
        "efficientnet-like w0.5 d0.5",
        "resnet18",
        "efficientnet_b0",
        "RN50 w0.5",
        "model set",
    ]
    assert list(map(family_made, names)) == [
        "resnet",
        "resnet",
        "efficientnet-like",
        "",
        "",
        "",
        "",
    ]


def test_the_start_is_decided_by_name_and_seed_and_grows_with_the_factors():
    state = torch.random.get_rng_state()
    one, two, other, wide, deep = (
        efficientnet_like(f"efficientnet-like {factors}", 4, seed).state_dict()
        for factors, seed in (
            ("w0.25 d0.5", 1),
            ("w0.25 d0.5", 1),
            ("w0.25 d0.5", 2),
            ("w1 d0.5", 1),
            ("w0.25 d1", 1),
        )
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, two[key]) for key, value in one.items())
    assert any(not torch.equal(value, other[key]) for key, value in one.items())
    assert [
        value.shape[0]
        for value in (one["features.0.0.weight"], wide["features.0.0.weight"])
    ] == [8, 32]
    assert len(deep) > len(one) == len(wide)
    assert (
        len([key for key in deep if key.endswith("fc1.weight")]) == 16
    )  # one per block: B0 has 16


def test_small_images_keep_a_map_and_the_stem_goes_by_the_side():
    """Places of the last map: 4 x 4 of 64 px, where EfficientNet-B0 would leave 2 x 2."""
    images = torch.zeros(2, 3, 64, 64)
    with torch.inference_mode():
        assert efficientnet_like("efficientnet-like w0.25 d0.25", 3, 0).eval().features(
            images
        ).shape[2:] == (4, 4)
    for side, stem in ((32, "small"), (64, "strided"), (224, "imagenet")):
        data = type(
            "Data",
            (),
            {
                "fingerprint": "-",
                "train": type("Set", (), {"images": torch.zeros(1, 3, side, side)}),
            },
        )
        config = run_of("resnet34 w0.5", data, Recipe(3, 1))
        assert (
            config.architecture,
            config.width,
            config.stem,
            config.max_epochs,
            config.seed,
        ) == ("resnet34", 0.5, stem, 3, 1)


def test_networks_are_made_once_and_loaded_with_their_start(work, monkeypatch):
    data = images_of_study(work / making.FOLDER)
    done = list(make(["RN50", *NAMES], work, data, RECIPE, device="cpu", jobs=1))
    assert len(done) == 2
    assert list(make(NAMES, work, data, RECIPE, device="cpu", jobs=1)) == [], (
        "nothing is trained again"
    )
    models = made_models(["model set", *NAMES], work, data, RECIPE)
    assert [model.facts["model"] for model in models] == NAMES
    assert [model.facts["family"] for model in models] == [
        "resnet",
        "efficientnet-like",
    ]
    tested = run.resident(data.test, "cpu")
    for model in models:
        network, start = model.load("cpu"), model.initial()
        assert run.evaluate(network, tested)[1] == pytest.approx(
            model.facts["test_accuracy"]
        )
        assert (
            model.facts["epochs"],
            model.facts["stop_reason"],
            model.facts["origin"],
        ) == (2, "epoch cap 2", "made on 3 classes")
        pairs = zip(network.parameters(), start.parameters(), strict=True)
        assert any(not torch.equal(trained, first) for trained, first in pairs)
    fresh = efficientnet_like(NAMES[1], 3, 0).state_dict()
    assert all(
        torch.equal(value, fresh[key])
        for key, value in models[1].initial().state_dict().items()
    )
    backbone = networks.backbone(models[1])
    assert isinstance(backbone.load("cpu").classifier[1], nn.Identity)


def test_an_efficientnet_like_network_is_trained_as_a_loop_over_epochs_has_it(work):
    """Its weights, by the functions of 02 one after the other; rule 1 stops before the cap where the loss is small enough."""
    data = images_of_study(work / making.FOLDER)
    config = replace(
        run_of(NAMES[1], data, Recipe(5, 0)),
        loss_threshold=100.0,
        accuracy_threshold=0.01,
    )
    making._train((NAMES[1], config, work / "one"), data, device="cpu")
    fitted, _ = run.images_of_run(data, config)
    network = efficientnet_like(NAMES[1], 3, 0).to(memory_format=torch.channels_last)
    optimizer = run.make_optimizer(network, config, torch.device("cpu"))
    run.train_epoch(network, optimizer, run.resident(fitted, "cpu"), config, 1)
    kept = load_file(work / "one/snapshot-stop.safetensors")
    for name, value in network.state_dict().items():
        torch.testing.assert_close(kept[name], value, rtol=1e-4, atol=1e-5)


def test_what_diverges_is_refused(work, monkeypatch):
    data = images_of_study(work / making.FOLDER)
    monkeypatch.setattr(run, "train_epoch", lambda *given: (np.nan, 0.0))
    list(make(NAMES, work, data, RECIPE, device="cpu", jobs=1))
    for name in NAMES:
        with pytest.raises(
            ValueError,
            match=rf"^{name} diverged when it was made \(run resnet18-.*leave it out",
        ):
            made_models([name], work, data, RECIPE)

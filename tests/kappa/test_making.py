import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.models import mobilenet_v2

from helpers.data.images import choose_images, images_of_study
from helpers.kappa import making
from helpers.kappa.making import made_models, recipe, untrained
from helpers.kappa.networks import without_head
from helpers.networks import resnet
from helpers.training import run
from tests.conftest import TINY_SCENES

NAMES = ["resnet18 w0.0625", "mobilenet_v2 w0.1"]
OPTIONS = {"device": "cpu", "jobs": 1}


@pytest.fixture
def work(tmp_path):
    """A study whose seen classes are chosen."""
    choose_images(tmp_path / making.FOLDER, **TINY_SCENES)
    return tmp_path


@pytest.fixture
def data(work):
    return images_of_study(work / making.FOLDER)


def same(one, other):
    states = (network.state_dict().values() for network in (one, other))
    return all(torch.equal(*pair) for pair in zip(*states, strict=True))


def test_a_network_is_that_of_torchvision_or_resnet_by_width_and_seed():
    state = torch.random.get_rng_state()
    found = untrained("mobilenet_v2 w0.25", 4, 224, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(3)
    assert same(found, mobilenet_v2(num_classes=4, width_mult=0.25, dropout=0))
    assert not same(found, untrained("mobilenet_v2 w0.25", 4, 224, seed=4))
    for side, stem in ((32, "small"), (64, "strided"), (224, "imagenet")):
        expected = resnet.build("resnet34", 4, stem=stem, width=0.125, seed=3)
        assert same(untrained("resnet34 w0.125", 4, side, seed=3), expected)


def test_small_images_keep_a_map_of_four_by_four():
    network = untrained("mobilenet_v2 w0.1", 4, 64).eval()
    assert network.features(torch.zeros(1, 3, 64, 64)).shape[2:] == (4, 4)
    weights = untrained("mobilenet_v2 w0.1", 4, 224).state_dict()
    network.load_state_dict(weights)  # strides alone differ


@pytest.mark.parametrize(
    "name", ["resnet19 w0.25", "resnet18 w0", "resnet18 w", "vgg11 w1"]
)
def test_a_network_that_cannot_be_made_is_named_with_what_can(name):
    with pytest.raises(ValueError, match=f"has '{name}'.*'mobilenet_v2 w0.5'$"):
        untrained(name, 4, 64)


def test_networks_are_made_once_and_loaded_without_heads(work, data, monkeypatch):
    training = recipe(data, 2, 0)
    made_models(NAMES, work, training, **OPTIONS)
    monkeypatch.delattr(run, "train_epoch")
    models = made_models(NAMES, work, training, **OPTIONS)
    assert [model.facts["model"] for model in models] == NAMES
    assert [model.facts["family"] for model in models] == ["resnet", "mobilenet_v2"]
    tested = run.resident(data.test, "cpu")
    for name, model in zip(NAMES, models, strict=True):
        side = data.train.images.shape[-1]
        assert model.facts["side"] == side
        assert (model.facts["epochs"], model.facts["stop_reason"]) == (2, "epoch cap 2")
        network = untrained(name, 3, side, 0)
        folder = work / "made/networks" / model.model_id
        network.load_state_dict(load_file(folder / "snapshot-stop.safetensors"))
        accuracy = run.evaluate(network.eval(), tested)[1]
        assert accuracy == model.facts["test_accuracy"]
        assert same(model.load("cpu"), without_head(network))
        assert same(model.initial(), without_head(untrained(name, 3, side, 0)))
        assert not same(model.initial(), network)


def test_a_published_network_is_tuned_with_a_new_head(work, data, monkeypatch):
    published = mobilenet_v2(num_classes=9)
    save_file(published.state_dict(), work / "mobilenet_v2.safetensors")
    training = recipe(data, 1, 0)
    options = OPTIONS | {"weights": str(work / "{architecture}.safetensors")}
    (model,) = made_models(["mobilenet_v2 tuned"], work, training, **options)
    assert model.facts["family"] == "mobilenetv2, fine-tuned"
    assert same(model.initial(), without_head(published))
    folder = work / "made/networks" / model.model_id
    tuned = load_file(folder / "snapshot-stop.safetensors")
    assert tuned["1.weight"].shape == (3, 1280)
    assert not same(model.load("cpu"), model.initial())
    monkeypatch.delattr(run, "train_epoch")
    (again,) = made_models(["mobilenet_v2 tuned"], work, training, **options)
    assert again.model_id == model.model_id
    with pytest.raises(FileNotFoundError, match="resnet18"):
        made_models(["resnet18 tuned"], work, training, **options)


def test_what_diverges_or_is_damaged_is_refused(work, data, monkeypatch):
    training = recipe(data, 2, 0)
    (model,) = made_models(NAMES[:1], work, training, **OPTIONS)
    (path,) = work.glob("made/networks/*/snapshot-stop.safetensors")
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="snapshot-stop"):
        model.load()
    monkeypatch.setattr(run, "train_epoch", lambda *given: (np.nan, 0.0))
    with pytest.raises(RuntimeError, match=f"{NAMES[0]}: .* it diverged; .* leave it"):
        made_models(NAMES[:1], work, training | {"seed": 1}, **OPTIONS)

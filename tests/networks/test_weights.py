"""Files are read as tensors alone, or refused; written ones name their network."""

import math
import pickle
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.networks import resnet, weights
from helpers.networks.weights import read_state, read_weights

FORM = {"architecture": "resnet18", "stem": "strided", "width": 0.125}
FORM["last_stride"] = 1
ONE = {"conv.weight": torch.ones(2), "fc.weight": torch.zeros(3)}


def built(classes, **changes):
    return resnet.build(**FORM | {"seed": 0} | changes, classes=classes)


def saved(folder, content, name="a.pt"):
    torch.save(content, folder / name)
    return folder / name


def equal(state, other):
    return state.keys() == other.keys() and all(
        torch.equal(state[name], other[name]) for name in state
    )


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
@pytest.mark.parametrize("place", ["top", "state_dict", "any"])
def test_a_state_dict_is_read_at_the_top_and_one_level_below(tmp_path, prefix, place):
    state = {f"{prefix}{name}": value for name, value in ONE.items()}
    content = state if place == "top" else {place: state, "epoch": 3, "hooks": {}}
    assert equal(read_state(saved(tmp_path, content)), ONE)


class Trap:
    def __reduce__(self):
        return (sys.exit, ("the code of a checkpoint was run",))


@pytest.mark.parametrize(
    "content",
    [
        {"model": ONE, "model_ema": ONE},
        {"loss": torch.ones(1), "epoch": 3},
        {"a": {"b": {"model": ONE}}},
        [ONE],
        {"state_dict": ONE, "more": Trap()},
        b"",
        b"weights",
        b"PK\x03\x04 no zip",
        pickle.dumps(Trap(), protocol=4),
    ],
)
@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
def test_what_is_no_state_dict_is_refused_and_no_code_runs(tmp_path, name, content):
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    else:
        saved(tmp_path, content, name)
    with pytest.raises(ValueError, match=f"{name} was refused"):
        read_state(tmp_path / name)


def test_safetensors_of_others_are_read_and_have_no_form(tmp_path):
    save_file(ONE, tmp_path / "a.safetensors", metadata={"format": "[1]"})
    assert equal(read_state(tmp_path / "a.safetensors"), ONE)
    assert weights.form_in(tmp_path / "a.safetensors") == {}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """torch's folder of downloads, where nothing can be downloaded."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    return tmp_path / "hub/checkpoints"


def offline(*arguments, **options):
    raise OSError("no network")


def test_weights_by_path_and_by_torchvisions_name_load_the_same_backbone(tmp_path, hub):
    state = resnet.build("resnet18", 1000, seed=3).state_dict()
    save_file(state, tmp_path / "resnet18.safetensors")
    torch.save(state, hub / "resnet18-f37072fd.pth")
    by_path = read_weights(f"{tmp_path}/{{architecture}}.safetensors", "resnet18")
    by_name = read_weights("IMAGENET1K_V1", "resnet18")
    digests = {weights.weights_digest(each) for each in (by_path, by_name, state)}
    assert len(digests) == 1
    network = weights.load_backbone(resnet.build("resnet18", 20, seed=9), by_name)
    own = network.state_dict()
    assert torch.equal(own["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])


def test_missing_and_dangerous_weights_are_refused_with_three_ways(tmp_path, hub):
    torch.save({"x": Trap()}, hub / "resnet18-f37072fd.pth")
    for source, architecture in (
        ("IMAGENET1K_V1", "resnet18"),  # holds code
        ("IMAGENET1K_V1", "resnet50"),  # cannot be downloaded
        ("nowhere/{architecture}.safetensors", "resnet18"),
    ):
        with pytest.raises(FileNotFoundError, match="Three ways"):
            read_weights(source, architecture)
    torch.save({"x": Trap()}, tmp_path / "worse.pth")
    with pytest.raises(ValueError, match=r"worse.pth was refused"):
        read_weights(str(tmp_path / "worse.pth"), "resnet18")


def test_a_download_is_checked_against_the_digits_in_its_name(tmp_path, monkeypatch):
    """The file is a local one, of other bytes than those that torchvision names."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    damaged = tmp_path / "resnet18-f37072fd.pth"
    damaged.write_bytes(b"damaged on its way")
    download = torch.hub.download_url_to_file

    def download_local(url, *arguments, **options):
        download(damaged.as_uri(), *arguments, **options)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download_local)
    with pytest.raises(FileNotFoundError, match="invalid hash value"):
        read_weights("IMAGENET1K_V1", "resnet18")
    assert not list(tmp_path.rglob("hub/checkpoints/*.pth"))


@pytest.mark.parametrize("classes", [4, 6])
def test_a_pretrained_start_never_brings_its_head(classes):
    trained = built(4)
    with torch.no_grad():
        trained.fc.weight.add_(1.0)
    initial = built(classes)
    network = weights.load_backbone(built(classes), trained.state_dict())
    assert torch.equal(network.fc.weight, initial.fc.weight)
    assert torch.equal(network.fc.bias, initial.fc.bias)
    assert torch.equal(network.conv1.weight, trained.conv1.weight)


LAST = "layer4.1.conv2.weight"


@pytest.mark.parametrize("value", [1j, 1, math.nan])
def test_weights_that_are_no_usable_numbers_are_refused(value):
    state = built(5).state_dict()
    state[LAST] = torch.full(state[LAST].shape, value)
    message = rf"{LAST} \({state[LAST].dtype}\) is not of finite"
    with pytest.raises(ValueError, match=message):
        weights.load_backbone(built(5), state)


@pytest.mark.parametrize(("width", "name"), [(0.25, "conv1.weight"), (0.125, LAST)])
def test_weights_of_another_network_are_refused_by_name(width, name):
    state = built(5, width=width).state_dict()
    del state[LAST]
    with pytest.raises(ValueError, match=rf"do not fit the network[\s\S]*{name}"):
        weights.load_backbone(built(5), state)


def test_checkpoints_say_their_network_and_round_weights_to_half_precision(tmp_path):
    path = tmp_path / "half.safetensors"
    state = built(4).state_dict() | {"large": torch.full((2,), 1e6)}
    facts = FORM | {"a fact": 'ä"\\\n'}
    weights.save_float16(path, state, dict(reversed(facts.items())))
    content = path.read_bytes()
    weights.save_float16(path, state, facts)
    assert path.read_bytes() == content
    assert weights.form_in(path) == FORM
    assert weights.header_of(path)["a fact"] == 'ä"\\\n'
    halves = load_file(path)
    assert halves["conv1.weight"].dtype == torch.float16
    assert halves["large"].dtype == torch.float32  # beyond the range of float16
    for name, value in halves.items():
        value = value.to(state[name].dtype)
        torch.testing.assert_close(value, state[name], rtol=2**-11, atol=2**-24)

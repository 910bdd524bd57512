"""Weights by name and by path, files that are refused and why, and checkpoints that name their network."""

import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.networks import contents, resnet, weights

FORM = weights.ResNetForm("resnet18", "strided", 0.125, 1)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """torch's folder of downloads, where nothing can be downloaded."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", _offline)
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    return tmp_path / "hub/checkpoints"


def _offline(*arguments, **options):
    raise OSError("no network")


def test_weights_by_path_and_by_torchvisions_name_load_the_same_backbone(tmp_path, hub):
    trained = resnet.build("resnet18", 1000, seed=3)
    save_file(trained.state_dict(), tmp_path / "resnet18.safetensors")
    torch.save(trained.state_dict(), hub / "resnet18-f37072fd.pth")
    by_path = weights.read_weights(
        str(tmp_path / "{architecture}.safetensors"), "resnet18"
    )
    by_name = weights.read_weights("IMAGENET1K_V1", "resnet18")
    assert (
        weights.weights_digest(by_path)
        == weights.weights_digest(by_name)
        == weights.weights_digest(trained.state_dict())
    )
    network = weights.load_backbone(resnet.build("resnet18", 20, seed=9), by_name)
    assert torch.equal(network.layer4[1].conv2.weight, trained.layer4[1].conv2.weight)


@pytest.mark.parametrize("classes", [4, 6])
def test_a_pretrained_start_never_brings_its_head(classes):
    trained = FORM.network(4)
    with torch.no_grad():
        trained.fc.weight.add_(1.0)
    initial = FORM.network(classes)
    network = weights.load_backbone(FORM.network(classes), trained.state_dict())
    assert torch.equal(network.fc.weight, initial.fc.weight)
    assert torch.equal(network.fc.bias, initial.fc.bias)
    assert torch.equal(network.conv1.weight, trained.conv1.weight)


def test_a_download_is_checked_against_the_digits_in_its_name(tmp_path, monkeypatch):
    """The file is a local one, of other bytes than those that torchvision names."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "resnet18-f37072fd.pth").write_bytes(b"damaged on its way")
    url = (tmp_path / "resnet18-f37072fd.pth").as_uri()
    download = torch.hub.download_url_to_file

    def download_local(url_of_torchvision, *arguments, **options):
        download(url, *arguments, **options)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download_local)
    with pytest.raises(FileNotFoundError, match="Three ways") as raised:
        weights.read_weights("IMAGENET1K_V1", "resnet18")
    assert "invalid hash value" in str(raised.value.__cause__)
    assert not list(tmp_path.rglob("hub/checkpoints/*.pth"))


def test_missing_weights_name_the_file_the_folder_and_three_ways(hub):
    with pytest.raises(
        FileNotFoundError,
        match=r"resnet50-0676ba61.pth.*checkpoints.*Three ways: \(1\).*\(2\).*\(3\)",
    ):
        weights.read_weights("IMAGENET1K_V1", "resnet50")
    with pytest.raises(
        FileNotFoundError, match=r"resnet18.safetensors .*nowhere.*Three ways"
    ):
        weights.read_weights("nowhere/{architecture}.safetensors", "resnet18")


class Dangerous:
    def __reduce__(self):
        return (print, ("this ran",))


def test_a_pickle_with_code_is_refused_wherever_it_lies_and_does_not_run(
    tmp_path, hub, capsys, recwarn
):
    (tmp_path / "bad.pth").write_bytes(pickle.dumps({"x": Dangerous()}))
    for path in (tmp_path / "worse.pth", hub / "resnet18-f37072fd.pth"):
        torch.save({"x": Dangerous()}, path)
    others = (str(tmp_path / "worse.pth"), "IMAGENET1K_V1")
    for source in (str(tmp_path / "bad.pth"), *others):
        with pytest.raises(ValueError, match=r"pth was refused"):
            weights.read_weights(source, "resnet18")
    assert "this ran" not in capsys.readouterr().out
    assert not recwarn.list  # torch's own words would come beside


@pytest.mark.parametrize("value", [1j, 1, float("nan")])
def test_weights_that_are_no_usable_numbers_are_refused(tmp_path, value):
    name = "layer1.0.conv1.weight"
    state = FORM.network(4).state_dict()
    wrong = torch.full(state[name].shape, value)
    torch.save(state | {name: wrong}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=rf"{name} \({wrong.dtype}\) is not of finite"):
        weights.load_backbone(FORM.network(4), contents.read(tmp_path / "a.pt"))


def test_weights_of_another_network_are_refused_by_name():
    state = resnet.build("resnet18", 5, width=0.25, seed=0).state_dict()
    message = "do not fit the network; use weights of the same architecture, stem and"
    with pytest.raises(ValueError, match=message):
        weights.load_backbone(resnet.build("resnet18", 5, width=0.125, seed=0), state)
    partial = resnet.build("resnet18", 5, width=0.125, seed=0).state_dict()
    del partial["layer4.1.conv2.weight"]
    with pytest.raises(ValueError, match=r"network; .*layer4\.1\.conv2\.weight"):
        weights.load_backbone(resnet.build("resnet18", 5, width=0.125, seed=0), partial)


def test_half_precision_moves_no_weight_by_more_than_its_rounding(tmp_path):
    state = FORM.network(4).state_dict()
    weights.save_float16(tmp_path / "half.safetensors", state, FORM, {})
    for name, value in load_file(tmp_path / "half.safetensors").items():
        assert value.dtype == (
            torch.float16 if state[name].is_floating_point() else state[name].dtype
        )
        torch.testing.assert_close(
            value.to(state[name].dtype), state[name], rtol=2**-11, atol=2**-24
        )
    weights.save_float16(
        tmp_path / "large.safetensors",
        {"small": torch.ones(2), "large": torch.full((2,), 1e6)},
        FORM,
        {},
    )
    kept = load_file(tmp_path / "large.safetensors")
    assert (kept["small"].dtype, kept["large"].dtype, kept["large"].tolist()) == (
        torch.float16,
        torch.float32,
        [1e6, 1e6],
    )


def test_what_is_equal_gives_equal_bytes_and_the_header_names_network_and_facts(
    tmp_path,
):
    state, facts = (
        FORM.network(4).state_dict(),
        {f"fact {number}": 'ä"\\\n' for number in range(20)},
    )
    written = []
    for given in (facts, dict(reversed(facts.items()))):
        weights.save_float16(tmp_path / "a.safetensors", state, FORM, given)
        written.append((tmp_path / "a.safetensors").read_bytes())
    assert written[0] == written[1]
    assert weights.form_in(tmp_path / "a.safetensors") == FORM
    assert weights.header_of(tmp_path / "a.safetensors").items() >= facts.items()
    save_file(
        {"a": torch.ones(1)}, tmp_path / "other.safetensors", metadata={"other": "[1]"}
    )
    assert weights.header_of(tmp_path / "other.safetensors") == {}

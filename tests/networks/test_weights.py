import pickle

import pytest
import safetensors.torch
import torch

from helpers.networks import resnet, weights


def test_weights_by_path_and_by_torchvisions_name_load_the_same_backbone(tmp_path, monkeypatch):
    trained = resnet.build("resnet18", 1000, seed=3)
    safetensors.torch.save_file(trained.state_dict(), tmp_path / "resnet18.safetensors")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    torch.save(trained.state_dict(), tmp_path / "hub/checkpoints/resnet18-f37072fd.pth")
    by_path = weights.read_weights(str(tmp_path / "{architecture}.safetensors"), "resnet18")
    by_name = weights.read_weights("IMAGENET1K_V1", "resnet18")
    assert weights.weights_digest(by_path) == weights.weights_digest(by_name) == weights.weights_digest(trained.state_dict())
    network = weights.load_backbone(resnet.build("resnet18", 20, seed=9), by_name)
    assert torch.equal(network.layer4[1].conv2.weight, trained.layer4[1].conv2.weight)
    assert torch.equal(network.fc.weight, resnet.build("resnet18", 20, seed=9).fc.weight)  # other classes: the head starts anew


def test_missing_weights_name_the_file_the_folder_and_three_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", _offline)
    with pytest.raises(FileNotFoundError, match=r"resnet50-0676ba61.pth.*checkpoints.*Three ways: \(1\).*\(2\).*\(3\)"):
        weights.read_weights("IMAGENET1K_V1", "resnet50")
    with pytest.raises(FileNotFoundError, match=r"nowhere/resnet18.safetensors.*Three ways"):
        weights.read_weights("nowhere/{architecture}.safetensors", "resnet18")


def _offline(*arguments, **options):
    raise OSError("no network")


class Dangerous:
    def __reduce__(self):
        return (print, ("this ran",))


def test_a_pickle_with_code_in_the_cache_of_torchvision_is_refused_and_does_not_run(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    torch.save({"x": Dangerous()}, tmp_path / "hub/checkpoints/resnet18-f37072fd.pth")
    with pytest.raises(
        ValueError, match=r"cached file of IMAGENET1K_V1 for resnet18 is no plain state dict \(UnpicklingError\); delete it"
    ):
        weights.read_weights("IMAGENET1K_V1", "resnet18")
    assert capsys.readouterr().out == ""


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, capsys):
    (tmp_path / "bad.pth").write_bytes(pickle.dumps({"x": Dangerous()}))
    torch.save({"x": Dangerous()}, tmp_path / "worse.pth")
    for name in ("bad.pth", "worse.pth"):
        with pytest.raises(ValueError, match=f"{name} is no plain state dict .* save it as safetensors"):
            weights.read_weights(str(tmp_path / name), "resnet18")
    assert "this ran" not in capsys.readouterr().out


def test_weights_of_another_network_are_refused_by_name():
    state = resnet.build("resnet18", 5, width=0.25, seed=0).state_dict()
    with pytest.raises(ValueError, match=r"\d+ tensors differ, first .*; use weights of the same architecture, stem and width"):
        weights.load_backbone(resnet.build("resnet18", 5, width=0.125, seed=0), state)
    with pytest.raises(ValueError, match=r"1 tensors differ, first layer4\.1\.conv2\.weight"):
        partial = resnet.build("resnet18", 5, width=0.125, seed=0).state_dict()
        del partial["layer4.1.conv2.weight"]
        weights.load_backbone(resnet.build("resnet18", 5, width=0.125, seed=0), partial)

import pickle

import pytest
import safetensors.torch
import torch
import torchvision
import torchvision.transforms.v2.functional as transforms

from helpers import models, resnet


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_full_width_with_the_imagenet_stem_is_torchvisions(architecture):
    torch.manual_seed(5)
    reference = torchvision.models.get_model(architecture, weights=None, num_classes=20)
    ours = models.build(architecture, 20, seed=5)
    assert list(ours.state_dict()) == list(reference.state_dict())
    image = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours.eval()(image), reference.eval()(image))


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
def test_a_scaled_network_of_full_width_has_torchvisions_keys_shapes_and_outputs(architecture):
    reference = torchvision.models.get_model(architecture, weights=None, num_classes=7).eval()
    scaled = resnet.ResNet(architecture, 7).eval()
    scaled.load_state_dict(reference.state_dict())
    image = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(scaled(image), reference(image))


@pytest.mark.parametrize(("stem", "side"), [("imagenet", 2), ("small", 8), ("strided", 4)])
def test_the_stem_decides_the_size_of_the_map(stem, side):
    network = models.build("resnet18", 5, stem=stem, width=0.125, seed=0)
    maps = []
    network.layer4.register_forward_hook(lambda module, given, output: maps.append(output))
    network(torch.randn(2, 3, 64, 64))
    assert maps[0].shape == (2, 64, side, side)


def test_width_scales_every_layer():
    widths = {name: p.shape[0] for name, p in models.build("resnet50", 5, width=0.25, seed=0).named_parameters() if p.ndim == 4}
    full = {name: p.shape[0] for name, p in models.build("resnet50", 5, seed=0).named_parameters() if p.ndim == 4}
    assert widths == {name: channels // 4 for name, channels in full.items()}


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, two, other = (models.build("resnet18", 5, width=0.125, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.conv1.weight, two.conv1.weight)
    assert not torch.equal(one.conv1.weight, other.conv1.weight)


def test_normalise_is_torchvisions():
    image = torch.randint(0, 256, (2, 3, 5, 5), dtype=torch.uint8)
    preset = torchvision.models.ResNet18_Weights.IMAGENET1K_V1.transforms()
    expected = transforms.normalize(image / 255, preset.mean, preset.std)
    assert torch.allclose(models.normalise(image), expected, atol=1e-6)  # float32 rounding of values up to 3


def test_weights_by_path_and_by_torchvisions_name_load_the_same_backbone(tmp_path, monkeypatch):
    trained = models.build("resnet18", 1000, seed=3)
    safetensors.torch.save_file(trained.state_dict(), tmp_path / "resnet18.safetensors")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    torch.save(trained.state_dict(), tmp_path / "hub/checkpoints/resnet18-f37072fd.pth")
    by_path = models.read_weights(str(tmp_path / "{architecture}.safetensors"), "resnet18")
    by_name = models.read_weights("IMAGENET1K_V1", "resnet18")
    assert models.weights_digest(by_path) == models.weights_digest(by_name) == models.weights_digest(trained.state_dict())
    network = models.load_backbone(models.build("resnet18", 20, seed=9), by_name)
    assert torch.equal(network.layer4[1].conv2.weight, trained.layer4[1].conv2.weight)
    assert torch.equal(network.fc.weight, models.build("resnet18", 20, seed=9).fc.weight)  # other classes: the head starts anew


def test_missing_weights_name_the_file_the_folder_and_three_ways(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", _offline)
    with pytest.raises(FileNotFoundError, match=r"resnet50-0676ba61.pth.*checkpoints.*Three ways: \(1\).*\(2\).*\(3\)"):
        models.read_weights("IMAGENET1K_V1", "resnet50")
    with pytest.raises(FileNotFoundError, match=r"nowhere/resnet18.safetensors.*Three ways"):
        models.read_weights("nowhere/{architecture}.safetensors", "resnet18")


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
        models.read_weights("IMAGENET1K_V1", "resnet18")
    assert capsys.readouterr().out == ""


def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, capsys):
    (tmp_path / "bad.pth").write_bytes(pickle.dumps({"x": Dangerous()}))
    torch.save({"x": Dangerous()}, tmp_path / "worse.pth")
    for name in ("bad.pth", "worse.pth"):
        with pytest.raises(ValueError, match=f"{name} is no plain state dict .* save it as safetensors"):
            models.read_weights(str(tmp_path / name), "resnet18")
    assert "this ran" not in capsys.readouterr().out


def test_weights_of_another_network_are_refused_by_name():
    state = models.build("resnet18", 5, width=0.25, seed=0).state_dict()
    with pytest.raises(ValueError, match=r"\d+ tensors differ, first .*; use weights of the same architecture, stem and width"):
        models.load_backbone(models.build("resnet18", 5, width=0.125, seed=0), state)
    with pytest.raises(ValueError, match=r"1 tensors differ, first layer4\.1\.conv2\.weight"):
        partial = models.build("resnet18", 5, width=0.125, seed=0).state_dict()
        del partial["layer4.1.conv2.weight"]
        models.load_backbone(models.build("resnet18", 5, width=0.125, seed=0), partial)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"architecture": "vgg16"}, "architecture 'vgg16' is unknown; choose one of resnet18, resnet34, resnet50, resnet101"),
        ({"stem": "large"}, "stem 'large' is unknown; choose one of imagenet, small, strided"),
        ({"width": 0.05}, "width 0.05 must be at least 0.0625, which is 4 channels"),
        ({"width": float("nan")}, "width nan must be at least 0.0625"),
    ],
)
def test_refuses_unknown_networks(arguments, message):
    with pytest.raises(ValueError, match=message):
        models.build(**{"architecture": "resnet18", "classes": 5, "seed": 0, **arguments})

import re
import sys

import numpy as np
import pytest
import safetensors.torch
import torch
import torchvision
from PIL import Image
from torch import nn

from helpers.kappa import backbones
from helpers.kappa.backbones import NETWORK_FAMILIES, Backbone, backbone, backbone_features, own_backbone, without_head
from helpers.networks import resnet


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def clip():
    """CLIP's RN50 for 64 pixels, built once."""
    pytest.importorskip("open_clip")
    return backbone("RN50", weights="random", seed=3, image_size=50)


class Tiny(nn.Module):
    """A classifier with two linear layers, batch norm and dropout, of which only the last layer is the head."""

    def __init__(self):
        super().__init__()
        self.maps = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.BatchNorm2d(8), nn.ReLU())
        self.neck = nn.Linear(8, 6)
        self.classify = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4))

    def forward(self, given):
        return self.classify(self.neck(self.maps(given).mean((2, 3))).relu())


@pytest.fixture
def tiny():
    torch.manual_seed(1)
    return Tiny()


def identity_backbone(network, image_size=None, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)):
    return Backbone("a", "workbook", network, 0.0, mean, std, image_size, "random", "")


class Flat(nn.Module):
    """Puts its images out as features; the parameter tells the device."""

    def __init__(self):
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))

    def forward(self, given):
        return given.flatten(1)


def test_families_are_the_libraries_own_names():
    known = torchvision.models.list_models()
    assert {*NETWORK_FAMILIES["efficientnet"], *NETWORK_FAMILIES["resnet"]} <= set(known)
    assert [family for family, members in NETWORK_FAMILIES.items() for _ in members] == [
        backbones.family_of(n) for m in NETWORK_FAMILIES.values() for n in m
    ]
    open_clip = pytest.importorskip("open_clip")
    assert set(NETWORK_FAMILIES["clip"]) <= set(open_clip.list_models())


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_what_goes_into_the_last_linear_layer_is_the_feature(name, images):
    torch.manual_seed(7)
    reference = torchvision.models.get_model(name, weights=None).eval()
    given = backbone(name, weights="random", seed=7)
    found = backbone_features(given, images, "cpu", 5)
    head = reference.fc if name == "resnet18" else reference.classifier[1]
    assert found.shape == (5, head.in_features)
    assert found.dtype == torch.float32
    with torch.no_grad():
        expected = reference(resnet.normalise_images(images))
        torch.testing.assert_close(head(found), expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))
    assert found.std(0).max() > 0  # the images differ


def test_millions_are_counted_without_the_head():
    # Published: 11.69M and 5.29M with 1,000 classes, whose heads take 512 * 1000 + 1000 and 1280 * 1000 + 1000.
    assert backbone("resnet18", weights="random", seed=0).millions == pytest.approx((11_689_512 - 513_000) / 1e6)
    assert backbone("efficientnet_b0", weights="random", seed=0).millions == pytest.approx((5_288_548 - 1_281_000) / 1e6)


def test_the_seed_decides_random_weights_and_the_global_generator_is_left_alone():
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, two, other = (backbone("resnet18", weights="random", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert one.identity == two.identity != other.identity
    assert one.origin == "random"
    assert one.family == "resnet"


def test_weights_by_path_and_by_name_give_the_same_features_whatever_the_head(tmp_path, monkeypatch, images):
    trained = resnet.build("resnet18", 1000, seed=3).state_dict()
    other_head = {name: value for name, value in trained.items() if not name.startswith("fc.")} | {"fc.weight": torch.zeros(7, 512)}
    safetensors.torch.save_file(other_head, tmp_path / "resnet18.safetensors")
    torch.save(trained, tmp_path / "resnet18.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    (tmp_path / "hub/checkpoints").mkdir(parents=True)
    torch.save(trained, tmp_path / "hub/checkpoints/resnet18-f37072fd.pth")
    sources = [str(tmp_path / "{architecture}.safetensors"), str(tmp_path / "resnet18.pth"), "IMAGENET1K_V1"]
    found = [backbone("resnet18", weights=source, seed=number) for number, source in enumerate(sources)]
    assert [given.origin for given in found] == ["file resnet18.safetensors", "file resnet18.pth", "named IMAGENET1K_V1"]
    assert len({given.identity for given in found}) == 1
    expected = backbone_features(own_backbone("ours", resnet.build("resnet18", 1000, seed=3), origin="random"), images, "cpu", 2)
    assert torch.equal(backbone_features(found[0], images, "cpu", 2), expected)


def test_missing_weights_name_the_file_and_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(torch.hub, "download_url_to_file", offline)
    with pytest.raises(FileNotFoundError, match=r"weights for efficientnet_b0 cannot be had: efficientnet_b0_rwightman-.*checkpoints"):
        backbone("efficientnet_b0", weights="IMAGENET1K_V1", seed=0)
    with pytest.raises(FileNotFoundError, match=r"nowhere/resnet18\.safetensors"):
        backbone("resnet18", weights="nowhere/{architecture}.safetensors", seed=0)


def offline(*arguments, **options):
    raise OSError("no network")


def test_weights_of_another_network_are_refused(tmp_path):
    safetensors.torch.save_file(resnet.build("resnet18", 5, width=0.125, seed=0).state_dict(), tmp_path / "narrow.safetensors")
    with pytest.raises(ValueError, match=r"^the weights do not fit the network: \d+ tensors differ, first bn1\.bias"):
        backbone("resnet18", weights=str(tmp_path / "narrow.safetensors"), seed=0)


def test_an_own_network_is_copied_and_only_its_last_linear_layer_goes(tiny, images):
    before = {name: value.clone() for name, value in tiny.state_dict().items()}
    tiny.train()
    given = own_backbone("tiny", tiny, origin="file tiny.safetensors")
    found = backbone_features(given, images, "cpu", 2)
    assert (given.family, given.name, given.origin) == ("workbook", "tiny", "file tiny.safetensors")
    assert found.shape == (5, 6)
    assert all(module.training for module in tiny.modules())
    assert all(parameter.requires_grad for parameter in tiny.parameters())
    assert all(torch.equal(value, before[name]) for name, value in tiny.state_dict().items())
    with torch.no_grad():
        torch.testing.assert_close(tiny.classify[1](found), tiny.eval()(resnet.normalise_images(images)))


def test_without_head_names_the_layer_and_refuses_a_network_without_one(tiny):
    assert without_head(tiny)[1] == "classify.1"
    for network in (nn.Sequential(nn.Conv2d(3, 4, 1)), nn.Linear(3, 4)):
        with pytest.raises(ValueError, match=rf"^the network {type(network).__name__} has no nn.Linear inside, so no head to remove$"):
            without_head(network)


def test_features_do_not_depend_on_the_batch_and_are_ordinary_tensors(tiny, images):
    given = own_backbone("tiny", tiny, origin="random")
    found = backbone_features(given, images, "cpu", 2)
    torch.testing.assert_close(found, backbone_features(given, images, "cpu", 100))
    torch.testing.assert_close(found[[3, 1]], backbone_features(given, images[[3, 1]], "cpu", 1))
    assert not found.is_inference()
    assert not found.requires_grad


def test_pixels_are_normalised_by_hand():
    image = torch.tensor([255, 51, 0], dtype=torch.uint8).view(1, 3, 1, 1)
    found = backbone_features(identity_backbone(Flat(), mean=(0.5, 0.2, 0.1), std=(0.5, 0.1, 0.2)), image, "cpu", 1)
    torch.testing.assert_close(found, torch.tensor([[1.0, 0.0, -0.5]]))


@pytest.mark.parametrize("side", [16, 48])
def test_images_are_resized_as_pillow_resizes_them(images, side):
    found = backbone_features(identity_backbone(Flat(), image_size=side), images, "cpu", 5).view(5, 3, side, side) * 255
    for one, ours in zip(images, found, strict=True):
        theirs = Image.fromarray(one.permute(1, 2, 0).numpy()).resize((side, side), Image.Resampling.BICUBIC)
        assert np.abs(ours.permute(1, 2, 0).numpy() - np.asarray(theirs, dtype=float)).max() <= 1.001  # both round to whole grey levels


def test_the_network_is_left_as_it_was_also_after_a_fault(images):
    class Faulty(Flat):
        def forward(self, given):
            raise RuntimeError("broken")

    given = identity_backbone(Faulty().train())
    with pytest.raises(RuntimeError, match="broken"):
        backbone_features(given, images, "cpu", 2)
    assert given.network.training
    assert given.network.nothing.requires_grad
    assert given.network.nothing.device.type == "cpu"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"images": torch.zeros(2, 3, 8, 8)}, "images must be (N, 3, S, S) uint8 with N at least 1, got (2, 3, 8, 8) torch.float32"),
        ({"images": torch.zeros(0, 3, 8, 8, dtype=torch.uint8)}, "images must be (N, 3, S, S) uint8 with N at least 1, got (0, 3, 8, 8)"),
        ({"images": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}, "got (2, 1, 8, 8) torch.uint8"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"given": identity_backbone(nn.Conv2d(3, 4, 1))}, "a puts out shape (2, 4, 8, 8); features must be (B, D)"),
    ],
)
def test_features_refuse(change, message):
    arguments = {"given": identity_backbone(Flat()), "images": torch.zeros(2, 3, 8, 8, dtype=torch.uint8), "batch_size": 2, "device": "cpu"}
    with pytest.raises(ValueError, match=re.escape(message)):
        backbone_features(**arguments | change)


def test_unknown_names_and_sizes_are_refused():
    with pytest.raises(ValueError, match=r"^network 'vgg16' is unknown; choose one of RN50, .*efficientnet_b7, resnet18, .*resnet101$"):
        backbone("vgg16", weights="random", seed=0)
    with pytest.raises(ValueError, match=r"^image_size is 7; it must be at least 8, or None to take images as they come$"):
        backbone("resnet18", weights="random", seed=0, image_size=7)


def test_without_open_clip_the_error_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(ImportError, match=re.escape('pip install "generalization-workbook[clip]"')):
        backbone("RN50", weights="random", seed=0)


def test_clips_features_are_the_attention_pools_output_at_a_size_rounded_up_to_32(clip, images):
    assert clip.image_size == 64
    assert clip.family == "clip"
    assert clip.network.attnpool.positional_embedding.shape == (2 * 2 + 1, 2048)
    found = backbone_features(clip, images[:2], "cpu", 2)
    assert found.shape == (2, 1024)
    assert torch.isfinite(found).all()
    assert found.std(0).max() > 0


def test_clips_random_network_is_the_visual_half_that_open_clip_builds(clip, monkeypatch):
    open_clip = pytest.importorskip("open_clip")
    monkeypatch.setattr(open_clip.model, "_build_text_tower", lambda *given, **options: nn.Identity())
    layout = open_clip.get_model_config("RN50")
    reference = open_clip.model._build_vision_tower(layout["embed_dim"], layout["vision_cfg"] | {"image_size": 64})
    assert {k: v.shape for k, v in clip.network.state_dict().items()} == {k: v.shape for k, v in reference.state_dict().items()}
    assert clip.network.attnpool.num_heads == reference.attnpool.num_heads
    assert clip.millions == pytest.approx(sum(p.numel() for p in reference.parameters()) / 1e6)
    assert round(clip.millions) == 38  # the size that Huang et al. 2025 give for RN50
    assert clip.mean == open_clip.OPENAI_DATASET_MEAN
    assert clip.std == open_clip.OPENAI_DATASET_STD


def test_a_file_of_a_clip_model_decides_the_size_and_its_text_half_is_left_out(clip, tmp_path, images):
    state = {f"visual.{name}": value for name, value in clip.network.state_dict().items()} | {"logit_scale": torch.ones(1)}
    safetensors.torch.save_file(state, tmp_path / "RN50.safetensors")
    given = backbone("RN50", weights=str(tmp_path / "{architecture}.safetensors"), seed=0, image_size=224)
    assert given.image_size == 64
    assert given.identity == clip.identity
    assert given.origin == "file RN50.safetensors"
    assert torch.equal(backbone_features(given, images[:2], "cpu", 2), backbone_features(clip, images[:2], "cpu", 2))


def test_missing_or_strange_weights_of_clip_are_refused(clip, tmp_path, monkeypatch):
    open_clip = pytest.importorskip("open_clip")
    monkeypatch.setattr(open_clip, "download_pretrained", offline)
    with pytest.raises(FileNotFoundError, match=r"open_clip_model.safetensors of timm/resnet50_clip.openai \('openai'\) is not in .*hub"):
        backbone("RN50", weights="openai", seed=0)
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth \(from 'nowhere\.pth'\) is no file; or name one of openai"):
        backbone("RN50", weights="nowhere.pth", seed=0)
    safetensors.torch.save_file({"a": torch.zeros(1)}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"^RN50: the weights do not fit the network: they hold no attnpool\.positional_embedding$"):
        backbone("RN50", weights=str(tmp_path / "a.safetensors"), seed=0)

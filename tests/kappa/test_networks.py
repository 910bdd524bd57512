import pytest
import safetensors.torch
import torch
import torchvision
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize

from helpers.kappa import networks
from helpers.networks import resnet
from helpers.networks.hooks import prepared


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm", reason="timm is not installed")


@pytest.fixture
def images():
    random = torch.Generator().manual_seed(0)
    return torch.randint(256, (3, 3, 48, 48), dtype=torch.uint8, generator=random)


def published(name, state, folder):
    safetensors.torch.save_file(state, folder / f"{name}.safetensors")
    weights = str(folder / "{architecture}.safetensors")
    return networks.published([name], weights)[0]


def features_of(model, images):
    with torch.inference_mode():
        return model.load("cpu")(prepared(images, model.normalise, "cpu"))


@pytest.mark.parametrize(
    ("name", "family"), [("tf_efficientnet_b0", "efficientnet"), ("resnet18", "resnet")]
)
def test_published_networks_are_timms_headless(timm, tmp_path, images, name, family):
    torch.manual_seed(1)
    reference = timm.create_model(name, num_classes=7).eval()
    found = published(name, reference.state_dict(), tmp_path)
    assert (found.facts["family"], found.facts["side"]) == (family, 224)
    resized = resize(images, [224, 224], InterpolationMode.BICUBIC)
    with torch.inference_mode():
        maps = reference.forward_features(resnet.normalise_images(resized))
        expected = reference.forward_head(maps, pre_logits=True)
    values = features_of(found, images)
    rounding = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(values, expected, rtol=0, atol=rounding)
    assert found.initial() is None


def test_a_folder_of_checkpoints_is_a_family_named_by_it(tmp_path, images):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("passed over")
    torch.manual_seed(1)
    reference = torchvision.models.squeezenet1_1()
    torch.save(reference.state_dict(), folder / "squeezenet1_1-1a2b.pth")
    reference = torchvision.models.mobilenet_v2(num_classes=3)
    torch.save(reference.state_dict(), folder / "mobilenet_v2.pt")
    mobile, squeeze = networks.published([str(folder)], "")
    assert [mobile.facts["family"], squeeze.facts["family"]] == ["mine", "mine"]
    assert squeeze.facts["model"] == "squeezenet1_1-1a2b"
    assert features_of(mobile, images).shape == (3, 1280)
    modules = networks.to_be_tuned(mobile, 3, 0).modules()
    assert {each.p for each in modules if isinstance(each, torch.nn.Dropout)} == {0}
    with pytest.raises(ValueError, match="SqueezeNet has no linear layer"):
        squeeze.load()
    torch.save({"bn1.bias": torch.ones(1)}, folder / "mobilenet_v2.pt")
    with pytest.raises(RuntimeError, match="state_dict for MobileNetV2"):
        networks.published([str(folder)], "")[0].load()


def test_clips_features_are_open_clips_embeddings(timm, tmp_path, images):
    open_clip = pytest.importorskip("open_clip", reason="open_clip is not installed")
    layout = open_clip.get_model_config("RN50")
    torch.manual_seed(2)
    sizes = layout["embed_dim"], layout["vision_cfg"]
    visual = open_clip.model._build_vision_tower(*sizes).eval()
    state = {f"visual.{name}": value for name, value in visual.state_dict().items()}
    state["logit_scale"] = torch.ones(1)
    model = published("RN50", state, tmp_path)
    assert model.facts["family"] == "clip"
    tensors = model.load("cpu").parameters()
    # Millions, in Table 1 of the paper.
    assert round(sum(value.numel() for value in tensors) / 1e6) == 38
    pixels = model.normalise(images)
    assert pixels.shape == (3, 3, 224, 224)
    with torch.inference_mode():
        expected = visual(pixels)
    values = features_of(model, images)
    torch.testing.assert_close(values, expected, rtol=1e-4, atol=1e-6)
    white = model.normalise(torch.full((1, 3, 224, 224), 255, dtype=torch.uint8))
    mean = torch.tensor(open_clip.OPENAI_DATASET_MEAN)
    std = torch.tensor(open_clip.OPENAI_DATASET_STD)
    torch.testing.assert_close(white[0, :, 0, 0], (1 - mean) / std)


def test_what_is_missing_or_unknown_is_named_with_the_nearest(timm, tmp_path):
    with pytest.raises(FileNotFoundError, match="made"):
        networks.published(["RN50"], "made")
    with pytest.raises(ValueError, match=r"'resnet19' is .*did you mean 'resnet18'"):
        networks.published(["resnet19"], "made")
    with pytest.raises(FileNotFoundError, match=r"has no checkpoints \(.safetensors"):
        networks.published([str(tmp_path)], "made")

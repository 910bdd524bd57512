from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch
import torchvision
from torch import nn
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import resize

from helpers import plan
from helpers.kappa import networks
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.scores.models import Model

COLUMNS = ["model_id", "architecture", "train_loss", "pretrained", "left_out"]
CATALOGUE = pd.DataFrame(
    [
        ("a@stop", "resnet18", 0.3, False, ""),
        ("b@stop", "resnet18", 0.1, False, ""),
        ("c@stop", "resnet18", 0.2, True, ""),
        ("d@stop", "resnet34", 0.5, False, "too low"),
        ("e@none", "resnet34", np.nan, False, "diverged"),
        ("f@stop", "resnet34", 0.4, False, ""),
    ],
    columns=COLUMNS,
).assign(snapshot=lambda table: table["model_id"].str[2:])


@pytest.mark.parametrize(("most", "expected"), [(0, "baf"), (1, "bf")])
def test_models_are_chosen_by_training_loss_within_their_architecture(most, expected):
    table = networks.chosen_models(CATALOGUE, most)
    assert "".join(table["model_id"].str[0]) == expected
    assert table["model"].iloc[0] == "resnet18 no. 1"
    with pytest.raises(ValueError, match="no model trained from scratch"):
        networks.chosen_models(CATALOGUE.assign(pretrained=True), most)


def test_models_of_the_catalogue_become_backbones(tmp_path, monkeypatch):
    network = resnet.build("resnet18", 3, stem="strided", width=0.125, seed=0)
    monkeypatch.setattr(
        networks,
        "models_of",
        lambda work, rows, data: [
            Model(row["model_id"], lambda device: network, row)
            for row in rows.to_dict("records")
        ],
    )
    train = SimpleNamespace(images=torch.zeros(1, 3, 8, 8))
    data = SimpleNamespace(classes=["a", "b", "c"], train=train)
    chosen = networks.chosen_models(CATALOGUE, 1)
    first, _ = networks.model_set(tmp_path, chosen, data, 3)
    assert (first.model_id, first.facts["origin"]) == ("b@stop", "trained on 3 classes")
    layers = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))
    features = networks.backbone(Model("two layers", lambda device: layers)).load()
    assert features(torch.zeros(5, 3)).shape == (5, 6), "only the last layer goes"
    with pytest.raises(ValueError, match="all 3 classes, not on 2; set seen_classes"):
        networks.model_set(tmp_path, chosen, data, 2)


@pytest.fixture(scope="module")
def timm():
    return pytest.importorskip("timm", reason="timm is not installed")


@pytest.fixture
def images():
    return torch.randint(
        0,
        256,
        (3, 3, 48, 48),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )


def features_of(model, images):
    with torch.inference_mode():
        return model.load("cpu")(prepared(images, model.normalise, "cpu"))


@pytest.mark.parametrize(
    ("name", "family"),
    [("tf_efficientnet_b0", "efficientnet"), ("resnet18", "resnet")],
)
def test_published_networks_are_timms_without_their_head(
    timm, tmp_path, images, name, family
):
    torch.manual_seed(1)
    reference = timm.create_model(name, num_classes=7).eval()
    place = tmp_path / f"{name}.safetensors"
    safetensors.torch.save_file(reference.state_dict(), place)
    weights = str(tmp_path / "{architecture}.safetensors")
    (found,) = networks.published([name], weights)
    assert (found.facts["family"], found.facts["side"]) == (family, 224)
    resized = resize(images, [224, 224], InterpolationMode.BICUBIC)
    with torch.inference_mode():
        maps = reference.forward_features(resnet.normalise_images(resized))
        expected = reference.forward_head(maps, pre_logits=True)
    rounding = 1e-4 * float(expected.abs().max())
    torch.testing.assert_close(
        features_of(found, images), expected, rtol=0, atol=rounding
    )
    assert found.initial() is None


def test_a_folder_of_checkpoints_is_a_family_named_by_it(tmp_path, images):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "notes.txt").write_text("passed over")
    torch.manual_seed(1)
    reference = torchvision.models.squeezenet1_1()
    torch.save(reference.state_dict(), folder / "squeezenet1_1-1a2b.pth")
    reference = torchvision.models.shufflenet_v2_x0_5(num_classes=3)
    torch.save(reference.state_dict(), folder / "shufflenet_v2_x0_5.pt")
    shuffle, squeeze = networks.published([str(folder)], "")
    assert [shuffle.facts["family"], squeeze.facts["family"]] == ["mine", "mine"]
    assert squeeze.facts["model"] == "squeezenet1_1-1a2b"
    assert squeeze.facts["architecture"] == "squeezenet1_1"
    assert features_of(shuffle, images).shape == (3, 1024)
    with pytest.raises(ValueError, match="SqueezeNet has no linear layer"):
        squeeze.load()
    torch.save({"bn1.bias": torch.ones(1)}, folder / "shufflenet_v2_x0_5.pt")
    with pytest.raises(ValueError, match="does not fit shufflenet_v2_x0_5: "):
        networks.published([str(folder)], "")[0].load()


def test_clips_features_are_open_clips_embeddings(timm, tmp_path, images):
    open_clip = pytest.importorskip("open_clip", reason="open_clip is not installed")
    layout = open_clip.get_model_config("RN50")
    torch.manual_seed(2)
    visual = open_clip.model._build_vision_tower(
        layout["embed_dim"], layout["vision_cfg"]
    ).eval()
    state = {f"visual.{name}": value for name, value in visual.state_dict().items()} | {
        "logit_scale": torch.ones(1)
    }
    safetensors.torch.save_file(state, tmp_path / "RN50.safetensors")
    (found,) = networks.published(
        ["RN50"], str(tmp_path / "{architecture}.safetensors")
    )
    assert found.facts["family"] == "clip"
    assert (
        round(sum(value.numel() for value in found.load("cpu").parameters()) / 1e6)
        == 38
    )  # million, in Table 1 of the paper
    pixels = found.normalise(images)
    assert pixels.shape == (3, 3, 224, 224)
    with torch.inference_mode():
        torch.testing.assert_close(
            features_of(found, images), visual(pixels), rtol=1e-4, atol=1e-6
        )
    full = torch.full((1, 3, 224, 224), 255, dtype=torch.uint8)
    mean, std = (
        torch.tensor(values)
        for values in (open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD)
    )
    torch.testing.assert_close(found.normalise(full)[0, :, 0, 0], (1 - mean) / std)


def test_what_is_missing_or_unknown_is_named_with_the_nearest(timm, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"weights of RN50 are not in .*made"):
        networks.published(["RN50"], "made")
    with pytest.raises(
        ValueError,
        match=r"'resnet19' is .*no folder \(did you mean 'resnet18'",
    ):
        networks.published(["resnet19"], "made")
    with pytest.raises(FileNotFoundError, match=r"has no checkpoints \(.safetensors"):
        networks.published([str(tmp_path)], "made")


def test_the_plan_lists_each_network_with_the_side_of_its_images(
    timm, tmp_path, capsys
):
    for name in ("squeezenet1_1-1a2b.pth", "shufflenet_v2_x0_5.pt"):
        (tmp_path / name).write_bytes(b"")  # is not read
    names = ["resnet18 w0.25", "RN50x4", "tf_efficientnet_b7", str(tmp_path)]
    assert networks.sides(names, 48) == {
        "resnet18 w0.25": 48,
        "RN50x4": 288,
        "tf_efficientnet_b7": 224,
        "shufflenet_v2_x0_5": 224,
        "squeezenet1_1-1a2b": 224,
    }
    plan.main("kappa_tiny20")
    assert "mobilenet_v2 w0.15: images of 48 px" in capsys.readouterr().out

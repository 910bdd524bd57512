"""Files of checkpoints become networks with the same weights, or are refused by name."""

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from helpers.checkpoints import inputs
from helpers.networks import resnet
from helpers.networks.weights import save_float16
from tests.checkpoints.conftest import dark_or_light


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=5).eval()


@pytest.fixture(scope="module")
def state(network):
    return network.state_dict()


@pytest.mark.parametrize(
    ("file", "prefix"),
    [("a.safetensors", ""), ("a.pth", "model.module."), ("a.pt", "_orig_mod.")],
)
def test_a_resnet_is_the_same_however_saved(tmp_path, network, state, file, prefix):
    tensors = {f"{prefix}{name}": value for name, value in state.items()}
    path = tmp_path / file
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save({"state_dict": tensors, "epoch": 3}, path)
    loaded = inputs.load(path, "auto", 5)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert not loaded.training
    with torch.inference_mode():
        outputs = loaded(images), network(images)
    torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_of_the_workbook_brings_its_network(tmp_path):
    form = {"architecture": "resnet18", "stem": "strided", "width": 0.125}
    form["last_stride"] = 1
    state = resnet.build(**form, classes=4, seed=0).state_dict()
    save_float16(tmp_path / "a.safetensors", state, form | {"gap": 0.25})
    loaded = inputs.load(tmp_path / "a.safetensors", "auto", 4)
    assert loaded.conv1.weight.shape == (8, 3, 3, 3)
    with pytest.raises(ValueError, match=r"conv1.weight: .*\[8, 3, 3, 3\]"):
        inputs.load(tmp_path / "a.safetensors", "resnet18", 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv1.weight": torch.ones(64, 1, 7, 7)}, r"conv1.weight: .*\[64, 1, 7, 7\]"),
        ({"fc.weight": torch.ones(9, 512)}, r"mismatch for fc.weight: .*\[9, 512\]"),
        ({"fc.bias": torch.full((5,), torch.nan)}, "fc.bias .* is not of finite real"),
        ({"fc.bias": torch.nn.Identity()}, r"linear.Identity .* model.state_dict\(\)"),
        # a head with dropout
        ({"fc.bias": None, "fc.1.bias": torch.ones(5)}, "Missing key.*Unexpected key"),
    ],
)
@pytest.mark.parametrize("architecture", ["auto", "resnet18"])
def test_what_does_not_fit_is_refused(tmp_path, state, changes, message, architecture):
    changed = {
        name: value for name, value in (state | changes).items() if value is not None
    }
    torch.save(changed, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=message):
        inputs.load(tmp_path / "a.pt", architecture, 5)


def test_names_of_timm_and_functions_of_ones_own_make_networks(users_module, tmp_path):
    timm = pytest.importorskip("timm")
    made = timm.create_model("resnet10t", num_classes=3)
    torch.save(made.state_dict(), tmp_path / "a.pt")
    assert inputs.load(tmp_path / "a.pt", "resnet10t", 3).fc.out_features == 3
    torch.save(dark_or_light(), tmp_path / "b.pt")
    images = torch.ones(1, 3, 4, 4)
    outputs = [
        inputs.load(tmp_path / "b.pt", f"{users_module}:{name}", 2)(images)
        for name in ("Brightness", "InDictionary")
    ]
    assert [output.tolist() for output in outputs] == [[[-1.0, 1.0]]] * 2
    for output in ((images,), {"output": images}, torch.ones(1, 3)):
        with pytest.raises(ValueError, match="logits of 2 classes are needed"):
            inputs._logits_alone(2, None, (images,), output)
    for name in ("resnet19", "no_such_module:f", "a_users_module:none"):
        with pytest.raises(ValueError, match=r"neither|not there"):
            inputs.builder(name)

import pickle
import sys

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from helpers.networks.weights import Form, save_half
from helpers.select import load
from tests.select.conftest import Residual, narrow


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=5).eval()


def test_files_are_found_below_and_hidden_ones_are_not(tmp_path):
    for name in ("a.pt", "b/c.SAFETENSORS", ".hidden.pt", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert list(load.find(tmp_path)) == ["a.pt", "b/c.SAFETENSORS"]
    assert list(load.find(tmp_path / "notes.txt")) == ["notes.txt"]
    with pytest.raises(FileNotFoundError, match="none"):
        load.find(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="no checkpoint is in"):
        load.find(tmp_path / "empty")


def test_averaged_weights_beside_others_are_named_and_not_taken(tmp_path, network):
    averaged = {
        name: torch.zeros_like(value) for name, value in network.state_dict().items()
    }
    torch.save(
        {"state_dict": network.state_dict(), "state_dict_ema": averaged},
        tmp_path / "a.pth",
    )
    loaded = load.load_checkpoint(tmp_path / "a.pth")
    assert torch.equal(loaded.network.fc.weight, network.fc.weight)
    assert loaded.notes == (
        "it holds averaged weights (EMA) under 'state_dict_ema'; those under 'state_dict' are taken",
    )


@pytest.mark.parametrize("form", ["safetensors", "plain", "wrapped", "lightning"])
def test_a_resnet_is_recognised_however_it_was_saved(tmp_path, network, form):
    state, path = network.state_dict(), tmp_path / "a.ckpt"
    if form == "safetensors":
        save_file(state, path := tmp_path / "a.safetensors")
    else:
        beside = {"loss.weight": torch.ones(3)} if form == "lightning" else {}
        prefix = {"plain": "", "wrapped": "module.", "lightning": "model."}[form]
        inner = {prefix + name: value for name, value in state.items()} | beside
        torch.save(
            inner if form == "plain" else {"state_dict": inner, "epoch": 3}, path
        )
    loaded = load.load_checkpoint(path)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    assert (loaded.classes, loaded.network.training) == (5, False)
    with torch.inference_mode():
        torch.testing.assert_close(
            loaded.network(images), network(images), rtol=1e-4, atol=1e-4
        )


def test_a_checkpoint_of_a_report_brings_its_network_unless_another_is_named(tmp_path):
    form = Form("resnet18", "strided", 0.125, 1)
    save_half(
        tmp_path / "a.safetensors", form.network(4).state_dict(), form, {"gap": 0.25}
    )
    words, residual = load.described(
        load.load_checkpoint(tmp_path / "a.safetensors").network
    )
    assert residual
    assert (
        words
        == "ResNet18, 8 channels after a 3x3 stem of stride 2, last stage of stride 1"
    )
    with pytest.raises(ValueError, match="no head of vgg11"):
        load.load_checkpoint(tmp_path / "a.safetensors", "vgg11")


def test_widths_and_strides_are_read_off_a_network_of_ones_own(users_module, tmp_path):
    save_file(Residual(7).state_dict(), tmp_path / "a.safetensors")
    loaded = load.load_checkpoint(
        tmp_path / "a.safetensors", f"{users_module}:residual"
    )
    assert load.described(loaded.network) == (
        "ResNet4, 4 channels after a 3x3 stem of stride 2, last stage of stride 1",
        True,
    )
    assert not load.described(narrow(3))[1]
    depths = {
        depth: load.described(torchvision.models.get_model(f"resnet{depth}"))[0]
        for depth in (18, 34, 50)
    }
    assert all(
        words.startswith(
            f"ResNet{depth}, 64 channels after a 7x7 stem of stride 2, max-pool"
        )
        for depth, words in depths.items()
    )


def test_a_function_of_ones_own_is_given_the_classes_of_the_head_or_knows_them(
    users_module, tmp_path
):
    for classes, name in ((11, "narrow"), (2, "fixed")):
        save_file(narrow(classes).state_dict(), tmp_path / "a.safetensors")
        assert (
            load.load_checkpoint(
                tmp_path / "a.safetensors", f"{users_module}:{name}"
            ).classes
            == classes
        )
    with pytest.raises(ValueError, match="gives str"):
        load.load_checkpoint(tmp_path / "a.safetensors", f"{users_module}:text")
    for name in ("resnet19", "no_such_module:f", "a_users_module:none"):
        with pytest.raises(ValueError, match="architecture"):
            load.builder_of(name)


class Trap:
    def __reduce__(self):
        return (sys.exit, ("the code of a checkpoint was run",))


def test_code_is_refused_and_not_run(tmp_path):
    torch.save({"state_dict": Trap()}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap(), protocol=4))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(ValueError, match=name):
            load.load_checkpoint(tmp_path / name)


def changed(state, **tensors):
    return {
        name: tensors.get(name.replace(".", "_"), value)
        for name, value in state.items()
        if tensors.get(name.replace(".", "_"), 0) is not None
    }


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"conv1_weight": torch.ones(16, 3, 3, 3)}, "of 16 channels with a 3x3 stem"),
        (
            {"fc_weight": torch.ones(1, 512), "fc_bias": torch.ones(1)},
            "it has 1 outputs",
        ),
        (
            {"fc_bias": None},
            "does not fit resnet18 with 5 outputs: 1 tensors .* first fc.bias",
        ),
        ({"fc_bias": torch.full((5,), torch.nan)}, "not finite"),
        ({"fc_bias": torch.ones(5).to(torch.float8_e4m3fn)}, "float8"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_its_cause(
    tmp_path, network, tensors, said
):
    torch.save(changed(network.state_dict(), **tensors), tmp_path / "a.pt")
    with pytest.raises(ValueError, match=said):
        load.load_checkpoint(tmp_path / "a.pt")


def test_images_are_normalised_as_torchvision_does_it():
    images = torch.randint(
        0,
        256,
        (2, 3, 4, 4),
        dtype=torch.uint8,
        generator=torch.Generator().manual_seed(0),
    )
    mean, std = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    theirs = torchvision.transforms.functional.normalize(
        images.float() / 255, mean, std
    )
    torch.testing.assert_close(load.normaliser(mean, std)(images), theirs)
    for wrong in ((mean, (0, 1, 1)), ((1.5, 0, 0), std), (mean[:2], std)):
        with pytest.raises(ValueError, match="three numbers"):
            load.normaliser(*wrong)


def test_a_model_is_known_by_all_that_decides_its_values(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"one")
    (tmp_path / "b.pt").write_bytes(b"one")
    plain, other = (
        load.normaliser((0, 0, 0), (1, 1, 1)),
        load.normaliser((0, 0, 0), (0.5, 1, 1)),
    )
    names = [
        load.model(tmp_path / "a.pt", "a b.pt", *given).model_id
        for given in (("auto", plain), ("auto", other), ("vgg11", plain))
    ]
    assert len(set(names)) == 3
    assert all(name.startswith("a-b.pt-") for name in names)
    same = [
        load.model(tmp_path / name, name, "auto", plain).facts["bytes"]
        for name in ("a.pt", "b.pt")
    ]
    assert same[0] == same[1]

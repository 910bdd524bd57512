import importlib.util
import os
import pickle
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from helpers.networks import weights
from helpers.select import load


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return torchvision.models.resnet18(num_classes=5).eval()


def narrow(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))


def fixed():
    return narrow(7)


@pytest.fixture
def users_module(monkeypatch):
    module = type(sys)("a_users_module")
    module.narrow, module.fixed = narrow, fixed
    monkeypatch.setitem(sys.modules, "a_users_module", module)
    load.builder_of.cache_clear()
    return "a_users_module"


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("key", ["", "state_dict", "model"])
def test_a_wrapped_state_dict_is_found_whatever_wraps_it(tmp_path, network, prefix, key):
    state = {prefix + name: value for name, value in network.state_dict().items()}
    torch.save({key: state, "epoch": 3} if key else state, tmp_path / "a.pt")
    read = weights.read_state(tmp_path / "a.pt")
    assert {name: value.tolist() for name, value in read.items() if value.ndim < 2} == {
        name: value.tolist() for name, value in network.state_dict().items() if value.ndim < 2
    }


def test_checkpoints_of_every_ending_give_the_network_that_was_saved(tmp_path, network):
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    torch.save(network.state_dict(), tmp_path / "b.pth")
    (tmp_path / ".hidden.pt").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("no")
    (tmp_path / ".hidden").write_text("no")
    every = load.find(tmp_path)
    assert {item.name: item.passed_over[:27] for item in every if item.passed_over} == {
        ".hidden.pt": "passed over: a hidden file",
        "notes.txt": "passed over: a checkpoint e",
    }
    found = [item for item in every if not item.passed_over]
    assert [item.name for item in found] == ["a.safetensors", "b.pth"]
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    for candidate in found:
        loaded = candidate.load()
        assert (loaded.form, loaded.classes) == (weights.Form("resnet18"), 5)
        assert not loaded.network.training
        with torch.no_grad():
            torch.testing.assert_close(loaded.network(images), network(images), rtol=1e-4, atol=1e-4)


@pytest.fixture
def own_form():
    return weights.Form("resnet18", "strided", 0.125, 1)


def test_a_checkpoint_of_a_report_brings_the_network_that_it_belongs_to(tmp_path, own_form):
    network = own_form.network(4).eval()
    weights.save_half(tmp_path / "a.safetensors", network.state_dict(), own_form, {"gap": 0.25})
    loaded = load.load_checkpoint(tmp_path / "a.safetensors")
    assert (loaded.form, loaded.classes) == (own_form, 4)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(loaded.network(images), network(images), rtol=1e-2, atol=1e-2)


def test_an_architecture_that_is_named_wins_over_the_header(tmp_path, own_form):
    weights.save_half(tmp_path / "a.safetensors", own_form.network(4).state_dict(), own_form, {})
    with pytest.raises(ValueError, match="has no head of vgg11"):
        load.load_checkpoint(tmp_path / "a.safetensors", "vgg11")


def test_a_header_that_asks_for_a_network_of_another_size_is_refused_before_it_is_built(tmp_path, own_form):
    weights.save_half(tmp_path / "a.safetensors", own_form.network(4).state_dict(), own_form._replace(width=20_000.0), {})
    with pytest.raises(ValueError, match="does not fit resnet18 with 4 outputs"):
        load.load_checkpoint(tmp_path / "a.safetensors")


class Trap:
    def __reduce__(self):
        return (sys.exit, ("the code of a checkpoint was run",))


@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_checkpoint_is_refused_and_not_run(tmp_path, protocol):
    torch.save({"state_dict": Trap()}, tmp_path / "a.pt")
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap(), protocol=protocol))
    with pytest.raises(ValueError, match=r"a\.pt was refused.*run code.*safetensors"):
        load.load_checkpoint(tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"b\.pt"):
        load.load_checkpoint(tmp_path / "b.pt")


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"<html>", b"PK\x03\x04 not a zip"])
def test_a_damaged_file_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        load.load_checkpoint(tmp_path / name)


def test_a_file_without_tensors_says_what_it_has(tmp_path):
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "a.pt")
    with pytest.raises(ValueError, match="epoch, loss"):
        weights.read_state(tmp_path / "a.pt")
    torch.save([1, 2], tmp_path / "b.pt")
    with pytest.raises(ValueError, match="holds a list"):
        weights.read_state(tmp_path / "b.pt")


def test_the_wrong_architecture_names_the_tensors_that_differ(tmp_path, network):
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"does not fit resnet34.*layer1\.2"):
        load.load_checkpoint(tmp_path / "a.safetensors", "resnet34")


def test_half_precision_becomes_single(tmp_path, network):
    torch.save(
        {name: value.half() if value.is_floating_point() else value for name, value in network.state_dict().items()}, tmp_path / "a.pt"
    )
    assert load.load_checkpoint(tmp_path / "a.pt").network.fc.weight.dtype == torch.float32


def test_a_users_function_is_given_the_number_of_classes_of_the_head(tmp_path, users_module):
    save_file(narrow(11).state_dict(), tmp_path / "a.safetensors")
    assert load.load_checkpoint(tmp_path / "a.safetensors", f"{users_module}:narrow").classes == 11
    save_file(narrow(7).state_dict(), tmp_path / "b.safetensors")
    assert load.load_checkpoint(tmp_path / "b.safetensors", f"{users_module}:fixed").classes == 7


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="timm is not installed")
def test_timm_is_known_by_name(tmp_path):
    import timm

    made = timm.create_model("resnet10t", num_classes=4)
    save_file(made.state_dict(), tmp_path / "a.safetensors")
    assert load.load_checkpoint(tmp_path / "a.safetensors", "timm:resnet10t").classes == 4
    with pytest.raises(ValueError, match="no architecture 'resnet_of_nobody'"):
        load.builder_of("timm:resnet_of_nobody")


def test_what_cannot_be_found_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        load.find(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no checkpoint is in"):
        load.find(tmp_path)
    with pytest.raises(ValueError, match="'resnet19' is unknown"):
        load.find(tmp_path, "resnet19")
    with pytest.raises(ValueError, match="cannot be imported"):
        load.builder_of("no_such_module:function")
    with pytest.raises(ValueError, match="is none of resnet18"):
        load.guess(narrow(2).state_dict(), "a.pt")


@pytest.mark.parametrize("name", load.RESNETS)
def test_a_guess_tells_the_resnets_apart(name):
    with torch.device("meta"):
        state = torchvision.models.get_model(name, num_classes=3).state_dict()
    assert load.guess(state, "a.pt") == name


def test_a_checkpoint_of_lightning_is_read_or_says_what_it_holds(tmp_path, network):
    state = {f"model.{name}": value for name, value in network.state_dict().items()}
    torch.save({"state_dict": state, "epoch": 3, "hyper_parameters": {"lr": 0.1}, "callbacks": {}}, tmp_path / "a.ckpt")
    assert load.load_checkpoint(tmp_path / "a.ckpt").classes == 5
    torch.save({"state_dict": state, "hyper_parameters": Namespace(lr=0.1)}, tmp_path / "b.ckpt")
    with pytest.raises(ValueError, match=r"b\.ckpt was refused.*argparse\.Namespace.*safetensors"):
        load.load_checkpoint(tmp_path / "b.ckpt")


def test_a_refused_pickle_comes_without_warnings_of_torch(tmp_path, recwarn):
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Trap(), protocol=4))
    with pytest.raises(ValueError, match=r"a\.pt"):
        load.load_checkpoint(tmp_path / "a.pt")
    assert not recwarn.list


@pytest.mark.parametrize(
    ("cast", "message"),
    [
        (lambda value: value.to(torch.int8), "no real weights, first conv1.weight .torch.int8"),
        (lambda value: value.to(torch.complex64), "no real weights, first conv1.weight .torch.complex64"),
        (lambda value: value.to_sparse(), "no real weights, first conv1.weight .torch.float32"),
        (lambda value: value.to("meta"), "no real weights, first conv1.weight .torch.float32"),
        (lambda value: -value - 1, "20 running variances are below 0, first bn1.running_var"),
        (lambda value: value.clone().fill_(torch.nan), "not finite, first conv1.weight"),
    ],
)
def test_weights_that_would_have_to_be_cast_are_refused(tmp_path, network, cast, message):
    torch.save(
        {name: cast(value) if value.is_floating_point() else value for name, value in network.state_dict().items()}, tmp_path / "a.pt"
    )
    with pytest.raises(ValueError, match=message):
        load.load_checkpoint(tmp_path / "a.pt")


def test_links_that_lead_to_no_checkpoint_are_told_and_nothing_is_read_for_ever(tmp_path, network):
    save_file(network.state_dict(), tmp_path / "a.safetensors")
    (tmp_path / "gone.pt").symlink_to("nowhere")
    (tmp_path / "round.pt").symlink_to("round.pt")
    (tmp_path / "elsewhere").symlink_to(tmp_path.parent)
    os.mkfifo(tmp_path / "pipe.pt")
    (tmp_path / "b").mkdir()
    found = {candidate.name: candidate.passed_over for candidate in load.find(tmp_path)}
    nothing = "passed over: no regular file, or a link to nothing"
    assert found.pop("a.safetensors") == ""
    assert found.pop("elsewhere") == "passed over: a link to a folder, which is not followed; name it itself"
    assert found == {"gone.pt": nothing, "round.pt": nothing, "pipe.pt": nothing}


def test_a_name_that_is_no_text_is_written_with_escapes_and_meets_no_other(tmp_path):
    for name in (b"\xff.pt", b"\\xff.pt", b"\\udcff.pt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"")
    names = [item.name for item in load.find(tmp_path)]
    assert len(set(names)) == 3
    assert "\\udcff.pt" in names
    assert all(name.encode("utf-8") for name in names)


def test_a_head_of_one_class_is_no_classifier(tmp_path, network):
    state = network.state_dict() | {"fc.weight": torch.zeros(1, 512), "fc.bias": torch.zeros(1)}
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match=r"a.safetensors has 1 outputs, and a classifier needs at least 2"):
        load.load_checkpoint(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("os:getcwd", "gives str, and must give a torch.nn.Module"),
        ("json:loads", r"makes no network of 2 classes \(.*Error: .*\)"),
        ("a_broken_module:f", r"cannot be imported \(ZeroDivisionError: division by zero\)"),
        ("../a:f", r"cannot be imported \(TypeError: "),
    ],
)
def test_an_architecture_that_makes_no_network_is_told_before_work(tmp_path, monkeypatch, name, told):
    (tmp_path / "a_broken_module.py").write_text("1 / 0")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a.pt").write_bytes(b"")
    with pytest.raises(ValueError, match=f"^architecture '{name.replace('.', '[.]')}' {told}"):
        load.find(tmp_path, name)

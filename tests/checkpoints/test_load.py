import os
import pickle
import sys

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from helpers.checkpoints import builders, load
from helpers.networks.weights import ResNetForm, save_float16
from tests.checkpoints.conftest import Residual, narrow


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
    form = ResNetForm("resnet18", "strided", 0.125, 1)
    save_float16(
        tmp_path / "a.safetensors", form.network(4).state_dict(), form, {"gap": 0.25}
    )
    words, residual = builders.describe(
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
    assert builders.describe(loaded.network) == (
        "ResNet4, 4 channels after a 3x3 stem of stride 2, last stage of stride 1",
        True,
    )
    assert not builders.describe(narrow(3))[1]
    depths = {
        depth: builders.describe(torchvision.models.get_model(f"resnet{depth}"))[0]
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
            builders.builder_of(name)


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
        load.as_model(tmp_path / "a.pt", "a b.pt", load.Reading(*reading), by).model_id
        for reading, by in (
            (("auto",), plain),
            (("auto",), other),
            (("vgg11",), plain),
            (("auto", "student"), plain),
            (("auto", "", (1, 0)), plain),
        )
    ]
    assert len(set(names)) == 5
    assert all(name.startswith("a-b.pt-") for name in names)
    digests = [
        load.as_model(tmp_path / name, name, load.Reading(), plain).model_id[-12:]
        for name in ("a.pt", "b.pt")
    ]
    assert digests[0] == digests[1]


def test_a_head_after_dropout_is_the_head(tmp_path, network):
    """``fc = Sequential(Dropout(), Linear())`` is saved as fc.1."""
    inner = {
        name.replace("fc.", "fc.1."): value
        for name, value in network.state_dict().items()
    }
    torch.save(inner, tmp_path / "a.pt")
    for architecture in ("auto", "resnet18"):
        loaded = load.load_checkpoint(tmp_path / "a.pt", architecture)
        assert torch.equal(loaded.network.fc.weight, network.fc.weight)
    torch.save(inner | {"fc.4.weight": torch.ones(2, 5)}, tmp_path / "a.pt")
    with pytest.raises(
        ValueError, match=r"its head has 2 layers \(fc\.1, fc\.4\).* has one \(fc\)"
    ):
        load.load_checkpoint(tmp_path / "a.pt")


def test_a_head_in_place_of_several_layers_is_the_head(tmp_path):
    """mobilenet's classifier is Dropout and Linear, and often replaced by Linear."""
    theirs = torchvision.models.mobilenet_v2(num_classes=4).state_dict()
    torch.save(
        {
            name.replace("classifier.1.", "classifier."): value
            for name, value in theirs.items()
        },
        tmp_path / "a.pt",
    )
    loaded = load.load_checkpoint(tmp_path / "a.pt", "mobilenet_v2")
    assert torch.equal(
        loaded.network.classifier[1].weight, theirs["classifier.1.weight"]
    )


@pytest.mark.parametrize("architecture", ["auto", "resnet18"])
def test_a_grey_stem_is_named_first(tmp_path, network, architecture):
    state = network.state_dict()
    grey = {"conv1.weight": state["conv1.weight"].sum(1, keepdim=True)}
    torch.save(state | grey, tmp_path / "a.pt")
    with pytest.raises(ValueError, match=r"takes 1 channel, and images have 3"):
        load.load_checkpoint(tmp_path / "a.pt", architecture)


def test_two_networks_in_one_state_dict_are_a_question(tmp_path, network):
    """A teacher and its student, of two architectures whose names are alike."""
    with torch.device("meta"):
        teacher = torchvision.models.resnet34(num_classes=5).state_dict()
    inner = {
        f"teacher.{name}": torch.zeros(()).expand(value.shape)
        for name, value in teacher.items()
    }
    inner |= {f"student.{name}": value for name, value in network.state_dict().items()}
    torch.save({"state_dict": inner | {"queue": torch.ones(3)}}, tmp_path / "a.ckpt")
    for architecture in ("auto", "resnet18"):
        with pytest.raises(ValueError, match="2 networks: teacher, student; choose"):
            load.load_checkpoint(tmp_path / "a.ckpt", architecture)
        reading = load.Reading(architecture, "student")
        loaded = load.load_checkpoint(tmp_path / "a.ckpt", reading)
        assert torch.equal(loaded.network.fc.weight, network.fc.weight)


def test_a_network_deep_inside_and_compiled_is_found(tmp_path, network):
    inner = {
        f"model.backbone._orig_mod.{name}": value
        for name, value in network.state_dict().items()
    }
    beside = {"criterion.weight": torch.ones(3)}
    torch.save({"state_dict": inner | beside}, tmp_path / "a.ckpt")
    loaded = load.load_checkpoint(tmp_path / "a.ckpt")
    assert torch.equal(loaded.network.fc.weight, network.fc.weight)


def test_averaged_weights_by_a_prefix_are_left_with_a_note(tmp_path, network):
    state = network.state_dict()
    inner = {f"ema_model.{name}": value * 0 for name, value in state.items()}
    inner |= {f"model.{name}": value for name, value in state.items()}
    torch.save({"state_dict": inner}, tmp_path / "a.ckpt")
    loaded = load.load_checkpoint(tmp_path / "a.ckpt")
    assert torch.equal(loaded.network.fc.weight, network.fc.weight)
    assert "averaged weights (EMA) under 'ema_model'" in loaded.notes[0]


def test_outputs_are_put_into_another_order(tmp_path, network):
    torch.save(network.state_dict(), tmp_path / "a.pt")
    order = (3, 0, 4, 1, 2)
    loaded = load.load_checkpoint(tmp_path / "a.pt", load.Reading(order=order))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        torch.testing.assert_close(
            loaded.network(images),
            network(images)[:, list(order)],
            rtol=1e-4,
            atol=1e-4,
        )


def test_what_is_no_regular_file_costs_itself_alone(tmp_path):
    (tmp_path / "a.pt").write_bytes(b"one")
    (tmp_path / "loop.pt").symlink_to("loop.pt")
    (tmp_path / "nothing.pt").symlink_to("absent.pt")
    os.mkfifo(tmp_path / "pipe.pth.tar")
    (tmp_path / "folder.ckpt").mkdir()
    files = load.find(tmp_path)
    assert list(files) == ["a.pt", "loop.pt", "nothing.pt", "pipe.pth.tar"]
    plain = load.normaliser((0, 0, 0), (1, 1, 1))
    for name, kind in {
        "loop.pt": "a link to nothing",
        "nothing.pt": "a link to nothing",
        "pipe.pth.tar": "not a regular file",
    }.items():
        with pytest.raises(ValueError, match=f"{name} is {kind}"):
            load.as_model(files[name], name, load.Reading(), plain)
        with pytest.raises(ValueError, match=f"{name} is {kind}"):
            load.load_checkpoint(files[name])


def test_shards_are_found_as_one_checkpoint(tmp_path, network):
    items = list(network.state_dict().items())
    for number, part in enumerate((items[:20], items[20:]), 1):
        save_file(dict(part), tmp_path / f"m-0000{number}-of-00002.safetensors")
    ((name, path),) = load.find(tmp_path).items()
    assert name == "m-00001-of-00002.safetensors"
    loaded = load.load_checkpoint(path)
    assert torch.equal(loaded.network.fc.weight, network.fc.weight)


def test_a_head_beside_the_network_is_the_head(tmp_path, network):
    """Such as ``self.backbone = resnet18()`` and ``self.head = Linear()``."""
    state = {
        f"head{name.removeprefix('fc')}" if "fc." in name else f"backbone.{name}": value
        for name, value in network.state_dict().items()
    }
    torch.save(state, tmp_path / "a.pt")
    loaded = load.load_checkpoint(tmp_path / "a.pt")
    assert torch.equal(loaded.network.fc.weight, network.fc.weight)
    assert torch.equal(loaded.network.fc.bias, network.fc.bias)
    assert loaded.notes == ("its head is head, beside the network",)
    for other in (
        {"b.weight": torch.ones(3, 512)},
        {"c.weight": torch.ones(1, 1, 1, 1)},
    ):
        torch.save(state | other, tmp_path / "a.pt")
        with pytest.raises(
            ValueError, match=r"no head of resnet18 \(fc\.weight\), nor"
        ):
            load.load_checkpoint(tmp_path / "a.pt")


def test_a_missing_head_and_tensors_that_no_network_has_are_told_what_to_do(
    tmp_path, network
):
    advice = ".*a function that makes the network: --architecture module:function"
    state = network.state_dict()
    body = {name: value for name, value in state.items() if "fc." not in name}
    two = {"fc1.weight": torch.ones(4, 512), "fc2.weight": torch.ones(5, 512)}
    cases = {
        "nor another layer of as many inputs": body,
        r"but other layers of as many inputs: fc1, fc2": body | two,
        r"does not fit resnet18 .* first aux\.weight": state | {"aux.weight": two},
    }
    cases[list(cases)[-1]]["aux.weight"] = torch.ones(4, 512)
    for words, tensors in cases.items():
        torch.save(tensors, tmp_path / "a.pt")
        for architecture in ("auto", "resnet18"):
            with pytest.raises(ValueError, match=words + advice):
                load.load_checkpoint(tmp_path / "a.pt", architecture)


def test_heads_for_training_alone_may_be_absent(monkeypatch, tmp_path):
    """torchvision takes them off its pretrained GoogLeNet."""

    class Small(torch.nn.Module):
        def __init__(self, num_classes, aux_logits=True):
            super().__init__()
            if aux_logits:
                self.aux1 = torch.nn.Linear(4, num_classes)
            self.fc = torch.nn.Linear(4, num_classes)

    monkeypatch.setattr(
        torchvision.models,
        "get_model",
        lambda name, weights, **options: Small(**options),
    )
    builders.builder_of.cache_clear()
    for aux_logits in (True, False):
        theirs = Small(3, aux_logits)
        torch.save(theirs.state_dict(), tmp_path / "a.pt")
        loaded = load.load_checkpoint(tmp_path / "a.pt", "googlenet")
        assert torch.equal(loaded.network.fc.weight, theirs.fc.weight)
        assert hasattr(loaded.network, "aux1") == aux_logits
    builders.builder_of.cache_clear()

"""A file is read as one state dict of tensors, and no code in it is run."""

import collections
import pickle
import sys

import pytest
import torch
from safetensors.torch import save_file

from helpers.networks import contents

ONE = {"conv.weight": torch.ones(2), "fc.weight": torch.zeros(3)}


def saved(folder, content, name="a.pt"):
    torch.save(content, folder / name)
    return folder / name


def equal(state, other):
    return state.keys() == other.keys() and all(
        torch.equal(state[name], other[name]) for name in state
    )


@pytest.mark.parametrize("prefix", ["", "module.", "model._orig_mod."])
@pytest.mark.parametrize("place", ["top", "state_dict", "any"])
def test_a_state_dict_is_read_at_the_top_and_one_level_below(tmp_path, prefix, place):
    state = {f"{prefix}{name}": value for name, value in ONE.items()}
    content = state if place == "top" else {place: state, "epoch": 3, "lrs": [0.1]}
    assert equal(contents.read(saved(tmp_path, content)), ONE)


def test_plain_values_among_the_tensors_are_left(tmp_path):
    assert equal(contents.read(saved(tmp_path, {**ONE, "epoch": 3})), ONE)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": ONE, "model_ema": ONE}, r"holds 2 state dicts \(model, model_ema\)"),
        (
            {"loss": torch.ones(1), "epoch": 3, "best": 1},
            r"holds 0 state dicts \(none\)",
        ),
        ({"a": {"b": {"model": ONE}}}, r"holds 0 state dicts \(none\)"),
        ([ONE], r"holds 0 state dicts \(none\)"),
    ],
)
def test_a_file_without_exactly_one_state_dict_is_refused(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        contents.read(saved(tmp_path, content))


def test_values_beside_weights_that_code_would_make_are_refused_by_name(tmp_path):
    history = collections.defaultdict(list, loss=[0.1])
    path = saved(tmp_path, {"state_dict": ONE, "history": history})
    with pytest.raises(ValueError, match=r"a.pt was refused: .*collections\.defaultd"):
        contents.read(path)


class Trap:
    def __reduce__(self):
        return (sys.exit, ("the code of a checkpoint was run",))


def test_code_is_refused_and_not_run(tmp_path):
    saved(tmp_path, {"state_dict": ONE, "more": Trap()})
    (tmp_path / "b.pt").write_bytes(pickle.dumps(Trap(), protocol=4))
    for name in ("a.pt", "b.pt"):
        with pytest.raises(ValueError, match=name):
            contents.read(tmp_path / name)


@pytest.mark.parametrize("name", ["a.pt", "a.safetensors"])
@pytest.mark.parametrize("content", [b"", b"weights", b"PK\x03\x04 no zip"])
def test_what_is_no_checkpoint_is_refused_by_name(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} was refused"):
        contents.read(tmp_path / name)


def test_safetensors_of_others_are_read(tmp_path):
    save_file(ONE, tmp_path / "a.safetensors", metadata={"format": "pt"})
    assert equal(contents.read(tmp_path / "a.safetensors"), ONE)

"""What files of usual training programs hold: the state dict, names of classes, accuracy."""

import argparse
import json
import math
import pathlib
import re
import zipfile

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from helpers.files import write_tensors
from helpers.networks import contents
from helpers.networks.weights import ResNetForm, save_float16

ONE = {"conv.weight": torch.ones(2), "fc.weight": torch.zeros(3)}
TWO = {name: value + 1 for name, value in ONE.items()}


def saved(folder, content, name="a.pt"):
    torch.save(content, folder / name)
    return folder / name


def equal(state, other):
    return state.keys() == other.keys() and all(
        torch.equal(state[name], other[name]) for name in state
    )


@pytest.mark.parametrize(
    "beside",
    [
        {"args": argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("a/b"))},
        {"best_acc": np.float64(0.5), "epoch": np.int64(3)},
        {"where": pathlib.Path("a")},
        {"where": pathlib.PureWindowsPath("a")},
        {"curve": np.arange(3.0), "flag": np.bool_(True)},
    ],
    ids=lambda beside: "-".join(beside),
)
def test_options_paths_and_numbers_of_numpy_are_read(tmp_path, beside):
    path = saved(tmp_path, {"model": ONE, **beside})
    assert equal(contents.read(path).state, ONE)


class Trap(argparse.Namespace):
    def __reduce__(self):
        return (print, ("this ran",))


@pytest.mark.parametrize("value", [Trap(), np.array([Trap()], dtype=object)])
def test_code_inside_of_what_is_read_is_still_refused(tmp_path, capsys, value):
    with pytest.raises(ValueError, match="would run code"):
        contents.read(saved(tmp_path, {"model": ONE, "args": value}))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"teacher": ONE, "student": TWO}, "teacher, student"),
        ({"model": ONE, "teacher": TWO}, "model, teacher"),
        ({"state_dict": ONE, "net": TWO}, "state_dict, net"),
        ({"nets": {"a": ONE, "b": TWO}}, r"nets\.a, nets\.b"),
    ],
)
def test_two_networks_in_a_file_are_a_question_and_part_answers_it(
    tmp_path, content, names
):
    path = saved(tmp_path, content)
    with pytest.raises(
        ValueError, match=f"a.pt holds 2 networks: {names}; choose one by --part"
    ):
        contents.read(path)
    with pytest.raises(ValueError, match="there is no 'third'"):
        contents.read(path, "third")
    last = names.split(", ")[-1].replace("\\", "")
    for part in (last, last.split(".")[-1]):
        assert equal(contents.read(path, part).state, TWO)


def test_what_shares_no_tensors_with_the_network_is_no_rival(tmp_path):
    path = saved(tmp_path, {"model": ONE, "criterion": {"centers": torch.ones(1)}})
    read = contents.read(path)
    assert equal(read.state, ONE)
    assert read.notes == (
        "a.pt also holds tensors under 'criterion'; those under 'model' are taken",
    )


def test_plain_values_among_the_tensors_are_left(tmp_path):
    path = saved(tmp_path, {**ONE, "epoch": 3})
    assert equal(contents.read(path).state, ONE)
    with pytest.raises(ValueError, match="holds no state dict of tensors"):
        contents.read(saved(tmp_path, {"loss": torch.ones(1), "epoch": 3}))


def test_what_torch_compile_puts_into_names_is_removed_wherever_it_stands(tmp_path):
    state = {
        f"model._orig_mod.{name}".replace("fc", "fc._orig_mod"): value
        for name, value in ONE.items()
    }
    assert equal(contents.read(saved(tmp_path, {"state_dict": state})).state, ONE)


def test_shards_are_one_checkpoint_and_a_missing_one_is_named(tmp_path):
    for number, name in enumerate(ONE, 1):
        save_file({name: ONE[name]}, tmp_path / f"m-0000{number}-of-00002.safetensors")
    first, second = contents.shards(tmp_path / "m-00002-of-00002.safetensors")
    assert equal(contents.read(first).state, ONE)
    second.unlink()
    with pytest.raises(
        ValueError,
        match=re.escape("one of 2 shards, and 1 are missing, first m-00002-of-00002"),
    ):
        contents.read(first)


@pytest.mark.parametrize(
    "beside",
    [
        {"class_to_idx": {"b": 1, "a": 0, "C": 2}},
        {"class_to_idx": {"b": np.int64(1), "a": np.int64(0), "C": np.int64(2)}},
        {"meta": {"classes": ["a", "b", "C"]}},
        {"args": argparse.Namespace(class_names=("a", "b", "C"))},
        {"config": {"id2label": {"0": "a", "1": "b", "2": "C"}}},
    ],
    ids=lambda beside: "-".join(beside),
)
def test_names_of_classes_stand_in_the_order_of_the_outputs(tmp_path, beside):
    path = saved(tmp_path, {"state_dict": ONE, **beside})
    assert contents.read(path).classes == ("a", "b", "C")


def test_names_in_the_header_of_safetensors_are_read(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file(ONE, path, metadata={"class_to_idx": json.dumps({"b": 0, "a": 1})})
    assert contents.read(path).classes == ("b", "a")


@pytest.mark.parametrize(
    "beside",
    [{"class_to_idx": {"a": 0, "b": 2}}, {"classes": 10}, {"classes": ["a", "a"]}],
    ids=str,
)
def test_what_names_no_classes_gives_none(tmp_path, beside):
    path = saved(tmp_path, {"state_dict": ONE, **beside})
    assert contents.read(path).classes == ()


def test_the_highest_accuracy_that_a_file_notes_is_a_fraction(tmp_path):
    noted = {"best_acc1": torch.tensor(71.5), "val_acc": 0.7, "acc_loss": 0.99}
    path = saved(tmp_path, {"state_dict": ONE, **noted, "train_loss": 0.9})
    assert contents.read(path).accuracy == pytest.approx(0.715)
    assert math.isnan(contents.read(saved(tmp_path, {"state_dict": ONE})).accuracy)


def test_a_flipped_bit_of_a_file_of_torch_is_refused(tmp_path):
    """torch itself reads such a file as other numbers."""
    path = tmp_path / "a.pt"
    torch.save({"a": torch.arange(100.0), "b": torch.ones(3)}, path)
    assert contents.read(path).state["a"][-1] == 99
    changed = bytearray(path.read_bytes())
    changed[changed.index(np.float32(57).tobytes())] ^= 1
    path.write_bytes(bytes(changed))
    assert torch.load(path, weights_only=True)["a"][57] != 57
    with pytest.raises(ValueError, match=r"1 of its parts are damaged, first a/data/0"):
        contents.read(path)


def test_a_safetensors_file_of_the_workbook_has_a_checksum(tmp_path):
    form = ResNetForm("resnet18", "strided", 0.125)
    state = {"a": torch.arange(100.0), "b": torch.ones(3)}
    write_tensors(tmp_path / "a.safetensors", state)
    save_float16(tmp_path / "half.safetensors", state, form, {"gap": 0.1})
    for path in sorted(tmp_path.iterdir()):
        assert contents.read(path).state["a"][-1] == 99
        path.write_bytes(path.read_bytes()[:-1] + b"\x07")
        with pytest.raises(ValueError, match="its checksum is another"):
            contents.read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty; give a file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "it is a pointer of git-lfs"),
        (b"\n<!DOCTYPE html>", "it is a page of the web; download"),
        (b"\x1f\x8b\x08\x00", "it is compressed by gzip; unpack it"),
        (b"weights", "its 7 bytes begin with b'weights'"),
    ],
)
def test_a_file_in_place_of_a_checkpoint_is_called_what_it_is(tmp_path, content, words):
    (tmp_path / "a.pt").write_bytes(content)
    with pytest.raises(ValueError, match=f"a.pt is not a checkpoint: {words}"):
        contents.read(tmp_path / "a.pt")


def test_a_zip_of_other_things_is_called_what_it_is(tmp_path):
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"")
        archive.writestr("a/constants.pkl", b"")  # of torch.jit.save
    with pytest.raises(ValueError, match="TorchScript is code; save model"):
        contents.read(path)
    with path.open("wb") as file:
        np.savez(file, a=np.ones(1), b=np.ones(1))
    with pytest.raises(ValueError, match=r"a zip of 2 arrays of numpy, first a\.npy"):
        contents.read(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model.pt", b"")
    with pytest.raises(ValueError, match=r"a zip of 1 files, first model\.pt"):
        contents.read(path)
    saved(tmp_path, ONE)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"it was cut or is damaged: .*; copy it"):
        contents.read(path)


def test_a_state_dict_is_looked_for_three_levels_deep(tmp_path):
    inner = {"a": {"b": {"model": ONE}}}
    assert equal(contents.read(saved(tmp_path, inner)).state, ONE)
    with pytest.raises(ValueError, match="holds no state dict of tensors"):
        contents.read(saved(tmp_path, {"more": inner}))

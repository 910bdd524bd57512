import json

import pytest
import safetensors.torch
import torch
from safetensors.torch import load_file, save_file

from helpers.networks import portable

FORM = portable.Form("resnet18", "strided", 0.125, 1)


def test_half_precision_halves_the_file_and_moves_no_weight_by_more_than_its_rounding(tmp_path):
    state = FORM.network(4).state_dict()
    portable.save_half(tmp_path / "half.safetensors", state, FORM, {})
    save_file(state, tmp_path / "whole.safetensors")
    sizes = [(tmp_path / f"{name}.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]  # names and the header are of one size in both
    for name, value in load_file(tmp_path / "half.safetensors").items():
        assert value.dtype == (torch.float16 if state[name].is_floating_point() else state[name].dtype)
        torch.testing.assert_close(value.to(state[name].dtype), state[name], rtol=2**-11, atol=2**-24)


def test_what_half_precision_cannot_hold_stays_as_it_is(tmp_path):
    portable.save_half(tmp_path / "a.safetensors", {"small": torch.ones(2), "large": torch.full((2,), 1e6)}, FORM, {})
    kept = load_file(tmp_path / "a.safetensors")
    assert (kept["small"].dtype, kept["large"].dtype) == (torch.float16, torch.float32)
    assert kept["large"].tolist() == [1e6, 1e6]


def test_the_header_names_the_network_and_what_else_was_said_of_it(tmp_path):
    portable.save_half(tmp_path / "a.safetensors", {"a": torch.ones(1)}, FORM, {"gap": 0.25})
    assert portable.form_in(tmp_path / "a.safetensors") == FORM
    assert portable.header_of(tmp_path / "a.safetensors")["gap"] == "0.25"


def test_what_is_equal_gives_equal_bytes(tmp_path):
    state, facts = FORM.network(4).state_dict(), {f"fact {number}": 'ä"\\\n' for number in range(20)}
    written = []
    for given in (facts, dict(reversed(facts.items()))):
        portable.save_half(tmp_path / "a.safetensors", state, FORM, given)
        written.append((tmp_path / "a.safetensors").read_bytes())
    assert written[0] == written[1]
    assert portable.header_of(tmp_path / "a.safetensors").items() >= facts.items()
    plain = safetensors.torch.save({name: portable._half(value) for name, value in state.items()})
    start = 8 + int.from_bytes(written[0][:8], "little")
    assert start % 8 == 0
    assert written[0][start:] == plain[8 + int.from_bytes(plain[:8], "little") :]


def test_a_file_without_a_network_in_its_header_names_none(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "plain.safetensors")
    (tmp_path / "cut.safetensors").write_bytes(b"\x00")
    torch.save({}, tmp_path / "a.pt")
    assert [portable.form_in(tmp_path / name) for name in ("plain.safetensors", "cut.safetensors", "a.pt")] == [None] * 3


@pytest.mark.parametrize(
    "written",
    [
        "null",
        "[]",
        "{",
        json.dumps({"architecture": "vgg11"}),
        json.dumps(FORM._asdict() | {"stem": "none"}),
        json.dumps(FORM._asdict() | {"width": "wide"}),
        json.dumps(FORM._asdict() | {"width": True}),
        json.dumps(FORM._asdict() | {"width": 1e300}),
        json.dumps(FORM._asdict() | {"last_stride": 0}),
        json.dumps(FORM._asdict() | {"run": "rm"}),
    ],
)
def test_a_header_that_names_no_network_that_can_be_built_is_refused_with_the_file(tmp_path, written):
    save_file({"a": torch.ones(1)}, tmp_path / "a.safetensors", metadata={"network": written})
    with pytest.raises(ValueError, match=r"header of a.safetensors names a network that cannot be built"):
        portable.form_in(tmp_path / "a.safetensors")

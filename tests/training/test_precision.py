import math
from dataclasses import replace

import pytest
import torch

from helpers.data.images import load_study_data
from helpers.files import read_json, write_json
from helpers.training import catalogue, cuda_graph, precision, run, step_choice
from helpers.training.config import RunConfig, run_id
from helpers.training.cuda_graph import Shape
from helpers.training.precision import choose_precision, foreseen_precision, has_bfloat16, smallest_shape, training_record
from tests.conftest import TINY_SCENES

FORM = {"stem": "strided", "width": 0.125, "last_stride": 2}
SHAPE = smallest_shape(["resnet50", "resnet18"], [16, 8], 16, "cpu", **FORM)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def config(data):
    fixed = {"data": data.fingerprint, "stem": "strided", "width": 0.125, "max_epochs": 2, "loss_threshold": 0.0}
    return RunConfig("resnet18", 8, 0.003, "adam", 0.0, False, False, precision="bfloat16", **fixed)


def timed(monkeypatch, float32, bfloat16, hardware=True):
    asked = []
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: hardware)
    monkeypatch.setattr(precision, "step_seconds", lambda shape: asked.append(shape) or {"float32": float32, "bfloat16": bfloat16})
    return asked


def test_the_smallest_network_at_the_smallest_batch_is_measured():
    assert (SHAPE.architecture, SHAPE.batch_size, SHAPE.image_size, SHAPE.stem, SHAPE.device) == ("resnet18", 8, 16, "strided", "cpu")


@pytest.mark.parametrize(
    ("times", "hardware", "expected"),
    [((1.0, 0.6), True, "bfloat16"), ((1.0, 0.97), True, "float32"), ((1.0, 3.0), True, "float32"), ((1.0, 0.1), False, "float32")],
)
def test_auto_needs_the_hardware_and_the_gain_and_is_measured_once_per_study(tmp_path, monkeypatch, times, hardware, expected):
    asked = timed(monkeypatch, *times, hardware=hardware)
    assert foreseen_precision("auto", training_record(tmp_path), "cpu", lambda: precision.step_seconds(SHAPE))["precision"] == expected
    assert not list(tmp_path.iterdir())  # a plan keeps nothing
    asked.clear()
    assert choose_precision("auto", tmp_path, SHAPE) == expected
    assert len(asked) == hardware
    timed(monkeypatch, *times[::-1])  # another machine, where the other one is faster
    assert choose_precision("auto", tmp_path, SHAPE) == choose_precision(expected, tmp_path, SHAPE) == expected


def test_a_study_mixes_no_precisions(tmp_path):
    assert choose_precision("float32", tmp_path / "s", SHAPE) == "float32"
    with pytest.raises(
        ValueError, match=r"precision 'bfloat16' is asked for, and .*/s was begun in float32 .* set precision to float32 or auto"
    ):
        choose_precision("bfloat16", tmp_path / "s", SHAPE)
    with pytest.raises(ValueError, match="precision 'float16' is unknown; choose one of float32, bfloat16, auto"):
        choose_precision("float16", tmp_path / "t", SHAPE)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"precision": "float8"}', '{"precision": ["float32"]}'])
def test_a_damaged_record_of_the_precision_is_named(tmp_path, text):
    (tmp_path / "precision.json").write_text(text)
    with pytest.raises(ValueError, match=r"precision.json .*; delete it and run again"):
        choose_precision("float32", tmp_path, SHAPE)


def test_of_executions_that_start_together_the_first_decides(tmp_path, monkeypatch):
    timed(monkeypatch, 1.0, 0.5)
    found = precision.step_seconds

    def slower(shape):
        write_json(tmp_path / "precision.json", {"precision": "float32"})  # another one, meanwhile
        return found(shape)

    monkeypatch.setattr(precision, "step_seconds", slower)
    assert choose_precision("auto", tmp_path, SHAPE) == "float32"
    assert [path.name for path in tmp_path.iterdir()] == ["precision.json"]


def test_bfloat16_without_hardware_for_it_is_warned_of(tmp_path, monkeypatch):
    timed(monkeypatch, 1.0, 0.5, hardware=False)
    with pytest.warns(UserWarning, match="has no bfloat16 in hardware"):
        assert choose_precision("bfloat16", tmp_path, SHAPE) == "bfloat16"


def test_hardware_is_asked_of_torch_in_whatever_version(monkeypatch):
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False, raising=False)
    assert has_bfloat16("cpu")
    monkeypatch.delattr(torch.cpu, "_is_avx512_bf16_supported")
    assert not has_bfloat16("cpu")
    monkeypatch.delattr(torch.cpu, "_is_amx_tile_supported")
    assert not has_bfloat16("cpu")


def test_a_measurement_takes_both_and_leaves_threads_and_seeds_alone(monkeypatch):
    monkeypatch.setattr(precision, "_ROUND_SECONDS", 0.0)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    found = precision.step_seconds(SHAPE)
    assert found.keys() == {"float32", "bfloat16"}
    assert all(0 < seconds < math.inf for seconds in found.values())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


class Types(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes in which type convolutions, batch norms and the loss are computed."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, function, types, given=(), named=None):
        of = [value.dtype for value in given if isinstance(value, torch.Tensor) and value.is_floating_point()]
        self.seen.setdefault(function.overloadpacket.__name__, set()).update(of[:1])
        return function(*given, **(named or {}))


def test_products_are_bfloat16_and_all_that_is_kept_and_the_loss_are_float32(data, config):
    model = run.initial_model(config, 3).to(memory_format=torch.channels_last)
    optimizer, split = run.make_optimizer(model, config, torch.device("cpu")), run.resident(data.train, "cpu")
    with Types() as types:
        run.train_epoch(model, optimizer, split, config, 1)
    assert types.seen["convolution"] == types.seen["convolution_backward"] == {torch.bfloat16}
    assert types.seen["_log_softmax"] == {torch.float32}
    state = [value for slots in optimizer.state.values() for value in slots.values()]
    kept = [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters()), *state]
    assert {value.dtype for value in kept} == {torch.float32, torch.int64}
    with Types() as types:
        run.evaluate(model, split)
    assert types.seen["conv2d"] == {torch.float32}


def test_the_first_loss_is_that_of_float32_up_to_the_digits_of_bfloat16(data, config):
    """8 bits of a product are kept, so a loss of about 1 is off by some 2^-8."""
    losses = []
    for name in ("float32", "bfloat16"):
        model = run.initial_model(config, 3).to(memory_format=torch.channels_last).train()
        split = run.resident(data.train, "cpu")
        optimizer = run.make_optimizer(model, config, torch.device("cpu"))
        labels = split.labels[:32]
        losses.append(float(cuda_graph.step(model, optimizer, split.batch(torch.arange(32)), labels, None, precision=name)[0] / 32))
    assert 0 < abs(losses[0] - losses[1]) < 2**-6 * losses[0]


def test_a_killed_run_in_bfloat16_ends_with_the_bits_of_a_whole_one(data, config, tmp_path):
    class Killed(BaseException):
        pass

    def kill(row):
        raise Killed

    run.train_run(config, data, tmp_path / "whole")
    for _ in range(config.max_epochs):
        with pytest.raises(Killed):
            run.train_run(config, data, tmp_path / "parts", on_epoch=kill)
    run.train_run(config, data, tmp_path / "parts", on_epoch=kill)
    assert (tmp_path / "whole/snapshot-stop.safetensors").read_bytes() == (tmp_path / "parts/snapshot-stop.safetensors").read_bytes()


def test_the_precision_stands_in_the_id_the_configuration_and_the_catalogue(data, config, tmp_path):
    assert run_id(config) != run_id(replace(config, precision="float32"))
    with pytest.raises(ValueError, match="precision 'auto' is unknown; choose one of float32, bfloat16"):
        replace(config, precision="auto")
    folder = catalogue.run_folder(tmp_path, config)
    run.train_run(replace(config, max_epochs=1), data, folder)
    assert read_json(folder / "config.json")["precision"] == "bfloat16"
    assert catalogue.read_catalogue(tmp_path)["precision"].unique().tolist() == ["bfloat16"]


def test_a_step_of_another_precision_is_another_recording(config):
    shapes = [cuda_graph.shape_of(replace(config, precision=name), 3, 16, "cpu") for name in ("float32", "bfloat16")]
    assert isinstance(shapes[0], Shape)
    assert shapes[0] != shapes[1]
    assert step_choice.agrees(cuda_graph.CapturedStep(shapes[1]))

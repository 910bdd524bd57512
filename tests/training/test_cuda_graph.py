import contextlib
import copy
import math
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from helpers.data.images import load_study_data
from helpers.networks import resnet
from helpers.training import cuda_graph, run
from helpers.training.augmentation import draw
from helpers.training.config import RunConfig
from helpers.training.cuda_graph import CapturedStep, CompiledStep, Shape, shape_of
from tests.conftest import TINY_SCENES

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA graph is recorded on a GPU, and torch sees none here")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture(params=["adam", "sgd"])
def config(request, data):
    fixed = {"data": data.fingerprint, "stem": "strided", "width": 0.125, "max_epochs": 3, "loss_threshold": 0.0}
    return RunConfig("resnet18", 8, 0.003, request.param, 0.05, True, False, **fixed)


def start(config, device="cpu"):
    """A network and its optimizer as a run makes them."""
    model = run.initial_model(config, 3).to(device, memory_format=torch.channels_last)
    return model, run.make_optimizer(model, config, torch.device(device))


def curve(config, split, captured, epochs=3, perturbed=0.0):
    """Losses of some epochs, and the network after them."""
    model, optimizer = start(config, split.labels.device.type)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + perturbed)
    losses = [run.train_epoch(model, optimizer, split, config, epoch, captured)[0] for epoch in range(1, epochs + 1)]
    return losses, model, optimizer


def largest_difference(first, second):
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def test_both_steps_give_the_same_loss_curve_up_to_rounding(data, config):
    """36 images in batches of 8: the last batch has another size and is run, not replayed.

    Training amplifies rounding, so what counts as rounding is measured: a plain run whose weights begin a few last digits away.
    """
    split, config = run.resident(data.train, "cpu"), replace(config, learning_rate=0.0002)
    losses, model, optimizer = curve(config, split, None)
    rounded, near, _ = curve(config, split, None, perturbed=1e-6)
    replayed, copied, copied_optimizer = curve(config, split, CapturedStep(shape_of(config, 3, 16, "cpu")))
    noise = max(abs(a - b) for a, b in zip(losses, rounded, strict=True))
    assert 0 < noise < 1e-3 * losses[0]
    assert replayed == pytest.approx(losses, rel=0, abs=3 * noise)
    assert largest_difference(model, copied) < 3 * largest_difference(model, near)
    for own, theirs in zip(model.parameters(), copied.parameters(), strict=True):
        assert optimizer.state[own].keys() == copied_optimizer.state[theirs].keys()


def test_a_recording_serves_the_next_run_as_if_it_were_new(data, config):
    """Another learning rate, weight decay, seed; the state of the run before leaves no trace."""
    split, shared = run.resident(data.train, "cpu"), CapturedStep(shape_of(config, 3, 16, "cpu"))
    other = replace(config, learning_rate=0.01, weight_decay=0.0, repeat=1)
    curve(replace(config, learning_rate=1e30), split, shared, 1)  # a run that diverged is the worst to come after
    losses, model, _ = curve(other, split, shared)
    expected, fresh, _ = curve(other, split, CapturedStep(shape_of(other, 3, 16, "cpu")))
    assert losses == expected
    assert largest_difference(model, fresh) == 0
    assert losses != curve(config, split, shared)[0]


def test_weight_decay_as_a_tensor_is_that_of_the_optimizer(config):
    """One step from zero gradient state: weight decay moves each weight as the library's own does."""
    model, optimizer = start(config)
    twin = copy.deepcopy(model)
    images, labels = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8), torch.arange(8) % 3
    cuda_graph.step(model.train(), optimizer, images, labels, None)
    kind = type(optimizer)
    without = kind(
        twin.parameters(), **{key: optimizer.param_groups[0][key] for key in ("lr", "momentum") if key in optimizer.param_groups[0]}
    )
    cuda_graph.step(twin.train(), without, images, labels, None, torch.tensor(config.weight_decay))
    assert largest_difference(model, twin) < 1e-5
    third, plain = start(config)
    plain.param_groups[0]["weight_decay"] = 0.0
    cuda_graph.step(third.train(), plain, images, labels, None)
    assert largest_difference(model, third) > 1e-4


def test_copying_in_and_out_gives_back_every_tensor_and_shares_none(data, config):
    split = run.resident(data.train, "cpu")
    _, model, optimizer = curve(config, split, None, 1)
    captured = CapturedStep(shape_of(config, 3, 16, "cpu"))
    addresses = [value.data_ptr() for value in captured.model.state_dict().values()]
    captured.load(model, optimizer, 0.1, 0.2)
    assert (float(captured.learning_rate), float(captured.decay)) == pytest.approx((0.1, 0.2))
    assert largest_difference(captured.model, model) == 0
    other, fresh = start(replace(config, repeat=5))
    captured.unload(other, fresh)
    assert largest_difference(other, model) == 0
    for own, theirs in zip(model.parameters(), other.parameters(), strict=True):
        for name, value in optimizer.state[own].items():
            assert torch.equal(fresh.state[theirs][name], value), name
    inside = {value.data_ptr() for state in captured.optimizer.state.values() for value in state.values()}
    assert inside.isdisjoint(value.data_ptr() for state in fresh.state.values() for value in state.values())
    # What a graph holds are addresses: nothing may have been replaced.
    assert [value.data_ptr() for value in captured.model.state_dict().values()] == addresses


@pytest.fixture
def double(monkeypatch):
    """Everything in float64: rounding, which training amplifies by several 100,000 here, stays far below what is compared."""
    normalise, default = resnet.normalise_images, torch.get_default_dtype()
    monkeypatch.setattr(resnet, "normalise_images", lambda images: normalise(images).double())
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(default)


def test_a_run_with_a_recorded_step_stops_resumes_and_ends_like_a_plain_one(data, config, tmp_path, double):
    class Killed(BaseException):
        pass

    def kill(row):
        raise Killed

    plain = run.train_run(config, data, tmp_path / "plain")
    whole = run.train_run(config, data, tmp_path / "whole", capture=True)
    while not (tmp_path / "parts" / "result.json").exists():
        with contextlib.suppress(Killed):
            run.train_run(config, data, tmp_path / "parts", capture=True, on_epoch=kill)
    weights = {name: safetensors.torch.load_file(tmp_path / name / "snapshot-stop.safetensors") for name in ("plain", "whole", "parts")}
    assert all(torch.equal(value, weights["parts"][name]) for name, value in weights["whole"].items())
    assert (whole["epochs"], whole["stop_reason"]) == (plain["epochs"], plain["stop_reason"])
    assert whole["snapshots"][-1]["train_loss"] == pytest.approx(plain["snapshots"][-1]["train_loss"], rel=1e-6)
    assert all(torch.allclose(value, weights["whole"][name], rtol=0, atol=1e-9) for name, value in weights["plain"].items())


def test_runs_share_a_recording_unless_their_shape_differs(config):
    shape = shape_of(config, 3, 16, "cpu")
    assert shape == Shape("resnet18", 3, "strided", 0.125, 2, 16, 8, config.optimizer, 0.9, True, "float32", "cpu")
    assert shape == shape_of(replace(config, learning_rate=0.1, weight_decay=0.0, pretrained=True, repeat=7, seed=9), 3, 16, "cpu")
    for change in ({"batch_size": 4}, {"augmentation": False}, {"width": 0.25}, {"momentum": 0.5}, {"architecture": "resnet34"}):
        assert shape_of(replace(config, **change), 3, 16, "cpu") != shape


def test_refuses_images_or_draws_that_do_not_fit(config):
    captured = CapturedStep(shape_of(config, 3, 16, "cpu"))
    images, labels, draws = torch.zeros(8, 3, 16, 16, dtype=torch.uint8), torch.zeros(8, dtype=torch.int64), draw(8, torch.Generator())
    with pytest.raises(ValueError, match=r"recorded for \(8, 3, 16, 16\) and augmentation True was given \(8, 3, 16, 16\) and no draws"):
        captured(images, labels, None)
    with pytest.raises(ValueError, match=r"was given \(8, 3, 8, 8\) and draws"):
        captured(images[:, :, :8, :8], labels, draws)


def test_the_sums_are_those_of_a_plain_pass(config):
    """Learning rate 0 of the plain optimizer: cross-entropy and hits of one batch in train mode, worked out by hand."""
    model, optimizer = start(replace(config, learning_rate=0.0, weight_decay=0.0))
    images, labels = torch.randint(0, 256, (8, 3, 16, 16), dtype=torch.uint8), torch.arange(8) % 3
    logits = copy.deepcopy(model).train()(resnet.normalise_images(images)).detach().double()
    loss, correct = cuda_graph.step(model.train(), optimizer, images, labels, None).tolist()
    by_hand = -sum(math.log(float(row.softmax(0)[label])) for row, label in zip(logits, labels, strict=True))
    assert loss == pytest.approx(by_hand, rel=1e-5)
    assert correct == int((logits.argmax(1) == labels).sum())


def test_what_is_replayed_reads_the_given_batch_and_gives_its_sums(data, config, graph_by_hand):
    """The path of a GPU but for the GPU: streams are none, and a graph is one by hand."""
    captured = graph_by_hand(shape_of(config, 3, 16, "cpu"))
    assert captured._graph is not None
    split = run.resident(data.train, "cpu")
    losses, model, _ = curve(config, split, captured)
    plain, expected, _ = curve(config, split, CapturedStep(captured.shape))
    assert losses == plain
    assert largest_difference(model, expected) == 0


def test_a_compiled_step_is_the_same_step_through_the_compiled_network(data, config, monkeypatch):
    """What is compiled is asked for as it is timed; here it is the network itself, and counts its calls."""
    asked, calls = [], []

    class Compiled(torch.nn.Module):
        def __init__(self, network, **options):
            super().__init__()
            asked.append(options)
            self.network = network

        def forward(self, images):
            calls.append(len(images))
            return self.network(images)

    monkeypatch.setattr(torch, "compile", Compiled)
    compiled = CompiledStep(shape_of(config, 3, 16, "cpu"))
    compiled._record()
    assert asked == [{"mode": "reduce-overhead"}]
    warm, split = len(calls), run.resident(data.train, "cpu")
    losses, model, _ = curve(config, split, compiled)
    plain, expected, _ = curve(config, split, CapturedStep(compiled.shape))
    assert losses == plain
    assert largest_difference(model, expected) == 0
    assert calls[warm:] == [8] * 4 * 3  # the last batch, of four images, is run


@needs_cuda
def test_a_replayed_graph_gives_the_curve_of_the_plain_step_on_the_gpu(data, config):
    """Bfloat16 and sums in no fixed order: plain runs that start some last digits away say how far rounding takes two runs apart."""
    split = run.resident(data.train, "cuda")
    losses = torch.tensor(curve(config, split, None)[0])
    shaken = torch.tensor([curve(config, split, None, perturbed=number * 1e-7)[0] for number in range(1, 5)])
    captured = CapturedStep(shape_of(config, 3, 16, "cuda"))
    assert captured._graph is not None
    replayed = torch.tensor(curve(config, split, captured)[0])
    assert ((replayed - losses).abs() <= 0.02 + 3 * (shaken - losses).abs().max(0).values).all()

"""A step that computes something else is found out, a slower one is not taken, and a machine is measured once."""

import gc
import json
import re
import weakref
from functools import partial

import pytest
import torch

from helpers.locks import LockHolder
from helpers.training import cuda_graph, step_choice
from helpers.training.cuda_graph import CapturedStep, Shape
from helpers.training.step_choice import PLAIN, agrees, cheapest, fastest_step, measured_ways

SHAPE = Shape("resnet18", 3, "strided", 0.125, 2, 16, 8, "adam", 0.9, True, "float32", "cpu")
KINDS = [(optimizer, precision) for optimizer in ("adam", "sgd") for precision in ("float32", "bfloat16")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    step_choice._let_go()
    return tmp_path / "generalization-workbook" / "steps"


def shape_with(optimizer="adam", precision="float32", **changes):
    return Shape(**vars(SHAPE) | {"optimizer": optimizer, "precision": precision} | changes)


@pytest.mark.parametrize(("optimizer", "precision"), KINDS)
def test_a_step_that_is_recorded_right_agrees(optimizer, precision, graph_by_hand):
    assert agrees(graph_by_hand(shape_with(optimizer, precision)))


def test_sgd_without_momentum_has_no_past_to_be_compared(graph_by_hand):
    shape = shape_with("sgd", momentum=0.0)
    assert agrees(graph_by_hand(shape))
    assert not agrees(graph_by_hand(shape, Doubled))


class Doubled(CapturedStep):
    """Learns twice as fast as it is told."""

    def load(self, model, optimizer, learning_rate, weight_decay):
        super().load(model, optimizer, 2 * learning_rate, weight_decay)


class Stale(CapturedStep):
    """Never sees the images of the next batch."""

    def __call__(self, images, labels, draws):
        return super().__call__(self._pixels.clone(), labels, draws)


class StaleDraws(CapturedStep):
    """Augments every batch as the first one."""

    def __call__(self, images, labels, draws):
        return super().__call__(images, labels, self._draws.of(torch.arange(len(labels))))


class Undecayed(CapturedStep):
    """Forgets the weight decay."""

    def load(self, model, optimizer, learning_rate, weight_decay):
        super().load(model, optimizer, learning_rate, 0.0)


class StaleSums(CapturedStep):
    """Gives the sums of its first batch for ever."""

    def __call__(self, images, labels, draws):
        self.first = getattr(self, "first", None)
        sums = super().__call__(images, labels, draws).clone()
        self.first = sums if self.first is None else self.first
        return self.first


class Forgetful(CapturedStep):
    """Starts each batch with an optimizer that has no past."""

    def load(self, model, optimizer, learning_rate, weight_decay):
        super().load(model, type(optimizer)(model.parameters(), lr=learning_rate), learning_rate, weight_decay)


class Frozen(CapturedStep):
    """Leaves the running statistics as they were."""

    def __call__(self, images, labels, draws):
        before = {name: value.clone() for name, value in self.model.named_buffers()}
        sums = super().__call__(images, labels, draws)
        for name, value in self.model.named_buffers():
            value.copy_(before[name])
        return sums


@pytest.mark.parametrize(("optimizer", "precision"), KINDS)
@pytest.mark.parametrize("kind", [Doubled, Stale, StaleDraws, Forgetful, Frozen])
def test_a_step_that_computes_something_else_is_found_out(kind, optimizer, precision, graph_by_hand):
    assert not agrees(graph_by_hand(shape_with(optimizer, precision), kind))


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("kind", [Undecayed, StaleSums])
def test_what_is_finer_than_rounding_in_bfloat16_is_found_out_in_float32(kind, optimizer, graph_by_hand):
    """A decay of a thousandth of each weight, and the loss of eight other images, which bfloat16 knows to a tenth."""
    assert not agrees(graph_by_hand(shape_with(optimizer), kind))


class PlainItself:
    """The plain step in the place of a recorded one."""

    def __init__(self, shape):
        self.shape, self.learning_rate = shape, torch.zeros(())
        self.model, self.optimizer = step_choice.plain_run(shape)
        self(*cuda_graph.random_batch(shape, torch.device("cpu")))  # makes the optimizer's state

    def load(self, model, optimizer, learning_rate, weight_decay):
        step_choice._restore((self.model, self.optimizer), step_choice._copy_of((model, optimizer)))

    def __call__(self, *batch):
        return cuda_graph.step(self.model, self.optimizer, *batch, precision=self.shape.precision)


def test_equal_bits_agree_without_a_look_at_rounding(monkeypatch):
    monkeypatch.setattr(step_choice, "_shake", None)
    assert agrees(PlainItself(SHAPE))


class OneOfTheStarts(PlainItself):
    """Begins a unit in the last place off, as one of the plain steps that say what rounding does."""

    def load(self, model, optimizer, learning_rate, weight_decay):
        super().load(model, optimizer, learning_rate, weight_decay)
        step_choice._shake(self.model, self.shape.precision, 7)


@pytest.mark.parametrize(("optimizer", "precision"), KINDS)
def test_what_differs_as_rounding_does_agrees_and_not_where_nothing_is_known_of_rounding(optimizer, precision, monkeypatch):
    captured = OneOfTheStarts(shape_with(optimizer, precision))
    assert agrees(captured)
    monkeypatch.setattr(step_choice, "STARTS", 0)
    assert not agrees(captured)


def test_weights_are_shaken_by_one_unit_in_the_last_place():
    weights = torch.nn.Parameter(torch.tensor([1.25, -1.5, 3.0, 0.0, 1e-3]))
    model = torch.nn.ParameterList([weights])
    before = weights.detach().clone()
    step_choice._shake(model, "float32", 0)
    neighbours = torch.stack([before.nextafter(torch.tensor(way)) for way in (-torch.inf, torch.inf)])
    assert (weights == neighbours).any(0).tolist() == [True, True, True, False, True]
    assert weights[3] == 0
    step_choice._shake(model, "bfloat16", 0)
    assert ((weights - before).abs() / before.abs())[[0, 1, 2, 4]].max() <= 2**-7


def ways(plain=0.01, recorded=(0.2, 1.0), compiled=(0.1, 60.0)):
    """Seconds of a plain step; share and set-up of the others."""
    others = {"recorded": recorded, "compiled": compiled}
    return {PLAIN: {"seconds": plain}} | {name: {"fault": "", "share": share, "setup": setup} for name, (share, setup) in others.items()}


@pytest.mark.parametrize(
    ("found", "steps", "name"),
    [
        (ways(), 100, PLAIN),  # 1.0 s, 1.2 s, 60.1 s
        (ways(), 1000, "recorded"),  # 10 s, 3 s, 61 s
        (ways(), 100_000, "compiled"),  # 1,000 s, 201 s, 160 s
        (ways(recorded=(1.0, 0.0), compiled=(1.2, 0.0)), 10**9, PLAIN),  # as fast, and slower
        (ways(compiled=(0.1, 60.0)) | {"recorded": {"fault": "differs"}}, 1000, PLAIN),
        (ways(compiled=(0.5, 0.0), recorded=(0.01, 0.0)) | {"recorded": {"fault": "differs"}}, 1000, "compiled"),
        ({PLAIN: {"seconds": 0.01}}, 1000, PLAIN),
    ],
)
def test_the_way_that_costs_a_run_least_is_taken_and_never_a_wrong_or_slower_one(found, steps, name):
    assert cheapest(found, steps) == name


def test_a_cpu_takes_plain_steps_and_nothing_is_tried_or_kept(monkeypatch, own_cache):
    monkeypatch.setattr(step_choice, "measured_ways", None)
    monkeypatch.setattr(step_choice, "plain_run", None)
    assert fastest_step(SHAPE, 10**9) is None
    assert not own_cache.exists()


@pytest.fixture
def timed(monkeypatch, graph_by_hand):
    """A machine on which a recorded step takes a quarter of the plain one's time and a compiled one half; what was timed, in order."""
    seen, seconds = [], {PLAIN: 0.008, "recorded": 0.002, "compiled": 0.004}

    def turns(calls, device):
        for call in calls.values():
            call()
        seen.append([*calls])
        return {name: seconds[name] for name in calls}

    for name in ("STARTS", "_TIMED"):
        monkeypatch.setattr(step_choice, name, 2)  # what agrees is tested above
    monkeypatch.setattr(step_choice, "seconds_in_turns", turns)
    monkeypatch.setattr(step_choice, "WAYS", {"recorded": graph_by_hand, "compiled": graph_by_hand})
    return seen


def test_a_machine_is_measured_once_per_shape(timed, own_cache):
    found = measured_ways(SHAPE, 10**9)
    assert timed == [[PLAIN, "recorded"], [PLAIN, "compiled"]]
    assert found[PLAIN]["seconds"] == 0.004
    assert {name: (found[name]["fault"], found[name]["share"]) for name in step_choice.WAYS} == {
        "recorded": ("", 0.25),
        "compiled": ("", 0.5),
    }
    assert measured_ways(SHAPE, 10**9) == found
    assert len(timed) == 2
    measured_ways(shape_with("sgd"), 10**9)
    assert len(timed) == 4
    (folder,) = own_cache.iterdir()
    assert len([*folder.glob("*.json")]) == 2
    assert not [*folder.rglob("*.claim")]


def test_of_runs_that_start_side_by_side_one_measures_and_the_others_wait_for_it(timed, own_cache, monkeypatch):
    found = measured_ways(SHAPE, 10**9)
    (path,) = own_cache.rglob("*.json")
    content = path.read_text()
    path.unlink()
    waited = []

    def wait(seconds):  # meanwhile the other one has measured
        waited.append(seconds)
        path.write_text(content)
        other.release(path.stem)

    monkeypatch.setattr(step_choice.time, "sleep", wait)
    with LockHolder(path.parent / "claims") as other:
        assert other.claim(path.stem)
        assert measured_ways(SHAPE, 10**9) == found
    assert len(waited) == 1
    assert len(timed) == 2


def test_where_nothing_can_be_kept_it_is_measured_each_time_and_nothing_is_compiled(timed, own_cache, monkeypatch):
    own_cache.parent.mkdir()
    own_cache.write_text("no folder")
    for _ in range(2):
        with pytest.warns(UserWarning, match="cannot be written"):
            assert [*measured_ways(SHAPE, 10**9)] == [PLAIN, "recorded"]
    assert timed == [[PLAIN, "recorded"]] * 2


@pytest.mark.parametrize("change", ["torch", "device", "damaged", "another file's"])
def test_other_versions_another_device_and_a_damaged_cache_are_measured_again(change, timed, own_cache, monkeypatch):
    found = measured_ways(SHAPE, 10**9)
    (path,) = own_cache.rglob("*.json")
    assert json.loads(path.read_text())["machine"]["versions"]["torch"] == torch.__version__.partition("+")[0]
    if change == "torch":
        monkeypatch.setattr(step_choice, "versions", lambda: {"torch": "0.1"})
    elif change == "device":
        monkeypatch.setattr(step_choice, "device_name", lambda device: "another GPU")
    else:
        path.write_text('{"ways": {"plain": {"seconds": "fast"}}}' if change == "damaged" else "[]")
    assert measured_ways(SHAPE, 10**9).keys() == found.keys()
    assert len(timed) == 4


def test_a_compilation_that_takes_longer_than_the_run_is_left_out_until_a_longer_run_comes(timed, monkeypatch):
    clock = iter(range(0, 10**6, 50))
    monkeypatch.setattr(step_choice.time, "perf_counter", lambda: next(clock))  # everything is set up in 50 s
    measured_ways(shape_with("sgd"), 10**9)
    assert "compiled" not in measured_ways(SHAPE, 12_000)  # 48 s of plain steps, 62 s with those that are recorded in 50 s
    assert "compiled" in measured_ways(SHAPE, 13_000)
    assert timed[2:] == [[PLAIN, "recorded"], [PLAIN, "compiled"]]


@pytest.mark.parametrize("kind", [Doubled, Stale])
def test_a_wrong_way_is_named_never_timed_and_never_taken(kind, timed, monkeypatch, graph_by_hand):
    monkeypatch.setattr(step_choice, "WAYS", {"recorded": partial(graph_by_hand, kind=kind), "compiled": graph_by_hand})
    found = measured_ways(SHAPE, 10**9)
    assert timed == [[PLAIN], [PLAIN, "compiled"]]
    assert found["recorded"]["fault"] == "its steps differ from the plain ones"
    assert cheapest(found, 10**9) == "compiled"


def test_a_way_that_fails_is_named_and_the_plain_step_is_taken(timed, monkeypatch):
    def fail(shape):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(step_choice, "WAYS", {"recorded": fail, "compiled": fail})
    found = measured_ways(SHAPE, 10**9)
    monkeypatch.setattr(step_choice, "measured_ways", lambda shape, steps: found)
    with pytest.warns(UserWarning, match="is not (recorded|compiled): operation not permitted when stream is capturing$") as told:
        assert fastest_step(shape_with(device="meta"), 10**9) is None
    assert len(told) == 2


def test_the_chosen_step_is_made_once_and_let_go_before_the_next_is_made(monkeypatch):
    """On a GPU both would hold the memory of their activations."""
    last, there = [], []

    def make(shape):
        gc.collect()
        there.append([reference() is not None for reference in last])
        return CapturedStep(Shape(**vars(shape) | {"device": "cpu"}))

    monkeypatch.setattr(step_choice, "WAYS", {"recorded": make})
    monkeypatch.setattr(step_choice, "measured_ways", lambda shape, steps: ways())
    shape = shape_with(device="meta")
    last.append(weakref.ref(fastest_step(shape, 1000)))
    assert fastest_step(shape, 1000) is last[0]()
    assert fastest_step(shape_with(device="meta", batch_size=4), 1000) is not None
    assert there == [[], [False]]


def test_a_step_that_has_no_room_this_time_is_run(monkeypatch):
    def fail(shape):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(step_choice, "WAYS", {"recorded": fail})
    monkeypatch.setattr(step_choice, "measured_ways", lambda shape, steps: ways())
    with pytest.warns(UserWarning, match=re.escape("is not recorded this time: CUDA out of memory")):
        assert fastest_step(shape_with(device="meta"), 1000) is None

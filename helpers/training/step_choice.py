"""Which way to take training steps on the machine at hand: plain, recorded or compiled, by what agrees with the plain step and by time.

What was measured is kept in the user's cache folder, so that it is measured once per machine and shape, whatever the study.
"""

import gc
import json
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from helpers.files import content_digest, device_name, read_json, versions, write_json
from helpers.locks import LockHolder
from helpers.networks import resnet
from helpers.training import cuda_graph
from helpers.training.cuda_graph import CapturedStep, CompiledStep, Shape, random_batch
from helpers.training.precision import seconds_in_turns

PLAIN = "plain"
WAYS: dict[str, Callable[[Shape], CapturedStep]] = {"recorded": CapturedStep, "compiled": CompiledStep}
STARTS = 19  # from which the plain step is taken again: what agrees is further off than all of them in one case of 20
_RATE = 1e-3  # learning rate and weight decay where a step is compared with the plain one
_BEFORE = 2  # plain steps before, so that the optimizer has a past
_TICK = 1.0  # seconds between two looks at what another process measures
_TIMED = 10  # steps between two waits for the device

Run = tuple[nn.Module, torch.optim.Optimizer]
Change = dict[str, Tensor]


def fastest_step(shape: Shape, steps: int) -> CapturedStep | None:
    """The recorded or compiled step of a shape where it agrees with the plain one and takes less time over a run, set-up included.

    Args:
        shape: of the run.
        steps: that the run takes at most.

    Returns:
        The step, made anew unless it is the last one that was asked for; None where the plain step is to be taken, as always on a CPU.
        Where a way could not be had, a warning says why.
    """
    if torch.device(shape.device).type == "cpu":
        return None
    found = measured_ways(shape, steps)
    for name in WAYS:
        if fault := found.get(name, {}).get("fault", ""):
            warnings.warn(f"the training step of {shape} is not {name}: {fault}", stacklevel=2)
    name = cheapest(found, steps)
    if name == PLAIN:
        return None
    try:
        return _made(name, shape)
    except RuntimeError as error:  # such as too little memory beside other runs
        warnings.warn(f"the training step of {shape} is not {name} this time: {_first_line(error)}", stacklevel=2)
        return None


def cheapest(found: Mapping[str, Any], steps: int) -> str:
    """Name of the way that takes the least time over so many steps, set-up included: ``PLAIN`` unless another one is faster and sound."""
    costs = _costs(found, steps)
    return min(costs, key=costs.__getitem__)


def _costs(found: Mapping[str, Any], steps: int) -> dict[str, float]:
    """Seconds of a run by each sound way."""
    plain = steps * found[PLAIN]["seconds"]
    sound = {name: found[name] for name in WAYS if name in found and not found[name]["fault"]}
    return {PLAIN: plain} | {name: way["setup"] + plain * way["share"] for name, way in sound.items()}


def measured_ways(shape: Shape, steps: int) -> dict[str, Any]:
    """What each way costs on this machine: measured where the cache has not got it, and kept there.

    A compilation takes up to minutes. It is left out as long as the shortest one known on this machine takes longer than the whole run by
    the best of the other ways.

    Returns:
        ``plain``: seconds of a step. ``recorded`` and, where it was tried, ``compiled``: fault ("" for none; with one nothing else counts),
        setup in seconds, and share, the time of a step as a share of the plain one's, from turns that both took.
    """
    path = _cached(shape)
    if _lacking(path, steps):
        with _alone(path):  # of the runs that start side by side
            while name := _lacking(path, steps):
                found = _measured(name, shape) | _kept(path)
                if not _keep(path, shape, found):
                    return found
    return _kept(path)


def _lacking(path: Path, steps: int) -> str:
    """The way that is to be measured next; "" when nothing is."""
    if "recorded" not in (found := _kept(path)):
        return "recorded"
    short = min(_known_setups(path.parent), default=0.0) < min(_costs(found, steps).values())
    return "compiled" if "compiled" not in found and short else ""


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process measures this; where nothing can be written nobody waits for anybody."""
    try:
        (path.parent / "claims").mkdir(parents=True, exist_ok=True)
    except OSError:
        yield
        return
    with LockHolder(path.parent / "claims") as owner:
        while not owner.claim(path.stem):
            time.sleep(_TICK)
        yield


def _measured(name: str, shape: Shape) -> dict[str, Any]:
    """Time a way in turns with the plain step, after it was made and held against it."""
    _let_go()
    place = torch.device(shape.device)
    batch, plain = random_batch(shape, place), plain_run(shape)
    steps = {PLAIN: partial(cuda_graph.step, *plain, precision=shape.precision)}
    _several(steps[PLAIN], batch)  # so that the device's own start does not count as the way's
    way: dict[str, Any] = {"fault": ""}
    try:
        started = time.perf_counter()
        steps[name] = WAYS[name](shape)
        way["setup"] = time.perf_counter() - started
        if not agrees(steps[name]):
            way["fault"] = "its steps differ from the plain ones"
    except RuntimeError as error:
        way["fault"] = _first_line(error)
    if way["fault"]:
        steps.pop(name, None)
    seconds = seconds_in_turns({each: partial(_several, step, batch) for each, step in steps.items()}, place)
    if not way["fault"]:
        way["share"] = seconds[name] / seconds[PLAIN]
    return {PLAIN: {"seconds": seconds[PLAIN] / _TIMED}, name: way}


def _several(step: Callable[..., Tensor], batch: tuple[Any, ...]) -> None:
    for _ in range(_TIMED):
        sums = step(*batch)
    sums.tolist()  # waits for the device


def agrees(captured: CapturedStep) -> bool:
    """Whether a step does what the plain one does, up to rounding.

    Both take one step from the same state and batch, which are others than those of the step before. It agrees where all bits are equal.
    Else the plain step says what rounding does: it is taken again from ``STARTS`` states whose weights lie one unit in the last place of
    the products' precision away, up or down by chance. No part of the change, which are weights, running statistics, the optimizer's
    numbers, loss and hits, may then be further from the plain one than the furthest of these; a step that differs by rounding as these do
    fails in one case of 20 a part, so it is asked twice. The captured state is overwritten.
    """
    place = captured.learning_rate.device
    plain = plain_run(captured.shape)
    batches = [random_batch(captured.shape, place, seed) for seed in range(1, _BEFORE + 3)]
    for batch in batches[:_BEFORE]:
        cuda_graph.step(*plain, *batch, precision=captured.shape.precision)
    start = _copy_of(plain)
    return all(any(_within_rounding(captured, plain, start, batch, first) for first in (0, STARTS)) for batch in batches[_BEFORE:])


def _within_rounding(captured: CapturedStep, plain: Run, start: list[dict[str, Tensor]], batch: tuple[Any, ...], first: int) -> bool:
    advance = partial(cuda_graph.step, *plain, *batch, precision=captured.shape.precision)
    _restore(plain, start)
    captured.load(*plain, _RATE, _RATE)
    found = _change((captured.model, captured.optimizer), partial(captured, *batch))
    expected = _change(plain, advance)
    if all(torch.equal(found[part], expected[part]) for part in expected):
        return True
    if not all(bool(values.isfinite().all()) for values in found.values()):
        return False
    strayed = dict.fromkeys(expected, 0.0)
    for seed in range(first, first + STARTS):
        _restore(plain, start)
        _shake(plain[0], captured.shape.precision, seed)
        for part, values in _change(plain, advance).items():
            strayed[part] = max(strayed[part], float((values - expected[part]).norm()))
    return all(float((found[part] - expected[part]).norm()) <= strayed[part] for part in expected)


def _change(run: Run, advance: Callable[[], Tensor]) -> Change:
    """What one step does: loss and hits, and how far each number of the run went, (n,) float64 by part."""
    before = _numbers(run)
    sums = advance().clone()
    return {"loss": sums[:1], "hits": sums[1:]} | {part: values - before[part] for part, values in _numbers(run).items()}


def _numbers(run: Run) -> Change:
    model, optimizer = run
    slots = [value for parameter in model.parameters() for _, value in sorted(optimizer.state[parameter].items())]
    parts = {"weights": model.parameters(), "statistics": model.buffers(), "optimizer": slots}
    found = {part: [value.detach().double().flatten() for value in values] for part, values in parts.items()}
    return {part: torch.cat(values) for part, values in found.items() if values}  # SGD without momentum keeps nothing


@torch.no_grad()
def _shake(model: nn.Module, precision: str, seed: int) -> None:
    """Move every weight by one unit in the last place of a precision, up or down by chance."""
    generator = torch.Generator().manual_seed(seed)
    unit = torch.finfo(getattr(torch, precision)).eps
    for parameter in model.parameters():
        exponent = torch.frexp(parameter).exponent - 1
        way = torch.randint(0, 2, parameter.shape, generator=generator).to(parameter.device) * 2 - 1
        parameter.add_(torch.ldexp(way * unit, exponent) * (parameter != 0))


def plain_run(shape: Shape) -> Run:
    """A network of a shape, in train mode, and its optimizer, as a run has them."""
    form = {"stem": shape.stem, "width": shape.width, "last_stride": shape.last_stride}
    model = resnet.build(shape.architecture, shape.classes, **form, seed=0).to(shape.device, memory_format=torch.channels_last).train()
    kind, options = (torch.optim.Adam, {}) if shape.optimizer == "adam" else (torch.optim.SGD, {"momentum": shape.momentum})
    fused = torch.device(shape.device).type == "cuda"
    return model, kind(model.parameters(), lr=_RATE, weight_decay=_RATE, fused=fused, **options)


def _tensors_of(run: Run) -> Iterator[dict[str, Tensor]]:
    yield run[0].state_dict()
    yield from (run[1].state[parameter] for parameter in run[0].parameters())


def _copy_of(run: Run) -> list[dict[str, Tensor]]:
    return [{name: value.clone() for name, value in tensors.items()} for tensors in _tensors_of(run)]


@torch.no_grad()
def _restore(run: Run, copied: list[dict[str, Tensor]]) -> None:
    for tensors, values in zip(_tensors_of(run), copied, strict=True):
        for name, value in values.items():
            tensors[name].copy_(value)


@lru_cache(maxsize=1)
def _made(name: str, shape: Shape) -> CapturedStep:
    """The step of a shape, or the one at hand; only the last is kept, because it holds the memory of its activations."""
    _let_go()  # before the next is made: two may not fit
    return WAYS[name](shape)


def _let_go() -> None:
    _made.cache_clear()
    gc.collect()


def _machine(device: str) -> dict[str, Any]:
    """What a measurement holds for, beside the shape: the device, the versions, and the code of the step and of its judgement."""
    code = [content_digest(Path(file)) for file in (cuda_graph.__file__, __file__)]
    built = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {"device": device_name(device), "versions": versions() | built, "code": code}


def _cached(shape: Shape) -> Path:
    """File of a shape, in a folder of its machine, below the user's cache folder."""
    own = {name: value for name, value in asdict(shape).items() if name != "device"}
    folder, name = (blake2b(json.dumps(part, sort_keys=True).encode(), digest_size=8).hexdigest() for part in (_machine(shape.device), own))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return cache / "generalization-workbook" / "steps" / folder / f"{shape.architecture}-{name}.json"


def _kept(path: Path) -> dict[str, Any]:
    """What was measured of a shape; nothing where there is no file that can be read."""
    try:
        found = read_json(path)["ways"]
        sound = found[PLAIN]["seconds"] > 0 and all(isinstance(found[name]["fault"], str) for name in {*found} - {PLAIN})
        return found if sound else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _keep(path: Path, shape: Shape, found: Mapping[str, Any]) -> bool:
    """Write what was measured; whether it could be written."""
    try:
        write_json(path, {"ways": found, "machine": _machine(shape.device), "shape": asdict(shape)})
    except OSError:
        warnings.warn(f"{path} cannot be written, so every process measures by itself how to train, and compiles nothing", stacklevel=4)
        return False
    return True


def _known_setups(folder: Path) -> Iterator[float]:
    """Seconds that compilations took on this machine."""
    for path in folder.glob("*.json"):
        if setup := _kept(path).get("compiled", {}).get("setup"):
            yield setup


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]

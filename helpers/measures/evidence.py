"""Values that measures need of a network and its images, each computed once."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

import helpers.measures.registry as registry
from helpers.measures.registry import Measure, Value
from helpers.networks.faults import Undefined
from helpers.networks.hooks import evaluation_mode

# Values that the caller gives; None stands for one that the caller does not have.
INPUTS = (
    "network",  # in evaluation mode, on its device
    "images",  # an ImageSet: the training images
    "normalise",  # turns uint8 images into the network's input
    "initial_network",  # the network before training
    "device",
    "target_logits",  # of images without labels; for the family "unlabelled"
    "holdout_logits",  # of labelled images that the network was not fitted to
    "holdout_labels",
)
# A function that computes a value; its arguments name what it needs.
Source = Callable[..., Any]
PROVIDERS = registry.PROVIDERS
_TOO_LARGE = "too large for floating point"  # no table can rank by infinity


@dataclass(frozen=True)
class MeasureSettings:
    """Everything that decides a measure's value beside network and images."""

    cam_method: str = "grad_cam"  # of the class activation maps
    cam_threshold: float = 0.1  # of the normalised map
    cam_cut: str = "maximum"  # rule of ``overlap.CUTS``, by which the threshold cuts
    perturbation_fraction: float = 0.1  # of the training images, for response curves
    perturbation_points: int = 11  # magnitudes on a response curve
    transform_ranges: str = "cifar10"  # one of transforms.RANGES
    flatness_images: int = 2000  # training images at most, for noise on the weights
    flatness_draws: int = 10  # noisy copies of the weights per magnitude
    flatness_halvings: int = 15  # magnitudes tried at most, for noise and sharpness
    sharpness_images: int = 500  # training images at most, for worst-case sharpness
    sharpness_steps: int = 20  # ascent steps per magnitude
    transport_images: int = 6000  # target images at most, for optimal transport
    batch_size: int = 0  # images a pass, 0 as many as fit; changes rounding alone
    seed: int = 0  # of all random numbers


def provides(function: Source) -> Source:
    """Enter a function into what measures can ask for, under its name.

    Args:
        function: its arguments name what it needs in turn.

    Returns:
        The function.

    Raises:
        ValueError: if a measure has its name.
    """
    name = function.__name__
    if name in registry.MEASURES:
        raise ValueError(f"{name!r} is the name of a measure; choose another one")
    PROVIDERS[name] = function
    return function


class Evidence:
    """Values of one network by name, each computed when it is first asked for."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        settings: MeasureSettings,
        sources: Mapping[str, Source] | None = None,
    ) -> None:
        """Take the values that the caller gives, and the functions for all others.

        Args:
            inputs: see ``INPUTS``; a value that a function would compute may be among
                them, and is then taken as it is.
            settings: of the measures.
            sources: see ``sources_by_name``; without them those of this process.
        """
        self._sources = sources_by_name() if sources is None else sources
        self._values = dict.fromkeys(INPUTS) | dict(inputs) | asdict(settings)
        if not settings.batch_size:
            del self._values["batch_size"]  # so that it is computed
        self._seconds: dict[str, float] = {}

    def __getitem__(self, name: str) -> Any:
        """A value by its name, computed at the first call.

        Raises:
            Undefined: says why it cannot be computed.
        """
        if name not in self._values:
            self._values[name] = self._compute(name)
        value = self._values[name]
        if isinstance(value, Undefined):
            raise value
        return value

    def _compute(self, name: str) -> Any:
        source = self._sources[name]
        arguments = {need: self[need] for need in registry.needs(source)}
        started = time.perf_counter()
        try:
            value = source(**arguments)
        except Undefined as fault:
            value = fault
        self._seconds[name] = time.perf_counter() - started
        return value

    def seconds(self, name: str) -> float:
        """Time that a value and everything it needs took, each counted once.

        Args:
            name: of the value.
        """
        needed = transitive_needs([name], self._sources)
        return sum(self._seconds.get(need, 0.0) for need in needed)


def sources_by_name(
    measures: Iterable[Measure] = (),
    from_outside: Mapping[str, Source] | None = None,
) -> dict[str, Source]:
    """The function behind every value that can be asked for.

    Args:
        measures: that replace those of the same name in the registry.
        from_outside: functions of notebook cells, which a worker process cannot import,
            see ``sources_from_outside``.

    Returns:
        Sources by the name of the value.
    """
    items = [*registry.MEASURES.values(), *measures]
    sources = {item.name: item.function for item in items}
    return sources | PROVIDERS | dict(from_outside or {})


def sources_from_outside(names: Iterable[str]) -> dict[str, Source]:
    """Functions of notebook cells and users' modules that some measures need.

    Args:
        names: of measures or of what they need.

    Returns:
        Sources that are not of the workbook, by name; to be given to other processes.
    """
    sources = sources_by_name()
    return {
        name: sources[name]
        for name in sorted(transitive_needs(names, sources))
        if name in sources and registry.is_from_outside(sources[name])
    }


def transitive_needs(
    names: Iterable[str],
    sources: Mapping[str, Source] | None = None,
    present: Collection[str] = (),
) -> set[str]:
    """Names of some values and of all that they need, directly or through others.

    Args:
        names: of measures or of what they need.
        sources: see ``sources_by_name``; without them those of this process.
        present: names of values that exist already, whose own needs do not count.

    Returns:
        Names of values, inputs and settings.
    """
    sources = sources_by_name() if sources is None else sources
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            if name in sources and name not in present:
                waiting += registry.needs(sources[name])
    return needed


def score(
    measures: Iterable[Measure],
    inputs: Mapping[str, Any],
    settings: MeasureSettings,
    image_values: Iterable[str] = (),
    from_outside: Mapping[str, Source] | None = None,
) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Compute measures of one network, sharing what several of them need.

    Args:
        measures: to be computed, in this order.
        inputs: what the caller has, see ``INPUTS``.
        settings: of the measures.
        image_values: names of providers of values of single images.
        from_outside: functions that another process has entered, see
            ``sources_from_outside``.

    Returns:
        A row per measure and variant: measure, variant, value (NaN where undefined),
        seconds (as if nothing were shared), reason (why there is no value, in one
        line). And the values of single images by their provider, without those that
        cannot be computed.
    """
    measures = list(measures)
    evidence = Evidence(inputs, settings, sources_by_name(measures, from_outside))
    rows = []
    images = {}
    with evaluation_mode(inputs["network"]):
        for item in measures:
            rows += _rows(item, evidence)
        for name in image_values:
            with suppress(Undefined):
                images[name] = evidence[name]
    columns = ["measure", "variant", "value", "seconds", "reason"]
    return pd.DataFrame(rows, columns=columns), images


def _rows(item: Measure, evidence: Evidence) -> list[dict[str, Any]]:
    """A row per variant of a measure, at least one."""
    values = _values_by_variant(item, evidence)
    seconds = evidence.seconds(item.name)
    rows = []
    for variant, value in values.items():
        reason = _reason(value)
        row = {
            "measure": item.name,
            "variant": variant,
            "value": np.nan if reason else float(value),
            "seconds": seconds,
            "reason": reason,
        }
        rows.append(row)
    return rows


def _values_by_variant(item: Measure, evidence: Evidence) -> dict[str, float | str]:
    """Numbers of a measure's variants, or the reasons why there are none."""
    variants = item.variants or ("",)
    try:
        value: Value = evidence[item.name]
    except Undefined as fault:
        lines = str(fault).splitlines() or [type(fault).__name__]
        return dict.fromkeys(variants, lines[0])
    if not isinstance(value, Mapping):
        value = {variants[0]: value}
    values = dict.fromkeys(item.variants, np.nan) | dict(value)
    return values if values else {"": np.nan}


def _reason(value: float | str) -> str:
    """Reason why a value is not a finite number; "" if it is one."""
    if isinstance(value, str):
        return value or "undefined"
    if np.isnan(value):
        return "undefined"
    return "" if np.isfinite(value) else _TOO_LARGE

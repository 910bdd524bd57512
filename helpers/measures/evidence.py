"""What can be known of one network and its training images: each thing worked out when first asked for, once, and timed."""

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import helpers.measures.registry as registry
from helpers.measures.registry import Measure
from helpers.networks.batches import fitting_batch
from helpers.networks.faults import is_of_machine
from helpers.networks.hooks import evaluation_mode

# What the caller gives: the network in evaluation mode on its device, an ImageSet, uint8 images to network input, and the network as it was
# before training, which may be None. For the family "unlabelled": logits of images without labels (target) and of images with labels that
# were not fitted to (holdout), None where there are none.
GIVEN = (
    "network",
    "images",
    "normalise",
    "initial_network",
    "device",
    "target_logits",
    "holdout_logits",
    "holdout_labels",
)
PROVIDERS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class MeasureSettings:
    """Everything that decides a measure's value beside network and images."""

    cam_method: str = "grad_cam"  # of the class activation maps
    cam_threshold: float = 0.1  # of the normalised map
    perturbation_fraction: float = 0.1  # of the training images, for response curves
    perturbation_points: int = 11  # magnitudes on a response curve
    transform_ranges: str = "cifar10"  # one of transforms.RANGES
    flatness_images: int = 2000  # training images at most, for noise on the weights
    flatness_draws: int = 10  # noisy copies of the weights per magnitude
    flatness_halvings: int = (
        15  # magnitudes that a search tries at most, for noise and for sharpness
    )
    sharpness_images: int = 500  # training images at most, for worst-case sharpness
    sharpness_steps: int = 20  # ascent steps per magnitude
    transport_images: int = 6000  # target images at most, for optimal transport
    batch_size: int = 0  # images per pass, 0 as many as memory takes (see passes.fitting); no value depends on it beyond rounding
    seed: int = 0  # of everything that is drawn


def provides(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter a function into what measures can ask for, under its name; its arguments name what it needs in turn."""
    PROVIDERS[function.__name__] = function
    return function


class Evidence:
    """What is known of one network so far; it lives as long as the network is scored."""

    def __init__(
        self,
        given: Mapping[str, Any],
        settings: MeasureSettings,
        sources: "Mapping[str, Source] | None" = None,
    ) -> None:
        """Take what the caller has, and what works out the rest.

        Args:
            given: see ``GIVEN``; what could be worked out is taken as it is given.
            settings: of the measures.
            sources: see ``sources_by_name``; without them those of this process.
        """
        self._sources = sources_by_name() if sources is None else sources
        self._known = dict.fromkeys(GIVEN) | dict(given) | asdict(settings)
        if settings.batch_size:
            self._known["batch_size"] = fitting_batch(settings.batch_size)
        else:
            del self._known["batch_size"]  # so that it is worked out
        self._seconds: dict[str, float] = {}

    def __getitem__(self, name: str) -> Any:
        """A thing by its name, worked out once. Raises ValueError with the reason why it cannot be had."""
        if name not in self._known:
            function, needs = self._sources[name]
            arguments = {need: self[need] for need in needs}
            started = time.perf_counter()
            try:
                self._known[name] = function(**arguments)
            except Exception as fault:
                self._known[name] = as_reason(fault)
            self._seconds[name] = time.perf_counter() - started
        if isinstance(found := self._known[name], ValueError):
            raise found
        return found

    def seconds(self, names: Iterable[str]) -> float:
        """Seconds that some things took with all that they needed, each counted once."""
        needed = closure(names, self._sources)
        return sum(self._seconds.get(name, 0.0) for name in needed)


class Source(NamedTuple):
    """What works out one thing."""

    function: Callable[..., Any]
    needs: tuple[str, ...]  # names of its arguments


def sources_by_name(
    measures: Iterable[Measure] = (),
    from_outside: Mapping[str, Source] | None = None,
) -> dict[str, Source]:
    """What works out everything that can be asked for.

    Args:
        measures: that stand before those of the same name in the registry.
        from_outside: see ``sources_from_outside``; another process does not have them.

    Returns:
        A source by the name of what it works out.
    """
    items = [*registry.MEASURES.values(), *measures]
    sources = {item.name: Source(item.function, item.needs) for item in items}
    for name, function in PROVIDERS.items():
        sources[name] = Source(function, registry.needs(function))
    return sources | dict(from_outside or {})


def sources_from_outside(names: Iterable[str]) -> dict[str, Source]:
    """What some measures need of notebook cells and users' modules.

    Args:
        names: of measures or of what they need.

    Returns:
        Sources that are not of the workbook, by name; to be given to other processes.
    """
    sources = sources_by_name()
    return {
        name: sources[name]
        for name in sorted(closure(names, sources))
        if name in sources and registry.is_from_outside(sources[name].function)
    }


def as_reason(fault: Exception) -> ValueError:
    """Turn a fault of a network into the reason of a row; raise one of the machine."""
    if is_of_machine(fault):
        raise fault
    if isinstance(fault, ValueError):
        return fault
    lines = str(fault).splitlines() or [""]
    return ValueError(
        f"the network fails on these images ({type(fault).__name__}: {lines[0][:200]})"
    )


def closure(
    names: Iterable[str], sources: Mapping[str, Source] | None = None
) -> set[str]:
    """Everything that some things need, directly or through others, with themselves.

    Args:
        names: of measures or of what they need.
        sources: what works things out, by name; without it those of this process.

    Returns:
        Names, also of what is given and of settings.
    """
    sources = sources_by_name() if sources is None else sources
    needed: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += sources[name].needs if name in sources else ()
    return needed


def score(
    measures: Iterable[Measure],
    given: Mapping[str, Any],
    settings: MeasureSettings,
    kept: Iterable[str] = (),
    from_outside: Mapping[str, Source] | None = None,
) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Compute measures of one network, sharing what several of them need.

    Args:
        measures: to be computed, in this order.
        given: what the caller has, see ``GIVEN``.
        settings: of the measures.
        kept: names of what is wanted of single images.
        from_outside: see ``sources_from_outside``, where measures were entered in
            another process.

    Returns:
        A row per measure and variant: measure, variant, value (NaN where undefined),
        seconds (as if nothing were shared), reason (why there is no value, in one
        line). And what was wanted of single images, by name; what cannot be had is
        left out.
    """
    measures = list(measures)
    sources = sources_by_name(measures, from_outside)
    evidence, images = Evidence(given, settings, sources), {}
    with evaluation_mode(given["network"]):
        rows = [row for item in measures for row in _rows(item, evidence)]
        for name in kept:
            with suppress(ValueError):
                images[name] = evidence[name]
    return pd.DataFrame(
        rows, columns=["measure", "variant", "value", "seconds", "reason"]
    ), images


def _rows(item: Measure, evidence: Evidence) -> list[dict[str, Any]]:
    try:
        value = evidence[item.name]
    except ValueError as fault:
        value = dict.fromkeys(
            item.variants or ("",),
            (str(fault).splitlines() or [type(fault).__name__])[0],
        )
    values = (
        value
        if isinstance(value, Mapping)
        else dict.fromkeys(item.variants[:1] or ("",), value)
    )
    rows = []
    # Every measure has a row: an empty mapping says that nothing could be computed.
    values = dict(values) or dict.fromkeys(item.variants or ("",), np.nan)
    for variant, number in (dict.fromkeys(item.variants, np.nan) | values).items():
        if isinstance(number, str):
            reason = number or "undefined"
        elif np.isnan(number):
            reason = "undefined"
        else:
            reason = (
                "" if np.isfinite(number) else "larger than any number of the computer"
            )  # no table can rank by infinity
        row = {
            "measure": item.name,
            "variant": variant,
            "value": np.nan if reason else float(number),
        }
        rows.append(row | {"seconds": evidence.seconds([item.name]), "reason": reason})
    return rows

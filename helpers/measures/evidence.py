"""What can be known of one network and its training images: each thing worked out when first asked for, once, and timed."""

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
import torch

from helpers.measures.registry import Measure, needs
from helpers.networks import hooks

# What the caller gives: the network in evaluation mode on its device, an ImageSet, uint8 images to network input, and the network as
# it was before training, which may be None.
# For the family "unlabelled": logits of images without labels (target), of the target turned, of images with labels that were not fitted
# to (holdout), and a sequence of those that runs of other seeds give for the target; None where there are none.
GIVEN = (
    "network",
    "images",
    "normalise",
    "initial_network",
    "device",
    "target_logits",
    "rotated_target_logits",
    "holdout_logits",
    "holdout_labels",
    "repeat_target_logits",
)

PROVIDERS: dict[str, Callable[..., Any]] = {}


@dataclass(frozen=True)
class MeasureSettings:
    """Everything that decides a measure's value beside network and images."""

    cam_method: str = "grad_cam"  # one of cams.METHODS
    cam_threshold: float = 0.1  # of the normalised map
    precision: str = "float32"  # of the products in the passes that maps and logits come from: float32 or bfloat16
    perturbation_fraction: float = 0.1  # of the training images, for response curves
    perturbation_points: int = 11  # magnitudes on a response curve
    transform_ranges: str = "cifar10"  # of the built-in transforms, one of transforms.RANGES
    own_transforms: tuple[str, ...] = ()  # see transforms.named_transform
    flatness_images: int = 2000  # training images at most, for flatness
    flatness_draws: int = 10  # noisy copies of the weights per magnitude
    flatness_halvings: int = 15  # steps of the search for the magnitude, at most
    repository_parity: bool = False  # also with the faults of the public code, at the price of a second search
    sharpness_images: int = 500  # training images at most, for worst-case sharpness
    sharpness_steps: int = 20  # ascent steps per magnitude
    transport_images: int = 10_000  # target images at most, for optimal transport
    batch_size: int = 0  # images per pass, 0 as many as memory takes (see batches); no value depends on it beyond rounding
    seed: int = 0  # of everything that is drawn


def provides(function: Callable[..., Any]) -> Callable[..., Any]:
    """Enter a function into the list of what measures can ask for, under its name; its arguments name what it needs in turn."""
    PROVIDERS[function.__name__] = function
    return function


class Evidence:
    """What is known of one network so far; it lives as long as the network is scored."""

    def __init__(self, given: Mapping[str, Any], settings: MeasureSettings) -> None:
        """Take what the caller has (see ``GIVEN``) and the settings."""
        # What could be worked out is taken as it is given: the number of images that a network was fitted to, of which it is given some.
        self._known = dict.fromkeys(GIVEN) | dict(given) | asdict(settings)
        if not settings.batch_size:
            del self._known["batch_size"]  # so that it is worked out
        self._seconds = dict.fromkeys(self._known, 0.0)
        self._failed: dict[str, ValueError] = {}

    def __getitem__(self, name: str) -> Any:
        """A thing by its name, worked out when it is asked for the first time.

        Raises:
            ValueError: it cannot be had for this network; the message says why.
        """
        if name in self._failed:
            raise self._failed[name]
        if name not in self._known:
            arguments = {need: self[need] for need in needs(PROVIDERS[name])}
            started = time.perf_counter()
            try:
                self._known[name] = PROVIDERS[name](**arguments)
            except Exception as fault:
                self._failed[name] = as_reason(fault)
                raise self._failed[name] from fault
            finally:
                self._seconds[name] = time.perf_counter() - started
        return self._known[name]

    def seconds(self, names: Iterable[str]) -> float:
        """Seconds that some things took with all that they needed, each counted once: their cost if nothing else were computed."""
        return sum(self._seconds.get(name, 0.0) for name in closure(names))


def as_reason(fault: Exception) -> ValueError:
    """Turn what a network failed with into the reason of a row; one that says nothing of the network, a lack of memory, is raised."""
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)):
        raise fault
    if isinstance(fault, ValueError):
        return fault
    lines = str(fault).splitlines() or [""]
    return ValueError(f"the network fails on these images ({type(fault).__name__}: {lines[0][:200]})")


def closure(names: Iterable[str]) -> set[str]:
    """Everything that some things need, directly or through others, with themselves."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += needs(PROVIDERS[name]) if name in PROVIDERS else ()
    return found


def images_read(measures: Mapping[str, Measure], images: Any, settings: MeasureSettings) -> dict[str, int]:
    """How many of the training images each measure reads: the least of its samples, all where it has none, 0 for the weights alone.

    Args:
        measures: by column.
        images: the ImageSet that models are scored on.
        settings: with the sizes of the samples.
    """
    samples = {name: min(getattr(settings, name), len(images)) for name in ("flatness_images", "sharpness_images")}
    samples["response_sample"] = PROVIDERS["response_sample"](images, settings.perturbation_fraction)
    read = {}
    for column, item in measures.items():
        used = closure(item.needs)
        whole = len(images) if used & {"forward_pass", "rotated_probabilities", "labels"} else 0
        read[column] = min((size for name, size in samples.items() if name in used), default=whole)
    return read


def score(measures: Iterable[Measure], given: Mapping[str, Any], settings: MeasureSettings) -> pd.DataFrame:
    """Compute measures of one network, sharing everything that several of them need.

    Args:
        measures: see ``registry.MEASURES``.
        given: values for ``GIVEN``; one of ``PROVIDERS`` is then not worked out.
        settings: what else decides the values.

    Returns:
        One row per measure and variant, in order: measure, variant, value (NaN where undefined), seconds (of this measure with all it
        needs, as if nothing were shared, so that costs compare), reason ("" or why there is no value, in one line). Whatever a network
        fails with is the reason of its rows; only an interrupt and a lack of memory are raised.
    """
    return score_with_images(measures, given, settings, [])[0]


def score_with_images(
    measures: Iterable[Measure], given: Mapping[str, Any], settings: MeasureSettings, kept: Iterable[str]
) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Compute the same, and give beside it what was found of single images on the way.

    Args:
        measures: see ``score``.
        given: see ``score``.
        settings: see ``score``.
        kept: providers of values of single images, (N,) arrays by name; those that cannot be had are left out.

    Returns:
        The table of ``score``, and what each provider gives.
    """
    evidence, images = Evidence(given, settings), {}
    with hooks.evaluation_mode(given["network"]):
        rows = [row for item in measures for row in _rows(item, evidence)]
        for name in kept:
            with suppress(ValueError):
                images[name] = evidence[name]
    return pd.DataFrame(rows, columns=["measure", "variant", "value", "seconds", "reason"]), images


def _rows(item: Measure, evidence: Evidence) -> list[dict[str, Any]]:
    started, own, reason = 0.0, 0.0, ""
    try:
        arguments = {name: evidence[name] for name in item.needs}
        started = time.perf_counter()
        value = item.function(**arguments)
        own = time.perf_counter() - started
    except Exception as fault:
        value, reason = np.nan, (str(as_reason(fault)).splitlines() or [type(fault).__name__])[0]
    values = value if isinstance(value, Mapping) else dict.fromkeys(item.variants[:1] or ("",), value)
    values = {variant: values.get(variant, np.nan) for variant in item.variants} | dict(values)
    seconds = evidence.seconds(item.needs) + own
    return [
        {
            "measure": item.name,
            "variant": variant,
            "value": finite(number),
            "seconds": seconds,
            "reason": reason or undefined_reason(number),
        }
        for variant, number in values.items()
    ]


def finite(number: float) -> float:
    """A number as a float, NaN when it is infinite: no table can rank by infinity."""
    return float(number) if np.isfinite(number) else np.nan


def undefined_reason(number: float) -> str:
    """Why a number is no value: "" for a finite one."""
    return "" if np.isfinite(number) else "undefined" if np.isnan(number) else "larger than any number of the computer"


def settings_name(measures: Iterable[Measure], settings: MeasureSettings) -> str:
    """Digest of the settings that a family's values depend on, for its folder: 8 hex digits over names and values.

    A setting that no measure of the family needs changes nothing, and so does the batch size.
    """
    used = closure(name for item in measures for name in item.needs) - {"batch_size"}
    relevant = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name in used}
    return hashlib.blake2b(json.dumps(relevant, sort_keys=True).encode(), digest_size=4).hexdigest()

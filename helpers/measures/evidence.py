"""Values that measures need of a network and its images, each computed once."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

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
_ABSENT = "this network or its images have no such variant"
_TOO_LARGE = "too large for floating point"  # no table can rank by infinity


@dataclass(frozen=True)
class MeasureSettings:
    """Everything that decides a measure's value beside network and images."""

    cam_method: str = "grad_cam"  # of the class activation maps
    cam_threshold: float = 0.1  # of the normalised map
    cam_cut: str = "maximum"  # rule of ``localize.CUTS``, by which the threshold cuts
    perturbation_fraction: float = 0.1  # of the training images, for response curves
    perturbation_points: int = 11  # magnitudes on a response curve
    transform_ranges: str = "cifar10"  # one of transforms.RANGES
    flatness_images: int = 2000  # training images at most, for noise on the weights
    flatness_draws: int = 10  # noisy copies of the weights per magnitude
    flatness_halvings: int = 15  # magnitudes tried at most, for noise and sharpness
    sharpness_images: int = 500  # training images at most, for worst-case sharpness
    sharpness_steps: int = 20  # ascent steps per magnitude
    transport_images: int = 6000  # target images at most, for optimal transport
    batch_size: int = 0  # images a pass; 0 is 64, on a GPU 256; changes rounding alone
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
        self._sources = sources or sources_by_name()
        self._values = dict.fromkeys(INPUTS) | dict(inputs) | asdict(settings)
        if not settings.batch_size:
            del self._values["batch_size"]  # so that it is computed

    def __getitem__(self, name: str) -> Any:
        """A value by its name, computed at the first call.

        Raises:
            Undefined: says why it cannot be computed.
        """
        if name not in self._values:
            source = self._sources[name]
            try:
                arguments = {need: self[need] for need in registry.needs(source)}
                self._values[name] = source(**arguments)
            except Undefined as fault:
                self._values[name] = fault
        value = self._values[name]
        if isinstance(value, Undefined):
            raise value
        return value


def sources_by_name() -> dict[str, Source]:
    """The function behind every value that can be asked for, by its name.

    Another process needs them where a notebook cell has defined some.
    """
    measures = {item.name: item.function for item in registry.MEASURES.values()}
    return measures | PROVIDERS


def score(
    measures: Iterable[Measure],
    inputs: Mapping[str, Any],
    settings: MeasureSettings,
    image_values: Iterable[str] = (),
    sources: Mapping[str, Source] | None = None,
) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Compute measures of one network, sharing what several of them need.

    Args:
        measures: to be computed, in this order.
        inputs: what the caller has, see ``INPUTS``.
        settings: of the measures.
        image_values: names of providers of values of single images.
        sources: of another process, see ``sources_by_name``.

    Returns:
        A row per measure and variant: measure, variant, value (NaN where undefined),
        reason (why there is no value, in one line). And the values of single images by
        their provider, without those that cannot be computed.
    """
    evidence = Evidence(inputs, settings, sources)
    rows = []
    images = {}
    network = inputs.get("network")
    is_here = isinstance(network, nn.Module)
    with evaluation_mode(network) if is_here else nullcontext():
        for item in measures:
            for variant, value in _values_by_variant(item, evidence).items():
                rows.append((item.name, variant, *_number_and_reason(value)))
        for name in image_values:
            with suppress(Undefined):
                images[name] = evidence[name]
    columns = ["measure", "variant", "value", "reason"]
    return pd.DataFrame(rows, columns=columns), images


def _values_by_variant(item: Measure, evidence: Evidence) -> Mapping[str, float | str]:
    """Numbers of a measure's variants, or the reasons why there are none."""
    variants = item.variants or ("",)
    try:
        value: Value = evidence[item.name]
    except Undefined as fault:
        return dict.fromkeys(variants, str(fault).splitlines()[0])
    if not isinstance(value, Mapping):
        return {variants[0]: value}
    return dict.fromkeys(item.variants, _ABSENT) | value or {"": np.nan}


def _number_and_reason(value: float | str) -> tuple[float, str]:
    """A finite number, or NaN and the reason why there is none."""
    if isinstance(value, str):
        return np.nan, value
    if np.isfinite(value):
        return float(value), ""
    return np.nan, "undefined" if np.isnan(value) else _TOO_LARGE

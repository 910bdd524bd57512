"""Values that measures need of a network and its images, each computed once."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import helpers.measures.registry as registry
from helpers.data.images import ImageSet
from helpers.measures.registry import Measure, Source
from helpers.networks import Undefined
from helpers.networks.hooks import evaluation_mode
from helpers.networks.resnet import normalise_images
from helpers.parameters import TYPES, fault_of, near_names

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


_NO_VARIANT = Undefined("this network or its images have no such variant")


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
    seed: int = 0  # of all random numbers

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "MeasureSettings":
        """Settings by their names; the others have their defaults.

        Args:
            settings: some of them.

        Raises:
            ValueError: for a name that does not exist, with the nearest.
        """
        known = cls.__dataclass_fields__
        for name in settings:
            if name not in known:
                raise ValueError(
                    f"measures have no setting {name!r}{near_names(name, known)}; "
                    f"there are {', '.join(known)}"
                )
            if name in TYPES and (fault := fault_of(name, settings[name])):
                raise ValueError(fault)
        return cls(**settings)


class Evidence(dict[str, Any]):
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
            sources: functions by the value that they compute; without them those of
                this process.
        """
        super().__init__(dict.fromkeys(INPUTS) | asdict(settings) | dict(inputs))
        self._sources = sources or registry.SOURCES

    def __getitem__(self, name: str) -> Any:
        """A value by its name, computed at the first call.

        Raises:
            Undefined: says why it cannot be computed.
        """
        if name not in self:
            if name not in self._sources:
                near = near_names(name, {*self, *self._sources})
                raise LookupError(f"measures can ask for no {name!r}{near}")
            source = self._sources[name]
            try:
                needs = {need: self[need] for need in registry.needs(source)}
                self[name] = source(**needs)
            except Undefined as fault:
                self[name] = fault
        value = super().__getitem__(name)
        if isinstance(value, Undefined):
            raise value
        return value


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
        image_values: names of further sources of arrays, each by its name.
        sources: of another process, see ``Evidence``.

    Returns:
        A row per measure and variant: measure, variant, value (of single images their
        mean, NaN where undefined), reason (why there is no value, in one line). And
        arrays by their source, without those that cannot be computed: of
        ``image_values``, and of each measure that has a value an image.
    """
    evidence = Evidence(inputs, settings, sources)
    rows = []
    arrays: dict[str, dict[str, Any]] = {}
    with np.errstate(all="ignore"):  # what is not finite gets a reason
        for item in measures:
            variants = item.variants or ("",)
            try:
                values = evidence[item.name]
            except Undefined as fault:
                values = dict.fromkeys(variants, fault)
            if not isinstance(values, Mapping):
                values = {variants[0]: values}
            lacking = dict.fromkeys(item.variants, _NO_VARIANT)
            for variant, value in (lacking | values).items():
                rows.append((item.name, variant, *_number_and_reason(value)))
                if np.ndim(value) and item.name not in arrays:
                    arrays[item.name] = {item.name: np.asarray(value, np.float16)}
        for name in image_values:
            with suppress(Undefined):
                arrays[name] = evidence[name]
    columns = ["measure", "variant", "value", "reason"]
    return pd.DataFrame(rows, columns=columns), arrays


def _number_and_reason(value: Any) -> tuple[float, str]:
    """A finite number, or NaN and the reason why there is none."""
    if isinstance(value, Undefined):
        return np.nan, str(value).splitlines()[0]
    number = pd.Series(np.atleast_1d(value)).mean()
    return (number, "") if np.isfinite(number) else (np.nan, f"the value is {number}")


def score_network(
    network: nn.Module,
    images: ImageSet,
    families: Sequence[str] = ("localization", "prediction"),
    *,
    normalise: Callable[[Tensor], Tensor] = normalise_images,
    device: str | torch.device = "cpu",
    **settings: Any,
) -> pd.DataFrame:
    """Measures of a network on images, each with its reason where it has no value.

    Args:
        network: one whose last stage has maps, such as torchvision's ResNets.
        images: its training images, see ``load_study_data``; outputs of the network
            stand in the order of their labels.
        families: of ``registry.FAMILIES``, such as "localization" and "norms", or names
            of single measures.
        normalise: turns uint8 images (N, 3, H, W) into the network's input; that of
            ImageNet by default.
        device: of the network.
        settings: of ``MeasureSettings``, such as ``cam_threshold=0.2``.

    Returns:
        A row per measure and variant: measure, variant, value (NaN where undefined)
        and reason.

    Raises:
        ValueError: for a family or a setting that does not exist.
    """
    chosen = MeasureSettings.of(settings)
    inputs = {
        "network": network.to(device),
        "images": images,
        "normalise": normalise,
        "device": torch.device(device),
    }
    with evaluation_mode(network):
        return score(registry.measures_of_families(families), inputs, chosen)[0]

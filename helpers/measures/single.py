"""Measures of one network that a caller holds, without a study."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from helpers.data.images import ImageSet
from helpers.measures import evidence, registry
from helpers.networks.resnet import normalise_images
from helpers.parameters import near_names


def settings_of(
    families: Sequence[str], settings: Mapping[str, Any]
) -> evidence.MeasureSettings:
    """Settings of measures, after a check of all names.

    Args:
        families: of ``registry.FAMILIES``.
        settings: fields of ``evidence.MeasureSettings``.

    Raises:
        ValueError: for a family or a setting that does not exist.
    """
    known = [item.name for item in fields(evidence.MeasureSettings)]
    asked = [("family", families, registry.FAMILIES), ("setting", settings, known)]
    for kind, names, possible in asked:
        for name in names:
            if name not in possible:
                raise ValueError(
                    f"no {kind} of measures is named {name!r}"
                    f"{near_names(name, possible)}; there are {', '.join(possible)}"
                )
    return evidence.MeasureSettings(**settings)


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
        settings: of ``evidence.MeasureSettings``, such as ``cam_threshold=0.2``.

    Returns:
        A row per measure and variant: measure, variant, value (NaN where undefined)
        and reason.

    Raises:
        ValueError: for a family or a setting that does not exist.
    """
    single = [name for name in families if name in registry.MEASURES]
    of_families = [name for name in families if name not in single]
    chosen = settings_of(of_families, settings)
    what_is_there = {
        "network": network.to(device),
        "images": images,
        "normalise": normalise,
        "device": torch.device(device),
    }
    measures = registry.measures_of_families(of_families)
    measures += [registry.MEASURES[name] for name in single]
    table, _ = evidence.score(measures, what_is_there, chosen)
    return table

"""Relations between parameters, also of several notebooks.

Without a check before the start they would be known only after hours.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from helpers.parameters import PUBLISHED_NETWORKS, Parameter, near_names, value_fault

AXIS_PARAMETERS = {
    name: f"{name}s"
    for name in (
        "architecture",
        "augmentation",
        "batch_size",
        "label_noise",
        "label_smoothing",
        "learning_rate",
        "optimizer",
        "strong_augmentation",
    )
}
AXIS_PARAMETERS |= {
    "weight_decay": "weight_decays",
    "pretrained": "pretrained_levels",
    "images_per_class": "training_sizes",
    "looking": "looking_levels",
    "frozen_stages": "frozen_stages",
}

# The words for what must not be, and when it is so.
_SIMPLE: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "data_path is empty, and data_source {data_source} needs it": (
        lambda v: not v["data_path"] and v["data_source"] != "synthetic"
    ),
    "pretrain_data_path is empty, and pretrain_data_source {pretrain_data_source} "
    "needs it": (
        lambda v: (
            not v["pretrain_data_path"]
            and v["pretrain_data_source"] != "synthetic"
            and _pretrains_on_images(v)
        )
    ),
    "saliency_path is empty, and folder in saliency_providers {saliency_providers} "
    "needs it": (
        lambda v: not v["saliency_path"] and "folder" in v["saliency_providers"]
    ),
    "images_path is empty, and the networks of checkpoints_path need it": (
        lambda v: not v["images_path"] and v["checkpoints_path"]
    ),
    "class_ids is {class_ids}, and a classifier needs at least 2 classes; "
    "[] takes all": lambda v: len(v["class_ids"]) == 1,
    "pretrain_class_ids is {pretrain_class_ids}, and a classifier needs at least 2 "
    "classes; [] takes all": (
        lambda v: len(v["pretrain_class_ids"]) == 1 and _pretrains_on_images(v)
    ),
    "shard is {shard}; write i/n with i from 1 to n, such as 2/4": (
        lambda v: v["shard"] and _is_beyond_all(v["shard"])
    ),
    "work_dir and reports_dir are both {work_dir}; what is published needs a folder of "
    "its own": (
        lambda v: os.path.normpath(v["work_dir"]) == os.path.normpath(v["reports_dir"])
    ),
    "noise_generator autoencoder takes sides that are multiples of 4, and image_size "
    "is {image_size}; take another one, or blur": (
        lambda v: v["noise_generator"] == "autoencoder" and v["image_size"] % 4
    ),
    "noise_ssim is {noise_ssim}; levels are met to 0.01, so take some that are 0.02 "
    "apart or more": lambda v: _least_distance(v["noise_ssim"]) < 0.02 - 1e-9,
    "scored_images is {scored_images}, and class_ids has more classes; take at least "
    "one image of each, or 0 for all": (
        lambda v: 0 < v["scored_images"] < len(v["class_ids"])
    ),
    "learning_rates is {learning_rates}, and at rate 0 a network learns nothing": (
        lambda v: 0 in v["learning_rates"]
    ),
    "training_sizes is {training_sizes}, and images_per_class allows "
    "{images_per_class}": (
        lambda v: 0 < v["images_per_class"] < max(v["training_sizes"])
    ),
    "pretrained_weights {pretrained_weights} fit stem imagenet and width 1, not {stem} "
    "and {width:g}; or take made": (
        lambda v: (
            True in v["pretrained_levels"]
            and re.fullmatch(r"[A-Z][A-Z0-9_]+", v["pretrained_weights"])
            and (v["stem"], v["width"]) != ("imagenet", 1)
        )
    ),
    "unseen_fractions is {unseen_fractions}, and needs 0, with which the others are "
    "compared": lambda v: 0 not in v["unseen_fractions"],
    "kappa_weights is made, and kappa_families is {kappa_families}: published networks "
    "need published weights": (
        lambda v: (
            v["kappa_weights"] == "made"
            and any(
                re.fullmatch(PUBLISHED_NETWORKS, name) for name in v["kappa_families"]
            )
        )
    ),
}


def relation_faults(values: Mapping[str, Any]) -> list[str]:
    """What is wrong between parameters that are right by themselves.

    A relation is passed over where one of its parameters is absent.
    """
    faults = []
    for words, is_wrong in _SIMPLE.items():
        with suppress(KeyError):
            if is_wrong(values):
                faults.append(words.format(**values))
    for name, relation in _OF_PARAMETERS.items():
        if name in values:
            with suppress(KeyError):
                faults += list(relation(values))
    return faults


def _pretrains_on_images(v: Mapping[str, Any]) -> bool:
    return v["pretrained_weights"] == "made" and True in v["pretrained_levels"]


def _is_beyond_all(shard: str) -> bool:
    """Whether the number of a share is above their count, as in 5/4."""
    number, count = shard.split("/")
    return int(number) > int(count)


def _least_distance(levels: Sequence[float]) -> float:
    """Between neighbouring levels; infinite for one level."""
    ordered = sorted(levels)
    return min((high - low for low, high in pairwise(ordered)), default=math.inf)


def _shared_classes(v: Mapping[str, Any]) -> Iterator[str]:
    """Classes to pretrain on, and unseen ones, are none of the study's.

    An empty choice is all classes of its source.
    """
    places = {}
    if "pretrained_levels" in v and _pretrains_on_images(v):
        place = v["pretrain_data_source"], v["pretrain_data_path"]
        places["pretrain_class_ids"] = place
    if v.get("unseen_class_ids"):
        place = v["data_source"], v["unseen_path"] or v["data_path"]
        places["unseen_class_ids"] = place
    for name, place in places.items():
        ours = set(v["class_ids"])
        theirs = set(v[name])
        if (v["data_source"], v["data_path"]) == place:
            ours = ours or theirs or {"all classes"}
            theirs = theirs or ours
        shared = sorted(ours & theirs)
        if shared:
            yield (
                f"{name} shares {', '.join(shared[:5])} with class_ids; name classes "
                "that are none of the study's"
            )


def _unseen(v: Mapping[str, Any]) -> Iterator[str]:
    """Fractions of unseen classes are steps that these classes allow."""
    count = len(v["class_ids"])
    if not count:
        return
    seen = v["seen_classes"] or count
    if seen > count or ("model set" in v["kappa_families"] and seen != count):
        yield (
            f"seen_classes is {seen}; the study has {count} classes, and the model set "
            "was trained on all of them: 0 takes these"
        )
        return
    if seen == 1:
        yield "seen_classes is 1, and a classifier needs at least 2"
        return
    most = count - seen + len(v["unseen_class_ids"])
    possible = [added / (seen + added) for added in range(most + 1)]
    names = ", ".join(f"{one:.3f}" for one in possible)
    steps: dict[float, float] = {}  # the fraction that asks for each
    for fraction in v["unseen_fractions"]:
        step = min(possible, key=lambda other: abs(fraction - other))
        if abs(fraction - step) > 0.0005:
            yield f"unseen_fractions has {fraction:g}; possible are {names}"
            return
        if step in steps:
            yield (
                f"unseen_fractions has {steps[step]:g} and {fraction:g}, which are one "
                f"step; possible are {names}"
            )
            return
        steps[step] = fraction


def _networks(v: Mapping[str, Any]) -> Iterator[str]:
    """No network stands twice, by another way to write its number."""
    names: dict[str, str] = {}
    for name in v["kappa_families"]:
        network = re.sub(r" ([wd])([\d.]+)", _plain_number, name)
        other = names.setdefault(network, name)
        if other != name:
            yield f"kappa_families has {other!r} and {name!r}, which are one network"


def _plain_number(match: re.Match) -> str:
    return f" {match[1]}{float(match[2]):g}"


def _blocks(v: Mapping[str, Any]) -> Iterator[str]:
    """Blocks name axes, and levels of the kind that the study lists for them."""
    axes = AXIS_PARAMETERS | {"repeat": "repeat"}
    for number, block in enumerate(v["blocks"], start=1):
        for axis, levels in block.items():
            if axis in axes:
                parameter = axes[axis]
                kind = type(v.get(parameter, [0])[0]).__name__
                item = Parameter(parameter, f"list[{kind}]", [0], "levels")
                fault = value_fault(item, levels)
            else:
                fault = f"no such axis{near_names(axis, axes)}"
            if fault:
                yield f"blocks: block {number}, {axis}: {fault}"


# Relations of many words, by a parameter that each speaks of.
_OF_PARAMETERS = {
    "class_ids": _shared_classes,
    "seen_classes": _unseen,
    "kappa_families": _networks,
    "blocks": _blocks,
}

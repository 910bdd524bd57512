"""Checks of parameters against each other, also across notebooks.

They run before a study starts, so that contradictions do not appear after hours.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from helpers.parameters import Parameter, near_names, value_fault

# The parameter that lists the levels of each axis (a field of ``RunConfig``).
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


class Relation(NamedTuple):
    """A rule between parameters that applies where all of them have a value."""

    names: tuple[str, ...]
    is_broken: Callable[..., Any]  # of the values of these parameters, in their order
    message: str  # its {fields} are values of these parameters


class Rule(NamedTuple):
    """A rule between parameters whose faults need more than one sentence."""

    names: tuple[str, ...]
    faults: Callable[[Mapping[str, Any]], Iterable[str]]  # of these parameters alone


def relation_faults(values: Mapping[str, Any]) -> list[str]:
    """Sentences on values that are valid each by itself, but not together.

    Args:
        values: parameters by name, of one notebook or of several. A rule is skipped
            where one of its parameters is absent.

    Returns:
        One sentence per fault; empty where all values fit.
    """
    faults = []
    for relation in RELATIONS:
        if values.keys() >= set(relation.names):
            operands = {name: values[name] for name in relation.names}
            if relation.is_broken(*operands.values()):
                faults.append(relation.message.format(**operands))
    for rule in RULES:
        if values.keys() >= set(rule.names):
            faults += rule.faults({name: values[name] for name in rule.names})
    return faults


def _pretrains_on_images(weights: str, levels: Sequence[bool]) -> bool:
    """Whether networks of the study are pretrained here, on images of a source."""
    return weights == "made" and True in levels


def _shard_exceeds_count(shard: str) -> bool:
    """Whether the number of a share exceeds the count, as in 5/4; "" is not a share."""
    if not shard:
        return False
    number, count = shard.split("/")
    return int(number) > int(count)


def _least_distance(levels: Sequence[float]) -> float:
    """Smallest distance between two levels; infinite for one level."""
    ordered = sorted(levels)
    return min((high - low for low, high in pairwise(ordered)), default=math.inf)


RELATIONS = (
    Relation(
        ("data_path", "data_source"),
        lambda path, source: not path and source != "synthetic",
        "data_path is empty, and data_source {data_source} needs it",
    ),
    Relation(
        (
            "pretrain_data_path",
            "pretrain_data_source",
            "pretrained_weights",
            "pretrained_levels",
        ),
        lambda path, source, weights, levels: (
            not path and source != "synthetic" and _pretrains_on_images(weights, levels)
        ),
        "pretrain_data_path is empty, and pretrain_data_source {pretrain_data_source} "
        "needs it",
    ),
    Relation(
        ("saliency_path", "saliency_providers"),
        lambda path, providers: not path and "folder" in providers,
        "saliency_path is empty, and folder in saliency_providers {saliency_providers} "
        "needs it",
    ),
    Relation(
        ("images_path", "checkpoints_path"),
        lambda images, checkpoints: not images and checkpoints,
        "images_path is empty, and the networks of checkpoints_path need it",
    ),
    Relation(
        ("class_ids",),
        lambda classes: len(classes) == 1,
        "class_ids is {class_ids}, and a classifier needs at least 2 classes; [] takes "
        "all",
    ),
    Relation(
        ("pretrain_class_ids", "pretrained_weights", "pretrained_levels"),
        lambda classes, weights, levels: (
            len(classes) == 1 and _pretrains_on_images(weights, levels)
        ),
        "pretrain_class_ids is {pretrain_class_ids}, and a classifier needs at least 2 "
        "classes; [] takes all",
    ),
    Relation(
        ("shard",),
        _shard_exceeds_count,
        "shard is {shard}; write i/n with i from 1 to n, such as 2/4",
    ),
    Relation(
        ("work_dir", "reports_dir"),
        lambda work, reports: os.path.normpath(work) == os.path.normpath(reports),
        "work_dir and reports_dir are both {work_dir}; what is published needs a "
        "folder of its own",
    ),
    Relation(
        ("noise_generator", "image_size"),
        lambda generator, side: generator == "autoencoder" and side % 4 != 0,
        "noise_generator autoencoder takes sides that are multiples of 4, and "
        "image_size is {image_size}; take another one, or blur",
    ),
    Relation(
        ("noise_ssim",),
        # 1e-9: floats such as 1.0 and 0.98 are a rounding error less than 0.02 apart.
        lambda levels: _least_distance(levels) < 0.02 - 1e-9,
        "noise_ssim is {noise_ssim}; levels are met to 0.01, so take some that are "
        "0.02 apart or more",
    ),
    Relation(
        ("scored_images", "class_ids"),
        lambda images, classes: 0 < images < len(classes),  # 0 takes all images
        "scored_images is {scored_images}, and class_ids has more classes; take at "
        "least one image of each, or 0 for all",
    ),
    Relation(
        ("learning_rates",),
        lambda rates: 0 in rates,
        "learning_rates is {learning_rates}, and at rate 0 a network learns nothing",
    ),
    Relation(
        ("training_sizes", "images_per_class"),
        # 0 takes all images of a class
        lambda sizes, images: 0 < images < max(sizes),
        "training_sizes is {training_sizes}, and images_per_class allows "
        "{images_per_class}",
    ),
    Relation(
        ("pretrained_weights", "pretrained_levels", "stem", "width"),
        lambda weights, levels, stem, width: (
            True in levels
            and re.fullmatch(r"[A-Z][A-Z0-9_]+", weights)  # a name of torchvision
            and (stem, width) != ("imagenet", 1)
        ),
        "pretrained_weights {pretrained_weights} fit stem imagenet and width 1, not "
        "{stem} and {width:g}; or take made",
    ),
    Relation(
        ("unseen_fractions",),
        lambda fractions: 0 not in fractions,
        "unseen_fractions is {unseen_fractions}, and needs 0, with which the others "
        "are compared",
    ),
)


def _pretraining_classes(values: Mapping[str, Any]) -> Iterator[str]:
    """A fault where classes to pretrain on are classes of the study."""
    if _pretrains_on_images(values["pretrained_weights"], values["pretrained_levels"]):
        source = (values["pretrain_data_source"], values["pretrain_data_path"])
        yield from _shared_classes("pretrain_class_ids", source, values)


def _unseen_classes(values: Mapping[str, Any]) -> Iterator[str]:
    """A fault where unseen classes are classes of the study."""
    if values["unseen_class_ids"]:
        path = values["unseen_path"] or values["data_path"]
        source = (values["data_source"], path)
        yield from _shared_classes("unseen_class_ids", source, values)


def _shared_classes(
    name: str, source: tuple[str, str], values: Mapping[str, Any]
) -> Iterator[str]:
    """A fault where a choice of classes contains classes of the study.

    Args:
        name: the parameter that lists the chosen classes.
        source: layout and path of the data set that they are chosen from.
        values: of the parameters of the rule.
    """
    classes_of_study = set(values["class_ids"])
    other_classes = set(values[name])
    is_same_source = source == (values["data_source"], values["data_path"])
    shared = classes_of_study & other_classes
    if is_same_source and not (classes_of_study and other_classes):
        # an empty choice is all classes of its source
        shared = classes_of_study | other_classes or {"all classes"}
    if shared:
        yield (
            f"{name} shares {', '.join(sorted(shared)[:5])} with class_ids; name "
            "classes that are none of the study's"
        )


def _unseen_fractions(values: Mapping[str, Any]) -> Iterator[str]:
    """A fault where a fraction of unseen classes is impossible with these classes."""
    classes = len(values["class_ids"])
    if not classes:
        return
    seen = values["seen_classes"] or classes
    needs_all = "model set" in values["kappa_families"]
    if seen > classes or (needs_all and seen != classes):
        yield (
            f"seen_classes is {seen}; the study has {classes} classes, and the model "
            "set was trained on all of them: 0 takes these"
        )
        return
    if seen == 1:
        yield "seen_classes is 1, and a classifier needs at least 2"
        return
    most = classes - seen + len(values["unseen_class_ids"])
    possible = [added / (seen + added) for added in range(most + 1)]
    names = ", ".join(f"{step:.3f}" for step in possible)
    fraction_of_step: dict[float, float] = {}
    for fraction in values["unseen_fractions"]:
        step = min(possible, key=lambda other: abs(fraction - other))
        if abs(fraction - step) > 0.0005:  # fractions are written with three digits
            yield f"unseen_fractions has {fraction:g}; possible are {names}"
            return
        if step in fraction_of_step:
            yield (
                f"unseen_fractions has {fraction_of_step[step]:g} and {fraction:g}, "
                f"which are one step; possible are {names}"
            )
            return
        fraction_of_step[step] = fraction


def _blocks(values: Mapping[str, Any]) -> Iterator[str]:
    """Faults of blocks: unknown axes, and levels of another type than the study's."""
    level_types = {"repeat": "int"}
    for axis, parameter in AXIS_PARAMETERS.items():
        level_types[axis] = type(values[parameter][0]).__name__
    for number, block in enumerate(values["blocks"], start=1):
        for axis, levels in block.items():
            if axis in level_types:
                parameter = AXIS_PARAMETERS.get(axis, axis)
                annotation = f"list[{level_types[axis]}]"
                item = Parameter(parameter, annotation, [0], "levels")
                fault = value_fault(item, levels)
            else:
                fault = f"no such axis{near_names(axis, level_types)}"
            if fault:
                yield f"blocks: block {number}, {axis}: {fault}"


RULES = (
    Rule(
        (
            "class_ids",
            "data_source",
            "data_path",
            "pretrain_class_ids",
            "pretrain_data_source",
            "pretrain_data_path",
            "pretrained_weights",
            "pretrained_levels",
        ),
        _pretraining_classes,
    ),
    Rule(
        ("class_ids", "data_source", "data_path", "unseen_class_ids", "unseen_path"),
        _unseen_classes,
    ),
    Rule(
        (
            "class_ids",
            "kappa_families",
            "seen_classes",
            "unseen_class_ids",
            "unseen_fractions",
        ),
        _unseen_fractions,
    ),
    Rule(("blocks", *AXIS_PARAMETERS.values()), _blocks),
)

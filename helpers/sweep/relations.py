"""Relations between parameters, also of several notebooks, that would otherwise be known only after hours."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from helpers.parameters import PUBLISHED_NETWORKS, Parameter, near_names, value_fault

_SHAPES = ("disc", "square", "triangle", "cross", "ring", "star", "hourglass", "crescent", "frame", "bars", "corner", "checker")
RENDERED = tuple(f"synthetic_{name}" for name in _SHAPES)
_REAL = ("learning_rate", "weight_decay", "label_noise")
AXES = {name: f"{name}s" for name in ("architecture", "augmentation", "batch_size", "label_noise", "learning_rate", "optimizer")}
AXES |= {"weight_decay": "weight_decays", "pretrained": "pretrained_levels", "images_per_class": "training_sizes"}


def relation_faults(values: Mapping[str, Any]) -> list[str]:
    """What is wrong between parameters that are right by themselves; a relation is passed over where one of its parameters is absent."""
    found = []
    for relation in (_images, _sizes, _pretraining, _unseen, _networks, _paths, _blocks, _targets):
        try:
            found += list(relation(values))
        except KeyError:
            continue
    return found


def _images(v: Mapping[str, Any]) -> Iterator[str]:
    if len(v["class_ids"]) == 1:
        yield f"class_ids is {v['class_ids']}, and a classifier needs at least 2 classes; [] takes all"
    for source, names in (
        ("data_source", "class_ids"),
        ("pretrain_data_source", "pretrain_class_ids"),
        ("data_source", "unseen_class_ids"),
    ):
        for name in v.get(names, []) if source in v else []:
            if (name in RENDERED) != (v[source] == "synthetic"):
                yield f"{names} names {name!r}, which is no class of {source} {v[source]}{near_names(name, RENDERED)}"
                break
    if v["data_source"] != "synthetic" and not v["data_path"]:
        yield f"data_path is empty, and data_source {v['data_source']} needs the folder or .zip of its images"


def _sizes(v: Mapping[str, Any]) -> Iterator[str]:
    given, most = v["images_per_class"], max(v["training_sizes"])
    if 0 < given < most:
        yield f"training_sizes asks for {most} images per class, and images_per_class allows {given}"


def _pretraining(v: Mapping[str, Any]) -> Iterator[str]:
    weights = v["pretrained_weights"] if True in v["pretrained_levels"] else ""
    if re.fullmatch(r"[A-Z][A-Z0-9_]+", weights) and (v["stem"], v["width"]) != ("imagenet", 1):
        yield f"pretrained_weights {weights} fit stem imagenet and width 1, not {v['stem']} and {v['width']:g}; or take made"
    if weights == "made" and v["pretrain_data_source"] != "synthetic" and not v["pretrain_data_path"]:
        yield f"pretrain_data_path is empty, and pretrain_data_source {v['pretrain_data_source']} needs the images' folder or .zip"
    if weights == "made" and (shared := _shared(v, "pretrain_class_ids", "pretrain_data_source", "pretrain_data_path")):
        yield f"pretrain_class_ids shares {shared} with class_ids; pretraining must not see the study's classes: name others"


def _shared(v: Mapping[str, Any], names: str, source: str, path: str) -> str:
    """Classes that are both the study's and another choice's; an empty choice is all of its source."""
    ours, theirs = v["class_ids"], v[names]
    if (v["data_source"], v["data_path"]) == (v[source], v[path]):
        every = RENDERED if v["data_source"] == "synthetic" else ["all classes of the source"]
        ours, theirs = ours or theirs or every, theirs or ours or every
    return ", ".join(sorted({*ours} & {*theirs})[:5])


def _unseen(v: Mapping[str, Any]) -> Iterator[str]:
    if v["unseen_class_ids"] and (
        shared := _shared(v, "unseen_class_ids", "data_source", "unseen_path" if v["unseen_path"] else "data_path")
    ):
        yield f"unseen_class_ids shares {shared} with class_ids; name classes that are none of the study's"
    count = len(v["class_ids"]) or (len(RENDERED) if v["data_source"] == "synthetic" else 0)
    seen = v["seen_classes"] or count
    if count and (seen > count or ("model set" in v["kappa_families"] and seen != count)):
        yield f"seen_classes is {seen}; the study has {count} classes, and the model set was trained on all of them: 0 takes these"
    elif count:
        possible = [added / (seen + added) for added in range(count - seen + len(v["unseen_class_ids"]) + 1)]
        wrong = [item for item in v["unseen_fractions"] if min(abs(item - other) for other in possible) > 0.0005]
        yield from [f"unseen_fractions has {item:g}; possible are {', '.join(f'{one:.3f}' for one in possible)}" for item in wrong[:1]]


def _networks(v: Mapping[str, Any]) -> Iterator[str]:
    published = [name for name in v["kappa_families"] if re.fullmatch(PUBLISHED_NETWORKS, name)]
    if published and v["kappa_weights"] in ("made", "random"):
        yield f"kappa_weights is {v['kappa_weights']}, and {', '.join(published)} need published weights; 'resnet18 w0.25' is made here"


def _paths(v: Mapping[str, Any]) -> Iterator[str]:
    needs = [name for name in v.get("saliency_providers", []) if name in ("folder", "network")]
    if len(needs) > 1 or (needs and not v["saliency_path"]):
        yield f"saliency_providers has {' and '.join(needs)}, and saliency_path is {v['saliency_path']!r}; it must be of one of these"
    if v["checkpoints_path"] and not v["images_path"]:
        yield "images_path is empty, and checkpoints_path needs the training images of its networks"


def _blocks(v: Mapping[str, Any]) -> Iterator[str]:
    for number, block in enumerate(v["blocks"], start=1):
        for axis, levels in block.items():
            if axis != "repeat" and axis not in AXES:
                yield f"blocks: block {number} has {axis!r}, which is no axis{near_names(axis, [*AXES, 'repeat'])}"
                continue
            limited = AXES.get(axis, "repeat")
            kind = type(v[limited][0]).__name__ if limited in v and axis not in _REAL else "float" if axis in _REAL else "int"
            if fault := value_fault(Parameter(limited, f"list[{kind}]", [0], "levels"), levels):
                yield f"blocks: block {number}, {axis}: {fault}"


def _targets(v: Mapping[str, Any]) -> Iterator[str]:
    shifts = [(name.partition("_")[0], float(name.partition("_")[2])) for name in v["targets"]]
    if len(set(shifts)) < len(shifts):
        yield f"targets is {v['targets']}, and names a shift twice"

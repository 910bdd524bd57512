"""What every parameter of the notebooks may be: choices, ranges, forms, and relations between them, checked before any work."""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from helpers.notebook_parameters import Parameter, StudyError, check_type, shard_slice


class Constraint(NamedTuple):
    """What a value may be beside its type; of a list, what each of its items may be."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False  # ``low`` itself is not allowed
    below: bool = False  # ``high`` itself is not allowed
    zero: bool = False  # 0 is allowed too, whatever the range
    among: tuple[Any, ...] = ()  # nothing else is allowed
    form: str = ""  # what a text must match from end to end
    meaning: str = ""  # of the form, for a reader
    fewest: int = 0  # items of a list
    most: int = 10_000  # items of a list
    repeated: bool = False  # an item may stand twice
    holds: tuple[Any, ...] = ()  # items that a list must have

    def words(self) -> str:
        """What is allowed, in words."""
        if self.among:
            return f"one of {', '.join(map(str, self.among))}"
        if self.form:
            return self.meaning
        ends = [f"{'above' if self.above else 'at least'} {self.low:,.15g}"] if self.low > -math.inf else []
        ends += [f"{'below' if self.below else 'at most'} {self.high:,.15g}"] if self.high < math.inf else []
        return ("0, or " if self.zero else "") + (" and ".join(ends) or "a finite number")

    def allows(self, value: Any) -> bool:
        """Whether a single value is allowed."""
        if self.among:
            return value in self.among
        if self.form:
            return re.fullmatch(self.form, value) is not None
        inside = self.low < value if self.above else self.low <= value
        inside = inside and (value < self.high if self.below else value <= self.high)
        return bool(inside and math.isfinite(value)) or (self.zero and value == 0)


_ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
_PROPER = Constraint(0, 1, above=True, below=True)
_COUNT = Constraint(1, 1_000_000)
_COUNT_OR_ALL = Constraint(0, 1_000_000)
_SEED = Constraint(0, 2**31 - 1)
_SOURCE = Constraint(among=("synthetic", "auto", "ilsvrc", "tiny_imagenet", "cifar", "coco", "csv", "yolo", "voc_folder", "class_folders"))
_SHARD = Constraint(form=r"|[1-9]\d{0,8}/[1-9]\d{0,8}", meaning="empty, or i/n with i from 1 to n, such as 2/4")
_DEVICE = Constraint(form=r"auto|cpu|cuda(:\d{1,3})?", meaning="auto, cpu, cuda, or one GPU such as cuda:1")
_PRECISION = Constraint(among=("float32", "bfloat16", "auto"))
_FOLDER = Constraint(form=r"(?!~[^/])[^\x00-\x1f]{1,1000}", meaning="a folder, relative to the project's root, or to the home as ~/name")
FREE_TEXT = Constraint(form=r"[^\x00-\x1f]{0,1000}", meaning="a text of at most 1,000 characters on one line")

# Networks of notebook 06 by name: known by their published weights, or made here with factors on width and depth.
PUBLISHED_NETWORKS = (
    *("RN50", "RN101", "RN50x4", "RN50x16", "RN50x64"),
    *(f"efficientnet_b{number}" for number in range(8)),
    *_ARCHITECTURES,
)
MADE_NETWORKS = r"resnet(?:18|34|50|101) w\d*\.?\d+|efficientnet-like w\d*\.?\d+ d\d*\.?\d+"

# Texts and lists of texts that name what only the data or the user's files can tell.
_PATHS = tuple(
    f"{name}_path" for name in ("data", "pretrain_data", "saliency", "unseen", "checkpoints", "images", "boxes", "target", "labelled")
)
FREE_TEXTS = (*_PATHS, "calibration_study", "layers", "class_names")

# What every parameter of the notebooks may be; a name means the same wherever it is declared.
CONSTRAINTS: dict[str, Constraint] = {
    "study": Constraint(form=r"\w[\w .+-]{0,99}", meaning="a name of letters, digits, dots, dashes and blanks, as its file in params has"),
    "data_source": _SOURCE,
    "class_ids": Constraint(form=r"[^\x00-\x1f/\\]{1,200}", meaning="a class, by wnid or folder name"),
    "image_size": Constraint(16, 1024),
    "images_per_class": _COUNT_OR_ALL,
    "test_images_per_class": _COUNT_OR_ALL,
    "minimum_images_per_class": _COUNT,
    "data_seed": _SEED,
    "pictured_images": Constraint(1, 100),
    "architectures": Constraint(among=_ARCHITECTURES, fewest=1),
    "batch_sizes": Constraint(2, 65_536, fewest=1),
    "learning_rates": Constraint(0, 1000, fewest=1),
    "optimizers": Constraint(among=("adam", "sgd"), fewest=1),
    "weight_decays": Constraint(0, 1000, fewest=1),
    "augmentations": Constraint(among=(True, False), fewest=1),
    "pretrained_levels": Constraint(among=(True, False), fewest=1),
    "training_sizes": Constraint(0, 1_000_000, fewest=1),
    "label_noises": Constraint(0, 1, fewest=1),
    "repeats": Constraint(1, 10_000),
    "run_count": _COUNT_OR_ALL,
    "published_checkpoints": Constraint(0, 1000),
    "stem": Constraint(among=("imagenet", "small", "strided")),
    "width": Constraint(0.0625, 8),
    "last_stride": Constraint(among=(1, 2)),
    "momentum": Constraint(0, 1, below=True),
    "max_epochs": Constraint(1, 100_000),
    "loss_threshold": Constraint(0, 1000),
    "accuracy_threshold": Constraint(0, 1, above=True),
    "rule3_split": Constraint(among=("test", "holdout")),
    "seed": _SEED,
    "pretrained_weights": Constraint(form=r"[^\x00-\x1f]{1,1000}", meaning="made, a torchvision name, or a path with {architecture} in it"),
    "pretrain_data_source": _SOURCE,
    "pretrain_class_ids": Constraint(form=r"[^\x00-\x1f/\\]{1,200}", meaning="a class, by wnid or folder name"),
    "pretrain_images_per_class": _COUNT_OR_ALL,
    "pretrain_max_epochs": Constraint(1, 100_000),
    "minimum_train_accuracy": Constraint(0, 1, below=True),
    "device": _DEVICE,
    "precision": _PRECISION,
    "scoring_precision": _PRECISION,
    "jobs": Constraint(0, 1024),
    "shard": _SHARD,
    "work_dir": _FOLDER,
    "reports_dir": _FOLDER,
    "cam_method": Constraint(among=("cam", "grad_cam", "grad_cam_plus_plus", "layer_cam")),
    "cam_threshold": _PROPER,
    "targets": Constraint(
        form=r"(blur|noise|jpeg)_0?\.\d+|(brightness|contrast)_\d+(\.\d+)?|rotation_-?\d+(\.\d+)?",
        meaning="blur_S, noise_S or jpeg_S with an SSIM S below 1, brightness_F, contrast_F or rotation_D, such as blur_0.7",
    ),
    "scored_images": _COUNT_OR_ALL,
    "accuracy_thresholds": Constraint(0, 1, below=True, fewest=1),
    "bootstrap_resamples": Constraint(10, 1_000_000),
    "analysis_seed": _SEED,
    "families": Constraint(
        among=("localization", "prediction", "norms", "flatness", "perturbation", "unlabelled"),
        fewest=1,
        holds=("localization", "perturbation"),
    ),
    "perturbation_fraction": Constraint(0, 1, above=True),
    "perturbation_points": Constraint(2, 1000),
    "transform_ranges": Constraint(among=("cifar10", "svhn")),
    "own_transforms": Constraint(form=r"[\w.]+:\w+ +\S+ +\S+", meaning="module:function low high, such as my_transforms:darker 0 0.5"),
    "flatness_images": _COUNT,
    "flatness_draws": Constraint(1, 10_000),
    "flatness_halvings": Constraint(1, 100),
    "sharpness_images": _COUNT,
    "sharpness_steps": Constraint(1, 10_000),
    "thresholds": Constraint(0, 1, above=True, below=True, fewest=1),
    "ablation_images": _COUNT_OR_ALL,
    "sampled_methods": Constraint(among=("grad_cam_plus_plus", "smooth_grad_cam_plus_plus", "eigen_cam", "score_cam")),
    "attributions": Constraint(
        among=("saliency", "input_x_gradient", "integrated_gradients", "guided_grad_cam", "occlusion", "deep_lift"), fewest=1
    ),
    "attribution_steps": Constraint(1, 10_000),
    "noise_samples": Constraint(1, 10_000),
    "noise_std": Constraint(0, 100),
    "score_cam_channels": Constraint(1, 100_000),
    "image_scales": Constraint(0.25, 8),
    "random_networks": Constraint(3, 10_000),
    "random_images": _COUNT_OR_ALL,
    "saliency_providers": Constraint(
        among=("spectral_residual", "spectral_residual_opencv", "fine_grained", "grab_cut", "folder", "network"), fewest=1
    ),
    "saliency_architecture": Constraint(
        among=(
            "deeplabv3_mobilenet_v3_large",
            "deeplabv3_resnet101",
            "deeplabv3_resnet50",
            "fcn_resnet101",
            "fcn_resnet50",
            "lraspp_mobilenet_v3_large",
        )
    ),
    "saliency_classes": Constraint(1, 100_000),
    "kappa_families": Constraint(
        form="|".join((*PUBLISHED_NETWORKS, "model set", MADE_NETWORKS)),
        meaning=f"model set, one made here ('resnet18 w0.25', 'efficientnet-like w0.5 d0.5'), or one of {', '.join(PUBLISHED_NETWORKS)}",
        fewest=1,
    ),
    "kappa_weights": Constraint(
        form=r"[^\x00-\x1f]{1,1000}", meaning="made for no published network, or a library's name, or a path with {architecture}"
    ),
    "made_epochs": Constraint(1, 100_000),
    "models_per_architecture": _COUNT_OR_ALL,
    "seen_classes": _COUNT_OR_ALL,
    "unseen_class_ids": Constraint(form=r"[^\x00-\x1f/\\]{1,200}", meaning="a class, by wnid or folder name"),
    "unseen_fractions": Constraint(0, 1, below=True, fewest=1),
    "noise_generator": Constraint(among=("blur", "gaussian", "autoencoder")),
    "noise_ssim": Constraint(0, 1, above=True, fewest=1),
    "probe_l2": Constraint(0, 1_000_000, above=True),
    "trade_off_lambda": Constraint(0, 1_000_000),
    "lambdas": Constraint(0, 1_000_000, fewest=1),
    "ssim_at_most": Constraint(0, 1, above=True),
    "unseen_at_least": Constraint(0, 1, below=True),
    "complexity_images": _COUNT,
    "permutations": Constraint(1, 100_000_000),
    "architecture": Constraint(form=r"[\w.:/-]{1,200}", meaning="auto, torchvision's name, timm:NAME, or module:function"),
    "own_image_size": Constraint(16, 1024, zero=True),
    "images_used": Constraint(2, 1_000_000),
    "pixel_mean": Constraint(0, 1, fewest=3, most=3, repeated=True),
    "pixel_std": Constraint(0, 1, above=True, fewest=3, most=3, repeated=True),
    "judged_study": Constraint(form=r"|\w[\w .+-]{0,99}", meaning="empty, or a name as its folder below work_dir has"),
    "cells_left_out": Constraint(1, 10_000),
    "interval_level": _PROPER,
} | dict.fromkeys(FREE_TEXTS, FREE_TEXT)

# The axis that each parameter of levels gives to a run; a block of a grid names axes.
AXIS_PARAMETERS = {
    "batch_size": "batch_sizes",
    "learning_rate": "learning_rates",
    "optimizer": "optimizers",
    "weight_decay": "weight_decays",
    "architecture": "architectures",
    "augmentation": "augmentations",
    "pretrained": "pretrained_levels",
    "images_per_class": "training_sizes",
    "label_noise": "label_noises",
}

_REAL_AXES = {"learning_rate", "weight_decay", "label_noise"}

RENDERED = tuple(
    f"synthetic_{name}"
    for name in ("disc", "square", "triangle", "cross", "ring", "star", "hourglass", "crescent", "frame", "bars", "corner", "checker")
)


# Relations between parameters: each gives a fault, or "", and is passed over where a parameter that it asks for is not declared or wrong.
def _place_of_images(v: Mapping[str, Any]) -> str:
    if v["data_source"] != "synthetic" and not v["data_path"]:
        return f"data_path is empty, and data_source {v['data_source']} needs the folder or .zip of its images"
    return ""


def _place_of_pretraining(v: Mapping[str, Any]) -> str:
    if _makes_weights(v) and v["pretrain_data_source"] != "synthetic" and not v["pretrain_data_path"]:
        return f"pretrain_data_path is empty, and pretrain_data_source {v['pretrain_data_source']} needs the folder or .zip of its images"
    return ""


def _makes_weights(v: Mapping[str, Any]) -> bool:
    return v["pretrained_weights"] == "made" and True in v["pretrained_levels"]


def _rendered_classes(source: str, classes: str) -> Callable[[Mapping[str, Any]], str]:
    def relation(v: Mapping[str, Any]) -> str:
        rendered = v[source] == "synthetic"
        wrong = [name for name in v[classes] if (name in RENDERED) != rendered]
        if not wrong:
            return ""
        known = near_names(wrong[0], RENDERED) if rendered else f"; {source} is {v[source]}, which has no rendered classes"
        return f"{classes} names {wrong[0]!r}, which is no class of {source} {v[source]}{known}"

    return relation


def _two_classes(v: Mapping[str, Any]) -> str:
    one = len(v["class_ids"]) == 1
    return f"class_ids is {v['class_ids']}, and a classifier needs at least 2 classes; [] takes all" if one else ""


def _rendered_test_images(v: Mapping[str, Any]) -> str:
    endless = v["data_source"] == "synthetic" and not v["test_images_per_class"]
    return "test_images_per_class is 0, and of rendered scenes there is no end; give a number, such as 50" if endless else ""


def _enough_images(v: Mapping[str, Any]) -> str:
    given, least = v["images_per_class"], v["minimum_images_per_class"]
    return f"images_per_class is {given}, and minimum_images_per_class {least} would drop every class" if 0 < given < least else ""


def _training_sizes(v: Mapping[str, Any]) -> str:
    if 0 < v["images_per_class"] < max(v["training_sizes"]):
        return f"training_sizes asks for {max(v['training_sizes'])} images per class, and images_per_class allows {v['images_per_class']}"
    return ""


def _shared(v: Mapping[str, Any], own: str, source: str, path: str) -> list[str]:
    """List the classes that the study and another choice share; an empty choice is all of its source."""
    same = v["data_source"] == v[source] and v["data_path"] == v[path]
    everything = list(RENDERED) if v["data_source"] == "synthetic" else ["all classes of the source"]
    ours, theirs = v["class_ids"], v[own]
    if same:
        ours, theirs = ours or theirs or everything, theirs or ours or everything
    return sorted(set(ours) & set(theirs))


def _pretraining_classes(v: Mapping[str, Any]) -> str:
    shared = _shared(v, "pretrain_class_ids", "pretrain_data_source", "pretrain_data_path") if _makes_weights(v) else []
    wrong = f"pretrain_class_ids shares {', '.join(shared[:5])} with class_ids; pretraining must not see the study's classes: name others"
    return wrong if shared else ""


def _named_weights(v: Mapping[str, Any]) -> str:
    weights, published = v["pretrained_weights"], (v["stem"], v["width"]) == ("imagenet", 1)
    if True in v["pretrained_levels"] and re.fullmatch(r"[A-Z0-9_]+", weights) and not published:
        return f"pretrained_weights {weights} fit stem imagenet and width 1, not {v['stem']} and {v['width']:g}; or take made"
    return ""


def _unseen_classes(v: Mapping[str, Any]) -> str:
    place = "unseen_path" if v["unseen_path"] else "data_path"
    shared = _shared(v, "unseen_class_ids", "data_source", place) if v["unseen_class_ids"] else []
    return f"unseen_class_ids shares {', '.join(shared[:5])} with class_ids; name classes that are none of the study's" if shared else ""


def _seen_and_unseen(v: Mapping[str, Any]) -> str:
    count = len(v["class_ids"]) or (len(RENDERED) if v["data_source"] == "synthetic" else 0)
    seen = v["seen_classes"] or count
    if not count:
        return ""  # only the data tells
    if seen > count:
        return f"seen_classes is {seen}, and the study has {count} classes; 0 takes all"
    if "model set" in v["kappa_families"] and seen != count:
        return f"seen_classes is {seen}, and the model set in kappa_families was trained on all {count} classes; set it to 0"
    possible = [added / (seen + added) for added in range(count - seen + len(v["unseen_class_ids"]) + 1)]
    wrong = [item for item in v["unseen_fractions"] if min(abs(item - other) for other in possible) > 0.0005]
    return f"unseen_fractions has {wrong[0]:g}; possible are {', '.join(f'{item:.3f}' for item in possible)}" if wrong else ""


def _kappa_networks(v: Mapping[str, Any]) -> str:
    factors = {name: [float(word[1:]) for word in name.split()[1:] if word[0] in "wd"] for name in v["kappa_families"]}
    if odd := [name for name, found in factors.items() if not all(0.0625 <= factor <= 8 for factor in found)]:
        return f"kappa_families has {odd[0]!r}, whose factors on width and depth must be from 0.0625 to 8"
    published = [name for name in v["kappa_families"] if name in PUBLISHED_NETWORKS]
    without = published and v["kappa_weights"] in ("made", "random")
    told = (
        f"kappa_weights is {v['kappa_weights']}, and {', '.join(published)} stand for published weights: name these, or networks made here"
    )
    return f"{told}, such as 'resnet18 w0.25'" if without else ""


def _measured_noise(v: Mapping[str, Any]) -> str:
    none = v["ssim_at_most"] < min(v["noise_ssim"])
    return f"ssim_at_most is {v['ssim_at_most']:g}, below every level of noise_ssim, {v['noise_ssim']}" if none else ""


def _measured_unseen(v: Mapping[str, Any]) -> str:
    none = v["unseen_at_least"] > max(v["unseen_fractions"])
    return f"unseen_at_least is {v['unseen_at_least']:g}, above all of unseen_fractions, {v['unseen_fractions']}" if none else ""


def _masks(v: Mapping[str, Any]) -> str:
    known = {"folder": "the folder of masks", "network": "the file of the network's weights"}
    wanted = [name for name in known if name in v["saliency_providers"]]
    if len(wanted) > 1:
        return "saliency_providers has folder and network, and saliency_path can be that of one; run them one after the other"
    if wanted and not v["saliency_path"]:
        return f"saliency_path is empty, and {wanted[0]} in saliency_providers needs {known[wanted[0]]}"
    return ""


def _own_images(v: Mapping[str, Any]) -> str:
    if v["checkpoints_path"]:
        return "" if v["images_path"] else "images_path is empty, and checkpoints_path needs the training images of its networks"
    idle = [name for name in ("target_path", "labelled_path") if v.get(name)]
    return f"{idle[0]} is set and checkpoints_path is empty; it is of a user's own checkpoints" if idle else ""


def _shard_of(v: Mapping[str, Any]) -> str:
    try:
        shard_slice(v["shard"])
    except ValueError as fault:
        return f"shard: {fault}"
    return ""


def _blocks(v: Mapping[str, Any]) -> str:
    for number, block in enumerate(v["blocks"], start=1):
        for axis, levels in block.items():
            where = f"blocks: block {number} has {axis!r}"
            if axis != "repeat" and axis not in AXIS_PARAMETERS:
                return f"{where}, which is no axis{near_names(str(axis), [*AXIS_PARAMETERS, 'repeat'])}"
            if not isinstance(levels, list):
                return f"{where} with {shown(levels)}, and must have a list of levels"
            limit = Constraint(0, 10_000, fewest=1) if axis == "repeat" else CONSTRAINTS[AXIS_PARAMETERS[axis]]
            kinds = (type(limit.among[0]),) if limit.among else (int, float) if axis in _REAL_AXES else (int,)
            words = " or ".join(kind.__name__ for kind in kinds)
            if fault := _list_fault(limit, levels) if all(type(item) in kinds for item in levels) else f"its levels must be {words}":
                return f"{where} with {shown(levels)}: {fault}"
    return ""


def _ranges_of_transforms(v: Mapping[str, Any]) -> str:
    for text in v["own_transforms"]:
        try:
            low, high = map(float, text.split()[1:])
        except ValueError:
            return f"own_transforms has {text!r}, whose range must be two numbers, such as my_transforms:darker 0 0.5"
        if not -math.inf < low < high < math.inf:
            return f"own_transforms has {text!r}, whose range must go from a number to a larger one"
    return ""


def _sizes_of_shifts(v: Mapping[str, Any]) -> str:
    limits = {"brightness": (0, 10), "contrast": (0, 10), "rotation": (-180, 180)}
    for name in v["targets"]:
        kind, _, number = name.partition("_")
        low, high = limits.get(kind, (1e-6, 1))
        if not low <= float(number) <= high:
            return f"targets has {name}; {kind} can be from {low:g} to {high:g}"
    return ""


RELATIONS: tuple[Callable[[Mapping[str, Any]], str], ...] = (
    _place_of_images,
    _place_of_pretraining,
    _rendered_classes("data_source", "class_ids"),
    _rendered_classes("pretrain_data_source", "pretrain_class_ids"),
    _rendered_classes("data_source", "unseen_class_ids"),
    _two_classes,
    _rendered_test_images,
    _enough_images,
    _training_sizes,
    _pretraining_classes,
    _named_weights,
    _unseen_classes,
    _seen_and_unseen,
    _kappa_networks,
    _measured_noise,
    _measured_unseen,
    _masks,
    _own_images,
    _shard_of,
    _blocks,
    _ranges_of_transforms,
    _sizes_of_shifts,
)


def shown(value: Any) -> str:
    """Write a value for a message, shortened where it is long."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= _LONG else f"{text[: _LONG - 20]}... ({len(text):,} characters)"


_LONG = 120


def near_names(name: str, known: Sequence[str]) -> str:
    """The three known names nearest to a misspelt one, as " (did you mean 'a' or 'b'?)"; "" where none is near."""
    near = [repr(item) for item in difflib.get_close_matches(name[:200], list(known), n=3)]
    return f" (did you mean {' or '.join(filter(None, [', '.join(near[:-1]), near[-1]]))}?)" if near else ""


def _list_fault(limit: Constraint, values: Sequence[Any]) -> str:
    """What is wrong with a list under a constraint; "" when nothing is."""
    if not limit.fewest <= len(values) <= limit.most:
        count = f"exactly {limit.fewest}" if limit.fewest == limit.most else f"at least {limit.fewest} and at most {limit.most:,}"
        return f"must have {count} items"
    wrong = [item for item in values if not limit.allows(item)]
    if wrong:
        return f"each item must be {limit.words()}, and {shown(wrong[0])} is not"
    if not limit.repeated and len(set(values)) < len(values):
        return "an item stands twice"
    missing = [str(item) for item in limit.holds if item not in values]
    return f"it must hold {' and '.join(missing)}, which the notebook's tables rest on" if missing else ""


def value_fault(parameter: Parameter, value: Any) -> str:
    """What is wrong with a parameter's value beside all others: its type, then its constraint; "" when nothing is."""
    try:
        check_type(parameter.annotation, value)
    except ValueError as fault:
        return f"{parameter.name} is {shown(value)}, and must be {parameter.annotation} ({parameter.comment}): {fault}"
    limit = CONSTRAINTS.get(parameter.name)
    if limit is None or isinstance(value, bool | dict):
        return ""
    if isinstance(value, list):
        wrong = _list_fault(limit, value)
        return f"{parameter.name} is {shown(value)}: {wrong}" if wrong else ""
    return "" if limit.allows(value) else f"{parameter.name} is {shown(value)}, and must be {limit.words()}"


def relation_faults(values: Mapping[str, Any]) -> list[str]:
    """List what is wrong between parameters, of those values that are right by themselves."""
    found = []
    for relation in RELATIONS:
        try:
            found.append(relation(values))
        except KeyError:
            continue
    return [fault for fault in found if fault]


def check_values(parameters: Mapping[str, Parameter], values: Mapping[str, Any]) -> None:
    """Refuse what a notebook's parameters may not be, before it does any work.

    Args:
        parameters: what the notebook declares, see ``declared``.
        values: ``globals()`` of the notebook.

    Raises:
        StudyError: every fault there is, one a line, each naming the parameter and what is allowed.
    """
    faults = {name: value_fault(item, values[name]) for name, item in parameters.items()}
    sound = {name: values[name] for name, fault in faults.items() if not fault}
    found = [fault for fault in faults.values() if fault] + relation_faults(sound)
    if found:
        raise StudyError(found)

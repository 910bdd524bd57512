"""The parameters of a notebook: their declarations, and the values they may have."""

import ast
import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helpers.files import json_digest

# Parameters that say where and how to compute, and do not change results.
WITHOUT_EFFECT_ON_RESULTS = ("study", "work_dir", "reports_dir", "device", "jobs")


class StudyError(ValueError):
    """All faults of a study, one a line; a notebook shows them without a traceback."""

    def __init__(self, *faults: str) -> None:
        """Join the faults to one message."""
        self.faults = list(dict.fromkeys(faults))
        super().__init__("\n".join(self.faults))
        self._render_traceback_ = lambda: [str(self)]


class Parameter(NamedTuple):
    """A line of a notebook's tagged cell: ``name: annotation = default  # comment``."""

    name: str
    annotation: str
    default: Any
    comment: str


def declared(notebook: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name.

    Args:
        notebook: path of a notebook with one cell that is tagged ``parameters`` and has
            annotated literals, each with a comment.

    Raises:
        StudyError: if it has no such cell, or several, or one with other lines.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    tagged = [
        "".join(cell["source"])
        for cell in cells
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    source = "\n".join(tagged)
    nodes = ast.parse(source).body
    if len(tagged) != 1 or not all(isinstance(node, ast.AnnAssign) for node in nodes):
        raise StudyError(
            f"{notebook}: one cell must be tagged parameters, with lines `name: type = "
            "literal` alone"
        )
    parameters = {}
    for node in nodes:
        comment = source.splitlines()[node.end_lineno - 1][node.end_col_offset :]
        parameters[node.target.id] = Parameter(
            node.target.id,
            ast.unparse(node.annotation),
            ast.literal_eval(node.value),
            comment.strip().lstrip("# "),
        )
    return parameters


def check_type(annotation: str, value: Any) -> Any:
    """Check a value against the annotation of a parameter.

    Returns:
        The value; an int becomes a float where the annotation has float.

    Raises:
        ValueError: pydantic's, if the value is of another type.
    """
    from pydantic import ConfigDict, TypeAdapter

    kinds = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
    # eval is safe here: annotations come from the project's notebooks, not from data.
    type_of_values = eval(annotation, {"__builtins__": {}}, kinds)
    adapter = TypeAdapter(type_of_values, config=ConfigDict(strict=True))
    return adapter.validate_python(value)


# ``data.layouts.LAYOUTS`` and two more; ``data`` stands above this module, which hence
# cannot import it.
_LAYOUTS = (
    "synthetic",
    "auto",
    "ilsvrc",
    "tiny_imagenet",
    "cifar",
    "coco",
    "csv",
    "labelme",
    "yolo",
    "voc",
    "class_folders",
)


class OneOf:
    """A limit that lists the allowed texts."""

    def __init__(self, *values: str) -> None:
        """Allow these texts."""
        self.values = values
        self.words = f"one of {values}"

    def allows(self, item: Any) -> bool:
        """Whether an item is one of the texts."""
        return item in self.values


class Form:
    """A limit that texts must match as a whole."""

    def __init__(self, pattern: str) -> None:
        """Allow the texts that a regular expression matches."""
        self.pattern = re.compile(pattern)
        self.words = f"of the form {pattern}"

    def allows(self, item: Any) -> bool:
        """Whether a text has the form."""
        return self.pattern.fullmatch(item) is not None


class Interval:
    """A limit of numbers: an interval such as "[0, 1)", and 0 where it is allowed."""

    def __init__(self, interval: str, allows_0: bool = False) -> None:
        """Allow the numbers of an interval, whose round brackets exclude its ends."""
        self.low, self.high = map(float, interval[1:-1].split(","))
        self.includes_low = interval[0] == "["
        self.includes_high = interval[-1] == "]"
        self.allows_0 = allows_0
        self.words = f"in 0 or {interval}" if allows_0 else f"in {interval}"

    def allows(self, item: Any) -> bool:
        """Whether a number is in the interval, or an allowed 0."""
        return (
            self.low < item < self.high
            or (item == self.low and self.includes_low)
            or (item == self.high and self.includes_high)
            or (item == 0 and self.allows_0)
        )


Limit = OneOf | Form | Interval
# Limits of parameters, and of the items of lists. A number that is not listed here has
# the limit ``NUMBERS``, a text ``_FREE_TEXT``.
LIMITS: dict[str, Limit] = {
    "accuracy_threshold": Interval("(0, 1]"),
    "accuracy_thresholds": Interval("[0, 1)"),
    "architectures": OneOf("resnet18", "resnet34", "resnet50", "resnet101"),
    "attribution_steps": Interval("[1, 1000000]"),
    "attributions": OneOf(
        "saliency",
        "input_x_gradient",
        "integrated_gradients",
        "guided_grad_cam",
        "occlusion",
    ),
    "batch_sizes": Interval("[2, 100000]"),
    "bootstrap_resamples": Interval("[3, 100000]"),
    "cam_cut": OneOf("maximum", "quantile"),
    "cam_method": OneOf("cam", "grad_cam", "grad_cam_plus_plus", "layer_cam"),
    "cam_threshold": Interval("(0, 1)"),
    "complexity_images": Interval("[1, 100000]"),
    "data_source": OneOf(*_LAYOUTS),
    "families": OneOf(
        "localization",
        "reliance",
        "prediction",
        "norms",
        "flatness",
        "perturbation",
        "unlabelled",
    ),
    "flatness_draws": Interval("[1, 100000]"),
    "flatness_halvings": Interval("[1, 100000]"),
    "flatness_images": Interval("[1, 100000]"),
    "frozen_stages": Interval("[0, 4]"),
    "image_scales": Interval("[0.0625, 8]"),
    "image_size": Interval("[16, 1024]"),
    "label_noises": Interval("[0, 1]"),
    "label_smoothings": Interval("[0, 1)"),
    "last_stride": Interval("[1, 2]"),
    "looks": Interval("[1, 100]"),
    "made_epochs": Interval("[1, 1000000]"),
    "matched_accuracy": Interval("[0, 1)"),
    "max_epochs": Interval("[1, 1000000]"),
    "minimum_images_per_class": Interval("[1, 1000000]"),
    "minimum_train_accuracy": Interval("[0, 1)"),
    "momentum": Interval("[0, 1)"),
    "noise_generator": OneOf("blur", "autoencoder"),
    "noise_samples": Interval("[1, 1000000]"),
    "noise_ssim": Interval("(0, 1]"),
    "optimizers": OneOf("adam", "adamw", "sgd"),
    "permutations": Interval("[3, 100000]"),
    "perturbation_fraction": Interval("(0, 1]"),
    "perturbation_points": Interval("[2, 100000]"),
    "pictured_images": Interval("[1, 100]"),
    "pixel_mean": Interval("[0, 1]"),
    "pixel_std": Interval("(0, 1]"),
    "precision": OneOf("float32", "bfloat16"),
    "pretrain_data_source": OneOf(*_LAYOUTS),
    "pretrain_max_epochs": Interval("[1, 1000000]"),
    "probe_l2": Interval("(0, 1000000000]"),
    "random_networks": Interval("[3, 100000]"),
    "repeats": Interval("[1, 1000000]"),
    "rule3_split": OneOf("test", "holdout"),
    "saliency_providers": OneOf(
        "spectral_residual",
        "grab_cut",
        "folder",
    ),
    "sampled_methods": OneOf(
        "grad_cam_plus_plus",
        "smooth_grad_cam_plus_plus",
        "eigen_cam",
        "score_cam",
    ),
    "score_cam_channels": Interval("[1, 1000000]"),
    "scored_images": Interval("[2, inf)", allows_0=True),
    "sharpness_images": Interval("[1, 100000]"),
    "sharpness_steps": Interval("[1, 100000]"),
    "snapshots": OneOf("both", "stop"),
    "stem": OneOf("imagenet", "small", "strided"),
    "thresholds": Interval("(0, 1)"),
    "transform_ranges": OneOf("cifar10", "svhn"),
    "unseen_fractions": Interval("[0, 1)"),
    "width": Interval("[0.0625, 8]"),
}
# A number below 100 in one spelling alone, since runs are told apart by their names.
_NUMBER_ABOVE_0 = r"([1-9]\d?(\.\d*[1-9])?|0\.\d*[1-9])"
_FORMS = {
    "study": r"\w[\w .+-]{0,99}",
    "other_studies": r"\w[\w .+-]{0,99}",
    "class_ids": r"[^\x00-\x1f/\\]{1,200}",
    "pretrain_class_ids": r"[^\x00-\x1f/\\]{1,200}",
    "unseen_class_ids": r"[^\x00-\x1f/\\]{1,200}",
    # "~/x" is expanded; "~user" is refused
    "work_dir": r"(?!~[^/])[^\x00-\x1f]{1,1000}",
    "reports_dir": r"(?!~[^/])[^\x00-\x1f]{1,1000}",
    "looking_levels": (
        r"plain|(map_in_box|map_in_shuffled_box|map_out_of_box) "
        rf"{_NUMBER_ABOVE_0}"
        r"|(background_swapped|background_swapped_shuffled) (1|0\.\d*[1-9])"
    ),
    "strong_augmentations": (
        r"none|crops(\+erasing)?(\+(mixup|cutmix))?|erasing(\+(mixup|cutmix))?"
        r"|mixup|cutmix"
    ),
    "shard": r"([1-9]\d{0,5}/[1-9]\d{0,5})?",
    "device": r"auto|cpu|cuda(:\d{1,3})?",
    "architecture": r"(timm:)?[\w.-]{1,100}",  # no code: a study file is data
    "pretrained_weights": r"made|[A-Z][A-Z0-9_]+|.*\{architecture\}.*",
    "targets": (
        r"(blur|noise|jpeg)_0\.\d*[1-9]|(brightness|contrast)_\d(\.\d*[1-9])?"
        r"|rotation_-?(180|(1[0-7]\d|[1-9]?\d)(\.\d*[1-9])?)"
    ),
}
LIMITS |= {name: Form(pattern) for name, pattern in _FORMS.items()}
# Of numbers without another limit: what tables, seeds and float32 can hold.
NUMBERS = Interval("[0, 1000000000]")
_FREE_TEXT = Form(r"[^\x00-\x1f]{0,1000}")
# Lists that a study may empty although their default is not empty.
_MAY_BE_EMPTY = (
    "class_ids",
    "pretrain_class_ids",
    "unseen_class_ids",
    "targets",
    "sampled_methods",
    "image_scales",
)
# Lists of three numbers, which may be equal.
_COLOURS = ("pixel_mean", "pixel_std")


def _duplicate_key(item: Any) -> Any:
    """Key to find duplicates: floats that agree in six digits have the same key.

    Names of runs and folders have six digits, so such floats would share a folder.
    """
    if isinstance(item, str):
        return unicodedata.normalize("NFC", item)
    return f"{item:g}" if isinstance(item, float) else repr(item)


def value_fault(parameter: Parameter, value: Any) -> str:
    """Check one value of a parameter, without regard to other parameters.

    Args:
        parameter: that has the value.
        value: as a study file or a cell has it.

    Returns:
        One sentence that says what is wrong; "" if the value is valid.
    """
    name = parameter.name
    stated = f"{name} is {repr(value)[:100]}"
    try:
        value = check_type(parameter.annotation, value)
    except ValueError as fault:
        first = fault.errors()[0]
        place = "".join(f"[{item}] " for item in first["loc"])
        return (
            f"{stated}, and must be {parameter.annotation} ({parameter.comment}): "
            f"{place}{first['msg']}"
        )
    items = value if isinstance(value, list) else [value]
    if not items and parameter.default and name not in _MAY_BE_EMPTY:
        return f"{stated}, and must have at least one item"
    if name in _COLOURS and len(items) not in (0, 3):
        return f"{stated}, and must have three items, of red, green and blue"
    if len(set(map(_duplicate_key, items))) < len(items) and name not in _COLOURS:
        return f"{stated}, and contains duplicates (numbers count to six digits)"
    for item in items:
        if isinstance(item, bool | dict):
            continue
        default_limit = _FREE_TEXT if isinstance(item, str) else NUMBERS
        limit = LIMITS.get(name, default_limit)
        fault = outside(limit, item)
        if fault:
            near = near_names(item, limit.values) if isinstance(limit, OneOf) else ""
            return f"{stated}, and {fault} ({parameter.comment}){near}"
    return ""


def outside(limit: Limit, item: Any) -> str:
    """Say that an item is not within a limit; "" if it is."""
    return "" if limit.allows(item) else f"{repr(item)[:100]} is not {limit.words}"


def name_of_values(values: Mapping[str, Any]) -> str:
    """Name of the folder for some values of parameters, in their order.

    A value that is not a plain word is written as its digest. If the name would be too
    long for a file system, it is the digest of all values.

    Example:
        >>> name_of_values({"cam_threshold": 0.05, "cam_method": "layer_cam"})
        'cam_threshold=0.05,cam_method=layer_cam'
    """
    name = ",".join(f"{key}={_plain_word(value)}" for key, value in values.items())
    if len(name) <= 120:
        return name
    return f"{len(values)}-values-{json_digest(dict(values))}"


def _plain_word(value: Any) -> str:
    """A value as a part of a file's name, equal for equal values alone."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    plain = isinstance(value, str) and re.fullmatch(
        r"[A-Za-z0-9_][\w.-]{0,39}", value, re.A
    )
    return value if plain else f"~{json_digest(value)}"


def near_names(name: Any, names: Iterable[str]) -> str:
    """Names similar to a misspelt one, as " (did you mean 'a' or 'b'?)", or ""."""
    near = difflib.get_close_matches(str(name)[:200], names)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""

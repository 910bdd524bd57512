"""The parameters of a notebook.

What its tagged cell declares, and which values they may have.
"""

import ast
import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from helpers.files import json_digest

# Parameters that say where and how to compute, and move no result.
UNMOVING = ("study", "work_dir", "reports_dir", "device", "jobs")


class StudyError(ValueError):
    """All that is wrong with a study, one fault a line; a notebook shows no more."""

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
        behind = source.splitlines()[node.end_lineno - 1][node.end_col_offset :]
        parameters[node.target.id] = Parameter(
            node.target.id,
            ast.unparse(node.annotation),
            ast.literal_eval(node.value),
            behind.strip().lstrip("# "),
        )
    return parameters


def check_type(annotation: str, value: Any) -> Any:
    """A value as an annotation of a notebook has it.

    An int will do for a float; nothing else is converted.

    Raises:
        ValueError: pydantic's, if the value is of another type.
    """
    from pydantic import ConfigDict, TypeAdapter

    kinds = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
    # The annotation is of the project's own notebook.
    type_of_values = eval(annotation, {"__builtins__": {}}, kinds)
    adapter = TypeAdapter(type_of_values, config=ConfigDict(strict=True))
    return adapter.validate_python(value)


_ABOVE_0 = r"(?=[\d.]*[1-9])\d*\.?\d+"
MADE_NETWORKS = (
    rf"resnet(?:18|34|50|101) w{_ABOVE_0}|efficientnet-like w{_ABOVE_0} d{_ABOVE_0}"
)
PUBLISHED_NETWORKS = (
    r"RN(?:50|101|50x4|50x16|50x64)|(?:tf_)?efficientnet_b[0-7]|resnet(?:18|34|50|101)"
)
_LAYOUTS = (
    "synthetic",
    "auto",
    "ilsvrc",
    "tiny_imagenet",
    "cub",
    "cifar",
    "coco",
    "csv",
    "labelme",
    "yolo",
    "voc_folder",
    "voc",
    "class_folders",
    "top_folders",
)
# Without a limit here numbers are in ``NUMBERS``, and texts are free. A tuple lists the
# values, a text is an interval, a pattern is the form of a text.
LIMITS: dict[str, tuple[str, ...] | str | re.Pattern[str]] = {
    "accuracy_threshold": "(0, 1]",
    "accuracy_thresholds": "[0, 1)",
    "architectures": ("resnet18", "resnet34", "resnet50", "resnet101"),
    "attribution_steps": "[1, 1000000]",
    "attributions": (
        "saliency",
        "input_x_gradient",
        "integrated_gradients",
        "guided_grad_cam",
        "occlusion",
        "deep_lift",
    ),
    "batch_sizes": "[2, 100000]",
    "bootstrap_resamples": "[3, 100000]",
    "cam_cut": ("maximum", "quantile"),
    "cam_method": ("cam", "grad_cam", "grad_cam_plus_plus", "layer_cam"),
    "cam_threshold": "(0, 1)",
    "complexity_images": "[1, 100000]",
    "data_source": _LAYOUTS,
    "families": (
        "localization",
        "reliance",
        "prediction",
        "norms",
        "flatness",
        "perturbation",
        "unlabelled",
    ),
    "flatness_draws": "[1, 100000]",
    "flatness_halvings": "[1, 100000]",
    "flatness_images": "[1, 100000]",
    "frozen_stages": "[0, 4]",
    "image_scales": "[0.0625, 8]",
    "image_size": "[16, 1024]",
    "label_noises": "[0, 1]",
    "label_smoothings": "[0, 1)",
    "last_stride": "[1, 2]",
    "looks": "[1, 100]",
    "made_epochs": "[1, 1000000]",
    "matched_accuracy": "[0, 1)",
    "max_epochs": "[1, 1000000]",
    "minimum_images_per_class": "[1, 1000000]",
    "minimum_train_accuracy": "[0, 1)",
    "momentum": "[0, 1)",
    "noise_generator": ("blur", "autoencoder"),
    "noise_samples": "[1, 1000000]",
    "noise_ssim": "(0, 1]",
    "optimizers": ("adam", "sgd"),
    "permutations": "[3, 100000]",
    "perturbation_fraction": "(0, 1]",
    "perturbation_points": "[2, 100000]",
    "pictured_images": "[1, 100]",
    "pixel_mean": "[0, 1]",
    "pixel_std": "(0, 1]",
    "precision": ("float32", "bfloat16"),
    "pretrain_data_source": _LAYOUTS,
    "pretrain_max_epochs": "[1, 1000000]",
    "probe_l2": "(0, 1000000000]",
    "random_networks": "[3, 100000]",
    "repeats": "[1, 1000000]",
    "rule3_split": ("test", "holdout"),
    "saliency_providers": (
        "spectral_residual",
        "spectral_residual_opencv",
        "fine_grained",
        "grab_cut",
        "folder",
    ),
    "sampled_methods": (
        "grad_cam_plus_plus",
        "smooth_grad_cam_plus_plus",
        "eigen_cam",
        "score_cam",
    ),
    "score_cam_channels": "[1, 1000000]",
    "scored_images": "0 or [2, inf)",
    "sharpness_images": "[1, 100000]",
    "sharpness_steps": "[1, 100000]",
    "snapshots": ("both", "stop"),
    "stem": ("imagenet", "small", "strided"),
    "thresholds": "(0, 1)",
    "transform_ranges": ("cifar10", "svhn"),
    "unseen_fractions": "[0, 1)",
    "width": "[0.0625, 8]",
}
_NUMBER_ABOVE_0 = r"([1-9]\d?(\.\d*[1-9])?|0\.\d*[1-9])"
_FORMS = {
    "study": r"\w[\w .+-]{0,99}",
    "other_studies": r"\w[\w .+-]{0,99}",
    "class_ids": r"[^\x00-\x1f/\\]{1,200}",
    "pretrain_class_ids": r"[^\x00-\x1f/\\]{1,200}",
    "unseen_class_ids": r"[^\x00-\x1f/\\]{1,200}",
    "work_dir": r"(?!~[^/])[^\x00-\x1f]{1,1000}",
    "reports_dir": r"(?!~[^/])[^\x00-\x1f]{1,1000}",
    "looking_levels": (
        r"plain|(map_in_box|map_in_shuffled_box|map_out_of_box) "
        rf"{_NUMBER_ABOVE_0}"
        r"|(background_swapped|background_swapped_shuffled) (1|0\.\d*[1-9])"
    ),
    "strong_augmentations": (
        r"none|crops(\+erasing)?(\+mixup)?|erasing(\+mixup)?|mixup"
    ),
    "shard": r"|[1-9]\d{0,5}/[1-9]\d{0,5}",
    "device": r"auto|cpu|cuda(:\d{1,3})?",
    "architecture": r"(timm:)?[\w.-]{1,100}",  # no code: a study file is data
    "pretrained_weights": r"made|[A-Z][A-Z0-9_]+|.*\{architecture\}.*",
    "targets": (
        r"(blur|noise|jpeg)_0\.\d*[1-9]|(brightness|contrast)_\d(\.\d*[1-9])?"
        r"|rotation_-?(180|(1[0-7]\d|[1-9]?\d)(\.\d*[1-9])?)"
    ),
    "kappa_families": f"model set|{PUBLISHED_NETWORKS}|{MADE_NETWORKS}",
}
LIMITS |= {name: re.compile(form) for name, form in _FORMS.items()}
# Of numbers without another limit: what tables, seeds and float32 can hold.
NUMBERS = "[0, 1000000000]"
_FREE_TEXT = re.compile(r"[^\x00-\x1f]{0,1000}")
# Lists that may be empty although the notebook's is not.
_EMPTY = (
    "class_ids",
    "pretrain_class_ids",
    "unseen_class_ids",
    "targets",
    "sampled_methods",
    "image_scales",
)
# Lists of three numbers, which may be equal.
_COLOURS = ("pixel_mean", "pixel_std")


def _as_counted(item: Any) -> Any:
    """Equal for items that a study cannot hold apart, as names have six digits."""
    if isinstance(item, str):
        return unicodedata.normalize("NFC", item)
    return f"{item:g}" if isinstance(item, float) else repr(item)


def value_fault(parameter: Parameter, value: Any) -> str:
    """What is wrong with a value by itself, in one sentence.

    Args:
        parameter: whose value it is.
        value: as a study file or a cell has it.

    Returns:
        "" where nothing is wrong.
    """
    name = parameter.name
    stated = f"{name} is {f'{value!r}'[:100]}"
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
    if not items and parameter.default and name not in _EMPTY:
        return f"{stated}, and must have at least one item"
    if name in _COLOURS and len(items) != 3:
        return f"{stated}, and must have three items, of red, green and blue"
    if len(set(map(_as_counted, items))) < len(items) and name not in _COLOURS:
        return f"{stated}, and contains duplicates (numbers count to six digits)"
    for item in items:
        if isinstance(item, bool | dict):
            continue
        limit = LIMITS.get(name, _FREE_TEXT if isinstance(item, str) else NUMBERS)
        fault = outside(limit, item)
        if fault:
            near = near_names(item, limit) if isinstance(limit, tuple) else ""
            return f"{stated}, and {fault} ({parameter.comment}){near}"
    return ""


def outside(limit: Any, item: Any) -> str:
    """That an item lies outside of a limit, in words; "" where it does not."""
    if isinstance(limit, re.Pattern):
        allowed = limit.fullmatch(item)
        words = f"of the form {limit.pattern}"
    elif isinstance(limit, tuple):
        allowed = item in limit
        words = f"one of {limit}"
    else:
        apart, _, interval = limit.rpartition(" or ")
        low, high = map(float, interval[1:-1].split(","))
        allowed = (
            low < item < high
            or (item == low and interval[0] == "[")
            or (item == high and interval[-1] == "]")
            or (apart != "" and item == float(apart))
        )
        words = f"in {limit}"
    return "" if allowed else f"{f'{item!r}'[:100]} is not {words}"


def name_of_values(values: Mapping[str, Any]) -> str:
    """Name of a folder for values of parameters, in the order given.

    A value that is no plain word is named by its digest, and so are all of them where
    the name would be too long for a file system.

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
    """Names near to a misspelt one, as " (did you mean 'a' or 'b'?)", or ""."""
    near = difflib.get_close_matches(str(name)[:200], names)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""

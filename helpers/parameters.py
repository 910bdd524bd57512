"""Parameters of notebooks: what each cell declares, with the values that are allowed.

The cell tagged ``parameters`` names them; pydantic checks their values, all at once.
"""

import ast
import difflib
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    confloat,
    conint,
    conlist,
    constr,
    create_model,
    with_config,
)
from typing_extensions import TypedDict  # that of typing, before Python 3.12

from helpers.files import json_digest, read_json

# Parameters that say where and how to compute, and do not change results.
WITHOUT_EFFECT_ON_RESULTS = ("study", "work_dir", "reports_dir", "device", "jobs")
# The parameter that lists the levels of each axis (a field of ``RunConfig``): those of
# the paper first, in the order of its Table 2.
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
    "looking": "looking_levels",
    "label_smoothing": "label_smoothings",
    "strong_augmentation": "strong_augmentations",
    "frozen_stages": "frozen_stages",
}


class StudyError(ValueError):
    """All faults of a study, one a line; a notebook shows them without a traceback."""

    def __init__(self, *faults: str) -> None:
        """Join the faults to one message."""
        self.faults = list(dict.fromkeys(faults))
        super().__init__("\n".join(self.faults))
        self._render_traceback_ = lambda: [str(self)]


def _form(pattern: str) -> Any:
    """A text of a form, which a regular expression matches as a whole."""
    return constr(pattern=f"^(?:{pattern})$")


Share = confloat(gt=0, lt=1)
Fraction = confloat(ge=0, le=1)
BelowOne = confloat(ge=0, lt=1)
AboveZero = confloat(gt=0, le=1)
Positive = confloat(gt=0, le=1e9)
Factor = confloat(ge=1 / 16, le=8)
Number = confloat(ge=0, le=1e9)
Whole = conint(ge=0, le=10**9)
Count = conint(ge=1, le=1_000_000)
Draws = conint(ge=3, le=100_000)
Text = constr(pattern=r"^[^\x00-\x1f]*$", max_length=1000)
Folder = _form(r"[^\x00-\x1f~][^\x00-\x1f]{0,999}|~(/[^\x00-\x1f]{1,999})?")
StudyName = _form(r"\w[\w .+-]{0,99}")
ClassId = _form(r"[^\x00-\x1f/\\]{1,200}")
Layout = Literal[
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
]
# A number below 100 in one spelling alone, since runs are told apart by their names.
_STRENGTH = r"(?:[1-9]\d?(?:\.\d*[1-9])?|0\.\d*[1-9])"
# Parameters of one narrower type.
_OF_TYPE = {
    Count: (
        "attribution_steps",
        "complexity_images",
        "flatness_draws",
        "flatness_halvings",
        "flatness_images",
        "made_epochs",
        "max_epochs",
        "minimum_images_per_class",
        "noise_samples",
        "pretrain_max_epochs",
        "repeats",
        "score_cam_channels",
        "sharpness_images",
        "sharpness_steps",
    ),
    Draws: ("bootstrap_resamples", "permutations", "random_networks"),
    BelowOne: (
        "accuracy_thresholds",
        "label_smoothings",
        "matched_accuracy",
        "minimum_train_accuracy",
        "momentum",
        "unseen_fractions",
    ),
    AboveZero: (
        "accuracy_threshold",
        "noise_ssim",
        "perturbation_fraction",
        "pixel_std",
    ),
    ClassId: ("class_ids", "pretrain_class_ids", "unseen_class_ids"),
    Layout: ("data_source", "pretrain_data_source"),
    StudyName: ("study", "other_studies"),
    Folder: ("work_dir", "reports_dir"),
}
# Types that are narrower than the annotation in the cell, of single values and of the
# items of lists.
TYPES: dict[str, Any] = {
    name: kind for kind, names in _OF_TYPE.items() for name in names
} | {
    "architecture": _form(r"[\w.-]{1,100}"),  # no code: a study file is data
    "architectures": Literal["resnet18", "resnet34", "resnet50", "resnet101"],
    "attributions": Literal[
        "saliency",
        "input_x_gradient",
        "integrated_gradients",
        "guided_grad_cam",
        "occlusion",
    ],
    "batch_sizes": conint(ge=2, le=100_000),
    "cam_cut": Literal["maximum", "quantile"],
    "cam_method": Literal["grad_cam", "grad_cam_plus_plus", "layer_cam"],
    "cam_threshold": Share,
    "device": _form(r"auto|cpu|cuda(:\d{1,3})?"),
    "families": Literal[
        "localization",
        "reliance",
        "prediction",
        "norms",
        "flatness",
        "perturbation",
        "unlabelled",
    ],
    "frozen_stages": conint(ge=0, le=4),
    "image_scales": Factor,
    "image_size": conint(ge=16, le=1024),
    "label_noises": Fraction,
    "last_stride": Literal[1, 2],
    "learning_rates": Positive,
    "looking_levels": _form(
        rf"plain|(map_in_box|map_in_shuffled_box|map_out_of_box) {_STRENGTH}"
    ),
    "looks": conint(ge=1, le=100),
    "optimizers": Literal["adam", "adamw", "sgd"],
    "perturbation_points": conint(ge=2, le=100_000),
    "pictured_images": conint(ge=1, le=100),
    "pixel_mean": Fraction,
    "precision": Literal["float32", "bfloat16"],
    "pretrained_weights": _form(r"made|[A-Z][A-Z0-9_]+|.*\{architecture\}.*"),
    "probe_l2": Positive,
    "rule3_split": Literal["test", "holdout"],
    "saliency_providers": Literal["spectral_residual", "grab_cut", "folder"],
    "sampled_methods": Literal[
        "grad_cam_plus_plus",
        "smooth_grad_cam_plus_plus",
        "eigen_cam",
        "score_cam",
    ],
    "shard": _form(r"([1-9]\d{0,5}/[1-9]\d{0,5})?"),
    "snapshots": Literal["both", "stop"],
    "stem": Literal["imagenet", "small", "strided"],
    "strong_augmentations": _form(
        r"none|crops(\+erasing)?(\+(mixup|cutmix))?|erasing(\+(mixup|cutmix))?"
        r"|mixup|cutmix"
    ),
    "targets": _form(
        r"(blur|noise|jpeg)_0\.\d*[1-9]|(brightness|contrast)_\d(\.\d*[1-9])?"
        r"|rotation_-?(180|(1[0-7]\d|[1-9]?\d)(\.\d*[1-9])?)"
    ),
    "thresholds": Share,
    "training_sizes": Whole,
    "transform_ranges": Literal["cifar10", "svhn"],
    "weight_decays": Number,
    "width": Factor,
}
_WITHOUT_LIMIT = {"int": Whole, "float": Number, "str": Text, "bool": bool}
_MAY_BE_EMPTY = (
    *("class_ids", "pretrain_class_ids", "unseen_class_ids"),
    *("targets", "sampled_methods", "image_scales"),
)
_MAY_REPEAT = ("pixel_mean", "pixel_std")
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
_AXES = {"repeat": Whole} | {
    axis: TYPES.get(name, bool) for axis, name in AXIS_PARAMETERS.items()
}


# The levels of some axes, whose combinations are runs.
TYPES["blocks"] = with_config(_STRICT)(
    TypedDict(
        "Block",
        {axis: conlist(_AXES[axis], min_length=1) for axis in _AXES},
        total=False,
    )
)


_DECLARATION = re.compile(r"^(\w+): (.+?) = ((?:.|\n(?!\w))+?)  # (.+)$", re.M)


class Parameter(NamedTuple):
    """A line of a notebook's tagged cell: ``name: annotation = default  # comment``."""

    annotation: str
    default: Any
    comment: str


@cache
def declared(notebook: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares, by name.

    ``papermill.inspect_notebook`` gives the same; its import takes a second, for which
    whoever opens a notebook would wait.

    Args:
        notebook: path of a notebook with one cell that is tagged ``parameters`` and has
            annotated literals, each with a comment.

    Raises:
        StudyError: if it has no such cell, or several, or one with other lines.
    """
    cells = read_json(notebook)["cells"]
    is_tagged = ["parameters" in cell["metadata"].get("tags", []) for cell in cells]
    sources = ["".join(cell["source"]) for cell in itertools.compress(cells, is_tagged)]
    source = "\n".join(sources)
    if re.search(r"^[^#\n]", _DECLARATION.sub("", source), re.M):
        raise StudyError(
            f"{notebook}: lines of the cell tagged parameters must be `name: type = "
            "literal  # comment`"
        )
    return {
        name: Parameter(kind, ast.literal_eval(value), comment)
        for name, kind, value, comment in _DECLARATION.findall(source)
    }


@cache
def model_of(notebook: Path) -> type[BaseModel]:
    """A pydantic model of the parameters that a notebook's tagged cell declares."""
    fields = {
        name: (_type(name, item), Field(default=item.default, description=item.comment))
        for name, item in declared(notebook).items()
    }
    return create_model(notebook.stem, __config__=_STRICT, **fields)


def _type(name: str, item: Parameter) -> Any:
    """The type of a parameter: as its cell annotates it, narrowed by ``TYPES``."""
    kind = item.annotation.removeprefix("list[").removesuffix("]")
    of_item = TYPES.get(name) or _WITHOUT_LIMIT[kind]
    if kind == item.annotation:
        return of_item
    has_items = bool(item.default) and name not in _MAY_BE_EMPTY
    of_list = conlist(of_item, min_length=1) if has_items else list[of_item]
    if name in _MAY_REPEAT:
        return of_list
    return Annotated[of_list, AfterValidator(without_duplicates)]


def without_duplicates(items: list) -> list:
    """Refuse equal items; numbers count to six digits, as in names of runs.

    Args:
        items: texts or numbers.

    Raises:
        ValueError: if two are equal.
    """
    keys = {f"{item:g}" if isinstance(item, float) else str(item) for item in items}
    if len(keys) < len(items):
        raise ValueError("contains duplicates (numbers count to six digits)")
    return items


def checked(notebook: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of all parameters of a notebook; those that are not given are defaults.

    Args:
        notebook: its path.
        values: by name.

    Raises:
        StudyError: with a sentence for each name or value that is wrong.
    """
    return filled(model_of(notebook), values).model_dump()


def filled(model: type[BaseModel], values: Mapping[str, Any]) -> Any:
    """A model with these values.

    Args:
        model: each of whose fields has a description.
        values: by name.

    Raises:
        StudyError: with a sentence for each name or value that is wrong.
    """
    try:
        return model(**values)
    except ValidationError as faults:
        meanings = {name: item.description for name, item in model.model_fields.items()}
        raise StudyError(*sentences(faults, model.__name__, meanings)) from None


def fault_of(name: str, item: Any) -> str:
    """What is wrong with a value, or an item of a list, of a parameter; else "".

    Args:
        name: of the parameter, one of ``TYPES``.
        item: a single value.
    """
    try:
        TypeAdapter(TYPES[name]).validate_python(item, strict=True)
    except ValidationError as faults:
        return f"{name} is {item!r:.100}: {faults.errors()[0]['msg']}"
    return ""


def sentences(
    faults: ValidationError, place: str, meanings: Mapping[str, str]
) -> Iterator[str]:
    """A sentence for each fault, with the nearest right name or value.

    Args:
        faults: of pydantic.
        place: the notebook or file that has them.
        meanings: of the names that may stand there.
    """
    for fault in faults.errors():
        name, *parts = fault["loc"]
        where = "".join(f"[{part}]" for part in parts)
        if fault["type"] == "extra_forbidden":
            near = near_names(parts[-1], _AXES) if parts else near_names(name, meanings)
            yield f"{place}: no {name}{where}{near}"
            continue
        options = re.findall(r"'([^']*)'", fault.get("ctx", {}).get("expected", ""))
        near = near_names(fault["input"], options)
        yield (
            f"{name}{where} is {fault['input']!r:.100}: {fault['msg']}{near} "
            f"({meanings[name]})"
        )


def near_names(name: Any, names: Iterable[str]) -> str:
    """Names similar to a misspelt one, as " (did you mean 'a' or 'b'?)", or ""."""
    similar = difflib.get_close_matches(str(name)[:200], list(names))
    return f" (did you mean {' or '.join(map(repr, similar))}?)" if similar else ""


def contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    """Sentences on values that spoil results silently if they stand together.

    What a notebook refuses in its first minute is left to the notebook.

    Args:
        values: of the parameters of the study's notebooks.
    """
    unseen = {*values.get("unseen_class_ids", ())}
    shared = sorted(unseen & {*values.get("class_ids", ())})
    if shared:
        yield (
            f"unseen_class_ids shares {', '.join(shared[:5])} with class_ids; name "
            "classes that are none of the study's"
        )


def name_of_values(values: Mapping[str, Any]) -> str:
    """Name of the folder for some values of parameters, in their order.

    A value that is not a plain word is written as its digest.

    Example:
        >>> name_of_values({"cam_threshold": 0.05, "cam_method": "layer_cam"})
        'cam_threshold=0.05,cam_method=layer_cam'
    """
    parts = []
    for name, value in values.items():
        word = value if isinstance(value, str) else json.dumps(value)
        is_plain = re.fullmatch(r"[\w.+-]{1,40}", word, re.A)
        parts.append(f"{name}={word if is_plain else '~' + json_digest(value)}")
    return ",".join(parts)

"""The parameters of a notebook.

What its tagged cell declares, which values they may have, and which are in force.
"""

import ast
import difflib
import json
import os
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from helpers.files import PROJECT_ROOT, STAGING, digest

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
    return name if len(name) <= 120 else f"{len(values)}-values-{digest(dict(values))}"


def _plain_word(value: Any) -> str:
    """A value as a part of a file's name, equal for equal values alone."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    plain = isinstance(value, str) and re.fullmatch(
        r"[A-Za-z0-9_][\w.-]{0,39}", value, re.A
    )
    return value if plain else f"~{digest(value)}"


def near_names(name: Any, names: Iterable[str]) -> str:
    """Names near to a misspelt one, as " (did you mean 'a' or 'b'?)", or ""."""
    near = difflib.get_close_matches(str(name)[:200], names)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, 064 is 64, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = [key for key in keys if keys.count(key) > 1]
        if twice:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} is duplicated", node.start_mark
            )
        return super().construct_mapping(node, deep)


_Yaml.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    [*"-+.0123456789"],
)

_Yaml.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))


_MOST_VALUES = 100_000  # of a study file, each alias counted by what it stands for


def parse_yaml(text: str) -> Any:
    """Plain values from YAML, read safely.

    Raises:
        yaml.YAMLError: whatever is wrong with it, such as aliases that stand for
            themselves or for more values than any study has.
    """
    try:
        count = _values_in(yaml.compose(text, _Yaml), {})
        if count > _MOST_VALUES:
            raise yaml.YAMLError(
                f"its aliases stand for more than {_MOST_VALUES:,} values"
            )
        return yaml.load(text, _Yaml)
    except (ValueError, TypeError, RecursionError) as fault:
        raise yaml.YAMLError(f"{type(fault).__name__}: {str(fault)[:200]}") from fault


def _values_in(node: yaml.Node | None, counts: dict[int, int]) -> int:
    """Number of values below a node; ``counts`` has those of nodes that are known."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in counts:
        if not counts[id(node)]:
            raise yaml.YAMLError("an alias stands for itself")
        return counts[id(node)]
    counts[id(node)] = 0  # while what it holds is counted
    items = node.value
    if isinstance(node, yaml.MappingNode):
        items = [item for pair in node.value for item in pair]
    counts[id(node)] = 1 + sum(_values_in(item, counts) for item in items)
    return counts[id(node)]


def read_blocks(path: Path) -> dict[str, Any]:
    """The blocks of a study file above those of the study that it extends.

    Returns:
        The file's content. ``common``, ``notebooks`` and ``sweep`` are there in any
        case; ``work_study`` is the study whose folder of work is shared.

    Raises:
        StudyError: if the file is missing, damaged or of another form.
    """
    if not path.is_file():
        studies = sorted(item.stem for item in path.parent.glob("[!.]*.yaml"))
        raise StudyError(
            f"{path} does not exist{near_names(path.stem, studies)}; the studies there "
            f"are {', '.join(studies) or 'none'}"
        )
    try:
        content = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise StudyError(
            f"{path} is not readable YAML: {' '.join(str(fault).split())[:500]}"
        ) from fault
    if not isinstance(content, dict):
        content = {"common": content or path.stem}
    content |= {name: content.get(name) or {} for name in ("common", "sweep")}
    content |= {"notebooks": content.get("notebooks") or {}, "work_study": path.stem}
    _check_blocks(path, content)
    notebooks = content["notebooks"]
    content["notebooks"] = {stem: notebooks[stem] or {} for stem in notebooks}
    return _extended(path, content) if "extends" in content else content


def _check_blocks(path: Path, content: Mapping[str, Any]) -> None:
    """Refuse what does not map names to values where a study file has blocks."""
    blocks = [content["common"]]
    for of_notebooks in (content["notebooks"], content["sweep"]):
        blocks.append(of_notebooks)
        if isinstance(of_notebooks, dict):
            blocks += [block or {} for block in of_notebooks.values()]
    if not all(isinstance(block, dict) for block in blocks):
        raise StudyError(
            f"{path}: a study file maps common, notebooks and sweep to blocks of names "
            "and values"
        )


def _extended(path: Path, content: dict[str, Any]) -> dict[str, Any]:
    """The blocks of a study above those of the one that it extends."""
    name = content["extends"]
    if not re.fullmatch(_FORMS["study"], str(name)) or "claims" in content:
        raise StudyError(
            f"{path}: it extends {name!r}, which must be the name of a study, and "
            "whose claims it has"
        )
    base = read_blocks(path.with_name(f"{name}.yaml"))
    if "extends" in base:
        raise StudyError(
            f"{path}: it extends {name}, which extends another one; extend "
            f"{base['extends']}"
        )
    common = content["common"]
    notebooks = content["notebooks"]
    for stem, block in base["notebooks"].items():
        theirs = {key: value for key, value in block.items() if key not in common}
        notebooks[stem] = theirs | notebooks.get(stem, {})
    merged = {
        "common": base["common"] | common,
        "notebooks": notebooks,
        "sweep": base["sweep"] | content["sweep"],
        "work_study": base["work_study"],
    }
    return base | content | merged


def in_force(
    notebook: str, values: Mapping[str, Any], root: Path = PROJECT_ROOT
) -> tuple[dict[str, Any], dict[str, str], dict[str, Any]]:
    """Parameters of a notebook that is opened by hand.

    What papermill injected wins; then what its first cell changed; then the study's
    file. A value of the first cell counts as changed where it is not the demo's, as
    first cells have it when committed.

    Args:
        notebook: its name without suffix.
        values: ``globals()`` of the notebook.
        root: of the project.

    Returns:
        The values by name; where each is from ("injected", "first cell",
        "params/x.yaml" or "default"); and the study's file (``read_blocks``), with the
        values that this run has and the study has not (``changed``).

    Raises:
        StudyError: if a name or a value is wrong, or there is no such study.
    """
    names = declared(root / "notebooks" / f"{notebook}.ipynb")
    injected = _injected(values.get("In", []))
    _check_names(names, injected, values)
    path = root / f"params/{values['study']}.yaml"
    content = _content_of(path, "study" in injected)
    of_study = _of_notebook(content, notebook)
    committed = _committed(names, notebook, root)
    parameters = {}
    origins = {}
    for name in names:
        value = values[name]
        is_changed = repr(value) != repr(committed[name])
        is_of_study = name in of_study and (
            not is_changed or repr(value) == repr(of_study[name])
        )
        if name in injected:
            origins[name] = "injected"
        elif is_of_study:
            value = of_study[name]
            origins[name] = f"params/{path.name}"
        else:
            origins[name] = "first cell" if is_changed else "default"
        parameters[name] = value
    parameters = _checked(names, parameters)
    content["changed"] = _changed(names, parameters, of_study)
    if "extends" in content:
        base = read_blocks(path.with_name(f"{content['extends']}.yaml"))
        extended = _defaults(names) | _of_notebook(base, notebook)
        content["extended"] = {
            name: extended[name] for name in names if name != "study"
        }
    return parameters, origins, content


def _content_of(path: Path, is_injected: bool) -> dict[str, Any]:
    """Blocks of the study file; none of a launched study whose file lies elsewhere.

    The launcher injects all values.
    """
    if os.environ.get(STAGING) and is_injected and not path.is_file():
        return {"common": {}, "notebooks": {}, "work_study": path.stem}
    return read_blocks(path)


def _checked(
    names: Mapping[str, Parameter], values: Mapping[str, Any]
) -> dict[str, Any]:
    """Values as the annotations have them; all that is wrong with them is refused."""
    faults = [value_fault(item, values[name]) for name, item in names.items()]
    if any(faults):
        raise StudyError(*filter(None, faults))
    return {
        name: check_type(item.annotation, values[name]) for name, item in names.items()
    }


def _defaults(names: Mapping[str, Parameter]) -> dict[str, Any]:
    return {name: item.default for name, item in names.items()}


def _committed(
    names: Mapping[str, Parameter], notebook: str, root: Path
) -> dict[str, Any]:
    """Values that a notebook's first cell has when nobody changed it: the demo's."""
    committed = _defaults(names) | {"study": "demo"}
    demo = root / "params/demo.yaml"
    if demo.is_file():
        committed |= _of_notebook(read_blocks(demo), notebook)
    return committed


def _check_names(
    names: Mapping[str, Parameter], injected: set[str], values: Mapping[str, Any]
) -> None:
    """Refuse names that no notebook declares, or that the first cell has lost."""
    blocks = injected & {"claims", "common", "notebooks", "sweep", "extends"}
    if blocks:
        raise StudyError(
            f"{', '.join(sorted(blocks))}: blocks of a study file, no parameters; in "
            "place of `-f FILE` write `-p study NAME`"
        )
    unknown = sorted(injected - {*names})
    if unknown:
        raise StudyError(
            *(
                f"this notebook has no parameter {name!r}{near_names(name, names)}; "
                f"papermill --help-notebook lists those that it has"
                for name in unknown
            )
        )
    lost = [name for name in names if name not in values]
    if lost:
        raise StudyError(
            f"the first cell has no {', '.join(lost)}; put the lines of these "
            "parameters back"
        )
    # before it becomes the name of a file
    fault = value_fault(names["study"], values["study"])
    if fault:
        raise StudyError(fault)


def _changed(
    names: Mapping[str, Parameter],
    parameters: Mapping[str, Any],
    of_study: Mapping[str, Any],
) -> dict[str, Any]:
    """Values in force that are not the study's, without those that move no result."""
    changed = {}
    for name, item in names.items():
        stated = of_study.get(name, item.default)
        if value_fault(item, stated):  # of a study file that is wrong in this place
            continue
        stated = check_type(item.annotation, stated)
        if name not in UNMOVING and repr(parameters[name]) != repr(stated):
            changed[name] = parameters[name]
    return changed


def _of_notebook(content: Mapping[str, Any], notebook: str) -> dict[str, Any]:
    """Values that a study file has for a notebook."""
    return content["common"] | content["notebooks"].get(notebook, {})


def _injected(cells: Sequence[str]) -> set[str]:
    """Names that papermill's cell assigned since the first cell ran last.

    Args:
        cells: sources of executed cells, as IPython keeps them.
    """
    for source in reversed(cells):
        if source.lstrip().startswith("# Parameters"):
            return {
                node.id
                for node in ast.walk(ast.parse(source))
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            }
        if re.search(r"^\s*study\b[^=\n]*=", source, re.M):
            return set()
    return set()

"""The parameters of a notebook: what its tagged cell declares, which values they may have, and which are in force."""

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
    """All that is wrong with a study, one fault a line; a notebook shows these lines alone."""

    def __init__(self, *faults: str) -> None:
        """Join the faults to one message."""
        self.faults = list(dict.fromkeys(faults))
        super().__init__("\n".join(self.faults))
        self._render_traceback_ = lambda: [str(self)]


class Parameter(NamedTuple):
    """One line of a notebook's tagged cell: ``name: annotation = default  # comment``."""

    name: str
    annotation: str
    default: Any
    comment: str


def declared(notebook: Path) -> dict[str, Parameter]:
    """The parameters that a notebook declares in the cell that is tagged ``parameters``: annotated literals, each with a comment."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    tagged = [
        "".join(cell["source"])
        for cell in cells
        if "parameters" in cell["metadata"].get("tags", [])
    ]
    fault, found = (
        StudyError(
            f"{notebook}: one cell must be tagged parameters, with lines `name: type = literal` alone"
        ),
        {},
    )
    if len(tagged) != 1:
        raise fault
    for node in ast.parse(tagged[0]).body:
        if not isinstance(node, ast.AnnAssign):
            raise fault
        comment = (
            tagged[0]
            .splitlines()[node.end_lineno - 1][node.end_col_offset :]
            .strip()
            .lstrip("# ")
        )
        found[node.target.id] = Parameter(
            node.target.id,
            ast.unparse(node.annotation),
            ast.literal_eval(node.value),
            comment,
        )
    return found


def check_type(annotation: str, value: Any) -> Any:
    """A value as an annotation of a notebook has it, else pydantic's ValueError; an int will do for a float, nothing else is converted."""
    from pydantic import ConfigDict, TypeAdapter

    kinds = {kind.__name__: kind for kind in (int, float, str, bool, list, dict)}
    adapter = TypeAdapter(
        eval(annotation, {"__builtins__": {}}, kinds), config=ConfigDict(strict=True)
    )  # of the project's own notebook
    return adapter.validate_python(value)


_ABOVE_0 = r"(?=[\d.]*[1-9])\d*\.?\d+"
MADE_NETWORKS = (
    rf"resnet(?:18|34|50|101) w{_ABOVE_0}|efficientnet-like w{_ABOVE_0} d{_ABOVE_0}"
)
PUBLISHED_NETWORKS = (
    r"RN(?:50|101|50x4|50x16|50x64)|(?:tf_)?efficientnet_b[0-7]|resnet(?:18|34|50|101)"
)
_CHOICES = """
data_source: synthetic auto ilsvrc tiny_imagenet cub cifar coco csv labelme yolo voc_folder voc class_folders top_folders
pretrain_data_source: synthetic auto ilsvrc tiny_imagenet cub cifar coco csv labelme yolo voc_folder voc class_folders top_folders
architectures: resnet18 resnet34 resnet50 resnet101
optimizers: adam sgd
stem: imagenet small strided
rule3_split: test holdout
snapshots: both stop
precision: float32 bfloat16
cam_method: cam grad_cam grad_cam_plus_plus layer_cam
cam_cut: maximum quantile
families: localization reliance prediction norms flatness perturbation unlabelled
transform_ranges: cifar10 svhn
sampled_methods: grad_cam_plus_plus smooth_grad_cam_plus_plus eigen_cam score_cam
attributions: saliency input_x_gradient integrated_gradients guided_grad_cam occlusion deep_lift
saliency_providers: spectral_residual spectral_residual_opencv fine_grained grab_cut folder
noise_generator: blur autoencoder"""
_RANGES = """
(0, 1): cam_threshold thresholds
[0, 1]: label_noises pixel_mean
[0, 1): momentum matched_accuracy label_smoothings minimum_train_accuracy accuracy_thresholds unseen_fractions
(0, 1]: accuracy_threshold perturbation_fraction noise_ssim pixel_std
[1, 100]: pictured_images looks
[1, 1000000]: max_epochs pretrain_max_epochs made_epochs repeats minimum_images_per_class score_cam_channels attribution_steps noise_samples
[1, 100000]: flatness_images flatness_draws flatness_halvings sharpness_images sharpness_steps complexity_images
[2, 100000]: batch_sizes perturbation_points
[3, 100000]: bootstrap_resamples permutations random_networks
0 or [2, inf): scored_images
[0.0625, 8]: width image_scales
(0, 1000000000]: probe_l2
[16, 1024]: image_size
[1, 2]: last_stride
[0, 4]: frozen_stages"""
_FORMS = {
    **dict.fromkeys(("study", "other_studies"), r"\w[\w .+-]{0,99}"),
    **dict.fromkeys(
        ("class_ids", "pretrain_class_ids", "unseen_class_ids"),
        r"[^\x00-\x1f/\\]{1,200}",
    ),
    **dict.fromkeys(("work_dir", "reports_dir"), r"(?!~[^/])[^\x00-\x1f]{1,1000}"),
    "looking_levels": (
        r"plain|(map_in_box|map_in_shuffled_box|map_out_of_box) ([1-9]\d?(\.\d*[1-9])?|0\.\d*[1-9])"
        r"|(background_swapped|background_swapped_shuffled) (1|0\.\d*[1-9])"
    ),
    "strong_augmentations": (
        r"none|crops(\+erasing)?(\+mixup)?|erasing(\+mixup)?|mixup"
    ),
    "shard": r"|[1-9]\d{0,5}/[1-9]\d{0,5}",
    "device": r"auto|cpu|cuda(:\d{1,3})?",
    "architecture": r"(timm:)?[\w.-]{1,100}",  # no code: a study file is data
    "pretrained_weights": r"made|[A-Z][A-Z0-9_]+|.*\{architecture\}.*",
    "targets": r"(blur|noise|jpeg)_0\.\d*[1-9]|(brightness|contrast)_\d(\.\d*[1-9])?|rotation_-?(180|(1[0-7]\d|[1-9]?\d)(\.\d*[1-9])?)",
    "kappa_families": f"model set|{PUBLISHED_NETWORKS}|{MADE_NETWORKS}",
}
_EMPTY = (
    "class_ids",
    "pretrain_class_ids",
    "unseen_class_ids",
    "targets",
    "sampled_methods",
    "image_scales",
)  # may be so, too
LIMITS = {
    **{
        name: tuple(line.split(": ")[1].split())
        for line in _CHOICES.split("\n")[1:]
        for name in line.split(":")[0].split()
    },
    **{
        name: line.split(":")[0]
        for line in _RANGES.split("\n")[1:]
        for name in line.split(": ")[1].split()
    },
    **{name: re.compile(form) for name, form in _FORMS.items()},
}


# Of numbers without another limit: what tables, seeds and float32 can hold.
NUMBERS = "[0, 1000000000]"
_COLOURS = ("pixel_mean", "pixel_std")


def _as_counted(item: Any) -> Any:
    """Equal for items that a study cannot hold apart, as names have six digits."""
    if isinstance(item, str):
        return unicodedata.normalize("NFC", item)
    return f"{item:g}" if isinstance(item, float) else repr(item)


def value_fault(parameter: Parameter, value: Any) -> str:
    """What is wrong with a value by itself, in one sentence.

    Args:
        parameter: whose value it is. Without a limit in ``LIMITS`` numbers are in
            ``NUMBERS`` and texts free.
        value: as a study file or a cell has it.

    Returns:
        "" where nothing is wrong.
    """
    name, told = parameter.name, f"{parameter.name} is {f'{value!r}'[:100]}"
    try:
        value = check_type(parameter.annotation, value)
    except ValueError as fault:
        first = fault.errors()[0]
        where = [f"[{item}]" for item in first["loc"]]
        return f"{told}, and must be {parameter.annotation} ({parameter.comment}): {' '.join([*where, first['msg']])}"
    items = value if isinstance(value, list) else [value]
    if not items and parameter.default and name not in _EMPTY:
        return f"{told}, and must have at least one item"
    if name in _COLOURS and len(items) != 3:
        return f"{told}, and must have three items, of red, green and blue"
    if len(set(map(_as_counted, items))) < len(items) and name not in _COLOURS:
        return f"{told}, and an item stands twice (numbers count to six digits)"
    for item in items:
        limit = LIMITS.get(
            name,
            re.compile(r"[^\x00-\x1f]{0,1000}") if isinstance(item, str) else NUMBERS,
        )
        if not isinstance(item, bool | dict) and (fault := outside(limit, item)):
            return f"{told}, and {fault} ({parameter.comment}){near_names(item, limit if isinstance(limit, tuple) else ())}"
    return ""


def outside(limit: Any, item: Any) -> str:
    """That an item lies outside of a limit of ``LIMITS``, in words; "" where it does not."""
    if isinstance(limit, re.Pattern):
        allowed, words = limit.fullmatch(item), f"of the form {limit.pattern}"
    elif isinstance(limit, tuple):
        allowed, words = item in limit, f"one of {limit}"
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


def near_names(name: Any, known: Iterable[str]) -> str:
    """The known names nearest to a misspelt one, as " (did you mean 'a' or 'b'?)"; "" where none is near."""
    near = difflib.get_close_matches(str(name)[:200], known)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


class _Yaml(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, 064 is 64, and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {twice[0]!r} stands twice", node.start_mark
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
    """The blocks of a study file above those of the study that it extends; ``work_study`` is the one whose folder of work they share."""
    if not path.is_file():
        known = sorted(item.stem for item in path.parent.glob("[!.]*.yaml"))
        raise StudyError(
            f"{path} does not exist{near_names(path.stem, known)}; the studies there are {', '.join(known) or 'none'}"
        )
    try:
        own = parse_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as fault:
        raise StudyError(
            f"{path} is not readable YAML: {' '.join(str(fault).split())[:500]}"
        ) from fault
    own = own if isinstance(own, dict) else {"common": own or path.stem}
    common, notebooks, sweep = (
        own.get(name) or {} for name in ("common", "notebooks", "sweep")
    )
    blocks = [
        block or {}
        for part in (notebooks, sweep)
        if isinstance(part, dict)
        for block in part.values()
    ]
    if not all(
        isinstance(block, dict) for block in (common, notebooks, sweep, *blocks)
    ):
        raise StudyError(
            f"{path}: a study file maps common, notebooks and sweep to blocks of names and values"
        )
    notebooks = {stem: block or {} for stem, block in notebooks.items()}
    own |= {
        "common": common,
        "notebooks": notebooks,
        "sweep": sweep,
        "work_study": path.stem,
    }
    if "extends" not in own:
        return own
    if not re.fullmatch(_FORMS["study"], str(own["extends"])) or "claims" in own:
        raise StudyError(
            f"{path}: it extends {own['extends']!r}, which must be the name of a study, and whose claims it has"
        )
    base = read_blocks(path.with_name(f"{own['extends']}.yaml"))
    if "extends" in base:
        raise StudyError(
            f"{path}: it extends {own['extends']}, which extends another one; extend {base['extends']}"
        )
    for stem, block in base["notebooks"].items():
        own["notebooks"][stem] = {
            name: value for name, value in block.items() if name not in common
        } | own["notebooks"].get(stem, {})
    return (
        base
        | own
        | {
            "common": base["common"] | common,
            "sweep": base["sweep"] | sweep,
            "work_study": base["work_study"],
        }
    )


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
    path, demo = root / f"params/{values['study']}.yaml", root / "params/demo.yaml"
    # The launcher injects all values, and its study file may lie elsewhere.
    if os.environ.get(STAGING) and "study" in injected and not path.is_file():
        content = {"common": {}, "notebooks": {}, "work_study": values["study"]}
    else:
        content = read_blocks(path)
    theirs = _given(content, notebook)
    committed = {name: item.default for name, item in names.items()}
    committed |= {"study": "demo"}
    committed |= _given(read_blocks(demo), notebook) if demo.is_file() else {}
    found, origins = {}, {}
    for name in names:
        by_hand = repr(values[name]) != repr(committed[name])
        equal = name in theirs and repr(values[name]) == repr(theirs[name])
        of_file = name in theirs and (equal or not by_hand)
        found[name] = values[name]
        if name in injected:
            origins[name] = "injected"
        elif of_file:
            found[name] = theirs[name]
            origins[name] = f"params/{path.name}"
        else:
            origins[name] = "first cell" if by_hand else "default"
    faults = [value_fault(item, found[name]) for name, item in names.items()]
    if any(faults):
        raise StudyError(*filter(None, faults))
    found = {
        name: check_type(item.annotation, found[name]) for name, item in names.items()
    }
    content |= {"changed": _changed(names, found, theirs)}
    if "extends" in content:
        base = read_blocks(path.with_name(f"{content['extends']}.yaml"))
        extended = _given(base, notebook)
        others = {name: item for name, item in names.items() if name != "study"}
        content["extended"] = {
            name: extended.get(name, item.default) for name, item in others.items()
        }
    return found, origins, content


def _check_names(
    names: Mapping[str, Parameter], injected: set[str], values: Mapping[str, Any]
) -> None:
    """Refuse names that no notebook declares, or that the first cell has lost."""
    if blocks := injected & {"claims", "common", "notebooks", "sweep", "extends"}:
        raise StudyError(
            f"{', '.join(sorted(blocks))}: blocks of a study file, no parameters; in place of `-f FILE` write `-p study NAME`"
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
    if lost := [name for name in names if name not in values]:
        raise StudyError(
            f"the first cell has no {', '.join(lost)}; put the lines of these parameters back"
        )
    # before it becomes the name of a file
    if fault := value_fault(names["study"], values["study"]):
        raise StudyError(fault)


def _changed(
    names: Mapping[str, Parameter], found: Mapping[str, Any], theirs: Mapping[str, Any]
) -> dict[str, Any]:
    """Values in force that are not the study's, without those that move no result."""
    changed = {}
    for name, item in names.items():
        own = theirs.get(name, item.default)
        if value_fault(item, own):  # of a study file that is wrong in this place
            continue
        own = check_type(item.annotation, own)
        if name not in UNMOVING and repr(found[name]) != repr(own):
            changed[name] = found[name]
    return changed


def _given(content: Mapping[str, Any], notebook: str) -> dict[str, Any]:
    return content["common"] | content["notebooks"].get(notebook, {})


def _injected(cells: Sequence[str]) -> set[str]:
    """Names that papermill's cell assigned since the first cell ran last, by what IPython keeps of executed cells."""
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

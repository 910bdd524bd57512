"""Read a checkpoint as tensors and plain values: no code in its file is run."""

import argparse
import json
import pathlib
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from helpers.files import CHECKSUM, read_header, tensor_checksum
from helpers.networks.faults import is_of_machine

State = dict[str, Tensor]
# Where training programs put the state dict of the network.
_NESTED = (
    "state_dict",
    "model_state_dict",
    "model",
    "net",
    "network",
    "weights",
    "module",
)
_DEPTH = 3  # levels of nested dicts that are searched
# Prefixes of names that wrappers (DataParallel, Lightning) or programmers add.
_PREFIXES = ("module.", "model.", "net.", "network.")
_COMPILED = "_orig_mod."  # that torch.compile adds to the names of a compiled network
TEXTS = "workbook"  # key in the header of this workbook's checkpoints: JSON of texts
_AVERAGED = re.compile(r"(^|[_.])ema([_.]|$)", re.IGNORECASE)
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)(?P<ending>\.\w+)")
# First bytes of files of torch.save: a zip, or a pickle before version 1.6.
_BEGINNINGS = (b"PK\x03\x04", b"\x80")
# First bytes of files that are not checkpoints, with what they are and what to do.
_NOT_CHECKPOINTS = {
    b"version https://": "a pointer of git-lfs; fetch the file by git lfs pull",
    b"<": "a page of the web; download the file again",
    b"\x1f\x8b": "compressed by gzip; unpack it",
}
# Keys under which programs note the names of the classes, and their accuracies.
_CLASSES = (
    "class_to_idx",
    "idx_to_class",
    "classes",
    "class_names",
    "CLASSES",
    "label2id",
    "id2label",
)
_ACCURACY = re.compile(
    r"metric|(best|val|valid|test|eval|train|top1|_)*"
    r"(acc|accuracy|acc1|acc_1|acc@1|prec1|top1)(best|val|valid|test|_)*",
    re.IGNORECASE,
)


class Contents(NamedTuple):
    """A state dict, with the classes and the accuracy that its file states."""

    state: State  # by the names that the network has without wrappers
    classes: tuple[str, ...]  # in the order of the outputs; empty if not stated
    accuracy: float  # the highest that is stated, in [0, 1]; NaN if none is
    notes: tuple[str, ...]  # on tensors in the file that were not chosen


def read(path: Path, part: str = "") -> Contents:
    """Read a checkpoint without running code that its file may hold.

    The state dict may have a usual key ("state_dict", "model"), may be one of several
    in the file, or may be in shards ("model-00001-of-00002.safetensors"). Prefixes that
    wrappers add to the names of tensors are removed. Averaged weights (EMA) beside
    others are noted and not used.

    Args:
        path: of a safetensors file, or a file of ``torch.save``.
        part: name of the network, if the file holds several; else "".

    Raises:
        ValueError: if the file is not a checkpoint, is damaged, holds other objects, or
            holds several networks of which ``part`` names none.

    Example:
        >>> read(Path("resnet18.pth")).classes  # doctest: +SKIP
        ('cat', 'dog')
    """
    files = shards(path)
    content = _content(files[0])
    for further in files[1:]:
        content = {**content, **_content(further)}
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ValueError(
            f"{path.name} holds a {kind} and no state dict; save model.state_dict()"
        )
    states = dict(_state_dicts(content))
    place, notes = _locate_state_dict(states, part, path.name, list(content))
    beside = [_plain_header(path), *_dictionaries(content)]
    return Contents(
        _unwrapped(states[place]), _class_names(beside), _accuracy(beside), notes
    )


def shards(path: Path) -> list[Path]:
    """List the files of a checkpoint: all its shards, or the one file.

    Args:
        path: of the file, or of any shard.

    Raises:
        ValueError: if a shard is missing.
    """
    name = _SHARD.fullmatch(path.name)
    if not name:
        return [path]
    count = int(name["count"])
    digits = len(name["number"])
    most = 10_000  # a name may state any count
    names = [
        f"{name['stem']}-{number:0{digits}}-of-{name['count']}{name['ending']}"
        for number in range(1, min(count, most) + 1)
    ]
    files = [path.with_name(shard) for shard in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        raise ValueError(
            f"{path.name} is one of {count} shards, and {len(missing)} are missing, "
            f"first {', '.join(missing[:1])}; put all into one folder"
        )
    return files


def is_averaged(name: str) -> bool:
    """Tell a name of averaged weights (EMA, exponential moving average).

    Args:
        name: of a state dict or a network.
    """
    return bool(_AVERAGED.search(name))


def choose_network(
    names: Sequence[str], part: str, file: str
) -> tuple[str, tuple[str, ...]]:
    """Choose one of the networks in a file.

    It is the one that ``part`` names, by its whole name or its last word. Else it is
    the only one, or the only one whose weights are not averaged.

    Args:
        names: of the networks.
        part: name of the network to choose; "" if the user gave none.
        file: name of the file, for messages.

    Returns:
        The name, and a note if averaged weights are not used.

    Raises:
        ValueError: if several networks remain.
    """
    named = []
    if part:
        named = [name for name in names if part in (name, name.split(".")[-1])]
    if len(named) == 1:
        return named[0], ()
    averaged = [name for name in names if is_averaged(name)]
    others = [name for name in names if name not in averaged] or averaged
    if len(others) > 1:
        wrong = f"; there is no {part!r}" if part else ""
        raise ValueError(
            f"{file} holds {len(others)} networks: {', '.join(others)}{wrong}; "
            "choose one by --part (part in the notebook)"
        )
    if averaged and others != averaged:
        return others[0], (
            f"{file} holds averaged weights (EMA) under {averaged[0]!r}; "
            f"those under {others[0]!r} are taken",
        )
    return others[0], ()


def check_regular(path: Path) -> None:
    """Refuse a broken link, and a pipe or device, whose reading may never end.

    Args:
        path: of a file.

    Raises:
        ValueError: if it is not a regular file; nothing for one that does not exist.
    """
    if not path.is_file() and (path.exists() or path.is_symlink()):
        kind = "a link to nothing" if path.is_symlink() else "not a regular file"
        raise ValueError(f"{path.name} is {kind}")


def _content(path: Path) -> Any:
    """Read one file as tensors and plain values."""
    check_regular(path)
    with path.open("rb") as file:
        head = file.read(16)
    # safetensors: eight bytes of length, then a header in JSON.
    tensors_only = head[8:9] == b"{"
    if not tensors_only and not head.startswith(_BEGINNINGS):
        raise ValueError(f"{path.name} is not a checkpoint: {_what_begins(path, head)}")
    try:
        if tensors_only:
            tensors = safetensors.torch.load_file(path)
            _verify_checksum(tensors, path)
            return tensors
        if head.startswith(b"PK"):
            _check_members(path)
        with (
            warnings.catch_warnings(),
            torch.serialization.safe_globals(_safe_globals()),
        ):
            # torch warns of objects that are refused below.
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as fault:
        kind = re.search(r"GLOBAL ([\w.]+)", str(fault))
        named = f" ({kind[1]})" if kind else ""
        raise ValueError(
            f"{path.name} was refused: it holds more than tensors and plain "
            f"values{named}, and reading that would run code from the file. If you "
            "trust it, load it yourself and save model.state_dict() with "
            "safetensors.torch.save_file"
        ) from fault
    except Exception as fault:  # damaged files raise exceptions of nearly every kind
        if is_of_machine(fault):
            raise
        lines = str(fault).splitlines() or [""]
        raise ValueError(
            f"{path.name} cannot be read as plain tensors "
            f"({type(fault).__name__}: {lines[0][:160]})"
        ) from fault


def _what_begins(path: Path, head: bytes) -> str:
    """Say what a file is that does not begin as a checkpoint, and what to do."""
    for beginning, words in _NOT_CHECKPOINTS.items():
        if head.lstrip().startswith(beginning):
            return f"it is {words}"
    begins = f"its {path.stat().st_size:,} bytes begin with {head!r}"
    if not head:
        begins = "it is empty"
    return f"{begins}; give a file written by safetensors or torch.save"


def _check_members(path: Path) -> None:
    """Refuse a zip that is not a checkpoint, or whose members fail their checksums.

    torch writes checksums and does not verify them. If all members fail, the file was
    written without checksums (``torch.serialization.set_crc32_options``).
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check_kind([item.filename for item in members])
            damaged = [item.filename for item in members if _differs(archive, item)]
    except zipfile.BadZipFile as fault:
        raise ValueError(f"it was cut or is damaged: {fault}; copy it again") from fault
    # An empty member never differs, with or without a checksum.
    filled = [item.filename for item in members if item.file_size]
    if damaged and len(damaged) < len(filled):
        raise ValueError(
            f"{len(damaged)} of its parts are damaged, first {damaged[0]}; copy or "
            "download it again"
        )


def _check_kind(names: Sequence[str]) -> None:
    """Refuse a zip whose members are not those that torch.save writes."""
    if any(name.endswith("/constants.pkl") for name in names):
        raise ValueError("TorchScript is code; save model.state_dict() in place of it")
    if not any(name.endswith("/data.pkl") for name in names):
        kind = "arrays of numpy" if any(".npy" in name for name in names) else "files"
        first = f", first {names[0]}" if names else ""
        raise ValueError(
            f"it is a zip of {len(names)} {kind}{first}; give a checkpoint itself"
        )


def _differs(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    """Whether a member's bytes do not have the checksum that the zip states."""
    try:
        with archive.open(member) as file:
            while file.read(2**20):
                pass
    except zipfile.BadZipFile:
        return True
    return False


def _verify_checksum(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Refuse tensors that do not have the checksum in the header of their file."""
    # Checkpoints of the workbook have all texts, and among them the checksum, as JSON
    # under one key; its other files have a key for each text.
    texts = dict(header_of(path) or read_header(path))
    stored = texts.pop(CHECKSUM, "")
    if stored and stored != tensor_checksum(tensors, texts):
        raise ValueError("its checksum is another: it is damaged")


def _safe_globals() -> list[Any]:
    """Classes that may be unpickled: they only hold values, and no code is run.

    Training programs save them beside tensors: options of a command line
    (argparse.Namespace), paths, numbers and arrays of NumPy. Each is listed by all the
    names that versions of its library use.
    """
    allowed: list[Any] = [argparse.Namespace, np.dtype, np.ndarray]
    codes = "?bBhHiIlLqQefdFD"  # NumPy's types: bool, integers, floats and complex
    allowed += [type(np.dtype(code)) for code in codes]
    for module in ("pathlib", "pathlib._local"):
        for name in ("PosixPath", "PurePosixPath"):
            allowed.append((pathlib.PurePosixPath, f"{module}.{name}"))
        for name in ("WindowsPath", "PureWindowsPath"):
            allowed.append((pathlib.PureWindowsPath, f"{module}.{name}"))
    # NumPy's functions that a pickle calls to rebuild a number and an array.
    scalar = np.float64(0).__reduce__()[0]
    array = np.zeros(1).__reduce__()[0]
    for module in ("numpy._core.multiarray", "numpy.core.multiarray"):
        allowed.append((scalar, f"{module}.scalar"))
        allowed.append((array, f"{module}._reconstruct"))
    return allowed


def _state_dicts(
    content: Mapping, place: str = "", depth: int = 0
) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
    """Dicts of tensors in a file, with the dotted keys that lead to them.

    More than half of the entries must be tensors: some programs put a few plain values
    beside them, such as the epoch.
    """
    tensors = {
        key: value
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Tensor)
    }
    is_state_dict = len(tensors) > len(content) / 2
    if is_state_dict:
        yield place, tensors
        return
    if depth == _DEPTH:
        return
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, Mapping):
            inner = f"{place}.{key}" if place else key
            yield from _state_dicts(value, inner, depth + 1)


def _locate_state_dict(
    states: Mapping[str, Mapping], part: str, file: str, keys: Sequence
) -> tuple[str, tuple[str, ...]]:
    """Choose the state dict of the network among those of a file.

    If there is one under a usual name, state dicts that share few names of tensors with
    it (the weights of a loss, say) are not considered, and only noted.

    Returns:
        The dotted key of the state dict, and notes on what is not used.

    Raises:
        ValueError: if there is none, or several may be meant.
    """
    if not states:
        first_keys = ", ".join(map(str, keys[:5])) or "nothing"
        raise ValueError(
            f"{file} holds no state dict of tensors, at its top or under "
            f"{', '.join(_NESTED)}; it has {first_keys}"
        )
    usual = [
        name
        for name in states
        if name.split(".")[-1] in _NESTED and not is_averaged(name)
    ]
    if not usual:
        return choose_network(list(states), part, file)
    main = max(usual, key=lambda name: len(states[name]))
    main_names = _unwrapped(states[main]).keys()
    candidates = []
    for name, state in states.items():
        names = _unwrapped(state).keys()
        half = min(len(main_names), len(names)) / 2
        if name in usual or len(main_names & names) >= half:
            candidates.append(name)
    place, notes = choose_network(candidates, part, file)
    others = [name for name in states if name not in candidates]
    if others:
        notes = (
            *notes,
            f"{file} also holds tensors under {', '.join(map(repr, others[:3]))}; "
            f"those under {place!r} are taken",
        )
    return place, notes


def _unwrapped(state: Mapping[str, Tensor]) -> State:
    """A state dict with the names that the network has without wrappers."""
    names = [name.replace(_COMPILED, "") for name in state]
    while True:
        prefix = _common_prefix(names)
        if not prefix:
            return dict(zip(names, state.values(), strict=True))
        names = [name.removeprefix(prefix) for name in names]


def _common_prefix(names: Sequence[str]) -> str:
    """The wrapper's prefix that all names have, or ""."""
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in names):
            return prefix
    return ""


def _dictionaries(content: Any, depth: int = 0) -> list[Mapping]:
    """All dicts in a file, the outermost first; command-line options count as dicts."""
    if isinstance(content, argparse.Namespace):
        content = vars(content)
    if not isinstance(content, Mapping) or depth == _DEPTH:
        return []
    dictionaries = [content]
    for value in content.values():
        dictionaries += _dictionaries(value, depth + 1)
    return dictionaries


def _plain_header(path: Path) -> dict[str, Any]:
    """Texts in the header of a safetensors file; those that are JSON are decoded."""
    texts = read_header(path) | header_of(path)
    return {name: _from_json(text) for name, text in texts.items()}


def header_of(path: Path) -> dict[str, str]:
    """Read the texts that ``weights.save_float16`` wrote; empty for other files.

    A damaged file has an empty header here; reading its weights raises an error.

    Args:
        path: of a file.
    """
    texts = _from_json(read_header(path).get(TEXTS, ""))
    return texts if isinstance(texts, dict) else {}


def _from_json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return text


def _class_names(dictionaries: Sequence[Mapping]) -> tuple[str, ...]:
    """Names of classes in the order of the outputs; empty if the file has none."""
    for dictionary in dictionaries:
        for key in _CLASSES:
            names = _names_in_order(dictionary.get(key))
            if names:
                return names
    return ()


def _names_in_order(value: Any) -> tuple[str, ...]:
    """Names in the order of their numbers; empty if they are not those of all classes.

    Args:
        value: {"b": 1, "a": 0}, {0: "a", 1: "b"}, ["a", "b"], or anything else.
    """
    if isinstance(value, Mapping):
        numbers_and_names = list(value.items())
        is_by_name = not all(isinstance(name, str) for name in value.values())
        if is_by_name:
            numbers_and_names = [(number, name) for name, number in value.items()]
        name_of = {_number(number): name for number, name in numbers_and_names}
        if set(name_of) != set(range(len(value))):
            return ()
        value = [name_of[number] for number in range(len(value))]
    names = tuple(value) if isinstance(value, list | tuple) else ()
    if len(names) < 2 or not all(isinstance(name, str) for name in names):
        return ()
    is_unique = len(set(names)) == len(names)
    return names if is_unique else ()


def _number(value: Any) -> Any:
    """An int from an integer of Python or NumPy or from digits; else the value."""
    if isinstance(value, Integral) or (isinstance(value, str) and value.isdecimal()):
        return int(value)
    return value


def _accuracy(dictionaries: Sequence[Mapping]) -> float:
    """The highest accuracy that a file states, as a fraction; NaN if it states none.

    Numbers above 1 are percent; 1 is read as the fraction, 100 %.
    """
    accuracies = []
    for dictionary in dictionaries:
        for name, value in dictionary.items():
            if not isinstance(name, str) or not _ACCURACY.fullmatch(name):
                continue
            if isinstance(value, Tensor) and value.numel() == 1:
                value = value.item()
            if not isinstance(value, Real) or isinstance(value, bool):
                continue
            fraction = float(value) if value <= 1 else float(value) / 100
            if 0 < fraction <= 1:
                accuracies.append(fraction)
    return max(accuracies, default=np.nan)

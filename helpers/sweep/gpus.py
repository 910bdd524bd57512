"""The GPUs that may be used on this machine, and a lock for each card."""

import fcntl
import itertools
import json
import os
import platform
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.files import PROJECT_ROOT

# Environment variable: the folder of the locks, which must be the same for all users of
# the cards. It is not below TMPDIR, which differs between users and jobs.
LOCKS = "WORKBOOK_GPU_LOCKS"
_SHARED_FOLDER = Path("/tmp") / "workbook-gpus"
_PATIENCE = 60.0  # seconds for nvidia-smi, which is slow where no driver is resident
_TICK = 0.5  # seconds between two attempts at a lock
_GPU = re.compile(r"^GPU (\d+):(?:.*\(UUID: (GPU-[^)\s]+)\))?")
_MIG = re.compile(r"^\s+MIG .*\(UUID: (MIG-[^)\s]+)\)")


@dataclass(frozen=True)
class Card:
    """A GPU, or an instance of one that is divided (MIG)."""

    name: str  # its name in CUDA_VISIBLE_DEVICES
    key: str  # name of its lock: the UUID, or host and number if it has none


def _card(name: str) -> Card:
    """A card by its UUID, or by its number on this host."""
    is_uuid = name.startswith(("GPU-", "MIG-"))
    return Card(name, name if is_uuid else f"{platform.node()}-{name}")


def listed_cards() -> list[list[Card]]:
    """The cards of this machine, a list for each GPU: itself, or its MIG instances.

    Asks ``nvidia-smi``; where there is none, or it does not answer within a minute,
    the device files are counted.
    """
    text = ""
    if shutil.which("nvidia-smi"):
        try:
            command = ["nvidia-smi", "--list-gpus"]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            done = subprocess.run(command, timeout=_PATIENCE, text=True, **pipes)
            text = done.stdout
        except (subprocess.TimeoutExpired, OSError):
            text = ""
    gpus: list[list[Card]] = []
    is_divided = False  # whether the last GPU is replaced by its instances
    for line in text.splitlines():
        gpu = _GPU.match(line)
        instance = _MIG.match(line)
        if gpu:
            gpus.append([_card(gpu[2] or gpu[1])])
            is_divided = False
        elif instance and gpus:
            if not is_divided:
                gpus[-1] = []
                is_divided = True
            gpus[-1].append(_card(instance[1]))
    if gpus:
        return gpus
    files = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    return [[_card(str(number))] for number in range(len(files))]


def visible_cards() -> list[Card]:
    """The cards that may be used here: those of CUDA_VISIBLE_DEVICES, else all.

    A number means what ``nvidia-smi`` lists by it, a UUID may be cut short, and what
    follows -1 does not count, as CUDA has it.
    """
    gpus = listed_cards()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [card for gpu in gpus for card in gpu]
    names = [name for name in re.split(r"[\s,]+", visible) if name]
    names = itertools.takewhile(lambda name: name not in ("-1", "NoDevFiles"), names)
    return [card for name in names for card in _cards_of(name, gpus)]


def _cards_of(name: str, gpus: list[list[Card]]) -> list[Card]:
    """Cards that one name of CUDA_VISIBLE_DEVICES stands for."""
    if name.isdigit():
        return gpus[int(name)] if int(name) < len(gpus) else [_card(name)]
    same = [card for gpu in gpus for card in gpu if card.name.startswith(name)]
    return same if len(same) == 1 else [_card(name)]


def lock_card(
    stack: ExitStack, device: str, tell: Callable[[str], object] = print
) -> str:
    """Take a card that no other execution on this machine has, until the stack closes.

    Waits for one, and says so once. Within an allocation of SLURM it is one of the
    allocation's cards.

    Args:
        stack: whose closing releases the card.
        device: "auto" or "cuda" for any card, "cuda:1" for the second that is visible.
        tell: is called with a sentence where it has to wait.

    Returns:
        The value for CUDA_VISIBLE_DEVICES; "" where there is no card to choose.

    Raises:
        ValueError: if fewer cards are visible than the device asks for.
        OSError: if the folder of locks cannot be used.
    """
    cards = visible_cards()
    number = device.partition(":")[2]
    if not cards:
        return ""
    fault = numbering_fault(device, cards)
    if fault:
        raise ValueError(fault)
    wanted = [cards[int(number)]] if number else cards
    folder = _folder_of_locks()
    for attempt in itertools.count():
        for card in wanted:
            descriptor = _try_lock(folder / card.key.replace("/", "_"))
            if descriptor is not None:
                stack.callback(os.close, descriptor)
                # With a number all stay visible, or the number would mean another one.
                shown = cards if number else [card]
                return ",".join(item.name for item in shown)
        if attempt == 0:
            names = ", ".join(card.name for card in wanted)
            tell(f"waits for a GPU: {names} in use")
        time.sleep(_TICK)
    raise AssertionError  # the loop has no end


def numbering_fault(device: str, cards: list[Card]) -> str:
    """Fault of a device such as "cuda:1" that names no visible card, else ""."""
    number = device.partition(":")[2]
    if not number or int(number) < len(cards):
        return ""
    return (
        f"device is {device!r}, and {len(cards)} GPU(s) are visible here, counted from "
        f"cuda:0; write cuda, which takes any that is free"
    )


def _folder_of_locks() -> Path:
    """The folder of the locks, in which every user can make files of their own."""
    folder = Path(os.environ.get(LOCKS) or _SHARED_FOLDER)
    try:
        folder.mkdir(parents=True)
        folder.chmod(0o1777)  # whatever the umask
    except FileExistsError:
        pass
    if not stat.S_ISDIR(folder.lstat().st_mode):  # such as a link to another place
        raise NotADirectoryError(
            f"{folder} is not a folder, and locks of GPUs go there; remove it, or "
            f"name another folder in {LOCKS}"
        )
    return folder


def _try_lock(path: Path) -> int | None:
    """Lock a file, created if absent; None if another process has locked it.

    An existing file is opened for reading only. It may be another user's, and in a
    folder of all users Linux refuses O_CREAT on it (``fs.protected_regular``).
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
        os.fchmod(descriptor, 0o644)  # whatever the umask
    except FileExistsError:
        descriptor = os.open(path, flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def ask_torch(visible: str | None, number: int | None = None) -> dict[str, Any]:
    """Ask torch in another process which GPUs it can use, see ``usable_gpus``.

    Args:
        visible: value of CUDA_VISIBLE_DEVICES; None leaves it as it is.
        number: of a GPU that computes something as a test.
    """
    command = [sys.executable, "-m", "helpers.networks.devices"]
    command += [] if number is None else [str(number)]
    changed = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    done = subprocess.run(
        command, cwd=PROJECT_ROOT, env=os.environ | changed, check=False, **pipes
    )
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        words = done.stderr.strip()[-600:] or f"it ended with {done.returncode}"
        return {"names": [], "words": words, "torch": ""}


def device_in_words(device: str, visible: str) -> tuple[str, str]:
    """Name the device that an execution will use, after torch tried it.

    Args:
        device: as the notebook's parameter has it.
        visible: value of CUDA_VISIBLE_DEVICES; "" where no card was found.

    Returns:
        The name, such as "NVIDIA H100 (GPU-5a...)" or "the CPU"; and why the execution
        cannot start, "" where it can.
    """
    if device == "auto" and not visible:
        return "the CPU", ""
    number = int(device.partition(":")[2] or 0)
    seen = ask_torch(visible or None, number)
    if seen["names"]:
        card = visible.split(",")[number] if visible else f"cuda:{number}"
        return f"{seen['names'][number]} ({card})", ""
    cause = f"torch {seen['torch']} can use no GPU here: {seen['words']}"
    if device == "auto":
        return f"the CPU, since {cause}", ""
    return "", f"device is {device!r}, and {cause}; set device to auto or cpu"

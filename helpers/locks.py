"""Who makes what, where several processes and machines share a folder: atomic claim files with an owner and a heartbeat."""

import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.files import inside, write_json

MARK = "WORKBOOK_SWEEP"  # environment variable that every process started by a sweep inherits, in whatever session it lies


def machine() -> str:
    """Name of this machine since its last start, and of the space in which its process numbers mean something (a container has its own)."""
    parts = [socket.gethostname()]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(source) if "/ns/" in source else Path(source).read_text().strip())
        except OSError:
            parts.append("")
    return "|".join(parts)


def started(pid: int) -> str:
    """When a process was started, in ticks that no change of the clock moves; "" when there is none or only its remains."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]
    import psutil  # elsewhere than on Linux

    try:
        return str(psutil.Process(pid).create_time())
    except psutil.Error:
        return ""


_FILE = re.compile(r"(?P<name>.+)\.(?P<generation>\d+)\.claim$")
_TOKEN = re.compile(r"[0-9a-f]{12}")
BEAT_SECONDS = 10.0
STALE_SECONDS = 60.0


class LockHolder:
    """One process that claims work; leaving the block gives back all that it claimed.

    A claim is a file that is linked into place, so of two processes one gets it. It holds its owner; a taken-over claim is a
    further file with the next generation, so nothing of a living owner is ever replaced. An owner is gone when its process is, on
    this machine; on another one, when its heartbeat stood still for ``stale_seconds`` of *this* process's monotonic clock.
    No time of day and no file's date enters, so a clock that jumps or differs between machines changes nothing.
    """

    def __init__(
        self,
        folder: Path,
        *,
        beat_seconds: float = BEAT_SECONDS,
        stale_seconds: float = STALE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the folder of the claims; ``clock`` counts seconds and never goes back."""
        self.folder = folder.resolve()
        self.token = uuid.uuid4().hex[:12]
        self._identity = {"machine": machine(), "pid": os.getpid(), "started": started(os.getpid())}
        self._beat_seconds, self._stale_seconds, self._clock = beat_seconds, stale_seconds, clock
        self._beats = 0
        self._held: dict[str, Path] = {}
        self._observed: dict[str, tuple[Any, float]] = {}  # token to its last heartbeat and when that was first seen
        self._leaving = threading.Event()

    def __enter__(self) -> "LockHolder":
        """Start the heartbeat."""
        self.beat()
        threading.Thread(target=self._keep_beating, daemon=True).start()
        return self

    def __exit__(self, *fault: object) -> None:
        """Release everything."""
        self._leaving.set()
        for name in list(self._held):
            self.release(name)
        self._beat_path(self.token).unlink(missing_ok=True)

    def _keep_beating(self) -> None:
        while not self._leaving.wait(self._beat_seconds):
            try:
                self.beat()
            except OSError:
                continue  # a full or absent disk: the next beat may succeed

    def beat(self) -> None:
        """Show that this owner lives."""
        self._beats += 1
        write_json(self._beat_path(self.token), {"beat": self._beats, "token": self.token, **self._identity})

    def _beat_path(self, token: str) -> Path:
        return self.folder / "owners" / f"{token}.json"

    def claim(self, name: str) -> bool:
        """Try to get a piece of work for this process; what a vanished owner held is taken over."""
        if name in self._held:
            return True
        before = self._claims(name)
        if before and not self.is_gone(before[-1][1]):
            return False
        generation = before[-1][0] + 1 if before else 1
        path = self._path(name, generation)
        if not self._link(path):
            return False
        # While this was being decided the claims may have changed under it: then the other one keeps the work.
        now = self._claims(name)
        below = [record for number, record in now if number < generation]
        if now[-1][0] != generation or any(record not in [item for _, item in before] for record in below):
            path.unlink(missing_ok=True)
            return False
        self._held[name] = path
        return True

    def release(self, name: str) -> None:
        """Release a claim; the claims that it took over go first, so that it is seen until the end."""
        path = self._held.pop(name)
        for generation, _ in self._claims(name):
            older = self._path(name, generation)
            if older != path and generation < int(_FILE.match(path.name)["generation"]):
                older.unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def still_holds(self, name: str) -> bool:
        """Whether nobody took over a claim of this process, which happens when it was halted for long."""
        claims = self._claims(name)
        return bool(claims) and claims[-1][1].get("token") == self.token

    def holder(self, name: str) -> dict[str, Any] | None:
        """The owner that holds a piece of work, be it this process or another living one; None when it is free."""
        claims = self._claims(name)
        return claims[-1][1] if claims and not self.is_gone(claims[-1][1]) else None

    def is_gone(self, owner: dict[str, Any]) -> bool:
        """Whether the owner of a claim has vanished."""
        if owner.get("machine") == self._identity["machine"]:
            return started(owner["pid"]) != owner["started"]
        token = owner.get("token", "")
        beat = _read(self._beat_path(token)) if token else None
        name = token or owner["damaged"]
        known = self._observed.get(name)
        if known is None or known[0] != beat:
            self._observed[name] = (beat, self._clock())
            return False
        return self._clock() - known[1] > self._stale_seconds

    def others(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """List the other living owners in this folder, and the vanished ones, whose claims and heartbeats are cleared away."""
        living, gone = [], []
        for path in sorted((self.folder / "owners").glob("*.json")):
            record = _read(path)
            if record is None or record.get("token") == self.token:
                continue
            if self.is_gone(record):
                path.unlink(missing_ok=True)
                gone += [record] if "token" in record else []
            else:
                living.append(record)
        for path in sorted(self.folder.rglob("*.claim")):
            match = _FILE.match(str(path.relative_to(self.folder)))
            if match and self.holder(match["name"]) is None and self.claim(match["name"]):
                self.release(match["name"])
        return living, gone

    def _claims(self, name: str) -> list[tuple[int, dict[str, Any]]]:
        wanted = self._path(name, 0)
        found = []
        for entry in os.listdir(wanted.parent) if wanted.parent.is_dir() else []:
            match = _FILE.match(entry)
            if match and match["name"] == Path(name).name and (record := _read(wanted.parent / entry)) is not None:
                found.append((int(match["generation"]), record))
        return sorted(found, key=lambda item: item[0])

    def _path(self, name: str, generation: int) -> Path:
        return inside(self.folder, name).with_name(f"{Path(name).name}.{generation}.claim")  # itself, where it is a link

    def _link(self, path: Path) -> bool:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{self.token}.partial")
        text = json.dumps({"token": self.token, **self._identity})
        try:
            draft.write_text(text)
            try:
                os.link(draft, path)
            except FileExistsError:
                return False
            except OSError:  # a file system without hard links
                return _create(path, text)
        finally:
            draft.unlink(missing_ok=True)
        return True


def _create(path: Path, text: str) -> bool:
    try:
        with open(path, "x") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError:  # a full disk: half a claim would keep everybody away
        path.unlink(missing_ok=True)
        raise
    return True


def _read(path: Path) -> dict[str, Any] | None:
    """Read the record of an owner; None when it is not there. One that no owner wrote stands for an owner that nobody knows.

    Tokens become parts of paths, and processes are ended by them, so a token that is not hexadecimal is refused.
    """
    try:
        regular = path.is_file() and not path.is_symlink()  # reading another may never end
        record = json.loads(path.read_text()) if regular or not os.path.lexists(path) else None
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError):
        record = None
    kinds = {"token": str, "machine": str, "pid": int, "started": str}
    valid = isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in kinds.items())
    unknown = {"damaged": str(path), "machine": "unknown", "pid": 0, "started": ""}
    return record if valid and _TOKEN.fullmatch(record["token"]) else unknown

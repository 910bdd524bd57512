"""Processes of this machine: is one alive, and the end of a whole family, also of those that have left their group."""

import os
import socket
import time
from pathlib import Path

MARK = "WORKBOOK_SWEEP"  # environment variable that every process started by a sweep inherits, in whatever session it lies


def machine() -> str:
    """Name this machine since its last start, and the space in which its process numbers mean something (a container has its own)."""
    parts = [socket.gethostname()]
    for source in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(os.readlink(source) if "/ns/" in source else Path(source).read_text().strip())
        except OSError:
            parts.append("")
    return "|".join(parts)


def started(pid: int) -> str:
    """Say when a process was started, in ticks that no change of the clock moves; "" when there is none or only its remains."""
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


def family(mark: str) -> list[int]:
    """List the living processes whose mark begins with this one, without the calling process."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(MARK, "").startswith(mark)
        except (psutil.Error, OSError):
            continue
        if marked and process.pid != os.getpid() and started(process.pid):
            found.append(process.pid)
    return found


def end_family(mark: str, patience: float = 10.0) -> None:
    """Kill every process of a family, and wait until none is left.

    A process that is being born while the list is read appears in the next list, so the list is read until it is empty. Python's
    resource trackers go last, and by themselves: they delete the semaphores of those that were killed.
    """
    if not mark:
        raise ValueError("the mark is empty; it would end every process that carries one")
    limit = time.monotonic() + patience
    while (found := family(mark)) and time.monotonic() < limit:
        late = time.monotonic() > limit - patience / 2
        for pid in found:
            if late or not _tracks(pid):
                _kill(pid)
        time.sleep(0.01)


def _tracks(pid: int) -> bool:
    import psutil

    try:
        return "multiprocessing.resource_tracker" in " ".join(psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except OSError:
        return  # it is gone

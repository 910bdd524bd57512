"""One piece of work has one owner, whatever dies, halts, or turns its clock back."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import locks
from helpers.locks import LockHolder


class Hand:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Hand()


@pytest.fixture
def owner(tmp_path, clock):
    """Gives owners on one folder; ``elsewhere`` lets one seem to run on another machine."""

    def make(elsewhere=""):
        made = LockHolder(tmp_path / "claims", stale_seconds=60, clock=clock)
        if elsewhere:
            made._identity = {"machine": elsewhere, "pid": 1, "started": "1"}
        made.beat()
        return made

    return make


def files(tmp_path):
    return sorted(path.name for path in (tmp_path / "claims").rglob("*") if path.is_file() and path.parent.name != "owners")


def test_of_two_owners_one_gets_the_work_and_the_other_after_it_is_given_back(owner, tmp_path):
    first, second = owner(), owner()
    assert first.claim("02/a")
    assert not second.claim("02/a")
    assert second.claim("02/b")
    assert second.holder("02/a")["token"] == first.token
    assert first.claim("02/a")  # asking again changes nothing
    first.release("02/a")
    assert second.holder("02/a") is None
    assert second.claim("02/a")
    for name in ("02/a", "02/b"):
        second.release(name)
    assert files(tmp_path) == []


def test_a_name_is_not_taken_for_one_that_it_begins(owner):
    first, second = owner(), owner()
    assert first.claim("run-1")
    assert second.claim("run-1.2")
    assert second.claim("run")
    assert not second.claim("run-1")


def test_what_a_dead_process_of_this_machine_held_is_taken_over_at_once(owner, tmp_path):
    script = f"""
import os, sys
from pathlib import Path
from helpers.locks import LockHolder
owner = LockHolder(Path({str(tmp_path / "claims")!r})).__enter__()
print(owner.claim("x"), flush=True)
os.kill(os.getpid(), 9)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ended.stdout.split() == ["True"]
    assert ended.returncode == -9
    here = owner()
    assert here.claim("x")
    assert files(tmp_path) == ["x.1.claim", "x.2.claim"]
    here.release("x")
    assert files(tmp_path) == []


def test_a_process_number_that_was_given_again_is_another_process(owner):
    first, second = owner(), owner()
    first._identity = first._identity | {"started": "0"}  # the same number, at another start
    assert first.claim("x")
    assert second.claim("x")


def test_an_owner_elsewhere_is_gone_when_its_heart_stands_still_and_not_before(owner, clock):
    there, here = owner("other"), owner()
    assert there.claim("x")
    assert not here.claim("x")
    clock.now = 59
    assert not here.claim("x")
    there.beat()
    clock.now = 100  # 100 s after the first look, and 0 s after the first look at this beat
    assert not here.claim("x")
    clock.now = 160
    assert not here.claim("x")
    clock.now = 161
    assert here.claim("x")
    assert here.still_holds("x")
    assert not there.still_holds("x")
    there.release("x")  # awake again, it gives back what it no longer has, and takes nothing away
    assert here.still_holds("x")


def test_a_time_of_day_that_jumps_back_or_differs_between_machines_changes_nothing(owner, clock, monkeypatch, tmp_path):
    there, here = owner("other"), owner()
    assert there.claim("x")
    monkeypatch.setattr("time.time", lambda: -1e9)
    for path in (tmp_path / "claims").rglob("*"):
        if path.is_file():
            os.utime(path, (2e9, 2e9))  # years ahead
    assert not here.claim("x")
    clock.now = 30
    assert not here.claim("x")
    clock.now = 61
    assert here.claim("x")


def test_of_two_that_take_over_at_once_one_gets_the_work(owner, clock, monkeypatch):
    there, first, second = owner("other"), owner(), owner()
    assert there.claim("x")
    assert not first.claim("x")
    assert not second.claim("x")
    clock.now = 61
    linking = first._link

    def late(path):
        assert second.claim("x")  # the other is faster, after this one has read the claims
        return linking(path)

    monkeypatch.setattr(first, "_link", late)
    assert not first.claim("x")
    assert second.still_holds("x")


def test_a_claim_made_anew_while_one_takes_over_is_seen(owner, clock, monkeypatch):
    there, first, second = owner("other"), owner(), owner()
    assert there.claim("x")
    assert not first.claim("x")
    clock.now = 61
    linking = first._link

    def late(path):
        there.release("x")  # it was only slow, and is done
        assert second.claim("x")
        return linking(path)

    monkeypatch.setattr(first, "_link", late)
    assert not first.claim("x")
    assert second.still_holds("x")


def test_many_processes_at_once_share_the_work_without_remainder_or_doubling(tmp_path):
    script = f"""
from pathlib import Path
from helpers.locks import LockHolder
with LockHolder(Path({str(tmp_path / "claims")!r})) as owner:
    input()
    print(*[n for n in range(60) if owner.claim(f"w{{n}}")], flush=True)
    input()
"""
    started = [subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    got = [int(number) for process in started for number in process.stdout.readline().split()]
    for process in started:
        process.communicate("\n")
    assert sorted(got) == list(range(60))
    assert [path for path in (tmp_path / "claims").rglob("*") if path.is_file()] == []


def test_a_file_system_without_links_has_claims_too(owner, monkeypatch):
    def refuse(*paths):
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", refuse)
    first, second = owner(), owner()
    assert first.claim("x")
    assert not second.claim("x")


def test_a_full_disk_simulated_at_the_write_of_a_claim_leaves_no_half_of_it(owner, tmp_path, monkeypatch):
    first, second = owner(), owner()
    writing = Path.write_text

    def half(path, text):
        writing(path, text[:5])
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match="No space left on device"):
        first.claim("x")
    assert files(tmp_path) == []

    monkeypatch.setattr(Path, "write_text", writing)

    def refuse(*paths):
        raise PermissionError("no links here")

    def full(path, mode):
        Path(path).touch()
        return open("/dev/full", "w")

    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr(locks, "open", full, raising=False)
    with pytest.raises(OSError, match="No space left on device"):
        first.claim("x")
    monkeypatch.undo()
    assert files(tmp_path) == []
    assert second.claim("x")


def test_a_foreign_file_among_the_claims_stops_nothing(owner, tmp_path):
    here = owner()
    (tmp_path / "claims/notes.claim").write_text("")
    assert here.others() == ([], [])


def test_the_leavings_of_the_vanished_are_cleared_and_the_living_are_left_alone(owner, tmp_path):
    dead, living, here = owner(), owner("other"), owner()
    dead._identity = dead._identity | {"started": "0"}
    dead.beat()
    assert dead.claim("02/a")
    assert living.claim("02/b")
    there, gone = here.others()
    assert [record["token"] for record in there] == [living.token]
    assert [record["token"] for record in gone] == [dead.token]
    assert files(tmp_path) == ["b.1.claim"]


def test_a_damaged_claim_is_not_taken_before_its_time(owner, clock, tmp_path):
    here = owner()
    (tmp_path / "claims/x.1.claim").write_text("{")
    assert not here.claim("x")
    clock.now = 61
    assert here.claim("x")


@pytest.mark.parametrize("text", ["[1]", "3", "null", "[" * 100_000, '{"token": "x/../../name"}', '{"token": 5}', '{"machine": "m"}'])
def test_a_claim_or_heartbeat_that_no_owner_wrote_stops_nothing_and_is_taken_over_in_time(owner, clock, tmp_path, text):
    here = owner()
    for name in ("x.1.claim", "owners/z.json"):
        (tmp_path / "claims" / name).write_text(text)
    there, gone = here.others()
    assert [record["damaged"] for record in there] == [str(tmp_path / "claims/owners/z.json")]
    assert here.holder("x")["machine"] == "unknown"
    assert gone == []
    assert not here.claim("x")
    assert here.claim("y")
    clock.now = 61
    assert here.others() == ([], [])
    assert here.claim("x")


@pytest.mark.parametrize(
    "make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/outside/of/it"), lambda path: path.symlink_to(path)]
)
def test_a_claim_that_is_no_file_is_not_read_and_taken_over_in_time(owner, clock, tmp_path, make):
    here = owner()
    make(tmp_path / "claims/x.1.claim")
    assert not here.claim("x")
    clock.now = 61
    assert here.claim("x")
    assert (tmp_path / "claims/x.2.claim").is_file()


@pytest.mark.parametrize("token", ["x/../name", "../name", "", "0123456789AB", "0123456789ab/", "0123456789abc"])
def test_a_token_that_is_not_hexadecimal_names_no_file_and_no_process(owner, clock, tmp_path, token):
    here = owner()
    record = {"token": token, "machine": here._identity["machine"], "pid": 1, "started": "0", "beat": 1}
    (tmp_path / "claims/owners/z.json").write_text(json.dumps(record))
    assert here.others()[1] == []
    clock.now = 61
    assert here.others() == ([], [])


def test_a_process_has_a_start_while_it_lives():
    assert locks.started(1) or not Path("/proc").is_dir()
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert locks.started(process.pid)
    process.kill()
    process.wait()
    assert locks.started(process.pid) == ""
    assert locks.machine() == locks.machine()

"""Which cards may be used here, and that no two executions use one."""

import os
import platform
import signal
import stat
import subprocess
import sys
from contextlib import ExitStack

import pytest

from helpers.files import PROJECT_ROOT
from helpers.sweep import gpus

# As nvidia-smi lists two whole GPUs and one that is divided in two.
LISTED = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa-1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-abbb-2)
GPU 2: NVIDIA A100-SXM4-40GB (UUID: GPU-cccc-3)
  MIG 3g.20gb     Device  0: (UUID: MIG-dddd-4)
  MIG 3g.20gb     Device  1: (UUID: MIG-eeee-5)
"""
TAKE = """import sys, time
from contextlib import ExitStack
from helpers.sweep.gpus import lock_card
with ExitStack() as stack:
    print(lock_card(stack, sys.argv[1]), flush=True)
    time.sleep(60)"""


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with pretended cards, and a folder of locks of its own."""

    def listing(text, *lines):
        program = tmp_path / "bin/nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        program.write_text("\n".join(["#!/bin/sh", *lines, f"cat <<'EOT'\n{text}EOT"]))
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv(gpus.LOCKS, str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    listing(LISTED)
    return listing


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["GPU-aaaa-1", "GPU-abbb-2", "MIG-dddd-4", "MIG-eeee-5"]),
        ("1,0", ["GPU-abbb-2", "GPU-aaaa-1"]),
        ("GPU-ab", ["GPU-abbb-2"]),
        ("GPU-a", ["GPU-a"]),  # could be two: torch is to say so
        ("2", ["MIG-dddd-4", "MIG-eeee-5"]),
        ("MIG-eeee-5 , 7", ["MIG-eeee-5", "7"]),
        ("3", ["3"]),  # the first number that no GPU has
        ("0,-1,1", ["GPU-aaaa-1"]),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_visible_cards_are_those_of_the_variable_or_all_by_their_uuid(
    machine, monkeypatch, visible, names
):
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [card.name for card in gpus.visible_cards()] == names


def test_a_card_without_a_uuid_is_locked_by_host_and_number(machine, monkeypatch):
    machine("No devices were found\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpus.visible_cards() == [gpus.Card("3", f"{platform.node()}-3")]


def test_a_driver_that_hangs_is_waited_for_no_longer_than_said(machine, monkeypatch):
    monkeypatch.setattr(gpus, "_PATIENCE", 0.2)
    machine(LISTED, "sleep 30")
    assert "GPU-aaaa-1" not in str(gpus.listed_cards())


def take(device="cuda", **environment):
    """A process that takes a card and keeps it."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE, device],
        cwd=PROJECT_ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    return process, process.stdout.readline().strip()


def test_two_jobs_of_slurm_on_one_machine_use_two_cards_and_a_third_waits_for_one(
    machine, tmp_path
):
    """Each job has a temporary folder of its own, as clusters set it."""
    processes = []
    try:
        for job, card in (("1", "GPU-aaaa-1"), ("2", "GPU-abbb-2")):
            folder = tmp_path / job
            folder.mkdir()
            process, taken = take(
                SLURM_JOB_ID=job, CUDA_VISIBLE_DEVICES="0,1", TMPDIR=str(folder)
            )
            processes.append(process)
            assert taken == card
        third, taken = take(SLURM_JOB_ID="3", CUDA_VISIBLE_DEVICES="1")
        processes.append(third)
        assert taken == "waits for a GPU: GPU-abbb-2 in use"
        processes[1].send_signal(signal.SIGKILL)
        assert third.stdout.readline().strip() == "GPU-abbb-2"
    finally:
        for process in processes:
            process.kill()
            process.wait()
            process.stdout.close()


def test_a_numbered_device_is_the_card_of_that_number_and_all_stay_visible(
    machine, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with ExitStack() as stack:
        assert gpus.lock_card(stack, "cuda:1") == "GPU-aaaa-1,GPU-abbb-2"
        assert gpus.lock_card(stack, "cuda") == "GPU-aaaa-1"
        with pytest.raises(
            ValueError,
            match=r"device is 'cuda:2', and 2 GPU\(s\) are visible here, counted from "
            r"cuda:0; write cuda, which takes any that is free",
        ):
            gpus.lock_card(stack, "cuda:2")
    with ExitStack() as stack:
        assert gpus.lock_card(stack, "cuda") == "GPU-aaaa-1"  # given back


def test_locks_serve_every_user_whatever_the_mask_of_the_first(machine, tmp_path):
    before = os.umask(0o077)
    try:
        with ExitStack() as stack:
            gpus.lock_card(stack, "cuda")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    lock = tmp_path / "locks/GPU-aaaa-1"
    assert stat.S_IMODE(lock.stat().st_mode) == 0o644
    lock.chmod(0o444)  # as another user's, which may be read alone
    with ExitStack() as stack:
        assert gpus.lock_card(stack, "cuda") == "GPU-aaaa-1"


def test_a_link_in_place_of_the_locks_is_refused(machine, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "locks").symlink_to(tmp_path / "elsewhere")
    with (
        ExitStack() as stack,
        pytest.raises(NotADirectoryError, match="WORKBOOK_GPU_LOCKS"),
    ):
        gpus.lock_card(stack, "cuda")


def test_no_card_is_nothing_to_lock(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with ExitStack() as stack:
        assert gpus.lock_card(stack, "auto") == ""
    assert gpus.device_in_words("auto", "") == ("the CPU", "")

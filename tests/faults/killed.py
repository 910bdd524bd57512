"""Kill -9 at 20 random moments over a study of 24 runs, begin again until it is complete, and compare with an uninterrupted run.

``killed.py [kills] [seed] [--engine ray]``: the kernel, the worker, a training process, the sweep, its process group, under Ray the
node, or everything at once. Every other start has other values, so that what a kill leaves behind belongs to another command than the
one that goes on. Nothing may be left: no process, no half-written file, no claim. About ten minutes on two cores; ``killed.py 2`` is the
short form, with the uninterrupted study and one round of it. Under Ray every start takes some twenty seconds more; a cluster of two
nodes that loses one is in ``ray_nodes.py``.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

import pandas as pd
import psutil
from projects import ROOT, emptied, study_of_24_runs

VICTIMS = ("kernel", "worker", "trainer", "sweep", "group", "everything")
OF_RAY = (*VICTIMS, "node")
KINDS = {
    "ipykernel_launcher": "kernel",
    "worker.main()": "worker",
    "ray::": "worker",
    "spawn_main": "trainer",
    "raylet/raylet": "node",
    "helpers.sweep": "sweep",
}
NAME = "WORKBOOK_FAULTS"
PATIENCE = {"local": 15.0, "ray": 90.0}  # seconds; an agent of Ray looks for its node now and then
# Values that change catalogue and tables, and no run.
OTHER = ("minimum_train_accuracy=0.3", "03_cam_scoring.bootstrap_resamples=25", "02_grid_training.run_count=12", "pictured_images=3")


def start(study: Path, folder: Path, mark: str, engine: str, *other: str) -> subprocess.Popen:
    """Begin, or go on with, the study in a process group of its own, with other values where some are given."""
    command = [sys.executable, "-m", "helpers.sweep", str(study), "--jobs", "2", "--set", f"work_dir={folder}/work"]
    command += ["--engine", "ray", "--address", "local"] if engine == "ray" else []
    command += ["--set", f"reports_dir={folder}/reports", *[word for value in other for word in ("--set", value)]]
    environment = os.environ | {NAME: mark, "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    environment |= {"RAY_TMPDIR": str(folder.parent / "ray"), "RAY_raylet_start_wait_time_s": "120"}  # Ray's own logs are no leavings
    for place in ("tmp", "../ray"):
        (folder / place).mkdir(exist_ok=True)
    with (folder / "printed.txt").open("ab") as printed:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=printed, stderr=printed, start_new_session=True)


def family(mark: str) -> list[psutil.Process]:
    """List the living processes that descend from our sweeps, whatever became of their parents."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(NAME) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def kind_of(process: psutil.Process) -> str:
    """Say which part a process plays, by its command line."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return next((kind for text, kind in KINDS.items() if text in line), "")


def strike(victim: str, sweep: subprocess.Popen, mark: str, rng: random.Random) -> str:
    """Kill a victim; where there is none of its kind at this moment, the sweep."""
    if victim == "group":
        os.killpg(sweep.pid, signal.SIGKILL)
        return victim
    there = [process for process in family(mark) if victim in ("everything", kind_of(process))]
    if not there:
        victim, there = "sweep", [psutil.Process(sweep.pid)]
    for process in there if victim == "everything" else [rng.choice(there)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    return victim


def wait_for_nobody(mark: str, seconds: float) -> None:
    """Wait until no process is left. It would be an orphan."""
    limit = time.monotonic() + seconds
    while (left := family(mark)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not left, f"orphans: {[(process.pid, process.ppid(), ' '.join(process.cmdline())[:200]) for process in left]}"


def found_in(folder: Path) -> dict[str, pd.DataFrame]:
    """Read what a study found, without durations: catalogue, scores, and the tables of its reports."""
    work, reports = folder / "work/killed", folder / "reports/killed"
    paths = [work / "catalogue.parquet", *sorted((work / "scores").rglob("*.parquet")), *sorted((work / "runs").glob("*/history.parquet"))]
    tables = {str(path.relative_to(folder)): pd.read_parquet(path) for path in paths}
    tables |= {str(path.relative_to(folder)): pd.read_csv(path) for path in sorted(reports.glob("tables/*.csv"))}
    return {name: table.drop(columns="seconds", errors="ignore") for name, table in tables.items()}


def leavings(folder: Path) -> list[str]:
    """List what must not be left: half-written files, partial reports, claims, connection files, temporary files."""
    patterns = ("*.partial*", "*.claim", "kernel-*.json", "*.failed.json", "*.begun.json", "staging")
    found = [str(path) for pattern in patterns for path in folder.rglob(pattern)]
    return found + [str(path) for path in (folder / "tmp").iterdir()] + [str(path) for path in folder.rglob("owners/*")]


def main() -> None:
    """Compare the killed study with an uninterrupted one."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("kills", type=int, nargs="?", default=20)
    given.add_argument("seed", type=int, nargs="?", default=0)
    given.add_argument("--engine", choices=("local", "ray"), default="local")
    kills, seed, engine = vars(given.parse_args()).values()
    rng, mark, struck, rounds = random.Random(seed), uuid.uuid4().hex, [], 0
    victims = OF_RAY if engine == "ray" else VICTIMS
    with tempfile.TemporaryDirectory() as place:
        whole = emptied(Path(place) / "whole")
        study = study_of_24_runs(Path(place) / "params")
        began = time.monotonic()
        assert start(study, whole, mark, engine).wait() == 0, (whole / "printed.txt").read_text()[-3000:]
        length = time.monotonic() - began
        expected = found_in(whole)
        assert expected["work/killed/catalogue.parquet"]["run_id"].nunique() == 24
        print(f"uninterrupted: {length:.0f} s, {len(expected)} tables", flush=True)
        while len(struck) < kills:
            rounds += 1
            folder = emptied(Path(place) / f"killed{rounds}")
            complete = False
            while not complete:
                other = rng.sample(OTHER, rng.randint(0, 2)) if len(struck) < kills else []
                sweep = start(study, folder, mark, engine, *other)
                # Moments from the first import to the last page; a kill of a kernel or a worker leaves the sweep running.
                while len(struck) < kills and sweep.poll() is None:
                    try:
                        sweep.wait(rng.uniform(0.02, 0.25) * length)
                    except subprocess.TimeoutExpired:
                        struck.append(strike(rng.choice(victims), sweep, mark, rng))
                        print(f"kill {len(struck)}: {struck[-1]}", flush=True)
                code = sweep.wait()
                wait_for_nobody(mark, PATIENCE[engine])
                complete = code == 0 and not other
            found = found_in(folder)
            assert sorted(found) == sorted(expected), set(found) ^ set(expected)
            for name, table in expected.items():
                pd.testing.assert_frame_equal(found[name], table, check_exact=True, obj=name)
            assert not (left := leavings(folder)), left
            print(f"round {rounds}: {len(expected)} tables are equal row for row, nothing is left", flush=True)
    counts = ", ".join(f"{victim} {struck.count(victim)}" for victim in victims)
    print(f"{len(struck)} kills ({counts}) in {time.monotonic() - began:.0f} s: all equal")


if __name__ == "__main__":
    main()

"""Kill a study again and again, each time inside a write, other values and claims between, and compare it with an uninterrupted one.

``killed.py [KILLS] [SEED]``: SIGKILL of Snakemake, of papermill's process, of the kernel, of a training process and of the sweep,
SIGTERM, and Ctrl-C. Nothing may be left: no process, no half-written file, no lock that keeps the next start away.
``killed.py --proofs`` shows that this test can fail: it must, with writes that are not atomic, with the check of half-made outputs off, and
with parameters left out of what makes a notebook run again; ``sitecustomize.py`` beside this file breaks these.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd
import psutil
import yaml

from tests.sweep.conftest import Project, at_work

ROOT, HERE = Path(__file__).resolve().parents[2], Path(__file__).resolve().parent
VICTIMS = ("snakemake", "papermill", "kernel", "trainer", "sweep", "sigterm", "ctrl-c")
KINDS = {
    "ipykernel_launcher": "kernel",
    "spawn_main": "trainer",
    "helpers.sweep.execute": "papermill",
    "-m snakemake": "snakemake",
}
TABLE = "reports/killed/tables/bootstrap1"
WRITES = {
    "not-atomic": "claims.json",
    "no-check": TABLE,
    "": TABLE,
}  # that are struck where something is broken
TARGETS = (
    "",
    "result.json",
    ".parquet",
    ".csv",
    "done/",
    "history",
    "checkpoint",
    "data.json",
    "03_cam_scoring.ipynb",
)
BOOTSTRAPS = (
    "03_cam_scoring.bootstrap_resamples=25",
    "03_cam_scoring.cam_threshold=0.3",
)
OTHER = (*BOOTSTRAPS, "minimum_train_accuracy=0.3", "02_grid_training.run_count=2")
CLAIM = {
    "claim": "Overlap goes with a smaller gap",
    "measure": "iou",
    "question": "r_gap",
    "side": "below",
    "primary": True,
}
PATIENCE = 20.0  # seconds in which a family of processes must be gone

# Two notebooks that take a second: the numbers of a bootstrap of the catalogue, and of what is claimed of it.
BOOTSTRAP = """import numpy as np
from helpers.report.notebook import Report
report = Report.begin("03_cam_scoring", globals())
import pandas as pd
gaps = pd.read_parquet(report.work / "catalogue.parquet")["gap"].dropna().to_numpy()
draws = np.random.default_rng(0).choice(gaps, (report.parameters.bootstrap_resamples, len(gaps))).mean(axis=1)
frame = pd.DataFrame({"low": [np.quantile(draws, report.parameters.cam_threshold)], "draws": [len(draws)], "n": [len(gaps)]})
for number in range(4):
    report.table(frame + number, f"bootstrap{number}")"""
CLAIMED = """from helpers.report.notebook import Report
report = Report.begin("04_baselines", globals())
import pandas as pd
from helpers.statistics.claims import claims_of_study
catalogue = pd.read_parquet(report.work / "catalogue.parquet")
rows = [claim | {"models": len(catalogue)} for claim in claims_of_study(report.work).claims]
report.table(pd.DataFrame(rows), "claims")"""


def project(folder: Path) -> Path:
    """A copy of the project with a study of four tiny runs, trained in two shares, and two notebooks after it that take no time."""
    made = Project(folder, whole=True)
    (folder / "faults").mkdir()
    for name in ("01_data_subset", "02_grid_training"):
        shutil.copy(ROOT / f"notebooks/{name}.ipynb", folder / "notebooks")
    declared = "bootstrap_resamples: int = 20  # draws\ncam_threshold: float = 0.1  # quantile\npictured_images: int = 5  # of nothing"
    for stem, source in (("03_cam_scoring", BOOTSTRAP), ("04_baselines", CLAIMED)):
        made.notebook(stem, declared, source)
    write_study(folder)
    return folder


def write_study(folder: Path, side: str = "below") -> None:
    """Write the study's file, with a claim of this side."""
    images = {
        "class_ids": ["synthetic_disc", "synthetic_cross", "synthetic_bars"],
        "image_size": 16,
    }
    grid = {
        "batch_sizes": [8],
        "learning_rates": [0.01, 0.003],
        "optimizers": ["adam"],
        "weight_decays": [0.0],
        "augmentations": [False],
    }
    grid |= {
        "pretrained_levels": [False],
        "run_count": 0,
        "stem": "strided",
        "max_epochs": 3,
        "jobs": 2,
    }
    subset = images | {"images_per_class": 14, "test_images_per_class": 4}
    notebooks = {
        "01_data_subset": subset,
        "02_grid_training": grid,
        "03_cam_scoring": {},
        "04_baselines": {},
    }
    common = {"device": "cpu", "minimum_train_accuracy": 0.0}
    study = {
        "claims": [CLAIM | {"side": side}],
        "common": common,
        "notebooks": notebooks,
        "sweep": {"02_grid_training": {"shard": 2}},
    }
    (folder / "params/killed.yaml").write_text(yaml.safe_dump(study))


def start(folder: Path, broken: str, *other: str) -> subprocess.Popen:
    """Begin, or go on with, the study, with other values where some are given."""
    command = [
        sys.executable,
        "-m",
        "helpers.sweep",
        "killed",
        *[word for value in other for word in ("--set", value)],
    ]
    environment = os.environ | {
        "WORKBOOK_FAULTS_FOLDER": str(folder / "faults"),
        "WORKBOOK_FAULTS_BROKEN": broken,
    }
    environment |= {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), str(folder)]),
    }
    with (folder / "printed.txt").open("ab") as printed:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )


def kind_of(process: psutil.Process) -> str:
    """Which part a process plays, by its command line."""
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    return next((kind for text, kind in KINDS.items() if text in line), "")


def strike(
    victim: str, sweep: subprocess.Popen, folder: Path, rng: random.Random
) -> str:
    """Kill a victim, or the sweep where there is none of its kind at this moment."""
    signals = {"sigterm": signal.SIGTERM, "ctrl-c": signal.SIGINT}
    there = [process for process in at_work(folder) if kind_of(process) == victim]
    if there:
        rng.choice(there).kill()
        return victim
    sweep.send_signal(signals.get(victim, signal.SIGKILL))
    return victim if victim in signals else "sweep"


def wait_for_a_write(
    folder: Path, sweep: subprocess.Popen, target: str, seconds: float
) -> bool:
    """Ask the next process that writes such a file to be slow, and wait until it is inside of the write; False when none was."""
    (folder / "faults/armed").write_text(target)
    limit = time.monotonic() + seconds
    while (
        not (inside := list((folder / "faults").glob("inside-*")))
        and sweep.poll() is None
        and time.monotonic() < limit
    ):
        time.sleep(0.01)
    (folder / "faults/armed").unlink(missing_ok=True)
    for path in inside:
        path.unlink(missing_ok=True)
    return bool(inside)


def wait_for_nobody(folder: Path) -> None:
    """Wait until no process is left; it would be an orphan."""
    limit = time.monotonic() + PATIENCE
    while (left := at_work(folder)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not left, (
        f"orphans: {[(process.pid, process.ppid(), ' '.join(process.cmdline())[:200]) for process in left]}"
    )


def tables(folder: Path) -> dict[str, pd.DataFrame]:
    """What a study found, without durations: its runs' histories, its catalogue, and the tables of its report."""
    paths = [
        *folder.glob("work/killed/runs/*/history.parquet"),
        folder / "work/killed/catalogue.parquet",
        *folder.glob("reports/killed/tables/*"),
    ]
    read = {
        path: pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
        for path in paths
        if path.suffix in (".csv", ".parquet")
    }
    return {
        str(path.relative_to(folder)): table.drop(columns="seconds", errors="ignore")
        for path, table in read.items()
    }


def compare(found: dict[str, pd.DataFrame], expected: dict[str, pd.DataFrame]) -> None:
    """All tables are there and equal, row for row."""
    assert sorted(found) == sorted(expected), set(found) ^ set(expected)
    for name, table in expected.items():
        pd.testing.assert_frame_equal(found[name], table, check_exact=True, obj=name)


def leavings(folder: Path) -> list[str]:
    """What must not be left: half-written files, staged ones, connection files."""
    patterns = ("*.partial", "kernel-*.json", "work/killed/staging/*/*")
    return [str(path) for pattern in patterns for path in folder.rglob(pattern)]


def killed(
    folder: Path,
    expected: dict[str, pd.DataFrame],
    length: float,
    kills: int,
    rng: random.Random,
) -> list[str]:
    """Strike a study so many times, then let it complete with its own values and claims; what was struck."""
    struck, starts, complete = [], 0, False
    while not complete:
        starts += 1
        assert starts < 3 * kills + 6, (
            "the study does not complete: "
            + (folder / "printed.txt").read_text()[-2000:]
        )
        own = len(struck) >= kills or rng.random() < 0.3
        write_study(folder, "below" if own else rng.choice(["below", "above"]))
        sweep = start(
            folder, "", *([] if own else rng.sample(OTHER, rng.randint(1, 2)))
        )
        while len(struck) < kills and sweep.poll() is None:
            target = rng.choice(TARGETS)
            try:
                sweep.wait(rng.uniform(0.0, 0.15) * length)
            except subprocess.TimeoutExpired:
                inside = wait_for_a_write(folder, sweep, target, 0.2 * length)
                if sweep.poll() is None:
                    struck.append(strike(rng.choice(VICTIMS), sweep, folder, rng))
                    print(
                        f"  kill {len(struck)}: {struck[-1]}{' in a write of ' + (target or 'any file') if inside else ''}",
                        flush=True,
                    )
        code = sweep.wait()
        wait_for_nobody(folder)
        complete = code == 0 and own
    compare(tables(folder), expected)
    left = leavings(folder)
    assert not left, left
    return struck


def proof(
    place: Path, whole: Path, expected: dict[str, pd.DataFrame], broken: str
) -> None:
    """With something broken, a study that is struck in a write, or was run with other values, is run again with its own."""
    folder = place / f"broken-{broken}"
    if broken in ("", "no-check"):
        shutil.copytree(whole, folder)
    else:
        project(folder)
    sweep = start(folder, broken, *(() if broken == "not-atomic" else BOOTSTRAPS))
    if broken != "no-parameters":
        assert wait_for_a_write(folder, sweep, WRITES[broken], 600.0), (
            "nobody wrote: " + (folder / "printed.txt").read_text()[-1500:]
        )
        strike(
            "sweep" if broken == "not-atomic" else "snakemake",
            sweep,
            folder,
            random.Random(0),
        )
    sweep.wait()
    wait_for_nobody(folder)
    assert start(folder, broken).wait() == 0, (
        "the study does not complete: " + (folder / "printed.txt").read_text()[-400:]
    )
    wait_for_nobody(folder)
    compare(tables(folder), expected)


def main() -> None:
    """Compare the killed study with an uninterrupted one, or show that this can fail."""
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("kills", type=int, nargs="?", default=20)
    given.add_argument("seed", type=int, nargs="?", default=0)
    given.add_argument("--proofs", action="store_true")
    kills, seed, proofs = vars(given.parse_args()).values()
    with tempfile.TemporaryDirectory() as place:
        whole, began = project(Path(place) / "whole"), time.monotonic()
        assert start(whole, "").wait() == 0, (whole / "printed.txt").read_text()[-3000:]
        length, expected = time.monotonic() - began, tables(whole)
        print(f"uninterrupted: {length:.0f} s, {len(expected)} tables", flush=True)
        if proofs:
            for broken in ("", "not-atomic", "no-check", "no-parameters"):
                try:
                    proof(Path(place), whole, expected, broken)
                    told = "all equal"
                except AssertionError as fault:
                    told = f"fails: {' '.join(str(fault).split())[:300]}"
                print(f"{broken or 'nothing broken'}: {told}", flush=True)
                assert ("fails" in told) == bool(broken), (
                    "this test cannot fail" if broken else told
                )
            return
        struck = killed(
            project(Path(place) / "killed"),
            expected,
            length,
            kills,
            random.Random(seed),
        )
        counts = ", ".join(f"{victim} {struck.count(victim)}" for victim in VICTIMS)
        print(
            f"{len(struck)} kills ({counts}) in {time.monotonic() - began:.0f} s: {len(expected)} tables are equal, nothing is left"
        )


if __name__ == "__main__":
    main()

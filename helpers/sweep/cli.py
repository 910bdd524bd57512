"""``python -m helpers.sweep STUDY``: every fault of the study's file, then Snakemake, one line per notebook as it starts and ends."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

from helpers.files import PROJECT_ROOT, read_json
from helpers.parameters import StudyError
from helpers.statistics.claims import keep_claims
from helpers.sweep.execute import die_with_parent, visible_gpus
from helpers.sweep.study import Study, load_study, machine_faults, measure_faults

_EVERY = 30.0  # seconds between two looks at what runs
_REASON = re.compile(r"^ *(?:local)?rule (\S+):$|^ *reason: (.*)$|^ {4,}([-+<>]|before|now)(.*)$", re.M)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study; 0 when it is complete, 1 when something failed, 2 when something is wrong before the start, 130 when interrupted."""
    own, _, handed = (part := list(sys.argv[1:] if arguments is None else arguments)), 0, []
    if "--" in part:
        own, handed = part[: part.index("--")], part[part.index("--") + 1 :]
    parser = argparse.ArgumentParser(
        prog="python -m helpers.sweep",
        description=__doc__.partition(": ")[2],
        epilog="After -- stands what Snakemake is to be told, such as: -- --executor slurm --jobs 8",
    )
    add = parser.add_argument
    add("study", nargs="?", help="name of a study in params, or a file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a parameter; notebook.name=value for one notebook",
    )
    add("--dry-run", action="store_true", help="what would run, and why")
    add("--status", action="store_true", help="how far the study is, whoever runs it")
    add("--force", action="append", default=[], metavar="NOTEBOOK", help="run this notebook although nothing changed")
    add("--cores", type=int, default=0, metavar="N", help="of the processor; 0 takes all")
    add("--gpus", type=int, default=-1, metavar="N", help="executions side by side, each with a GPU of its own; as many as there are")
    add("--plan", action="store_true", help="what the study costs here, from a few timed steps of its networks")
    add("--new", metavar="NAME", help="write params/NAME.yaml for the images at --data")
    add("--data", default="", metavar="PATH", help="with --new: folder or .zip of images in a folder per class, with boxes")
    add("--minutes", type=float, default=60.0, metavar="M", help="with --new: what the study may take here")
    given = parser.parse_args(own)
    if not (PROJECT_ROOT / "Snakefile").is_file():
        print(f"a sweep needs a checkout of the project with its notebooks, and {PROJECT_ROOT} is none", file=sys.stderr)
        return 2
    try:
        if given.new:
            from helpers.sweep import new  # late: it loads torch

            return new.write_new(given.new, given.data, given.minutes)
        if not given.study:
            parser.error("name a study, such as demo, or write one for your images with --new NAME --data PATH")
        if given.plan:
            from helpers.sweep import plan  # late: it loads torch

            return plan.print_plan(load_study(given.study, given.set))
        if given.status:
            return print_status(load_study(given.study, given.set), given)
        return run_study(given.study, given.set, given.force, given.dry_run, given.cores, given.gpus, handed)
    except StudyError as fault:
        print(f"{len(fault.faults)} fault(s), nothing was run:\n" + "\n".join(f"  {line}" for line in fault.faults), file=sys.stderr)
        return 2


def run_study(
    path: Path | str,
    overrides: Sequence[str] = (),
    force: Sequence[str] = (),
    dry_run: bool = False,
    cores: int = 0,
    gpus: int = -1,
    handed: Sequence[str] = (),
) -> int:
    """Check a study and hand it to Snakemake; see ``main`` for the result.

    Args:
        path: of the study file, or its name.
        overrides: "name=value" or "notebook.name=value".
        force: notebooks to run in any case.
        dry_run: only print what would run, and why.
        cores: of this machine; 0 takes all.
        gpus: executions that have one each side by side; -1 takes all of this machine.
        handed: further arguments of Snakemake.
    """
    study = load_study(path, overrides)
    unknown = [
        f"--force {name}: this study runs {', '.join(item.name for item in study.executions)}"
        for name in force
        if name not in [item.name for item in study.executions]
    ]
    if faults := [*unknown, *machine_faults(study), *measure_faults(study)]:
        raise StudyError(*faults)
    changed = study.withdraw_changed()
    command = _command(path, overrides, force, cores, visible_gpus() if gpus < 0 else range(gpus), handed)
    if dry_run:
        return print_reasons(command, study, changed)
    study.work.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(study.work / "sweep.lock").acquire(timeout=0):
            keep_claims(study.work, study.claims)  # before anything runs, so that it is known which came first
            return _follow(command, study, remote=bool(handed))
    except Timeout:
        raise StudyError(f"another sweep works on {study.work}; wait until it ends, or end it") from None


def _command(
    path: Path | str, overrides: Sequence[str], force: Sequence[str], cores: int, gpus: Sequence, handed: Sequence[str]
) -> list[str]:
    found = [sys.executable, "-m", "snakemake", "-s", str(PROJECT_ROOT / "Snakefile"), "--nolock", "--rerun-incomplete", "--keep-going"]
    found += ["--cores", str(cores or "all"), *(["--resources", f"gpu={len(gpus)}"] if gpus else [])]
    found += ["--forcerun", *force] if force else []
    study = str(path) if not str(path).endswith(".yaml") else str(Path(path).resolve())
    return [
        *found,
        "--config",
        f"study={study}",
        f"set={json.dumps(list(overrides))}",
        f"threads={max(1, (cores or os.cpu_count()) // max(1, len(gpus)))}",
        *handed,
    ]


def reasons(command: Sequence[str], study: Study) -> dict[str, str]:
    """Why Snakemake would run each execution; those that it would not are not there."""
    done = subprocess.run([*command, "--dry-run"], cwd=PROJECT_ROOT, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise StudyError(f"Snakemake: {(done.stderr or done.stdout).strip()[-2000:]}")
    found, name = {}, ""
    for line in (done.stdout + done.stderr).splitlines():
        if match := re.fullmatch(r"(?:local)?rule (\S+):", line.strip()):
            name = match[1]
        elif line.strip().startswith("reason: "):
            found[name] = line.strip().removeprefix("reason: ")
        elif name in found and re.match(r"\s+(before|now): ", line):
            found[name] += " " + line.strip()
    return found


def print_reasons(command: Sequence[str], study: Study, changed: dict[str, list[str]]) -> int:
    """Print of each execution whether it would run, and why."""
    found = reasons(command, study)
    for item in study.executions:
        reason = found.get(item.name, "complete, nothing changed")
        print(f"{item.name}: " + (f"what it made was changed: {', '.join(changed[item.name][:5])}" if item.name in changed else reason))
    return 0


def print_status(study: Study, given: argparse.Namespace) -> int:
    """Print from the disk how far a study is, whoever runs it."""
    would = reasons(_command(given.study, given.set, [], 0, [], []), study)
    for item in study.executions:
        report = study.reports / f"{item.name}.ipynb"
        published = read_json(report)["metadata"].get("workbook", {}).get("executed", "") if report.is_file() else ""
        if now := _now(study, item.name):
            print(f"{item.name}: runs, {now}")
        elif item.name not in would:
            print(f"{item.name}: complete")
        elif published and not study.work.is_dir():
            print(f"{item.name}: published {published} UTC; nothing of it is in {os.path.relpath(study.work)}, so a sweep runs it anew")
        else:
            print(f"{item.name}: waits: {would[item.name]}")
    return 0


def _now(study: Study, name: str) -> str:
    """Where a running notebook is: its section, and the progress bar that was drawn last; "" where it does not run."""
    try:
        place = read_json(study.work / "now" / study.name / f"{name}.json")
    except (FileNotFoundError, ValueError):
        return ""
    return f"{place['heading']}: {place['bar']}" if place["bar"] else place["heading"]


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT_ROOT), os.environ.get("PYTHONPATH", "")]))}


def _follow(command: Sequence[str], study: Study, *, remote: bool) -> int:
    """Start Snakemake, print what executions log and every half minute where they are, and end it with all of its own when interrupted."""
    path, failed = study.work / "log" / f"{study.name}.log", []
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as log, (path.with_suffix(".snakemake.log")).open("w+") as printed:
        log.seek(0, os.SEEK_END)
        usual = signal.signal(signal.SIGTERM, signal.default_int_handler)  # what a cluster sends before it takes a machine away
        process = subprocess.Popen(
            command,
            cwd=PROJECT_ROOT,
            stdout=printed,
            stderr=printed,
            env=_environment(),
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        try:
            told = time.monotonic()
            while process.poll() is None or _tell(log, failed):
                _tell(log, failed)
                if time.monotonic() - told > _EVERY:
                    told = time.monotonic()
                    for item in study.executions:
                        if now := _now(study, item.name):
                            print(f"  {item.name}: {now}", flush=True)
                time.sleep(0.2)
        except KeyboardInterrupt:
            _end(process, remote)
            print("interrupted; the same command goes on where this one stopped", file=sys.stderr)
            return 130
        finally:
            signal.signal(signal.SIGTERM, usual)
        if process.returncode and not failed:
            printed.seek(0)
            print(f"Snakemake ended with {process.returncode}:\n{printed.read()[-3000:]}", file=sys.stderr)
    if not process.returncode and not failed:
        print(f"complete: {os.path.relpath(study.reports / 'index.html')}")
    return 1 if process.returncode else 0


def _tell(log: IO[str], failed: list[str]) -> bool:
    """Print what was logged since; whether there was anything."""
    lines = log.readlines()
    for line in lines:
        text = line[20:].rstrip("\n").replace(" | ", "\n")
        failed += [text] if " failed: " in text else []
        print(text, flush=True)
    return bool(lines)


def _end(process: subprocess.Popen, remote: bool) -> None:
    """End Snakemake. Here it takes all that it started with it; on a cluster it first cancels its jobs there."""
    if remote:
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()

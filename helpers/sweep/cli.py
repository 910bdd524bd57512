"""A study file to executed report notebooks: only those whose inputs changed, split over processes and machines, resumed at any time."""

import argparse
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers import locks
from helpers.files import PROJECT_ROOT
from helpers.locks import LockHolder
from helpers.notebook_parameters import StudyError, shard_slice
from helpers.statistics.claims import keep_claims
from helpers.sweep import engines, listing, progress, publication, worker
from helpers.sweep.executions import Places, Sources, faults_of, reason_to_run
from helpers.sweep.schedule import Rules, Sweep
from helpers.sweep.study_file import Execution, load_study, study_claims, study_path

_VARIANT = re.compile(r"(?!main$)[A-Za-z0-9][A-Za-z0-9._+-]{0,60}")
_INTERRUPTED = "interrupted; the same command goes on where this one stopped"


@dataclass(frozen=True)
class Options:
    """How a study is executed; none of it changes a result."""

    engine: str = "local"
    address: str = ""
    jobs: int = 0
    per_gpu: int = 1
    shard: str = ""
    time_limit: float = 0.0  # minutes
    max_failures: int = 0
    retries: int = 2
    min_free: float = 1.0  # GiB


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study from the command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m helpers.sweep", description="Run the notebooks of a study and write its report.")
    add = parser.add_argument
    add("study", type=study_path, nargs="?", help="params/<study>.yaml, or the bare name of a study there")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a parameter; notebook.name=value for one")
    add("--as", dest="variant", default="", metavar="NAME", help="publish beside the main report: reports/<study>/variants/NAME")
    add("--force", action="append", default=[], metavar="NOTEBOOK", help="run this notebook although nothing changed")
    add("--dry-run", action="store_true", help="say what would run and why, and run nothing")
    add("--plan", action="store_true", help="time a few steps of every network, say what the study costs, and run nothing")
    add("--status", action="store_true", help="tell from the disk how far the study is, and run nothing")
    add("--new", default="", metavar="NAME", help="write params/NAME.yaml for the images at --data, and run nothing")
    add("--data", default="", metavar="PATH", help="with --new: folder or .zip of images in a folder per class, with boxes")
    add("--minutes", type=float, default=60.0, metavar="M", help="with --new: what the study may take on this machine")
    add("--engine", choices=("local", "ray"), default="local", help="where executions run: this machine (default), or a Ray cluster")
    add("--address", default="", help="of the Ray cluster: local, or HOST:PORT of its head")
    add("--jobs", type=int, default=0, metavar="N", help="executions side by side; 0 takes the GPUs, or half the cores")
    add("--per-gpu", type=int, default=1, metavar="N", help="executions that share a GPU")
    add("--shard", default="", metavar="I/N", help="run only the I-th of N shares of the parts, as a task of a SLURM array does")
    add("--time-limit", type=float, default=0.0, metavar="MINUTES", help="end an execution that takes longer; 0 is no limit")
    add("--retries", type=int, default=2, metavar="N", help="further tries after a lost kernel, worker or machine")
    failing = parser.add_mutually_exclusive_group()
    failing.add_argument("--keep-going", action="store_true", help="run what does not depend on a failed execution (default)")
    failing.add_argument("--fail-fast", action="store_true", help="stop at the first failure")
    failing.add_argument("--max-failures", type=int, default=0, metavar="N", help="stop after N failures")
    add("--min-free", type=float, default=1.0, metavar="GIB", help="disk space that must be free before anything starts")
    given = parser.parse_args(arguments)
    if given.new:
        from helpers.sweep import new_study  # late: it loads torch

        return new_study.write_new(given.new, given.data, given.minutes)
    if not given.study:
        parser.error("name a study, such as demo, or write one for your images with --new NAME --data PATH")
    limits = {"time_limit": given.time_limit, "retries": given.retries, "max_failures": 1 if given.fail_fast else given.max_failures}
    places = {"engine": given.engine, "address": given.address, "jobs": given.jobs, "per_gpu": given.per_gpu, "shard": given.shard}
    options = Options(**places, **limits, min_free=given.min_free)
    if given.status:
        return print_status(given.study, given.set, variant=given.variant)
    if given.plan:
        from helpers.sweep import cost  # late: it loads torch

        try:
            return cost.print_plan(given.study, given.set)
        except StudyError as fault:
            print("\n".join(fault.faults), file=sys.stderr)
            return 2
    return run_study(given.study, given.set, force=given.force, dry_run=given.dry_run, variant=given.variant, options=options)


def run_study(
    study: Path,
    overrides: Sequence[str] = (),
    *,
    force: Sequence[str] = (),
    dry_run: bool = False,
    variant: str = "",
    root: Path = PROJECT_ROOT,
    options: Options = Options(),
) -> int:
    """Execute the notebooks of a study whose inputs changed, in order, and write the pages of its report.

    Args:
        study: the study file.
        overrides: "name=value" or "notebook.name=value".
        force: notebooks to run in any case.
        dry_run: only print what would run.
        variant: name under which what differs from the main report is published beside it; "" is the main report.
        root: the project; notebooks, helpers, work and reports lie below it.
        options: how it is executed.

    Returns:
        0 when everything (of this shard) is complete, 1 when something failed, 2 when something is wrong before it starts, 130 when
        interrupted.
    """
    before = study.read_bytes() if study.is_file() else b""
    if variant and not _VARIANT.fullmatch(variant):
        print(f"--as {variant!r}: a variant is named by letters, digits and .+-_, and not main, such as threshold-0.2", file=sys.stderr)
        return 2
    places, gpus = Places(root.resolve(), study.stem, variant), engines.visible_gpus()
    executions, faults = _checked(study, overrides, force, options, places, gpus)
    if dry_run and executions:
        _print_plan(executions, set(force), places)
        _print_changes(executions, places)
    if faults:
        print(f"{len(faults)} fault(s), nothing was run:\n" + "\n".join(f"  {line}" for line in faults), file=sys.stderr)
        return 2
    if dry_run:
        return 0
    usual = signal.getsignal(signal.SIGTERM)
    try:
        signal.signal(signal.SIGTERM, _interrupt)  # what a cluster sends before it takes a machine away
        try:
            keep_claims(places.work(executions[0]), study_claims(study))  # before anything runs, so that it is known which came first
        except ValueError as fault:
            print(f"1 fault(s), nothing was run:\n  {fault}", file=sys.stderr)
            return 2
        code = _execute(executions, frozenset(force), options, places, gpus)
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        return 130
    except OSError as fault:
        print(f"the sweep stopped: {fault}; what was complete is kept, and the same command goes on", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGTERM, usual)
    if not study.is_file() or study.read_bytes() != before:
        print(f"{study} was edited meanwhile; this ran as it stood at the start, and the same command runs what the edit changes")
    return code


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _checked(
    study: Path, overrides: Sequence[str], force: Sequence[str], options: Options, places: Places, gpus: Sequence[str]
) -> tuple[list[Execution], list[str]]:
    """Read the study and list everything that is wrong with it, with the options, and with this machine."""
    executions, known, faults = [], [], []
    try:
        executions = known = load_study(study, places.root / "notebooks", overrides)
    except StudyError as fault:
        faults, known = fault.faults, fault.executions
    stems = dict.fromkeys(item.notebook.stem for item in known)
    faults += [f"--force {name}: this study runs {', '.join(stems)}" for name in force if known and name not in stems]
    try:
        shard_slice(options.shard)
    except ValueError as fault:
        faults.append(f"--shard: {fault}")
    least = {"jobs": 0, "per_gpu": 1, "time_limit": 0, "retries": 0, "max_failures": 0, "min_free": 0}
    for name, low in least.items():
        if not low <= getattr(options, name) < math.inf:
            faults.append(f"--{name.replace('_', '-')} is {getattr(options, name)}, and must be at least {low} and finite")
    if options.engine == "ray" and (fault := engines.address_fault(options.address)):
        faults.append(fault)
    if options.engine != "ray" and options.address:
        faults.append(f"--address {options.address} is of --engine ray, and the engine is {options.engine}; name both or none")
    return executions, faults + faults_of(known, places, None if options.engine == "ray" else gpus, options.min_free)


def _print_plan(executions: Sequence[Execution], force: set[str], places: Places) -> None:
    """Print of each execution whether it would run and why; what earlier ones will find is not known before they ran."""
    for item, reason, running in _foreseen(executions, force, places):
        doubt = f"runs if the results of {', '.join(running)} change" if running else "complete, nothing changed"
        print(f"{item.name}: {reason or doubt}", flush=True)


def _foreseen(executions: Sequence[Execution], force: set[str], places: Places) -> Iterator[tuple[Execution, str, list[str]]]:
    """Each execution with the reason why it runs, "" where none is known, and the stages before it that run."""
    sources, upstream, running = Sources(places.root), {}, []
    for stage, members in progress.stages(executions).items():
        reasons = {}
        for item in members:
            inputs = sources.inputs_of(item, upstream)
            reasons[item.name] = "forced" if item.notebook.stem in force else reason_to_run(item, places, inputs)
            yield item, reasons[item.name], list(running)
        if all(publication.known(places.record(item)) or not reasons[item.name] for item in members):
            upstream = Sweep.after(upstream, stage, Sweep.results(members, places, sources, upstream))
        running += [stage] if any(reasons.values()) else []


def _execute(executions: Sequence[Execution], force: frozenset[str], options: Options, places: Places, gpus: list[str]) -> int:
    work, reports = places.work(executions[0]), places.reports(executions[0])
    rules = Rules(force, options.retries, options.max_failures, shard_slice(options.shard))
    with LockHolder(work / "claims") as owner:
        others, gone = owner.others()
        for record in gone:
            worker.end_family(f"{record['token']}.")
            shutil.rmtree(engines.scratch(record["token"]), ignore_errors=True)
        engine = _engine(options, places.root, work, owner.token, gpus)
        sweep = Sweep(places, engine, owner, rules, progress.Display())
        try:
            sweep.run(executions)
        finally:
            engine.close()
        others, later = owner.others()
        if (sweep.ran or gone or later) and not others:
            _clear([work, reports])
            shutil.rmtree(work / "staging", ignore_errors=True)
    sweep.display.draw([])
    if sweep.failures:
        print(f"{len(sweep.failures)} execution(s) failed:\n" + "\n".join(sweep.failures), file=sys.stderr)
        return 1
    if sweep.left_to_others:
        print(f"{sweep.left_to_others} execution(s) are left to the other shards; the last to finish closes the study")
        return 0
    _write_pages(executions, places)
    return 0


def _engine(options: Options, root: Path, work: Path, token: str, gpus: list[str]) -> engines.Engine:
    seconds = options.time_limit * 60
    if options.engine == "ray":
        return engines.RayEngine(root, options.address, options.jobs, options.per_gpu, seconds, token)
    slots = engines.slots_for(options.jobs, gpus, options.per_gpu)
    return engines.LocalEngine(root, work / "kernels.log", token, slots, gpus, seconds)


def _clear(folders: Sequence[Path]) -> None:
    """Delete what killed processes left half-written; called only while no other sweep is at work."""
    for folder in folders:
        for path in folder.rglob(".*.partial"):
            number = path.name.split(".")[-2]
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif not (number.isdigit() and locks.started(int(number))):  # a notebook in JupyterLab may be writing
                path.unlink(missing_ok=True)


def _write_pages(executions: Sequence[Execution], places: Places) -> None:
    print(f"report: {os.path.relpath(listing.publish_pages(executions, places), places.root)}")


def _print_changes(executions: Sequence[Execution], places: Places) -> None:
    if changes := listing.say_changes(executions, places):
        print(f"changed since it was published: {', '.join(changes)}")


def print_status(study: Path, overrides: Sequence[str] = (), *, variant: str = "", root: Path = PROJECT_ROOT) -> int:
    """Print from the disk how far a study is, whoever runs it and wherever; 2 when the study file is wrong."""
    try:
        executions = load_study(study, root / "notebooks", overrides)
    except StudyError as fault:
        print("\n".join(fault.faults), file=sys.stderr)
        return 2
    places = Places(root.resolve(), study.stem, variant)
    reasons = {item.name: reason for item, reason, _ in _foreseen(executions, set(), places)}
    tallies, lines = progress.from_disk(executions, places, LockHolder(places.work(executions[0]) / "claims").holder, reasons)
    print("\n".join(progress.progress_table(tallies, max(1, sum(tally.running for tally in tallies.values()))) + lines))
    _print_changes(executions, places)
    return 0

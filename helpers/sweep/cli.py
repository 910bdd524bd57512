"""``python -m helpers.sweep STUDY``.

Checks the study's file, starts Snakemake, and prints a line as each notebook starts
and ends.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

import psutil
from filelock import FileLock, Timeout

from helpers.files import PROJECT_ROOT
from helpers.parameters import StudyError
from helpers.statistics.claims import keep_claims
from helpers.sweep.execute import die_with_parent, temporary_folder_of
from helpers.sweep.gpus import Card, ask_torch, numbering_fault, visible_cards
from helpers.sweep.shares import with_shares
from helpers.sweep.study import (
    CheckedStudy,
    asks_only_combinations,
    from_records,
    further_faults,
    load_study,
    record_of,
)

# Cores that a job asks of a cluster by default, as in docs/slurm/config.yaml.
_CORES_OF_A_JOB = 8
# Options with which Snakemake runs jobs on other machines.
_ON_A_CLUSTER = ("-e", "--executor", "--profile", "--workflow-profile")
# Options with which Snakemake runs only a part of a study, or nothing.
_IN_PART = ("--until", "-U", "--omit-from", "-O", "--dry-run", "-n", "--touch", "-t")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a study, print its plan, or write the file of a new one.

    Args:
        arguments: of the command line; those after ``--`` are passed to Snakemake.

    Returns:
        0 if the study is complete, 1 if an execution failed, 2 for a fault that is
        found before the start, 130 if interrupted.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    for_snakemake = words[end + 1 :]
    parser = _parser()
    options = parser.parse_args(words[:end])
    if not options.study and not options.new:
        parser.error(
            "name a study, such as demo, or write one for your images with "
            "--new NAME --data PATH"
        )
    try:
        return _dispatch(options, for_snakemake)
    except StudyError as fault:
        print(f"{len(fault.faults)} fault(s), nothing was run:", file=sys.stderr)
        for line in fault.faults:
            print(f"  {line}", file=sys.stderr)
        return 2
    except OSError as fault:  # such as a full disk
        print(
            f"the sweep stopped: {fault}; what was complete is kept, and the same "
            "command goes on",
            file=sys.stderr,
        )
        return 1


def _parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.sweep",
        description="Run the notebooks of a study whose inputs changed, and publish "
        "its report.",
        epilog="What stands after -- is handed to Snakemake, such as: "
        "-- --executor slurm --jobs 8, or: -- --forcerun 03_cam_scoring",
    )
    add = parser.add_argument
    add("study", nargs="?", help="name of a study in params, or a file")
    add(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another value of a parameter; notebook.name=value for one alone",
    )
    add(
        "--vary",
        action="append",
        default=[],
        metavar="NOTEBOOK.NAME=VALUE,VALUE",
        help="execute a notebook once for each value, and compare; repeated: for each "
        "combination",
    )
    add(
        "--dry-run",
        "--status",
        dest="look",
        action="store_true",
        help="how far the study is, whoever runs it; what would run, and why",
    )
    add(
        "--cores",
        type=int,
        metavar="N",
        help="of the processor; all, or 8 for each job of a cluster",
    )
    add(
        "--gpus",
        type=int,
        metavar="N",
        help="as many executions side by side, each with a GPU of its own; as many as "
        "there are",
    )
    add(
        "--plan",
        action="store_true",
        help="what the study costs here, from a few timed steps of its networks",
    )
    _add_options_of_new(parser)
    return parser


def _add_options_of_new(parser: argparse.ArgumentParser) -> None:
    """The options that write a study file for a user's own images."""
    parser.add_argument(
        "--new", metavar="NAME", help="write params/NAME.yaml for the images at --data"
    )
    parser.add_argument(
        "--data",
        default="",
        metavar="PATH",
        help="with --new: folder or .zip of images, with boxes or without",
    )
    parser.add_argument(
        "--layout",
        default="auto",
        metavar="NAME",
        help="with --new: how the images lie there; a name of docs/images.md",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=60.0,
        metavar="M",
        help="with --new: what the study may take here",
    )


def _dispatch(options: argparse.Namespace, for_snakemake: Sequence[str]) -> int:
    """Do what the options ask for; modules that load torch are imported late."""
    if options.new:
        from helpers.sweep.new import write_new

        return write_new(
            options.new, options.data, options.minutes, layout=options.layout
        )
    study = load_study(options.study, options.set, variations=options.vary)
    if options.plan:
        from helpers.sweep.plan import print_plan

        return print_plan(study, options.gpus or 1)
    return _run(study, options, for_snakemake)


def _run(
    study: CheckedStudy, options: argparse.Namespace, for_snakemake: Sequence[str]
) -> int:
    """Run a study by Snakemake, or only print what would run and why.

    Args:
        study: as its file has it.
        options: of the command.
        for_snakemake: arguments that are passed on unchanged.

    Returns:
        The exit status of the command.
    """
    only_varied = asks_only_combinations(options.vary, options.set, study)
    study = from_records(study, only_varied=only_varied)
    if study.as_published:
        print(_without_images(study))
    remote = any(word.startswith(_ON_A_CLUSTER) for word in for_snakemake)
    faults = []
    usable = 0
    if options.look:
        usable = len(_cards_for(study))
    elif not remote:
        usable, faults = _usable_gpus(study)
    gpus = usable if options.gpus is None and not remote else options.gpus or 0
    study = with_shares(study, gpus)
    command = [*_command(options, gpus, remote), *for_snakemake]
    if options.look:
        return _look([*command, "--dry-run"], study)
    faults += further_faults(study)
    if faults:
        raise StudyError(*faults)
    _log_of(study).parent.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(study.work / "sweep.lock").acquire(timeout=0):
            _delete_halves(study)
            study.withdraw_failed()
            # Before anything runs, so that claims are known to precede results.
            keep_claims(study.work, study.claims)
            with _temporary_folder(study) as folder:
                status = _follow(command, study, remote, folder)
            return status or _concluded(study, for_snakemake)
    except Timeout:
        raise StudyError(
            f"another sweep works on {study.work}; wait until it ends, or end it"
        ) from None


def _without_images(study: CheckedStudy) -> str:
    """Sentence on what is run of a study whose images are not here."""
    path = study.as_published[0].parameters["data_path"]
    names = ", ".join(item.notebook for item in study.as_published)
    rest = "the rest runs"
    if all(item.combination for item in study.executions):
        varied = dict.fromkeys(item.notebook for item in study.executions)
        names = "the notebooks of the study's own report"
        rest = f"only the combinations of {', '.join(varied)} run,"
    return (
        f"{path} is not here, so {names} stand as they were published, and {rest} "
        f"from the records of {study.work_study}; to run all of it, put the "
        "images there or name their place by --set data_path=..."
    )


def _command(options: argparse.Namespace, gpus: int, remote: bool) -> list[str]:
    """The command line that starts Snakemake for the options of the command."""
    cores = options.cores
    threads = cores or _CORES_OF_A_JOB
    if not remote:
        cores = cores or len(os.sched_getaffinity(0))
        threads = max(1, cores // max(1, gpus))
    of_file = options.study.endswith(".yaml")
    name = str(Path(options.study).resolve()) if of_file else options.study
    return [
        *(sys.executable, "-m", "snakemake"),
        *("-s", str(PROJECT_ROOT / "Snakefile")),
        *("--nolock", "--rerun-incomplete", "--keep-going"),
        *("--cores", str(cores or os.cpu_count() or 1)),
        *(["--resources", f"gpu={gpus}"] if gpus else []),
        "--config",
        f"study={name}",
        f"set={json.dumps(options.set)}",
        f"vary={json.dumps(options.vary)}",
        f"threads={threads}",
        f"shares={gpus}",
    ]


def _devices(study: CheckedStudy) -> set[str]:
    """The devices that a study's parameters name, except the CPU."""
    return {item.parameters.get("device", "cpu") for item in study.executions} - {"cpu"}


def _cards_for(study: CheckedStudy) -> list[Card]:
    """The cards of this machine that a study may use."""
    return visible_cards() if _devices(study) else []


def _usable_gpus(study: CheckedStudy) -> tuple[int, list[str]]:
    """Count the GPUs of this machine that a study can use.

    Warnings by torch, such as of a driver that is too old, are printed.

    Returns:
        Their number, and a fault for each device that the study demands in vain.
    """
    demanded = sorted(_devices(study) - {"auto"})
    cards = _cards_for(study)
    if not cards and not demanded:
        return 0, []
    seen = ask_torch(None)
    if not seen["names"]:
        cause = f"torch {seen['torch']} can use no GPU here: {seen['words']}"
        if not demanded:
            print(f"no GPU is used: {cause}")
        return 0, [
            f"device is {device!r}, and {cause}; add --set device=auto to do without"
            for device in demanded
        ]
    if seen["words"]:
        print(f"torch {seen['torch']} says of the GPUs here: {seen['words']}")
    faults = [numbering_fault(device, cards) for device in demanded if cards]
    return len(cards) or len(seen["names"]), [fault for fault in faults if fault]


def _delete_halves(study: CheckedStudy) -> None:
    """Delete half-written files of killed processes, see ``complete_or_absent``."""
    for path in [*study.work.rglob(".*.partial"), *study.reports.rglob(".*.partial")]:
        process = path.name.split(".")[-2]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            path.unlink(missing_ok=True)


def _look(command: Sequence[str], study: CheckedStudy) -> int:
    """Print why each execution would run, and its last line in the log."""
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True)
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise StudyError(f"Snakemake ended with {done.returncode}: {words}")
    rule = r"rule (\S+):\n(?:    .*\n)*?    reason: (.*)\n"
    reasons = dict(re.findall(rule, done.stdout + done.stderr))
    index = study.reports / "index.html"
    if index.is_file() and not (study.work / "done" / study.name).is_dir():
        print(
            f"published: {os.path.relpath(index)}; made elsewhere, and here it would "
            "be made anew:"
        )
    log = _log_of(study).read_text(encoding="utf-8") if _log_of(study).is_file() else ""
    failed = study.failed()
    for item in study.executions:
        print(f"{item.name}: {_state(item.name, reasons, failed, log)}")
    return 0


def _state(
    name: str, reasons: Mapping[str, str], failed: Mapping[str, str], log: str
) -> str:
    """Reason why an execution would run, with its last line in the log."""
    if name in failed:
        return f"runs: failed: {' | '.join(map(str.strip, failed[name].splitlines()))}"
    if name not in reasons:
        return "complete, nothing changed"
    reason = _reason(reasons[name])
    lines = re.findall(rf"^(.{{19}}) +{re.escape(name)}:? (.*)", log, re.M)
    if not lines or lines[-1][1].startswith("done"):
        return reason
    return f"{reason}; at {': '.join(lines[-1])}"


def _log_of(study: CheckedStudy) -> Path:
    return study.work / "log" / f"{study.name}.log"


def _reason(text: str) -> str:
    """Snakemake's reason in words for users of a study."""
    reasons = []
    if "Missing output files" in text or "Incomplete output files" in text:
        reasons.append("has no complete results in work/")
    if "Params have changed" in text:
        reasons.append(f"changed: {_changed(text.partition(' now: ')[2])}")
    others = text.partition("updated by another job: ")[2]
    before = re.findall(r"([^\s/]+)\.json", others)
    if before:
        reasons.append(f"after {', '.join(before)}")
    return "runs: " + ("; ".join(reasons) or text)


def _changed(values: str) -> str:
    """The first five names of changed values, as Snakemake prints these."""
    without_job = re.sub(r"'\{.*\}'", "", values)
    names = sorted(set(re.findall(r"""["']([\w./]+) """, without_job)))
    if not names:
        return "values that it no longer has"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


@contextmanager
def _temporary_folder(study: CheckedStudy) -> Iterator[Path]:
    """A folder for temporary files of Snakemake and executions, deleted afterwards.

    The folder of a sweep that was killed is deleted when the study's next one starts.
    """
    folder = temporary_folder_of(study.work)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _follow(
    command: Sequence[str], study: CheckedStudy, remote: bool, temporary: Path
) -> int:
    """Start Snakemake and print what executions log; end it when interrupted.

    Args:
        command: that starts Snakemake.
        study: whose log is followed.
        remote: whether jobs run on a cluster.
        temporary: folder for temporary files.

    Returns:
        0, 1 where something failed, 130 where it was interrupted.
    """
    path = _log_of(study)
    # A cluster sends TERM before it takes a machine away; a process that a script
    # starts in the background ignores INT by default.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    with (
        path.open("a+", encoding="utf-8") as log,
        path.with_suffix(".snakemake.log").open("w+", encoding="utf-8") as printed,
    ):
        log.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            cwd=PROJECT_ROOT,
            stdout=printed,
            stderr=printed,
            start_new_session=True,
            preexec_fn=die_with_parent,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
        try:
            _print_until_ended(process, log)
        except KeyboardInterrupt:
            _end(process, remote)
            print(
                "interrupted; repeat the command to continue",
                file=sys.stderr,
            )
            return 130
        printed.seek(0)
        words = printed.read()
    if not process.returncode:
        return 0
    cause = f"Snakemake ended with {process.returncode}:\n{words[-1000:]}"
    failed = sorted(set(re.findall(r"^Error in rule (\S+):", words, re.M)))
    if failed:
        cause = f"{', '.join(failed)} failed or was killed"
    print(
        f"{cause}; repeat the command to continue; Snakemake's output is in "
        f"{os.path.relpath(printed.name)}",
        file=sys.stderr,
    )
    return 1


def _print_until_ended(process: subprocess.Popen, log: TextIO) -> None:
    """Print each new line of a log, without its time, until a process has ended."""
    running = True
    while running:
        running = process.poll() is None
        lines = [line[20:].replace(" | ", "\n  ") for line in log]
        print("".join(lines), end="", flush=True)
        time.sleep(0.2)


def _concluded(study: CheckedStudy, for_snakemake: Sequence[str]) -> int:
    """Print the outcome after Snakemake has ended without an error.

    Returns:
        0, or 1 if a combination of a sweep failed or the pages are missing.
    """
    index = study.reports / "index.html"
    failed = study.failed()
    if failed:
        names = ", ".join(failed)
        print(
            f"{names} failed, and the same command tries again; all else is in "
            f"{os.path.relpath(index)}",
            file=sys.stderr,
        )
        return 1
    if any(word.split("=")[0] in _IN_PART for word in for_snakemake):
        print("done as far as asked; the same command without -- completes the report")
        return 0
    if not index.is_file() or not record_of(study.work, study.name, "pages").is_file():
        print(
            f"all is executed, but {os.path.relpath(index)} was not written; "
            f"{os.path.relpath(_log_of(study))} says more",
            file=sys.stderr,
        )
        return 1
    for sweep in study.sweeps:
        if sweep.combinations():
            page = study.reports / "sweeps" / sweep.notebook / "index.html"
            print(f"compared: {os.path.relpath(page)}")
    print(f"complete: {os.path.relpath(index)}")
    return 0


def _end(process: subprocess.Popen, remote: bool) -> None:
    """End Snakemake and its jobs, which on a cluster it cancels itself."""
    with suppress(ProcessLookupError, subprocess.TimeoutExpired):
        if remote:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(60)
    process.kill()
    process.wait()

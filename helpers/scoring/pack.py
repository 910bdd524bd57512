"""A study's folder of work as one small zip for another machine: runs, catalogue, scores and values of single images; weights if asked.

Of a run that goes without its weights the result says so (``soundness.LEFT_OUT``), and logits go along as far as there is room. What is
taken is checked before anything is moved, and nothing complete is replaced by something partial.
"""

import errno
import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from helpers.data.manifest import MANIFEST
from helpers.files import complete_or_absent, inside, is_sound, read_json, remove
from helpers.locks import LockHolder
from helpers.training.catalogue import scored_measures
from helpers.training.soundness import LEFT_OUT, fault_of_run

ROOM = 40_000_000  # bytes of a pack without weights
_ENTRY_BYTES = 500  # that a zip takes for a file beside its content, its name twice included
_CATALOGUE = "catalogue.parquet"
_FACTS = (MANIFEST, "precision.json", "scoring_precision.json", "claims.json", f"pretraining/{MANIFEST}")
_PRETRAINING = "pretraining"  # a model set of its own below the study's
_OF_MODELS = ("scores", "test_logits", "target_logits")  # folders with files named after models, the first of which always go along
_KINDS = (".parquet", ".images.npz", ".safetensors")
_WORD = r"[\w@+-][\w@+.=-]*"  # of a path: neither hidden nor empty
_SEALED = rf"(?:{_WORD}|\.{_WORD}\.seal)"
_ENTRY = re.compile(
    rf"(?:pretraining/)?runs/{_WORD}/(?:config\.json|history\.parquet|result\.json|snapshot-(?:first|stop)\.safetensors)"
    rf"|scores/{_WORD}/{_SEALED}|test_logits/{_SEALED}|target_logits/{_WORD}/{_SEALED}|starts/{_SEALED}"
)


class Packed(NamedTuple):
    """What went into a pack."""

    runs: int
    models: int
    size: int  # bytes of the zip
    without_logits: int  # models whose logits, all or some, had no room


class Taken(NamedTuple):
    """What came out of a pack."""

    work: Path  # the study's folder
    taken: list[str]  # runs that were not here, or came with the weights that were left out here
    same: list[str]  # runs that were here; what they lacked of scores was taken
    other: list[str]  # runs that are here with other weights, or are trained here now: nothing of theirs was taken


def write_pack(work: Path, path: Path, *, weights: bool = False) -> Packed:
    """Pack a study's complete runs and their scores into a zip, whose entries lie below the study's name.

    Args:
        work: the study's folder.
        path: the zip; it is complete or absent.
        weights: also the snapshots, the pretrained starts, and all logits.

    Raises:
        FileNotFoundError: nothing is complete there.
    """
    runs, pretraining = (_complete(work / part / "runs") for part in ("", _PRETRAINING))
    if not runs or not (work / _CATALOGUE).is_file():
        raise FileNotFoundError(f"{work} has no complete run or no {_CATALOGUE}, so there is nothing to pack; train and score some first")
    models, lacking = [name for run in runs for name in _models(run)], set()
    with complete_or_absent(path) as temporary:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            room = ROOM - _add(archive, work, [work / name for name in (*_FACTS, _CATALOGUE) if (work / name).is_file()])
            room -= sum(_add_run(archive, work, run, weights) for run in [*runs, *pretraining])
            room -= _add(archive, work, sorted((work / "starts").glob("*")) if weights else [])
            for folder in _OF_MODELS:
                for model in models:
                    files = list(_files(work, folder, model))
                    if weights or folder == _OF_MODELS[0] or sum(file.stat().st_size + _ENTRY_BYTES for file in files) <= room:
                        room -= _add(archive, work, files)
                    else:
                        lacking.add(model)
        size = temporary.stat().st_size
    return Packed(len(runs), len(models), size, len(lacking))


def _complete(runs: Path) -> list[Path]:
    return [found.parent for found in sorted(runs.glob("*/result.json")) if not fault_of_run(found.parent)]


def _add(archive: zipfile.ZipFile, work: Path, files: Sequence[Path]) -> int:
    """Add files; bytes that they take in the zip."""
    size = 0
    for file in files:
        archive.write(file, name := f"{work.name}/{file.relative_to(work)}")
        size += archive.getinfo(name).compress_size + _ENTRY_BYTES
    return size


def _add_run(archive: zipfile.ZipFile, work: Path, run: Path, weights: bool) -> int:
    snapshots, result = sorted(run.glob("snapshot-*.safetensors")), read_json(run / "result.json")
    size = _add(archive, work, [run / "config.json", run / "history.parquet", *(snapshots if weights else [])])
    record = result | (LEFT_OUT if snapshots and not weights else {})
    archive.writestr(name := f"{work.name}/{run.relative_to(work)}/result.json", json.dumps(record, indent=1, sort_keys=True) + "\n")
    return size + archive.getinfo(name).compress_size + _ENTRY_BYTES


def _models(run: Path) -> list[str]:
    return [f"{run.name}@{snapshot['snapshot']}" for snapshot in read_json(run / "result.json")["snapshots"]]


def _files(work: Path, folder: str, model: str) -> Iterator[Path]:
    """Sound files of a model in a folder of the study and the folders in it, each followed by its seal."""
    for place in [work / folder, *sorted(path for path in (work / folder).glob("*") if path.is_dir())]:
        for kind in _KINDS:
            file = place / f"{model}{kind}"
            if file.is_file() and is_sound(file):
                yield from (path for path in (file, _seal(file)) if path.is_file())


def _seal(file: Path) -> Path:
    return file.with_name(f".{file.name}.seal")


def take_pack(path: Path, folder: Path) -> Taken:
    """Unpack a pack into a folder of studies, such as ``work``, beside what is there of the study.

    A run that is here with the same weights gets the scores that it lacks; one that is here with other weights, such as of another device,
    is left as it is with its scores, and so is one that is trained here now. Where weights were left out here and the pack has them, they
    are taken.

    Raises:
        ValueError: no zip, an encrypted one, an entry that no pack has, a path that would leave the study, a damaged run, catalogue or
            choice of images, or a study of other images or another precision than the one that is here. Nothing is taken then.
        OSError: too little room on the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as fault:
        raise ValueError(f"{path} is no zip, or was cut ({fault}); pack it again") from fault
    with archive:
        study = _checked(archive, path, folder)
        staging = folder.resolve() / f".{study}.{os.getpid()}.partial"
        try:
            theirs = _unpacked(archive, staging, study)
            return _merge(staging / study, inside(folder, study), theirs)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _unpacked(archive: zipfile.ZipFile, staging: Path, study: str) -> pd.DataFrame:
    """Unpack everything into an empty folder; the catalogue, where it, the choice of images and every run can be taken."""
    try:
        for entry in _entries(archive):
            target = inside(staging, entry.filename)
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, target.open("xb") as copy:
                shutil.copyfileobj(source, copy)
        new = staging / study
        for run in (run for part in ("", _PRETRAINING) for run in (new / part / "runs").glob("*")):
            if fault := fault_of_run(run) or ("" if (run / "result.json").is_file() else "it is not complete"):
                raise ValueError(f"the run {run.name}: {fault}")
            _models(run)
        read_json(new / MANIFEST)["fingerprint"]
        theirs = pd.read_parquet(new / _CATALOGUE)
        theirs[["run_id", "model_id"]]
    except Exception as fault:  # of what is damaged or encrypted nearly every kind; one with a number is of the disk
        if isinstance(fault, OSError) and fault.errno not in (None, errno.ENOENT):
            raise
        raise ValueError(f"{archive.filename} is damaged ({type(fault).__name__}: {fault}); pack it again") from fault
    return theirs


def _checked(archive: zipfile.ZipFile, path: Path, folder: Path) -> str:
    """The study that a pack is of; its entries are those of a pack and nothing else."""
    names = [entry.filename for entry in _entries(archive)]
    studies = {name.partition("/")[0] for name in names}
    if len(studies) != 1 or len(set(names)) < len(names) or not re.fullmatch(r"\w[\w .+-]{0,99}", study := min(studies)):
        raise ValueError(f"{path} is no pack of one study: its entries lie in {', '.join(sorted(studies)[:5]) or 'no folder'}, each once")
    known = {*_FACTS, _CATALOGUE}
    if wrong := [name for name in names if not ((rest := name.partition("/")[2]) in known or _ENTRY.fullmatch(rest))]:
        raise ValueError(f"{path} is no pack: {wrong[0]!r} has no place in a study; packs are written by --pack")
    if (size := sum(entry.file_size for entry in _entries(archive))) > (free := shutil.disk_usage(folder).free):
        raise OSError(f"{path} unpacks to {size / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free; make room")
    return study


def _entries(archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    return [entry for entry in archive.infolist() if not entry.is_dir()]


def _merge(new: Path, work: Path, theirs: pd.DataFrame) -> Taken:
    for name in _FACTS:
        _agree(new / name, work / name)
    staged = {part: sorted((new / part / "runs").glob("*")) for part in ("", _PRETRAINING) if (new / part / "runs").is_dir()}
    found: dict[str, list[str]] = {"taken": [], "same": [], "other": []}
    for part, runs in staged.items():
        with LockHolder(work / part / "runs" / ".claims") as owner:
            for run in runs:
                models = _models(run)
                what = _take_run(run, work / part / "runs" / run.name) if owner.claim(run.name) else "other"
                found[what] += [] if part else [run.name]
                for model in models if not part and what != "other" else ():
                    _take_files(new, work, model)
    for file in (new / "starts").glob("[!.]*") if (new / "starts").is_dir() else ():
        _move(file, work / "starts" / file.name)
    for name in _FACTS:
        if (new / name).is_file() and not (work / name).is_file():
            _move(new / name, work / name)
    _add_to_catalogue(theirs, work / _CATALOGUE, found["taken"] + found["same"])
    return Taken(work, **found)


def _agree(new: Path, here: Path) -> None:
    """Refuse a pack whose images or precisions are not those of the study that is here."""
    if not (new.is_file() and here.is_file()):
        return
    for name in ("fingerprint", "precision"):
        theirs, ours = (found.get(name) if isinstance(found, dict) else None for found in (read_json(new), read_json(here)))
        if theirs != ours:
            raise ValueError(f"{here} has the {name} {ours}, and the pack {theirs}: they are of two studies; give one of them another name")


def _take_run(new: Path, here: Path) -> str:
    """Take a run unless it is here; "taken", "same" or "other"."""
    if (here / "result.json").is_file() and not fault_of_run(here):
        ours, theirs = read_json(here / "result.json"), read_json(new / "result.json")
        if ours.get("files") != theirs.get("files"):
            return "other"
        if not (LEFT_OUT.items() <= ours.items() and list(new.glob("snapshot-*"))):
            return "same"
    else:
        for folder in _OF_MODELS:  # scores of weights that are no more
            for model in _models(new):
                for file in list(_files(here.parents[1], folder, model)):
                    remove(file)
        shutil.rmtree(here, ignore_errors=True)
    for file in sorted(new.iterdir(), key=_result_last):
        _move(file, here / file.name)
    return "taken"


def _result_last(path: Path) -> bool:
    return path.name == "result.json"


def _take_files(new: Path, work: Path, model: str) -> None:
    """Take the files of a model that are not here, and its scores of a folder where they hold all measures of those here and more."""
    for folder in _OF_MODELS:
        files = [file for file in _files(new, folder, model) if file.suffix != ".seal"]
        scored = {file.parent: file.parent.name for file in files if folder == "scores"}
        more = {place for place, name in scored.items() if scored_measures(work, name, model) < scored_measures(new, name, model)}
        for file in files:
            here = work / file.relative_to(new)
            if file.parent in more or not is_sound(here):
                _move(file, here)


def _move(file: Path, here: Path) -> None:
    """Put a file with its seal in its place, the seal last."""
    here.parent.mkdir(parents=True, exist_ok=True)
    _seal(here).unlink(missing_ok=True)
    os.replace(file, here)
    if _seal(file).is_file():
        os.replace(_seal(file), _seal(here))


def _add_to_catalogue(theirs: pd.DataFrame, here: Path, runs: Sequence[str]) -> None:
    tables = [pd.read_parquet(here)] if is_sound(here) else []
    both = pd.concat([*tables, theirs[theirs["run_id"].isin(runs)]], ignore_index=True).drop_duplicates("model_id")
    with complete_or_absent(here) as temporary:
        both.sort_values("model_id", ignore_index=True).to_parquet(temporary, index=False)

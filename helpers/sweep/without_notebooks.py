"""Trains and scores a study for some minutes without notebooks, as on a GPU server without Jupyter.

``python -m helpers.sweep.without_notebooks STUDY --minutes 20``. What it leaves in the study's folder of work is what notebooks 01 to 04
would have left there: they take it up, and train and score nothing again.
"""

import argparse
import inspect
import math
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from helpers.data.images import StudyData, load_study_data
from helpers.data.manifest import choose_images
from helpers.files import PROJECT_ROOT, complete_or_absent, from_root, is_sound
from helpers.measures import MeasureSettings
from helpers.notebook_parameters import StudyError, shard_slice
from helpers.scoring import classification, invariance, pack, targets
from helpers.scoring.common_set import scoring_set
from helpers.scoring.models import score_side_by_side
from helpers.scoring.precision import choose_scoring_precision
from helpers.scoring.single_images import correct_on_test
from helpers.statistics.claims import keep_claims
from helpers.sweep import cost, engines
from helpers.sweep.executions import Places, faults_of
from helpers.sweep.study_file import load_study, study_claims, study_path
from helpers.tally import duration
from helpers.training import catalogue, pretraining
from helpers.training.config import RunConfig, run_id
from helpers.training.pool import choose_device, jobs_for, train_missing
from helpers.training.precision import choose_precision, smallest_shape

_IMAGES, _GRID, _MAPS, _RIVALS = _NOTEBOOKS = ("01_data_subset", "02_grid_training", "03_cam_scoring", "04_baselines")
_LEAST_FREE = 1.0  # GiB of the disk
_MODELS = 2  # that a run leaves at most


@dataclass(frozen=True)
class Prepared:
    """A study that is ready to be trained."""

    work: Path
    parameters: Mapping[str, Mapping[str, Any]]  # by notebook
    data: StudyData
    device: str
    jobs: int  # as asked for; 0 chooses
    runs: Sequence[RunConfig]  # in the order of training
    recipes: Mapping[str, RunConfig]  # by architecture: the run whose weights pretrained runs start from, where these are made here
    weights: Mapping[str, pretraining.Weights]  # by architecture, where they are not


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, score, pack or take from the command line; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m helpers.sweep.without_notebooks", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("study", type=study_path, nargs="?", help="params/<study>.yaml, or the bare name of a study there")
    add("--minutes", type=float, default=20.0, help="after which nothing goes on; what is complete by then is scored by then")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="override a parameter; notebook.name=value for one")
    add("--jobs", type=int, default=0, metavar="N", help="runs and models side by side; 0 leaves it to the study")
    add("--pack", type=Path, metavar="FILE", help="afterwards, write runs, catalogue and scores into a zip of less than 40 MB")
    add("--weights", action="store_true", help="with --pack: the networks too, however large")
    add("--take", type=Path, metavar="FILE", help="unpack such a zip beside what is there of its study, and do nothing else")
    add("--into", default="work", metavar="FOLDER", help="with --take: the folder of studies, work by default")
    given = parser.parse_args(arguments)
    if bool(given.study) == bool(given.take):
        parser.error("give either a study, such as compact20_gpu, or --take FILE")
    if fault := _fault_of(given):
        parser.error(fault)
    try:
        if given.take:
            print(_told_of_taken(pack.take_pack(given.take, from_root(given.into))))
            return 0
        end = time.monotonic() + 60 * given.minutes
        ready = prepare(given.study, given.set, given.jobs)
        try:
            train_and_score(ready, end)
        finally:  # what is complete goes along whatever failed
            if given.pack:
                print(_told_of_packed(given.pack, pack.write_pack(ready.work, given.pack, weights=given.weights)))
    except StudyError as fault:
        print(f"{len(fault.faults)} fault(s), nothing was run:\n" + "\n".join(f"  {line}" for line in fault.faults), file=sys.stderr)
        return 2
    except (ValueError, OSError, RuntimeError) as fault:
        print(fault, file=sys.stderr)
        return 1
    return 0


def _fault_of(given: argparse.Namespace) -> str:
    """What is wrong with the options, known before hours of work; "" when nothing is."""
    for name, value in (("minutes", given.minutes), ("jobs", given.jobs)):
        if not 0 <= value < math.inf:
            return f"--{name} is {value}, and must be at least 0 and finite"
    if not given.pack:
        return "--weights is of --pack FILE; name both or none" if given.weights else ""
    folder = next(path for path in given.pack.absolute().parents if path.exists())
    if given.pack.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return f"--pack {given.pack} cannot be written; name a file, in a folder that can be written"
    return ""


def train_and_score(ready: Prepared, end: float) -> None:
    """Train the runs of a study in the order of notebook 02 and score them as 03 and 04 do, until the time is up.

    Runs are trained in portions. Of the time that is left, what scoring a portion will take is kept for it, by what models of each
    architecture took before; half of the time, where one of its architectures was not scored yet. A run that is not complete in time
    keeps its checkpoint, and the same command goes on with it.

    Args:
        ready: the study.
        end: reading of ``time.monotonic`` at which the time is up.

    Raises:
        RuntimeError: runs or models failed; what is complete is scored before.
    """
    spent = score_trained(ready)
    while todo := catalogue.missing(ready.work, ready.runs):
        now, side = time.monotonic(), jobs_for(ready.device, ready.jobs)
        portion, reserve = next_portion(todo, _training_seconds(ready), spent, end - now, side)
        if now >= end - reserve:
            break
        try:
            if not _train(ready, portion, end - reserve):
                break
        finally:
            spent |= score_trained(ready)
    complete = [run for run in ready.runs if catalogue.is_complete(ready.work, run)]
    late = time.monotonic() - end
    print(f"{len(complete)} of {len(ready.runs)} runs are complete and scored{f', {duration(late)} late' if late > 0 else ''}")


def checked_parameters(study: Path, overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parameters of a study by notebook, after the launcher's own checks of the file and of this machine.

    Raises:
        StudyError: all that is wrong.
    """
    executions = load_study(study, PROJECT_ROOT / "notebooks", overrides)
    used = [item for item in executions if item.notebook.stem in _NOTEBOOKS and not item.part]
    stems = [item.notebook.stem for item in used]
    faults = [f"{study}: {stem} must be among its notebooks" for stem in (_IMAGES, _GRID) if stem not in stems]
    faults += faults_of(used, Places(PROJECT_ROOT, study.stem), engines.visible_gpus(), _LEAST_FREE)
    if faults:
        raise StudyError(faults)
    return {item.notebook.stem: item.parameters for item in used}


def prepare(study: Path, overrides: Sequence[str] = (), jobs: int = 0) -> Prepared:
    """Do what notebook 01 does, and what 02 does before it trains: images, precision, runs, and where pretrained ones start from.

    Args:
        study: the study file.
        overrides: "name=value" or "notebook.name=value".
        jobs: runs and models side by side; 0 as the study says.

    Raises:
        StudyError: what the launcher would refuse, or a study that trains no grid.
    """
    parameters = checked_parameters(study, overrides)
    images, grid = parameters[_IMAGES], parameters[_GRID]
    work = from_root(grid["work_dir"]) / study.stem
    keep_claims(work, study_claims(study))  # before anything runs, so that it is known which came first
    chosen = {name: images[name] for name in inspect.signature(load_study_data).parameters if name != "cache_dir"}
    data, device = choose_images(work, **chosen), choose_device(grid["device"])
    form = {name: grid[name] for name in ("stem", "width", "last_stride")}
    smallest = smallest_shape(grid["architectures"], grid["batch_sizes"], data.train.images.shape[-1], device, **form)
    precision = choose_precision(grid["precision"], work, smallest)
    runs = [replace(run, data=data.fingerprint) for run in cost.planned_runs(grid, precision)]
    recipes, weights, wanted = {}, {}, pretraining.architectures_of(runs)
    if wanted and grid["pretrained_weights"] == pretraining.MADE:
        others = {name: grid[f"pretrain_{name}"] for name in ("data_source", "data_path", "class_ids", "images_per_class")}
        there = pretraining.choose_pretraining_images(work, data.classes["class_id"], **others)
        fixed = form | {name: grid[name] for name in ("momentum", "rule3_split", "seed")} | {"max_epochs": grid["pretrain_max_epochs"]}
        made = pretraining.recipes(wanted, there.fingerprint, fixed | {"precision": precision})
        recipes = {recipe.architecture: recipe for recipe in made}
    elif wanted:
        weights = pretraining.found(grid["pretrained_weights"], wanted)
        pretraining.keep_starts(weights, work)
    identities = {name: run_id(recipe) for name, recipe in recipes.items()} | {name: start.identity for name, start in weights.items()}
    runs = [replace(run, weights=identities[run.architecture]) if run.pretrained else run for run in runs][shard_slice(grid["shard"])]
    return Prepared(work, parameters, data, device, jobs or grid["jobs"], runs, recipes, weights)


def next_portion(
    todo: Sequence[RunConfig], training: Mapping[str, float], scoring: Mapping[str, float], left: float, side: int
) -> tuple[list[RunConfig], float]:
    """The runs to train next, a first part of those that are to do, and the seconds that are kept for scoring them.

    Args:
        todo: in the order of training.
        training: mean seconds of a run, by architecture.
        scoring: seconds that scoring a model takes, by architecture.
        left: seconds.
        side: runs side by side, which are the fewest that are taken.
    """
    if todo[0].architecture not in scoring:
        return list(todo[:side]), left / 2
    portion, reserve, whole = [], 0.0, 0.0
    for run in todo:
        if run.architecture not in scoring:
            break
        scored = _MODELS * scoring[run.architecture]
        whole += training.get(run.architecture, 0.0) / side + scored
        if len(portion) >= side and whole > left:
            break
        portion.append(run)
        reserve += scored
    return portion, reserve


def _training_seconds(ready: Prepared) -> dict[str, float]:
    table = catalogue.read_catalogue(ready.work, ready.runs).drop_duplicates("run_id")
    return table.groupby("architecture")["seconds"].mean().to_dict()


def _train(ready: Prepared, portion: Sequence[RunConfig], until: float) -> bool:
    """Train a portion, after the pretraining that it starts from; whether a run was completed."""
    options = {"device": ready.device, "jobs": ready.jobs, "until": until}
    wanted = [ready.recipes[name] for name in pretraining.architectures_of(portion) if name in ready.recipes]
    for result in pretraining.make(wanted, ready.work, **options):
        _tell(result)
    pretrained = [recipe for recipe in wanted if catalogue.is_complete(ready.work / pretraining.FOLDER, recipe)]
    weights = {**ready.weights, **pretraining.made(pretrained, ready.work)}
    pretraining.keep_starts(weights, ready.work)
    able = [run for run in portion if not run.pretrained or run.architecture in weights]
    sources = {name: start.source for name, start in weights.items()}
    found = 0
    for result in train_missing(able, ready.work, weights=sources, **options):
        _tell(result)
        found += 1
    return found > 0


def _tell(result: Mapping[str, Any]) -> None:
    print(f"{result['run_id']}: {result['epochs']} epochs, {result['stop_reason']}, {duration(result['seconds'])}", flush=True)


def score_trained(ready: Prepared) -> dict[str, float]:
    """Write the catalogue and score what it holds as notebooks 02 to 04 do; seconds of a model by architecture, where one was new."""
    table = catalogue.read_catalogue(ready.work, ready.runs)
    if not len(models := table[table["snapshot"] != "none"]):
        return {}
    kept = catalogue.analysed(table, ready.parameters[_GRID]["minimum_train_accuracy"])
    with complete_or_absent(ready.work / "catalogue.parquet") as temporary:
        kept.to_parquet(temporary, index=False)
    spent = {}
    for architecture, part in models.groupby("architecture", sort=False):
        new = sum(not is_sound(classification.logits_path(ready.work, name)) for name in part["model_id"])
        started = time.monotonic()
        _score_part(ready, table, part)
        if new:
            spent[architecture] = (time.monotonic() - started) / new
    return spent


def _score_part(ready: Prepared, table: pd.DataFrame, part: pd.DataFrame) -> None:
    """Score some models of a catalogue, with all of it in view where images are chosen."""
    work, data, device = ready.work, ready.data, ready.device
    _exhaust(classification.keep_test_logits(work, part, data, device))
    correct_on_test(work, part, data)  # which keeps it
    for stem, given in ready.parameters.items():
        if stem not in (_MAPS, _RIVALS):
            continue
        precision = choose_scoring_precision(given["scoring_precision"], work, table, data, device)
        settings, scored_on = measure_settings(given, precision), scoring_set(table, data, given["scored_images"])
        chosen, families = catalogue.analysed(part, given["minimum_train_accuracy"]), given.get("families", ["localization"])
        scored = chosen if given.get("score_left_out", True) else chosen[chosen["left_out"] == ""]
        _exhaust(score_side_by_side(work, scored, scored_on, families, settings, device=device, jobs=ready.jobs))
        if stem == _RIVALS:
            _score_on_targets(ready, scored, chosen[chosen["left_out"] == ""], given, settings)


def _score_on_targets(
    ready: Prepared, scored: pd.DataFrame, kept: pd.DataFrame, given: Mapping[str, Any], settings: MeasureSettings
) -> None:
    work, data, seed, shifts = ready.work, ready.data, given["analysis_seed"], given["targets"]
    _exhaust(invariance.keep_targets(work, scored, data, seed, ready.device, given["transform_ranges"]))
    _exhaust(targets.keep_target_logits(work, kept, data, shifts, seed, ready.device))
    _exhaust(targets.keep_turned_logits(work, kept, data, shifts, seed, ready.device))
    if len(kept):
        targets.scores_on_targets(work, targets.with_target_accuracies(work, kept, data, shifts, seed), shifts, settings)


def measure_settings(given: Mapping[str, Any], precision: str) -> MeasureSettings:
    """Settings of the measures as a notebook's parameters have them; what it does not declare is as by default."""
    asked = {field.name: given[field.name] for field in fields(MeasureSettings) if field.name in given}
    asked |= {"own_transforms": tuple(given["own_transforms"]), "seed": given["analysis_seed"]} if "own_transforms" in given else {}
    return MeasureSettings(**asked | {"precision": precision})


def _exhaust(models: Iterable[str]) -> int:
    return sum(1 for _ in models)


def _told_of_packed(path: Path, packed: pack.Packed) -> str:
    told = f"{path}: {packed.runs} runs, {packed.models} models, {packed.size / 1e6:.1f} MB"
    return told + (f"; the logits of {packed.without_logits} models had no room" if packed.without_logits else "")


def _told_of_taken(found: pack.Taken) -> str:
    told = f"{found.work}: {len(found.taken)} runs taken, {len(found.same)} were here"
    others = f"; left as they are, since they are here with other weights or are trained now: {', '.join(found.other)}"
    return told + (others if found.other else "")


if __name__ == "__main__":
    sys.exit(main())

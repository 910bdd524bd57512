"""Several models scored side by side on one machine, each in a process of its own with one thread."""

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import pandas as pd

from helpers import measures, model_set, scoring
from helpers.datasets import load_study_data
from helpers.pool import jobs_for, start_worker


def score_side_by_side(
    work: Path,
    catalogue: pd.DataFrame,
    data_arguments: Mapping[str, Any],
    families: Sequence[str],
    settings: measures.Settings,
    *,
    device: str,
    jobs: int = 0,
) -> Iterator[str]:
    """Do what ``scoring.score_missing`` does in several processes, each with one thread on a CPU; yield ids as they come.

    Args:
        work: the study's folder.
        catalogue: its models.
        data_arguments: what ``datasets.load_study_data`` takes; each process reads the cache.
        families: families of measures.
        settings: what else decides the values.
        device: where to compute.
        jobs: processes; 0 takes one per core on a CPU, and one on a GPU. 1 works in this process, which alone knows a measure that was
            defined in a notebook and not in a module.

    Raises:
        RuntimeError: models could not be scored; the others are finished first, and the message names them.
    """
    if jobs_for(device, jobs) == 1:
        yield from scoring.score_missing(work, catalogue, load_study_data(**data_arguments), families, settings, device=device)
        return
    models = [model for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows()]
    todo = [model for model in models if _lacks(work, model["model_id"], families, settings)]
    yield from sorted({model["model_id"] for model in models} - {model["model_id"] for model in todo})
    if not todo:
        return
    faults, given = [], (dict(data_arguments), list(families), settings, device)
    count, context = min(jobs_for(device, jobs), len(todo)), multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context, initializer=start_worker, initargs=(device,)) as executor:
        started = {executor.submit(_score_one, work, model, *given): model["model_id"] for model in todo}
        for future in as_completed(started):
            if fault := future.exception():
                faults.append(f"{started[future]}: {type(fault).__name__}: {fault}")
            else:
                yield started[future]
    if faults:
        raise RuntimeError(f"{len(faults)} of {len(todo)} models could not be scored; the others are complete. " + "; ".join(faults[:3]))


def _lacks(work: Path, model_id: str, families: Sequence[str], settings: measures.Settings) -> bool:
    """Say whether a model lacks a measure of some families."""
    return any(
        {item.name for item in measures.of_families([family])}
        - model_set.scored_measures(work, scoring.folder_name(family, settings), model_id)
        for family in families
    )


def _score_one(
    work: Path, model: pd.Series, data_arguments: dict[str, Any], families: list[str], settings: measures.Settings, device: str
) -> None:
    data = load_study_data(**data_arguments)
    for _ in scoring.score_missing(work, model.to_frame().T, data, families, settings, device=device):
        pass

"""A piece of work for each of many models, several side by side in processes of their own."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from helpers.data import manifest
from helpers.data.images import StudyData
from helpers.training.pool import images_in_worker, jobs_for, killed, start_worker, watched


def each_model(
    one: Callable[..., None],
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData | None,
    todo: Collection[str],
    given: Sequence[Any],
    *,
    device: torch.device | str,
    jobs: int = 0,
) -> Iterator[str]:
    """Ids of models in the order in which their work is done, those first that have none; a process has one thread on a CPU.

    Args:
        one: function of a module that leaves on the disk what it makes, called as ``one(work, row, data, *given)`` with the catalogue's
            row of a model.
        work: the study's folder.
        catalogue: its models; diverged runs without one are passed over.
        data: its images; None, and a process of its own, reads them by ``manifest.of_study``.
        todo: ids of the models that there is work on.
        given: what else the function takes.
        device: where to compute.
        jobs: processes; 0 takes one per core on a CPU, and one on a GPU. 1 works in this process.

    Raises:
        RuntimeError: the work on models failed; that on the others is finished first, and the message names them. Where a process was
            killed it is a ``BrokenProcessPool``, which a sweep tries again; it names the signal and what to try.
    """
    names = catalogue.loc[catalogue["snapshot"] != "none", "model_id"]
    yield from sorted({*names} - {*todo})
    rows = {name: catalogue[catalogue["model_id"] == name] for name in names[names.isin(list(todo))]}
    count = min(jobs_for(str(device), jobs), len(rows))
    if not count:
        return
    if count == 1:
        images = manifest.of_study(work) if data is None else data
        for name, row in rows.items():
            one(work, row, images, *given)
            yield name
        return
    faults, broken = [], []
    context, processes = watched()
    with ProcessPoolExecutor(count, mp_context=context, initializer=start_worker, initargs=(str(device),)) as executor:
        started = {executor.submit(_in_a_process, one, work, row, given): name for name, row in rows.items()}
        for future in as_completed(started):
            if isinstance(fault := future.exception(), BrokenProcessPool):
                broken.append(started[future])
            elif fault:
                faults.append(f"{started[future]}: {type(fault).__name__}: {fault}")
            else:
                yield started[future]
    if count := len(faults) + len(broken):
        told = [*(killed(processes, {}) if broken else []), *faults] or broken
        failed = BrokenProcessPool if broken else RuntimeError
        raise failed(f"{count} of {len(rows)} models could not be scored; the others are complete. " + "; ".join(told[:3]))


def _in_a_process(one: Callable[..., None], work: Path, row: pd.DataFrame, given: Sequence[Any]) -> None:
    one(work, row, images_in_worker(work), *given)

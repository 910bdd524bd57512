"""The model set on disk: which runs are complete, and the catalogue with one row per model."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from helpers.files import digest_of, inside, read_json, read_table, records_of
from helpers.networks.faults import is_of_machine
from helpers.networks.weights import Form, save_half
from helpers.training.config import (
    HYPERPARAMETERS,
    RunConfig,
    cell_name,
    config_digest,
    config_from,
    kind_name,
    run_id,
)

_MEASURED = [
    "snapshot",
    "epoch",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "gap",
]
_NAMES, _OF_RUN = (
    ["model_id", "run_id", "cell", "kind", "status", "stop_reason"],
    ["epochs", "seconds", "device"],
)


def run_folder(work: Path, run: RunConfig | str) -> Path:
    """The folder of a run below ``work``."""
    return inside(work / "runs", run if isinstance(run, str) else run_id(run))


def snapshot_path(folder: Path, snapshot: str) -> Path:
    """File of a run's snapshot ("first" or "stop")."""
    return folder / f"snapshot-{snapshot}.safetensors"


def result_folder(work: Path, run: RunConfig | str) -> Path | None:
    """Where the result of a complete run lies: below ``work``, else in the records.

    Args:
        work: the folder of work of a study.
        run: its configuration or its id.

    Returns:
        The folder that holds ``result.json``, which a run has exactly when it needs
        nothing more; None for a run that is not complete.
    """
    folder = run_folder(work, run)
    for place in (folder, run_folder(records_of(work), folder.name)):
        if (place / "result.json").is_file():
            return place
    return None


def is_trained_here(work: Path, run: str) -> bool:
    """Whether a run's result lies in the folder of work, where its weights are."""
    return (run_folder(work, run) / "result.json").is_file()


def is_complete(work: Path, run: RunConfig | str) -> bool:
    """Whether a run needs nothing more: it has a result, here or in the records."""
    return result_folder(work, run) is not None


def missing(work: Path, runs: Sequence[RunConfig]) -> list[RunConfig]:
    """The runs that are not complete, in the given order."""
    return [run for run in runs if not is_complete(work, run)]


def complete_runs(work: Path) -> list[str]:
    """Ids of all complete runs of a study, here and in its records, sorted."""
    folders = (work / "runs", records_of(work) / "runs")
    return sorted(
        {
            path.parent.name
            for folder in folders
            for path in folder.glob("*/result.json")
        }
    )


def read_catalogue(work: Path, runs: Iterable[RunConfig] | None = None) -> pd.DataFrame:
    """One row per model of some runs, or of all complete ones, with accuracies as fractions; a run without a snapshot has a row of NaN."""
    names = complete_runs(work) if runs is None else [run_id(run) for run in runs]
    folders = [result_folder(work, name) for name in names]
    rows = [row for folder in folders if folder for row in rows_of(folder)]
    table = pd.DataFrame(
        rows, columns=[*_NAMES, *_MEASURED, *_OF_RUN, *HYPERPARAMETERS]
    ).sort_values("model_id", ignore_index=True)
    return table.astype(dict.fromkeys(_MEASURED[2:], float))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows of the catalogue of one complete run, with the digest of the weights.

    Args:
        folder: of the run, with ``config.json`` and ``result.json``.

    Returns:
        A row per snapshot; one where there is none.

    Raises:
        ValueError: where the two files are not of one run.
    """
    record = read_json(folder / "config.json")
    result = read_json(folder / "result.json")
    _check_identity(folder, record, result["run_id"])
    config = config_from(record)
    common = {
        name: result[name] for name in ("run_id", "status", "stop_reason", *_OF_RUN)
    } | asdict(config)
    common |= {"cell": cell_name(config), "kind": kind_name(config)}
    snapshots = result["snapshots"] or [{"snapshot": "none"}]
    return [
        common | snapshot | {"model_id": f"{result['run_id']}@{snapshot['snapshot']}"}
        for snapshot in snapshots
    ]


def _check_identity(folder: Path, record: Mapping[str, Any], name: str) -> None:
    """Refuse a run whose configuration is not the one that its id is the digest of."""
    config = {name: value for name, value in record.items() if name != "run_id"}
    if name.endswith(config_digest(config)):
        return
    raise ValueError(
        f"config.json or result.json in {folder} was changed: its configuration has the "
        f"digest {config_digest(config)}, and its result is of {name!r}; put back the files, or "
        "delete the folder and train the run again"
    )


def weights_digests(work: Path, run: RunConfig | str) -> dict[str, str]:
    """Digest of the weights of each snapshot of a complete run.

    Args:
        work: the folder of work of a study.
        run: its configuration or its id.

    Returns:
        By snapshot, 16 hex digits; a snapshot that an earlier version trained has none,
        unless it was published.
    """
    folder = result_folder(work, run)
    if folder is None:
        return {}
    snapshots = read_json(folder / "result.json")["snapshots"]
    return {item["snapshot"]: item.get("digest", "") for item in snapshots}


def histories(work: Path, run_ids: Iterable[str]) -> pd.DataFrame:
    """Histories of complete runs: one row per run and epoch, with its ``run_id``."""
    folders = {name: result_folder(work, name) for name in run_ids}
    tables = [
        read_table(folder / "history.parquet").assign(run_id=name)
        for name, folder in folders.items()
        if folder
    ]
    return (
        pd.concat(tables, ignore_index=True)
        if tables
        else pd.DataFrame(columns=["run_id", "epoch"])
    )


def late_changes(history: pd.DataFrame, epochs: int = 10) -> pd.DataFrame:
    """Change of loss and accuracy in the last epochs of each run, by its range in the run, [-1, 1] or NaN; Du et al. 2024, Fig. A1."""
    ordered = history.sort_values(["run_id", "epoch"], ignore_index=True)
    runs, changes = ordered.groupby("run_id"), ordered[["run_id", "epoch"]].copy()
    for name in ("loss", "accuracy"):
        values = runs[f"train_{name}"]
        span = values.transform("max") - values.transform("min")
        changes[f"{name}_change_of_run"] = values.diff() / span.where(span > 0)
    return (
        changes[runs.cumcount() > 0]
        .groupby("run_id")
        .tail(epochs)
        .reset_index(drop=True)
    )


def load_network(
    work: Path, row: Mapping[str, Any], classes: int, device: torch.device | str = "cpu"
) -> nn.Module:
    """The network of a row of the catalogue in eval mode, channels last; where its file is missing or damaged, it says what to do."""
    path = snapshot_path(run_folder(work, row["run_id"]), row["snapshot"])
    remedy = f"delete the folder {path.parent} and run 02_grid_training again to train it anew"
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; {remedy}")
    network = Form(*(row[name] for name in Form._fields)).network(classes)
    expected = weights_digests(work, row["run_id"]).get(row["snapshot"], "")
    if expected and digest_of(path) != expected:
        raise ValueError(
            f"{path} is damaged or of another run (its digest is {digest_of(path)}, and "
            f"that of its run {expected}); {remedy}"
        )
    try:
        network.load_state_dict(safetensors.torch.load_file(path))
    except (SafetensorError, RuntimeError) as fault:
        if is_of_machine(fault):
            raise
        raise ValueError(
            f"{path} is damaged ({str(fault).splitlines()[0]}); {remedy}"
        ) from fault
    return network.to(device, memory_format=torch.channels_last).eval()


def keep_checkpoints(
    work: Path, models: pd.DataFrame, folder: Path, classes: Sequence[str], count: int
) -> pd.DataFrame:
    """Write ``count`` models that span the gaps in half precision, each with its facts in the header; their rows, smallest gap first.

    Models that were trained elsewhere, of which records alone are here, are left out.
    """
    of_records = [
        not is_trained_here(work, name) and is_complete(work, name)
        for name in models["run_id"]
    ]
    ordered = models[models["gap"].notna() & ~np.array(of_records, dtype=bool)]
    ordered = ordered.sort_values(["gap", "model_id"])
    places = np.unique(
        np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int)
    )
    chosen = ordered.iloc[places].assign(
        file=lambda table: table["model_id"] + ".safetensors"
    )
    columns = ["model_id", *HYPERPARAMETERS, "train_accuracy", "test_accuracy", "gap"]
    for row in chosen.to_dict("records"):
        form, state = (
            Form(*(row[name] for name in Form._fields)),
            load_network(work, row, len(classes)).state_dict(),
        )
        facts = {name: row[name] for name in columns} | {
            "classes": json.dumps(list(classes))
        }
        save_half(inside(folder, row["file"]), state, form, facts)
    return chosen[["file", *columns]].reset_index(drop=True)


def start_path(work: Path, weights: str) -> Path:
    """Place of the pretrained weights that runs start from, by what they are (``RunConfig.weights``)."""
    return inside(work / "starts", f"{weights}.safetensors")


def analysed(table: pd.DataFrame, minimum_train_accuracy: float) -> pd.DataFrame:
    """The catalogue with a column ``left_out``: "" for a model that enters the analysis (the paper: above 80 %), else why not."""
    low = f"train accuracy not above {minimum_train_accuracy:.0%}"
    reasons = np.where(table["train_accuracy"] > minimum_train_accuracy, "", low)
    return table.assign(
        left_out=np.where(
            table["snapshot"] == "none", "diverged before a snapshot", reasons
        )
    )


def models_of_study(
    work: Path, fingerprint: str, minimum_train_accuracy: float
) -> pd.DataFrame:
    """Catalogue of a study that notebook 02 left, or of the runs in its records.

    Args:
        work: the folder of work of the study.
        fingerprint: of its images.
        minimum_train_accuracy: models at or below it are left out of the analysis.

    Returns:
        A row per model, with the column ``left_out``, see ``analysed``.

    Raises:
        FileNotFoundError: where 02 has not run and no run has records.
        ValueError: where the images were others, or no model is analysed.
    """
    path = work / "catalogue.parquet"
    remedy = f"run notebooks/02_grid_training.ipynb for it, or `python -m helpers.sweep {work.name} -- --forcerun 02_grid_training`"
    if path.is_file():
        table = read_table(path)
    elif (records_of(work) / "runs").is_dir():
        path = records_of(work)
        table = read_catalogue(work)
    else:
        raise FileNotFoundError(
            f"{path} is not there: notebook 02 has not trained the networks of the study {work.name!r}; {remedy}"
        )
    if others := sorted(set(table["data"]) - {fingerprint}):
        told = f"the models in {path} were trained on the images {', '.join(others)}, and notebook 01 has chosen {fingerprint} since"
        raise ValueError(f"{told}; {remedy}")
    table = analysed(table, minimum_train_accuracy)
    if not table["left_out"].eq("").any():
        best = f"the highest training accuracy of {len(table)} models is {table['train_accuracy'].max():.2f}"
        told = f"no network of the study {work.name!r} learnt enough: {best}, and minimum_train_accuracy {minimum_train_accuracy}"
        raise ValueError(
            f"{told}; give them more epochs (max_epochs) or more images, and {remedy}"
        )
    return table

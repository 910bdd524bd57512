"""The runs of a study on disk, and the catalogue with one row per model."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from helpers.files import (
    folder_of_run,
    inside,
    is_scored,
    read_json,
    read_table,
    read_tensors,
    records_of,
    table_of,
)
from helpers.networks.weights import ResNetForm, save_float16
from helpers.training.config import (
    HYPERPARAMETERS,
    RunConfig,
    config_from,
    configuration_name,
    kind_name,
)

# Columns of the catalogue.
_NUMBERS = ["train_loss", "train_accuracy", "test_loss", "test_accuracy", "gap"]
_COLUMNS = [
    *("model_id", "run_id", "cell", "kind", "status", "stop_reason"),
    *("snapshot", "epoch", *_NUMBERS),
    *("epochs", "seconds", "device", "digest"),
]


def run_folder(work: Path, run: RunConfig | str) -> Path:
    """The folder of a run in the folder of work of a study.

    Args:
        work: the folder of work.
        run: its configuration or its id.
    """
    return folder_of_run(work, str(run))  # the text of a configuration is its id


def snapshot_path(folder: Path, snapshot: str) -> Path:
    """File of a snapshot of a run.

    Args:
        folder: folder of the run.
        snapshot: "first", "stop" or "matched", see ``train_run``.
    """
    return folder / f"snapshot-{snapshot}.safetensors"


def result_folder(work: Path, run: RunConfig | str) -> Path | None:
    """Folder with the result of a complete run, below ``work`` or in the records.

    Args:
        work: the folder of work of a study.
        run: its configuration or its id.

    Returns:
        The folder that holds ``result.json``, which is written last; None for a run
        that is not complete.
    """
    for place in (work, records_of(work)):
        folder = run_folder(place, run)
        if (folder / "result.json").is_file():
            return folder
    return None


def missing(work: Path, runs: Sequence[RunConfig]) -> list[RunConfig]:
    """The runs that are to be trained, in the given order.

    Neither those that were trained here, nor those that were trained and scored
    elsewhere. A run in the records that was not scored must be trained again, since
    records have no weights to score.

    Args:
        work: the folder of work of a study.
        runs: runs of the study.
    """
    return [run for run in runs if not _is_complete(work, run)]


def _is_complete(work: Path, run: RunConfig) -> bool:
    folder = result_folder(work, run)
    if folder is None or folder == run_folder(work, run):
        return folder is not None
    return is_scored(records_of(work), folder.name)


def read_catalogue(work: Path, runs: Iterable[RunConfig] | None = None) -> pd.DataFrame:
    """Read the catalogue of a study.

    Args:
        work: its folder of work.
        runs: whose models are listed; None lists those of all complete runs.

    Returns:
        A row per model, accuracies as fractions; a run without a snapshot has a row of
        NaN.
    """
    if runs is None:
        folders = [*work.glob("runs/*"), *records_of(work).glob("runs/*")]
        runs = sorted({folder.name for folder in folders})
    rows = []
    for run in runs:
        folder = result_folder(work, run)
        if folder:
            rows += _rows_of(folder)
    table = pd.DataFrame(rows, columns=[*_COLUMNS, *HYPERPARAMETERS])
    table = table.sort_values("model_id", ignore_index=True)
    return table.astype(dict.fromkeys(_NUMBERS, float))


def _snapshots_of_study(table: pd.DataFrame, records: Path) -> pd.DataFrame:
    """Leave out snapshots without values in records, if others of their run have some.

    Records have the results of both snapshots of a run, and values only of those that
    the study takes: both, or the one at the stop. A run without any values was not
    scored, so its snapshots stay.

    Args:
        table: the catalogue of all snapshots.
        records: folder of the records.
    """
    with_values = {path.stem for path in (records / "scores").glob("*@*.parquet")}
    has_values = table["model_id"].isin(with_values)
    none_of_run = ~has_values.groupby(table["run_id"]).transform("any")
    return table[has_values | none_of_run].reset_index(drop=True)


def _rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows of a complete run: one per snapshot, or one without snapshots."""
    config = config_from(read_json(folder / "config.json"))
    result = read_json(folder / "result.json")
    facts = {"cell": configuration_name(config), "kind": kind_name(config)}
    facts["digest"] = ""  # of snapshots of earlier versions
    rows = []
    for snapshot in result["snapshots"] or [{"snapshot": "none"}]:
        model_id = f"{result['run_id']}@{snapshot['snapshot']}"
        rows.append(asdict(config) | result | facts | snapshot | {"model_id": model_id})
    return rows


def histories(work: Path, run_ids: Iterable[str]) -> pd.DataFrame:
    """Histories of complete runs.

    Args:
        work: the folder of work of a study.
        run_ids: of runs, at least one that is complete; others are left out.

    Returns:
        A row per run and epoch, with its ``run_id``.
    """
    folders = {name: result_folder(work, name) for name in run_ids}
    tables = [
        read_table(folder / "history.parquet").assign(run_id=name)
        for name, folder in folders.items()
        if folder
    ]
    return pd.concat(tables, ignore_index=True)


def late_changes(history: pd.DataFrame, epochs: int = 10) -> pd.DataFrame:
    """Change of loss and accuracy in the last epochs; Du et al. 2024, Fig. A1.

    Args:
        history: see ``histories``.
        epochs: how many of the last epochs of each run are returned.

    Returns:
        A row per run and epoch: the change of loss and accuracy since the epoch before
        over the range in the run, in [-1, 1]; NaN where that is 0.
    """
    ordered = history.sort_values(["run_id", "epoch"], ignore_index=True)
    runs = ordered.groupby("run_id")
    values = runs[["train_loss", "train_accuracy"]]
    span = values.transform("max") - values.transform("min")
    changes = values.diff() / span.where(span > 0)
    changes = changes.set_axis(["loss", "accuracy"], axis=1)
    table = ordered[["run_id", "epoch"]].join(changes)[runs.cumcount() > 0]
    return table.groupby("run_id").tail(epochs).reset_index(drop=True)


def _form(row: Mapping[str, Any]) -> ResNetForm:
    """Form of the network of a row of the catalogue."""
    return ResNetForm(**{name: row[name] for name in ResNetForm._fields})


def load_network(
    work: Path, row: Mapping[str, Any], classes: int, device: torch.device | str = "cpu"
) -> nn.Module:
    """Load the network of a row of the catalogue.

    Args:
        work: the folder of work of the study.
        row: of the catalogue.
        classes: number of classes.
        device: device of the network.

    Returns:
        The network in evaluation mode, channels last.

    Raises:
        FileNotFoundError: if its weights are missing or damaged.
    """
    path = snapshot_path(run_folder(work, row["run_id"]), row["snapshot"])
    state = read_tensors(path)
    if state is None:
        raise FileNotFoundError(
            f"{path} is missing or damaged; delete the folder {path.parent} and run "
            "02_grid_training again to train it anew"
        )
    network = _form(row).network(classes)
    network.load_state_dict(state)
    return network.to(device, memory_format=torch.channels_last).eval()


def keep_checkpoints(
    work: Path, models: pd.DataFrame, folder: Path, classes: Sequence[str], count: int
) -> pd.DataFrame:
    """Write the weights of some models in half precision, evenly spaced in rank of gap.

    Models of which only records are here are left out: records have no weights.

    Args:
        work: the folder of work of the study.
        models: rows of the catalogue, with snapshots.
        folder: of the written files.
        classes: names of the classes.
        count: number of models to write; all if there are fewer.

    Returns:
        Rows of these models, smallest gap first, with the column ``file``. The header
        of each file holds these facts, and the classes.
    """
    has_weights = [
        snapshot_path(run_folder(work, row.run_id), row.snapshot).is_file()
        for row in models.itertuples()
    ]
    ordered = models[has_weights].sort_values(["gap", "model_id"])
    ranks = np.linspace(0, len(ordered) - 1, min(count, len(ordered)))
    chosen = ordered.iloc[np.unique(ranks.round().astype(int))]
    chosen = chosen.assign(file=chosen["model_id"] + ".safetensors")
    columns = ["model_id", *HYPERPARAMETERS, "train_accuracy", "test_accuracy", "gap"]
    for row in chosen.to_dict("records"):
        state = load_network(work, row, len(classes)).state_dict()
        facts = {**row, "classes": json.dumps(list(classes))}
        save_float16(inside(folder, row["file"]), state, _form(row), facts)
    return chosen[["file", *columns]].reset_index(drop=True)


def published_checkpoints(report: Path, folder: Path) -> pd.DataFrame:
    """Copy the checkpoints that a published report holds, and read their table.

    For a study whose networks were trained elsewhere, so that ``keep_checkpoints`` has
    no weights to write.

    Args:
        report: ``reports/<study>`` as it is published.
        folder: where the files are put.

    Returns:
        The table that ``keep_checkpoints`` returned when the report was made; no row if
        the report has no checkpoints.
    """
    listing = table_of(report, "checkpoints.csv")
    if not listing.is_file():
        return pd.DataFrame(columns=["file", "model_id", "gap"])
    if folder != report / "checkpoints":
        shutil.copytree(report / "checkpoints", folder, dirs_exist_ok=True)
    return pd.read_csv(listing, keep_default_na=False)


def start_path(work: Path, weights: str) -> Path:
    """File of the pretrained weights that runs start from.

    Args:
        work: the folder of work of the study.
        weights: their identity, see ``RunConfig.weights``.
    """
    return inside(work / "starts", f"{weights}.safetensors")


def analysed(table: pd.DataFrame, minimum_train_accuracy: float) -> pd.DataFrame:
    """Add a column that says which models are left out of the analysis, and why.

    Args:
        table: the catalogue.
        minimum_train_accuracy: a model must exceed it; 0.8 in the paper.

    Returns:
        The catalogue with a column ``left_out``: "" for a model that is analysed, else
        the reason why it is not.
    """
    is_finite = np.isfinite(table[["train_loss", "test_loss"]]).all(axis=1)
    reasons = {
        "diverged before a snapshot": table["snapshot"] == "none",
        "loss is not finite": ~is_finite,
        f"train accuracy not above {minimum_train_accuracy:.0%}": (
            table["train_accuracy"] <= minimum_train_accuracy
        ),
    }
    return table.assign(left_out=np.select([*reasons.values()], [*reasons], ""))


def models_of_study(
    work: Path, fingerprint: str, minimum_train_accuracy: float
) -> pd.DataFrame:
    """Catalogue that notebook 02 wrote, or that of the runs in a study's records.

    Args:
        work: the folder of work of the study.
        fingerprint: of the images that the study has now.
        minimum_train_accuracy: models at or below it are left out of the analysis.

    Returns:
        A row per model, with the column ``left_out``, see ``analysed``.

    Raises:
        FileNotFoundError: if 02 has not run and no run has records.
        ValueError: if the models were trained on other images, or if none is analysed.
    """
    path = work / "catalogue.parquet"
    remedy = (
        "run notebooks/02_grid_training.ipynb for it, or `make sweep "
        f"STUDY={work.name} MORE='--forcerun 02_grid_training'`"
    )
    if path.is_file():
        table = read_table(path)
    elif (records_of(work) / "runs").is_dir():
        path = records_of(work)
        table = _snapshots_of_study(read_catalogue(work), path)
    else:
        raise FileNotFoundError(
            f"{path} is not there: notebook 02 has not trained the networks of the "
            f"study {work.name!r}; {remedy}"
        )
    others = sorted(set(table["data"]) - {fingerprint})
    if others:
        raise ValueError(
            f"the models in {path} were trained on the images {', '.join(others)}, and "
            f"notebook 01 has chosen {fingerprint} since; {remedy}"
        )
    table = analysed(table, minimum_train_accuracy)
    if not table["left_out"].eq("").any():
        best = table["train_accuracy"].max()
        raise ValueError(
            f"no network of the study {work.name!r} learnt enough: the highest "
            f"training accuracy of {len(table)} models is {best:.2f}, and "
            f"minimum_train_accuracy {minimum_train_accuracy}; give them more epochs "
            f"(max_epochs) or more images, and {remedy}"
        )
    return table

"""The runs of a study on disk, and the catalogue with one row per model.

The weights that runs start from are torchvision's, those of a file, or of runs that are
trained on other classes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from helpers.data.images import StudyData, choose_images, manifest_of
from helpers.files import (
    file_digest,
    folder_of_run,
    inside,
    read_json,
    read_table,
    read_tensors,
    records_of,
    write_tensors,
)
from helpers.networks import resnet
from helpers.networks.weights import (
    FORM,
    read_weights,
    save_float16,
    weights_digest,
)
from helpers.training.config import (
    HYPERPARAMETERS,
    RunConfig,
    config_from,
    configuration_name,
    kind_name,
)

MADE = "made"  # value of pretrained_weights for weights of pretraining runs
PRETRAINING = "pretraining"  # in the folder of work: pretraining runs and their images
# Columns of the catalogue.
_NUMBERS = ["train_loss", "train_accuracy", "test_loss", "test_accuracy", "gap"]
_COLUMNS = [
    *("model_id", "run_id", "cell", "kind", "stop_reason"),
    *("snapshot", "epoch", *_NUMBERS),
    *("epochs", "seconds", "device", "digest"),
]


def snapshot_path(folder: Path, snapshot: str) -> Path:
    """File of a snapshot of a run.

    Args:
        folder: folder of the run.
        snapshot: "first", "stop" or "matched", see ``train_run``.
    """
    return folder / f"snapshot-{snapshot}.safetensors"


def weights_path(work: Path, row: Mapping[str, Any]) -> Path:
    """File with the weights of a model.

    Args:
        work: the folder of work of a study.
        row: of the catalogue.
    """
    return snapshot_path(folder_of_run(work, row["run_id"]), row["snapshot"])


def complete_runs(work: Path) -> dict[str, Path]:
    """Folders of complete runs by id: those trained here, and those of the records.

    A run of the records counts if it was scored, or has no snapshot to score: records
    have no weights, so another one must be trained again.

    Args:
        work: the folder of work of a study.

    Returns:
        Folders that hold ``result.json``, which is written last.
    """
    records = records_of(work)
    scored = {path.name.partition("@")[0] for path in records.glob("scores/*@*")}
    results = [
        path
        for path in records.glob("runs/*/result.json")
        if path.parent.name in scored or not read_json(path)["snapshots"]
    ]
    results += work.glob("runs/*/result.json")
    return {path.parent.name: path.parent for path in results}


def missing(work: Path, runs: Sequence[RunConfig]) -> list[RunConfig]:
    """The runs that are to be trained, in the given order.

    Args:
        work: the folder of work of a study.
        runs: runs of the study.
    """
    complete = complete_runs(work)
    return [run for run in runs if str(run) not in complete]


def read_catalogue(work: Path, runs: Iterable[RunConfig] | None = None) -> pd.DataFrame:
    """Read the catalogue of a study.

    Args:
        work: its folder of work.
        runs: whose models are listed; None lists those of all complete runs.

    Returns:
        A row per model, accuracies as fractions; a run without a snapshot has a row of
        NaN.
    """
    folders = complete_runs(work)
    names = folders if runs is None else map(str, runs)
    rows = [row for name in names if name in folders for row in _rows_of(folders[name])]
    table = pd.DataFrame(rows, columns=[*_COLUMNS, *HYPERPARAMETERS])
    table = table.sort_values("model_id", ignore_index=True)
    return table.astype(dict.fromkeys(_NUMBERS, float))


def _rows_of(folder: Path) -> list[dict[str, Any]]:
    """Rows of a complete run: one per snapshot, or one without snapshots."""
    config = config_from(read_json(folder / "config.json"))
    result = read_json(folder / "result.json")
    facts = asdict(config) | result
    facts |= {"cell": configuration_name(config), "kind": kind_name(config)}
    facts["digest"] = ""  # of snapshots of earlier versions
    return [
        facts | snapshot | {"model_id": f"{facts['run_id']}@{snapshot['snapshot']}"}
        for snapshot in result["snapshots"] or [{"snapshot": "none"}]
    ]


def histories(work: Path, run_ids: Iterable[str]) -> pd.DataFrame:
    """Histories of complete runs.

    Args:
        work: the folder of work of a study.
        run_ids: of complete runs, at least one.

    Returns:
        A row per run and epoch, with its ``run_id``.
    """
    folders = complete_runs(work)
    tables = [
        read_table(folders[name] / "history.parquet").assign(run_id=name)
        for name in run_ids
    ]
    return pd.concat(tables, ignore_index=True)


def late_changes(history: pd.DataFrame) -> pd.DataFrame:
    """Change of loss and accuracy in the last ten epochs; Du et al. 2024, Fig. A1.

    Args:
        history: see ``histories``.

    Returns:
        By run and epoch the change of loss and accuracy since the epoch before over the
        range in the run, in [-1, 1]; NaN where that is 0, and in the first epoch.
    """
    table = history.set_index(["run_id", "epoch"])[["train_loss", "train_accuracy"]]
    runs = table.set_axis(["loss", "accuracy"], axis=1).groupby("run_id")
    changes = runs.diff() / (runs.transform("max") - runs.transform("min"))
    return changes.groupby("run_id").tail(10)


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
    path = weights_path(work, row)
    state = read_tensors(path)
    if state is None or row.get("digest") not in (None, "", file_digest(path)):
        raise FileNotFoundError(
            f"{path} is missing or damaged; delete the folder {path.parent} and run "
            "02_grid_training again to train it anew"
        )
    form = {name: row[name] for name in FORM}
    network = resnet.build(**form, classes=classes, seed=0)
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
    ordered = models.sort_values(["gap", "model_id"])
    is_here = [weights_path(work, row).is_file() for row in ordered.to_dict("records")]
    ordered = ordered[is_here]
    ranks = np.linspace(0, len(ordered) - 1, min(count, len(ordered)))
    chosen = ordered.iloc[ranks.round().astype(int)]
    chosen = chosen.assign(file=chosen["model_id"] + ".safetensors")
    for row in chosen.to_dict("records"):
        state = load_network(work, row, len(classes)).state_dict()
        facts = row | {"classes": json.dumps(list(classes))}
        save_float16(inside(folder, row["file"]), state, facts)
    accuracies = ["train_accuracy", "test_accuracy", "gap"]
    return chosen[["file", "model_id", *HYPERPARAMETERS, *accuracies]]


def start_path(work: Path, weights: str) -> Path:
    """File of the pretrained weights that runs start from.

    Args:
        work: the folder of work of the study.
        weights: their identity, see ``RunConfig.weights``.
    """
    return snapshot_path(folder_of_run(work / PRETRAINING, weights), "stop")


def analysed(table: pd.DataFrame, minimum_train_accuracy: float) -> pd.DataFrame:
    """Add a column that says which models are left out of the analysis, and why.

    Args:
        table: the catalogue.
        minimum_train_accuracy: a model must exceed it; 0.8 in the paper.

    Returns:
        The catalogue, training accuracies to nine digits, with a column ``left_out``:
        "" for a model that is analysed, else the reason why it is not.
    """
    reason = f"train accuracy not above {minimum_train_accuracy:.0%}"
    # A mean of images may differ from 0.95 in its last bit.
    accuracy = table["train_accuracy"].round(9)
    is_above = accuracy > minimum_train_accuracy
    is_finite = np.isfinite(table[["train_loss", "test_loss"]]).all(axis=1)
    left_out = is_above.map({True: "", False: reason})
    left_out = left_out.where(is_finite, "loss is not finite")
    return table.assign(train_accuracy=accuracy, left_out=left_out)


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
    records = records_of(work)
    remedy = f"run notebook 02 of the study {work.name!r}"
    if path.is_file():
        table = read_table(path)
    elif (records / "runs").is_dir():
        table = read_catalogue(work)
        # Results name all snapshots of a run, and not all of them were scored.
        with_values = [path.stem for path in records.glob("scores/*@*.parquet")]
        is_scored = table["model_id"].isin(with_values)
        table = table[is_scored | table["snapshot"].eq("none")].reset_index(drop=True)
    else:
        raise FileNotFoundError(f"{path} is not there; {remedy}")
    if set(table["data"]) != {fingerprint}:
        raise ValueError(
            f"models of {work.name!r} were trained on the images "
            f"{', '.join(set(table['data']))}, and notebook 01 has chosen "
            f"{fingerprint} since; {remedy} again"
        )
    table = analysed(table, minimum_train_accuracy)
    if not table["left_out"].eq("").any():
        raise ValueError(
            f"no network of the study {work.name!r} learnt enough: the highest "
            f"training accuracy is {table['train_accuracy'].max():.2f}, and "
            f"minimum_train_accuracy is {minimum_train_accuracy}; raise max_epochs or "
            f"take more images, and {remedy} again"
        )
    return table


def weights_by_name(
    pretrained_weights: str, architectures: Sequence[str], work: Path
) -> dict[str, str]:
    """Read existing weights once, so that a missing file stops a study at its start.

    Args:
        pretrained_weights: a name or a path, see ``weights.read_weights``.
        architectures: torchvision's names.
        work: the folder of work of the study, which keeps them.

    Returns:
        Their identity by architecture: a digest of their values.
    """
    identities = {}
    for name in architectures:
        state = read_weights(pretrained_weights, name)
        identities[name] = weights_digest(state)
        write_tensors(start_path(work, identities[name]), state)
    return identities


def choose_pretraining_images(
    work: Path, study_classes: Sequence[str], **changes: Any
) -> StudyData:
    """Choose the images of pretraining by the study's parameters with some changes.

    Args:
        work: the folder of work of the study.
        study_classes: ids of the classes of the study.
        changes: parameters of notebook 01 with other values than in the study.

    Raises:
        ValueError: if a class is one of the study's: test images could then have been
            learnt in pretraining.
    """
    parameters = manifest_of(work)["parameters"] | changes
    data = choose_images(work / PRETRAINING, **parameters)
    shared = sorted(set(study_classes) & set(data.classes["class_id"]))
    if shared:
        raise ValueError(
            f"pretraining and study share the classes {', '.join(shared[:5])}; set "
            "pretrain_class_ids to other classes"
        )
    return data


def recipes(
    architectures: Sequence[str], data: str, fixed: Mapping[str, Any]
) -> list[RunConfig]:
    """Configure one pretraining run per architecture.

    The identity of its weights is its id. So the ids of runs that start from them are
    the same on all machines, even if each machine pretrains anew.

    Args:
        architectures: torchvision's names.
        data: fingerprint of the images.
        fixed: values of hyperparameters that the study does not vary.
    """
    recipe = {
        "batch_size": 64,
        "learning_rate": 1e-3,
        "optimizer": "adam",
        "weight_decay": 5e-4,
        "augmentation": True,
        "pretrained": False,
        **fixed,
    }
    return [RunConfig(name, data=data, **recipe) for name in architectures]


def weights_of_records(runs: Sequence[RunConfig], work: Path) -> dict[str, str]:
    """Name the weights of a study whose runs were all trained on another machine.

    No run needs the weights any more; their identity is in the study's records.

    Args:
        runs: runs of the study.
        work: its folder of work.

    Returns:
        Their identity by architecture. Empty if a pretrained run is not complete.
    """
    table = read_catalogue(work).query("weights != ''")
    identities = dict(zip(table["architecture"], table["weights"], strict=True))
    pretrained = [
        replace(run, weights=identities.get(run.architecture, ""))
        for run in runs
        if run.pretrained
    ]
    return {} if missing(work, pretrained) else identities

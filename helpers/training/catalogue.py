"""The model set on disk: which runs are complete, the catalogue with one row per model, the models, and their scores."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from helpers.files import give_up, inside, is_sound, read_json, remove, sealed
from helpers.networks.weights import Form, save_half
from helpers.training.config import RunConfig, cell_name, config_from, run_id
from helpers.training.soundness import fault_of_file, fault_of_run, is_elsewhere
from helpers.training.state import snapshot_path

_HYPERPARAMETERS = [field.name for field in fields(RunConfig)]
_MEASURED = ["snapshot", "epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy", "gap"]
CATALOGUE_COLUMNS = ["model_id", "run_id", "cell", "status", "stop_reason", *_MEASURED, "epochs", "seconds", "device", *_HYPERPARAMETERS]
SCORE_COLUMNS = ["model_id", "measure", "variant", "value", "seconds", "reason"]


def run_folder(work: Path, run: RunConfig | str) -> Path:
    """The folder of a run below ``work``."""
    return inside(work / "runs", run if isinstance(run, str) else run_id(run))


def is_complete(work: Path, run: RunConfig | str) -> bool:
    """Whether a run needs nothing more: exactly when its ``result.json`` is there."""
    return (run_folder(work, run) / "result.json").is_file()


def missing(work: Path, runs: Sequence[RunConfig]) -> list[RunConfig]:
    """List the runs that are not complete, in the given order.

    A complete run whose files are not those that it wrote is named in a warning, and counts as missing from then on.
    """
    for run in runs:
        folder = run_folder(work, run)
        if fault := fault_of_run(folder):
            warnings.warn(f"{folder}: {fault}; it is trained again", stacklevel=2)
            (folder / "result.json").unlink(missing_ok=True)
    return [run for run in runs if not is_complete(work, run)]


def read_catalogue(work: Path, runs: Iterable[RunConfig] | None = None) -> pd.DataFrame:
    """Read the catalogue: one row per model (run and snapshot), sorted by model.

    A diverged run without a snapshot has one row with NaN where a model would have been measured, so that it is counted.

    Args:
        work: the study's folder.
        runs: only these; all complete runs below ``work`` when None.

    Returns:
        ``COLUMNS``; accuracies and gap are fractions, ``gap`` is train minus test accuracy.
    """
    names = (
        [run_id(run) for run in runs] if runs is not None else sorted(path.parent.name for path in (work / "runs").glob("*/result.json"))
    )
    rows = [row for name in names if is_complete(work, name) for row in _rows(run_folder(work, name))]
    table = pd.DataFrame(rows, columns=CATALOGUE_COLUMNS).sort_values("model_id", ignore_index=True)
    return table.astype(dict.fromkeys(_MEASURED[2:], float))


def _rows(folder: Path) -> list[dict[str, Any]]:
    config = config_from(read_json(folder / "config.json"))
    result = read_json(folder / "result.json")
    common = {name: result[name] for name in ("run_id", "status", "stop_reason", "epochs", "seconds", "device")}
    common |= {name: getattr(config, name) for name in _HYPERPARAMETERS} | {"cell": cell_name(config)}
    snapshots = result["snapshots"] or [{"snapshot": "none"}]
    return [common | snapshot | {"model_id": f"{result['run_id']}@{snapshot['snapshot']}"} for snapshot in snapshots]


def histories(work: Path, run_ids: Iterable[str]) -> pd.DataFrame:
    """Read the histories of complete runs: one row per run and epoch, with its ``run_id``."""
    tables = [pd.read_parquet(run_folder(work, name) / "history.parquet").assign(run_id=name) for name in run_ids]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=["run_id", "epoch"])


def late_changes(history: pd.DataFrame, epochs: int = 10) -> pd.DataFrame:
    """Change of loss and accuracy, epoch by epoch, over the last epochs of each run (Du et al. 2024, Fig. A1).

    Args:
        history: rows of ``histories`` for the runs that ended at the epoch cap.
        epochs: how many of the last epochs.

    Returns:
        run_id, epoch, relative_loss_change, relative_accuracy_change: (x_t - x_{t-1}) / x_{t-1}, NaN where x_{t-1} is 0;
        loss_change_of_run, accuracy_change_of_run, as the article has them: (x_t - x_{t-1}) / (max x - min x) over the whole run, in
        [-1, 1], NaN where x never changed.
    """
    names, parts = {"loss": "train_loss", "accuracy": "train_accuracy"}, []
    for name, run in history.sort_values("epoch").groupby("run_id"):
        part = pd.DataFrame({"run_id": name, "epoch": run["epoch"]})
        for kind, column in names.items():
            values, span = run[column], run[column].max() - run[column].min()
            before, step = values.shift(), values.diff()
            part[f"relative_{kind}_change"] = step / before.where(before != 0)
            part[f"{kind}_change_of_run"] = step / (span if span > 0 else np.nan)
        parts.append(part.iloc[1:].tail(epochs))
    columns = ["run_id", "epoch", *(form.format(kind) for kind in names for form in ("relative_{}_change", "{}_change_of_run"))]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


@dataclass(frozen=True)
class Model:
    """One snapshot of one run, read once from its row of a catalogue."""

    model_id: str
    run_id: str
    snapshot: str  # "first" or "stop"
    config: RunConfig
    facts: Mapping[str, Any]  # its row: the cell, what was measured, and what a table added to the catalogue

    @property
    def form(self) -> Form:
        """What its network is built from."""
        return Form(*(getattr(self.config, name) for name in Form._fields))


def models_of(catalogue: pd.DataFrame) -> list[Model]:
    """Models of a catalogue, or of a table with all its columns, row by row; a diverged run without a snapshot is none."""
    rows = catalogue[catalogue["snapshot"] != "none"].to_dict("records")
    return [Model(row["model_id"], row["run_id"], row["snapshot"], config_from(row), row) for row in rows]


def with_weights(work: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Rows of a catalogue, or of a table with its columns, but for models whose runs came without their weights from another machine."""
    paths = [snapshot_path(run_folder(work, run), snapshot) for run, snapshot in zip(table["run_id"], table["snapshot"], strict=True)]
    return table[np.array([not is_elsewhere(path) for path in paths], dtype=bool)]


def lacks_weights(work: Path, model: Model) -> bool:
    """Whether the weights of a model are elsewhere, so that what it was not scored for stays undefined here; a warning says so."""
    if lacks := is_elsewhere(snapshot_path(run_folder(work, model.run_id), model.snapshot)):
        warnings.warn("models that came without their weights stay undefined where they were not scored before", stacklevel=3)
    return lacks


def load_model(work: Path, model: Model, classes: int, device: torch.device | str = "cpu") -> nn.Module:
    """Load a model of the catalogue in eval mode, channels last.

    Args:
        work: the study's folder.
        model: one of ``models_of``.
        classes: number of outputs.
        device: where to put it.

    Raises:
        FileNotFoundError: its weights are not there; the message says where they are, or names the run to train again.
        ValueError: the file is damaged; likewise.
    """
    path = snapshot_path(run_folder(work, model.run_id), model.snapshot)
    if is_elsewhere(path):
        raise FileNotFoundError(
            f"the weights of {model.model_id} are where it was trained: its run came without them, and what it was not scored for there "
            f"needs them; pack the study there with --weights and take that, or delete the folder {path.parent} and run 02_grid_training"
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; delete the folder {path.parent} and run 02_grid_training again to train it anew")
    network = model.form.network(classes)
    if fault := fault_of_file(path):
        raise ValueError(f"{path} is {fault}; run 02_grid_training again, which trains it anew")
    try:
        network.load_state_dict(safetensors.torch.load_file(path))
    except SafetensorError as fault:
        raise ValueError(f"{path} is damaged ({fault}); delete the folder {path.parent} and run 02_grid_training again") from fault
    return network.to(device, memory_format=torch.channels_last).eval()


def keep_checkpoints(work: Path, models: pd.DataFrame, folder: Path, classes: Sequence[str], count: int) -> pd.DataFrame:
    """Write models that span the gaps as half-precision safetensors: what others explore and judge without training.

    Args:
        work: the study's folder.
        models: rows of its catalogue to choose from.
        folder: where to write; a file per model, with its hyperparameters and accuracies in the header.
        classes: names of the outputs, in their order.
        count: how many of those whose weights are here; ends of the gap and what lies evenly between them in the order of gaps.

    Returns:
        The chosen rows, smallest gap first, with a column ``file``.
    """
    ordered = with_weights(work, models[models["gap"].notna()]).sort_values(["gap", "model_id"])
    places = np.unique(np.linspace(0, len(ordered) - 1, min(count, len(ordered))).round().astype(int))
    chosen = ordered.iloc[places].assign(file=lambda table: table["model_id"] + ".safetensors")
    for model in models_of(chosen):
        facts = {name: model.facts[name] for name in ("model_id", *_HYPERPARAMETERS, "train_accuracy", "test_accuracy", "gap")}
        state = load_model(work, model, len(classes)).state_dict()
        save_half(inside(folder, model.facts["file"]), state, model.form, facts | {"classes": json.dumps(list(classes))})
    return chosen[["file", "model_id", *_HYPERPARAMETERS, "train_accuracy", "test_accuracy", "gap"]].reset_index(drop=True)


def start_path(work: Path, weights: str) -> Path:
    """Place of the pretrained weights that runs start from, by what they are (``RunConfig.weights``)."""
    return inside(work / "starts", f"{weights}.safetensors")


def _score_path(work: Path, folder: str, model_id: str) -> Path:
    return inside(work / "scores", f"{folder}/{model_id}.parquet")


def _kept_scores(work: Path, folder: str, model_id: str) -> pd.DataFrame:
    """Scores of a model in a folder; none where the file is not there, not as it was written, or of another model."""
    path = _score_path(work, folder, model_id)
    if is_sound(path):
        table = pyarrow.parquet.ParquetFile(path).read().to_pandas()
        if set(SCORE_COLUMNS) <= set(table) and table["model_id"].eq(model_id).all():
            return table
        give_up(path, f"these are no scores of {model_id}")
    return pd.DataFrame(columns=SCORE_COLUMNS)


def scored_measures(work: Path, folder: str, model_id: str) -> set[str]:
    """List the measures that a folder of scores has of a model; these are computed again only where the file is not as it was written."""
    return set(_kept_scores(work, folder, model_id)["measure"])


def forget_scores(work: Path, folder: str, model_id: str) -> None:
    """Delete the scores of a model in a folder, so that they are computed again."""
    remove(_score_path(work, folder, model_id))


def save_scores(work: Path, folder: str, model_id: str, scores: pd.DataFrame) -> None:
    """Add scores of a model to a folder, all at once: rows of measure, variant, value (NaN is undefined), seconds, reason."""
    table = scores.assign(model_id=model_id)[SCORE_COLUMNS].astype({"value": float, "seconds": float})
    if len(before := _kept_scores(work, folder, model_id)):
        table = pd.concat([before, table], ignore_index=True)
    with sealed(_score_path(work, folder, model_id)) as temporary:
        table.to_parquet(temporary, index=False)


def read_scores(work: Path, folders: Iterable[str], model_ids: Iterable[str]) -> pd.DataFrame:
    """Read the scores of some models in some folders as one tidy table, sorted by model, in each in the order they were computed.

    Two processes that scored a model at the same time have both entered it; it is given once.
    """
    tables = [_kept_scores(work, folder, name) for name in sorted(model_ids) for folder in folders]
    tables = [table for table in tables if len(table)]
    table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=SCORE_COLUMNS)
    return table.drop_duplicates(["model_id", "measure", "variant"], ignore_index=True)


def analysed(table: pd.DataFrame, minimum_train_accuracy: float) -> pd.DataFrame:
    """Whether each model enters the analysis, and why not: the paper keeps those above 80 % training accuracy.

    Returns:
        The catalogue with a column ``left_out``: "" for a model that is kept, else the reason.
    """
    reasons = np.select(
        [table["snapshot"].eq("none"), ~(table["train_accuracy"] > minimum_train_accuracy)],
        ["diverged before a snapshot", f"train accuracy not above {minimum_train_accuracy:.0%}"],
        "",
    )
    return table.assign(left_out=reasons)


def models_of_study(work: Path, fingerprint: str, minimum_train_accuracy: float) -> pd.DataFrame:
    """Catalogue that notebook 02 left in a study's folder, with the column ``left_out`` of ``analysed``.

    Args:
        work: the study's folder.
        fingerprint: of the study's images, which every model has to be trained on.
        minimum_train_accuracy: see ``analysed``.

    Raises:
        FileNotFoundError: there is none; the message names the command that makes it.
        ValueError: its models were trained on other images; likewise.
    """
    path = work / "catalogue.parquet"
    remedy = f"run notebooks/02_grid_training.ipynb for it, or `python -m helpers.sweep params/{work.name}.yaml --force 02_grid_training`"
    if not is_sound(path):
        raise FileNotFoundError(f"{path} is not there: notebook 02 has not trained the networks of the study {work.name!r}; {remedy}")
    table = pd.read_parquet(path)
    if others := sorted(set(table.get("data", ["unknown"])) - {fingerprint}):
        told = f"the models in {path} were trained on the images {', '.join(others)}, and notebook 01 has chosen {fingerprint} since"
        raise ValueError(f"{told}; {remedy}")
    return analysed(table, minimum_train_accuracy)

"""Scores and arrays of networks, a table and a file of arrays for each.

``scores/<network>.parquet`` has a row per value, with the columns ``COLUMNS``;
``arrays/<network>.npz`` has values of single images, maps and predictions. Both lie in
``work/<study>`` and, published, in ``reports/<study>/records``. A reader takes all
networks at once: ``pandas.read_parquet("reports/kinds20/records/scores")``.
"""

import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from filelock import FileLock
from numpy.typing import NDArray
from torch import nn
from tqdm.auto import tqdm

from helpers.files import (
    complete_or_absent,
    inside,
    json_digest,
    read_arrays,
    read_json,
    read_table,
    records_of,
    write_json,
    write_table,
)
from helpers.scores.models import Model
from helpers.training.pool import jobs_on, side_by_side

SCORES = "scores"
ARRAYS = "arrays"
SETTINGS = "settings"
# How maps were made, and what they are compared with.
CHOICE = (
    "method",
    "formula",
    "layer",
    "class_used",
    "annotation",
    "image_size",
    "threshold",
    "subset",
)
# A part is a group of values that are computed together, such as a family of measures;
# its settings decide the values. A score without a value has a reason.
COLUMNS = (
    "part",
    "settings",
    "weights",
    "measure",
    "variant",
    *CHOICE,
    "n",
    "value",
    "reason",
)
_BATCH = 64  # images of the pass that is timed on a GPU
_NUMBERS = ("image_size", "threshold", "n", "value")
# A part of arrays alone has one row of this measure, which says that it is complete.
COMPLETE = "complete"
# Reason of a score that records do not suffice for.
NOT_RECORDED = "not recorded, and the network or its images are not here"
# Scores as rows under "scores", and arrays by name.
Record = Mapping[str, "pd.DataFrame | NDArray[Any]"]
# (model, what is shared by all models, names of the missing parts) -> a record by part.
Compute = Callable[[Model, Any, Sequence[str]], Mapping[str, Record]]


class NotInRecords(LookupError):
    """Values are neither in a study's folders nor can they be computed here."""


@dataclass
class Values:
    """Scores and arrays of one network, of all parts and settings.

    Attributes:
        scores: ``COLUMNS``.
        arrays: by "<part>-<settings>/<name>".
    """

    scores: pd.DataFrame
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def key(self) -> pd.Series:
        """Part and settings of each score, as "<part>-<settings>"."""
        return self.scores["part"] + "-" + self.scores["settings"]

    def of(self, keys: Collection[str]) -> "Values":
        """The values of some parts.

        Args:
            keys: "<part>-<settings>" each.
        """
        scores = self.scores[self.key.isin(keys)].reset_index(drop=True)
        arrays = {
            name: array
            for name, array in self.arrays.items()
            if name.rpartition("/")[0] in keys
        }
        return Values(scores, arrays)

    def updated(self, other: "Values") -> "Values":
        """These values with those of other parts, which replace the same parts here.

        Args:
            other: values of the same network.
        """
        kept = self.of(set(self.key) - set(other.key))
        scores = pd.concat([kept.scores, other.scores], ignore_index=True)
        return Values(scores, kept.arrays | other.arrays)


def values_of_record(key: str, weights: str, record: Record) -> Values:
    """Scores and arrays of one part.

    Args:
        key: "<part>-<settings>".
        weights: digest of the network's weights; "" where it is unknown.
        record: scores and arrays by name; without scores it gets ``COMPLETE``.
    """
    part, _, settings = key.rpartition("-")
    rows = record.get("scores")
    if rows is None:
        rows = pd.DataFrame({"measure": [COMPLETE], "value": [1.0]})
    rows = rows.assign(part=part, settings=settings, weights=weights)
    arrays = {
        f"{key}/{name}": np.asarray(array)
        for name, array in record.items()
        if name != "scores"
    }
    return Values(in_columns(rows), arrays)


def in_columns(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows of scores with all ``COLUMNS``: "" and NaN where they have none.

    Args:
        rows: with columns of ``COLUMNS``, "measure" and "value" among them.
    """
    table = rows.reindex(columns=[*COLUMNS])
    texts = [name for name in COLUMNS if name not in _NUMBERS]
    table[texts] = table[texts].astype(object).fillna("").astype(str)
    table[[*_NUMBERS]] = table[[*_NUMBERS]].astype(float)
    return table


def read_scores(folder: Path, model_id: str) -> pd.DataFrame:
    """Scores of a network in a folder of work or of records; no row without a file.

    Args:
        folder: that has ``scores``.
        model_id: of the network.

    Raises:
        DamagedFileError: where the file is damaged.
    """
    path, _ = _paths(folder, model_id)
    return in_columns(read_table(path) if path.is_file() else pd.DataFrame())


def read_values(folder: Path, model_id: str) -> Values:
    """Scores and arrays of a network in a folder of work or of records.

    Args:
        folder: that has ``scores`` and ``arrays``.
        model_id: of the network.

    Raises:
        DamagedFileError: where a file is damaged.
    """
    _, path = _paths(folder, model_id)
    arrays = read_arrays(path) if path.is_file() else {}
    return Values(read_scores(folder, model_id), arrays)


def write_values(folder: Path, model_id: str, values: Values) -> None:
    """Write scores and arrays of a network; scores last, since they say what is there.

    Args:
        folder: of work or of records.
        model_id: of the network.
        values: of all parts.
    """
    table_path, arrays_path = _paths(folder, model_id)
    if values.arrays:
        with complete_or_absent(arrays_path) as path, path.open("wb") as file:
            np.savez_compressed(file, **values.arrays)
    write_table(table_path, values.scores.reset_index(drop=True))


def _paths(folder: Path, model_id: str) -> tuple[Path, Path]:
    return (
        inside(folder / SCORES, f"{model_id}.parquet"),
        inside(folder / ARRAYS, f"{model_id}.npz"),
    )


class Store:
    """Values of a study's networks: read, and computed where they are missing.

    They are read in the folder of work, and then in the study's records. A file of the
    folder of work that is damaged, or of other weights, is computed again.
    """

    def __init__(
        self,
        work: Path,
        shared: Callable[[], Any],
        *,
        device: str = "cpu",
        jobs: int = 0,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            work: folder of the study.
            shared: loads what all models share, such as images.
            device: "cpu" or "cuda".
            jobs: processes that compute side by side, see ``jobs_on``.
        """
        self.folder = work
        self.published = records_of(work)
        self.shared = shared
        self.device = device
        self.jobs = jobs

    def records(
        self,
        models: Sequence[Model],
        parts: Mapping[str, Mapping[str, Any]],
        wanted: Mapping[str, Sequence[str]] | None = None,
    ) -> "Records":
        """What is stored of some models.

        Args:
            models: of a study, or checkpoints.
            parts: see ``each``.
            wanted: see ``each``.
        """
        return Records(self, models, _keys(parts), dict(wanted or {}))

    def each(
        self,
        models: Sequence[Model],
        parts: Mapping[str, Mapping[str, Any]],
        compute: Compute,
        *,
        needed: bool = True,
        wanted: Mapping[str, Sequence[str]] | None = None,
    ) -> "Records":
        """Load the values of each model, after computing those that are missing.

        Args:
            models: of a study, or checkpoints.
            parts: by name, the settings that the values of a part depend on, except
                the model, in types of JSON.
            compute: it is sent to other processes by value.
            needed: raise ``NotInRecords`` if a model cannot be computed here; otherwise
                it is left out, and ``Records.left_out`` says so.
            wanted: measures by part; a part that lacks one of them is computed again.

        Raises:
            NotInRecords: if ``needed`` values are neither stored nor computable here.
            RuntimeError: where computing fails.
        """
        records = self.records(models, parts, wanted)
        missing = records.missing
        todo = [model for model in models if missing[model.model_id]]
        not_here = self.not_computable(todo)
        todo = [model for model in todo if model not in not_here]
        absent = [model for model in not_here if records.absent(model.model_id)]
        sentence = ""
        if absent:
            lacking = set().union(*(records.absent(item.model_id) for item in absent))
            names = [part for part in parts if part in lacking]
            sentence = self._sentence(len(absent), len(models), names)
        if todo:
            task = partial(_compute_and_store, store=self.folder, parts=parts)
            task = partial(task, missing=missing, compute=compute)
            jobs = jobs_on(self.device, self.jobs, partial(self._example, todo[0]))
            results = side_by_side(
                task, todo, shared=self.shared, device=self.device, jobs=jobs
            )
            done = len(models) - len(todo)
            words = f"{', '.join(parts)}, {jobs} at a time on {self.device}"
            for _ in tqdm(results, words, total=len(models), initial=done):
                pass
            records = self.records(models, parts, wanted)
        records.left_out = sentence
        # Raised last, so that what can be computed here is stored.
        if absent and needed:
            raise NotInRecords(sentence)
        return records

    def _example(self, model: Model) -> tuple[nn.Module, tuple[int, ...]]:
        """A network, and the shape of a small batch, see ``jobs_on``."""
        _, *shape = self.shared().train.images.shape
        return model.load(), (_BATCH, *shape)

    def write(
        self,
        model: Model,
        part: str,
        settings: Mapping[str, Any],
        record: Record,
    ) -> None:
        """Store a part of a model.

        Args:
            model: of the study.
            part: its name.
            settings: that its values depend on.
            record: its values.
        """
        _write(self.folder, model, {part: settings}, {part: record})

    def settings_of(self, part: str) -> list[dict[str, Any]]:
        """Settings under which values of a part are stored, here or in the records.

        Args:
            part: its name.
        """
        folders = (self.folder / SETTINGS, self.published / SETTINGS)
        paths = {
            path.name: path
            for folder in folders
            for path in sorted(folder.glob(f"{part}-*.json"))
        }
        return [read_json(path) for path in paths.values()]

    def not_computable(self, models: Sequence[Model]) -> list[Model]:
        """Models without weights or pixels here: their values come from records only.

        Args:
            models: to be computed.

        Returns:
            Those of them that cannot; none where the study has no records, so that
            computing fails with the reason.
        """
        if not models or not self.published.is_dir():
            return []
        if self._has_pixels() is False:
            return list(models)
        return [model for model in models if not model.at_hand]

    def _has_pixels(self) -> bool | None:
        """Whether pixels of the images are here; None where no images are shared."""
        train = getattr(self.shared(), "train", None)
        return None if train is None else train.has_pixels

    def _sentence(self, absent: int, models: int, parts: Sequence[str]) -> str:
        study = self.folder.name
        remedy = "their weights and images are needed: run it where they are"
        if self._has_pixels():
            remedy = (
                "their weights are needed: to train the networks again, delete "
                f"work/{study} and reports/{study}/records"
            )
        return (
            f"The records of {study} lack {', '.join(parts)} of {absent} of {models} "
            f"models with these settings ({self.published / SETTINGS} has those of the "
            f"records). To compute this, {remedy} (make sweep STUDY={study})."
        )


def _keys(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """ "<part>-<digest of its settings>" by part."""
    return {part: f"{part}-{json_digest(parts[part])}" for part in parts}


def _compute_and_store(
    model: Model,
    shared: Any,
    *,
    store: Path,
    parts: Mapping[str, Mapping[str, Any]],
    missing: Mapping[str, Sequence[str]],
    compute: Compute,
) -> None:
    """Compute the missing parts of a model and write all of them, or none."""
    names = missing[model.model_id]
    records = compute(model, shared, names)
    lacking = [name for name in names if not records.get(name)]
    if lacking:
        raise RuntimeError(
            f"nothing was computed of {', '.join(lacking)}; nothing is kept"
        )
    _write(store, model, parts, records)


def _write(
    store: Path,
    model: Model,
    parts: Mapping[str, Mapping[str, Any]],
    records: Mapping[str, Record],
) -> None:
    """Add the values of some parts to those of a network, one process at a time."""
    keys = _keys(parts)
    path, _ = _paths(store, model.model_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.stem}.lock")  # hidden from readers of the folder
    with FileLock(lock):  # notebooks that run side by side score the same networks
        values = read_values(store, model.model_id)
        for name, record in records.items():
            write_json(store / SETTINGS / f"{keys[name]}.json", parts[name])
            values = values.updated(values_of_record(keys[name], model.weights, record))
        write_values(store, model.model_id, values)


class Records:
    """Values of some models, by part.

    Attributes:
        study: its name.
        keys: "<part>-<settings>" by part.
        model_ids: of the models, in their order.
        left_out: which models could not be computed here, in a sentence; "" for none.
        further: scores that are not stored, by model.
    """

    def __init__(
        self,
        store: Store,
        models: Sequence[Model],
        keys: Mapping[str, str],
        wanted: Mapping[str, Sequence[str]],
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            store: of the values.
            models: of which there may be values.
            keys: "<part>-<settings>" by part.
            wanted: measures that a part must have.
        """
        self._store = store
        self._models = models
        self.study = store.folder.name
        self.keys = keys
        self._wanted = wanted
        self.left_out = ""
        self.further: dict[str, pd.DataFrame] = {}
        self.model_ids = [model.model_id for model in models]

    @cached_property
    def _stored(self) -> dict[str, dict[str, tuple[Path, pd.DataFrame]]]:
        """By model and part, the folder that has it, and its scores."""
        return {model.model_id: self._stored_of(model) for model in self._models}

    def _stored_of(self, model: Model) -> dict[str, tuple[Path, pd.DataFrame]]:
        stored = {}
        # The folder of work comes last, in place of the records.
        for folder in (self._store.published, self._store.folder):
            values = Values(read_scores(folder, model.model_id))
            is_of_model = values.scores["weights"].isin(["", model.weights])
            if model.weights and not is_of_model.all():
                warnings.warn(
                    f"{folder} has values of other weights of {model}; they are left "
                    "out",
                    stacklevel=4,
                )
                values = Values(values.scores[is_of_model])
            for part, key in self.keys.items():
                rows = values.of([key]).scores
                if len(rows):
                    stored[part] = (folder, rows)
        return stored

    def absent(self, model_id: str) -> list[str]:
        """Parts of which nothing is stored of a model.

        Args:
            model_id: of the model.
        """
        return [part for part in self.keys if part not in self._stored[model_id]]

    @cached_property
    def missing(self) -> dict[str, list[str]]:
        """Parts that a model lacks, or of which it lacks a measure, by model."""
        missing = {model_id: self.absent(model_id) for model_id in self.model_ids}
        for model_id, parts in self._stored.items():
            for part, (_, rows) in parts.items():
                stored = rows["measure"][rows["reason"] != NOT_RECORDED]
                if not set(self._wanted.get(part, ())) <= set(stored):
                    missing[model_id].append(part)
        return missing

    @property
    def complete(self) -> list[str]:
        """Ids of the models that have all parts."""
        return [name for name in self.model_ids if not self.absent(name)]

    def record(self, part: str, model_id: str) -> dict[str, Any]:
        """Scores, under "scores", and arrays of a model by name; empty without any.

        Args:
            part: of the record.
            model_id: of the model.
        """
        if part not in self._stored.get(model_id, {}):
            return {}
        folder, rows = self._stored[model_id][part]
        arrays = read_values(folder, model_id).of([self.keys[part]]).arrays
        of_part = {name.rpartition("/")[2]: array for name, array in arrays.items()}
        return of_part | {"scores": rows}

    def records(self, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each model's id with its record; models without one are left out.

        Args:
            part: of the records.
        """
        for model_id in self.model_ids:
            record = self.record(part, model_id)
            if record:
                yield model_id, record

    def scores(self, part: str = "") -> pd.DataFrame:
        """Scores of all models, with the column model_id first.

        Args:
            part: of the scores; "" takes all.
        """
        tables = [rows.assign(model_id=name) for name, rows in self.further.items()]
        for name in [part] if part else self.keys:
            for model_id, parts in self._stored.items():
                if name in parts:
                    tables.append(parts[name][1].assign(model_id=model_id))
        table = pd.concat([in_columns(pd.DataFrame()).assign(model_id=""), *tables])
        in_order = table[["model_id", *COLUMNS]].drop(columns=["settings", "weights"])
        return in_order.reset_index(drop=True)

    def of_images(self, part: str, shape: int = 1) -> dict[str, NDArray[np.float32]]:
        """Values of single images of all models by name, read model by model.

        Args:
            part: of the records.
            shape: dimensions that an array of one model has.

        Returns:
            (models, ...) float32 by name; NaN for a model without this array.
        """
        stacked: dict[str, NDArray[np.float32]] = {}
        for row, model_id in enumerate(self.model_ids):
            for name, values in self.record(part, model_id).items():
                if name == "scores" or values.ndim != shape:
                    continue
                if name not in stacked:
                    size = (len(self.model_ids), *values.shape)
                    stacked[name] = np.full(size, np.nan, dtype=np.float32)
                stacked[name][row] = values
        return stacked

"""Values of a study's networks: read, and computed where they are missing."""

from collections.abc import Callable, Mapping, Sequence
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
    inside,
    json_digest,
    read_json,
    records_of,
    write_json,
)
from helpers.scores.models import Model
from helpers.scores.values import (
    COLUMNS,
    SCORES,
    SETTINGS,
    Record,
    add_record,
    in_columns,
    keys_of,
    read_scores,
    read_values,
)
from helpers.training.pool import side_by_side

_BATCH = 64  # images of the pass that is timed on a GPU
# (model, what is shared by all models, names of the missing parts) -> a record by part.
Compute = Callable[[Model, Any, Sequence[str]], Mapping[str, Record]]


class NotInRecords(LookupError):
    """Values are neither in a study's folders nor can they be computed here."""


class Store:
    """Values of a study's networks: read, and computed where they are missing.

    They are read in the folder of work, and then in the study's records.
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
        self, models: Sequence[Model], parts: Mapping[str, Mapping[str, Any]]
    ) -> "Records":
        """What is stored of some models.

        Args:
            models: of a study, or checkpoints.
            parts: see ``each``.
        """
        return Records(self, models, _keys(parts))

    def each(
        self,
        models: Sequence[Model],
        parts: Mapping[str, Mapping[str, Any]],
        compute: Compute,
        *,
        needed: bool = True,
    ) -> "Records":
        """Load the values of each model, after computing those that are missing.

        Args:
            models: of a study, or checkpoints.
            parts: by name, the settings that the values of a part depend on, except
                the model, in types of JSON.
            compute: it is sent to other processes by value.
            needed: raise ``NotInRecords`` if a model cannot be computed here; otherwise
                it is left out, and ``Records.left_out`` says so.

        Raises:
            NotInRecords: if ``needed`` values are neither stored nor computable here.
            RuntimeError: where computing fails.
        """
        records = self.records(models, parts)
        missing = {model_id: records.absent(model_id) for model_id in records.model_ids}
        todo = [model for model in models if missing[model.model_id]]
        not_here = self.not_computable(todo)
        todo = [model for model in todo if model not in not_here]
        task = partial(self._compute, parts=parts, missing=missing, compute=compute)
        results = self.side_by_side(task, todo)
        progress = {"total": len(models), "initial": len(models) - len(todo)}
        for _ in tqdm(results, ", ".join(parts), **progress, disable=not todo):
            pass
        records = self.records(models, parts)
        if not_here:
            lacking = {name for item in not_here for name in missing[item.model_id]}
            study = self.folder.name
            records.left_out = (
                f"The records of {study} lack {', '.join(sorted(lacking))} of "
                f"{len(not_here)} of {len(models)} models with these settings "
                f"({self.published / SETTINGS} has those of the records). To compute "
                "this, their weights and images are needed: run it where they are, or "
                f"delete work/{study} and reports/{study}/records to train the "
                f"networks again (make sweep STUDY={study})."
            )
        # Raised last, so that what can be computed here is stored.
        if not_here and needed:
            raise NotInRecords(records.left_out)
        return records

    def _compute(
        self,
        model: Model,
        shared: Any,
        *,
        parts: Mapping[str, Mapping[str, Any]],
        missing: Mapping[str, Sequence[str]],
        compute: Compute,
    ) -> None:
        """Compute the missing parts of a model, and write all of them, or none.

        A notebook that runs beside this one may want the same parts: it waits.
        """
        lock = inside(self.folder / SCORES, f".{model.model_id}.computed.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            absent = self.records([model], parts).absent(model.model_id)
            names = [name for name in missing[model.model_id] if name in absent]
            records = compute(model, shared, names) if names else {}
            for name in names:
                self.write(model, name, parts[name], records[name])

    def side_by_side(
        self, task: Callable[[Model, Any], Any], models: Sequence[Model]
    ) -> Any:
        """Each model with what a task returns for it, see ``pool.side_by_side``.

        Args:
            task: is called with a model and what all models share.
            models: to be processed.
        """
        example = None
        if models and not self.not_computable(models):
            example = partial(self._example, models[0])
        options = {"shared": self.shared, "device": self.device, "jobs": self.jobs}
        return side_by_side(task, models, example=example, **options)

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
        key = _keys({part: settings})[part]
        write_json(self.folder / SETTINGS / f"{key}.json", settings)
        add_record(self.folder, model.model_id, key, record, model.weights)

    def settings_of(self, part: str) -> list[dict[str, Any]]:
        """Settings under which values of a part are stored, here or in the records.

        Args:
            part: its name.
        """
        folders = (self.folder / SETTINGS, self.published / SETTINGS)
        return [
            read_json(path)
            for folder in folders
            for path in sorted(folder.glob(f"{part}-*.json"))
        ]

    def not_computable(self, models: Sequence[Model]) -> list[Model]:
        """Models without weights or pixels here: their values come from records only.

        Args:
            models: to be computed.
        """
        if not models:
            return []
        train = getattr(self.shared(), "train", None)
        has_pixels = train is None or train.has_pixels
        return [model for model in models if not (model.at_hand and has_pixels)]


def _keys(parts: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """ "<part>-<digest of its settings>" by part."""
    return {part: f"{part}-{json_digest(parts[part])}" for part in parts}


class Records:
    """Values of some models, by part.

    Attributes:
        study: its name.
        keys: "<part>-<settings>" by part.
        model_ids: of the models, in their order.
        left_out: which models could not be computed here, in a sentence; "" for none.
    """

    def __init__(
        self, store: Store, models: Sequence[Model], keys: Mapping[str, str]
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            store: of the values.
            models: of which there may be values.
            keys: "<part>-<settings>" by part.
        """
        self._folders = (store.published, store.folder)  # the latter replaces
        self._weights = {model.model_id: model.weights for model in models}
        self.study = store.folder.name
        self.keys = keys
        self.left_out = ""
        self.model_ids = list(self._weights)

    @cached_property
    def _stored(self) -> dict[str, dict[str, tuple[Callable[[], Any], pd.DataFrame]]]:
        """By model and part, what reads its arrays, and its scores."""
        return {model_id: self._stored_of(model_id) for model_id in self.model_ids}

    def _stored_of(
        self, model_id: str
    ) -> dict[str, tuple[Callable[[], Any], pd.DataFrame]]:
        stored = {}
        weights = self._weights[model_id]
        for folder in self._folders:
            scores = read_scores(folder, model_id)
            if weights:  # values of other weights are of another network
                scores = scores[scores["weights"].isin(["", weights])]
            for part, key in self.keys.items():
                rows = scores[keys_of(scores) == key]
                if len(rows):
                    stored[part] = (partial(_arrays_of, folder, model_id, key), rows)
        return stored

    def add(self, model_id: str, records: Mapping[str, Record]) -> None:
        """Take further values of a model, which are not stored.

        Args:
            model_id: of the model.
            records: by part; of a part that is stored, the scores alone.
        """
        stored = self._stored[model_id]
        for part, record in records.items():
            rows = in_columns(record["scores"].assign(part=part))
            arrays = {name: record[name] for name in record if name != "scores"}
            read, before = stored.get(part, (arrays.copy, rows[:0]))
            stored[part] = (read, pd.concat([before, rows], ignore_index=True))

    def absent(self, model_id: str) -> list[str]:
        """Parts of which there is nothing of a model.

        Args:
            model_id: of the model.
        """
        return [part for part in self.keys if part not in self._stored[model_id]]

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
        read, rows = self._stored[model_id][part]
        return {**read(), "scores": rows}

    def scores(self, part: str = "") -> pd.DataFrame:
        """Scores of all models, with the column model_id first.

        Args:
            part: of the scores; "" takes all.
        """
        tables = [
            stored[name][1].assign(model_id=model_id)
            for name in ([part] if part else self.keys)
            for model_id, stored in self._stored.items()
            if name in stored
        ]
        table = pd.concat([in_columns(pd.DataFrame()).assign(model_id=""), *tables])
        in_order = table[["model_id", *COLUMNS]].drop(columns=["settings", "weights"])
        return in_order.reset_index(drop=True)

    def of_images(self, part: str) -> dict[str, NDArray[np.float32]]:
        """Values of single images of all models by name, read model by model.

        Args:
            part: of the records.

        Returns:
            (models, images) float32 by name; NaN for a model without this array.
        """
        stacked: dict[str, NDArray[np.float32]] = {}
        for row, model_id in enumerate(self.model_ids):
            for name, values in self.record(part, model_id).items():
                if name == "scores" or values.ndim != 1:
                    continue
                if name not in stacked:
                    size = (len(self.model_ids), len(values))
                    stacked[name] = np.full(size, np.nan, dtype=np.float32)
                stacked[name][row] = values
        return stacked


def _arrays_of(folder: Path, model_id: str, key: str) -> dict[str, NDArray[Any]]:
    """Arrays of one part of a network, by name."""
    values = read_values(folder, model_id)
    of_key = [name for name in values if name.rpartition("/")[0] == key]
    return {name.rpartition("/")[2]: values[name] for name in of_key}

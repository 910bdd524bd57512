"""Values of a study's networks: read, and computed where they are missing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
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
    COMPLETE,
    SCORES,
    SETTINGS,
    add_values,
    in_columns,
    keys_of,
    read_scores,
    read_values,
)
from helpers.training.pool import jobs_on, side_by_side

_BATCH = 64  # images of the pass that is timed on a GPU
# Scores under "scores", as rows or as values by measure, and arrays by name.
Record = Mapping[str, Any]
# (model, what is shared by all models, names of the missing parts) -> a record by part.
Compute = Callable[[Model, Any, Sequence[str]], Mapping[str, Record]]
Parts = Mapping[str, Mapping[str, Any]]  # settings of each part


class NotInRecords(LookupError):
    """Values are neither in a study's folders nor can they be computed here."""


@dataclass(frozen=True)
class Store:
    """Values of a study's networks: read, and computed where they are missing.

    They are read in the folder of work, and then in the study's records.

    Attributes:
        folder: of work, of the study.
        shared: loads what all models share, such as images.
        device: "cpu" or "cuda".
        jobs: processes that compute side by side, see ``jobs_on``.
    """

    folder: Path
    shared: Callable[[], Any]
    device: str = "cpu"
    jobs: int = 0

    @property
    def folders(self) -> list[Path]:
        """Of the study's records, and of work, whose values replace theirs."""
        return [records_of(self.folder), self.folder]

    def records(self, models: Sequence[Model], parts: Parts) -> "Records":
        """What is stored of some models.

        Args:
            models: of a study, or checkpoints.
            parts: see ``each``.
        """
        return Records(self.folders, models, _keys(parts))

    def each(
        self,
        models: Sequence[Model],
        parts: Parts,
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
        todo = [model for model in models if records.absent(model.model_id)]
        not_here = self.not_computable(todo)
        todo = [model for model in todo if model not in not_here]
        task = partial(self._compute, parts=parts, compute=compute)
        for _ in self.side_by_side(task, todo, ", ".join(parts)):
            pass
        if todo:
            records = self.records(models, parts)
        if not_here:
            lacking = {name for item in not_here for name in records.absent(str(item))}
            records.left_out = (
                f"The records of {self.folder.name} lack {', '.join(sorted(lacking))} "
                f"of {len(not_here)} of {len(models)} models with these settings. To "
                "compute this, their weights and images are needed."
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
        parts: Parts,
        compute: Compute,
    ) -> None:
        """Compute the missing parts of a model, and write all of them, or none.

        A notebook that runs beside this one may want the same parts: it waits.
        """
        lock = inside(self.folder / SCORES, f".{model.model_id}.computed.lock")
        lock.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(lock):
            names = self.records([model], parts).absent(model.model_id)
            computed = compute(model, shared, names) if names else {}
            records = {name: computed[name] for name in names}
            for name, record in records.items():
                self.write(model, name, parts[name], record)

    def side_by_side(
        self, task: Callable[[Model, Any], Any], models: Sequence[Model], words: str
    ) -> Any:
        """Each model with what a task returns for it, see ``pool.side_by_side``.

        Args:
            task: is called with a model and what all models share.
            models: to be processed.
            words: at the progress bar.
        """

        def example() -> tuple[nn.Module, tuple[int, ...]]:
            """A network and the shape of a small batch."""
            return models[0].load(), (_BATCH, *self.shared().train.images.shape[1:])

        jobs = self.jobs
        # A mask or a picture is of no network.
        if len(models) > 1 and not self.not_computable(models):
            jobs = jobs_on(self.device, self.jobs, example)
        options = {"shared": self.shared, "device": self.device, "jobs": jobs}
        results = side_by_side(task, models, **options)
        return tqdm(results, words, total=len(models), disable=not models)

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
            record: its values; without scores it gets ``COMPLETE``.
        """
        digest = json_digest(settings)
        key = f"{part}-{digest}"
        write_json(self.folder / SETTINGS / f"{key}.json", settings)
        scores = record.get("scores", {COMPLETE: 1.0})
        if not isinstance(scores, pd.DataFrame):
            scores = pd.DataFrame(scores.items(), columns=["measure", "value"])
        rows = scores.assign(part=part, settings=digest, weights=model.weights)
        arrays = {
            f"{key}/{name}": np.asarray(array)
            for name, array in record.items()
            if name != "scores"
        }
        add_values(self.folder, model.model_id, in_columns(rows), arrays)

    def settings_of(self, part: str) -> list[dict[str, Any]]:
        """Settings under which values of a part are stored, here or in the records.

        Args:
            part: its name.
        """
        return [
            read_json(path)
            for folder in self.folders
            for path in sorted((folder / SETTINGS).glob(f"{part}-*.json"))
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


def _keys(parts: Parts) -> dict[str, str]:
    """ "<part>-<digest of its settings>" by part."""
    return {part: f"{part}-{json_digest(parts[part])}" for part in parts}


class Records:
    """Values of some models, by part.

    Attributes:
        folders: of work and of records, of which a later one replaces an earlier one.
        keys: "<part>-<settings>" by part.
        model_ids: of the models, in their order.
        left_out: which models could not be computed here, in a sentence; "" for none.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        models: Sequence[Model],
        keys: Mapping[str, str],
    ) -> None:
        """Read scores; arrays are read when they are asked for.

        Args:
            folders: of work and of records, of which a later one replaces an earlier.
            models: whose values they are; weights "" takes values of any.
            keys: "<part>-<settings>" by part.
        """
        self.keys = keys
        self.model_ids = [model.model_id for model in models]
        self.left_out = ""
        # By part and model: scores, and what reads the arrays.
        self._stored: dict[tuple[str, str], tuple[pd.DataFrame, Callable]] = {}
        for folder, model in product(folders, models):
            scores = read_scores(folder, model.model_id)
            if model.weights:  # values of other weights are of another network
                scores = scores[scores["weights"].isin(["", model.weights])]
            for part, key in keys.items():
                rows = scores[keys_of(scores) == key]
                if len(rows):
                    read = partial(read_values, folder, model.model_id, [key])
                    self._stored[part, model.model_id] = (rows, read)

    def add(self, model_id: str, records: Mapping[str, Record]) -> None:
        """Take further values of a model, which are not stored.

        Args:
            model_id: of the model.
            records: by part; of a part that is stored, the scores alone.
        """
        for part, record in records.items():
            rows = in_columns(record["scores"].assign(part=part))
            nothing = (rows[:0], dict(record).copy)
            before, read = self._stored.get((part, model_id), nothing)
            rows = pd.concat([before, rows], ignore_index=True)
            self._stored[part, model_id] = (rows, read)

    def absent(self, model_id: str) -> list[str]:
        """Parts of which there is nothing of a model.

        Args:
            model_id: of the model.
        """
        return [part for part in self.keys if (part, model_id) not in self._stored]

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
        if (part, model_id) not in self._stored:
            return {}
        rows, read = self._stored[part, model_id]
        arrays = {name.rpartition("/")[2]: array for name, array in read().items()}
        return arrays | {"scores": rows}

    def scores(self, part: str = "") -> pd.DataFrame:
        """Scores of all models, with a column model_id.

        Args:
            part: of the scores; "" takes all.
        """
        tables = [
            self._stored[name, model_id][0].assign(model_id=model_id)
            for name in ([part] if part else self.keys)
            for model_id in self.model_ids
            if (name, model_id) in self._stored
        ]
        none = in_columns(pd.DataFrame()).assign(model_id="")
        table = pd.concat([none, *tables], ignore_index=True)
        return table.drop(columns=["settings", "weights"])

    def table(self, part: str) -> pd.DataFrame:
        """Values of a part: a row per model that has it, a column per measure.

        Args:
            part: of the scores, which have no variants.
        """
        scores = self.scores(part)
        scores = scores[scores["measure"] != COMPLETE]
        wide = scores.pivot(index="model_id", columns="measure", values="value")
        return wide[scores["measure"].unique()].rename_axis(columns=None)

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
                if values.ndim == 1:  # neither maps nor scores
                    size = (len(self.model_ids), len(values))
                    nothing = np.full(size, np.nan, dtype=np.float32)
                    stacked.setdefault(name, nothing)[row] = values
        return stacked

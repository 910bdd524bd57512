"""What was computed of each model of a study, kept: computed once, one file per model, read as tables and arrays."""

import json
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm.auto import tqdm

from helpers.files import (
    DamagedFileError,
    complete_or_absent,
    digest,
    inside,
    read_arrays,
    read_json,
    records_of,
    write_json,
)
from helpers.networks.batches import halving_batches
from helpers.scoring.models import Model
from helpers.scoring.records import KEPT, LARGE, SETTINGS, WEIGHTS
from helpers.training.pool import side_by_side

Record = Mapping[str, "pd.DataFrame | NDArray[Any]"]
# Computes parts of a model: (model, what is shared by all models, names of the parts that are missing) -> a record by part.
Compute = Callable[[Model, Any, Sequence[str]], Mapping[str, Record]]


class Store:
    """Files ``work/kept/<part>-<digest of its settings>/<model>.npz``: complete or absent, made anew where damaged.

    What is not there is read from the study's records, which have the same folders.
    """

    def __init__(
        self,
        work: Path,
        shared: Callable[[], Any],
        *,
        device: str = "cpu",
        jobs: int = 0,
    ) -> None:
        """Take a study's folder, a loader of what all models share (images), and how many processes compute; see ``side_by_side``."""
        self.folder, self.shared, self.device, self.jobs = (
            work / KEPT,
            shared,
            device,
            jobs,
        )
        self.published = records_of(work) / KEPT

    def each(
        self,
        models: Sequence[Model],
        parts: Mapping[str, Mapping[str, Any]],
        compute: Compute,
        *,
        needed: bool = True,
    ) -> "Kept":
        """What is computed of each model, after computing what is missing.

        Args:
            models: of a study, or checkpoints.
            parts: by name, everything that decides the values beside the model, as JSON
                has it.
            compute: a function of a module, or a partial of one.
            needed: of all models; else those that cannot be computed here are left out,
                and ``Kept.left_out`` says so.

        Returns:
            Records of the models by part.

        Raises:
            NotInRecords: where values are needed that neither lie here nor can be
                computed here.
            RuntimeError: where computing fails.
        """
        names = {name: f"{name}-{digest(settings)}" for name, settings in parts.items()}
        folders = {name: inside(self.folder, place) for name, place in names.items()}
        kept = Kept(folders, models, self.published)
        missing = {model.model_id: kept.missing(model.model_id) for model in models}
        todo = [model for model in models if missing[model.model_id]]
        absent = self.not_computable(todo)
        if absent:
            kept.left_out = self._sentence(absent, missing, parts)
            todo = [model for model in todo if model not in absent]
        for name in parts if todo else ():
            if not (folders[name] / SETTINGS).is_file():
                write_json(folders[name] / SETTINGS, parts[name])
        work = partial(
            _compute_and_keep, kept=Kept(folders, (), self.published), compute=compute
        )
        done = side_by_side(
            work, todo, shared=self.shared, device=self.device, jobs=self.jobs
        )
        for _ in tqdm(
            done,
            total=len(models),
            initial=len(models) - len(todo),
            desc=", ".join(parts),
            disable=not todo,
        ):
            pass
        if absent and needed:
            raise NotInRecords(kept.left_out)
        return kept

    def not_computable(self, models: Sequence[Model]) -> list[Model]:
        """Models that only records can speak for: without weights or pixels here."""
        if not models or not self.published.is_dir():
            return []
        train = getattr(self.shared(), "train", None)
        if train is not None and not train.has_pixels:
            return list(models)
        return [model for model in models if not model.at_hand]

    def _sentence(
        self,
        absent: Sequence[Model],
        missing: Mapping[str, Sequence[str]],
        parts: Mapping[str, Mapping[str, Any]],
    ) -> str:
        """What records lack of some models, what they have, and what would bring it."""
        study = self.folder.parent.name
        names = [
            name
            for name in parts
            if any(name in missing[model.model_id] for model in absent)
        ]
        other = [self._other_settings(name, parts[name]) for name in names]
        differing = "; ".join(text for text in other if text)
        return (
            f"The records of {study} lack {', '.join(names)} of {len(absent)} of "
            f"{len(missing)} models{f' ({differing})' if differing else ''}. To compute "
            f"this, their weights and images are needed: run `python -m helpers.sweep {study}` "
            "where the images are."
        )

    def _other_settings(self, name: str, settings: Mapping[str, Any]) -> str:
        """In what the nearest published values of a part differ; "" where there are none."""
        wanted = json.loads(json.dumps(settings))
        texts = []
        for path in sorted(self.published.glob(f"{name}-*/{SETTINGS}")):
            published = read_json(path)
            keys = [key for key in wanted if published.get(key) != wanted[key]]
            texts.append([f"{key} is {published.get(key)!r:.60} there" for key in keys])
        return ", ".join(min(texts, key=len, default=[]))


class NotInRecords(LookupError):
    """Values that neither lie in a study's folders nor can be computed here."""


def _compute_and_keep(
    model: Model, shared: Any, *, kept: "Kept", compute: Compute
) -> None:
    kept = Kept(kept.folders, [model], kept.published)
    missing = kept.missing(model.model_id)
    records = halving_batches(
        lambda: compute(model, shared, missing), str(model.model_id)
    )
    lacking = [name for name in missing if not records.get(name)]
    if lacking:
        raise RuntimeError(
            f"nothing was computed of {', '.join(lacking)}; nothing is kept"
        )
    for name, record in records.items():
        kept.write(name, model.model_id, record)


class Kept:
    """Records of some models, by part."""

    def __init__(
        self,
        folders: Mapping[str, Path],
        models: Sequence[Model],
        published: Path | None = None,
    ) -> None:
        """Take the folder of each part, and the folder that holds the same folders as published records."""
        self.folders, self.published = folders, published
        self.left_out = ""  # which models could not be computed here, in a sentence
        self.model_ids = [model.model_id for model in models]
        self.weights = {model.model_id: model.weights for model in models}

    def _path(self, part: str, model_id: str) -> Path:
        return inside(self.folders[part], f"{model_id}.npz")

    def _paths(self, part: str, model_id: str) -> list[Path]:
        """Files that may hold a record: of the folder of work, then the published one."""
        path = self._path(part, model_id)
        if self.published is None:
            return [path]
        return [path, self.published / path.parent.name / path.name]

    def missing(self, model_id: str) -> list[str]:
        """Parts that a model has no readable file of, or one of other weights."""
        return [
            part
            for part in self.folders
            if not any(
                self._is_of(path, model_id) for path in self._paths(part, model_id)
            )
        ]

    @property
    def complete(self) -> list[str]:
        """Ids of the models that have all parts."""
        return [name for name in self.model_ids if not self.missing(name)]

    def _is_of(self, path: Path, model_id: str) -> bool:
        """Whether a file can be read and holds values of the model's weights."""
        if not path.is_file():
            return False
        state = path.stat()
        try:
            weights = _weights_in(path, state.st_mtime_ns, state.st_size)
        except DamagedFileError as fault:
            self._withdraw(path, f"is damaged ({fault.cause})")
            return False
        expected = self.weights.get(model_id, "")
        if weights and expected and weights != expected:
            self._withdraw(
                path, f"is of other weights ({weights}, and the run has {expected})"
            )
            return False
        return True

    def _withdraw(self, path: Path, fault: str) -> None:
        """Name a file that is of no use; one of the folder of work is removed."""
        if self.published is not None and path.is_relative_to(self.published):
            warnings.warn(
                f"{path} {fault}; take it from the repository again, or publish the study's "
                "records anew",
                stacklevel=3,
            )
            return
        warnings.warn(
            f"{path} {fault}; it is removed, and made anew when the notebook runs again",
            stacklevel=3,
        )
        path.unlink(missing_ok=True)

    def write(self, part: str, model_id: str, record: Record) -> None:
        """Keep a record: arrays by name, tables column by column; texts as texts, nothing that would have to be unpickled."""
        arrays = to_arrays(record)
        if weights := self.weights.get(model_id, ""):
            arrays[WEIGHTS] = np.array(weights)
        with (
            complete_or_absent(self._path(part, model_id)) as temporary,
            temporary.open("wb") as file,
        ):
            np.savez_compressed(file, **arrays)

    def record(self, part: str, model_id: str) -> dict[str, Any]:
        """Arrays and tables of a model; empty where there are none. A damaged file is said and removed, so that it is made anew."""
        for path in self._paths(part, model_id):
            if self._is_of(path, model_id):
                return read_record(path)
        return {}

    def records(self, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each model's id with its record, those without one left out."""
        for model_id in self.model_ids:
            if record := self.record(part, model_id):
                yield model_id, record

    def table(self, part: str, name: str) -> pd.DataFrame:
        """A table of all models, one below the other, with the column model_id first."""
        tables = [
            record[name].assign(model_id=model_id)
            for model_id, record in self.records(part)
            if name in record
        ]
        table = (
            pd.concat(tables, ignore_index=True)
            if tables
            else pd.DataFrame({"model_id": []})
        )
        return table[
            ["model_id", *(column for column in table if column != "model_id")]
        ]

    def stacked(
        self, part: str, leave_out: Collection[str] = ()
    ) -> dict[str, NDArray[np.float32]]:
        """Arrays of all models by name, read model by model, without maps in 16 bits.

        Args:
            part: of which the records are read.
            leave_out: names of arrays that are too large for all models at once.

        Returns:
            (models, ...) float32 by name, in the order of the models; NaN for a model
            without.
        """
        stacked: dict[str, NDArray[np.float32]] = {}
        for row, model_id in enumerate(self.model_ids):
            for name, values in self.record(part, model_id).items():
                if not isinstance(values, np.ndarray) or name in (*leave_out, *LARGE):
                    continue
                if name not in stacked:
                    shape = (len(self.model_ids), *values.shape)
                    stacked[name] = np.full(shape, np.nan, dtype=np.float32)
                stacked[name][row] = values
        return stacked


def to_arrays(record: Record) -> dict[str, NDArray[Any]]:
    """Arrays of a file: those of a record, and each table's as ``table|column``."""
    arrays = {
        name: value for name, value in record.items() if isinstance(value, np.ndarray)
    }
    for name, table in record.items():
        if isinstance(table, pd.DataFrame):
            arrays |= {f"{name}|{column}": _plain(table[column]) for column in table}
    return arrays


@lru_cache(maxsize=100_000)
def _weights_in(path: Path, time: int, size: int) -> str:
    """Digest of the weights that a file's values are of, "" where it names none.

    All of the file is read and checked, once while its time and size are these.

    Raises:
        DamagedFileError: where it is damaged.
    """
    return str(read_arrays(path).get(WEIGHTS, ""))


def read_record(path: Path) -> dict[str, Any]:
    """Arrays and tables of a file as ``to_arrays`` names them.

    Raises:
        DamagedFileError: where it is damaged.
    """
    arrays = read_arrays(path)
    arrays.pop(WEIGHTS, None)
    record = {name: value for name, value in arrays.items() if "|" not in name}
    tables: dict[str, dict[str, NDArray[Any]]] = {}
    for key, value in arrays.items():
        name, divider, column = key.partition("|")
        if divider:
            tables.setdefault(name, {})[column] = value
    return record | {name: pd.DataFrame(columns) for name, columns in tables.items()}


def _plain(column: pd.Series) -> NDArray[Any]:
    return (
        column.to_numpy()
        if pd.api.types.is_numeric_dtype(column)
        else column.astype(str).to_numpy(dtype=str)
    )

"""Cache of computed values: one .npz file per model and part, of tables and arrays.

A part is a group of values that are computed together, such as a family of measures.
"""

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
    KEPT,
    DamagedFileError,
    complete_or_absent,
    inside,
    json_digest,
    read_arrays,
    read_json,
    records_of,
    write_json,
)
from helpers.scoring.models import Model
from helpers.scoring.records import LARGE, SETTINGS, WEIGHTS
from helpers.training.pool import side_by_side

Record = Mapping[str, "pd.DataFrame | NDArray[Any]"]
# (model, what is shared by all models, names of the missing parts) -> a record by part.
Compute = Callable[[Model, Any, Sequence[str]], Mapping[str, Record]]


class Store:
    """Files ``work/kept/<part>-<digest of its settings>/<model>.npz``.

    They are complete or absent. Reading removes a file of the folder of work that is
    damaged or belongs to other weights, so that it is computed again. What is not there
    is read from the study's records, which have the same folders.
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
            jobs: processes that compute side by side; 0 takes one per core or GPU.
        """
        self.folder = work / KEPT
        self.published = records_of(work) / KEPT
        self.shared = shared
        self.device = device
        self.jobs = jobs

    def each(
        self,
        models: Sequence[Model],
        parts: Mapping[str, Mapping[str, Any]],
        compute: Compute,
        *,
        needed: bool = True,
        optional: Collection[str] = (),
    ) -> "Records":
        """Load the values of each model, after computing those that are missing.

        Args:
            models: of a study, or checkpoints.
            parts: by name, the settings that the values of a part depend on, except
                the model, in types of JSON.
            compute: a function of a module, or a partial of one; other processes import
                it by its name.
            needed: raise ``NotInRecords`` if a model cannot be computed here; otherwise
                it is left out, and ``Records.left_out`` says so.
            optional: parts that a model may lack which cannot be computed here.

        Returns:
            Records of the models by part.

        Raises:
            NotInRecords: if ``needed`` values are neither stored nor computable here.
            RuntimeError: where computing fails.
        """
        folders = {
            part: inside(self.folder, f"{part}-{json_digest(settings)}")
            for part, settings in parts.items()
        }
        records = Records(folders, models, self.published)
        missing = {model.model_id: records.missing(model.model_id) for model in models}
        todo = [model for model in models if missing[model.model_id]]
        records.optional = list(optional)
        not_computable = self.not_computable(todo)
        todo = [model for model in todo if model not in not_computable]
        absent = [
            model
            for model in not_computable
            if set(missing[model.model_id]) - set(optional)
        ]
        if absent:
            wanted = {name: parts[name] for name in parts if name not in optional}
            records.left_out = self._sentence(absent, missing, wanted)
        if todo:
            _write_settings(folders, parts)
            self._compute(todo, folders, compute, done=len(models) - len(todo))
        # Raised last, so that what can be computed here is stored.
        if absent and needed:
            raise NotInRecords(records.left_out)
        return records

    def _compute(
        self,
        todo: Sequence[Model],
        folders: Mapping[str, Path],
        compute: Compute,
        done: int,
    ) -> None:
        """Compute and store the missing parts of some models, with a progress bar."""
        task = partial(
            _compute_and_store,
            folders=folders,
            published=self.published,
            compute=compute,
        )
        results = side_by_side(
            task, todo, shared=self.shared, device=self.device, jobs=self.jobs
        )
        label = ", ".join(folders)
        for _ in tqdm(results, total=done + len(todo), initial=done, desc=label):
            pass

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
        """Whether pixels of the images are here; None where no images are shared.

        Images are those of a study or a user; some computations share something else.
        """
        train = getattr(self.shared(), "train", None)
        return None if train is None else train.has_pixels

    def _sentence(
        self,
        absent: Sequence[Model],
        missing: Mapping[str, Sequence[str]],
        parts: Mapping[str, Mapping[str, Any]],
    ) -> str:
        """Message on missing values: parts, differing settings, and what to do."""
        study = self.folder.parent.name
        lacking = set().union(*(missing[model.model_id] for model in absent))
        names = [name for name in parts if name in lacking]
        settings = [self._other_settings(name, parts[name]) for name in names]
        differing = "; ".join(text for text in settings if text)
        if differing:
            differing = f" ({differing})"
        remedy = (
            "To compute this, their weights and images are needed: run "
            f"`python -m helpers.sweep {study}` where the images are."
        )
        if self._has_pixels():
            remedy = (
                "The images are here and the weights are not. To train the networks "
                f"again, delete work/{study} and reports/{study}/records, and run "
                f"`python -m helpers.sweep {study}`."
            )
        return (
            f"The records of {study} lack {', '.join(names)} of {len(absent)} of "
            f"{len(missing)} models{differing}. {remedy}"
        )

    def _other_settings(self, name: str, settings: Mapping[str, Any]) -> str:
        """Text on the settings in which the most similar published values differ."""
        wanted = json.loads(json.dumps(settings))  # with lists for tuples, as in files
        differences = []  # of each folder of published values, a text per setting
        for path in sorted(self.published.glob(f"{name}-*/{SETTINGS}")):
            published = read_json(path)
            keys = [key for key in wanted if published.get(key) != wanted[key]]
            differences.append(
                [f"{key} is {published.get(key)!r:.60} there" for key in keys]
            )
        fewest = min(differences, key=len, default=[])
        return ", ".join(fewest)


class NotInRecords(LookupError):
    """Values are neither in a study's folders nor can they be computed here."""


def _write_settings(
    folders: Mapping[str, Path], parts: Mapping[str, Mapping[str, Any]]
) -> None:
    for part, settings in parts.items():
        if not (folders[part] / SETTINGS).is_file():
            write_json(folders[part] / SETTINGS, settings)


def _compute_and_store(
    model: Model,
    shared: Any,
    *,
    folders: Mapping[str, Path],
    published: Path,
    compute: Compute,
) -> None:
    """Compute the missing parts of a model and write all of them, or none."""
    records = Records(folders, [model], published)
    missing = records.missing(model.model_id)
    parts = compute(model, shared, missing)
    lacking = [name for name in missing if not parts.get(name)]
    if lacking:
        raise RuntimeError(
            f"nothing was computed of {', '.join(lacking)}; nothing is kept"
        )
    for name, record in parts.items():
        records.write(name, model.model_id, record)


class Records:
    """Records of some models, by part.

    Attributes:
        folders: of each part.
        left_out: which models could not be computed here, in a sentence; "" for none.
        optional: parts that a model may lack.
        model_ids: of the models, in their order.
        weights_digests: of each model by its id, "" where it is unknown.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        models: Sequence[Model],
        published: Path | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            folders: of each part.
            models: of which there may be records.
            published: folder of the study's records, with folders of the same names.
        """
        self.folders = folders
        self.published = published
        self.left_out = ""
        self.optional: list[str] = []
        self.model_ids = [model.model_id for model in models]
        self.weights_digests = {model.model_id: model.weights for model in models}

    def _path(self, part: str, model_id: str) -> Path:
        return inside(self.folders[part], f"{model_id}.npz")

    def _paths(self, part: str, model_id: str) -> list[Path]:
        """Files that may hold a record: in the folder of work first, then published."""
        path = self._path(part, model_id)
        if self.published is None:
            return [path]
        return [path, self.published / path.parent.name / path.name]

    def missing(self, model_id: str) -> list[str]:
        """Parts of a model without a readable file of its weights.

        Args:
            model_id: of the model.
        """
        return [part for part in self.folders if self._file(part, model_id) is None]

    def _file(self, part: str, model_id: str) -> Path | None:
        """The file that holds a record of the model; None without one."""
        for path in self._paths(part, model_id):
            if self._is_of(path, model_id):
                return path
        return None

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
            weights = _weights_digest_in(path, state.st_mtime_ns, state.st_size)
        except DamagedFileError as fault:
            self._discard_or_warn(path, f"is damaged ({fault.cause})")
            return False
        expected = self.weights_digests.get(model_id, "")
        if weights and expected and weights != expected:
            fault = f"is of other weights ({weights}, and the run has {expected})"
            self._discard_or_warn(path, fault)
            return False
        return True

    def _discard_or_warn(self, path: Path, fault: str) -> None:
        """Warn of a useless file, and remove it if it is in the folder of work."""
        if self.published is not None and path.is_relative_to(self.published):
            warnings.warn(
                f"{path} {fault}; take it from the repository again, or publish the "
                "study's records anew",
                stacklevel=3,
            )
            return
        warnings.warn(
            f"{path} {fault}; it is removed, and made anew when the notebook runs "
            "again",
            stacklevel=3,
        )
        path.unlink(missing_ok=True)

    def write(self, part: str, model_id: str, record: Record) -> None:
        """Write a record as arrays that are read without unpickling.

        Args:
            part: of the record.
            model_id: of the model.
            record: arrays and tables by name.
        """
        arrays = to_arrays(record)
        weights = self.weights_digests.get(model_id, "")
        if weights:
            arrays[WEIGHTS] = np.array(weights)
        path = self._path(part, model_id)
        with complete_or_absent(path) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)

    def record(self, part: str, model_id: str) -> dict[str, Any]:
        """Arrays and tables of a model by name; empty without a record.

        Warns of a damaged file, see ``Store``.

        Args:
            part: of the record.
            model_id: of the model.
        """
        path = self._file(part, model_id)
        return {} if path is None else read_record(path)

    def records(self, part: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each model's id with its record; models without one are left out.

        Args:
            part: of the records.
        """
        for model_id in self.model_ids:
            record = self.record(part, model_id)
            if record:
                yield model_id, record

    def table(self, part: str, name: str) -> pd.DataFrame:
        """A table of all models, one below the other, with the column model_id first.

        Args:
            part: of the records.
            name: of the table in them.
        """
        tables = []
        for model_id, record in self.records(part):
            if name in record:
                table = record[name].drop(columns="model_id", errors="ignore")
                table.insert(0, "model_id", model_id)
                tables.append(table)
        if not tables:
            return pd.DataFrame({"model_id": []})
        return pd.concat(tables, ignore_index=True)

    def stacked(
        self, part: str, leave_out: Collection[str] = ()
    ) -> dict[str, NDArray[np.float32]]:
        """Arrays of all models by name, read model by model.

        Arrays of ``LARGE`` are left out, which published records do not have.

        Args:
            part: of the records.
            leave_out: names of arrays that are too large for all models at once.

        Returns:
            (models, ...) float32 by name, in the order of the models; NaN for a model
            without this array.
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
    """Arrays of a record by name, and columns of its tables as ``table|column``.

    Args:
        record: arrays and tables by name; other values are left out.
    """
    arrays = {}
    for name, value in record.items():
        if isinstance(value, np.ndarray):
            arrays[name] = value
    # Tables come after all arrays, as in published files, whose bytes stay the same.
    for name, value in record.items():
        if isinstance(value, pd.DataFrame):
            for column in value:
                arrays[f"{name}|{column}"] = _plain(value[column])
    return arrays


@lru_cache(maxsize=100_000)
def _weights_digest_in(path: Path, time: int, size: int) -> str:
    """Digest of the weights behind a file's values; "" if the file has none.

    The whole file is read and checked. Time and size serve as keys of the cache: a file
    that has changed is read again.

    Raises:
        DamagedFileError: where it is damaged.
    """
    return str(read_arrays(path).get(WEIGHTS, ""))


def read_record(path: Path) -> dict[str, Any]:
    """Arrays and tables of a file as ``to_arrays`` names them.

    Args:
        path: of the file.

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
    """A column as numbers, or as texts of a type that is read without unpickling."""
    if pd.api.types.is_numeric_dtype(column):
        return column.to_numpy()
    return column.astype(str).to_numpy(dtype=str)

"""What was computed of each model of a study, kept: computed once, one file per model, read as tables and arrays."""

import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from tqdm.auto import tqdm

from helpers.files import complete_or_absent, digest, inside
from helpers.scoring.models import Model
from helpers.training.pool import side_by_side

Record = Mapping[str, "pd.DataFrame | NDArray[Any]"]
# Computes parts of a model: (model, what is shared by all models, names of the parts that are missing) -> a record by part.
Compute = Callable[[Model, Any, Sequence[str]], Mapping[str, Record]]


class Store:
    """Files ``work/kept/<part>-<digest of its settings>/<model>.npz``: complete or absent, made anew where damaged."""

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
            work / "kept",
            shared,
            device,
            jobs,
        )

    def each(
        self,
        models: Sequence[Model],
        parts: Mapping[str, Mapping[str, Any]],
        compute: Compute,
    ) -> "Kept":
        """What ``compute``, a function of a module or a partial of one, gives of each model, after computing what is missing.

        Each part is named with everything that decides its values beside the model, as JSON has it.
        """
        kept = Kept(
            {
                name: inside(self.folder, f"{name}-{digest(settings)}")
                for name, settings in parts.items()
            },
            models,
        )
        todo = [model for model in models if kept.missing(model.model_id)]
        work = partial(_compute_and_keep, kept=Kept(kept.folders, ()), compute=compute)
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
        return kept


def _compute_and_keep(
    model: Model, shared: Any, *, kept: "Kept", compute: Compute
) -> None:
    missing = kept.missing(model.model_id)
    records = compute(model, shared, missing)
    lacking = [name for name in missing if not records.get(name)]
    if lacking:
        raise RuntimeError(
            f"nothing was computed of {', '.join(lacking)}; nothing is kept"
        )
    for name, record in records.items():
        kept.write(name, model.model_id, record)


class Kept:
    """Records of some models, by part."""

    def __init__(self, folders: Mapping[str, Path], models: Sequence[Model]) -> None:
        """Take the folder of each part."""
        self.folders, self.model_ids = folders, [model.model_id for model in models]

    def _path(self, part: str, model_id: str) -> Path:
        return inside(self.folders[part], f"{model_id}.npz")

    def missing(self, model_id: str) -> list[str]:
        """Parts that a model has no file of."""
        return [
            part for part in self.folders if not self._path(part, model_id).is_file()
        ]

    def write(self, part: str, model_id: str, record: Record) -> None:
        """Keep a record: arrays by name, tables column by column; texts as texts, nothing that would have to be unpickled."""
        arrays = {
            name: value
            for name, value in record.items()
            if isinstance(value, np.ndarray)
        }
        tables = {
            name: value
            for name, value in record.items()
            if isinstance(value, pd.DataFrame)
        }
        columns = {
            f"{name}|{column}": _plain(table[column])
            for name, table in tables.items()
            for column in table
        }
        with (
            complete_or_absent(self._path(part, model_id)) as temporary,
            temporary.open("wb") as file,
        ):
            np.savez_compressed(file, **arrays, **columns)

    def record(self, part: str, model_id: str) -> dict[str, Any]:
        """Arrays and tables of a model; empty where there are none. A damaged file is said and removed, so that it is made anew."""
        path = self._path(part, model_id)
        try:
            with np.load(path, allow_pickle=False) as file:
                found = {name: file[name] for name in file.files}
        except FileNotFoundError:
            return {}
        except (
            ValueError,
            EOFError,
            OSError,
            zipfile.BadZipFile,
            zlib.error,
        ) as fault:
            warnings.warn(
                f"{path} is damaged ({fault}); it is removed, and made anew when the notebook runs again",
                stacklevel=2,
            )
            path.unlink(missing_ok=True)
            return {}
        record = {name: value for name, value in found.items() if "|" not in name}
        for name in dict.fromkeys(key.partition("|")[0] for key in found if "|" in key):
            record[name] = pd.DataFrame(
                {
                    key.partition("|")[2]: value
                    for key, value in found.items()
                    if key.startswith(f"{name}|")
                }
            )
        return record

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

    def stacked(self, part: str) -> dict[str, NDArray[np.float32]]:
        """Arrays of all models by name, (models, ...) float32 in the order of the models; NaN for a model without."""
        records = dict(self.records(part))
        arrays = {
            name: values
            for record in records.values()
            for name, values in record.items()
            if isinstance(values, np.ndarray)
        }
        nothing = {
            name: np.full(values.shape, np.nan, dtype=np.float32)
            for name, values in arrays.items()
        }
        rows = [nothing | records.get(model_id, {}) for model_id in self.model_ids]
        return {
            name: np.stack([row[name] for row in rows], dtype=np.float32)
            for name in nothing
        }


def _plain(column: pd.Series) -> NDArray[Any]:
    return (
        column.to_numpy()
        if pd.api.types.is_numeric_dtype(column)
        else column.astype(str).to_numpy(dtype=str)
    )

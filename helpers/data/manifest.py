"""Which images a study rests on: ``data.json`` in its folder, written by notebook 01, read by every other notebook and by workers."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.data.dataset import StudyData, joined, load_study_data
from helpers.files import read_json, write_json

MANIFEST = "data.json"  # in the folder of a study


class NoImagesChosenError(FileNotFoundError):
    """Notebook 01 has not chosen the images of a study; a notebook shows what to do without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def choose_images(work: Path, **parameters: Any) -> StudyData:
    """Images of a study, decoded once into ``work/cache``; which they are is kept in ``work/data.json`` for ``of_study``.

    Args:
        work: the study's folder.
        parameters: of ``dataset.load_study_data``, without ``cache_dir``.

    Raises:
        FileNotFoundError, ValueError: as ``dataset.load_study_data``, and ValueError where fewer than two classes are left.
    """
    data = load_study_data(**parameters, cache_dir=work / "cache")
    if len(data.classes) < 2:
        faults = ", ".join(f"{count} {kind}" for kind, count in data.faults["fault"].value_counts().items())
        left = data.classes["class_id"].item()
        raise ValueError(
            f"of the classes in {_place(parameters)} only {left} is left, and a classifier needs 2; faults: {faults or 'none'}"
        )
    counts = {"classes": len(data.classes), "train": len(data.train), "test": len(data.test)}
    given = {
        name: list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value for name, value in parameters.items()
    }
    write_json(work / MANIFEST, {"parameters": given, "fingerprint": data.fingerprint, "images": counts})
    return data


def of_study(work: Path) -> StudyData:
    """Images that notebook 01 chose for a study, from the cache, or decoded again where that was deleted or files were touched.

    Args:
        work: the study's folder.

    Raises:
        FileNotFoundError: 01 has not run for this study, or what it read is gone; the message names the command that mends it.
        ValueError: the images are others than those that 01 chose, or the manifest is damaged; likewise.
    """
    record = _read(work)
    data = _load(work, record["parameters"])
    if data.fingerprint != record["fingerprint"]:
        raise ValueError(
            f"the images of {_place(record['parameters'])} were changed since notebook 01 chose them: their fingerprint is "
            f"{data.fingerprint}, and {work / MANIFEST} says {record['fingerprint']}. Put them back, or choose them anew: {_remedy(work)}"
        )
    return data


def with_classes(work: Path, class_ids: Sequence[str], further_path: str = "") -> StudyData:
    """Images of any classes of a study's source, chosen by the parameters of the study in everything else.

    Args:
        work: the study's folder.
        class_ids: in the order of their labels; with a further source, those of the study stand first.
        further_path: folder or .zip of the study's layout that holds the classes that are not the study's; "" where its own source does.

    Raises:
        FileNotFoundError, ValueError: as ``of_study``, and ValueError where the source lacks a class.
    """
    parameters, class_ids = image_parameters(work), list(class_ids)
    if not further_path:
        return _load(work, parameters | {"class_ids": class_ids})
    own = of_study(work)
    further = [name for name in class_ids if name not in set(own.classes["class_id"])]
    return joined(own, _load(work, parameters | {"data_path": further_path, "class_ids": further})) if further else own


def image_parameters(work: Path) -> dict[str, Any]:
    """Parameters by which notebook 01 chose the images of a study.

    Raises:
        FileNotFoundError, ValueError: as ``of_study``.
    """
    return dict(_read(work)["parameters"])


def _load(work: Path, parameters: Mapping[str, Any]) -> StudyData:
    try:
        return load_study_data(**parameters, cache_dir=work / "cache")
    except TypeError as fault:
        raise ValueError(f"the parameters in {work / MANIFEST} choose no images ({fault}); {_remedy(work)}") from fault
    except FileNotFoundError as fault:
        raise FileNotFoundError(
            f"{fault}. Notebook 01 read them there; where they lie elsewhere now: {_remedy(work, 'data_path=...')}"
        ) from fault


def _read(work: Path) -> dict[str, Any]:
    path = work / MANIFEST
    if not path.is_file():
        raise NoImagesChosenError(f"{path} is not there: notebook 01 has not chosen the images of the study {work.name!r}. {_remedy(work)}")
    record = read_json(path)
    if not isinstance(record, dict) or not {"parameters", "fingerprint"} <= set(record) or not isinstance(record["parameters"], dict):
        raise ValueError(f"{path} lacks parameters or fingerprint of the images; {_remedy(work)}")
    return record


def _remedy(work: Path, change: str = "") -> str:
    command = f"python -m helpers.sweep params/{work.name}.yaml --force 01_data_subset"
    return f"run notebooks/01_data_subset.ipynb for it, or `{command}{f' --set {change}' if change else ''}`"


def _place(parameters: Mapping[str, Any]) -> str:
    return str(parameters.get("data_path") or parameters.get("data_source"))

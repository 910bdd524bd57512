"""What a study teaches about other checkpoints, and the case they are judged in: how far is it from the study's models?"""

import ast
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from helpers.files import content_digest, inside
from helpers.measures import registry
from helpers.report.variants import read_listing


@dataclass(frozen=True)
class Calibration:
    """The models of a study that enter its analysis, and what the study was."""

    study: str
    models: pd.DataFrame  # model_id, cell, architecture, gap, train_accuracy and one column per measure and variant
    columns: tuple[str, ...]  # of measures, finite for all models, and not the same for all
    classes: int  # 0 where the study does not say
    settings: Mapping[str, object]  # parameters of its notebooks

    def setting(self, name: str, default: object) -> object:
        """A parameter of the study, or a default where it is not recorded."""
        return self.settings.get(name, default)


def studies(reports: Path) -> list[str]:
    """List the studies whose tables can calibrate: those with all measures first, and of these the one with the most models.

    One whose tables are damaged is told in a warning and passed over.
    """
    found = [path.parent.parent for path in sorted(reports.glob("*/tables/catalogue.csv")) if path.is_file()]
    rank = {}
    for folder in filter(_has_scores, found):
        try:
            rank[folder.name] = _rank(folder)
        except ValueError as fault:
            warnings.warn(f"{fault}; the study is passed over", stacklevel=2)
    return sorted(rank, key=rank.__getitem__)


def _rank(folder: Path) -> tuple[bool, int]:
    return not (folder / "tables/scores.parquet").is_file(), -len(read_calibration(folder.parent, folder.name).models)


def _has_scores(folder: Path) -> bool:
    return _table([folder], "scores.parquet", "scores.csv") is not None


def _table(folders: Sequence[Path], *names: str) -> Path | None:
    """Find the first of some tables that is there, in any of the folders; a warning tells of one that is not as it was published."""
    for name, folder in ((name, folder) for name in names for folder in folders if (folder / "tables" / name).is_file()):
        digest = read_listing(folder).get("files", {}).get(f"tables/{name}")
        if digest and digest != content_digest(folder / "tables" / name):
            warnings.warn(f"{folder / 'tables' / name} is not as it was published; {_REMEDY}", stacklevel=3)
        return folder / "tables" / name
    return None


_REMEDY = "take it from the repository again, or run the study again"


@contextmanager
def _of_study(folder: Path) -> Iterator[None]:
    """Names the report whose tables or stories cannot be read, in a ValueError."""
    try:
        yield
    except Exception as fault:  # readers of damaged files raise nearly every kind; one with a number is of the disk
        if isinstance(fault, OSError) and fault.errno:
            raise
        told = f"{type(fault).__name__}: {' '.join(str(fault).split())}"
        raise ValueError(f"the report {folder} has a damaged table or story ({told}); {_REMEDY}") from fault


def read_calibration(reports: Path, study: str, work: Path | None = None) -> Calibration:
    """Scored model set of a study, from the tables of its report, so that a fresh clone needs no training.

    Of the catalogue the models that enter the analysis are kept. Scores are those of notebook 04 (``scores.parquet``) where they are
    there, else the IoU and IoU-B of notebook 03 (``scores.csv``). Of each measure the first
    variant is on offer; one that is undefined for a model, or the same for all, is left out: it could not be fitted.

    Args:
        reports: the folder of published reports.
        study: name of the study.
        work: the folder of all studies' work; where no report has both tables, those that notebooks run by hand left there are taken.

    Raises:
        FileNotFoundError: the study has no such tables; the message names the studies that have.
        ValueError: they are damaged.
    """
    published, by_hand = inside(reports, study), sorted((inside(work, study) / "scratch").glob("0[1-4]*")) if work else []
    for folders in ([published], by_hand):
        catalogue, scores = _table(folders, "catalogue.csv"), _table(folders, "scores.parquet", "scores.csv")
        if catalogue and scores:
            with _of_study(folders[0]):
                return _calibration(study, pd.read_csv(catalogue, keep_default_na=False, na_values=[""]), _scores(scores), folders)
    there = ", ".join(studies(reports)) or "none"
    raise FileNotFoundError(
        f"the study {study!r} has no catalogue and scores in {published / 'tables'} (notebooks 02 to 04); studies that have: {there}"
    )


def read_targets(reports: Path, study: str, work: Path | None = None) -> Calibration | None:
    """What a study's models say of images without labels, and how accurate they are there; None where notebook 04 wrote no such table.

    ``models`` has a row per model and target, gap being the fraction of wrong answers there (the gap to an accuracy of one) and
    train_accuracy one. Arguments as ``read_calibration``; ``columns`` are measures of the family "unlabelled".
    """
    known = read_calibration(reports, study, work)
    by_hand = sorted((inside(work, study) / "scratch").glob("04*")) if work else []
    path = _table([inside(reports, study)], "target_scores.csv") or _table(by_hand, "target_scores.csv")
    if path is None:
        return None
    with _of_study(path.parents[1]):
        table = _once(pd.read_csv(path).query("model_id in @known.models.model_id"), ["model_id", "target"])
        table = table.assign(gap=1 - table["test_accuracy"], train_accuracy=1.0).dropna(subset="gap").reset_index(drop=True)
        offered = [name for name, item in registry.ranked().items() if item.family == "unlabelled" and name in table]
        return replace(known, models=table, columns=_fittable(table, offered))


def _once(table: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """The table, no row of which may stand twice."""
    if twice := int(table.duplicated(keys).sum()):
        raise ValueError(f"{twice} of {len(table)} rows stand twice")
    return table


def _fittable(models: pd.DataFrame, columns: Sequence[str]) -> tuple[str, ...]:
    """Columns that are finite for all models, and not the same for all."""
    finite = [name for name in columns if len(models) and np.isfinite(models[name].to_numpy(dtype=float)).all()]
    return tuple(name for name in finite if np.ptp(models[name]) > 1e-12 * np.abs(models[name]).max())


def _calibration(study: str, catalogue: pd.DataFrame, scores: pd.DataFrame, folders: Sequence[Path]) -> Calibration:
    left_out = catalogue["left_out"].astype(object).fillna("") if "left_out" in catalogue else ""
    kept = catalogue[(left_out == "") & np.isfinite(catalogue["gap"])]
    models = kept[["model_id", "cell", "architecture", "gap", "train_accuracy"]]
    models = _once(models.merge(scores, on="model_id", how="left"), ["model_id"]).reset_index(drop=True)
    claims = [name for name in models.columns[5:] if name in registry.ranked()]
    classes = _table(folders, "table1_categories.csv")
    return Calibration(study, models, _fittable(models, claims), len(pd.read_csv(classes)) if classes else 0, _settings(folders))


def _scores(path: Path) -> pd.DataFrame:
    if path.suffix == ".parquet":
        known = registry.columns().query("direction != 0").merge(pd.read_parquet(path), on=["measure", "variant"])
        return known.pivot(index="model_id", columns="column", values="value").reset_index()
    wanted = ["model_id", *registry.columns().query("direction != 0")["column"]]
    table = pd.read_csv(path)
    return table[[name for name in wanted if name in table]]


def _settings(folders: Sequence[Path]) -> dict[str, object]:
    """Read the parameters that the study's notebooks recorded."""
    found: dict[str, object] = {}
    for path in sorted((path for folder in folders for path in folder.glob("story/0[1-4]*.json")), key=_name):
        for item in json.loads(path.read_text(encoding="utf-8")):
            found |= {name: _literal(text) for name, text in item.get("values", {}).items()}
    return found


def _name(path: Path) -> str:
    return path.name


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def without(calibration: Calibration, cells: Sequence[str]) -> Calibration:
    """The calibration less some hyperparameter cells, to try it on these."""
    kept = calibration.models[~calibration.models["cell"].isin(cells)].reset_index(drop=True)
    return replace(calibration, models=kept)


def ranges(calibration: Calibration, own: pd.DataFrame) -> pd.DataFrame:
    """Hold each measure's values for the user's checkpoints against its range among the study's models.

    Args:
        calibration: the study.
        own: one row per checkpoint, a column per measure; see ``scores.wide``.

    Returns:
        One row per measure of the calibration that the checkpoints have: measure, calibrated_low, calibrated_high, own_low, own_high,
        defined (checkpoints with a value), outside (fraction of these outside the calibrated range; NaN where none is defined), and
        distance (of the checkpoints' median from the study's, in standard deviations of the study).
    """
    rows = []
    for name in [name for name in calibration.columns if name in own and len(calibration.models)]:
        theirs, ours = calibration.models[name].to_numpy(dtype=float), own[name].dropna().to_numpy(dtype=float)
        low, high = float(theirs.min()), float(theirs.max())
        spread = theirs.std(ddof=1) if len(theirs) > 1 else np.nan
        row = {"measure": name, "calibrated_low": low, "calibrated_high": high, "defined": len(ours)}
        row |= {"own_low": ours.min() if len(ours) else np.nan, "own_high": ours.max() if len(ours) else np.nan}
        row["outside"] = float(((ours < low) | (ours > high)).mean()) if len(ours) else np.nan
        row["distance"] = float(abs(np.median(ours) - np.median(theirs)) / spread) if len(ours) and spread > 0 else np.nan
        rows.append(row)
    names = ["measure", "calibrated_low", "calibrated_high", "own_low", "own_high", "defined", "outside", "distance"]
    return pd.DataFrame(rows, columns=names)


def usable(measured: pd.DataFrame, checkpoints: int) -> list[str]:
    """List the measures that the prediction may rest on: defined for all rankable checkpoints, and at least half of these in range.

    The choice looks at the checkpoints' scores and never at a gap. Where no measure is in range, all that are defined are given back: the
    prediction is an extrapolation then, and ``differences`` says so.

    Args:
        measured: see ``ranges``.
        checkpoints: how many there are.
    """
    defined = measured[measured["defined"] == checkpoints]
    near = defined[defined["outside"] <= 0.5]
    return (near if len(near) else defined)["measure"].tolist() if checkpoints else []


def differences(
    calibration: Calibration,
    *,
    architectures: Sequence[str],
    outputs: Sequence[int],
    image_size: int,
    boxes: str,
    images: int,
    labelled: bool = True,
    widths: Sequence[float] = (1.0,),
    stems: Sequence[str] = ("imagenet",),
) -> pd.DataFrame:
    """Hold the user's case against the study's, fact by fact.

    Args:
        calibration: the study.
        architectures: of the checkpoints.
        outputs: of the checkpoints.
        image_size: pixels.
        boxes: where they are from, see ``images.box_source``.
        images: scored on.
        labelled: whether the class of each is known, as it is in a study.
        widths: of the checkpoints, factors on the published number of channels.
        stems: first layers of the checkpoints, as ``resnet.build`` names them; "imagenet" is as published.

    Returns:
        what, study, own, same (None where the study does not say).
    """
    theirs = sorted(set(calibration.models["architecture"]))
    size, width, stem = (calibration.setting(name, None) for name in ("image_size", "width", "stem"))
    rows = [
        ("architectures", _each(theirs), _each(architectures), set(architectures) <= set(theirs)),
        ("width of the networks", _said(width), _each(widths), None if width is None else set(widths) <= {width}),
        ("first layers", _said(stem), _each(stems), None if stem is None else set(stems) <= {stem}),
        ("classes", _said(calibration.classes or None), _each(outputs), _equal(calibration.classes, outputs)),
        ("image size (pixels)", _said(size), str(image_size), None if size is None else size == image_size),
        ("training images scored", _said(calibration.setting("images_per_class", None), " per class"), str(images), None),
        ("boxes", "annotated", boxes, boxes == "annotated"),
        ("labels", "known", "known" if labelled else "unknown", labelled),
    ]
    return pd.DataFrame(rows, columns=["what", "study", "own", "same"])


def differing(apart: pd.DataFrame) -> tuple[str, ...]:
    """In what a case differs from the study, of the table of ``differences``."""
    return tuple(apart.loc[apart["same"].eq(False), "what"])


def _said(value: object, unit: str = "") -> str:
    return "not recorded" if value is None else f"{value}{unit}"


def _each(values: Sequence[object]) -> str:
    return ", ".join(map(str, sorted(set(values))))


def _equal(classes: int, outputs: Sequence[int]) -> bool | None:
    return None if not classes or not outputs else set(outputs) == {classes}

"""What a study teaches about other checkpoints, and the case they are judged in: how far is it from the study's models?"""

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from helpers.data.dataset import StudyData
from helpers.files import from_root, inside
from helpers.measures import registry
from helpers.scoring import look
from helpers.select import load
from helpers.select.images import OwnImages, load_images, natural_size
from helpers.select.load import Candidate, Loaded
from helpers.training.catalogue import Model, load_model, models_of


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
    """List the studies whose tables can calibrate: those with all measures first, and of these the one with the most models."""
    found = [path.parent.parent for path in sorted(reports.glob("*/tables/catalogue.csv"))]
    rank = {folder.name: _rank(folder) for folder in found if _has_scores(folder)}
    return sorted(rank, key=rank.__getitem__)


def _rank(folder: Path) -> tuple[bool, int]:
    return not (folder / "tables/scores.parquet").is_file(), -len(read_calibration(folder.parent, folder.name).models)


def _has_scores(folder: Path) -> bool:
    return _table([folder], "scores.parquet", "scores.csv") is not None


def _table(folders: Sequence[Path], *names: str) -> Path | None:
    """Find the first of some tables that is there, in any of the folders."""
    return next((path for name in names for folder in folders if (path := folder / "tables" / name).is_file()), None)


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
    """
    published, by_hand = inside(reports, study), sorted((inside(work, study) / "scratch").glob("0[1-4]*")) if work else []
    for folders in ([published], by_hand):
        catalogue, scores = _table(folders, "catalogue.csv"), _table(folders, "scores.parquet", "scores.csv")
        if catalogue and scores:
            return _calibration(study, pd.read_csv(catalogue, keep_default_na=False, na_values=[""]), _scores(scores), folders)
    there = ", ".join(studies(reports)) or "none"
    raise FileNotFoundError(
        f"the study {study!r} has no catalogue and scores in {published / 'tables'} (notebooks 02 to 04); studies that have: {there}"
    )


def _calibration(study: str, catalogue: pd.DataFrame, scores: pd.DataFrame, folders: Sequence[Path]) -> Calibration:
    left_out = catalogue["left_out"].fillna("") if "left_out" in catalogue else ""
    kept = catalogue[(left_out == "") & np.isfinite(catalogue["gap"])]
    models = kept[["model_id", "cell", "architecture", "gap", "train_accuracy"]]
    models = models.merge(scores, on="model_id", how="left").reset_index(drop=True)
    claims = [name for name in models.columns[5:] if name in registry.ranked()]
    finite = [name for name in claims if len(models) and np.isfinite(models[name].to_numpy(dtype=float)).all()]
    columns = tuple(name for name in finite if np.ptp(models[name]) > 1e-12 * np.abs(models[name]).max())
    classes = _table(folders, "table1_categories.csv")
    return Calibration(study, models, columns, len(pd.read_csv(classes)) if classes else 0, _settings(folders))


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
    return Calibration(calibration.study, kept, calibration.columns, calibration.classes, calibration.settings)


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
    published: bool = True,
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
        published: whether width and first layers are those of the published architectures, and not the study's own.

    Returns:
        what, study, own, same (None where the study does not say).
    """
    theirs = sorted(set(calibration.models["architecture"]))
    size, width, stem = (calibration.setting(name, None) for name in ("image_size", "width", "stem"))
    form = "as published" if published else "the study's own"
    rows = [
        ("architectures", ", ".join(theirs), ", ".join(sorted(set(architectures))), set(architectures) <= set(theirs)),
        ("width of the networks", _said(width), form, None if width is None else not published or width == 1),
        ("first layers", _said(stem), form, None if stem is None else not published or stem == "imagenet"),
        ("classes", _said(calibration.classes or None), ", ".join(map(str, sorted(set(outputs)))), _equal(calibration.classes, outputs)),
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


def _equal(classes: int, outputs: Sequence[int]) -> bool | None:
    return None if not classes or not outputs else set(outputs) == {classes}


class Case(NamedTuple):
    """What is judged, on which images, by which study."""

    candidates: list[Candidate]
    images: OwnImages
    study: Calibration
    truth: pd.Series | None  # true gap by checkpoint; None where it is not known


def of_user(
    study: Calibration,
    checkpoints_path: str,
    images_path: str,
    *,
    architecture: str = "auto",
    boxes_path: str = "",
    class_names: Sequence[str] = (),
    image_size: int = 0,
    images: int = 200,
    seed: int = 0,
) -> Case:
    """Find a user's checkpoints and load the images; paths are relative to the project's root.

    Args:
        study: the calibration.
        checkpoints_path: see ``load.find``.
        images_path: see ``images.load_images``, as for the rest.
        architecture: see ``load.find``.
        boxes_path: "" for none of its own.
        class_names: in the order of the outputs; empty takes the sorted folders.
        image_size: 0 takes that of the files.
        images: to take at most.
        seed: of the choice of images.

    Raises:
        ValueError: there is no path of images, or something in a folder cannot be used.
        FileNotFoundError: nothing is at a path.
    """
    if not images_path:
        raise ValueError("checkpoints_path is set and images_path is empty; set it to the folder or .zip of the training images")
    path, boxes = from_root(images_path), from_root(boxes_path) if boxes_path else None
    size = image_size or natural_size(path)
    loaded = load_images(path, image_size=size, most=images, boxes=boxes, class_names=class_names, seed=seed)
    return Case(load.find(from_root(checkpoints_path), architecture), loaded, study, None)


def case_of_study(
    study: Calibration, work: Path, catalogue: pd.DataFrame, data: StudyData, *, cells: int, images: int, seed: int = 0
) -> Case:
    """Leave cells of a study out of its calibration, and take their models as if they were a user's.

    Args:
        study: the calibration, of the same study.
        work: the study's folder, with its runs.
        catalogue: of the study, with ``left_out``.
        data: of the study.
        cells: hyperparameter cells to leave out, by chance; never more than half.
        images: to score on at most, of those that all these models were fitted to.
        seed: of the choice of cells and images.

    Raises:
        ValueError: the study has fewer than 2 cells in its calibration.
    """
    known = sorted(set(study.models["cell"]) & set(catalogue["cell"]))
    if len(known) < 2:
        raise ValueError(
            f"the study {study.study!r} has {len(known)} cells with scores; leaving some out needs 2: run 02 to 04 with more runs"
        )
    generator = np.random.default_rng(seed)
    chosen = generator.choice(known, size=min(max(1, cells), len(known) // 2), replace=False)
    models = catalogue[catalogue["cell"].isin(chosen) & catalogue["model_id"].isin(study.models["model_id"])]
    candidates = [Candidate(model.model_id, partial(_model, work, model, len(data.classes))) for model in models_of(models)]
    shared = look.common_images(models, data, images, seed)
    names = tuple(data.classes["class_id"])
    sides = (data.train.images.shape[-1],) * len(shared)
    faults = pd.DataFrame(columns=["class_id", "split", "name", "fault", "detail"])
    annotated = torch.ones(len(shared), dtype=torch.bool)
    given = (shared.images, shared.boxes, shared.names, names, shared.labels, "", annotated, len(data.train), sides, faults)
    truth = models.set_index("model_id")["gap"]
    return Case(candidates, OwnImages(*given), without(study, list(chosen)), truth)


def _model(work: Path, model: Model, classes: int) -> Loaded:
    try:
        return Loaded(load_model(work, model, classes), model.config.architecture, classes)
    except FileNotFoundError as fault:
        raise ValueError(str(fault)) from fault

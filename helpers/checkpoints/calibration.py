"""What studies teach of other checkpoints: models with their fit, gap and measures."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helpers.files import inside, read_json, read_table
from helpers.measures.evidence import MeasureSettings
from helpers.scoring.measuring import with_measures
from helpers.statistics.bootstrap import CONFIGURATION
from helpers.statistics.prediction import with_log_train_loss

# That calibrate where none is named; their names in one text are joined by "+".
DEFAULT_STUDIES = "kinds20+filled20"
SHIFTS = (
    "accuracy_under_augmentation (horizontal translation)",
    "accuracy_under_augmentation (vertical translation)",
)
# Their mean: which of the two costs more is of the images, not of the network.
SHIFTED = "accuracy_under_translation"
# What may be chosen, by column: accuracies on changed training images, which are in
# [0, 1] for any network and any images, as a test accuracy is, and need no boxes.
# Few, since a choice among many holds for other kinds of training less often.
CANDIDATES = {
    "mixup_accuracy": "mixup accuracy (input)",
    "mixup_accuracy (first layer)": "mixup accuracy (first layer)",
    SHIFTED: "accuracy on shifted images",
}
# The measures that candidates are made of.
MEASURES = ("mixup_accuracy", "accuracy_under_augmentation")
# Natural logarithm of the images of a class that a network was fitted to.
LOG_CLASS_IMAGES = "log_class_images"
# Of training, not of measures.
_OF_TRAINING = {"seed", "precision"}


class Calibration(NamedTuple):
    """Models of one or more studies, and how they were scored.

    Both snapshots of each run without wrong labels, since a user's networks stop
    anywhere.
    """

    study: str  # name, several joined by "+"
    # The catalogue's columns, study, kind, log_train_loss, LOG_CLASS_IMAGES (NaN where
    # not known), and a column per candidate.
    models: pd.DataFrame
    # Columns of measures, finite for all models and not the same for all.
    candidates: tuple[str, ...]
    # Of the first study's notebooks, and classes, their number.
    parameters: Mapping[str, Any]
    settings: MeasureSettings  # that decided the values of its measures

    @property
    def images(self) -> int:
        """Training images that its models were scored on, at most; 0 for all."""
        return int(self.parameters.get("scored_images", 0))

    def without(self, run_ids: Sequence[str]) -> "Calibration":
        """The same without the configurations of some runs.

        So no checkpoint is judged by itself.

        Args:
            run_ids: of runs of the studies.
        """
        is_of_runs = self.models["run_id"].isin(run_ids)
        configurations = self.models[CONFIGURATION]
        others = ~configurations.isin(configurations[is_of_runs])
        return self._replace(models=self.models[others].reset_index(drop=True))


def studies(reports: Path) -> list[str]:
    """Studies whose reports hold a catalogue and scores.

    Args:
        reports: folder of all reports.
    """
    scores = sorted(reports.glob("*/tables/scores.parquet"))
    return [
        path.parent.parent.name
        for path in scores
        if path.with_name("catalogue.csv").is_file()
    ]


def read(reports: Path, study: str) -> Calibration:
    """The scored models of studies, from the tables of their reports.

    So a clone needs no training.

    Args:
        reports: folder of reports.
        study: its name, or names joined by "+".

    Raises:
        FileNotFoundError: where a study has no such tables.
        ValueError: where measures of two studies were computed by other settings.
    """
    available = studies(reports)
    calibrations = []
    # A study's own name may hold a plus.
    for name in [study] if study in available else study.split("+"):
        if name not in available:
            raise FileNotFoundError(
                f"the study {name!r} has no catalogue.csv and scores.parquet in "
                f"{inside(reports, name)}/tables; studies that have: "
                f"{', '.join(available) or 'none'}"
            )
        calibrations.append(_read_one(inside(reports, name)))
    first = calibrations[0]
    for other in calibrations[1:]:
        if other.settings != first.settings or other.images != first.images:
            raise ValueError(
                f"{first.study} and {other.study} were scored by other settings or on "
                "another number of images; calibrate by one of them"
            )
    models = pd.concat([one.models for one in calibrations], ignore_index=True)
    shared = set.intersection(*(set(one.candidates) for one in calibrations))
    candidates = tuple(name for name in CANDIDATES if name in shared)
    return first._replace(study=study, models=models, candidates=candidates)


def _read_one(folder: Path) -> Calibration:
    """The scored models of one study's report."""
    texts = ["weights", "left_out"]
    catalogue = pd.read_csv(
        folder / "tables/catalogue.csv", dtype=dict.fromkeys(texts, str)
    )
    catalogue = catalogue.fillna(dict.fromkeys(texts, ""))
    scores = read_table(folder / "tables/scores.parquet")
    models = with_log_train_loss(with_candidates(catalogue, scores))
    models[LOG_CLASS_IMAGES] = np.log(class_images(models, folder))
    right_labels = models["label_noise"].eq(0)
    models = models[
        right_labels & models["left_out"].eq("") & models["gap"].notna()
    ].reset_index(drop=True)
    candidates = [name for name in CANDIDATES if name in models]
    parameters = parameters_of(folder)
    names = {item.name for item in fields(MeasureSettings)} & set(parameters)
    settings = MeasureSettings(
        **{name: parameters[name] for name in names - _OF_TRAINING},
        seed=int(parameters.get("analysis_seed", 0)),
    )
    return Calibration(
        study=folder.name,
        models=models.assign(study=folder.name),
        candidates=tuple(name for name in candidates if _varies(models[name])),
        parameters=parameters,
        settings=settings,
    )


def class_images(models: pd.DataFrame, folder: Path) -> pd.Series:
    """Images of a class that each model of a report was fitted to, in the mean.

    Those of its run, or of the data, without what rule 3 holds out. NaN where the
    report does not say how many images the data have.

    Args:
        models: of the report.
        folder: of the report.
    """
    path = folder / "tables/table1_categories.csv"
    all_images = np.nan
    if path.is_file():
        categories = pd.read_csv(path, keep_default_na=False)
        if "train_images" in categories:
            all_images = categories["train_images"].mean()
    limited = models["images_per_class"].where(models["images_per_class"] > 0)
    held_out = models["holdout_fraction"].where(
        models["rule3_split"].eq("holdout"), 0.0
    )
    return limited.fillna(all_images) * (1 - held_out)


def with_candidates(models: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Models with a column per measure, and ``SHIFTED`` where both shifts are there.

    Args:
        models: of a study.
        scores: of its measures: model_id, measure, variant, value.
    """
    table = with_measures(models, scores)
    if not set(SHIFTS) <= set(table):
        return table
    return table.assign(**{SHIFTED: table[list(SHIFTS)].mean(axis=1, skipna=False)})


def _varies(column: pd.Series) -> bool:
    """Whether values are finite and not all the same."""
    if not len(column) or not np.isfinite(column.astype(float)).all():
        return False
    return bool(np.ptp(column) > 1e-9 * np.abs(column).max())


def parameters_of(folder: Path) -> dict[str, Any]:
    """Parameters that the study's notebooks recorded; a later notebook's count.

    Args:
        folder: of the report.
    """
    parameters: dict[str, Any] = {}
    for path in sorted(folder.glob("story/0[1-4]*.json")):
        for item in read_json(path):
            if item["kind"] == "parameters":
                values = item.get("values", {})
                parameters |= {name: _literal(text) for name, text in values.items()}
    images = folder / "tables/images.csv"
    if images.is_file():
        parameters["classes"] = int(pd.read_csv(images)["classes"].iloc[0])
    return parameters


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

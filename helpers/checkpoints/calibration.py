"""Models of published studies, with gaps and measures, to calibrate predictions."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helpers.files import inside, read_json, read_table, table_of
from helpers.measures.evidence import MeasureSettings
from helpers.scoring.measuring import with_measures
from helpers.statistics.bootstrap import CONFIGURATION
from helpers.statistics.prediction import with_log_train_loss

# The studies that calibrate if none is named, joined by "+".
DEFAULT_STUDIES = "kinds20+filled20+kinds24"
SHIFTS = (
    "accuracy_under_augmentation (horizontal translation)",
    "accuracy_under_augmentation (vertical translation)",
)
# Mean of the two. Which of the two is lower depends on the images, not on the network.
SHIFTED = "accuracy_under_translation"
# Columns of the measures from which gaps are predicted, with their titles. They are
# accuracies on changed training images: like a test accuracy they are in [0, 1] for
# any network and images, and they need no boxes. They are few, and none is chosen,
# since a choice among many measures is less likely to hold for other kinds of training.
CHANGED_IMAGES = {
    "mixup_accuracy": "mixup accuracy (input)",
    "mixup_accuracy (first layer)": "mixup accuracy (first layer)",
    SHIFTED: "accuracy on shifted images",
}
# The measures of the store from which these columns are computed.
MEASURES = ("mixup_accuracy", "accuracy_under_augmentation")
# Column: natural logarithm of the number of images per class in training.
LOG_CLASS_IMAGES = "log_class_images"
# Titles of all columns from which gaps are predicted.
TITLES = {
    "train_accuracy": "training accuracy",
    "log_train_loss": "training loss",
    LOG_CLASS_IMAGES: "training images of a class",
} | CHANGED_IMAGES


class Calibration(NamedTuple):
    """Models of one or more studies, and how they were scored.

    Runs with wrong labels are left out. Of the others all snapshots are used, since a
    user's networks may have stopped at any point of training.
    """

    study: str  # name of the study, or names joined by "+"
    # A row per model: the catalogue's columns, study, kind, log_train_loss,
    # LOG_CLASS_IMAGES (NaN if not known), and a column per measure.
    models: pd.DataFrame
    # Columns of ``CHANGED_IMAGES`` that are finite for all models and differ between
    # them.
    measures: tuple[str, ...]
    # Parameters of the first study's notebooks.
    parameters: Mapping[str, Any]
    classes: tuple[int, ...]  # number of classes of each study that states it
    settings: MeasureSettings  # with which its measures were computed

    @property
    def images(self) -> int:
        """Largest number of training images on which models were scored; 0 for all."""
        return int(self.parameters.get("scored_images", 0))

    def without(self, run_ids: Sequence[str]) -> "Calibration":
        """Leave out all models with the configurations of some runs.

        So that no checkpoint is judged by itself or by its repeats.

        Args:
            run_ids: of the runs.
        """
        is_of_runs = self.models["run_id"].isin(run_ids)
        configurations = self.models[CONFIGURATION]
        others = ~configurations.isin(configurations[is_of_runs])
        return self._replace(models=self.models[others].reset_index(drop=True))


def studies(reports: Path) -> list[str]:
    """List the studies whose reports have a catalogue and scores.

    Args:
        reports: folder of all reports.
    """
    names = ("scores.parquet", "catalogue.csv")
    return [
        folder.name
        for folder in sorted(reports.glob("*/"))
        if all(table_of(folder, name).is_file() for name in names)
    ]


def read(reports: Path, study: str) -> Calibration:
    """Read the scored models of studies from the tables of their reports.

    Nothing needs to be trained, since reports are part of the repository.

    Args:
        reports: folder of reports.
        study: name of a study, or names joined by "+".

    Raises:
        FileNotFoundError: if a study has no such tables.
        ValueError: if measures of two studies were computed with other settings.
    """
    available = studies(reports)
    calibrations = []
    # The name of a study may itself contain a plus.
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
        # Other settings change the precision of ``MEASURES`` alone, or other measures.
        ours = first.settings.transform_ranges
        theirs = other.settings.transform_ranges
        if ours != theirs:
            raise ValueError(
                f"{first.study} was scored with transform_ranges {ours!r} and "
                f"{other.study} with {theirs!r}; calibrate by one of them"
            )
        if other.images != first.images:
            raise ValueError(
                f"{first.study} was scored on {first.images} images and {other.study} "
                f"on {other.images}; calibrate by one of them"
            )
    models = pd.concat([one.models for one in calibrations], ignore_index=True)
    shared = set.intersection(*(set(one.measures) for one in calibrations))
    return first._replace(
        study=study,
        models=models,
        measures=tuple(name for name in CHANGED_IMAGES if name in shared),
        classes=tuple(count for one in calibrations for count in one.classes),
    )


def _read_one(folder: Path) -> Calibration:
    """The scored models of one study's report."""
    text_columns = ["weights", "left_out"]
    catalogue = pd.read_csv(
        table_of(folder, "catalogue.csv"), dtype=dict.fromkeys(text_columns, str)
    )
    catalogue = catalogue.fillna(dict.fromkeys(text_columns, ""))
    scores = read_table(table_of(folder, "scores.parquet"))
    models = with_log_train_loss(with_changed_images(catalogue, scores))
    models[LOG_CLASS_IMAGES] = np.log(class_images(models, folder))
    has_right_labels = models["label_noise"].eq(0)
    is_analysed = models["left_out"].eq("") & models["gap"].notna()
    models = models[has_right_labels & is_analysed].reset_index(drop=True)
    measures = [name for name in CHANGED_IMAGES if name in models]
    parameters = parameters_of(folder)
    setting_names = {field.name for field in fields(MeasureSettings)}
    # The notebooks' parameter ``seed`` is that of training.
    names = (setting_names & set(parameters)) - {"seed"}
    settings = MeasureSettings(
        **{name: parameters[name] for name in names},
        seed=int(parameters.get("analysis_seed", 0)),
    )
    return Calibration(
        study=folder.name,
        models=models.assign(study=folder.name),
        measures=tuple(name for name in measures if _varies(models[name])),
        parameters=parameters,
        classes=_class_count(folder),
        settings=settings,
    )


def class_images(models: pd.DataFrame, folder: Path) -> pd.Series:
    """Mean number of images per class to which each model of a report was fitted.

    It is ``images_per_class`` of the run, or that of all training images, less the
    images held out for the rule that stops on held-out images, ``rule3_split``.

    Args:
        models: table of the models of the report.
        folder: folder of the report.

    Returns:
        (models,); NaN if the report does not state the number of training images.
    """
    path = table_of(folder, "table1_categories.csv")
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


def with_changed_images(models: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Add a column per measure to models, and ``SHIFTED`` if both shifts are measured.

    Args:
        models: table of the models of a study.
        scores: values of measures: model_id, measure, variant, value.
    """
    table = with_measures(models, scores)
    if not set(SHIFTS) <= set(table):
        return table
    return table.assign(**{SHIFTED: table[list(SHIFTS)].mean(axis=1, skipna=False)})


def _varies(column: pd.Series) -> bool:
    """Whether values are all finite, and not all equal up to rounding."""
    if not len(column) or not np.isfinite(column.astype(float)).all():
        return False
    return bool(np.ptp(column) > 1e-9 * np.abs(column).max())


def parameters_of(folder: Path) -> dict[str, Any]:
    """Read the parameters of a study's notebooks 01 to 04; a later one's value wins.

    Args:
        folder: folder of the report.

    Returns:
        Values by name.
    """
    parameters: dict[str, Any] = {}
    for path in sorted(folder.glob("story/0[1-4]*.json")):
        for item in read_json(path):
            if item["kind"] == "parameters":
                values = item.get("values", {})
                parameters |= {name: _literal(text) for name, text in values.items()}
    return parameters


def _class_count(folder: Path) -> tuple[int, ...]:
    """The number of classes of a report; empty if the report does not state it."""
    path = table_of(folder, "images.csv")
    if not path.is_file():
        return ()
    return (int(pd.read_csv(path)["classes"].iloc[0]),)


def _literal(text: str) -> Any:
    """The value of a Python literal; the text itself if it is not a literal."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

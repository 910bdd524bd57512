"""What a study teaches of other checkpoints: its models, each with its fit, its gap, and the measures that may predict it."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from helpers.files import inside, read_json
from helpers.measures.evidence import MeasureSettings
from helpers.scoring.measuring import with_measures
from helpers.statistics.prediction import with_fit

DEFAULT_STUDY = "compact20"  # that calibrates where none is named
SHIFTS = (
    "accuracy_under_augmentation (horizontal translation)",
    "accuracy_under_augmentation (vertical translation)",
)
SHIFTED = "accuracy_under_translation"  # their mean: which of the two costs more is of the images, not of the network
# What may be chosen, by column: accuracies on changed training images, which are in [0, 1] for any network and any images, as a test
# accuracy is, and need no boxes. Few, since a choice among many holds for other kinds of training less often.
CANDIDATES = {
    "mixup_accuracy": "mixup accuracy (input)",
    "mixup_accuracy (first layer)": "mixup accuracy (first layer)",
    SHIFTED: "accuracy on shifted images",
}
MEASURES = ("mixup_accuracy", "accuracy_under_augmentation")  # that they are made of


class Calibration(NamedTuple):
    """Both snapshots of a study's models without wrong labels, since a user's networks stop anywhere, and how they were scored."""

    study: str
    models: (
        pd.DataFrame
    )  # the catalogue's columns, kind, log_train_loss, and a column per candidate
    candidates: tuple[
        str, ...
    ]  # columns of measures, finite for all models and not the same for all
    parameters: Mapping[str, Any]  # of the study's notebooks, and classes, their number
    settings: MeasureSettings  # that decided the values of its measures

    @property
    def images(self) -> int:
        """Training images that its models were scored on, at most; 0 for all."""
        return int(self.parameters.get("scored_images", 0))

    def without(self, run_ids: Sequence[str]) -> "Calibration":
        """The same without the configurations of some runs, so that no checkpoint is judged by itself."""
        cells = self.models.loc[self.models["run_id"].isin(run_ids), "cell"]
        return self._replace(
            models=self.models[~self.models["cell"].isin(cells)].reset_index(drop=True)
        )


def studies(reports: Path) -> list[str]:
    """Studies whose reports hold a catalogue and scores."""
    scores = sorted(reports.glob("*/tables/scores.parquet"))
    return [
        path.parent.parent.name
        for path in scores
        if path.with_name("catalogue.csv").is_file()
    ]


def read(reports: Path, study: str) -> Calibration:
    """The scored models of a study, from the tables of its report, so that a clone needs no training; FileNotFoundError without them."""
    folder = inside(reports, study)
    if study not in (known := studies(reports)):
        told = f"the study {study!r} has no catalogue.csv and scores.parquet in {folder}/tables"
        raise FileNotFoundError(
            f"{told}; studies that have: {', '.join(known) or 'none'}"
        )
    texts = ["weights", "left_out"]
    catalogue = pd.read_csv(
        folder / "tables/catalogue.csv", dtype=dict.fromkeys(texts, str)
    ).fillna(dict.fromkeys(texts, ""))
    every, parameters = (
        with_fit(
            with_candidates(
                catalogue, pd.read_parquet(folder / "tables/scores.parquet")
            )
        ),
        parameters_of(folder),
    )
    models = every[
        every["label_noise"].eq(0) & every["left_out"].eq("") & every["gap"].notna()
    ]
    offered = [name for name in CANDIDATES if name in models and _varies(models[name])]
    names = {item.name for item in fields(MeasureSettings)} & set(parameters) - {
        "seed",
        "precision",
    }  # these two are of training
    settings = MeasureSettings(
        **{name: parameters[name] for name in names},
        seed=int(parameters.get("analysis_seed", 0)),
    )
    return Calibration(
        study, models.reset_index(drop=True), tuple(offered), parameters, settings
    )


def with_candidates(models: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Models with a column per measure, and ``SHIFTED`` where both shifts were measured."""
    table = with_measures(models, scores)
    return (
        table.assign(**{SHIFTED: table[list(SHIFTS)].mean(axis=1, skipna=False)})
        if {*SHIFTS} <= {*table}
        else table
    )


def _varies(column: pd.Series) -> bool:
    """Whether values are finite and not all the same."""
    return bool(
        len(column)
        and np.isfinite(column.astype(float)).all()
        and np.ptp(column) > 1e-9 * np.abs(column).max()
    )


def parameters_of(folder: Path) -> dict[str, Any]:
    """Parameters that the study's notebooks recorded, those of a later notebook before those of an earlier one."""
    found: dict[str, Any] = {}
    for path in sorted(folder.glob("story/0[1-4]*.json")):
        for item in read_json(path):
            found |= {
                name: _literal(text)
                for name, text in item.get("values", {}).items()
                if item["kind"] == "parameters"
            }
    images = folder / "tables/images.csv"
    return found | (
        {"classes": int(pd.read_csv(images)["classes"].iloc[0])}
        if images.is_file()
        else {}
    )


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text

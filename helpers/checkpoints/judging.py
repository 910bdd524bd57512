"""Checkpoints scored and judged: predicted accuracy and gap, which is best."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from helpers.checkpoints.calibration import (
    CANDIDATES,
    LOG_CLASS_IMAGES,
    MEASURES,
    Calibration,
    with_candidates,
)
from helpers.checkpoints.images import OwnImages, digest
from helpers.checkpoints.prediction import (
    QUANTILE,
    Predictor,
    combine_with_labels,
    counting_covariance,
    predictor,
    wilson,
)
from helpers.report.style import percent
from helpers.scoring.classification import logits_of
from helpers.scoring.measuring import score, score_table
from helpers.scoring.models import Model
from helpers.scoring.store import Store
from helpers.statistics.correlations import Array
from helpers.statistics.prediction import FIT, with_log_train_loss

# Verdicts: a predicted accuracy, one mainly counted on labelled images, or none.
PREDICTED = "predicted"
COUNTED = "counted"
NOT_JUDGED = "not judged"
NOT_READ = "not read"
# Share of the way from chance to 1 up to which a network has learnt nothing.
_LEARNT = 0.1
_MOST_CLASSES = 2.0  # times as many, or as few, as the studies have
_NO_RESNET = "not a ResNet, unlike the study's networks"
_ASKED = "give labelled images that were held out (--labelled), 50 or more"
VERDICT = [
    "rank",
    "verdict",
    "checkpoint",
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "gap",
    "gap_low",
    "gap_high",
    "better_than_first",
    "known_accuracy",
    "train_accuracy",
    "labelled_right",
    "counted_low",
    "counted_high",
    "network",
    "note",
    "model_id",
]
# Columns of predictions in words, with how a value is written.
_WORDS = {
    "train_accuracy": ("training accuracy", percent),
    "log_train_loss": ("training loss", lambda value: f"{np.exp(value):.2g}"),
    LOG_CLASS_IMAGES: ("images of a class", lambda value: f"{np.exp(value):.0f}"),
}


class Scored(NamedTuple):
    """What was computed of checkpoints on their training images."""

    # A row per model: model_id, FIT, LOG_CLASS_IMAGES, and the chosen measures.
    table: pd.DataFrame
    predictor: Predictor
    scores: pd.DataFrame  # measure by measure, with reasons
    classes: int = 0  # of the studies; 0 where not known


def scored(
    store: Store,
    models: Sequence[Model],
    images: OwnImages,
    study: Calibration,
    class_images: Mapping[str, float] | None = None,
) -> Scored:
    """The fit of models, and the measures that a study chooses.

    Values rest on as many training images as in the study, or on all.

    Args:
        store: that keeps what is computed.
        models: that can be loaded.
        images: that they were fitted to.
        study: that calibrates.
        class_images: by model id, of a class that it was fitted to; none: unknown.
    """
    count = len(images.scored_on.rows)
    share = study.settings.perturbation_fraction * (study.images or count) / count
    settings = replace(study.settings, perturbation_fraction=min(1.0, share))
    by = predictor(study.models, study.candidates)
    fit = {"training_accuracy": "train_accuracy", "training_loss": "train_loss"}
    records = score(
        store,
        models,
        ["prediction", "perturbation"],
        settings,
        images.scored_on,
        [*fit, *MEASURES],
    )
    scores = score_table(records)
    table = pd.DataFrame({"model_id": [model.model_id for model in models]})
    table = with_log_train_loss(with_candidates(table, scores).rename(columns=fit))
    numbers = table["model_id"].map(class_images or {}).astype(float)
    table[LOG_CLASS_IMAGES] = np.log(numbers)
    columns = ["model_id", *FIT, LOG_CLASS_IMAGES, *by.chosen]
    classes = int(study.parameters.get("classes", 0))
    return Scored(table.reindex(columns=columns), by, scores, classes)


def predicted_classes(
    store: Store, models: Sequence[Model], images: OwnImages
) -> dict[str, Array]:
    """Number of the output with the largest logit, (N,) of the scored images.

    By model id; a model that fails on the images is left out.

    Args:
        store: of the checkpoints.
        models: checkpoints.
        images: that they are scored on.
    """
    decisive = {"images": images.scored_on.name}
    return _by_model(store, models, "predicted_classes", decisive, _predicted)


def _by_model(
    store: Store,
    models: Sequence[Model],
    part: str,
    decisive: Mapping[str, Any],
    compute: Callable[..., Any],
) -> dict[str, Array]:
    """The one array of a part, by model id."""
    compute = partial(compute, device=store.device)
    arrays = {}
    for model_id, record in store.each(models, {part: decisive}, compute).records(part):
        (arrays[model_id],) = record.values()
    return arrays


def _predicted(
    model: Model, shared: OwnImages, parts: Sequence[str], *, device: str
) -> dict[str, dict[str, Any]]:
    pixels = shared.train.images[list(shared.scored_on.rows)]
    logits = logits_of(model.load(device), pixels, device, model.normalise)
    return {part: {"predicted": logits.argmax(1).numpy()} for part in parts}


def labelled_right(
    store: Store, models: Sequence[Model], images: OwnImages
) -> dict[str, NDArray[np.bool_]]:
    """Whether each labelled image (n,) is classified correctly, by model id.

    A model that cannot be loaded is left out.

    Args:
        store: of the checkpoints.
        models: checkpoints.
        images: with labelled ones.
    """
    decisive = {"images": digest(images.labelled)}
    return _by_model(store, models, "labelled_right", decisive, _right)


def _right(
    model: Model, shared: OwnImages, parts: Sequence[str], *, device: str
) -> dict[str, dict[str, Any]]:
    labelled = shared.labelled
    network = model.load(device)
    logits = logits_of(network, labelled.images, device, model.normalise)
    right = (logits.argmax(1) == labelled.labels).numpy()
    return {part: {"right": right} for part in parts}


def verdicts(
    facts: pd.DataFrame,
    scored: Scored | None,
    right: Mapping[str, NDArray[np.bool_]] | None = None,
) -> pd.DataFrame:
    """A row for every checkpoint, the highest predicted accuracy first.

    A network that is no ResNet, or is beyond what the studies cover, is judged by
    labelled images alone: predictions are not trusted for it. No accuracy is below
    chance.

    Args:
        facts: as ``case.FACTS``.
        scored: None where no checkpoint could be read.
        right: by model id, whether each labelled image (n,) is classified correctly.

    Returns:
        Columns ``VERDICT``: fractions, with intervals of 80 %, of counts 95 %; NaN
        where nothing can be said.
    """
    if scored is None:
        verdict = np.where(facts["fault"].ne(""), NOT_READ, NOT_JUDGED)
        note = facts["fault"].where(facts["fault"].ne(""), facts["doubt"])
        return facts.assign(verdict=verdict, note=note).reindex(columns=VERDICT)
    table = facts.merge(scored.table, on="model_id", how="left")
    by = scored.predictor
    chance = 1 / table["outputs"].clip(lower=1)
    accuracy = table["train_accuracy"] - by.regression.predicted(table)
    table = table.assign(
        accuracy=accuracy.clip(chance, 1),
        error=by.error_sd(table),
        half=by.half_width(table),
        verdict=PREDICTED,
    )
    table["note"] = [_reason(row) for row in table.itertuples()]
    table.loc[table["note"].ne(""), "verdict"] = NOT_JUDGED
    table.loc[table["fault"].ne(""), "verdict"] = NOT_READ
    judged = table["verdict"].eq(PREDICTED)
    foreign = pd.Series(_foreign(table, scored), index=table.index).where(judged, "")
    covariance = np.diag(table["error"] ** 2)
    if right:
        table, covariance = _with_counts(table, judged, foreign, right, by)
        table["accuracy"] = table["accuracy"].clip(chance, 1)
    counts = "labelled_right" in table
    for row in table.index[foreign.ne("")]:
        remedy = "judged by its labelled images alone" if counts else _ASKED
        table.loc[row, "verdict"] = COUNTED if counts else NOT_JUDGED
        table.loc[row, "note"] = f"{foreign[row]}; {remedy}"
    table = _with_outside(table, by)
    unknown = table["verdict"].isin([NOT_JUDGED, NOT_READ])
    table.loc[unknown, "accuracy"] = np.nan
    return _ranked(table, covariance)


def _reason(row: Any) -> str:
    """Why nothing can be said of a checkpoint; "" where something can."""
    if row.fault or row.doubt:
        return row.fault or row.doubt
    if not np.isfinite(row.accuracy):
        return (
            "its training accuracy, loss or a measure on these images is undefined, "
            "see scores.csv"
        )
    chance = 1 / row.outputs
    if row.train_accuracy > chance + _LEARNT * (1 - chance):
        return ""
    return (
        f"its training accuracy of {row.train_accuracy:.0%} is near chance "
        f"({chance:.0%} with {row.outputs} classes): it is untrained, or the order of "
        "the classes, the normalisation or the image size is not that of its training"
    )


def _foreign(table: pd.DataFrame, scored: Scored) -> list[str]:
    """Why the studies do not speak of each network; "" where they do."""
    by = scored.predictor
    far = by.regression.leverage(table) > by.largest_leverage
    outside = by.regression.out_of_range_columns(table)
    reasons = []
    for place, row in enumerate(table.itertuples()):
        ratio = row.outputs / scored.classes if scored.classes else 1.0
        if not row.residual:
            reasons.append(_NO_RESNET)
        elif not 1 / _MOST_CLASSES <= ratio <= _MOST_CLASSES:
            reasons.append(
                f"beyond what the studies cover ({row.outputs} classes; "
                f"there {scored.classes})"
            )
        elif far[place]:
            values = table.iloc[place]
            columns = outside[place] or list(by.ranges.index)
            words = [_compared(name, values[name], by) for name in columns]
            reasons.append(f"beyond what the studies cover ({', '.join(words)})")
        else:
            reasons.append("")
    return reasons


def _compared(column: str, value: float, by: Predictor) -> str:
    """A value beside its range in the studies: "training loss 2, there 0.01 to 0.5"."""
    words, written = _WORDS.get(
        column, (CANDIDATES.get(column, column), lambda number: f"{number:.2f}")
    )
    low, high = by.ranges.loc[column, ["low", "high"]]
    return f"{words} {written(value)}, there {written(low)} to {written(high)}"


def _with_outside(table: pd.DataFrame, by: Predictor) -> pd.DataFrame:
    """Notes on values outside the studies' range whose intervals are only wider."""
    notes = []
    for row, columns in zip(
        table.itertuples(), by.regression.out_of_range_columns(table), strict=True
    ):
        note = row.note
        if columns and row.verdict == PREDICTED:
            words = [
                _compared(name, getattr(row, name, np.nan), by)
                for name in columns
                if name in _WORDS
            ]
            words += [CANDIDATES[name] for name in columns if name in CANDIDATES]
            words = words or columns
            outside = f"outside the studies' range: {', '.join(words)}"
            note = "; ".join(filter(None, [note, outside]))
        notes.append(note)
    return table.assign(note=notes)


def _with_counts(
    table: pd.DataFrame,
    judged: pd.Series,
    foreign: pd.Series,
    right: Mapping[str, NDArray[np.bool_]],
    by: Predictor,
) -> tuple[pd.DataFrame, Array]:
    """Accuracies weighed with labelled images, and the covariance of their errors.

    Networks that the studies do not speak of (``foreign``) are counted alone.
    """
    shares = table["model_id"].map(
        {name: flags.mean() for name, flags in right.items()}
    )
    images = len(next(iter(right.values())))
    ends = [
        wilson(round(share * images), images)
        if np.isfinite(share)
        else (np.nan, np.nan)
        for share in shares.astype(float)
    ]
    table = table.assign(
        labelled_right=shares.astype(float),
        counted_low=[low for low, _ in ends],
        counted_high=[high for _, high in ends],
    )
    covariance = np.diag(table["error"] ** 2)
    counted = judged & shares.notna()
    rows = np.flatnonzero(counted & foreign.eq(""))
    if len(rows):
        accuracy, part = combine_with_labels(
            table["accuracy"].to_numpy()[rows],
            table["error"].to_numpy()[rows],
            by.common,
            _stacked(right, table["model_id"].iloc[rows]),
        )
        table.loc[rows, "accuracy"] = accuracy
        covariance[np.ix_(rows, rows)] = part
    alone = np.flatnonzero(counted & foreign.ne(""))
    if len(alone):
        flags = _stacked(right, table["model_id"].iloc[alone])
        table.loc[alone, "accuracy"] = flags.mean(1)
        covariance[np.ix_(alone, alone)] = counting_covariance(flags)
        table.loc[alone, "half"] = QUANTILE * table["error"]
    error = np.sqrt(np.diag(covariance))
    # An interval narrows as its standard deviation does.
    table["half"] *= error / table["error"]
    return table, covariance


def _stacked(
    right: Mapping[str, NDArray[np.bool_]], model_ids: Sequence[str]
) -> NDArray[np.bool_]:
    """Whether each labelled image is classified correctly, (models, images)."""
    return np.stack([right[model_id] for model_id in model_ids])


def _ranked(table: pd.DataFrame, covariance: Array) -> pd.DataFrame:
    """Intervals, ranks by accuracy, and probabilities of being better than the first.

    These are of normal errors with the covariance given; as ``VERDICT``.
    """
    order = table.sort_values(
        ["accuracy", "checkpoint"], ascending=[False, True], na_position="last"
    ).index
    table = table.loc[order].reset_index(drop=True)
    covariance = covariance[np.ix_(order, order)]
    if table["accuracy"].count() > 1:
        table["rank"] = table["accuracy"].round(9).rank(method="min", ascending=False)
        variance = np.diag(covariance)
        spread = np.sqrt(np.maximum(variance + variance[0] - 2 * covariance[0], 1e-18))
        behind = (table["accuracy"] - table["accuracy"].iloc[0]) / spread
        table["better_than_first"] = scipy.stats.norm.cdf(behind)
    table["accuracy_low"] = (table["accuracy"] - table["half"]).clip(0, 1)
    table["accuracy_high"] = (table["accuracy"] + table["half"]).clip(0, 1)
    table["gap"] = table["train_accuracy"] - table["accuracy"]
    table["gap_low"] = table["train_accuracy"] - table["accuracy_high"]
    table["gap_high"] = table["train_accuracy"] - table["accuracy_low"]
    return table.reindex(columns=VERDICT)

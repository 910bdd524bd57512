"""Score checkpoints and judge them: predicted accuracy, gap, and rank."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from helpers.checkpoints.calibration import (
    LOG_CLASS_IMAGES,
    MEASURES,
    TITLES,
    Calibration,
    with_changed_images,
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

# Verdicts: an accuracy that is predicted, or counted on labelled images, or none.
PREDICTED = "predicted"
COUNTED = "counted"
NOT_JUDGED = "not judged"
NOT_READ = "not read"
# A network has learnt nothing if its training accuracy is above chance by less than
# this share of the distance from chance to 1.
_LEAST_LEARNT = 0.1
_CLASS_RATIO_LIMIT = 2.0  # largest ratio of the number of classes to the studies'
_NOT_A_RESNET = "not a ResNet, unlike the study's networks"
_CONSEQUENCE_OF_COUNT = "judged by its labelled images alone"
_REQUEST_FOR_LABELS = "give labelled images that were held out (--labelled), 50 or more"
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
# How values of these columns are written; those of others with two decimals.
_FORMATS: dict[str, Callable[[float], str]] = {
    "train_accuracy": percent,
    "log_train_loss": lambda value: f"{np.exp(value):.2g}",
    LOG_CLASS_IMAGES: lambda value: f"{np.exp(value):.0f}",
}


class Scored(NamedTuple):
    """Values of checkpoints on their training images, and the predictor for them."""

    # A row per model: model_id, the columns FIT, LOG_CLASS_IMAGES, and measures.
    table: pd.DataFrame
    predictor: Predictor
    scores: pd.DataFrame  # a row per measure and model, with reasons of NaN
    classes: tuple[int, ...] = ()  # number of classes of each study, where known


def scored(
    store: Store,
    models: Sequence[Model],
    images: OwnImages,
    study: Calibration,
    class_images: Mapping[str, float] | None = None,
) -> Scored:
    """Compute training accuracy and loss of models, and the measures that predict.

    The measures are computed on as many training images as in the study, if there are
    as many.

    Args:
        store: of computed values.
        models: checkpoints that can be loaded.
        images: that they were trained on.
        study: the study that calibrates.
        class_images: number of training images per class, by model id; None: unknown.
    """
    count = len(images.scored_on.rows)
    # Measures are computed on a fraction of the scored images. It is changed so that
    # their number is that of the study.
    images_of_study = study.images or count  # 0: on all images
    fraction = study.settings.perturbation_fraction * images_of_study / count
    settings = replace(study.settings, perturbation_fraction=min(1.0, fraction))
    gap_predictor = predictor(study.models, study.measures)
    # Measures of the store, and the columns of the catalogue that hold the same.
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
    # A column per measure, with the names that studies give to those of ``fit``.
    table = with_changed_images(table, scores).rename(columns=fit)
    table = with_log_train_loss(table)
    numbers = table["model_id"].map(class_images or {}).astype(float)
    table[LOG_CLASS_IMAGES] = np.log(numbers)
    columns = ["model_id", *FIT, LOG_CLASS_IMAGES, *study.measures]
    return Scored(table.reindex(columns=columns), gap_predictor, scores, study.classes)


def predicted_classes(
    store: Store,
    models: Sequence[Model],
    images: OwnImages,
    *,
    of_labelled: bool = False,
) -> dict[str, Array]:
    """Predict the classes of the images on which models are scored.

    Args:
        store: of computed values.
        models: checkpoints.
        images: that they are scored on.
        of_labelled: whether the classes of the labelled images are predicted instead.

    Returns:
        By model id, (N,) number of the output with the largest logit. A model that
        fails on the images is left out.
    """
    name = digest(images.labelled) if of_labelled else images.scored_on.name
    compute = partial(_predicted, of_labelled=of_labelled, device=store.device)
    records = store.each(models, {"predicted_classes": {"images": name}}, compute)
    return {
        model_id: record["predicted"]
        for model_id, record in records.records("predicted_classes")
    }


def _predicted(
    model: Model,
    shared: OwnImages,
    parts: Sequence[str],
    *,
    of_labelled: bool,
    device: str,
) -> dict[str, dict[str, Any]]:
    images = shared.labelled
    if not of_labelled:
        images = shared.scored_on.images_of(shared)
    logits = logits_of(model.load(device), images.images, device, model.normalise)
    return {part: {"predicted": logits.argmax(1).numpy()} for part in parts}


def labelled_right(
    store: Store, models: Sequence[Model], images: OwnImages
) -> dict[str, NDArray[np.bool_]]:
    """Classify the labelled images, and compare with their labels.

    Args:
        store: of computed values.
        models: checkpoints.
        images: with labelled ones.

    Returns:
        By model id, (n,) whether each labelled image is classified correctly. A model
        that cannot be loaded is left out.
    """
    labels = images.labelled.labels.numpy()
    predicted = predicted_classes(store, models, images, of_labelled=True)
    return {model_id: classes == labels for model_id, classes in predicted.items()}


def verdicts(
    facts: pd.DataFrame,
    values: Scored | None,
    right: Mapping[str, NDArray[np.bool_]] | None = None,
) -> pd.DataFrame:
    """Judge checkpoints: a row for each, the highest predicted accuracy first.

    A network that is not a ResNet, or lies outside of the range of the studies, is
    judged by its labelled images alone, since predictions are not reliable for it.
    Predicted accuracies below chance are raised to it, with a note; counted ones stand
    as they were counted.

    Args:
        facts: table with the columns ``case.FACTS``.
        values: result of ``scored``; None if no checkpoint could be read.
        right: result of ``labelled_right``; None without labelled images.

    Returns:
        Columns ``VERDICT``. Accuracies and gaps are fractions, with intervals of 80 %;
        the interval of labelled_right is of 95 %. NaN if not judged.
    """
    if values is None:
        verdict = np.where(facts["fault"].ne(""), NOT_READ, NOT_JUDGED)
        # fault: why a file was not read; doubt: why one that was read is not judged.
        note = facts["fault"].where(facts["fault"].ne(""), facts["doubt"])
        return facts.assign(verdict=verdict, note=note).reindex(columns=VERDICT)
    gap_predictor = values.predictor
    table = _with_predictions(facts, values)
    judged = table["verdict"].eq(PREDICTED)
    beyond_studies = pd.Series(_reasons_beyond_studies(table, values), table.index)
    beyond_studies = beyond_studies.where(judged, "")
    covariance = np.diag(table["error"] ** 2)
    is_counted = pd.Series(False, table.index)
    consequence = _REQUEST_FOR_LABELS
    if right:
        table, covariance = _combined_with_labels(
            table, judged, beyond_studies, right, gap_predictor
        )
        is_counted = table["labelled_right"].notna()
        consequence = "its accuracy on the labelled images is undefined"
    for row in table.index[beyond_studies.ne("")]:
        words = _CONSEQUENCE_OF_COUNT if is_counted[row] else consequence
        table.loc[row, "verdict"] = COUNTED if is_counted[row] else NOT_JUDGED
        table.loc[row, "note"] = f"{beyond_studies[row]}; {words}"
    table = _at_least_chance(table)
    table = _with_notes_on_ranges(table, gap_predictor)
    is_unknown = table["verdict"].isin([NOT_JUDGED, NOT_READ])
    table.loc[is_unknown, "accuracy"] = np.nan
    return _ranked(table, covariance)


def _with_predictions(facts: pd.DataFrame, values: Scored) -> pd.DataFrame:
    """Predict the accuracy of each checkpoint, or say why it cannot be judged.

    Args:
        facts: table with the columns ``case.FACTS``.
        values: of the checkpoints, and the predictor.

    Returns:
        Both tables, and further: chance, the accuracy of guessing; accuracy, at least
        chance; raised_from, the prediction where it was below chance; error, the
        standard deviation of its error; half, half the width of its interval; verdict
        and note, the reason of one that is not judged.
    """
    table = facts.merge(values.table, on="model_id", how="left")
    chance = 1 / table["outputs"].clip(lower=1)
    predicted_gap = values.predictor.regression.predicted(table)
    accuracy = table["train_accuracy"] - predicted_gap
    table = table.assign(
        chance=chance,
        accuracy=accuracy.clip(chance, 1),
        raised_from=accuracy.where(accuracy < chance),
        error=values.predictor.error_sd(table),
        half=values.predictor.half_width(table),
        verdict=PREDICTED,
    )
    table["note"] = [_reason(row) for row in table.itertuples()]
    table.loc[table["note"].ne(""), "verdict"] = NOT_JUDGED
    table.loc[table["fault"].ne(""), "verdict"] = NOT_READ
    return table


def _reason(row: Any) -> str:
    """Say why a checkpoint cannot be judged; "" if it can."""
    if row.fault or row.doubt:
        return row.fault or row.doubt
    if not np.isfinite(row.accuracy):
        return (
            "its training accuracy, loss or a measure on these images is undefined, "
            "see scores.csv"
        )
    chance = 1 / row.outputs
    if row.train_accuracy > chance + _LEAST_LEARNT * (1 - chance):
        return ""
    return (
        f"its training accuracy of {row.train_accuracy:.0%} is near chance "
        f"({chance:.0%} with {row.outputs} classes): it is untrained, or the order of "
        "the classes, the normalisation or the image size is not that of its training"
    )


def _reasons_beyond_studies(table: pd.DataFrame, values: Scored) -> list[str]:
    """Say why each network lies outside of the range of the studies; "" if inside."""
    gap_predictor = values.predictor
    is_far = gap_predictor.regression.leverage(table) > gap_predictor.largest_leverage
    outside = gap_predictor.regression.out_of_range_columns(table)
    reasons = []
    for number, row in enumerate(table.itertuples()):
        if not row.residual:
            reasons.append(_NOT_A_RESNET)
        elif not _covers_classes(values.classes, row.outputs):
            reasons.append(
                f"beyond what the studies cover ({row.outputs} classes; "
                f"there {' and '.join(map(str, sorted(set(values.classes))))})"
            )
        elif is_far[number]:
            checkpoint = table.iloc[number]
            # Where each value is in its range, it is their combination that is far.
            columns = outside[number] or list(gap_predictor.ranges.index)
            words = [
                _compared(name, checkpoint[name], gap_predictor) for name in columns
            ]
            reasons.append(f"beyond what the studies cover ({', '.join(words)})")
        else:
            reasons.append("")
    return reasons


def _covers_classes(of_studies: Sequence[int], classes: int) -> bool:
    """Whether a number of classes is not far from those of the studies, if known."""
    if not of_studies:
        return True
    fewest = min(of_studies) / _CLASS_RATIO_LIMIT
    return fewest <= classes <= _CLASS_RATIO_LIMIT * max(of_studies)


def _compared(column: str, value: float, gap_predictor: Predictor) -> str:
    """Compare a value with the studies: "training loss 2, there 0.01 to 0.5"."""
    formatted = _FORMATS.get(column, "{:.2f}".format)
    low, high = gap_predictor.ranges.loc[column, ["low", "high"]]
    title = TITLES.get(column, column)
    return f"{title} {formatted(value)}, there {formatted(low)} to {formatted(high)}"


def _at_least_chance(table: pd.DataFrame) -> pd.DataFrame:
    """Raise accuracies that rest on a prediction to chance, and note where it was done.

    Args:
        table: of ``_with_predictions``, with the verdicts.
    """
    chance = table["chance"]
    is_predicted = table["verdict"].eq(PREDICTED)
    # Raised before labels were combined with it, or below chance since.
    raised_from = table["raised_from"].fillna(
        table["accuracy"].where(table["accuracy"] < chance)
    )
    table = table.assign(
        accuracy=table["accuracy"].where(
            ~is_predicted, table["accuracy"].clip(chance, 1)
        )
    )
    for row in table.index[is_predicted & raised_from.notna()]:
        note = (
            f"its predicted accuracy of {percent(raised_from[row])} is raised to "
            f"chance ({percent(chance[row])})"
        )
        table.loc[row, "note"] = "; ".join(filter(None, [table.loc[row, "note"], note]))
    return table


def _with_notes_on_ranges(
    table: pd.DataFrame, gap_predictor: Predictor
) -> pd.DataFrame:
    """Add notes on values outside of the studies' range to predicted checkpoints.

    They are judged nevertheless, with wider intervals.
    """
    outside = gap_predictor.regression.out_of_range_columns(table)
    notes = []
    for number, columns in enumerate(outside):
        row = table.iloc[number]
        note = row["note"]
        if columns and row["verdict"] == PREDICTED:
            words = [_compared(name, row[name], gap_predictor) for name in columns]
            note_on_range = f"outside the studies' range: {', '.join(words)}"
            note = "; ".join(filter(None, [note, note_on_range]))
        notes.append(note)
    return table.assign(note=notes)


def _combined_with_labels(
    table: pd.DataFrame,
    judged: pd.Series,
    beyond_studies: pd.Series,
    right: Mapping[str, NDArray[np.bool_]],
    gap_predictor: Predictor,
) -> tuple[pd.DataFrame, Array]:
    """Combine predictions with the accuracies on labelled images.

    Args:
        table: with predicted accuracies, their errors, and half widths of intervals.
        judged: whether each checkpoint can be judged.
        beyond_studies: why it lies outside of the range of the studies, or "". If so,
            its accuracy is that on labelled images alone.
        right: result of ``labelled_right``.
        gap_predictor: fitted to the studies.

    Returns:
        The table with new accuracies and half widths, and the columns labelled_right,
        counted_low and counted_high; and the covariance of the accuracies' errors.
    """
    shares = pd.DataFrame.from_dict(
        {
            model_id: [is_right.mean(), *wilson(int(is_right.sum()), len(is_right))]
            for model_id, is_right in right.items()
        },
        orient="index",
        columns=["labelled_right", "counted_low", "counted_high"],
    )
    table = table.join(shares, on="model_id")
    covariance = np.diag(table["error"] ** 2)
    has_labels = judged & table["labelled_right"].notna()
    combined = np.flatnonzero(has_labels & beyond_studies.eq(""))  # rows
    if len(combined):
        accuracy, block = combine_with_labels(
            table["accuracy"].to_numpy()[combined],
            table["error"].to_numpy()[combined],
            gap_predictor.common,  # share of the squared error common to all
            _stacked(right, table["model_id"].iloc[combined]),
        )
        table.loc[combined, "accuracy"] = accuracy
        covariance[np.ix_(combined, combined)] = block
    counted = np.flatnonzero(has_labels & beyond_studies.ne(""))  # rows
    if len(counted):
        is_right = _stacked(right, table["model_id"].iloc[counted])
        table.loc[counted, "accuracy"] = is_right.mean(1)
        covariance[np.ix_(counted, counted)] = counting_covariance(is_right)
    error = np.sqrt(np.diag(covariance))
    # The interval of a prediction narrows as its standard deviation does; that of a
    # count is normal.
    table["half"] *= error / table["error"]
    table.loc[counted, "half"] = QUANTILE * error[counted]
    return table, covariance


def _stacked(
    right: Mapping[str, NDArray[np.bool_]], model_ids: Sequence[str]
) -> NDArray[np.bool_]:
    """Whether each labelled image is classified correctly, (models, images)."""
    return np.stack([right[model_id] for model_id in model_ids])


def _ranked(table: pd.DataFrame, covariance: Array) -> pd.DataFrame:
    """Add intervals, ranks, and probabilities of being better than the first.

    Args:
        table: with accuracies and half widths of intervals.
        covariance: of the errors of the accuracies, taken as normal.

    Returns:
        The columns ``VERDICT``, the highest accuracy first.
    """
    order = table.sort_values(
        ["accuracy", "checkpoint"], ascending=[False, True], na_position="last"
    ).index
    table = table.loc[order].reset_index(drop=True)
    covariance = covariance[np.ix_(order, order)]
    if table["accuracy"].count() > 1:
        table["rank"] = table["accuracy"].round(9).rank(method="min", ascending=False)
        variance = np.diag(covariance)
        # Standard deviations of the differences to the first.
        difference_variance = variance + variance[0] - 2 * covariance[0]
        spread = np.sqrt(np.maximum(difference_variance, 1e-18))
        z = (table["accuracy"] - table["accuracy"].iloc[0]) / spread
        table["better_than_first"] = scipy.stats.norm.cdf(z)
    table["accuracy_low"] = (table["accuracy"] - table["half"]).clip(0, 1)
    table["accuracy_high"] = (table["accuracy"] + table["half"]).clip(0, 1)
    table["gap"] = table["train_accuracy"] - table["accuracy"]
    table["gap_low"] = table["train_accuracy"] - table["accuracy_high"]
    table["gap_high"] = table["train_accuracy"] - table["accuracy_low"]
    return table.reindex(columns=VERDICT)

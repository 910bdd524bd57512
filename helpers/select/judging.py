"""Checkpoints scored and judged: predicted test accuracy and gap, what labelled images say, who is best, and what is not judged and why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats

from helpers.scoring.classification import logits_of
from helpers.scoring.measuring import score, score_table
from helpers.scoring.models import Model
from helpers.scoring.store import Store
from helpers.select.calibration import MEASURES, Calibration, with_candidates
from helpers.select.images import OwnImages, digest
from helpers.select.prediction import (
    QUANTILE,
    TRUSTED,
    Predictor,
    predictor,
    weighed,
    wilson,
)
from helpers.statistics.correlations import Array
from helpers.statistics.prediction import FIT, with_fit

# What is said of a checkpoint: a predicted accuracy, one mainly counted on labelled images, or none, as ``judge`` or ``case`` explain.
PREDICTED, COUNTED, NOT_JUDGED, NOT_READ = (
    "predicted",
    "counted",
    "not judged",
    "not read",
)
_LEARNT = 0.1  # share of the way from chance to 1 up to which a training accuracy tells of nothing learnt
_NO_RESNET = "no ResNet, as the study's networks are"
VERDICT = [
    *(
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
    ),
    *(
        "train_accuracy",
        "labelled_right",
        "counted_low",
        "counted_high",
        "network",
        "note",
        "model_id",
    ),
]


class Scored(NamedTuple):
    """What was computed of checkpoints on their training images."""

    table: (
        pd.DataFrame
    )  # a row per model: model_id, FIT, and the measures that the prediction rests on
    predictor: Predictor
    scores: pd.DataFrame  # measure by measure, with reasons


def scored(
    store: Store, models: Sequence[Model], images: OwnImages, study: Calibration
) -> Scored:
    """The fit of models and the measures that a study may choose, on as many of their training images as in the study."""
    count = len(images.scored_on.rows)
    # A share of as many images as in the study, so that values rest on as many.
    share = study.settings.perturbation_fraction * (study.images or count) / count
    settings = replace(study.settings, perturbation_fraction=min(1.0, share))
    found = predictor(study.models, study.candidates)
    fit = {"training_accuracy": "train_accuracy", "training_loss": "train_loss"}
    scores = score_table(
        score(
            store,
            models,
            ["prediction", "perturbation"],
            settings,
            images.scored_on,
            [*fit, *MEASURES],
        )
    )
    table = with_candidates(
        pd.DataFrame({"model_id": [model.model_id for model in models]}), scores
    )
    table = with_fit(table.rename(columns=fit))
    return Scored(
        table.reindex(columns=["model_id", *FIT, *found.chosen]), found, scores
    )


def predicted_classes(
    store: Store, models: Sequence[Model], images: OwnImages
) -> dict[str, Array]:
    """Number of the output with the largest logit, (N,) of the scored images.

    By model id; a model that fails on the images is left out.
    """
    records = store.each(
        models,
        {"predicted_classes": {"images": images.scored_on.name}},
        partial(_predicted, device=store.device),
    )
    return {
        model_id: record["predicted"]
        for model_id, record in records.records("predicted_classes")
    }


def _predicted(
    model: Model, shared: OwnImages, parts: Sequence[str], *, device: str
) -> dict[str, dict[str, Any]]:
    pixels = shared.train.images[list(shared.scored_on.rows)]
    logits = logits_of(model.load(device), pixels, device, model.normalise)
    return {part: {"predicted": logits.argmax(1).numpy()} for part in parts}


def labelled_right(
    store: Store, models: Sequence[Model], images: OwnImages
) -> dict[str, int]:
    """On how many of the labelled images of ``images`` each model that can be loaded is right."""
    kept = store.each(
        models,
        {"labelled_right": {"images": digest(images.labelled)}},
        partial(_right, device=store.device),
    )
    return {
        model_id: int(record["right"].sum())
        for model_id, record in kept.records("labelled_right")
    }


def _right(
    model: Model, shared: OwnImages, parts: Sequence[str], *, device: str
) -> dict[str, dict[str, Any]]:
    logits = logits_of(
        model.load(device), shared.labelled.images, device, model.normalise
    )
    return {
        part: {"right": (logits.argmax(1) == shared.labelled.labels).numpy()}
        for part in parts
    }


def verdicts(
    facts: pd.DataFrame,
    found: Scored | None,
    right: Mapping[str, int] | None = None,
    labelled: int = 0,
) -> pd.DataFrame:
    """A row for every checkpoint, the highest predicted accuracy first.

    With labelled images counts are weighed against predictions (``prediction.weighed``), which are not trusted of a network that is no
    ResNet, as all that the studies hold; without them such a network is not judged. No accuracy is below chance. Probabilities take the
    errors of two checkpoints as independent. ``found`` is None where none could be read.

    Facts are ``case.FACTS``; ``right`` counts, by model. Columns are ``VERDICT``: fractions, with intervals of 80 %, counts of 95 %.
    """
    if not found:
        verdict = np.where(facts["fault"].ne(""), NOT_READ, NOT_JUDGED)
        note = facts["fault"].where(facts["fault"].ne(""), facts["doubt"])
        return facts.assign(verdict=verdict, note=note).reindex(columns=VERDICT)
    table = facts.merge(found.table, on="model_id", how="left")
    least = 1 / table["outputs"].clip(lower=1)
    predicted = (table["train_accuracy"] - found.predictor.predicted(table)).clip(
        least, 1
    )
    table = table.assign(accuracy=predicted, error=found.predictor.error)
    table["note"] = [_fault(row) for row in table.itertuples()]
    judged = table["note"].eq("")
    table["verdict"] = np.select(
        [table["fault"].ne(""), ~judged], [NOT_READ, NOT_JUDGED], PREDICTED
    )
    other = judged & ~table["residual"].astype(bool)
    if right:
        table = _with_counts(table, judged, right, labelled, found.predictor)
        table["accuracy"] = table["accuracy"].clip(
            least, 1
        )  # what is weighed may lie beyond both
        said = COUNTED, f"{_NO_RESNET}: its labelled images count for more"
    else:
        said = (
            NOT_JUDGED,
            f"{_NO_RESNET}; give labelled images that were held out (--labelled), 50 or more",
        )
    table.loc[other, ["verdict", "note"]] = said
    for row, names in enumerate(found.predictor.beyond(table)):
        if names and table.loc[row, "verdict"] not in (NOT_JUDGED, NOT_READ):
            beyond = f"beyond the study's models in {', '.join(names)}".replace(
                "_", " "
            )
            table.loc[row, "note"] = "; ".join(
                filter(None, (table.loc[row, "note"], beyond))
            )
    table.loc[table["verdict"].isin([NOT_JUDGED, NOT_READ]), "accuracy"] = np.nan
    return _ranked(table)


def _fault(row: Any) -> str:
    """Why nothing can be said of a checkpoint; "" where something can."""
    if row.fault or row.doubt:
        return row.fault or row.doubt
    if not np.isfinite(row.accuracy):
        return "its training accuracy, loss or a measure on these images is undefined, see scores.csv"
    chance = 1 / row.outputs
    if row.train_accuracy <= chance + _LEARNT * (1 - chance):
        told = f"its training accuracy of {row.train_accuracy:.0%} is near chance ({chance:.0%} with {row.outputs} classes)"
        return f"{told}: it is untrained, or the order of the classes, the normalisation or the image size is not that of its training"
    return ""


def _with_counts(
    table: pd.DataFrame,
    judged: pd.Series,
    right: Mapping[str, int],
    images: int,
    by: Predictor,
) -> pd.DataFrame:
    """The share of labelled images that each checkpoint is right on, and accuracies weighed with it, ResNets and others apart."""
    counts = table["model_id"].map(right).astype(float)
    ends = [
        wilson(int(count), images) if np.isfinite(count) else (np.nan, np.nan)
        for count in counts
    ]
    table = table.assign(
        labelled_right=counts / images,
        counted_low=[low for low, _ in ends],
        counted_high=[high for _, high in ends],
    )
    for residual, trusted in ((True, TRUSTED), (False, 0.0)):
        if (rows := judged & counts.notna() & table["residual"].eq(residual)).any():
            found = weighed(
                table.loc[rows, "accuracy"],
                by.error,
                by.common,
                counts[rows],
                images,
                trusted,
            )
            table.loc[rows, ["accuracy", "error"]] = np.column_stack(found)
    return table


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    """With intervals, ranks by accuracy, and probabilities of being better than the first by normal errors; as ``VERDICT``."""
    table = table.sort_values(
        ["accuracy", "checkpoint"],
        ascending=[False, True],
        na_position="last",
        ignore_index=True,
    )
    if table["accuracy"].count() > 1:
        table["rank"] = table["accuracy"].round(9).rank(method="min", ascending=False)
        behind = (table["accuracy"] - table["accuracy"].iloc[0]) / np.hypot(
            table["error"], table["error"].iloc[0]
        )
        table["better_than_first"] = scipy.stats.norm.cdf(behind)
    table["accuracy_low"], table["accuracy_high"] = (
        (table["accuracy"] + sign * QUANTILE * table["error"]).clip(0, 1)
        for sign in (-1, 1)
    )
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        table[f"gap{end}"] = table["train_accuracy"] - table[f"accuracy{other}"]
    return table.reindex(columns=VERDICT)

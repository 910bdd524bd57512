"""Checkpoints scored and judged: predicted test accuracy and gap, what labelled images say, who is best, and what is not judged and why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.data.dataset import ImageSet
from helpers.measures import evidence, registry
from helpers.scoring.classification import logits_of
from helpers.scoring.models import Model, score, score_table, with_measures
from helpers.scoring.store import Store
from helpers.select import calibration
from helpers.select.calibration import Calibration
from helpers.select.images import Own, pixels_digest
from helpers.select.prediction import LEVEL, Predictor, held, predictor, weighed, wilson
from helpers.statistics.prediction import FIT, with_fit

# What is said of a checkpoint: a predicted accuracy, one by its labelled images above all, a place in an order alone, or nothing.
PREDICTED, COUNTED, ORDERED, NOT_JUDGED, NOT_READ = "predicted", "counted", "order only", "not judged", "not read"
AS_GOOD = 0.1  # probability of being better than the first from which on a checkpoint is as good within error
_DRAWS = 10_000
_LEARNT = 0.1  # share of the way from chance to 1 up to which a training accuracy tells of nothing learnt
VERDICT = [
    *("rank", "verdict", "checkpoint", "accuracy", "accuracy_low", "accuracy_high", "gap", "gap_low", "gap_high", "probability_best"),
    *("better_than_first", "train_accuracy", "labelled_right", "counted_low", "counted_high", "network", "note"),
]


class Scored(NamedTuple):
    """What was computed of checkpoints on their training images."""

    table: pd.DataFrame  # a row per model: model_id, FIT, train_accuracy, and the measures that the prediction rests on
    predictor: Predictor
    scores: pd.DataFrame  # measure by measure, with reasons


def scored(store: Store, models: Sequence[Model], own: Own, study: Calibration, level: float = LEVEL) -> Scored:
    """The fit of models and the measures that a study chooses, on as many images as in the study; an undefined measure is chosen anew.

    Args:
        store: whose ``shared`` gives ``own``.
        models: that can be loaded.
        own: the training images.
        study: that calibrates.
        level: of the intervals.
    """
    count, settings = len(own.scored_on.rows), study.settings
    # A share of as many images as in the study, so that values rest on as many.
    share = settings.perturbation_fraction * (study.images or count) / count
    settings = replace(settings, perturbation_fraction=min(1.0, share))
    measures = registry.columns().set_index("column")["measure"]
    offered = list(study.candidates)
    while True:
        found = predictor(study.models, "gap", offered, level)
        only = ["training_accuracy", "training_loss", *measures[list(found.chosen)]]
        families = [name for name in registry.FAMILIES if any(item.name in only for item in registry.of_families([name]))]
        scores = score_table(score(store, models, families, settings, own.scored_on, only))
        table = with_measures(pd.DataFrame({"model_id": [model.model_id for model in models]}), scores)
        table = with_fit(table.rename(columns={"training_accuracy": "train_accuracy", "training_loss": "train_loss"}))
        undefined = [name for name in found.chosen if not np.isfinite(table.loc[np.isfinite(table["train_accuracy"]), name]).all()]
        if not undefined:
            return Scored(table[["model_id", *FIT, *found.chosen]], found, scores)
        offered = [name for name in offered if name not in undefined]


def logits(store: Store, models: Sequence[Model], images: ImageSet, name: str) -> dict[str, NDArray[np.float32]]:
    """Logits of ``Own.labelled`` or ``Own.target`` by every model: model_id to (N, K).

    Args:
        store: whose ``shared`` gives the ``Own``.
        models: that can be loaded.
        images: the labelled ones or those of the target.
        name: "labelled" or "target".
    """
    parts = {name: {"images": pixels_digest(images.images.numpy())}}
    kept = store.each(models, parts, partial(_logits, device=store.device))
    return {model_id: record["logits"] for model_id, record in kept.records(name)}


def _logits(model: Model, shared: Own, parts: Sequence[str], *, device: str) -> dict[str, dict[str, Any]]:
    network = model.load(device)
    return {part: {"logits": logits_of(network, getattr(shared, part).images, device, model.normalise).numpy()} for part in parts}


def verdicts(
    facts: pd.DataFrame,
    found: Scored | None,
    *,
    right: Mapping[str, NDArray[np.bool_]] | None = None,
    orders: float = np.nan,
    seed: int = 0,
) -> pd.DataFrame:
    """A row for every checkpoint, the highest predicted accuracy first.

    With labelled images each count is weighed against the prediction by their variances. Of a network that is no ResNet, as all that the
    studies hold, the error of the prediction is what the labelled images show of it, if that is more; without labelled images it has a
    place in the order alone, where orders carry over between studies.

    Args:
        facts: checkpoint, model_id, network, residual, outputs, fault; fault is "" where it could be read.
        found: see ``scored``; None where no checkpoint could be read.
        right: by model, which labelled images it is right on.
        orders: share of pairs of models that other studies' orders put right, see ``right_orders``; NaN where that is not known.
        seed: of the draws behind ``probability_best``.

    Returns:
        ``VERDICT``, fractions: accuracy on images like the training images, its interval, the gap likewise; probability_best, and that of
        being better than the first; labelled_right with its 95 % interval. Errors of checkpoints are taken as independent.
    """
    table = facts.merge(found.table, on="model_id", how="left") if found else facts.assign(**dict.fromkeys(FIT, np.nan))
    table = table.assign(**dict.fromkeys(("rank", "accuracy", "error", "labelled_right", "counted_low", "counted_high"), np.nan))
    if found:
        gap = found.predictor.predicted(table)
        table = table.assign(accuracy=(table["train_accuracy"] - gap).clip(0, 1), error=found.predictor.error)
    table["note"] = [_fault(row) for row in table.itertuples()]
    judged = table["note"].eq("")
    table.loc[~judged, "accuracy"] = np.nan
    table["verdict"] = np.select([table["fault"].ne(""), ~judged], [NOT_READ, NOT_JUDGED], PREDICTED)
    other = judged & ~table["residual"].astype(bool)
    table.loc[other, "verdict"] = ORDERED if np.isfinite(orders) else NOT_JUDGED
    if right:
        table = _with_counts(table, judged, other, right)
    if other.any():
        table.loc[other, "note"] = _of_another_kind(found.predictor, orders, bool(right))
    if found:
        table.loc[judged, "note"] = [
            "; ".join(filter(None, (note, _beyond(names))))
            for note, names in zip(table.loc[judged, "note"], found.predictor.beyond(table[judged]), strict=True)
        ]
    table.loc[table["verdict"].eq(NOT_JUDGED), "accuracy"] = np.nan
    return _ranked(table, found.predictor.level if found else LEVEL, seed)


def _fault(row: Any) -> str:
    """Why nothing can be said of a checkpoint; "" where something can."""
    if row.fault:
        return row.fault
    if not np.isfinite(row.train_accuracy):
        return "its training accuracy on these images is undefined, so nothing can be predicted"
    chance = 1 / row.outputs
    if row.train_accuracy <= chance + _LEARNT * (1 - chance):
        return (
            f"its training accuracy of {row.train_accuracy:.0%} is near chance ({chance:.0%} with {row.outputs} classes): it is untrained, "
            "or the order of the classes, the normalisation or the image size is not that of its training"
        )
    return ""


def _beyond(names: Sequence[str]) -> str:
    return f"beyond the study's models in {', '.join(name.replace('_', ' ') for name in names)}" if names else ""


def _of_another_kind(found: Predictor, orders: float, labelled: bool) -> str:
    if labelled:
        return "no ResNet, as the study's networks are: its labelled images count for more"
    if np.isfinite(orders):
        return f"no ResNet, as the study's networks are: a place in the order alone; between studies {orders:.0%} of such pairs were right"
    return "no ResNet, as the study's networks are; give labelled images that were held out (--labelled), 50 or more"


def _with_counts(table: pd.DataFrame, judged: pd.Series, other: pd.Series, right: Mapping[str, NDArray[np.bool_]]) -> pd.DataFrame:
    """Predictions weighed with counts on labelled images; every checkpoint that was read has its own count."""
    known = table["model_id"].isin(right)
    counts = table.loc[known, "model_id"].map({name: hits.sum() for name, hits in right.items()}).astype(int)
    images = len(next(iter(right.values())))
    table.loc[known, "labelled_right"] = counts / images
    table.loc[known, ["counted_low", "counted_high"]] = [wilson(count, images) for count in counts]
    for rows in (judged & ~other & known, other & known):
        if rows.any():
            p, hits, error = table.loc[rows, "accuracy"].to_numpy(), counts[rows].to_numpy(), float(table["error"].max())
            if rows is not None and other[rows].all():
                noise = weighed(p, np.inf, hits, images)[1] ** 2
                error = max(error, float(np.sqrt(max(0.0, ((hits / images - p) ** 2 - noise).mean()))))
                table.loc[rows, "verdict"] = COUNTED
            table.loc[rows, "accuracy"], table.loc[rows, "error"] = weighed(p, error, hits, images)
    return table


def _ranked(table: pd.DataFrame, level: float, seed: int) -> pd.DataFrame:
    """With intervals, ranks by accuracy, and probabilities of being the best by draws of normal errors."""
    place = table["accuracy"].round(9)
    table["rank"] = place.rank(method="min", ascending=False) if place.notna().sum() > 1 else np.nan
    table = table.sort_values(["accuracy", "checkpoint"], ascending=[False, True], na_position="last", ignore_index=True)
    known = table["accuracy"].notna().to_numpy()
    table["probability_best"], table["better_than_first"] = np.nan, np.nan
    if known.sum() > 1:
        drawn = np.random.default_rng(seed).normal(table.loc[known, "accuracy"], table.loc[known, "error"], (_DRAWS, int(known.sum())))
        table.loc[known, "probability_best"] = np.bincount(drawn.argmax(1), minlength=drawn.shape[1]) / _DRAWS
        behind = (table["accuracy"] - table["accuracy"].iloc[0]) / np.hypot(table["error"], table["error"].iloc[0])
        table["better_than_first"] = scipy.stats.norm.cdf(behind)
    numbers = table["verdict"].isin([PREDICTED, COUNTED])
    table.loc[~numbers, "accuracy"] = np.nan
    half = float(scipy.stats.norm.ppf((1 + level) / 2)) * table["error"]
    table["accuracy_low"], table["accuracy_high"] = ((table["accuracy"] + sign * half).clip(0, 1) for sign in (-1, 1))
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        table[f"gap{end}"] = table["train_accuracy"] - table[f"accuracy{other}"]
    return table[VERDICT]


def right_orders(reports: Path) -> tuple[float, int]:
    """Share of pairs of a study's models that another study's predictor puts in the right order of test accuracy, and how many pairs.

    Over all pairs of committed studies; NaN where there are fewer than two.
    """
    known = {name: calibration.read(reports, name) for name in calibration.studies(reports)}
    right, count = 0, 0
    for judge, judged in permutations(known, 2):
        shared = [name for name in known[judge].candidates if name in known[judged].candidates]
        try:
            table = held(known[judged].models, predictor(known[judge].models, "gap", shared))
        except ValueError:  # too few configurations to calibrate
            continue
        first, second = np.triu_indices(len(table), 1)
        truth, said = (table["train_accuracy"].to_numpy() - table[name].to_numpy() for name in ("truth", "predicted"))
        signs = np.sign(truth[first] - truth[second]) * np.sign(said[first] - said[second])
        right, count = right + int((signs > 0).sum()), count + int((signs != 0).sum())
    return (right / count if count else np.nan), count


def on_target(
    reports: Path, study: Calibration, found: Scored, said: Mapping[str, NDArray[np.float32]], level: float = LEVEL
) -> pd.DataFrame:
    """Predicted accuracy on images without labels: by the fit and what measures of such images the study chooses.

    Args:
        reports: folder of the studies' reports.
        study: that calibrates.
        found: see ``scored``.
        said: logits of the target by model, see ``logits``.
        level: of the intervals.

    Returns:
        model_id, predicted, low, high, chosen (the measures, in words), beyond (what lies beyond the study's targets).

    Raises:
        FileNotFoundError: the study has no table of targets.
    """
    models, offered = calibration.targets(reports, study)
    parts = []
    for model_id, values in said.items():
        given = {"network": nn.Identity(), "target_logits": Tensor(values).half()}
        parts.append(evidence.score(registry.of_families(["unlabelled"]), given, study.settings).assign(model_id=model_id))
    own = with_measures(found.table[["model_id", *FIT]], pd.concat(parts, ignore_index=True))
    own = own[own["model_id"].isin(said)].reset_index(drop=True)
    defined = [name for name in offered if name in own and np.isfinite(own[name]).all()]
    by = predictor(models, "test_accuracy", defined, level)
    accuracy = by.predicted(own)
    ends = {"low": np.clip(accuracy - by.half, 0, 1), "high": np.clip(accuracy + by.half, 0, 1)}
    table = own[["model_id"]].assign(predicted=np.clip(accuracy, 0, 1), **ends, chosen=", ".join(by.chosen))
    return table.assign(beyond=[_beyond(names) for names in by.beyond(own)])

"""Checkpoints scored and judged: predicted test accuracy and gap, what labelled images say, who is best, and what is not judged and why."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.measures import evidence, registry
from helpers.scoring.classification import logits_of
from helpers.scoring.models import Model, score, score_table, with_measures
from helpers.scoring.store import Store
from helpers.select import images
from helpers.select.calibration import Calibration
from helpers.select.images import Own
from helpers.select.prediction import LEVEL, Predictor, predictor, weighed, wilson
from helpers.statistics.prediction import FIT, with_fit

# What is said of a checkpoint: a predicted accuracy, one by its labelled images above all, a place in an order alone, or nothing.
PREDICTED, COUNTED, ORDERED, NOT_JUDGED, NOT_READ = "predicted", "counted", "order only", "not judged", "not read"
_DRAWS = 10_000
_LEARNT = 0.1  # share of the way from chance to 1 up to which a training accuracy tells of nothing learnt
VERDICT = [
    *("rank", "verdict", "checkpoint", "accuracy", "accuracy_low", "accuracy_high", "gap", "gap_low", "gap_high", "probability_best"),
    *("better_than_first", "train_accuracy", "labelled_right", "counted_low", "counted_high", "network", "note"),
]


class Scored(NamedTuple):
    """What was computed of checkpoints on their training images."""

    table: pd.DataFrame  # a row per model: model_id, FIT, and the measures that the prediction rests on
    predictor: Predictor
    scores: pd.DataFrame  # measure by measure, with reasons


def scored(store: Store, models: Sequence[Model], own: Own, study: Calibration, level: float = LEVEL) -> Scored:
    """The fit of models and the measures that a study chooses, on as many of their training images as in the study.

    ``store.shared`` gives ``own``; the models can be loaded.
    """
    count = len(own.scored_on.rows)
    # A share of as many images as in the study, so that values rest on as many.
    share = study.settings.perturbation_fraction * (study.images or count) / count
    settings = replace(study.settings, perturbation_fraction=min(1.0, share))
    found = predictor(study.models, "gap", study.candidates, level)
    of_column = registry.columns().set_index("column")["measure"]
    only = ["training_accuracy", "training_loss", *of_column[list(found.chosen)]]
    families = [name for name in registry.FAMILIES if any(item.name in only for item in registry.of_families([name]))]
    scores = score_table(score(store, models, families, settings, own.scored_on, only))
    table = with_measures(pd.DataFrame({"model_id": [model.model_id for model in models]}), scores)
    table = with_fit(table.rename(columns={"training_accuracy": "train_accuracy", "training_loss": "train_loss"}))
    return Scored(table.reindex(columns=["model_id", *FIT, *found.chosen]), found, scores)


def logits(store: Store, models: Sequence[Model], own: Own, name: str) -> dict[str, NDArray[np.float32]]:
    """Logits (N, K) of the images ``own.labelled`` or ``own.target``, as ``name`` says, by each model that can be loaded."""
    parts = {name: {"images": images.digest(getattr(own, name))}}
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
        facts: see ``case.FACTS``; fault is "" where a checkpoint could be read.
        found: None where no checkpoint could be read.
        right: by model, which labelled images it is right on.
        orders: see ``prediction.right_orders``; NaN where that is not known.

    Returns:
        ``VERDICT``, fractions: accuracy on images like the training images, its interval, the gap likewise; probability_best, and that of
        being better than the first; labelled_right with its 95 % interval. Errors of checkpoints are taken as independent.
    """
    table = facts.merge(found.table, on="model_id", how="left") if found else facts.assign(train_accuracy=np.nan)
    gap = found.predictor.predicted(table) if found else np.nan
    table = table.assign(predicted=(table["train_accuracy"] - gap).clip(0, 1), error=found.predictor.error if found else np.nan)
    table["note"] = [_fault(row) for row in table.itertuples()]
    table["accuracy"] = table["predicted"].where(table["note"].eq(""))
    judged = table["accuracy"].notna()
    table["verdict"] = np.select([table["fault"].ne(""), ~judged], [NOT_READ, NOT_JUDGED], PREDICTED)
    other = judged & ~table["residual"].astype(bool)
    if right:
        table = _with_counts(table, right)
        table.loc[other, ["verdict", "note"]] = COUNTED, f"{_NO_RESNET}: its labelled images count for more"
    elif np.isfinite(orders):
        told = f"{_NO_RESNET}: a place in the order alone; between studies {orders:.0%} of such pairs were right"
        table.loc[other, ["verdict", "note"]] = ORDERED, told
    else:
        told = f"{_NO_RESNET}; give labelled images that were held out (--labelled), 50 or more"
        table.loc[other, ["verdict", "note", "accuracy"]] = NOT_JUDGED, told, np.nan
    for row, names in zip(table.index[judged], found.predictor.beyond(table[judged]) if found else (), strict=True):
        table.loc[row, "note"] = "; ".join(filter(None, (table.loc[row, "note"], beyond_in_words(names))))
    return _ranked(table.reindex(columns=[*dict.fromkeys([*table, *VERDICT])]), found.predictor.level if found else LEVEL, seed)


_NO_RESNET = "no ResNet, as the study's networks are"


def _fault(row: Any) -> str:
    """Why nothing can be said of a checkpoint; "" where something can."""
    if row.fault:
        return row.fault
    if not np.isfinite(row.predicted):
        return "its training accuracy, loss or a measure on these images is undefined, see scores.csv"
    chance = 1 / row.outputs
    if row.train_accuracy <= chance + _LEARNT * (1 - chance):
        return (
            f"its training accuracy of {row.train_accuracy:.0%} is near chance ({chance:.0%} with {row.outputs} classes): it is untrained, "
            "or the order of the classes, the normalisation or the image size is not that of its training"
        )
    return ""


def beyond_in_words(names: Sequence[str]) -> str:
    """In which columns something lies outside what the study has; "" for none."""
    return f"beyond the study's models in {', '.join(name.replace('_', ' ') for name in names)}" if names else ""


def _with_counts(table: pd.DataFrame, right: Mapping[str, NDArray[np.bool_]]) -> pd.DataFrame:
    """The share of labelled images that each checkpoint is right on, and accuracies weighed with it by their variances."""
    images, known = len(next(iter(right.values()))), table["model_id"].isin(right)
    counts = table["model_id"].map({name: hits.sum() for name, hits in right.items()}).astype(float)
    ends = [wilson(int(count), images) if np.isfinite(count) else (np.nan, np.nan) for count in counts]
    table = table.assign(labelled_right=counts / images, counted_low=[low for low, _ in ends], counted_high=[high for _, high in ends])
    for residual in (True, False):
        rows = table["accuracy"].notna() & known & table["residual"].eq(residual)
        if not rows.any():
            continue
        p, hits, error = table.loc[rows, "accuracy"].to_numpy(), counts[rows].to_numpy(), table["error"].max()
        if not residual:  # the mean square by which they miss the counts, less what counting itself misses
            error = max(error, np.sqrt(np.mean((hits / images - p) ** 2 - weighed(p, np.inf, hits, images)[1] ** 2).clip(0)))
        table.loc[rows, "accuracy"], table.loc[rows, "error"] = weighed(p, error, hits, images)
    return table


def _ranked(table: pd.DataFrame, level: float, seed: int) -> pd.DataFrame:
    """With intervals, ranks by accuracy, and probabilities of being the best by draws of normal errors."""
    table = table.sort_values(["accuracy", "checkpoint"], ascending=[False, True], na_position="last", ignore_index=True)
    known = table["accuracy"].notna()
    if known.sum() > 1:
        table["rank"] = table["accuracy"].round(9).rank(method="min", ascending=False)
        drawn = np.random.default_rng(seed).normal(table.loc[known, "accuracy"], table.loc[known, "error"], (_DRAWS, known.sum()))
        table.loc[known, "probability_best"] = np.bincount(drawn.argmax(1), minlength=drawn.shape[1]) / _DRAWS
        behind = (table["accuracy"] - table["accuracy"].iloc[0]) / np.hypot(table["error"], table["error"].iloc[0])
        table["better_than_first"] = scipy.stats.norm.cdf(behind)
    table.loc[table["verdict"].eq(ORDERED), "accuracy"] = np.nan
    half = scipy.stats.norm.ppf((1 + level) / 2) * table["error"]
    table["accuracy_low"], table["accuracy_high"] = ((table["accuracy"] + sign * half).clip(0, 1) for sign in (-1, 1))
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        table[f"gap{end}"] = table["train_accuracy"] - table[f"accuracy{other}"]
    return table[VERDICT]


def on_target(
    known: tuple[pd.DataFrame, Sequence[str]], study: Calibration, found: Scored, said: Mapping[str, NDArray[np.float32]]
) -> pd.DataFrame:
    """Predicted accuracy on images without labels: by the fit and what measures of such images the study chooses.

    What is known is that of ``calibration.targets``; what models said is that of ``logits``.

    Returns:
        model_id, predicted, low, high, chosen (the measures, in words), beyond (what lies beyond the study's targets).
    """
    models, offered = known
    parts = []
    for model_id, values in said.items():
        given = {"network": nn.Identity(), "target_logits": Tensor(values).half()}
        parts.append(evidence.score(registry.of_families(["unlabelled"]), given, study.settings).assign(model_id=model_id))
    own = with_measures(found.table[["model_id", *FIT]], pd.concat(parts, ignore_index=True))
    own = own[own["model_id"].isin(said)].reset_index(drop=True)
    defined = [name for name in offered if name in own and np.isfinite(own[name]).all()]
    by = predictor(models, "test_accuracy", defined)
    accuracy = by.predicted(own)
    ends = {"low": np.clip(accuracy - by.half, 0, 1), "high": np.clip(accuracy + by.half, 0, 1)}
    table = own[["model_id"]].assign(predicted=np.clip(accuracy, 0, 1), **ends, chosen=", ".join(by.chosen))
    return table.assign(beyond=[beyond_in_words(names) for names in by.beyond(own)])

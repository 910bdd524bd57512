"""What images without labels are worth beside training images, on one target: errors of the accuracy that is predicted."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.data.images import StudyData
from helpers.data.shifts import at
from helpers.measures import registry
from helpers.measures.evidence import closure
from helpers.measures.unlabelled import PREDICTED_ACCURACIES
from helpers.scoring.targets import PLAIN_TARGET, TURNED_IMAGES, holdout_of
from helpers.statistics.correlations import Array, design
from helpers.statistics.labelling import against_labelling
from helpers.statistics.questions import FIT, left_out_errors, with_fit
from helpers.statistics.resampling import cell_weights, correlated, drawn_with_images, mean_in_draws, percentile_interval
from helpers.training.catalogue import models_of

BASELINE, TRAINING, UNLABELLED = SOURCES = ("baseline", "from training images alone", "with unlabelled images")
HOLDOUT = "holdout_accuracy"
KNOWN = "hyperparameters and fit"


def predicts(column: str) -> bool:
    """Whether a measure's column is a predicted accuracy, and no score."""
    return column.partition(" (")[0] in PREDICTED_ACCURACIES


def worth_on_targets(
    models: pd.DataFrame,
    scored: pd.DataFrame,
    data: StudyData,
    shifts: Sequence[str],
    *,
    costs: Mapping[str, float],
    axes: Sequence[str],
    images: Mapping[str, ArrayLike] | None = None,
    resamples: int,
    seed: int = 0,
) -> pd.DataFrame:
    """``worth_table`` of the test images and of every shifted target, below each other.

    Args:
        models: one row per model: the catalogue, what is to be predicted, and a column per measure of training images.
        scored: the same models on each target, see ``targets.scores_on_targets``.
        data: the study's images.
        shifts: names of shifted targets.
        costs: seconds of each measure of training images with all it needs; passes are counted in those of the training accuracy.
        axes: hyperparameters that vary.
        images: values of single images of the models, see ``worth_table``.
        resamples: behind the intervals.
        seed: of folds and resampling.
    """
    ranked = {name: item for name, item in registry.ranked().items() if name in models and item.family != "unlabelled"}
    one = costs.get("training_accuracy", np.nan)
    passes = {name: costs.get(item.name, np.nan) / one for name, item in ranked.items()}
    held = [holdout for model in models_of(models.head(1)) if (holdout := holdout_of(data, model.config)) is not None]
    size, holdout = len(data.test), len(held[0]) if held else 0
    sources = dict.fromkeys(ranked, TRAINING)
    for item in registry.of_families(["unlabelled"]):
        for variant in item.variants or ("",):
            sources[item.column(variant)] = UNLABELLED
            passes[item.column(variant)] = passes_needed(sorted(closure(item.needs)), size, holdout, min(size, TURNED_IMAGES))
    there = {name: source for name, source in sources.items() if name in models or name in scored}
    fresh = [name for name in there if name in scored]
    plain, tables = models.drop(columns=[name for name in fresh if name in models]), []
    for shift in ("", *shifts):
        beside = scored.loc[scored["target"] == (shift or PLAIN_TARGET), ["model_id", *fresh]]
        given = {"shift": shift, "passes": passes, "images": images, "resamples": resamples, "seed": seed}
        tables.append(worth_table(plain.merge(beside, how="left", on="model_id"), there, axes, **given))
    return pd.concat(tables, ignore_index=True)


def passes_needed(needs: Sequence[str], target: int, holdout: float, turned: int) -> float:
    """Images that a measure of the family "unlabelled" passes through a network, in passes over the target.

    Args:
        needs: of the measure, see ``registry.Measure.needs``; the network's repeats cost a pass each and count as one.
        target: images of the target.
        holdout: images of the holdout.
        turned: images of the target that are also turned, three times.
    """
    images = {"target_logits": target, "holdout_logits": holdout, "rotated_target_logits": 4 * turned, "repeat_target_logits": target}
    return sum(images[name] for name in needs if name in images) / target


def worth_table(
    models: pd.DataFrame,
    measures: Mapping[str, str],
    axes: Sequence[str],
    *,
    shift: str,
    passes: Mapping[str, float],
    labelled: int = 50,
    images: Mapping[str, ArrayLike] | None = None,
    resamples: int = 500,
    seed: int = 0,
) -> pd.DataFrame:
    """How well every measure tells the accuracy on a target, the plain baselines first; errors are mean absolute ones, in points.

    Args:
        models: one row per model: cell, the axes, train_accuracy, train_loss, the target's ``test_accuracy@<shift>`` (fractions) and a
            column per measure.
        measures: column to source, one of ``SOURCES``.
        axes: hyperparameters that vary.
        shift: the target; "" is the test images as they are.
        passes: column to cost, in passes over the images that it reads.
        labelled: number of labelled images of the target to stand against.
        images: values of single images of the models, see ``resampling.drawn_with_images``: of measures of training images, and of the
            accuracy on the target. They are drawn for the correlations; measures of unlabelled images, and errors, stand as they are.
        resamples: of cells, and of these images, behind the intervals.
        seed: of resampling and folds.

    Returns:
        One row per measure: target, source, measure, n models, cells, pearson_r and kendall_tau with the accuracy (in the sign of the
        measure) with their intervals, error and bias (of the predicted accuracy as it is; NaN for a score), fitted_error (a line on the
        measure alone, fitted to other cells), known_error (hyperparameters and fit, fitted to other cells), with_error (the same and the
        measure), gain (known less with) with gain_low and gain_high, over_training (error with the best measure of training images less
        that with this one) with its interval, passes, labelled_images (that err as little as the measure does by itself) and worth_more
        (than ``labelled`` images). First the labelled images themselves, the labelled holdout, and hyperparameters and fit.
    """
    truth = at("test_accuracy", shift)
    has, own = np.isfinite(models[truth].astype(float)).to_numpy(), [truth, *(name for name in measures if measures[name] == TRAINING)]
    models = with_fit(models[has].reset_index(drop=True))
    drawn = drawn_with_images(models, own, {name: np.asarray(values)[has] for name, values in (images or {}).items()}, resamples, seed)
    y, cells = models[truth].to_numpy(dtype=float), models["cell"]
    known = design(models, axes, FIT)
    without, beside, alone = left_out_errors(known, y, cells, seed), {}, {}
    for name in measures:
        values = models[name].to_numpy(dtype=float)
        beside[name] = _left_out(np.column_stack([known, values]), y, cells, seed)
        alone[name] = _left_out(values[:, None], y, cells, seed)
    best = _best([name for name, source in measures.items() if source == TRAINING], beside)
    weights = cell_weights(cells, resamples, seed)
    draws = {"draws": resamples, "tau_draws": resamples, "seed": seed, "drawn": drawn}
    told = correlated(models, list(measures), target=truth, **draws).drop(columns="dropped")
    rows = []
    for name in measures:
        own = _own(models[name].to_numpy(dtype=float), y, alone[name], predicts(name), labelled)
        gain = without - beside[name]
        own |= {"known_error": _mean(np.where(np.isfinite(gain), without, np.nan)), "with_error": _mean(beside[name])}
        own |= _interval("gain", gain, weights, cells)
        own |= _interval("over_training", beside.get(best, np.full(len(y), np.nan)) - beside[name], weights, cells)
        source = BASELINE if name == HOLDOUT else measures[name]
        rows.append({"source": source, "measure": name} | own | {"passes": passes.get(name, np.nan)})
    found = pd.DataFrame(rows).merge(told, on="measure") if rows else pd.DataFrame(columns=["source", "measure"])
    labels = against_labelling(pd.DataFrame(index=models.index), y, labelled=labelled).iloc[0] if len(y) else {}
    plain = {"source": BASELINE, "measure": f"{labelled} labelled images", "n": len(y)}
    plain |= {"error": 100 * labels.get("error", np.nan), "bias": 0.0, "labelled_images": labelled}
    fitted = {"source": BASELINE, "measure": KNOWN, "n": len(y), "known_error": _mean(without), "with_error": _mean(without)}
    return _ordered(pd.concat([pd.DataFrame([plain, fitted]), found], ignore_index=True), shift)


def _ordered(table: pd.DataFrame, shift: str) -> pd.DataFrame:
    """Baselines first, then measures of training images, then of unlabelled ones, each by the error that they leave."""
    table = table.assign(target=shift or PLAIN_TARGET, place=table["source"].map(list(SOURCES).index))
    table = table.sort_values(["place", "with_error"], kind="stable").drop(columns="place")
    errors = ["error", "bias", "fitted_error", "known_error", "with_error", "gain", "gain_low", "gain_high"]
    front = [name for name in ("target", "source", "measure", "n", "cells", *errors) if name in table]
    return table[[*front, *table.columns.drop(front)]].reset_index(drop=True)


def _best(names: Sequence[str], errors: Mapping[str, Array]) -> str:
    """The measure of least error among those that most models have, since one that few have would be compared on few; "" without one."""
    counts = {name: int(np.isfinite(errors[name]).sum()) for name in names}
    most = max(counts.values(), default=0)
    return min((name for name in names if most and counts[name] == most), key=lambda name: _mean(errors[name]), default="")


def _left_out(columns: Array, truth: Array, cells: pd.Series, seed: int) -> Array:
    """Errors in points of models by a regression that never saw their cell; NaN for models where a column is."""
    has, errors = np.isfinite(columns).all(1), np.full(len(truth), np.nan)
    errors[has] = left_out_errors(columns[has], truth[has], cells[has], seed)
    return errors


def _interval(name: str, values: Array, weights: Array, cells: pd.Series) -> dict[str, float]:
    """Mean of the finite values and its interval over cells."""
    low, high = percentile_interval(mean_in_draws(values, weights), cells[np.isfinite(values)].nunique())
    return {name: _mean(values), f"{name}_low": float(low), f"{name}_high": float(high)}


def _mean(values: Array) -> float:
    return float(values[np.isfinite(values)].mean()) if np.isfinite(values).any() else np.nan


def _own(values: Array, truth: Array, fitted: Array, predicts: bool, labelled: int) -> dict[str, object]:
    """What a measure tells by itself, as it is or by a line of its own where it is a score, and the labels that equal it."""
    told = values if predicts else truth + fitted / 100
    row = against_labelling(pd.DataFrame({"told": told}), truth, labelled=labelled).iloc[1]
    own = {"error": 100 * row["error"], "bias": 100 * row["bias"]} if predicts else dict.fromkeys(("error", "bias"), np.nan)
    return own | {"fitted_error": _mean(fitted), "labelled_images": row["labelled_images"], "worth_more": bool(row["worth_more"])}

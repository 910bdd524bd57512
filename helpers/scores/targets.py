"""Accuracies on test images and shifted copies of them, and their predictions.

Labels of a target are used only for the accuracy that is to be predicted.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from helpers.data.images import StudyData
from helpers.data.shifts import shifted
from helpers.measures import evidence, registry, transforms
from helpers.measures.passes import Classifier, Sample
from helpers.scores.classification import logits_of
from helpers.scores.measuring import DECISIVE, with_measures
from helpers.scores.models import Model
from helpers.scores.store import Records, Store
from helpers.statistics.beyond import conditional_information
from helpers.statistics.correlate import CONFIGURATION, Bootstrap, correlate, kendall
from helpers.training.config import config_from
from helpers.training.run import images_of_run

PLAIN_TARGET = "test images"  # name of the target without a shift
ACCURACY = "accuracy"  # on a target: a score beside the measures
# The one measure of unlabelled images whose values are no accuracies, so that it has no
# error: it only ranks networks.
_ONLY_RANKS = "matrix_norm_of_logits"


def _part(shift: str) -> str:
    """Part of the store that holds records on a target; "" is without a shift."""
    return f"target-{shift or 'test'}"


def on_targets(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    shifts: Sequence[str],
    settings: evidence.MeasureSettings,
) -> Records:
    """Logits and measures of unlabelled images on test images and shifted copies.

    Args:
        store: of the study.
        models: of the study.
        data: its images.
        shifts: names, such as "blur_0.7".
        settings: of the measures.

    Returns:
        A part per target, with a score for each measure, and for the accuracy there.
        Measures that need held-out training images are undefined if a run holds out
        none, since it stops by the test images (``rule3_split``). Models that neither
        can be loaded here nor have records are left out.
    """
    decisive: dict[str, Any] = {"data": data.fingerprint, "version": 1}
    decisive |= {name: getattr(settings, name) for name in DECISIVE["unlabelled"]}
    shift_of = {_part(shift): shift for shift in ("", *shifts)}
    parts = {part: decisive | {"shift": shift} for part, shift in shift_of.items()}
    measures = registry.measures_of_families(["unlabelled"])
    sources, device = registry.SOURCES, store.device

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The parts of a network."""
        network = model.load(device)
        config = config_from(model.facts)
        # Measures of unlabelled images take logits alone.
        inputs: dict[str, Any] = {}
        if config.rule3_split == "holdout":
            holdout = images_of_run(data, config)[1]
            logits = logits_of(network, holdout.images, device)
            inputs["holdout_logits"] = logits.half()
            inputs["holdout_labels"] = holdout.labels
        records = {}
        for part in parts:
            images = data.test.images
            if shift_of[part]:
                images = shifted(images, shift_of[part], settings.seed)
            logits = logits_of(network, images, device)
            inputs["target_logits"] = logits.half()
            scores, _ = evidence.score(measures, inputs, settings, sources=sources)
            is_right = (logits.argmax(1) == data.test.labels).double()
            accuracy = {"measure": [ACCURACY], "value": float(is_right.mean())}
            records[part] = {"scores": pd.concat([scores, pd.DataFrame(accuracy)])}
        return records

    return store.each(models, parts, compute, needed=False)


def scores_on_targets(
    records: Records, models: pd.DataFrame, shifts: Sequence[str]
) -> pd.DataFrame:
    """Predicted and true accuracy of every model on every target.

    Args:
        records: of ``on_targets``.
        models: rows of the catalogue.
        shifts: names of the targets.

    Returns:
        A row per target and model, "test images" first: model_id, cell (its
        configuration), kind, architecture, target, test_accuracy (of the target, NaN
        for a model without a record), and the measures.
    """
    facts = models[["model_id", CONFIGURATION, "kind", "architecture"]]
    tables = []
    for shift in ("", *shifts):
        scores = records.scores(_part(shift))
        accuracies = scores[scores["measure"] == ACCURACY].set_index("model_id")
        accuracy = facts["model_id"].map(accuracies["value"])
        table = facts.assign(target=shift or PLAIN_TARGET, test_accuracy=accuracy)
        tables.append(with_measures(table, scores))
    return pd.concat(tables, ignore_index=True)


def accuracies_under_transforms(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    seed: int,
    ranges: str = "cifar10",
) -> pd.DataFrame:
    """Accuracy of each model on test images under random transforms.

    Each image has a random magnitude of the transform; Schiff et al. 2021, Table 2.

    Args:
        store: of the study.
        models: of the study.
        data: its images.
        seed: of the magnitudes.
        ranges: of the magnitudes, see ``transforms.transforms_of``.

    Returns:
        A row per model: model_id, and fractions "test accuracy under <transform>".
        Models that neither can be loaded here nor have records are left out.
    """
    device = store.device

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The part of a network."""
        accuracies = transforms.accuracies_at_random_magnitudes(
            Classifier(model.load(device), model.normalise, device, batch_size=64),
            Sample(data.test.images.to(device), None, data.test.labels.to(device)),
            transforms.transforms_of(ranges),
            seed,
        )
        return {"invariance": {"scores": accuracies}}

    parts = {"invariance": {"data": data.fingerprint, "seed": seed, "ranges": ranges}}
    wide = store.each(models, parts, compute, needed=False).table("invariance")
    return wide.rename(columns=lambda name: f"test accuracy under {name}").reset_index()


# Predictor to its measure and direction: +1 when a larger value promises a higher
# accuracy under the perturbation.
PREDICTORS = {
    "accuracy under augmentation": ("accuracy_under_augmentation", 1),
    "mean of the curve": ("curve_mean", 1),
    "Gi-score": ("gi_score", -1),
}


def invariance_table(
    table: pd.DataFrame, axes: list[str], *, draws: int, seed: int
) -> pd.DataFrame:
    """Correlation of predictors from training images with accuracy under transforms.

    Args:
        table: a row per model, with measures of the family "perturbation" and columns
            of ``accuracies_under_transforms``.
        axes: hyperparameters that were varied.
        draws: of the bootstrap.
        seed: of the draws.

    Returns:
        A row per perturbation and predictor. direction is the sign that a predictor
        promises; kendall, with its interval, is that of the raw predictor; information
        is 100 times the conditional mutual information, NaN without ``axes``.
    """
    bootstrap = Bootstrap(table, draws=draws, seed=seed)
    measures, directions = zip(*PREDICTORS.values(), strict=True)
    tables = []
    for transform in transforms.TRANSFORMS:
        columns = [registry.MEASURES[name].column(transform) for name in measures]
        target = f"test accuracy under {transform}"
        tau = correlate(bootstrap, columns, target, statistic=kendall)
        information = np.nan
        if axes:
            # Information is on the order of losses, so the accuracy is negated.
            losses = -table[[target]].to_numpy(float).T
            information = conditional_information(table, columns, axes, losses)[0]
        of_transform = {
            "perturbation": transform,
            "predictor": [*PREDICTORS],
            "direction": directions,
            "n": tau["n"],
            "kendall": tau["r"],
            "kendall_low": tau["low"],
            "kendall_high": tau["high"],
            "information": 100 * information,
        }
        tables.append(pd.DataFrame(of_transform))
    return pd.concat(tables, ignore_index=True)


# Columns of ``prediction_errors``.
ERROR_COLUMNS = (
    "target",
    "measure",
    "title",
    "n",
    "r",
    "r_low",
    "r_high",
    "error_points",
    "bias_points",
)


def prediction_errors(
    scores: pd.DataFrame, titles: Mapping[str, str], *, draws: int, seed: int
) -> pd.DataFrame:
    """Correlation and error of measures of unlabelled images, on each target.

    Args:
        scores: of ``scores_on_targets``.
        titles: of the measures, by column.
        draws: of the bootstrap.
        seed: of the draws.

    Returns:
        A row per target and measure: n models; r with the accuracy on the target and
        its interval; error_points and bias_points, mean absolute and mean error of
        measures that estimate this accuracy, NaN for others.
    """
    tables = {}
    for target, models in scores.groupby("target", sort=False):
        names = [name for name in titles if name in models]
        bootstrap = Bootstrap(models, draws=draws, seed=seed)
        table = correlate(bootstrap, names, "test_accuracy").set_index("measure")
        points = 100 * models[names].sub(models["test_accuracy"], axis=0)
        points[points.columns.intersection([_ONLY_RANKS])] = np.nan
        tables[target] = table.assign(
            error_points=points.abs().mean(), bias_points=points.mean()
        )
    table = pd.concat(tables, names=["target", "measure"]).reset_index()
    table = table.rename(columns={"low": "r_low", "high": "r_high"})
    return table.assign(title=table["measure"].map(titles))[[*ERROR_COLUMNS]]

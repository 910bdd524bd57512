"""What models say of images like those they will meet, the test images and shifted copies: accuracies, and what predicts them.

Labels of a target are used for one thing, the accuracy that is to be predicted.
"""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from helpers.data.images import StudyData
from helpers.data.shifts import at
from helpers.data.shifts import kept as made_once
from helpers.measures import evidence, registry, transforms
from helpers.networks import resnet
from helpers.scoring.classification import logits_of, predicted_classes
from helpers.scoring.measuring import deciding, with_measures
from helpers.scoring.models import Model
from helpers.scoring.store import Kept, NotInRecords, Store
from helpers.statistics.correlations import kendall
from helpers.statistics.draws import Draws
from helpers.statistics.information import conditional_information
from helpers.training.config import config_from
from helpers.training.run import images_of_run

PLAIN_TARGET = "test images"  # the target that nothing shifts
RANKS = "matrix_norm_of_logits"  # the one measure of unlabelled images that predicts no accuracy


def _part(shift: str) -> str:
    return f"target-{shift or 'test'}"


def on_targets(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    shifts: Sequence[str],
    settings: evidence.MeasureSettings,
    test: Kept,
) -> Kept:
    """Logits and measures of the family "unlabelled" of every model on the test images and on each shifted copy of them.

    A part per target: array "logits" (T, K) float16, table "scores". ``test`` are the logits of the test images. A measure of the holdout
    is undefined where the study watches the test images (``rule3_split``).
    """
    measures = registry.of_families(["unlabelled"])
    decisive = {"data": data.fingerprint, "seed": settings.seed} | deciding(
        "unlabelled", settings
    )
    folder = store.folder.parent / "targets"
    for shift in shifts if data.test.has_pixels else ():
        made_once(
            folder / shift, data.test.images, shift, settings.seed
        )  # and read by all processes
    parts = {_part(shift): decisive | {"shift": shift} for shift in ("", *shifts)}
    kept = store.each(
        models,
        parts,
        partial(
            _on_targets,
            folder=folder,
            settings=settings,
            test=test,
            device=store.device,
            measures=measures,
            from_outside=evidence.sources_from_outside(item.name for item in measures),
        ),
        needed=False,
    )
    if kept.left_out and not kept.complete:
        raise NotInRecords(kept.left_out)
    return kept


def _on_targets(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    folder: Path,
    settings: evidence.MeasureSettings,
    test: Kept,
    device: str,
    measures: Sequence[registry.Measure],
    from_outside: Mapping[str, evidence.Source],
) -> dict[str, dict[str, Any]]:
    network, config, found = (
        cache(partial(model.load, device)),
        config_from(model.facts),
        {},
    )
    given: dict[str, Any] = {"network": nn.Identity()}
    if config.rule3_split == "holdout":
        held_out = images_of_run(data, config)[1]
        given |= {
            "holdout_logits": logits_of(network(), held_out.images, device).half(),
            "holdout_labels": held_out.labels,
        }
    for part in parts:
        if part == _part(""):
            record = test.record("test_logits", model.model_id)
            if "logits" in record:
                logits = torch.from_numpy(record["logits"]).half()
            else:  # published records have the predicted class alone
                logits = logits_of(network(), data.test.images, device).half()
        else:
            shift = part.removeprefix("target-")
            logits = logits_of(
                network(),
                made_once(folder / shift, data.test.images, shift, settings.seed),
                device,
            ).half()
        scores, _ = evidence.score(
            measures,
            given | {"target_logits": logits},
            settings,
            from_outside=from_outside,
        )
        found[part] = {"logits": logits.numpy(), "scores": scores}
    return found


def target_accuracies(
    kept: Kept, table: pd.DataFrame, data: StudyData, shifts: Sequence[str]
) -> pd.DataFrame:
    """Add what is to be predicted to a table of models: columns test_accuracy@<shift>, fractions; NaN without logits."""
    labels = data.test.labels.numpy()
    columns = {
        at("test_accuracy", shift): [
            _accuracy(kept.record(_part(shift), name), labels)
            for name in kept.model_ids
        ]
        for shift in shifts
    }
    return table.merge(
        pd.DataFrame(columns, index=kept.model_ids),
        how="left",
        left_on="model_id",
        right_index=True,
    )


def _accuracy(record: Mapping[str, Any], labels: NDArray[np.int64]) -> float:
    """Accuracy by a record of a target; as it was published where no image was."""
    if "accuracy" in record:
        return float(record["accuracy"])
    return float((predicted_classes(record) == labels).mean()) if record else np.nan


def scores_on_targets(
    kept: Kept, models: pd.DataFrame, shifts: Sequence[str]
) -> pd.DataFrame:
    """Predicted and true accuracy of every model on every target, "test images" first; test_accuracy is the target's."""
    facts, tables = models[["model_id", "cell", "kind", "architecture"]], []
    for shift in ("", *shifts):
        truth = {
            "target": shift or PLAIN_TARGET,
            "test_accuracy": models[at("test_accuracy", shift)],
        }
        tables.append(
            with_measures(facts.assign(**truth), kept.table(_part(shift), "scores"))
        )
    return pd.concat(tables, ignore_index=True)


def accuracies_under_transforms(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    seed: int,
    ranges: str = "cifar10",
) -> pd.DataFrame:
    """Accuracy of each model on the test images under a random magnitude of each transform per image; Schiff et al. 2021, Table 2.

    Models that neither can be loaded here nor have records are left out.
    """
    parts = {"invariance": {"data": data.fingerprint, "seed": seed, "ranges": ranges}}
    kept = store.each(
        models,
        parts,
        partial(_under_transforms, seed=seed, ranges=ranges, device=store.device),
        needed=False,
    )
    wide = kept.table("invariance", "accuracies").set_index("model_id")
    return wide.rename(columns=lambda name: f"test accuracy under {name}").reset_index()


def _under_transforms(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    seed: int,
    ranges: str,
    device: str,
) -> dict[str, dict[str, Any]]:
    given = (
        data.test.images.to(device),
        data.test.labels.to(device),
        resnet.normalise_images,
        transforms.transforms_of(ranges),
        seed,
    )
    return {
        "invariance": {
            "accuracies": pd.DataFrame(
                [transforms.drawn_accuracies(model.load(device), *given)]
            )
        }
    }


# Predictor to its measure and direction: +1 when a larger value promises a higher accuracy under the perturbation.
PREDICTORS = {
    "accuracy under augmentation": ("accuracy_under_augmentation", 1),
    "mean of the curve": ("curve_mean", 1),
    "Gi-score": ("gi_score", -1),
}


def invariance_table(
    table: pd.DataFrame, axes: list[str], *, draws: int, seed: int
) -> pd.DataFrame:
    """How well each predictor, from the training images alone, predicts the accuracy on transformed test images.

    direction is the sign that a predictor promises, kendall has that of the raw predictor, information is 100 times the conditional mutual
    information.
    """
    rows = []
    for transform in transforms.TRANSFORMS:
        for predictor, (measure, direction) in PREDICTORS.items():
            values, target = (
                table[registry.MEASURES[measure].column(transform)],
                table[f"test accuracy under {transform}"],
            )
            # Information is about a loss to be predicted: the accuracy lost.
            known = table.assign(
                predictor=values.astype(float),
                target=target.astype(float),
                loss=-target.astype(float),
            )
            known = known[np.isfinite(known[["predictor", "target"]]).all(axis=1)]
            tau = Draws(known, draws=draws, seed=seed).estimate(
                ["predictor"], "target", statistic=kendall
            )
            score = (
                conditional_information(known, ["predictor"], axes, target="loss")[0]
                if axes and len(known)
                else np.nan
            )
            row = {
                "perturbation": transform,
                "predictor": predictor,
                "direction": direction,
                "n": len(known),
            }
            row |= {
                "kendall": tau.value[0],
                "kendall_low": tau.low[0],
                "kendall_high": tau.high[0],
            }
            rows.append(row | {"information": 100 * score})
    return pd.DataFrame(rows)


def worth_table(
    scores: pd.DataFrame, titles: Mapping[str, str], *, draws: int, seed: int
) -> pd.DataFrame:
    """By target, each measure's r with the accuracy there, and its error in points where it estimates that accuracy."""
    parts = []
    for target, models in scores.groupby("target", sort=False):
        names = [name for name in titles if name in models]
        found = Draws(models, draws=draws, seed=seed).estimate(names, "test_accuracy")
        wrong = 100 * models[names].sub(models["test_accuracy"], axis=0)
        predicts = [name for name in names if name != RANKS]
        facts = {
            "target": target,
            "measure": names,
            "title": [titles[name] for name in names],
            "n": models[names].notna().sum(),
        }
        part = pd.DataFrame(facts).assign(
            r=found.value, r_low=found.low, r_high=found.high
        )
        parts.append(
            part.assign(
                error_points=wrong[predicts].abs().mean(),
                bias_points=wrong[predicts].mean(),
            )
        )
    return pd.concat(parts, ignore_index=True)

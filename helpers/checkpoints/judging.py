"""Predict the test accuracy of checkpoints, or count it on labelled images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binomtest
from torch import Tensor, nn
from tqdm.auto import tqdm

from helpers.checkpoints import calibration, networks
from helpers.checkpoints.images import (
    NORMALISATIONS,
    SIDES,
    Channels,
    Pictures,
    Preparation,
    best_order,
    choose_preparation,
    logits_of,
    unlabelled_images,
)
from helpers.data.images import ImageSet
from helpers.measures.agreement import agreement
from helpers.measures.single import score_network
from helpers.scores.measuring import with_measures
from helpers.statistics.gap_rule import PREDICTORS, GapRule, predictors

FEWEST_LABELLED = 50
_LEVEL = 0.8  # of all intervals
_NORMAL_QUANTILE = 1.2816  # of this level, two-sided
NOT_JUDGED = "not judged"
_MEASURES = ("training_accuracy", "accuracy_under_augmentation", "mixup_accuracy")
_MOST_COPIES = 0.05  # share of labelled images that may be training images
_CAUSES = (
    "likely causes: another order of the classes (--classes), another size "
    "(--image-size) or normalisation (--mean, --std), pictures that training cut, or "
    "another stem (--architecture)"
)
_COLUMNS = (
    "checkpoint",
    "verdict",  # predicted, counted, not judged, not read
    "accuracy",  # on images like the training images; in [0, 1]
    "low",
    "high",
    "training_accuracy",
    *PREDICTORS,
    "agreement",  # with the other checkpoints on unlabelled images
    "prepared",  # size and normalisation
    "note",
)


@dataclass(frozen=True)
class Inputs:
    """Checkpoints, images, and what a user says of them."""

    checkpoints: Path  # a folder, or one file
    images: Path  # a folder or .zip of training images
    labelled: Path | None = None  # the same of held-out images with labels
    unlabelled: Path | None = None  # the same of images without labels
    architecture: str = networks.AUTO
    classes: Sequence[str] = ()  # in the order of the outputs; empty: sorted
    class_images: float = 0.0  # training images of a class; 0: those of ``images``
    sides: Sequence[int] = SIDES  # image sizes to choose from, pixels
    normalisations: Sequence[tuple[Channels, Channels]] = NORMALISATIONS


class Judged(NamedTuple):
    """The result for a folder of checkpoints."""

    verdicts: pd.DataFrame  # a row per checkpoint, the best first; ``_COLUMNS``
    sentences: list[str]  # the answer first


def judge(inputs: Inputs, reports: Path, work: Path, device: str = "cpu") -> Judged:
    """Judge the checkpoints of a folder by their training images.

    Args:
        inputs: checkpoints and images.
        reports: folder of the reports of the studies that calibrate.
        work: folder in which a .zip is unpacked.
        device: "cpu" or "cuda".

    Raises:
        OSError: if a folder or file does not exist.
        ValueError: if the images cannot be used.
    """
    files = networks.find(inputs.checkpoints)
    pictures = Pictures(inputs.images, work / "unpacked", inputs.classes)
    labelled = None
    if inputs.labelled:
        labelled = Pictures(
            inputs.labelled, work / "unpacked", pictures.classes, split="test"
        )
    models = calibration.networks(reports)
    rule = calibration.rule(models)
    rows = []
    hits = {}  # on labelled images, by checkpoint
    unlabelled: dict[int, Tensor] = {}  # images without labels, by side
    predicted = {}  # their classes, by checkpoint
    for name, path in tqdm(files.items(), desc="checkpoints", leave=False):
        row: dict[str, Any] = {"checkpoint": name}
        try:
            network = networks.load(path, inputs.architecture, len(pictures.classes))
            network = network.to(device)
            preparation = choose_preparation(
                network, pictures, inputs.sides, inputs.normalisations, device
            )
            images = pictures.at(preparation.side)
            row |= facts_of(network, images, preparation, device)
        except ValueError as fault:
            reason = str(fault).partition("\n")[0]
            row |= {"verdict": "not read", "note": reason.removeprefix(f"{name} ")}
        else:
            if labelled:
                of_size = labelled.at(preparation.side)
                check_labelled(of_size, images)
                logits = logits_of(network, of_size.images, preparation, device)
                hits[name] = (logits.argmax(1) == of_size.labels).numpy()
            if inputs.unlabelled:
                side = preparation.side
                if side not in unlabelled:
                    unlabelled[side] = unlabelled_images(
                        inputs.unlabelled, work / "unpacked", side
                    )
                logits = logits_of(network, unlabelled[side], preparation, device)
                predicted[name] = logits.argmax(1).numpy()
        rows.append(row)
    class_images = inputs.class_images or pictures.class_images
    facts = pd.DataFrame(rows).assign(log_images=np.log(class_images))
    table = verdicts(facts, rule, hits)
    if predicted:
        shares = agreement(np.array(list(predicted.values())))
        by_name = dict(zip(predicted, shares, strict=True))
        table["agreement"] = table["checkpoint"].map(by_name)
    errors = calibration.errors_across(models)
    margin = calibration.margin(models, errors)
    noted = table[table["note"].ne("")]
    sentences = [
        answer(table, hits, margin),
        *(f"{row.checkpoint}: {row.note}." for row in noted.itertuples()),
        *_order_by_agreement(table),
        *filter(None, [pictures.remark]),
        calibration.in_words(models, errors, len(pictures.classes)),
    ]
    return Judged(table, sentences)


def facts_of(
    network: nn.Module, images: ImageSet, preparation: Preparation, device: str
) -> dict[str, Any]:
    """What the gap of a network is predicted from.

    Args:
        network: on the device, in evaluation mode, with logits as output.
        images: its training images, at the size of the preparation.
        preparation: of the images.
        device: of the network.

    Returns:
        training_accuracy, drop, drop_mixup, prepared, verdict and note: why it is not
        judged, or a remark.

    Raises:
        ValueError: if the network has not one output a class.
    """
    logits = logits_of(network, images.images, preparation, device)
    classes = int(images.labels.max()) + 1
    if logits.shape != (len(images), classes):
        raise ValueError(
            f"the network puts out {tuple(logits.shape)} for {len(images)} images of "
            f"{classes} classes; one output a class is needed"
        )
    scores = score_network(
        network,
        images,
        _MEASURES,
        normalise=preparation.normalise,
        device=device,
        perturbation_fraction=1.0,
    )
    row = with_measures(pd.DataFrame({"model_id": [""]}), scores.assign(model_id=""))
    accuracy = float(row["training_accuracy"].iloc[0])
    facts = dict(zip(PREDICTORS, predictors([accuracy], row, 1)[0], strict=True))
    facts |= {"training_accuracy": accuracy, "prepared": str(preparation), "note": ""}
    order = _better_order(logits.argmax(1).numpy(), images.labels.numpy())
    if order:
        facts |= {"verdict": NOT_JUDGED, "note": order}
    elif accuracy < min(2 / classes, (1 + 1 / classes) / 2):
        words = f"training accuracy {accuracy:.0%} is below twice chance; {_CAUSES}"
        facts |= {"verdict": NOT_JUDGED, "note": words}
    elif not np.isfinite([facts[name] for name in PREDICTORS]).all():
        words = "what it loses is undefined; give two images or more of each class"
        facts |= {"verdict": NOT_JUDGED, "note": words}
    elif (logits >= 0).all() and (logits.sum(1) - 1).abs().max() < 1e-3:
        facts["note"] = "it ends in a softmax, which changes no accuracy"
    return facts


def _better_order(predicted: NDArray[np.int64], labels: NDArray[np.int64]) -> str:
    """Say that predictions fit the labels in another order of the classes; else ""."""
    best, outputs = best_order(predicted, labels)
    right = (predicted == labels)[len(labels) // 2 :]
    accuracy = right.mean()
    standard_error = right.std() / np.sqrt(len(right))
    if best - accuracy <= max(0.02, 4 * standard_error):
        return ""
    return (
        f"{best:.0%} of the training images are right in another order of the classes, "
        f"{accuracy:.0%} in the order assumed; name it by --classes. Outputs in the "
        f"order of the assumed classes: {', '.join(map(str, outputs[:10]))}"
    )


def check_labelled(labelled: ImageSet, train: ImageSet) -> None:
    """Refuse labelled images that are too few, or training images.

    Args:
        labelled: held-out images.
        train: training images of the same size.

    Raises:
        ValueError: says which.
    """
    if len(labelled) < FEWEST_LABELLED:
        raise ValueError(
            f"there are {len(labelled)} labelled images; at least {FEWEST_LABELLED} "
            "are needed, and 200 give a much narrower interval"
        )
    of_training = {pixels.numpy().tobytes() for pixels in train.images}
    copies = sum(pixels.numpy().tobytes() in of_training for pixels in labelled.images)
    if copies > _MOST_COPIES * len(labelled):
        raise ValueError(
            f"{copies} of {len(labelled)} labelled images are training images, whose "
            "accuracy is no test accuracy; give held-out ones"
        )


def verdicts(
    facts: pd.DataFrame,
    rule: GapRule,
    hits: Mapping[str, NDArray[np.bool_]],
) -> pd.DataFrame:
    """Test accuracy of each checkpoint, with an 80 % interval.

    It is the training accuracy less the predicted gap; with labelled images the share
    of these that is right, with Wilson's interval.

    Args:
        facts: a row per checkpoint: checkpoint, training_accuracy, ``PREDICTORS``,
            verdict (empty for one to be judged) and note.
        rule: that predicts gaps.
        hits: by checkpoint, whether each labelled image is right; may be empty.

    Returns:
        The facts with verdict, accuracy, low and high, the best first.
    """
    table = facts.reindex(columns=_COLUMNS)
    x = table[list(PREDICTORS)].astype(float)
    ends = table[["training_accuracy"]].to_numpy(dtype=float) - rule.interval(x)
    table["accuracy"] = table["training_accuracy"] - rule.predict(x)
    table[["high", "low"]] = ends
    outside = (x < np.array(rule.lows)) | (x > np.array(rule.highs))
    is_plain = table["note"].eq("")
    table.loc[outside.any(axis=1) & is_plain, "note"] = "beyond what the studies have"
    for name, right in hits.items():
        test = binomtest(int(right.sum()), len(right))
        low, high = test.proportion_ci(_LEVEL, "wilson")
        values = [right.mean(), low, high]
        table.loc[table["checkpoint"].eq(name), ["accuracy", "low", "high"]] = values
    ends = ["accuracy", "low", "high"]
    is_judged = table["verdict"].isna()
    table.loc[~is_judged, ends] = np.nan
    table[ends] = table[ends].clip(0, 1)
    table["verdict"] = table["verdict"].astype(object)
    table.loc[is_judged, "verdict"] = "counted" if hits else "predicted"
    return table.sort_values("accuracy", ascending=False, ignore_index=True)


def answer(
    table: pd.DataFrame, hits: Mapping[str, NDArray[np.bool_]], margin: float
) -> str:
    """Which checkpoint is expected to do best, or which are not told apart.

    Networks that are judged alike err alike: labelled images are compared one by one,
    predictions by errors of differences within a study.

    Args:
        table: of ``verdicts``.
        hits: by checkpoint, whether each labelled image is right; may be empty.
        margin: 80 % quantile of errors of predicted differences; see ``calibration``.
    """
    judged = table.dropna(subset="accuracy")
    if judged.empty:
        return "No checkpoint is judged."
    best = judged.iloc[0]
    alike = []
    for row in judged.itertuples():
        if hits:
            difference = hits[best["checkpoint"]] * 1.0 - hits[row.checkpoint]
            margin = _NORMAL_QUANTILE * difference.std() / np.sqrt(len(difference))
        if best["accuracy"] - row.accuracy <= margin:
            alike.append(row.checkpoint)
    accuracy = f"{best['accuracy']:.0%} ({best['low']:.0%} to {best['high']:.0%})"
    if len(alike) > 1:
        return f"Not told apart: {', '.join(alike)}; the first has {accuracy}."
    return f"{best['checkpoint']} is expected to do best: {accuracy}."


def _order_by_agreement(table: pd.DataFrame) -> list[str]:
    """A sentence on the order of checkpoints on unlabelled images."""
    ordered = table.dropna(subset="agreement").sort_values("agreement", ascending=False)
    if ordered.empty:
        return []
    names = ", ".join(ordered["checkpoint"])
    return [
        f"By agreement with the others on unlabelled images: {names}. With fewer than "
        "five networks, or with the same mistakes in all, this order says little."
    ]


def printed(table: pd.DataFrame) -> str:
    """The table of ``verdicts`` in percent, for a terminal.

    Args:
        table: of ``verdicts``.
    """
    percent = ["accuracy", "low", "high", "training_accuracy", "agreement"]
    rows = table.assign(**(100 * table[percent].astype(float)).round(1))
    shown = rows[["checkpoint", "verdict", *percent, "prepared"]]
    return shown.dropna(axis=1, how="all").to_string(index=False, na_rep="")

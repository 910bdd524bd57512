"""Predict the test accuracy of checkpoints from their training images."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import confusion_matrix
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm.auto import tqdm

from helpers.checkpoints import calibration, inputs
from helpers.checkpoints.inputs import Channels, Inputs, Pictures, Preparation
from helpers.data.images import ImageSet, sentences_of_faults
from helpers.data.sources import open_source
from helpers.files import from_root
from helpers.measures.evidence import score_network
from helpers.measures.perturbation import twice_chance
from helpers.measures.unlabelled import agreement
from helpers.networks.resnet import IMAGENET_MEAN, IMAGENET_STD
from helpers.scores.classification import logits_of
from helpers.statistics.gap_rule import PREDICTORS, GapRule
from helpers.training.pool import choose_device

SIDES = (32, 64, 96, 128, 160, 224)  # usual sizes in training, pixels
# Usual normalisations, the mean and standard deviation: ImageNet's, -1 to 1, 0 to 1.
NORMALISATIONS = (
    (IMAGENET_MEAN, IMAGENET_STD),
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
)
_COMPARED_IMAGES = 100  # on which sizes and normalisations are compared
_CAUSES = (
    "likely causes: another order of the classes (--classes), another size "
    "(--image-size) or normalisation (--mean, --std), pictures that training cut, or "
    "another stem (--architecture)"
)
_ORDER = (
    "By agreement with the others on unlabelled images: {}. With fewer than five "
    "networks, or with the same mistakes in all, this order says little."
)
_COLUMNS = (
    "checkpoint",
    "verdict",  # predicted, not judged, not read
    *("accuracy", "low", "high"),  # on images like the training images; in [0, 1]
    "training_accuracy",
    *PREDICTORS,
    "agreement",  # with the other checkpoints on unlabelled images
    "prepared",  # size and normalisation
    "note",
)


def judge(given: Inputs) -> tuple[pd.DataFrame, list[str]]:
    """Judge the checkpoints of a folder by their training images.

    Args:
        given: checkpoints and images.

    Returns:
        A row per checkpoint, the best first, with ``_COLUMNS``; and sentences, the
        answer first.

    Raises:
        OSError: if a folder or file does not exist.
        ValueError: if the images cannot be used.
    """
    if {len(given.mean), len(given.std)} not in ({0}, {3}):
        raise ValueError(
            "mean and std belong together, three numbers each; give both or none"
        )
    device = choose_device(given.device)
    sides = [given.image_size] if given.image_size else SIDES
    named = [(given.mean, given.std)] if given.mean else NORMALISATIONS
    files = inputs.find(given.checkpoints)
    opened = partial(open_source, unpacked=given.out / "unpacked")
    source = opened(given.images)
    pictures = Pictures(source, given.classes)
    pictures.at(sides[0])  # images that cannot be decoded become faults
    faults = sentences_of_faults(source.faults)
    unlabelled = opened(given.unlabelled) if given.unlabelled else None
    if unlabelled:
        inputs.unlabelled_pixels(unlabelled, sides[0])
        faults += sentences_of_faults(unlabelled.faults)
    classes = len(pictures.classes)
    class_images = given.images_per_class or pictures.class_images
    models = calibration.networks(from_root(given.reports))
    rows = []
    predicted = {}  # classes of unlabelled images by checkpoint
    for name, path in tqdm(files.items(), desc="checkpoints", leave=False):
        try:
            network = inputs.load(path, given.architecture, classes).to(device)
            preparation = choose_preparation(network, pictures, sides, named, device)
            images = pictures.at(preparation.side)
            facts = facts_of(network, images, preparation, device, class_images)
            if unlabelled and facts["verdict"] == "predicted":
                pixels = inputs.unlabelled_pixels(unlabelled, preparation.side)
                logits = logits_of(network, pixels, device, preparation.normalise)
                predicted[name] = logits.argmax(1).numpy()
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as fault:  # networks of others fail in every way
            reason = str(fault).partition("\n")[0] or repr(fault)
            facts = {"verdict": "not read", "note": reason.removeprefix(f"{name} ")}
        rows.append({"checkpoint": name} | facts)
    table = verdicts(rows, calibration.rule(models), models["train_accuracy"].min())
    sentences = _sentences(table, models, classes) + faults
    if unlabelled:
        sentences.append(_add_agreement(table, predicted))
    return table, sentences


def _add_agreement(table: pd.DataFrame, predicted: Mapping[str, NDArray]) -> str:
    """Add the agreement of judged networks to their table, and say their order."""
    if len(predicted) < 3:
        return "Agreement orders three judged networks or more."
    shares = pd.Series(agreement([*predicted.values()]), [*predicted])
    table["agreement"] = table["checkpoint"].map(shares)
    return _ORDER.format(", ".join(shares.sort_values(ascending=False).index))


def _sentences(table: pd.DataFrame, models: pd.DataFrame, classes: int) -> list[str]:
    """The answer, a remark on each checkpoint that has one, and what they rest on."""
    errors = calibration.errors_across(models)
    sentences = [answer(table, calibration.margin(models, errors))]
    noted = table[table["note"].ne("")]
    sentences += [f"{row.checkpoint}: {row.note}." for row in noted.itertuples()]
    numbers = " or ".join(map(str, sorted(models["classes"].unique())))
    sentences.append(
        "Predicted from the accuracy lost on shifted and mixed training images and the "
        f"number of images of a class, by {len(models)} ResNets of {numbers} classes "
        f"({', '.join(models['study'].unique())}), which predict another study with a "
        f"mean error of {100 * np.abs(errors).mean():.1f} points; yours have {classes} "
        "classes."
    )
    return sentences


def best_order(
    predicted: NDArray[np.int64], labels: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    """The order of the classes in which most predictions are right.

    It is fitted to the first half of the images and tried on the second, since with few
    images of a class some order always fits.

    Args:
        predicted: (N,) output of each image.
        labels: (N,) class numbers.

    Returns:
        The share of the second half that is right, and the output of each class.
    """
    half = len(labels) // 2
    classes = np.arange(max(labels.max(), predicted.max()) + 1)
    confusion = confusion_matrix(labels[:half], predicted[:half], labels=classes)
    _, outputs = linear_sum_assignment(confusion, maximize=True)
    return float((outputs[labels] == predicted)[half:].mean()), outputs


def choose_preparation(
    network: nn.Module,
    pictures: Pictures,
    sides: Sequence[int],
    normalisations: Sequence[tuple[Channels, Channels]],
    device: str,
) -> Preparation:
    """The size, and then the normalisation, with the highest training accuracy.

    That in another order of the classes counts where it is higher, since the order that
    is given may be wrong. Among equal accuracies the smallest loss decides.

    Args:
        network: on the device, in evaluation mode, with logits as output.
        pictures: its training images.
        sides: to compare, pixels.
        normalisations: to compare; sizes are compared with the first.
        device: of the network.

    Raises:
        ValueError: if the network fails at each size.
    """

    def fit(preparation: Preparation) -> tuple[float, float]:
        images = pictures.at(preparation.side)
        images = images.subset(range(len(images))[:_COMPARED_IMAGES])
        logits = logits_of(network, images.images, device, preparation.normalise)
        predicted, labels = logits.argmax(1).numpy(), images.labels.numpy()
        accuracy = max((predicted == labels).mean(), best_order(predicted, labels)[0])
        return accuracy, -float(cross_entropy(logits, images.labels))

    fits = {}
    for side in sides:
        try:
            fits[side] = fit(Preparation(side, *normalisations[0]))
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError, ValueError) as error:
            fault = f"{side} px: {error}"
    if not fits:
        raise ValueError(f"the network fails at each size ({fault})")
    side = max(fits, key=fits.__getitem__)
    return max((Preparation(side, *one) for one in normalisations), key=fit)


def facts_of(
    network: nn.Module,
    images: ImageSet,
    preparation: Preparation,
    device: str,
    class_images: float,
) -> dict[str, Any]:
    """What the gap of a network is predicted from.

    Args:
        network: on the device, in evaluation mode, with logits as output.
        images: its training images, at the size of the preparation.
        preparation: of the images.
        device: of the network.
        class_images: number of training images of a class.

    Returns:
        Columns of the table of verdicts: with ``PREDICTORS`` where the network can be
        judged, else with the reason in the note.
    """
    logits = logits_of(network, images.images, device, preparation.normalise)
    right = logits.argmax(1) == images.labels
    accuracy = float(right.float().mean())
    facts = {"training_accuracy": accuracy, "prepared": str(preparation), "note": ""}
    against = _why_not_judged(logits, images.labels, accuracy)
    if against:
        return facts | {"verdict": "not judged", "note": against}
    scores = score_network(
        network,
        images,
        ("drop", "drop_mixup"),
        normalise=preparation.normalise,
        device=device,
        perturbation_fraction=1.0,
    )
    lost = [*scores["value"], np.log(class_images)]
    if not np.isfinite(lost).all():
        against = "what it loses is undefined; give two images or more of each class"
        return facts | {"verdict": "not judged", "note": against}
    if (logits.abs().sum(1) - 1).abs().max() < 1e-3:
        facts["note"] = "it ends in a softmax, which changes no accuracy"
    return facts | {"verdict": "predicted"} | dict(zip(PREDICTORS, lost, strict=True))


def _why_not_judged(logits: Tensor, labels: Tensor, accuracy: float) -> str:
    """Why the training accuracy does not allow a prediction; "" if it does.

    Args:
        logits: (N, K).
        labels: (N,) class numbers in the order assumed.
        accuracy: on the training images.
    """
    least = max(0.5, twice_chance(logits.shape[1]))
    predicted = logits.argmax(1).numpy()
    best, outputs = best_order(predicted, labels.numpy())
    right = (predicted == labels.numpy())[len(labels) // 2 :]
    standard_error = right.std() / np.sqrt(len(right))
    if best > least and best - right.mean() > max(0.02, 4 * standard_error):
        return (
            f"{best:.0%} of the training images are right in another order of the "
            f"classes, {right.mean():.0%} in the order assumed; name it by --classes. "
            "Outputs in the order of the assumed classes: "
            f"{', '.join(map(str, outputs[:10]))}"
        )
    if accuracy <= least:
        return f"training accuracy {accuracy:.0%} is not above {least:.0%}; {_CAUSES}"
    return ""


def verdicts(
    facts: Sequence[dict[str, Any]], rule: GapRule, least_accuracy: float
) -> pd.DataFrame:
    """Test accuracy of each checkpoint, with an 80 % interval.

    It is the training accuracy less the predicted gap.

    Args:
        facts: of each checkpoint: its name and what ``facts_of`` gives.
        rule: that predicts gaps.
        least_accuracy: in training, of the networks that the rule was fitted to.

    Returns:
        ``_COLUMNS``, the best first.
    """
    table = pd.DataFrame(facts, columns=_COLUMNS).infer_objects()
    x = table[list(PREDICTORS)]
    training_accuracy = table["training_accuracy"]
    accuracy = training_accuracy - rule.predict(x)
    table["accuracy"] = accuracy.clip(0, 1)
    table["low"] = (accuracy - rule.half_width).clip(0, 1)
    table["high"] = (accuracy + rule.half_width).clip(0, 1)
    is_beyond = (x.lt(rule.lows) | x.gt(rule.highs)).any(axis=1)
    is_beyond |= training_accuracy.lt(least_accuracy) & accuracy.notna()
    table.loc[is_beyond, "note"] += "; beyond what the studies have"
    table["note"] = table["note"].str.removeprefix("; ")
    return table.sort_values("accuracy", ascending=False, ignore_index=True)


def answer(table: pd.DataFrame, margin: float) -> str:
    """Which checkpoint is expected to do best, or which are not told apart.

    Networks that are judged alike err alike: predictions are compared by errors of
    differences within a study.

    Args:
        table: of ``verdicts``.
        margin: 80 % quantile of errors of predicted differences; see ``calibration``.
    """
    judged = table.dropna(subset="accuracy")
    if judged.empty:
        return "No checkpoint is judged."
    best = judged.iloc[0]
    alike = judged[judged["accuracy"] >= best["accuracy"] - margin]["checkpoint"]
    accuracy = f"{best['accuracy']:.0%} ({best['low']:.0%} to {best['high']:.0%})"
    if len(alike) > 1:
        return f"Not told apart: {', '.join(alike)}; the first has {accuracy}."
    return f"{best['checkpoint']} is expected to do best: {accuracy}."

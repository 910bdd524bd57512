"""Predict the test accuracy of checkpoints from their training images."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from torch import Tensor, nn
from tqdm.auto import tqdm

from helpers.checkpoints import calibration, networks
from helpers.checkpoints.images import (
    NORMALISATIONS,
    SIDES,
    Pictures,
    Preparation,
    best_order,
    choose_preparation,
    logits_of,
)
from helpers.data.images import ImageSet
from helpers.data.sources import open_source
from helpers.measures.agreement import agreement
from helpers.measures.evidence import score_network
from helpers.scores.measuring import with_measures
from helpers.statistics.gap_rule import PREDICTORS, GapRule, predictors
from helpers.training.pool import choose_device

NOT_JUDGED = "not judged"
_MEASURES = ("training_accuracy", "accuracy_under_augmentation", "mixup_accuracy")
_CAUSES = (
    "likely causes: another order of the classes (--classes), another size "
    "(--image-size) or normalisation (--mean, --std), pictures that training cut, or "
    "another stem (--architecture)"
)
_ENDS = ["accuracy", "low", "high"]
_COLUMNS = (
    "checkpoint",
    "verdict",  # predicted, not judged, not read
    *_ENDS,  # on images like the training images; in [0, 1]
    "training_accuracy",
    *PREDICTORS,
    "agreement",  # with the other checkpoints on unlabelled images
    "prepared",  # size and normalisation
    "note",
)


class Inputs(BaseModel):
    """Checkpoints, images, and what a user says of them."""

    checkpoints: Path = Field(
        description="folder of .safetensors, .pt, .pth; or a file"
    )
    images: Path = Field(description="folder or .zip of training images, with classes")
    unlabelled: Path | None = Field(
        None, description="images without labels, to order networks"
    )
    architecture: str = Field(
        networks.AUTO,
        description="a name of torchvision or timm, or module:function; auto "
        "recognises torchvision's ResNets",
    )
    classes: Sequence[str] = Field(
        (), description="in the order of the outputs, or @FILE, one a line; else sorted"
    )
    images_per_class: float = Field(
        0, description="in training, where IMAGES holds only some of them"
    )
    image_size: int = Field(
        0,
        description="of the images in training, pixels; without it the usual one with "
        "the highest training accuracy",
    )
    mean: Sequence[float] = Field((), description="of the normalisation, RGB, 0 to 1")
    std: Sequence[float] = Field((), description="of the normalisation, RGB, 0 to 1")
    device: str = Field("auto", description="cpu, cuda or auto")


class Judged(NamedTuple):
    """The result for a folder of checkpoints."""

    verdicts: pd.DataFrame  # a row per checkpoint, the best first; ``_COLUMNS``
    sentences: list[str]  # the answer first


def judge(inputs: Inputs, reports: Path, work: Path) -> Judged:
    """Judge the checkpoints of a folder by their training images.

    Args:
        inputs: checkpoints and images.
        reports: folder of the reports of the studies that calibrate.
        work: folder in which a .zip is unpacked.

    Raises:
        OSError: if a folder or file does not exist.
        ValueError: if the images cannot be used.
    """
    if bool(inputs.mean) != bool(inputs.std):
        raise ValueError("mean and std belong together; give both or none")
    device = choose_device(inputs.device)
    sides = [inputs.image_size] if inputs.image_size else SIDES
    named = [(tuple(inputs.mean), tuple(inputs.std))] if inputs.mean else NORMALISATIONS
    files = networks.find(inputs.checkpoints)
    opened = partial(open_source, unpacked=work / "unpacked")
    pictures = Pictures.of_classes(opened(inputs.images), inputs.classes)
    others = inputs.unlabelled and Pictures.without_classes(opened(inputs.unlabelled))
    models = calibration.networks(reports)
    rows = []
    predicted: dict[str, NDArray[np.int64]] = {}  # classes of unlabelled images
    for name, path in tqdm(files.items(), desc="checkpoints", leave=False):
        row = {"checkpoint": name}
        rows.append(row)
        try:
            network = networks.load(path, inputs.architecture, len(pictures.classes))
            network = network.to(device)
            preparation = choose_preparation(network, pictures, sides, named, device)
            images = pictures.at(preparation.side)
            row |= facts_of(network, images, preparation, device)
        except ValueError as fault:
            reason = str(fault).partition("\n")[0]
            row |= {"verdict": "not read", "note": reason.removeprefix(f"{name} ")}
            continue
        if others:
            pixels = others.at(preparation.side).images
            logits = logits_of(network, pixels, preparation, device)
            predicted[name] = logits.argmax(1).numpy()
    class_images = inputs.images_per_class or pictures.class_images
    facts = pd.DataFrame(rows).assign(log_images=np.log(class_images))
    table = verdicts(facts, calibration.rule(models))
    if predicted:
        shares = pd.Series(agreement(np.array([*predicted.values()])), [*predicted])
        table["agreement"] = table["checkpoint"].map(shares)
    return Judged(table, _sentences(table, models, len(pictures.classes)))


def _sentences(table: pd.DataFrame, models: pd.DataFrame, classes: int) -> list[str]:
    """The answer, a remark on each checkpoint that has one, and what they rest on."""
    errors = calibration.errors_across(models)
    sentences = [answer(table, calibration.margin(models, errors))]
    noted = table[table["note"].ne("")]
    sentences += [f"{row.checkpoint}: {row.note}." for row in noted.itertuples()]
    ordered = table.dropna(subset="agreement").sort_values("agreement", ascending=False)
    if len(ordered):
        sentences.append(
            "By agreement with the others on unlabelled images: "
            f"{', '.join(ordered['checkpoint'])}. With fewer than five networks, or "
            "with the same mistakes in all, this order says little."
        )
    numbers = " or ".join(map(str, sorted(models["classes"].unique())))
    sentences.append(
        "Predicted from the accuracy lost on shifted and mixed training images and the "
        f"number of images of a class, by {len(models)} ResNets of {numbers} classes "
        f"({', '.join(models['study'].unique())}), which predict another study with a "
        f"mean error of {100 * np.abs(errors).mean():.1f} points; yours have {classes} "
        "classes."
    )
    return sentences


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
        training_accuracy, drop, drop_mixup, prepared, note (a remark), and where it
        cannot be judged the verdict, with the reason in the note.

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
    lost = predictors([accuracy], row, 1)[0]
    facts = dict(zip(PREDICTORS, lost, strict=True))
    facts |= {"training_accuracy": accuracy, "prepared": str(preparation), "note": ""}
    against = _why_not_judged(logits, images.labels, accuracy)
    if not against and not np.isfinite(lost).all():
        against = "what it loses is undefined; give two images or more of each class"
    if against:
        return facts | {"verdict": NOT_JUDGED, "note": against}
    if (logits >= 0).all() and (logits.sum(1) - 1).abs().max() < 1e-3:
        facts["note"] = "it ends in a softmax, which changes no accuracy"
    return facts


def _why_not_judged(logits: Tensor, labels: Tensor, accuracy: float) -> str:
    """Why the training accuracy does not allow a prediction; "" if it does.

    Args:
        logits: (N, K).
        labels: (N,) class numbers in the order assumed.
        accuracy: on the training images.
    """
    predicted = logits.argmax(1).numpy()
    best, outputs = best_order(predicted, labels.numpy())
    right = (predicted == labels.numpy())[len(labels) // 2 :]
    standard_error = right.std() / np.sqrt(len(right))
    if best - right.mean() > max(0.02, 4 * standard_error):
        return (
            f"{best:.0%} of the training images are right in another order of the "
            f"classes, {right.mean():.0%} in the order assumed; name it by --classes. "
            "Outputs in the order of the assumed classes: "
            f"{', '.join(map(str, outputs[:10]))}"
        )
    classes = logits.shape[1]
    if accuracy < min(2 / classes, (1 + 1 / classes) / 2):
        return f"training accuracy {accuracy:.0%} is below twice chance; {_CAUSES}"
    return ""


def verdicts(facts: pd.DataFrame, rule: GapRule) -> pd.DataFrame:
    """Test accuracy of each checkpoint, with an 80 % interval.

    It is the training accuracy less the predicted gap.

    Args:
        facts: a row per checkpoint: checkpoint, training_accuracy, ``PREDICTORS``,
            verdict (empty for one to be judged) and note.
        rule: that predicts gaps.

    Returns:
        The facts with verdict, accuracy, low and high, the best first.
    """
    table = facts.reindex(columns=_COLUMNS).astype({"verdict": object})
    x = table[list(PREDICTORS)].astype(float)
    expected = table["training_accuracy"].astype(float) - rule.predict(x)
    is_judged = table["verdict"].isna()
    for name, shift in zip(_ENDS, (0, -rule.half_width, rule.half_width), strict=True):
        table[name] = (expected + shift).clip(0, 1).where(is_judged)
    table.loc[is_judged, "verdict"] = "predicted"
    is_outside = ((x < np.array(rule.lows)) | (x > np.array(rule.highs))).any(axis=1)
    is_bare = table["note"].eq("")
    table.loc[is_outside & is_bare, "note"] = "beyond what the studies have"
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


def printed(table: pd.DataFrame) -> str:
    """The table of ``verdicts`` in percent, for a terminal.

    Args:
        table: of ``verdicts``.
    """
    shown = table.drop(columns=[*PREDICTORS, "note"]).dropna(axis=1, how="all")
    return shown.to_string(index=False, na_rep="", float_format="{:.1%}".format)

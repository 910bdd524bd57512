"""Judge the checkpoints of a folder by the images that they were trained on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import nn
from torchvision.transforms import v2

from helpers.checkpoints import builders, calibration, judging, load, orders, report
from helpers.checkpoints.images import (
    OwnImages,
    Preparation,
    images_of_report,
    labelled_images,
    training_images,
)
from helpers.checkpoints.load import Reading
from helpers.files import tensor_checksum
from helpers.networks.faults import is_of_machine
from helpers.networks.weights import header_of
from helpers.scoring.models import Model
from helpers.scoring.store import Store

# Columns of the table of facts, which has a row per checkpoint.
FACTS = [
    "checkpoint",  # path of the file in its folder
    "model_id",
    "weights",  # checksum of the network's tensors, with their names
    "network",  # in words, see ``builders.describe``
    "residual",  # whether it is a ResNet
    "outputs",  # number of outputs
    "noted_accuracy",  # that its file states, in [0, 1]; NaN if it states none
    "known_accuracy",  # measured on test images, if it is a study's; else NaN
    "notes",  # on how it was read
    "class_images",  # number of training images per class
    "doubt",  # why it is not judged though it could be read; else ""
    "fault",  # why it could not be read; else ""
]


@dataclass(frozen=True)
class Inputs:
    """The checkpoints to judge, and the images by which they are judged."""

    checkpoints: Path  # a folder, or one file
    images: Path  # a folder or .zip of training images
    labelled: Path | None = None  # a folder or .zip of held-out images with labels
    class_names: Sequence[str] = ()  # in the order of the outputs; empty: sorted
    most: int = 0  # training images to score on, at most; 0: as many as the study
    # Number of training images per class, if ``images`` holds only some of them;
    # 0: as many as there are.
    class_images: int = 0


@dataclass(frozen=True)
class Place:
    """Folders, the study that calibrates, and the device."""

    reports: Path  # folder of the reports of studies
    work: Path  # folder in which computed values are stored
    study: str = ""  # that calibrates; "": ``calibration.DEFAULT_STUDIES``
    device: str = "cpu"
    jobs: int = 0  # number of checkpoints scored at once; 0: one per core


class Judged(NamedTuple):
    """The result for a folder of checkpoints."""

    verdicts: pd.DataFrame  # see ``judging.verdicts``
    scores: pd.DataFrame  # a row per measure and model, with reasons of NaN
    sentences: list[str]  # the answer first


class Examined(NamedTuple):
    """A checkpoint that was read and tried on one image."""

    path: Path
    reading: Reading
    facts: dict[str, Any]  # see ``FACTS``
    model: Model | None  # None if it cannot be read


def of_files(
    inputs: Inputs,
    place: Place,
    reading: Reading | None = None,
    preparation: Preparation | None = None,
) -> Judged:
    """Judge the checkpoints of a folder by their training images.

    If they are published checkpoints of a study, only the images that the study
    trained them on are used.

    Args:
        inputs: checkpoints and images.
        place: folders, study and device.
        reading: options for reading checkpoints; None for the defaults.
        preparation: how training prepared images; None for the defaults.

    Raises:
        ValueError: if images, an option or the study cannot be used.
        FileNotFoundError: if a folder or the study does not exist.
    """
    reading = reading or Reading()
    preparation = preparation or Preparation()
    normalise = load.normaliser(preparation.mean, preparation.std)
    if reading.architecture != load.AUTO:
        builders.builder_of(reading.architecture)  # an unknown one is an error here
    files = load.find(inputs.checkpoints)
    stated_ids = [_stated_id(path) for path in files.values()]  # "" without one
    study = calibration.read(place.reports, place.study or calibration.DEFAULT_STUDIES)
    # A model of a study has the id <run_id>@<snapshot>; it is not to judge itself.
    run_ids = [stated_id.partition("@")[0] for stated_id in stated_ids]
    study = study.without(run_ids)
    most_images = inputs.most or study.images
    images = _images(inputs, place, preparation, stated_ids, most_images)
    is_named = bool(inputs.class_names)
    examined = [
        _examined(name, path, reading, normalise, images, is_named)
        for name, path in files.items()
    ]
    images_of_process = partial(OwnImages, *images)  # called by each process
    store = Store(place.work, images_of_process, device=place.device, jobs=place.jobs)
    examined = _with_checked_orders(examined, store, images, is_named)
    facts = pd.DataFrame([item.facts for item in examined], columns=FACTS)
    facts["known_accuracy"] = [
        images.test_accuracy(stated_id) for stated_id in stated_ids
    ]
    facts["class_images"] = [
        inputs.class_images or images.of_a_class(stated_id) for stated_id in stated_ids
    ]
    return _judged(facts, [item.model for item in examined], store, images, study)


def _judged(
    facts: pd.DataFrame,
    models: Sequence[Model | None],
    store: Store,
    images: OwnImages,
    study: calibration.Calibration,
) -> Judged:
    """Score the checkpoints that can be judged, and write tables and sentences."""
    is_usable = facts["fault"].eq("") & facts["doubt"].eq("")
    usable = [model for model, keep in zip(models, is_usable, strict=True) if keep]
    labelled = len(images.labelled or ())
    scored = None
    right = None  # whether each model classifies each labelled image correctly
    if usable:
        class_images = facts.set_index("model_id")["class_images"].to_dict()
        scored = judging.scored(store, usable, images, study, class_images)
    if usable and images.labelled:
        right = judging.labelled_right(store, usable, images)
    verdicts = judging.verdicts(facts, scored, right)
    sentences = [
        report.answer(verdicts),
        *report.remarks(verdicts, facts, labelled),
        f"Read: {images.description}.",
        *filter(None, [images.remark]),
    ]
    if not scored:
        return Judged(verdicts, pd.DataFrame(), sentences)
    side = images.train.images.shape[-1]
    rows = len(images.scored_on.rows)
    sentences += [
        report.rests_on(scored, study),
        *report.differs(facts, len(images.classes), side, rows, study),
    ]
    return Judged(verdicts, scored.scores, sentences)


def _stated_id(path: Path) -> str:
    """Id of a study's model that a file states in its header; "" without one."""
    return header_of(path).get("model_id", "") if path.is_file() else ""


def _images(
    inputs: Inputs,
    place: Place,
    preparation: Preparation,
    model_ids: Sequence[str],
    most: int,
) -> OwnImages:
    """Images of the study whose checkpoints these are, or else of the user's folder.

    Args:
        inputs: checkpoints and images.
        place: folders.
        preparation: how training prepared images.
        model_ids: that the checkpoints state, "" for one that states none.
        most: training images to score on, at most; 0 takes all.
    """
    unpacked = place.work / "unpacked"
    images = images_of_report(
        inputs.images, model_ids, place.reports, most, place.work / "cache"
    )
    if images is None:
        images = training_images(
            inputs.images, unpacked, inputs.class_names, preparation, most
        )
    if inputs.labelled:
        labelled = labelled_images(inputs.labelled, images, inputs.images, unpacked)
        images = images._replace(labelled=labelled)
    return images


def _examined(
    name: str,
    path: Path,
    reading: Reading,
    normalise: v2.Compose,
    images: OwnImages,
    is_named: bool,
) -> Examined:
    """Read a checkpoint, try it on one image, and collect its facts.

    Args:
        name: path of the file in its folder.
        path: path of the file.
        reading: options for reading it.
        normalise: from uint8 images to the network's input.
        images: that it was trained on.
        is_named: whether the user names the classes in the order of the outputs, which
            then holds for all files.
    """
    facts = dict.fromkeys(FACTS, "") | {
        "checkpoint": name,
        "residual": False,
        "outputs": 0,
        "noted_accuracy": math.nan,
    }
    try:
        loaded = load.load_checkpoint(path, reading)
        _check_outputs(loaded, images.classes)
        order, note = _noted_order(loaded.names, images.classes, is_named)
        reading = replace(reading, order=order)
        model = load.as_model(path, name, reading, normalise)
        with torch.inference_mode():
            loaded.network(normalise(images.train.images[:1]))
    except Exception as fault:  # a user's network may fail in any way
        if is_of_machine(fault):
            raise
        lines = str(fault).splitlines() or [type(fault).__name__]
        # The name of the file stands beside the reason, so it is not repeated.
        reason = lines[0].removeprefix(f"{path.name} was refused: ")
        facts["fault"] = reason.replace(path.name, "it", 1)
        return Examined(path, reading, facts, None)
    words, residual = builders.describe(loaded.network)
    facts |= {
        "model_id": model.model_id,
        "network": words,
        "residual": residual,
        "outputs": loaded.classes,
        "weights": _weights_checksum(loaded.network),
        "noted_accuracy": loaded.accuracy,
        "notes": "; ".join((*loaded.notes, *note)),
    }
    return Examined(path, reading, facts, model)


def _weights_checksum(network: nn.Module) -> str:
    """Checksum of a network's tensors and their names, whatever file they come from."""
    state = network.state_dict().items()
    return tensor_checksum(
        {name: value for name, value in state if isinstance(value, torch.Tensor)}, {}
    )


def _check_outputs(loaded: load.Loaded, classes: Sequence[str]) -> None:
    """Refuse a network whose number of outputs is not that of the classes."""
    if loaded.classes == len(classes):
        return
    names_in_file = ""
    if loaded.names:
        names_in_file = f"; its file names {', '.join(loaded.names[:8])}"
        names_in_file += ", ..." if len(loaded.names) > 8 else ""
    raise ValueError(
        f"the network has {loaded.classes} outputs and the images {len(classes)} "
        f"classes{names_in_file}; name the class of each output, in order, by "
        "--classes (class_names in the notebook)"
    )


def _noted_order(
    names: Sequence[str], classes: Sequence[str], is_named: bool
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Find the order of outputs that a file states, if it is not that assumed.

    Args:
        names: of the classes, as the file states them; empty if it does not.
        classes: in the order assumed.
        is_named: whether the user names the classes, which overrides the file.

    Returns:
        The output of each class, empty for the order assumed; and a note, empty for
        none.
    """
    if not names or tuple(names) == tuple(classes):
        return (), ()
    if is_named or set(names) != set(classes):
        first_names = ", ".join(names[:3])
        return (), (f"its file names other classes ({first_names}, ...); not used",)
    order = tuple(names.index(name) for name in classes)
    words = orders.in_words(classes, order)
    return order, (f"its outputs are taken in the order that its file notes: {words}",)


def _with_checked_orders(
    examined: Sequence[Examined], store: Store, images: OwnImages, is_named: bool
) -> list[Examined]:
    """Check the order of the outputs of all checkpoints, see ``orders``."""
    models = [item.model for item in examined if item.model]
    if not models:
        return list(examined)
    predicted = judging.predicted_classes(store, models, images)
    labels = images.train.labels[list(images.scored_on.rows)].numpy()
    better = {
        model_id: orders.better_order(outputs, labels, images.classes)
        for model_id, outputs in predicted.items()
    }
    return [
        _with_better_order(
            item, better.get(item.facts["model_id"]), images.classes, is_named
        )
        for item in examined
    ]


def _with_better_order(
    item: Examined,
    better: orders.Order | None,
    classes: Sequence[str],
    is_named: bool,
) -> Examined:
    """Use another order of outputs for a checkpoint, or doubt it.

    timm's order is used if neither the file nor the user states one. Any other order
    that fits better is a doubt, and the checkpoint is not judged.

    Args:
        item: the checkpoint.
        better: an order that fits its predictions better; None if there is none.
        classes: in the order assumed.
        is_named: whether the user names the classes in the order of the outputs.
    """
    if better is None:
        return item
    # ``better`` permutes the order assumed, which may itself permute the file's.
    assumed = item.reading.order or range(len(classes))
    order_in_file = [assumed[output] for output in better.order]
    words = orders.in_words(classes, order_in_file)
    right = f"{better.right:.0%} of these images are right, {better.assumed:.0%}"
    if better.usual and not is_named and not item.reading.order:
        note = (
            f"its outputs are taken in timm's order ({words}): {right} in sorted order"
        )
        return _reordered(item, better.order, note)
    doubt = (
        "its predictions fit the labels in another order of the classes "
        f"({words}): {right} in the order assumed; give the order by --classes"
    )
    return item._replace(facts=item.facts | {"doubt": doubt})


def _reordered(item: Examined, order: tuple[int, ...], note: str) -> Examined:
    reading = replace(item.reading, order=order)
    model = load.as_model(
        item.path, item.facts["checkpoint"], reading, item.model.normalise
    )
    notes = "; ".join(filter(None, [item.facts["notes"], note]))
    facts = item.facts | {"model_id": model.model_id, "notes": notes}
    return Examined(item.path, reading, facts, model)

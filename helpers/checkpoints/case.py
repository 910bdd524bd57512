"""A folder of checkpoints and a folder of images, judged."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
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
from helpers.networks.faults import is_of_machine
from helpers.networks.weights import header_of
from helpers.scoring.models import Model
from helpers.scoring.store import Store

FACTS = [
    "checkpoint",
    "model_id",
    "bytes",
    "network",
    "residual",  # whether it is a ResNet
    "outputs",
    "noted_accuracy",  # by its file, in [0, 1]; NaN where it notes none
    "known_accuracy",  # on the study's test images, of a study's checkpoint
    "notes",  # on how it was read
    "class_images",  # of a class, that it was fitted to
    "doubt",  # why it is not judged though it could be read; "" where it is
    "fault",  # why it could not be read; "" where it could
]


@dataclass(frozen=True)
class Inputs:
    """Whose checkpoints are judged, by which images."""

    checkpoints: Path  # a folder, or one file
    images: Path  # a folder or .zip of training images
    labelled: Path | None = None  # a folder or .zip of held-out images with labels
    class_names: Sequence[str] = ()  # in the order of the outputs; none: sorted
    most: int = 0  # training images to take; 0: as many as the study
    # Of a class, that networks were trained on, where ``images`` holds only some of
    # them; 0: as many as there are.
    class_images: int = 0


@dataclass(frozen=True)
class Place:
    """Where reports are read and scores kept, and what computes them."""

    reports: Path  # of studies
    work: Path  # what is computed is kept here
    study: str = ""  # that calibrates; "": ``calibration.DEFAULT_STUDIES``
    device: str = "cpu"
    jobs: int = 0  # checkpoints scored side by side; 0: one per core


class Judged(NamedTuple):
    """Checkpoints of one's own with all that is known of them."""

    verdicts: pd.DataFrame  # see ``judging.verdicts``
    scores: pd.DataFrame  # measure by measure, with reasons
    sentences: list[str]  # the answer first


class Examined(NamedTuple):
    """A checkpoint as far as one image shows it; no model where it cannot be read."""

    path: Path
    reading: Reading
    facts: dict[str, Any]  # see ``FACTS``
    model: Model | None


def of_files(
    inputs: Inputs,
    place: Place,
    reading: Reading | None = None,
    preparation: Preparation | None = None,
) -> Judged:
    """Judge the checkpoints of a folder by their training images.

    Checkpoints of a report find their study's images among those given.

    Args:
        inputs: checkpoints and images.
        place: where values are kept.
        reading: of the checkpoints; None reads them by themselves.
        preparation: of the images; None is the usual one.

    Raises:
        ValueError: where images, an option or the study cannot be used.
        FileNotFoundError: where a folder or the study does not exist.
    """
    reading = reading or Reading()
    preparation = preparation or Preparation()
    normalise = load.normaliser(preparation.mean, preparation.std)
    if reading.architecture != load.AUTO:
        builders.builder_of(reading.architecture)
    files = load.find(inputs.checkpoints)
    headers = {name: _header(path) for name, path in files.items()}
    model_ids = [header.get("model_id", "") for header in headers.values()]
    study = calibration.read(place.reports, place.study or calibration.DEFAULT_STUDIES)
    study = study.without([name.partition("@")[0] for name in model_ids])
    images = _images(inputs, place, preparation, model_ids, study.images)
    is_named = bool(inputs.class_names)
    examined = [
        _examined(name, path, reading, normalise, images, is_named)
        for name, path in files.items()
    ]
    store = Store(
        place.work, partial(OwnImages, *images), device=place.device, jobs=place.jobs
    )
    examined = _in_right_order(examined, store, images, is_named)
    facts = pd.DataFrame([item.facts for item in examined], columns=FACTS)
    facts["known_accuracy"] = [images.test_accuracy(name) for name in model_ids]
    facts["class_images"] = [
        inputs.class_images or images.of_a_class(name) for name in model_ids
    ]
    return _judged(facts, [item.model for item in examined], store, images, study)


def _judged(
    facts: pd.DataFrame,
    models: Sequence[Model | None],
    store: Store,
    images: OwnImages,
    study: calibration.Calibration,
) -> Judged:
    """Score what can be judged, and put all into tables and sentences."""
    is_good = facts["fault"].eq("") & facts["doubt"].eq("")
    good = [model for model, usable in zip(models, is_good, strict=True) if usable]
    labelled = len(images.labelled or ())
    scored = right = None
    if good:
        class_images = facts.set_index("model_id")["class_images"].to_dict()
        scored = judging.scored(store, good, images, study, class_images)
    if good and images.labelled:
        right = judging.labelled_right(store, good, images)
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


def _header(path: Path) -> Mapping[str, str]:
    """Texts in a file's header; none where it has none, or is not a regular file."""
    return header_of(path) if path.is_file() else {}


def _images(
    inputs: Inputs,
    place: Place,
    preparation: Preparation,
    model_ids: Sequence[str],
    most: int,
) -> OwnImages:
    """Training images, of the study whose checkpoints these are or of a folder."""
    most = inputs.most or most
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
    """What a checkpoint is, and the model that is scored.

    ``is_named``: the reader names the classes, whose order counts for all files.
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
    except Exception as fault:  # a network of one's own may fail in any way
        if is_of_machine(fault):
            raise
        line = (str(fault).splitlines() or [type(fault).__name__])[0]
        line = line.removeprefix(f"{path.name} was refused: ")
        facts["fault"] = line.replace(path.name, "it", 1)
        return Examined(path, reading, facts, None)
    words, residual = builders.describe(loaded.network)
    facts |= dict(model.facts) | {
        "model_id": model.model_id,
        "network": words,
        "residual": residual,
        "outputs": loaded.classes,
        "noted_accuracy": loaded.accuracy,
        "notes": "; ".join((*loaded.notes, *note)),
    }
    return Examined(path, reading, facts, model)


def _check_outputs(loaded: load.Loaded, classes: Sequence[str]) -> None:
    """Raise ValueError where outputs and classes are not equally many."""
    if loaded.classes == len(classes):
        return
    named = ""
    if loaded.names:
        named = f"; its file names {', '.join(loaded.names[:8])}"
        named += ", ..." if len(loaded.names) > 8 else ""
    raise ValueError(
        f"the network has {loaded.classes} outputs and the images {len(classes)} "
        f"classes{named}; name the class of each output, in order, by --classes "
        "(class_names in the notebook)"
    )


def _noted_order(
    names: Sequence[str], classes: Sequence[str], is_named: bool
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The order of outputs that a file notes, and a note where it is another."""
    if not names or tuple(names) == tuple(classes):
        return (), ()
    if is_named or set(names) != set(classes):
        shown = ", ".join(names[:3])
        return (), (f"its file names other classes ({shown}, ...); not used",)
    order = tuple(names.index(name) for name in classes)
    words = orders.in_words(classes, order)
    return order, (f"its outputs are taken in the order that its file notes: {words}",)


def _in_right_order(
    examined: Sequence[Examined], store: Store, images: OwnImages, is_named: bool
) -> list[Examined]:
    """Checkpoints after a check of the order of their outputs, see ``orders``."""
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
        _checked(item, better.get(item.facts["model_id"]), images.classes, is_named)
        for item in examined
    ]


def _checked(
    item: Examined,
    better: orders.Order | None,
    classes: Sequence[str],
    is_named: bool,
) -> Examined:
    """A checkpoint by the order of outputs that fits its predictions.

    timm's order is taken where neither the file nor the reader names one; any other
    is a doubt, for which a checkpoint is not judged.
    """
    if better is None:
        return item
    noted = item.reading.order or range(len(classes))
    whole = [noted[output] for output in better.order]
    words = orders.in_words(classes, whole)
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

"""A folder of checkpoints and a folder of images, judged."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from helpers.networks.faults import is_of_machine
from helpers.networks.weights import header_of
from helpers.scoring.models import Model
from helpers.scoring.store import Store
from helpers.select import calibration, judging, load, report
from helpers.select.images import (
    Own,
    images_of_report,
    labelled_images,
    training_images,
)

IMAGENET = (
    (0.485, 0.456, 0.406),
    (0.229, 0.224, 0.225),
)  # mean and standard deviation of the normalisation
FACTS = [
    "checkpoint",
    "model_id",
    "bytes",
    "network",
    "residual",
    "outputs",
    "notes",
    "fault",
]


class Judged(NamedTuple):
    """Checkpoints of one's own with all that is said of them."""

    verdicts: pd.DataFrame  # see ``judging.verdicts``
    scores: pd.DataFrame  # measure by measure, with reasons
    sentences: list[str]  # the answer first


def of_files(
    checkpoints: Path,
    images: Path,
    *,
    reports: Path,
    work: Path,
    study: str = "",
    labelled: Path | None = None,
    architecture: str = load.AUTO,
    class_names: Sequence[str] = (),
    size: int = 0,
    most: int = 0,
    normalisation: tuple[Sequence[float], Sequence[float]] = IMAGENET,
    device: str = "cpu",
    jobs: int = 0,
) -> Judged:
    """Judge the checkpoints of a folder by their training images; checkpoints of a report find the study's own images.

    Arguments are as of the command line; ``work`` keeps what is computed. ValueError or FileNotFoundError where one cannot be used.
    """
    files, unpacked, normalise = (
        load.find(checkpoints),
        work / "unpacked",
        load.normaliser(*normalisation),
    )
    if architecture != load.AUTO:
        load.builder_of(architecture)
    by = calibration.read(reports, study or calibration.DEFAULT_STUDY)
    names = [header.get("model_id", "") for header in map(header_of, files.values())]
    by = by.without([name.partition("@")[0] for name in names])
    own = images_of_report(images, names, reports, most or by.images, work / "cache")
    own = own or training_images(
        images, unpacked, class_names, size=size, most=most or by.images
    )
    if labelled:
        own = own._replace(labelled=labelled_images(labelled, own, images, unpacked))
    models = [
        load.model(path, name, architecture, normalise) for name, path in files.items()
    ]
    facts = pd.DataFrame(
        [
            _facts(*pair, architecture, own)
            for pair in zip(models, files.values(), strict=True)
        ],
        columns=FACTS,
    )
    readable = facts["fault"].eq("")
    good = [model for model, is_good in zip(models, readable, strict=True) if is_good]
    store = Store(work, partial(Own, *own), device=device, jobs=jobs)
    found = judging.scored(store, good, own, by) if good else None
    right = judging.labelled_right(store, good, own) if own.labelled and good else None
    verdicts = judging.verdicts(facts, found, right, len(own.labelled or ()))
    sentences = [
        report.answer(verdicts),
        *report.remarks(verdicts, facts, len(own.labelled or ())),
        f"Read: {own.told}.",
    ]
    if not found:
        return Judged(verdicts, pd.DataFrame(), sentences)
    other = report.differs(
        facts, len(own.classes), own.train.images.shape[-1], len(own.scored_on.rows), by
    )
    return Judged(
        verdicts, found.scores, [*sentences, report.rests_on(found, by), *other]
    )


def _facts(model: Model, path: Path, architecture: str, own: Own) -> dict[str, object]:
    """What a checkpoint is, as ``FACTS``; fault is why it cannot be used, "" where it can."""
    facts = dict(model.facts) | {
        "model_id": model.model_id,
        "network": "",
        "residual": False,
        "outputs": 0,
        "notes": "",
        "fault": "",
    }
    try:
        loaded = load.load_checkpoint(path, architecture)
        if loaded.classes != len(own.classes):
            told = f"the network has {loaded.classes} outputs and the images {len(own.classes)} classes"
            raise ValueError(
                f"{told}; name the class of each output, in order, by --classes (class_names in the notebook)"
            )
        with torch.inference_mode():
            loaded.network(model.normalise(own.train.images[:1]))
    except Exception as fault:  # a network of one's own may fail on images in any way
        if is_of_machine(fault):
            raise
        line = (str(fault).splitlines() or [type(fault).__name__])[0]
        return facts | {
            "fault": line.removeprefix(f"{path.name} was refused: ").replace(
                path.name, "it", 1
            )
        }
    words, residual = load.described(loaded.network)
    return facts | {
        "network": words,
        "residual": residual,
        "outputs": loaded.classes,
        "notes": "; ".join(loaded.notes),
    }

"""A folder of checkpoints and a folder of images, judged."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch

from helpers.files import inside
from helpers.scoring.models import Model
from helpers.scoring.store import Store
from helpers.select import calibration, judging, load, report
from helpers.select.calibration import Calibration
from helpers.select.described import described
from helpers.select.images import Own, held_out_images, images_of_report, training_images

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # mean and standard deviation of the normalisation
FACTS = ["checkpoint", "model_id", "network", "residual", "outputs", "notes", "fault"]


class Judged(NamedTuple):
    """Checkpoints of one's own with all that is said of them."""

    facts: pd.DataFrame  # FACTS
    verdicts: pd.DataFrame  # see ``judging.verdicts``
    scores: pd.DataFrame  # measure by measure, with reasons
    target: pd.DataFrame | None  # see ``judging.on_target``; None without a target
    images: str  # which training images, in words
    labelled: int  # labelled images
    target_images: int
    basis: str  # what the predictions rest on, in words
    differs: str  # in what the case is another than the study's, in words


def of_files(
    checkpoints: Path,
    images: Path,
    *,
    reports: Path,
    work: Path,
    study: str = "",
    labelled: Path | None = None,
    target: Path | None = None,
    architecture: str = load.AUTO,
    class_names: Sequence[str] = (),
    size: int = 0,
    most: int = 0,
    normalisation: tuple[Sequence[float], Sequence[float]] = IMAGENET,
    device: str = "cpu",
    jobs: int = 0,
) -> Judged:
    """Judge the checkpoints of a folder by their training images; checkpoints of a report find the study's own images.

    Args:
        checkpoints: see ``load.find``.
        images: training images, see ``images.training_images``.
        reports: folder of the studies' reports.
        work: folder for what is computed; a second call computes nothing.
        study: that calibrates; "" takes the default one.
        labelled: held-out images with labels.
        target: images without labels.
        architecture: see ``load.load_checkpoint``.
        class_names: folders in the order of the outputs; empty takes those of the checkpoints' headers, or the sorted ones.
        size: of the images, pixels; 0 takes that of the files.
        most: training images; 0 takes as many as the study.
        normalisation: mean and standard deviation of training, RGB in [0, 1].
        device: where is computed.
        jobs: see ``pool.side_by_side``.

    Raises:
        ValueError, FileNotFoundError: a folder, the images or the study cannot be used.
    """
    files = load.find(checkpoints)
    if architecture != load.AUTO:
        load.builder_of(architecture)
    by = calibration.read(reports, study or calibration.DEFAULT_STUDY)
    own = _images(files, images, reports, work, class_names, size, most or by.images)
    held = {"labelled": labelled, "target": target}
    kept = {name: held_out_images(path, own, images, name, labelled=name == "labelled") for name, path in held.items() if path}
    own = own._replace(**kept)
    models = [load.model(path, name, architecture, load.normaliser(*normalisation)) for name, path in files.items()]
    facts = pd.DataFrame(
        [_facts(model, path, architecture, own) for model, path in zip(models, files.values(), strict=True)], columns=FACTS
    )
    good = [model for model, fault in zip(models, facts["fault"], strict=True) if not fault]
    store = Store(work, partial(_itself, own), device=device, jobs=jobs)
    found = judging.scored(store, good, own, by) if good else None
    right = _right(store, good, own) if own.labelled is not None else None
    orders = judging.right_orders(reports)[0] if len(facts) and not facts.loc[facts["fault"].eq(""), "residual"].all() else np.nan
    verdicts = judging.verdicts(facts, found, right=right, orders=orders)
    on_target = _on_target(store, good, own, reports, by, found, facts) if own.target is not None and found else None
    side, classes = own.train.images.shape[-1], len(own.classes)
    return Judged(
        facts=facts,
        verdicts=verdicts,
        scores=found.scores if found else pd.DataFrame(),
        target=on_target,
        images=own.told,
        labelled=0 if own.labelled is None else len(own.labelled),
        target_images=0 if own.target is None else len(own.target),
        basis=report.rests_on(found, by) if found else "",
        differs=report.differs(facts, classes, side, by) if found else "",
    )


def _itself(own: Own) -> Own:
    return own


def _images(files: dict[str, Path], images: Path, reports: Path, work: Path, class_names: Sequence[str], size: int, most: int) -> Own:
    """The training images: those of the study whose published checkpoints these are, where the images are there, or all that are given."""
    headers = [load.header(path) for path in files.values()]
    if len(data := {header.get("data", "") for header in headers}) == 1 and (study := calibration.of_data(reports, data.pop())):
        rows = pd.read_csv(inside(reports, study) / "tables/checkpoints.csv").fillna({"weights": ""})
        rows = rows[rows["model_id"].isin([header["model_id"] for header in headers])]
        parameters = calibration.read(reports, study).parameters
        if len(rows) and (own := images_of_report(images, study, parameters, rows, most, work / "cache")):
            return own
        raise ValueError(
            f"these checkpoints were trained on images of the study {study} ({parameters.get('data_path', '')}), and {images} holds others; "
            "give the file or folder that the study read"
        )
    return training_images(images, class_names, size=size, most=most)


def _facts(model: Model, path: Path, architecture: str, own: Own) -> dict[str, object]:
    """What a checkpoint is, as ``FACTS``; fault is why it cannot be used, "" where it can."""
    facts = {"checkpoint": model.facts["checkpoint"], "model_id": model.model_id, "network": "", "residual": False, "outputs": 0}
    try:
        loaded = load.load_checkpoint(path, architecture)
        if loaded.classes != len(own.classes):
            raise ValueError(
                f"the network has {loaded.classes} outputs and the images {len(own.classes)} classes; name the class folder of each output, "
                "in order, by --classes (class_names in the notebook)"
            )
        with torch.inference_mode():
            loaded.network(model.normalise(own.train.images[:1]))
    except MemoryError:
        raise
    except Exception as fault:  # a network of one's own may fail on these images in any way
        line = (str(fault).splitlines() or [type(fault).__name__])[0].removeprefix(f"{path.name} ")
        return facts | {"notes": "", "fault": load.shown(line)}
    words, residual = described(loaded.network)
    return facts | {"network": words, "residual": residual, "outputs": loaded.classes, "notes": "; ".join(loaded.notes), "fault": ""}


def _right(store: Store, models: Sequence[Model], own: Own) -> dict[str, np.ndarray]:
    """Which labelled images each model is right on."""
    labels = own.labelled.labels.numpy()
    return {name: said.argmax(1) == labels for name, said in judging.logits(store, models, own.labelled, "labelled").items()}


def _on_target(
    store: Store, models: Sequence[Model], own: Own, reports: Path, by: Calibration, found: judging.Scored, facts: pd.DataFrame
) -> pd.DataFrame:
    said = judging.logits(store, models, own.target, "target")
    return facts[["checkpoint", "model_id"]].merge(judging.on_target(reports, by, found, said), on="model_id")


def sentences(found: Judged) -> list[str]:
    """All that is said of a case, the answer first."""
    said = [report.answer(found.verdicts), *report.counted(found.verdicts, found.labelled)]
    said += [report.target_answer(found.target, found.target_images)] if found.target is not None else []
    said += report.not_judged(found.verdicts)
    said += [f"{name}: {note}." for name, note in found.facts[["checkpoint", "notes"]].to_numpy() if note]
    return said + [text for text in (f"Read: {found.images}.", found.basis, found.differs) if text]

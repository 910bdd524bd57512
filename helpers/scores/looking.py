"""Localization on test images, and accuracy of images with other backgrounds.

Boxes of test images are used here only; training never uses them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import localize
from helpers.data.images import ImageSet, StudyData, box_masks
from helpers.files import json_digest
from helpers.measures.passes import Classifier, Pass, forward_pass
from helpers.scores.models import Model
from helpers.scores.scoring_set import classes_in_turn
from helpers.scores.store import Store

PART = "looking"
LOCALIZATION = ("area_matched_iou", "energy_in_box", "pointing_game")
TRAINING = "train_"  # begins the name of a value over training images
PUBLISHED = "iou"  # Du et al. 2024, at threshold 0.1 and not corrected for chance
# Columns over training images; without ``TRAINING``, names of measures of notebook 03.
MEASURES = tuple(TRAINING + name for name in (PUBLISHED, *LOCALIZATION))
_VERSION = 2  # raised when the meaning of stored values changes


def boxed_test_images(data: StudyData, count: int) -> NDArray[np.int64]:
    """Rows of test images that have a box, one of each class in turn.

    Args:
        data: the images of the study.
        count: largest number of images; 0 takes all.

    Returns:
        (n,) rows of ``data.test``.
    """
    boxed = data.test.boxes.flatten(1).any(1).numpy().nonzero()[0]
    labels = data.test.labels.numpy()[boxed]
    return boxed[classes_in_turn(labels)][: count or None]


def look_at_images(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    training: Sequence[int],
    count: int,
) -> pd.DataFrame:
    """Localization of each network on images, and accuracy with other backgrounds.

    Args:
        store: of the study.
        models: networks of notebook 02.
        data: the images of the study, at least two of them test images with a box.
        training: rows of training images that all networks were fitted to.
        count: number of test images; 0 takes all that have a box.

    Returns:
        A row per model, means over the images: model_id; over the test images
        ``LOCALIZATION`` minus the same with boxes of other images, and as fractions
        accuracy and accuracy_swapped, with the background of another test image; over
        the training images ``MEASURES``.

    Raises:
        ValueError: where fewer than two test images have a box.
    """
    rows = boxed_test_images(data, count)
    if len(rows) < 2:
        raise ValueError(
            f"{len(rows)} test images have a box, and two are needed to tell where a "
            "network looks; take a source with boxes of test images"
        )
    settings = {"data": data.fingerprint, "version": _VERSION}
    settings["test"] = json_digest(rows.tolist())
    settings["training"] = json_digest(list(training))
    compute = partial(_look, rows=rows, training=training, device=store.device)
    return store.each(models, {PART: settings}, compute).table(PART)


def _look(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    rows: NDArray[np.int64],
    training: Sequence[int],
    device: str,
) -> dict[str, dict[str, Any]]:
    classifier = Classifier(model.load(device), model.normalise, device, 64)
    images = data.test.subset(rows)
    test_pass = _forward(classifier, images)
    record = scores_of_maps(test_pass.maps, images)
    del record[PUBLISHED]  # not corrected for chance; of training images alone
    training_images = data.train.subset(training)
    maps = _forward(classifier, training_images).maps
    for name, values in scores_of_maps(maps, training_images).items():
        record[TRAINING + name] = values
    swapped = replace(images, images=with_other_backgrounds(images))
    passes = {"accuracy": test_pass, "accuracy_swapped": _forward(classifier, swapped)}
    for name, of_images in passes.items():
        record[name] = (of_images.logits.argmax(1) == images.labels).numpy()
    means = {name: np.nanmean(values) for name, values in record.items()}
    return {PART: record | {"scores": means}}


@torch.inference_mode()
def _forward(classifier: Classifier, images: ImageSet) -> Pass:
    """Logits, and maps of the predicted class in closed form, of a ResNet."""
    example = classifier.input(images.images[:1])
    return forward_pass(classifier, images, example, "grad_cam")


def scores_of_maps(maps: Tensor, images: ImageSet) -> dict[str, NDArray[np.float32]]:
    """Overlap of maps with the boxes of their images, by several measures.

    Args:
        maps: (N, h, w) in [0, 1], normalised.
        images: the N images, with boxes.

    Returns:
        (N,) each: ``PUBLISHED``, and ``LOCALIZATION`` minus the same with the boxes of
        other images.
    """
    table = localize.chance_scores(maps, images.boxes, images.images.shape[-1])
    names = (PUBLISHED, *LOCALIZATION)
    return {name: table[name].to_numpy(np.float32) for name in names}


def with_other_backgrounds(images: ImageSet) -> Tensor:
    """Images whose pixels outside of the boxes are those of another image.

    As the mixed backgrounds of Xiao et al. 2021. Which other image is fixed by
    ``localize.derangements``.

    Args:
        images: N images with a box each, N at least 2.

    Returns:
        (N, 3, S, S) uint8.
    """
    masks = box_masks(images.boxes, images.images.shape[-1]).unsqueeze(1)
    others = localize.derangements(len(images), 1)[:, 0]
    return torch.where(masks, images.images, images.images[others])

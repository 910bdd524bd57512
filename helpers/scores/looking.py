"""Localization on test images, and accuracy of images with other backgrounds.

Boxes of test images are used here only; training never uses them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.cams import localize
from helpers.data.images import ImageSet, StudyData, box_masks
from helpers.files import json_digest
from helpers.measures import evidence, registry
from helpers.scores.classification import logits_of
from helpers.scores.models import Model
from helpers.scores.scoring_set import classes_in_turn
from helpers.scores.store import Store

PART = "looking"
# Measures of ``localization``.
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

    Raises:
        ValueError: where fewer than two test images have a box.
    """
    boxed = data.test.boxes.flatten(1).any(1).numpy().nonzero()[0]
    if len(boxed) < 2:
        raise ValueError(
            f"{len(boxed)} test images have a box, and two are needed to tell where a "
            "network looks; take a source with boxes of test images"
        )
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
        ``LOCALIZATION`` minus the same with boxes of other images, and as fraction
        accuracy_swapped, with the background of another test image; over the training
        images ``MEASURES``.
    """
    rows = boxed_test_images(data, count)
    settings = {
        "data": data.fingerprint,
        "version": _VERSION,
        "test": json_digest(rows.tolist()),
        "training": json_digest(list(training)),
    }

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """Means and values of single images, of one network."""
        device = store.device
        network = model.load(device)
        inputs = {"network": network, "normalise": model.normalise, "device": device}
        images = data.test.subset(rows)
        swapped = with_other_backgrounds(images)
        logits = logits_of(network, swapped, device, model.normalise)
        is_right = (logits.argmax(1) == images.labels).numpy()
        record: dict[str, Any] = {"accuracy_swapped": is_right}
        means = {"accuracy_swapped": is_right.mean()}
        looks = {
            "": (images, LOCALIZATION),
            TRAINING: (data.train.subset(training), (PUBLISHED, *LOCALIZATION)),
        }
        for start, (looked_at, names) in looks.items():
            scores, of_images = evidence.score(
                [registry.MEASURES[name] for name in names],
                inputs | {"images": looked_at},
                evidence.MeasureSettings(),
            )
            means |= zip(start + scores["measure"], scores["value"], strict=True)
            record |= {start + name: of_images[name][name] for name in names}
        return {PART: record | {"scores": means}}

    return store.each(models, {PART: settings}, compute).table(PART)


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

"""Overlaps of all models at many thresholds: pixel by pixel, and as one model and threshold at a time."""

import numpy as np
import pytest
import torch

from helpers.cams import localize
from helpers.cams.maps import from_integers
from helpers.data.boxes import box_masks

SIZE = 16
BOXES = np.array(
    [
        [[0, 0, 6, 9], [9, 9, 12, 16]],
        [[3, 4, 16, 16], [0, 0, 0, 0]],
        [[0, 0, 16, 16], [0, 0, 0, 0]],
        [[0, 0, 0, 0], [0, 0, 0, 0]],
        [[5, 5, 6, 6], [0, 0, 0, 0]],
    ]
)
MASKS = box_masks(torch.from_numpy(BOXES), SIZE)
THRESHOLDS = (0.5, 1.0, 0.2)  # 0.2 is 51 / 255, which corners of maps reach exactly


@pytest.fixture(scope="module")
def maps():
    random = np.random.default_rng(0)
    maps = random.integers(0, 255, (3, 5, 4, 4), dtype=np.uint8)
    maps[0, 0], maps[1, 1] = 0, 255  # an empty map, and one that was not finite
    maps[2, :, 0, 0] = 51
    maps[2, :, 3, 3] = 255
    return maps


def test_all_models_are_as_one_at_a_time(maps):
    table = localize.at_thresholds(maps, BOXES, SIZE, THRESHOLDS)
    rows = table.set_index(["model", "threshold"])
    for model, threshold in rows.index:
        scores = localize.chance_scores(
            from_integers(maps[model]), torch.from_numpy(BOXES), SIZE, threshold
        )
        columns = ["iou", "iou_above_shuffled"]
        expected = scores[columns].mean()
        row = rows.loc[(model, threshold), columns]
        np.testing.assert_allclose(row, expected, rtol=1e-6, atol=1e-9)


def test_a_threshold_outside_of_0_to_1_and_images_without_boxes_are_refused(maps):
    for threshold in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\], and .* is not"):
            localize.iou_at(from_integers(maps[0]), MASKS, [0.1, threshold])
    with pytest.raises(ValueError, match="these images have no boxes"):
        localize.at_thresholds(maps, np.zeros((5, 1, 4), int), SIZE, [0.1])

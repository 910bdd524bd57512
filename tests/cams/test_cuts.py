"""Overlaps of all models at many thresholds: pixel by pixel, and as one model and threshold at a time."""

import doctest

import numpy as np
import pytest
import torch

from helpers.cams import chance, cuts, overlap
from helpers.cams import maps as maps_of_networks
from helpers.cams.maps import from_integers
from helpers.measures import localization

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
THRESHOLDS = (0.5, 1.0, 0.2)  # 0.2 is 51 / 255, which corners of maps reach exactly


@pytest.fixture(scope="module")
def maps():
    random = np.random.default_rng(0)
    maps = random.integers(0, 255, (3, 5, 4, 4), dtype=np.uint8)
    maps[0, 0], maps[1, 1] = 0, 255  # an empty map, and one that was not finite
    maps[2, :, 0, 0] = 51
    maps[2, :, 3, 3] = 255
    return maps


def test_overlaps_are_those_of_masks_that_are_counted_pixel_by_pixel(maps):
    overlaps = cuts.overlaps_at(maps, BOXES, SIZE, THRESHOLDS)
    annotated = np.zeros((5, SIZE, SIZE), dtype=bool)
    for image, boxes in enumerate(BOXES):
        for x0, y0, x1, y1 in boxes:
            annotated[image, y0:y1, x0:x1] = True
    partners = chance.derangements(5)
    for model, image, place in np.ndindex(3, 5, 3):
        at = (model, image, place)
        if (model, image) == (1, 1):
            assert np.isnan(overlaps.iou[at]) and np.isnan(overlaps.iou_b[at])
            continue
        values = overlap.upsample(from_integers(maps[model, image])[None], SIZE)
        mask = values[0].numpy() >= THRESHOLDS[place]
        shuffled = []
        for other in [image, *partners[image].tolist()]:
            common = (mask & annotated[other]).sum()
            union = (mask | annotated[other]).sum()
            shuffled.append(common / union if union else np.nan)
        assert overlaps.iou[at] == pytest.approx(shuffled[0], nan_ok=True)
        assert overlaps.iou_shuffled[at] == pytest.approx(np.nanmean(shuffled[1:]))
        rectangle = np.zeros_like(mask)
        if mask.any():
            rows, columns = np.nonzero(mask)
            rectangle[
                rows.min() : rows.max() + 1, columns.min() : columns.max() + 1
            ] = 1
        union = (rectangle | annotated[image]).sum()
        expected = (rectangle & annotated[image]).sum() / union if union else np.nan
        assert overlaps.iou_b[at] == pytest.approx(expected, nan_ok=True)


def test_overlaps_are_those_of_the_measures_of_one_model_at_one_threshold(maps):
    overlaps = cuts.overlaps_at(maps, BOXES, SIZE, THRESHOLDS, workers=2)
    boxes = torch.from_numpy(BOXES)
    for model, place in np.ndindex(3, 3):
        table = chance.chance_scores(
            from_integers(maps[model]), boxes, SIZE, THRESHOLDS[place]
        )
        for name in ("iou", "iou_shuffled", "iou_b"):
            np.testing.assert_allclose(
                getattr(overlaps, name)[model, :, place], table[name], rtol=1e-6
            )


def test_maps_of_16_bits_and_maps_that_were_never_rounded_are_cut_alike(maps):
    wide = maps.astype(np.uint16) * 257
    expected = cuts.overlaps_at(maps, BOXES, SIZE, THRESHOLDS)
    for same in (wide, from_integers(maps)):
        overlaps = cuts.overlaps_at(same, BOXES, SIZE, THRESHOLDS)
        np.testing.assert_array_equal(overlaps.iou, expected.iou)


def test_more_thresholds_than_a_byte_counts(maps):
    many = np.linspace(0.001, 1, 400)
    few = [0, 255, 256, 399]
    of_many = cuts.overlaps_at(maps[2:], BOXES, SIZE, many).iou[:, :, few]
    of_few = cuts.overlaps_at(maps[2:], BOXES, SIZE, many[few]).iou
    np.testing.assert_array_equal(of_many, of_few)
    assert np.nanmax(of_few[:, :3, 3]) < np.nanmin(of_few[:, :3, 0])


def test_a_threshold_outside_of_0_to_1_and_images_without_boxes_are_refused(maps):
    for threshold in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\], and .* is not"):
            cuts.overlaps_at(maps, BOXES, SIZE, [0.1, threshold])
    with pytest.raises(ValueError, match="these images have no boxes"):
        cuts.overlaps_at(maps, np.zeros((5, 1, 4), int), SIZE, [0.1])


@pytest.mark.parametrize("module", [cuts, maps_of_networks, localization])
def test_examples_in_docstrings_give_what_they_say(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0

"""Localization that knows chance: against whole enumerations, scikit-learn, and maps whose value is known."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import average_precision_score

from helpers.cams import chance, closed_form, overlap

SIZE = 16


def scored(raw, boxes, threshold=0.1, **options):
    maps = closed_form.normalise_maps(raw)
    table = chance.chance_scores(maps, closed_form.lowest_of(raw), boxes, SIZE, threshold, **options)
    pd.testing.assert_frame_equal(table[overlap.MASK_COLUMNS], overlap.image_scores(maps, boxes, SIZE, threshold))
    return table[chance.CHANCE_COLUMNS]


@pytest.fixture
def boxes():
    """Eleven images: nine with a box, one with two, and one (the last) with none."""
    rng = np.random.default_rng(5)
    corners = np.zeros((11, 2, 4), dtype=int)
    start = rng.integers(0, 9, (10, 2))
    corners[:10, 0] = np.hstack([start, start + rng.integers(2, 8, (10, 2))])
    corners[4, 1] = [12, 1, 16, 5]
    return torch.as_tensor(corners)


@pytest.fixture
def raw():
    """Maps of 4 x 4, positive everywhere in the first half and cut at 0 in the second."""
    drawn = torch.rand(11, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    drawn[6:] = (drawn[6:] - 0.4).relu()
    return drawn.float()


@pytest.mark.parametrize(("count", "columns"), [(1, 0), (2, 1), (4, 3), (9, 8), (50, 8)])
def test_no_image_lends_itself_its_box_none_lends_twice_and_all_lend_alike(count, columns):
    partners = chance.derangements(count)
    assert partners.shape == (count, columns)
    for image, row in enumerate(partners.tolist()):
        assert image not in row
        assert len(set(row)) == columns
    assert all(sorted(column) == list(range(count)) for column in partners.T.tolist())


def test_every_value_is_that_of_a_loop_over_pixels(raw, boxes):
    partners = chance.derangements(10)
    table = scored(raw, boxes, 0.3)
    masks, maps = overlap.box_masks(boxes, SIZE).numpy(), closed_form.normalise_maps(raw)
    enlarged, large = overlap.upsample(raw, SIZE).double().numpy(), overlap.upsample(maps, SIZE).numpy()
    for j in range(10):
        mask, own = large[j] >= np.float32(0.3), masks[j]
        ious = [(mask & masks[k]).sum() / (mask | masks[k]).sum() for k in partners[j].tolist()]
        y, x = (int((place + 0.5) * 4) for place in divmod(int(raw[j].argmax()), 4))
        row = table.iloc[j]
        assert row["iou_shuffled"] == pytest.approx(np.mean(ious), abs=1e-6)
        assert row["energy"] == pytest.approx(enlarged[j][own].sum() / enlarged[j].sum(), abs=1e-5)
        assert row["pointing"] == own[y, x]
        assert row["pointing_shuffled"] == pytest.approx(np.mean([masks[k][y, x] for k in partners[j].tolist()]))
        levels = (large[j] * 1000).astype(int)
        assert row["average_precision"] == pytest.approx(average_precision_score(own.ravel(), levels.ravel()), abs=1e-6)
        highest = max(level for level in range(1001) if (levels >= level).sum() >= own.sum())
        assert row["area_matched_iou"] == pytest.approx(((levels >= highest) & own).sum() / ((levels >= highest) | own).sum())
        assert (row["mask_area"], row["box_area"]) == pytest.approx((mask.mean(), own.mean()))
    assert table.iloc[10].drop(["mask_area", "box_area"]).isna().all()


def corrected(table):
    pointing = table["pointing"] - table["pointing_shuffled"]
    return table["energy"] - table["box_area"], pointing, table["average_precision"] - table["box_area"]


def test_a_constant_map_has_what_chance_has(boxes):
    table = scored(torch.full((10, 4, 4), 0.7), boxes[:10])
    energy, pointing, precision = corrected(table)
    assert energy.tolist() == pytest.approx([0] * 10, abs=1e-6)
    assert precision.tolist() == pytest.approx([0] * 10, abs=1e-6)
    assert pointing.mean() == pytest.approx(0, abs=1e-7)
    assert table["iou_shuffled"].tolist() == [0] * 10  # as its own IoU: the mask is empty
    assert scored(torch.zeros(10, 4, 4), boxes[:10])["energy"].tolist() == [0] * 10


def test_a_map_that_is_the_box_has_everything():
    corners = torch.tensor([[[2, 3, 9, 12]], [[0, 0, 16, 5]], [[7, 7, 8, 8]]])
    raw = overlap.box_masks(corners, SIZE).float()
    table = scored(raw, corners, 0.5)
    for name in ("energy", "pointing", "average_precision", "area_matched_iou"):
        assert table[name].tolist() == [1, 1, 1], name
    assert overlap.image_scores(closed_form.normalise_maps(raw), corners, SIZE, 0.5)["iou"].tolist() == [1, 1, 1]


def test_one_map_for_all_images_is_no_better_than_with_the_boxes_of_others_whichever_they_are(boxes):
    raw = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(0)).expand(4, 4, 4)
    own = overlap.image_scores(closed_form.normalise_maps(raw), boxes[:4], SIZE, 0.3)["iou"]
    assert own.std() > 0
    every = [order for order in itertools.permutations(range(4)) if all(i != place for i, place in enumerate(order))]
    assert len(every) == 9
    for order in every:
        table = scored(raw, boxes[:4], 0.3, partners=torch.tensor(order).unsqueeze(1))
        assert (own - table["iou_shuffled"]).mean() == pytest.approx(0, abs=1e-7)
        assert corrected(table)[1].mean() == pytest.approx(0, abs=1e-7)


@pytest.mark.parametrize("factor", [0.125, 1000.0])
def test_the_scale_of_a_map_changes_nothing(raw, boxes, factor):
    np.testing.assert_allclose(scored(raw, boxes), scored(factor * raw, boxes), atol=2e-5)


def test_where_several_places_are_largest_their_mean_counts():
    raw = torch.zeros(2, 4, 4)
    raw[:, 0, 0] = raw[:, 3, 3] = 1  # their mean place is the middle, where the first image has its box
    table = scored(raw, torch.tensor([[[6, 6, 10, 10]], [[0, 0, 5, 5]]]))
    assert table["pointing"].tolist() == [1, 0]
    assert table["pointing_shuffled"].tolist() == [0, 1]


def test_the_number_of_images_at_a_time_changes_nothing_and_a_single_image_has_no_other(raw, boxes):
    whole = scored(raw.repeat(10, 1, 1), boxes.repeat(10, 1, 1), partners=torch.arange(100).roll(1).unsqueeze(1))
    assert whole["energy"][:10].tolist() == whole["energy"][55:65].tolist()
    one = scored(raw[:1], boxes[:1])
    assert np.isnan(one["iou_shuffled"][0])
    assert np.isfinite(one["energy"][0])


def test_a_map_that_is_not_finite_is_undefined(raw, boxes):
    raw[2, 1, 1] = torch.nan
    table = scored(raw, boxes)
    assert table.loc[2].isna().all()
    assert np.isfinite(table.drop([2, 10])).all().all()


def test_the_floor_is_the_iou_of_the_whole_image(boxes):
    whole = torch.full((11, SIZE, SIZE), 0.5)
    expected = overlap.mask_iou(overlap.cam_masks(whole, SIZE, 0.1), overlap.box_masks(boxes, SIZE))
    assert chance.box_areas(boxes, SIZE).tolist() == pytest.approx(expected.tolist())

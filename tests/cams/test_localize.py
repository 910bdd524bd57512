"""Overlap of maps with boxes and its chance level: loops over pixels, whole enumerations, and scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score
from torch.nn.functional import interpolate

from helpers.cams import localize
from helpers.cams.localize import chance_scores, cut, iou_at
from helpers.cams.maps import from_integers, normalise_maps
from helpers.data.images import box_masks

SIZE = 16


@pytest.fixture
def boxes():
    """Ten images: nine with a box, one with two."""
    rng = np.random.default_rng(5)
    corners = np.zeros((10, 2, 4), dtype=int)
    start = rng.integers(0, 9, (10, 2))
    corners[:, 0] = np.hstack([start, start + rng.integers(2, 8, (10, 2))])
    corners[4, 1] = [12, 1, 16, 5]
    return torch.as_tensor(corners)


@pytest.fixture
def maps(boxes):
    """Maps of 4 x 4: four look at their boxes, more or less, two anywhere, and of the others some cells are cut at 0."""
    drawn = torch.rand(10, 4, 4, generator=torch.Generator().manual_seed(2))
    drawn[:4] = 0.3 * drawn[:4] + torch.nn.functional.adaptive_avg_pool2d(
        box_masks(boxes[:4], SIZE).float(), 4
    )
    drawn[6:] = (drawn[6:] - 0.4).relu()
    return normalise_maps(drawn)


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 0), (2, 1), (4, 3), (9, 8), (50, 8)]
)
def test_no_image_lends_itself_its_box_and_all_lend_alike(count, columns):
    partners, images = localize.derangements(count), torch.arange(count)[:, None]
    assert partners.shape == (count, columns)
    assert (partners != images).all()
    assert (partners.sort(1).values.diff(dim=1) > 0).all()  # none lends twice
    assert (partners.sort(0).values == images).all()


def by_pixels(values, mask, rectangle, place, inside, corners):
    """Scores of one enlarged map with the boxes of one image, by the definitions."""
    levels = np.minimum((values * np.float32(1000)).astype(int), 1000)
    matched = levels >= max(
        level for level in range(1001) if (levels >= level).sum() >= inside.sum()
    )
    found = []
    for x0, y0, x1, y1 in corners[corners.any(1)].tolist():
        box = np.zeros_like(inside)
        box[y0:y1, x0:x1] = True
        found.append((rectangle & box).sum() / (rectangle | box).sum())
    flat = inside.ravel(), levels.ravel()
    return {
        "iou": (mask & inside).sum() / (mask | inside).sum(),
        "iou_b": (rectangle & inside).sum() / (rectangle | inside).sum(),
        "energy_in_box": np.average(inside, weights=values.astype(float)),
        "pointing_game": float(inside[place]),
        "area_matched_iou": (matched & inside).sum() / (matched | inside).sum(),
        "pixel_average_precision": average_precision_score(*flat),
        "box_found": float(max(found) >= 0.5),
    }, max(found)


def test_every_score_is_that_of_a_loop_over_pixels(maps, boxes):
    table = localize.chance_scores(maps, boxes, SIZE, 0.6)
    partners = localize.derangements(10)
    inside = box_masks(boxes, SIZE).numpy()
    large = localize.upsample(maps, SIZE).numpy()
    for j in range(10):
        mask, rectangle = large[j] >= np.float32(0.6), np.zeros((SIZE, SIZE), bool)
        rows, columns = np.nonzero(mask)
        x0, x1, y0, y1 = columns.min(), columns.max() + 1, rows.min(), rows.max() + 1
        rectangle[y0:y1, x0:x1] = True
        cells = divmod(int(maps[j].argmax()), 4)
        place = tuple(int((cell + 0.5) * 4) for cell in cells)
        given = large[j], mask, rectangle, place
        own, best = by_pixels(*given, inside[j], boxes[j])
        expected = own | {
            "mask_area": mask.mean(),
            "common_area": (mask & inside[j]).mean(),
            "box_area": inside[j].mean(),
            "box_iou": best,
            **{"x0": x0, "x1": x1, "y0": y0, "y1": y1},
        }
        others = [by_pixels(*given, inside[k], boxes[k])[0] for k in partners[j]]
        for name in localize.CORRECTED:
            score = name.removesuffix("_above_shuffled")
            expected[name] = own[score] - np.mean([other[score] for other in others])
        assert set(expected) == set(table)
        assert table.loc[j].to_dict() == pytest.approx(expected, abs=1e-6)
    assert set(table["box_found"]) == {0, 1}  # some found, some missed


def test_one_map_for_all_images_has_nothing_above_chance(boxes, monkeypatch):
    random = torch.rand(1, 4, 4, generator=torch.Generator().manual_seed(0))
    orders = itertools.permutations(range(4))
    deranged = [order for order in orders if (np.array(order) != np.arange(4)).all()]
    for one in (random, localize.central_map()[None]):
        tables = []
        for order in deranged:
            lent = torch.tensor(order)[:, None]
            monkeypatch.setattr(localize, "derangements", lambda *_, lent=lent: lent)
            maps = one.expand(4, -1, -1)
            tables.append(localize.chance_scores(maps, boxes[:4], SIZE, 0.3))
            corrected = tables[-1][[*localize.CORRECTED]]
            assert corrected.mean().abs().max() < 1e-7
            assert corrected.drop(columns="pointing_game").std().gt(0.01).all()
        own = tables[0]["iou"]
        assert own.std() > 0.01
        # In expectation over all of them also for every image: its score less the mean
        # of the other three's.
        mean = sum(table["iou_above_shuffled"] for table in tables) / 9
        np.testing.assert_allclose(mean, own - (own.sum() - own) / 3, atol=1e-6)


@pytest.mark.parametrize("shape", [(3, 2, 5), (1, 7, 7), (2, 1, 1)])
def test_maps_are_enlarged_as_pytorch_does(shape):
    maps = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    as_pytorch = interpolate(maps[None], (24, 24), mode="bilinear")[0]
    assert torch.allclose(localize.upsample(maps, 24), as_pytorch, rtol=0, atol=3e-7)
    assert localize.upsample(maps.double(), 24).dtype == torch.double


def test_the_central_map_is_a_gaussian_of_two_of_eight_cells():
    raw = np.exp(-(np.arange(-3.5, 4) ** 2) / 8)
    raw = torch.from_numpy(np.outer(raw, raw)[None])
    expected = normalise_maps(raw)[0].float()
    torch.testing.assert_close(localize.central_map(), expected, rtol=0, atol=1e-7)


def test_where_several_places_are_largest_their_mean_counts():
    maps = torch.zeros(2, 4, 4)
    maps[:, [0, 3], [0, 3]] = 1
    # The mean place is the middle, where the first image has its box.
    boxes = torch.tensor([[[6, 6, 10, 10]], [[0, 0, 5, 5]]])
    table = localize.chance_scores(maps, boxes, SIZE)
    assert table["pointing_game"].tolist() == [1, -1]


def test_maps_and_boxes_of_every_or_no_pixel_by_hand():
    whole, nothing = torch.ones(3, 4, 4), torch.zeros(2, 4, 4)
    half = torch.tensor([[[0, 0, 2, 4]], [[0, 0, 4, 2]], [[0, 0, 4, 1]]])
    found = localize.chance_scores(whole, half, 4)
    assert found["box_iou"].tolist() == [0.5, 0.5, 0.25]
    assert found["box_found"].tolist() == [1, 1, 0]
    nothing[1, 1, 2] = 1
    boxes = torch.tensor([[[0, 0, 2, 2]], [[2, 1, 4, 4]]])
    found = localize.chance_scores(nothing, boxes, 4, 0.5)
    assert found["energy_in_box"].tolist() == [0, 1]
    assert found["mask_area"].tolist() == [0, 1 / 16]
    half[1], half[2] = 0, torch.tensor([0, 0, 4, 4])  # the second lends none
    found = localize.chance_scores(whole, half, 4)
    np.testing.assert_array_equal(found["box_area"], [0.5, np.nan, 1])
    above = found["iou_above_shuffled"]
    np.testing.assert_array_equal(above, [0.5 - 1, np.nan, 1 - 0.5])


THRESHOLDS = [0.5, 0.1, 0.01, 0.9, 0.1, 1 / 3, 0.3, 0.7, 1e-9, 0.999999999]


def random_cases(size, count=24, seed=0):
    """Maps and boxes with every corner case: no object, no map, NaN, infinity, a map and boxes up to the edge, overlapping boxes."""
    rng = np.random.default_rng(seed)
    maps = torch.as_tensor(rng.random((count, 7, 5)) ** 3).float()
    corners = np.sort(rng.integers(0, size + 1, (count, 3, 2, 2)), axis=2)
    corners = corners.reshape(count, 3, 4)
    corners[rng.random((count, 3)) < 0.3] = 0
    boxes = torch.as_tensor(corners).to(torch.int16)
    maps[0], maps[1, 2, 2], maps[2, 0, 0], maps[3] = 0, torch.nan, torch.inf, 0.5
    boxes[0], boxes[4], boxes[5] = 0, 0, torch.tensor([0, 0, size, size])
    boxes[6, 0] = torch.tensor([-3, -3, size + 5, 2])
    return maps, boxes


@pytest.mark.parametrize("size", [8, 33])
def test_every_threshold_has_the_iou_of_one_and_what_has_no_object_none(size):
    maps, boxes = random_cases(size)
    masks = box_masks(boxes, size)
    found = iou_at(maps, masks, THRESHOLDS)[..., 0].double().numpy()
    is_defined = masks.flatten(1).any(1) & maps.isfinite().flatten(1).all(1)
    assert 0 < is_defined.sum() < len(maps)
    for row, threshold in enumerate(THRESHOLDS):
        scores = chance_scores(maps, boxes, size, threshold)
        np.testing.assert_allclose(found[row], scores["iou"], rtol=1e-6)
        for name in ("iou", "iou_b", "box_iou", "box_found", *localize.CORRECTED):
            assert scores[name].notna().tolist() == is_defined.tolist()


def test_a_value_that_equals_a_threshold_reaches_it():
    maps = torch.tensor([[[0.25, 0.5], [0.75, 0.1]]])
    boxes = torch.tensor([[[0, 0, 1, 1]]])
    # Pixels at or above: 4, 3, 2, 1, 0; the box is the pixel with 0.25.
    iou = iou_at(maps, box_masks(boxes, 2), [0.1, 0.25, 0.5, 0.75, 0.76])
    assert iou[:, 0, 0].tolist() == pytest.approx([1 / 4, 1 / 3, 0, 0, 0])


@pytest.mark.parametrize("threshold", [0.05, 0.4, 0.999])
def test_by_the_quantile_masks_hold_the_same_share_of_highest_pixels(threshold):
    maps = torch.rand(3, 20, 20, generator=torch.Generator().manual_seed(0)) ** 4
    masks = cut(maps, threshold, "quantile")
    share = max(1, round((1 - threshold) * 400))
    for values, mask in zip(maps, masks, strict=True):
        highest = sorted(values.flatten().tolist())[-share:]
        assert sorted(values[mask].tolist()) == highest
    for scale in (0.5, 0.001):
        assert torch.equal(cut(scale * maps, threshold, "quantile"), masks)
    assert not torch.equal(cut(0.5 * maps, threshold), cut(maps, threshold))


def test_pixels_of_zero_are_in_no_mask_by_the_quantile_and_equal_pixels_all_are():
    maps = torch.tensor([[[0.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 1.0]]])
    masks = cut(maps, 0.25, "quantile").int().tolist()
    assert masks == [[[0, 0], [0, 1]], [[1, 1], [1, 1]]]
    assert not cut(torch.zeros(1, 2, 2), 0.25, "quantile").any()
    with pytest.raises(ValueError, match=r"'area'.* one of .'maximum', 'quantile'"):
        cut(maps, 0.25, "area")


def test_all_models_are_as_one_at_a_time():
    maps = np.random.default_rng(0).integers(0, 255, (3, 24, 4, 4), dtype=np.uint8)
    maps[0, 6], maps[1, 7] = 0, 255  # an empty map, and one that was not finite
    maps[2, :, 0, 0], maps[2, :, 3, 3] = 51, 255
    _, boxes = random_cases(SIZE)
    columns = ["iou", "iou_above_shuffled"]
    # 0.2 is 51 / 255, which corners of maps reach exactly.
    rows = localize.at_thresholds(maps, boxes, SIZE, (0.5, 1.0, 0.2))
    for model, threshold, *found in rows[["model", "threshold", *columns]].to_numpy():
        given = from_integers(maps[int(model)]), boxes, SIZE, threshold
        expected = localize.chance_scores(*given)[columns].mean()
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)


def test_a_threshold_outside_of_0_to_1_and_images_without_boxes_are_refused():
    for threshold in (0, 1.5, float("nan")):
        with pytest.raises(ValueError, match=r"must be in \(0, 1\], and .* is not"):
            iou_at(torch.ones(1, 4, 4), torch.ones(1, 8, 8), [0.1, threshold])
    with pytest.raises(ValueError, match="these images have no boxes"):
        localize.at_thresholds([], np.zeros((5, 1, 4), int), SIZE)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # No object: called nowhere, or where none is, which is an IoU of 0.
        ((0, 0, 0, 4), {"iou_object": np.nan, "frequency_weighted_iou": 1}),
        ((1, 0, 0, 4), {"iou_object": 0, "mean_pixel_accuracy": np.nan}),
        ((0, 0, 0, 0), {"pixel_accuracy": np.nan, "mean_iou": np.nan}),
    ],
)
def test_mask_metrics_without_an_object_or_pixels(counts, expected):
    found = localize.mask_metrics(*counts)
    assert found["pixels"] == counts[-1]
    found = {name: found[name] for name in expected}
    assert found == pytest.approx(expected, nan_ok=True)

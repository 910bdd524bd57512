import numpy as np
import pytest
import torch

from helpers.cams import localize
from helpers.data.images import load_study_data
from helpers.scores import looking
from tests.conftest import TINY_SCENES


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


def test_a_swapped_background_is_the_whole_other_image_but_for_the_box(data):
    images = data.test.subset(range(4))
    swapped = looking.with_other_backgrounds(images)
    others = localize.derangements(4, 1)[:, 0].tolist()
    assert sorted(others) == [0, 1, 2, 3]
    for row, other in enumerate(others):
        expected = images.images[other].clone()
        for x0, y0, x1, y1 in images.boxes[row].tolist():
            expected[:, y0:y1, x0:x1] = images.images[row, :, y0:y1, x0:x1]
        assert torch.equal(swapped[row], expected)


def test_a_map_of_the_box_has_the_published_overlap_of_one_and_more_than_chance(data):
    images = data.test.subset(range(6))
    size = images.images.shape[-1]
    maps = looking.box_masks(images.boxes, size).float()
    scores = looking.scores_of_maps(maps, images)
    assert scores["iou"].tolist() == [1.0] * 6
    table = localize.chance_scores(maps, images.boxes, size)
    expected = table["area_matched_iou"]
    np.testing.assert_allclose(scores["area_matched_iou"], expected, rtol=1e-6)
    assert (scores["area_matched_iou"] > 0).all()


def test_test_images_with_boxes_are_taken_class_after_class(data):
    rows = looking.boxed_test_images(data, 6)
    labels = data.test.labels[rows].tolist()
    classes = len(data.classes)
    assert sorted(labels[:classes]) == list(range(classes))
    everything = looking.boxed_test_images(data, 0)
    assert len(everything) == data.test.boxes.flatten(1).any(1).sum()

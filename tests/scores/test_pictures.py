from dataclasses import replace

import numpy as np

from helpers.data.images import load_study_data
from helpers.scores.models import Model
from helpers.scores.pictures import maps_of_networks, pictured, small_pictures
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Store
from tests.conftest import TINY_SCENES

NETWORKS = [Model(name, lambda device: None) for name in ("a@stop", "b@stop", "other")]
PARTS = {"localization": {}}
MAPS = np.arange(3 * 16, dtype=np.uint8).reshape(3, 4, 4)
SCORED_ON = ScoringSet((3, 1, 30), "3-x", 36)


def store_with(tmp_path, counts):
    store = Store(tmp_path / "study", dict, jobs=1)
    for network, count in zip(NETWORKS, counts, strict=False):
        record = {"correct": np.array([1.0, 0, 1])}
        if count:
            record["maps"] = MAPS[:count]
        store.write(network, "localization", {}, record)
    return store


def test_networks_have_the_maps_of_images_that_all_have(tmp_path):
    records = store_with(tmp_path, (3, 2, 0)).records(NETWORKS, PARTS)
    found = maps_of_networks(records)
    assert found.model_ids == ["a@stop", "b@stop"]
    np.testing.assert_array_equal(found.maps, [MAPS[:2]] * 2)
    np.testing.assert_array_equal(found.right, [[True, False]] * 2)
    without = store_with(tmp_path / "without", (0,)).records(NETWORKS, PARTS)
    assert maps_of_networks(without) is None


def test_small_pictures_are_kept_where_pixels_are_not_here(tmp_path):
    data = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "cache")
    there = replace(data.train, images=data.train.images.to("meta"))
    without_pixels = Store(tmp_path / "study", lambda: replace(data, train=there))
    assert small_pictures(without_pixels, SCORED_ON) == []
    jpegs = small_pictures(Store(tmp_path / "study", lambda: data), SCORED_ON)
    assert len(jpegs) == 3
    assert small_pictures(without_pixels, SCORED_ON) == jpegs
    images = SCORED_ON.images_of(data)
    pictures = pictured(jpegs, replace(images, images=images.images.to("meta")))
    assert pictures.images.shape == images.images.shape
    difference = pictures.images.float() - images.images.float()
    assert difference.abs().mean() < 20  # of 255: JPEG loses little
    np.testing.assert_array_equal(pictures.boxes, images.boxes)
    np.testing.assert_array_equal(pictures.labels, images.labels)

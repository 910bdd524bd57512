from dataclasses import replace

import numpy as np

from helpers.data.images import load_study_data
from helpers.scores import published_maps
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Store
from tests.conftest import TINY_SCENES

NETWORKS = [Model(name, lambda device: None) for name in ("a@stop", "b@stop", "other")]
PARTS = {"localization": {}}


def published(tmp_path, with_maps=True):
    data = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "cache")
    scored_on = ScoringSet((3, 1, 30), "3-x", 36)
    store = Store(tmp_path / "study/records", lambda: data, jobs=1)
    maps = np.arange(3 * 16, dtype=np.uint8).reshape(3, 4, 4)
    for number, network in enumerate(NETWORKS):
        record = {"correct": np.array([1.0, 0, 1])}
        if with_maps:
            record["maps"] = maps + number
        store.write(network, "localization", {}, record)
    records = store.records(NETWORKS[:2], PARTS)
    there = tmp_path / "study"
    content = published_maps.maps_of_models(records, data, scored_on, there)
    published_maps.publish(tmp_path / "report", content)
    return data, scored_on, maps


def test_published_maps_are_read_as_they_were_kept_with_the_boxes_of_the_scored_images(
    tmp_path,
):
    data, scored_on, maps = published(tmp_path)
    found = published_maps.read_maps(tmp_path / "report")
    assert found["model_ids"].tolist() == ["a@stop", "b@stop"]
    np.testing.assert_array_equal(found["maps"], [maps, maps + 1])
    np.testing.assert_array_equal(found["right"], [[True, False, True]] * 2)
    images = scored_on.images_of(data)
    np.testing.assert_array_equal(found["boxes"], images.boxes)
    np.testing.assert_array_equal(found["labels"], images.labels)
    assert found["image_size"] == 16
    assert found["class_names"].tolist() == list(data.classes["class_name"])
    assert len(found["thumbnails"]) == 3 and all(
        picture.startswith(b"\xff\xd8") for picture in found["thumbnails"]
    )


def test_pictures_are_the_images_with_their_boxes_at_their_size(tmp_path):
    data, scored_on, *_ = published(tmp_path)
    pictures = published_maps.pictures(published_maps.read_maps(tmp_path / "report"))
    images = scored_on.images_of(data)
    difference = pictures.images.float() - images.images.float()
    assert pictures.images.shape == images.images.shape
    assert difference.abs().mean() < 20  # of 255: JPEG loses little
    np.testing.assert_array_equal(pictures.boxes, images.boxes)
    np.testing.assert_array_equal(pictures.labels, images.labels)


def test_small_pictures_are_those_of_the_report_where_pixels_are_not_here(tmp_path):
    data, scored_on, *_ = published(tmp_path)
    before = published_maps.read_maps(tmp_path / "report")["thumbnails"].tolist()
    there = replace(data.train, images=data.train.images.to("meta"))
    store = Store(tmp_path / "study/records", lambda: data)
    given = (store.records(NETWORKS[:1], PARTS), replace(data, train=there), scored_on)
    for report, expected in (("report", before), ("study", [])):
        again = published_maps.maps_of_models(*given, tmp_path / report)
        assert again["thumbnails"].tolist() == expected
    assert len(before) == 3


def test_a_network_whose_maps_are_gone_is_left_out(tmp_path):
    published(tmp_path)
    (tmp_path / "study/records/arrays/b@stop.npz").unlink()
    found = published_maps.read_maps(tmp_path / "report")
    assert found["model_ids"].tolist() == ["a@stop"]


def test_images_without_maps_publish_nothing(tmp_path):
    published(tmp_path, with_maps=False)
    assert published_maps.read_maps(tmp_path / "report") is None


def test_where_a_record_has_fewer_maps_those_images_of_all_networks_are_taken(tmp_path):
    data = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "cache")
    store = Store(tmp_path / "study/records", lambda: data, jobs=1)
    maps = np.arange(3 * 16, dtype=np.uint8).reshape(3, 4, 4)
    for network, count in zip(NETWORKS, (3, 2), strict=False):
        record = {"correct": np.array([1.0, 0, 1]), "maps": maps[:count]}
        store.write(network, "localization", {}, record)
    records = store.records(NETWORKS[:2], PARTS)
    scored_on = ScoringSet((3, 1, 30), "3-x", 36)
    found = published_maps.maps_of_models(records, data, scored_on, tmp_path / "study")
    np.testing.assert_array_equal(found["maps"], [maps[:2]] * 2)
    np.testing.assert_array_equal(found["right"], [[True, False]] * 2)
    assert len(found["boxes"]) == len(found["thumbnails"]) == 2

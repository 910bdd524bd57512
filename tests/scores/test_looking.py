from dataclasses import replace

import pytest
import torch

from helpers.cams import localize
from helpers.data.images import load_study_data
from helpers.measures.evidence import score_network
from helpers.networks import resnet
from helpers.scores import looking
from helpers.scores.models import Model
from helpers.scores.store import Store
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


def test_a_network_is_looked_at_as_the_measures_see_it(data, tmp_path):
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=1)
    model = Model("a", lambda device: network.eval())
    store = Store(tmp_path, lambda: data, jobs=1)
    table = looking.look_at_images(store, [model], data, range(12), 8).iloc[0]
    images = data.test.subset(looking.boxed_test_images(data, 8))
    swapped = replace(images, images=looking.with_other_backgrounds(images))
    splits = {"": images, "train_": data.train.subset(range(12))}
    for start, of_split in splits.items():
        scores = score_network(network, of_split).set_index("measure")["value"]
        for name in looking.LOCALIZATION:
            assert table[start + name] == pytest.approx(scores[name])
    right = network(resnet.normalise_images(swapped.images)).argmax(1) == images.labels
    assert table["accuracy_swapped"] == pytest.approx(right.double().mean().item())
    assert {*looking.MEASURES} <= {*table.index}


def test_test_images_with_boxes_are_taken_class_after_class(data):
    boxes = data.test.boxes.clone()
    boxes[:4] = boxes[6:10] = 0
    data = replace(data, test=replace(data.test, boxes=boxes))
    labels = data.test.labels[looking.boxed_test_images(data, 6)].tolist()
    assert sorted(labels[:3]) == sorted(labels[3:]) == [0, 1, 2]
    assert len(looking.boxed_test_images(data, 0)) == len(boxes) - 8

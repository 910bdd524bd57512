import re

import numpy as np
import pandas as pd
import pytest
import sklearn.metrics
import torch
from PIL import Image

from helpers import localization, pseudo_boxes, saliency
from helpers.datasets import ImageSet


@pytest.fixture
def images():
    """Five noisy images with a box each; the last has none."""
    rng = np.random.default_rng(0)
    pixels = torch.from_numpy(rng.integers(0, 256, (5, 3, 16, 16), dtype=np.uint8))
    boxes = torch.tensor([[[2, 2, 10, 10]], [[0, 0, 16, 16]], [[4, 0, 8, 16]], [[1, 1, 3, 3]], [[0, 0, 0, 0]]], dtype=torch.int16)
    return ImageSet(pixels, torch.zeros(5, dtype=torch.int64), boxes, tuple(f"a/{number}.jpg" for number in range(5)))


def test_the_provider_that_needs_nothing_is_that_of_saliency(images):
    masks = pseudo_boxes.make_masks("spectral_residual", images)
    assert torch.equal(masks, saliency.spectral_residual_masks(images.images))
    assert masks.any()


def test_masks_come_from_a_folder_in_the_order_of_the_images(images, tmp_path):
    expected = torch.from_numpy(np.random.default_rng(1).random((5, 16, 16)) > 0.5)
    (tmp_path / "a").mkdir()
    for number, mask in enumerate(expected):
        Image.fromarray(mask.numpy().astype(np.uint8) * 255).save(tmp_path / f"a/{number}.png")
    assert torch.equal(pseudo_boxes.make_masks("folder", images, path=str(tmp_path)), expected)


def test_masks_come_from_a_network_of_the_user(images, tmp_path, monkeypatch):
    asked = []

    def build(architecture, path, classes):
        asked.append((architecture, path, classes))
        return torch.nn.Conv2d(3, 1, 1)

    monkeypatch.setattr(saliency, "segmentation_network", build)
    masks = pseudo_boxes.make_masks("network", images, path="w.pt", architecture="fcn_resnet50", classes=1)
    assert asked == [("fcn_resnet50", "w.pt", 1)]
    assert masks.shape == (5, 16, 16)
    assert masks.dtype == torch.bool


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("magic", "saliency provider 'magic' is unknown; choose one of spectral_residual, folder, network"),
        ("folder", "saliency provider 'folder' needs a path: the folder that holds one mask for each image"),
        ("network", "saliency provider 'network' needs a path: the file of the network's weights"),
    ],
)
def test_a_provider_that_cannot_work_is_refused(provider, message, images):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        pseudo_boxes.make_masks(provider, images)


def test_quality_counts_pixels_of_images_whose_mask_is_not_empty(images):
    masks = torch.from_numpy(np.random.default_rng(2).random((5, 16, 16)) > 0.5)
    masks[1] = False
    quality = pseudo_boxes.mask_quality(masks, images, batch_size=2)
    kept = [0, 2, 3, 4]
    true = localization.box_masks(images.boxes, 16)[kept].flatten().numpy()
    called = masks[kept].flatten().numpy()
    assert quality["pixel_accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(true, called))
    assert quality["mean_pixel_accuracy"] == pytest.approx(sklearn.metrics.balanced_accuracy_score(true, called))
    assert quality["mean_iou"] == pytest.approx(sklearn.metrics.jaccard_score(true, called, average="macro"))
    assert quality["frequency_weighted_iou"] == pytest.approx(sklearn.metrics.jaccard_score(true, called, average="weighted"))
    assert (quality["images"], quality["dropped"]) == (5, 1)
    nothing = pseudo_boxes.mask_quality(torch.zeros(5, 16, 16, dtype=torch.bool), images)
    assert np.isnan(nothing["mean_iou"])
    assert nothing["dropped"] == 5


def test_each_image_is_compared_with_its_boxes(images):
    masks = localization.box_masks(images.boxes, 16)
    masks[2] = False
    masks[1, 8:] = False
    table = pseudo_boxes.image_quality(masks, images, batch_size=2)
    np.testing.assert_allclose(table["iou"], [1, 0.5, 0, 1, np.nan])
    assert table["empty"].tolist() == [False, False, True, False, True]
    assert table["share"].tolist() == [0.25, 0.5, 0, 4 / 256, 0]
    assert tuple(table["name"]) == images.names


def test_examples_run_from_the_best_to_the_worst_evenly_by_rank():
    values = np.random.default_rng(0).permutation(101) / 100
    chosen = pseudo_boxes.from_best_to_worst(pd.DataFrame({"iou": [np.nan, *values]}))
    assert [values[place - 1] for place in chosen] == [1, 0.75, 0.5, 0.25, 0]
    few = pd.DataFrame({"iou": [0.2, np.nan, 0.9]})
    assert pseudo_boxes.from_best_to_worst(few) == [2, 0]
    assert pseudo_boxes.from_best_to_worst(few.iloc[:0]) == []

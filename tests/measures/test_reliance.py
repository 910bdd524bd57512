"""Does a network need the object: networks of which it is known what they look at, image by image."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from helpers.cams.localize import derangements
from helpers.data.images import ImageSet, box_masks
from helpers.measures import reliance
from helpers.measures.evidence import MeasureSettings, score
from helpers.measures.passes import Classifier
from helpers.measures.registry import measures_of_families


class Reader(nn.Module):
    """Class 1 where some pixels are red, of the colours as they are; remembers what it was shown."""

    def __init__(self, *places):
        super().__init__()
        self.places, self.seen = places, []

    def forward(self, images):
        self.seen.append(images)
        red = torch.zeros(len(images))
        for y, x in self.places:
            red += images[:, 0, y, x] > 127
        return torch.stack([0.5 + 0 * red, red], 1)


PLACES = ((1, 1), (6, 6))  # of the object: in the upper left, and in the lower right


@pytest.fixture
def images():
    """Twelve dark images of 8 x 8: the object of every other one is upper left, those of class 1 have a red pixel in it and in a corner."""
    labels = torch.arange(12) // 2 % 2
    dark = np.random.default_rng(0).integers(0, 60, (12, 3, 8, 8), dtype=np.uint8)
    pixels = torch.from_numpy(dark)
    boxes = torch.zeros(12, 2, 4, dtype=torch.int16)
    boxes[::2, 0] = torch.tensor([0, 0, 4, 4])
    boxes[1::2, 1] = torch.tensor([5, 5, 8, 8])
    for image, label in enumerate(labels.tolist()):
        pixels[image, 0, *PLACES[image % 2]] = pixels[image, 0, 0, 7] = 255 * label
    return ImageSet(pixels, labels, boxes, tuple("abcdefghijkl"))


def hits(network, images, batch_size=5):
    classifier = Classifier(network, torch.Tensor.float, "cpu", batch_size)
    return reliance.greyed_hits(classifier, images, images.labels)


def scored(network, images):
    given = {"fused_network": network, "normalise": torch.Tensor.float, "device": "cpu"}
    given |= {"images": images, "logits": network(images.images.float())}
    table, _ = score(measures_of_families(["reliance"]), given, MeasureSettings())
    return table.set_index("measure")


def test_a_network_that_reads_a_pixel_of_the_object_loses_its_class(images):
    found, partners = hits(Reader(*PLACES), images), derangements(12, 1)[:, 0].numpy()
    red = images.labels.numpy() == 1
    elsewhere = partners % 2 != np.arange(12) % 2  # is the other in the other corner?
    assert 0 < elsewhere[red].sum() < 6
    assert found["box"].tolist() == (~red).tolist()
    assert found["control"].tolist() == (~red | elsewhere).tolist()
    assert found["outside"].all()
    table = scored(Reader(*PLACES), images)
    share = (red & elsewhere).mean()
    assert table.loc["object_reliance", "value"] == pytest.approx(share)
    assert table.loc["box_only_accuracy", "value"] == 1


def test_what_is_greyed_has_the_mean_colour_and_nothing_else_changes(images):
    # Two boxes that overlap: their union.
    images.boxes[0, 1] = torch.tensor([3, 3, 6, 5])
    network = Reader(*PLACES)
    hits(network, images, batch_size=12)
    partner = int(derangements(12, 1)[0, 0])
    masks = box_masks(images.boxes, 8)
    image = images.images[0].float()
    colour = image.mean((1, 2)).round()[:, None, None]
    greyed = masks[0], masks[partner], ~masks[0]
    for shown, mask in zip(network.seen, greyed, strict=True):
        assert torch.equal(shown[0], torch.where(mask, colour, image))
    assert masks[0].sum() == 16 + 6 - 1


def test_an_image_that_is_all_box_or_has_none_is_undefined_for_itself(images):
    images.boxes[3, 0], images.boxes[4] = torch.tensor([-1, 0, 8, 9]), 0
    found, kept = hits(Reader(*PLACES), images), [0, 1, 2, *range(5, 12)]
    assert found.isna().all(axis=1).tolist() == [image in (3, 4) for image in range(12)]
    of_fewer = hits(Reader(*PLACES), images.subset(kept))
    assert found.iloc[kept].to_numpy().tolist() == of_fewer.to_numpy().tolist()
    values = reliance.object_reliance(found)
    assert np.flatnonzero(np.isnan(values)).tolist() == [3, 4]
    value = scored(Reader(*PLACES), images).loc["object_reliance", "value"]
    assert value == pytest.approx(np.nanmean(values), abs=1e-3)


def test_where_nothing_can_be_greyed_the_reason_is_said(images):
    images.boxes[1:] = torch.tensor([0, 0, 8, 8])
    assert set(scored(Reader(), images)["reason"]) == {
        "1 of 12 images have a box that leaves room around it; two are needed"
    }


def test_accuracy_from_the_box_alone_is_a_share_of_that_on_the_same_images():
    """Five images, of which the last has no score: three of four right, two alone."""
    hits_of_images = pd.DataFrame({"outside": [1.0, 1.0, 0.0, 0.0, np.nan]})
    right = np.array([True, True, True, False, True])
    share = reliance.box_only_accuracy(hits_of_images, right)
    assert share == pytest.approx((2 / 4) / (3 / 4))
    assert np.isnan(reliance.box_only_accuracy(hits_of_images, np.zeros(5, bool)))

"""Rendered scenes: exact boxes, an object that only its shape gives away, and a cue in the background as often as asked."""

import numpy as np
import pytest

from helpers.data import synthetic


def object_mask(split, seed, label, number, size, cue=0.5):
    """The mask that was drawn, made again with the generator of that one image."""
    generator = np.random.default_rng(
        [seed, ("train", "test").index(split), label, number]
    )
    return synthetic._scene(label, size, split, cue, generator)[1]


def test_fewer_images_and_fewer_classes_are_a_part_of_more():
    many, few = (
        synthetic.scenes(4, 6, 24, 1, "train"),
        synthetic.scenes(2, 3, 24, 1, "train"),
    )
    chosen = [0, 1, 2, 6, 7, 8]
    for large, small in zip(many, few, strict=True):
        np.testing.assert_array_equal(large[chosen], small)


@pytest.mark.parametrize("split", ["train", "test"])
def test_boxes_are_tight_around_the_drawn_object(split):
    size, per_class = 48, 6
    images, labels, boxes = synthetic.scenes(
        len(synthetic.CLASS_NAMES), per_class, size, 3, split
    )
    assert (images.dtype, labels.dtype, boxes.dtype, images.shape[1:]) == (
        np.uint8,
        np.int64,
        np.int16,
        (3, size, size),
    )
    for row, (x0, y0, x1, y1) in enumerate(boxes[:, 0]):
        mask = object_mask(split, 3, labels[row], row % per_class, size)
        assert mask[y0:y1, x0:x1].sum() == mask.sum() > 0, "nothing lies outside"
        sides = mask[y0, :], mask[y1 - 1, :], mask[:, x0], mask[:, x1 - 1]
        assert all(side.any() for side in sides), "every side touches the object"


def test_colour_of_the_object_says_nothing_of_the_class():
    """Nearest class mean of the object's mean colour, fitted on half and tried on the other half, stays near chance."""
    classes, per_class, size = 6, 40, 32
    images, labels, _ = synthetic.scenes(
        classes, per_class, size, 5, "train", background_cue=0.0
    )
    masks = [
        object_mask("train", 5, label, row % per_class, size, 0.0)
        for row, label in enumerate(labels)
    ]
    colours = np.array(
        [image[:, mask].mean(1) for image, mask in zip(images, masks, strict=True)]
    )
    means = np.array(
        [colours[::2][labels[::2] == label].mean(0) for label in range(classes)]
    )
    nearest = ((colours[1::2, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == labels[1::2]).mean() < 2 / classes


@pytest.mark.parametrize(("split", "own"), [("train", True), ("test", False)])
def test_the_cue_comes_as_often_as_asked_and_points_to_the_class_in_training_and_to_any_class_in_the_test_split(
    monkeypatch, split, own
):
    """Counted at its source: the stripes of frequency 9 are the cue's, those of an object's texture are no whole number."""
    angles = []
    stripes = synthetic._stripes

    def listen(x, y, angle, frequency, generator):
        if frequency == 9:
            angles.append(angle)
        return stripes(x, y, angle, frequency, generator)

    monkeypatch.setattr(synthetic, "_stripes", listen)
    labels = synthetic.scenes(12, 50, 16, 0, split, 1.0)[1]
    shown = np.rint(np.array(angles) / np.pi * 12).astype(int)
    if own:
        np.testing.assert_array_equal(shown, labels)
    else:
        assert abs((shown == labels).mean() - 1 / 12) < 4 * np.sqrt(
            1 / 12 * 11 / 12 / 600
        )
        assert set(shown) == set(range(12))
    angles.clear()
    synthetic.scenes(4, 100, 16, 0, split, 0.3)
    assert abs(len(angles) / 400 - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 400)

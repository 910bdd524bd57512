"""Rendered scenes: exact boxes, and classes that only shapes and cues give away."""

import numpy as np
import pytest

from helpers.data import synthetic

CLASSES = len(synthetic.CLASS_IDS)


def object_masks(split, seed, per_class, size):
    """The masks that were drawn, made again with the generator of each image."""
    number = ("train", "test").index(split)
    return [
        synthetic._scene(
            label, size, split, np.random.default_rng([seed, number, label, image])
        )[1]
        for label in range(CLASSES)
        for image in range(per_class)
    ]


def test_fewer_images_are_a_part_of_more():
    many, few = (synthetic.scenes("train", n, 24, 1) for n in (6, 3))
    many = many.set_index("name").loc[few["name"]]
    for column in ("pixels", "square_boxes"):
        for large, small in zip(many[column], few[column], strict=True):
            np.testing.assert_array_equal(large, small)


@pytest.mark.parametrize("split", ["train", "test"])
def test_boxes_are_tight_around_the_drawn_object(split):
    scenes = synthetic.scenes(split, 6, 48, 3)
    masks = object_masks(split, 3, 6, 48)
    for mask, [(x0, y0, x1, y1)] in zip(masks, scenes["square_boxes"], strict=True):
        assert mask[y0:y1, x0:x1].sum() == mask.sum() > 0, "nothing lies outside"
        sides = mask[y0, :], mask[y1 - 1, :], mask[:, x0], mask[:, x1 - 1]
        assert all(side.any() for side in sides), "every side touches the object"


def test_colour_of_the_object_says_nothing_of_the_class(monkeypatch):
    """The nearest class mean of colours, fitted on half, is near chance on the rest."""
    monkeypatch.setattr(synthetic, "_BACKGROUND_CUE", 0.0)
    images = synthetic.scenes("train", 20, 32, 5)["pixels"]
    masks = object_masks("train", 5, 20, 32)
    pairs = zip(images, masks, strict=True)
    colours = np.array([image[:, mask].mean(1) for image, mask in pairs])
    labels = np.repeat(np.arange(CLASSES), 20)
    fitted, tried = colours[::2], colours[1::2]
    means = np.array([fitted[labels[::2] == label].mean(0) for label in set(labels)])
    nearest = ((tried[:, None] - means) ** 2).sum(-1).argmin(1)
    assert (nearest == labels[1::2]).mean() < 2 / CLASSES


@pytest.mark.parametrize(("split", "own"), [("train", True), ("test", False)])
def test_the_cue_tells_the_class_in_training_alone(monkeypatch, split, own):
    """Seen at its source: stripes of frequency 9 are the cue's alone."""
    angles = []
    stripes = synthetic._stripes

    def listen(x, y, angle, frequency, generator):
        if frequency == 9:
            angles.append(angle)
        return stripes(x, y, angle, frequency, generator)

    monkeypatch.setattr(synthetic, "_stripes", listen)
    monkeypatch.setattr(synthetic, "_BACKGROUND_CUE", 1.0)
    synthetic.scenes(split, 40, 16, 0)
    shown = np.rint(np.array(angles) / np.pi * CLASSES).astype(int)
    labels = np.repeat(np.arange(CLASSES), 40)
    away = (shown == labels).mean() - 1 / CLASSES
    assert (shown == labels).all() if own else abs(away) < 2 / np.sqrt(len(labels))

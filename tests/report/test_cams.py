"""Maps over images: what stands on an axis is what it was given, and boxes lie where their pixels are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from helpers.cams.localize import bounding_rectangles, chance_scores, upsample
from helpers.data import synthetic
from helpers.data.boxes import box_masks
from helpers.data.images import ImageSet
from helpers.report import cams

SIZE, THRESHOLD = 32, 0.5


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def scenes():
    images, labels, boxes = synthetic.scenes(3, 2, SIZE, 0, "train")
    return ImageSet(
        torch.from_numpy(images),
        torch.as_tensor(labels),
        torch.from_numpy(boxes),
        tuple("abcdef"),
    )


@pytest.fixture(scope="module")
def maps():
    """Of nobody, for the six scenes."""
    return torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(0))


def outlines(ax):
    """Half-open boxes back from the rectangles on an axis; pixel centres lie at whole numbers."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return [
        [
            p.get_x() + 0.5,
            p.get_y() + 0.5,
            p.get_x() + p.get_width() + 0.5,
            p.get_y() + p.get_height() + 0.5,
        ]
        for p in found
    ]


def test_what_is_taught_by_is_a_right_prediction_with_the_middle_overlap():
    iou, right = (
        np.array([0.9, 0.1, 0.5, 0.4, 0.2, 0.3]),
        np.array([0, 1, 1, 1, 1, 1]),
    )  # the largest overlap is of a wrong one
    assert cams.row_of_right_prediction(iou, right) == 5  # of .1 .2 .3 .4 .5
    assert cams.row_of_right_prediction(iou, 0 * right) == 0


def test_steps_show_what_they_are_given(scenes, maps):
    figure = cams.step_by_step(maps, scenes, 1, THRESHOLD, "maximum")
    iou, iou_b = chance_scores(maps, scenes.boxes, SIZE, THRESHOLD).loc[
        1, ["iou", "iou_b"]
    ]
    axes = figure.axes
    mask = upsample(maps[1:2], SIZE) >= THRESHOLD
    np.testing.assert_array_equal(axes[1].images[0].get_array(), maps[1])
    np.testing.assert_array_equal(
        axes[2].images[1].get_array(), upsample(maps[1:2], SIZE)[0]
    )
    assert outlines(axes[0]) == scenes.boxes[1].tolist()
    assert outlines(axes[3]) == [
        *scenes.boxes[1].tolist(),
        bounding_rectangles(mask)[0].tolist(),
    ]
    assert len({patch.get_linestyle() for patch in axes[3].patches}) == 2, (
        "the two rectangles differ without colour"
    )
    np.testing.assert_array_equal(
        ~np.ma.getmaskarray(axes[3].images[1].get_array()), ~mask[0].numpy()
    )
    overlap = np.asarray(axes[4].images[0].get_array())
    assert (overlap == 3).sum() / (overlap > 0).sum() == pytest.approx(float(iou))
    colours, legend = (
        axes[4].images[0].cmap(axes[4].images[0].norm(overlap)),
        figure.legends[0],
    )
    assert [text.get_text() for text in legend.get_texts()] == [
        "neither",
        "mask only",
        "box only",
        "both",
    ]
    for value, patch in enumerate(legend.get_patches()):
        assert (colours[overlap == value] == patch.get_facecolor()).all() and (
            overlap == value
        ).any()
    np.testing.assert_array_equal(overlap >= 2, box_masks(scenes.boxes[1:2], SIZE)[0])
    assert (
        axes[4].get_title()
        == f"both / either: IoU {iou:.2f}\nrectangle: IoU-B {iou_b:.2f}"
    )


def test_overlays_have_a_row_per_model_and_a_column_per_image(scenes, maps):
    few = [0, 2, 4]
    both, images = torch.stack([maps[few], 1 - maps[few]]), scenes.subset(few)
    titles = ["small gap", "large gap"]
    figure = cams.overlays(both, images, THRESHOLD, titles, list("abc"), "maximum")
    axes = np.array(figure.axes).reshape(2, 3)
    for row in range(2):
        iou = chance_scores(both[row], images.boxes, SIZE, THRESHOLD)["iou"]
        for column in range(3):
            ax = axes[row, column]
            np.testing.assert_array_equal(
                ax.images[0].get_array(),
                images.images[column].numpy().transpose(1, 2, 0),
            )
            np.testing.assert_allclose(
                ax.images[1].get_array(), upsample(both[row], SIZE)[column]
            )
            assert outlines(ax) == images.boxes[column].tolist()
            assert (
                ax.get_title()
                == ("abc"[column] + "\n" if row == 0 else "") + f"IoU {iou[column]:.2f}"
            )
    assert [axes[row, 0].texts[0].get_text() for row in range(2)] == titles


def test_maps_stand_beside_the_image_that_they_are_of(scenes, maps):
    figure = cams.side_by_side(maps[:2], scenes.subset([3]), ["one", "other"])
    assert [ax.get_title() for ax in figure.axes] == ["image and box", "one", "other"]
    for ax in figure.axes:
        pixels = scenes.images[3].permute(1, 2, 0)
        np.testing.assert_array_equal(ax.images[0].get_array(), pixels)
        assert outlines(ax) == scenes.boxes[3].tolist()
    for heat, ax in zip(upsample(maps[:2], SIZE), figure.axes[1:], strict=True):
        np.testing.assert_array_equal(ax.images[1].get_array(), heat)


def test_a_box_of_zeros_is_padding():
    _, ax = plt.subplots()
    cams.draw_boxes(ax, torch.tensor([[1, 2, 5, 6], [0, 0, 0, 0]]))
    assert outlines(ax) == [[1, 2, 5, 6]]

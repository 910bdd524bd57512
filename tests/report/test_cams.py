"""Maps over images: what stands on an axis is what it was given, and boxes lie where their pixels are."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle

from helpers.cams.localize import bounding_rectangles, chance_scores, upsample
from helpers.data import synthetic
from helpers.data.images import image_set
from helpers.report import figures

SIZE, THRESHOLD = 32, 0.5


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def scenes():
    table = synthetic.scenes("train", 2, SIZE, 0)[:6]
    return image_set(table.assign(label=[0, 0, 1, 1, 2, 2], name=[*"abcdef"]))


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
    iou = np.array([0.9, 0.1, 0.5, 0.4, 0.2, 0.3])
    right = np.array([0, 1, 1, 1, 1, 1])  # the largest overlap is of a wrong one
    assert figures.row_of_right_prediction(iou, right) == 5  # of .1 .2 .3 .4 .5
    assert figures.row_of_right_prediction(iou, 0 * right) == 0


def test_steps_show_what_they_are_given(scenes, maps):
    figure = figures.step_by_step(maps, scenes, 1, THRESHOLD, "maximum")
    scores = chance_scores(maps, scenes.boxes, SIZE, THRESHOLD).loc[1]
    image, of_stage, enlarged, masked = figure.axes
    heat = upsample(maps[1:2], SIZE)
    mask = heat >= THRESHOLD
    boxes = scenes.boxes[1].tolist()
    np.testing.assert_array_equal(of_stage.images[0].get_array(), maps[1])
    np.testing.assert_array_equal(enlarged.images[1].get_array(), heat[0])
    assert outlines(image) == boxes
    assert outlines(masked) == [*boxes, bounding_rectangles(mask)[0].tolist()]
    styles = {patch.get_linestyle() for patch in masked.patches}
    assert len(styles) == 2  # the two rectangles differ without colour
    np.testing.assert_array_equal(masked.images[1].get_alpha() > 0, ~mask[0].numpy())
    numbers = f"IoU {scores['iou']:.2f}\nits rectangle: IoU-B {scores['iou_b']:.2f}"
    assert masked.get_title() == f"mask: {numbers}"


def test_overlays_have_a_row_per_model_and_a_column_per_image(scenes, maps):
    few = [0, 2, 4]
    both, images = torch.stack([maps[few], 1 - maps[few]]), scenes.subset(few)
    titles = ["small gap", "large gap"]
    figure = figures.overlays(both, images, THRESHOLD, titles, list("abc"), "maximum")
    axes = np.array(figure.axes).reshape(2, 3)
    for row, column in np.ndindex(2, 3):
        ax = axes[row, column]
        iou = chance_scores(both[row], images.boxes, SIZE, THRESHOLD)["iou"][column]
        pixels = images.images[column].permute(1, 2, 0)
        np.testing.assert_array_equal(ax.images[0].get_array(), pixels)
        heat = upsample(both[row], SIZE)[column]
        np.testing.assert_allclose(ax.images[1].get_array(), heat)
        assert outlines(ax) == images.boxes[column].tolist()
        name = "" if row else f"{'abc'[column]}\n"
        assert ax.get_title() == f"{name}IoU {iou:.2f}"
    assert [axes[row, 0].texts[0].get_text() for row in range(2)] == titles


def test_a_box_of_zeros_is_padding():
    _, ax = plt.subplots()
    figures.draw_boxes(ax, torch.tensor([[1, 2, 5, 6], [0, 0, 0, 0]]))
    assert outlines(ax) == [[1, 2, 5, 6]]

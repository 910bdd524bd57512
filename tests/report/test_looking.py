import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt

from helpers.data.images import ImageSet
from helpers.report import looking
from helpers.statistics.pairs import paired_table

LEVELS = ["plain", "map_in_box 1", "map_in_shuffled_box 1", "map_out_of_box 1"]


def scenes(boxes):
    count = len(boxes)
    pixels = torch.zeros(count, 3, 16, 16, dtype=torch.uint8)
    names = tuple(map(str, range(count)))
    boxes = torch.tensor(boxes, dtype=torch.int16).unsqueeze(1)
    return ImageSet(pixels, torch.zeros(count, dtype=torch.int64), boxes, names)


def test_each_arm_is_drawn_where_it_wants_the_map():
    images = scenes([[0, 0, 8, 16], [8, 0, 16, 16], [0, 8, 16, 16]])
    figure = looking.arms_figure(images, LEVELS)
    first = figure.axes[:4]
    titles = [panel.get_title() for panel in first]
    assert titles == [
        "image and box",
        "map in box",
        "map in shuffled box",
        "map out of box",
    ]
    inside, shuffled, outside = (panel.images[0].get_array() for panel in first[1:])
    left = np.zeros((8, 8))
    left[:, :4] = 1
    np.testing.assert_array_equal(inside, left)
    np.testing.assert_array_equal(outside, 1 - left)
    assert not np.array_equal(shuffled, left)
    plt.close(figure)


def test_without_arms_pixels_or_boxes_nothing_is_drawn():
    images = scenes([[0, 0, 8, 16], [8, 0, 16, 16]])
    assert looking.arms_figure(images, ["plain"]) is None
    assert looking.arms_figure(scenes([[0, 0, 0, 0]]), LEVELS) is None
    bare = ImageSet(
        torch.empty(2, 3, 16, 16, device="meta"),
        images.labels,
        images.boxes,
        images.names,
    )
    assert looking.arms_figure(bare, LEVELS) is None


def table(pairs_of):
    rows = [
        {"looking": name, "pretrained": False, "repeat": repeat, "gap": gap}
        for name, gaps in pairs_of.items()
        for repeat, gap in enumerate(gaps)
    ]
    models = pd.DataFrame(rows)
    contrasts = [("map_in_box 1", "plain")]
    return paired_table(models, contrasts, ["gap"], ["pretrained", "repeat"])


def intervals(figure):
    """Ends of the intervals that the first panel shows."""
    lines = figure.axes[0].collections[-2].get_segments()
    whole = [line for line in lines if len(line) and np.isfinite(line).all()]
    return [line[:, 0].tolist() for line in whole]


def test_differences_are_drawn_at_their_values():
    differences = table({"map_in_box 1": [40.0, 42.0], "plain": [43.0, 44.0]})
    figure = looking.differences_figure(differences, ["gap"])
    points = figure.axes[0].collections[-1].get_offsets()
    np.testing.assert_allclose(points[:, 0], -2.5)  # all pairs, and from scratch
    assert len(points) == 2
    assert not intervals(figure)
    plt.close(figure)
    three = table({"map_in_box 1": [40.0, 42.0, 41.0], "plain": [43.0, 44.0, 44.0]})
    figure = looking.differences_figure(three, ["gap"])
    row = three.iloc[0]
    assert intervals(figure)[0] == pytest.approx([row["low"], row["high"]])
    plt.close(figure)
    assert looking.differences_figure(table({"plain": [1.0]}), ["gap"]) is None


def test_the_contrast_is_told_with_what_could_have_been_told():
    gaps = {"map_in_box 1": [40.0, 42.0, 41.0, 44.0], "plain": [43.0, 41.0, 40.0, 44.5]}
    rows = [
        {"looking": arm, "pretrained": False, "repeat": repeat, "gap": gap}
        for arm, values in gaps.items()
        for repeat, gap in enumerate(values)
    ]
    models = pd.DataFrame(rows)
    models["accuracy"] = [99.0, 97, 98, 96, 99, 98, 96, 99]
    contrast = ("map_in_box 1", "plain")
    held = {"gap_given_training_accuracy": ("gap", "accuracy")}
    by = ["pretrained", "repeat"]
    differences = paired_table(models, [contrast], ["gap"], by, held)
    text = looking.contrast_sentence(differences, *contrast)
    row = differences.iloc[0]
    assert "-0.4 points" in text
    assert f"{row['detectable']:.1f} points" in text
    assert "held fixed" in text
    few = looking.contrast_sentence(
        paired_table(models[models["repeat"] < 1], [contrast], ["gap"], by, held),
        *contrast,
    )
    assert "held fixed" not in few
    assert "nan" not in few
    names = dict(looking.named_differences(differences))
    assert names["gap_map_in_box_1_less_plain"].pairs == 4


def claims_table(**changed):
    row = {
        "claim": "the gap falls",
        "primary": True,
        "verdict": "cannot tell",
        "pairs": 16,
        "difference": -0.42,
        "low": -1.2,
        "high": 0.36,
    }
    return pd.DataFrame([row | changed])


def test_the_answer_gives_each_primary_claim_its_verdict_and_numbers():
    text = looking.answer(claims_table(), 96)
    assert text == (
        "**96 networks.** *the gap falls*: **cannot tell**. The difference is -0.4 "
        "points (-1.2 to 0.4) over 16 pairs."
    )
    few = looking.answer(claims_table(pairs=4), 16)
    assert few.endswith("over 4 pairs. So few pairs allow no p below 0.12.")
    assert "one pair of networks has no" in looking.answer(claims_table(pairs=1), 4)
    assert "no pair of networks" in looking.answer(claims_table(pairs=0), 3)
    unchanged = looking.answer(claims_table(verdict="looking was not changed"), 96)
    assert unchanged.endswith("the gap says nothing about looking.")
    assert "states no claim" in looking.answer(claims_table(primary=False), 96)

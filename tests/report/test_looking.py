import numpy as np
import pandas as pd
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
    first = figure.axes[::3]  # of each arm the first image
    titles = [panel.texts[0].get_text().replace("\n", " ") for panel in first]
    assert titles == ["map in box", "map in shuffled box", "map out of box"]
    inside, shuffled, outside = (panel.images[1].get_array() for panel in first)
    left = np.zeros((16, 16), bool)
    left[:, :8] = True
    np.testing.assert_array_equal(inside > 0.5, left)
    np.testing.assert_array_equal(outside > 0.5, ~left)
    assert not np.array_equal(shuffled > 0.5, left)
    plt.close("all")


GAPS = {"map_in_box 1": [40.0, 42.0, 41.0, 44.0], "plain": [43.0, 41.0, 40.0, 44.5]}
ACCURACIES = [99.0, 97, 98, 96, 99, 98, 96, 99]
CONTRAST = ("map_in_box 1", "plain")


def differences_of(count):
    """Differences of some pairs of networks, two of one seed a pair."""
    models = pd.DataFrame(GAPS).melt(var_name="looking", value_name="gap")
    models = models.assign(
        repeat=[*range(4)] * 2, pretrained=False, train_accuracy=ACCURACIES
    )
    models = models[models["repeat"] < count]
    outcomes = ["gap", "gap_given_training_accuracy"]
    return paired_table(models, [CONTRAST], outcomes)


def test_the_contrast_is_told_with_what_could_have_been_told():
    differences = differences_of(4)
    row = differences.iloc[0]
    text = looking.contrast_sentence(differences, *CONTRAST)
    for told in (f"{row['difference']:+.1f} points", f"{row['detectable']:.1f} points"):
        assert told in text
    clear = looking.contrast_sentence(differences.assign(low=1.0), *CONTRAST)
    assert "No difference" in text and "No difference" not in clear
    few = looking.contrast_sentence(differences_of(1), *CONTRAST)
    assert "held fixed" in text and "held fixed" not in few and "nan" not in few
    names = dict(looking.named_differences(differences))
    assert names["gap_map_in_box_1_less_plain"].pairs == 4

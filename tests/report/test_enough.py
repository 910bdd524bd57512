"""How many images a measure needs, from models whose reliability is known."""

import numpy as np
import pandas as pd
import pytest

from helpers.report import cams


def test_the_number_of_images_follows_from_the_noise_of_single_images():
    rng = np.random.default_rng(0)
    models = rng.normal(0, 1, (400, 1))
    # Variance 1 between models, 100 within: reliability of n images n / (n + 100), which is 0.95 at 1,900.
    values = {"iou": models + rng.normal(0, 10, (400, 400)), "iou_b": np.repeat(models, 400, 1), "mask_area": models + np.zeros((400, 400))}
    table = cams.images_enough(values).set_index("measure")
    assert list(table.index) == ["iou", "iou_b"]
    assert table.loc["iou", "reliability"] == pytest.approx(0.8, abs=0.04)
    assert table.loc["iou", "images_enough"] == pytest.approx(1900, rel=0.2)
    assert table["images"].tolist() == [400, 400]
    assert "The 400 images scored are not enough for IoU (reliability 0." in cams.say_images_enough(table.reset_index())


def test_measures_that_need_fewer_images_say_how_many():
    row = {"measure": "iou", "title": "IoU", "images": 1000, "reliability": 0.98, "images_enough": 388.0}
    text = cams.say_images_enough(pd.DataFrame([row]))
    assert text.strip() == "For a reliability of 0.95 these numbers of images would have been enough: IoU 388."
    assert cams.say_images_enough(cams.images_enough({})).startswith("No measure has a reliability")

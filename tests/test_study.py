"""What a study gives of its networks."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from helpers.study import Measured


def measured():
    """Three networks, one of them not analysed, and one of another share."""
    of_images = {
        "iou": np.array([[0.1, 0.3], [0.5, 0.7], [0.2, 0.4]], dtype=np.float32),
        "correct": np.ones((3, 2), dtype=np.float32),
    }
    records = SimpleNamespace(
        model_ids=["a", "b", "c"],
        keys={"localization": "", "localization.of_mine": ""},
        of_images=lambda family: {"localization": of_images}[family],
    )
    models = pd.DataFrame(
        {
            "model_id": ["a", "b", "c", "d"],
            "iou": [0.2, 0.6, 0.3, np.nan],
        }
    )
    table = pd.DataFrame({"model_id": ["a", "b", "c"], "measure": "iou", "reason": ""})
    return Measured(models, table, records)


def test_values_of_images_stand_in_the_order_of_the_networks():
    of_images = measured().image_values
    assert [*of_images] == ["iou"]  # a measure; what else is recorded is none
    expected = [[0.1, 0.3], [0.5, 0.7], [0.2, 0.4], [np.nan, np.nan]]
    np.testing.assert_array_equal(of_images["iou"], np.float32(expected))

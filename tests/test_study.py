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
            "left_out": ["", "diverged", "", ""],
            "iou": [0.2, 0.6, 0.3, np.nan],
        }
    )
    table = pd.DataFrame({"model_id": ["a", "b", "c"], "measure": "iou", "reason": ""})
    return Measured(models, table, records)


def test_what_is_measured_of_analysed_networks_leaves_the_others_out():
    analysed = measured().analysed
    assert analysed.models["model_id"].tolist() == ["a", "c", "d"]
    assert analysed.table["model_id"].tolist() == ["a", "c"]
    expected = [[0.1, 0.3], [0.2, 0.4], [np.nan, np.nan]]
    np.testing.assert_array_equal(analysed.image_values["iou"], np.float32(expected))

"""What a study gives of its networks."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from helpers.study import Measured


def test_values_of_images_stand_in_the_order_of_the_networks():
    iou = np.array([[0.1, 0.3], [0.5, 0.7], [0.2, 0.4]], dtype=np.float32)
    of_images = {"iou": iou, "correct": np.ones((3, 2), dtype=np.float32)}
    records = SimpleNamespace(
        model_ids=["a", "b", "c"],
        keys={"localization": "", "localization.of_mine": ""},
        of_images=lambda family: {"localization": of_images}[family],
    )
    models = pd.DataFrame({"model_id": ["c", "a", "b", "d"], "iou": 0.5})
    values = Measured(models, pd.DataFrame(), records).image_values
    assert [*values] == ["iou"]  # a measure; what else is recorded is none
    expected = np.vstack([iou[[2, 0, 1]], [[np.nan] * 2]])
    np.testing.assert_array_equal(values["iou"], expected)

"""What can be looked at, and why nothing can."""

import numpy as np
import pandas as pd
import pytest

from helpers.scoring import look


def table(snapshots, ious, gaps):
    return pd.DataFrame({"snapshot": snapshots, "iou": ious, "gap": gaps, "left_out": ""})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (table([], [], []), "its catalogue is empty"),
        (table(["none"] * 3, np.nan, np.nan), "all 3 runs diverged before they left one; lower learning_rates"),
        (table(["none", "last"], np.nan, [np.nan, 0.1]), "the scores of all its 1 models are undefined"),
        (table(["last", "last"], [0.5, 0.5], np.nan), "none of its 2 models has a training and a test accuracy"),
    ],
)
def test_divergence_is_blamed_only_where_every_run_diverged(given, why):
    with pytest.raises(ValueError, match="no model of this study has a score and a gap: ") as caught:
        look.to_look_at(given)
    assert why in str(caught.value)
    assert ("diverged" in str(caught.value)) == (set(given["snapshot"]) == {"none"})


def test_models_are_sorted_by_gap_and_those_left_out_wait_for_need():
    given = table(["last"] * 3, [0.1, 0.2, 0.3], [0.3, 0.1, 0.2])
    assert look.to_look_at(given)["gap"].tolist() == [0.1, 0.2, 0.3]
    assert look.to_look_at(given.assign(left_out=["", "x", "x"]))["gap"].tolist() == [0.3]
    assert len(look.to_look_at(given.assign(left_out="x"))) == 3

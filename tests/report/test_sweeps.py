"""Sweeps: a row for each combination that was executed, drawn on the same scales."""

import numpy as np
import pytest
from matplotlib import pyplot as plt

from helpers.report import sweeps
from tests.report.made_reports import write_reports


def test_each_executed_combination_is_a_row_in_the_order_of_its_values(tmp_path):
    study = write_reports(tmp_path / "reports")
    frame = sweeps.results_of(study / "sweeps/03_cam_scoring")
    assert frame.index.names == ["cam_threshold"]
    assert frame.index.tolist() == [0.1, 0.4]  # that of 0.6 failed
    assert frame["r_iou_gap"].tolist() == [-0.2, -0.3]
    assert frame["r_iou_gap_low"].tolist() == pytest.approx([-0.3, -0.4])
    assert sweeps.drawn_results(frame) == ["r_iou_gap"]  # networks are equal
    table = sweeps.table(frame)
    assert list(table) == ["CAM threshold", "r of IoU with the gap"]
    assert table.iloc[0, 1] == "-0.20 (-0.30 to -0.10)"
    (ax,) = sweeps.small_multiples(frame).axes
    assert ax.get_title() == "r of IoU with the gap"
    np.testing.assert_array_equal(
        ax.get_lines()[0].get_xydata(), [[0.1, -0.2], [0.4, -0.3]]
    )
    plt.close("all")

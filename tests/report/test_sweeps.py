"""Sweeps: a row for each combination that was executed, drawn on the same scales."""

import pytest
from matplotlib import pyplot as plt

from helpers.report import sweeps
from tests.report.made_reports import write_reports


@pytest.fixture
def frame(tmp_path):
    study = write_reports(tmp_path / "reports")
    return sweeps.results_of(study / "sweeps/03_cam_scoring")


def test_each_executed_combination_is_a_row_in_the_order_of_its_values(frame):
    assert frame.index.names == ["cam_threshold"]
    assert frame.index.tolist() == [0.1, 0.4]  # that of 0.6 failed
    assert frame["r_iou_gap"].tolist() == [-0.2, -0.3]
    assert frame["r_iou_gap_low"].tolist() == pytest.approx([-0.3, -0.4])
    assert sweeps.drawn_results(frame) == ["r_iou_gap"]  # networks are equal


def test_a_panel_has_the_values_of_its_result(frame):
    figure = sweeps.small_multiples(frame)
    (ax,) = figure.axes
    line = ax.get_lines()[0]
    assert line.get_xdata().tolist() == [0.1, 0.4]
    assert line.get_ydata().tolist() == [-0.2, -0.3]
    assert ax.get_title() == "r of IoU with the gap"
    plt.close(figure)


def test_the_table_has_values_with_intervals_in_words(frame):
    table = sweeps.table(frame)
    assert list(table) == ["CAM threshold", "r of IoU with the gap"]
    assert table.iloc[0, 1] == "-0.20 (-0.30 to -0.10)"

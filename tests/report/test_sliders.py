import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.report import sliders

NETWORKS = pd.DataFrame(
    {
        "gap": [0.1, 0.2, 0.3, 0.5],
        "iou": [0.8, 0.7, 0.6, 0.1],
        "train_accuracy": [0.75, 0.85, 0.95, 1.0],
        "kind": list("aabb"),
    }
)
COLUMNS = {"gap": "gap", "iou": "IoU", "pointing": "not scored here"}


@pytest.fixture
def controls(monkeypatch):
    """What is drawn is noted in place of a figure."""
    drawn = []
    monkeypatch.setattr(sliders, "interactive", lambda: True)
    monkeypatch.setattr(sliders, "display", lambda *shown: None)

    def note(networks, columns, x, y, colour):
        drawn.append((len(networks), x, y, colour))
        return plt.figure()

    monkeypatch.setattr(sliders, "scatter", note)
    box = sliders.scatter_with_menus(NETWORKS, COLUMNS, {"kind": "kind"}, x="iou")
    return box.children[0].children, drawn


def test_dropdowns_choose_what_is_drawn_and_the_slider_leaves_networks_out(controls):
    (across, up, colour, least), drawn = controls
    assert drawn == [(4, "iou", "gap", "kind")]
    assert [label for label, _ in across.options] == ["gap (points)", "IoU"]
    across.value = "gap"
    assert drawn[-1] == (4, "gap", "gap", "kind")
    up.value = "iou"
    least.value = 90.0
    assert drawn[-1] == (2, "gap", "iou", "kind")
    assert (least.min, least.max) == (75.0, 100.0)
    assert colour.value == "kind"


def test_a_report_holds_a_line_in_place_of_a_widget_that_nobody_can_touch():
    shown = sliders.scatter_with_menus(NETWORKS, COLUMNS, {"kind": "kind"}, x="iou")
    assert "in JupyterLab" in shown.data


def test_the_sentence_has_r_tau_and_n_of_what_is_defined():
    with_hole = pd.concat([NETWORKS, pd.DataFrame({"gap": [0.4], "iou": [np.nan]})])
    said = sliders.correlation(with_hole, COLUMNS, "iou", "gap")
    r = np.corrcoef(NETWORKS["iou"], NETWORKS["gap"])[0, 1]
    assert f"IoU and gap of 4 networks: r = {r:.2f}, Kendall's tau = -1.00." in said
    assert sliders.correlation(NETWORKS[:2], COLUMNS, "iou", "gap") == (
        "2 networks: no correlation is defined."
    )
    assert "no correlation" in sliders.correlation(NETWORKS, COLUMNS, "gap", "gap")


def test_the_figure_shows_each_network_with_its_labels():
    figure = sliders.scatter(NETWORKS, COLUMNS, "iou", "gap", "kind")
    (ax,) = figure.axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("IoU", "gap")
    assert len(ax.collections[0].get_offsets()) == 4
    plt.close(figure)

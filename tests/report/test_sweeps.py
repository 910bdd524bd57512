"""A sweep compared: its table, its pictures, its page, and what failed."""

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest

from helpers.files import STAGING, write_json
from helpers.report import pages, sweeps
from tests.report import made

VALUES = [(0.1, "a"), (0.1, made.HOSTILE), (0.4, "a"), (0.4, made.HOSTILE)]


def write_sweep(report):
    """Four combinations of two parameters, of which the last failed."""
    folder = report / "sweeps/03_c"
    rows = []
    for number, (threshold, method) in enumerate(VALUES):
        name = f"threshold={threshold},method=~{number % 2}"
        failed = {"03_c": f"ValueError: {made.HOSTILE}"} if number == 3 else {}
        values = {"method": method, "threshold": threshold}
        rows.append({"folder": name, "values": values, "failed": failed})
        results = [
            {"name": "r_iou_gap", "value": number / 10, "low": -0.5, "high": 0.5},
            {"name": "error", "value": 3.0, "low": None, "high": None},
            {"name": "undefined", "value": None, "low": None, "high": None},
        ]
        units = {"error": "points"}
        results = [item | {"unit": units.get(item["name"], "")} for item in results]
        write_json(folder / name / "03_c.results.json", results)
        write_json(folder / name / "04_d.results.json", results[:1])
    nbformat.write(
        nbformat.v4.new_notebook(), folder / rows[0]["folder"] / "03_c.ipynb"
    )
    listing = {"notebooks": ["03_c", "04_d"], "parameters": ["threshold", "method"]}
    write_json(folder / "sweep.json", listing | {"combinations": rows})
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The sweep of a report, with its page."""
    report = tmp_path_factory.mktemp("reports") / "made"
    report.mkdir()
    folder = write_sweep(report)
    pages._write_sweep(folder)
    return folder


def test_a_notebook_reads_a_sweep_as_a_table(folder):
    table = sweeps.sweep_results("made", "03_c", str(folder.parents[2]))
    assert list(zip(table["threshold"], table["method"], strict=True)) == VALUES
    np.testing.assert_equal(table["r_iou_gap"].tolist(), [0, 0.1, 0.2, np.nan])
    np.testing.assert_equal(table["r_iou_gap_low"].tolist(), [-0.5] * 3 + [np.nan])
    assert table["04_d.r_iou_gap"][2] == 0.2 and "error_low" not in table
    assert table["undefined"].isna().all()
    failed = table["failed"].tolist()
    assert failed[:3] == [""] * 3 and failed[3].startswith("03_c: ValueError")
    assert table.attrs["units"]["error"] == "points"
    assert sweeps.title(table, "r_iou_gap") == "r of IoU with the gap"
    assert sweeps.title(table, "04_d.r_iou_gap") == "04: r of IoU with the gap"
    assert sweeps.title(table, "error") == "error (points)"
    with pytest.raises(
        FileNotFoundError, match=r"--vary 09_x\.NAME=VALUE,VALUE` makes"
    ):
        sweeps.sweep_results("made", "09_x", str(folder.parents[2]))
    with pytest.raises(FileNotFoundError, match="did you mean '03_c'"):
        sweeps.sweep_results("made", "03_cc", str(folder.parents[2]))


def test_a_result_is_drawn_against_a_parameter_with_its_intervals(folder):
    table = sweeps.results_of(folder)
    assert sweeps.drawn_results(table) == ["r_iou_gap", "04_d.r_iou_gap"]
    assert sweeps.varied(table) == ["threshold", "method"]
    figure, ax = plt.subplots()
    sweeps.draw(ax, table, "r_iou_gap", "threshold", "method")
    second, first = ax.containers  # in the order of their values
    assert first[0].get_ydata().tolist() == [0, 0.2]
    np.testing.assert_allclose(first[0].get_xdata(orig=False), [0.1, 0.4], atol=0.01)
    lines = np.array(first[2][0].get_segments(), dtype=float)
    ends = lines[1, :, 1]  # of the second vertical line
    np.testing.assert_allclose(ends, [-0.5, 0.5])
    assert second[0].get_color() != first[0].get_color()
    assert ax.get_xscale() == "linear"
    plt.close(figure)
    wide = table.assign(threshold=[0.001, 0.001, 0.5, 0.5])
    figure, ax = plt.subplots()
    sweeps.draw(ax, wide, "r_iou_gap", "threshold", "method")
    assert ax.get_xscale() == "log"
    plt.close(figure)
    # Labels fit by their places on the log axis, where neighbours are equally far apart.
    even = table.assign(threshold=[0.001, 0.01, 0.1, 1.0])
    figure, ax = plt.subplots()
    sweeps.draw(ax, even, "r_iou_gap", "threshold")
    labels = [label.get_text() for label in ax.get_xticklabels()]
    assert labels == ["0.001", "0.01", "0.1", "1.0"]
    np.testing.assert_allclose(ax.get_xticks(), even["threshold"])
    plt.close(figure)


def test_the_page_compares_all_and_shows_what_failed(folder):
    page = made.Page(folder / "index.html")
    assert page.tags.count("tr") == 1 + len(VALUES) and "sortable" in page.of(
        "table", "class"
    )
    assert "0.20 (-0.50 to 0.50)" in page.text and "ValueError" in page.text
    assert "4 combinations: 2 values of threshold, 2 values of method." in page.text
    assert "b" not in page.tags and made.HOSTILE in page.text, "a value stays text"
    for source in page.of("img", "src"):
        assert (folder / source).is_file(), source
    assert len(page.of("img", "src")) == 2 * 2  # results times parameters
    executed = folder / "threshold=0.1,method=~0/03_c.html"
    links = page.of("a", "href")
    assert (folder / links[links.index(str(executed.relative_to(folder)))]).is_file()
    links = made.Page(executed).of("a", "href")
    assert {"../../../index.html", "../index.html", "03_c.html"} <= {*links}
    assert made.Page(executed).of("script", "src")[0].startswith("../../../../assets/")


def test_a_correlation_is_given_for_each_value_of_the_parameter_with_fewest(tmp_path):
    """Both rules together would hide that they have opposite signs."""
    folder = tmp_path / "made/sweeps/03_c"
    values = {(1, "low"): -0.2, (2, "low"): -0.3, (3, "low"): -0.4, (1, "high"): 0.6}
    rows = []
    for (threshold, rule), r in values.items():
        name = f"t={threshold},rule={rule}"
        swept = {"t": threshold, "rule": rule}
        rows.append({"folder": name, "values": swept, "failed": {}})
        result = {"name": "r_iou_gap", "value": r, "low": r - 0.1, "high": r + 0.1}
        write_json(folder / name / "03_c.results.json", [result | {"unit": ""}])
    listing = {"notebooks": ["03_c"], "parameters": ["t", "rule"]}
    write_json(folder / "sweep.json", listing | {"combinations": rows})
    (sentence,) = sweeps.what_it_shows(sweeps.results_of(folder))
    assert sentence == (
        "r of IoU with the gap: rule low -0.40 to -0.20, rule high 0.60; not all "
        "intervals overlap."
    )


def test_folders_of_an_earlier_list_are_not_compared(tmp_path):
    folder = tmp_path / "made/sweeps/03_c"
    for name in ("t=1", "t=2", "t=9"):
        write_json(folder / name / "03_c.ipynb", {})
    (folder / "figures").mkdir()
    rows = [{"folder": f"t={t}", "values": {"t": t}, "failed": {}} for t in (1, 2)]
    listing = {"notebooks": ["03_c"], "parameters": ["t"], "combinations": rows}
    write_json(folder / "sweep.json", listing)
    assert sweeps.not_compared(sweeps.results_of(folder), folder) == ["t=9"]


def test_the_study_s_own_row_is_marked_and_a_shift_by_recorded_maps_is_said(tmp_path):
    """0.2 is the study's; the threshold decides IoU, and not the pointing game."""
    folder = tmp_path / "made/sweeps/03_c"
    values = {0.1: (-0.2, -0.89), 0.2: (-0.3, -0.886), 0.4: (-0.9, -0.89)}
    rows = []
    for threshold, correlations in values.items():
        names = ("r_iou_gap", "r_pointing_game_gap")
        results = [
            {"name": name, "value": r, "low": r - 0.1, "high": r + 0.1, "unit": ""}
            for name, r in zip(names, correlations, strict=True)
        ]
        rows.append(
            {"folder": f"t={threshold}", "values": {"t": threshold}, "failed": {}}
        )
        write_json(folder / f"t={threshold}/03_c.results.json", results)
    listing = {"notebooks": ["03_c"], "parameters": ["t"], "combinations": rows}
    write_json(folder / "sweep.json", listing)
    assert not sweeps.is_of_study(sweeps.results_of(folder)).any()
    write_json(tmp_path / "made/published.json", {"parameters": {"03_c": {"t": 0.2}}})
    table = sweeps.results_of(folder)
    assert sweeps.is_of_study(table).tolist() == [False, True, False]
    page = sweeps.table_html(table, "03_c")
    link = '<a href="t=0.2/03_c.html">0.2</a>'
    assert page.count(f'<tr class="own"><td>{link}</td>') == 1
    overlap, pointing, shift = sweeps.what_it_shows(table)
    assert (
        overlap == "r of IoU with the gap: -0.90 to -0.20; not all intervals overlap."
    )
    assert pointing.endswith(": -0.89; all intervals overlap.")
    assert "8 bits. This alone moves r of pointing game with the gap, indep" in shift
    assert shift.endswith("by 0.0040 at most.")
    # Where maps have 16 bits there is nothing to say, nor where the row is absent.
    exact = table.assign(r_pointing_game_gap=[-0.89, -0.89001, -0.89])
    assert len(sweeps.what_it_shows(exact)) == 2
    table.attrs["of_study"] = {"t": 0.3}
    assert len(sweeps.what_it_shows(table)) == 2


def test_a_sweep_is_linked_from_the_index_of_its_study(tmp_path):
    report = made.write_report(tmp_path / "made")
    before = pages._write_index(report).read_text()
    assert "sweeps/" not in before
    write_sweep(report)
    page = made.Page(pages._write_index(report))
    assert "sweeps/03_c/index.html" in page.of("a", "href")
    assert "4 combinations of threshold and method" in page.text


def test_a_folder_that_leaves_the_sweep_is_refused(tmp_path):
    listing = {"notebooks": ["03_c"], "parameters": ["x"]}
    row = {"folder": "../../../..", "values": {"x": 1}, "failed": {}}
    write_json(tmp_path / "sweep.json", listing | {"combinations": [row]})
    with pytest.raises(ValueError, match="leaves the folder"):
        sweeps.results_of(tmp_path)


def test_a_notebook_that_is_opened_by_hand_draws_the_sweep(folder, monkeypatch):
    drawn = []
    monkeypatch.setattr(sweeps, "display", drawn.append)
    monkeypatch.delenv(STAGING, raising=False)
    reports = str(folder.parents[2])
    shown = sweeps.show("made", "03_c", reports)
    assert len(drawn) == 2 and "0.20 (-0.50 to 0.50)" in shown.data
    assert "No sweep is published" in sweeps.show("made", "09_x", reports).data
    monkeypatch.setenv(STAGING, "of a sweep")
    assert sweeps.show("made", "03_c", reports) is None

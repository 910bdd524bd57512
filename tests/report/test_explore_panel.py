"""Explorers are there for a reader and absent from reports; a panel's picture and reading follow its controls."""

import numpy as np
import plotly.graph_objects as go
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import Markdown, display
from IPython.utils.capture import capture_output
from ipywidgets import Dropdown, IntSlider

from helpers import files
from helpers.kappa import explore as kappa_explore
from helpers.report import explore
from helpers.report.explore import panel
from helpers.report.explore.panel import Panel, Plot, View

EXPLORERS = [
    (explore.where_it_looks, 2, "Where does it look?"),
    (explore.what_predicts, 3, "What predicts the gap?"),
    (kappa_explore.trade_off, 2, "What does more noise, more unseen classes or less size cost?"),
    (explore.sweep_monitor, 1, "How far is the training?"),
]


@pytest.fixture(autouse=True)
def nobody_there(monkeypatch):
    for name in (explore.SWITCH, "JPY_SESSION_NAME", files.STAGING):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "there"),
    [
        ({}, False),
        ({"JPY_SESSION_NAME": "notebooks/03.ipynb"}, True),
        ({"JPY_SESSION_NAME": "notebooks/03.ipynb", files.STAGING: "abc.1"}, False),  # a sweep that was started inside JupyterLab
        ({explore.SWITCH: "1"}, True),
        ({explore.SWITCH: "1", files.STAGING: "abc.1"}, True),
        ({explore.SWITCH: "0", "JPY_SESSION_NAME": "notebooks/03.ipynb"}, False),
        ({explore.SWITCH: "", "JPY_SESSION_NAME": ""}, False),
    ],
)
def test_a_reader_is_there_where_jupyter_names_the_notebook_and_no_sweep_runs_it(monkeypatch, environment, there):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert explore.interactive() is there


def test_a_switch_that_is_neither_on_nor_off_is_refused(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "yes")
    with pytest.raises(ValueError, match=r"^WORKBOOK_EXPLORE is 'yes'; it must be 1 \(show explorers\), 0 \(never\), or not set$"):
        explore.interactive()


@pytest.mark.parametrize(("explorer", "given", "question"), EXPLORERS)
def test_without_a_reader_one_line_says_how_to_open_it_and_nothing_is_computed(explorer, given, question):
    shown = explorer(*[None] * given)  # anything computed of None would fail
    assert isinstance(shown, Markdown)
    assert (
        shown.data == f"*{question}* can be explored by hand: `make lab` opens this notebook in JupyterLab, where this cell shows controls."
    )


def test_what_a_cell_shows_is_a_widget_only_for_a_reader(monkeypatch, tmp_path):
    InteractiveShell.instance()
    kinds = {}
    for switch in "01":
        monkeypatch.setenv(explore.SWITCH, switch)
        with capture_output() as captured:
            display(explore.sweep_monitor(tmp_path))
        (kinds[switch],) = (set(output.data) for output in captured.outputs)
    assert "application/vnd.jupyter.widget-view+json" in kinds["1"]
    assert kinds["0"] == {"text/markdown", "text/plain"}


def squares():
    """A panel of two numbers that shows their product, and a list of what it drew."""
    drawn = []

    def draw(left, right):
        drawn.append((left, right))
        if right == 0:
            raise ValueError(f"<b>{left}</b> by nothing")
        return View(f"<p>{left * right}</p>", {"product": left * right})

    controls = {"left": IntSlider(value=2, max=50), "right": Dropdown(options=[1, 2, 0])}
    return Panel("How much is < 3 & more?", controls, draw), drawn


def test_each_change_of_a_control_draws_once():
    shown, drawn = squares()
    assert (shown.numbers, shown.reading.value, drawn) == ({"product": 2}, "<p>2</p>", [(2, 1)])
    shown.controls["left"].value = 7
    shown.controls["right"].value = 2
    shown.controls["right"].value = 2  # no change
    assert drawn == [(2, 1), (7, 1), (7, 2)]
    assert shown.numbers == {"product": 14}


def test_a_control_that_moves_another_is_drawn_once_with_both():
    controls = {"left": IntSlider(value=2, max=50), "right": IntSlider(value=2, max=50)}
    drawn = []

    def together(change):
        controls["right"].value = change["new"]

    controls["left"].observe(together, "value")
    Panel("both", controls, lambda left, right: drawn.append((left, right)) or View("", {}))
    controls["left"].value = 9
    assert drawn == [(2, 2), (9, 9)]


def test_what_goes_wrong_is_told_as_text_and_the_next_change_goes_on():
    shown, _ = squares()
    shown.controls["right"].value = 0
    assert shown.fault == "ValueError: <b>2</b> by nothing"
    assert shown.reading.value == "<p><b>This cannot be shown.</b> &lt;b&gt;2&lt;/b&gt; by nothing</p>"
    assert shown.numbers == {}
    shown.controls["right"].value = 1
    assert (shown.fault, shown.numbers) == ("", {"product": 2})


def test_the_title_is_text():
    assert squares()[0].box.children[0].value == "<b>How much is &lt; 3 &amp; more?</b>"


def test_a_table_shows_names_as_text_and_nothing_for_no_rows():
    html = panel.html_table([{"<i>": "<script>", "n": 3}, {"<i>": "a & b", "n": 4}])
    assert "<script>" not in html
    assert html.count("<tr>") == 3
    assert all(part in html for part in ("&lt;i&gt;", "&lt;script&gt;", "a &amp; b", ">4<"))
    assert panel.html_table([]) == ""


@pytest.mark.parametrize(("value", "words"), [(0.12345, "0.123"), (-1.0, "-1.000"), (np.nan, "undefined"), (np.inf, "undefined")])
def test_a_number_is_short_and_an_undefined_one_a_word(value, words):
    assert panel.number(value) == words


def test_a_page_gets_the_library_when_it_asks_and_a_figure_in_one_message():
    plot, sent = Plot(), []
    plot.send = sent.append
    plot.draw(go.Figure(go.Scatter(x=[1, 2], y=[3, 4])))
    assert '"y":[3,4]' in plot.figure
    plot._handle_custom_msg("library", [])
    ((name, source),) = sent[0].items()
    assert name == "library" and len(source) > 1_000_000

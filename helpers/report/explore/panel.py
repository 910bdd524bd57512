"""Controls, views and a reading that move together: what every explorer is made of."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import anywidget
import plotly.graph_objects as go
import plotly.offline
import traitlets
from IPython.display import display
from ipywidgets import HTML, Box, DOMWidget, Layout, SelectMultiple, VBox, Widget

_ASSETS = Path(__file__).parents[1] / "assets"


class Plot(anywidget.AnyWidget):
    """A plotly figure whose points can be clicked; drawn whole at each change, in one message.

    plotly's own ``FigureWidget`` brings a copy of the library of 4.8 MB for each figure, which a slow browser has not read when anywidget
    gives up after 2 s; here a page reads it once.
    """

    _esm = (_ASSETS / "plot_widget.js").read_text()
    figure = traitlets.Unicode('{"data": [], "layout": {}}').tag(sync=True)
    clicked = traitlets.Dict({}).tag(sync=True)  # id: the customdata of a point, count: of clicks so far

    def __init__(self, **given: Any) -> None:
        """Answer the page when it asks for the library."""
        super().__init__(**given)
        self.on_msg(lambda widget, content, buffers: widget.send({"library": plotly.offline.get_plotlyjs()}))

    def draw(self, figure: go.Figure) -> None:
        """Show a figure; zoom and pan stay where ``uirevision`` of its layout stays."""
        self.figure = figure.to_json()


class Gallery(anywidget.AnyWidget):
    """Pictures in a grid, one of them chosen by the mouse or by the left and right keys and shown large."""

    _esm = (_ASSETS / "gallery_widget.js").read_text()
    _css = (_ASSETS / "gallery_widget.css").read_text()
    grid = traitlets.Unicode().tag(sync=True)  # HTML; what can be chosen has its place in data-at
    detail = traitlets.Unicode().tag(sync=True)  # HTML
    count = traitlets.Int(0).tag(sync=True)  # of all pictures, also those that the grid does not show
    value = traitlets.Int(0).tag(sync=True)  # place of the chosen one


class View(NamedTuple):
    """What the controls ask for."""

    reading: str  # HTML, whose names are escaped
    numbers: Mapping[str, Any]  # that the views and the reading show


class Panel:
    """Controls, views and a reading, drawn anew whenever one of the controls changes.

    What goes wrong while drawing is told in the reading, because an error in a callback would be seen in Jupyter's log only; the next
    change tries again.
    """

    def __init__(
        self, title: str, controls: Mapping[str, Widget], draw: Callable[..., View], views: Sequence[DOMWidget] = (), below: Sequence = ()
    ) -> None:
        """Show the first view.

        Args:
            title: the question, as text.
            controls: by the name under which ``draw`` takes their values; one that is also a view stands where that stands.
            draw: fills the views by the values of all controls, and gives the reading.
            views: above the reading.
            below: the reading.
        """
        self.controls, self._draw, self.views = dict(controls), draw, tuple(views)
        self.reading, self.numbers, self.fault = HTML(), {}, ""
        self._drawn: dict[str, Any] | None = None
        rows = Layout(display="flex", flex_flow="row wrap", width="100%", align_items="flex-start")
        heading = HTML(f"<b>{escape(title)}</b>")
        shown = [control for control in self.controls.values() if control not in self.views]
        self.box = VBox([heading, Box(shown, layout=rows), *self.views, self.reading, *below])
        for control in self.controls.values():
            control.observe(self._changed, "value")
        self.update()

    def values(self) -> dict[str, Any]:
        """Value of every control."""
        return {name: control.value for name, control in self.controls.items()}

    def update(self) -> None:
        """Draw what the controls ask for."""
        self._drawn = self.values()
        try:
            view = self._draw(**self._drawn)
        except Exception as fault:
            self.fault, self.numbers = f"{type(fault).__name__}: {fault}", {}
            self.reading.value = f"<p><b>This cannot be shown.</b> {escape(str(fault))}</p>"
            return
        self.fault, self.numbers, self.reading.value = "", view.numbers, view.reading

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self.values() != self._drawn:  # a control that moves another one has had it drawn already
            self.update()

    def _ipython_display_(self) -> None:
        display(self.box)


def control_layout(width: str = "22rem") -> dict[str, Any]:
    """Options that all controls share: a width, and as much room for the description as it needs."""
    return {"layout": Layout(width=width, margin="2px 1rem 2px 0"), "style": {"description_width": "initial"}}


def choice_of_several(options: Sequence, description: str, chosen: Sequence = (), *, rows: int = 4, width: str = "15rem") -> SelectMultiple:
    """A list of which any number may be chosen, with the control key or by dragging."""
    shown = {"rows": max(2, min(rows, len(options))), **control_layout(width)}
    return SelectMultiple(options=options, value=tuple(chosen), description=description, **shown)


def number(value: float, digits: int = 3) -> str:
    """A number for a reader; what is undefined in words."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "undefined"


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as an HTML table, every text as text."""
    if not rows:
        return ""
    cell = "padding: 0 1em 0 0; text-align: left; vertical-align: top; max-width: 20em; overflow-wrap: anywhere"
    head = "".join(f"<th style='{cell}'>{escape(str(name))}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td style='{cell}'>{escape(str(value))}</td>" for value in row.values()) + "</tr>" for row in rows)
    return f"<table style='font-size: 0.85em; line-height: 1.5'><tr>{head}</tr>{body}</table>"

"""Controls, a picture and a reading that move together: what every explorer is made of."""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from ipywidgets import HTML, Box, Image, Layout, ValueWidget, VBox
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image as Pictures


class View(NamedTuple):
    """What the controls ask for."""

    picture: bytes  # PNG
    reading: str  # HTML, whose names are escaped
    numbers: Mapping[str, Any]  # that picture and reading show


class Panel:
    """Controls with the view they ask for, drawn anew whenever one of them changes.

    The picture is a PNG that the kernel draws, so that nothing beyond ipywidgets is needed. What goes wrong while drawing is told in
    the reading, because an error in a callback would be seen in Jupyter's log only; the next change tries again.
    """

    def __init__(self, title: str, controls: Mapping[str, ValueWidget], draw: Callable[..., View]) -> None:
        """Show the first view.

        Args:
            title: the question, as text.
            controls: by the name under which ``draw`` takes their values.
            draw: the values of all controls to a view.
        """
        self.controls, self._draw = dict(controls), draw
        self.picture, self.reading = Image(format="png", layout=Layout(max_width="100%", align_self="flex-start")), HTML()
        self.numbers: Mapping[str, Any] = {}
        self.fault = ""
        self._drawn: dict[str, Any] | None = None
        rows = Layout(display="flex", flex_flow="row wrap", width="100%")
        heading = HTML(f"<b>{escape(title)}</b>")
        self.box = VBox([heading, Box(list(self.controls.values()), layout=rows), self.picture, self.reading])
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
            self.fault = f"{type(fault).__name__}: {fault}"
            self.numbers, self.picture.value = {}, blank()
            self.reading.value = f"<p><b>This cannot be shown.</b> {escape(str(fault))}</p>"
            return
        self.fault, self.numbers = "", view.numbers
        self.picture.value, self.reading.value = view.picture, view.reading

    def _changed(self, change: Mapping[str, Any]) -> None:
        if self.values() != self._drawn:  # a control that moves another one has had it drawn already
            self.update()

    def _ipython_display_(self) -> None:
        display(self.box)


def control_layout(width: str = "24rem") -> dict[str, Any]:
    """Options that all controls share: a width, and room for a description of some words."""
    return {"layout": Layout(width=width), "style": {"description_width": "9rem"}}


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Write (H, W, 3 or 4) pixels as a PNG, quickly rather than small."""
    buffer = io.BytesIO()
    Pictures.fromarray(pixels).convert("RGB").save(buffer, "png", compress_level=1)
    return buffer.getvalue()


def figure_png(figure: Figure, dpi: int = 90) -> bytes:
    """Draw a figure of fixed size once, where ``savefig`` with a tight box draws it twice."""
    return Backdrop(figure, (), dpi).png()


class Backdrop:
    """A figure drawn once, over which a few of its artists move: drawing these takes a tenth of drawing all."""

    def __init__(self, figure: Figure, moving: Sequence[Artist], dpi: int = 90) -> None:
        """Draw everything but what moves; the figure stays as it is laid out now.

        Args:
            figure: of fixed size; no longer one of pyplot's.
            moving: artists of its axes, changed by the caller between two calls of ``png``.
            dpi: pixels per inch.
        """
        plt.close(figure)
        figure.set_dpi(dpi)
        self._canvas, self._moving = FigureCanvasAgg(figure), moving
        if moving and figure.get_layout_engine() is not None:
            self._canvas.draw()  # with what moves, which needs its room
            figure.set_layout_engine("none")
        for artist in moving:
            artist.set_animated(True)
        self._canvas.draw()
        self._background = self._canvas.copy_from_bbox(figure.bbox)

    def png(self) -> bytes:
        """Draw what moves over the rest."""
        self._canvas.restore_region(self._background)
        for artist in self._moving:
            artist.axes.draw_artist(artist)
        return png(np.asarray(self._canvas.buffer_rgba()))


def blank() -> bytes:
    """The smallest white picture, for where there is nothing to see."""
    return png(np.full((1, 1, 3), 255, dtype=np.uint8))


def number(value: float, digits: int = 3) -> str:
    """Write a number for a reader; what is undefined in words."""
    return f"{value:.{digits}f}" if math.isfinite(value) else "undefined"


def html_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write rows as an HTML table, every text as text."""
    if not rows:
        return ""
    cell = "padding: 0 1em 0 0; text-align: left; white-space: nowrap"
    head = "".join(f"<th style='{cell}'>{escape(str(name))}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td style='{cell}'>{escape(str(value))}</td>" for value in row.values()) + "</tr>" for row in rows)
    return f"<table style='font-size: 0.85em; line-height: 1.5'><tr>{head}</tr>{body}</table>"

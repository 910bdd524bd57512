"""Trade-off: the marginals of error and Kappa loss, and the point that moves on them with what is asked."""

from collections.abc import Mapping
from functools import lru_cache
from html import escape
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from IPython.display import Markdown
from ipywidgets import Dropdown, FloatRangeSlider, FloatSlider, ValueWidget
from matplotlib.lines import Line2D
from matplotlib.text import Text

from helpers.kappa import report
from helpers.kappa.statistics import AXES
from helpers.kappa.tradeoff import UNBOUNDED, Bounds, Surface, TradeoffPoint, trade_off_point
from helpers.report import notebook, style
from helpers.report.explore import _absent, interactive
from helpers.report.explore.panel import Backdrop, Panel, View, control_layout


def trade_off(
    surfaces: Mapping[str, Surface], marginals: pd.DataFrame, *, strength: float = 1.0, bounds: Bounds = UNBOUNDED
) -> Panel | Markdown:
    """Show how the trade-off point and its bounds move with what is asked of it.

    Args:
        surfaces: name of each family to its surface, see ``tradeoff.fit_surface``.
        marginals: see ``statistics.marginals``, with a column family.
        strength: lambda, that is chosen first.
        bounds: that are chosen first.

    Raises:
        ValueError: no family, or one without marginals.
    """
    if not interactive():
        return _absent("What does more noise, more unseen classes or less size cost?")

    return trade_off_explorer(surfaces, marginals, strength=strength, bounds=bounds)


_DPI = 80


class Mark(NamedTuple):
    """What moves in one panel of ``report.marginal_curves``."""

    line: Line2D  # through the point, along the axis of the bound
    star: Line2D
    title: Text


class Drawing:
    """The marginals of a family, drawn once; only the point is drawn anew, because the whole figure takes a second."""

    def __init__(self, marginals: pd.DataFrame, surface: Surface) -> None:
        """Draw everything but the point."""
        self._surface = surface
        with style.style():
            figure = report.marginal_curves(marginals, surface, trade_off_point(surface))
            self._marks = [Mark(*ax.lines[-2:], ax.title) for ax in figure.axes]
            self._backdrop = Backdrop(figure, [artist for mark in self._marks for artist in mark], _DPI)

    def with_point(self, point: TradeoffPoint) -> bytes:
        """The figure as ``report.marginal_curves`` draws it for a point, as a PNG."""
        bounds = [getattr(bound, axis) for bound in (point.generalization_bound, point.diversity_bound) for axis in AXES]
        for mark, axis, bound, degree in zip(self._marks, [*AXES, *AXES], bounds, [*self._surface.degrees] * 2, strict=True):
            at = getattr(point, axis) / (1e6 if axis == "weights" else 1)
            mark.line.set_xdata([at, at])
            mark.star.set_data([at], [bound])
            mark.title.set_text(f"bound {bound:.3f}, degree {degree}")
        return self._backdrop.png()


def trade_off_explorer(surfaces: Mapping[str, Surface], marginals: pd.DataFrame, *, strength: float, bounds: Bounds) -> Panel:
    """Make the explorer; see ``explore.trade_off``."""
    absent = sorted(set(surfaces) - set(marginals["family"]))
    if not surfaces or absent:
        raise ValueError(f"{len(surfaces)} families, and no marginals of {', '.join(absent) or 'any'}: there is nothing to show")

    @lru_cache
    def drawing(family: str) -> Drawing:
        return Drawing(marginals[marginals["family"] == family], surfaces[family])

    def draw(family: str, ssim: tuple[float, float], unseen: float, weights: float, strength: float) -> View:
        asked = Bounds(ssim_at_least=ssim[0], ssim_at_most=ssim[1], unseen_fraction_at_least=unseen, weights_at_most=weights)
        point = trade_off_point(surfaces[family], strength, asked)
        reading = notebook.plain(report.say_point(family, point, surfaces[family], strength))
        return View(drawing(family).with_point(point), f"<p>{escape(reading)}</p>", {"point": point})

    controls = _controls(surfaces, strength, bounds)
    return Panel("What does more noise, more unseen classes or less size cost?", controls, draw)


def _controls(surfaces: Mapping[str, Surface], strength: float, bounds: Bounds) -> dict[str, ValueWidget]:
    """Sliders from end to end of what was measured in any family; what a family has not measured is told when it is asked for."""
    levels = [np.concatenate(along) for along in zip(*(surface.levels for surface in surfaces.values()), strict=True)]
    (ssim_low, ssim_high), (unseen_low, unseen_high), (small, large) = ((along.min(), along.max()) for along in levels)
    ssim = np.clip([bounds.ssim_at_least, bounds.ssim_at_most], ssim_low, ssim_high)
    unseen = np.clip(bounds.unseen_fraction_at_least, unseen_low, unseen_high)
    usual = control_layout("30rem")
    return {
        "family": Dropdown(options=list(surfaces), description="family", **usual),
        "strength": FloatSlider(value=strength, min=0, max=max(5, strength), step=0.05, description="lambda", **usual),
        "ssim": FloatRangeSlider(value=tuple(ssim), **_range(ssim_low, ssim_high, 0.01), description="SSIM from, to", **usual),
        "unseen": FloatSlider(value=unseen, **_range(unseen_low, unseen_high, 0.01), description="unseen at least", **usual),
        "weights": FloatSlider(
            value=np.clip(bounds.weights_at_most, small, large),
            **_range(small, large, (large - small) / 100),
            readout_format=".3s",
            description="weights at most",
            **usual,
        ),
    }


def _range(low: float, high: float, step: float) -> dict[str, Any]:
    if high > low:
        return {"min": low, "max": high, "step": step}
    return {"min": low, "max": low + 1, "step": 1, "disabled": True}  # a slider without length cannot be drawn

"""Trade-off: the marginals of error and Kappa loss, and the point that moves on them with what is asked."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from IPython.display import Markdown
from ipywidgets import Dropdown, FloatRangeSlider, FloatSlider, ValueWidget
from plotly.subplots import make_subplots

from helpers.kappa import report
from helpers.kappa.statistics import AXES
from helpers.kappa.tradeoff import UNBOUNDED, Bounds, Surface, TradeoffPoint, fitted, trade_off_point
from helpers.report import notebook
from helpers.report.explore import _absent, interactive
from helpers.report.explore.panel import Panel, Plot, View, control_layout


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


def marginal_figure(marginals: pd.DataFrame, surface: Surface, point: TradeoffPoint) -> go.Figure:
    """Marginals of error and Kappa loss along each axis with the trade-off point on them: ``report.marginal_curves`` for the mouse."""
    bounds = [getattr(bound, axis) for bound in (point.generalization_bound, point.diversity_bound) for axis in AXES]
    figure = make_subplots(2, 3, shared_xaxes=True, vertical_spacing=0.1, subplot_titles=[f"bound {bound:.3f}" for bound in bounds])
    rows = (("error", surface.error_fits, point.generalization_bound), ("kappa_loss", surface.kappa_fits, point.diversity_bound))
    for row, (name, fits, bound) in enumerate(rows, 1):
        for column, axis in enumerate(AXES, 1):
            table, scale = marginals[marginals["axis"] == axis], 1e6 if axis == "weights" else 1
            level, at = table["level"] / scale, getattr(point, axis) / scale
            fine = np.geomspace(*level.iloc[[0, -1]], 100) if axis == "weights" else np.linspace(*level.iloc[[0, -1]], 100)
            curve = fitted(axis, fits[column - 1], fine * scale)
            spread, place = {"array": table[f"{name}_std"], "thickness": 1}, {"row": row, "col": column}
            figure.add_scatter(x=level, y=table[f"{name}_mean"], error_y=spread, mode="lines+markers", name="marginal", **place)
            figure.add_scatter(x=fine, y=curve, mode="lines", line={"dash": "dash", "color": "grey"}, name="fit", **place)
            star = {"symbol": "star", "size": 16, "color": "black"}
            figure.add_scatter(x=[at], y=[getattr(bound, axis)], mode="markers", marker=star, name="trade-off point", **place)
            figure.update_xaxes(type="log" if axis == "weights" and len(level) > 1 else "linear", **place)
            figure.update_xaxes(title=report._NAMES[axis] if row == 2 else "", **place)
        figure.update_yaxes(title=report._NAMES[f"{name}_mean"], row=row, col=1)
    layout = {"template": "plotly_white", "height": 560, "showlegend": False, "margin": {"t": 30}, "font_size": 11}
    return figure.update_layout(**layout).update_annotations(font_size=11)


def trade_off_explorer(surfaces: Mapping[str, Surface], marginals: pd.DataFrame, *, strength: float, bounds: Bounds) -> Panel:
    """Make the explorer; see ``explore.trade_off``."""
    absent = sorted(set(surfaces) - set(marginals["family"]))
    if not surfaces or absent:
        raise ValueError(f"{len(surfaces)} families, and no marginals of {', '.join(absent) or 'any'}: there is nothing to show")

    curves = Plot()

    def draw(family: str, ssim: tuple[float, float], unseen: float, weights: float, strength: float) -> View:
        asked = Bounds(ssim_at_least=ssim[0], ssim_at_most=ssim[1], unseen_fraction_at_least=unseen, weights_at_most=weights)
        point = trade_off_point(surfaces[family], strength, asked)
        demands = f"Asked for: SSIM {ssim[0]:.2f} to {ssim[1]:.2f}, unseen share {unseen:.2f} or more, {report._millions(weights)} or less."
        reading = f"{demands} {notebook.plain(report.say_point(family, point, surfaces[family], strength))}"
        curves.draw(marginal_figure(marginals[marginals["family"] == family], surfaces[family], point))
        return View(f"<p>{escape(reading)}</p>", {"point": point})

    controls = _controls(surfaces, strength, bounds)
    return Panel("What does more noise, more unseen classes or less size cost?", controls, draw, [curves])


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

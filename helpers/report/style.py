"""The look of every figure and the wording of every number."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import scipy.stats
import seaborn
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

_MARKERS = ("o", "s", "^", "D", "v", "P")
_LINES = ("-", "--", "-.", ":")
_LABELLED_CLASSES = 40  # drawn at most, each with its name
_NAMES = {"iou": "IoU", "iou_b": "IoU-B", "gap": "generalization gap\n(percentage points)"}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the one style of all figures: colour-blind palette, light grid, no box; what was set before is set again after."""
    no_box = {"axes.spines.top": False, "axes.spines.right": False}
    with plt.rc_context():
        seaborn.set_theme(context="notebook", style="whitegrid", palette="colorblind", color_codes=False, rc=no_box)
        yield


def colours(names: Sequence[str]) -> dict[str, tuple]:
    """Colour of each name; the same names in the same order always get the same."""
    return dict(zip(names, seaborn.color_palette("colorblind", len(names)), strict=True))


def levels_in_order(names: pd.Series) -> list:
    """List the distinct values, numbers by their size, also inside names: resnet18 before resnet101."""
    if pd.api.types.is_numeric_dtype(names):
        return sorted(names.unique())
    return sorted(
        names.unique(), key=lambda name: [(len(part), part) if part.isdigit() else (0, part) for part in re.split(r"(\d+)", str(name))]
    )


def nothing_to_draw(message: str) -> Figure:
    """A figure that says in words that there is nothing to draw."""
    figure, ax = plt.subplots(figsize=(7, 2))
    ax.text(0.5, 0.5, message, ha="center", va="center", wrap=True, transform=ax.transAxes)
    ax.set_axis_off()
    return figure


def fit_band(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Draw the least-squares line and the 95 % band of its mean (normal errors, models taken as independent)."""
    if len(x) < 3 or np.ptp(x) == 0:
        return
    slope, intercept = np.polyfit(x, y, 1)
    grid = np.linspace(x.min(), x.max(), 50)
    error = np.sqrt(((y - slope * x - intercept) ** 2).sum() / (len(x) - 2))
    spread = error * np.sqrt(1 / len(x) + (grid - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    half = scipy.stats.t.ppf(0.975, len(x) - 2) * spread
    line = slope * grid + intercept
    ax.plot(grid, line, color="black", linewidth=1.2, label="least squares")
    ax.fill_between(grid, line - half, line + half, color="black", alpha=0.12, linewidth=0, label="95 % band of its mean")


def in_order(names: pd.Series) -> list:
    """The distinct values, numbers by their size, also inside names: resnet18 before resnet101."""
    if pd.api.types.is_numeric_dtype(names):
        return sorted(names.unique())
    return sorted(names.unique(), key=lambda name: [(part.isdigit(), part.zfill(9)) for part in re.split(r"(\d+)", str(name))])


def short_name(model: Mapping[str, Any]) -> str:
    """A model as tables name it: "R18 · pretrained · aug · adam .004 · #e49a"; ``model`` is a row of the catalogue."""
    parts = [model["architecture"].replace("resnet", "R"), "pretrained" if model["pretrained"] else "scratch"]
    parts += ["aug"] if model["augmentation"] else []
    parts += [f"{model['images_per_class']:.0f} a class"] if model["images_per_class"] else []
    parts += [f"{model['label_noise']:.0%} wrong"] if model["label_noise"] else []
    parts += [f"{model['optimizer']} {model['learning_rate']:g}".replace(" 0.", " ."), f"#{model['run_id'][-4:]}"]
    return " · ".join(parts + (["first"] if model.get("snapshot") == "first" else []))


def count(number: int, noun: str) -> str:
    """Write a number with its noun in the right number: "1 model", "1,200 models", "3 classes"."""
    plural = noun + "es" if noun.endswith("s") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(items: Sequence[str], most: int = 4) -> str:
    """List a few items and count the rest."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def with_interval(value: float, low: float, high: float, unit: str = "") -> str:
    """A number with its 95 % interval: "-0.19 (-0.37 to 0.01)"; without one where there are too few configurations."""
    if not np.isfinite(value):
        return "undefined"
    ends = f" ({low:.2f} to {high:.2f})" if np.isfinite(low) and np.isfinite(high) else " (no interval)"
    return f"{value:.2f}{unit}{ends}"


def interval(low: float, high: float, absent: str = "no interval") -> str:
    """Write a 95 % interval, or that there is none."""
    return f"95 % interval {low:.2f} to {high:.2f}" if np.isfinite(low) and np.isfinite(high) else absent


def say_reliable(row: pd.Series) -> str:
    """Reliability of a measure in words, to stand in the brackets of its correlation; "" where it is not known."""
    found = row.get("reliability", np.nan)
    return f", reliability {found:.2f}" if np.isfinite(found) else ""


def ends(table: pd.DataFrame) -> pd.DataFrame:
    """The table where it has at most as many classes as are drawn, else its first and its last ones, half of that number each."""
    half = _LABELLED_CLASSES // 2
    return table if len(table) <= _LABELLED_CLASSES else pd.concat([table.head(half), table.tail(half)])


def points(fraction: float) -> str:
    """Write a fraction as percentage points; an undefined one in words."""
    return f"{100 * fraction:.1f} points" if np.isfinite(fraction) else "undefined"


def percent(fraction: float) -> str:
    """A fraction in percent, two digits; an undefined one in words."""
    if not np.isfinite(fraction):
        return "undefined"
    return f"{100 * fraction:.{2 if abs(fraction) < 0.995 else 3}g} %"


_BOX = {"edgecolor": "#ffd400", "facecolor": "none", "linewidth": 1.8}
_CAM_BOX = {"edgecolor": "#00d5ff", "facecolor": "none", "linewidth": 1.8, "linestyle": "--"}


def _show(ax: Axes, image: Tensor | np.ndarray, **options: object) -> None:
    pixels = np.asarray(image)
    ax.imshow(pixels.transpose(1, 2, 0) if pixels.ndim == 3 else pixels, interpolation="nearest", **options)  # pixels as they are
    ax.set_axis_off()


def _boxes(ax: Axes, boxes: Tensor, **options: object) -> None:
    # Pixel centres lie at whole numbers, so the half-open box [x0, x1) is drawn from x0 - 1/2 to x1 - 1/2.
    for x0, y0, x1, y1 in np.asarray(boxes).reshape(-1, 4).tolist():
        if x1 > x0 and y1 > y0:
            ax.add_patch(Rectangle((x0 - 0.5, y0 - 0.5), x1 - x0, y1 - y0, **(options or _BOX)))

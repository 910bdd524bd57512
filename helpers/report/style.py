"""How notebooks show things: style of figures, words for names and numbers, widgets."""

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn
from matplotlib import colormaps

from helpers.files import STAGING
from helpers.report.markup import in_words

# Shades of kinds of training by their start; colours of all else.
_STARTS = {"pretrained": "Blues", "scratch": "Oranges"}
_OTHERS = ["#4d4d4d", "#029e73", "#cc78bc", "#ca9161", "#949494", "#ece133"]
GAP = "generalization gap (points)"


def use() -> None:
    """Draw in the style of all figures: colours of ``colours``, light grid, no box."""
    look = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
    }
    seaborn.set_theme(style="whitegrid", palette=_OTHERS, rc=look)
    # seaborn's own figures choose their layout.
    warnings.filterwarnings("ignore", "The figure layout has changed to tight")


def interactive() -> bool:
    """Whether the notebook is open in JupyterLab, so that widgets respond.

    Jupyter sets a variable with the notebook's name in its kernels; a sweep marks its
    own kernels by another one.
    """
    return bool(os.environ.get("JPY_SESSION_NAME")) and not os.environ.get(STAGING)


def colours(names: Sequence[str]) -> dict[str, Any]:
    """Colour of each name, the same in all figures and in the explorers.

    Kinds of training in words, see ``markup.in_words``, are blue where they start
    pretrained and orange from scratch, lighter with fewer images of a class, and darker
    with augmentation. Other names have other colours, in their order.

    Example:
        >>> shades = colours(["pretrained", "from scratch, 125 a class"])
        >>> shades["pretrained"][2] > shades["pretrained"][0]  # more blue than red
        True
    """
    shades = {}
    for start, palette in _STARTS.items():
        of_start = [name for name in names if start in str(name)]
        of_start.sort(key=_amount_of_training)
        # A start without a word more has one shade in all studies. The lightest shades
        # of a palette cannot be told from the page.
        fewer = [name for name in of_start if _amount_of_training(name)[0] < math.inf]
        lighter = np.linspace(0.35, 0.65, len(fewer) + 1)[:-1]
        darker = np.linspace(0.65, 0.95, len(of_start) - len(fewer))
        places = np.concatenate([lighter, darker])
        colours_of_start = map(tuple, colormaps[palette](places)[:, :3].tolist())
        shades |= dict(zip(of_start, colours_of_start, strict=True))
    if len(shades) < len(names):
        many = seaborn.color_palette("husl", len(names))
        palette = _OTHERS if len(names) <= len(_OTHERS) else many
        return dict(zip(names, palette, strict=False))
    return {name: shades[name] for name in names}


def _amount_of_training(kind: str) -> tuple[float, int]:
    """Images of a class of a kind of training in words, and the length of its name."""
    number = re.search(r"(\d+) a class", kind)
    return float(number[1]) if number else math.inf, len(kind)


def in_order(names: pd.Series) -> list:
    """The distinct values, sorted; numbers in names count by their size.

    Example:
        >>> in_order(pd.Series(["resnet101", "resnet18"]))
        ['resnet18', 'resnet101']
    """
    if pd.api.types.is_numeric_dtype(names):
        return sorted(names.unique())

    def padded(name: object) -> str:
        return re.sub(r"\d+", lambda digits: digits[0].zfill(12), str(name))

    return sorted(names.unique(), key=padded)


def short_name(model: Mapping[str, Any]) -> str:
    """A model as tables name it: "ResNet18, pretrained, augmented, adam 0.004, seed 1".

    Args:
        model: a row of the catalogue.
    """
    parts = [
        in_words(model["kind"]),
        f"{model['optimizer']} {model['learning_rate']:g}",
        f"decay {model['weight_decay']:g}" if model["weight_decay"] else "",
        f"seed {model['repeat']}" if model["repeat"] else "",
        "first snapshot" if model["snapshot"] == "first" else "",
    ]
    return ", ".join(filter(None, parts))


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 model", "1,200 models", "3 classes"."""
    plural = noun + "es" if noun.endswith("s") else noun + "s"
    return f"{number:,} {noun if number == 1 else plural}"


def listed(items: Sequence[str], most: int = 4) -> str:
    """A few items, and the count of the rest."""
    shown = ", ".join(items[:most])
    return f"{shown} and {len(items) - most} more" if len(items) > most else shown


def points(fraction: float) -> str:
    """A fraction as percentage points; an undefined one in words."""
    return f"{100 * fraction:.1f} points" if np.isfinite(fraction) else "undefined"


def percent(fraction: float) -> str:
    """A fraction in percent, two digits; an undefined one in words."""
    if not np.isfinite(fraction):
        return "undefined"
    return f"{100 * fraction:.{2 if abs(fraction) < 0.995 else 3}g} %"


def with_interval(value: float, low: float, high: float) -> str:
    """A number with its interval, such as "-0.19 (-0.37 to 0.01)"."""
    if not np.isfinite(value):
        return "undefined"
    if not (np.isfinite(low) and np.isfinite(high)):
        return f"{value:.2f} (no interval)"
    return f"{value:.2f} ({low:.2f} to {high:.2f})"

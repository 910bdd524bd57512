"""How notebooks show things: style of figures, words for names and numbers, widgets.

Names from data are shown as they are and never become links or HTML; names of figures
and columns are written in words.
"""

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

# Shades of kinds of training by their start; colours of all else.
_STARTS = {"pretrained": "Blues", "scratch": "Oranges"}
_OTHERS = ["#4d4d4d", "#029e73", "#cc78bc", "#ca9161", "#949494", "#ece133"]
GAP = "generalization gap (points)"
# Places before which Markdown would begin a tag, a link or an address.
_LIVE = re.compile(
    r"""
    (?<=<)(?=[A-Za-z/!?])  # before the name of a tag
    | (?<=\])(?=[(\[:])  # between words in brackets and their address
    | (?<=:)(?=//) | (?<=www)(?=\.)  # inside of an address
    | (?<=\\)(?=href|url|html)  # before a link of TeX
    """,
    re.I | re.X,
)
_WORDS = {
    "cam": "CAM",
    "iou": "IoU",
    "kappa": "Kappa",
    "clip": "CLIP",
    "roc": "ROC",
    "ssim": "SSIM",
    # Words that columns of tables shorten.
    "cells": "configurations",
    "ours": "here",
    "points": "(points)",
    "train": "training",
    "twins": "in every architecture",
}
_KIND = re.compile(
    r"(?P<architecture>\S+) (?P<start>pretrained|scratch) (?P<details>.+)"
)
# Titles of figures whose names say too little.
_TITLES = {"primary": "The primary analysis"}


def use() -> None:
    """Draw in the style of all figures: colours of ``colours``, light grid, no box."""
    look = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
    }
    seaborn.set_theme(style="whitegrid", palette=_OTHERS, rc=look)
    # seaborn draws jitter from NumPy's global state: the same in each execution.
    np.random.seed(0)  # noqa: NPY002
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

    Kinds of training in words, see ``in_words``, are blue where they start
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


def inert(markdown: str) -> str:
    """Markdown in which names from data make no HTML, links or images.

    An invisible character (zero-width non-joiner) is put where a tag, a link or an
    address would begin. So a name reads as it is, in code too, where an escape would be
    visible.
    """
    return _LIVE.sub("\u200c", markdown)


def in_words(name: str) -> str:
    """Words of a name that is joined by "-" or "_", or of a kind of training.

    Example:
        >>> in_words("mean_iou"), in_words("resnet18")
        ('mean IoU', 'ResNet18')
        >>> in_words("resnet18 scratch plain 125 a class")
        'ResNet18, from scratch, 125 a class'
    """
    kind = _KIND.fullmatch(name)
    if kind:
        start = "from scratch" if kind["start"] == "scratch" else "pretrained"
        details = kind["details"].removeprefix("plain").strip()
        parts = [in_words(kind["architecture"]), start, details]
        return ", ".join(filter(None, parts))
    words = " ".join(_WORDS.get(part, part) for part in re.split("[-_]", name))
    words = words.replace("IoU b", "IoU-B").replace("resnet", "ResNet")
    return words.replace("efficientnet", "EfficientNet")


def kind_words(row: Mapping[str, Any]) -> str:
    """The kind of training of a network in words, without its architecture.

    Example:
        >>> kind_words({"kind": "resnet18 pretrained plain 125 a class"})
        'pretrained, 125 a class'
    """
    return in_words(row["kind"]).partition(", ")[2]


def figure_title(name: str) -> str:
    """Title of a figure by its name.

    Example:
        >>> figure_title("huang-figure-2-iou-against-gap")
        'IoU against gap (Huang et al., Figure 2)'
    """
    author, number, rest = re.match(r"(?:(\w+)-figure-(\d+)-)?(.*)", name).groups()
    words = _TITLES.get(rest) or in_words(rest)
    title = words[:1].upper() + words[1:]
    return f"{title} ({author.title()} et al., Figure {number})" if number else title

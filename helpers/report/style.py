"""The look of every figure and the wording of every number."""

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import seaborn

Tables = Mapping[str, pd.DataFrame]  # of a report, by name
GAP = "generalization gap (percentage points)"


def use() -> None:
    """Draw in the one style of all figures from now on: colour-blind palette, light grid, no box."""
    look = {
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.constrained_layout.use": True,
        "legend.frameon": False,
    }
    seaborn.set_theme(
        context="notebook", style="whitegrid", palette="colorblind", rc=look
    )
    warnings.filterwarnings(
        "ignore", "The figure layout has changed to tight"
    )  # seaborn's own figures choose theirs


def colours(names: Sequence[str]) -> dict[str, tuple]:
    """Colour of each name; the same names in the same order always get the same."""
    palette = seaborn.color_palette(
        "colorblind" if len(names) <= 10 else "husl", len(names)
    )
    return dict(zip(names, palette, strict=True))


def in_order(names: pd.Series) -> list:
    """The distinct values, numbers by their size, also inside names: resnet18 before resnet101."""
    if pd.api.types.is_numeric_dtype(names):
        return sorted(names.unique())
    return sorted(
        names.unique(),
        key=lambda name: [
            (part.isdigit(), part.zfill(9)) for part in re.split(r"(\d+)", str(name))
        ],
    )


def short_name(model: Mapping[str, Any]) -> str:
    """A model as tables name it: "R18 · pretrained · aug · adam .004 · #e49a"; ``model`` is a row of the catalogue."""
    parts = [
        model["architecture"].replace("resnet", "R"),
        "pretrained" if model["pretrained"] else "scratch",
    ]
    parts += ["aug"] if model["augmentation"] else []
    parts += (
        [f"{model['images_per_class']:.0f} a class"]
        if model["images_per_class"]
        else []
    )
    parts += [f"{model['label_noise']:.0%} wrong"] if model["label_noise"] else []
    looking = model.get("looking", "plain")  # catalogues of earlier versions lack it
    parts += [] if looking == "plain" else [looking.replace("_", " ")]
    strong = model.get("strong_augmentation", "none")
    parts += [] if strong == "none" else [strong]
    parts += ["smoothed"] if model.get("label_smoothing") else []
    frozen = model.get("frozen_stages")
    parts += [f"{frozen:.0f} frozen"] if frozen else []
    parts += [
        f"{model['optimizer']} {model['learning_rate']:g}".replace(" 0.", " ."),
        f"#{model['run_id'][-4:]}",
    ]
    return " · ".join(parts + (["first"] if model.get("snapshot") == "first" else []))


def count(number: int, noun: str) -> str:
    """A number with its noun in the right number: "1 model", "1,200 models", "3 classes"."""
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
    """A number with its interval: "-0.19 (-0.37 to 0.01)"; without one where there are too few configurations."""
    if not np.isfinite(value):
        return "undefined"
    ends = (
        f"({low:.2f} to {high:.2f})"
        if np.isfinite(low) and np.isfinite(high)
        else "(no interval)"
    )
    return f"{value:.2f} {ends}"

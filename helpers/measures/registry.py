"""The one list of measures: what each is called, where it comes from, which way it points, and what it needs."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

FAMILIES = (
    "localization",
    "prediction",
    "norms",
    "flatness",
    "perturbation",
    "unlabelled",
    "reliance",
)
MEASURES: dict[str, "Measure"] = {}
VALUES_VERSIONS = {
    "reliance": 2
}  # by family, else 1: raised with every change of its values, so that what was kept is computed anew
Value = (
    float | Mapping[str, float | str]
)  # what a measure returns: one number, or one per variant, or why there is none


@dataclass(frozen=True)
class Measure:
    """One claim to predict the generalization gap, as a function of a network and its training images."""

    name: str  # as a column of tables
    title: str  # as a label of figures
    family: str  # one of FAMILIES
    direction: int  # +1 when a larger value promises a smaller gap, -1 when a larger one; 0 for a count that promises nothing
    source: str  # paper and equation
    variants: tuple[
        str, ...
    ]  # ways to compute it; the first is the one that is ranked, and () is one way only
    summary: str  # one line
    needs: tuple[str, ...]  # names of what the function is given, see ``evidence``
    function: Callable[..., Value]

    def column(self, variant: str = "") -> str:
        """Column of a table that holds a variant: the first has the measure's own name."""
        return (
            self.name
            if variant in ("", *self.variants[:1])
            else f"{self.name} ({variant})"
        )


@cache
def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


def enter(item: Measure) -> None:
    """Add a measure to the list. Raises ValueError for a name that is taken."""
    if item.name in MEASURES:
        raise ValueError(
            f"the measure {item.name!r} is there already, from {MEASURES[item.name].function.__module__}"
        )
    MEASURES[item.name] = item


def measure(
    family: str,
    direction: int,
    source: str,
    *,
    title: str = "",
    variants: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Enter a function into the list of measures; it is then scored, tabled, drawn and ranked wherever measures are.

    Its arguments name what it needs: of ``evidence.PROVIDERS``, ``MeasureSettings`` or ``GIVEN``. It returns a ``Value``; NaN where it is
    undefined, and a ``ValueError`` says why it cannot be had. An empty title is the name in words.
    """

    def entered(function: Callable[..., Value]) -> Callable[..., Value]:
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        measures(
            family,
            direction,
            (function.__name__, title, source, summary, function),
            variants=variants,
        )
        return function

    return entered


def measures(
    family: str,
    direction: int,
    *rows: tuple[str, str, str, str, Callable[..., Value]],
    variants: tuple[str, ...] = (),
) -> None:
    """Enter measures of one row each: name, title (empty: the name in words), source, summary, and the function, see ``measure``."""
    for name, title, source, summary, function in rows:
        enter(
            Measure(
                name,
                title or name.replace("_", " "),
                family,
                direction,
                source,
                variants,
                summary,
                needs(function),
                function,
            )
        )


def of_families(families: Sequence[str]) -> list[Measure]:
    """The measures of some families, in their order."""
    return [
        item
        for family in families
        for item in MEASURES.values()
        if item.family == family
    ]


def ranked() -> dict[str, Measure]:
    """The columns that claim something, with their measure: the first variant of each that has a direction."""
    return {item.column(): item for item in MEASURES.values() if item.direction}


def columns() -> pd.DataFrame:
    """Every column that scores can have, with what is known of its measure; direction 0 is a count."""
    rows = []
    for item in MEASURES.values():
        for variant in item.variants or ("",):
            title = (
                item.title
                if variant in ("", *item.variants[:1])
                else f"{item.title}, {variant}"
            )
            row = {
                "column": item.column(variant),
                "measure": item.name,
                "variant": variant,
                "title": title,
                "family": item.family,
            }
            row |= {
                "direction": item.direction,
                "source": item.source,
                "needs": ", ".join(item.needs),
                "summary": item.summary,
            }
            rows.append(row)
    return pd.DataFrame(rows)

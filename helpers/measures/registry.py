"""The one list of measures: what each is called, where it comes from, which way it points, and what it needs."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pandas as pd

FAMILIES = ("localization", "prediction", "norms", "flatness", "perturbation", "unlabelled", "reliance")
MEASURES: dict[str, "Measure"] = {}
VALUES_VERSION = 1  # raised with every formula that gives other values, so that what was kept before is computed anew

# What a measure returns: one number, or one per variant.
Value = float | Mapping[str, float]


@cache
def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's arguments."""
    return tuple(inspect.signature(function).parameters)


@dataclass(frozen=True)
class Measure:
    """One claim to tell a small generalization gap from a large one, as a function of a network and its training images."""

    name: str  # as a column of tables
    title: str  # as a label of figures
    family: str  # one of FAMILIES
    direction: int  # +1 when a larger value promises a smaller gap, -1 when a larger one; 0 for a count that promises nothing
    source: str  # paper and equation
    variants: tuple[str, ...]  # ways to compute it; the first is the one that is ranked, and () is one way only
    function: Callable[..., Value]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of what the function is given, see ``evidence``."""
        return needs(self.function)

    @property
    def summary(self) -> str:
        """First line of the function's documentation."""
        return (inspect.getdoc(self.function) or "").partition("\n")[0]

    def column(self, variant: str = "") -> str:
        """Column of a table that holds a variant: the first has the measure's own name."""
        if variant and variant not in self.variants:
            raise ValueError(f"measure {self.name!r} has no variant {variant!r}; it has {', '.join(self.variants) or 'none'}")
        return self.name if variant in ("", *self.variants[:1]) else f"{self.name} ({variant})"


def measure(
    family: str, direction: int, source: str, *, title: str = "", variants: tuple[str, ...] = ()
) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Enter a function into the list of measures; it is then scored, tabled, drawn and ranked wherever measures are.

    The function's arguments name what it needs: anything in ``evidence.PROVIDERS``, a field of ``evidence.Settings``, or one of
    ``evidence.GIVEN``. It returns a float, or a mapping from each of ``variants`` to a float; NaN where it is undefined. A
    ``ValueError`` says why it cannot be had for a network at all, and becomes NaN with that reason.

    Args:
        family: one of ``FAMILIES``.
        direction: +1 when a larger value promises a smaller gap, -1 when it promises a larger one; 0 for a count that goes with the
            scores, which is never ranked.
        source: paper and equation.
        title: label in figures; the function's name in words when empty.
        variants: names of the ways to compute it, the one to be ranked first.

    Raises:
        ValueError: an unknown family or direction, or a name that is taken.
    """
    if family not in FAMILIES:
        raise ValueError(f"family {family!r} is unknown; choose one of {', '.join(FAMILIES)}")
    if direction not in (1, -1, 0):
        raise ValueError(f"direction {direction!r} must be +1 (larger is better), -1 (larger is worse) or 0 (a count)")

    def enter(function: Callable[..., Value]) -> Callable[..., Value]:
        name = function.__name__
        if name in MEASURES:
            raise ValueError(f"the measure {name!r} is there already, from {MEASURES[name].function.__module__}")
        MEASURES[name] = Measure(name, title or name.replace("_", " "), family, direction, source, variants, function)
        return function

    return enter


def of_families(families: tuple[str, ...] | list[str]) -> list[Measure]:
    """List the measures of some families, in the order of the families and of their definition."""
    return [item for family in families for item in MEASURES.values() if item.family == family]


def ranked() -> dict[str, Measure]:
    """List the columns that claim something, with their measure: the first variant of each that has a direction."""
    return {item.column(): item for item in MEASURES.values() if item.direction}


def columns() -> pd.DataFrame:
    """List every column that scores can have: column, measure, variant, title, family, direction (0: a count), source, needs, summary."""
    rows = []
    for item in MEASURES.values():
        for variant in item.variants or ("",):
            title = item.title if variant in ("", *item.variants[:1]) else f"{item.title}, {variant}"
            row = {"column": item.column(variant), "measure": item.name, "variant": variant, "title": title, "family": item.family}
            row |= {"direction": item.direction, "source": item.source, "needs": ", ".join(item.needs), "summary": item.summary}
            rows.append(row)
    return pd.DataFrame(rows)

"""The one list of measures: name, source, direction and needs of each."""

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
# Functions that compute what measures ask for, by the name of what they compute.
PROVIDERS: dict[str, Callable[..., Any]] = {}
# Version of a family's values, 1 where it is absent; raised when a formula changes, so
# that values are computed anew.
VALUES_VERSIONS = {"reliance": 2}
# What a measure returns: a number, or one for each variant that there is.
Value = float | Mapping[str, float]


@dataclass(frozen=True)
class Measure:
    """A claim to predict the generalization gap from a network and its images."""

    name: str  # as a column of tables
    title: str  # as a label of figures
    family: str  # one of FAMILIES
    direction: int  # +1: a larger value promises a smaller gap; -1: a larger; 0: none
    source: str  # paper and equation
    variants: tuple[str, ...]  # ways to compute it, of which the first is ranked; or ()
    summary: str  # one line
    function: Callable[..., Value]

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the function's arguments, see ``evidence``."""
        return needs(self.function)

    def column(self, variant: str = "") -> str:
        """Column of tables that holds a variant; the first has the measure's name.

        Args:
            variant: of the measure; "" is the first.
        """
        if self._is_first(variant):
            return self.name
        return f"{self.name} ({variant})"

    def label(self, variant: str = "") -> str:
        """Label of a variant in figures; the first has the measure's title.

        Args:
            variant: of the measure; "" is the first.
        """
        if self._is_first(variant):
            return self.title
        return f"{self.title}, {variant}"

    def _is_first(self, variant: str) -> bool:
        return variant in ("", *self.variants[:1])


@cache
def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a function's arguments, or those of its attribute ``needs``.

    Args:
        function: that computes a value.
    """
    return getattr(function, "needs", tuple(inspect.signature(function).parameters))


def is_from_outside(function: Callable[..., Any]) -> bool:
    """Whether a function is from a notebook cell or a user's module.

    Args:
        function: of a measure, or of what measures need.

    Returns:
        True where no process but this one is sure to have it.
    """
    return function.__module__.partition(".")[0] != "helpers"


def measure(
    family: str,
    direction: int,
    source: str,
    *,
    title: str = "",
    variants: tuple[str, ...] = (),
) -> Callable[..., Any]:
    """Enter a function into the list of measures.

    It is then scored, tabled, drawn and ranked wherever measures are. Its arguments
    name what it needs: of ``evidence.PROVIDERS``, ``evidence.INPUTS``,
    ``MeasureSettings`` or other measures. It returns a ``Value``, NaN where it is
    undefined; its ``faults.Undefined`` is the reason why there is no value, and any
    other error stops. The first line of
    its docstring is the summary.

    Args:
        family: one of ``FAMILIES``.
        direction: +1 where a larger value promises a smaller gap, -1 where it promises
            a larger one, 0 for a count.
        source: paper and equation.
        title: a label for figures; the name in words where it is empty.
        variants: names of the values where it returns several; the first is ranked.

    Returns:
        The decorator, which leaves the function as it is. A measure of a notebook cell
        replaces itself.

    Raises:
        ValueError: by the decorator, if the name is taken by a measure of the workbook,
            or by a value that measures share.
    """

    def decorate(function: Callable[..., Value]) -> Callable[..., Value]:
        name = function.__name__
        present = MEASURES.get(name)
        taken = present is not None and not is_from_outside(present.function)
        if taken or name in PROVIDERS:
            raise ValueError(
                f"the measure or value {name!r} already exists; choose another name"
            )
        MEASURES[name] = Measure(
            name=name,
            title=title or name.replace("_", " "),
            family=family,
            direction=direction,
            source=source,
            variants=variants,
            summary=(inspect.getdoc(function) or "").partition("\n")[0],
            function=function,
        )
        return function

    return decorate


def measures_of_families(families: Sequence[str]) -> list[Measure]:
    """The measures of some families, in their order.

    Args:
        families: of ``FAMILIES``.
    """
    measures = []
    for family in families:
        measures += [item for item in MEASURES.values() if item.family == family]
    return measures


def ranked() -> dict[str, Measure]:
    """Measures with a direction, by the column of their first variant."""
    return {item.column(): item for item in MEASURES.values() if item.direction}


def columns() -> pd.DataFrame:
    """All columns that scores can have.

    Returns:
        A row per measure and variant: column, measure, variant, title, family,
        direction (0 is a count), source, needs, summary, defined_in (module and
        function).
    """
    rows = []
    for item in MEASURES.values():
        for variant in item.variants or ("",):
            row = {
                "column": item.column(variant),
                "measure": item.name,
                "variant": variant,
                "title": item.label(variant),
                "family": item.family,
                "direction": item.direction,
                "source": item.source,
                "needs": ", ".join(item.needs),
                "summary": item.summary,
                "defined_in": f"{item.function.__module__}.{item.function.__name__}",
            }
            rows.append(row)
    return pd.DataFrame(rows)

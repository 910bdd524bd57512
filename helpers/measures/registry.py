"""The one list of measures: name, source, direction and needs of each."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.parameters import fault_of, near_names

FAMILIES = (
    "localization",
    "prediction",
    "norms",
    "flatness",
    "perturbation",
    "unlabelled",
    "reliance",
)
# A function that computes a value; its arguments name what it needs.
Source = Callable[..., Any]
# What a measure returns: a number, or one for each variant that there is. In place of a
# number may stand the values (N,) of single images, whose mean it is.
Value = float | NDArray[np.floating] | Mapping[str, float | NDArray[np.floating]]
SOURCES: dict[str, Source] = {}  # by the name of what they compute, measures included
MEASURES: dict[str, "Measure"] = {}
# Version of a family's values, 1 where it is absent; raised when a formula changes, so
# that values are computed anew.
VALUES_VERSIONS = {"reliance": 2}


@dataclass(frozen=True)
class Measure:
    """A claim to predict the generalization gap from a network and its images."""

    name: str  # as a column of tables
    title: str  # as a label of figures
    family: str  # one of FAMILIES
    direction: int  # +1: a larger value promises a smaller gap; -1: a larger; 0: none
    source: str  # paper and equation
    variants: tuple[str, ...]  # ways to compute it, of which the first is ranked; or ()
    function: Callable[..., Value]

    def column(self, variant: str) -> str:
        """Column of tables that holds a variant; the first has the measure's name.

        Args:
            variant: of the measure; "" is the first.
        """
        is_first = variant in ("", *self.variants[:1])
        return self.name if is_first else f"{self.name} ({variant})"


def needs(function: Source) -> tuple[str, ...]:
    """Names of a function's arguments, or those of its attribute ``needs``.

    Args:
        function: that computes a value.
    """
    return getattr(function, "needs", tuple(inspect.signature(function).parameters))


def is_from_outside(function: Source) -> bool:
    """Whether a function is from a notebook cell or a user's module.

    Args:
        function: of a measure, or of what measures need.

    Returns:
        True where no process but this one is sure to have it.
    """
    return function.__module__.partition(".")[0] != "helpers"


def provides(function: Source) -> Source:
    """Enter a function into what measures can ask for, under its name.

    Args:
        function: its arguments name what it needs in turn.

    Returns:
        The function. One of a notebook cell replaces itself.

    Raises:
        ValueError: if a value or measure of the workbook has its name.
    """
    name = function.__name__
    if name in SOURCES and not is_from_outside(SOURCES[name]):
        raise ValueError(
            f"the measure or value {name!r} already exists; choose another name"
        )
    SOURCES[name] = function
    return function


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
    name what it needs: of ``SOURCES``, ``evidence.INPUTS`` or ``MeasureSettings``. It
    returns a ``Value``, NaN where it is undefined; its ``networks.Undefined`` is the
    reason why there is no value, and any other error stops. The first line of its
    docstring is the summary.

    Args:
        family: one of ``FAMILIES``.
        direction: +1 where a larger value promises a smaller gap, -1 where it promises
            a larger one, 0 for a count.
        source: paper and equation.
        title: a label for figures; the name in words where it is empty.
        variants: names of the values where it returns several; the first is ranked.

    Returns:
        The decorator, which leaves the function as it is, see ``provides``.

    Raises:
        ValueError: for another family; by the decorator, see ``provides``.
    """
    if fault := fault_of("families", family):
        raise ValueError(fault)

    def decorate(function: Callable[..., Value]) -> Callable[..., Value]:
        provides(function)
        name = function.__name__
        label = title or name.replace("_", " ")
        MEASURES[name] = Measure(
            name, label, family, direction, source, variants, function
        )
        return function

    return decorate


def measures_of_families(families: Sequence[str]) -> list[Measure]:
    """The measures of some families, and single ones that are named.

    Args:
        families: of ``FAMILIES``, or names of measures.

    Raises:
        ValueError: for a name that does not exist.
    """
    for name in families:
        if name not in FAMILIES and name not in MEASURES:
            raise ValueError(
                f"measures have no family {name!r}{near_names(name, FAMILIES)}; there "
                f"are {', '.join(FAMILIES)}"
            )
    return [
        item
        for item in MEASURES.values()
        if item.family in families or item.name in families
    ]


def check_columns(names: Iterable[str]) -> None:
    """Refuse names that no measure has.

    Args:
        names: of columns, see ``Measure.column``.

    Raises:
        ValueError: for the first such name.
    """
    known = columns()["column"].tolist()
    for name in names:
        if name not in known:
            raise ValueError(
                f"no measure has the name {name!r}{near_names(name, known)}; "
                "docs/measures.md lists them"
            )


def ranked() -> dict[str, Measure]:
    """Measures with a direction, by the column of their first variant."""
    return {name: item for name, item in MEASURES.items() if item.direction}


def columns() -> pd.DataFrame:
    """All columns that scores can have.

    Returns:
        A row per measure and variant: column, measure, variant, title, family,
        direction (0 is a count), source, summary, defined_in (module and function).
    """
    rows = []
    for item in MEASURES.values():
        for variant in item.variants or ("",):
            column = item.column(variant)
            is_first = column == item.name
            row = {
                "column": column,
                "measure": item.name,
                "variant": variant,
                "title": item.title if is_first else f"{item.title}, {variant}",
                "family": item.family,
                "direction": item.direction,
                "source": item.source,
                "summary": (inspect.getdoc(item.function) or "").partition("\n")[0],
                "defined_in": f"{item.function.__module__}.{item.name}",
            }
            rows.append(row)
    return pd.DataFrame(rows)

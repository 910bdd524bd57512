"""Models as statistics see them: the level of each hyperparameter as a number, the cells they make, and measures as a matrix."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.agreement import Array

Codes = NDArray[np.int64]


def check_columns(catalogue: pd.DataFrame, measures: Mapping[str, int], *needed: str) -> None:
    """Refuse a catalogue without a column that is needed, and a direction that is not +1 or -1.

    Raises:
        ValueError: naming all absent columns, or all odd directions.
    """
    if absent := [name for name in ("gap", *needed, *measures) if name not in catalogue]:
        raise ValueError(f"the catalogue has no column {', '.join(absent)}")
    if odd := {name: direction for name, direction in measures.items() if direction not in (1, -1)}:
        raise ValueError(f"directions {odd} must be +1 (larger is better) or -1 (larger is worse)")


def arrays_of(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str], *needed: str) -> tuple[Array, Array, Codes]:
    """Give measures that grow with the gap when they work (n, M), the gap (n,), and the level of each hyperparameter (n, A).

    Raises:
        ValueError: an absent column, no axis, a direction that is not +1 or -1, or a missing hyperparameter.
    """
    check_columns(catalogue, measures, *needed, *axes)
    if not axes:
        raise ValueError("there are no hyperparameters; name one axis at least")
    values = catalogue[list(measures)].to_numpy(dtype=float) * -np.array(list(measures.values()), dtype=float)
    levels = np.stack([level_codes(name, catalogue[name]) for name in axes], axis=1)
    return values, catalogue["gap"].to_numpy(dtype=float), levels


def level_codes(name: str, values: ArrayLike) -> Codes:
    """Number the levels of a hyperparameter: (n,) values -> (n,) codes from 0; floats are equal within 1e-9, relative.

    Raises:
        ValueError: values are missing.
    """
    column = pd.Series(values)
    if column.isna().any():
        raise ValueError(f"hyperparameter {name!r} has {int(column.isna().sum())} missing values; every model needs one")
    values = column.infer_objects().to_numpy()
    if values.dtype.kind != "f":
        return pd.factorize(values)[0].astype(np.int64)
    levels, codes = np.unique(values, return_inverse=True)
    # A learning rate that was computed in two ways is one level.
    return np.cumsum(np.diff(levels, prepend=levels[:1]) > 1e-9 * np.abs(levels))[codes]


def joint_codes(columns: Sequence[Codes], models: int) -> Codes:
    """Number the combinations that occur: several (n,) codes -> one, in order of first appearance; all 0 for no column."""
    joint = np.zeros(models, dtype=np.int64)
    for codes in columns:
        joint = pd.factorize(joint * (codes.max(initial=0) + 1) + codes)[0].astype(np.int64)
    return joint


def finite_groups(values: Array, needed: NDArray[np.bool_]) -> Iterator[tuple[NDArray[np.bool_], Codes]]:
    """Group columns that are finite for the same models, among the ``needed`` (n,): the (n,) mask of these, and the columns' numbers."""
    finite = np.isfinite(values) & needed[:, None]
    groups = pd.factorize(np.array([np.packbits(column).tobytes() for column in finite.T], dtype=object))[0]
    for group in range(groups.max(initial=-1) + 1):
        columns = np.flatnonzero(groups == group)
        yield finite[:, columns[0]], columns


def cell_means(values: Array, cells: Codes) -> Array:
    """Average the models of each cell, leaving out NaN: (n, M) -> (C, M), cells in order of their codes."""
    mantissa, exponent = np.frexp(pd.DataFrame(values).groupby(cells).mean().to_numpy())
    # Rounded to 40 bits: repeats that are equal would else differ by the rounding of their mean, and ties would get an order.
    return np.ldexp(np.rint(np.ldexp(mantissa, 40)), exponent - 40)

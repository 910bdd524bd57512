"""What is left of a correlation with the gap when the hyperparameters that move both are held fixed."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.statistics.correlations import Array, Codes, design, level_codes
from helpers.statistics.draws import Draws

ALL = "all"
POOLED, WITHIN, GIVEN_ALL, GIVEN_ONE, GRANULATED = "pooled", "within a level", "given all", "given one", "granulated"
CONFOUNDER_COLUMNS = ["measure", "kind", "hyperparameter", "level", "n", "r", "ci_low", "ci_high", "published"]


def check_columns(catalogue: pd.DataFrame, measures: Mapping[str, int], *needed: str) -> None:
    """Refuse a catalogue without a column that is needed, and a direction that is not +1 or -1.

    Raises:
        ValueError: naming all absent columns, or all odd directions.
    """
    if absent := [name for name in ("gap", *needed, *measures) if name not in catalogue]:
        raise ValueError(f"the catalogue has no column {', '.join(absent)}")
    if odd := {name: direction for name, direction in measures.items() if direction not in (1, -1)}:
        raise ValueError(f"directions {odd} must be +1 (larger is better) or -1 (larger is worse)")


def arrays_of(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str]) -> tuple[Array, Array, Codes]:
    """Measures that grow with the gap when they work (n, M), the gap (n,), and the level of each hyperparameter (n, A).

    Raises:
        ValueError: an absent column, no axis, a direction that is not +1 or -1, or a missing hyperparameter.
    """
    check_columns(catalogue, measures, *axes)
    if not axes:
        raise ValueError("there are no hyperparameters; name one axis at least")
    values = catalogue[list(measures)].to_numpy(dtype=float) * -np.array(list(measures.values()), dtype=float)
    levels = np.stack([level_codes(name, catalogue[name]) for name in axes], axis=1)
    return values, catalogue["gap"].to_numpy(dtype=float), levels


def joint_codes(columns: Sequence[Codes], models: int) -> Codes:
    """Number the combinations that occur: several (n,) codes -> one, in order of first appearance; all 0 for no column."""
    joint = np.zeros(models, dtype=np.int64)
    for codes in columns:
        joint = pd.factorize(joint * (codes.max(initial=0) + 1) + codes)[0].astype(np.int64)
    return joint


def cell_means(values: Array, cells: Codes) -> Array:
    """Average the models of each cell, leaving out NaN: (n, M) -> (C, M), cells in order of their codes."""
    mantissa, exponent = np.frexp(pd.DataFrame(values).groupby(cells).mean().to_numpy())
    # Rounded to 40 bits: repeats that are equal would else differ by the rounding of their mean, and ties would get an order.
    return np.ldexp(np.rint(np.ldexp(mantissa, 40)), exponent - 40)


def granulated_kendall(catalogue: pd.DataFrame, measures: Mapping[str, int], axes: Sequence[str]) -> pd.DataFrame:
    """Rank correlation with the gap while only one hyperparameter changes: granulated Kendall; Jiang et al. 2020, equations (6) and (7).

    For axis i, ``psi_i`` is the mean over the settings of the other axes of ``tau = 1 / (k (k - 1)) sum_{a != b} sgn(C_a - C_b)
    sgn(G_a - G_b)`` over the k cells of the setting, with C = -direction * measure and G the gap; ``Psi = mean_i psi_i``. A tie adds 0.
    The models of one cell are averaged first. A setting with one cell only is left out.

    Args:
        catalogue: one row per model: gap, the axes and a column per measure.
        measures: column to direction, +1 when a larger value promises a smaller gap, else -1.
        axes: the hyperparameters; floats are equal within 1e-9, relative.

    Returns:
        One row per measure and hyperparameter, with "all" for Psi last: psi in [-1, 1], positive for a measure that works; groups, the
        settings it averages; n models, dropped (not finite). An axis without a setting of two cells is NaN and not in Psi.

    Raises:
        ValueError: an absent column, no axis, a direction that is not +1 or -1, or a missing hyperparameter.
    """
    values, gap, levels = arrays_of(catalogue, measures, axes)
    finite = np.isfinite(values) & np.isfinite(gap)[:, None]
    cells = joint_codes(levels.T, len(levels))
    # The gap is averaged over the models where the measure is finite, hence once per measure.
    x, y = (cell_means(np.where(finite, table, np.nan), cells) for table in (values, gap[:, None]))
    levels = levels[np.unique(cells, return_index=True)[1]]
    psi, groups = np.empty((len(axes) + 1, len(measures))), np.zeros((len(axes) + 1, len(measures)), dtype=np.int64)
    for axis in range(len(axes)):
        rest = joint_codes(np.delete(levels, axis, axis=1).T, len(levels))
        psi[axis], groups[axis] = _mean_tau(x, y, rest)
    psi[-1], groups[-1] = mean_where(psi[:-1], np.isfinite(psi[:-1])), groups[:-1].sum(0)
    rows = []
    for column, name in enumerate(measures):
        counts = {"n": int(finite[:, column].sum()), "dropped": int((~finite[:, column]).sum())}
        for number, axis in enumerate([*axes, ALL]):
            row = {"measure": name, "hyperparameter": axis, "psi": psi[number, column], "groups": groups[number, column]}
            rows.append(row | counts)
    return pd.DataFrame(rows)


def _mean_tau(x: Array, y: Array, rest: Codes) -> tuple[Array, Codes]:
    """Mean of tau-a over the groups of cells with the same ``rest``, and how many groups have two: (C, M) -> (M,) each."""
    taus = [np.empty((0, x.shape[1]))]
    for rows in pd.Series(rest).groupby(rest).indices.values():
        one, other = (rows[places] for places in np.triu_indices(len(rows), 1))
        agreement = np.sign(x[one] - x[other]) * np.sign(y[one] - y[other])
        taus.append(mean_where(agreement, np.isfinite(agreement))[None])
    known = np.isfinite(taus := np.vstack(taus))
    return mean_where(taus, known), known.sum(0)


def mean_where(values: Array, chosen: NDArray[np.bool_]) -> Array:
    """Mean over the first axis of the chosen values, NaN where there is none."""
    counts = chosen.sum(0)
    return np.where(chosen, values, 0).sum(0) / np.where(counts > 0, counts, np.nan)


def confounders(draws: Draws, measures: Sequence[str], axes: Sequence[str], theirs: Mapping[str, float] | None = None) -> pd.DataFrame:
    """Put the pooled correlation of each measure with the gap beside what is left of it with hyperparameters held fixed.

    A correlation that is strong in all models and weak or reversed within levels comes from the hyperparameter: Simpson's paradox.

    Args:
        draws: of models: gap, cell, the axes and a column per measure.
        axes: hyperparameters with more than one level; there may be none.
        theirs: the paper's pooled r by measure.

    Returns:
        ``CONFOUNDER_COLUMNS``, per measure: "pooled"; "within a level" of each hyperparameter; "given all" and "given one", partial
        correlations; "granulated", Kendall's tau while one hyperparameter changes, and its mean ("all"), without interval. r has the
        sign of the raw measure; NaN where undefined.
    """
    models, names, theirs = draws.models, list(measures), theirs or {}
    check_columns(models, dict.fromkeys(names, 1), *axes)
    if not names:
        return pd.DataFrame(columns=CONFOUNDER_COLUMNS)
    pooled = draws.correlations(names, tau=False)
    parts = [pooled.assign(kind=POOLED, hyperparameter=ALL, published=pooled["measure"].map(theirs).astype(float))]
    for axis in axes:
        codes = level_codes(axis, models[axis])
        for rows in (codes == number for number in range(codes.max(initial=-1) + 1)):
            found = draws.of(rows).correlations(names, tau=False)
            parts.append(found.assign(kind=WITHIN, hyperparameter=axis, level=str(models.loc[rows, axis].iloc[0])))
    for kind, held in [*([(GIVEN_ALL, list(axes))] if axes else []), *((GIVEN_ONE, [axis]) for axis in axes)]:
        left = draws.correlations(names, given=design(models, held), tau=False)
        parts.append(left.assign(kind=kind, hyperparameter=ALL if kind == GIVEN_ALL else held[0]))
    if axes:
        raw = granulated_kendall(models, dict.fromkeys(names, -1), axes)
        parts.append(raw.rename(columns={"psi": "pearson_r"}).assign(kind=GRANULATED))
    table = pd.concat([part.rename(columns={"pearson_r": "r"}).reindex(columns=CONFOUNDER_COLUMNS) for part in parts], ignore_index=True)
    order = table["measure"].map({name: number for number, name in enumerate(names)})
    return table.assign(level=table["level"].astype(object).fillna("")).iloc[np.argsort(order, kind="stable")].reset_index(drop=True)


def subsets(draws: Draws, measure: str, column: str) -> pd.DataFrame:
    """Correlate a measure with the gap among the models of each level of a column, such as snapshot, repeat or label_noise.

    Returns:
        One row per level, sorted: column, level, n, dropped, cells, mean (of the measure), mean_gap, pearson_r, ci_low, ci_high.
    """
    parts = []
    for level in sorted(draws.models[column].dropna().unique()):
        part = draws.of(draws.models[column] == level)
        means = {"column": column, "level": str(level), "mean": part.models[measure].mean(), "mean_gap": part.models["gap"].mean()}
        parts.append(part.correlations([measure], tau=False).assign(**means))
    names = ["column", "level", "n", "dropped", "cells", "mean", "mean_gap", "pearson_r", "ci_low", "ci_high"]
    return pd.concat(parts, ignore_index=True)[names] if parts else pd.DataFrame(columns=names)


def changes(draws: Draws, measure: str, column: str, unit: Sequence[str]) -> pd.DataFrame:
    """Correlate the change of a measure with the change of the gap between two models that differ in one column only.

    Args:
        draws: of models: gap, cell, the measure, the column and the unit; configurations are drawn, images are not.
        column: what differs, such as snapshot or repeat: each further level is compared with the first.
        unit: the columns that two models of a pair share, such as run_id, or cell and snapshot.

    Returns:
        One row like those of ``subsets``, level "change between levels", where n counts pairs, and mean and mean_gap are mean absolute
        changes; n is 0 where no pair is.
    """
    pairs = []
    for _, part in draws.models.sort_values(column).groupby(list(unit), sort=True):
        if len(part) > 1:
            differences = part[[measure, "gap"]].iloc[1:] - part[[measure, "gap"]].iloc[0]
            pairs.append(differences.assign(cell=part["cell"].iloc[0]))
    found = pd.concat(pairs) if pairs else pd.DataFrame({name: pd.Series(dtype=float) for name in (measure, "gap", "cell")})
    row = subsets(Draws(found.assign(**{column: "change between levels"}), draws=draws.draws, seed=draws.seed), measure, column)
    if not len(row):
        return pd.DataFrame([{"column": column, "level": "change between levels", "n": 0}]).reindex(columns=row.columns)
    return row.assign(mean=found[measure].abs().mean(), mean_gap=found["gap"].abs().mean())

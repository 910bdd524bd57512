"""Statistics that hold hyperparameters fixed, by other papers than Du et al. 2024.

Granulated rank correlation and conditional information (Jiang et al. 2020), sign errors
(Dziugaite et al. 2020), and the scores of tasks (Schiff et al. 2021).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike, NDArray

from helpers.statistics.correlate import (
    CONFIGURATION,
    Array,
    Bootstrap,
    finite_mean,
    same_models,
    slices,
)
from helpers.statistics.permutation import Rows, against_chance, permuted_rows

# Effective number of pairs, ``(sum of weights)^2 / sum of squared weights``, below
# which an environment is left out, as in Dziugaite et al. 2020.
MINIMUM_SAMPLE = 12.0


def _groups(levels: pd.DataFrame) -> list[Rows]:
    """Numbers of the rows that agree in all columns; without a column all agree."""
    table = levels.assign(all=0)
    return [*table.groupby([*table]).indices.values()]


def _of_configurations(levels: pd.DataFrame, *values: Array) -> tuple[Any, ...]:
    """Levels, and means (C, M) of values (n, M), of each configuration.

    Means are of finite values and have 12 digits: else those of equal values would
    differ by their rounding, and configurations that tie would get an order.
    """
    groups = _groups(levels)
    means = []
    for of_models in values:
        mean = np.array([finite_mean(of_models[rows]) for rows in groups])
        mantissa, exponent = np.frexp(mean)
        means.append(np.ldexp(mantissa.round(12), exponent))
    return levels.iloc[[rows[0] for rows in groups]], *means


def granulated_kendall(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str]
) -> Array:
    """Rank correlation with the gap while only one hyperparameter changes.

    Granulated Kendall; Jiang et al. 2020, equations (6) and (7). The configurations
    that agree in all but one hyperparameter form a group. Tau-a is averaged over the
    groups of two configurations or more, and then over hyperparameters.

    Args:
        models: a row per model.
        measures: M columns.
        axes: hyperparameters.

    Returns:
        (M,) in [-1, 1]; NaN without such a group.
    """
    values = models[list(measures)].to_numpy(float)
    gap = models[["gap"]].to_numpy(float)
    is_finite = np.isfinite(values) & np.isfinite(gap)
    # The gap is averaged over the models where that measure is finite.
    both = (np.where(is_finite, of, np.nan) for of in (values, gap))
    levels, x, y = _of_configurations(models[list(axes)], *both)
    undefined = np.full(len(measures), np.nan)
    psi = [undefined]
    for axis in axes:
        taus = [undefined]
        for rows in _groups(levels.drop(columns=axis)):
            first, second = rows[np.array(np.triu_indices(len(rows), 1))]
            signs = np.sign(x[first] - x[second]) * np.sign(y[first] - y[second])
            taus.append(finite_mean(signs))
        psi.append(finite_mean(np.array(taus)))
    return finite_mean(np.array(psi))


def conditional_information(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str], gaps: Array
) -> Array:
    """Share of the entropy of the order of two models that a measure explains.

    The order is that of their gaps; Jiang et al. 2020, PGDL. Ordered pairs (a, b) of
    configurations fall into cells u by the values that some hyperparameters have in
    both. With ``V_g = 1[gap_a > gap_b]`` and ``V_mu = 1[measure_a > measure_b]`` the
    share is ``mean_u I(V_g; V_mu | u) / mean_u H(V_g | u)`` over cells of two pairs or
    more, and the score is the least share of all sets of at most two hyperparameters.
    It is above 0 by chance alone, so compare scores of the same models only.

    Args:
        models: n networks with hyperparameters and measures.
        measures: M columns.
        axes: hyperparameters that may be known.
        gaps: (D, n) of the networks, such as permuted ones.

    Returns:
        (D, M) in [0, 1]; NaN where hyperparameters determine the order, or a measure is
        undefined.
    """
    axes = [name for name in axes if models[name].nunique() > 1]
    scores = np.full((len(gaps), len(measures)), np.nan)
    values = models[list(measures)].to_numpy(float)
    has_gap = np.isfinite(gaps).all(0)[:, None]
    for rows, columns in same_models(np.isfinite(values) & has_gap):
        of_models = values[np.ix_(rows, columns)], gaps[:, rows].T
        levels, x, y = _of_configurations(models[axes].iloc[rows], *of_models)
        for size in (0, 1, 2):
            for known in combinations(axes, size):
                share = _explained(x, y, _groups(levels[[*known]]))
                scores[:, columns] = np.fmin(scores[:, columns], share)
    return scores


def _explained(x: Array, y: Array, groups: list[Rows]) -> Array:
    """Share of the entropy that measures explain, (D, M), see above.

    In a cell, with H the entropy, ``I = H(gap) + H(measure) - H(both)``.

    Args:
        x: (C, M) measures of configurations.
        y: (C, D) gaps.
        groups: of configurations; pairs of groups are cells.
    """
    information = np.zeros((x.shape[1], y.shape[1]))
    entropy = np.zeros(y.shape[1])
    for one, other in product(groups, repeat=2):
        # A configuration makes no pair with itself, and is not larger than itself.
        pairs = len(one) * (len(other) - (one is other))
        if pairs < 2:
            continue
        measure_larger = _larger(x, one, other).T  # (M, pairs)
        by_measure = measure_larger.sum(1)[:, None]  # (M, 1)
        of_measure = scipy.stats.entropy([by_measure, pairs - by_measure])
        for columns in slices(y.shape[1], pairs):
            gap_larger = _larger(y[:, columns], one, other)  # (pairs, D)
            by_gap = gap_larger.sum(0)
            both = measure_larger @ gap_larger  # (M, D)
            either = by_gap + by_measure - both
            outcomes = [both, by_gap - both, by_measure - both, pairs - either]
            of_gap = scipy.stats.entropy([by_gap, pairs - by_gap])
            entropy[columns] += of_gap
            of_both = scipy.stats.entropy(outcomes)
            information[:, columns] += of_gap + of_measure - of_both
    share = information / np.where(entropy > 0, entropy, np.nan)
    # Rounded, so that a measure that is constant in every cell has exactly 0.
    return np.round(np.clip(share, 0, 1), 12).T


def _larger(values: Array, one: Rows, other: Rows) -> Array:
    """1 where one configuration's value is the larger: (C, K) -> (pairs, K)."""
    is_larger = values[one][:, None] > values[other]
    return is_larger.reshape(len(one) * len(other), -1).astype(float)


def noise_weights(gap_difference: ArrayLike, test_images: int) -> Array:
    """Weights of pairs of models by the certainty that their gaps differ.

    Hoeffding's bound; Dziugaite et al. 2020, section 4.

    Args:
        gap_difference: (...) differences of gaps, fractions.
        test_images: number of test images of each gap.

    Returns:
        (...) in [0, 0.5].
    """
    squares = np.asarray(gap_difference, dtype=float) ** 2
    certainty = np.maximum(1 - 2 * np.exp(-test_images / 2 * squares), 0)
    return np.maximum(certainty**2 - 0.5, 0)


def sign_errors(
    models: pd.DataFrame,
    directions: Mapping[str, int],
    axes: Sequence[str],
    gaps: Array,
    *,
    test_images: int,
) -> tuple[Array, NDArray[np.bool_]]:
    """Sign error of each measure in its worst environment.

    Dziugaite et al. 2020, equation (4), section 4 and Figure 1. An environment is two
    configurations that differ in one hyperparameter. Its error is the mean of
    ``1/2 (1 - sgn(C_a - C_b) sgn(G_a - G_b))`` by ``noise_weights``, with
    C = -direction * measure; it counts if its effective number of pairs is at least
    ``MINIMUM_SAMPLE``. If none counts, environments are pooled: all pairs that differ
    only in one hyperparameter, between the same two levels, make one environment.
    Pooled errors are not comparable with the paper's. A pair without a value of the
    measure has no weight.

    Args:
        models: a row per model.
        directions: by measure +1 where a larger value promises a smaller gap, else -1.
        axes: hyperparameters.
        gaps: (D, n), such as permuted ones.
        test_images: number of test images of each gap.

    Returns:
        (D, M) largest error in [0, 1] of the environments that count, NaN without one;
        and (M,) whether environments are pooled.
    """
    values = models[list(directions)].to_numpy(float)
    values = np.where(np.isfinite(values), values, np.nan)
    complexities = -values * np.array([*directions.values()])
    levels = [pd.factorize(models[name])[0] for name in axes]
    levels = np.reshape(levels, (len(axes), len(models)))
    differ = levels[:, :, None] != levels[:, None]  # (axes, n, n)
    axis, *pairs = np.nonzero(np.triu(differ & (differ.sum(0) == 1)))
    left, right = pairs
    signs = np.sign(complexities[left] - complexities[right])
    differences = gaps[:, left] - gaps[:, right]
    configurations = np.unique(levels, axis=1, return_inverse=True)[1]
    errors = []
    for ends in (configurations[pairs], levels[axis, pairs]):
        environment = pd.DataFrame(np.sort(ends, axis=0).T).assign(axis=axis)
        errors.append(_worst(differences, signs, _groups(environment), test_images))
    alone, pooled = errors
    is_pooled = np.isnan(alone[0])
    return np.where(is_pooled, pooled, alone), is_pooled


def _worst(
    differences: Array, signs: Array, environments: list[Rows], test_images: int
) -> Array:
    """Largest error (D, M) of the environments that are large enough.

    Args:
        differences: (D, pairs) of gaps.
        signs: (pairs, M) of the differences of complexities, NaN where undefined.
        environments: pairs of each.
        test_images: see ``sign_errors``.
    """
    worst = np.full((len(differences), signs.shape[1]), np.nan)
    for members in environments:
        difference = differences[:, members]
        weights = noise_weights(difference, test_images)
        is_defined = np.isfinite(signs[members])
        total = weights @ is_defined
        enough = total**2 >= MINIMUM_SAMPLE * (weights**2 @ is_defined)
        agreement = (weights * np.sign(difference)) @ np.nan_to_num(signs[members])
        agreement /= np.where(enough & (total > 0), total, np.nan)
        # Rounded, so that full agreement has an error of exactly 0.
        worst = np.fmax(worst, np.round(np.abs((1 - agreement) / 2), 12))
    return worst


def conditional_table(
    bootstrap: Bootstrap,
    directions: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    permutations: int,
) -> pd.DataFrame:
    """Granulated Kendall, conditional information and sign error of each measure.

    Args:
        bootstrap: of the models.
        directions: of each column, see ``sign_errors``.
        axes: hyperparameters that vary.
        test_images: number of test images of each gap.
        permutations: number of random ones.

    Returns:
        A row per measure, with p adjusted by maxT (a low sign error is extreme), and
        whether environments of the sign error are pooled.
    """
    models = bootstrap.models
    names = list(directions)
    gaps = _permuted_gaps(models, permutations, bootstrap.seed)
    information = conditional_information(models, names, axes, gaps)
    errors, pooled = sign_errors(
        models, directions, axes, gaps, test_images=test_images
    )
    p_of_information = against_chance(information)["p_adjusted"]
    p_of_errors = against_chance(-errors)["p_adjusted"]  # a low one is extreme
    return pd.DataFrame(
        {
            "measure": names,
            "granulated_kendall": granulated_kendall(models, names, axes),
            "conditional_information": information[0],
            "conditional_information_p_adjusted": p_of_information,
            "sign_error": errors[0],
            "sign_error_p_adjusted": p_of_errors,
            "pooled": pooled,
        }
    )


def _permuted_gaps(models: pd.DataFrame, count: int, seed: int) -> Array:
    """The gap, and below it the gap after each permutation: (1 + permutations, n)."""
    gap = models["gap"].to_numpy(float)
    # Always random ones: their number must be the same in all tasks that are averaged.
    rows = permuted_rows(models[CONFIGURATION], count, seed, exact_up_to=0)
    return np.vstack([gap, gap[rows]])


def task_table(
    models: pd.DataFrame,
    measures: Sequence[str],
    axes: Sequence[str],
    task: str,
    *,
    permutations: int,
    seed: int,
) -> pd.DataFrame:
    """PGDL scores, 100 times the conditional information; Schiff et al. 2021.

    Args:
        models: a row per model.
        measures: columns.
        axes: hyperparameters that vary.
        task: column whose levels are the tasks.
        permutations: number of random ones.
        seed: of the permutations.

    Returns:
        A row per measure: a column per task, NaN where at most one hyperparameter
        varies, and the average with its adjusted p.
    """
    table = pd.DataFrame({"measure": list(measures)})
    scores = [np.full((1 + permutations, len(measures)), np.nan)]
    for number, (name, part) in enumerate(models.groupby(task)):
        varied = [axis for axis in axes if part[axis].nunique() > 1]
        # Another seed, so that the permutations of tasks are independent.
        gaps = _permuted_gaps(part, permutations, seed + number)
        information = conditional_information(part, measures, varied, gaps)
        of_task = np.where(len(varied) > 1, 100 * information, np.nan)
        scores.append(of_task)
        table[str(name)] = of_task[0]
    average = finite_mean(np.stack(scores))
    p = against_chance(average)["p_adjusted"]
    return table.assign(average=average[0], average_p_adjusted=p)


def pca_gi_mixup(gi: ArrayLike, mixup: ArrayLike) -> Array:
    """First principal component of Gi-score and mixup accuracy; Schiff et al. 2021.

    Args:
        gi: (n,) Gi-scores of models.
        mixup: (n,) accuracies on mixed images.

    Returns:
        (n,) of z-scores, growing with Gi; NaN where either is undefined or the two do
        not correlate.
    """
    pairs = pd.DataFrame({"gi": gi, "mixup": mixup}, dtype=float)
    z = pairs[np.isfinite(pairs).all(axis=1)]
    z = (z - z.mean()) / z.std(ddof=0)
    # Of two z-scores with correlation r it is (z_x + sign(r) z_y) / sqrt(2).
    sign = np.sign(z["gi"].corr(z["mixup"]))
    component = (z["gi"] + sign * z["mixup"]) / 2**0.5
    return component.reindex(pairs.index).to_numpy()

"""Statistics that hold hyperparameters fixed, by other papers than Du et al. 2024.

Granulated rank correlation and conditional information (Jiang et al. 2020), sign errors
(Dziugaite et al. 2020), and the scores of tasks (Schiff et al. 2021).
"""

from collections.abc import Mapping, Sequence
from itertools import chain, combinations, product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import rankdata

from helpers.statistics.correlate import (
    CONFIGURATION,
    Array,
    Bootstrap,
    finite_mean,
    same_models,
    slices,
)
from helpers.statistics.permutation import (
    PERMUTATIONS,
    against_chance,
    permuted_rows,
)

Codes = NDArray[np.intp]
# Effective number of pairs, ``(sum of weights)^2 / sum of squared weights``, below
# which an environment is left out, as in Dziugaite et al. 2020.
MINIMUM_SAMPLE = 12.0


def level_codes(models: pd.DataFrame, axes: Sequence[str]) -> Codes:
    """Number of the level of each hyperparameter, (n, A).

    Args:
        models: n of them, a row each.
        axes: A hyperparameters.
    """
    codes = np.empty((len(models), len(axes)), dtype=np.intp)
    for number, name in enumerate(axes):
        codes[:, number] = pd.factorize(models[name])[0]
    return codes


def joint_codes(codes: Codes) -> Codes:
    """Number the combinations that occur, (n,); all 0 without a column.

    Args:
        codes: (n, A).
    """
    if not codes.shape[1]:
        return np.zeros(len(codes), dtype=np.intp)
    return np.unique(codes, axis=0, return_inverse=True)[1].ravel()


def configuration_means(values: Array, configurations: Codes) -> Array:
    """Average the models of each configuration, without NaN.

    Args:
        values: (n, M).
        configurations: (n,) codes from 0 to C - 1.

    Returns:
        (C, M), to 12 digits: else means of equal values would differ by their rounding,
        and configurations that tie would get an order.
    """
    means = pd.DataFrame(values).groupby(configurations).mean().to_numpy()
    mantissa, exponent = np.frexp(means)
    return np.ldexp(mantissa.round(12), exponent)


def _of_configurations(levels: Codes, *values: Array) -> tuple[NDArray, ...]:
    """Levels (C, A), and means (C, M) of values (n, M), of each configuration."""
    configurations = joint_codes(levels)
    first = np.unique(configurations, return_index=True)[1]
    return levels[first], *(configuration_means(of, configurations) for of in values)


def granulated_kendall(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str]
) -> Array:
    """Rank correlation with the gap while only one hyperparameter changes.

    Granulated Kendall; Jiang et al. 2020, equations (6) and (7).

    Args:
        models: a row per model.
        measures: M columns.
        axes: A hyperparameters.

    Returns:
        (A, M) psi, whose mean over hyperparameters is the granulated coefficient. The
        configurations that agree in all other hyperparameters form a group, and tau-a
        is averaged over the groups; NaN where no group has two configurations.
    """
    values = models[list(measures)].to_numpy(float)
    gap = models[["gap"]].to_numpy(float)
    is_finite = np.isfinite(values) & np.isfinite(gap)
    # The gap is averaged over the models where that measure is finite.
    both = (np.where(is_finite, of, np.nan) for of in (values, gap))
    levels, x, y = _of_configurations(level_codes(models, axes), *both)
    psi = np.empty((len(axes), len(measures)))
    for axis in range(len(axes)):
        taus = [np.empty((0, len(measures)))]
        for rows in _members(joint_codes(np.delete(levels, axis, axis=1))):
            first, second = np.triu_indices(len(rows), 1)
            order_x = np.sign(x[rows[first]] - x[rows[second]])
            order_y = np.sign(y[rows[first]] - y[rows[second]])
            taus.append(finite_mean(order_x * order_y)[None])
        psi[axis] = finite_mean(np.vstack(taus))
    return psi


def _members(groups: Codes) -> list[Codes]:
    """Row numbers of each group."""
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def conditional_information(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str], gaps: Array
) -> Array:
    """Share of the entropy of the order of two models that a measure explains.

    The order is that of their gaps; Jiang et al. 2020, PGDL. The score is the least of
    ``information_by_set``. It is above 0 by chance alone, so compare scores of the same
    models only.

    Args:
        models: n networks with hyperparameters and measures.
        measures: M columns.
        axes: hyperparameters that may be known.
        gaps: (D, n) of the networks, such as permuted ones.

    Returns:
        (D, M) in [0, 1]; NaN where hyperparameters determine the order, or a measure is
        undefined.
    """
    varied = [name for name in axes if models[name].nunique() > 1]
    codes = level_codes(models, varied)
    scores = np.full((len(gaps), len(measures)), np.nan)
    values = models[list(measures)].to_numpy(float)
    has_gap = np.isfinite(gaps).all(0)[:, None]
    for rows, columns in same_models(np.isfinite(values) & has_gap):
        of_models = values[np.ix_(rows, columns)], gaps[:, rows].T
        levels, x, y = _of_configurations(codes[rows], *of_models)
        by_set = information_by_set(x, y, dict(zip(varied, levels.T, strict=True)))
        scores[:, columns] = np.fmin.reduce(list(by_set.values()))
    return scores


def information_by_set(
    measures: Array, gaps: Array, levels: Mapping[str, Codes]
) -> dict[tuple[str, ...], Array]:
    """Share of the entropy of the order of two gaps that a measure explains.

    Ordered pairs (a, b) of configurations fall into cells u by the values that some
    hyperparameters have in both. With ``V_g = 1[gap_a > gap_b]`` and
    ``V_mu = 1[measure_a > measure_b]`` it is
    ``mean_u I(V_g; V_mu | u) / mean_u H(V_g | u)`` over cells of two pairs or more.

    Args:
        measures: (C, M) of the configurations.
        gaps: (C, D).
        levels: (C,) of each hyperparameter.

    Returns:
        (D, M) in [0, 1] for every set of at most two hyperparameters that are known;
        NaN where the order is certain in every cell.
    """
    # Ranks have the same order, and are compared faster.
    ranks = rankdata(measures, "dense", axis=0).astype(np.int16)
    gap_ranks = rankdata(gaps, "dense", axis=0).astype(np.int16)
    sets = chain.from_iterable(combinations(levels, size) for size in (0, 1, 2))
    shares = {}
    for names in sets:
        known = np.array([levels[name] for name in names], dtype=np.intp)
        cells = joint_codes(known.reshape(len(names), len(gaps)).T)
        information, entropy = _in_cells(ranks, gap_ranks, _members(cells))
        share = information / np.where(entropy > 0, entropy, np.nan)
        # Rounded, so that a measure that is constant in every cell has exactly 0.
        shares[names] = np.round(np.clip(share, 0, 1), 12).T
    return shares


def _in_cells(
    ranks: NDArray[np.int16], gap_ranks: NDArray[np.int16], members: list[Codes]
) -> tuple[Array, Array]:
    """Information (M, D) and entropy (D,) summed over the cells of pairs of groups.

    In a cell, with H the entropy, ``I = H(gap) + H(measure) - H(both)``. Counts n_i of
    N pairs have ``N H = N log N - sum of n_i log n_i``.
    """
    draws = gap_ranks.shape[1]
    information = np.zeros((ranks.shape[1], draws))
    entropy = np.zeros(draws)
    # n log n by n: equal counts cancel exactly, so a certain outcome has entropy 0.
    counts = np.arange(len(gap_ranks) ** 2 + 1)
    n_log_n = xlogy(counts, counts)
    for (a, one), (b, other) in product(enumerate(members), repeat=2):
        # A configuration makes no pair with itself, and is not larger than itself.
        pairs = len(one) * (len(other) - (a == b))
        if pairs < 2:
            continue
        measure_larger = _larger(ranks, one, other).T  # (M, pairs)
        by_measure = measure_larger.sum(1)[:, None].astype(np.intp)  # (M, 1)
        for columns in slices(draws, pairs):
            gap_larger = _larger(gap_ranks[:, columns], one, other)  # (pairs, D)
            # Single precision holds whole numbers exactly up to 16.7 million.
            both = (measure_larger @ gap_larger).astype(np.intp)  # (M, D)
            by_gap = gap_larger.sum(0).astype(np.intp)  # (D,)
            neither = pairs - by_gap - by_measure + both
            outcomes = (both, by_gap - both, by_measure - both, neither)
            of_gap = n_log_n[by_gap] + n_log_n[pairs - by_gap]
            of_measure = n_log_n[by_measure] + n_log_n[pairs - by_measure]
            of_both = sum(n_log_n.take(count) for count in outcomes)
            whole = n_log_n[pairs]
            entropy[columns] += (whole - of_gap) / pairs
            information[:, columns] += (whole - of_gap - of_measure + of_both) / pairs
    return information, entropy


def _larger(ranks: NDArray[np.int16], one: Codes, other: Codes) -> NDArray[np.float32]:
    """1 where one configuration's value is the larger: (C, K) -> (pairs, K)."""
    is_larger = ranks[one][:, None] > ranks[other][None]
    return is_larger.reshape(len(one) * len(other), -1).astype(np.float32)


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
    Pooled errors are not comparable with the paper's.

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
    names = list(directions)
    complexities = -models[names].to_numpy(float) * np.array([*directions.values()])
    levels = level_codes(models, axes)
    left, right = np.nonzero(np.triu((levels[:, None] != levels).sum(-1) == 1))
    axis = (levels[left] != levels[right]).argmax(1) if len(left) else left
    configurations = joint_codes(levels)
    worst = np.full((len(gaps), len(names)), np.nan)
    is_pooled = np.zeros(len(names), bool)
    has_gap = np.isfinite(gaps).all(0)[:, None]
    for rows, columns in same_models(np.isfinite(complexities) & has_gap):
        has_both = np.isin(left, rows) & np.isin(right, rows)
        pairs = np.stack([left, right])[:, has_both]
        of_axis = axis[has_both]
        ends = complexities[pairs][..., columns]  # (2, pairs, measures)
        signs = np.sign(ends[0] - ends[1])
        of_pairs = configurations[pairs], levels[pairs, of_axis]
        for pooled, codes in enumerate(of_pairs):
            environments = joint_codes(np.vstack([np.sort(codes, 0), of_axis]).T)
            errors = _worst(gaps, pairs, signs, environments, test_images)
            worst[:, columns] = errors
            is_pooled[columns] = pooled
            if np.isfinite(errors[0]).any():
                break
    return worst, is_pooled


def _worst(
    gaps: Array, pairs: Codes, signs: Array, environments: Codes, test_images: int
) -> Array:
    """Largest error (D, M) of the environments that are large enough; ``signs`` (P, M)
    are of measures in pairs (2, P), ``environments`` (P,) their numbers."""
    worst = np.full((len(gaps), signs.shape[1]), np.nan)
    for members in _members(environments):
        left, right = pairs[:, members]
        for rows in slices(len(gaps), len(members)):
            difference = gaps[rows][:, left] - gaps[rows][:, right]
            weights = noise_weights(difference, test_images)
            total = weights.sum(1)
            enough = total**2 >= MINIMUM_SAMPLE * (weights**2).sum(1)
            agreement = (weights * np.sign(difference)) @ signs[members]
            agreement /= np.where(enough & (total > 0), total, np.nan)[:, None]
            # Rounded, so that full agreement has an error of exactly 0.
            error = np.round(np.abs((1 - agreement) / 2), 12)
            worst[rows] = np.fmax(worst[rows], error)
    return worst


def conditional_table(
    bootstrap: Bootstrap,
    directions: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    permutations: int = PERMUTATIONS,
) -> pd.DataFrame:
    """Granulated Kendall, conditional information and sign error of each measure.

    The last two come with an adjusted p and the critical value for the best of all
    measures.

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
    psi = finite_mean(granulated_kendall(models, names, axes))
    table = pd.DataFrame({"measure": names, "granulated_kendall": psi})
    information = conditional_information(models, names, axes, gaps)
    errors, pooled = sign_errors(
        models, directions, axes, gaps, test_images=test_images
    )
    chance = _against_chance("conditional_information", information)
    chance |= _against_chance("sign_error", -errors)
    chance |= {name: -chance[name] for name in ("sign_error", "sign_error_band")}
    return table.assign(**chance, pooled=pooled, permutations=permutations)


def _permuted_gaps(models: pd.DataFrame, count: int, seed: int) -> Array:
    """The gap, and below it the gap after each permutation: (1 + permutations, n)."""
    gap = models["gap"].to_numpy(float)
    # Always random ones: their number must be the same in all tasks that are averaged.
    rows = permuted_rows(models[CONFIGURATION], count, seed, exact_up_to=0)
    return np.vstack([gap, gap[rows]])


def _against_chance(name: str, scores: Array) -> dict[str, ArrayLike]:
    """Observed scores and those of permutations, (1 + D, M), larger is more extreme."""
    chance = against_chance(scores)
    return {
        name: scores[0],
        f"{name}_p_adjusted": chance["p_adjusted"],
        f"{name}_band": chance["band"],
    }


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
        varies, and the average with its adjusted p and critical value.
    """
    table = pd.DataFrame({"measure": list(measures)})
    undefined = np.full((1 + permutations, len(measures)), np.nan)
    scores = [undefined]
    for number, (name, part) in enumerate(models.groupby(task)):
        others = [axis for axis in axes if axis != task and part[axis].nunique() > 1]
        # Another seed, so that the permutations of tasks are independent.
        gaps = _permuted_gaps(part, permutations, seed + number)
        information = undefined
        if len(others) > 1:
            information = 100 * conditional_information(part, measures, others, gaps)
        scores.append(information)
        table[str(name)] = information[0]
    average = finite_mean(np.stack(scores))
    return table.assign(**_against_chance("average", average))


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
    pairs = pairs.replace([np.inf, -np.inf], np.nan)
    z = pairs.dropna()
    z = (z - z.mean()) / z.std(ddof=0)
    r = (z["gi"] * z["mixup"]).mean()
    sign = np.sign(r) if abs(r) > 1e-12 else np.nan
    # Of two z-scores with correlation r it is (z_x + sign(r) z_y) / sqrt(2).
    component = (z["gi"] + sign * z["mixup"]) / 2**0.5
    return component.reindex(pairs.index).to_numpy()

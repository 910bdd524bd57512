"""Statistics that hold hyperparameters fixed, by other papers than Du et al. 2024.

Granulated rank correlation and conditional information (Jiang et al. 2020), sign errors
(Dziugaite et al. 2020), and the scores of tasks (Schiff et al. 2021).
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy

from helpers.statistics.correlate import (
    CONFIGURATION,
    Array,
    Bootstrap,
    finite_mean,
    same_models,
    slices,
)
from helpers.statistics.permutation import against_chance, permuted_rows

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
    codes = [pd.factorize(models[name])[0] for name in axes]
    return np.reshape(codes, (len(axes), len(models))).T.astype(np.intp)


def joint_codes(codes: Codes) -> Codes:
    """Number the combinations that occur, (n,); all 0 without a column.

    Args:
        codes: (n, A).
    """
    with_constant = np.insert(codes, 0, 0, axis=1)
    return np.unique(with_constant, axis=0, return_inverse=True)[1].ravel()


def _of_configurations(levels: Codes, *values: Array) -> tuple[NDArray, ...]:
    """Levels (C, A), and means (C, M) of values (n, M), of each configuration.

    Means are of finite values and have 12 digits: else those of equal values would
    differ by their rounding, and configurations that tie would get an order.
    """
    configurations = joint_codes(levels)
    first = np.unique(configurations, return_index=True)[1]
    means = []
    for of_models in values:
        mean = pd.DataFrame(of_models).groupby(configurations).mean().to_numpy()
        mantissa, exponent = np.frexp(mean)
        means.append(np.ldexp(mantissa.round(12), exponent))
    return levels[first], *means


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
    levels, x, y = _of_configurations(level_codes(models, axes), *both)
    undefined = np.full(len(measures), np.nan)
    psi = [undefined]
    for axis in range(len(axes)):
        taus = [undefined]
        for rows in _members(joint_codes(np.delete(levels, axis, axis=1))):
            first, second = np.triu_indices(len(rows), 1)
            order_x = np.sign(x[rows[first]] - x[rows[second]])
            order_y = np.sign(y[rows[first]] - y[rows[second]])
            taus.append(finite_mean(order_x * order_y))
        psi.append(finite_mean(np.array(taus)))
    return finite_mean(np.array(psi))


def _members(groups: Codes) -> list[Codes]:
    """Row numbers of each group."""
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


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
    codes = level_codes(models, [name for name in axes if models[name].nunique() > 1])
    scores = np.full((len(gaps), len(measures)), np.nan)
    values = models[list(measures)].to_numpy(float)
    has_gap = np.isfinite(gaps).all(0)[:, None]
    for rows, columns in same_models(np.isfinite(values) & has_gap):
        of_models = values[np.ix_(rows, columns)], gaps[:, rows].T
        levels, x, y = _of_configurations(codes[rows], *of_models)
        for size in (0, 1, 2):
            for known in combinations(range(codes.shape[1]), size):
                share = _explained(x, y, _members(joint_codes(levels[:, known])))
                scores[:, columns] = np.fmin(scores[:, columns], share)
    return scores


def _explained(x: Array, y: Array, members: list[Codes]) -> Array:
    """Share of the entropy that measures explain, (D, M), see above.

    In a cell, with H the entropy, ``I = H(gap) + H(measure) - H(both)``. Counts n_i of
    N pairs have ``N H = N log N - sum of n_i log n_i``.

    Args:
        x: (C, M) measures of configurations.
        y: (C, D) gaps.
        members: configurations of each group; pairs of groups are cells.
    """
    information = np.zeros((x.shape[1], y.shape[1]))
    entropy = np.zeros(y.shape[1])
    # n log n by n: equal counts cancel exactly, so a certain outcome has entropy 0.
    counts = np.arange(len(y) ** 2 + 1)
    n_log_n = xlogy(counts, counts)
    for (a, one), (b, other) in product(enumerate(members), repeat=2):
        # A configuration makes no pair with itself, and is not larger than itself.
        pairs = len(one) * (len(other) - (a == b))
        if pairs < 2:
            continue
        measure_larger = _larger(x, one, other).T  # (M, pairs)
        by_measure = measure_larger.sum(1)[:, None].astype(np.intp)  # (M, 1)
        for columns in slices(y.shape[1], pairs):
            gap_larger = _larger(y[:, columns], one, other)  # (pairs, D)
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
    share = information / np.where(entropy > 0, entropy, np.nan)
    # Rounded, so that a measure that is constant in every cell has exactly 0.
    return np.round(np.clip(share, 0, 1), 12).T


def _larger(values: Array, one: Codes, other: Codes) -> NDArray[np.float32]:
    """1 where one configuration's value is the larger: (C, K) -> (pairs, K)."""
    is_larger = values[one][:, None] > values[other][None]
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
    levels = level_codes(models, axes)
    pairs = np.array(np.nonzero(np.triu((levels[:, None] != levels).sum(-1) == 1)))
    left, right = pairs
    axis = (levels[left] != levels[right]).argmax(1) if len(left) else left
    signs = np.sign(complexities[left] - complexities[right])
    differences = gaps[:, left] - gaps[:, right]
    of_pairs = joint_codes(levels)[pairs], levels[pairs, axis]
    alone, pooled = (
        _worst(
            differences,
            signs,
            _members(joint_codes(np.vstack([np.sort(codes, 0), axis]).T)),
            test_images,
        )
        for codes in of_pairs
    )
    is_pooled = np.isnan(alone[0])
    return np.where(is_pooled, pooled, alone), is_pooled


def _worst(
    differences: Array, signs: Array, environments: list[Codes], test_images: int
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
    information = conditional_information(models, names, axes, gaps)
    errors, pooled = sign_errors(
        models, directions, axes, gaps, test_images=test_images
    )
    chance = _against_chance("conditional_information", information)
    chance |= _against_chance("sign_error", -errors)
    chance |= {name: -chance[name] for name in ("sign_error", "sign_error_band")}
    table = pd.DataFrame({"measure": names})
    table["granulated_kendall"] = granulated_kendall(models, names, axes)
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
    scores = [np.full((1 + permutations, len(measures)), np.nan)]
    for number, (name, part) in enumerate(models.groupby(task)):
        others = [axis for axis in axes if axis != task and part[axis].nunique() > 1]
        # Another seed, so that the permutations of tasks are independent.
        gaps = _permuted_gaps(part, permutations, seed + number)
        information = 100 * conditional_information(part, measures, others, gaps)
        scores.append(np.where(len(others) > 1, information, np.nan))
        table[str(name)] = scores[-1][0]
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
    z = pairs[np.isfinite(pairs).all(axis=1)]
    z = (z - z.mean()) / z.std(ddof=0)
    # Of two z-scores with correlation r it is (z_x + sign(r) z_y) / sqrt(2).
    component = (z["gi"] + np.sign(z["gi"].corr(z["mixup"])) * z["mixup"]) / 2**0.5
    return component.reindex(pairs.index).to_numpy()

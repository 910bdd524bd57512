"""Statistics that hold hyperparameters fixed, by other papers than Du et al. 2024.

Granulated rank correlation and conditional information (Jiang et al. 2020), sign errors
(Dziugaite et al. 2020), and the scores of tasks (Schiff et al. 2021).
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations, product

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.special import xlogy
from scipy.stats import rankdata

from helpers.statistics.correlate import (
    PERMUTATIONS,
    Array,
    Bootstrap,
    against_chance,
    finite_mean,
    permuted_rows,
    same_models,
    slices,
)

Codes = NDArray[np.intp]
ALL = "all"
# Effective number of pairs, ``(sum of weights)^2 / sum of squared weights``, below
# which an environment is left out, as in Dziugaite et al. 2020.
MINIMUM_SAMPLE = 12.0


def levels_in_order(column: pd.Series) -> list:
    """Levels of a hyperparameter in the order of appearance, of floats by size.

    Args:
        column: (n,) of a table of models.
    """
    levels = list(column.dropna().unique())
    return sorted(levels) if column.infer_objects().dtype.kind == "f" else levels


def level_codes(models: pd.DataFrame, axes: Sequence[str]) -> Codes:
    """Number of the level of each hyperparameter, (n, A).

    Args:
        models: n of them, a row each.
        axes: A hyperparameters.
    """
    codes = [pd.factorize(models[name])[0] for name in axes]
    return np.array(codes, dtype=np.intp).reshape(len(axes), len(models)).T


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


def granulated_kendall(
    models: pd.DataFrame, measures: Sequence[str], axes: Sequence[str]
) -> pd.DataFrame:
    """Rank correlation with the gap while only one hyperparameter changes.

    Granulated Kendall; Jiang et al. 2020, equations (6) and (7).

    Args:
        models: a row per model.
        measures: columns.
        axes: hyperparameters.

    Returns:
        measure, hyperparameter, psi and n. For ``psi`` of a hyperparameter, the
        configurations that agree in all others form a group, and tau-a is averaged over
        the groups; NaN where no group has two configurations. "all" is the mean over
        hyperparameters.
    """
    values = models[list(measures)].to_numpy(float)
    gap = models[["gap"]].to_numpy(float)
    is_finite = np.isfinite(values) & np.isfinite(gap)
    levels = level_codes(models, axes)
    configurations = joint_codes(levels)
    x = configuration_means(np.where(is_finite, values, np.nan), configurations)
    # (C, M): the gap is averaged over the models where that measure is finite.
    y = configuration_means(np.where(is_finite, gap, np.nan), configurations)
    levels = levels[np.unique(configurations, return_index=True)[1]]
    psi = np.empty((len(axes), len(measures)))
    for axis in range(len(axes)):
        groups = joint_codes(np.delete(levels, axis, axis=1))
        psi[axis] = _mean_tau(x, y, groups)
    psi = np.vstack([psi, finite_mean(psi)])
    names = [*axes, ALL]
    return pd.DataFrame(
        {
            "measure": np.repeat(list(measures), len(names)),
            "hyperparameter": names * len(measures),
            "psi": psi.T.ravel(),
            "n": np.repeat(is_finite.sum(0), len(names)),
        }
    )


def _mean_tau(x: Array, y: Array, groups: Codes) -> Array:
    """Mean of tau-a over groups of configurations: (C, M) and (C, M) -> (M,)."""
    taus = [np.empty((0, x.shape[1]))]
    for rows in _members(groups):
        first, second = np.triu_indices(len(rows), 1)
        order_x = np.sign(x[rows[first]] - x[rows[second]])
        order_y = np.sign(y[rows[first]] - y[rows[second]])
        taus.append(finite_mean(order_x * order_y)[None])
    return finite_mean(np.vstack(taus))


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
    for rows, columns in _usable(values, gaps):
        levels = codes[rows]
        configurations = joint_codes(levels)
        x = configuration_means(values[np.ix_(rows, columns)], configurations)
        y = configuration_means(gaps[:, rows].T, configurations)
        levels = levels[np.unique(configurations, return_index=True)[1]]
        of_axes = dict(zip(varied, levels.T, strict=True))
        by_set = information_by_set(x, y, of_axes)
        scores[:, columns] = np.fmin.reduce(list(by_set.values()))
    return scores


def _usable(x: Array, gaps: Array) -> Iterator[tuple[Codes, Codes]]:
    """``same_models`` without the models whose gap is not finite in a permutation."""
    return same_models(np.isfinite(x) & np.isfinite(gaps).all(0)[:, None])


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
) -> tuple[Array, pd.DataFrame]:
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
        and a row per measure: environments, the number that count with the first gap,
        and pooled.
    """
    names = list(directions)
    complexities = -models[names].to_numpy(float) * np.array([*directions.values()])
    levels = level_codes(models, axes)
    left, right = np.nonzero(np.triu((levels[:, None] != levels).sum(-1) == 1))
    axis = (levels[left] != levels[right]).argmax(1) if len(left) else left
    configurations = joint_codes(levels)
    worst = np.full((len(gaps), len(names)), np.nan)
    facts = pd.DataFrame({"environments": 0, "pooled": False}, index=names)
    for rows, columns in _usable(complexities, gaps):
        has_both = np.isin(left, rows) & np.isin(right, rows)
        a, b, of_axis = left[has_both], right[has_both], axis[has_both]
        ends = {False: (configurations[a], configurations[b])}
        ends[True] = (levels[a, of_axis], levels[b, of_axis])
        signs = np.sign(complexities[a][:, columns] - complexities[b][:, columns])
        for pooled, (one, other) in ends.items():
            between = [np.minimum(one, other), np.maximum(one, other), of_axis]
            environments = _members(joint_codes(np.stack(between, 1)))
            errors, count = _worst(gaps, (a, b), signs, environments, test_images)
            if count or pooled:
                break
        worst[:, columns] = errors
        facts.iloc[columns] = [count, pooled]
    return worst, facts


def _worst(
    gaps: Array,
    pairs: tuple[Codes, Codes],
    signs: Array,
    environments: list[Codes],
    test_images: int,
) -> tuple[Array, int]:
    """Largest error (D, M) of the environments that are large enough, and the number
    of those that are for the first gap; ``signs`` (P, M) are of measures in pairs."""
    worst = np.full((len(gaps), signs.shape[1]), np.nan)
    count = 0
    for members in environments:
        left, right = (ends[members] for ends in pairs)
        for rows in slices(len(gaps), len(members)):
            difference = gaps[rows][:, left] - gaps[rows][:, right]
            weights = noise_weights(difference, test_images)
            total = weights.sum(1)
            enough = total**2 >= MINIMUM_SAMPLE * (weights**2).sum(1)
            is_large = (total > 0) & enough
            agreement = (weights * np.sign(difference)) @ signs[members]
            agreement /= np.where(is_large, total, np.nan)[:, None]
            # Rounded, so that full agreement has an error of exactly 0.
            error = np.round(np.abs((1 - agreement) / 2), 12)
            worst[rows] = np.fmax(worst[rows], error)
            count += int(rows.start == 0 and is_large[0])
    return worst, count


def conditional_table(
    bootstrap: Bootstrap,
    directions: Mapping[str, int],
    axes: Sequence[str],
    *,
    test_images: int,
    permutations: int = PERMUTATIONS,
) -> tuple[pd.DataFrame, str]:
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
        A row per measure, with p adjusted by maxT (a low sign error is extreme); and
        the reason why no measure has a sign error, "" if one has.
    """
    models = bootstrap.models
    names = list(directions)
    gaps = _permuted_gaps(bootstrap, permutations)
    granulated = granulated_kendall(models, names, axes)
    of_all = granulated["hyperparameter"] == ALL
    table = granulated.loc[of_all, ["measure", "psi"]]
    table = table.rename(columns={"psi": "granulated_kendall"})
    information = conditional_information(models, names, axes, gaps)
    table = table.assign(**_against_chance("conditional_information", information))
    errors, facts = sign_errors(models, directions, axes, gaps, test_images=test_images)
    reason = ""
    if np.isfinite(errors[0]).any():
        table = table.assign(**_against_chance("sign_error", -errors))
        table["sign_error"] = errors[0]
        table["sign_error_band"] = -table["sign_error_band"]
        table = table.assign(**{name: facts[name].to_numpy() for name in facts})
    else:
        reason = (
            "between no two levels are there enough pairs of models "
            f"({MINIMUM_SAMPLE:g} by weight) that differ in this hyperparameter alone "
            f"and in the gap by more than the noise of {test_images:,} test images"
        )
    table["permutations"] = len(gaps) - 1
    return table.reset_index(drop=True), reason


def _permuted_gaps(bootstrap: Bootstrap, count: int) -> Array:
    """The gap, and below it the gap after each permutation: (1 + permutations, n)."""
    gap = bootstrap.models["gap"].to_numpy(float)
    units = bootstrap.models[bootstrap.unit]
    # Always random ones: their number must be the same in all tasks that are averaged.
    rows = permuted_rows(units, count, bootstrap.seed, exact_up_to=0)
    return np.vstack([gap, gap[rows]])


def _against_chance(name: str, scores: Array) -> dict[str, ArrayLike]:
    """Observed scores and those of permutations, (1 + D, M), larger is more extreme."""
    return {
        name: scores[0],
        f"{name}_p_adjusted": against_chance(scores)["p_adjusted"],
        f"{name}_band": against_chance(scores)["band"],
    }


def task_table(
    bootstrap: Bootstrap,
    measures: Sequence[str],
    axes: Sequence[str],
    task: str,
    *,
    permutations: int,
) -> pd.DataFrame:
    """PGDL scores, 100 times the conditional information; Schiff et al. 2021.

    Args:
        bootstrap: of the models.
        measures: columns.
        axes: hyperparameters that vary.
        task: column whose levels are the tasks.
        permutations: number of random ones.

    Returns:
        A row per measure: a column per task, NaN where at most one hyperparameter
        varies, and the average with its adjusted p and critical value.
    """
    names = list(measures)
    scores = {}
    for number, (name, models) in enumerate(bootstrap.models.groupby(task, sort=True)):
        others = [axis for axis in axes if axis != task and models[axis].nunique() > 1]
        # Another seed, so that the permutations of tasks are independent.
        of_task = Bootstrap(models, draws=0, seed=bootstrap.seed + number)
        gaps = _permuted_gaps(of_task, permutations)
        information = np.full((len(gaps), len(names)), np.nan)
        if len(others) > 1:
            information = conditional_information(models, names, others, gaps)
        scores[str(name)] = 100 * information
    average = np.full((1, len(names)), np.nan)
    if scores:
        average = finite_mean(np.stack(list(scores.values())))
    table = pd.DataFrame({"measure": names})
    for name, values in scores.items():
        table[name] = values[0]
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

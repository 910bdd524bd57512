"""How far a measure is the same when its images, or the seed of its network, are others: what a correlation can reach at most."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.correlations import pearson


def reliability(values: ArrayLike, seed: int = 0) -> float:
    """Reliability of the mean over images of (n, images) values: median over 20 random splits in two halves of ``2 r / (1 + r)``.

    The step to full length (Spearman 1910, Brown 1910) is not taken below 0.
    """
    table = np.asarray(values, dtype=float)
    order = np.random.default_rng(seed).permuted(
        np.tile(np.arange(table.shape[1]), (20, 1)), axis=1
    )
    first = (order < table.shape[1] // 2).T  # (images, splits)
    halves, known = np.stack([first, ~first]).astype(float), np.isfinite(table)
    counts = known.astype(float) @ halves
    means = (np.where(known, table, 0) @ halves) / np.where(
        counts > 0, counts, np.nan
    )  # (2, models, splits)
    r = np.array(
        [
            pearson(*both)
            for both in means[:, np.isfinite(means).all((0, 2))].transpose(2, 0, 1)
        ]
    )
    stepped = np.where(r > 0, 2 * r / (1 + np.abs(r)), r)
    return float(np.median(stepped[np.isfinite(r)])) if np.isfinite(r).any() else np.nan


def intraclass_correlation(values: ArrayLike, groups: ArrayLike) -> float:
    """ICC(1) of repeats: share of the variance of (n,) values that lies between (n,) groups; Shrout and Fleiss 1979."""
    table = pd.DataFrame(
        {"value": np.asarray(values, dtype=float), "group": np.asarray(groups)}
    ).dropna()
    parts, total = table.groupby("group")["value"], len(table)
    sizes, count = parts.size(), parts.ngroups
    if (
        count < 2
        or total == count
        or np.ptp(table["value"]) <= 1e-12 * table["value"].abs().max()
    ):
        return np.nan
    between = (sizes * (parts.mean() - table["value"].mean()) ** 2).sum() / (count - 1)
    within = ((table["value"] - parts.transform("mean")) ** 2).sum() / (total - count)
    size = (total - (sizes**2).sum() / total) / (count - 1)
    return float((between - within) / (between + (size - 1) * within))

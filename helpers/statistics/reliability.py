"""How far a measure is the same when its images, or the seed of its network, are others: what a correlation can reach at most."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

SPLITS = 20


def reliability(values: ArrayLike, splits: int = SPLITS, seed: int = 0) -> float:
    """Reliability of the mean over all images of per-image values: median over random splits in two halves of ``2 r / (1 + r)``.

    r is the correlation across models of the means over the two halves; the step to full length is Spearman's and Brown's, both 1910. The
    square root bounds the correlation with anything else: 0.3 allows |r| of 0.55. At most 1; a negative r, which tells of no reliability,
    is left as it is.

    Args:
        values: (n, images); NaN is left out, and a model that has a half without a value.
        splits: how many.
        seed: of the splits.

    Returns:
        NaN for fewer than 3 models or where all models are alike.

    Raises:
        ValueError: fewer than 2 images.
    """
    table = np.asarray(values, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(f"halves need (models, images) with 2 images at least, got shape {table.shape}")
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(table.shape[1]), (splits, 1)), axis=1)
    first = (order < table.shape[1] // 2).T.astype(np.float32)  # (images, splits)
    known = np.isfinite(table).astype(np.float32)
    table, halves = np.where(known > 0, table, 0), np.stack([first, 1 - first])
    counts = known @ halves
    means = (table @ halves).astype(float) / np.where(counts > 0, counts, np.nan)  # (2, models, splits)
    means = means[:, np.isfinite(means).all((0, 2))]
    if means.shape[1] < 3:
        return np.nan
    one, other = means - means.mean(1, keepdims=True)
    size = np.sqrt((one**2).sum(0) * (other**2).sum(0))
    r = (one * other).sum(0) / np.where(size > 1e-14 * means.shape[1], size, np.nan)
    stepped = np.where(r > 0, 2 * r / (1 + np.abs(r)), r)
    return float(np.median(stepped[np.isfinite(r)])) if np.isfinite(r).any() else np.nan


def images_needed(found: float, images: int, wanted: float = 0.95) -> float:
    """How many images would give the wanted reliability where so many gave the one found: Spearman-Brown solved for the length.

    In whole images, rounded up; NaN for a reliability that is not in (0, 1).
    """
    if not 0 < found < 1:
        return np.nan
    return float(np.ceil(round(images * wanted * (1 - found) / (found * (1 - wanted)), 6)))


def intraclass_correlation(values: ArrayLike, groups: ArrayLike) -> float:
    """ICC(1) of repeats: share of the variance that lies between groups, one-way random effects; Shrout and Fleiss 1979.

    ``(B - W) / (B + (k - 1) W)`` with the mean squares between and within groups, and for groups of unequal size
    ``k = (N - sum n^2 / N) / (G - 1)``. At most 1, negative where repeats differ more than groups do.

    Args:
        values: (n,) measure or gap; NaN is left out.
        groups: (n,) what repeats share: the same cell and snapshot, other seeds.

    Returns:
        NaN for fewer than 2 groups, no repeats, or values that are all the same.
    """
    table = pd.DataFrame({"value": np.asarray(values, dtype=float), "group": np.asarray(groups)}).dropna()
    means, sizes = (table.groupby("group")["value"].agg(name) for name in ("mean", "size"))
    count, total = len(means), len(table)
    if count < 2 or total == count or np.ptp(table["value"]) <= 1e-12 * table["value"].abs().max():
        return np.nan
    between = (sizes * (means - table["value"].mean()) ** 2).sum() / (count - 1)
    within = ((table["value"] - means.loc[table["group"]].to_numpy()) ** 2).sum() / (total - count)
    size = (total - (sizes**2).sum() / total) / (count - 1)
    return float((between - within) / (between + (size - 1) * within))

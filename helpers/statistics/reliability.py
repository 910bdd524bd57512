"""How far a measure is the same when its images, or the seed of its network, are others: what a correlation can reach at most."""

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from helpers.statistics.correlations import Array

SPLITS = 20


def half_means(values: ArrayLike, splits: int = SPLITS, seed: int = 0) -> tuple[Array, Array]:
    """Mean of each model's per-image values over two random halves of the images: (n, images) -> twice (n, splits), NaN left out.

    Raises:
        ValueError: fewer than 2 images.
    """
    table = np.asarray(values, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] < 2:
        raise ValueError(f"halves need (models, images) with 2 images at least, got shape {table.shape}")
    order = np.random.default_rng(seed).permuted(np.tile(np.arange(table.shape[1]), (splits, 1)), axis=1)
    first = (order < table.shape[1] // 2).T.astype(np.float32)  # (images, splits)
    known = np.isfinite(table)
    table, known = np.where(known, table, 0), known.astype(np.float32)
    counts = [known @ half for half in (first, 1 - first)]
    return tuple((table @ half) / np.where(count > 0, count, np.nan) for half, count in zip((first, 1 - first), counts, strict=True))


def split_half(one: ArrayLike, other: ArrayLike) -> float:
    """Reliability of a measure over all its images from its values on halves of them: median over splits of ``2 r / (1 + r)``.

    r is the correlation across models of the two halves; the step to full length is Spearman's and Brown's, both 1910. The square root
    bounds the correlation with anything else: 0.3 allows |r| of 0.55. At most 1; a negative r, which tells of no reliability, is left as
    it is.

    Args:
        one: (n, splits) values on the one half, for a measure that is no mean over images scored anew on each half.
        other: (n, splits) on the other.

    Returns:
        NaN for fewer than 3 models or where all models are alike.
    """
    one, other = np.asarray(one, dtype=float), np.asarray(other, dtype=float)
    known = np.isfinite(one).all(1) & np.isfinite(other).all(1)
    if known.sum() < 3:
        return np.nan
    one, other = (half[known] - half[known].mean(0) for half in (one, other))
    size = np.sqrt((one**2).sum(0) * (other**2).sum(0))
    r = (one * other).sum(0) / np.where(size > 1e-14 * known.sum(), size, np.nan)
    stepped = np.where(r > 0, 2 * r / (1 + np.abs(r)), r)
    return float(np.median(stepped[np.isfinite(r)])) if np.isfinite(r).any() else np.nan


def reliability(values: ArrayLike, splits: int = SPLITS, seed: int = 0) -> float:
    """Split-half reliability of the mean over all images of per-image values (n, images), see ``split_half``."""
    return split_half(*half_means(values, splits, seed))


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

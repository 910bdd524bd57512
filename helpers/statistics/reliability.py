"""Reliability of a measure over images.

The square root of its reliability bounds the correlation of a measure with anything.
"""

import numpy as np
from numpy.typing import ArrayLike

from helpers.statistics.correlate import finite_mean, in_draws, pearson

SPLITS = 20


def reliability(values: ArrayLike, seed: int = 0) -> float:
    """Reliability of the mean over images, from random halves.

    Median over ``SPLITS`` splits in two halves of ``2 r / (1 + r)``, which extrapolates
    from half to all images (Spearman 1910, Brown 1910); a negative r stays as it is.

    Args:
        values: (n, images), NaN where an image has none.
        seed: of the splits.

    Returns:
        At most 1; NaN where no split has a correlation.
    """
    table = np.asarray(values, dtype=float)
    images = table.shape[1]
    numbers = np.tile(np.arange(images), (SPLITS, 1))
    order = np.random.default_rng(seed).permuted(numbers, axis=1)
    first = (order < images // 2).astype(float)  # (splits, images)
    means = np.stack([finite_mean(table.T, half) for half in (first, 1 - first)])
    means = means[..., np.isfinite(means).all((0, 1))]  # (2, splits, n)
    r = in_draws(pearson, means[0][..., None], means[1])[:, 0]
    if not np.isfinite(r).any():
        return np.nan
    of_all_images = np.where(r > 0, 2 * r / (1 + np.abs(r)), r)
    return float(np.nanmedian(of_all_images))

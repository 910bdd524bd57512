"""What a few labelled images do to the predictions of many checkpoints: all are moved together."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike

from helpers.statistics.correlations import Array


def residual_spread(residuals: ArrayLike, kinds: Sequence[Hashable] | ArrayLike, labelled: ArrayLike | None = None) -> float:
    """Standard deviation of residuals about the level of their kind, pooled: what moving all of a kind together leaves.

    Args:
        residuals: (n,) true minus predicted accuracy of models that the prediction had not seen.
        kinds: (n,) what is moved together, as the architecture.
        labelled: (n,) bool, which residuals the level is the mean of, where labelled images are of one target and predictions of others.

    Returns:
        ``sqrt(sum (r - mean of kind)^2 / (n - kinds))``, a fraction; NaN where no kind has two models. With ``labelled`` the root mean
        square of the other residuals about the mean of their kind's labelled ones; NaN where no kind has both.
    """
    table = pd.DataFrame({"residual": np.asarray(residuals, dtype=float), "kind": np.asarray(kinds)})
    if labelled is None:
        groups = table.groupby("kind")["residual"]
        freedom = int((groups.size() - 1).sum())
        return float(np.sqrt(((groups.size() - 1) * groups.var(ddof=1).fillna(0)).sum() / freedom)) if freedom else np.nan
    known = np.asarray(labelled, dtype=bool)
    level = table.loc[~known, "kind"].map(table[known].groupby("kind")["residual"].mean())
    return float(np.sqrt(((table.loc[~known, "residual"] - level) ** 2).mean()))


class Moved(NamedTuple):
    """Predicted accuracies of a folder's checkpoints, moved together by what a few labelled images show; fractions."""

    accuracy: Array  # (C,) predictions after the move, in [0, 1]
    low: Array  # (C,) interval of each checkpoint's accuracy
    high: Array
    shift: float  # added to every prediction
    shift_low: float  # interval of the shift for these checkpoints
    shift_high: float
    spread: float  # standard deviation of the true accuracies about the moved predictions


def moved_together(predicted: ArrayLike, right: ArrayLike, *, spread: float = 0.0, level: float = 0.8) -> Moved:
    """Predicted accuracies of C checkpoints moved by one shift, the mean of observed less predicted, and the interval that this leaves.

    A prediction of models of another kind often has the order right and the level wrong. With true accuracies ``p_c + shift + e_c`` the
    moved prediction errs by the labelled images' error of the mean over checkpoints, and by ``e_c`` less the mean of e. The first has the
    variance between images of the fraction of checkpoints that are right, over their number: checkpoints miss the same images, so many
    checkpoints make it little smaller. The variance of e is the variance of observed less predicted, less what the images' error explains
    of it (image by image, as checkpoints share images), and at least ``spread**2``. The half-width is the root of the two squared
    half-widths, by normal quantiles for the first and for a given spread, by Student's with C - 1 degrees of freedom for one that is
    estimated. The images' error is taken with ``z**2`` images added, half of them right for all (Agresti and Coull 1998), so that images
    that are all right leave an interval; its centre is theirs, so for one checkpoint the interval is Agresti and Coull's of a proportion.

    Args:
        predicted: (C,) accuracies that a study predicts, fractions.
        right: (C, n) bool, whether each checkpoint is right on each labelled image, drawn from where the network will work.
        spread: see ``residual_spread``; 0 where nothing is known.
        level: of the intervals, in (0, 1).

    Returns:
        The moved predictions; intervals are cut to [0, 1].

    Raises:
        ValueError: shapes that do not fit, no image, values other than right and wrong, an undefined prediction, or a level outside (0, 1).
    """
    p, x = np.asarray(predicted, dtype=float), np.asarray(right, dtype=float)
    if p.ndim != 1 or not p.size or x.ndim != 2 or len(x) != len(p) or not x.shape[1]:
        raise ValueError(f"predicted has shape {p.shape} and right {x.shape}; they must be (C,) and (C, n), both at least 1")
    if not np.isfinite(p).all() or not np.isin(x, (0, 1)).all():
        raise ValueError("predictions must be finite, and right must hold true and false alone; leave checkpoints without a prediction out")
    if not 0 < level < 1 or not spread >= 0:
        raise ValueError(f"level {level} must be between 0 and 1, both excluded, and spread {spread} at least 0")
    count, n = x.shape
    z = scipy.stats.norm.ppf((1 + level) / 2)
    observed, each_image = x.mean(1), x.mean(0)
    shift = float((observed - p).mean())
    # z^2 more images, half of them right: their mean is 1/2, their mean square too.
    centre = (each_image.sum() + z**2 / 2) / (n + z**2)
    shift_variance = (((each_image**2).sum() + z**2 / 2) / (n + z**2) - centre**2) / (n + z**2)
    towards_half = centre - each_image.mean()
    estimated = _spread(p, x) if count > 1 else 0.0
    quantile = scipy.stats.t.ppf((1 + level) / 2, count - 1) if estimated > spread and count > 1 else z
    kept = max(estimated, float(spread)) if count > 1 else 0.0
    half = np.sqrt(z**2 * shift_variance + quantile**2 * kept**2 * (1 - 1 / count))
    moved = p + shift
    low, high = np.clip(moved + towards_half - half, 0, 1), np.clip(moved + towards_half + half, 0, 1)
    reach = z * np.sqrt(shift_variance)
    ends = (shift + towards_half - reach, shift + towards_half + reach)
    return Moved(np.clip(moved, 0, 1), low, high, shift, float(ends[0]), float(ends[1]), kept)


def moved_elsewhere(predicted: ArrayLike, moved: Moved, *, spread: float, level: float = 0.8) -> tuple[Array, Array, Array]:
    """Predictions for images of another kind than the labelled ones, moved by the same shift, with low and high, (C,) each, in [0, 1].

    The half-width is the root of the squared half-widths of the shift and of what moving leaves there, by normal quantiles: the larger of
    ``spread`` and of what the labelled images show.

    Args:
        predicted: (C,) accuracies by the method that predicted ``moved``.
        moved: see ``moved_together``.
        spread: see ``residual_spread`` with ``labelled``.
        level: that of ``moved``, in (0, 1).
    """
    p = np.asarray(predicted, dtype=float)
    half = np.hypot((moved.shift_high - moved.shift_low) / 2, scipy.stats.norm.ppf((1 + level) / 2) * max(spread, moved.spread))
    centre = p + (moved.shift_low + moved.shift_high) / 2
    return np.clip(p + moved.shift, 0, 1), np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1)


def _spread(p: Array, x: Array) -> float:
    """Standard deviation of true less predicted accuracy over checkpoints, by moments: what the images' error leaves; 0 at least."""
    count, n = x.shape
    own = x - x.mean(0)
    noise = own.var(1, ddof=1).sum() / n / (count - 1) if n > 1 else 0.0
    return float(np.sqrt(max((x.mean(1) - p).var(ddof=1) - noise, 0)))

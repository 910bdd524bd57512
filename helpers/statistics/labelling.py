"""What labels are worth: how many labelled images a method of prediction equals, and what a few of them do to the predictions of many."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike

from helpers.statistics.correlations import Array

_MOST = 10_000_000  # labelled images; an error that needs more is as good as none


def labelling_error(images: int, accuracies: ArrayLike) -> float:
    """Mean absolute error of an accuracy that is estimated as the fraction of right answers among n labelled images, a fraction.

    Exact for images drawn independently: ``E|X/n - a| = 2 k (1 - a) P(X = k) / n`` with X binomial and ``k = floor(n a) + 1`` (de Moivre
    1730; Diaconis and Zabell 1991), then the mean over models. It never grows with n.

    Args:
        images: n, at least 1.
        accuracies: (M,) true accuracies of the models, in [0, 1].

    Raises:
        ValueError: no image, no model, or an accuracy outside [0, 1] or undefined.
    """
    a = np.atleast_1d(np.asarray(accuracies, dtype=float))
    if images < 1:
        raise ValueError(f"the number of labelled images is {images}; it must be at least 1")
    if not a.size or not ((a >= 0) & (a <= 1)).all():
        raise ValueError(f"accuracies {a[:3].tolist()}... must be at least one number, all in [0, 1]; leave undefined models out")
    k = np.floor(images * a) + 1
    return float((2 * k * (1 - a) * scipy.stats.binom.pmf(k, images, a) / images).mean())


def labelled_images_that_equal(error: float, accuracies: ArrayLike) -> float:
    """Fewest labelled images whose mean absolute error is at most that of a method: the method is worth so many labels.

    Apply it to the ends of an interval of the error to get an interval: it falls as the error grows.

    Args:
        error: mean absolute error of a method, a fraction.
        accuracies: (M,) true accuracies of the models that it was taken over.

    Returns:
        A whole number; infinite where over ten million are needed, NaN where the error is.
    """
    labelling_error(1, accuracies)
    if np.isnan(error):
        return np.nan
    low, high = 0, 1  # low images are too few, high may be enough
    while labelling_error(high, accuracies) > error:
        low, high = high, 2 * high
        if high > _MOST:
            return np.inf
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if labelling_error(middle, accuracies) > error else (low, middle)
    return float(high)


def against_labelling(predicted: pd.DataFrame, truth: ArrayLike, *, labelled: int = 50) -> pd.DataFrame:
    """Table of what each method errs beside what labels err, the labels first: when is a method worth more than labelling?

    Args:
        predicted: a row per model, a column per method: predicted accuracies, fractions; NaN where a method has none.
        truth: (M,) accuracies on the same target.
        labelled: number of labelled images to stand against.

    Returns:
        method, models (with a prediction), error (mean |predicted - true|, fraction), bias (mean predicted - true), labelling_error (of the
        labelled images, for the same models), labelled_images (that equal the method), worth_more (than ``labelled`` images). The first
        row is the labelling itself. NaN where a method has no model.

    Raises:
        ValueError: as many predictions as truths are not there, or a truth is outside [0, 1] or undefined.
    """
    true = np.asarray(truth, dtype=float)
    if len(predicted) != len(true):
        raise ValueError(f"{len(predicted)} models have predictions and {len(true)} a true accuracy; give one of each per model")
    plain = labelling_error(labelled, true)
    rows = [_compared(f"{labelled} labelled images", len(true), plain, 0.0, plain, float(labelled))]
    for method in predicted.columns:
        difference = predicted[method].to_numpy(dtype=float) - true
        has = np.isfinite(difference)
        if not has.any():
            rows.append(_compared(method, 0, np.nan, np.nan, np.nan, np.nan))
            continue
        error = float(np.abs(difference[has]).mean())
        equal = labelled_images_that_equal(error, true[has])
        rows.append(_compared(method, int(has.sum()), error, float(difference[has].mean()), labelling_error(labelled, true[has]), equal))
    return pd.DataFrame(rows)


def _compared(method: Hashable, models: int, error: float, bias: float, labelling: float, equal: float) -> dict[str, object]:
    row = {"method": method, "models": models, "error": error, "bias": bias, "labelling_error": labelling}
    return row | {"labelled_images": equal, "worth_more": error < labelling}


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

"""What labels are worth: how many labelled images a method of prediction equals."""

from collections.abc import Hashable

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike

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

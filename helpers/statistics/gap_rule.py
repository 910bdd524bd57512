"""Predict a gap from the accuracy that a network loses on changed training images.

A rule is fitted to networks whose gap is known, stated as numbers in a study file
before other networks are trained, and then predicts theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import Ridge

# In this order: training accuracy less the mean of the accuracies on training images
# under horizontal and vertical translation; training accuracy less that on mixed
# images; and the logarithm of the number of training images of a class.
PREDICTORS = ("drop", "drop_mixup", "log_images")
PENALTIES = tuple(np.logspace(-2, 3, 21))
_SHARE = 0.8  # of the networks of new kinds whose gap an interval is to hold


@dataclass(frozen=True)
class GapRule:
    """A linear rule for the gap, all of whose numbers can stand in a study file.

    Attributes:
        intercept: mean gap of the calibrating networks, a fraction.
        coefficients: change of the gap with a predictor's standard deviation.
        means: of the predictors.
        deviations: standard deviations of the predictors, with n in the denominator.
        lows: smallest values of the predictors.
        highs: largest values of the predictors.
        penalty: of the ridge regression.
        half_width: of the 80 % interval of a gap, a fraction.
    """

    intercept: float
    coefficients: Sequence[float]
    means: Sequence[float]
    deviations: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    penalty: float
    half_width: float = np.nan

    def predict(self, predictors: ArrayLike) -> NDArray[np.float64]:
        """Predict the gaps of networks.

        A predictor beyond twice the calibrating range, about the range's middle, counts
        as the end of that range.

        Args:
            predictors: (n, 3), columns as in ``PREDICTORS``.

        Returns:
            (n,) fractions; NaN where a predictor is.
        """
        lows = np.array(self.lows)
        highs = np.array(self.highs)
        beyond = (highs - lows) / 2
        clipped = np.clip(np.asarray(predictors, float), lows - beyond, highs + beyond)
        scaled = (clipped - self.means) / self.deviations
        return self.intercept + scaled @ np.array(self.coefficients)


def fit_rule(
    predictors: ArrayLike,
    gaps: ArrayLike,
    kinds: ArrayLike,
) -> GapRule:
    """Fit the rule to calibrating networks.

    Ridge regression on standardized predictors. The penalty is that with the least mean
    squared error of kinds that are left out, one after the other.

    Args:
        predictors: (n, 3), columns as in ``PREDICTORS``.
        gaps: (n,) fractions.
        kinds: (n,) kind of training of each network, at least two different ones.

    Raises:
        ValueError: by scikit-learn for one kind, or a value that is not finite.
    """
    predictors = np.asarray(predictors, float)
    gaps = np.asarray(gaps, float)
    kinds = np.asarray(kinds)
    errors = {}
    for penalty in PENALTIES:
        of_kinds = []
        for kind in np.unique(kinds):
            out = kinds == kind
            rule = _fit(predictors[~out], gaps[~out], penalty)
            of_kinds.append(rule.predict(predictors[out]) - gaps[out])
        errors[penalty] = np.concatenate(of_kinds)
    best = min(errors, key=lambda penalty: np.mean(errors[penalty] ** 2))
    half_width = np.quantile(np.abs(errors[best]), _SHARE)
    return replace(_fit(predictors, gaps, best), half_width=half_width)


def _fit(predictors: NDArray, gaps: NDArray, penalty: float) -> GapRule:
    means = predictors.mean(0)
    deviations = predictors.std(0)
    deviations[deviations == 0] = 1.0  # a constant predictor then has no effect
    ridge = Ridge(alpha=penalty).fit((predictors - means) / deviations, gaps)
    ends = predictors.min(0), predictors.max(0)
    return GapRule(ridge.intercept_, ridge.coef_, means, deviations, *ends, penalty)

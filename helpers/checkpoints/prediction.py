"""Predict the gap from training accuracy, training loss and a few measures.

The error of predictions is estimated on kinds of training that were held out.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.checkpoints.calibration import LOG_CLASS_IMAGES
from helpers.statistics.bootstrap import CONFIGURATION
from helpers.statistics.correlations import Array
from helpers.statistics.prediction import (
    FIT,
    PENALTIES,
    random_folds,
)

LEVEL = 0.8  # of prediction intervals
# Half of such an interval, in standard deviations.
QUANTILE = float(scipy.stats.norm.ppf((1 + LEVEL) / 2))
FEWEST_CONFIGURATIONS = 8
# If the distance between predicted and observed accuracies is above this quantile, the
# errors of predictions are taken to be larger than they were in the study.
TRUSTED = 0.95
# A value is out of range if it is outside of the study's range by this share of it.
_MARGIN = 0.1


class Regression(NamedTuple):
    """A ridge regression that predicts the gap from some columns of a model."""

    pipeline: Pipeline
    ranges: pd.DataFrame  # of each column among the models fitted: low, high
    groups: int  # of models that err together, on which the regression rests
    precision: Array  # (k, k) of the standardised columns, see ``leverage``

    def predicted(self, models: pd.DataFrame) -> Array:
        """Predicted gaps (m,); NaN where a column is undefined.

        A value that lies farther outside the range of the fitted models than the width
        of this range is clipped there: a loss of 1e-9 says no more than one of 0.01.

        Args:
            models: with the columns of the regression.
        """
        x = self._clipped(models)
        is_defined = np.isfinite(x).all(axis=1)
        gaps = np.full(len(models), np.nan)
        if is_defined.any():
            gaps[is_defined] = self.pipeline.predict(x[is_defined])
        return gaps

    def leverage(self, models: pd.DataFrame) -> Array:
        """Leverage (m,) of models: how much errors grow with the distance from the fit.

        ``h(x) = 1/G + z' P z`` with z the standardised columns, P the precision of
        their means over G groups: the variance of a ridge regression's prediction, in
        units of the error's variance. About k/G in the middle of the fitted models.

        Args:
            models: with the columns of the regression.
        """
        z = self.pipeline[0].transform(self._clipped(models))
        return 1 / self.groups + np.einsum("mi,ij,mj->m", z, self.precision, z)

    def out_of_range_columns(self, models: pd.DataFrame) -> list[list[str]]:
        """Columns in which each model is out of range by over a tenth of the range.

        Args:
            models: with the columns of the regression.
        """
        low = self.ranges["low"]
        high = self.ranges["high"]
        margin = _MARGIN * (high - low)
        x = models[list(self.ranges.index)].astype(float)
        is_outside = x.lt(low - margin) | x.gt(high + margin)
        return [list(is_outside.columns[row]) for row in is_outside.to_numpy()]

    def _clipped(self, models: pd.DataFrame) -> Array:
        low = self.ranges["low"].to_numpy()
        high = self.ranges["high"].to_numpy()
        x = models[list(self.ranges.index)].to_numpy(dtype=float)
        # A column that is constant among the fitted models is not clipped.
        span = np.where(high > low, high - low, np.inf)
        return np.clip(x, low - span, high + span)


class Predictor(NamedTuple):
    """A regression, and its errors on groups of models that were held out."""

    regression: Regression
    # A row per model of the studies, predicted by the regression without its group:
    # study, group, truth, predicted, leverage.
    left_out: pd.DataFrame
    half_width_at_0: float  # of an interval where the leverage is 0
    error_sd_at_0: float  # standard deviation of errors where the leverage is 0
    # Share of the squared error that all models of a study have in common.
    common: float

    @property
    def ranges(self) -> pd.DataFrame:
        """Range of each column of the regression: low, high."""
        return self.regression.ranges

    @property
    def largest_leverage(self) -> float:
        """The largest leverage at which an error was observed."""
        return float(self.left_out["leverage"].max())

    def half_width(self, models: pd.DataFrame) -> Array:
        """Half the width of each interval (m,): ``half_width_at_0 * sqrt(1 + h)``.

        Args:
            models: with the columns of the regression; h is their leverage.
        """
        return self.half_width_at_0 * np.sqrt(1 + self.regression.leverage(models))

    def error_sd(self, models: pd.DataFrame) -> Array:
        """Standard deviations (m,) of errors: ``error_sd_at_0 * sqrt(1 + h)``.

        Args:
            models: with the columns of the regression; h is their leverage.
        """
        return self.error_sd_at_0 * np.sqrt(1 + self.regression.leverage(models))


def fitted_columns(models: pd.DataFrame) -> tuple[str, ...]:
    """Columns from which gaps are predicted without any measure.

    They are training accuracy and loss, and the number of training images per class if
    it is known for all models.

    Args:
        models: of ``Calibration.models``.
    """
    if LOG_CLASS_IMAGES in models and np.isfinite(models[LOG_CLASS_IMAGES]).all():
        return (*FIT, LOG_CLASS_IMAGES)
    return FIT


def _folds(models: pd.DataFrame) -> NDArray[np.int64]:
    """Fold of each model, (n,).

    A fold is a kind of training, of all studies at once; if all models are of one
    kind, it is a tenth of the configurations, dealt at random.
    """
    if models["kind"].nunique() > 1:
        return pd.factorize(models["kind"])[0]
    return random_folds(models[CONFIGURATION], 1)[0]


def predictor(models: pd.DataFrame, measures: Sequence[str]) -> Predictor:
    """Fit a regression to studies, with intervals from errors on left-out kinds.

    An interval is ``predicted ± w * sqrt(1 + leverage)``, so that it widens with the
    distance from what the studies cover; locally weighted conformal prediction, Lei et
    al. 2018, with groups as in Dunn, Wasserman and Ramdas 2023. w is the ``LEVEL``
    quantile of ``|error| / sqrt(1 + leverage)`` over models that were predicted
    without their kind. All studies weigh the same, and so do all kinds of a study;
    one further group counts as a miss. ``coverage`` measures how many gaps the
    intervals contain.

    Args:
        models: as ``Calibration.models``.
        measures: columns of measures that predict, besides ``fitted_columns``.

    Raises:
        ValueError: below ``FEWEST_CONFIGURATIONS``.
    """
    count = models[CONFIGURATION].nunique()
    if count < FEWEST_CONFIGURATIONS:
        raise ValueError(
            f"the study has {count} configurations with scores; "
            f"{FEWEST_CONFIGURATIONS} are needed to calibrate others"
        )
    regression = _fit_regression(models, measures)
    # Few columns, since rows are taken out of the table for each kind.
    names = [*regression.ranges.index, "gap", "kind", "study", CONFIGURATION]
    models = models[[name for name in names if name in models]]
    left_out = _left_out(models, measures)
    return Predictor(
        regression=regression,
        left_out=left_out,
        half_width_at_0=_half_width_at_0(left_out, regression.groups),
        error_sd_at_0=_error_sd_at_0(left_out),
        common=_common(models, measures),
    )


def _fit_regression(models: pd.DataFrame, measures: Sequence[str]) -> Regression:
    """Ridge regression on standardised columns, Hoerl and Kennard 1970.

    Its penalty is the one with the least leave-one-out error.
    """
    names = [*fitted_columns(models), *measures]
    columns = models[names].astype(float)
    pipeline = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    pipeline.fit(columns.to_numpy(), models["gap"].to_numpy(dtype=float))
    groups = _groups(models)
    z = pipeline[0].transform(columns.to_numpy())
    penalty = pipeline[-1].alpha_ * np.eye(len(names))
    # Models of a group err together: the information is that of G, not of n models.
    information = (z.T @ z + penalty) * groups / len(models)
    return Regression(
        pipeline=pipeline,
        ranges=pd.DataFrame({"low": columns.min(), "high": columns.max()}),
        groups=groups,
        precision=np.linalg.inv(information),
    )


def _groups(models: pd.DataFrame) -> int:
    """Number of groups of models that err together: kinds by study, or folds."""
    if models["kind"].nunique() < 2:
        return len(np.unique(_folds(models)))
    columns = [name for name in ("study", "kind") if name in models]
    return len(models[columns].drop_duplicates())


def _left_out(models: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Predict each model by a regression without its kind.

    Returns:
        See ``Predictor.left_out``.
    """
    table = pd.DataFrame(
        {
            "study": models.get("study", ""),
            "group": _folds(models),
            "truth": models["gap"].astype(float),
            "predicted": np.nan,
            "leverage": np.nan,
        },
        models.index,
    )
    for group in table["group"].unique():
        inside = table["group"] == group
        rest = models[~inside]
        regression = _fit_regression(rest, measures)
        x = models.loc[inside, list(regression.ranges.index)].to_numpy(dtype=float)
        table.loc[inside, "predicted"] = regression.pipeline.predict(x)
        table.loc[inside, "leverage"] = regression.leverage(models[inside])
    return table


def _half_width_at_0(
    left_out: pd.DataFrame, groups: int, level: float = LEVEL
) -> float:
    """Quantile of errors in units of ``sqrt(1 + leverage)``."""
    errors, weights = _scaled_errors(left_out)
    # 1e-9: rounding must not lift a quantile that falls on an error to the next error.
    quantile_level = min(1.0, level * (groups + 1) / groups - 1e-9)
    return float(
        np.quantile(errors, quantile_level, method="inverted_cdf", weights=weights)
    )


def _error_sd_at_0(left_out: pd.DataFrame) -> float:
    """Root mean square of errors in the same units."""
    errors, weights = _scaled_errors(left_out)
    return float(np.sqrt(np.average(errors**2, weights=weights)))


def _scaled_errors(left_out: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Errors over ``sqrt(1 + leverage)``, and their weights.

    The weights have equal sums by study, and within a study by group.
    """
    errors = (left_out["truth"] - left_out["predicted"]).abs()
    weights = 1 / left_out.groupby(["study", "group"])["truth"].transform("size")
    weights /= weights.groupby(left_out["study"]).transform("sum")
    return errors / np.sqrt(1 + left_out["leverage"]), weights


def _common(models: pd.DataFrame, measures: Sequence[str]) -> float:
    """Share of the squared error that all models of a study have in common.

    Squared mean over mean square of a study's errors when the other studies predict
    it; 0 if there is only one study.
    """
    if "study" not in models or models["study"].nunique() < 2:
        return 0.0
    means = []
    squares = []
    for _, inside in models.groupby("study"):
        others = models.drop(inside.index)
        regression = _fit_regression(others, measures)
        errors = inside["gap"].to_numpy(dtype=float) - regression.predicted(inside)
        means.append(errors.mean() ** 2)
        squares.append((errors**2).mean())
    return float(np.mean(means) / max(np.mean(squares), 1e-12))


def compared_with_truth(models: pd.DataFrame, gap_predictor: Predictor) -> pd.DataFrame:
    """Predict the gaps of models whose gap is known, to compare the two.

    Args:
        models: of ``Calibration.models``.
        gap_predictor: fitted to other models.

    Returns:
        The models with the columns truth, predicted, and low and high, the interval.
    """
    predicted = gap_predictor.regression.predicted(models)
    half = gap_predictor.half_width(models)
    return models.assign(
        truth=models["gap"].astype(float),
        predicted=predicted,
        low=predicted - half,
        high=predicted + half,
    )


def coverage(models: pd.DataFrame, measures: Sequence[str]) -> pd.DataFrame:
    """Try the whole method on each kind of training without having seen it.

    Args:
        models: of ``Calibration.models``.
        measures: columns of measures that predict.

    Returns:
        The table of ``compared_with_truth``; a kind is skipped if without it too few
        configurations are left.
    """
    empty = pd.DataFrame(columns=[*models, "truth", "predicted", "low", "high"])
    tables = []
    for _, inside in models.groupby("kind", sort=False):
        rest = models.drop(inside.index)
        if rest[CONFIGURATION].nunique() >= FEWEST_CONFIGURATIONS:
            tables.append(compared_with_truth(inside, predictor(rest, measures)))
    return pd.concat(tables, ignore_index=True) if tables else empty


def summary(tried: pd.DataFrame) -> dict[str, float]:
    """Mean error of predictions, and the share of intervals that contain the truth.

    The interval of this share counts configurations, not models: snapshots and repeats
    of a configuration err together.

    Args:
        tried: of ``coverage`` or ``compared_with_truth``.

    Returns:
        models, and inside, the number whose interval contains the truth; error_points,
        the mean absolute error, and width_points, the median width of intervals, both
        in points; covered, the share inside, with its 95 % interval.
    """
    inside = int(tried["truth"].between(tried["low"], tried["high"]).sum())
    trials = tried[CONFIGURATION].nunique()
    covered = inside / len(tried) if len(tried) else np.nan
    low, high = wilson(round(covered * trials) if trials else 0, trials)
    return {
        "models": len(tried),
        "error_points": 100 * (tried["truth"] - tried["predicted"]).abs().mean(),
        "inside": inside,
        "covered": covered,
        "covered_low": low,
        "covered_high": high,
        "width_points": 100 * (tried["high"] - tried["low"]).median(),
    }


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """95 % interval of a proportion; Wilson 1927. NaN without a trial.

    Args:
        successes: how many of the trials succeeded.
        trials: number of trials.
    """
    if not trials:
        return np.nan, np.nan
    proportion = scipy.stats.binomtest(successes, trials)
    interval = proportion.proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def counting_covariance(right: ArrayLike) -> Array:
    """Covariance (m, m) of the observed accuracies of m networks on labelled images.

    All networks see the same images, some of which are hard for all, so their observed
    accuracies err together: ``cov(right_i, right_j) / n``. Two images are added, one
    of which every network classifies rightly, to keep variances above 0.

    Args:
        right: (m, n) whether network i is right on image j.
    """
    right = np.asarray(right, dtype=float)
    images = right.shape[1]
    padded = np.column_stack([right, np.zeros(len(right)), np.ones(len(right))])
    return np.atleast_2d(np.cov(padded, bias=True)) / images


def combine_with_labels(
    predicted: ArrayLike,
    error: ArrayLike,
    common: float,
    right: ArrayLike,
    trusted: float = TRUSTED,
) -> tuple[Array, Array]:
    """Combine predicted accuracies with those observed on labelled images.

    Mean and covariance of the posterior of a normal prior (the predictions) given
    normal observations. If these are farther from the predictions than the quantile
    ``trusted`` of their squared Mahalanobis distance (chi-squared), the prior's
    covariance is inflated to the squared error that the observations show.

    Args:
        predicted: (m,) accuracies.
        error: (m,) standard deviations of their errors.
        common: share of the squared error that all networks have in common.
        right: (m, n) whether network i is right on labelled image j.
        trusted: quantile in [0, 1).

    Returns:
        (m,) accuracies and their (m, m) covariance.
    """
    p = np.asarray(predicted, dtype=float)
    error = np.asarray(error, dtype=float)
    counting = counting_covariance(right)
    correlation = common + (1 - common) * np.eye(len(p))
    prior = np.outer(error, error) * correlation
    observed_accuracy = np.asarray(right, dtype=float).mean(1)
    miss = observed_accuracy - p
    # Networks that are right on the same images have equal rows: hence pinv.
    squared_distance = miss @ np.linalg.pinv(prior + counting) @ miss
    if squared_distance > scipy.stats.chi2.ppf(trusted, len(p)):
        squared_errors = miss**2 - np.diag(counting)
        inflation = np.mean(squared_errors) / np.mean(error**2)
        prior = max(1.0, inflation) * prior
    gain = prior @ np.linalg.pinv(prior + counting)
    return p + gain @ miss, prior - gain @ prior

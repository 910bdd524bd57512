"""A gap predicted from the fit and a few measures, and how far that errs elsewhere."""

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
    FEWEST_FOLDS,
    FIT,
    PENALTIES,
    dealt_folds,
    left_out_errors,
)

LEVEL = 0.8  # of prediction intervals
# Half of such an interval, in standard deviations.
QUANTILE = float(scipy.stats.norm.ppf((1 + LEVEL) / 2))
MOST = 3  # measures beside what is known
FEWEST_CONFIGURATIONS = 8
# Quantile of misses up to which labelled images leave a prediction's error as it is.
TRUSTED = 0.95
_WORTH = 0.1  # share of the error that a further measure must take away
_DEALS = 3
_BEYOND = 0.1  # of the study's range: farther outside a value is named


class Predictor(NamedTuple):
    """What predicts the gap from some columns, and its errors on groups left out."""

    chosen: tuple[str, ...]  # measures beside what is known
    regression: Pipeline
    ranges: pd.DataFrame  # of each column among the study's models: low, high
    # Of the study's models, by the whole method without their group: group, truth,
    # predicted, leverage.
    left_out: pd.DataFrame
    scale: float  # half of an interval where the leverage is 0
    deviation: float  # standard deviation of errors where the leverage is 0
    # Share of the square of an error that all models of one user have: the images'.
    common: float
    groups: int  # that the regression rests on: kinds of training of each study
    precision: Array  # (k, k) of the standardised columns, see ``leverage``

    @property
    def farthest(self) -> float:
        """The leverage up to which errors were seen."""
        return float(self.left_out["leverage"].max())

    def predicted(self, models: pd.DataFrame) -> Array:
        """Predicted gaps (m,); NaN where a column is undefined.

        Values farther outside than one range of the studies are taken as that far:
        a loss of 1e-9 says no more than one of 0.01.

        Args:
            models: with the columns of the predictor.
        """
        x = self._clipped(models)
        defined = np.isfinite(x).all(axis=1)
        gaps = np.full(len(models), np.nan)
        if defined.any():
            gaps[defined] = self.regression.predict(x[defined])
        return gaps

    def leverage(self, models: pd.DataFrame) -> Array:
        """How far models (m,) are from those of the studies, as it widens errors.

        ``h(x) = 1/G + z' P z`` with z the standardised columns, P the precision of
        their means over G groups: the variance of a ridge regression's prediction, in
        units of the error's variance. About k/G in the middle of the studies.

        Args:
            models: with the columns of the predictor.
        """
        clipped = self._clipped(models)
        z = self.regression[0].transform(clipped)
        return 1 / self.groups + np.einsum("mi,ij,mj->m", z, self.precision, z)

    def half(self, models: pd.DataFrame) -> Array:
        """Half of each interval (m,): ``scale * sqrt(1 + leverage)``.

        Args:
            models: with the columns of the predictor.
        """
        return self.scale * np.sqrt(1 + self.leverage(models))

    def error(self, models: pd.DataFrame) -> Array:
        """Standard deviations (m,) of errors: ``deviation * sqrt(1 + leverage)``.

        Args:
            models: with the columns of the predictor.
        """
        return self.deviation * np.sqrt(1 + self.leverage(models))

    def beyond(self, models: pd.DataFrame) -> list[list[str]]:
        """Columns in which each row is outside the study's range by a tenth of it.

        Args:
            models: with the columns of the predictor.
        """
        low = self.ranges["low"]
        high = self.ranges["high"]
        margin = _BEYOND * (high - low)
        x = models[list(self.ranges.index)].astype(float)
        far = x.lt(low - margin) | x.gt(high + margin)
        return [list(far.columns[row]) for row in far.to_numpy()]

    def _clipped(self, models: pd.DataFrame) -> Array:
        low = self.ranges["low"]
        high = self.ranges["high"]
        x = models[list(self.ranges.index)].astype(float)
        # What never varied in the studies has no range to measure by.
        span = (high - low).where(high > low, np.inf)
        return x.clip(low - span, high + span, axis=1).to_numpy()


def fitted_columns(models: pd.DataFrame) -> tuple[str, ...]:
    """Columns of a network before any measure: training accuracy, loss, its images.

    The number of images of a class that it was fitted to is left out where a study
    does not say it.

    Args:
        models: of ``Calibration.models``.
    """
    if LOG_CLASS_IMAGES in models and np.isfinite(models[LOG_CLASS_IMAGES]).all():
        return (*FIT, LOG_CLASS_IMAGES)
    return FIT


def _folds(
    models: pd.DataFrame, fewest_kinds: int, deals: int = 1
) -> NDArray[np.int64]:
    """Numbers of what is left out together, (D, n).

    Kinds of training, of all studies at once, or tenths of the configurations where
    there are too few kinds.
    """
    if models["kind"].nunique() >= fewest_kinds:
        return pd.factorize(models["kind"])[0][None]
    return dealt_folds(models[CONFIGURATION], deals)


def choose(models: pd.DataFrame, candidates: Sequence[str]) -> tuple[str, ...]:
    """At most ``MOST`` measures of ``Calibration.models``.

    Each is that of least error with kinds left out, if it takes a tenth of it away.

    Args:
        models: of ``Calibration.models``.
        candidates: columns of measures.
    """
    folds = _folds(models, FEWEST_FOLDS, _DEALS)
    gap = models["gap"].to_numpy(dtype=float)
    fitted = fitted_columns(models)
    chosen: list[str] = []
    error = left_out_errors(models[list(fitted)], gap, folds).mean()
    while len(chosen) < MOST:
        rest = [name for name in candidates if name not in chosen]
        if not rest:
            break
        columns = [[*fitted, *chosen, name] for name in rest]
        sets = np.stack([models[names].to_numpy(dtype=float) for names in columns])
        errors = left_out_errors(sets, gap, folds).mean(1)
        if not errors.min() < (1 - _WORTH) * error:
            break
        chosen.append(rest[int(errors.argmin())])
        error = errors.min()
    return tuple(chosen)


def predictor(models: pd.DataFrame, candidates: Sequence[str]) -> Predictor:
    """A regression of studies, and intervals by the jackknife with kinds left out.

    Half of an interval is ``scale * sqrt(1 + leverage)``, so that it widens with the
    distance from what the studies cover; locally weighted conformal prediction, Lei et
    al. 2018, with groups as in Dunn, Wasserman and Ramdas 2023. The scale is the
    ``LEVEL`` quantile of ``|error| / sqrt(1 + leverage)`` of models whose kind was
    left out, the choice of measures made without it; all kinds count the same, and one
    further group counts as a miss. ``coverage`` measures what is achieved.

    Args:
        models: as ``Calibration.models``.
        candidates: columns of measures that may be chosen.

    Raises:
        ValueError: below ``FEWEST_CONFIGURATIONS``.
    """
    count = models[CONFIGURATION].nunique()
    if count < FEWEST_CONFIGURATIONS:
        raise ValueError(
            f"the study has {count} configurations with scores; "
            f"{FEWEST_CONFIGURATIONS} are needed to calibrate others"
        )
    left_out = _left_out(models, candidates)
    unfinished = _regressed(models, choose(models, candidates))
    return unfinished._replace(
        left_out=left_out,
        scale=_scale(left_out, unfinished.groups),
        deviation=_deviation(left_out),
        common=_common(models, candidates),
    )


def _regressed(models: pd.DataFrame, chosen: tuple[str, ...]) -> Predictor:
    """Ridge regression on standardised columns, Hoerl and Kennard 1970.

    Its penalty is that of least leave-one-out error. Errors are not known yet.
    """
    names = [*fitted_columns(models), *chosen]
    columns = models[names].astype(float)
    regression = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    regression.fit(columns.to_numpy(), models["gap"].to_numpy(dtype=float))
    groups = _groups(models)
    z = regression[0].transform(columns.to_numpy())
    penalty = regression[-1].alpha_ * np.eye(len(names))
    precision = np.linalg.inv((z.T @ z + penalty) * groups / len(models))
    return Predictor(
        chosen=chosen,
        regression=regression,
        ranges=pd.DataFrame({"low": columns.min(), "high": columns.max()}),
        left_out=pd.DataFrame(),
        scale=np.nan,
        deviation=np.nan,
        common=0.0,
        groups=groups,
        precision=precision,
    )


def _groups(models: pd.DataFrame) -> int:
    """Groups of models that miss together: kinds of each study, or folds of one."""
    if models["kind"].nunique() < 2:
        return len(np.unique(_folds(models, 2)))
    columns = [name for name in ("study", "kind") if name in models]
    return len(models[columns].drop_duplicates())


def _left_out(models: pd.DataFrame, candidates: Sequence[str]) -> pd.DataFrame:
    """Each model by the whole method without its kind, see ``Predictor.left_out``."""
    table = pd.DataFrame(
        {
            "group": _folds(models, 2)[0],
            "truth": models["gap"].astype(float),
            "predicted": np.nan,
            "leverage": np.nan,
        },
        models.index,
    )
    for group in table["group"].unique():
        inside = table["group"] == group
        rest = models[~inside]
        without = _regressed(rest, choose(rest, candidates))
        x = models.loc[inside, list(without.ranges.index)].to_numpy(dtype=float)
        table.loc[inside, "predicted"] = without.regression.predict(x)
        table.loc[inside, "leverage"] = without.leverage(models[inside])
    return table


def _scale(left_out: pd.DataFrame, groups: int, level: float = LEVEL) -> float:
    """Quantile of the errors in units of ``sqrt(1 + leverage)``, groups alike."""
    errors, weights = _scaled_errors(left_out)
    share = min(1.0, level * (groups + 1) / groups - 1e-9)
    return float(np.quantile(errors, share, method="inverted_cdf", weights=weights))


def _deviation(left_out: pd.DataFrame) -> float:
    """Root mean square of the errors in these units, groups alike."""
    errors, weights = _scaled_errors(left_out)
    return float(np.sqrt(np.average(errors**2, weights=weights)))


def _scaled_errors(left_out: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    errors = (left_out["truth"] - left_out["predicted"]).abs()
    weights = 1 / left_out.groupby("group")["truth"].transform("size")
    return errors / np.sqrt(1 + left_out["leverage"]), weights


def _common(models: pd.DataFrame, candidates: Sequence[str]) -> float:
    """Share of squared errors that the models of a study have in common.

    The squared mean over the mean square of errors, each study predicted by the
    others. One study shows none: 0.
    """
    if "study" not in models or models["study"].nunique() < 2:
        return 0.0
    means = []
    squares = []
    for _, inside in models.groupby("study"):
        others = models.drop(inside.index)
        by = _regressed(others, choose(others, candidates))
        errors = inside["gap"].to_numpy(dtype=float) - by.predicted(inside)
        means.append(errors.mean() ** 2)
        squares.append((errors**2).mean())
    return float(np.mean(means) / max(np.mean(squares), 1e-12))


def held(models: pd.DataFrame, by: Predictor) -> pd.DataFrame:
    """Models whose gap is known, with truth, predicted, and an interval: low, high.

    Args:
        models: of ``Calibration.models``.
        by: that predicts them.
    """
    predicted = by.predicted(models)
    half = by.half(models)
    return models.assign(
        truth=models["gap"].astype(float),
        predicted=predicted,
        low=predicted - half,
        high=predicted + half,
    )


def coverage(models: pd.DataFrame, candidates: Sequence[str]) -> pd.DataFrame:
    """The whole method tried on each kind of training that it has not seen.

    As ``held``; no row where too few configurations are left.

    Args:
        models: of ``Calibration.models``.
        candidates: columns of measures.
    """
    empty = pd.DataFrame(columns=[*models, "truth", "predicted", "low", "high"])
    tables = []
    for _, inside in models.groupby("kind", sort=False):
        rest = models.drop(inside.index)
        if rest[CONFIGURATION].nunique() >= FEWEST_CONFIGURATIONS:
            tables.append(held(inside, predictor(rest, candidates)))
    return pd.concat(tables, ignore_index=True) if tables else empty


def summary(tried: pd.DataFrame) -> dict[str, float]:
    """Errors of a table as ``held``, and the share of intervals that hold.

    The share's interval counts configurations, since snapshots and repeats
    of one miss together.

    Args:
        tried: of ``coverage`` or ``held``.

    Returns:
        models and inside, numbers; error_points, the mean absolute error, and
        width_points, the median width, in points; covered with its 95 % interval.
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


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a proportion; Wilson 1927. NaN without a trial.

    Args:
        successes: number of them.
        trials: number of them.
        level: of the interval.
    """
    if not trials:
        return np.nan, np.nan
    proportion = scipy.stats.binomtest(successes, trials)
    interval = proportion.proportion_ci(level, "wilson")
    return float(interval.low), float(interval.high)


def counting_covariance(right: ArrayLike) -> Array:
    """Covariance (m, m) of shares of labelled images that m networks have right.

    All networks see the same images, some of which are hard for all, so their shares
    err together: ``cov(right_i, right_j) / n``. Two images more, of which every
    network has one right, keep a variance above 0.

    Args:
        right: (m, n) whether network i is right on image j.
    """
    right = np.asarray(right, dtype=float)
    images = right.shape[1]
    padded = np.column_stack([right, np.zeros(len(right)), np.ones(len(right))])
    return np.atleast_2d(np.cov(padded, bias=True)) / images


def weighed(
    predicted: ArrayLike,
    error: ArrayLike,
    common: float,
    right: ArrayLike,
    trusted: float = TRUSTED,
) -> tuple[Array, Array]:
    """Predicted accuracies weighed with the shares of labelled images that are right.

    The mean and covariance of the predictions' normal law given the shares. Where
    these are beyond the quantile ``trusted`` of what predictions and counting make
    (chi-squared), predictions err by as much as the shares show, if that is more.

    Args:
        predicted: (m,) accuracies.
        error: (m,) standard deviations of their errors.
        common: share of the square of an error that is one error of all.
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
    miss = np.asarray(right, dtype=float).mean(1) - p
    # Networks that are right on the same images have equal rows: hence pinv.
    surprise = miss @ np.linalg.pinv(prior + counting) @ miss
    if surprise > scipy.stats.chi2.ppf(trusted, len(p)):
        shown = np.mean(miss**2 - np.diag(counting)) / np.mean(error**2)
        prior = max(1.0, shown) * prior
    gain = prior @ np.linalg.pinv(prior + counting)
    return p + gain @ miss, prior - gain @ prior

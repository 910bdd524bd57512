"""A gap predicted from the fit and a few measures that a study chooses, and how far that errs on kinds left out."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from helpers.statistics.correlations import Array
from helpers.statistics.prediction import (
    FEWEST_FOLDS,
    FIT,
    PENALTIES,
    dealt_folds,
    left_out_errors,
)

LEVEL = 0.8  # of prediction intervals
QUANTILE = float(
    scipy.stats.norm.ppf((1 + LEVEL) / 2)
)  # half of such an interval, in standard deviations
MOST = 3  # measures beside the fit
FEWEST_CONFIGURATIONS = 8
_WORTH = 0.1  # share of the error that a further measure must take away
_DEALS = 3
TRUSTED = 0.95  # quantile of misses up to which labelled images leave a prediction's error as it is
_BEYOND = 0.1  # of the study's range: farther outside a value is named; farther than one range outside it is taken as at that distance


class Predictor(NamedTuple):
    """What predicts the gap from some columns, and what its errors are on groups of models left out."""

    chosen: tuple[str, ...]  # measures beside the fit
    regression: Pipeline
    ranges: pd.DataFrame  # of each column among the study's models: low, high
    left_out: pd.DataFrame  # of the study's models: group, truth, predicted, by the whole method without their group
    half: float  # half of the width of an interval

    @property
    def error(self) -> float:
        """Standard deviation of the errors that the interval stands for, were they normal."""
        return self.half / QUANTILE

    @property
    def common(self) -> float:
        """Share of the square of an error that models left out together have in common."""
        errors = (self.left_out["truth"] - self.left_out["predicted"]).groupby(
            self.left_out["group"]
        )
        between, within = (errors.mean() ** 2).mean(), errors.var(ddof=0).mean()
        return float(between / max(between + within, 1e-12))

    def predicted(self, own: pd.DataFrame) -> Array:
        """Predictions (m,) of rows with the columns, NaN where one is undefined: a loss of 1e-9 tells no more than one of 0.01."""
        low, high = self.ranges["low"], self.ranges["high"]
        x = (
            own[list(self.ranges.index)]
            .astype(float)
            .clip(2 * low - high, 2 * high - low, axis=1)
        )
        known, found = np.isfinite(x).all(axis=1).to_numpy(), np.full(len(own), np.nan)
        if known.any():
            found[known] = self.regression.predict(x[known].to_numpy())
        return found

    def beyond(self, own: pd.DataFrame) -> list[list[str]]:
        """Columns in which each row lies outside the study's range by more than a tenth of it."""
        low, high, x = (
            self.ranges["low"],
            self.ranges["high"],
            own[list(self.ranges.index)],
        )
        far = x.lt(low - _BEYOND * (high - low)) | x.gt(high + _BEYOND * (high - low))
        return [list(far.columns[row]) for row in far.to_numpy()]


def _folds(
    models: pd.DataFrame, fewest_kinds: int, deals: int = 1
) -> NDArray[np.int64]:
    """Numbers of what is left out together, (D, n): kinds of training, or tenths of the configurations where there are too few kinds."""
    if models["kind"].nunique() >= fewest_kinds:
        return pd.factorize(models["kind"])[0][None]
    return dealt_folds(models["cell"], deals)


def choose(models: pd.DataFrame, candidates: Sequence[str]) -> tuple[str, ...]:
    """At most ``MOST`` measures of ``Calibration.models``, each that of least error with kinds left out, if it takes a tenth of it away."""
    folds, truth = (
        _folds(models, FEWEST_FOLDS, _DEALS),
        models["gap"].to_numpy(dtype=float),
    )
    chosen: list[str] = []
    error = left_out_errors(models[list(FIT)], truth, folds).mean()
    while len(chosen) < MOST and (
        rest := [name for name in candidates if name not in chosen]
    ):
        sets = np.stack(
            [models[[*FIT, *chosen, name]].to_numpy(dtype=float) for name in rest]
        )
        errors = left_out_errors(sets, truth, folds).mean(1)
        if not errors.min() < (1 - _WORTH) * error:
            break
        chosen.append(rest[int(errors.argmin())])
        error = errors.min()
    return tuple(chosen)


def _fitted(models: pd.DataFrame, chosen: Sequence[str]) -> Pipeline:
    """Ridge regression on standardised columns, of the penalty of least leave-one-out error; Hoerl and Kennard 1970."""
    regression = make_pipeline(StandardScaler(), RidgeCV(PENALTIES))
    return regression.fit(
        models[[*FIT, *chosen]].to_numpy(dtype=float),
        models["gap"].to_numpy(dtype=float),
    )


def predictor(models: pd.DataFrame, candidates: Sequence[str]) -> Predictor:
    """A regression of a study, and its interval: the jackknife with whole groups left out, the choice of measures made without them.

    Half the width is the ``LEVEL`` quantile of the absolute errors of models whose group was left out, all groups weighted equally, and one
    further configuration counted as a miss; Barber et al. 2021 and, for groups, Dunn, Wasserman and Ramdas 2023. It is promised
    for a kind drawn from such kinds; ``coverage`` measures what is achieved. ValueError below ``FEWEST_CONFIGURATIONS``.
    """
    if (count := models["cell"].nunique()) < FEWEST_CONFIGURATIONS:
        raise ValueError(
            f"the study has {count} configurations with scores; {FEWEST_CONFIGURATIONS} are needed to calibrate others"
        )
    chosen, left_out = choose(models, candidates), _left_out(models, candidates)
    columns = models[[*FIT, *chosen]].astype(float)
    ranges = pd.DataFrame({"low": columns.min(), "high": columns.max()})
    return Predictor(
        chosen, _fitted(models, chosen), ranges, left_out, _half_width(left_out, count)
    )


def _left_out(models: pd.DataFrame, candidates: Sequence[str]) -> pd.DataFrame:
    """Truth and prediction of each model by the whole method without its kind: group, truth, predicted."""
    table = pd.DataFrame(
        {
            "group": _folds(models, 2)[0],
            "truth": models["gap"].astype(float),
            "predicted": np.nan,
        },
        models.index,
    )
    for group in table["group"].unique():
        inside = table["group"] == group
        chosen = choose(models[~inside], candidates)
        given = models.loc[inside, [*FIT, *chosen]].to_numpy(dtype=float)
        table.loc[inside, "predicted"] = _fitted(models[~inside], chosen).predict(given)
    return table


def _half_width(
    left_out: pd.DataFrame, configurations: int, level: float = LEVEL
) -> float:
    weights = 1 / left_out.groupby("group")["truth"].transform("size")
    share = min(1.0, level * (configurations + 1) / configurations - 1e-9)
    return float(
        np.quantile(
            (left_out["truth"] - left_out["predicted"]).abs(),
            share,
            method="inverted_cdf",
            weights=weights,
        )
    )


def held(models: pd.DataFrame, found: Predictor) -> pd.DataFrame:
    """Models whose gap is known, with truth, predicted, and the ends of the interval: low, high."""
    predicted = found.predicted(models)
    interval = {
        "predicted": predicted,
        "low": predicted - found.half,
        "high": predicted + found.half,
    }
    return models.assign(truth=models["gap"].astype(float), **interval)


def coverage(models: pd.DataFrame, candidates: Sequence[str]) -> pd.DataFrame:
    """The whole method tried on each kind of training that it has not seen, as ``held``; no row where too few configurations are left."""
    parts = [pd.DataFrame(columns=[*models, "truth", "predicted", "low", "high"])]
    for _, inside in models.groupby("kind", sort=False):
        rest = models.drop(inside.index)
        if rest["cell"].nunique() >= FEWEST_CONFIGURATIONS:
            parts.append(held(inside, predictor(rest, candidates)))
    return pd.concat(parts[1:] or parts, ignore_index=True)


def summary(tried: pd.DataFrame) -> dict[str, float]:
    """Mean absolute error and median width, in points, of a table as ``held``, and the share of intervals that hold, with its interval.

    That counts configurations (``cell``), since snapshots and repeats of one miss together.
    """
    inside, trials = (
        int(tried["truth"].between(tried["low"], tried["high"]).sum()),
        tried["cell"].nunique(),
    )
    covered = inside / len(tried) if len(tried) else np.nan
    low, high = wilson(round(covered * trials) if trials else 0, trials)
    share = {"covered": covered, "covered_low": low, "covered_high": high}
    error, width = (
        (tried["truth"] - tried["predicted"]).abs().mean(),
        (tried["high"] - tried["low"]).median(),
    )
    return {
        "models": len(tried),
        "error_points": 100 * error,
        "inside": inside,
        **share,
        "width_points": 100 * width,
    }


def wilson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """Interval of a proportion; Wilson 1927. NaN without a trial."""
    if not trials:
        return np.nan, np.nan
    found = scipy.stats.binomtest(successes, trials).proportion_ci(level, "wilson")
    return float(found.low), float(found.high)


def weighed(
    predicted: ArrayLike,
    error: float,
    common: float,
    right: ArrayLike,
    images: int,
    trusted: float = TRUSTED,
) -> tuple[Array, Array]:
    """Predicted accuracies (m,) weighed with counts ``right`` of labelled images by their variances, and standard deviations of the result.

    The mean of the predictions' normal law given the counts. Predictions err by the standard deviation ``error``, of whose square the share
    ``common`` is one error of them all; by as much as the counts show, if that is more, where these are beyond the quantile ``trusted`` of
    what such errors and counting make (chi-squared). A count's variance is ``p (1 - p) / n``, p with two images more, one of them right.
    """
    p, counted = (
        np.asarray(predicted, dtype=float),
        np.asarray(right, dtype=float) / images,
    )
    share = (np.asarray(right) + 1) / (images + 2)
    own, shape = (
        np.diag(share * (1 - share) / images),
        common + (1 - common) * np.eye(len(p)),
    )
    prior, miss = error**2 * shape, counted - p
    if miss @ np.linalg.solve(prior + own, miss) > scipy.stats.chi2.ppf(
        trusted, len(p)
    ):
        prior = max(error**2, np.mean(miss**2 - np.diag(own))) * shape
    gain = np.linalg.solve(prior + own, prior).T
    return p + gain @ miss, np.sqrt(np.diag(prior - gain @ prior))

"""Networks of published studies, whose gaps are known, predict those of others."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from helpers.files import inside, table_of
from helpers.report import tables
from helpers.scores.measuring import with_measures
from helpers.statistics import primary
from helpers.statistics.correlate import Bootstrap, with_log_train_loss
from helpers.statistics.gap_rule import PREDICTORS, GapRule, fit_rule

STUDIES = ("kinds20", "filled20", "kinds24")


def published_models(report: Path) -> pd.DataFrame:
    """Networks of a published study.

    Args:
        report: ``reports/<study>``.

    Returns:
        Rows of its catalogue with a column per measure.

    Raises:
        FileNotFoundError: if the report lacks its catalogue or scores.
    """
    catalogue = tables.read(report, "catalogue")
    scores = tables.read(report, "scores", ".parquet")
    if catalogue is None or scores is None:
        raise FileNotFoundError(
            f"{report} has no catalogue.csv and scores.parquet; name a published study"
        )
    return with_measures(catalogue, scores)


def networks(
    reports: Path, studies: Sequence[str] = STUDIES, *, wrong_labels: bool = False
) -> pd.DataFrame:
    """One row per network of published studies, with its scores and its predictors.

    Networks that are left out of their study are left out here.

    Args:
        reports: folder of all reports.
        studies: names of the studies.
        wrong_labels: whether networks that were fitted to some are taken.

    Returns:
        The catalogue's columns, a column per measure, study, its number of classes,
        ``PREDICTORS`` and log_train_loss.

    Raises:
        FileNotFoundError: if a report has no catalogue or scores.
    """
    of_studies = []
    for study in studies:
        folder = inside(reports, study)
        models = published_models(folder)
        models = models[models["left_out"].isna() & models["gap"].notna()]
        if not wrong_labels:
            models = models[models["label_noise"].eq(0)]
        images = pd.read_csv(table_of(folder, "table1_categories.csv"))["train_images"]
        limited = models["images_per_class"].replace(0, images.mean())
        is_split = models["rule3_split"].eq("holdout")
        fitted = 1 - models["holdout_fraction"].where(is_split, 0.0)
        models = models.assign(study=study, classes=len(images))
        models["log_images"] = np.log(limited * fitted)
        of_studies.append(with_log_train_loss(models))
    return pd.concat(of_studies, ignore_index=True)


def rule(models: pd.DataFrame, columns: Sequence[str] = PREDICTORS) -> GapRule:
    """Fit the rule for the gap to networks whose gap is known.

    Args:
        models: of ``networks``.
        columns: that predict.
    """
    return fit_rule(models[list(columns)], models["gap"], models["kind"])


def errors_across(
    models: pd.DataFrame, columns: Sequence[str] = PREDICTORS
) -> NDArray[np.float64]:
    """Predicted less true gap of each network, by the rule of the other studies.

    Args:
        models: of ``networks``, of two studies or more.
        columns: that predict.

    Returns:
        (n,) fractions.
    """
    predicted = pd.Series(index=models.index, dtype=float)
    for _, of_study in models.groupby("study"):
        fitted = rule(models.drop(of_study.index), columns)
        predicted[of_study.index] = fitted.predict(of_study[list(columns)])
    return (predicted - models["gap"]).to_numpy()


def margin(models: pd.DataFrame, errors: NDArray[np.float64]) -> float:
    """80 % quantile of errors of a predicted difference of two networks of a study.

    A study's networks err alike, so that differences are surer than their intervals.

    Args:
        models: of ``networks``, of two studies or more.
        errors: of ``errors_across``.
    """
    by_study = pd.Series(errors).groupby(models["study"].to_numpy())
    pairs = [pdist(of_study.to_numpy()[:, None]) for _, of_study in by_study]
    return float(np.quantile(np.concatenate(pairs), 0.8))


def errors_across_studies(
    models: pd.DataFrame,
    study: str,
    others: Sequence[str],
    reports: Path,
    measures: dict[str, str],
) -> pd.DataFrame:
    """Errors of this study's gaps by ridge regressions on other, published studies.

    Args:
        models: the networks of the study's primary analysis, with measures.
        study: its name.
        others: names of published studies; the study itself is skipped.
        reports: folder of all reports.
        measures: column and title of each measure, which is used together with training
            accuracy and loss.

    Returns:
        A row per other study and predictor: trained_on, measure (a column, or a key of
        ``primary.TITLES``), title, and over the n networks that have the predictor
        error_points with error_points_low and _high; NaN where those of the other study
        have none. No rows without other studies.
    """
    new = with_log_train_loss(models)
    bootstrap = Bootstrap(new)
    tables = [pd.DataFrame(columns=["trained_on", "measure", "title", "n"])]
    for name in [name for name in others if name != study]:
        published = published_models(inside(reports, name))
        old = with_log_train_loss(published[primary.primary_rows(published)])
        both = pd.concat([old, new], ignore_index=True)
        gap = both["gap"].to_numpy(float)
        is_new = both.index >= len(old)
        axes = primary.KIND + primary.SETTING
        shared = [axis for axis in axes if axis in old and axis in new]
        varied = primary.varied_axes(both, shared)
        known = primary.predictors_of(both, varied, measures)
        errors = [
            primary.held_out_errors(columns, gap, is_new, fewest=2)[is_new]
            for columns in known.values()
        ]
        of_networks = np.stack(errors, axis=1)
        error = bootstrap.mean(of_networks).drop(columns="_smallest")
        table = pd.DataFrame({"trained_on": name, "measure": [*known]})
        table["title"] = table["measure"].map({**measures, **primary.TITLES})
        table["n"] = np.isfinite(of_networks).sum(0)
        tables.append(table.join(error.add_prefix("error_points")))
    return pd.concat(tables, ignore_index=True)

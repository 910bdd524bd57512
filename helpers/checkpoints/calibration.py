"""Networks of published studies, whose gaps are known, to fit the rule for the gap."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.spatial.distance import pdist

from helpers.files import inside, table_of
from helpers.report.studies import published_models
from helpers.statistics.gap_rule import PREDICTORS, GapRule, fit_rule, predictors

STUDIES = ("kinds20", "filled20", "kinds24")


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
    tables = []
    for study in studies:
        folder = inside(reports, study)
        models = published_models(folder)
        is_used = models["left_out"].isna() & models["gap"].notna()
        if not wrong_labels:
            is_used &= models["label_noise"].eq(0)
        models = models[is_used]
        images = pd.read_csv(table_of(folder, "table1_categories.csv"))["train_images"]
        limited = models["images_per_class"].replace(0, images.mean())
        is_split = models["rule3_split"].eq("holdout")
        fitted = 1 - models["holdout_fraction"].where(is_split, 0.0)
        columns = predictors(models["train_accuracy"], models, limited * fitted)
        models[list(PREDICTORS)] = columns
        tables.append(
            models.assign(
                study=study,
                classes=len(images),
                log_train_loss=np.log(models["train_loss"].clip(lower=1e-12)),
            )
        )
    return pd.concat(tables, ignore_index=True)


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
    predicted = np.empty(len(models))
    for study in models["study"].unique():
        is_here = models["study"].eq(study).to_numpy()
        rows = models.loc[is_here, list(columns)]
        predicted[is_here] = rule(models[~is_here], columns).predict(rows)
    return predicted - models["gap"].to_numpy()


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

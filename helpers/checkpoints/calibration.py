"""Networks of published studies, whose gaps are known, to fit the rule for the gap."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.files import inside, read_table, table_of
from helpers.scores.measuring import with_measures
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
        catalogue = pd.read_csv(
            table_of(folder, "catalogue.csv"), dtype={"left_out": str}
        )
        models = with_measures(
            catalogue, read_table(table_of(folder, "scores.parquet"))
        )
        is_used = models["left_out"].isna()
        if not wrong_labels:
            is_used &= models["label_noise"].eq(0)
        models = models[is_used].dropna(subset="gap")
        limited = models["images_per_class"].where(models["images_per_class"] > 0)
        images = pd.read_csv(table_of(folder, "table1_categories.csv"))["train_images"]
        is_split = models["rule3_split"].eq("holdout")
        fitted = 1 - models["holdout_fraction"].where(is_split, 0.0)
        class_images = limited.fillna(images.mean()) * fitted
        of_rule = predictors(models["train_accuracy"], models, class_images)
        models[list(PREDICTORS)] = of_rule
        log_loss = np.log(models["train_loss"].clip(lower=1e-12))
        tables.append(
            models.assign(study=study, classes=len(images), log_train_loss=log_loss)
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
    errors = np.empty(len(models))
    for study in models["study"].unique():
        inside = models["study"].eq(study).to_numpy()
        predicted = rule(models[~inside], columns).predict(
            models.loc[inside, list(columns)]
        )
        errors[inside] = predicted - models.loc[inside, "gap"]
    return errors


def margin(models: pd.DataFrame, errors: NDArray[np.float64]) -> float:
    """80 % quantile of errors of a predicted difference of two networks of a study.

    A study's networks err alike, so that differences are surer than their intervals.

    Args:
        models: of ``networks``, of two studies or more.
        errors: of ``errors_across``.
    """
    pairs = []
    for _, of_study in pd.Series(errors).groupby(models["study"].to_numpy()):
        differences = np.abs(np.subtract.outer(*[of_study.to_numpy()] * 2))
        pairs.append(differences[np.triu_indices_from(differences, 1)])
    return float(np.quantile(np.concatenate(pairs), 0.8))


def in_words(models: pd.DataFrame, errors: NDArray[np.float64], classes: int) -> str:
    """A sentence on what a prediction rests on.

    Args:
        models: of ``networks``.
        errors: of ``errors_across``.
        classes: of the user's networks.
    """
    studies = ", ".join(models["study"].unique())
    numbers = " or ".join(map(str, sorted(models["classes"].unique())))
    return (
        "Predicted from the accuracy lost on shifted and mixed training images and the "
        f"number of images of a class, by {len(models)} ResNets of {numbers} classes "
        f"({studies}), which predict another study with a mean error of "
        f"{100 * np.abs(errors).mean():.1f} points; yours have {classes} classes."
    )

"""Networks of published studies, and predictions from one study to another."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from helpers.files import inside
from helpers.report import tables
from helpers.scores.measuring import with_measures
from helpers.statistics.primary import across_studies, primary_rows


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


def errors_across_studies(
    models: pd.DataFrame,
    study: str,
    others: Sequence[str],
    reports: Path,
    measures: dict[str, str],
) -> pd.DataFrame:
    """Errors of this study's gaps as predicted from other, published studies.

    Args:
        models: the networks of the study's primary analysis, with measures.
        study: its name.
        others: names of published studies; the study itself is skipped.
        reports: folder of all reports.
        measures: column and title of each measure.

    Returns:
        See ``primary.across_studies``; no rows without other studies.
    """
    studies = {study: models}
    for name in others:
        if name != study:
            published = published_models(inside(reports, name))
            studies[name] = published[primary_rows(published)].reset_index(drop=True)
    return across_studies(studies, study, measures)

"""Networks of published studies, and predictions from one study to another."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from helpers.files import inside
from helpers.report import tables
from helpers.scores.measuring import with_measures
from helpers.statistics.primary import across_studies, primary_rows


def published_models(reports: Path, study: str) -> pd.DataFrame:
    """Networks of the primary analysis of a published study.

    Args:
        reports: folder of all reports.
        study: name of the study.

    Returns:
        Rows of its catalogue with a column per measure.

    Raises:
        FileNotFoundError: if the report lacks its catalogue or scores.
    """
    folder = inside(reports, study)
    catalogue = tables.read(folder, "catalogue")
    scores = tables.read(folder, "scores", ".parquet")
    if catalogue is None or scores is None:
        raise FileNotFoundError(
            f"{folder}/tables holds no catalogue.csv and scores.parquet of the study "
            f"{study!r}; name a published study in other_studies, or none"
        )
    rows = catalogue[primary_rows(catalogue)].reset_index(drop=True)
    return with_measures(rows, scores)


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
    studies = {
        name: published_models(reports, name) for name in others if name != study
    }
    studies[study] = models
    return across_studies(studies, study, measures)

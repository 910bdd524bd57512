"""Comparison of studies: primary measures, prediction across studies, classes."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from helpers.files import inside
from helpers.report import figures, pages, studies, style, tables
from helpers.statistics.classes import equal_numbers
from helpers.statistics.gap_tables import across_studies
from helpers.statistics.verdicts import CANNOT_TELL, word

_CORRELATIONS = ("r_gap", "r_gap_given_start")
_ESTIMATES = (*_CORRELATIONS, "error_with")
_TITLES = {
    "r_gap": "r with the gap",
    "r_gap_given_start": "r with the start held fixed",
    "error_with": "error of a held-out kind (points)",
}


def side_by_side(reports: Path, names: Sequence[str]) -> pd.DataFrame:
    """Rows of the primary tables of several studies, one per study and measure.

    Args:
        reports: folder of all reports.
        names: of the studies, two at least.

    Returns:
        Measures that all studies have, in the order of the first: study, measure,
        title, baseline, n, and of each estimate (r with the gap, the same with the
        start held fixed, error of a held-out kind in points) the value with ``_low``
        and ``_high``; and of both correlations the ``_verdict``, see ``verdicts.word``.

    Raises:
        ValueError: for fewer than two studies, or where they share no measure.
        FileNotFoundError: where a report has no primary analysis of this form.
    """
    if len(set(names)) < 2:
        raise ValueError(
            f"two studies at least are compared, got {', '.join(names) or 'none'}; "
            "name some of those in reports"
        )
    ends = [f"{name}{end}" for name in _ESTIMATES for end in ("", "_low", "_high")]
    columns = ["measure", "title", "baseline", "n", *ends]
    parts = []
    for name in names:
        primary = tables.read(inside(reports, name), "primary")
        if primary is None or not set(columns) <= set(primary.columns):
            raise FileNotFoundError(
                f"{reports / name}/tables holds no primary.csv as notebook 04 writes "
                f"it now; execute 04 of {name} again, or leave it out"
            )
        rows = primary[columns].assign(study=name)
        claims = tables.read(inside(reports, name), "claims")
        for question in _CORRELATIONS:
            rows[f"{question}_verdict"] = [
                word(row, question, claims) for _, row in primary.iterrows()
            ]
        parts.append(rows)
    shared = set.intersection(*(set(part["measure"]) for part in parts))
    if not shared:
        raise ValueError(f"{', '.join(names)} have no primary measure in common")
    joined = pd.concat(parts, ignore_index=True)
    joined = joined[joined["measure"].isin(shared)]
    rank = {measure: place for place, measure in enumerate(parts[0]["measure"])}
    return joined.sort_values(
        "measure", key=lambda names: names.map(rank), kind="stable", ignore_index=True
    )


def predictions(
    reports: Path,
    names: Sequence[str],
    equal_architectures: bool = False,
) -> pd.DataFrame:
    """Errors of the gaps of each study as predicted from each other study.

    Args:
        reports: folder of all reports.
        names: of the studies.
        equal_architectures: take equally many networks of each architecture in each
            study, drawn once.

    Returns:
        See ``gap_tables.across_studies``, with each study as ``judged_on``.
    """
    measures = side_by_side(reports, names).query("not baseline")
    titles = dict(zip(measures["measure"], measures["title"], strict=True))
    models = {}
    for name in names:
        of_study = studies.published_models(reports, name)
        if equal_architectures:
            of_study = of_study[equal_numbers(of_study["architecture"], seed=0)]
        models[name] = of_study.reset_index(drop=True)
    parts = [across_studies(models, name, titles) for name in names]
    return pd.concat(parts, ignore_index=True)


def write(
    reports: Path, names: Sequence[str], equal_architectures: bool = False
) -> Path:
    """Write ``reports/comparison.html``.

    Args:
        reports: folder of all reports.
        names: of the studies that are compared, two at least.
        equal_architectures: see ``predictions``.
    """
    rows = side_by_side(reports, names)
    across = predictions(reports, names, equal_architectures)
    # Notebook 10 of a study may not have written its table of classes yet.
    by_study = {name: tables.read(inside(reports, name), "classes") for name in names}
    absent = [name for name, table in by_study.items() if table is None]
    classes = [
        table.assign(study=name)
        for name, table in by_study.items()
        if table is not None
    ]
    return pages.write_comparison(
        reports,
        studies=list(names),
        agreement=agreement(rows),
        primary=Markup(tables.html(_wide(rows))),
        figure=_inline(_forests(rows)),
        across=Markup(tables.html(across.drop(columns=["measure", "baseline"]))),
        classes=Markup(tables.html(pd.concat(classes))) if classes else "",
        absent=", ".join(absent),
        equal=equal_architectures,
    )


def agreement(rows: pd.DataFrame) -> str:
    """Sentences on the measures that correlate with the gap in all studies.

    A correlation is clear if the study's verdict is not "cannot tell". The second
    sentence is on correlations with the pretrained start held fixed, since the start
    may explain both measure and gap.

    Args:
        rows: of ``side_by_side``.
    """
    measures = rows[~rows["baseline"].astype(bool)]
    alone = _clear(measures, "r_gap")
    fixed = _clear(measures, "r_gap_given_start")
    return (
        "Clearly correlated with the gap, and with the same sign in each study: "
        f"{'; '.join(alone) or 'no measure'}. "
        f"With the pretrained start held fixed: {'; '.join(fixed) or 'no measure'}."
    )


def _clear(rows: pd.DataFrame, estimate: str) -> list[str]:
    """Titles of the measures with one verdict in all studies, if there is a verdict."""
    titles = []
    for title, of_measure in rows.groupby("title", sort=False):
        verdicts = set(of_measure[f"{estimate}_verdict"])
        if len(verdicts) == 1 and CANNOT_TELL not in verdicts:
            titles.append(title)
    return titles


def _wide(rows: pd.DataFrame) -> pd.DataFrame:
    """A row per measure, the estimates of each study beside each other, as text."""
    columns = {"measure": rows.drop_duplicates("measure")["title"].tolist()}
    for name in _ESTIMATES:
        for study, part in rows.groupby("study", sort=False):
            columns[f"{_TITLES[name]}: {study}"] = [
                _with_interval(row, name) for row in part.to_dict("records")
            ]
    return pd.DataFrame(columns)


def _with_interval(row: dict[str, Any], estimate: str) -> str:
    """An estimate with its interval; "–" for a baseline that has none."""
    if row["baseline"] and pd.isna(row[estimate]):
        return "–"
    ends = row[f"{estimate}_low"], row[f"{estimate}_high"]
    return style.with_interval(row[estimate], *ends)


def _forests(rows: pd.DataFrame) -> Figure:
    """r with the gap of each measure, a panel per study."""
    names = list(rows["study"].unique())
    count = rows["measure"].nunique()
    style.use()
    figure, panels = plt.subplots(
        1, len(names), figsize=(3.2 * len(names) + 1, 1.2 + 0.36 * count), sharey=True
    )
    for ax, name in zip(panels, names, strict=True):
        part = rows[rows["study"] == name].reset_index(drop=True)
        ends = part["r_gap_low"], part["r_gap_high"]
        figures.forest(ax, part["title"], part["r_gap"], *ends)
        ax.set_xlim(-1.05, 1.05)
        ax.set_title(f"{name} (n = {part['n'].max():.0f})", fontsize="small")
        ax.set_xlabel("r with the gap")
    return figure


def _inline(figure: Figure) -> Markup:
    """A figure as an image within the page."""
    with io.BytesIO() as buffer:
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        content = base64.b64encode(buffer.getvalue()).decode()
    plt.close(figure)
    return Markup(f"data:image/png;base64,{content}")

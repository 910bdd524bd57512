"""What a study says, on one page: every number worked out anew from the committed catalogue, scores and tables."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers import measures, paper_claims, scoring
from helpers.bearing import bearing_section, table_link, testable
from helpers.comparison import difference_table
from helpers.files import PROJECT_ROOT, inside
from helpers.grid import PAPER_AXES
from helpers.paper_claims import Sampling
from helpers.ranking import ranking_table, varied_axes
from helpers.readings import count, percent, points
from helpers.verdicts import ranking_read, winner

PAGE = "FINDINGS.md"
PILOT = 150  # models; a study of fewer is a pilot
NOT_TESTED = "not tested here"
_ABLATIONS = ("table5_validity", "table6_cam_methods", "table7_saliency", "ablation_label_noise")


class Study(NamedTuple):
    """What is committed of a study."""

    name: str
    catalogue: pd.DataFrame
    models: pd.DataFrame  # that enter the analysis, with a column per measure
    directions: dict[str, int]
    axes: list[str]
    tables: dict[str, pd.DataFrame]  # of notebook 05
    hyperparameters: pd.DataFrame  # levels here and in the paper
    scores: str  # table of the measures: "scores", of notebook 04, or, where there is none, "mask_metrics", of notebook 03


def read_study(reports: Path, name: str) -> Study:
    """Read the tables of a study's report.

    Raises:
        FileNotFoundError: it has no catalogue or no scores; the message says which notebooks make them.
    """
    folder = inside(reports, name) / "tables"
    localized = not (folder / "scores.parquet").is_file() and (folder / "mask_metrics.csv").is_file()
    for file, notebook in (("catalogue.csv", "02_grid_training"), ("scores.parquet", "04_baselines")):
        if not (folder / file).is_file() and not (localized and notebook == "04_baselines"):
            raise FileNotFoundError(f"{folder / file} is missing; run {notebook} of study {name!r} first")
    catalogue = pd.read_csv(folder / "catalogue.csv", keep_default_na=False, na_values=["", "nan", "NaN"])
    catalogue = catalogue.assign(left_out=catalogue["left_out"].fillna(""))
    if localized:
        table = catalogue.merge(pd.read_csv(folder / "mask_metrics.csv"), how="left", on="model_id")
    else:
        table = scoring.with_measures(catalogue, pd.read_parquet(folder / "scores.parquet"))
    models = table[table["left_out"] == ""].reset_index(drop=True)
    directions = {key: item.direction for key, item in measures.ranked().items() if key in models and models[key].notna().any()}
    axes = varied_axes(models, [*PAPER_AXES, "images_per_class", "label_noise"])
    tables = {key: pd.read_csv(folder / f"{key}.csv") for key in _ABLATIONS if (folder / f"{key}.csv").is_file()}
    levels = pd.read_csv(folder / "table2_hyperparameters.csv")
    return Study(name, catalogue, models, directions, axes, tables, levels, "mask_metrics" if localized else "scores")


def models_section(study: Study) -> list[str]:
    """Say how many models there are, what became of the others, on what machine and for how long."""
    runs = study.catalogue.drop_duplicates("run_id")
    diverged = int((runs["status"] == "diverged").sum())
    scored = int((study.catalogue["snapshot"] != "none").sum())
    reasons = study.catalogue.loc[study.catalogue["left_out"] != "", "left_out"].value_counts()
    lines = [
        f"- {count(len(runs), 'run')}, {diverged} of them diverged, gave **{count(scored, 'model')}**; **{len(study.models)}** of them, "
        f"from {count(study.models['cell'].nunique(), 'hyperparameter cell')}, enter the analysis ({table_link('catalogue')}).",
        f"- Their gaps run from {points(study.models['gap'].min())} to {points(study.models['gap'].max())}, test accuracies from "
        f"{percent(study.models['test_accuracy'].min())} to {percent(study.models['test_accuracy'].max())} ({table_link('catalogue')}).",
    ]
    lines += [f"- Left out: {count(int(number), 'model')}, {reason} ({table_link('left_out')})." for reason, number in reasons.items()]
    for device, own in runs.groupby("device"):
        seconds = own["seconds"]
        lines.append(
            f"- {device}: {count(len(own), 'run')}, {seconds.median():.0f} s in the median ({seconds.min():.0f} to {seconds.max():.0f}), "
            f"{seconds.sum() / 3600:.1f} hours together ({table_link('catalogue')})."
        )
    for row in study.hyperparameters.itertuples():
        lines.append(f"- {row.hyperparameter}: {row.levels} (the paper: {row.published}; {table_link('table2_hyperparameters')}).")
    return lines


def rivals_section(study: Study, test_images: int, sampling: Sampling) -> list[str]:
    """Say which measure is first among all, and whether its lead is more than chance."""
    listing = measures.columns().set_index("column")
    options = {"test_images": test_images, "resamples": sampling.resamples, "seed": sampling.seed}
    ranking = ranking_table(study.models, study.directions, study.axes, **options)
    ranking = ranking.merge(listing[["title", "family"]], left_on="measure", right_index=True)
    drawing = {"resamples": sampling.resamples, "seed": sampling.seed}
    first = ranking["measure"].iloc[0]
    differences = difference_table(study.models, study.directions, reference=first, statistic="kendall", **drawing)
    place = int(np.flatnonzero(ranking["measure"] == "iou")[0]) + 1 if (ranking["measure"] == "iou").any() else None
    own = f" IoU is number {place} of {len(ranking)}." if place else ""
    return [
        "The ranking holds neither training size nor fit fixed, so being first or last in it is no finding about a measure.",
        winner(ranking, differences, listing["title"].to_dict()) + own,
        f"{ranking_read(ranking)} ({table_link('measures_ranking')}, {table_link('scores')})",
    ]


def _number(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "none"


def claims_table(claims: pd.DataFrame) -> list[str]:
    """Write the claims as a table of Markdown."""
    lines = ["| claim | published | here (95 % interval) | n | verdict | from |", "|---|---|---|---|---|---|"]
    for row in claims.itertuples():
        interval = f" ({row.ci_low:.2f} to {row.ci_high:.2f})" if np.isfinite([row.ci_low, row.ci_high]).all() else " (no interval)"
        ours = f"{_number(row.ours)}{interval if np.isfinite(row.ours) else ''}"
        place = "confounders" if row.source == "not in the paper" else row.table
        lines.append(
            f"| {row.claim} ({row.source}) | {_number(row.published)} | {ours} | {row.n:.0f} | **{row.verdict}** | {table_link(place)} |"
        )
    return lines


def answer(claims: pd.DataFrame, study: Study) -> str:
    """State in one sentence whether IoU predicts the gap here, and how many of the paper's claims hold."""
    first = claims.iloc[0]
    verdicts = claims.loc[claims["source"] != "not in the paper", "verdict"].value_counts()
    scored = int((study.catalogue["snapshot"] != "none").sum())
    pilot = f" With {count(scored, 'model')}, fewer than {PILOT}, this is a **pilot**." if scored < PILOT else ""
    each = {NOT_TESTED: NOT_TESTED, "hold": paper_claims.HOLDS, "do not hold": paper_claims.FAILS}
    each["cannot be told from these models"] = paper_claims.UNKNOWN
    tally = ", ".join(f"{int(verdicts.get(value, 0))} {words}" for words, value in each.items() if value in verdicts)
    return (
        f"Among {count(int(first['n']), 'model')} above 80 % training accuracy r of IoU with the gap is **{_number(first['ours'])}** (95 % "
        f"interval {_number(first['ci_low'])} to {_number(first['ci_high'])}; the paper {_number(first['published'])}). Of the paper's "
        f"{int(verdicts.sum())} claims below: {tally}.{pilot}"
    )


def page(study: Study, notes: str, *, test_images: int, sampling: Sampling) -> str:
    """Write the page.

    Args:
        study: see ``read_study``.
        notes: Markdown by hand, on what was left out and why; it stands at the end.
        test_images: that each test accuracy was measured on.
        sampling: of all intervals.
    """
    claims = paper_claims.claims(study.models, study.directions, study.tables, study.axes, sampling)
    if study.scores == "mask_metrics":
        claims["table"] = claims["table"].replace("table3_correlations", "table3_iou")  # as notebook 03 names it
    if not testable(study.models):
        claims["verdict"] = NOT_TESTED
    ranked = ["## Which measure is best?", *rivals_section(study, test_images, sampling)] if study.scores == "scores" else []
    parts = [
        [f"# What {study.name} says", answer(claims, study)],
        ["## What these tables can bear", *bearing_section(study.models, study.axes, study.scores, sampling)],
        ["## The paper's claims", "\n".join(claims_table(claims)), "Strength is minus r: positive for a measure that works."],
        ranked,
        ["## The models", "\n".join(models_section(study))],
        ["## What was left out", notes.strip()] if notes.strip() else [],
    ]
    lines = "\n\n".join(line for part in parts for line in part)
    return f"{lines}\n\nEvery number on this page is checked by `make findings STUDY={study.name}`.\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check, or write, the page of a study; 1 when a number in it differs from what the tables give."""
    parser = argparse.ArgumentParser(prog="python -m helpers.study_findings", description="Check or write a study's page of findings.")
    parser.add_argument("study")
    parser.add_argument("--write", action="store_true", help="write the page in place of checking it")
    parser.add_argument("--reports", type=Path, default=PROJECT_ROOT / "reports")
    given = parser.parse_args(arguments)
    try:
        study = read_study(given.reports, given.study)
    except (FileNotFoundError, ValueError) as fault:
        print(fault, file=sys.stderr)
        return 2
    folder = given.reports / given.study
    notes = (folder / "LEFT_OUT.md").read_text(encoding="utf-8") if (folder / "LEFT_OUT.md").is_file() else ""
    classes = pd.read_csv(folder / "tables/table1_categories.csv")
    wanted = page(study, notes, test_images=int(classes["test_images"].sum()), sampling=Sampling(0.8, 1000, 0))
    path = folder / PAGE
    if given.write:
        path.write_text(wanted, encoding="utf-8")
        print(f"wrote {path.name} of {given.study}")
        return 0
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    changes = list(difflib.unified_diff(there.splitlines(), wanted.splitlines(), "in the text", "by the tables", lineterm="", n=0))
    print("\n".join(changes) if changes else f"every number in {path.name} of {given.study} is what the tables give")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())

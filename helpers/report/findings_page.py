"""What a study says, on one page: every number worked out anew from the committed catalogue, scores and tables."""

import argparse
import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.files import PROJECT_ROOT, inside
from helpers.measures import registry
from helpers.report.measures import say_ranking, winner
from helpers.report.style import count, interval, percent, points
from helpers.scoring.models import with_measures
from helpers.statistics import replication
from helpers.statistics.agreement import finite_pairs, pearson
from helpers.statistics.replication import Sampling
from helpers.statistics.resampling import bootstrap_interval, difference_table
from helpers.statistics.tables import ranking_table, varied_axes
from helpers.training.config import PAPER_AXES

LARGEST_FLOOR, MASK_AREAS = 0.40, (0.05, 0.60)  # outside of these a mask can hardly miss its box, or hardly meet it


def table_link(table: str) -> str:
    """Write a link of Markdown from a study's page to one of its tables."""
    return f"[{table}](tables/{table}.{'parquet' if table == 'scores' else 'csv'})"


def mask_areas(models: pd.DataFrame) -> pd.DataFrame:
    """Share of the pixels that boxes and masks cover, per model, solved from the four metrics of its masks.

    With the share f of the pixels in boxes, ``frequency-weighted IoU = f IoU_object + (1 - f) IoU_background`` gives f; pixel accuracy
    and the object's IoU then give false and true positives (Long et al. 2015 for the metrics). All images are of one size, so f is also
    what a map that covers the whole image scores in IoU, on the images that this model was scored on.

    Returns:
        box and mask, in [0, 1], NaN where the metrics are absent or both IoUs are equal.
    """
    names = ["mask_agreement", *(f"mask_agreement ({part})" for part in ("IoU of the object", "frequency-weighted IoU", "pixel accuracy"))]
    mean, item, weighted, accuracy = (models[name] if name in models else pd.Series(np.nan, models.index) for name in names)
    background = 2 * mean - item
    box = (weighted - background) / (item - background).where(item != background)
    extra = (item * box + 1 - box - accuracy) / (1 - item).where(item < 1)
    return pd.DataFrame({"box": box, "mask": item * (box + extra) + extra})


def testable(models: pd.DataFrame) -> bool:
    """Whether IoU could have been low: the median mask takes 5 to 60 % of the image and the boxes 40 % at most; True where unknown."""
    areas = mask_areas(models).median()
    low, high = MASK_AREAS
    return not (areas["box"] > LARGEST_FLOOR or areas["mask"] < low or areas["mask"] > high)


def _residuals(values: np.ndarray, design: np.ndarray) -> np.ndarray:
    return values - design @ np.linalg.lstsq(design, values, rcond=None)[0]


def held_fixed(models: pd.DataFrame, name: str, fit: Sequence[str], axes: Sequence[str], sampling: Sampling) -> tuple[float, float, float]:
    """Pearson's r of a measure with the gap, given columns: of the residuals of least squares, with its 95 % interval.

    Args:
        models: one row per model: gap, cell, the measure, fit and axes.
        name: the measure's column.
        fit: columns that enter linearly.
        axes: hyperparameters, an indicator for each level but one.
        sampling: of the interval, percentile; whole cells are drawn, and both regressions done again on each draw.

    Returns:
        (r, low, high) in [-1, 1], not signed by what the measure promises; NaN with fewer than two models more than columns, and for a
        constant. Fewer than 8 cells bear no interval.
    """
    kept = models[np.isfinite(models[name]) & np.isfinite(models["gap"])]
    levels = [pd.get_dummies(kept[axis].astype(str), drop_first=True).to_numpy(float) for axis in axes]
    design = np.column_stack([np.ones(len(kept)), kept[list(fit)].to_numpy(float), *levels])
    values = kept[[name, "gap"]].to_numpy(float)

    def r(rows: np.ndarray) -> float:
        if len(rows) < design.shape[1] + 2:
            return np.nan
        left = _residuals(values[rows], design[rows])
        spread = np.linalg.norm(left, axis=0)
        around = np.linalg.norm(values[rows] - values[rows].mean(0), axis=0)
        return float(left[:, 0] @ left[:, 1] / spread.prod()) if (spread > 1e-9 * around).all() and around.all() else np.nan

    members = list(kept.groupby("cell").indices.values())
    rng = np.random.default_rng(sampling.seed)
    number = sampling.resamples if len(members) >= 8 else 0
    draws = [r(np.concatenate([members[k] for k in rng.integers(len(members), size=len(members))])) for _ in range(number)]
    draws = [draw for draw in draws if np.isfinite(draw)]
    low, high = np.quantile(draws, [0.025, 0.975]) if draws else (np.nan, np.nan)
    return r(np.arange(len(kept))), float(low), float(high)


def bearing_section(models: pd.DataFrame, varied: Sequence[str], scores: str, sampling: Sampling) -> list[str]:
    """Say what is left of IoU when training size and fit are held fixed, and whether its masks could have missed.

    Args:
        models: that enter the analysis: gap, cell, train_accuracy, the hyperparameters and a column per measure.
        varied: hyperparameters with more than one level.
        scores: the table that the measures come from.
        sampling: of the intervals.
    """
    sized = "images_per_class" in varied
    known = ["images_per_class", "train_accuracy"] if sized else ["train_accuracy"]
    words = "training size and training accuracy" if sized else "training accuracy"
    steps = ({"given training size": (known[:1], [])} if sized else {}) | {f"given {words}": (known, [])}
    steps["given all other hyperparameters too"] = (known, [axis for axis in varied if axis != "images_per_class"])
    titles = {"iou": "IoU", "iou_b": "IoU-B", "effective_invariance": "Effective Invariance"}
    found = {name: [held_fixed(models, name, *step, sampling) for step in steps.values()] for name in titles if name in models}
    gap = models["gap"].to_numpy()
    table = [f"| r with the gap | pooled | {' | '.join(steps)} |", "|---|---|" + "---|" * len(steps)]
    for name, row in found.items():
        x, y, kept = finite_pairs(models[name], gap)
        ends = bootstrap_interval(x, y, models["cell"].to_numpy()[kept], "pearson", sampling.resamples, seed=sampling.seed)
        cells = [f"{r:.2f} ({interval(low, high)})" for r, low, high in [(pearson(x, y), *ends), *row]]
        table.append(f"| {titles[name]} | {' | '.join(cells)} |")
    explained = 1 - _residuals(gap, np.column_stack([np.ones(len(models)), models[known].to_numpy(float)])).var() / gap.var()
    share = (
        f"- {words.capitalize()} explain{'' if sized else 's'} {percent(explained)} of the variance of the gap ({table_link('catalogue')})."
    )
    facts = [share, *_whole_images(models, scores)]
    return [_bearing(found["iou"][-2:], words, testable(models)), "\n".join(table), "\n".join(facts)]


def _bearing(rows: Sequence[tuple[float, float, float]], words: str, able: bool) -> str:
    """State what is left of IoU given the fit, or else given the fit and all hyperparameters, and whether the study can test the claim."""
    (r, low, high), (full, full_low, full_high) = rows
    fit, everything = f"(r {r:.2f}, {interval(low, high)})", f"(r {full:.2f}, {interval(full_low, full_high)})"
    nothing = "In this regime IoU carries nothing that can be told from 0 beyond"
    if low <= 0 <= high:
        text = f"{nothing} {words} {fit}"
    elif full_low <= 0 <= full_high:
        text = f"{nothing} {words} and the other hyperparameters {everything}; given {words} alone something is left {fit}"
    else:
        text = f"Something is left of IoU given {words} {fit}, and given all other hyperparameters too {everything}"
    return f"**{text}{'' if able else '; the study cannot test the claim'}.**"


def _whole_images(models: pd.DataFrame, scores: str) -> list[str]:
    """List mean IoU by training size, beside what a map that covers the image scores on the same images."""
    areas = mask_areas(models)
    lines = []
    for size, part in models.groupby("images_per_class"):
        floor = areas.loc[part.index, "box"].median()
        beside = f"; a map that covers the whole image scores {floor:.4f} on the same images" if np.isfinite(floor) else ""
        each = f"{size:.0f} photographs a class" if size else "all photographs of a class"
        lines.append(f"- Fitted to {each}: {count(len(part), 'model')}, mean IoU {part['iou'].mean():.4f}{beside}.")
    if areas["box"].max() - areas["box"].min() > 1e-6:
        lines.append("- So models of different training size were scored on different images, which is no comparison.")
    spread = f"- Between all {count(len(models), 'model')} IoU has a standard deviation of {models['iou'].std():.4f}"
    if areas["box"].isna().all():
        return [*lines, f"{spread}; what a map that covers the whole image scores is not in the tables."]
    above = int((models["iou"] > areas["box"]).sum())
    lines.append(f"{spread}; {above} of them ({percent(above / len(models))}) score more than the map that covers the whole image.")
    chance = "such masks can miss" if testable(models) else "such masks can hardly miss, so IoU says little of where a network looks"
    covered, boxes = percent(areas["mask"].median()), percent(areas["box"].median())
    return [*lines, f"- In the median model the masks cover {covered} of the pixels, the boxes {boxes}: {chance} ({table_link(scores)})."]


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
        table = with_measures(catalogue, pd.read_parquet(folder / "scores.parquet"))
    models = table[table["left_out"] == ""].reset_index(drop=True)
    directions = {key: item.direction for key, item in registry.ranked().items() if key in models and models[key].notna().any()}
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
    listing = registry.columns().set_index("column")
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
        f"{say_ranking(ranking)} ({table_link('measures_ranking')}, {table_link('scores')})",
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


def study_answer(claims: pd.DataFrame, study: Study) -> str:
    """State in one sentence whether IoU predicts the gap here, and how many of the paper's claims hold."""
    first = claims.iloc[0]
    verdicts = claims.loc[claims["source"] != "not in the paper", "verdict"].value_counts()
    scored = int((study.catalogue["snapshot"] != "none").sum())
    pilot = f" With {count(scored, 'model')}, fewer than {PILOT}, this is a **pilot**." if scored < PILOT else ""
    each = {NOT_TESTED: NOT_TESTED, "hold": replication.HOLDS, "do not hold": replication.FAILS}
    each["cannot be told from these models"] = replication.UNKNOWN
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
    claims = replication.claims(study.models, study.directions, study.tables, study.axes, sampling)
    if study.scores == "mask_metrics":
        claims["table"] = claims["table"].replace("table3_correlations", "table3_iou")  # as notebook 03 names it
    if not testable(study.models):
        claims["verdict"] = NOT_TESTED
    ranked = ["## Which measure is best?", *rivals_section(study, test_images, sampling)] if study.scores == "scores" else []
    parts = [
        [f"# What {study.name} says", study_answer(claims, study)],
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
    parser = argparse.ArgumentParser(
        prog="python -m helpers.report.findings_page", description="Check or write a study's page of findings."
    )
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

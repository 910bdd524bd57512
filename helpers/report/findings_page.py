"""What a study says, on one page, written from its committed tables: may it speak, what becomes of its claims, what else is seen."""

import argparse
import difflib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from helpers.files import PROJECT_ROOT, inside
from helpers.report.claims import say_added, say_claims, say_gates, say_stated
from helpers.report.style import count, interval, percent, points
from helpers.statistics.gates import ANY_MEASURE
from helpers.statistics.hyperparameters import GIVEN_ALL, WITHIN
from helpers.statistics.questions import ADDED
from helpers.statistics.tables import TOTAL
from helpers.statistics.verdicts import STATED_COLUMNS

PAGE = "FINDINGS.md"
PILOT = 150  # models; a study of fewer is a pilot
MADE_BY = {
    "catalogue": "02_grid_training",
    "table2_hyperparameters": "02_grid_training",
    "table3_iou": "03_cam_scoring",
    "gates": "04_baselines",
    "claims": "04_baselines",
    "claims_stated": "04_baselines",
    "measures_ranking": "04_baselines",
    "known_in_advance": "04_baselines",
}


_HELD, _MOMENTS = "confounders", "moments"
_SHIFTS, _WITHOUT = "label_noise_shifts", "label_noise_without"  # of notebook 05, which need not have run
_TRUTH = "own_truth"  # of notebook 07
_WORDS = """- **Fit**: training accuracy and logarithm of the training loss of a model. \
"Given the fit" is what a correlation leaves when these are held fixed.
- **Gate**: what a study must show before anything is judged of a measure; behind a closed one a claim is not tested here.
- **Reliability**: agreement of a measure's values from one half of its images with those from the other; \
below 0.8 a low correlation may be that of noise.
- **Cell**: all models of the same hyperparameters, which differ in seed or moment. \
Intervals draw whole cells; p-values deal the gaps anew among cells.
- **Above chance**: energy in the box, pointing game, pixel average precision and IoU above shuffled boxes have taken off \
what a map that knows nothing of the image has."""


_PAIRS = """Pairs of models that share all hyperparameters, the seed and the rule that the snapshot was taken by. \
Shifts are in standard deviations between models of right labels; \
promised is r times the shift of the gap, which a measure has that follows the gap as it does among those. \
Measures read the right labels, the gap those that the network was given; read on the right ones too it is the second row. \
The direction is told where the intervals of r, of the shift and of the gap's own shift all leave out 0."""


_JUDGED = "Models that the calibration does not know: those of this study by another one, or cells of this study left out."


_SAME_MOMENT = "Models of the same hyperparameters differ mostly in how long they were trained: r with the gap at one moment alone"
_QUESTIONS = {
    "r_gap": "r with the gap",
    "r_test_accuracy": "r with test accuracy",
    "r_gap_given_fit": "given the fit",
    "r_gap_given_all": "given fit and hyperparameters",
    ADDED: "points of error that it saves",
}
_GAPS = {"gap": "gap", "gap_right_labels": "gap, read on the right labels"}
_P_MEANS = """p asks whether r lies farther off than what early and late snapshots of a run give by themselves when cells exchange gaps, \
so an interval can leave out 0 where p does not; of a claim on points saved it is that of r given fit and hyperparameters."""


class Study(NamedTuple):
    """What is committed of a study."""

    name: str
    catalogue: pd.DataFrame
    models: pd.DataFrame  # that enter the analysis
    tables: dict[str, pd.DataFrame]


def table_link(table: str) -> str:
    """Write a link of Markdown from a study's page to one of its tables."""
    return f"[{table}](tables/{table}.csv)"


def read_study(reports: Path, name: str) -> Study:
    """Read the tables of a study's report, and that of notebook 05 where it has run.

    Raises:
        FileNotFoundError: a table is missing; the message says which notebook makes it.
    """
    folder = inside(reports, name) / "tables"
    for table, notebook in MADE_BY.items():
        if not (folder / f"{table}.csv").is_file():
            raise FileNotFoundError(f"{folder / table}.csv is missing; run {notebook} of study {name!r} first")
    tables = {table: pd.read_csv(folder / f"{table}.csv") for table in MADE_BY if table != "catalogue"}
    tables |= {
        table: pd.read_csv(path) for table in (_HELD, _MOMENTS, _SHIFTS, _WITHOUT, _TRUTH) if (path := folder / f"{table}.csv").is_file()
    }
    catalogue = pd.read_csv(folder / "catalogue.csv", keep_default_na=False, na_values=["", "nan", "NaN"])
    catalogue = catalogue.assign(left_out=catalogue["left_out"].astype(object).fillna(""))
    return Study(name, catalogue, catalogue[catalogue["left_out"] == ""].reset_index(drop=True), tables)


def models_section(study: Study) -> list[str]:
    """Section on how many models there are, what became of the others, on what machine and for how long."""
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
    for row in study.tables["table2_hyperparameters"].itertuples():
        lines.append(f"- {row.hyperparameter}: {row.levels} (the paper: {row.published}; {table_link('table2_hyperparameters')}).")
    return lines


def gates_section(gates: pd.DataFrame) -> str:
    """Write the gates as a table of Markdown, those that concern every claim first."""
    rows = []
    for row in gates.iloc[np.argsort(gates["concerns"] != ANY_MEASURE, kind="stable")].itertuples():
        value = f"{row.value:.3g}" if np.isfinite(row.value) else "not known"
        concerns = "every claim" if row.concerns == ANY_MEASURE else f"`{row.concerns}`"
        rows.append((row.gate, concerns, value, row.limit, "yes" if row.passes else "**no**"))
    return _table(["gate", "concerns", "here", "limit", "passed"], rows)


def claims_section(claims: pd.DataFrame) -> str:
    """Write all claims as a table of Markdown, the primary ones first and variants below theirs; r has the sign of the raw measure."""
    rows = []
    for row in claims.itertuples():
        variant = isinstance(row.variant_of, str) and row.variant_of
        claim = f"**{row.claim}** (primary)" if row.primary else f"variant: {row.claim}" if variant else row.claim
        source = f" ({row.source})" if isinstance(row.source, str) and row.source else ""
        ours = f"{row.ours:.2f} ({interval(row.ci_low, row.ci_high)})" if np.isfinite(row.ours) else "undefined"
        published, p = (f"{value:.2g}" if np.isfinite(value) else "–" for value in (row.published, row.p_adjusted))
        told = "that of the claim above" if variant else f"**{row.verdict}**"
        rows.append((f"{claim}{source}", published, ours, p, f"{row.n:.0f}", told))
    return _table(["claim", "published", "here (95 % interval)", "p (Holm, of the claims)", "n", "verdict"], rows)


def ranking_section(ranking: pd.DataFrame, claimed: Collection[str] = (), most: int = 12) -> str:
    """Write the measures with the largest |r|, all baselines, IoU, energy and those of claims, by all questions, as a table of Markdown."""
    shown, always = ranking.dropna(subset="r_gap"), {"iou", "energy_in_box", *claimed}
    chosen = (np.arange(len(shown)) < most) | shown["baseline"].astype(bool) | shown["measure"].isin(always)
    rows = []
    for _, row in shown[chosen].iterrows():
        cells = [_answer(row, question) for question in _QUESTIONS]
        images = f"{row['images']:.0f}" if np.isfinite(row["images"]) else "–"
        reliable, p = (f"{row[name]:.2g}" if np.isfinite(row[name]) else "–" for name in ("reliability", "p_adjusted"))
        title = f"{row['title']} (baseline)" if row["baseline"] else row["title"]
        rows.append((title, f"{row['n']:.0f}", images, reliable, *cells, p))
    return _table(["measure", "n", "images", "reliability", *_QUESTIONS.values(), "p (maxT, of all measures)"], rows)


def beside_the_paper(table3: pd.DataFrame) -> str:
    """Write r of IoU and gap over models above a training accuracy, as the paper has it, beside the paper's, as a table of Markdown.

    "" where the study has no model above an accuracy that the paper gives.
    """
    rows = table3[(table3["architecture"] == TOTAL) & table3["published_r"].notna() & table3["pearson_r"].notna()]
    names = {"iou": "IoU", "iou_b": "IoU-B"}
    cells = []
    for row in rows.itertuples():
        r = _with_interval(row.pearson_r, row.ci_low, row.ci_high)
        cells.append((names[row.measure], f"{row.threshold:.0%}", r, row.n, f"{row.published_r:.2f}"))
    return _table(["measure", "training accuracy above", "r with the gap here", "n", "Du et al. 2024, Table 3"], cells)


def held_fixed_section(confounders: pd.DataFrame, ranking: pd.DataFrame, claimed: Collection[str]) -> str:
    """Write r with the gap of claimed measures over all models, over means of cells, and with hyperparameters held fixed, as a table of
    Markdown; "" where notebook 05 has none of them.

    Args:
        confounders: see ``hyperparameters.confounders``; of its levels the lowest and the highest r are shown.
        ranking: with the correlation of the means of cells.
        claimed: measures.
    """
    heads = ["measure", "all models", "means of cells", "given all hyperparameters", "lowest within a level", "highest within a level"]
    rows = []
    for row in ranking[ranking["measure"].isin(claimed)].itertuples():
        own = confounders[(confounders["measure"] == row.measure) & confounders["r"].notna()]
        given, levels = own[own["kind"] == GIVEN_ALL], own[own["kind"] == WITHIN].sort_values("r", kind="stable")
        if not len(given) or not len(levels):
            continue
        ends = [
            f"{end.hyperparameter} {end.level}: {_with_interval(end.r, end.ci_low, end.ci_high)}"
            for end in levels.iloc[[0, -1]].itertuples()
        ]
        between = _with_interval(row.r_gap_between_cells, row.r_gap_between_cells_low, row.r_gap_between_cells_high)
        cells = [_with_interval(row.r_gap, row.r_gap_low, row.r_gap_high), between]
        cells += [_with_interval(*given.iloc[0][["r", "ci_low", "ci_high"]]), *ends]
        rows.append((row.title, *cells))
    return _table(heads, rows)


def moments_section(moments: pd.DataFrame, titles: pd.Series) -> str:
    """Write r with the gap among first and among last snapshots, as a table of Markdown; "" where there is one moment alone."""
    levels = list(dict.fromkeys(moments["level"]))
    if len(levels) < 2:
        return ""
    rows = []
    for measure, own in moments.groupby("measure", sort=False):
        found = own.set_index("level")[["pearson_r", "ci_low", "ci_high"]].reindex(levels)
        rows.append((titles.get(measure, measure), *(_with_interval(*row) for row in found.to_numpy())))
    return _table(
        ["measure", *(f"snapshots {level!r} (n = {moments.loc[moments['level'] == level, 'n'].max()})" for level in levels)], rows
    )


def wrong_labels_section(shifts: pd.DataFrame, titles: pd.Series, claimed: Collection[str]) -> str:
    """Write how far claimed measures move where labels alone turn wrong, as a table of Markdown; "" where no model has wrong labels.

    Args:
        shifts: of ``hyperparameters.shifts`` with what is promised and whether that is kept, see notebook 05.
        titles: by measure.
        claimed: measures.
    """
    names = titles[titles.index.isin(claimed)].to_dict()
    rows = []
    for row in shifts[shifts["measure"].isin([*_GAPS, *names]) & shifts["shift"].notna()].itertuples():
        r, shift = _with_interval(row.r, row.r_low, row.r_high), _with_interval(row.shift, row.ci_low, row.ci_high)
        promised, kept = ("–", "–") if row.measure in _GAPS else (f"{row.promised:+.2f}", row.kept)
        rows.append((_GAPS.get(row.measure) or names[row.measure], row.n, r, promised, shift, kept))
    return _table(["measure", "pairs", "r with the gap, labels right", "promised shift", "shift (95 % interval)", "direction"], rows)


def without_section(again: pd.DataFrame, titles: pd.Series) -> str:
    """Write what is asked of claimed measures among models of right labels alone, as a table of Markdown; "" where there are no others."""
    questions = {question: title for question, title in _QUESTIONS.items() if question in again}
    rows = [
        (titles.get(row["measure"], row["measure"]), row["n"], *(_answer(row, question) for question in questions))
        for _, row in again.iterrows()
    ]
    return _table(["measure, labels right", "n", *questions.values()], rows)


def say_primary_without(claims: pd.DataFrame, again: pd.DataFrame, titles: pd.Series) -> str:
    """Sentence on what the primary claims come to among models of right labels alone; "" where none is asked.

    Args:
        claims: with measure, question and primary.
        again: see ``without_section``.
        titles: by measure.
    """
    asked = again.set_index("measure")
    primary = claims[claims["primary"].astype(bool) & claims["measure"].isin(asked.index)]
    found = []
    for row in primary.itertuples():
        what = "points saved by" if row.question == ADDED else "r of"
        found.append(f"{what} {titles.get(row.measure, row.measure)} {_answer(asked.loc[row.measure], row.question)}")
    models = count(int(asked["n"].max()), "model") if found else ""
    return f"Among the {models} of right labels alone: {', '.join(found)}." if found else ""


def truth_section(truth: pd.DataFrame) -> str:
    """Write how predictions for models that the calibration does not know did, as a table of Markdown; see ``select.truth_table``."""
    rows = []
    for row in truth.itertuples():
        share = f"{row.inside} of {row.predicted} ({percent(row.share)})" if row.predicted else "–"
        best = f"{row.best_ranked:.0f} of {row.predicted}" if row.predicted else "–"
        rows.append(
            (row.judged, row.calibration, f"{row.predicted} of {row.models}", f"{row.level:.0%}", share, points(row.mean_error), best)
        )
    heads = ["predicted", "by the study", "models that get a number", "interval", "truth inside", "mean error", "the best is ranked"]
    return _table(heads, rows)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Write a table of Markdown; "" without rows."""
    first, *lines = [f"| {' | '.join(map(str, row))} |" for row in (heads, *rows)]
    return "\n".join([first, "|---" * len(heads) + "|", *lines]) if rows else ""


def _answer(row: pd.Series, question: str) -> str:
    return _with_interval(row[question], row[f"{question}_low"], row[f"{question}_high"])


def _with_interval(value: float, low: float, high: float) -> str:
    if not np.isfinite(value):
        return "–"
    return f"{value:.2f} ({low:.2f} to {high:.2f})" if np.isfinite(low) else f"{value:.2f}"


def page(study: Study, notes: str) -> str:
    """Write the page.

    Args:
        study: see ``read_study``.
        notes: Markdown by hand, on what was left out and why; it stands at the end.
    """
    gates, claims, facts = (study.tables[name] for name in ("gates", "claims", "claims_stated"))
    claims = claims.join(facts[STATED_COLUMNS])  # which has a row for each, in the same order
    scored = int((study.catalogue["snapshot"] != "none").sum())
    pilot = f" With {count(scored, 'model')}, fewer than {PILOT}, this is a **pilot**." if scored < PILOT else ""
    told = [claims_section(claims), _P_MEANS, f"{say_stated(facts)} ({table_link('claims')})"] if len(claims) else []
    notice = "r has the sign of the raw measure. Baselines are arithmetic parts of the gap: no discovery when they lead."
    ranking, claimed = study.tables["measures_ranking"], set(claims["measure"])
    paper = beside_the_paper(study.tables["table3_iou"])
    held = held_fixed_section(study.tables[_HELD], ranking, claimed) if _HELD in study.tables else ""
    turned = f"r with the gap; the fit is not held fixed here. Every level: {table_link(_HELD)}."
    titles = ranking.drop_duplicates("measure").set_index("measure")["title"]
    moments = moments_section(study.tables[_MOMENTS], titles) if _MOMENTS in study.tables else ""
    wrong = wrong_labels_section(study.tables[_SHIFTS], titles, claimed) if _SHIFTS in study.tables else ""
    without = without_section(study.tables[_WITHOUT], titles) if _WITHOUT in study.tables else ""
    judged = truth_section(study.tables[_TRUTH]) if _TRUTH in study.tables else ""
    primary = say_primary_without(claims, study.tables[_WITHOUT], titles) if without else ""
    left = f"The same questions as of all models, without those of wrong labels ({table_link(_WITHOUT)})."
    matched = "In brackets 95 % intervals. A claim concerns all models, the paper's r those that are fitted this well."
    parts = [
        [f"# What {study.name} says", f"{say_gates(gates)}{pilot}", say_claims(claims), *([primary] if primary else [])],
        ["## May this study speak?", gates_section(gates)],
        ["## Its claims", *told] if told else [],
        ["## Beside the paper", paper, matched] if paper else [],
        ["## With hyperparameters held fixed", held, turned] if held else [],
        [moments, f"{_SAME_MOMENT} ({table_link(_MOMENTS)})."] if moments else [],
        ["## Where labels alone turn wrong", wrong, f"{_PAIRS} Every measure: {table_link(_SHIFTS)}."] if wrong else [],
        [without, left] if without else [],
        ["## Does a measure add to what is known in advance?", say_added(ranking, study.tables["known_in_advance"])],
        [
            "## Every measure by the same questions",
            ranking_section(ranking, claimed),
            f"{notice} All of them: {table_link('measures_ranking')}.",
        ],
        ["## Judged as if they were a user's", judged, f"{_JUDGED} More: {table_link(_TRUTH)}."] if judged else [],
        ["## The models", "\n".join(models_section(study))],
        ["## Words", _WORDS],
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
    wanted = page(study, notes)
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

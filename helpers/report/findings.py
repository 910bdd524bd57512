"""The findings of a study: sentences of a template, numbers and tables of its report.

A study's sentences are ``params/<study>.md.j2``, written by hand; a study without has
those of ``templates/answer.md.j2``. Both take their numbers from ``numbers.Numbers``.
"""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import pandas as pd

from helpers.files import PROJECT_ROOT, complete_or_absent, inside, read_json
from helpers.report import opening
from helpers.report import tables as tables_of
from helpers.report.conclusions import no_verdicts, not_learnt, nothing_concluded
from helpers.report.markup import in_words, inert
from helpers.report.numbers import Numbers, holding
from helpers.report.style import Tables
from helpers.report.tables import Estimate, two_digits
from helpers.statistics.correlate import LEVEL
from helpers.study_files import read_blocks

PAGE = "FINDINGS.md"
FIGURE = "figures/04_baselines-primary.png"
CAPTION = (
    "r of each measure with the gap, the same with the start held fixed, and the error "
    "of the gap of a kind of training that was held out."
)
# Figures that open a study without a primary analysis: beginning of the figure's name,
# and caption.
LEADING = {
    "huang-figure-2-marginals": "Error and Kappa loss along noise, added classes and "
    "size; the star is the trade-off point.",
    "primary-contrast": "Each line is a pair of networks with the same start and seed: "
    "one whose maps training pulled into the object's box, one whose maps it pulled "
    "out of it.",
}
# Tables that findings read, if a report has them.
READ = ("catalogue", "primary", "kinds", "claims", "gates", "across", "pairs", "images")
TEMPLATES = Path(__file__).parent / "templates"
_QUESTION = (
    "Which of these networks will generalize, and by how much will accuracy drop?"
)
Heads = dict[str, str]  # column of a table by its heading for readers
_PRIMARY = {
    "predictor": "title",
    "r with the gap": "r_gap",
    "gap of networks with larger values": "verdict",
    "r, start held fixed": "r_gap_given_start",
    "gap of networks with larger values, start held fixed": "verdict_given_start",
    "r with test accuracy": "r_test_accuracy",
    "error, kind held out (points)": "error_with",
    "error, kind held out in every architecture (points)": "error_with_twins",
}
_BY_START = {
    "measure": "title",
    "r, pretrained alone": "pretrained",
    "r, from scratch alone": "scratch",
}
_HELD_FIXED = {
    "measure": "title",
    "r, start held fixed": "start",
    "the number of images, too": "images",
    "architecture, too": "architecture",
    "augmentation, too": "augmentation",
}
_ACROSS = {
    "predictor": "title",
    "trained on": "trained_on",
    "error (points)": "error_points",
}
_PAIRS = {
    "kind": "kind",
    "pairs": "pairs",
    "change of gap (points)": "gap",
    "change of test accuracy (points)": "test_accuracy",
    "change of area-matched IoU": "area_matched_iou",
}
_CLAIMS = {
    "claim": "claim",
    "verdict": "verdict",
    "here": "ours",
    "p, adjusted": "p_adjusted",
}
_KINDS = {
    "kind": "kind",
    "networks": "models",
    "training accuracy (%)": "train_accuracy",
    "test accuracy (%)": "test_accuracy",
    "gap (points)": "gap",
    "stopped by a rule (%)": "ended_by_a_rule",
}
# Columns that tables have as fractions, and readers in percent or points.
_FRACTIONS = ("train_accuracy", "test_accuracy", "gap", "ended_by_a_rule")
_GATES = {"asked for": "limit", "concerns": "concerns", "here": "value"}


class Part(NamedTuple):
    """A table below the answer, its values as texts."""

    title: str
    table: pd.DataFrame


class Findings(NamedTuple):
    """Findings of a report, as FINDINGS.md and its index show them."""

    question: str
    subject: str  # the networks and images; "" where the study file does not say
    warning: str  # the reason why there is no conclusion or no verdict; "" without
    answer: str  # Markdown; "" where nothing is concluded
    definitions: str  # of the terms and brackets of the tables
    parts: tuple[Part, ...]  # the primary tables
    folded: tuple[Part, ...]  # further tables, which readers unfold


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Tables that the findings of a report are made from, as far as it has them."""
    names = [(name, ".csv") for name in READ] + [("scores", ".parquet")]
    tables = {name: tables_of.read(folder, name, ending) for name, ending in names}
    return {name: table for name, table in tables.items() if table is not None}


def of_report(folder: Path) -> Findings:
    """The findings of a report, from its tables.

    Args:
        folder: of a study's report.

    Raises:
        StaleSentence: if a hand-written verdict no longer holds.
    """
    tables = read(folder)
    question, subject = question_and_subject(folder.name)
    numbers = Numbers(tables, folder)
    is_written = _template_of(folder.name).is_file()
    texts = []
    if "primary" not in tables and not is_written:
        texts = notebook_answers(folder)
    warning = "" if texts or is_written else nothing_concluded(tables)
    definitions = ""
    parts: tuple[Part, ...] = ()
    folded = _folded(tables)
    concluded = "primary" in tables and not nothing_concluded(tables)
    if concluded:
        warning = no_verdicts(tables)
        definitions = _definitions(numbers)
        parts = _parts(numbers)
        folded = (*_held_fixed(numbers), *folded)
    if not texts and not not_learnt(tables.get("catalogue")):
        texts = [_sentences(folder.name, numbers, concluded=concluded)]
    answer = "\n\n".join(filter(None, texts))
    return Findings(question, subject, warning, answer, definitions, parts, folded)


def notebook_answers(folder: Path) -> list[str]:
    """Answers of the notebooks of a report, Markdown, in their order."""
    texts = []
    for path in sorted(folder.glob("story/[0-9][0-9]_*.json")):
        texts += [
            item["text"] for item in story(folder, path.stem) if item.get("answer")
        ]
    return texts


def story(folder: Path, notebook: str) -> list[dict[str, Any]]:
    """Items that an executed notebook recorded: figures, tables and sentences."""
    path = inside(folder / "story", f"{notebook}.json")
    with tables_of.intact(path):
        items = read_json(path) if path.is_file() else []
        return [item for item in items if dict(item)["kind"]]


def _template_of(study: str) -> Path:
    return inside(PROJECT_ROOT / "params", f"{study}.md.j2")


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader([PROJECT_ROOT / "params", TEMPLATES]),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _sentences(study: str, numbers: Numbers, *, concluded: bool) -> str:
    """Sentences of a study's template, or of the general one, with their numbers."""
    written = _template_of(study).is_file()
    name = f"{study}.md.j2" if written else "answer.md.j2"
    template = _environment().get_template(name)
    text = template.render(n=numbers, concluded=concluded, holds=holding(study))
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _definitions(numbers: Numbers) -> str:
    """Sentences that define gap, r and brackets, with the level of intervals."""
    level = numbers.primary["level"].min()
    looks = round((1 - LEVEL) / (1 - level)) if level < 1 else 1
    several = f", for {looks} analyses" if looks > 1 else ""
    return (
        f"The gap is training accuracy minus test accuracy; r is Pearson's correlation "
        f"with it. In the error columns each measure is combined with training "
        f"accuracy and loss. "
        f"Chance is subtracted from all measures of maps except IoU. Brackets and bars "
        f"are {100 * level:.3g} % intervals{several}. They resample configurations of "
        f"these {numbers.kinds} kinds of training and are too narrow for others."
    )


def _parts(numbers: Numbers) -> tuple[Part, ...]:
    table = numbers.primary.reset_index(drop=True)
    for column, question in (
        ("verdict", "r_gap"),
        ("verdict_given_start", "r_gap_given_start"),
    ):
        table[column] = [
            "–" if row["baseline"] else numbers.verdict(row["measure"], question)
            for _, row in table.iterrows()
        ]
    parts = [Part("What predicts the gap, baselines first", _texts(table, _PRIMARY))]
    by_start = numbers.by_start
    if len(by_start):
        counts = [
            f"{by_start[f'{start}_n'].max():.0f}" for start in ("pretrained", "scratch")
        ]
        title = (
            f"Among networks of one start: {counts[0]} pretrained, {counts[1]} from "
            "scratch"
        )
        parts.append(Part(title, _texts(by_start, _BY_START)))
    return tuple(parts)


def _held_fixed(numbers: Numbers) -> tuple[Part, ...]:
    table = numbers.held_fixed
    heads = {head: name for head, name in _HELD_FIXED.items() if name in table}
    if len(heads) < 2:  # of the measures' titles alone
        return ()
    title = "r with the gap, with what a network learns from held fixed"
    return (Part(title, _texts(table, heads)),)


def _folded(tables: Tables) -> tuple[Part, ...]:
    """Tables below the primary ones; none where too few networks learnt."""
    if "primary" not in tables or not_learnt(tables.get("catalogue")):
        return ()
    named = (
        ("Conditions that do not hold", "gates", _GATES),
        (
            "Error on other classes, from the networks of another study",
            "across",
            _ACROSS,
        ),
        ("Adam in place of SGD, all else equal", "pairs", _PAIRS),
        (
            "Pre-registered claims in their own words (the fit: training accuracy and "
            "loss)",
            "claims",
            _CLAIMS,
        ),
        ("The kinds of training, in the median", "kinds", _KINDS),
    )
    parts = []
    for title, name, heads in named:
        table = tables.get(name, pd.DataFrame())
        if name == "gates" and len(table):
            table = _unmet(table)
        if len(table):
            parts.append(Part(title, _texts(table, heads)))
    return tuple(parts)


def _unmet(gates: pd.DataFrame) -> pd.DataFrame:
    """Conditions that do not hold, one per row, with the measures that they concern."""
    unmet = gates[~gates["passes"].astype(bool)]
    concerns = unmet["concerns"].replace({"all": "every measure"}).map(in_words)
    groups = unmet.assign(concerns=concerns).groupby(
        ["limit", "value"], as_index=False, sort=False
    )
    return groups["concerns"].agg(", ".join)


def _texts(table: pd.DataFrame, heads: Heads) -> pd.DataFrame:
    """Some columns of a table as texts, with headings for readers."""
    columns = {}
    for head, column in heads.items():
        columns[head] = [_text(row, column) for _, row in table.iterrows()]
    return pd.DataFrame(columns)


def _text(row: pd.Series, column: str) -> str:
    """A value for a reader, with its interval; "–" where a table lacks the column.

    A claim that bounds the error of a prediction has the interval of that error too.
    """
    value = row.get(column, float("nan"))
    if f"{column}_low" in row:
        estimate = Estimate(value, row[f"{column}_low"], row[f"{column}_high"])
        text = two_digits(estimate)
        if row.get("errs_at_most", 0) > 0:
            low = two_digits(row["error_low"])
            high = two_digits(row["error_high"])
            text += f", error {low} to {high}"
        return text
    if isinstance(value, str):
        return in_words(value) if column == "kind" else value
    return two_digits(100 * value if column in _FRACTIONS else value)


def question_and_subject(study: str) -> tuple[str, str]:
    """Question and subject of a study, as the fields of its file have them.

    Args:
        study: name of its file in ``params``.

    Returns:
        The question, a general one without a file; and one sentence on what was
        studied, "" where the file has none.
    """
    path = inside(PROJECT_ROOT / "params", f"{study}.yaml")
    fields = read_blocks(path) if path.is_file() else {}
    return fields.get("question", _QUESTION), fields.get("subject", "")


def figures(folder: Path, findings: Findings) -> list[tuple[str, str]]:
    """Figures at the top of the page: path from the report, and caption.

    Args:
        folder: of the report.
        findings: see ``of_report``; without an answer it has no figure.
    """
    named = []
    if findings.parts:
        named = [(opening.WIDE, opening.CAPTION), (FIGURE, CAPTION)]
    elif findings.answer:
        named = _leading_figures(folder)[:1]
    return [(path, text) for path, text in named if inside(folder, path).is_file()]


def _leading_figures(folder: Path) -> list[tuple[str, str]]:
    """The figures of ``LEADING`` that notebooks of a report drew, with captions."""
    items = []
    for path in sorted(folder.glob("story/[0-9][0-9]_*.json")):
        items += [item for item in story(folder, path.stem) if item["kind"] == "figure"]
    figures = []
    for beginning, caption in LEADING.items():
        for item in items:
            if item.get("name", "").startswith(beginning):
                figures.append((item["path"], caption))
    return figures


def page(folder: Path) -> str:
    """The text of the FINDINGS.md of a report, from its tables."""
    findings = of_report(folder)
    text = (
        _environment()
        .get_template("findings.md.j2")
        .render(
            study=folder.name,
            findings=findings,
            figures=figures(folder, findings),
            inert=inert,
            markdown=_markdown,
        )
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def _markdown(table: pd.DataFrame) -> str:
    lines = ["|".join(table.columns), "|".join(["---"] * table.shape[1])]
    for row in table.itertuples(index=False):
        lines.append("|".join(inert(str(value)).replace("|", "/") for value in row))
    return "\n".join(lines)


def write(folder: Path) -> Path:
    """Write the FINDINGS.md of a report."""
    with complete_or_absent(folder / PAGE) as temporary:
        temporary.write_text(page(folder), encoding="utf-8")
    return folder / PAGE


def differences(folder: Path) -> list[str]:
    """Lines in which FINDINGS.md and the text by its tables differ, as a diff."""
    there = (folder / PAGE).read_text(encoding="utf-8").splitlines()
    expected = page(folder).splitlines()
    lines = difflib.unified_diff(
        there, expected, "in the text", "by the tables", lineterm="", n=0
    )
    return list(lines)

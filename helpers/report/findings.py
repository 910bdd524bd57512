"""A study's FINDINGS.md, written from the tables of its report: the answer, one figure, four questions, and the rest folded."""

import difflib
import re
from pathlib import Path

import pandas as pd

from helpers.files import PROJECT_ROOT, complete_or_absent, inside
from helpers.report import tables as tables_of
from helpers.report.answers import Tables, answer, not_learnt
from helpers.report.markup import in_words, inert
from helpers.report.tables import Estimate, two_digits
from helpers.statistics.draws import LEVEL

PAGE = "FINDINGS.md"
_QUESTION = (
    "Which of these networks will generalize, and by how much will accuracy drop?"
)
FIGURE = "figures/04_baselines-primary.png"
CAPTION = (
    "r of each measure with the gap, the same with the start held fixed, and the error "
    "of the gap of a kind of training that was held out."
)
TRADE_OFF = "huang-figure-2-marginals"  # how the figures of a study that trains no networks begin
TRADE_OFF_CAPTION = "Error and Kappa loss along noise, added classes and size; the star is the trade-off point."
READ = ("catalogue", "primary", "kinds", "claims", "gates", "across", "pairs")
_PRIMARY = {
    "predictor": "title",
    "r with the gap": "r_gap",
    "r given the start": "r_gap_given_start",
    "r with test accuracy": "r_test_accuracy",
    "error, kind held out in every architecture (points)": "error_with_twins",
}
_ACROSS = {
    "predictor": "title",
    "trained on": "trained_on",
    "error (points)": "error_points",
}
_PAIRS = {
    "kind": "kind",
    "pairs": "pairs",
    "change of gap (%)": "gap",
    "change of test accuracy (%)": "test_accuracy",
    "change of area-matched IoU": "area_matched_iou",
}
_KINDS = {
    "kind": "kind",
    "networks": "models",
    "training accuracy (%)": "train_accuracy",
    "test accuracy (%)": "test_accuracy",
}
_KINDS |= {"gap (%)": "gap", "stopped by a rule (%)": "ended_by_a_rule"}
# What is folded: title, table, and which column stands under which head; one with _low and _high beside it is given with its interval.
_FOLDED = (
    (
        "Conditions that do not hold",
        "gates",
        {"asked for": "limit", "concerns": "concerns", "here": "value"},
    ),
    ("Error on other classes, from the networks of another study", "across", _ACROSS),
    ("The primary analysis, baselines first", "primary", _PRIMARY),
    ("Adam in place of SGD, all else equal", "pairs", _PAIRS),
    (
        "Results of the pre-registered claims, for these kinds of training",
        "claims",
        {
            "claim": "claim",
            "verdict": "verdict",
            "here": "ours",
            "p, adjusted": "p_adjusted",
        },
    ),
    ("The kinds of training, in the median", "kinds", _KINDS),
)


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """The tables of a report that its answer rests on, those that are there."""
    return {
        name: table
        for name in READ
        if (table := tables_of.read(folder, name)) is not None
    }


def meant(tables: Tables) -> str:
    """What gap, r and brackets mean, and for how many analyses intervals are."""
    level = tables["primary"]["level"].min()
    looks = round((1 - LEVEL) / (1 - level)) if level < 1 else 1
    several = f", for {looks} analyses" if looks > 1 else ""
    return (
        f"The gap is training accuracy minus test accuracy; r is Pearson's correlation "
        f"with it. A measure predicts together with training accuracy and loss. Chance "
        f"is subtracted from what is measured of maps, but for IoU. Brackets and bars "
        f"are {100 * level:.3g} % intervals{several}. The paper is Du, Zhou and Dai 2024."
    )


def folded(tables: Tables) -> list[tuple[str, pd.DataFrame]]:
    """What stands below the answer, as texts for a reader: title and table, of those with rows; nothing where too few networks learnt."""
    found, tables = (
        [],
        tables
        if "primary" in tables and not not_learnt(tables.get("catalogue"))
        else {},
    )
    for title, name, heads in _FOLDED:
        table = _chosen(name, tables.get(name, pd.DataFrame()))
        if len(table):
            texts = [
                [_text(row, head, column) for head, column in heads.items()]
                for _, row in table.iterrows()
            ]
            found.append((title, pd.DataFrame(texts, columns=list(heads))))
    return found


def _chosen(name: str, table: pd.DataFrame) -> pd.DataFrame:
    if name == "gates" and len(table):
        shut = table[~table["passes"].astype(bool)].replace(
            {"concerns": {"all": "every measure"}}
        )
        joined = shut.assign(concerns=shut["concerns"].map(in_words)).groupby(
            ["limit", "value"], as_index=False, sort=False
        )
        return joined["concerns"].agg(", ".join)
    return table


def _text(row: pd.Series, head: str, column: str) -> str:
    """A cell for a reader; "–" where a table lacks the column."""
    value = row.get(column, float("nan"))
    if f"{column}_low" in row:
        bound = ""
        if row.get("errs_at_most", 0) > 0:
            low, high = two_digits(row["error_low"]), two_digits(row["error_high"])
            bound = f", error {low} to {high}"
        ends = row[f"{column}_low"], row[f"{column}_high"]
        return two_digits(Estimate(value, *ends)) + bound
    if isinstance(value, str):
        return in_words(value) if column == "kind" else value
    return two_digits(100 * value if head.endswith("(%)") else value)


def asked(study: str) -> tuple[str, str]:
    """The question that the first comment of a study's file opens with, and the sentence after it, which says of what."""
    path = inside(PROJECT_ROOT / "params", f"{study}.yaml")
    text = (
        path.read_text(encoding="utf-8").replace("\n# ", " ") if path.is_file() else ""
    )
    found = re.match(r"# ([^.?\n]*\?) ((?:[^\n](?!(?<!al)\. ))*.\.)", text)
    return found.groups() if found else (_QUESTION, "")


def page(folder: Path) -> str:
    """The text of the FINDINGS.md of a report, from its tables."""
    tables = read(folder)
    told, figure = answer(tables), (folder / FIGURE).is_file()
    parts = [
        f"# What {folder.name} says",
        inert(asked(folder.name)[1]),
        told.warning,
        " ".join(told.sentences),
    ]
    if len(told.rows):
        parts += [
            meant(tables),
            f"![{CAPTION}]({FIGURE})" if figure else "",
            _markdown(told.rows),
        ]
    parts += [
        f"<details><summary>{title}</summary>\n\n{_markdown(table)}\n\n</details>"
        for title, table in folded(tables)
    ]
    parts += [
        f"`make findings STUDY={folder.name}` checks every number on this page; all tables: [tables](tables)."
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown(table: pd.DataFrame) -> str:
    rows = [
        [inert(str(value)).replace("|", "/") for value in row]
        for row in table.itertuples(index=False)
    ]
    return "\n".join(
        "|".join(row) for row in [list(table.columns), ["---"] * table.shape[1], *rows]
    )


def write(folder: Path) -> Path:
    """Write the FINDINGS.md of a report."""
    with complete_or_absent(folder / PAGE) as temporary:
        temporary.write_text(page(folder), encoding="utf-8")
    return folder / PAGE


def differences(folder: Path) -> list[str]:
    """The lines of a report's FINDINGS.md that are not what its tables give, and those that they give."""
    there, wanted = (
        (folder / PAGE).read_text(encoding="utf-8").splitlines(),
        page(folder).splitlines(),
    )
    return list(
        difflib.unified_diff(
            there, wanted, "in the text", "by the tables", lineterm="", n=0
        )
    )

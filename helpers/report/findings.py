"""Findings of a study: sentences of a template with numbers that its notebooks named.

The template of a study is ``params/<study>.md.j2``; ``templates/findings.md.j2`` is for
studies without one. Nothing is computed here.
"""

import difflib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jinja2

from helpers.files import PROJECT_ROOT, complete_or_absent, inside
from helpers.report.sweeps import draw, named_results, results_of
from helpers.report.tables import read, two_digits
from helpers.studies import StudyFile, path_of

PAGE = "FINDINGS.md"
_TEMPLATES = Path(__file__).parent / "templates"


class StaleSentence(ValueError):
    """A hand-written sentence that its numbers no longer support."""


def numbers(report: Path) -> dict[str, SimpleNamespace]:
    """Named results of each notebook of a report.

    Args:
        report: ``reports/<study>``.

    Returns:
        By name of the notebook, "of04" for ``04_baselines``: a value for each result,
        such as ``r_iou_gap``, and its ends ``r_iou_gap_low`` and ``r_iou_gap_high``.
    """
    return {
        f"of{path.name[:2]}": SimpleNamespace(**named_results(path))
        for path in sorted(report.glob("[0-9][0-9]_*/*.ipynb"))
    }


def page(report: Path) -> str:
    """The findings of a report, Markdown.

    Args:
        report: ``reports/<study>``.

    Raises:
        StaleSentence: if a sentence is no longer true.
        jinja2.UndefinedError: if a notebook has not named a number of the template.
    """
    loader = jinja2.FileSystemLoader([PROJECT_ROOT / "params", _TEMPLATES])
    environment = jinja2.Environment(
        loader=loader,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["digits"] = two_digits
    has_file = path_of(report.name).is_file()
    study = StudyFile.read(report.name) if has_file else StudyFile()
    names = [f"{report.name}.md.j2", "findings.md.j2"]
    text = environment.select_template(names).render(
        study=report.name,
        question=study.question,
        subject=study.subject,
        holds=holds,
        frame=lambda name: read(report, name),
        figure=partial(_figure, report),
        swept=lambda notebook: results_of(report / "sweeps" / notebook),
        other=lambda study: numbers(inside(report.parent, study)),
        **numbers(report),
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def holds(condition: bool, caller: Callable[[], str]) -> str:
    """The sentence, if its condition is met.

    Args:
        condition: under which the sentence is true.
        caller: gives the sentence; Jinja's ``call`` block.

    Raises:
        StaleSentence: if the condition is not met.
    """
    sentence = " ".join(caller().split())
    if not condition:
        raise StaleSentence(
            f"the numbers no longer support this sentence; rewrite it: {sentence}"
        )
    return f"{sentence}\n"


def _figure(report: Path, notebook: str, name: str, caption: str) -> str:
    """A figure of a notebook as an image in Markdown, where it is."""
    place = f"{notebook}/figures/{name}.png"
    if not (report / place).is_file():
        return ""
    return f"![{caption}]({place})\n\n*{caption}*"


def text_of(report: Path) -> str:
    """FINDINGS.md of a report, or what it would be where it is not written."""
    path = report / PAGE
    return path.read_text(encoding="utf-8") if path.is_file() else page(report)


def main(study: str, write: bool) -> int:
    """Write FINDINGS.md, or print the lines in which it differs from the numbers.

    Args:
        study: its name.
        write: whether to write.

    Returns:
        0, 1 where lines differ, and 2 where a sentence or a name is wrong.
    """
    report = inside(PROJECT_ROOT / "reports", study)
    if not (report if write else report / PAGE).exists():
        print(f"reports/{study} is not there or has no {PAGE}", file=sys.stderr)
        return 2
    if write:
        for sweep in report.glob("sweeps/*/"):
            draw(sweep)
    try:
        text = page(report)
    except (StaleSentence, jinja2.UndefinedError) as fault:
        print(f"params/{study}.md.j2: {fault}", file=sys.stderr)
        return 2
    if write:
        with complete_or_absent(report / PAGE) as temporary:
            temporary.write_text(text, encoding="utf-8")
    there = text_of(report).splitlines()
    lines = [*difflib.unified_diff(there, text.splitlines(), n=0)]
    print("\n".join(lines) or "every number is what the notebooks named")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--write" in sys.argv))

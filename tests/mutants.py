"""Do the tests notice a wrong sign, threshold, split, correction or seed? Each mutant is one such fault; a test of its room must fail.

    python -m tests.mutants [PART OF A NAME ...]

Works on a copy of the project, and takes some minutes; run by hand. Exit 1 where a mutant survives.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    """One fault: in a file, ``old`` is replaced by ``new``; ``tests`` are what must notice it."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS = [
    Mutant(group["file"], old, new, group["tests"])
    for group in yaml.safe_load(
        (ROOT / "tests/mutants.yaml").read_text(encoding="utf-8")
    )
    for old, new in group["faults"]
]


def places_of(code: str, source: str) -> list[tuple[int, int]]:
    """Places in a source where some code stands, whatever its line breaks.

    Args:
        code: one or more lines of Python, or a part of a line.
        source: the text of a module.

    Returns:
        Start and end of each place, in characters of the source.
    """
    wanted = [text for text, _, _ in words_of(code)]
    words = words_of(source)
    places = []
    for first in range(len(words) - len(wanted) + 1):
        passage = words[first : first + len(wanted)]
        if [text for text, _, _ in passage] == wanted:
            places.append((passage[0][1], passage[-1][2]))
    return places


def words_of(code: str) -> list[tuple[str, int, int]]:
    """Words and signs with start and end, but no comma before a closing bracket."""
    words = [
        (word.group(), word.start(), word.end())
        for word in re.finditer(r"\w+|[^\w\s]", code)
    ]
    followers = [text for text, _, _ in words[1:]] + [""]
    return [
        word
        for word, follower in zip(words, followers, strict=True)
        if word[0] != "," or follower not in ("", ")", "]", "}")
    ]


def fate(mutant: Mutant, project: Path) -> str:
    """Say "killed", "SURVIVED", or why the mutant cannot be made."""
    path = project / mutant.file
    source = path.read_text()
    places = places_of(mutant.old, source)
    if len(places) != 1:
        return f"NOT MADE: {len(places)} places in the file"
    if tested(mutant.tests, project):
        return "NOT MADE: its tests fail without it"
    start, end = places[0]
    path.write_text(source[:start] + mutant.new + source[end:])
    try:
        ended = tested.__wrapped__(mutant.tests, project)
    finally:
        path.write_text(source)
    return {0: "SURVIVED", 1: "killed"}.get(
        ended, f"NOT RUN: pytest ended with {ended}"
    )


@cache
def tested(tests: str, project: Path) -> int:
    """What pytest ends with: 0 where all pass, 1 where one fails."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        *tests.split(),
    ]
    return subprocess.run(
        command,
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(project)},
        capture_output=True,
    ).returncode


def main() -> int:
    """Make every mutant whose file or text holds one of the given words, and print a table."""
    wanted = [
        mutant
        for mutant in MUTANTS
        if not sys.argv[1:] or any(word in str(mutant) for word in sys.argv[1:])
    ]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        left_out = {
            ".git",
            ".venv",
            "work",
            "reports",
            ".snakemake",
            "data",
        }  # at the top: helpers and tests have a folder data too
        shutil.copytree(
            ROOT,
            project,
            ignore=lambda folder, names: (
                left_out & {*names} if Path(folder) == ROOT else []
            ),
            symlinks=True,
        )
        print("| file | fault | fate |\n|---|---|---|")
        fates = []
        for mutant in wanted:
            fates.append(fate(mutant, project))
            change = f"`{' '.join(mutant.old.split())}` → `{' '.join(mutant.new.split())}`".replace(
                "|", "\\|"
            )
            print(
                f"| {mutant.file.removeprefix('helpers/')} | {change} | {fates[-1]} |",
                flush=True,
            )
    killed = fates.count("killed")
    print(f"\n{killed} of {len(fates)} killed")
    return int(killed < len(fates))


if __name__ == "__main__":
    sys.exit(main())

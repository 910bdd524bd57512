"""Do the tests notice a wrong sign, threshold, split, correction or seed? Each mutant is one such fault; a test of its room must fail.

    python tests/mutants.py [PART OF A NAME ...]

Works on a copy of the project, and takes some minutes; run by hand. Exit 1 where a mutant survives.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent


class Mutant(NamedTuple):
    """One fault: in a file, ``old`` is replaced by ``new``; ``tests`` are what must notice it."""

    file: str
    old: str
    new: str
    tests: str


MUTANTS: list[Mutant] = []


def fate(mutant: Mutant, project: Path) -> str:
    """Say "killed", "SURVIVED", or why the mutant cannot be made."""
    path = project / mutant.file
    source = path.read_text()
    if source.count(mutant.old) != 1:
        return f"NOT MADE: {source.count(mutant.old)} places in the file"
    path.write_text(source.replace(mutant.old, mutant.new))
    try:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *mutant.tests.split()]
        ended = subprocess.run(command, cwd=project, env=os.environ | {"PYTHONPATH": str(project)}, capture_output=True, text=True)
    finally:
        path.write_text(source)
    return {0: "SURVIVED", 1: "killed"}.get(ended.returncode, f"NOT RUN: {ended.stdout[-300:]}")


def main() -> int:
    """Make every mutant whose file or text holds one of the given words, and print a table."""
    wanted = [mutant for mutant in MUTANTS if not sys.argv[1:] or any(word in str(mutant) for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder) / "project"
        ignored = shutil.ignore_patterns(".git", ".venv", "work", "reports", ".snakemake", "data", "__pycache__")
        shutil.copytree(ROOT, project, ignore=ignored, symlinks=True)
        print("| file | fault | fate |\n|---|---|---|")
        fates = []
        for mutant in wanted:
            fates.append(fate(mutant, project))
            change = f"`{' '.join(mutant.old.split())}` → `{' '.join(mutant.new.split())}`".replace("|", "\\|")
            print(f"| {mutant.file.removeprefix('helpers/')} | {change} | {fates[-1]} |", flush=True)
    killed = fates.count("killed")
    print(f"\n{killed} of {len(fates)} killed")
    return int(killed < len(fates))


if __name__ == "__main__":
    sys.exit(main())

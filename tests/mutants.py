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
MUTANTS += [
    Mutant(
        "helpers/cams/chance.py",
        "return scores[name] - scores[name + SHUFFLED]",
        "return scores[name]",
        "tests/measures/test_localization.py",
    ),
    Mutant("helpers/cams/chance.py", "argsort().unsqueeze(1) + 1 +", "argsort().unsqueeze(1) +", "tests/cams/test_chance.py"),
    Mutant("helpers/cams/chance.py", "masks = values >= threshold", "masks = values > 1 - threshold", "tests/cams/test_chance.py"),
    Mutant(
        "helpers/cams/overlap.py",
        "masks, rows, columns = values >= threshold,",
        "masks, rows, columns = values > threshold,",
        "tests/cams/test_overlap.py",
    ),
    Mutant(
        "helpers/cams/maps.py", "squares / (2 * squares + total * cubes)", "squares / (squares + total * cubes)", "tests/cams/test_maps.py"
    ),
    Mutant("helpers/cams/maps.py", "shifted = maps - maps.amin((1, 2), keepdim=True)", "shifted = maps", "tests/cams/test_maps.py"),
    Mutant("helpers/cams/detection.py", "np.maximum.accumulate(precision[:-1])", "precision[:-1]", "tests/cams/test_detection.py"),
    Mutant(
        "helpers/measures/reliance.py",
        '(greyed_hits["control"] - greyed_hits["box"]).mean()',
        '(greyed_hits["box"] - greyed_hits["control"]).mean()',
        "tests/measures/test_reliance.py",
    ),
    Mutant("helpers/measures/prediction.py", "k = len(margins) // 10", "k = len(margins) // 5", "tests/measures/test_prediction.py"),
    Mutant(
        "helpers/measures/norms.py",
        "2 * log(norms).sum() - 2 * log(margin)",
        "2 * log(norms).sum() + 2 * log(margin)",
        "tests/measures/test_norms.py",
    ),
    Mutant(
        "helpers/measures/spectral.py",
        "split.permute(0, 1, 2, 4, 6, 3, 5).flatten(2, 4)",
        "split.permute(0, 1, 2, 4, 6, 3, 5)[:, :, :, 0, 0]",
        "tests/measures/test_spectral.py",
    ),
    Mutant(
        "helpers/measures/layers.py",
        "(_copy(norm.running_var) + norm.eps).sqrt()",
        "(_copy(norm.running_var) + norm.eps)",
        "tests/measures/test_layers.py",
    ),
    Mutant("helpers/measures/noise.py", "torch.Generator().manual_seed(seed)", "torch.Generator()", "tests/measures/test_noise.py"),
    Mutant(
        "helpers/measures/sharpness.py",
        "gradients[name].nan_to_num().sign()",
        "-gradients[name].nan_to_num().sign()",
        "tests/measures/test_sharpness.py",
    ),
    Mutant(
        "helpers/measures/response.py",
        "return float(2 * trapezoid(x - t, x))",
        "return float(trapezoid(x - t, x))",
        "tests/measures/test_response.py",
    ),
    Mutant(
        "helpers/measures/unlabelled.py",
        "(reached - round(accuracy * len(scores), 6)).abs().argmin()",
        "(reached - round(accuracy * len(scores), 6)).argmin()",
        "tests/measures/test_unlabelled.py",
    ),
]


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

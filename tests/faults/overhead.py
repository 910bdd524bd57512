"""What a sweep costs beyond the kernels: many trivial executions against as many bare kernels. ``overhead.py [executions] [jobs]``.

Besides the seconds of the clock it tells those of the processor, which other people's work on the machine does not lengthen.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from projects import trivial

from helpers.sweep import cli
from helpers.sweep.cli import Options


def spent() -> tuple[float, float]:
    """Give seconds of the clock, and of the processor for this process and those that it started and that ended."""
    used = os.times()
    return time.perf_counter(), used.user + used.system + used.children_user + used.children_system


def since(begun: tuple[float, float], count: float) -> tuple[float, float]:
    """Give the seconds since ``begun`` for each of ``count``."""
    return tuple((now - then) / count for now, then in zip(spent(), begun, strict=True))


def bare_kernels(count: int) -> tuple[float, float]:
    """Seconds to start a kernel, run one empty cell and stop it, by nbclient alone."""
    begun = spent()
    for _ in range(count):
        NotebookClient(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("pass")]), kernel_name="python3").execute()
    return since(begun, count)


def main() -> None:
    """Measure and print."""
    executions, jobs = (int(text) for text in (sys.argv[1:] + ["1000", "1"][len(sys.argv) - 1 :]))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "project"
        study = trivial(root, executions)
        options = Options(jobs=jobs)
        before = bare_kernels(min(executions, 20))
        begun = spent()
        assert cli.run_study(study, root=root, options=options) == 0
        clock, processor = since(begun, executions)
        after = bare_kernels(min(executions, 20))
        bare = [(first + second) / 2 for first, second in zip(before, after, strict=True)]
        begun = spent()
        assert cli.run_study(study, root=root, options=options) == 0
        print(f"{executions} executions, {jobs} side by side; seconds for each, of the clock and of the processor:")
        print(f"  sweep {clock * jobs:.2f} and {processor:.2f}; bare kernel {bare[0]:.2f} and {bare[1]:.2f}")
        print(f"  overhead {clock * jobs - bare[0]:.2f} and {processor - bare[1]:.2f}")
        print(f"{executions} complete executions recognised in {since(begun, 1)[0]:.2f} s")


if __name__ == "__main__":
    main()

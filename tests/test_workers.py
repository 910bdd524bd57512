"""A test that takes its process down ends the run with its name, by the flags that ``make test`` has."""

import re
import subprocess
import sys

from helpers.files import PROJECT_ROOT


def test_a_worker_that_dies_ends_the_run_with_the_name_of_its_test(tmp_path):
    (flags,) = re.findall(r"^TESTS := \$\(RUN\) -m pytest (.*)$", (PROJECT_ROOT / "Makefile").read_text(), re.M)
    first = "import os, time\n\ndef test_first():\n    time.sleep(0.1)\n"
    # The last one dies when the other worker has nothing left; with worker restarts the run then never ends.
    dies = "\n\ndef test_that_dies():\n    time.sleep(1)\n    os.kill(os.getpid(), 11)\n\ndef test_last():\n    pass\n"
    for name, text in {"a": first, "b": first, "c": first + dies}.items():
        (tmp_path / f"test_{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *flags.replace("-n auto", "-n 2").split(), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode != 0
    assert "test_c.py::test_that_dies" in done.stdout and "crashed" in done.stdout

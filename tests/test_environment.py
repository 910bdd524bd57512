"""What is installed: pinned, and never another clone's modules."""

import itertools
import os
import re
import subprocess
import tomllib

from helpers.files import PROJECT_ROOT

PROJECT = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]


def test_constraints_pin_every_direct_requirement():
    lines = (PROJECT_ROOT / "constraints.txt").read_text().splitlines()
    names = set()
    pins = {line.partition("==")[0].lower().replace("_", "-") for line in lines}
    extras = PROJECT["optional-dependencies"]
    of_dev = [extras[extra] for extra in ("dev", "backbones", "saliency")]
    for item in itertools.chain(PROJECT["dependencies"], *of_dev):
        names.add(re.match(r"[\w.-]+", item)[0].lower().replace("_", "-"))
    assert names - {PROJECT["name"]} <= pins


def test_no_target_takes_an_environment_away_from_another_clone(tmp_path):
    quiet = "--no-print-directory"  # make prints it where a make calls this test
    command = ["make", quiet, "sweep", "STUDY=demo", "INSTALLED=/another/clone"]
    environment = os.environ | {"VIRTUAL_ENV": str(tmp_path)}
    refused = subprocess.run(
        command, cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert "has the modules of another clone, /another/clone" in refused.stderr
    assert list(tmp_path.iterdir()) == []

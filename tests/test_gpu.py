"""A study on a pretended GPU: no tensor meets one of another device."""

import json
import os
import subprocess
import sys

import pytest

from helpers.files import PROJECT_ROOT
from tests import pretended_gpu

SCRIPT = """
import json, sys
from pathlib import Path
from tests import pretended_gpu
pretended_gpu.install()
from tests import on_gpu
found = on_gpu.main(Path(sys.argv[1]))
print(json.dumps([found, pretended_gpu.FAULTS]))
"""


@pytest.fixture(scope="module")
def on_gpu(tmp_path_factory):
    """What ``tests.on_gpu`` finds, and the faults of devices that were seen."""
    command = [sys.executable, "-c", SCRIPT, tmp_path_factory.mktemp("gpu")]
    pipes = {"capture_output": True, "text": True, "cwd": PROJECT_ROOT}
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=variables, **pipes)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_no_tensor_meets_one_of_another_device(on_gpu):
    """But the two that the script brings together in the end."""
    results, faults = on_gpu
    assert "at least two devices, cpu and cuda:0" in results["mixture"]
    assert faults == ["outside of helpers: add: cpu and cuda:0"]


def test_an_interrupted_run_goes_on_and_cudnn_times_kernels_in_training_alone(on_gpu):
    assert on_gpu[0]["interrupted"] == {
        "checkpoint": True,
        "epochs": [3, 3],
        "equal": True,
        "timed_kernels": [True, False],
    }


def test_every_family_ablation_and_probe_has_values(on_gpu):
    results = on_gpu[0]
    families = ["flatness", "localization", "norms", "perturbation", "prediction"]
    assert results["every_family"]["families"] == [*families, "reliance"]
    # Of so few magnitudes a search need not find the one where accuracy drops, and a
    # network that learnt so little has too little to lose.
    reasons = results["every_family"]["reasons"].values()
    expected = ("that lowers accuracy", "below twice chance")
    assert all(any(words in reason for words in expected) for reason in reasons)
    assert results["every_family"]["values"] > 100
    assert results["every_family"]["unlabelled"] > 5
    parts = ["attributed", "closed", "sampled"]
    assert results["ablations"] == {"parts": parts, "untrained": 1}
    assert results["kappa"] == {"predicted": [72]}  # 2 steps, 2 levels, 18 images
    assert 0 <= results["select"]["accuracy"] <= 1


def test_the_host_waits_a_few_times_for_however_many_images(on_gpu):
    counts = on_gpu[0]["waits"]
    assert 0 < counts["100"] == counts["1000"] <= 25


def test_a_broken_gpu_leaves_no_record(on_gpu):
    found = on_gpu[0]["failures"]
    assert pretended_gpu.ECC in found["broken"]
    assert found["records"] == []

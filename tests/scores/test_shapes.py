"""Every shape of network that a study trains and scores on a CPU, and odd ones, in its layout and precisions: no process dies of any."""

import json
import os
import subprocess
import sys

import pytest

from helpers.files import PROJECT_ROOT
from helpers.studies import load
from helpers.training.config import PRECISIONS
from tests.conftest import tracked

TRAINS_AND_SCORES = """
import json, sys
import torch
from helpers.measures.norms import fused_network
from helpers.networks import hooks, resnet
from helpers.training import run
from helpers.training.config import RunConfig
torch.set_num_threads(1)
precision = sys.argv[1]
for architecture, stem, width, last_stride, size, batch in json.loads(sys.argv[2]):
    print(architecture, stem, width, last_stride, size, batch, flush=True)  # so that the last line names the one it died of
    form = {"stem": stem, "width": width, "last_stride": last_stride}
    network = resnet.build(architecture, 20, **form, seed=0).to(memory_format=torch.channels_last).train()
    split = run.Split(torch.randint(0, 256, (batch + 5, size, size, 3), dtype=torch.uint8), torch.arange(batch + 5) % 20)
    config = RunConfig(architecture, batch, 1e-3, "sgd", 0.0, True, False, data="x", precision=precision, **form)
    losses = run.train_epoch(network, run.make_optimizer(network, config, torch.device("cpu")), split, config, 1)
    losses += run.evaluate(network, split)
    with torch.inference_mode():
        pixels = hooks.prepared(split.batch(torch.arange(batch + 5)), resnet.normalise_images, "cpu")
        for made in (network, fused_network(network)):
            losses += (float(made(pixels).sum()),)
    assert made is not network
    assert torch.tensor(losses).isfinite().all(), losses
print("all")
"""


def shapes_of(study):
    """Shapes that a study trains, unless it asks for a GPU."""
    found = {}
    for item in load(study.stem).executions:
        found |= {
            name: value
            for name, value in item.parameters.items()
            if name != "device" or item.name == "02_grid_training"
        }
    if "architectures" not in found or found["device"].startswith("cuda"):
        return []
    form = [found[name] for name in ("stem", "width", "last_stride", "image_size")]
    return [
        (architecture, *form, batch)
        for architecture in found["architectures"]
        for batch in found["batch_sizes"]
    ]


STUDIES = tracked("params/*.yaml")
ODD = {
    (name, "strided", 0.1875, 2, 64, batch)
    for name in ("resnet18", "resnet34")
    for batch in (16, 32)
}  # channels that no vector holds
SHAPES = sorted({shape for study in STUDIES for shape in shapes_of(study)} | ODD)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "precision",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if name != "float32" else [])
        for name in PRECISIONS
    ],
)
def test_no_shape_of_a_study_ends_the_process_that_trains_and_scores_it(precision):
    """With the checks of the C library on what is written beyond a block of memory, where it has them."""
    checked = os.environ | {"MALLOC_CHECK_": "3"}
    command = [sys.executable, "-c", TRAINS_AND_SCORES, precision, json.dumps(SHAPES)]
    ended = subprocess.run(
        command,
        env=checked,
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stdout.splitlines() or [""]
    assert (ended.returncode, lines[-1]) == (0, "all"), (
        f"{lines[-1]}: {ended.stderr[-2000:]}"
    )

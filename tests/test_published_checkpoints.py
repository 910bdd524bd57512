"""Committed checkpoints build their network and have the accuracy of its catalogue."""

import json

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.data.images import choose_images
from helpers.files import PROJECT_ROOT, table_of
from helpers.networks import resnet, weights
from helpers.networks.hooks import prepared
from helpers.studies import StudyFile
from tests.conftest import tracked

FILES = tracked("reports/*/checkpoints/*.safetensors")
STUDIES = sorted(
    {path.parents[1].name for path in FILES}
    & {path.stem for path in tracked("params/*.yaml")}
)
# Between the two largest logits: what products in bfloat16, in which accuracies were
# counted, and weights in float16 may move.
NEAR = 0.02


def checkpoint(path):
    """The network of a file and the text of its header."""
    header = weights.header_of(path)
    classes = len(json.loads(header["classes"]))
    network = resnet.build(**weights.form_in(path), classes=classes, seed=0)
    network.load_state_dict(load_file(path))
    return network.eval(), header


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_keeps_checkpoints_that_span_its_gaps_and_build(study):
    files = {path.name: path for path in FILES if path.parents[1].name == study}
    report = PROJECT_ROOT / "reports" / study
    listed = pd.read_csv(table_of(report, "checkpoints.csv"))
    analysed = pd.read_csv(table_of(report, "catalogue.csv")).query("left_out.isna()")
    assert {*listed["file"]} == files.keys()
    for end in ("min", "max"):
        assert listed["gap"].agg(end) == analysed["gap"].agg(end)
    assert sum(path.stat().st_size for path in files.values()) < 18e6
    for row in listed.itertuples():
        network, header = checkpoint(files[row.file])
        accuracy = float(header["test_accuracy"])  # tables have eight digits
        assert accuracy == pytest.approx(row.test_accuracy, abs=1e-8)
        assert network(torch.zeros(1, 3, 64, 64)).isfinite().all()


@pytest.fixture(scope="module", params=STUDIES)
def met(request, tmp_path_factory):
    """A study with its test images."""
    choice = StudyFile.read(request.param).notebooks["01_data_subset"]
    name = choice["data_path"]
    folders = (PROJECT_ROOT, PROJECT_ROOT.parent / "shared")
    there = [folder / name for folder in folders if (folder / name).exists()]
    if not there:
        pytest.skip(f"the images of {request.param} are not here: {name}")
    work = tmp_path_factory.mktemp("work")
    return request.param, choose_images(work, **choice | {"data_path": str(there[0])})


SMALLEST = pytest.param(0, id="smallest gap", marks=pytest.mark.nightly)


@pytest.mark.parametrize("place", [SMALLEST, pytest.param(-1, id="largest gap")])
def test_a_checkpoint_has_the_accuracy_of_its_catalogue(met, place):
    study, study_data = met
    report = PROJECT_ROOT / "reports" / study
    row = pd.read_csv(table_of(report, "checkpoints.csv")).iloc[place]
    network, header = checkpoint(report / "checkpoints" / row["file"])
    assert json.loads(header["classes"]) == study_data.classes["class_id"].tolist()
    normalise = resnet.normalise_images
    with torch.inference_mode():
        pixels = study_data.test.images.split(250)
        outputs = [network(prepared(part, normalise, "cpu")) for part in pixels]
    logits = torch.cat(outputs)
    largest = logits.topk(2).values
    near = (largest[:, 0] - largest[:, 1] < NEAR).float().mean()
    correct = (logits.argmax(1) == study_data.test.labels).float().mean()
    assert near < 0.03
    assert abs(correct - row["test_accuracy"]) <= near

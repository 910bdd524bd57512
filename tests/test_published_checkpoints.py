"""The checkpoints beside a committed report: each builds the network of its header, and gives the accuracy that its catalogue has."""

import json

import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import load_file

from helpers.data.images import choose_images
from helpers.files import PROJECT_ROOT, table_of
from helpers.networks import hooks, resnet, weights
from helpers.training import catalogue
from tests.conftest import tracked

FILES = tracked("reports/*/checkpoints/*.safetensors")
STUDIES = sorted(
    {path.parents[1].name for path in FILES}
    & {path.stem for path in tracked("params/*.yaml")}
)
NEAR = 0.02  # between the two largest logits: what products in bfloat16, in which accuracies were counted, and weights in float16 may move


def checkpoint(path):
    """The network of a file and the text of its header."""
    header = weights.header_of(path)
    network = weights.form_in(path).network(len(json.loads(header["classes"])))
    network.load_state_dict(load_file(path))
    return network.eval(), header


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_keeps_checkpoints_that_span_its_gaps_and_build(study):
    files = [path for path in FILES if path.parents[1].name == study]
    report = PROJECT_ROOT / "reports" / study
    listed = pd.read_csv(table_of(report, "checkpoints.csv"))
    analysed = pd.read_csv(table_of(report, "catalogue.csv")).query("left_out.isna()")
    assert sorted(listed["file"]) == [path.name for path in files]
    assert (listed["gap"].min(), listed["gap"].max()) == (
        analysed["gap"].min(),
        analysed["gap"].max(),
    )
    assert sum(path.stat().st_size for path in files) < 18e6
    for path in files:
        network, header = checkpoint(path)
        (row,) = listed[listed["file"] == path.name].to_dict("records")
        assert float(header["test_accuracy"]) == pytest.approx(
            row["test_accuracy"], abs=1e-8
        )  # tables have eight digits
        assert network(torch.zeros(1, 3, 64, 64)).isfinite().all()


def test_checkpoints_of_networks_that_are_not_here_are_published_again(tmp_path):
    report = PROJECT_ROOT / "reports" / STUDIES[0]
    again = catalogue.published_checkpoints(report, tmp_path / "again")
    written = {path.name: path.read_bytes() for path in tmp_path.glob("again/*")}
    assert written == {
        path.name: path.read_bytes() for path in report.glob("checkpoints/*")
    }
    assert again["file"].tolist() == [
        f"{name}.safetensors" for name in again["model_id"]
    ]
    assert catalogue.published_checkpoints(tmp_path, tmp_path).empty


@pytest.fixture(scope="module", params=STUDIES)
def met(request, tmp_path_factory):
    """A study with its test images."""
    given = yaml.safe_load((PROJECT_ROOT / f"params/{request.param}.yaml").read_text())[
        "notebooks"
    ]["01_data_subset"]
    places = [
        folder / given["data_path"]
        for folder in (PROJECT_ROOT, PROJECT_ROOT.parent / "shared")
    ]
    there = next((place for place in places if place.exists()), None)
    if there is None:
        pytest.skip(f"the images of {request.param} are not here: {given['data_path']}")
    work = tmp_path_factory.mktemp("work")
    return request.param, choose_images(work, **given | {"data_path": str(there)})


@pytest.mark.parametrize(
    "place",
    [
        pytest.param(0, id="smallest gap", marks=pytest.mark.nightly),
        pytest.param(-1, id="largest gap"),
    ],
)
def test_a_checkpoint_has_the_accuracy_of_its_catalogue(met, place):
    study, study_data = met
    report = PROJECT_ROOT / "reports" / study
    row = pd.read_csv(table_of(report, "checkpoints.csv")).iloc[place]
    network, header = checkpoint(
        PROJECT_ROOT / "reports" / study / "checkpoints" / row["file"]
    )
    assert json.loads(header["classes"]) == study_data.classes["class_id"].tolist()
    with torch.inference_mode():
        pixels = study_data.test.images.split(250)
        logits = torch.cat(
            [
                network(hooks.prepared(part, resnet.normalise_images, "cpu"))
                for part in pixels
            ]
        )
    two = logits.topk(2).values
    near = (two[:, 0] - two[:, 1] < NEAR).float().mean()
    correct = (logits.argmax(1) == study_data.test.labels).float().mean()
    assert near < 0.03
    assert abs(correct - row["test_accuracy"]) <= near

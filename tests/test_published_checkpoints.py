"""Published checkpoints: they build, have the accuracy of their catalogue, are judged."""

import json
from functools import cache

import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from helpers.checkpoints.__main__ import main
from helpers.data.images import load_study_data
from helpers.files import PROJECT_ROOT, table_of
from helpers.networks import resnet, weights
from helpers.networks.hooks import prepared
from helpers.scores.scoring_set import scoring_set
from helpers.studies import StudyFile
from tests.conftest import tracked

REPORTS = PROJECT_ROOT / "reports"
FILES = tracked("reports/*/checkpoints/*.safetensors")
STUDIES = sorted({path.parents[1].name for path in FILES})
# Between the two largest logits: what products in bfloat16, in which accuracies were
# counted, and weights in float16 may move.
NEAR = 0.02


def table(study, name):
    return pd.read_csv(table_of(REPORTS / study, f"{name}.csv"), low_memory=False)


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
    listed = table(study, "checkpoints")
    analysed = table(study, "catalogue").query("left_out.isna()")
    assert {*listed["file"]} == files.keys()
    for end in ("min", "max"):
        assert listed["gap"].agg(end) == analysed["gap"].agg(end)
    assert sum(path.stat().st_size for path in files.values()) < 18e6
    for row in listed.itertuples():
        network, header = checkpoint(files[row.file])
        accuracy = float(header["test_accuracy"])  # tables have eight digits
        assert accuracy == pytest.approx(row.test_accuracy, abs=1e-8)
        assert network(torch.zeros(1, 3, 64, 64)).isfinite().all()


@pytest.fixture(scope="module")
def images_of(tmp_path_factory):
    """Gives the images of a study, of the public archive or of a part that is here."""

    @cache
    def load(study):
        choice = StudyFile.read(study).notebooks["01_data_subset"]
        part = "20" if study == "filled20" else "compact-20"
        parts = PROJECT_ROOT.parent / "shared/data"
        here = PROJECT_ROOT / choice["data_path"]
        places = (here, parts / f"tiny-imagenet-{part}.zip")
        there = [str(path) for path in places if path.exists()]
        if not there:
            pytest.skip(f"the images of {study} are not here")
        cache_dir = tmp_path_factory.mktemp(study)
        return load_study_data(cache_dir=cache_dir, **choice | {"data_path": there[0]})

    return load


@pytest.mark.nightly
@pytest.mark.parametrize("study", [*STUDIES, "filled20"])
def test_the_images_of_a_study_have_the_fingerprint_in_its_catalogue(images_of, study):
    assert {*table(study, "catalogue")["data"]} == {images_of(study).fingerprint}


@pytest.mark.nightly
@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("place", [0, -1])  # of the smallest gap, and the largest
def test_a_checkpoint_has_the_accuracy_of_its_catalogue(images_of, study, place):
    data = images_of(study)
    row = table(study, "checkpoints").iloc[place]
    network, header = checkpoint(REPORTS / study / "checkpoints" / row["file"])
    assert json.loads(header["classes"]) == data.classes["class_id"].tolist()
    normalise = resnet.normalise_images
    with torch.inference_mode():
        pixels = data.test.images.split(250)
        outputs = [network(prepared(part, normalise, "cpu")) for part in pixels]
    logits = torch.cat(outputs)
    largest = logits.topk(2).values
    near = (largest[:, 0] - largest[:, 1] < NEAR).float().mean()
    correct = (logits.argmax(1) == data.test.labels).float().mean()
    assert near < 0.03
    assert abs(correct - row["test_accuracy"]) <= near


@pytest.mark.nightly
@pytest.mark.parametrize(("study", "networks"), [("kinds20", 3), ("kinds24", 2)])
def test_they_are_judged_from_training_images(images_of, study, networks, tmp_path):
    data = images_of(study)
    texts = dict.fromkeys(["weights", "left_out"], object)
    catalogue = table(study, "catalogue").astype(texts).fillna(dict.fromkeys(texts, ""))
    for row in scoring_set(catalogue, data, 400).rows:
        label = data.classes["class_id"].iloc[int(data.train.labels[row])]
        path = tmp_path / "images" / label / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.train.images[row].permute(1, 2, 0).numpy()).save(path)
    listed = table(study, "checkpoints")
    chosen = listed[listed["images_per_class"].eq(0)].tail(networks)
    (tmp_path / "checkpoints").mkdir()
    for file in chosen["file"]:
        published = REPORTS / study / "checkpoints" / file
        (tmp_path / "checkpoints" / file).symlink_to(published)
    places = [str(tmp_path / name) for name in ("checkpoints", "images", "own")]
    options = ["--images-per-class", "225", "--out", places.pop()]
    assert main([*places, *options]) == 0
    verdicts = pd.read_csv(tmp_path / "own/verdicts.csv").set_index("checkpoint")
    assert verdicts["verdict"].tolist() == ["predicted"] * networks
    assert verdicts["prepared"].str.startswith("64 px, mean 0.485").all()
    known = chosen.set_index("file")["test_accuracy"]
    assert (verdicts["accuracy"] - known).abs().mean() < 0.06

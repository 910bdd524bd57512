"""Published checkpoints are judged from their files alone, by the command, as a user would."""

import pandas as pd
import pytest
from PIL import Image

from helpers.checkpoints.__main__ import main
from helpers.data.images import load_study_data
from helpers.files import PROJECT_ROOT, table_of
from helpers.scores.scoring_set import scoring_set
from helpers.studies import StudyFile

REPORTS = PROJECT_ROOT / "reports"
SOURCES = (
    PROJECT_ROOT / "data/tiny-imagenet-200.zip",
    PROJECT_ROOT.parent / "shared/data/tiny-imagenet-compact-20.zip",
)


def write_training_images(study, folder, most):
    """Images that all networks of a study were fitted to, a folder a class."""
    source = next((path for path in SOURCES if path.exists()), None)
    if source is None or not (REPORTS / study).is_dir():
        pytest.skip("images or reports are not here")
    choice = StudyFile.read(study).notebooks
    choice = choice["01_data_subset"] | {"data_path": str(source)}
    data = load_study_data(cache_dir=folder / "cache", **choice)
    texts = dict.fromkeys(["weights", "left_out"], str)
    catalogue = pd.read_csv(table_of(REPORTS / study, "catalogue.csv"), dtype=texts)
    scored = scoring_set(catalogue.fillna(dict.fromkeys(texts, "")), data, most)
    for row in scored.rows:
        label = data.classes["class_id"].iloc[int(data.train.labels[row])]
        path = folder / "images" / label / f"{row}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.train.images[row].permute(1, 2, 0).numpy()).save(path)
    return folder / "images"


@pytest.mark.nightly
@pytest.mark.parametrize(("study", "networks"), [("kinds20", 3), ("kinds24", 2)])
def test_published_checkpoints_are_judged_from_their_files(study, networks, tmp_path):
    images = write_training_images(study, tmp_path, 400)
    listed = pd.read_csv(table_of(REPORTS / study, "checkpoints.csv"))
    chosen = listed[listed["images_per_class"].eq(0)].tail(networks)
    (tmp_path / "checkpoints").mkdir()
    for file in chosen["file"]:
        published = REPORTS / study / "checkpoints" / file
        (tmp_path / "checkpoints" / file).symlink_to(published)
    places = [str(tmp_path / "checkpoints"), str(images)]
    options = ["--images-per-class", "225", "--out", str(tmp_path / "own")]
    assert main([*places, *options]) == 0
    verdicts = pd.read_csv(tmp_path / "own/verdicts.csv").set_index("checkpoint")
    assert len(verdicts) == networks
    assert verdicts["verdict"].eq("predicted").all()
    assert verdicts["prepared"].str.startswith("64 px, mean 0.485").all()
    known = chosen.set_index("file")["test_accuracy"]
    assert (verdicts["accuracy"] - known).abs().mean() < 0.06

"""A run whose files are another's, cut, or altered is named and trained again."""

import json
import shutil
from dataclasses import replace

import pytest

from helpers.data.images import load_study_data
from helpers.training import catalogue, soundness
from helpers.training.config import run_id
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES
from tests.training.conftest import configurations


@pytest.fixture
def runs(tmp_path):
    """Two runs of one epoch, complete; gives their configurations and how to train one."""
    made = [replace(run, max_epochs=1) for run in configurations(tmp_path)[:2]]
    data = load_study_data(**TINY_SCENES, cache_dir=tmp_path / "cache")
    for run in made:
        train_run(run, data, catalogue.run_folder(tmp_path, run))
    return made, lambda run: train_run(run, data, catalogue.run_folder(tmp_path, run))


def damage(name):
    def change(folder, other):
        path = folder / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2 : len(content) // 2 + 16] = bytes(16)
        path.write_bytes(content)

    return change


DAMAGES = {
    "result of another run": lambda folder, other: shutil.copy(other / "result.json", folder),
    "config of another run": lambda folder, other: shutil.copy(other / "config.json", folder),
    "history of another run": lambda folder, other: shutil.copy(other / "history.parquet", folder),
    "snapshot of another run": lambda folder, other: shutil.copy(other / "snapshot-stop.safetensors", folder),
    "result that is no JSON": lambda folder, other: (folder / "result.json").write_text("{"),
    "result that is a list": lambda folder, other: (folder / "result.json").write_text("[]"),
    "snapshot deleted": lambda folder, other: (folder / "snapshot-stop.safetensors").unlink(),
    "snapshot with zeros": damage("snapshot-stop.safetensors"),
    "history with zeros": damage("history.parquet"),
}


def test_what_does_not_belong_to_a_run_is_named_and_made_again(runs, tmp_path):
    (first, second), train = runs
    folder, other = (catalogue.run_folder(tmp_path, run) for run in (first, second))
    weights = (folder / "snapshot-stop.safetensors").read_bytes()
    assert catalogue.missing(tmp_path, [first, second]) == []
    for name, change in DAMAGES.items():
        change(folder, other)
        with pytest.warns(UserWarning, match=f"{folder.name}: .*; it is trained again"):
            assert catalogue.missing(tmp_path, [first, second]) == [first], name
        train(first)
        assert (folder / "snapshot-stop.safetensors").read_bytes() == weights, name
        assert catalogue.missing(tmp_path, [first, second]) == [], name


def test_a_run_of_before_there_were_digests_is_held_against_its_name_alone(runs, tmp_path):
    folder = catalogue.run_folder(tmp_path, runs[0][0])
    record = json.loads((folder / "result.json").read_text())
    del record["files"]
    (folder / "result.json").write_text(json.dumps(record))
    assert soundness.fault_of_run(folder) == ""


def left_out(folder):
    """What a run is on a machine to which it came without its weights."""
    record = json.loads((folder / "result.json").read_text()) | soundness.LEFT_OUT
    (folder / "result.json").write_text(json.dumps(record))
    (folder / "snapshot-stop.safetensors").unlink()


def test_a_run_that_came_without_its_weights_is_complete_and_asks_for_them_where_they_are_needed(runs, tmp_path):
    (first, second), _ = runs
    folder = catalogue.run_folder(tmp_path, first)
    left_out(folder)
    assert catalogue.missing(tmp_path, [first, second]) == []
    table = catalogue.read_catalogue(tmp_path)
    assert len(table) == 2
    assert catalogue.with_weights(tmp_path, table)["run_id"].tolist() == [run_id(second)]
    assert catalogue.with_weights(tmp_path, table[:0]).columns.tolist() == table.columns.tolist()
    models = {model.run_id: model for model in catalogue.models_of(table)}
    with pytest.raises(FileNotFoundError, match=rf"the weights of {run_id(first)}@stop are where it was trained: .* --weights"):
        catalogue.load_model(tmp_path, models[run_id(first)], 3)
    with pytest.warns(UserWarning, match="stay undefined where they were not scored before"):
        assert catalogue.lacks_weights(tmp_path, models[run_id(first)])
    assert not catalogue.lacks_weights(tmp_path, models[run_id(second)])


def test_only_absent_snapshots_are_excused_by_weights_that_were_left_out(runs, tmp_path):
    (first, second), _ = runs
    folder, other = (catalogue.run_folder(tmp_path, run) for run in (first, second))
    left_out(folder)
    shutil.copy(other / "snapshot-stop.safetensors", folder)
    assert soundness.fault_of_run(folder) == "snapshot-stop.safetensors: not as the run wrote it"
    (folder / "snapshot-stop.safetensors").unlink()
    (folder / "history.parquet").unlink()
    assert soundness.fault_of_run(folder) == "history.parquet: not as the run wrote it"
    (other / "snapshot-stop.safetensors").unlink()
    assert soundness.fault_of_run(other) == "snapshot-stop.safetensors: not as the run wrote it"


def test_a_snapshot_that_is_another_runs_or_was_altered_is_not_loaded(runs, tmp_path):
    (first, second), _ = runs
    path, other = (catalogue.run_folder(tmp_path, run) / "snapshot-stop.safetensors" for run in (first, second))
    model = next(model for model in catalogue.models_of(catalogue.read_catalogue(tmp_path)) if model.run_id == run_id(first))
    catalogue.load_model(tmp_path, model, 3)
    whole = path.read_bytes()
    middle = len(whole) // 2
    for content in (other.read_bytes(), whole[:middle] + bytes(512) + whole[middle + 512 :]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"snapshot-stop.safetensors is not as the run wrote it; run 02_grid_training again"):
            catalogue.load_model(tmp_path, model, 3)

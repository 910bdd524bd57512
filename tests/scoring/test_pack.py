"""A study goes to another machine whole, small and safely, and nothing that is there is spoilt by what comes."""

import json
import re
import shutil
import zipfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from helpers.data.manifest import choose_images
from helpers.locks import LockHolder
from helpers.scoring import classification, pack
from helpers.scoring.single_images import correct_on_test, read_image_values, save_image_values
from helpers.training import catalogue, soundness
from helpers.training.config import RunConfig, run_id
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A study with two complete runs of one epoch, its catalogue, logits and scores."""
    work = tmp_path_factory.mktemp("here") / "tiny"
    data = choose_images(work, **TINY_SCENES)
    fixed = {"data": data.fingerprint, "stem": "strided", "width": 0.125, "max_epochs": 1}
    base = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, **fixed)
    for run in (base, replace(base, repeat=1)):
        train_run(run, data, catalogue.run_folder(work, run))
    table = catalogue.read_catalogue(work)
    table.to_parquet(work / "catalogue.parquet", index=False)
    assert list(classification.keep_test_logits(work, table, data, "cpu")) == list(table["model_id"])
    for name in table["model_id"]:
        save(work, name, ["iou"])
        save_image_values(work, "localization-a", name, {"iou": np.arange(4, dtype=np.float32)})
    correct_on_test(work, table, data)
    return work, data, table


def save(work, name, measures, value=0.5):
    rows = pd.DataFrame({"measure": measures, "variant": "", "value": value, "seconds": 0.0, "reason": ""})
    catalogue.save_scores(work, "localization-a", name, rows)


@pytest.fixture
def study(trained, tmp_path):
    """A copy of it for one test, with the place of a pack."""
    work = tmp_path / "tiny"
    shutil.copytree(trained[0], work, ignore=shutil.ignore_patterns("cache"))
    return work, tmp_path / "tiny.zip"


def runs_of(table):
    return [model.config for model in catalogue.models_of(table)]


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_study_without_weights_is_complete_on_another_machine_and_says_what_it_lacks(trained, study, tmp_path):
    (work, path), (_, data, table) = study, trained
    packed = pack.write_pack(work, path)
    assert (packed.runs, packed.models, packed.without_logits) == (2, 2, 0)
    assert packed.size == path.stat().st_size < 200_000 < (work / "runs" / table["run_id"][0] / "snapshot-stop.safetensors").stat().st_size
    found = pack.take_pack(path, tmp_path / "there")
    there = tmp_path / "there" / "tiny"
    assert found == pack.Taken(there, sorted(table["run_id"]), [], [])
    assert not list(there.rglob("snapshot-*")) and not [*(tmp_path / "there").glob(".*")]
    assert catalogue.missing(there, runs_of(table)) == []
    pd.testing.assert_frame_equal(catalogue.read_catalogue(there), table)
    pd.testing.assert_frame_equal(pd.read_parquet(there / "catalogue.parquet"), table)
    for name in table["model_id"]:
        assert catalogue.scored_measures(there, "localization-a", name) == {"iou"}
        assert read_image_values(there, "localization-a", name)["iou"].tolist() == [0, 1, 2, 3]
    np.testing.assert_array_equal(correct_on_test(there, table, data), correct_on_test(work, table, data))
    with pytest.raises(FileNotFoundError, match=f"the weights of {table['model_id'][0]} are where it was trained"):
        catalogue.load_model(there, catalogue.models_of(table)[0], 3)
    assert len(catalogue.with_weights(there, table)) == 0
    assert len(catalogue.with_weights(work, table)) == 2


def test_logits_go_along_as_far_as_there_is_room_and_hits_on_the_test_images_in_any_case(trained, study, tmp_path, monkeypatch):
    (work, path), (_, data, table) = study, trained
    lacking = {}
    for room in range(15_000, 60_000, 1000):
        monkeypatch.setattr(pack, "ROOM", room)
        packed = pack.write_pack(work, path)
        lacking.setdefault(packed.without_logits, room)
        assert packed.size < room or packed.without_logits == 2
    assert list(lacking) == [2, 1, 0]
    monkeypatch.setattr(pack, "ROOM", lacking[1])
    pack.write_pack(work, path)
    there = pack.take_pack(path, tmp_path / "there").work
    with pytest.warns(UserWarning, match="came without their weights"):
        assert len(classification.metrics_of_models(there, table, data)) == 1
        np.testing.assert_array_equal(correct_on_test(there, table, data), correct_on_test(work, table, data))


def test_weights_come_later_where_they_were_left_out(study, trained, tmp_path):
    (work, path), table = study, trained[2]
    there = pack.take_pack(path, tmp_path / "there").work if pack.write_pack(work, path) else None
    save(there, table["model_id"][0], ["own"])
    pack.write_pack(work, path, weights=True)
    assert pack.take_pack(path, tmp_path / "there").taken == sorted(table["run_id"])
    assert "weights" not in json.loads((there / "runs" / table["run_id"][0] / "result.json").read_text())
    for model in catalogue.models_of(table):
        catalogue.load_model(there, model, 3)
    assert catalogue.missing(there, runs_of(table)) == []
    assert catalogue.scored_measures(there, "localization-a", table["model_id"][0]) == {"iou", "own"}
    before = everything(there)
    pack.write_pack(work, path)
    assert pack.take_pack(path, tmp_path / "there").same == sorted(table["run_id"])
    assert everything(there) == before  # weights are not taken away by a pack that has none


def test_a_run_that_is_here_keeps_its_weights_and_its_scores(study, trained, tmp_path):
    """The same configuration trained on another device is another network: nothing of the two is mixed."""
    (work, path), (_, data, table) = study, trained
    pack.write_pack(work, path)
    there = tmp_path / "there" / "tiny"
    choose_images(there, **TINY_SCENES)
    first, second = runs_of(table)
    train_run(first, data, catalogue.run_folder(there, first))  # at another time, so its history is another
    (catalogue.run_folder(there, second)).mkdir()
    (catalogue.run_folder(there, second) / "config.json").write_text("{}")  # begun, and no further
    before = everything(catalogue.run_folder(there, first))
    found = pack.take_pack(path, tmp_path / "there")
    assert (found.taken, found.other) == ([run_id(second)], [run_id(first)])
    assert everything(catalogue.run_folder(there, first)) == before
    assert catalogue.scored_measures(there, "localization-a", f"{run_id(first)}@stop") == set()
    assert catalogue.scored_measures(there, "localization-a", f"{run_id(second)}@stop") == {"iou"}
    assert pd.read_parquet(there / "catalogue.parquet")["run_id"].tolist() == [run_id(second)]
    assert soundness.fault_of_run(catalogue.run_folder(there, second)) == ""


def test_a_run_that_is_trained_here_now_is_left_alone(study, trained, tmp_path):
    (work, path), table = study, trained[2]
    pack.write_pack(work, path)
    with LockHolder(tmp_path / "there" / "tiny" / "runs" / ".claims") as other:
        assert other.claim(table["run_id"][0])
        found = pack.take_pack(path, tmp_path / "there")
    assert (found.taken, found.other) == ([table["run_id"][1]], [table["run_id"][0]])


def test_scores_are_replaced_by_more_measures_only(study, trained, tmp_path):
    (work, path), name = study, trained[2]["model_id"][0]
    pack.write_pack(work, path)
    there = pack.take_pack(path, tmp_path / "there").work
    save(there, name, ["own"])
    save(work, name, ["iou_b"])
    pack.write_pack(work, path)
    pack.take_pack(path, tmp_path / "there")
    assert catalogue.scored_measures(there, "localization-a", name) == {"iou", "own"}
    save(work, name, ["own"])
    save_image_values(work, "localization-a", name, {"iou": np.ones(4, dtype=np.float32)})
    pack.write_pack(work, path)
    pack.take_pack(path, tmp_path / "there")
    assert catalogue.scored_measures(there, "localization-a", name) == {"iou", "iou_b", "own"}
    assert read_image_values(there, "localization-a", name)["iou"].tolist() == [1, 1, 1, 1]


def test_a_study_of_other_images_or_precision_is_refused(study, tmp_path):
    work, path = study
    (work / "precision.json").write_text('{"precision": "bfloat16"}')
    pack.write_pack(work, path)
    there = tmp_path / "there" / "tiny"
    choose_images(there, **TINY_SCENES | {"images_per_class": 8})
    with pytest.raises(ValueError, match=r"data.json has the fingerprint .* give one of them another name"):
        pack.take_pack(path, tmp_path / "there")
    choose_images(there, **TINY_SCENES)
    (there / "precision.json").write_text('{"precision": "float32"}')
    with pytest.raises(ValueError, match=r"precision\.json has the precision float32, and the pack bfloat16"):
        pack.take_pack(path, tmp_path / "there")
    assert not (there / "runs").exists()


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "/etc/passwd",
        "tiny/../../outside",
        "tiny/runs/../../../outside/result.json",
        "tiny/runs/a/checkpoint.safetensors",
        "tiny/runs/a/b/result.json",
        "tiny/scores/../runs",
        "tiny/executions/01.json",
        "tiny/scores/.hidden/a.parquet",
        "other/data.json",
        "tiny\\..\\outside",
    ],
)
def test_a_path_that_no_pack_has_is_refused_before_anything_is_written(name, study, tmp_path):
    work, path = study
    pack.write_pack(work, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, "x")
    with pytest.raises(ValueError, match="is no pack"):
        pack.take_pack(path, tmp_path / "there")
    assert list((tmp_path / "there").rglob("*")) == []


@pytest.mark.parametrize(
    "damage",
    [
        *("snapshot of another run", "history", "no result", "no catalogue.parquet", "no data.json"),
        *("a damaged catalogue.parquet", "a damaged data.json", "a damaged result.json", "cut", "encrypted"),
    ],
)
def test_a_damaged_pack_is_refused_whole(damage, study, trained, tmp_path):
    (work, path), table = study, trained[2]
    pack.write_pack(work, path, weights=True)
    changed = tmp_path / "changed.zip"
    run = f"tiny/runs/{table['run_id'][0]}"
    with zipfile.ZipFile(path) as before, zipfile.ZipFile(changed, "w") as after:
        for entry in before.infolist():
            content = before.read(entry)
            if damage == "snapshot of another run" and entry.filename == f"{run}/snapshot-stop.safetensors":
                content = before.read(f"tiny/runs/{table['run_id'][1]}/snapshot-stop.safetensors")
            if damage == "history" and entry.filename == f"{run}/history.parquet":
                content = content[:-9]
            if damage.startswith("a damaged") and entry.filename.endswith(damage.rpartition(" ")[2]):
                content = json.dumps([]).encode()
            if not (damage.startswith("no ") and entry.filename in (f"{run}/{damage[3:]}.json", f"tiny/{damage[3:]}")):
                after.writestr(entry.filename, content)
    if damage == "cut":
        content = bytearray(changed.read_bytes())
        content[2000:2400] = bytes(400)
        changed.write_bytes(content)
    if damage == "encrypted":  # by the flags of its entries
        content = bytearray(changed.read_bytes())
        for start in (found.start() for found in re.finditer(b"PK\x01\x02", content)):
            content[start + 8] |= 1
        changed.write_bytes(content)
    with pytest.raises(ValueError, match=r"changed\.zip is damaged \(.+\); pack it again"):
        pack.take_pack(changed, tmp_path / "there")
    assert list((tmp_path / "there").iterdir()) == []


def test_what_is_no_zip_is_named(tmp_path):
    (tmp_path / "a.zip").write_text("no zip")
    with pytest.raises(ValueError, match=r"a\.zip is no zip, or was cut"):
        pack.take_pack(tmp_path / "a.zip", tmp_path / "there")


def test_more_than_the_disk_holds_is_refused(study, tmp_path, monkeypatch):
    work, path = study
    pack.write_pack(work, path)
    monkeypatch.setattr(pack.shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(2, 1, 1))
    with pytest.raises(OSError, match=r"unpacks to .* make room"):
        pack.take_pack(path, tmp_path / "there")


def test_nothing_complete_is_nothing_to_pack(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is nothing to pack"):
        pack.write_pack(tmp_path, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()

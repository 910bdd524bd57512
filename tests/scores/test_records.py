"""Records: what is published of a study is what readers without weights and pixels need."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from helpers.data import images
from helpers.files import read_json, records_of, write_json
from helpers.measures.evidence import MeasureSettings
from helpers.scores import classification, measuring, models, records, scoring_set
from helpers.scores.pictures import maps_of_networks
from helpers.scores.store import NotInRecords, Store
from helpers.scores.values import read_scores
from helpers.training import catalogue
from helpers.training.config import config_from


def scored(work, data, table, settings=None):
    """Localization and logits of all models, from wherever they can be had."""
    store = Store(work, lambda: data, jobs=1)
    chosen = models.models_of(work, table, data)
    scored_on = scoring_set.scoring_set(table, data, 20)
    settings = settings or MeasureSettings()
    measured = measuring.score(store, chosen, ["localization"], settings, scored_on)
    logits = classification.test_logits(store, chosen, data)
    return measured, classification.correct(logits, data.test.labels)


@pytest.fixture(scope="module")
def published(study, tmp_path_factory):
    """A study's folder of work, its values, and a clone that has its records alone."""
    measured, right = scored(study.work, study.data, study.table)
    clone = tmp_path_factory.mktemp("clone") / "work" / study.work.name
    folder = records_of(clone)
    records.publish(study.work, folder)
    manifest = json.loads((folder / "data.json").read_text())
    manifest["parameters"] |= {"data_source": "tiny_imagenet", "data_path": "/a.zip"}
    write_json(folder / "data.json", manifest)
    return study, measured, right, clone, folder


def copied(published_folder, tmp_path):
    """A clone of one's own: its folder of work, and its records."""
    folder = tmp_path / "reports/study/records"
    shutil.copytree(published_folder, folder)
    return tmp_path / "work/study", folder


def test_a_clone_reads_of_the_records_what_was_computed_elsewhere(published):
    study, measured, right, clone, done = published
    assert not list(done.rglob("*.safetensors"))
    data = images.images_of_study(clone)
    assert not data.train.has_pixels and study.data.train.has_pixels
    table = catalogue.read_catalogue(clone)
    pd.testing.assert_frame_equal(table, study.table)
    again, right_again = scored(clone, data, table)
    pd.testing.assert_frame_equal(again.scores(), measured.scores())
    np.testing.assert_array_equal(right_again, right)
    arrays = np.load(next(done.glob("arrays/*.npz"))).files
    of_logits = [name for name in arrays if name.startswith("test_logits")]
    assert {name.split("/")[1] for name in of_logits} == {"predicted"}
    for model_id in measured.complete:
        record = measured.record("localization", model_id)
        of_clone = again.record("localization", model_id)
        assert set(of_clone) == set(record)
        for name in set(record) - {"scores"}:
            np.testing.assert_array_equal(of_clone[name], record[name])
    ids = table["run_id"].unique()
    pd.testing.assert_frame_equal(
        catalogue.histories(clone, ids), catalogue.histories(study.work, ids)
    )


def test_records_keep_what_the_folder_of_work_lacks(published, tmp_path):
    """As where a further family was scored in a clone of published records."""
    study, *_, done = published
    work, folder = copied(done, tmp_path)
    shutil.copytree(folder / "runs", work / "runs")
    for name in ("data.json", "images.npz"):
        shutil.copy(folder / name, work / name)
    model = models.models_of(work, study.table, study.data)[0]
    before = read_scores(folder, model.model_id)
    Store(work, lambda: study.data).write(model, "new", {}, {"x": np.ones(2)})
    records.publish(work, folder)
    assert read_json(folder / "data.json")["parameters"]["data_path"] == "data/a.zip"
    after = read_scores(folder, model.model_id)
    assert set(after["part"]) == {*before["part"], "new"}
    pd.testing.assert_frame_equal(after[after["part"] != "new"], before)


def test_of_many_images_the_first_have_maps(published, tmp_path, monkeypatch):
    """Of which no map is cut anew: means of the first images are not those of all."""
    study, measured, *_, done = published
    monkeypatch.setattr(records, "IMAGES_WITH_MAPS", 10)
    work, folder = copied(done, tmp_path)
    for name in ("scores", "arrays"):
        shutil.rmtree(folder / name)
    records.publish(study.work, folder)
    table = catalogue.read_catalogue(work)
    data = images.images_of_study(work)
    again, _ = scored(work, data, table)
    pd.testing.assert_frame_equal(again.scores(), measured.scores())
    for model_id in measured.complete:
        record = measured.record("localization", model_id)
        lean = again.record("localization", model_id)
        np.testing.assert_array_equal(lean["maps"], record["maps"][:10])
        np.testing.assert_array_equal(lean["iou"], record["iou"])
    assert maps_of_networks(again).maps.shape[:2] == (2, 10)
    with pytest.raises(NotInRecords, match="lack localization of 2 of 2 models"):
        scored(work, data, table, MeasureSettings(cam_threshold=0.3))


def test_records_of_other_images_are_left_alone(published, tmp_path):
    study = published[0]
    write_json(tmp_path / "records/data.json", {"fingerprint": "0123456789abcdef"})
    with pytest.raises(ValueError, match="records of the images 0123456789abcdef"):
        records.publish(study.work, tmp_path / "records")
    assert len(list((tmp_path / "records").rglob("*.*"))) == 1


def test_maps_are_cut_at_another_threshold_than_was_published(published, tmp_path):
    """From maps of 8 bits; what no threshold decides is as it was recorded."""
    study, measured, _, _, done = published
    work, _ = copied(done, tmp_path)
    data = images.images_of_study(work)
    table = catalogue.read_catalogue(work)
    other = MeasureSettings(cam_threshold=0.3)
    from_maps, _ = scored(work, data, table, other)
    with_networks, _ = scored(study.work, study.data, table, other)
    values = [
        one.scores().set_index(["model_id", "measure", "variant"])["value"]
        for one in (from_maps, with_networks, measured)
    ]
    np.testing.assert_allclose(values[0], values[1], atol=5e-3)
    assert not (work / "scores").exists()  # what records give is computed each time
    free = values[0].index.get_level_values("measure").isin(measuring.THRESHOLD_FREE)
    pd.testing.assert_series_equal(values[0][free], values[2][free])
    iou = values[0].index.get_level_values("measure") == "iou"
    assert (values[0][iou] != values[2][iou]).all()
    of_maps, recorded = (one.of_images("localization") for one in (from_maps, measured))
    np.testing.assert_array_equal(of_maps["pointing_game"], recorded["pointing_game"])


def test_a_run_that_was_lost_before_it_was_scored_is_trained_again(published, tmp_path):
    study, *_, done = published
    rows = study.table.drop_duplicates("run_id").to_dict("records")
    first, *others = map(config_from, rows)
    work, folder = copied(done, tmp_path)
    for path in folder.glob(f"scores/{first!s}@*.parquet"):
        path.unlink()
    assert catalogue.missing(work, [first, *others]) == [first]
    # Its new result takes the place of the one that nothing rests on.
    path = folder / "runs" / str(first) / "result.json"
    write_json(path, read_json(path) | {"device": "a machine that is gone"})
    records.publish(study.work, folder)
    published_result = done / "runs" / str(first) / "result.json"
    assert read_json(path) == read_json(published_result)

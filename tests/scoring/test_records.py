"""Records: what is published of a study is what readers without weights and pixels need."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from helpers.data import images
from helpers.files import read_json, records_of, write_json
from helpers.measures.evidence import MeasureSettings
from helpers.scoring import (
    classification,
    measuring,
    models,
    published_maps,
    records,
    scoring_set,
)
from helpers.scoring.store import NotInRecords, Store
from helpers.training import catalogue
from helpers.training.config import config_from, run_id


def scored(work, data, table):
    """Localization and logits of all models, from wherever they can be had."""
    store = Store(work, lambda: data, jobs=1)
    chosen = models.models_of(work, table, data)
    scored_on = scoring_set.scoring_set(table, data, 20)
    kept = measuring.score(
        store, chosen, ["localization"], MeasureSettings(), scored_on
    )
    logits = classification.test_logits(store, chosen, data)
    return kept, classification.correct(logits, data.test.labels)


@pytest.fixture(scope="module")
def published(study, tmp_path_factory):
    """A study's folder of work, its values, and a clone that has its records alone."""
    kept, right = scored(study.work, study.data, study.table)
    clone = tmp_path_factory.mktemp("clone") / "work" / study.work.name
    done = records.publish(study.work, records_of(clone))
    manifest = json.loads((done.folder / "data.json").read_text())
    gone = {"data_source": "tiny_imagenet", "data_path": "nowhere/images.zip"}
    manifest["parameters"] |= gone
    write_json(done.folder / "data.json", manifest)
    return study, kept, right, clone, done


def test_a_clone_reads_of_the_records_what_was_computed_elsewhere(published):
    study, kept, right, clone, done = published
    assert done.refused == []
    assert not list(done.folder.rglob("*.safetensors"))
    data = images.images_of_study(clone)
    assert not data.train.has_pixels and study.data.train.has_pixels
    assert data.fingerprint == study.data.fingerprint
    table = catalogue.read_catalogue(clone)
    pd.testing.assert_frame_equal(table, study.table)
    again, right_again = scored(clone, data, table)
    pd.testing.assert_frame_equal(
        measuring.score_table(again), measuring.score_table(kept)
    )
    np.testing.assert_array_equal(right_again, right)
    arrays = kept.stacked("localization")
    published_arrays = again.stacked("localization")
    assert set(published_arrays) == set(arrays) - set(records.LARGE)
    for name, values in published_arrays.items():
        np.testing.assert_array_equal(values, arrays[name])
    ids = table["run_id"].unique()
    pd.testing.assert_frame_equal(
        catalogue.histories(clone, ids), catalogue.histories(study.work, ids)
    )


def test_what_is_published_again_writes_nothing_and_the_same_bytes(published, tmp_path):
    study, _, _, _, done = published
    again = records.publish(study.work, done.folder)
    assert [path.name for path in again.written] == ["data.json"]  # changed above
    elsewhere = records.publish(study.work, tmp_path / "records")
    for path in elsewhere.written:
        place = done.folder / path.relative_to(tmp_path / "records")
        assert path.read_bytes() == place.read_bytes(), path
    assert elsewhere.runs == again.runs == set(study.table["run_id"])


def test_of_many_images_the_first_have_maps_and_all_have_values(
    published, tmp_path, monkeypatch
):
    """Of which no map is cut anew: means of the first images are not those of all."""
    study, kept, *_, done = published
    monkeypatch.setattr(records, "IMAGES_WITH_MAPS", 10)
    work, folder = copied(done, tmp_path)
    shutil.rmtree(folder / "kept")
    records.publish(study.work, folder)
    table = catalogue.read_catalogue(work)
    data = images.images_of_study(work)
    again, _ = scored(work, data, table)
    pd.testing.assert_frame_equal(
        measuring.score_table(again), measuring.score_table(kept)
    )
    for model_id, record in kept.records("localization"):
        lean = again.record("localization", model_id)
        np.testing.assert_array_equal(lean["maps"], record["maps"][:10])
        np.testing.assert_array_equal(lean["iou"], record["iou"])
    scored_on = scoring_set.scoring_set(table, data, 20)
    content = published_maps.maps_of_models(again, table, data, scored_on)
    assert content["boxes"].shape[0] == content["maps"].shape[1] == 10
    other = MeasureSettings(cam_threshold=0.3)
    store = Store(work, lambda: data, jobs=1)
    chosen = models.models_of(work, table, data)
    with pytest.raises(NotInRecords, match="lack localization of 2 of 2 models"):
        measuring.score(store, chosen, ["localization"], other, scored_on)


def test_records_of_other_images_are_left_alone(published, tmp_path):
    study = published[0]
    write_json(tmp_path / "records/data.json", {"fingerprint": "0123456789abcdef"})
    with pytest.raises(ValueError, match="records of the images 0123456789abcdef"):
        records.publish(study.work, tmp_path / "records")
    assert len(list((tmp_path / "records").rglob("*.*"))) == 1


def test_logits_become_a_class_and_its_probability():
    logits = np.array([[0, np.log(3), np.log(3)], [800, 0, 0], [np.nan, 0, 0]])
    found = records.predictions_of_logits(logits.astype(np.float32))
    np.testing.assert_array_equal(found["predicted"][:2], [1, 0])
    np.testing.assert_allclose(found["confidence"], [3 / 7, 1, np.nan], rtol=1e-3)
    assert records.predictions_of_logits(np.eye(300))["predicted"].tolist() == list(
        range(300)
    )


def test_a_clone_cuts_maps_at_another_threshold_than_was_published(published):
    """From maps of 8 bits, in which a mean IoU is nearly that of 16 bits."""
    study, _, _, clone, _ = published
    data = images.images_of_study(clone)
    table = catalogue.read_catalogue(clone)
    settings = MeasureSettings(cam_threshold=0.3)
    values = []
    for work in (study.work, clone):
        store = Store(work, lambda: data, jobs=1)
        chosen = models.models_of(work, table, data)
        scored_on = scoring_set.scoring_set(table, data, 20)
        kept = measuring.score(store, chosen, ["localization"], settings, scored_on)
        scores = measuring.score_table(kept)
        assert (scores["reason"] == "").all()
        values.append(scores.query("measure == 'iou'")["value"].to_numpy())
    np.testing.assert_allclose(*values, atol=2e-3)


def runs_of(study):
    rows = study.table.drop_duplicates("run_id").to_dict("records")
    return [config_from(row) for row in rows]


def copied(done, tmp_path):
    """A clone of one's own: its folder of work, and its records."""
    folder = tmp_path / "reports/study/records"
    shutil.copytree(done.folder, folder)
    return tmp_path / "work/study", folder


def test_a_run_with_records_counts_as_trained_and_one_without_is_left_to_train(
    published, tmp_path
):
    study, *_, done = published
    runs = runs_of(study)
    work, folder = copied(done, tmp_path)
    assert catalogue.missing(work, runs) == []
    (folder / "runs" / run_id(runs[1]) / "result.json").unlink()
    assert catalogue.missing(work, runs) == [runs[1]]
    assert set(catalogue.read_catalogue(work, runs)["run_id"]) == {
        run_id(run) for run in (runs[0], runs[2])
    }
    # Copied from another machine, it is complete again.
    source = done.folder / "runs" / run_id(runs[1])
    shutil.copytree(source, folder / "runs" / source.name, dirs_exist_ok=True)
    assert catalogue.missing(work, runs) == []


def test_a_run_that_was_lost_before_it_was_scored_is_trained_again(published, tmp_path):
    study, *_, done = published
    first, *others = runs_of(study)
    work, folder = copied(done, tmp_path)
    for path in folder.glob(f"kept/*/{run_id(first)}@*.npz"):
        path.unlink()
    assert catalogue.missing(work, [first, *others]) == [first]
    # Its new result takes the place of the one that nothing rests on.
    path = folder / "runs" / run_id(first) / "result.json"
    write_json(path, read_json(path) | {"device": "a machine that is gone"})
    again = records.publish(study.work, folder)
    assert again.refused == []
    published_result = done.folder / "runs" / run_id(first) / "result.json"
    assert read_json(path) == read_json(published_result)
    assert catalogue.missing(work, [first, *others]) == []


def test_what_records_lack_and_would_need_weights_is_said_in_a_sentence(
    published, tmp_path
):
    study, *_, done = published
    work, folder = copied(done, tmp_path)
    data = images.without_pixels(folder / "images.npz")
    chosen = models.models_of(work, study.table, data)
    scored_on = scoring_set.scoring_set(study.table, data, 20)
    told = "records of study lack localization of 2 of 2 models .cam_method is 'grad_cam' there"
    with pytest.raises(NotInRecords, match=told):
        measuring.score(
            Store(work, lambda: data, jobs=1),
            chosen,
            ["localization"],
            MeasureSettings(cam_method="layer_cam"),
            scored_on,
        )
    shutil.rmtree(next(folder.glob("kept/test_logits-*")))
    kept = classification.test_logits(Store(work, lambda: data, jobs=1), chosen, data)
    assert kept.left_out.startswith("The records of study lack test_logits of 2 of 2")
    assert classification.values_of_test_images(kept, data.test.labels) == {}


def test_a_damaged_record_is_named_and_one_of_other_weights_too(published, tmp_path):
    study, *_, done = published
    work, folder = copied(done, tmp_path)
    data = images.without_pixels(folder / "images.npz")
    chosen = models.models_of(work, study.table, data)
    store = Store(work, lambda: data, jobs=1)
    path = sorted(folder.glob("kept/test_logits-*/*.npz"))[0]
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.warns(UserWarning, match="is damaged .* take it from the repository"):
        kept = classification.test_logits(store, chosen, data)
        classification.correct(kept, data.test.labels)
    shutil.copy(done.folder / path.relative_to(folder), path)
    result = folder / "runs" / chosen[0].facts["run_id"] / "result.json"
    other = read_json(result)
    other["snapshots"][0]["digest"] = "0" * 16
    write_json(result, other)
    with pytest.warns(UserWarning, match="is of other weights .*0000000000000000"):
        kept = classification.test_logits(
            store, models.models_of(work, study.table, data), data
        )
        assert kept.complete == [chosen[1].model_id]


def test_where_images_are_and_weights_are_not_training_again_is_proposed(
    published, tmp_path
):
    study, *_, done = published
    work, _ = copied(done, tmp_path)
    store = Store(work, lambda: study.data, jobs=1)
    chosen = models.models_of(work, study.table, study.data)
    assert study.data.train.has_pixels and not any(model.at_hand for model in chosen)
    words = (
        "The images are here and the weights are not. To train the networks again, "
        f"delete work/{work.name} and reports/{work.name}/records"
    )
    with pytest.raises(NotInRecords, match=words):
        measuring.score(
            store,
            chosen,
            ["localization"],
            MeasureSettings(cam_method="layer_cam"),
            scoring_set.scoring_set(study.table, study.data, 20),
        )


def test_a_run_that_two_machines_trained_is_refused(published, tmp_path):
    study, *_, done = published
    _, folder = copied(done, tmp_path)
    result = sorted(folder.glob("runs/*/result.json"))[0]
    write_json(result, read_json(result) | {"device": "a GPU"})
    again = records.publish(study.work, folder)
    assert len(again.refused) == 1
    assert (
        "trained on a GPU" in again.refused[0]
        and result.parent.name in again.refused[0]
    )


def test_a_result_with_a_changed_digit_costs_its_own_run_alone(published, tmp_path):
    study, *_, done = published
    work, folder = copied(done, tmp_path)
    first, *others = sorted(folder.glob("runs/*/result.json"))
    changed = first.read_text().replace('"train_accuracy": ', '"train_accuracy": 1')
    first.write_text(changed)
    again = records.publish(study.work, folder)
    assert again.runs == {path.parent.name for path in others}
    assert len(again.refused) == 1
    assert f"{first} was changed or is damaged" in again.refused[0]
    with pytest.raises(ValueError, match=r"result.json was changed or is damaged"):
        catalogue.read_catalogue(work)


def test_metrics_of_published_models_are_those_of_their_logits(published):
    study, _, _, clone, _ = published
    chosen = models.models_of(study.work, study.table, study.data)
    tables = []
    for work in (study.work, clone):
        store = Store(work, lambda: study.data, jobs=1)
        kept = classification.test_logits(store, chosen, study.data)
        tables.append(classification.metrics_of_models(kept, study.data.test.labels))
    pd.testing.assert_frame_equal(*tables)
    assert "logits" not in kept.record("test_logits", chosen[0].model_id)

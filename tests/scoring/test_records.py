"""Records: what is published of a study is what readers without weights and pixels need."""

import json

import numpy as np
import pandas as pd
import pytest

from helpers.data import images
from helpers.files import records_of, write_json
from helpers.measures.evidence import MeasureSettings
from helpers.scoring import classification, measuring, models, records, scoring_set
from helpers.scoring.store import Store
from helpers.training import catalogue


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
    data = images.of_study(clone)
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


def test_records_of_other_images_are_left_alone(published, tmp_path):
    study = published[0]
    write_json(tmp_path / "records/data.json", {"fingerprint": "0123456789abcdef"})
    with pytest.raises(ValueError, match="records of the images 0123456789abcdef"):
        records.publish(study.work, tmp_path / "records")
    assert len(list((tmp_path / "records").rglob("*.*"))) == 1


def test_logits_become_a_class_and_its_probability():
    logits = np.array([[0, np.log(3), np.log(3)], [800, 0, 0], [np.nan, 0, 0]])
    found = records.of_logits(logits.astype(np.float32))
    np.testing.assert_array_equal(found["predicted"][:2], [1, 0])
    np.testing.assert_allclose(found["confidence"], [3 / 7, 1, np.nan], rtol=1e-3)
    assert records.of_logits(np.eye(300))["predicted"].tolist() == list(range(300))


def test_a_clone_cuts_maps_at_another_threshold_than_was_published(published):
    """From maps of 8 bits, in which a mean IoU is nearly that of 16 bits."""
    study, _, _, clone, _ = published
    data = images.of_study(clone)
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

"""Logits on targets: one pass per model and target, the truth beside them, and measures recomputed from what is kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from helpers.data import shifts
from helpers.data.images import load_study_data
from helpers.measures import registry
from helpers.measures.evidence import MeasureSettings
from helpers.scoring import classification, targets, worth
from helpers.statistics.labelling import labelled_images_that_equal
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import images_of_run, train_run
from tests.conftest import TINY_SCENES

SHIFTS = ["rotation_15"]
SETTINGS = MeasureSettings(seed=2)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = load_study_data(**TINY_SCENES, cache_dir=work / "cache")
    run = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=1)
    runs = [run, replace(run, repeat=1), replace(run, rule3_split="test", learning_rate=0.02)]
    for each in runs:
        train_run(each, data, catalogue.run_folder(work, each))
    table = catalogue.read_catalogue(work)
    with pytest.MonkeyPatch.context() as patch:
        seen = []
        plain = targets.target_logits
        patch.setattr(targets, "target_logits", lambda network, images, device: seen.append(len(images)) or plain(network, images, device))
        assert list(targets.keep_target_logits(work, table, data, SHIFTS, 2, "cpu")) == table["model_id"].tolist()
        once = sum(seen)
        assert list(targets.keep_turned_logits(work, table, data, SHIFTS, 2, "cpu")) == table["model_id"].tolist()
    return work, data, table, (once, sum(seen))


def test_every_target_is_passed_once_and_nothing_is_computed_again(study, monkeypatch):
    work, data, table, (once, with_turned) = study
    tests, held = len(data.test), sum(len(targets.holdout_of(data, model.config) or []) for model in catalogue.models_of(table))
    assert once == len(table) * tests + held
    assert with_turned - once == len(table) * 2 * 3 * tests
    monkeypatch.setattr(targets, "load_model", lambda *given: pytest.fail("loaded again"))
    for keep in (targets.keep_target_logits, targets.keep_turned_logits):
        assert len(list(keep(work, table, data, SHIFTS, 2, "cpu"))) == len(table)
    assert len(list((work / "targets" / "rotation_15").glob("*.safetensors"))) == 1


def test_kept_logits_are_those_of_the_shifted_images_and_of_the_images_held_out(study):
    work, data, table, _ = study
    row = table[table["rule3_split"] == "holdout"].iloc[0]
    model = catalogue.models_of(table[table["rule3_split"] == "holdout"])[0]
    network = catalogue.load_model(work, model, len(data.classes))
    found = targets._read(work, "rotation_15-2", row["model_id"])["logits"]
    images = shifts.turned(data.test.images, 15)
    with torch.no_grad():
        expected = network(classification._prepared(images, "cpu"))
    torch.testing.assert_close(found, expected.half(), rtol=2e-3, atol=2e-3)
    turned = targets._read(work, "turned-rotation_15-2", row["model_id"])["logits"]
    with torch.no_grad():
        upside_down = network(classification._prepared(images.flip((2, 3)), "cpu"))
    order = np.random.default_rng(2).permutation(len(images))
    torch.testing.assert_close(turned[[0, 2]], torch.stack([found[order], upside_down[order].half()]), rtol=2e-3, atol=2e-3)
    fitted, held_out = images_of_run(data, model.config)
    assert targets._read(work, "holdout", row["model_id"])["labels"].tolist() == held_out.labels.tolist()
    assert not {*fitted.names} & {*held_out.names}
    truth = targets.with_target_accuracies(work, table, data, SHIFTS, 2).set_index("model_id")
    share = (found.argmax(1) == data.test.labels).double().mean()
    assert truth.loc[row["model_id"], "test_accuracy@rotation_15"] == float(share)


@pytest.mark.parametrize("shift", ["", *SHIFTS])
def test_measures_follow_from_kept_logits_and_say_why_where_there_is_no_holdout_or_repeat(study, shift):
    work, _, table, _ = study
    scores = targets.score_on_target(work, table, shift, SETTINGS)
    wide = scores[scores["variant"].isin(["", "as given"])].pivot(index="model_id", columns="measure", values="value")
    for _, row in table.iterrows():
        name = row["model_id"]
        p = softmax(targets._logits_on(work, shift, 2, name).double().numpy(), 1)
        assert wide.loc[name, "average_confidence"] == pytest.approx(p.max(1).mean(), abs=1e-9)
        mates = table[(table["cell"] == row["cell"]) & (table["snapshot"] == row["snapshot"]) & (table["model_id"] != name)]
        if len(mates):
            other = targets._logits_on(work, shift, 2, mates["model_id"].iloc[0]).argmax(1).numpy()
            assert wide.loc[name, "agreement_of_repeats"] == pytest.approx((p.argmax(1) == other).mean())
        else:
            assert np.isnan(wide.loc[name, "agreement_of_repeats"])
        assert np.isfinite(wide.loc[name, "thresholded_confidence"]) == (row["rule3_split"] == "holdout")
    assert wide["agreement_of_repeats"].notna().any()
    reasons = scores.loc[scores["value"].isna() & (scores["measure"] == "optimal_transport"), "reason"]
    assert len(reasons)
    assert reasons.str.startswith("there are no logits of holdout images").all()
    again = targets.score_on_target(work, table, shift, SETTINGS)
    assert len(again) == len(scores)


def test_every_target_has_a_table_of_all_measures(study):
    work, data, table, _ = study
    models = targets.with_target_accuracies(work, table, data, SHIFTS, 2).assign(training_accuracy=table["train_accuracy"])
    given = {"costs": {"training_accuracy": 0.5}, "axes": ["learning_rate"], "resamples": 10}
    scored = targets.scores_on_targets(work, models, SHIFTS, SETTINGS)
    assert scored.groupby("target", sort=False)["model_id"].apply(list).tolist() == [table["model_id"].tolist()] * 2
    found = worth.worth_on_targets(models, scored, data, SHIFTS, **given).set_index(["target", "measure"])
    assert found.index.unique("target").tolist() == ["test images", "rotation_15"]
    own = found.loc["rotation_15"]
    assert own.loc["training_accuracy", ["source", "passes"]].tolist() == [worth.TRAINING, 1.0]
    assert {"optimal_transport (calibrated)", "matrix_norm_of_logits", "holdout_accuracy"} <= {*own.index}
    confidence = targets.score_on_target(work, table, SHIFTS[0], SETTINGS).query(
        "measure == 'average_confidence' and variant == 'as given'"
    )
    truth = models.set_index("model_id")["test_accuracy@rotation_15"]
    expected = 100 * (confidence.set_index("model_id")["value"] - truth).abs().mean()
    assert own.loc["average_confidence", "error"] == pytest.approx(expected)
    assert own.loc["average_confidence", "labelled_images"] == labelled_images_that_equal(expected / 100, truth)


@pytest.mark.parametrize("shift", ["", *SHIFTS])
def test_measures_are_the_means_of_values_of_single_images(study, shift):
    work, data, table, _ = study
    repeated = table[table["rule3_split"] == "holdout"]
    values = targets.target_image_values(work, repeated, shift, SETTINGS)
    assert len(values) == 11
    known = registry.columns().merge(targets.score_on_target(work, repeated, shift, SETTINGS), on=["measure", "variant"])
    wide = known.pivot(index="model_id", columns="column", values="value").loc[repeated["model_id"]]
    for name, found in values.items():
        assert found.shape == (len(repeated), len(data.test))
        np.testing.assert_allclose(found.mean(1, dtype=float), wide[name], atol=1e-6, err_msg=name)
    every = targets.target_image_values(work, table, shift, SETTINGS)
    assert {*every} == {"average_confidence", "target_entropy", "target_energy"}
    assert targets.target_image_values(work, table[:0], shift, SETTINGS) == {}

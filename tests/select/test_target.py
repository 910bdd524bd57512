"""Accuracy predicted on images without labels: on a study whose accuracies are known functions of its measures."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

from helpers.select import images, report, target
from helpers.select.calibration import Calibration
from helpers.select.scores import Met

NAMES = ["good.pt", "fair.pt", "bad.pt"]


def study(cells=12, seed=0, targets=("test images", "blur_0.7", "noise_0.7")):
    """Two models a cell, one of each architecture; confidence tells the accuracy but for a little, entropy tells nothing."""
    random, rows = np.random.default_rng(seed), []
    for model in range(2 * cells):
        for place, name in enumerate(targets):
            accuracy = np.clip(0.8 - 0.2 * place + random.normal(0, 0.06), 0, 1)
            told = {"average_confidence": 0.5 + 0.4 * accuracy + random.normal(0, 0.005), "target_entropy": random.normal()}
            facts = {"model_id": f"m{model}", "cell": f"c{model // 2}", "architecture": f"resnet{18 + 16 * (model % 2)}", "target": name}
            rows.append(facts | {"test_accuracy": accuracy, "gap": 1 - accuracy, "train_accuracy": 1.0} | told)
    return Calibration("demo", pd.DataFrame(rows), ("average_confidence", "target_entropy"), 6, {})


def met(accuracies=(0.8, 0.6, 0.5), labelled=None):
    """What checkpoints say whose confidence follows the study's line; labelled: (accuracy predicted, accuracy true) of each."""
    told = pd.DataFrame({"average_confidence": 0.5 + 0.4 * np.array(accuracies), "target_entropy": 0.0}, index=NAMES)
    if labelled is None:
        return Met(told, None, None)
    predicted, true = np.array(labelled).T
    there = told.assign(average_confidence=0.5 + 0.4 * predicted)
    return Met(told, there, pd.DataFrame(np.arange(50) < np.round(50 * true)[:, None], index=NAMES))


def own_images(count=40):
    return images.OwnImages(np.zeros((count, 3, 8, 8)), None, ("",) * count, (), None, "", None, count, (), pd.DataFrame())


def test_the_method_of_the_study_predicts_the_accuracy_with_its_interval():
    found = target.predict_on_target(study(), met())
    assert found.method == "average_confidence"
    assert found.table["checkpoint"].tolist() == NAMES
    assert found.table["rank"].tolist() == [1, 2, 3]
    models = study().models
    line = LinearRegression().fit(models[["average_confidence"]], models["test_accuracy"])
    # The penalty of the line costs some 3 % of its slope.
    np.testing.assert_allclose(
        found.table["predicted_accuracy"], line.predict(found.table[["value"]].set_axis(line.feature_names_in_, axis=1)), atol=0.02
    )
    assert (found.table["accuracy_low"] < found.table["predicted_accuracy"]).all()
    assert (found.table["predicted_accuracy"] < found.table["accuracy_high"]).all()
    assert not found.table["beyond"].any()
    assert found.trial.groups == 12
    assert 0.6 < found.trial.coverage <= 1
    assert found.transfer.groups == 3
    assert found.labels["worth_more"].tolist() == [False, True]
    truth = pd.Series([0.8, 0.6, 0.1], index=NAMES)
    text = report.say_target(found, own_images(), 0.8, {}, truth)
    assert text.startswith("On the 40 images of the target, first of 3 checkpoints: `good.pt`, predicted accuracy **")
    assert "2 of 3 accuracies lie in their interval" in text
    assert "with a whole target left out" in text
    assert len(report.target_figure(found, 0.8, {}, truth).axes) == 1


def test_a_shift_beyond_the_study_is_said_first_and_takes_the_number():
    found = target.predict_on_target(study(), met((0.8, 0.6, -0.9)))
    assert found.table["beyond"].tolist() == [False, False, True]
    assert found.table["predicted_accuracy"].notna().tolist() == [True, True, False]
    assert found.table["rank"].tolist() == [1, 2, 3]
    assert "lies beyond the study's range; order alone" in found.table["note"].iloc[2]
    text = report.say_target(found, own_images(), 0.8, {})
    assert text.startswith("**The target is shifted beyond what the study has seen** for 1 of 3 checkpoints. There the order")
    assert "no number of points is given for 1 of 3 checkpoints; give labelled images" in text


def test_another_case_is_an_order_and_boxes_are_no_other_case():
    found = target.predict_on_target(study(), met(), differing=("image size (pixels)", "boxes"))
    assert found.differing == ("image size (pixels)",)
    assert found.table["rank"].tolist() == [1, 2, 3]
    assert found.table[["predicted_accuracy", "accuracy_low", "accuracy_high"]].isna().all(axis=None)
    assert report.say_target(found, own_images(), 0.8, {}).startswith("**Another case than the study's**: image size (pixels). There the")
    assert report.target_figure(found, 0.8, {}).axes[0].get_xlabel().startswith("average_confidence")
    assert target.predict_on_target(study(), met(), differing=("boxes", "labels")).table["predicted_accuracy"].notna().all()


def test_labelled_images_move_the_predictions_on_the_target_by_what_they_show():
    said = met(labelled=[(0.9, 0.8), (0.8, 0.7), (0.7, 0.6)])
    plain = target.predict_on_target(study(), met())
    found = target.predict_on_target(study(), said, differing=("image size (pixels)",))
    shift = found.moved.shift
    assert shift == pytest.approx(-0.1, abs=0.02)
    np.testing.assert_allclose(found.table["predicted_accuracy"], plain.table["predicted_accuracy"] + shift)
    assert (found.table["accuracy_high"] - found.table["accuracy_low"] > plain.table["accuracy_high"] - plain.table["accuracy_low"]).all()
    assert found.table["note"].str.endswith("moved together with all others by what the labelled images show").all()
    assert f"move every predicted accuracy by {100 * shift:+.1f} points" in report.say_target(found, own_images(), 0.8, {})


def test_what_cannot_be_predicted_has_words_and_no_numbers():
    bare = met()._replace(on_target=met().on_target.assign(average_confidence=np.nan, target_entropy=np.nan))
    for found in (target.predict_on_target(study(), bare), target.predict_on_target(study(cells=3), met())):
        assert found.method == ""
        assert found.table["predicted_accuracy"].isna().all()
        assert found.table["note"].str.startswith("not predicted").all()
        assert "nothing is predicted" in report.say_target(found, own_images(), 0.8, {})
        assert report.target_figure(found, 0.8, {}).axes[0].texts
        assert len(report.say_labels(found.labels)) > 20
    alone = met()._replace(on_target=met().on_target[:1])
    found = target.predict_on_target(study(targets=("test images",)), alone)
    assert np.isnan(found.table["rank"].iloc[0])
    assert np.isnan(found.transfer.coverage)
    assert "one target only" in report.say_target(found, own_images(), 0.8, {})


def test_a_checkpoint_at_chance_is_not_predicted_and_moves_nothing():
    said = met(labelled=[(0.9, 0.8), (0.8, 0.7), (0.7, 0.02)])
    reason = {"bad.pt": "training accuracy 1% is that of chance"}
    found = target.predict_on_target(study(), said, unfit=reason)
    assert found.moved.shift == pytest.approx(-0.1, abs=0.02)
    assert found.table["checkpoint"].tolist() == NAMES
    last = found.table.iloc[2]
    assert last[["rank", "predicted_accuracy", "value"]].isna().all()
    assert last["note"] == "not predicted: training accuracy 1% is that of chance"
    text = report.say_target(found, own_images(), 0.8, {})
    assert text.startswith("**Not predicted on the target: 1 checkpoint** (`not predicted: training accuracy 1%")
    assert "first of 2 checkpoints" in text
    assert len(report.target_figure(found, 0.8, {}).axes[0].get_yticklabels()) == 2
    none = target.predict_on_target(study(), said, unfit=dict.fromkeys(NAMES, "at chance"))
    assert none.table["note"].eq("not predicted: at chance").all()
    assert report.say_target(none, own_images(), 0.8, {}).startswith("Of the 40 images of the target nothing is predicted: `good.pt`")
    assert report.target_figure(none, 0.8, {}).axes[0].texts

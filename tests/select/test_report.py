import re

import numpy as np
import pandas as pd
import pytest

from helpers.select import calibration, prediction, ranking, report, truth
from helpers.select.calibration import Calibration


def study(models=24, seed=0):
    generator = np.random.default_rng(seed)
    table = pd.DataFrame({"model_id": [f"m{i}" for i in range(models)], "cell": [f"c{i // 2}" for i in range(models)]})
    table["architecture"] = np.where(np.arange(models) % 2, "resnet18", "resnet34")
    table["iou"], table["train_accuracy"] = generator.uniform(0.2, 0.8, models), 0.95
    table["gap"] = 0.5 - 0.4 * table["iou"] + 0.02 * generator.normal(size=models)
    return Calibration("demo", table, ("iou",), 6, {"image_size": 32})


def own(ious, train=0.95):
    names = [f"<b>{i}</b>" for i in range(len(ious))]
    facts = pd.DataFrame({"checkpoint": names, "architecture": "resnet18", "outputs": 6, "fault": ""})
    return pd.DataFrame({"iou": ious, "training_accuracy": train}, index=names), facts


def every_sentence(verdict):
    differences = pd.DataFrame([("boxes", "annotated", "made", False)], columns=["what", "study", "own", "same"])
    yield report.say_first(verdict, 0.8)
    yield report.say_calibration(verdict, "demo", {"iou": "IoU"})
    yield report.say_distance(differences, verdict.measured, verdict.used)
    yield truth.say_truth(truth.truth_table(verdict.ranking, pd.Series(dtype=float), calibration="demo", level=0.8))
    scores = pd.DataFrame(columns=["checkpoint", "measure", "variant", "value", "seconds", "reason"])
    yield report.checkpoints_scored(verdict.ranking.assign(fault=""), scores)


def test_the_checkpoint_that_the_study_promises_most_is_first():
    verdict = ranking.rank(study(), *own([0.3, 0.75, 0.5]), draws=200)
    assert verdict.ranking["checkpoint"].tolist() == ["<b>1</b>", "<b>2</b>", "<b>0</b>"]
    assert verdict.ranking["rank"].tolist() == [1, 2, 3]
    assert verdict.chosen == ("iou",)
    assert verdict.slopes[0] < 0
    np.testing.assert_allclose(verdict.ranking["predicted_gap"], 0.5 - 0.4 * np.array([0.75, 0.5, 0.3]), atol=0.03)
    assert verdict.ranking["probability_best"].iloc[0] > 0.9
    text = report.say_first(verdict, 0.8)
    assert "First of 3 checkpoints: `<b>1</b>`" in text
    assert "hardly help" not in text


@pytest.mark.parametrize(("share", "words"), [(0.2, "that of chance .17% with 6 classes"), (0.4, "below that of the study's models .95%")])
def test_a_checkpoint_that_does_not_fit_is_not_judged_and_that_is_said_first(share, words):
    verdict = ranking.rank(study(), *own([0.3, 0.5, 0.79], train=[0.95, 0.95, share]), images=200, draws=50)
    assert verdict.ranking["verdict"].tolist() == ["ranked", "ranked", "not judged"]
    last = verdict.ranking.iloc[-1]
    assert last["checkpoint"] == "<b>2</b>"
    assert last[["rank", "predicted_gap", "gap_low", "gap_high", "probability_best"]].isna().all()
    assert re.search(words, last["note"])
    assert report.say_first(verdict, 0.8).startswith("**Not judged: 1 checkpoint** (`<b>2</b>`")
    alone = ranking.rank(study(), *own([0.3, 0.79], train=share), images=200, draws=50)
    text = report.say_first(alone, 0.8)
    assert text.startswith("**Judged: none of 2 checkpoints**")
    assert text.endswith(".")
    assert " points" not in text
    assert re.search(words, text)


def test_a_sample_of_few_images_is_given_its_own_error():
    fits = ranking.rank(study(), *own([0.3, 0.5], train=0.88), images=16, draws=20).ranking
    misses = ranking.rank(study(), *own([0.3, 0.5], train=0.88), images=2000, draws=20).ranking
    assert fits["verdict"].eq("ranked").all()
    assert misses["verdict"].eq("not judged").all()


def test_one_checkpoint_is_judged_and_has_no_rank():
    verdict = ranking.rank(study(), *own([0.5]), draws=20)
    row = verdict.ranking.iloc[0]
    assert row["verdict"] == "judged"
    assert np.isfinite(row["predicted_gap"])
    assert row[["rank", "probability_best", "rank_low"]].isna().all()
    assert report.say_first(verdict, 0.8).startswith("Judged: `<b>0</b>`, predicted gap")
    report.checkpoints_figure(verdict.ranking, 0.8)


def test_copies_of_one_network_are_not_ranked():
    verdict = ranking.rank(study(), *own([0.5, 0.5, 0.5]), draws=20)
    assert verdict.ranking["verdict"].eq("judged").all()
    assert verdict.ranking["probability_best"].isna().all()
    text = report.say_first(verdict, 0.8)
    assert text.startswith("Judged, not ranked: 3 checkpoints with one prediction for all")
    assert "First" not in text


def test_outside_the_range_nothing_is_predicted():
    verdict = ranking.rank(study(), *own([3.0, 2.0]), draws=50)
    assert (verdict.ranking["measures_outside"] == 1).all()
    assert verdict.ranking["predicted_gap"].isna().all()
    assert "lie outside the range of the study's models" in report.say_first(verdict, 0.8)
    assert "extrapolation" in list(every_sentence(verdict))[2]
    some = ranking.rank(study(), *own([0.3, 0.5, 2.0]), draws=50)
    assert some.ranking["verdict"].tolist() == ["ranked", "ranked", "not judged"]


def test_a_case_of_another_kind_has_an_order_and_no_number_of_points():
    usual, other = (ranking.rank(study(), *own([0.3, 0.5]), differing=kind, draws=400) for kind in ((), ("image size (pixels)",)))
    assert other.ranking["rank"].tolist() == usual.ranking["rank"].tolist() == [1, 2]
    assert other.ranking["verdict"].eq("ranked").all()
    numbers = ["predicted_gap", "gap_low", "gap_high", "predicted_test_accuracy"]
    assert usual.ranking[numbers].notna().all(axis=None)
    assert other.ranking[numbers].isna().all(axis=None)
    assert other.ranking["probability_best"].iloc[0] < usual.ranking["probability_best"].iloc[0]
    text = report.say_first(other, 0.8)
    assert text.startswith("**Outside what the study has seen**: image size")
    assert text.index("no number of points is given; give labelled images") < text.index("First of 2 checkpoints: `<b>1</b>`; it truly")
    assert not re.search(r"\d points|undefined|nan", text)
    assert other.ranking["note"].str.contains("order alone, no number of points: give labelled images").all()
    figure = report.checkpoints_figure(other.ranking, 0.8)
    assert [each.get_text() for each in figure.axes[0].texts] == ["order alone: no number of points\nwithout labelled images"]
    drawn = report.among_the_study(study().models, own([0.3, 0.5])[0], other.ranking, ["iou"], {})
    assert "without a predicted gap (n = 2)" in [each.get_text() for each in drawn.legends[0].texts]
    apart = calibration.differences(study(), architectures=["vgg11"], outputs=[6], image_size=32, boxes="annotated", images=9)
    assert calibration.differing(apart) == ("architectures",)
    alone = ranking.rank(study(), *own([0.5]), differing=("boxes",), draws=20).ranking.iloc[0]
    assert alone["verdict"] == "not judged"
    assert "not judged: give labelled images" in alone["note"]


def test_one_measure_outside_the_range_takes_the_number_from_its_checkpoint_alone():
    made = study()
    other = made.models["iou"] + np.random.default_rng(5).normal(0, 0.05, len(made.models))
    wide = Calibration("demo", made.models.assign(iou_b=other), ("iou", "iou_b"), 6, {})
    values, facts = own([0.3, 0.5, 0.6])
    verdict = ranking.rank(wide, values.assign(iou_b=[0.3, 0.5, 3.0]), facts, draws=50)
    assert verdict.chosen == ("iou", "iou_b")
    table = verdict.ranking.set_index("checkpoint")
    assert table["predicted_gap"].isna().to_dict() == {"<b>0</b>": False, "<b>1</b>": False, "<b>2</b>": True}
    assert table["rank"].notna().all()


def test_labelled_images_move_all_predictions_together_and_keep_the_order():
    ious, truth = [0.3, 0.75, 0.5], np.array([0.44, 0.66, 0.54])  # a study would predict some 0.57, 0.75 and 0.65
    right = pd.DataFrame(np.arange(50) < np.round(50 * truth)[:, None], index=["<b>0</b>", "<b>1</b>", "<b>2</b>"])
    other = {"differing": ("image size (pixels)",), "draws": 50}
    plain, verdict = (ranking.rank(study(), *own(ious), right=given, **other) for given in (None, right))
    table = verdict.ranking.set_index("checkpoint")
    assert table.index.tolist() == plain.ranking["checkpoint"].tolist()
    within = ranking.rank(study(), *own(ious), draws=50).ranking.set_index("checkpoint")
    shift = right.mean(axis=1).mean() - within["predicted_test_accuracy"].mean()
    np.testing.assert_allclose(table["predicted_gap"], within["predicted_gap"] - shift, atol=1e-12)
    assert verdict.moved.shift == pytest.approx(shift)
    gap = 0.95 - pd.Series(truth, index=right.index).loc[table.index]
    assert gap.between(table["gap_low"], table["gap_high"]).all()
    assert (table["gap_low"] < table["predicted_gap"]).all()
    text = report.say_first(verdict, 0.8)
    assert f"move every predicted accuracy by {100 * shift:+.1f} points" in text
    assert text.startswith("**Outside what the study has seen**")
    unknown = ranking.rank(study(), *own(ious, train=np.nan), right=right, **other)
    assert unknown.moved is None
    assert unknown.ranking["note"].str.contains("without a training accuracy no labelled images").all()
    assert unknown.ranking["rank"].notna().all()


def test_what_labels_would_do_stands_beside_what_the_study_errs():
    verdict = ranking.rank(study(), *own([0.3, 0.5]), draws=20)
    plain, row = verdict.labels.iloc[0], verdict.labels.iloc[1]
    x, gap, cells = (study().models[name].to_numpy() for name in ("iou", "gap", "cell"))
    residuals, _, _ = prediction.left_out_predictions(x[:, None], gap, cells, x[:0, None])
    assert row["error"] == pytest.approx(np.abs(residuals).mean())
    assert row["worth_more"] == (row["error"] < plain["error"])
    text = report.say_labels(verdict.labels)
    assert text.startswith(
        "When is a measure worth more than 50 labelled images? In the study, cells left out, measures of training images"
    )
    assert f"off by {100 * row['error']:.1f} points, as {row['labelled_images']:.0f} would, and so worth more than these" in text
    assert "too small" in report.say_labels(ranking.rank(study(2), *own([0.3, 0.5]), draws=20).labels)


def test_what_is_proven_stands_beside_what_is_achieved():
    text = report.say_calibration(ranking.rank(study(), *own([0.3, 0.5]), draws=20), "demo", {})
    assert re.search(r"[\d.]+ % of the true gaps fell in their 80% interval, .* \(proven is at least 60%, for one model a cell", text)


def test_every_file_is_told_of():
    values, facts = own([0.3, 0.5, 0.4, 0.4])
    facts["fault"] = ["", "", "passed over: a hidden file", "b.pt was refused"]
    verdict = ranking.rank(study(), values, facts, draws=20)
    assert verdict.ranking["verdict"].tolist() == ["ranked", "ranked", "passed over", "not scored"]
    assert verdict.ranking["note"].iloc[2] == "passed over: a hidden file"
    text = report.checkpoints_scored(facts, pd.DataFrame(columns=["checkpoint", "measure", "variant", "value", "seconds", "reason"]))
    assert text.startswith("**2 of 3 checkpoints** could be scored")
    assert "1 file passed over" in text
    assert report.say_first(verdict, 0.8).startswith("**Not scored: 1 checkpoint** (`<b>3</b>`: `not scored: b.pt was refused`)")


@pytest.mark.parametrize("models", [0, 1, 4])
def test_a_study_that_is_too_small_gives_words_and_no_numbers(models):
    verdict = ranking.rank(study(models), *own([0.3, 0.5]), draws=20)
    assert verdict.ranking["predicted_gap"].isna().all()
    for text in every_sentence(verdict):
        assert "nan" not in text.lower(), text
    report.checkpoints_figure(verdict.ranking, 0.8)
    report.among_the_study(study(models).models, own([0.3, 0.5])[0], verdict.ranking, verdict.chosen, {})


def test_without_a_common_measure_or_any_checkpoint_nothing_is_predicted():
    values, facts = own([np.nan, 0.4])
    verdict = ranking.rank(study(), values, facts, draws=20)
    assert verdict.used == ()
    assert verdict.ranking["rank"].isna().all()
    failed = ranking.rank(study(), values, facts.assign(fault="refused"), draws=20)
    assert failed.ranking["note"].eq("not scored: refused").all()
    for text in [*every_sentence(verdict), *every_sentence(failed)]:
        assert "nan" not in text.lower(), text


def test_useless_measures_are_said_to_be_useless():
    made = study()
    shuffled = made.models.assign(gap=np.random.default_rng(1).permutation(made.models["gap"]))
    verdict = ranking.rank(Calibration("demo", shuffled, ("iou",), 6, {}), *own([0.3, 0.5]), draws=20)
    assert "hardly help" in report.say_calibration(verdict, "demo", {})
    assert "hardly help" in report.say_first(verdict, 0.8)


@pytest.mark.parametrize("name", ["`a`", "a\nb", "\x1b[31m", "", "<script>"])
def test_a_name_is_one_code_span(name):
    text = report.code(name)
    assert text.startswith("`")
    assert text.endswith("`")
    assert text.count("`") == 2
    assert text.isprintable()
    assert "$" not in report.label("a$b$").replace(r"\$", "")
    assert len(report.label("x" * 300)) < 45

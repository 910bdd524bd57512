import re

import numpy as np
import pandas as pd
import pytest

from helpers.select import calibration, prediction, ranking, report
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
    yield report.say_truth(verdict.ranking, pd.Series(dtype=float))
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


def test_a_case_of_another_kind_is_said_before_the_number_and_is_less_sure():
    usual, other = (ranking.rank(study(), *own([0.3, 0.5]), differing=kind, draws=400) for kind in ((), ("image size (pixels)",)))
    assert other.ranking["predicted_gap"].equals(usual.ranking["predicted_gap"])
    assert (other.ranking["gap_low"] < usual.ranking["gap_low"]).all()
    assert (other.ranking["gap_high"] > usual.ranking["gap_high"]).all()
    assert other.ranking["probability_best"].iloc[0] < usual.ranking["probability_best"].iloc[0]
    text = report.say_first(other, 0.8)
    assert text.index("Outside what the study has seen**: image size") < text.index("predicted gap")
    apart = calibration.differences(study(), architectures=["vgg11"], outputs=[6], image_size=32, boxes="annotated", images=9)
    assert calibration.differing(apart) == ("architectures",)


def test_the_widened_interval_is_by_hand_that_of_the_larger_errors():
    made = study(models=10)
    x, g, cells = made.models[["iou"]].to_numpy(), made.models["gap"].to_numpy(), np.arange(10)
    own_errors, _, _ = prediction.left_out_predictions(x, g, cells, x[:1])
    mean_errors = [g[i] - np.delete(g, i).mean() for i in range(10)]
    np.testing.assert_allclose(prediction.unaided_residuals(g, cells), mean_errors)
    guesses = [prediction.predict_gap(prediction.fit(np.delete(x, i, 0), np.delete(g, i)), x[:1])[0] for i in range(10)]
    size = np.maximum(np.abs(own_errors), np.abs(mean_errors))
    low, high = prediction.intervals(x, g, cells, x[:1], 0.8, [True])[0]
    assert high == pytest.approx(np.sort(guesses + size)[8])  # the ceil(0.8 x 11)-th smallest
    assert low == pytest.approx(np.sort(guesses - size)[1])


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


def test_the_truth_is_counted_by_hand():
    verdict = ranking.rank(study(), *own([0.3, 0.75]), draws=20)
    text = report.say_truth(verdict.ranking, pd.Series({"<b>0</b>": 0.38, "<b>1</b>": 0.9}))
    assert "1 of 2 true gaps" in text
    assert "`<b>0</b>`, was ranked 2 of 2" in text


@pytest.mark.parametrize("name", ["`a`", "a\nb", "\x1b[31m", "", "<script>"])
def test_a_name_is_one_code_span(name):
    text = report.code(name)
    assert text.startswith("`")
    assert text.endswith("`")
    assert text.count("`") == 2
    assert text.isprintable()
    assert "$" not in report.label("a$b$").replace(r"\$", "")
    assert len(report.label("x" * 300)) < 45


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs/a.pt", "..", "", "a/b.pt", "<b>.pt", "x" * 500, "ü\n|`.pt", "\udcff.pt"])
def test_no_name_leaves_the_folder_of_cards(name, tmp_path):
    file = report.file_name(name)
    assert (tmp_path / file).resolve().parent == tmp_path.resolve()
    assert not file.startswith(".")
    assert file.isascii()
    assert len(file) < 90
    assert file.endswith(".md")


def test_names_that_read_alike_have_cards_of_their_own():
    assert report.file_name("a/b.pt") != report.file_name("a b.pt")
    assert report.file_name("a/b.pt") == report.file_name("a/b.pt")

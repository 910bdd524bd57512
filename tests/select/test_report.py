import numpy as np
import pandas as pd
import pytest

from helpers.select import ranking, report
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


def test_a_checkpoint_that_does_not_fit_stands_last_whatever_its_gap():
    verdict = ranking.rank(study(), *own([0.3, 0.79], train=[0.95, 0.4]), draws=50)
    assert verdict.ranking["checkpoint"].tolist() == ["<b>0</b>", "<b>1</b>"]
    assert verdict.ranking["probability_best"].fillna(-1).tolist() == [1, -1]
    assert "not above 80%" in verdict.ranking["note"].iloc[1]
    assert "1 checkpoint that fit" in report.say_first(verdict, 0.8)
    alone = ranking.rank(study(), *own([0.3, 0.79], train=[0.4, 0.4]), draws=50)
    assert "None of them fits" in report.say_first(alone, 0.8)
    assert alone.ranking["checkpoint"].tolist() == ["<b>1</b>", "<b>0</b>"]


def test_outside_the_range_is_said_to_be_an_extrapolation():
    verdict = ranking.rank(study(), *own([3.0, 2.0]), draws=50)
    assert (verdict.ranking["measures_outside"] == 1).all()
    assert "extrapolation" in list(every_sentence(verdict))[2]


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

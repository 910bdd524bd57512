import numpy as np
import pandas as pd
import pytest

from helpers.checkpoints import calibration
from helpers.files import write_table
from tests.checkpoints.conftest import models_table


def test_a_report_gives_models_with_kinds_and_measures(reports):
    known = calibration.read(reports(), "a study")
    assert known.models["kind"].tolist() == models_table()["kind"].tolist()
    assert known.measures == ("mixup_accuracy", "accuracy_under_translation")
    np.testing.assert_allclose(
        known.models["accuracy_under_translation"], models_table()["other"]
    )  # the mean of both shifts
    assert (known.images, known.settings.perturbation_fraction) == (20, 0.5)


def test_both_snapshots_of_runs_on_right_labels_that_learnt_teach(reports):
    place = reports()
    path = place / "a study/tables/catalogue.csv"
    table = pd.read_csv(path).astype({"left_out": object})
    (
        table.loc[0, "snapshot"],
        table.loc[1, "label_noise"],
        table.loc[2, "left_out"],
        table.loc[3, "gap"],
    ) = "first", 0.2, "not learnt", None
    table.to_csv(path, index=False)
    assert (
        calibration.read(place, "a study").models["model_id"].tolist()
        == table["model_id"].drop([1, 2, 3]).tolist()
    )


def test_a_measure_that_a_model_lacks_predicts_nothing(reports):
    place = reports()
    path = place / "a study/tables/scores.parquet"
    table = pd.read_parquet(path)
    write_table(path, table[table["measure"] != "mixup_accuracy"])
    assert calibration.read(place, "a study").measures == (
        "accuracy_under_translation",
    )


def test_a_run_is_left_out_with_its_configuration(reports):
    known = calibration.read(reports(), "a study")
    known.models.loc[1, "cell"] = known.models.loc[
        0, "cell"
    ]  # a repeat of the first run
    fewer = known.without([known.models.loc[0, "run_id"], "", "a run of nobody"])
    assert fewer.models["run_id"].tolist() == known.models["run_id"].tolist()[2:]


def test_an_absent_study_is_named(reports):
    place = reports()
    with pytest.raises(FileNotFoundError, match=r"'none'.*studies that have: a study"):
        calibration.read(place, "none")


def test_two_studies_calibrate_together(reports, tmp_path):
    place = reports("one")
    reports("two", seed=1)
    both = calibration.read(place, "one+two")
    one, two = (calibration.read(place, name) for name in ("one", "two"))
    assert both.models["study"].tolist() == ["one"] * 16 + ["two"] * 16
    assert both.models["gap"].tolist() == [*one.models["gap"], *two.models["gap"]]
    assert both.measures == one.measures
    assert both.classes == ()
    path = place / "two/story/04_baselines.json"
    story = path.read_text()
    path.write_text(story.replace('"0.5"', '"0.4"'))  # another share of the images
    assert calibration.read(place, "one+two").settings == one.settings
    path.write_text(story.replace('"20"', '"30"'))
    with pytest.raises(ValueError, match="one was scored on 20 images and two on 30"):
        calibration.read(place, "one+two")
    ranges = '"perturbation_fraction": "0.5", "transform_ranges": "natural"'
    path.write_text(story.replace('"perturbation_fraction": "0.5"', ranges))
    words = "one was scored with transform_ranges 'cifar10' and two with 'natural'"
    with pytest.raises(ValueError, match=words):
        calibration.read(place, "one+two")


def test_the_classes_of_each_study_are_known(reports):
    place = reports("one")
    reports("two", seed=1)
    for name, classes in (("one", 20), ("two", 8)):
        table = pd.DataFrame({"classes": [classes]})
        table.to_csv(place / name / "tables/images.csv", index=False)
    assert calibration.read(place, "one+two").classes == (20, 8)


def test_measures_are_drawn_by_the_seed_of_the_analysis_not_of_training(reports):
    place = reports()
    path = place / "a study/story/04_baselines.json"
    seeds = '"perturbation_fraction": "0.5", "analysis_seed": "7", "seed": "3"'
    path.write_text(path.read_text().replace('"perturbation_fraction": "0.5"', seeds))
    assert calibration.read(place, "a study").settings.seed == 7


def test_images_of_a_class_are_those_that_a_run_was_fitted_to(reports):
    place = reports()
    folder = place / "a study"
    assert calibration.read(place, "a study").models["log_class_images"].isna().all()
    pd.DataFrame({"class_id": ["a", "b"], "train_images": [200, 300]}).to_csv(
        folder / "tables/table1_categories.csv", index=False
    )
    path = folder / "tables/catalogue.csv"
    table = pd.read_csv(path).assign(rule3_split="holdout", holdout_fraction=0.1)
    table.loc[0, "images_per_class"] = 100
    table.loc[1, "rule3_split"] = "test"
    table.to_csv(path, index=False)
    numbers = np.exp(calibration.read(place, "a study").models["log_class_images"])
    np.testing.assert_allclose(numbers[:3], [90, 250, 225])

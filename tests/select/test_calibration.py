import numpy as np
import pandas as pd
import pytest

from helpers.select import calibration
from tests.select.conftest import models_table


def test_a_report_gives_models_with_kinds_and_measures(reports):
    known = calibration.read(reports(), "a study")
    assert known.models["kind"].tolist() == models_table()["kind"].tolist()
    assert known.candidates == ("mixup_accuracy", "accuracy_under_translation")
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


def test_a_measure_that_a_model_lacks_is_no_candidate(reports):
    place = reports()
    path = place / "a study/tables/scores.parquet"
    table = pd.read_parquet(path)
    table[table["measure"] != "mixup_accuracy"].to_parquet(path)
    assert calibration.read(place, "a study").candidates == (
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

"""What the page of figures that answer to the mouse rests on."""

import json

import numpy as np
import pandas as pd
import pytest

from helpers.report.interactive import CURVES, interactive_content


@pytest.fixture
def tables(tmp_path):
    runs = ["a", "b", "c", "d"]
    facts = {"model_id": [f"{run}@stop" for run in runs], "run_id": runs, "cell": ["1", "1", "2", "2"], "snapshot": "stop"}
    facts |= {"train_accuracy": [1.0, 0.9, 0.8, np.nan], "test_accuracy": [0.5, 0.6, 0.7, np.nan], "gap": [0.5, 0.3, 0.1, np.nan]}
    facts |= {"batch_size": [16, 128, 16, 128], "optimizer": "sgd", "left_out": ["", "", "train accuracy not above 80%", ""]}
    pd.DataFrame(facts).to_csv(tmp_path / "catalogue.csv", index=False)
    return tmp_path


def test_models_with_a_gap_and_hyperparameters_with_levels_are_given(tables):
    found = interactive_content(tables)
    assert found["models"]["id"] == ["a@stop", "b@stop", "c@stop"]
    assert found["models"]["analysed"] == [True, True, False]
    assert [(axis["name"], axis["levels"], axis["of"]) for axis in found["axes"]] == [("batch_size", ["16", "128"], [0, 1, 0])]
    values = {column["name"]: column["values"] for column in found["columns"]}
    assert values == {"gap": [50, 30, 10], "train_accuracy": [100, 90, 80], "test_accuracy": [50, 60, 70]}
    assert found["curves"] is None


def test_the_hyperparameter_that_tells_most_of_the_gap_of_analysed_models_comes_first(tables):
    rows = pd.DataFrame({"model_id": [*"abcdefgh"], "run_id": [*"abcdefgh"], "cell": "1", "snapshot": "stop", "train_accuracy": 1.0})
    rows = rows.assign(test_accuracy=0.5, gap=[0.1, 0.2, 0.5, 0.6, 0.1, 0.2, 0.5, 9], left_out=[""] * 7 + ["too bad"])
    rows = rows.assign(batch_size=[16] * 4 + [32] * 4, optimizer=["adam", "adam", "sgd", "sgd"] * 2, learning_rate=[0.1, 0.2] * 4)
    rows.to_csv(tables / "catalogue.csv", index=False)
    rows[["run_id"]].assign(epoch=1, train_loss=1.0).to_parquet(tables / CURVES)
    found = interactive_content(tables)
    # Between the two optimizers lie 0.38 points, between the learning rates 0.03 and between the batches 0.08.
    assert [axis["name"] for axis in found["axes"]] == ["optimizer", "batch_size", "learning_rate"]
    assert [axis["name"] for axis in found["curves"]["axes"]] == ["optimizer", "batch_size", "learning_rate"]


def test_measures_come_from_the_scores_with_the_titles_of_the_ranking(tables):
    rows = [
        (f"{run}@stop", "norm", variant, value)
        for variant, add in (("", 0), ("fft", 1))
        for run, value in zip("abc", (1 + add, 2, np.inf), strict=True)
    ]
    pd.DataFrame(rows, columns=["model_id", "measure", "variant", "value"]).to_parquet(tables / "scores.parquet")
    ranking = pd.DataFrame({"measure": ["norm (fft)", "norm", "gone"], "title": ["norm, FFT", "norm", "gone"], "family": "norms"})
    ranking = ranking.assign(r_gap_low=[0.1, -0.2, 0], r_gap_high=[0.2, 0.3, 0], r_test_accuracy_low=np.nan, r_test_accuracy_high=np.nan)
    ranking.to_csv(tables / "measures_ranking.csv", index=False)
    columns = {column["name"]: column for column in interactive_content(tables)["columns"]}
    assert columns["norm"]["values"] == [1, 2, None]
    assert "norm (fft)" not in columns  # 2 and 2: the same for all
    assert (columns["norm"]["title"], columns["norm"]["group"]) == ("norm", "norms")
    assert columns["norm"]["intervals"] == {"gap": [-0.2, 0.3]}


def test_curves_of_every_run_are_given_in_the_order_of_epochs(tables):
    history = pd.DataFrame(
        {"run_id": ["a", "a", "b"], "epoch": [2, 1, 1], "train_loss": [1.0, 2.0, np.nan], "train_accuracy": [0.5, 0.25, 0.1]}
    )
    history.to_parquet(tables / CURVES)
    curves = interactive_content(tables)["curves"]
    assert curves["runs"][0] == {
        "id": "a",
        "levels": {"batch_size": "16"},
        "epochs": [1, 2],
        "values": {"train_loss": [2, 1], "train_accuracy": [25, 50]},
    }
    assert curves["runs"][1]["values"]["train_loss"] == [None]
    assert set(curves["metrics"]) == {"train_loss", "train_accuracy"}


def test_all_of_it_is_json_that_every_browser_reads(tables):
    assert json.dumps(interactive_content(tables), allow_nan=False)


def test_without_models_there_is_nothing(tmp_path, tables):
    assert interactive_content(tmp_path / "nowhere") is None
    table = pd.read_csv(tables / "catalogue.csv").assign(gap=np.nan)
    table.to_csv(tables / "catalogue.csv", index=False)
    assert interactive_content(tables) is None

"""Named numbers of notebook 04 are those of its tables."""

import pandas as pd
import pytest

from helpers.statistics import correlate as c
from helpers.statistics import gap_tables as g
from helpers.statistics.verdicts import (
    key_of,
    numbers_of_errors,
    numbers_of_primary,
    word,
)
from tests.statistics.test_gap_tables import primary, r, study


def test_each_number_of_the_primary_table_has_one_name():
    table = primary(study(), ["between", "noise"]).reset_index()
    items = list(numbers_of_primary(table))
    numbers = {name: (value, low, high) for name, value, low, high, _ in items}
    assert len(numbers) == len(items) and all(name.isidentifier() for name in numbers)
    row = table.set_index("measure").loc["between"]
    question = "r_gap_given_start"
    ends = row[question], row[f"{question}_low"], row[f"{question}_high"]
    assert numbers["r_between_gap_given_start"] == ends
    assert numbers["p_between_gap"][0] == row["r_gap_p_adjusted"]
    assert numbers["smallest_between_gap"][0] == row["r_gap_smallest"]
    assert numbers["verdict_between_gap"][0] == "larger"
    noise = table.set_index("measure", drop=False).loc["noise"]
    question = "r_gap_given_start"
    assert numbers["verdict_noise_gap_given_start"][0] == word(noise, question)
    assert numbers["error_between"][0] == row["error_with_twins"]
    assert numbers["saved_between"][0] == row["saved_from_best_points"]
    assert numbers["best_baseline"][0] == row["best_baseline"]
    assert "r_train_accuracy_gap_given_train_accuracy" not in numbers  # undefined
    assert key_of("curve_mean (rotation)") == "curve_mean_rotation"


def test_r_of_one_start_and_errors_across_studies_have_names():
    models = study(runs=8)
    starts = g.starts_table(c.Bootstrap(models, draws=50), ["noise", "absent"])
    part = models[~models["pretrained"]]
    across = g.across_studies({"a b": study(1), "two": models}, "two", {}, draws=9)
    numbers = {item[0]: item[1] for item in numbers_of_errors(starts, across)}
    expected = r(part["noise"], part["gap"])
    assert numbers["r_noise_gap_scratch"] == pytest.approx(expected)
    error = across.set_index("measure").loc["training", "error_points"]
    assert numbers["error_across_training_from_a_b"] == error
    same = c.Bootstrap(models.assign(pretrained=True), draws=9)
    assert len(g.starts_table(same, ["noise"])) == 0
    assert not list(
        numbers_of_errors(
            g.starts_table(same, []), pd.DataFrame(columns=across.columns)
        )
    )

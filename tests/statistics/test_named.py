"""Named numbers of notebook 04 are those of its tables."""

import pytest

from helpers.statistics import correlate as c
from helpers.statistics import primary as g
from helpers.statistics.verdicts import key_of, numbers_of_primary
from tests.statistics.test_primary import primary, r, study


def test_each_number_of_the_primary_table_has_one_name():
    table = primary(study(), ["between", "noise"]).reset_index()
    items = list(numbers_of_primary(table))
    numbers = {name: (value, low, high) for name, value, low, high, _ in items}
    assert len(numbers) == len(items) and all(name.isidentifier() for name in numbers)
    row = table.set_index("measure").loc["between"]
    for question, name in {
        "r_gap_given_start": "r_between_gap_given_start",
        "saved_from_best_points": "saved_between",
    }.items():
        ends = row[question], row[f"{question}_low"], row[f"{question}_high"]
        assert numbers[name] == ends
    assert numbers["error_between"][0] == row["error_with_twins"]
    assert numbers["best_baseline"][0] == row["best_baseline"]
    assert "r_train_accuracy_gap_given_train_accuracy" not in numbers  # undefined
    assert key_of("curve_mean (rotation)") == "curve_mean_rotation"


def test_r_among_networks_of_one_start():
    models = study(runs=8)
    starts = g.starts_table(c.Bootstrap(models, draws=50), ["noise", "absent"])
    part = models[~models["pretrained"]]
    row = starts.set_index("start").loc["scratch"]
    assert row["r"] == pytest.approx(r(part["noise"], part["gap"]))
    same = c.Bootstrap(models.assign(pretrained=True), draws=9)
    assert g.starts_table(same, ["noise"])["start"].tolist() == ["pretrained"]

"""Figures that notebooks share, and the sentences below them: they draw and say what the table holds."""

import io
import re

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.report import captions, figures, style
from tests.report import made


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def numbers(text):
    return [float(found) for found in re.findall(r"-?\d+\.\d+", text)]


def row(r, low, high):
    """A row of estimates as ``Draws.correlations`` has them."""
    return next(
        pd.DataFrame(
            {"pearson_r": [r], "ci_low": [low], "ci_high": [high], "n": [40]}
        ).itertuples()
    )


def test_rows_stand_from_above_with_their_intervals_and_published_values():
    table = pd.DataFrame(
        {
            "r": [0.1, -0.4, 0.3],
            "r_low": [0, -0.6, np.nan],
            "r_high": [0.2, -0.2, np.nan],
            "theirs": [0.5, np.nan, np.nan],
        }
    )
    _, ax = plt.subplots()
    figures.forest(ax, table, "r", list("abc"), published="theirs")
    assert [text.get_text() for text in ax.get_yticklabels()] == [
        "a",
        "b",
        "c",
    ] and ax.yaxis_inverted()
    segments = ax.collections[0].get_segments()
    np.testing.assert_allclose(
        np.array(segments[:2])[:, :, 0], [[0, 0.2], [-0.6, -0.2]]
    )
    every, bare, theirs = ax.lines[1:]
    np.testing.assert_array_equal(every.get_xdata(), table["r"])
    np.testing.assert_array_equal(bare.get_xdata(), [np.nan, np.nan, 0.3])
    np.testing.assert_array_equal(theirs.get_xdata(), table["theirs"])


def test_long_labels_leave_the_axis_of_a_forest_a_third_of_the_figure():
    table = pd.DataFrame(
        {
            "r": [0.1, -0.4],
            "r_low": [0, np.nan],
            "r_high": [0.2, np.nan],
            "theirs": [0.5, 0.1],
        }
    )
    with plt.rc_context():
        style.use()
        figure, ax = plt.subplots(figsize=(8, 2))
        figures.forest(
            ax,
            table,
            "r",
            ["resnet18, Smooth Grad-CAM++ as torchcam computes it, 48 images"] * 2,
            published="theirs",
        )
        figure.savefig(io.BytesIO())
    assert ax.get_position().width > 0.3


def test_the_first_rows_hold_the_claimed_ones_in_any_case():
    table = pd.DataFrame({"measure": [f"m{number}" for number in range(54)]})
    shown = figures.first_rows(table, ["m3", "m53"], most=10)["measure"].tolist()
    assert shown == [f"m{number}" for number in range(9)] + ["m53"]


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ((-0.5, -0.1), "smaller gap"),
        ((0.1, 0.5), "larger gap"),
        ((-0.1, 0.4), "contains 0"),
    ],
)
def test_a_correlation_is_said_with_its_interval_and_what_that_allows(ends, words):
    said = captions.correlation(row(sum(ends) / 2, *ends), "IoU")
    assert (
        numbers(said) == pytest.approx([sum(ends) / 2, *ends])
        and words in said
        and "40 models" in said
    )
    assert "too few configurations" in captions.correlation(
        row(0.3, np.nan, np.nan), "IoU"
    )
    assert "no correlation" in captions.correlation(row(np.nan, np.nan, np.nan), "IoU")


def test_captions_hold_the_numbers_of_the_tables_that_they_stand_below():
    given = made.tables()
    measures = given["primary"][~given["primary"]["baseline"]]
    best = measures.sort_values("error_with_twins").iloc[0]
    said = captions.primary(given["primary"])
    errors = [best["error_best_twins"], best["error_with_twins"]]
    assert numbers(said) == [round(error, 1) for error in errors]
    assert best["title"] in said
    told = captions.claims(given["claims"])
    claim = given["claims"][given["claims"]["primary"]].iloc[0]
    assert told.count("\n") == 0 and numbers(told)[:3] == [
        round(claim[name], 2) for name in ("ours", "ours_low", "ours_high")
    ]
    assert claim["verdict"] in told and str(claim["published"]) in told
    closed = given["gates"][~given["gates"]["passes"]]
    assert captions.gates(given["gates"]).startswith(
        f"{len(given['gates']) - len(closed)} of {len(given['gates'])} conditions hold. These fail: "
    )
    largest = given["primary"].loc[given["primary"]["r_gap"].abs().idxmax()]
    said = captions.strongest(given["primary"], "r_gap", "r")
    assert largest["title"] in said and numbers(said)[0] == round(largest["r_gap"], 2)


def test_numbers_are_written_one_way():
    assert [
        style.count(1, "model"),
        style.count(1200, "model"),
        style.count(3, "class"),
    ] == ["1 model", "1,200 models", "3 classes"]
    assert (
        style.listed(list("abcdef"), 4) == "a, b, c, d and 2 more"
        and style.listed(["a"]) == "a"
    )
    assert [style.percent(value) for value in (0.814, 0.05, 0.996, 1, np.nan)] == [
        "81 %",
        "5 %",
        "99.6 %",
        "100 %",
        "undefined",
    ]
    assert style.with_interval(-0.19, -0.37, 0.01) == "-0.19 (-0.37 to 0.01)"
    assert (
        style.with_interval(0.5, np.nan, np.nan) == "0.50 (no interval)"
        and style.with_interval(np.nan, 0, 1) == "undefined"
    )
    assert style.points(0.057) == "5.7 points"


def test_names_stand_in_the_order_of_their_numbers_and_keep_their_colours():
    names = pd.Series(["resnet101", "resnet18", "resnet34", "resnet18"])
    assert style.in_order(names) == ["resnet18", "resnet34", "resnet101"]
    assert style.in_order(pd.Series([10.0, 2.0])) == [2.0, 10.0]
    assert len(set(style.colours(list("abcdefghijkl")).values())) == 12

"""What labels are worth: against enumeration, known intervals and simulation."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from helpers.statistics import labelling


@pytest.mark.parametrize("a", [0.0, 0.07, 0.3, 0.5, 0.75, 1.0])
@pytest.mark.parametrize("n", [1, 2, 10, 57, 200])
def test_the_error_of_a_fraction_equals_the_sum_over_all_outcomes(n, a):
    x = np.arange(n + 1)
    assert labelling.labelling_error(n, a) == pytest.approx((scipy.stats.binom.pmf(x, n, a) * np.abs(x / n - a)).sum(), abs=1e-12)


def test_the_error_falls_with_images_and_is_that_of_the_normal_law_for_many():
    accuracies = [0.2, 0.55, 0.9]
    errors = [labelling.labelling_error(n, accuracies) for n in range(1, 300)]
    assert (np.diff(errors) <= 1e-15).all()
    normal = np.mean([np.sqrt(2 / np.pi * a * (1 - a) / 20_000) for a in accuracies])
    assert labelling.labelling_error(20_000, accuracies) == pytest.approx(normal, rel=1e-3)
    assert labelling.labelling_error(50, 0.5) == pytest.approx(0.0561, abs=5e-5)  # 5.6 points


@pytest.mark.parametrize("error", [0.3, 0.056, 0.02, 0.004])
def test_the_number_of_images_is_the_first_whose_error_is_as_small(error):
    accuracies = [0.3, 0.6]
    n = int(labelling.labelled_images_that_equal(error, accuracies))
    assert labelling.labelling_error(n, accuracies) <= error
    assert n == 1 or labelling.labelling_error(n - 1, accuracies) > error


def test_limits_of_the_number_of_images():
    assert labelling.labelled_images_that_equal(1, [0.5]) == 1
    assert labelling.labelled_images_that_equal(0, [0.5]) == np.inf
    assert labelling.labelled_images_that_equal(0, [0.0, 1.0]) == 1  # a single image tells
    assert np.isnan(labelling.labelled_images_that_equal(np.nan, [0.5]))
    with pytest.raises(ValueError, match="in \\[0, 1\\]"):
        labelling.labelled_images_that_equal(0.1, [0.5, np.nan])
    with pytest.raises(ValueError, match="number of labelled images is 0"):
        labelling.labelling_error(0, [0.5])


def test_the_table_by_hand():
    truth = np.array([0.5, 0.6, 0.4])
    predicted = pd.DataFrame({"near": [0.51, 0.6, 0.38], "far": [0.9, 0.9, np.nan], "none": [np.nan] * 3})
    table = labelling.against_labelling(predicted, truth).set_index("method")
    assert table.index.tolist() == ["50 labelled images", "near", "far", "none"]
    assert table.loc["near", "error"] == pytest.approx(0.01)
    assert table.loc["near", "bias"] == pytest.approx(-0.01 / 3)
    assert table["models"].tolist() == [3, 3, 2, 0]
    assert table["worth_more"].tolist() == [False, True, False, False]
    assert table.loc["far", "labelled_images"] == labelling.labelled_images_that_equal(0.35, [0.5, 0.6])
    assert table.loc["50 labelled images", "error"] == labelling.labelling_error(50, truth)
    assert table.loc["none", ["error", "labelled_images"]].isna().all()
    with pytest.raises(ValueError, match="3 models have predictions and 2 a true accuracy"):
        labelling.against_labelling(predicted, truth[:2])

import numpy as np
import pandas as pd
import pytest
from test_kappa_cells import grid

from helpers import kappa, kappa_cells, kappa_readings, tradeoff
from helpers.kappa_cells import Level


@pytest.fixture(scope="module")
def classes():
    return grid()


@pytest.fixture(scope="module")
def table(classes):
    return kappa_cells.cells(classes)


@pytest.fixture(scope="module")
def surface(table):
    return tradeoff.fit_surface(table)


def test_random_weights_stand_in_titles(table):
    assert kappa_readings.heading("clip", table) == "### Clip: random weights"
    assert kappa_readings.weights_title(table) == "**Random weights.**"
    made = table.assign(origin="made on 10 classes")
    assert kappa_readings.heading("resnet", made) == "### Resnet: weights made on 10 classes"
    assert kappa_readings.weights_named(["random", "made on 4 classes", "random"]) == "random weights, weights made on 4 classes"


def test_unseen_means_unseen_by_the_backbone():
    text = kappa_readings.classes_named(["cat", "dog", "cow"], 2, True)
    assert "2 classes adapt the backbones" in text
    assert "1 more class is backbone-unseen**: cow." in text
    assert "no zero-shot claim" in text
    assert "no backbone was adapted" in kappa_readings.classes_named(["cat", "dog"], 1, False)
    assert "no class is backbone-unseen" in kappa_readings.classes_named(["cat", "dog"], 2, True)


def test_the_noise_says_how_far_it_is_off():
    text = kappa_readings.noise_read("blur", [Level(0.6, 0.605, 2.5), Level(1.0, 1.0, 0.0)])
    assert "2 levels of noise by blur" in text
    assert "at most 0.0050; the strongest noise has SSIM 0.605 at strength 2.5" in text


def test_networks_stand_beside_the_published_sizes(table):
    networks = kappa_readings.beside_table1(table.assign(model=table["model"].map({"a": "efficientnet_b0", "b": "RN50"})))
    assert networks.set_index("model")["published_weights_millions"].to_dict() == {"efficientnet_b0": 5.3, "RN50": 38.0}
    assert networks["weights_millions"].tolist() == [5.0, 20.0]
    assert "**2 networks** of 5 to 20 million weights" in kappa_readings.networks_read(networks)


def test_cells_are_counted_and_the_clean_one_is_read(table, classes):
    text = kappa_readings.cells_read(table, classes)
    assert "**8 cells** from 32 rows" in text
    assert "0 classes without test images" in text
    assert "from 25.0 % (a) to 25.0 %, where guessing gives 75.0 %" in text


def test_the_larger_cost_is_named(table):
    text = kappa_readings.heat_read(table, "error_mean")
    assert "0.250 clean and seen, 0.370 at SSIM 0.60, 0.300 with 50.0 %" in text
    assert "noise costs more" in text
    assert "unseen classes cost more" in kappa_readings.heat_read(
        table.assign(ssim=table["ssim"].map({1.0: 1.0, 0.6: 0.99}), error_mean=table["unseen_fraction"]), "error_mean"
    )
    assert "Both move it alike" in kappa_readings.heat_read(table.assign(error_mean=0.2), "error_mean")


def test_classes_no_better_than_chance_are_counted(classes):
    shown = classes.assign(kappa_loss=np.where(classes["ssim"] == 1, 0.2, 1.0))
    text = kappa_readings.diagram_read(shown)
    assert "at SSIM 1.00" in text
    assert ", 0 of 16 are no better" in text
    assert ", 16 of 16 are no better" in text


def test_the_most_stable_network_is_named(table):
    moved = table.assign(divergence=np.where(table["model"] == "a", 1.0, 4.0))
    text = kappa_readings.divergence_read(moved)
    assert "most stable network is a (1.00 nats" in text
    assert "the least b (4.00)" in text
    assert "a moves from its clean cell by 1.00 nats" in kappa_readings.divergence_read(moved[moved["model"] == "a"])
    assert kappa_readings.divergence_read(table.assign(divergence=0.0)) == "No cell has moved from its clean cell."


def test_marginals_are_read_from_end_to_end(table):
    text = kappa_readings.marginals_read(kappa.marginals(table))
    assert "-12.0 points along SSIM" in text
    assert "+5.0 points along the backbone-unseen fraction" in text
    alone = kappa.marginals(kappa_cells.cells(grid((("a", "clip", 5.0),), (1.0,), (0.0,))))
    assert kappa_readings.marginals_read(alone).startswith("No axis has two levels")


def test_the_point_says_where_it_lies_and_what_was_not_traded(surface):
    point = tradeoff.trade_off_point(surface, 0)
    text = kappa_readings.point_read("clip", point, surface, 0)
    assert "**clip**, lambda 0: the balance lies at SSIM 1.000, 0.0 % backbone-unseen classes" in text
    assert f"{point.generalization_bound.mean:.3f} (generalization bound)" in text
    assert "on the edge of what was measured in SSIM, the backbone-unseen fraction" in text
    single = tradeoff.fit_surface(kappa_cells.cells(grid((("a", "clip", 5.0),))))
    text = kappa_readings.point_read("clip", tradeoff.trade_off_point(single), single, 1)
    assert "Size has one level only, so nothing was traded there." in text


def test_lambda_is_called_a_choice(surface):
    text = kappa_readings.sensitivity_read(tradeoff.sensitivity(surface, [0.1, 2.0]))
    assert text.startswith("from lambda 0.1 to 2 the point moves from SSIM 1.00")
    assert "Lambda is a choice, not a finding." in text


def test_sign_errors_name_the_best_and_how_little_they_rest_on(table):
    complexities = pd.DataFrame({"param_norm": [1.0, 2.0], "l2": [2.0, 1.0]}, index=["a", "b"])
    tables = {"all": kappa.sign_error_table(complexities, table), "one": kappa.sign_error_table(complexities, table[table["model"] == "a"])}
    text = kappa_readings.sign_errors_read(tables, {"param_norm": "parameter norm"})
    assert "**all**, 2 networks and 1 pair: " in text
    assert "parameter norm (" in text
    assert "**one**: 1 network can be ordered, so no sign error is defined." in text


def test_the_answer_and_the_published_bounds_are_numbers_of_the_tables(surface):
    point = tradeoff.trade_off_point(surface)
    text = kappa_readings.answer({"clip": point}, {"clip": ["random", "random"]}, 1.0)
    assert f"clip (random weights) balances at SSIM {point.ssim:.2f}" in text
    beside = kappa_readings.beside_published(kappa_cells.beside_table2({"clip": point}, "mine", 1.0))
    assert f"{point.generalization_bound.mean:.3f} here" in beside
    assert "0.279 to 0.657 in the paper" in beside


def test_undefined_numbers_never_enter_a_sentence(table, classes, surface):
    nothing = classes.assign(error=np.nan, kappa_loss=np.nan, kappa=np.nan)
    empty = kappa_cells.cells(nothing)
    complexities = pd.DataFrame({"l2": [np.nan, np.nan]}, index=["a", "b"])
    sentences = [
        kappa_readings.cells_read(empty, nothing),
        kappa_readings.heat_read(empty, "error_mean"),
        kappa_readings.diagram_read(nothing),
        kappa_readings.divergence_read(empty),
        kappa_readings.marginals_read(kappa.marginals(empty)),
        kappa_readings.sign_errors_read({"all": kappa.sign_error_table(complexities, table)}, {}),
    ]
    for sentence in sentences:
        assert "nan" not in sentence.lower()
        assert sentence.endswith(".")

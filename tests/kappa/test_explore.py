"""The trade-off explorer: the point is that of the search, the curves those of the report."""

import itertools

import numpy as np
import pandas as pd
import pytest

from helpers.kappa import explore as kappa_explore
from helpers.kappa import report, statistics, tradeoff
from helpers.kappa.tradeoff import Bounds
from helpers.report import explore

SSIM, UNSEEN, WEIGHTS = np.linspace(0.6, 1, 5).round(2), np.array([0, 0.2, 0.4]), np.array([5.3, 12, 30, 66]) * 1e6


def cells_of(seed, ssim=SSIM, weights=WEIGHTS):
    """The error falls with SSIM and size, rises with unseen classes, and is uneven."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(list(itertools.product(ssim, UNSEEN, weights)), columns=statistics.AXES)
    total = 3 - 1.5 * table["ssim"] + 1.2 * table["unseen_fraction"] - 0.1 * np.log(table["weights"]) + rng.normal(0, 0.1, len(table))
    parts = np.arange(1, 7) / 21
    table = table.assign(**dict(zip(statistics.CELL_STATISTICS, np.outer(parts, total), strict=True)))
    return table.assign(model=table["weights"].map("{:g}".format))


FAMILIES = {"ResNet": cells_of(0), "EfficientNet": cells_of(1, ssim=SSIM[2:], weights=WEIGHTS[:2] / 2)}


@pytest.fixture(autouse=True)
def a_reader(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "1")


@pytest.fixture(scope="module")
def given():
    surfaces = {name: tradeoff.fit_surface(cells) for name, cells in FAMILIES.items()}
    return surfaces, pd.concat([statistics.marginals(cells).assign(family=name) for name, cells in FAMILIES.items()])


@pytest.fixture(scope="module")
def opened(given):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(explore.SWITCH, "1")
        return kappa_explore.trade_off(*given)


@pytest.fixture
def panel(opened):
    """The same explorer for all tests, everything as it was at first."""
    for name, value in START.items():
        opened.controls[name].value = value
    return opened


START = {"family": "ResNet", "strength": 1.0, "ssim": (0.6, 1.0), "unseen": 0.0, "weights": WEIGHTS[-1]}


MOVES = [
    {"strength": 0.0},
    {"strength": 3.0},
    {"ssim": (0.7, 0.85)},
    {"unseen": 0.25},
    {"weights": 2e7},
    {"ssim": (0.9, 1.0), "unseen": 0.3, "weights": 1e7, "strength": 0.3},
    {"family": "EfficientNet", "strength": 0.2},
]


def asked_point(surfaces, values):
    bounds = Bounds(*values["ssim"], values["unseen"], values["weights"])
    return tradeoff.trade_off_point(surfaces[values["family"]], values["strength"], bounds)


def test_it_opens_with_nothing_asked(given):
    shown = kappa_explore.trade_off(*given)
    assert shown.values() == {**START, "weights": WEIGHTS[-1]}
    assert shown.numbers["point"] == tradeoff.trade_off_point(given[0]["ResNet"])


def test_it_opens_with_the_bounds_and_lambda_of_the_report(given):
    bounds = Bounds(ssim_at_most=0.8, unseen_fraction_at_least=0.1)
    shown = kappa_explore.trade_off(*given, strength=7.0, bounds=bounds)
    assert shown.numbers["point"] == tradeoff.trade_off_point(given[0]["ResNet"], 7.0, bounds)


@pytest.mark.parametrize("moves", MOVES, ids=str)
def test_the_point_is_that_of_the_search_and_its_words_those_of_the_report(panel, given, moves):
    for name, value in moves.items():
        panel.controls[name].value = value
    values = START | moves
    point = asked_point(given[0], values)
    assert panel.numbers["point"] == point
    words = report.say_point(values["family"], point, given[0][values["family"]], values["strength"])
    (low, high), unseen, weights = values["ssim"], values["unseen"], values["weights"] / 1e6
    demands = f"Asked for: SSIM {low:.2f} to {high:.2f}, unseen share {unseen:.2f} or more, {weights:,.3g} million weights or less."
    assert panel.reading.value == f"<p>{demands} {words.replace('**', '')}</p>"


def test_a_demand_that_the_point_meets_anyway_is_told_all_the_same(panel, given):
    free = asked_point(given[0], START)
    before = panel.reading.value
    panel.controls["unseen"].value = round(free.unseen_fraction / 2, 2)
    assert panel.numbers["point"].unseen_fraction == pytest.approx(free.unseen_fraction, abs=1e-6) and panel.reading.value != before


@pytest.mark.parametrize("moves", [MOVES[1], MOVES[5], MOVES[6]], ids=str)
def test_stars_lie_at_the_point_and_its_bounds(given, moves):
    surfaces, marginals = given
    family = (START | moves)["family"]
    point = asked_point(surfaces, START | moves)
    figure = kappa_explore.marginal_figure(marginals[marginals["family"] == family], surfaces[family], point)
    stars = [(trace.x[0], trace.y[0]) for trace in figure.data if trace.name == "trade-off point"]
    at = (point.ssim, point.unseen_fraction, point.weights / 1e6)
    bounds = [[getattr(bound, axis) for axis in statistics.AXES] for bound in (point.generalization_bound, point.diversity_bound)]
    assert stars == [*zip(at, bounds[0], strict=True), *zip(at, bounds[1], strict=True)]


def test_curves_are_the_marginals_of_the_family(given):
    surfaces, marginals = given
    own = marginals[marginals["family"] == "ResNet"]
    figure = kappa_explore.marginal_figure(own, surfaces["ResNet"], tradeoff.trade_off_point(surfaces["ResNet"]))
    curves = [trace for trace in figure.data if trace.name == "marginal"]
    rows = [(name, axis) for name in ("error", "kappa_loss") for axis in statistics.AXES]
    for trace, (name, axis) in zip(curves, rows, strict=True):
        table = own[own["axis"] == axis]
        np.testing.assert_array_equal(trace.y, table[f"{name}_mean"])
        np.testing.assert_array_equal(trace.error_y.array, table[f"{name}_std"])
        np.testing.assert_allclose(trace.x, table["level"] / (1e6 if axis == "weights" else 1))


@pytest.mark.parametrize("moved", [{"strength": 4.0}, {"ssim": (0.6, 0.8)}, {"unseen": 0.35}, {"weights": 6e6}, {"family": "EfficientNet"}])
def test_every_control_moves_the_picture(panel, moved):
    ((name, value),) = moved.items()
    panel.controls["strength"].value = 0.0  # where the errors are least: clean, seen, large
    before = panel.views[0].figure
    panel.controls[name].value = value
    assert panel.views[0].figure != before


def test_what_a_family_has_not_measured_is_told_and_taken_back(panel):
    panel.controls["family"].value = "EfficientNet"
    panel.controls["ssim"].value = (0.6, 0.7)
    assert panel.fault == "ValueError: ssim from 0.6 to 0.7 holds nothing of what was measured, 0.8 to 1"
    assert "0.8 to 1" in panel.reading.value
    panel.controls["ssim"].value = (0.6, 0.9)
    assert not panel.fault
    assert panel.numbers["point"].ssim <= 0.9


def test_a_single_network_has_nothing_to_trade_in_size():
    cells = cells_of(2, weights=WEIGHTS[:1])
    shown = kappa_explore.trade_off({"one": tradeoff.fit_surface(cells)}, statistics.marginals(cells).assign(family="one"))
    assert not shown.fault
    assert shown.controls["weights"].disabled
    assert shown.controls["weights"].max > shown.controls["weights"].min  # JupyterLab draws no slider without length
    assert shown.numbers["point"].weights == WEIGHTS[0]


def test_the_name_of_a_family_is_shown_as_text(given):
    surfaces, marginals = given
    shown = kappa_explore.trade_off({"<b>x": surfaces["ResNet"]}, marginals[marginals["family"] == "ResNet"].assign(family="<b>x"))
    assert "&lt;b&gt;x" in shown.reading.value
    assert "<b>" not in shown.reading.value


@pytest.mark.parametrize(("names", "kept"), [([], "ResNet"), (["ResNet", "EfficientNet"], "ResNet")])
def test_no_family_and_one_without_marginals_are_refused(given, names, kept):
    surfaces, marginals = given
    named = "any" if not names else "EfficientNet"
    with pytest.raises(ValueError, match=rf"^{len(names)} families, and no marginals of {named}: there is nothing to show$"):
        kappa_explore.trade_off({name: surfaces[name] for name in names}, marginals[marginals["family"] == kept])

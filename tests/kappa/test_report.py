import io
import itertools

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.kappa import probing, report, statistics, tradeoff
from tests.kappa.conftest import grid

SSIM, UNSEEN = np.linspace(0.6, 1, 9).round(2), np.array([0, 0.2, 0.4])


WEIGHTS = {"efficientnet_b2": 9.2e6, "efficientnet_b0": 5.3e6, "RN50": 38e6, "resnet18": 11.7e6, "efficientnet_b7": 66e6}


BY_SIZE = ["efficientnet_b0", "efficientnet_b2", "resnet18", "RN50", "efficientnet_b7"]


@pytest.fixture(autouse=True)
def without_a_window():
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


@pytest.fixture(scope="module")
def cells():
    rng = np.random.default_rng(0)
    rows = [{"model": m, "weights": WEIGHTS[m], "ssim": s, "unseen_fraction": u} for m, s, u in itertools.product(WEIGHTS, SSIM, UNSEEN)]
    table = pd.DataFrame(rows)
    return table.assign(
        divergence=rng.uniform(0, 20, len(table)), **{name: rng.uniform(0.1, 0.6, len(table)) for name in statistics.CELL_STATISTICS}
    )


@pytest.fixture(scope="module")
def classes():
    rng = np.random.default_rng(1)
    rows = [{"model": m, "weights": WEIGHTS[m], "ssim": s} for m, s, _ in itertools.product(["resnet18", "RN50"], SSIM, range(6))]
    table = pd.DataFrame(rows)
    return table.assign(error=rng.uniform(0, 1, len(table)), kappa_loss=rng.uniform(0, 1.4, len(table)))


@pytest.fixture(scope="module")
def surface(cells):
    return tradeoff.fit_surface(cells)


def drawn(figure):
    """Draw for real, so that what only fails at drawing fails here; return the axes that are seen."""
    figure.savefig(io.BytesIO(), format="png", dpi=50)
    return [ax for ax in figure.axes if ax.get_visible()]


@pytest.mark.parametrize("column", ["error_mean", "kappa_loss_mean", "divergence"])
def test_heat_maps_show_every_cell_on_one_colour_scale(cells, column):
    *axes, bar = drawn(report.heat_maps(cells.sample(frac=1, random_state=0), column))
    assert [ax.get_title() for ax in axes] == [f"{name} ({WEIGHTS[name] / 1e6:.3g} M)" for name in BY_SIZE]
    for ax, model in zip(axes, BY_SIZE, strict=True):
        shown = cells[cells["model"] == model].set_index(["ssim", "unseen_fraction"])[column].unstack()
        np.testing.assert_array_equal(ax.images[0].get_array(), shown)
        assert ax.images[0].get_clim() == (cells[column].min(), cells[column].max())
        assert ax.images[0].origin == "lower", "clean images on top"
    assert [label.get_text() for label in axes[0].get_yticklabels()] == [f"{level:g}" for level in SSIM]
    assert [label.get_text() for label in axes[4].get_xticklabels()] == ["0", "0.2", "0.4"]
    assert report._NAMES[column].split(" ")[0] in bar.get_ylabel()


def test_a_missing_cell_is_crossed_out_at_its_place(cells):
    damaged = cells.drop(index=cells.query("model == 'RN50' and ssim == 0.7 and unseen_fraction == 0.4").index)
    damaged.loc[damaged.query("model == 'RN50' and ssim == 1 and unseen_fraction == 0").index, "error_mean"] = np.nan
    ax = drawn(report.heat_maps(damaged, "error_mean"))[BY_SIZE.index("RN50")]
    assert sorted(zip(*ax.lines[0].get_data(), strict=True)) == [(0, 8), (2, 2)]


def test_the_diagram_holds_every_class_with_a_colour_and_marker_per_noise_level(classes):
    figure = report.kappa_error_diagram(classes)
    axes = drawn(figure)
    assert [ax.get_title() for ax in axes] == ["resnet18, n = 54", "RN50, n = 54"]
    looks = []
    for ax, model in zip(axes, ["resnet18", "RN50"], strict=True):
        for line, level in zip(ax.lines[:9], SSIM[::-1], strict=True):
            rows = classes[(classes["model"] == model) & (classes["ssim"] == level)]
            np.testing.assert_array_equal(np.transpose(line.get_data()), rows[["error", "kappa_loss"]])
        looks.append([(line.get_color(), line.get_marker()) for line in ax.lines[:9]])
        assert ax.get_xlim()[0] < 0 and ax.get_xlim()[1] > 1 and ax.get_ylim()[1] > classes["kappa_loss"].max()
    (legend,) = figure.legends
    assert looks[0] == looks[1] == [(line.get_color(), line.get_marker()) for line in legend.get_lines()]
    assert len(set(looks[0])) == 9
    assert [text.get_text() for text in legend.get_texts()] == ["1", "0.95", "0.9", "0.85", "0.8", "0.75", "0.7", "0.65", "0.6"]


def test_classes_without_test_images_are_not_counted(classes):
    untested = classes.assign(error=classes["error"].mask(classes.index == 0), kappa_loss=classes["kappa_loss"].mask(classes.index == 0))
    ax, _ = drawn(report.kappa_error_diagram(untested))
    assert ax.get_title() == "resnet18, n = 53"


@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_marginals_carry_their_band_polynomial_and_the_point(cells, surface, strength):
    marginals, point = statistics.marginals(cells), tradeoff.trade_off_point(surface, strength)
    axes = np.reshape(drawn(report.marginal_curves(marginals, surface, point)), (2, 3))
    readings = (point.generalization_bound, point.diversity_bound)
    for line, (name, reading) in enumerate(zip(("error", "kappa_loss"), readings, strict=True)):
        for column, axis in enumerate(statistics.AXES):
            ax, scale = axes[line, column], 1e6 if axis == "weights" else 1
            table = marginals[marginals["axis"] == axis]
            curve, polynomial, mark, star = ax.lines
            np.testing.assert_allclose(curve.get_data(), [table["level"] / scale, table[f"{name}_mean"]])
            (band,) = ax.collections
            corners = band.get_paths()[0].vertices[:, 1]
            assert corners.max() == pytest.approx((table[f"{name}_mean"] + table[f"{name}_std"]).max())
            assert corners.min() == pytest.approx((table[f"{name}_mean"] - table[f"{name}_std"]).min())
            place = getattr(point, axis) / scale
            assert mark.get_xdata() == [place, place]
            np.testing.assert_allclose(np.ravel(star.get_data()), [place, getattr(reading, axis)])
            # The star lies on the dashed line.
            assert np.interp(place, *polynomial.get_data()) == pytest.approx(getattr(reading, axis), abs=2e-3)
            assert ax.get_title() == f"bound {getattr(reading, axis):.3f}, degree {surface.degrees[column]}"
    assert surface.degrees == (4, 2, 4)
    assert axes[0, 2].get_xscale() == "log"


def test_one_level_on_an_axis_is_drawn_as_a_point(cells):
    one = cells[(cells["model"] == "RN50") & (cells["unseen_fraction"] == 0)]
    surface = tradeoff.fit_surface(one)
    axes = drawn(report.marginal_curves(statistics.marginals(one), surface, tradeoff.trade_off_point(surface)))
    assert len(axes) == 6 and axes[2].lines[0].get_xdata().tolist() == [38]


@pytest.mark.parametrize(("lambdas", "scale"), [((0.1, 0.5, 1, 2), "log"), ((0, 0.1, 1), "symlog"), ((1,), "linear")])
def test_sensitivity_draws_the_table(surface, lambdas, scale):
    table = tradeoff.sensitivity(surface, lambdas)
    axes = drawn(report.sensitivity_curves(table.iloc[::-1]))
    for ax, axis in zip(axes, statistics.AXES, strict=False):
        np.testing.assert_allclose(ax.lines[0].get_data(), [lambdas, table[axis] / (1e6 if axis == "weights" else 1)])
    assert [text.get_text() for text in axes[3].get_legend().get_texts()] == ["generalization", "diversity"]
    np.testing.assert_array_equal([line.get_ydata() for line in axes[3].lines[:2]], table[["generalization_bound", "diversity_bound"]].T)
    assert {ax.get_xscale() for ax in axes} == {scale}
    assert all(ax.lines[-1].get_xdata() == [1, 1] for ax in axes)
    assert len(drawn(report.sensitivity_curves(table, None))[0].lines) == 1


def test_nothing_to_draw_is_said_in_words(cells, classes, surface):
    hollow, point = statistics.marginals(cells).assign(error_mean=np.nan), tradeoff.trade_off_point(surface)
    figures = {
        "No cell has a defined error rate, mean over classes.": report.heat_maps(cells.assign(error_mean=np.nan), "error_mean"),
        "No cell has a defined something.": report.heat_maps(cells.iloc[:0].assign(something=0.0), "something"),
        "No class has test images, so there is no Kappa to draw.": report.kappa_error_diagram(classes.assign(error=np.nan)),
        "No marginal is defined, because cells are missing.": report.marginal_curves(hollow, surface, point),
        "No lambda was tried.": report.sensitivity_curves(tradeoff.sensitivity(surface, [])),
    }
    for message, figure in figures.items():
        assert [text.get_text() for text in drawn(figure)[0].texts] == [message]


def test_pictures_stay_small_and_nothing_is_cut(cells, classes, surface):
    figures = [
        report.heat_maps(cells, "kappa_loss_mean"),
        report.heat_maps(cells[cells["model"] == "RN50"], "divergence"),
        report.kappa_error_diagram(classes),
        report.marginal_curves(statistics.marginals(cells), surface, tradeoff.trade_off_point(surface)),
        report.sensitivity_curves(tradeoff.sensitivity(surface, [0.1, 1, 2])),
    ]
    before = dict(matplotlib.rcParams)
    for figure in figures:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=100)
        assert len(file.getvalue()) < 250_000
        frame, renderer = figure.bbox.padded(2), figure.canvas.get_renderer()
        texts = [text for ax in figure.axes if ax.get_visible() for text in (ax.title, ax.xaxis.label, ax.yaxis.label)]
        for text in [*texts, *figure.texts]:
            box = text.get_window_extent(renderer)
            assert not text.get_text() or (frame.x0 <= box.x0 and box.x1 <= frame.x1), text.get_text()
            assert not text.get_text() or (frame.y0 <= box.y0 and box.y1 <= frame.y1), text.get_text()
    assert dict(matplotlib.rcParams) == before


@pytest.fixture(scope="module")
def classes_kappa_readings():
    return grid()


@pytest.fixture(scope="module")
def table(classes_kappa_readings):
    return probing.cells(classes_kappa_readings)


@pytest.fixture(scope="module")
def surface_kappa_readings(table):
    return tradeoff.fit_surface(table)


def test_random_weights_stand_in_titles(table):
    assert report.heading("clip", table) == "### Clip: random weights"
    assert report.weights_title(table) == "**Random weights.**"
    made = table.assign(origin="made on 10 classes")
    assert report.heading("resnet", made) == "### Resnet: weights made on 10 classes"
    assert report.weights_named(["random", "made on 4 classes", "random"]) == "random weights, weights made on 4 classes"


def test_unseen_means_unseen_by_the_backbone():
    text = report.classes_named(["cat", "dog", "cow"], 2, True)
    assert "2 classes adapt the backbones" in text
    assert "1 more class is backbone-unseen**: cow." in text
    assert "no zero-shot claim" in text
    assert "no backbone was adapted" in report.classes_named(["cat", "dog"], 1, False)
    assert "no class is backbone-unseen" in report.classes_named(["cat", "dog"], 2, True)


def test_networks_stand_beside_the_published_sizes(table):
    networks = report.beside_table1(table.assign(model=table["model"].map({"a": "efficientnet_b0", "b": "RN50"})))
    assert networks.set_index("model")["published_weights_millions"].to_dict() == {"efficientnet_b0": 5.3, "RN50": 38.0}
    assert networks["weights_millions"].tolist() == [5.0, 20.0]


def test_cells_are_counted_and_the_clean_one_is_read(table, classes_kappa_readings):
    text = report.say_cells(table, classes_kappa_readings)
    assert "**8 cells** from 32 rows" in text
    assert "0 classes without test images" in text
    assert "from 25.0 % (a) to 25.0 %, where guessing gives 75.0 %" in text


def test_the_ends_of_the_grid_are_told_without_a_verdict(table):
    text = report.say_heat(table, "error_mean")
    assert text.endswith("0.250 clean and seen, 0.370 at SSIM 0.60, 0.300 with 50.0 % of the classes backbone-unseen.")
    assert "undefined at the ends" in report.say_heat(table.assign(error_mean=np.nan), "error_mean")


def test_classes_no_better_than_chance_are_counted(classes_kappa_readings):
    shown = classes_kappa_readings.assign(kappa_loss=np.where(classes_kappa_readings["ssim"] == 1, 0.2, 1.0))
    text = report.say_diagram(shown)
    assert "at SSIM 1.00" in text
    assert ", 0 of 16 are no better" in text
    assert ", 16 of 16 are no better" in text


def test_the_most_stable_network_is_named(table):
    moved = table.assign(divergence=np.where(table["model"] == "a", 1.0, 4.0))
    text = report.say_divergence(moved)
    assert "most stable network is a (1.00 nats" in text
    assert "the least b (4.00)" in text
    assert "a moves from its clean cell by 1.00 nats" in report.say_divergence(moved[moved["model"] == "a"])
    assert report.say_divergence(table.assign(divergence=0.0)) == "No cell has moved from its clean cell."


def test_the_point_says_where_it_lies_and_what_was_not_traded(surface_kappa_readings):
    point = tradeoff.trade_off_point(surface_kappa_readings, 0)
    text = report.say_point("clip", point, surface_kappa_readings, 0)
    assert "**clip**, lambda 0: the balance lies at SSIM 1.000, 0.0 % backbone-unseen classes" in text
    assert f"{point.generalization_bound.mean:.3f} (generalization bound)" in text
    assert "on the edge of what was measured in SSIM, the backbone-unseen fraction" in text
    single = tradeoff.fit_surface(probing.cells(grid((("a", "clip", 5.0),))))
    text = report.say_point("clip", tradeoff.trade_off_point(single), single, 1)
    assert "Size has one level only, so nothing was traded there." in text


def test_lambda_is_called_a_choice(surface_kappa_readings):
    text = report.say_sensitivity(tradeoff.sensitivity(surface_kappa_readings, [0.1, 2.0]))
    assert text.startswith("from lambda 0.1 to 2 the point moves from SSIM 1.00")
    assert "Lambda is a choice, not a finding." in text


def test_sign_errors_name_the_best_and_how_little_they_rest_on(table):
    complexities = pd.DataFrame({"param_norm": [1.0, 2.0], "l2": [2.0, 1.0]}, index=["a", "b"])
    tables = {
        "all": statistics.slice_sign_errors(complexities, table),
        "one": statistics.slice_sign_errors(complexities, table[table["model"] == "a"]),
    }
    text = report.say_sign_errors(tables, {"param_norm": "parameter norm"})
    assert "**all**, 2 networks and 1 pair: " in text
    assert "parameter norm (" in text
    assert "**one**: 1 network can be ordered, so no sign error is defined." in text


def test_the_answer_and_the_published_bounds_are_numbers_of_the_tables(surface_kappa_readings):
    point = tradeoff.trade_off_point(surface_kappa_readings)
    text = report.kappa_answer({"clip": point}, {"clip": ["random", "random"]}, 1.0)
    assert f"clip (random weights) balances at SSIM {point.ssim:.2f}" in text
    beside = report.points_beside_published(probing.beside_table2({"clip": point}, "mine", 1.0))
    assert f"{point.generalization_bound.mean:.3f} here" in beside
    assert "0.279 to 0.657 in the paper" in beside


def test_undefined_numbers_never_enter_a_sentence(table, classes_kappa_readings, surface_kappa_readings):
    nothing = classes_kappa_readings.assign(error=np.nan, kappa_loss=np.nan, kappa=np.nan)
    empty = probing.cells(nothing)
    complexities = pd.DataFrame({"l2": [np.nan, np.nan]}, index=["a", "b"])
    sentences = [
        report.say_cells(empty, nothing),
        report.say_heat(empty, "error_mean"),
        report.say_diagram(nothing),
        report.say_divergence(empty),
        report.say_sign_errors({"all": statistics.slice_sign_errors(complexities, table)}, {}),
    ]
    for sentence in sentences:
        assert "nan" not in sentence.lower()
        assert sentence.endswith(".")

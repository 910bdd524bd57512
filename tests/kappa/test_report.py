import io
import itertools

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers.kappa import intervals, probing, report, statistics, tables, tradeoff
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
    assert [ax.get_title() for ax in axes] == [f"{name}\n({WEIGHTS[name] / 1e6:.3g} M)" for name in BY_SIZE]
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


def with_draws(table, strength=1.0, classes=8):
    """Marginals, surface, point, spread and the ends of a family whose draws are its cells with noise."""
    table = table.assign(classes=classes)
    surface = tradeoff.fit_surface(table)
    values = statistics.cell_array(table)[1]
    drawn = values[:, :, :, None] + np.random.default_rng(0).normal(0, 0.02, (*values.shape[:3], 40, 6))
    found = intervals.spread(table, drawn, strength)
    point = tradeoff.trade_off_point(surface, strength)
    ends = tables.beside_table2({"all": point}, {"all": found}, classes).set_index("quantity")
    return statistics.marginals(table).merge(found.marginals, on=["axis", "level"]), surface, point, found, ends


@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_marginals_carry_their_intervals_their_fit_and_the_point(cells, strength):
    marginals, _, point, found, ends = with_draws(cells, strength)
    axes = np.reshape(drawn(report.marginal_curves(marginals, found.fits, point, ends)), (2, 3))
    rows = (("error_mean", "generalization_bound"), ("kappa_loss_mean", "diversity_bound"))
    for line, (name, bound) in enumerate(rows):
        for column, axis in enumerate(statistics.AXES):
            ax, scale = axes[line, column], 1e6 if axis == "weights" else 1
            table, reading = marginals[marginals["axis"] == axis], getattr(getattr(point, bound), axis)
            curve, star = ax.containers
            np.testing.assert_allclose(np.array(curve.lines[0].get_data(), dtype=float), [table["level"] / scale, table[name]])
            (bars,) = curve.lines[2]
            ends_of_bars = np.array([bar[:, 1] for bar in bars.get_segments()], dtype=float)
            np.testing.assert_allclose(ends_of_bars, table[[f"{name}_low", f"{name}_high"]])
            place = getattr(point, axis) / scale
            np.testing.assert_allclose(np.ravel(star.lines[0].get_data()).astype(float), [place, reading])
            fit = next(line for line in ax.lines if line.get_linestyle() == "--")
            assert np.interp(place, *fit.get_data()) == pytest.approx(reading, abs=2e-3), "the star lies on the fit"
            low, high = ends.loc[f"{bound}_by_{axis}", ["low", "high"]]
            assert ax.get_title() == f"bound {reading:.3f} ({low:.3g} to {high:.3g})"
            assert low < high
    assert axes[0, 2].get_xscale() == "log"


def test_too_few_classes_have_no_bars_and_no_brackets(cells):
    marginals, surface, point, found, ends = with_draws(cells, classes=7)
    axes = drawn(report.marginal_curves(marginals, found.fits, point, ends))
    assert not any(container.has_yerr for ax in axes for container in ax.containers)
    assert "(" not in axes[0].get_title()
    assert "There are too few classes for intervals." in report.say_point("all", point, surface, 1.0, ends)


def test_one_level_on_an_axis_is_drawn_as_a_point(cells):
    marginals, _, point, found, ends = with_draws(cells[(cells["model"] == "RN50") & (cells["unseen_fraction"] == 0)])
    axes = drawn(report.marginal_curves(marginals, found.fits, point, ends))
    assert len(axes) == 6 and axes[2].containers[0].lines[0].get_xdata().tolist() == [38]


@pytest.fixture(scope="module")
def errors(cells):
    size = cells.drop_duplicates("model").set_index("model")["weights"]
    complexities = pd.DataFrame({"param_norm": size, "inverse_margin": -size, "l2": np.nan})
    return statistics.slice_sign_errors(complexities, cells, resamples=50)


def test_sign_errors_are_drawn_beside_the_printed_ones_and_their_slices(errors, cells):
    ranks, unseen, noise = drawn(report.sign_error_figure(errors, cells, {"param_norm": "parameter norm"}))
    ranked = errors.dropna(subset="mean_rank")
    assert [label.get_text() for label in ranks.get_yticklabels()] == [
        {"param_norm": "parameter norm"}.get(name, name) for name in ranked["measure"]
    ]
    markers = [line for line in ranks.lines if line.get_marker() not in ("None", "")]
    slices = [name for name in errors if "_over_" in name]
    for ours, theirs, name in zip(markers[::2], markers[1::2], slices, strict=True):
        np.testing.assert_allclose(ours.get_xdata(), ranked[name])
        assert np.abs(ours.get_ydata() - np.arange(2)).max() < 0.5
        assert theirs.get_markerfacecolor() == "none"
    printed = dict(zip(ranked["measure"], markers[1].get_xdata(), strict=True))
    assert printed == {"param_norm": 0.366667, "inverse_margin": 0.428571}
    for ax, axis, kept in ((unseen, "unseen_fraction", cells["ssim"] == 1), (noise, "ssim", cells["unseen_fraction"] == 0)):
        assert len(ax.lines) == 2 * len(WEIGHTS)
        rows = cells[kept & (cells["model"] == BY_SIZE[0])].sort_values(axis)
        np.testing.assert_allclose(ax.lines[0].get_data(), rows[[axis, "error_mean"]].T)
        np.testing.assert_allclose(ax.lines[1].get_data(), rows[[axis, "error_10th_percentile"]].T)


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
    marginals, _, point, found, ends = with_draws(cells)
    hollow, undefined = (
        marginals.assign(error_mean=np.nan),
        statistics.slice_sign_errors(pd.DataFrame({"l2": np.nan}, index=BY_SIZE), cells),
    )
    figures = {
        "No cell has a defined error rate, mean over classes.": report.heat_maps(cells.assign(error_mean=np.nan), "error_mean"),
        "No cell has a defined something.": report.heat_maps(cells.iloc[:0].assign(something=0.0), "something"),
        "No class has test images, so there is no Kappa to draw.": report.kappa_error_diagram(classes.assign(error=np.nan)),
        "No marginal is defined, because cells are missing.": report.marginal_curves(hollow, found.fits, point, ends),
        "5 networks: no sign error is defined.": report.sign_error_figure(undefined, cells, {}),
        "No lambda was tried.": report.sensitivity_curves(tradeoff.sensitivity(surface, [])),
    }
    for message, figure in figures.items():
        assert [text.get_text() for text in drawn(figure)[0].texts] == [message]


def test_pictures_stay_small_and_nothing_is_cut(cells, classes, surface, errors):
    marginals, _, point, found, ends = with_draws(cells)
    figures = [
        report.heat_maps(cells, "kappa_loss_mean"),
        report.heat_maps(cells[cells["model"] == "RN50"], "divergence"),
        report.kappa_error_diagram(classes),
        report.marginal_curves(marginals, found.fits, point, ends),
        report.sign_error_figure(errors, cells, {"param_norm": "a title that is as long as the longest one of them"}),
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
    assert report.heading("clip", table) == "### CLIP: random weights"
    assert report.weights_title(table) == "**Random weights.**"
    made = table.assign(origin="made on 10 classes")
    assert report.heading("resnet", made) == "### ResNet: weights made on 10 classes"
    assert report.heading("efficientnet-like", made).startswith("### EfficientNet-like: ")
    assert report.heading("model set", made).startswith("### Model set: ")
    assert report.weights_named(["random", "made on 4 classes", "random"]) == "random weights, weights made on 4 classes"


def test_unseen_means_unseen_by_the_backbone():
    text = report.classes_named(["cat", "dog", "cow"], 2, True)
    assert "2 classes adapt the backbones" in text
    assert "1 more class is backbone-unseen**: cow." in text
    assert "no zero-shot claim" in text
    assert "no backbone was adapted" in report.classes_named(["cat", "dog"], 1, False)
    assert "no class is backbone-unseen" in report.classes_named(["cat", "dog"], 2, True)


def test_made_networks_are_counted_and_what_they_read_is_told():
    made = pd.DataFrame({"model": ["a", "b"], "classes": 50, "epochs": 24, "seconds": [60.0, 120.0], "test_accuracy": [0.4, 0.46]})
    text = report.say_made(made)
    assert "**2 networks made on the spot**, 24 passes over 50 classes each, 3 minutes in all." in text
    assert "read 40.0 % (a) to 46.0 % (b), where guessing gives 2.0 %." in text
    assert report.say_made(pd.DataFrame()) == "No network was made on the spot."


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
    assert "**CLIP**, lambda 0: the balance lies at SSIM 1.000, an unseen share of 0.000 and 5 million weights." in text
    read = [f"{getattr(point.generalization_bound, axis):.3f} along" for axis in statistics.AXES]
    assert all(words in text for words in read) and f"their mean is {point.generalization_bound.mean:.3f}." in text
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
    errors = {
        "all": statistics.slice_sign_errors(complexities, table),
        "one": statistics.slice_sign_errors(complexities, table[table["model"] == "a"]),
    }
    text = report.say_sign_errors(errors, {"param_norm": "parameter norm"})
    assert "**all**, 2 networks and 1 pair: " in text
    assert "parameter norm (" in text
    assert "**one**: 1 network can be ordered, so no sign error is defined." in text


def test_the_answer_and_the_published_bounds_are_numbers_of_the_tables(surface_kappa_readings):
    point = tradeoff.trade_off_point(surface_kappa_readings)
    table2 = tables.beside_table2({"clip": point}, {"clip": with_draws(probing.cells(grid()))[3]}, 8)
    text = report.kappa_answer({"clip": point}, {"clip": ["random", "random"]}, 1.0, table2)
    assert f"CLIP (random weights) balances at SSIM {point.ssim:.2f} (" in text
    low, high = table2.set_index("quantity").loc["generalization_bound", ["low", "high"]]
    assert f"the mean error is {point.generalization_bound.mean:.2f} ({low:.3g} to {high:.3g}). Brackets are 95 % intervals." in text
    beside = report.points_beside_published(table2)
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

import io
import itertools

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from helpers import kappa, kappa_plots, tradeoff

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
    return table.assign(divergence=rng.uniform(0, 20, len(table)), **{name: rng.uniform(0.1, 0.6, len(table)) for name in kappa.STATISTICS})


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
    *axes, bar = drawn(kappa_plots.heat_maps(cells.sample(frac=1, random_state=0), column))
    assert [ax.get_title() for ax in axes] == [f"{name} ({WEIGHTS[name] / 1e6:.3g} M)" for name in BY_SIZE]
    for ax, model in zip(axes, BY_SIZE, strict=True):
        shown = cells[cells["model"] == model].set_index(["ssim", "unseen_fraction"])[column].unstack()
        np.testing.assert_array_equal(ax.images[0].get_array(), shown)
        assert ax.images[0].get_clim() == (cells[column].min(), cells[column].max())
        assert ax.images[0].origin == "lower", "clean images on top"
    assert [label.get_text() for label in axes[0].get_yticklabels()] == [f"{level:g}" for level in SSIM]
    assert [label.get_text() for label in axes[4].get_xticklabels()] == ["0", "0.2", "0.4"]
    assert kappa_plots._NAMES[column].split(" ")[0] in bar.get_ylabel()


def test_a_missing_cell_is_crossed_out_at_its_place(cells):
    damaged = cells.drop(index=cells.query("model == 'RN50' and ssim == 0.7 and unseen_fraction == 0.4").index)
    damaged.loc[damaged.query("model == 'RN50' and ssim == 1 and unseen_fraction == 0").index, "error_mean"] = np.nan
    ax = drawn(kappa_plots.heat_maps(damaged, "error_mean"))[BY_SIZE.index("RN50")]
    assert sorted(zip(*ax.lines[0].get_data(), strict=True)) == [(0, 8), (2, 2)]


def test_the_diagram_holds_every_class_with_a_colour_and_marker_per_noise_level(classes):
    figure = kappa_plots.kappa_error_diagram(classes)
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
    ax, _ = drawn(kappa_plots.kappa_error_diagram(untested))
    assert ax.get_title() == "resnet18, n = 53"


@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_marginals_carry_their_band_polynomial_and_the_point(cells, surface, strength):
    marginals, point = kappa.marginals(cells), tradeoff.trade_off_point(surface, strength)
    axes = np.reshape(drawn(kappa_plots.marginal_curves(marginals, surface, point)), (2, 3))
    readings = (point.generalization_bound, point.diversity_bound)
    for line, (name, reading) in enumerate(zip(("error", "kappa_loss"), readings, strict=True)):
        for column, axis in enumerate(kappa.AXES):
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
    axes = drawn(kappa_plots.marginal_curves(kappa.marginals(one), surface, tradeoff.trade_off_point(surface)))
    assert len(axes) == 6 and axes[2].lines[0].get_xdata().tolist() == [38]


@pytest.mark.parametrize(("lambdas", "scale"), [((0.1, 0.5, 1, 2), "log"), ((0, 0.1, 1), "symlog"), ((1,), "linear")])
def test_sensitivity_draws_the_table(surface, lambdas, scale):
    table = tradeoff.sensitivity(surface, lambdas)
    axes = drawn(kappa_plots.sensitivity_curves(table.iloc[::-1]))
    for ax, axis in zip(axes, kappa.AXES, strict=False):
        np.testing.assert_allclose(ax.lines[0].get_data(), [lambdas, table[axis] / (1e6 if axis == "weights" else 1)])
    assert [text.get_text() for text in axes[3].get_legend().get_texts()] == ["generalization", "diversity"]
    np.testing.assert_array_equal([line.get_ydata() for line in axes[3].lines[:2]], table[["generalization_bound", "diversity_bound"]].T)
    assert {ax.get_xscale() for ax in axes} == {scale}
    assert all(ax.lines[-1].get_xdata() == [1, 1] for ax in axes)
    assert len(drawn(kappa_plots.sensitivity_curves(table, None))[0].lines) == 1


def test_nothing_to_draw_is_said_in_words(cells, classes, surface):
    hollow, point = kappa.marginals(cells).assign(error_mean=np.nan), tradeoff.trade_off_point(surface)
    figures = {
        "No cell has a defined error rate, mean over classes.": kappa_plots.heat_maps(cells.assign(error_mean=np.nan), "error_mean"),
        "No cell has a defined something.": kappa_plots.heat_maps(cells.iloc[:0].assign(something=0.0), "something"),
        "No class has test images, so there is no Kappa to draw.": kappa_plots.kappa_error_diagram(classes.assign(error=np.nan)),
        "No marginal is defined, because cells are missing.": kappa_plots.marginal_curves(hollow, surface, point),
        "No lambda was tried.": kappa_plots.sensitivity_curves(tradeoff.sensitivity(surface, [])),
    }
    for message, figure in figures.items():
        assert [text.get_text() for text in drawn(figure)[0].texts] == [message]


def test_pictures_stay_small_and_nothing_is_cut(cells, classes, surface):
    figures = [
        kappa_plots.heat_maps(cells, "kappa_loss_mean"),
        kappa_plots.heat_maps(cells[cells["model"] == "RN50"], "divergence"),
        kappa_plots.kappa_error_diagram(classes),
        kappa_plots.marginal_curves(kappa.marginals(cells), surface, tradeoff.trade_off_point(surface)),
        kappa_plots.sensitivity_curves(tradeoff.sensitivity(surface, [0.1, 1, 2])),
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

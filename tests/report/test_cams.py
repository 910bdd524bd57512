"""Maps over images: what stands on an axis is what it was given, and boxes lie where their pixels are."""

import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.patches import Rectangle
from torch import nn

from helpers.cams.overlap import bounding_rectangles, box_masks, cam_masks, iou_and_iou_b, upsample
from helpers.data import synthetic
<<<<<<< HEAD
from helpers.data.dataset import ImageSet
from helpers.networks import resnet
from helpers.report import cams
from helpers.scoring.models import Model
=======
from helpers.report import cams, style, training
from helpers.scoring import look
>>>>>>> data

SIZE, THRESHOLD = 32, 0.5


@pytest.fixture(autouse=True)
def without_a_window():
    with matplotlib.rc_context({"backend": "agg"}):
        yield
    plt.close("all")


<<<<<<< HEAD
=======
def drawn(figure):
    """Draw for real, so that what only fails at drawing fails here; return its axes."""
    figure.savefig(io.BytesIO(), format="png", dpi=50)
    return figure.axes


def words(figure):
    """Every text of a figure that is not empty."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


def legend_words(legend):
    return [text.get_text() for text in legend.get_texts()]


def points(ax):
    """All markers of an axis without a line, as sorted (x, y) pairs."""
    lines = [line for line in ax.lines if line.get_linestyle() == "None"]
    return sorted((float(x), float(y)) for line in lines for x, y in zip(*line.get_data(), strict=True))


@pytest.fixture
def catalogue():
    """Forty models of four architectures, the smaller gap the larger IoU; row 0 has no IoU, row 1 no gap."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"architecture": np.repeat(ARCHITECTURES[::-1], [13, 11, 9, 7]), "gap": rng.uniform(0.02, 0.6, 40)})
    table["iou"] = 0.5 - 0.5 * table["gap"] + rng.normal(0, 0.03, 40)
    table.loc[0, "iou"], table.loc[1, "gap"] = np.nan, np.nan
    return table


@pytest.fixture
def histories():
    rng = np.random.default_rng(1)
    runs = [
        pd.DataFrame(
            {
                "run_id": f"run{number}",
                "architecture": ARCHITECTURES[number % 2],
                "epoch": np.arange(1, 6),
                "train_loss": np.sort(rng.uniform(0.1, 2, 5))[::-1],
                "train_accuracy": np.sort(rng.uniform(0, 1, 5)),
                "monitor_accuracy": rng.uniform(0, 1, 5),
            }
        )
        for number in range(5)
    ]
    return pd.concat(runs, ignore_index=True)


@pytest.fixture
def thresholds():
    rows = [
        {"measure": measure, "architecture": name, "threshold": threshold, "n": 10 * (number + 1) + step}
        for measure in ("iou", "iou_b")
        for number, name in enumerate(["resnet18", "resnet34"])
        for step, threshold in enumerate([0.95, 0.9])
    ]
    table = pd.DataFrame(rows)
    table["pearson_r"] = np.linspace(-0.9, -0.2, 8)
    return table.assign(ci_low=table["pearson_r"] - 0.05, ci_high=table["pearson_r"] + 0.2, published_r=np.linspace(-0.8, -0.7, 8))


def test_the_style_is_there_while_drawing_and_gone_afterwards(catalogue):
    before = dict(matplotlib.rcParams)
    with style.style():
        assert matplotlib.rcParams["axes.grid"] and not matplotlib.rcParams["axes.spines.top"]
        assert [matplotlib.colors.to_hex(colour) for colour in style.colours(["a", "b"]).values()] == ["#0173b2", "#de8f05"]
    training.gap_histogram(catalogue)
    assert dict(matplotlib.rcParams) == before


def test_architectures_stand_in_the_order_of_their_numbers():
    assert style.levels_in_order(pd.Series(["resnet101", "resnet18", "vit", "resnet34", "resnet18"])) == [
        "resnet18",
        "resnet34",
        "resnet101",
        "vit",
    ]
    assert style.levels_in_order(pd.Series([True, False, True])) == [False, True]
    assert style.levels_in_order(pd.Series([100, 25])) == [25, 100]


def test_gap_boxplot_draws_every_gap_in_points_and_counts_it(catalogue):
    (ax,) = drawn(training.gap_boxplot(catalogue))
    known = catalogue.dropna(subset="gap")
    np.testing.assert_allclose(sorted(y for _, y in points(ax)), sorted(100 * known["gap"]))
    counts = known["architecture"].value_counts()
    assert [label.get_text() for label in ax.get_xticklabels()] == [f"{name}\nn = {counts[name]}" for name in ARCHITECTURES]
    for place, name in enumerate(ARCHITECTURES, 1):
        here = sorted(y for x, y in points(ax) if abs(x - place) < 0.2)
        np.testing.assert_allclose(here, sorted(100 * known.loc[known["architecture"] == name, "gap"]))
    assert "percentage points" in ax.get_ylabel()


def test_gap_boxplot_tells_architectures_apart_without_colour(catalogue):
    (ax,) = drawn(training.gap_boxplot(catalogue))
    markers = [line.get_marker() for line in ax.lines if line.get_linestyle() == "None"]
    assert len(markers) == len(set(markers)) == 4


def test_gap_boxplot_draws_medians(catalogue):
    (ax,) = drawn(training.gap_boxplot(catalogue))
    medians = 100 * catalogue.groupby("architecture")["gap"].median()
    levels = [line.get_ydata()[0] for line in ax.lines if line.get_linestyle() != "None" and np.ptp(line.get_ydata()) == 0]
    assert all(np.isclose(levels, median).any() for median in medians)


def test_gap_histogram_holds_every_model_with_a_gap(catalogue):
    (ax,) = drawn(training.gap_histogram(catalogue))
    assert sum(bar.get_height() for bar in ax.patches) == 39
    assert ax.get_ylabel() == "models (n = 39)" and "percentage points" in ax.get_xlabel()
    edges = [bar.get_x() for bar in ax.patches] + [ax.patches[-1].get_x() + ax.patches[-1].get_width()]
    np.testing.assert_allclose([edges[0], edges[-1]], [100 * catalogue["gap"].min(), 100 * catalogue["gap"].max()])


def test_training_curves_draw_one_line_per_run(histories):
    figure = training.training_curves(histories)
    axes = drawn(figure)
    for ax, column in zip(axes, ["train_loss", "train_accuracy", "monitor_accuracy"], strict=True):
        lines = {tuple(line.get_ydata()) for line in ax.lines}
        assert lines == {tuple(run[column]) for _, run in histories.groupby("run_id")}
        assert all(line.get_xdata().tolist() == [1, 2, 3, 4, 5] for line in ax.lines)
        assert len({line.get_linestyle() for line in ax.lines}) == 2, "a line style per architecture"
        assert ax.get_xlabel() == "epoch"
    assert [ax.get_yscale() for ax in axes] == ["log", "linear", "linear"]
    assert axes[0].get_ylabel() == "training loss (nats)" and "held out" in axes[2].get_ylabel()
    assert drawn(training.training_curves(histories, "test"))[2].get_ylabel() == "test accuracy"
    assert all("%" in label.get_text() for ax in axes[1:] for label in ax.get_yticklabels())
    assert legend_words(figure.legends[0]) == ["resnet18 (3 runs)", "resnet34 (2 runs)"]


def test_a_run_of_one_epoch_is_seen(histories):
    axes = drawn(training.training_curves(histories[histories["epoch"] == 1]))
    assert all(line.get_marker() == "." for line in axes[0].lines)


def test_training_curves_survive_a_diverged_run(histories):
    histories.loc[histories["run_id"] == "run0", ["train_loss", "train_accuracy"]] = np.nan
    assert len(drawn(training.training_curves(histories))[0].lines) == 5


def test_late_changes_are_drawn_in_percent_and_counted():
    table = pd.DataFrame(
        {
            "run_id": ["a", "a", "b", "b"],
            "epoch": [9, 10, 9, 10],
            "relative_loss_change": [-0.1, np.nan, 0.02, 0.03],
            "relative_accuracy_change": [0.1, 0.2, 0.3, 0.4],
            "loss_change_of_run": [-0.5, 0.5, 0.01, 0.02],
            "accuracy_change_of_run": [0.05, 0.06, 0.07, 0.08],
        }
    )
    figure = training.late_changes_figure(table)
    whole_loss, whole_accuracy, loss, accuracy = drawn(figure)
    np.testing.assert_allclose(whole_loss.lines[0].get_ydata(), [-50, 50])
    np.testing.assert_allclose([line.get_ydata() for line in whole_accuracy.lines[:2]], [[5, 6], [7, 8]])
    np.testing.assert_allclose(loss.lines[0].get_ydata(), [-10, np.nan])
    np.testing.assert_allclose([line.get_ydata() for line in accuracy.lines[:2]], [[10, 20], [30, 40]])
    assert "(% of the epoch before)" in loss.get_ylabel() and "(% of the epoch before)" in accuracy.get_ylabel()
    assert "(% of the run's range)" in whole_loss.get_ylabel()
    assert figure.get_suptitle().endswith("(n = 2)")


def test_the_floor_of_iou_is_a_line_in_every_panel_and_in_none_of_other_measures(catalogue):
    known = catalogue.assign(whole_image_floor=0.37, energy_in_box=catalogue["iou"])
    for table, measure, lines in ((known, "iou", 5), (known, "energy_in_box", 0), (catalogue, "iou", 0)):
        dashed = [line for ax in drawn(cams.measure_against_gap(table, measure)) for line in ax.lines if line.get_linestyle() == "--"]
        assert sum(np.allclose(line.get_xdata(), 0.37) for line in dashed) == lines
    assert "the whole image: 0.370" in words(cams.measure_against_gap(known, "iou"))


def test_measure_against_gap_draws_every_defined_model_pooled_and_by_architecture(catalogue):
    figure = cams.measure_against_gap(catalogue, "iou")
    axes = drawn(figure)[:5]
    known = catalogue.dropna()
    for ax, (name, models) in zip(axes, [("pooled", known), *((a, known[known["architecture"] == a]) for a in ARCHITECTURES)], strict=True):
        np.testing.assert_allclose(points(ax), sorted(zip(models["iou"], 100 * models["gap"], strict=True)))
        r = np.corrcoef(models["iou"], models["gap"])[0, 1]
        assert ax.get_title() == f"{name}: r = {r:.2f}, n = {len(models)}"
    assert axes[0].get_title().endswith("n = 38")
    assert figure.legends[0].get_title().get_text() == "2 without a value left out"
    markers = [line.get_marker() for line in axes[0].lines if line.get_linestyle() == "None"]
    assert len(set(markers)) == 4
    assert "percentage points" in axes[0].get_ylabel() and axes[3].get_xlabel() == "IoU"


def test_every_column_of_panels_ends_with_a_labelled_axis(catalogue):
    """Five panels on two rows of three: the third of the first row has none below it."""
    axes = drawn(cams.measure_against_gap(catalogue, "iou"))
    labelled = [ax.get_xlabel() == "IoU" and any(label.get_visible() for label in ax.get_xticklabels()) for ax in axes[:5]]
    assert labelled == [False, False, True, True, True]


def test_infinite_measures_are_left_out_too(catalogue):
    catalogue.loc[2, "iou"] = np.inf
    figure = cams.measure_against_gap(catalogue, "iou")
    drawn(figure)
    assert figure.legends[0].get_title().get_text() == "3 without a value left out"


def test_one_architecture_has_one_panel(catalogue):
    assert len(drawn(cams.measure_against_gap(catalogue[catalogue["architecture"] == "resnet18"], "iou"))) == 1


def test_a_constant_measure_has_no_correlation(catalogue):
    figure = cams.measure_against_gap(catalogue.assign(iou=0.3), "iou")
    assert drawn(figure)[0].get_title() == "pooled: r undefined, n = 39"


def test_band_is_that_of_ordinary_least_squares():
    """Against scipy's line, and the interval of the mean from the covariance of the coefficients."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=12), rng.normal(size=12)
    _, ax = plt.subplots()
    style.fit_band(ax, x, y)
    expected = scipy.stats.linregress(x, y)
    at, line = ax.lines[0].get_data()
    np.testing.assert_allclose(line, expected.intercept + expected.slope * at)
    design = np.column_stack([np.ones(12), x])
    noise = ((y - expected.intercept - expected.slope * x) ** 2).sum() / 10
    covariance = noise * np.linalg.inv(design.T @ design)
    grid = np.column_stack([np.ones(len(at)), at])
    half = scipy.stats.t.ppf(0.975, 10) * np.sqrt(np.einsum("ij,jk,ik->i", grid, covariance, grid))
    corners = ax.collections[0].get_paths()[0].vertices
    for place, low, high in zip(at[1:-1], (line - half)[1:-1], (line + half)[1:-1], strict=True):
        here = corners[np.isclose(corners[:, 0], place), 1]
        np.testing.assert_allclose([here.min(), here.max()], [low, high])


def test_thresholds_draw_ours_filled_published_hollow_and_the_interval(thresholds):
    figure = cams.correlation_by_threshold(thresholds)
    for ax, measure in zip(drawn(figure), ["iou", "iou_b"], strict=True):
        rows = thresholds[thresholds["measure"] == measure]
        marked = [line for line in ax.lines if line.get_linestyle() == "None" and line.get_marker() in ("o", "s")]
        filled = [y for line in marked if line.get_fillstyle() == "full" for y in line.get_ydata()]
        hollow = [y for line in marked if line.get_fillstyle() == "none" for y in line.get_ydata()]
        np.testing.assert_allclose(filled, rows["pearson_r"])
        np.testing.assert_allclose(hollow, rows["published_r"])
        ends = np.concatenate([[path.vertices[:, 1] for path in bars.get_paths()] for bars in ax.collections])
        np.testing.assert_allclose(ends, rows[["ci_low", "ci_high"]])
        assert [text.get_text() for text in ax.texts] == [f"n={n}" for n in rows["n"]]
        assert "(%)" in ax.get_xlabel()
    assert [ax.get_title() for ax in figure.axes] == ["IoU", "IoU-B"]


def test_the_total_of_one_architecture_is_not_drawn_twice(thresholds):
    alone = thresholds.assign(architecture=thresholds["architecture"].replace("resnet34", "Total"))
    axes = drawn(cams.correlation_by_threshold(alone))
    assert legend_words(axes[-1].get_legend()) == ["resnet18"]
    assert [text.get_rotation() for text in axes[0].texts] == [0, 0]


def test_thresholds_stand_near_their_own_threshold(thresholds):
    ax = drawn(cams.correlation_by_threshold(thresholds))[0]
    filled = [line for line in ax.lines if line.get_marker() in ("o", "s") and line.get_fillstyle() == "full"]
    assert all(np.abs(line.get_xdata() - [95, 90]).max() < 2.5 for line in filled)


def test_an_undefined_correlation_leaves_a_hole_only(thresholds):
    thresholds.loc[0, ["pearson_r", "ci_low", "ci_high"]] = np.nan
    ax = drawn(cams.correlation_by_threshold(thresholds))[0]
    assert np.isfinite([y for _, y in points(ax)]).sum() >= 3 + 4


def nothing(columns):
    return pd.DataFrame({name: pd.Series(dtype=float) for name in columns})


@pytest.mark.parametrize(
    ("draw", "table", "message"),
    [
        (training.gap_boxplot, nothing(["architecture", "gap"]), "No model with a gap is kept, so there is nothing to draw."),
        (
            training.gap_boxplot,
            pd.DataFrame({"architecture": ["a"], "gap": [np.nan]}),
            "No model with a gap is kept, so there is nothing to draw.",
        ),
        (training.gap_histogram, pd.DataFrame({"gap": [np.nan]}), "No model with a gap is kept, so there is nothing to draw."),
        (training.training_curves, nothing(["run_id", "epoch"]), "No run has a history."),
        (training.late_changes_figure, nothing(["run_id", "epoch"]), "No run ended at the epoch cap."),
        (
            lambda table: cams.measure_against_gap(table, "iou"),
            nothing(["architecture", "gap", "iou"]),
            "0 models with a defined IoU: too few to draw against the gap.",
        ),
        (
            lambda table: cams.measure_against_gap(table, "iou"),
            pd.DataFrame({"architecture": ["a"] * 4, "gap": [0.1, 0.2, np.nan, 0.3], "iou": [np.nan, 0.1, 0.2, 0.3]}),
            "2 models with a defined IoU: too few to draw against the gap.",
        ),
        (
            cams.correlation_by_threshold,
            nothing(["pearson_r"]),
            "No architecture has enough models above any threshold for a correlation.",
        ),
        (
            cams.correlation_by_threshold,
            pd.DataFrame({"pearson_r": [np.nan]}),
            "No architecture has enough models above any threshold for a correlation.",
        ),
    ],
)
def test_nothing_to_draw_is_said_in_words(draw, table, message):
    figure = draw(table)
    drawn(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == [message]


>>>>>>> data
@pytest.fixture(scope="module")
def scenes():
    images, labels, boxes = synthetic.scenes(3, 2, SIZE, 0, "train")
    return ImageSet(torch.from_numpy(images), torch.as_tensor(labels), torch.from_numpy(boxes), tuple("abcdef"))


@pytest.fixture(scope="module")
def found(scenes):
    """Maps of nobody for the six scenes, and what follows from them."""
    maps = torch.rand(6, 4, 4, generator=torch.Generator().manual_seed(0))
    return cams.Look(maps, scenes.labels.clone(), *iou_and_iou_b(maps, scenes.boxes, SIZE, THRESHOLD))


def drawn(figure):
    """Draw for real, so that what only fails at drawing fails here; its axes."""
    figure.savefig(io.BytesIO(), format="png", dpi=50)
    return figure.axes


def outlines(ax):
    """Half-open boxes back from the rectangles on an axis; pixel centres lie at whole numbers."""
    found = [patch for patch in ax.patches if isinstance(patch, Rectangle)]
    return [[p.get_x() + 0.5, p.get_y() + 0.5, p.get_x() + p.get_width() + 0.5, p.get_y() + p.get_height() + 0.5] for p in found]


<<<<<<< HEAD
def test_a_look_holds_the_prediction_of_the_network_and_the_overlap_of_its_maps(scenes):
    network = resnet.build("resnet18", 3, stem="small", width=0.125, seed=0)
    looked = cams.look(Model("m", load=lambda device: network), scenes, method="grad_cam", threshold=THRESHOLD, device="cpu")
    with torch.inference_mode():
        expected = network.eval()(resnet.normalise_images(scenes.images)).argmax(1)
    assert torch.equal(looked.predicted, expected)
    assert len(looked.maps) == 6 and (looked.maps.flatten(1).amax(1) <= 1).all()
    torch.testing.assert_close(looked.iou, iou_and_iou_b(looked.maps, scenes.boxes, SIZE, THRESHOLD)[0])
    assert isinstance(network, nn.Module) and not any(module._forward_hooks for module in network.modules())


def test_what_is_taught_by_is_a_right_prediction_with_the_middle_overlap(scenes):
    labels, iou = scenes.labels, torch.tensor([0.9, 0.1, 0.5, 0.4, 0.2, 0.3])
    predicted = labels.clone()
    predicted[0] = (labels[0] + 1) % 3  # the largest overlap, and wrong
    assert cams.a_right_prediction(cams.Look(torch.zeros(6, 4, 4), predicted, iou, iou), scenes) == 5  # of .1 .2 .3 .4 .5
    wrong = cams.Look(torch.zeros(6, 4, 4), (labels + 1) % 3, iou, iou)
    assert cams.a_right_prediction(wrong, scenes) == 0


def test_steps_show_what_they_are_given(scenes, found):
    figure = cams.step_by_step(found, scenes, 1, THRESHOLD)
=======
def test_cam_steps_show_what_they_are_given(scenes, looks):
    images, _, boxes = scenes
    maps, enlarged, masks, iou, iou_b = looks
    box_masks, rectangles = cams_overlap.box_masks(boxes, 32), bounding_rectangles(masks)
    values = float(iou[1]), float(iou_b[1])
    steps = look.Steps(images[1], maps[1], enlarged[1], masks[1], box_masks[1], boxes[1], rectangles[1], *values, 0, 2)
    figure = cams.cam_steps(steps, "a model")
>>>>>>> data
    axes = drawn(figure)
    mask = cam_masks(found.maps[1:2], SIZE, THRESHOLD)
    np.testing.assert_array_equal(axes[1].images[0].get_array(), found.maps[1])
    np.testing.assert_array_equal(axes[2].images[1].get_array(), upsample(found.maps[1:2], SIZE)[0])
    assert outlines(axes[0]) == scenes.boxes[1].tolist()
    assert outlines(axes[3]) == [*scenes.boxes[1].tolist(), bounding_rectangles(mask)[0].tolist()]
    assert len({patch.get_linestyle() for patch in axes[3].patches}) == 2, "the two rectangles differ without colour"
    np.testing.assert_array_equal(~np.ma.getmaskarray(axes[3].images[1].get_array()), ~mask[0].numpy())
    overlap = np.asarray(axes[4].images[0].get_array())
    assert (overlap == 3).sum() / (overlap > 0).sum() == pytest.approx(float(found.iou[1]))
    assert axes[4].get_title() == f"both / either: IoU {found.iou[1]:.2f}\nrectangle: IoU-B {found.iou_b[1]:.2f}"


def test_the_legend_of_the_overlap_names_the_shades_that_are_drawn(scenes, found):
    figure = cams.step_by_step(found, scenes, 0, THRESHOLD)
    shown = drawn(figure)[4].images[0]
    colours = shown.cmap(shown.norm(np.asarray(shown.get_array())))
    mask, box = cam_masks(found.maps[:1], SIZE, THRESHOLD)[0].numpy(), box_masks(scenes.boxes[:1], SIZE)[0].numpy()
    of = {"neither": ~mask & ~box, "mask only": mask & ~box, "box only": box & ~mask, "both": mask & box}
    for patch, text in zip(figure.legends[0].get_patches(), figure.legends[0].get_texts(), strict=True):
        here = colours[of[text.get_text()]]
        np.testing.assert_allclose(here, np.broadcast_to(patch.get_facecolor(), here.shape))


def test_overlays_have_a_row_per_model_and_a_column_per_image(scenes, found):
    few = [0, 2, 4]
    looks = [cams.Look(*(part[few] + shift for part in (found.maps, found.predicted, found.iou, found.iou_b))) for shift in (0, 1)]
    images = scenes.subset(few)
    axes = np.array(drawn(cams.overlays(looks, images, ["small gap", "large gap"], ["a", "b", "c"]))).reshape(2, 3)
    for row in range(2):
        for column in range(3):
            ax = axes[row, column]
            np.testing.assert_array_equal(ax.images[0].get_array(), images.images[column].numpy().transpose(1, 2, 0))
            np.testing.assert_allclose(ax.images[1].get_array(), upsample(looks[row].maps, SIZE)[column])
            assert outlines(ax) == images.boxes[column].tolist()
            assert ax.get_title() == ("abc"[column] + "\n" if row == 0 else "") + f"IoU {looks[row].iou[column]:.2f}"
    assert [axes[row, 0].texts[0].get_text() for row in range(2)] == ["small gap", "large gap"]


<<<<<<< HEAD
def test_a_box_of_zeros_is_padding():
    _, ax = plt.subplots()
    cams.draw_boxes(ax, torch.tensor([[1, 2, 5, 6], [0, 0, 0, 0]]))
    assert outlines(ax) == [[1, 2, 5, 6]]
=======
def test_no_model_to_look_through_is_said_in_words():
    overlays = look.Overlays(torch.zeros(0, 3, 3, 8, 8), torch.zeros(0, 3, 8, 8), torch.zeros(0, 3, 1, 4), torch.zeros(0, 3))
    figure = cams.cam_overlays(overlays, [], ["a", "b", "c"])
    drawn(figure)
    assert words(figure) == ["There is no model or no image to look at."]


def test_pictures_stay_small_and_nothing_is_cut(catalogue, histories, thresholds, scenes):
    """No text reaches beyond the figure, and a PNG at 100 dpi stays below 250 kB."""
    figures = [
        training.gap_boxplot(catalogue),
        training.gap_histogram(catalogue),
        training.training_curves(histories),
        cams.measure_against_gap(catalogue, "iou"),
        cams.correlation_by_threshold(thresholds),
    ]
    for figure in figures:
        file = io.BytesIO()
        figure.savefig(file, format="png", dpi=100)
        assert len(file.getvalue()) < 250_000
        renderer = figure.canvas.get_renderer()
        frame = figure.bbox.padded(2)
        for ax in figure.axes:
            for text in (ax.title, ax.xaxis.label, ax.yaxis.label):
                box = text.get_window_extent(renderer)
                if text.get_text() and ax.axison:
                    assert frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1, text.get_text()


def test_the_number_of_images_follows_from_the_noise_of_single_images():
    rng = np.random.default_rng(0)
    models = rng.normal(0, 1, (400, 1))
    # Variance 1 between models, 100 within: reliability of n images n / (n + 100), which is 0.95 at 1,900.
    values = {"iou": models + rng.normal(0, 10, (400, 400)), "iou_b": np.repeat(models, 400, 1), "mask_area": models + np.zeros((400, 400))}
    table = cams.images_enough(values).set_index("measure")
    assert list(table.index) == ["iou", "iou_b"]
    assert table.loc["iou", "reliability"] == pytest.approx(0.8, abs=0.04)
    assert table.loc["iou", "images_enough"] == pytest.approx(1900, rel=0.2)
    assert table["images"].tolist() == [400, 400]
    assert "The 400 images scored are not enough for IoU (reliability 0." in cams.say_images_enough(table.reset_index())


def test_measures_that_need_fewer_images_say_how_many():
    row = {"measure": "iou", "title": "IoU", "images": 1000, "reliability": 0.98, "images_enough": 388.0}
    text = cams.say_images_enough(pd.DataFrame([row]))
    assert text.strip() == "For a reliability of 0.95 these numbers of images would have been enough: IoU 388."
    assert cams.say_images_enough(cams.images_enough({})).startswith("No measure has a reliability")
>>>>>>> data

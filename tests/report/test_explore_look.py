"""Where does it look: every number shown is that of the functions that make the reports."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from PIL import Image

from helpers.cams import closed_form, gradient
from helpers.cams.overlap import iou_and_iou_b
from helpers.data.dataset import load_study_data
from helpers.measures import evidence
from helpers.networks import resnet
from helpers.report import explore
from helpers.report.explore.look import BOX, Lens, Look, _row, mosaic, overlap_colours
from helpers.scoring import common_set, models
from helpers.scoring.look import steps
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import train_run
from tests.conftest import TINY_SCENES

SIZE = 32  # of the images; maps of the last stage have 4 x 4 pixels


FACTOR = 6  # at which an image is drawn, at least 190 pixels wide


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = load_study_data(**TINY_SCENES | {"image_size": SIZE, "images_per_class": 14}, cache_dir=work / "cache")
    base = RunConfig("resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, stem="small", width=0.125, max_epochs=2)
    others = (replace(base, batch_size=16), replace(base, weight_decay=0.1), replace(base, learning_rate=1e30, optimizer="sgd"))
    for run in (base, *others):
        train_run(run, data, catalogue.run_folder(work, run))
    table = catalogue.analysed(catalogue.read_catalogue(work), 0.0)
    settings = evidence.MeasureSettings()
    scored_on = common_set.scoring_set(table, data)
    list(models.score_missing(work, table, data, scored_on, ["localization"], settings, device="cpu"))
    return work, data, models.with_measures(table, models.load_scores(work, table, scored_on, ["localization"], settings))


@pytest.fixture(autouse=True)
def a_reader(monkeypatch):
    monkeypatch.setenv(explore.SWITCH, "1")


@pytest.fixture
def panel(study):
    work, data, table = study
    return explore.where_it_looks(work, table, data)


def pixels(panel):
    return np.asarray(Image.open(io.BytesIO(panel.picture.value)))


def expected(study, model_id, image, method, threshold):
    """The report's way to one image."""
    work, data, table = study
    (model,) = catalogue.models_of(table[table["model_id"] == model_id])
    return steps(work, model, data.train.subset([image]), 3, method=method, threshold=threshold, device="cpu")


def test_models_with_a_gap_are_offered_by_gap_and_the_extremes_stand_side_by_side(panel, study):
    measured = study[2].dropna(subset="gap").sort_values("gap")
    offered = [value for _, value in panel.controls["left"].options]
    assert offered == measured["model_id"].tolist()
    assert len(offered) >= 2 and len(offered) < len(study[2])  # the diverged run is not offered
    assert [panel.controls[side].value for side in ("left", "right")] == [offered[0], offered[-1]]


@pytest.mark.parametrize("method", ["grad_cam", "grad_cam_plus_plus", "layer_cam"])
@pytest.mark.parametrize("threshold", [0.1, 0.55])
def test_the_numbers_of_the_last_stage_are_the_reports(panel, study, method, threshold):
    panel.controls["method"].value, panel.controls["threshold"].value = method, threshold
    ious = []
    for image in [value for _, value in panel.controls["image"].options[:3]]:
        panel.controls["image"].value = image
        for side in ("left", "right"):
            theirs, shown = expected(study, panel.controls[side].value, image, method, threshold), panel.numbers[side]
            for name in ("image", "boxes", "heat_map", "enlarged", "mask", "box_mask", "cam_box"):
                assert torch.equal(getattr(shown, name), getattr(theirs, name)), name
            assert (shown.iou, shown.iou_b, shown.predicted) == (theirs.iou, theirs.iou_b, theirs.predicted)
            assert f">{theirs.iou:.3f}<" in panel.reading.value
            ious.append(shown.iou)
    assert any(0 < iou < 1 for iou in ious), "maps and boxes overlap in part, or nothing was tested"


@pytest.mark.parametrize("method", gradient.GRADIENT_METHODS)
def test_another_layer_and_class_are_those_of_the_layer_maps(panel, study, method):
    work, data, table = study
    panel.controls["label"].value, panel.controls["layer"].value, panel.controls["method"].value = 2, "layer3", method
    image, shown = panel.controls["image"].value, panel.numbers["right"]
    (model,) = catalogue.models_of(table[table["model_id"] == panel.controls["right"].value])
    network = catalogue.load_model(work, model, 3)
    given = resnet.normalise_images(data.train.images[[image]]).contiguous(memory_format=torch.channels_last)
    maps = closed_form.normalise_maps(gradient.layer_maps(method, network, network.layer3, given, torch.tensor([2])))
    torch.testing.assert_close(shown.heat_map, maps[0], rtol=0, atol=1e-6)
    iou, iou_b = iou_and_iou_b(maps, data.train.boxes[[image]], SIZE, 0.1)
    assert (shown.iou, shown.iou_b) == (float(iou), float(iou_b))


def test_the_probability_is_that_of_the_predicted_class(panel, study):
    work, data, table = study
    (model,) = catalogue.models_of(table[table["model_id"] == panel.controls["left"].value])
    network = catalogue.load_model(work, model, 3)
    with torch.no_grad():
        chances = network(resnet.normalise_images(data.train.images[[panel.controls["image"].value]]))[0].softmax(0)
    assert panel.numbers["left"].probability == pytest.approx(float(chances.max()), rel=1e-4)
    name = data.classes["class_name"][int(chances.argmax())]
    assert f"{name} ({100 * float(chances.max()):.1f} %)" in panel.reading.value


def test_every_control_moves_the_picture(panel):
    changes = {"threshold": 0.6, "layer": "layer2", "method": "eigen_cam", "image": panel.controls["image"].options[2][1], "shown": 2}
    changes["right"] = panel.controls["left"].value
    for name, value in changes.items():
        before = panel.picture.value
        panel.controls[name].value = value
        assert panel.picture.value != before, name
        assert not panel.fault
    panel.controls["method"].value, panel.controls["layer"].value = "grad_cam", "layer4"
    seen = {panel.controls["label"].value: panel.picture.value}
    for label in (0, 1, 2):
        panel.controls["label"].value = label
        seen[label] = panel.picture.value
    assert len(set(seen.values())) == 3  # the predicted class is one of the three, unless the two models differ in it


def test_a_class_offers_its_own_images(panel, study):
    labels = study[1].train.labels
    for label in (1, 2, 0):
        panel.controls["shown"].value = label
        offered = [value for _, value in panel.controls["image"].options]
        assert offered == (labels == label).nonzero().flatten().tolist()
        assert panel.controls["image"].value == offered[0]
        assert torch.equal(panel.numbers["left"].image, study[1].train.images[offered[0]])


def test_a_step_of_the_threshold_asks_no_network(panel, monkeypatch):
    before = panel.numbers["left"].mask.sum()
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *given, **named: pytest.fail("a network was run"))
    panel.controls["threshold"].value = 0.9
    assert not panel.fault
    assert panel.numbers["left"].mask.sum() < before


def test_the_overlap_is_drawn_pixel_by_pixel(panel):
    picture, tile = pixels(panel), SIZE * FACTOR
    look = panel.numbers["left"]
    overlap = picture[2 * 22 : 2 * 22 + tile, 4 * (tile + 8) : 4 * (tile + 8) + tile]
    state = (look.mask.int() + 2 * look.box_mask.int()).numpy().repeat(FACTOR, 0).repeat(FACTOR, 1)
    for value, colour in enumerate(overlap_colours()):
        drawn = (np.abs(overlap.astype(int) - np.round(255 * np.array(to_rgb(colour)))) <= 1).all(-1)
        np.testing.assert_array_equal(drawn, state == value)


def test_the_box_is_outlined_where_it_lies(panel):
    x0, y0, x1, y1 = (FACTOR * value for value in panel.numbers["left"].boxes[0].tolist())
    tile = pixels(panel)[2 * 22 : 2 * 22 + SIZE * FACTOR, : SIZE * FACTOR]
    yellow = (tile == np.round(255 * np.array(to_rgb(BOX)))).all(-1)
    rows, columns = yellow.nonzero()
    assert (columns.min(), rows.min(), columns.max(), rows.max()) == (x0, y0, x1 - 1, y1 - 1)


def test_a_map_that_is_undefined_is_drawn_dark_with_an_undefined_iou():
    nothing = torch.zeros(4, 4, dtype=torch.bool)
    look = Look(
        torch.zeros(3, 4, 4, dtype=torch.uint8),
        torch.zeros(1, 4),
        torch.full((2, 2), torch.nan),
        torch.full((4, 4), torch.nan),
        *[nothing] * 2,
        torch.zeros(4),
        *[np.nan] * 2,
        0,
        1.0,
    )
    drawn = mosaic([look], ["title"])
    assert drawn.shape == (22 + 22 + 192 + 8, 5 * (192 + 8), 3)
    row = _row({"model_id": "m"}, look, ["a"])
    assert (row["IoU"], row["IoU-B"]) == ("undefined", "undefined")


def test_models_leave_as_they_came(study):
    work, data, table = study
    lens = Lens(work, table.dropna(subset="gap"), data, "cpu")
    model = table.dropna(subset="gap")["model_id"].iloc[0]
    network = lens.network(model)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    for method in gradient.GRADIENT_METHODS:
        lens.look(model, 0, method, "layer2", 1, 0.3)
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())
    assert not any(module._forward_hooks or module.training for module in network.modules())
    assert all(weight.grad is None for weight in network.parameters())


def test_a_single_model_stands_beside_itself(study):
    work, data, table = study
    shown = explore.where_it_looks(work, table.dropna(subset="gap").head(1), data)
    assert shown.controls["left"].value == shown.controls["right"].value
    assert shown.numbers["left"].iou == shown.numbers["right"].iou


def test_a_model_without_its_weights_says_so_and_the_others_go_on(panel, monkeypatch):
    first, last = panel.controls["left"].value, panel.controls["right"].value
    other = next(value for _, value in panel.controls["left"].options if value not in (first, last))
    monkeypatch.setattr(catalogue, "snapshot_path", lambda folder, snapshot: folder / "gone.safetensors")
    panel.controls["left"].value = other
    assert "gone.safetensors is missing; delete the folder" in panel.reading.value
    panel.controls["left"].value = first
    assert not panel.fault


def test_names_of_classes_are_shown_as_text(study):
    work, data, table = study
    data = replace(data, classes=data.classes.assign(class_name=["<img src=x>", "../up", "a & b"]))
    shown = explore.where_it_looks(work, table, data)
    for label in range(3):
        shown.controls["shown"].value = label
        assert "<img" not in shown.reading.value
    assert not shown.fault


def test_cam_opens_as_grad_cam(study):
    work, data, table = study
    assert explore.where_it_looks(work, table, data, method="cam").controls["method"].value == "grad_cam"


@pytest.mark.parametrize(("method", "threshold"), [("gradcam", 0.1), ("grad_cam", 0.0), ("grad_cam", 1.0)])
def test_an_unknown_method_and_a_threshold_out_of_range_are_refused(study, method, threshold):
    work, data, table = study
    with pytest.raises(ValueError, match=rf"^CAM method '{method}' must be one of grad_cam, .*, threshold {threshold} between 0 and 1$"):
        explore.where_it_looks(work, table, data, method=method, threshold=threshold)


def test_a_model_set_that_diverged_altogether_is_refused(study):
    work, data, table = study
    with pytest.raises(ValueError, match=r"^no model has a gap, so there is none to look at"):
        explore.where_it_looks(work, table[table["gap"].isna()], data)

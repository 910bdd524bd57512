"""One precision for all scores of a study, and what bfloat16 changes in them beside what models differ by."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.data.images import load_study_data
from helpers.measures import evidence
from helpers.scoring import models, precision
from helpers.scoring.common_set import scoring_set
from helpers.scoring.single_images import folder_name, image_values
from helpers.training import catalogue
from helpers.training import precision as settled
from helpers.training.config import PRECISIONS, RunConfig
from helpers.training.precision import smallest_shape
from helpers.training.run import train_run

FLOAT32, BFLOAT16 = (evidence.MeasureSettings(precision=name) for name in PRECISIONS)
FAMILIES = ["localization", "prediction"]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Five runs of a narrow network on rendered scenes of 32 pixels, whose maps have 8 x 8 cells; one of them learns too slowly."""
    work = tmp_path_factory.mktemp("work")
    scenes = {"class_ids": ["synthetic_disc", "synthetic_cross", "synthetic_bars"], "images_per_class": 24, "test_images_per_class": 4}
    data = load_study_data(data_source="synthetic", image_size=32, **scenes, cache_dir=work / "cache")
    form = {"stem": "strided", "width": 0.25, "last_stride": 1, "data": data.fingerprint}
    base = RunConfig("resnet18", 8, 0.003, "adam", 0.0, False, False, **form, max_epochs=6, loss_threshold=0.0, rule3_split="test")
    changes = {"learning_rate": 0.0003}, {"batch_size": 4}, {"repeat": 1}, {"optimizer": "sgd", "learning_rate": 0.0003}
    for run in (base, *(replace(base, **change) for change in changes)):
        train_run(run, data, catalogue.run_folder(work, run))
    return work, data, catalogue.read_catalogue(work)


@pytest.fixture(scope="module")
def scored_on(study):
    return scoring_set(study[2], study[1])


@pytest.fixture(scope="module")
def both(study, scored_on):
    """Tables of the models with their scores, by precision."""
    work, data, table = study
    found = []
    for settings in (FLOAT32, BFLOAT16):
        list(models.score_missing(work, table, data, scored_on, FAMILIES, settings, device="cpu"))
        found.append(models.with_measures(table, models.load_scores(work, table, scored_on, FAMILIES, settings)))
    return found


def timed(monkeypatch, float32, bfloat16):
    asked = []
    monkeypatch.setattr(settled, "has_bfloat16", lambda device: True)
    monkeypatch.setattr(precision, "pass_seconds", lambda shape: asked.append(shape) or {"float32": float32, "bfloat16": bfloat16})
    return asked


@pytest.mark.parametrize(("times", "expected"), [((1.0, 0.5), "bfloat16"), ((1.0, 1.2), "float32")])
def test_auto_is_measured_once_per_study_on_its_smallest_network_and_kept(study, tmp_path, monkeypatch, times, expected):
    _, data, table = study
    asked = timed(monkeypatch, *times)
    mixed = table.assign(architecture=["resnet18" if row == 1 else "resnet50" for row in range(len(table))])
    assert precision.choose_scoring_precision("auto", tmp_path, mixed, data, "cpu") == expected
    (shape,) = asked
    assert (shape.architecture, shape.stem, shape.width, shape.last_stride, shape.image_size) == ("resnet18", "strided", 0.25, 1, 32)
    timed(monkeypatch, *times[::-1])  # another machine
    assert precision.choose_scoring_precision("auto", tmp_path, mixed, data, "cpu") == expected
    assert [path.name for path in tmp_path.iterdir()] == ["scoring_precision.json"]  # apart from that of training


def test_a_study_mixes_no_precisions_of_scores(study, tmp_path):
    _, data, table = study
    assert precision.choose_scoring_precision("float32", tmp_path, table, data, "cpu") == "float32"
    with pytest.raises(
        ValueError,
        match=r"^scoring_precision 'bfloat16' is asked for, and .* was begun in float32 \(scoring_precision.json\); a study mixes none: "
        r"set scoring_precision to float32 or auto, or delete .*scoring_precision.json and run 03_cam_scoring and 04_baselines again$",
    ):
        precision.choose_scoring_precision("bfloat16", tmp_path, table, data, "cpu")
    with pytest.raises(ValueError, match=r"^scoring_precision 'half' is unknown; choose one of float32, bfloat16, auto$"):
        precision.choose_scoring_precision("half", tmp_path, table, data, "cpu")


def test_scores_of_two_precisions_lie_apart_and_none_is_read_for_the_other(study, scored_on, both):
    work, _, table = study
    for family in ("localization", "prediction", "norms"):  # norms are taken over the margin
        assert folder_name(family, FLOAT32, scored_on) != folder_name(family, BFLOAT16, scored_on)
    exact, near = (models.load_scores(work, table, scored_on, FAMILIES, settings) for settings in (FLOAT32, BFLOAT16))
    assert len(exact) == len(near) > 0
    assert (exact["value"] != near["value"]).any()
    values = [image_values(work, table, scored_on, settings)["iou"] for settings in (FLOAT32, BFLOAT16)]
    assert not np.array_equal(*values)


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes in which type convolutions and the linear layer compute."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, function, types, given=(), named=None):
        of = [value.dtype for value in given if isinstance(value, torch.Tensor) and value.is_floating_point()]
        self.seen.setdefault(function.overloadpacket.__name__, set()).update(of)
        return function(*given, **(named or {}))


@pytest.mark.parametrize(("settings", "convolutions"), [(FLOAT32, torch.float32), (BFLOAT16, torch.bfloat16)])
def test_turned_images_pass_in_the_precision_of_the_others(tiny_given, settings, convolutions):
    known = evidence.Evidence(tiny_given, settings)
    folded = known["fused_network"].eval()
    assert known["example"].shape[0] == 1
    given = {name: known[name] for name in ("images", "normalise", "device", "batch_size", "example", "precision")}
    with Products() as products:
        evidence.PROVIDERS["rotated_probabilities"](folded, **given)
    assert convolutions in products.seen["conv2d" if "conv2d" in products.seen else "convolution"]
    assert products.seen.get("addmm", products.seen.get("linear")) == {torch.float32}


def test_a_timed_pass_takes_both_precisions_and_few_images(monkeypatch):
    monkeypatch.setattr(settled, "_ROUND_SECONDS", 0.0)
    found = precision.pass_seconds(smallest_shape(["resnet18"], [1], 32, "cpu", stem="strided", width=0.125, last_stride=2))
    assert found.keys() == set(PRECISIONS)
    assert all(0 < seconds < math.inf for seconds in found.values())

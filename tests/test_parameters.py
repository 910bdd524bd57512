"""Parameters: what cells declare, which values are allowed, how a wrong one is told."""

import math
import re
from typing import get_args

import papermill
import pytest

from helpers.cams import attribution, maps, masks
from helpers.data import layouts
from helpers.files import PROJECT_ROOT
from helpers.measures import registry, transforms
from helpers.networks import resnet
from helpers.parameters import (
    AXIS_PARAMETERS,
    TYPES,
    StudyError,
    checked,
    contradictions,
    declared,
    fault_of,
    name_of_values,
)
from helpers.studies import READS, StudyFile
from helpers.training import run
from tests.conftest import committed

NOTEBOOKS = {
    path.stem: path for path in sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
}
NAMES = {name for path in NOTEBOOKS.values() for name in declared(path)}


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_cells_declare_what_papermill_reads_and_defaults_are_allowed(stem):
    names = declared(NOTEBOOKS[stem])
    theirs = papermill.inspect_notebook(str(NOTEBOOKS[stem]))
    assert list(names) == list(theirs)
    for name, item in names.items():
        assert item.annotation == theirs[name]["inferred_type_name"], name
        assert item.comment == theirs[name]["help"] != "", name
    defaults = {name: item.default for name, item in names.items()}
    assert checked(NOTEBOOKS[stem], {}) == defaults
    inputs = NOTEBOOKS[stem].read_text().partition("**Inputs.**")[2].partition("**")[0]
    assert {*re.findall(r"\b\d\d\b", inputs)} <= {*READS[stem[:2]].split()}


def test_types_and_axes_name_parameters_alone():
    assert {*TYPES, *AXIS_PARAMETERS.values()} <= NAMES
    assert fault_of("optimizers", "sgd") == ""
    assert "lamb" in fault_of("optimizers", "lamb")
    grey = {"pixel_mean": [0.5] * 3}
    assert checked(NOTEBOOKS["07_your_checkpoints"], grey)["pixel_mean"] == [0.5] * 3


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_committed_defaults_are_those_of_the_demo(stem, tmp_path):
    path = tmp_path / f"{stem}.ipynb"
    path.write_text(committed(NOTEBOOKS[stem]))
    demo = StudyFile.read("demo")
    values = demo.values_of(path)
    names = declared(path)
    assert {name: names[name].default for name in values} == values
    if stem in demo.notebooks:
        assert values.keys() == names.keys() - {"study"}


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("architectures", resnet.ARCHITECTURES),
        ("stem", resnet.STEMS),
        ("data_source", ("synthetic", layouts.RECOGNISED, *layouts.LAYOUTS)),
        ("optimizers", run.OPTIMIZERS),
        ("cam_method", maps.CLOSED_FORM_METHODS),
        ("families", registry.FAMILIES),
        ("saliency_providers", masks.MASK_PROVIDERS),
        ("attributions", attribution.ATTRIBUTIONS),
        ("transform_ranges", transforms.RANGES),
    ],
)
def test_choices_are_those_of_the_modules_that_take_them(name, known):
    assert sorted(get_args(TYPES[name])) == sorted(known)


@pytest.mark.parametrize(
    ("stem", "name", "value", "message"),
    [
        ("03", "cam_method", "gradcam", "(did you mean 'grad_cam'?)"),
        ("03", "cam_threshold", 7, "should be less than 1"),
        ("03", "accuracy_thresholds", [], "at least 1 item"),
        ("03", "pictured_images", 0, "greater than or equal to 1"),
        ("03", "study", "../other", "should match pattern"),
        ("03", "device", "cdua", "should match pattern"),
        ("03", "jobs", True, "valid integer"),
        ("03", "analysis_seed", 2**64, "less than or equal to 1000000000"),
        ("02", "learning_rates", [0.1, math.nan], "finite number"),
        ("02", "learning_rates", [0.1, 0.10000001], "numbers count to six digits"),
        ("02", "weight_decays", [1e300], "less than or equal to"),
        ("01", "class_ids", ["cafe", "cafe"], "contains duplicates"),
        ("01", "class_ids", ["x" * 5000], "should match pattern"),
        ("02", "blocks", [{"optimizer": ["lamb"]}], "[0][optimizer][0] is 'lamb'"),
        ("02", "blocks", [{"augmentation": [1]}], "valid boolean"),
        ("02", "blocks", [{"optimizer": "sgd"}], "valid list"),
        ("02", "blocks", [{}, {"optimiser": []}], "(did you mean 'optimizer'?)"),
        ("08", "targets", ["blur_0.70"], "should match pattern"),
        ("01", "work_dir", "~user/x", "should match pattern"),
    ],
)
def test_a_wrong_value_is_told_with_name_and_meaning(stem, name, value, message):
    path = next(path for key, path in NOTEBOOKS.items() if key.startswith(stem))
    with pytest.raises(StudyError) as refused:
        checked(path, {name: value})
    (sentence,) = refused.value.faults
    assert name in sentence and message in sentence and len(sentence) < 900
    assert declared(path)[name].comment in sentence or "did you mean" in sentence


def test_values_that_would_spoil_results_together_are_told():
    classes = {"class_ids": ["a", "b"], "unseen_class_ids": ["e"]}
    assert list(contradictions(classes)) == []
    (sentence,) = contradictions(classes | {"unseen_class_ids": ["a", "e"]})
    assert "unseen_class_ids shares a with class_ids" in sentence


def test_names_of_folders_are_equal_for_equal_values_alone():
    values = {"cut": "quantile", "share": 0.1, "count": 3, "all": True}
    assert name_of_values(values) == "cut=quantile,share=0.1,count=3,all=true"
    odd = [{"a": "b/c"}, {"a": "b c"}, {"a": "1"}, {"a": [1, 2]}, {"a": "x" * 200}]
    names = [name_of_values(value) for value in odd]
    assert len({*names}) == len(odd)
    assert all("/" not in name and len(name) < 130 for name in names)

"""What a notebook declares, which values it may have, and which are in force where it is opened by hand."""

import json
import math
import re

import numpy as np
import pytest
import yaml

from helpers import parameters
from helpers.cams import attribution, maps, masks
from helpers.choices import compute
from helpers.data import layouts
from helpers.files import PROJECT_ROOT, STAGING
from helpers.measures import registry, transforms
from helpers.networks import resnet, stages
from helpers.parameters import (
    LIMITS,
    Parameter,
    StudyError,
    declared,
    name_of_values,
    near_names,
    value_fault,
)
from helpers.study_files import parse_yaml, read_blocks, resolve_parameters
from helpers.training import config
from tests.conftest import committed, tracked

NOTEBOOKS = {
    path.stem: declared(path)
    for path in sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
}
STUDIES = {path.stem: path for path in tracked("params/*.yaml")}
EVERY = {name: item for names in NOTEBOOKS.values() for name, item in names.items()}


def test_the_table_of_limits_names_parameters_alone_and_defaults_are_within_them():
    assert set(LIMITS) <= set(EVERY)
    assert not {
        name: fault
        for name, item in EVERY.items()
        if (fault := value_fault(item, item.default))
    }


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("architectures", resnet.ARCHITECTURES),
        ("stem", stages._STEMS),
        ("optimizers", config.OPTIMIZERS),
        ("data_source", ("synthetic", layouts.RECOGNISED, *layouts.LAYOUTS)),
        ("cam_method", maps.CLOSED_FORM_METHODS),
        ("families", registry.FAMILIES),
        ("sampled_methods", compute.SAMPLED_METHODS),
        ("saliency_providers", masks.MASK_PROVIDERS),
        ("attributions", attribution.ATTRIBUTIONS),
        ("transform_ranges", transforms.RANGES),
    ],
)
def test_choices_are_those_of_the_modules_that_take_them(name, known):
    assert sorted(LIMITS[name].values) == sorted(known)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "cam_method",
            "gradcam",
            "'gradcam' is not one of ('cam', 'grad_cam', 'grad_cam_plus_plus', 'layer_cam')",
        ),
        ("cam_method", "gradcam", "(did you mean 'grad_cam' or 'cam'?)"),
        ("cam_threshold", 7, "cam_threshold is 7, and 7.0 is not in (0, 1)"),
        ("accuracy_threshold", 0, "is not in (0, 1]"),
        (
            "accuracy_thresholds",
            [],
            "accuracy_thresholds is [], and must have at least one item",
        ),
        ("pictured_images", 0, "0 is not in [1, 100]"),
        ("scored_images", 1, "1 is not in 0 or [2, inf)"),
        ("permutations", 10**8, "100000000 is not in [3, 100000]"),
        ("bootstrap_resamples", 10**8, "100000000 is not in [3, 100000]"),
        ("seed", -1, "-1 is not in [0, 1000000000]"),
        ("learning_rates", [0.1, math.nan], "nan is not in [0, 1000000000]"),
        ("learning_rates", [0.1, 0.1], "contains duplicates"),
        ("learning_rates", [0.1, 0.10000001], "numbers count to six digits"),
        ("class_ids", ["caf\u00e9", "cafe\u0301"], "contains duplicates"),
        ("analysis_seed", 2**64, "is not in [0, 1000000000]"),
        ("training_sizes", [10**30], "is not in [0, 1000000000]"),
        ("weight_decays", [1e300], "1e+300 is not in [0, 1000000000]"),
        ("pixel_mean", [0.5], "must have three items, of red, green and blue"),
        ("device", "cdua", "'cdua' is not of the form auto|cpu|cuda"),
        ("study", "../other", "'../other' is not of the form"),
        ("architecture", "module:function", "'module:function' is not of the form"),
        ("class_ids", ["x" * 5000], "is not of the form"),
        ("targets", ["blur_0.70"], "'blur_0.70' is not of the form"),
        ("jobs", True, "must be int ("),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_name_and_what_is_allowed(
    name, value, message
):
    found = value_fault(EVERY[name], value)
    assert found.startswith(f"{name} is ") and message in found and len(found) < 600
    assert ("did you mean" in found) == (name == "cam_method")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            ("accuracy_threshold", 1.0),
            ("device", "cuda:1"),
            ("shard", "2/4"),
            ("learning_rates", [0]),
            ("pixel_mean", [0.5] * 3),
            ("architecture", "timm:resnet10t.c3_in1k"),
        ],
        *[
            ("pretrained_weights", "IMAGENET1K_V1"),
            ("pretrained_weights", "x/{architecture}.pt"),
        ],
        *[
            ("targets", []),
            ("targets", ["rotation_-30", "brightness_1.5"]),
            ("class_ids", []),
        ],
    ],
)
def test_what_is_allowed_passes(name, value):
    assert value_fault(EVERY[name], value) == ""


def test_an_int_will_do_for_a_float_and_nothing_else_is_converted():
    assert repr(parameters.check_type("float", 1)) == "1.0"
    assert parameters.check_type("list[dict]", [{"repeat": [1]}]) == [{"repeat": [1]}]
    for annotation, value in (
        ("int", 1.0),
        ("str", 1),
        ("bool", 1),
        ("list[str]", "a"),
        ("list[int]", [True]),
    ):
        with pytest.raises(ValueError, match="valid"):
            parameters.check_type(annotation, value)


def test_a_cell_that_is_no_list_of_literals_is_named(tmp_path):
    for cells in ([], ["a = 1"], ["import os"], ["a: int = 1", "b: int = 2"]):
        written = [
            {
                "cell_type": "code",
                "metadata": {"tags": ["parameters"]},
                "source": source,
            }
            for source in cells
        ]
        (tmp_path / "01_a.ipynb").write_text(json.dumps({"cells": written}))
        with pytest.raises(
            StudyError, match=r"01_a.ipynb: one cell must be tagged parameters"
        ):
            declared(tmp_path / "01_a.ipynb")


def test_aliases_that_stand_for_too_much_or_for_themselves_are_refused_at_once():
    laughs = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True):
        laughs += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    with pytest.raises(yaml.YAMLError, match="stand for more than 100,000 values"):
        parse_yaml(laughs)
    with pytest.raises(yaml.YAMLError, match="an alias stands for itself"):
        parse_yaml("a: &a {b: [*a]}")
    assert parse_yaml("{a: &a [1, 2], b: *a, c: *a}") == {
        "a": [1, 2],
        "b": [1, 2],
        "c": [1, 2],
    }


def test_yaml_is_safe_has_numbers_in_any_form_and_a_key_once():
    assert parse_yaml("{a: 1e-3, b: 2.5E+2, c: .5, d: -3, e: [1e4, x]}") == {
        "a": 0.001,
        "b": 250.0,
        "c": 0.5,
        "d": -3,
        "e": [1e4, "x"],
    }
    for wrong in (
        "a: 1\na: 2",
        "!!python/object/apply:os.system [x]",
        "[" * 2000,
        "{[a]: 1}",
        "a: &b [*b",
        "? {}\n: 1",
    ):
        with pytest.raises(yaml.YAMLError):
            parse_yaml(wrong)


def test_a_misspelt_name_gives_the_nearest_and_nonsense_none():
    assert near_names("learning_rate", sorted(EVERY)).startswith(
        " (did you mean 'learning_rates'"
    )
    assert near_names("qqqqqqqqq", sorted(EVERY)) == ""


CELL = """study: str = "demo"  # name of the study
images: int = 60  # images
rate: float = 0.5  # a rate
names: list[str] = ["a"]  # some names
place: str = "work"  # a folder
"""


@pytest.fixture
def project(tmp_path):
    """A project with one notebook, the study of its defaults, another one, and one that extends it."""
    for name in ("notebooks", "params"):
        (tmp_path / name).mkdir()
    cell = {"cell_type": "code", "metadata": {"tags": ["parameters"]}, "source": CELL}
    (tmp_path / "notebooks/01_a.ipynb").write_text(json.dumps({"cells": [cell]}))
    studies = {
        "demo": {
            "common": {"place": "work"},
            "notebooks": {"01_a": {"images": 60, "rate": 0.5, "names": ["a"]}},
        },
        "other": {
            "claims": [1],
            "common": {"place": "disk"},
            "notebooks": {"01_a": {"images": 100, "rate": 1}, "02_b": {"names": ["z"]}},
        },
        "further": {
            "extends": "other",
            "common": {"rate": 2.0},
            "notebooks": {"02_b": {"names": ["y"]}},
        },
    }
    for name, content in studies.items():
        (tmp_path / f"params/{name}.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def given(project, *cells, **changed):
    """What is in force after the first cell with changes ran, and further cells; the values and where they are from."""
    values = {
        "study": "demo",
        "images": 60,
        "rate": 0.5,
        "names": ["a"],
        "place": "work",
    } | changed
    for cell in cells:
        exec(cell, values)
    return resolve_parameters(
        "01_a", values | {"In": ["", CELL, *cells, "notebook.begin(...)"]}, project
    )


def test_as_committed_it_is_the_demo(project):
    found, origins, _ = given(project)
    assert found == {
        "study": "demo",
        "images": 60,
        "rate": 0.5,
        "names": ["a"],
        "place": "work",
    }
    assert origins == {
        "study": "default",
        **dict.fromkeys(("images", "rate", "names", "place"), "params/demo.yaml"),
    }


def test_another_study_brings_its_values_and_what_was_changed_by_hand_wins(project):
    found, origins, content = given(project, study="other", images=7)
    assert found == {
        "study": "other",
        "images": 7,
        "rate": 1.0,
        "names": ["a"],
        "place": "disk",
    }
    theirs = "params/other.yaml"
    assert origins == {
        "study": "first cell",
        "images": "first cell",
        "rate": theirs,
        "names": "default",
        "place": theirs,
    }
    assert isinstance(found["rate"], float) and content["work_study"] == "other"
    again = resolve_parameters("01_a", found, project)  # the same cell again
    assert again[0] == found


def test_what_papermill_injects_wins_over_all(project, monkeypatch):
    found, origins, _ = given(project, '# Parameters\nstudy = "other"\nimages = 60\n')
    assert (found["images"], origins["images"]) == (
        60,
        "injected",
    )  # although the study has 100, and 60 is the demo's
    assert (found["rate"], origins["study"]) == (1.0, "injected")
    elsewhere = '# Parameters\nstudy = "mine"\nrate = 2\n'
    with pytest.raises(
        StudyError, match=r"mine.yaml does not exist; the studies there"
    ):
        given(project, elsewhere)
    monkeypatch.setenv(STAGING, "of the launcher, which has read its file")
    found, _, content = given(project, elsewhere)
    assert found == {
        "study": "mine",
        "images": 60,
        "rate": 2.0,
        "names": ["a"],
        "place": "work",
    }
    assert content["work_study"] == "mine"
    assert (
        given(project, "# Parameters\nimages = 60\n", CELL, 'study = "other"')[0][
            "images"
        ]
        == 100
    )  # the first cell ran again


@pytest.mark.parametrize("cell", ["study == 1", "shown = study.scores(x=1)"])
def test_a_cell_that_only_reads_a_name_study_is_not_the_first_cell(project, cell):
    variables = {"study": "other"}
    exec(CELL, variables)
    injected = '# Parameters\nstudy = "other"\nimages = 60\n'
    values = variables | {"study": "other", "images": 60}
    values["In"] = ["", CELL, injected, cell, "notebook.begin(...)"]
    _, origins, _ = resolve_parameters("01_a", values, project)
    assert origins["images"] == "injected"


def test_a_name_that_papermill_injects_and_no_cell_declares_is_refused(project):
    with pytest.raises(StudyError) as refused:
        given(project, "# Parameters\nimage = 48\nrte = 1\nrate = 2\n")
    assert [fault.partition(";")[0] for fault in refused.value.faults] == [
        "this notebook has no parameter 'image' (did you mean 'images'?)",
        "this notebook has no parameter 'rte' (did you mean 'rate'?)",
    ]


def test_what_a_run_changes_of_its_study_is_known_whoever_set_it(project):
    assert given(project, study="other")[2]["changed"] == {}
    assert given(project, study="other", images=7)[2]["changed"] == {"images": 7}
    injected = '# Parameters\nstudy = "other"\nrate = 1\nplace = "x"\n'
    assert given(project, injected)[2]["changed"] == {"place": "x"}
    assert given(project, names=["b"])[2]["changed"] == {"names": ["b"]}


def test_values_name_a_folder_that_no_other_values_have():
    assert name_of_values({"x": 0.05, "y": "layer_cam", "z": True, "n": 3}) == (
        "x=0.05,y=layer_cam,z=true,n=3"
    )
    odd = [
        "",
        "a/b",
        "../x",
        "a,b",
        "a=b",
        "it's",
        "ü",
        "a b",
        ".hidden",
        "~a",
        "a" * 99,
    ]
    odd += [["a"], ["a", "b"], ["a,b"], [], {}, [0.1], -1, 1e-9, 1e300, "\U0001f600"]
    names = [name_of_values({"x": value}) for value in odd]
    assert len(set(names)) == len(odd)
    for name in names:
        assert re.fullmatch(r"x=[\w.+~-]+", name, re.ASCII) and ".." not in name
    long = {f"name_{number}": number for number in range(40)}
    assert len(name_of_values(long)) < 40
    assert name_of_values(long) != name_of_values(long | {"name_0": 5})


def test_a_whole_study_file_that_is_injected_is_refused_with_what_to_write(project):
    with pytest.raises(
        StudyError,
        match=r"common, notebooks: blocks of a study file.* in place of `-f FILE` write `-p study NAME`",
    ):
        given(project, "# Parameters\ncommon = {}\nnotebooks = {}\n")


def test_a_study_that_extends_another_has_its_values_its_claims_and_its_work(project):
    found, _, content = given(project, study="further")
    assert found == {
        "study": "further",
        "images": 100,
        "rate": 2.0,
        "names": ["a"],
        "place": "disk",
    }
    assert (content["work_study"], content["claims"], content["extended"]["rate"]) == (
        "other",
        [1],
        1,
    )
    assert content["notebooks"]["02_b"] == {"names": ["y"]}
    for text in (
        "extends: further",
        "{extends: other, claims: []}",
        "extends: nothing",
        "extends: ../demo",
        "extends: [other]",
    ):
        (project / "params/wrong.yaml").write_text(text)
        with pytest.raises(StudyError):
            read_blocks(project / "params/wrong.yaml")


@pytest.mark.parametrize(
    "content",
    [
        "[",
        "- 1",
        "common: [1]",
        "notebooks: {01_a: 3}",
        "notebooks: 3",
        "sweep: {a: 1}",
        "\udcff",
        "",
    ],
)
def test_a_file_that_is_no_study_is_named(project, content):
    (project / "params/other.yaml").write_bytes(
        content.encode(errors="surrogateescape")
    )
    with pytest.raises(StudyError, match=r"other.yaml(:| is not readable YAML)"):
        given(project, study="other")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"study": "othr"},
            r"othr.yaml does not exist \(did you mean 'other'\?\); the studies there are demo, further, other",
        ),
        ({"study": "../params/demo"}, "is not of the form"),
        ({"study": ["demo"]}, r"study is \['demo'\], and must be str"),
        (
            {"names": np.array(["a", "b"])},
            r"names is array\(.*\), and must be list\[str\]",
        ),
        ({"images": -1, "rate": "x"}, r"(?s)images is -1.*rate is 'x'"),
    ],
)
def test_what_is_wrong_is_told_whatever_it_is_and_all_at_once(project, changed, told):
    with pytest.raises(StudyError, match=told) as refused:
        given(project, **changed)
    assert refused.value._render_traceback_() == [
        str(refused.value)
    ]  # which is all that IPython then shows


@pytest.mark.parametrize("stem", NOTEBOOKS)
def test_the_defaults_of_every_notebook_are_the_demo_study(stem, tmp_path):
    path = tmp_path / f"{stem}.ipynb"
    path.write_text(committed(PROJECT_ROOT / f"notebooks/{stem}.ipynb"))
    content, names = read_blocks(STUDIES["demo"]), declared(path)
    values = {
        name: value for name, value in content["common"].items() if name in names
    } | content["notebooks"].get(stem, {})
    assert {
        name: item.default for name, item in names.items() if name in values
    } == values
    assert names["study"].default == "demo"
    if (
        stem in content["notebooks"]
    ):  # all of them, so that a change by hand is known from a default
        assert set(values) == set(names) - {"study"}, (
            "params/demo.yaml holds every parameter of its notebooks"
        )


def test_without_a_limit_a_number_is_at_least_0_and_a_text_is_free():
    assert value_fault(Parameter("anything", "float", 1.0, "some number"), -0.5)
    assert value_fault(Parameter("anything", "str", "", "some text"), "whatever") == ""

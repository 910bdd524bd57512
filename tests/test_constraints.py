"""What a parameter may be is told before any work: by itself, beside the others, and in random study files."""

import json
import math
import random

import nbformat
import pytest
import yaml

from helpers import constraints
from helpers.ablations import compute
from helpers.cams import attribution, closed_form, object_masks
from helpers.constraints import CONSTRAINTS, FREE_TEXTS, check_values, near_names, relation_faults, value_fault
from helpers.data import images, synthetic
from helpers.files import PROJECT_ROOT
from helpers.kappa import backbones, networks, noise, probe
from helpers.measures import registry
from helpers.networks import resnet
from helpers.notebook_parameters import Parameter, StudyError, declared
from helpers.sweep import cli, cost
from helpers.sweep.study_file import load_study
from helpers.training import config
from tests.conftest import TINY_STUDY

NOTEBOOKS = {path.stem: declared(path) for path in sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))}
EVERY = {name: item for names in NOTEBOOKS.values() for name, item in names.items()}


def fault(name, value):
    return value_fault(EVERY[name], value)


def test_every_parameter_but_a_switch_has_a_constraint_or_is_a_free_text():
    switches = {name for name, item in EVERY.items() if item.annotation == "bool"}
    assert set(EVERY) - switches - {"blocks"} <= set(CONSTRAINTS)  # blocks have a relation of their own
    assert len(FREE_TEXTS) <= 12  # nine of them paths
    assert all("str" in EVERY[name].annotation for name in FREE_TEXTS if name in EVERY)
    assert set(CONSTRAINTS) - set(EVERY) <= {"scored_images"}
    for name, item in EVERY.items():
        assert not fault(name, item.default), name
        if "float" in item.annotation or ("int" in item.annotation and name != "blocks"):
            limit = CONSTRAINTS[name]
            assert limit.among or (math.isfinite(limit.low) and math.isfinite(limit.high)), name


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("architectures", resnet.ARCHITECTURES),
        ("stem", resnet.STEMS),
        ("optimizers", config.OPTIMIZERS),
        ("data_source", images.DATA_SOURCES),
        ("cam_method", closed_form.CLOSED_FORM_METHODS),
        ("families", registry.FAMILIES),
        ("sampled_methods", compute.SAMPLED_METHODS),
        ("saliency_providers", object_masks.MASK_PROVIDERS),
        ("attributions", attribution.ATTRIBUTIONS),
        ("saliency_architecture", object_masks.SEGMENTATION_NETWORKS),
        ("noise_generator", noise.GENERATORS),
    ],
)
def test_choices_are_those_of_the_modules_that_take_them(name, known):
    assert sorted(CONSTRAINTS[name].among) == sorted(known)


def test_networks_are_known_by_the_names_of_the_modules_that_build_them():
    published = sum(backbones.NETWORK_FAMILIES.values(), ())
    assert sorted(constraints.PUBLISHED_NETWORKS) == sorted(published)
    known = (*published, networks.MODEL_SET, *(f"{name} w0.25" for name in resnet.ARCHITECTURES), "efficientnet-like w0.5 d1")
    assert not fault("kappa_families", list(known))
    for name in ("resnet19 w0.25", "resnet18 w", "efficientnet-like w0.5", "RN50 w0.5", "efficientnet_b8"):
        assert fault("kappa_families", [name])


def test_published_names_are_refused_without_their_weights():
    given = DEMO | {"kappa_families": ["RN50", "resnet18 w0.25"], "seen_classes": 0, "unseen_class_ids": [], "unseen_fractions": [0.0]}
    for weights in ("made", "random"):
        (found,) = relation_faults(given | {"kappa_weights": weights})
        assert found.startswith(f"kappa_weights is {weights}, and RN50 stand for published weights")
    assert relation_faults(given | {"kappa_weights": "openai"}) == []
    assert relation_faults(given | {"kappa_weights": "made", "kappa_families": ["resnet18 w0.25"]}) == []
    for name in ("resnet18 w0", "resnet18 w99", "efficientnet-like w0.5 d0", "efficientnet-like w0.01 d1"):
        (told,) = relation_faults(given | {"kappa_weights": "made", "kappa_families": ["resnet18 w8", name]})
        assert told == f"kappa_families has {name!r}, whose factors on width and depth must be from 0.0625 to 8"


def test_rendered_classes_and_axes_are_those_of_the_modules_that_take_them():
    assert tuple(f"synthetic_{name}" for name in synthetic.CLASS_NAMES) == constraints.RENDERED
    assert set(constraints.AXIS_PARAMETERS) <= set(config.RunConfig.__dataclass_fields__)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("cam_method", "gradcam", "cam_method is 'gradcam', and must be one of cam, grad_cam, grad_cam_plus_plus, layer_cam"),
        ("cam_threshold", 7, "cam_threshold is 7, and must be above 0 and below 1"),
        ("families", ["norm"], "families is ['norm']: each item must be one of localization, prediction, norms, flatness, perturbation"),
        ("families", ["norms"], "it must hold localization and perturbation, which the notebook's tables rest on"),
        ("accuracy_thresholds", [], "accuracy_thresholds is []: must have at least 1"),
        ("pictured_images", 0, "pictured_images is 0, and must be at least 1 and at most 100"),
        ("seed", -1, "seed is -1, and must be at least 0"),
        ("analysis_seed", 2**40, "analysis_seed is 1099511627776, and must be"),
        ("flatness_draws", -3, "flatness_draws is -3"),
        ("images_per_class", -1, "images_per_class is -1, and must be at least 0"),
        ("learning_rates", [0.1, math.nan], "learning_rates is [0.1, nan]: each item must be at least 0 and at most 1,000, and nan is not"),
        ("learning_rates", [math.inf], "and inf is not"),
        ("learning_rates", [0.1, 0.1], "an item stands twice"),
        ("minimum_train_accuracy", math.nan, "minimum_train_accuracy is nan"),
        ("device", "cdua", "device is 'cdua', and must be auto, cpu, cuda, or one GPU such as cuda:1"),
        ("shard", "nonsense", "shard is 'nonsense', and must be empty, or i/n"),
        ("work_dir", "", "work_dir is '', and must be a folder"),
        ("work_dir", "~nobody/x", "work_dir is '~nobody/x', and must be a folder"),
        ("study", "../other", "study is '../other', and must be a name of letters"),
        ("pixel_std", [0.2, 0.2], "pixel_std is [0.2, 0.2]: must have exactly 3 items"),
        ("pixel_std", [0.2, 0.0, 0.2], "each item must be above 0"),
        ("own_image_size", 5, "own_image_size is 5, and must be 0, or at least 16"),
        ("images_path", "a\0b", "images_path is 'a\\x00b', and must be a text"),
        ("class_ids", ["x" * 5000], "... (5,004 characters)"),
    ],
)
def test_a_value_that_cannot_be_is_told_with_its_name_and_what_is_allowed(name, value, message):
    assert message in fault(name, value)


def test_what_is_allowed_at_the_ends_of_ranges_passes():
    assert fault("image_size", 10**5000).startswith("image_size is a number of thousands of digits, and must be")
    for name, value in (("own_image_size", 0), ("pixel_mean", [0.5] * 3), ("device", "cuda:1"), ("shard", "2/4"), ("learning_rates", [0])):
        assert not fault(name, value)


DEMO = {"data_source": "synthetic", "data_path": "", "class_ids": ["synthetic_disc", "synthetic_cross"]}
MADE = {
    "pretrained_weights": "made",
    "pretrained_levels": [True],
    "pretrain_data_source": "synthetic",
    "pretrain_data_path": "",
    "pretrain_class_ids": [],
}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (DEMO | {"data_source": "ilsvrc", "class_ids": []}, "data_path is empty, and data_source ilsvrc needs"),
        (DEMO | MADE | {"pretrain_data_source": "voc_folder"}, "pretrain_data_path is empty"),
        (DEMO | {"class_ids": ["synthetic_disk", "synthetic_ring"]}, "class_ids names 'synthetic_disk', which is no class"),
        (DEMO | {"data_source": "voc_folder", "data_path": "x"}, "data_source is voc_folder, which has no rendered classes"),
        (DEMO | {"class_ids": ["synthetic_disc"]}, "a classifier needs at least 2 classes"),
        (DEMO | {"test_images_per_class": 0}, "test_images_per_class is 0, and of rendered scenes there is no end"),
        ({"images_per_class": 3, "minimum_images_per_class": 5}, "minimum_images_per_class 5 would drop every class"),
        ({"images_per_class": 25, "training_sizes": [25, 100]}, "training_sizes asks for 100 images per class"),
        (DEMO | MADE, "pretrain_class_ids shares synthetic_cross, synthetic_disc with class_ids"),
        (DEMO | MADE | {"class_ids": [], "pretrain_class_ids": ["synthetic_ring"]}, "pretrain_class_ids shares synthetic_ring"),
        (DEMO | MADE | {"class_ids": []}, "pretrain_class_ids shares"),
        (
            {"pretrained_weights": "IMAGENET1K_V1", "pretrained_levels": [True], "stem": "small", "width": 1},
            "fit stem imagenet and width 1",
        ),
        (DEMO | {"unseen_class_ids": ["synthetic_disc"], "unseen_path": ""}, "unseen_class_ids shares synthetic_disc with class_ids"),
        ({"ssim_at_most": 0.5, "noise_ssim": [0.6, 1.0]}, "ssim_at_most is 0.5, below every level"),
        ({"unseen_at_least": 0.5, "unseen_fractions": [0.0, 0.4]}, "unseen_at_least is 0.5, above all"),
        ({"saliency_providers": ["network"], "saliency_path": ""}, "is empty, and network in saliency_providers needs the file"),
        ({"saliency_providers": ["folder", "network"], "saliency_path": "masks"}, "saliency_path can be that of one"),
        ({"checkpoints_path": "mine", "images_path": ""}, "images_path is empty, and checkpoints_path needs"),
        ({"checkpoints_path": "", "images_path": "", "target_path": "there"}, "target_path is set and checkpoints_path is empty"),
        ({"checkpoints_path": "", "images_path": "", "labelled_path": "held"}, "labelled_path is set and checkpoints_path is empty"),
        ({"shard": "3/2"}, "shard: the shard is '3/2'"),
        ({"blocks": [{"learning_rat": [1]}]}, "blocks: block 1 has 'learning_rat', which is no axis (did you mean 'learning_rate'"),
        ({"blocks": [{}, {"repeat": 1}]}, "blocks: block 2 has 'repeat' with 1, and must have a list"),
        ({"blocks": [{"architecture": ["vgg"]}]}, "each item must be one of resnet18"),
        ({"blocks": [{"batch_size": [[1]]}]}, "its levels must be int"),
        ({"blocks": [{"batch_size": [8.5]}]}, "its levels must be int"),
        ({"blocks": [{"learning_rate": [True]}]}, "with [True]: its levels must be int or float"),
        ({"blocks": [{"learning_rate": ["0.1"]}]}, "its levels must be int or float"),
        ({"blocks": [{"repeat": ["a"]}]}, "its levels must be int"),
        ({"blocks": [{"augmentation": [1]}]}, "its levels must be bool"),
        ({"own_transforms": ["a:b 0 1", "a:b x 1"]}, "own_transforms has 'a:b x 1', whose range must be two numbers"),
        ({"own_transforms": ["a:b 1 0"]}, "whose range must go from a number to a larger one"),
        ({"own_transforms": ["a:b 0 nan"]}, "whose range must go from a number to a larger one"),
        ({"targets": ["blur_0.7", "noise_0.000"]}, "targets has noise_0.000; noise can be from 1e-06 to 1"),
        ({"targets": ["brightness_99"]}, "targets has brightness_99; brightness can be from 0 to 10"),
        ({"targets": ["rotation_-181"]}, "rotation can be from -180 to 180"),
    ],
)
def test_values_that_do_not_go_together_are_told(values, message):
    (found,) = relation_faults(values)
    assert message in found


def test_what_goes_together_passes_and_what_is_not_declared_is_passed_over():
    assert relation_faults({}) == []
    assert relation_faults(DEMO | MADE | {"pretrain_class_ids": ["synthetic_ring"], "test_images_per_class": 5}) == []
    assert relation_faults(DEMO | MADE | {"pretrained_levels": [False]}) == []
    assert relation_faults({"blocks": [{"repeat": [0, 1], "architecture": ["resnet34"]}], "shard": "2/4"}) == []
    assert relation_faults({"blocks": [{"learning_rate": [0, 0.1], "augmentation": [True]}], "targets": ["blur_0.7", "rotation_-9"]}) == []
    assert relation_faults({"own_transforms": ["my.own:darker -1 1e-3"]}) == []


def test_the_steps_of_unseen_classes_that_can_be_had_are_those_of_the_probe():
    given = DEMO | {"seen_classes": 0, "kappa_families": ["model set"], "unseen_class_ids": ["synthetic_ring", "synthetic_star"]}
    assert relation_faults(given | {"unseen_fractions": [0.0, 0.333, 0.5]}) == []
    (found,) = relation_faults(given | {"unseen_fractions": [0.4]})
    with pytest.raises(ValueError, match=r"possible are (.*)$") as caught:
        probe.class_steps([*given["class_ids"], *given["unseen_class_ids"]], 2, [0.4])
    assert found == f"unseen_fractions has 0.4; {str(caught.value).partition('; ')[2]}"
    assert "seen_classes is 3, and the study has 2" in relation_faults(given | {"seen_classes": 3, "unseen_fractions": [0.0]})[0]
    assert "the model set in kappa_families" in relation_faults(given | {"seen_classes": 1, "unseen_fractions": [0.0]})[0]


def test_a_notebook_run_by_hand_tells_all_faults_in_one_list():
    names = NOTEBOOKS["03_cam_scoring"]
    values = {name: item.default for name, item in names.items()}
    check_values(names, values)
    with pytest.raises(StudyError) as caught:
        check_values(names, values | {"cam_threshold": 7, "device": "cdua", "accuracy_thresholds": [], "analysis_seed": "x"})
    assert [line.split()[0] for line in caught.value.faults] == ["cam_threshold", "accuracy_thresholds", "analysis_seed", "device"]


def test_a_misspelt_name_gives_the_nearest_three_and_nonsense_none():
    assert near_names("learning_rate", sorted(EVERY)).startswith(" (did you mean 'learning_rates'")
    assert near_names("cam", ["cam_a", "cam_b", "cam_c", "cam_d"]).count("'") == 6
    assert near_names("qqqqqqqqq", sorted(EVERY)) == ""


def test_types_come_before_constraints_and_unknown_names_have_none():
    assert "must be int (how many)" in value_fault(Parameter("pictured_images", "int", 1, "how many"), "x")
    assert value_fault(Parameter("anything", "float", 1.0, "some number"), math.nan) == ""


ODD = [-1, 0, 1, 2, 7, 0.5, -0.5, 1e9, 10**30, math.nan, math.inf, "", "x", "gradcam", "a\0b", "x" * 5000, "cdua", "1/2", True, None]
ODD += [[], ["x"], [0], [1, 1], [0.5, math.nan], [[]], {}, {"a": 1}, [{}], [{"repeat": [1]}], "synthetic_disc", ["synthetic_disc"]]
CHARACTERS = "abcdefghijklmnopqrstuvwxyz_"


def mutated(draw):
    """A study file like the demo's with one thing changed, and the words of which its refusal must name one."""
    study = yaml.safe_load((PROJECT_ROOT / "params/demo.yaml").read_text())
    stem = draw.choice(list(study["notebooks"]))
    name = draw.choice(list(NOTEBOOKS[stem]))
    kind = draw.choice(["value", "value", "value", "value", "common", "name", "block", "sweep", "notebook"])
    if kind == "value":
        study["notebooks"][stem][name] = draw.choice(ODD)
    elif kind == "common":
        study["common"] = {**(study.get("common") or {}), name: draw.choice(ODD)}
    elif kind == "name":
        place = draw.randrange(len(name))
        name = name[:place] + draw.choice(CHARACTERS) + name[place + 1 :] + draw.choice(["", "s"])
        study["notebooks"][stem][name] = draw.choice(ODD)
    elif kind == "block":
        name = draw.choice(["common", "notebooks", "sweep", "commons"])
        study[name] = draw.choice([value for value in ODD if not isinstance(value, dict)])
    elif kind == "sweep":
        study["sweep"] = {stem: {name: draw.choice([draw.choice(ODD), [draw.choice(ODD), draw.choice(ODD)]])}}
    else:
        name = draw.choice([f"{stem}s", "08_more", "", 3])
        study["notebooks"][name] = draw.choice(ODD)
    return study, [str(name)]


def refused_by_the_modules(parameters):
    """Ask those who take the values whether they would; what they refuse after the check would be told only during work."""
    if "learning_rates" in parameters and len(parameters["learning_rates"]) < 50:
        cost.planned_runs(parameters)
    if "data_source" in parameters:
        images._check({name: parameters[name] for name in NOTEBOOKS["01_data_subset"]})
    if "kappa_families" in parameters:
        networks.check_asked(parameters["kappa_families"], parameters["kappa_weights"], 6, 6)
    if "sampled_methods" in parameters:
        compute.AblationSettings(
            thresholds=parameters["thresholds"], methods=parameters["sampled_methods"], scales=parameters["image_scales"]
        )


@pytest.mark.parametrize("seed", range(200))
def test_a_random_study_file_passes_the_check_and_the_modules_or_is_refused_with_the_name_of_what_is_wrong(seed, tmp_path):
    study, names = mutated(random.Random(seed))
    (tmp_path / "demo.yaml").write_text(yaml.dump(study, allow_unicode=True))
    try:
        executions = load_study(tmp_path / "demo.yaml", PROJECT_ROOT / "notebooks")
    except StudyError as found:
        assert any(name in fault for fault in found.faults for name in names), found.faults
        assert all(len(fault) < 1500 for fault in found.faults)
    else:
        for execution in executions:
            json.dumps(execution.parameters, allow_nan=False)
            refused_by_the_modules(execution.parameters)


def test_the_tiny_study_passes_the_check(tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY_STUDY))
    assert len(load_study(tmp_path / "tiny.yaml", PROJECT_ROOT / "notebooks")) == len(NOTEBOOKS)


def bomb(levels, width):
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels))]
    return "\n".join([*lines, f"notebooks: *a{levels - 1}"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bomb(10, 9).encode(), "is one of more than 20"),
        (b"notebooks: &a [*a]", "the alias *a stands within itself"),
        ("common: {work_dir: w\u00e4}\nnotebooks: {01_one: {}}".encode("latin-1"), "is no text in UTF-8 (byte 20); save it as UTF-8"),
        (bytes(range(256)) * 4, "is no text in UTF-8"),
        (b"\0\0\0\0", "not readable YAML"),
        (b"x" * 600_000, "has 600,000 bytes, and a study file 500,000 at most"),
        (b"[" * 100_000, "not readable YAML"),
        (b"notebooks: {01_one: {value: 2001-99-99}}", "not readable YAML"),
        (b"notebooks: {01_one: {value: " + b"9" * 5000 + b"}}", "not readable YAML"),
        (b"notebooks: [01_one]", "the block `notebooks` is ['01_one']; it must map notebooks to blocks of values"),
        (b"notebooks: {01_one: []}", "01_one: this block is []; it must map names to values"),
        (b"common: 0\nnotebooks: {01_one: {}}", "common: this block is 0; it must map names to values"),
        (b"notebooks: {01_one: {study: other}}", "study is 'other', and must be 's', as the file; copy that to other.yaml"),
        (b"notebooks: {01_one: {valeu: 1}}", "unknown parameter 'valeu' (did you mean 'value'?)"),
        (b"notebooks: {01_one: {}}\nsweep: {01_one: {value: [1, 2], seed: [0, -1]}}", "sweep, 01_one: seed is -1, and must be at least 0"),
    ],
)
def test_what_is_no_study_is_told_at_once_and_nothing_starts(content, message, tmp_path, capsys):
    (tmp_path / "notebooks").mkdir()
    cell = nbformat.v4.new_code_cell(
        'study: str = "x"  # name\nvalue: int = 1  # number\nseed: int = 0  # of all', metadata={"tags": ["parameters"]}
    )
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "notebooks/01_one.ipynb")
    (tmp_path / "s.yaml").write_bytes(content)
    assert cli.run_study(tmp_path / "s.yaml", root=tmp_path) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "work").exists()

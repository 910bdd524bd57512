import re
from dataclasses import replace

import pytest
import torch
import torchvision
import yaml

from helpers.files import PROJECT_ROOT, write_json
from helpers.networks import resnet
from helpers.notebook_parameters import StudyError
from helpers.sweep import cost
from helpers.sweep.cost import Counts, Step, activation_bytes, hours_table, image_counts, lines, planned_runs, time_step, time_steps
from helpers.sweep.study_file import load_study
from helpers.training import precision
from helpers.training.config import RunConfig


def parameters_of(study, *overrides):
    executions = load_study(PROJECT_ROOT / "params" / f"{study}.yaml", PROJECT_ROOT / "notebooks", overrides)
    found = {item.name: item.parameters for item in executions}
    return found[cost.IMAGES] | found[cost.NOTEBOOK]


@pytest.fixture
def run():
    return RunConfig("resnet18", 8, 0.01, "adam", 0.0, True, False, data="unknown", stem="strided", width=0.125, max_epochs=10)


def test_the_papers_grid_has_its_864_configurations_twice():
    runs = planned_runs(parameters_of("imagenet20"))
    assert len(runs) == 1728
    assert {run.architecture for run in runs} == {"resnet18", "resnet34", "resnet50", "resnet101"}
    assert {run.max_epochs for run in runs} == {150}


def test_a_smaller_study_is_the_balanced_choice_of_the_notebook():
    parameters = parameters_of("demo", "02_grid_training.run_count=8")
    runs = planned_runs(parameters)
    assert len(runs) == 8
    assert sum(run.architecture == "resnet18" for run in runs) == 4
    assert {(run.stem, run.width) for run in runs} == {(parameters["stem"], parameters["width"])}


def test_images_are_counted_where_they_are_rendered_listed_or_missing(store, tmp_path):
    assert image_counts(parameters_of("demo"))[:3] == (6 * 60, 6 * 50, 6)
    from tests.conftest import ilsvrc, tiny_imagenet, voc_folder

    def given(layout, files, **changed):
        common = {"class_ids": [], "images_per_class": 0, "test_images_per_class": 50}
        return common | {"data_source": layout, "data_path": str(store(files, layout))} | changed

    assert image_counts(given("tiny_imagenet", tiny_imagenet(train=6, val=3)))[:3] == (12, 6, 2)
    assert image_counts(given("tiny_imagenet", tiny_imagenet(train=6, val=3), images_per_class=4, test_images_per_class=2))[:3] == (8, 4, 2)
    # All that training leaves: two of six beside the three for validation.
    left = given("tiny_imagenet", tiny_imagenet(train=6, val=3), images_per_class=4, test_images_per_class=0)
    assert image_counts(left)[:3] == (8, 10, 2)
    assert image_counts(given("ilsvrc", ilsvrc(train=4, val=2), class_ids=["n01"]))[:3] == (4, 2, 1)
    # No test images of its own: they are held out of the training images.
    assert image_counts(given("voc_folder", voc_folder(count=8), test_images_per_class=3))[:3] == (10, 6, 2)


def test_published_numbers_stand_for_files_that_are_not_there():
    """Du et al., Table 1: 579 of hair slide, 859 of Tibetan mastiff."""
    parameters = parameters_of("imagenet20", "data_path=nowhere", "class_ids=[n03476684, n02108551]", "unseen_fractions=[0.0, 0.333]")
    assert image_counts(parameters)[:3] == (579 + 859, 100, 2)
    assert "assumed" in image_counts(parameters).source
    assert image_counts(parameters | {"images_per_class": 600}).train == 579 + 600


def test_hours_by_hand(run):
    """100 images at 0.01 s, 20 test images at 0.002 s: 1.04 s an epoch; two snapshots evaluate 120 images each."""
    runs = [run, replace(run, repeat=1), replace(run, batch_size=16), replace(run, images_per_class=2)]
    steps = {("resnet18", 8): Step(0.01, 0.002, 0, 0), ("resnet18", 16): Step(0.005, 0.002, 0, 0)}
    table = hours_table(runs, steps, Counts(100, 20, 10, "")).set_index("batch_size")
    whole, few = 10 * 1.04 + 2 * 120 * 0.002, 10 * 0.24 + 2 * 40 * 0.002
    assert table.loc[8, "hours"] * 3600 == pytest.approx(2 * whole + few)
    assert table.loc[16, "hours"] * 3600 == pytest.approx(10 * 0.54 + 0.48)
    assert table["runs"].tolist() == [3, 1]
    assert table["images_per_second"].tolist() == pytest.approx([100, 200])
    assert table["seconds_per_epoch"].tolist() == pytest.approx([1.04, 0.54])


def test_a_step_is_timed_and_leaves_the_seeds_alone(run):
    state = torch.get_rng_state()
    step = time_step(run, 5, 16, "cpu")
    assert step.train > step.evaluate > 0
    network = resnet.build("resnet18", 5, stem="strided", width=0.125, seed=0)
    assert step.weights == sum(value.nbytes for value in network.state_dict().values())
    assert torch.equal(torch.get_rng_state(), state)


def test_on_a_slow_machine_larger_batches_are_not_timed(run, monkeypatch):
    timed = []

    def slow(config, classes, size, device):
        timed.append((config.architecture, config.batch_size))
        return Step(1.0 if config.architecture == "resnet50" else 0.01, 0.1, 7, 100)

    monkeypatch.setattr(cost, "time_step", slow)
    runs = [replace(run, architecture=name, batch_size=size) for name in ("resnet18", "resnet50") for size in (8, 32, 16)]
    steps = time_steps(runs, 5, 16, "cpu")
    assert timed == [("resnet18", 8), ("resnet18", 16), ("resnet18", 32), ("resnet50", 8)]
    assert steps["resnet50", 32] == Step(1.0, 0.1, 7, 400)


def test_activations_are_counted_once_and_without_weights():
    """A linear layer keeps its input, which ReLU's output is: 2 x 4 floats, beside 2 x 3 of the image for the first layer."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    assert activation_bytes(network, torch.zeros(2, 3, 1, 1)) == 4 * (2 * 3 + 2 * 4)


def test_activations_grow_with_the_batch_and_the_pixels():
    network = resnet.build("resnet18", 5, stem="strided", width=0.125, seed=0)
    one, two, four = (activation_bytes(network, torch.zeros(count, 3, side, side)) for count, side in ((2, 16), (4, 16), (2, 32)))
    assert two == pytest.approx(2 * one, rel=0.05)
    assert four == pytest.approx(4 * one, rel=0.05)


def test_the_lines_tell_hours_disk_memory_and_what_would_change_them(run):
    parameters = parameters_of("demo") | {"max_epochs": 10, "image_size": 16, "device": "cuda", "jobs": 2}
    runs = [run, replace(run, architecture="resnet34")]
    steps = {(name, 8): Step(seconds, 0.0, 10**9, 10**8) for name, seconds in (("resnet18", 1.0), ("resnet34", 3.0))}
    told = "\n".join(lines("demo", parameters, runs, Counts(360, 0, 6, "rendered"), steps, "cpu", [4, 6]))
    # 10 epochs x 360 images x (1 + 3) s = 4 h, two side by side.
    assert "2 runs of at most 10 epochs, on 360 training and 0 test images of 16 px in 6 classes (rendered)" in told
    assert "though the study asks for a GPU" in told
    assert "at most 2.0 h with 2 runs side by side; one epoch of all runs takes 12.0 min" in told
    assert "the 2 runs that are complete took 5 epochs on average: then 1.0 h" in told
    assert (
        "disk: 2.0 GB to 4.0 GB of snapshots (one or two a run), 6.0 GB of checkpoints" in told
    )  # Adam keeps two numbers beside each weight
    assert "GPU memory: 4.1 GB for a run of" in told
    assert told.index("without resnet34 (architectures): 75% less") < told.index("without resnet18 (architectures): 25% less")


def test_the_plan_of_a_study_is_printed_and_threads_are_given_back(tmp_path, capsys):
    settings = {"run_count": 2, "architectures": ["resnet18"], "batch_sizes": [16], "max_epochs": 3}
    settings |= {"precision": "bfloat16", "work_dir": str(tmp_path / "work")}
    notebooks = {"01_data_subset": {"image_size": 16}, "02_grid_training": settings}
    notebooks |= {"03_cam_scoring": {"scored_images": 7, "scoring_precision": "bfloat16", "work_dir": settings["work_dir"]}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"notebooks": notebooks}))
    write_json(tmp_path / "work" / "small" / "runs" / "one" / "result.json", {"epochs": 2})
    threads = torch.get_num_threads()
    assert cost.print_plan(tmp_path / "small.yaml", ["device=cpu"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("small: 2 runs of at most 3 epochs")
    assert " in bfloat16\n" in told
    assert re.search(r"scoring: at most .* in bfloat16 for one pass over 7 images by the one or two models of every run", told)
    assert [path.name for path in (tmp_path / "work/small").iterdir()] == ["runs"]
    assert "the 1 runs that are complete took 2 epochs" in told
    assert torch.get_num_threads() == threads


def test_scoring_is_planned_in_the_precision_that_the_smallest_network_or_the_study_has(tmp_path, monkeypatch):
    seconds = {"resnet18": {"float32": 0.5, "bfloat16": 0.1}, "resnet50": {"float32": 2.0, "bfloat16": 3.0}}
    monkeypatch.setattr(cost, "pass_seconds", lambda shape: seconds[shape.architecture])
    monkeypatch.setattr(precision, "has_bfloat16", lambda device: True)
    parameters = {"stem": "small", "width": 1.0, "last_stride": 2, "architectures": ["resnet50", "resnet18"], "image_size": 32}
    asked = {"scoring_precision": "auto", "scored_images": 0}
    found = cost.planned_scoring(asked, parameters, 40, tmp_path, "cpu")
    assert found == ("bfloat16", 40, {"resnet18": 0.1, "resnet50": 3.0})
    write_json(tmp_path / "scoring_precision.json", {"precision": "float32"})
    assert cost.planned_scoring(asked | {"scored_images": 9}, parameters, 40, tmp_path, "cpu")[:2] == ("float32", 9)


def test_the_hours_of_scoring_are_those_of_two_models_a_run(run):
    runs = [run, replace(run, architecture="resnet34")]
    steps = {(name, 8): Step(0.01, 0.001, 1000, 1000) for name in ("resnet18", "resnet34")}
    parameters = parameters_of("demo")
    told = lines(
        "s", parameters, runs, Counts(100, 10, 2, "x"), steps, "cpu", [], cost.Scoring("bfloat16", 900, {"resnet18": 1.0, "resnet34": 3.0})
    )
    assert "scoring: at most 2.0 h in bfloat16 for one pass over 900 images" in "\n".join(told)  # 2 x 900 x (1 + 3) seconds


@pytest.mark.parametrize(("there", "absent"), [(cost.IMAGES, cost.NOTEBOOK), (cost.NOTEBOOK, cost.IMAGES)])
def test_refuses_a_study_without_a_grid_or_images_and_a_wrong_one(tmp_path, capsys, there, absent):
    (tmp_path / "none.yaml").write_text(yaml.safe_dump({"notebooks": {there: {}}}))
    assert cost.print_plan(tmp_path / "none.yaml") == 2
    assert f"none.yaml: {absent} must be among its notebooks" in capsys.readouterr().out
    with pytest.raises(StudyError, match="unknown parameter 'run_counts'"):
        cost.print_plan(tmp_path / "none.yaml", ["run_counts=3"])


def test_activations_of_a_resnet_are_those_that_its_layers_are_known_to_keep():
    """Convolutions keep their input, batch-norm its input, ReLU its output in place, max-pooling its indices (8 bytes) as well."""
    network, images = torchvision.models.resnet18(num_classes=5).train(), torch.zeros(2, 3, 64, 64)
    sizes = [images.nbytes]

    def note(module, given, output):
        sizes.append(output.nbytes * (3 if isinstance(module, torch.nn.MaxPool2d) else 1))

    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d | torch.nn.ReLU | torch.nn.MaxPool2d | torch.nn.AdaptiveAvgPool2d):
            module.register_forward_hook(note)
    assert activation_bytes(network, images) == pytest.approx(sum(sizes), rel=0.02)

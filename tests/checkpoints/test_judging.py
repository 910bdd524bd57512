"""Checkpoints are judged as by hand, and what cannot be judged is named with its cause."""

import numpy as np
import pandas as pd
import pytest
import torch

from helpers.checkpoints import calibration, judging
from helpers.checkpoints.__main__ import main
from helpers.checkpoints.inputs import Pictures, load
from helpers.checkpoints.judging import NORMALISATIONS, best_order, choose_preparation
from helpers.data.sources import open_source
from helpers.files import PROJECT_ROOT
from helpers.statistics.gap_rule import PREDICTORS, GapRule
from tests.checkpoints.conftest import dark_or_light

RULE = GapRule(
    intercept=0.3,
    coefficients=(0.1, 0.0, 0.0),
    means=(0.5, 0.0, 0.0),
    deviations=(0.2, 1.0, 1.0),
    lows=[0.1, -1.0, 0.0],
    highs=[0.9, 1.0, 6.0],
    penalty=1.0,
    half_width=0.08,
)


@pytest.fixture
def made(users_module, tmp_path):
    """A file of weights loaded into a network of the user's module, and its images."""

    def make(images, name="Brightness", **weights):
        torch.save(dark_or_light(**weights), tmp_path / "a.pt")
        network = load(tmp_path / "a.pt", f"{users_module}:{name}", 2)
        return network, Pictures(open_source(images, tmp_path / "unpacked"))

    return make


def test_the_size_with_the_highest_training_accuracy_is_chosen(made, folders):
    network, images = made(folders(), "OfSide64")
    sides = (32, 64, 96)
    chosen = choose_preparation(network, images, sides, NORMALISATIONS[:1], "cpu")
    assert chosen.side == 64


@pytest.mark.parametrize("right", range(3))
def test_the_normalisation_of_the_highest_accuracy_is_chosen(made, folders, right):
    """Each threshold is the middle of dark and light pixels as one of them has them."""
    mean, std = map(np.mean, NORMALISATIONS[right])
    threshold = (0.5 - mean) / std
    network, images = made(folders(), threshold=float(threshold))
    network.fc.weight.data *= 50
    network.fc.bias.data *= 50
    chosen = choose_preparation(network, images, (32,), NORMALISATIONS, "cpu")
    facts = judging.facts_of(network, images.at(32), chosen, "cpu", 30)
    assert facts["training_accuracy"] == 1
    if right == 0:
        assert (chosen.mean, chosen.std) == NORMALISATIONS[0]


def facts_of(made, images, name="Brightness", **weights):
    network, of_folder = made(images, name, **weights)
    chosen = choose_preparation(network, of_folder, (32,), NORMALISATIONS[1:2], "cpu")
    return judging.facts_of(network, of_folder.at(32), chosen, "cpu", 30)


def test_another_order_of_the_classes_is_named_and_not_judged(made, folders):
    facts = facts_of(made, folders(), order=(1, 0))
    assert facts["verdict"] == "not judged"
    assert facts["note"].endswith("assumed classes: 1, 0")


def test_few_images_of_a_class_show_no_other_order():
    """Each of 100 images is of a class of its own: some order fits them all."""
    labels = np.arange(100)
    predicted = np.where(labels < 60, labels, labels - 1)
    assert best_order(predicted, labels)[0] <= (predicted == labels)[50:].mean()
    repeated = np.tile(np.arange(4), 25)
    right, outputs = best_order((repeated + 1) % 4, repeated)
    assert (right, outputs.tolist()) == (1, [1, 2, 3, 0])


@pytest.mark.parametrize(("accuracy", "reason"), [(0.5, "training accu"), (0.6, "")])
def test_of_six_classes_half_must_be_right_in_whatever_order(accuracy, reason):
    labels = torch.arange(100) % 6
    predicted = torch.where(torch.arange(100) % 5 < 2, (labels + 1) % 6, 0)
    told = judging._why_not_judged(torch.eye(6)[predicted], labels, accuracy)
    assert told[:13] == reason


def test_a_softmax_at_the_end_is_told_and_changes_nothing(made, folders):
    images = folders()
    plain = facts_of(made, images)
    with_softmax = facts_of(made, images, "WithSoftmax")
    assert "ends in a softmax" in with_softmax.pop("note")
    assert plain.pop("note") == ""
    assert with_softmax == pytest.approx(plain)


def table(accuracies, drops):
    facts = pd.DataFrame({"training_accuracy": accuracies, "drop": drops})
    facts["note"] = ["", "", "softmax"][: len(facts)]
    facts = facts.assign(verdict="predicted", drop_mixup=0.0, log_images=5.0)
    facts["checkpoint"] = [f"{number}.pt" for number in facts.index]
    return judging.verdicts(facts.to_dict("records"), RULE, 0.92)


def test_accuracy_is_that_in_training_less_the_predicted_gap():
    judged = table([0.9, 1.0, 0.95], [0.7, 0.3, 1.0]).sort_values("checkpoint")
    accuracies = np.array([0.9 - (0.3 + 0.1), 1.0 - (0.3 - 0.1), 0.95 - (0.3 + 0.25)])
    expected = np.stack([accuracies, accuracies - 0.08, accuracies + 0.08], axis=1)
    np.testing.assert_allclose(judged[["accuracy", "low", "high"]], expected)
    beyond = "beyond what the studies have"
    assert judged["note"].tolist() == [beyond, "", f"softmax; {beyond}"]


def test_networks_are_told_apart_by_errors_of_their_difference():
    judged = table([0.9, 0.9], [0.3, 0.4])
    apart = judging.answer(judged, 0.04)
    assert apart.startswith("0.pt is expected to do best: 70% (62% to 78%)")
    assert judging.answer(judged, 0.06).startswith("Not told apart")
    assert judging.answer(judged.iloc[:0], 0.1) == "No checkpoint is judged."


@pytest.fixture(scope="module")
def models():
    reports = PROJECT_ROOT / "reports"
    if not (reports / "kinds24").is_dir():
        pytest.skip("no published reports are here")
    return calibration.networks(reports)


def test_the_margin_is_the_quantile_of_all_pairs_of_a_study(models):
    errors = np.random.default_rng(0).normal(size=len(models))
    pairs = [
        abs(errors[first] - errors[second])
        for first in range(len(models))
        for second in range(first)
        if models["study"][first] == models["study"][second]
    ]
    expected = np.quantile(pairs, 0.8)
    assert calibration.margin(models, errors) == pytest.approx(expected)


def test_the_published_networks_are_those_of_the_studies(models):
    """r with the gap and n, computed elsewhere."""
    studies = models.groupby("study")[["drop", "gap"]]
    correlations = studies.apply(lambda part: round(part.corr().iat[0, 1], 2))
    assert dict(correlations) == {"kinds20": 0.95, "filled20": 0.90, "kinds24": 0.76}
    assert len(models) == 94
    assert models[[*PREDICTORS, "gap"]].notna().all(axis=None)


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_the_command_judges_a_folder(users_module, folders, tmp_path, capsys, models):
    (tmp_path / "checkpoints/folder.pt").mkdir(parents=True)
    states = dict.fromkeys(["a.pt", "d.pt", "e.pt"], dark_or_light())
    states["b.PT"] = dark_or_light(order=(1, 0))
    states["c.pt"] = states["a.pt"] | {"fc.bias": torch.ones(2, device="meta")}
    for name, state in states.items():
        torch.save(state, tmp_path / "checkpoints" / name)
    (tmp_path / "checkpoints/link.pt").symlink_to("nowhere")
    options = ["--architecture", f"{users_module}:Brightness", "--image-size", 32]
    options += ["--out", tmp_path / "own", "--unlabelled", folders("others", seed=3)]
    places = [tmp_path / "checkpoints", folders()]
    (places[1] / "dog/0.png").write_bytes(b"")
    assert run(*places, *options) == 0
    verdicts = pd.read_csv(tmp_path / "own/verdicts.csv").set_index("checkpoint")
    expected = {"predicted": 3, "not judged": 1, "not read": 3}
    assert verdicts["verdict"].value_counts().to_dict() == expected
    assert verdicts["agreement"].dropna().to_dict() == {"a.pt": 1, "d.pt": 1, "e.pt": 1}
    assert "1 × unreadable image, such as dog/0.png" in capsys.readouterr().out
    (tmp_path / "classes.txt").write_text("dog \ncat\n\n")
    options += ["--classes", f"@{tmp_path / 'classes.txt'}"]
    assert run(tmp_path / "checkpoints/b.PT", places[1], *options) == 0
    assert "orders three judged networks or more" in capsys.readouterr().out
    assert run(tmp_path / "checkpoints/c.pt", places[1], *options) == 1
    assert run(*places, "--unlabelled", tmp_path / "checkpoints") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none", "."], "none has no file that ends in .safetensors"),
        ([".", ".", "--mean", "0", "0", "0"], "mean and std belong together"),
        ([".", ".", "--std", "0"], "std[0] is '0': Input should be greater than 0"),
        ([".", ".", "--image-size", "7"], "image_size is '7': Input should be greater"),
    ],
)
def test_a_wrong_argument_is_refused(arguments, message, capsys):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_errors_across_studies_equal_a_plain_loop(models):
    errors = calibration.errors_across(models, ["drop"])
    for row in models[::40].itertuples():
        others = models[models["study"] != row.study]
        predicted = calibration.rule(others, ["drop"]).predict([[row.drop]])[0]
        assert errors[row.Index] == pytest.approx(predicted - row.gap)

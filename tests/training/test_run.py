import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import safetensors.torch
import torch

from helpers.files import read_json
from helpers.networks import resnet
from helpers.training import catalogue, run, stopping
from helpers.training.config import RunConfig, run_id
from helpers.training.run import images_of_run, train_run
from tests.conftest import SEED


@pytest.fixture
def config(data):
    form = {
        "stem": "strided",
        "width": 0.125,
        "max_epochs": 4,
        "loss_threshold": 0.0,
        "seed": SEED,
    }
    return RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0005, True, False, data=data.fingerprint, **form
    )


def tensors(folder):
    return safetensors.torch.load_file(folder / "snapshot-stop.safetensors")


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_the_same_configuration_gives_the_same_bits(data, config, tmp_path):
    for name in ("one", "two"):
        train_run(config, data, tmp_path / name)
    assert equal(tensors(tmp_path / "one"), tensors(tmp_path / "two"))
    train_run(replace(config, repeat=1), data, tmp_path / "other")
    assert not equal(tensors(tmp_path / "one"), tensors(tmp_path / "other"))


def history_so_far(folder):
    return torch.load(folder / run.CHECKPOINT, weights_only=True)[2]


class Killed(BaseException):
    pass


def kill(*given):
    raise Killed


def assert_alike(one, other):
    assert equal(tensors(one), tensors(other))
    assert (
        read_json(one / "result.json")["snapshots"]
        == read_json(other / "result.json")["snapshots"]
    )
    histories = [
        pd.read_parquet(folder / "history.parquet").drop(columns="seconds")
        for folder in (one, other)
    ]
    pd.testing.assert_frame_equal(*histories)
    assert not list(other.glob("*checkpoint*"))


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": "adam"},
        {"optimizer": "adamw", "strong_augmentation": "crops+mixup"},
        {"optimizer": "sgd", "looking": "map_in_shuffled_box 0.5"},
        {"label_noise": 0.2, "strong_augmentation": "cutmix"},
    ],
)
def test_a_run_interrupted_after_any_epoch_ends_with_the_bits_of_an_uninterrupted_one(
    data, config, tmp_path, monkeypatch, change
):
    config = replace(config, **change)
    train_run(config, data, tmp_path / "whole")
    save = run.Training.save
    monkeypatch.setattr(run.Training, "save", lambda training: save(training) or kill())
    for epoch in range(1, config.max_epochs + 1):  # each attempt gets one epoch further
        with pytest.raises(Killed):
            train_run(config, data, tmp_path / "parts")
        assert len(history_so_far(tmp_path / "parts")) == epoch
    train_run(config, data, tmp_path / "parts")  # finds nothing left to train
    assert_alike(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_restored_states_of_the_optimizer_lie_in_memory_as_before(
    data, config, tmp_path, optimizer
):
    """A fused optimizer on a GPU refuses other strides, so a run could never go on."""
    config = replace(config, optimizer=optimizer)

    def begin():
        network = run.initial_network(config, len(data.classes))
        network = network.to(memory_format=torch.channels_last)
        optimizer = run.make_optimizer(network, config)
        return run.Training(config, tmp_path, network, optimizer, [], [])

    training, again = begin(), begin()
    stepped, restored = training.optimizer, again.optimizer
    train = run.resident(images_of_run(data, config)[0], "cpu")
    run.train_epoch(training.network, stepped, train, config, 1)
    training.save()
    again.restore()

    convolutions = 0
    for weight, before in zip(
        restored.param_groups[0]["params"],
        stepped.param_groups[0]["params"],
        strict=True,
    ):
        for name, state in restored.state[weight].items():
            assert torch.equal(state, stepped.state[before][name])
            assert state.stride() == stepped.state[before][name].stride()
            convolutions += state.ndim == 4 and not state.is_contiguous()
    assert convolutions > 0


@pytest.mark.parametrize(
    ("met", "taken"),
    [
        ({1: (), 2: (2,), 3: (1, 2)}, [("first", 2), ("stop", 3)]),
        ({1: (1, 2)}, [("stop", 1)]),
    ],
)
def test_the_snapshots_are_the_first_condition_and_the_stop(
    data, config, tmp_path, monkeypatch, met, taken
):
    for module in (run, stopping):
        monkeypatch.setattr(
            module, "conditions_met", lambda history, config: met[len(history)]
        )
    result = train_run(config, data, tmp_path)
    assert result["stop_reason"] == "rules 1+2"
    assert [(s["snapshot"], s["epoch"]) for s in result["snapshots"]] == taken
    kept = [
        safetensors.torch.load_file(tmp_path / f"snapshot-{name}.safetensors")
        for name, _ in taken
    ]
    assert len(list(tmp_path.glob("snapshot-*"))) == len(taken) and not (
        len(kept) == 2 and equal(*kept)
    )


def test_the_recorded_gap_is_recomputed_from_the_saved_weights_by_a_plain_loop(
    data, config, tmp_path
):
    result = train_run(config, data, tmp_path / "runs" / run_id(config))
    row = catalogue.read_catalogue(tmp_path).iloc[0]
    network = catalogue.load_network(tmp_path, row, 3)
    accuracy = {}
    for name, images in (
        ("train", images_of_run(data, config)[0]),
        ("test", data.test),
    ):
        correct = 0
        for pixels, label in zip(images.images, images.labels, strict=True):
            x = (
                pixels.numpy() / 255 - np.array([0.485, 0.456, 0.406]).reshape(3, 1, 1)
            ) / np.array([0.229, 0.224, 0.225]).reshape(3, 1, 1)
            with torch.no_grad():
                correct += int(
                    network(torch.tensor(x, dtype=torch.float32)[None]).argmax()
                    == label
                )
        accuracy[name] = correct / len(images)
    assert result["snapshots"][-1]["gap"] == pytest.approx(
        accuracy["train"] - accuracy["test"]
    )
    assert row["gap"] == pytest.approx(row["train_accuracy"] - row["test_accuracy"])


def test_a_diverging_run_is_a_result_with_its_reason(data, config, tmp_path):
    result = train_run(
        replace(config, optimizer="sgd", learning_rate=1e9),
        data,
        tmp_path / "runs" / "x",
    )
    assert "loss is" in result["stop_reason"]
    assert result["snapshots"] == []
    table = catalogue.read_catalogue(tmp_path, None)
    assert table["snapshot"].tolist() == ["none"]
    assert math.isnan(table["gap"].iloc[0])


def test_fewer_images_are_a_subset_and_the_holdout_is_disjoint(data, config):
    config = replace(config, rule3_split="test")
    names = {
        size: set(images_of_run(data, replace(config, images_per_class=size))[0].names)
        for size in (3, 7, 0)
    }
    assert names[3] < names[7] < names[0] == set(data.train.names)
    few = images_of_run(data, replace(config, images_per_class=3))[0]
    assert torch.bincount(few.labels).tolist() == [3, 3, 3]
    of_another_seed = replace(config, images_per_class=3, seed=config.seed + 1)
    assert set(images_of_run(data, of_another_seed)[0].names) != names[3]
    train, watched = images_of_run(
        data, replace(config, rule3_split="holdout", holdout_fraction=0.25)
    )
    assert not set(train.names) & set(watched.names)
    assert set(train.names) | set(watched.names) == set(data.train.names)
    assert len(watched) == 9
    assert images_of_run(data, config)[1] is data.test


def test_label_noise_changes_exactly_its_share_to_other_classes(data, config):
    config = replace(config, rule3_split="test")
    clean, noisy = (
        images_of_run(data, replace(config, label_noise=share))[0]
        for share in (0.0, 0.5)
    )
    assert clean.names == noisy.names
    assert int((clean.labels != noisy.labels).sum()) == 18
    assert noisy.labels.min() >= 0
    assert noisy.labels.max() <= 2
    # Runs of another seed have other wrong labels.
    of_another_seed = replace(config, label_noise=0.5, seed=config.seed + 1)
    others = images_of_run(data, of_another_seed)[0].labels != clean.labels
    assert not torch.equal(others, noisy.labels != clean.labels)


def test_a_last_batch_of_one_image_is_left_out(data, config):
    model = run.initial_network(config, 3)
    split = run.resident(data.train.subset(range(17)), "cpu")  # 8 + 8 + 1
    loss, accuracy = run.train_epoch(
        model, torch.optim.SGD(model.parameters(), lr=0.0), split, config, 1
    )
    assert math.isfinite(loss)
    assert accuracy * 16 == pytest.approx(round(accuracy * 16))


def test_the_pass_reports_the_loss_that_a_plain_script_would(data, config):
    """One batch, no augmentation, learning rate 0: mean cross-entropy and accuracy of one forward pass in train mode."""
    config = replace(config, augmentation=False, batch_size=36)
    model, twin = run.initial_network(config, 3), run.initial_network(config, 3)
    split = run.resident(data.train, "cpu")
    loss, accuracy = run.train_epoch(
        model, torch.optim.SGD(model.parameters(), lr=0.0), split, config, 1
    )
    logits = twin.train()(resnet.normalise_images(data.train.images))
    expected = torch.nn.functional.cross_entropy(logits, data.train.labels)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert accuracy == pytest.approx(
        float((logits.argmax(1) == data.train.labels).float().mean())
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "other"}, "belongs to the images other, not"),
        ({"images_per_class": 13}, "the largest class has 12; take at most as many"),
    ],
)
def test_images_of_another_study_or_too_few_are_refused(
    data, config, tmp_path, change, message
):
    with pytest.raises(ValueError, match=message):
        train_run(replace(config, **change), data, tmp_path)


def test_a_complete_run_is_returned_and_not_trained_again(
    data, config, tmp_path, monkeypatch
):
    first = train_run(config, data, tmp_path)
    monkeypatch.setattr(run, "train_epoch", lambda *given: pytest.fail("trained again"))
    assert train_run(config, data, tmp_path) == first


def test_bfloat16_rounds_products_and_nothing_else(data, config):
    """Of a linear network: the loss of products of rounded operands, 2 ** -8 each; what is summed and learnt is of full precision."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3)).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.0)
    images = data.train.images
    batch = run.Batch(torch.arange(len(images)), data.train.labels)
    exact, rounded = (
        run.train_step(
            network, optimizer, images, batch, replace(config, precision=precision)
        )
        for precision in ("float32", "bfloat16")
    )
    inputs = resnet.normalise_images(data.train.images).flatten(1)
    bound = (
        3 * 2**-8 * (inputs.abs() @ network[1].weight.abs().T + network[1].bias.abs())
    ).amax(1).sum() * 2
    assert 0 < (rounded - exact)[0].abs() <= bound
    assert rounded.dtype == torch.float64 and all(
        parameter.dtype == torch.float32 for parameter in network.parameters()
    )


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_the_optimizer_has_the_parameters_of_the_run(config, optimizer):
    changed = replace(
        config,
        optimizer=optimizer,
        learning_rate=0.03,
        weight_decay=0.002,
        momentum=0.7,
    )
    made = run.make_optimizer(torch.nn.Linear(2, 2), changed)
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.03, 0.002)
    classes = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD"}
    assert type(made).__name__ == classes[optimizer]
    if optimizer == "sgd":
        assert group["momentum"] == 0.7


class Seen(torch.nn.Module):
    """A network that notes the batches that it is given."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(3))
        self.batches = []

    def forward(self, images):
        self.batches.append(images.detach())
        return self.bias.expand(len(images), 3)


@pytest.mark.parametrize("batch_size", [4, 16])
def test_a_pass_has_batches_of_the_runs_size_in_an_order_of_its_epoch(
    data, config, batch_size
):
    split = run.resident(data.train, "cpu")
    shown = {}
    for augmentation in (False, True):
        changed = replace(config, batch_size=batch_size, augmentation=augmentation)
        for epoch in (1, 2):
            network = Seen()
            optimizer = run.make_optimizer(network, changed)
            run.train_epoch(network, optimizer, split, changed, epoch)
            sizes = [len(batch) for batch in network.batches]
            assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
            assert 1 < sizes[-1] <= batch_size
            shown[augmentation, epoch] = torch.cat(network.batches)
    everything = resnet.normalise_images(data.train.images)
    assert shown[False, 1].sum() == pytest.approx(everything.sum().item(), rel=1e-4)
    assert not torch.equal(shown[False, 1], shown[False, 2])
    assert not torch.equal(shown[False, 1], shown[True, 1])

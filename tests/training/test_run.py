"""Runs: same bits after a kill, snapshots, gaps from the weights, and what is refused."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from helpers.files import read_json
from helpers.networks import resnet
from helpers.training import catalogue, run
from helpers.training.run import images_of_run, train_run


def tensors(folder, snapshot="stop"):
    return load_file(folder / f"snapshot-{snapshot}.safetensors")


def equal(first, second):
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


def test_a_configuration_gives_the_same_bits(data, config, tmp_path, monkeypatch):
    result = train_run(config, data, tmp_path / "one")
    train_run(config, data, tmp_path / "two")
    assert equal(tensors(tmp_path / "one"), tensors(tmp_path / "two"))
    train_run(replace(config, repeat=1), data, tmp_path / "other")
    assert not equal(tensors(tmp_path / "one"), tensors(tmp_path / "other"))
    monkeypatch.setattr(run, "train_epoch", kill)  # a complete run is not trained again
    assert train_run(config, data, tmp_path / "one") == result


class Killed(BaseException):
    pass


def kill(*given):
    raise Killed


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
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_run(config, data, whole)
    save = run.Training.save
    monkeypatch.setattr(run.Training, "save", lambda training: save(training) or kill())
    for epoch in range(1, config.max_epochs + 1):  # each attempt gets one epoch further
        with pytest.raises(Killed):
            train_run(config, data, parts)
        checkpoint = torch.load(parts / run.CHECKPOINT, weights_only=True)
        assert len(checkpoint[2]) == epoch
    train_run(config, data, parts)  # finds nothing left to train
    assert equal(tensors(whole), tensors(parts))
    results = [read_json(folder / run.RESULT) for folder in (whole, parts)]
    assert results[0]["snapshots"] == results[1]["snapshots"]
    histories = [
        pd.read_parquet(folder / "history.parquet").drop(columns="seconds")
        for folder in (whole, parts)
    ]
    pd.testing.assert_frame_equal(*histories)
    assert not (parts / run.CHECKPOINT).exists()


@pytest.mark.parametrize(
    ("met", "taken"),
    [
        ({1: (), 2: (2,), 3: (1, 2)}, [("first", 2), ("stop", 3)]),
        ({1: (1, 2)}, [("stop", 1)]),
    ],
)
def test_snapshots_at_first_condition_and_stop(
    data, config, tmp_path, monkeypatch, met, taken
):
    monkeypatch.setattr(run, "conditions_met", lambda history, _: met[len(history)])
    result = train_run(config, data, tmp_path)
    assert result["stop_reason"] == "rules 1+2"
    assert [(s["snapshot"], s["epoch"]) for s in result["snapshots"]] == taken
    states = [tensors(tmp_path, name) for name, _ in taken]
    assert len(states) == 1 or not equal(*states)


def test_a_snapshot_is_taken_at_the_first_epoch_above_the_matched_accuracy(config):
    config = replace(config, max_epochs=9, matched_accuracy=0.9)
    history, due, taken = [], [], []
    for accuracy in (0.5, 0.91, 0.85, 0.92):
        row = {"train_loss": 1.0, "train_accuracy": accuracy, "monitor_accuracy": 0.5}
        history.append(row)
        due.append(run.snapshots_due(history, config, "", taken))
        taken += due[-1]
    assert due == [[], ["matched"], [], []]
    assert run.snapshots_due(history, config, "epoch cap 9", []) == ["matched", "stop"]
    without = replace(config, matched_accuracy=0.0)
    assert run.snapshots_due(history, without, "", []) == []


def test_the_recorded_gap_is_recomputed_from_saved_weights(data, config, tmp_path):
    result = train_run(config, data, tmp_path / "runs" / str(config))
    row = catalogue.read_catalogue(tmp_path).iloc[0]
    network = catalogue.load_network(tmp_path, row, 3)
    mean = torch.tensor([0.485, 0.456, 0.406]).reshape(3, 1, 1)
    deviation = torch.tensor([0.229, 0.224, 0.225]).reshape(3, 1, 1)
    accuracies = []
    for images in (images_of_run(data, config)[0], data.test):
        correct = 0
        for pixels, label in zip(images.images, images.labels, strict=True):
            x = (pixels / 255 - mean) / deviation
            with torch.no_grad():
                correct += int(network(x[None]).argmax() == label)
        accuracies.append(correct / len(images))
    gap = accuracies[0] - accuracies[1]
    assert result["snapshots"][-1]["gap"] == pytest.approx(gap)
    assert row["gap"] == pytest.approx(gap)


def test_a_diverging_run_is_a_result_with_its_reason(data, config, tmp_path):
    config = replace(config, optimizer="sgd", learning_rate=1e9)
    result = train_run(config, data, tmp_path / "runs" / "x")
    assert "loss is" in result["stop_reason"]
    assert result["snapshots"] == []
    table = catalogue.read_catalogue(tmp_path, None)
    assert table["snapshot"].tolist() == ["none"]
    assert math.isnan(table["gap"].iloc[0])


def test_fewer_images_are_a_subset_and_the_holdout_is_disjoint(data, config, tmp_path):
    config = replace(config, rule3_split="test")

    def fitted(**changes):
        return images_of_run(data, replace(config, **changes))[0]

    few, more, everything = (set(fitted(images_per_class=n).names) for n in (3, 7, 0))
    assert few < more < everything == set(data.train.names)
    assert fitted(images_per_class=3).labels.bincount().tolist() == [3, 3, 3]
    assert {*fitted(images_per_class=3, seed=config.seed + 1).names} != few
    holdout = replace(config, rule3_split="holdout", holdout_fraction=0.25)
    train, watched = images_of_run(data, holdout)
    assert not set(train.names) & set(watched.names)
    assert set(train.names) | set(watched.names) == everything
    assert len(watched) == 9
    assert images_of_run(data, config)[1] is data.test
    for change, message in (
        ({"data": "other"}, "belongs to the images other, not"),
        ({"images_per_class": 13}, "the largest class has, 12; take at most as many"),
    ):
        with pytest.raises(ValueError, match=message):
            train_run(replace(config, **change), data, tmp_path)


def test_label_noise_changes_exactly_its_share_to_other_classes(data, config):
    def labels(**changes):
        changed = replace(config, rule3_split="test", **changes)
        return images_of_run(data, changed)[0].labels

    noisy = labels(label_noise=0.5)
    assert int((noisy != labels()).sum()) == 18 and set(noisy.tolist()) <= {0, 1, 2}
    assert torch.equal(labels(label_noise=0.5, repeat=1), noisy)
    assert not torch.equal(labels(label_noise=0.5, seed=config.seed + 1), noisy)


def test_the_pass_reports_the_loss_that_a_plain_script_would(data, config):
    """One batch, no augmentation, learning rate 0: one forward pass in train mode."""
    config = replace(config, augmentation=False, batch_size=36, learning_rate=0.0)
    network, twin = (run.initial_network(config, 3) for _ in range(2))
    optimizer = run.make_optimizer(network, config)
    split = run.resident(data.train, "cpu")
    loss, accuracy = run.train_epoch(network, optimizer, split, config, 1)
    logits = twin.train()(resnet.normalise_images(data.train.images))
    expected = torch.nn.functional.cross_entropy(logits, data.train.labels)
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    is_correct = logits.argmax(1) == data.train.labels
    assert accuracy == pytest.approx(is_correct.float().mean().item())


def test_bfloat16_rounds_products_and_nothing_else(data, config):
    """Of a linear network: products of rounded operands, 2 ** -8 each, summed exactly."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 3)).train()
    optimizer = torch.optim.SGD(network.parameters(), 0.0)
    images = data.train.images
    batch = run.Split(images, data.train.labels)
    exact, rounded = (
        run.train_step(network, optimizer, batch, replace(config, precision=name))
        for name in ("float32", "bfloat16")
    )
    inputs = resnet.normalise_images(images).flatten(1).abs()
    products = inputs @ network[1].weight.abs().T + network[1].bias.abs()
    bound = (3 * 2**-8 * products).amax(1).sum() * 2
    assert 0 < (rounded - exact)[0].abs() <= bound
    assert rounded.dtype == torch.float64
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}


@pytest.mark.parametrize("optimizer", run.OPTIMIZERS)
def test_the_optimizer_has_the_parameters_of_the_run(config, optimizer):
    values = {"learning_rate": 0.03, "weight_decay": 0.002, "momentum": 0.7}
    changed = replace(config, optimizer=optimizer, **values)
    made = run.make_optimizer(torch.nn.Linear(2, 2), changed)
    (group,) = made.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.03, 0.002)
    assert type(made).__name__.lower() == optimizer
    assert optimizer != "sgd" or group["momentum"] == 0.7


class Seen(torch.nn.Module):
    """A network that notes the batches that it is given."""

    def __init__(self):
        super().__init__()
        self.bias = torch.nn.Parameter(torch.zeros(3))
        self.batches = []

    def forward(self, images):
        self.batches.append(images.detach())
        return self.bias.expand(len(images), 3)


@pytest.mark.parametrize(("batch_size", "count"), [(4, 36), (16, 36), (8, 17)])
def test_an_epoch_has_batches_in_an_order_of_its_own(data, config, batch_size, count):
    """A last batch of one image is left out, of 17 = 8 + 8 + 1."""
    config = replace(config, batch_size=batch_size, augmentation=False)
    train = data.train.subset(range(count))
    shown = []
    for epoch in (1, 2):
        network = Seen()
        optimizer = run.make_optimizer(network, config)
        run.train_epoch(network, optimizer, run.resident(train, "cpu"), config, epoch)
        sizes = [len(batch) for batch in network.batches]
        assert sizes[:-1] == [batch_size] * (len(sizes) - 1)
        assert sum(sizes) == count - (count % batch_size == 1)
        shown.append(torch.cat(network.batches))
    assert not torch.equal(*shown)
    everything = resnet.normalise_images(train.images).flatten(1)
    distances = torch.cdist(shown[0].flatten(1), everything)
    assert len(distances.argmin(1).unique()) == sum(sizes)  # each image once

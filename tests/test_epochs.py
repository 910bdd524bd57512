"""While runs train, their last epoch and loss are read from the checkpoints that they write anyway."""

import re
from dataclasses import replace

import pytest
import torch
from conftest import TINY_SCENES
from test_pool import configurations

from helpers import checkpoints, epochs, model_set, pool
from helpers.grid import RunConfig
from helpers.stopping import Epoch

RUN = RunConfig("resnet18", 8, 0.01, "adam", 0.0, True, False, data="d", max_epochs=16)


def checkpoint(work, run, *losses):
    model = torch.nn.Linear(2, 2)
    rows = [
        Epoch(epoch=number, train_loss=loss, train_accuracy=0.5, monitor_accuracy=0.5, seconds=1.0) for number, loss in enumerate(losses, 1)
    ]
    folder = model_set.run_folder(work, run)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints.save(folder, model, torch.optim.SGD(model.parameters(), lr=0.1), rows, [])
    return folder / "checkpoint.safetensors"


def test_the_line_names_each_run_with_its_last_epoch_and_loss(tmp_path):
    other = replace(RUN, architecture="resnet34", max_epochs=9)
    checkpoint(tmp_path, RUN, 2.0, 0.434)
    checkpoint(tmp_path, other, 1.5)
    assert epochs.line(tmp_path, [RUN, other]) == "resnet18 epoch 2 of 16, loss 0.43; resnet34 epoch 1 of 9, loss 1.50"
    assert epochs.line(tmp_path, []) == ""


@pytest.mark.parametrize("cut", [0, 4, 200])
def test_a_run_without_an_epoch_and_a_half_written_checkpoint_are_passed_over(tmp_path, cut):
    path = checkpoint(tmp_path, RUN, 2.0)
    path.write_bytes(path.read_bytes()[:cut])
    assert epochs.last_epoch(path.parent) is None
    path.unlink()
    assert epochs.last_epoch(path.parent) is None
    checkpoint(tmp_path, RUN)
    assert epochs.line(tmp_path, [RUN]) == ""


def test_whoever_waits_for_training_is_shown_its_epochs_and_none_at_the_end(tmp_path):
    arguments = TINY_SCENES | {"cache_dir": tmp_path / "cache"}
    run = replace(configurations(arguments)[0], max_epochs=2)
    shown = []
    list(pool.train_missing([run], tmp_path, arguments, jobs=1, show=shown.append))
    assert shown[-1] == ""
    assert all(re.fullmatch(r"(resnet18 epoch [12] of 2, loss \d+\.\d\d)?", line) for line in shown)

"""Makers for tests of training."""

from dataclasses import replace

from helpers.data.dataset import load_study_data
from helpers.training.config import RunConfig


def configurations(arguments):
    data = load_study_data(**arguments)
    base = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, True, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=12, loss_threshold=0.0
    )
    return [replace(base, repeat=number) for number in range(4)]

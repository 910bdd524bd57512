"""Makers for tests of training."""

from dataclasses import replace

from helpers.data.manifest import choose_images
from helpers.training.config import RunConfig
from tests.conftest import TINY_SCENES


def configurations(work):
    """Four short runs on the tiny scenes, which are chosen for the study in ``work``."""
    data = choose_images(work, **TINY_SCENES)
    base = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, True, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=12, loss_threshold=0.0
    )
    return [replace(base, repeat=number) for number in range(4)]

"""Makers for tests of training."""

from dataclasses import replace

import pytest

from helpers.data.images import choose_images, load_study_data
from helpers.training.config import RunConfig
from tests.conftest import SEED, TINY_SCENES


def configurations(work):
    """Four short runs on the tiny scenes, which are chosen for the study in ``work``."""
    data = choose_images(work, **TINY_SCENES)
    form = {
        "stem": "strided",
        "width": 0.125,
        "max_epochs": 12,
        "loss_threshold": 0.0,
        "seed": SEED,
    }
    base = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, True, False, data=data.fingerprint, **form
    )
    return [replace(base, repeat=number) for number in range(4)]


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    """The tiny scenes."""
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))

"""Makers for tests of training."""

from dataclasses import replace

import pytest

from helpers.data.images import choose_images, load_study_data
from helpers.training.config import RunConfig
from tests.conftest import SEED, TINY_SCENES


def configuration(data):
    """A short run on the tiny scenes."""
    form = {"stem": "strided", "width": 0.125, "max_epochs": 4, "loss_threshold": 0.0}
    common = ("resnet18", 8, 0.01, "adam", 0.0005, True, False, data.fingerprint)
    return RunConfig(*common, **form, seed=SEED)


def configurations(work):
    """Four runs of twelve epochs on scenes that are chosen for the study in ``work``."""
    run = configuration(choose_images(work, **TINY_SCENES))
    return [replace(run, max_epochs=12, repeat=number) for number in range(4)]


@pytest.fixture(scope="package")
def data(tmp_path_factory):
    """The tiny scenes."""
    return load_study_data(**TINY_SCENES, cache_dir=tmp_path_factory.mktemp("cache"))


@pytest.fixture
def config(data):
    return configuration(data)

"""A small study that tests of scoring share: three runs on rendered scenes, one of which diverges."""

from dataclasses import replace
from typing import NamedTuple

import pandas as pd
import pytest

from helpers.data.images import StudyData, choose_images
from helpers.files import folder_of_run
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import train_run
from tests.conftest import SEED, TINY_SCENES


class Study(NamedTuple):
    """Where it lies, its images, and its catalogue."""

    work: object
    data: StudyData
    table: pd.DataFrame


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    work = tmp_path_factory.mktemp("work")
    data = choose_images(work, **TINY_SCENES | {"images_per_class": 18})
    form = {"stem": "strided", "width": 0.125, "max_epochs": 1, "seed": SEED}
    whole = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, False, False, data=data.fingerprint, **form
    )
    fewer = replace(whole, images_per_class=16, rule3_split="test")
    for run in (whole, fewer, replace(whole, learning_rate=1e9, optimizer="sgd")):
        train_run(run, data, folder_of_run(work, str(run)))
    return Study(work, data, catalogue.read_catalogue(work))

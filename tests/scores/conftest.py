"""A small study that tests of scoring share: three runs on rendered scenes, one of which diverges."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from helpers.data.images import choose_images, images_of_study
from helpers.files import folder_of_run
from helpers.scores.models import models_of
from helpers.scores.scoring_set import scoring_set
from helpers.scores.store import Store
from helpers.training import catalogue
from helpers.training.config import RunConfig
from helpers.training.run import train_run
from tests.conftest import SEED, TINY_SCENES


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
    table = catalogue.read_catalogue(work)
    return SimpleNamespace(work=work, data=data, table=table)


@pytest.fixture(scope="module")
def networks(study):
    return models_of(study.work, study.table, study.data)


@pytest.fixture(scope="module")
def scored_on(study):
    return scoring_set(study.table, study.data)


@pytest.fixture(scope="module")
def store(study):
    return Store(study.work, partial(images_of_study, study.work), jobs=1)

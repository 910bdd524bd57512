"""A study in tables, networks of a few weights, and folders of images, that tests of checkpoints share."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
from torch import nn

from helpers.checkpoints import builders, calibration
from helpers.files import write_table
from helpers.measures import registry
from helpers.training.config import RunConfig, configuration_name, kind_name, run_id
from tests.conftest import jpeg


def narrow(classes):
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, classes),
    )


def fixed():
    return narrow(2)


class BasicBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
        )

    def forward(self, x):
        return (x + self.conv2(self.conv1(x).relu())).relu()


class Residual(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.layer1, self.fc = (
            nn.Conv2d(3, 4, 3, stride=2),
            nn.Sequential(BasicBlock()),
            nn.Linear(4, classes),
        )

    def forward(self, x):
        return self.fc(self.layer1(self.conv1(x)).mean((2, 3)))


@pytest.fixture
def users_module(monkeypatch):
    module = type(sys)("a_users_module")
    module.narrow, module.fixed, module.residual, module.text = (
        narrow,
        fixed,
        Residual,
        lambda: "no network",
    )
    monkeypatch.setitem(sys.modules, "a_users_module", module)
    builders.builder_of.cache_clear()
    return "a_users_module"


@pytest.fixture
def folders(tmp_path):
    """Write images into folders of classes, others for every seed; give the folder."""

    def write(name="images", classes=("cat", "dog"), count=12, seed=0):
        for number, label in enumerate(classes):
            (tmp_path / name / label).mkdir(parents=True, exist_ok=True)
            for image in range(count):
                content = jpeg(1000 * seed + 100 * number + image, (16, 16), kind="PNG")
                (tmp_path / name / label / f"{image}.png").write_bytes(content)
        return tmp_path / name

    return write


def models_table(seed=0, kinds=4, cells=4, noise=0.02):
    """Models whose gap is 0.7 minus 0.5 times mixup accuracy, whatever their fit; another measure tells nothing."""
    random, rows = np.random.default_rng(seed), []
    for kind in range(kinds):
        for cell in range(cells):
            form = {"stem": "strided", "width": 0.125, "last_stride": 1, "data": "0"}
            run = RunConfig(
                "resnet18",
                8 * (cell + 1),
                0.01,
                "adam",
                0.0,
                kind % 2 == 0,
                kind % 4 < 2,
                **form,
            )
            mixup = random.uniform(0.2, 0.9)
            fit = {
                "train_accuracy": random.uniform(0.7, 1),
                "train_loss": random.uniform(0.01, 0.5),
            }
            gap = 0.7 - 0.5 * mixup + noise * random.normal()
            names = {
                "run_id": run_id(run),
                "model_id": f"{run_id(run)}@stop",
                "cell": configuration_name(run),
                "kind": kind_name(run),
            }
            rows.append(
                {
                    **run.__dict__,
                    **names,
                    **fit,
                    "snapshot": "stop",
                    "gap": gap,
                    "left_out": "",
                    "mixup": mixup,
                    "other": random.normal(),
                }
            )
    return pd.DataFrame(rows).assign(
        log_train_loss=lambda table: np.log(table["train_loss"])
    )


@pytest.fixture
def reports(tmp_path):
    """A report of a study, as a clone has it."""

    def write(name="a study", **given):
        models, folder = models_table(**given), tmp_path / "reports" / name
        (folder / "tables").mkdir(parents=True)
        (folder / "story").mkdir()
        models.drop(columns=["mixup", "other", "log_train_loss"]).to_csv(
            folder / "tables/catalogue.csv", index=False
        )
        places = registry.columns().set_index("column")[["measure", "variant"]]
        parts = {
            "mixup_accuracy": models["mixup"],
            calibration.SHIFTS[0]: models["other"] - 1,
            calibration.SHIFTS[1]: models["other"] + 1,
        }
        scores = [
            pd.DataFrame(
                {"model_id": models["model_id"], **places.loc[name], "value": values}
            )
            for name, values in parts.items()
        ]
        table = pd.concat(scores).assign(seconds=0.0, reason="")
        write_table(folder / "tables/scores.parquet", table)
        story = [
            {
                "kind": "parameters",
                "values": {
                    "scored_images": "20",
                    "image_size": "16",
                    "perturbation_fraction": "0.5",
                },
            }
        ]
        (folder / "story/04_baselines.json").write_text(json.dumps(story))
        return tmp_path / "reports"

    return write

"""Networks of a few weights, and folders of images, that tests of checkpoints share."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn


class Brightness(nn.Module):
    """Outputs from the mean of all pixels."""

    def __init__(self, classes=2):
        super().__init__()
        self.fc = nn.Linear(1, classes)

    def forward(self, images):
        return self.fc(images.mean((1, 2, 3))[:, None])


class InDictionary(Brightness):
    def forward(self, images):
        return {"logits": super().forward(images)}


class WithSoftmax(Brightness):
    def forward(self, images):
        return super().forward(images).softmax(1)


class OfSide64(Brightness):
    """Right at 64 pixels alone."""

    def forward(self, images):
        return super().forward(images) * (1 if images.shape[-1] == 64 else -1)


NETWORKS = (Brightness, InDictionary, WithSoftmax, OfSide64)


def dark_or_light(threshold=0.0, order=(0, 1)):
    """Weights of ``Brightness`` that tell dark images from light ones."""
    weight = torch.tensor([[-1.0], [1.0]])[list(order)]
    return {"fc.weight": weight, "fc.bias": -threshold * weight[:, 0]}


@pytest.fixture
def users_module(monkeypatch):
    module = type(sys)("a_users_module")
    for network in NETWORKS:
        setattr(module, network.__name__, network)
    monkeypatch.setitem(sys.modules, "a_users_module", module)
    return "a_users_module"


@pytest.fixture
def folders(tmp_path):
    """Write dark images of a class cat and light ones of a class dog."""

    def write(name="images", count=30, seed=0, size=(32, 32)):
        random = np.random.default_rng(seed)
        for label, lowest in (("cat", 0), ("dog", 155)):
            (tmp_path / name / label).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(lowest, lowest + 100, (*size, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / name / label / f"{number}.png")
        return tmp_path / name

    return write

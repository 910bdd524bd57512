"""Makers for tests of training."""

import contextlib
import types
from dataclasses import replace

import pytest
import torch

from helpers.data.manifest import choose_images
from helpers.training.config import RunConfig
from helpers.training.cuda_graph import CapturedStep
from tests.conftest import TINY_SCENES


def configurations(work):
    """Four short runs on the tiny scenes, which are chosen for the study in ``work``."""
    data = choose_images(work, **TINY_SCENES)
    base = RunConfig(
        "resnet18", 8, 0.01, "adam", 0.0, True, False, data=data.fingerprint, stem="strided", width=0.125, max_epochs=12, loss_threshold=0.0
    )
    return [replace(base, repeat=number) for number in range(4)]


class GraphByHand:
    """What a CUDA graph does, on a CPU: what stands in the block of its recording runs again on the same tensors."""

    captured = None

    def replay(self):
        sums = self.captured._sums
        sums.copy_(self.captured._step())


@pytest.fixture
def graph_by_hand(monkeypatch):
    """Makes a step that is recorded and replayed as on a GPU, but for the GPU: streams are none, and the graph is one by hand."""
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda: types.SimpleNamespace(wait_stream=lambda stream: None))
    for name in ("stream", "graph"):
        monkeypatch.setattr(torch.cuda, name, lambda given: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", GraphByHand)

    def make(shape, kind=CapturedStep):
        captured = kind(shape)
        captured._record()
        captured._graph.captured = captured
        return captured

    return make

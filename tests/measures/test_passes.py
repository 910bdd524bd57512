import types

import pytest
import torch
from torch import nn

from helpers.measures import passes
from helpers.measures.evidence import Evidence, MeasureSettings
from helpers.networks import resnet


def two_layers():
    """One image of 8 x 8 pixels puts out 16 maps of 8 x 8 and 5 numbers."""
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def test_what_layers_put_out_is_counted_in_bytes_and_nothing_is_left_behind():
    network = two_layers().train()
    assert passes.output_bytes(network, torch.zeros(1, 3, 8, 8)) == [4 * 16 * 64, 4 * 16, 4 * 16, 4 * 5]
    assert network.training
    assert not any(module._forward_hooks for module in network.modules())


def test_a_batch_is_as_large_as_fits(monkeypatch):
    sizes = passes.output_bytes(two_layers(), torch.zeros(1, 3, 8, 8))
    largest, together = 4096, 4096 + 64 + 64 + 20
    monkeypatch.setattr(passes, "_FORWARD", 10 * 4 * largest + 1)
    assert passes.batch_size(sizes, "cpu") == 10
    monkeypatch.setattr(passes, "_BACKWARD", 7 * 2 * together + 1)
    assert passes.gradient_batch_size(sizes, "cpu", 10) == 7
    assert passes.gradient_batch_size(sizes, "cpu", 5) == 5
    monkeypatch.setattr(passes, "_FORWARD", 1)
    assert passes.batch_size(sizes, "cpu") == 1


def test_on_a_gpu_half_of_what_is_free_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 20 * 4 * 4096, 10**12))
    assert passes.batch_size(passes.output_bytes(two_layers(), torch.zeros(1, 3, 8, 8)), "cuda") == 20


@pytest.mark.parametrize(("architecture", "size", "least", "most"), [("resnet18", 224, 8, 64), ("resnet18", 32, 256, 256)])
def test_batches_of_the_usual_networks_are_of_the_usual_size(architecture, size, least, most):
    network = resnet.build(architecture, 20, seed=0)
    assert least <= passes.batch_size(passes.output_bytes(network, torch.zeros(1, 3, size, size)), "cpu") <= most


def test_settings_choose_only_where_they_leave_it_open():
    images = types.SimpleNamespace(images=torch.zeros(1, 3, 8, 8, dtype=torch.uint8))
    given = {"network": two_layers(), "images": images, "normalise": resnet.normalise_images, "device": "cpu"}
    assert Evidence(given, MeasureSettings(batch_size=3))["batch_size"] == 3
    assert Evidence(given, MeasureSettings())["batch_size"] == 256
    assert Evidence(given, MeasureSettings(batch_size=3))["gradient_batch_size"] == 3

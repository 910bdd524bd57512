"""The whole field on networks of other makes: every measure gives a number or says in one line why it cannot."""

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from helpers.measures import evidence, registry
from helpers.networks import resnet

# As little of everything as still goes through all of it.
FEW = {
    "flatness_images": 12,
    "flatness_draws": 1,
    "flatness_halvings": 2,
    "sharpness_images": 12,
    "sharpness_steps": 1,
}
SMALL = evidence.MeasureSettings(
    perturbation_fraction=0.4, perturbation_points=2, **FEW
)


class TwoLayerHead(nn.Module):
    """A convolutional network whose classifier has a hidden layer."""

    def __init__(self, classes=3):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, classes))

    def forward(self, images):
        return self.head(self.features(images).mean((2, 3)))


NETWORKS = {
    "a narrow ResNet50": lambda: resnet.build(
        "resnet50", 3, stem="imagenet", width=0.125, seed=0
    ),
    "MobileNetV3": lambda: torchvision.models.mobilenet_v3_small(num_classes=3),
    "a head of two layers": TwoLayerHead,
    "a vision transformer": lambda: torchvision.models.VisionTransformer(
        16, 8, 2, 2, 32, 64, num_classes=3
    ),
}


def without_zeros(network):
    """Move weights that begin as zeros (a head, the last scale of a block), with which norms and logits would be degenerate."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return network


@pytest.fixture(scope="module", params=list(NETWORKS))
def scored(request, tiny_module_given):
    torch.manual_seed(0)
    network, start = (without_zeros(NETWORKS[request.param]()) for _ in range(2))
    given = tiny_module_given | {"network": network, "initial_network": start}
    return evidence.score(registry.MEASURES.values(), given, SMALL)[0]


def test_every_measure_has_a_number_or_a_reason_of_one_line(scored):
    without = scored[scored["value"].isna()]
    assert (without["reason"].str.len() > 0).all()
    assert not scored["reason"].str.contains("\n").any()
    assert (scored.loc[scored["value"].notna(), "reason"] == "").all()
    assert set(scored["measure"]) == set(registry.MEASURES)


class Fails(nn.Module):
    """A network that raises what it is given."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.weight = fault, nn.Parameter(torch.ones(1))

    def forward(self, images):
        raise self.fault


FAILS = "the network fails on these images ("
UNFIT = {
    "a transformer for another size": (
        lambda: torchvision.models.VisionTransformer(
            32, 8, 1, 2, 32, 64, num_classes=3
        ),
        FAILS,
    ),
    "fewer outputs than classes": (
        lambda: TwoLayerHead(classes=1),
        "the network has 1 outputs, and labels go up to 2",
    ),
    "an index that is not there": (
        lambda: Fails(IndexError("7 is out of range\nin line 3")),
        FAILS,
    ),
    "no words": (lambda: Fails(KeyError()), FAILS),
}


@pytest.mark.parametrize("name", UNFIT)
def test_what_a_network_fails_with_is_the_reason_of_its_rows(name, tiny_module_given):
    make, reason = UNFIT[name]
    scores, _ = evidence.score(
        registry.measures_of_families(["localization", "prediction"]),
        tiny_module_given | {"network": make()},
        SMALL,
    )
    loss = scores[scores["measure"] == "training_loss"].iloc[0]
    assert np.isnan(loss["value"])
    assert loss["reason"].startswith(reason)
    assert not scores["reason"].str.contains("\n").any()
    assert (scores.loc[scores["value"].isna(), "reason"] != "").all()


@pytest.mark.parametrize("family", ["localization", "prediction"])
@pytest.mark.parametrize(
    "fault",
    [
        KeyboardInterrupt(),
        MemoryError(),
        torch.OutOfMemoryError(),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("Expected all tensors to be on the same device, but found two"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 9 bytes"),
    ],
    ids=lambda fault: str(fault)[:20] or type(fault).__name__,
)
def test_a_failure_of_the_machine_is_no_property_of_a_network(
    fault, family, tiny_module_given
):
    with pytest.raises(type(fault)):
        evidence.score(
            registry.measures_of_families([family]),
            tiny_module_given | {"network": Fails(fault)},
            SMALL,
        )

"""The whole field on networks of other makes: every measure gives a number or says in one line why it cannot."""

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


NETWORKS = {
    "a narrow ResNet50": lambda: resnet.build(
        "resnet50", 3, stem="imagenet", width=0.125, seed=0
    ),
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

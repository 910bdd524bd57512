"""The whole field on networks of other makes: every measure gives a number or says in one line why it cannot."""

import pytest
import torch
import torchvision
from torch import nn

from helpers.measures import evidence, registry
from helpers.networks import resnet

# As little of everything as still goes through all of it.
SMALL = evidence.MeasureSettings(
    perturbation_fraction=0.4,
    perturbation_points=2,
    flatness_images=12,
    flatness_draws=1,
    flatness_halvings=2,
    sharpness_images=12,
    sharpness_steps=1,
)


def bottlenecks():
    return resnet.build("resnet50", 3, stem="imagenet", width=0.125, seed=0)


def transformer():
    return torchvision.models.VisionTransformer(16, 8, 2, 2, 32, 64, num_classes=3)


def without_zeros(network):
    """Move weights that begin as zeros (a head, the last scale of a block), with which norms and logits would be degenerate."""
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.uniform_(parameter, 0.1, 0.2)
    return network


@pytest.mark.parametrize("build", [bottlenecks, transformer])
def test_every_measure_has_a_number_or_a_reason_of_one_line(build, tiny_module_given):
    torch.manual_seed(0)
    network, start = without_zeros(build()), without_zeros(build())
    given = tiny_module_given | {"network": network, "initial_network": start}
    scored, _ = evidence.score(registry.MEASURES.values(), given, SMALL)
    assert not scored["reason"].str.contains("\n").any()
    assert ((scored["reason"] == "") == scored["value"].notna()).all()
    assert set(scored["measure"]) == set(registry.MEASURES)

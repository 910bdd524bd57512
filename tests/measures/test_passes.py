"""One forward pass: its maps against autograd on networks of many makes, its batches, and what it says without maps."""

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from helpers.cams.maps import closed_form_cam, normalise_maps
from helpers.data.images import ImageSet
from helpers.measures import passes
from helpers.measures.evidence import Evidence, MeasureSettings
from helpers.networks import hooks, resnet


def maps_by_autograd(network, layer, pixels):
    """Grad-CAM from its definition: the whole graph, the gradient of the largest logit at the layer's output."""
    kept = []
    hook = layer.register_forward_hook(
        lambda module, given, output: kept.append(output) or output.clone()
    )
    with torch.enable_grad():
        logits = network(pixels.requires_grad_())
    hook.remove()
    (gradient,) = torch.autograd.grad(logits.amax(1).sum(), kept[-1])
    return (gradient.mean((2, 3), keepdim=True) * kept[-1]).sum(1).relu().detach()


# The side of the images, the layer of the last maps of more than one pixel, and whether these are pooled and classified linearly.
@pytest.mark.parametrize(
    ("name", "side", "expected_layer", "exact"),
    [
        ("resnet18", 32, "layer3", False),
        ("resnet18", 64, "layer4", True),
        ("mobilenet_v3_small", 64, "features", False),
        ("squeezenet1_1", 64, "classifier.2", False),
    ],
)
def test_maps_are_of_the_last_layer_of_pixels(
    name, side, expected_layer, exact, monkeypatch
):
    torch.manual_seed(2)
    network = torchvision.models.get_model(name, num_classes=4).eval()
    # Scales and heads that begin as zeros would hide the branches behind them.
    for parameter in network.parameters():
        if parameter.ndim and parameter.abs().max() < 1e-4:
            nn.init.uniform_(parameter, -0.5, 0.5)
    images, taken = three_images(side), []
    monkeypatch.setattr(
        passes,
        "closed_form_cam",
        lambda *given, own=closed_form_cam: taken.append(1) or own(*given),
    )
    example = resnet.normalise_images(images.images[:1])
    classifier = passes.Classifier(network, resnet.normalise_images, "cpu", 2)
    seen = passes.forward_pass(classifier, images, example, "grad_cam")
    found = passes.maps(seen, classifier, images, example, "grad_cam")
    layer = network.get_submodule(expected_layer)
    assert hooks.last_maps_layer(network, example) is layer
    assert bool(taken) == exact
    expected = maps_by_autograd(network, layer, resnet.normalise_images(images.images))
    assert min(expected.shape[1:]) > 1
    assert expected.amax((1, 2)).min() > 0
    torch.testing.assert_close(found, normalise_maps(expected), rtol=1e-3, atol=1e-3)


def three_images(side):
    random = np.random.default_rng(1)
    pixels = random.integers(0, 256, (3, 3, side, side), dtype=np.uint8)
    boxes = torch.zeros(3, 1, 4, dtype=torch.int16)
    labels = torch.zeros(3, dtype=torch.int64)
    return ImageSet(torch.from_numpy(pixels), labels, boxes, ("a", "b", "c"))


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(3072, 4)),
        nn.Sequential(nn.Conv2d(3, 5, 32), nn.Flatten(), nn.Linear(5, 4)),
    ],
)
def test_without_maps_there_is_a_reason_and_everything_else(network):
    inputs = {"network": network.eval(), "normalise": resnet.normalise_images}
    inputs |= {"images": three_images(32), "device": "cpu"}
    known = Evidence(inputs, MeasureSettings())
    assert known["logits"].shape == (3, 4)
    with pytest.raises(ValueError, match=r"puts out maps .* of more than one pixel"):
        known["maps"]

"""Margins of hidden layers: each image alone, the last stage by hand, and scale."""

import numpy as np
import pytest
import torch

from helpers.data.images import ImageSet
from helpers.measures import evidence, margins
from helpers.measures.passes import Classifier
from helpers.measures.registry import MEASURES
from helpers.networks import hooks, resnet
from helpers.networks.faults import Undefined

SIZE = 16
WRONG = 7  # the image that is classified wrongly


def network():
    made = resnet.build("resnet18", classes=3, stem="small", width=0.0625, seed=1)
    return made.double().eval()


def normalise(pixels):
    return pixels.double() / 255


def margins_at(made, images):
    inputs = {
        "network": made,
        "images": images,
        "classifier": Classifier(made, normalise, "cpu", 4),
    }
    settings = evidence.MeasureSettings()
    return evidence.Evidence(inputs, settings)["layer_margins"]


@pytest.fixture
def images():
    """Ten images, of which the network classifies all but one correctly."""
    random = torch.Generator().manual_seed(0)
    shape = (10, 3, SIZE, SIZE)
    pixels = torch.randint(0, 256, shape, generator=random, dtype=torch.uint8)
    labels = network()(normalise(pixels)).argmax(1)
    labels[WRONG] = (labels[WRONG] + 1) % 3
    boxes = torch.zeros(10, 0, 4, dtype=torch.int16)
    return ImageSet(pixels, labels, boxes, tuple(map(str, range(10))))


def test_each_image_alone_has_the_same_margin_at_every_layer(images):
    """Gradients of one image by ``torch.func`` from each layer on."""
    made = network()
    stages = list(hooks.stage_layers(made).values())
    rest = [made.layer1, made.layer2, made.layer3, made.layer4]

    def logits_from(layer, values):
        for stage in rest[layer:]:
            values = stage(values)
        return made.fc(made.avgpool(values).flatten(1))

    right = [row for row in range(10) if row != WRONG]
    outputs = [[] for _ in margins._LAYERS]
    expected = np.empty((5, 9))
    for place, row in enumerate(right):
        label = images.labels[row]
        values = normalise(images.images[row : row + 1])
        ranked = made(values)[0].argsort(descending=True)
        other = ranked[1]
        for layer in range(5):
            if layer == 1:
                values = made.maxpool(made.relu(made.bn1(made.conv1(values))))
            if layer:
                values = stages[layer - 1](values)

            def difference(x, layer=layer, label=label, other=other):
                z = made(x) if layer == 0 else logits_from(layer, x)
                return z[0, label] - z[0, other]

            gradient = torch.func.grad(difference)(values)
            outputs[layer].append(values.detach().flatten())
            expected[layer, place] = float(
                (difference(values) / gradient.norm()).detach()
            )
    for layer, of_layer in enumerate(outputs):
        variation = torch.stack(of_layer).var(0, correction=0).sum()
        expected[layer] /= float(variation**0.5)
    np.testing.assert_allclose(margins_at(made, images), expected, rtol=1e-8)
    medians = np.log(np.median(expected, 1))
    values = margins.hidden_margin(expected)
    assert values["mean of layers"] == pytest.approx(medians.mean())
    assert values["stage 2"] == medians[2]
    assert MEASURES["hidden_margin"].variants == tuple(values)


def test_no_scale_of_a_layer_counts(images):
    made = network()
    before = margins_at(made, images)
    with torch.no_grad():
        made.fc.weight *= 3
        made.fc.bias *= 3
    np.testing.assert_allclose(margins_at(made, images), before, rtol=1e-8)


def test_without_a_right_image_and_without_stages_there_is_no_margin(images):
    made = network()
    with pytest.raises(Undefined, match="no training image"):
        margins_at(made, images.subset([WRONG]))
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, 3))
    inputs = {"network": flat.double(), "images": images, "normalise": normalise}
    found = evidence.Evidence(
        inputs | {"device": "cpu", "margins": np.ones(10)}, evidence.MeasureSettings()
    )
    with pytest.raises(Undefined, match="Sequential has not the four stages"):
        found["layer_margins"]

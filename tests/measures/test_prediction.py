"""Measures of what a network says, by hand and against other computations."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.metrics import log_loss
from torch import nn

from helpers.data.images import ImageSet
from helpers.measures import evidence, prediction
from helpers.measures.passes import Classifier
from helpers.networks import Undefined, resnet

RNG = np.random.default_rng(0)


def test_the_nuclear_norm_equals_the_sum_of_singular_values():
    p = torch.from_numpy(RNG.normal(size=(40, 7))).softmax(1)
    exact = np.linalg.svd(p.numpy(), compute_uv=False).sum()
    expected = exact / np.sqrt(7 * 40)
    assert prediction.nuclear_norm(p) == pytest.approx(expected, rel=1e-10)


def test_invariance_by_hand():
    clean = torch.tensor([[0.8, 0.2], [0.8, 0.2], [1.0, 0.0]], dtype=torch.float64)
    turned = torch.tensor([[0.6, 0.4], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    found = prediction.effective_invariance(clean, torch.stack([turned, clean]))
    vectors = np.array([(0.8 * 0.6 + 0.2 * 0.4) ** 0.5, 0, 1])
    of_same = np.array([0.68**0.5, 0.68**0.5, 1])
    np.testing.assert_allclose(found["vector"], (vectors + of_same) / 2)
    confidences = np.array([(0.8 * 0.6) ** 0.5, 0, 1])
    of_same = np.array([0.8, 0.8, 1])
    np.testing.assert_allclose(found["top confidence"], (confidences + of_same) / 2)


class Corner(nn.Module):
    """Says class 0 as loudly as the top left pixel is bright, class 1 for the top right, 2 and 3 for the lower corners."""

    def forward(self, images):
        return images.mean(1)[:, ::3, ::3].flatten(1)


def test_images_are_turned_by_quarter_turns_exactly():
    images = SimpleNamespace(images=torch.zeros(1, 3, 4, 4, dtype=torch.uint8))
    images.images[0, :, 0, 0] = 9
    classifier = Classifier(Corner(), torch.Tensor.float, "cpu", 8)
    turned = prediction.rotated_probabilities(classifier, images)
    # Anticlockwise: lower left, lower right, upper right.
    assert turned.argmax(2)[:, 0].tolist() == [2, 3, 1]


def test_margins_by_hand():
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0], [1.0, 1.0, 0.0]])
    assert prediction.margins(logits, torch.tensor([0, 1, 0])).tolist() == [2, -3, 0]


def test_the_margin_of_the_norms_is_the_kth_smallest_in_size():
    # 25 margins, so k = 2: the second smallest is -2.
    values = RNG.permutation(np.arange(-3, 22, dtype=float))
    assert prediction.margin(values) == 2.0
    assert np.isnan(prediction.margin(np.zeros(20)))
    assert prediction.margin(values[:9]) == abs(values[:9].min())
    assert prediction.output_margin(values) == np.quantile(values, 0.1)


def test_loss_accuracy_and_entropy():
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(50) % 4
    p = prediction.probabilities(logits)
    loss = prediction.training_loss(logits, labels).mean()
    assert loss == pytest.approx(log_loss(labels, p.numpy()), rel=1e-6)
    accuracy = (logits.numpy().argmax(1) == labels.numpy()).mean()
    assert prediction.training_accuracy(logits, labels) == accuracy
    entropies = prediction.prediction_entropy(p)
    np.testing.assert_allclose(entropies, scipy.stats.entropy(p, axis=1))
    assert not prediction.prediction_entropy(torch.eye(3, dtype=torch.float64)).any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_tell_no_accuracy(value):
    with pytest.raises(Undefined, match=r"^logits are not finite$"):
        prediction.probabilities(torch.tensor([[0.0, value]]))


SIZE = 16
WRONG = 7  # the image that is classified wrongly


def network():
    made = resnet.build("resnet18", classes=3, stem="small", width=0.0625, seed=1)
    return made.double().eval()


def normalise(pixels):
    return pixels.double() / 255


def margins_at(made, images):
    inputs = {"network": made, "images": images}
    inputs["classifier"] = Classifier(made, normalise, "cpu", 4)
    return evidence.Evidence(inputs, evidence.MeasureSettings())["layer_margins"]


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
    made = network()
    stem = nn.Sequential(made.conv1, made.bn1, made.relu, made.maxpool, made.layer1)
    head = nn.Sequential(made.avgpool, nn.Flatten(), made.fc)
    parts = [stem, made.layer2, made.layer3, made.layer4, head]
    outputs, expected = [[] for _ in parts], np.empty((5, 9))
    for place, row in enumerate(row for row in range(10) if row != WRONG):
        values, label = normalise(images.images[[row]]), images.labels[row]
        other = made(values)[0].argsort(descending=True)[1]
        for layer, part in enumerate(parts):
            values = values.detach().requires_grad_()
            logits = nn.Sequential(*parts[layer:])(values)[0]
            difference = logits[label] - logits[other]
            (gradient,) = torch.autograd.grad(difference, values)
            outputs[layer].append(values.detach().flatten())
            expected[layer, place] = (difference / gradient.norm()).item()
            values = part(values)
    for layer, of_images in enumerate(outputs):
        variation = torch.stack(of_images).var(0, correction=0).sum()
        expected[layer] /= variation.item() ** 0.5
    np.testing.assert_allclose(margins_at(made, images), expected, rtol=1e-8)
    medians = np.log(np.median(expected, 1))
    assert prediction.hidden_margin(expected) == pytest.approx(medians.mean())


def test_without_a_right_image_and_without_stages_there_is_no_margin(images):
    made = network()
    with pytest.raises(Undefined, match="no training image"):
        margins_at(made, images.subset([WRONG]))
    flat = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * SIZE**2, 3))
    with pytest.raises(Undefined, match="Sequential has not the four stages"):
        margins_at(flat.double(), images)

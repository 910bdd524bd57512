"""Measures of what a network says, by hand and against other computations."""

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss
from torch import nn

from helpers.measures import evidence, prediction
from helpers.measures.passes import Classifier
from helpers.measures.registry import MEASURES

RNG = np.random.default_rng(0)


def random_probabilities(n, k, seed=0):
    return torch.randn(
        n, k, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    ).softmax(1)


def test_the_nuclear_norm_equals_the_sum_of_singular_values():
    p = random_probabilities(40, 7)
    values = prediction.nuclear_norm(p)
    exact = np.linalg.svd(p.numpy(), compute_uv=False).sum()
    assert values["raw"] == pytest.approx(exact, rel=1e-10)
    assert values["scaled"] == pytest.approx(exact / np.sqrt(7 * 40), rel=1e-10)
    assert values["as printed in Du"] == pytest.approx(
        exact / np.sqrt(7 * 40) / 40, rel=1e-10
    )


def test_invariance_by_hand():
    clean = torch.tensor([[0.8, 0.2], [0.8, 0.2], [1.0, 0.0]], dtype=torch.float64)
    turned = torch.tensor([[0.6, 0.4], [0.3, 0.7], [1.0, 0.0]], dtype=torch.float64)
    vector, confidence = prediction.invariance_of(clean, turned)
    assert vector.tolist() == pytest.approx([(0.8 * 0.6 + 0.2 * 0.4) ** 0.5, 0, 1])
    assert confidence.tolist() == pytest.approx([(0.8 * 0.6) ** 0.5, 0, 1])


class Corner(nn.Module):
    """Says class 0 as loudly as the top left pixel is bright, class 1 for the top right, 2 and 3 for the lower corners."""

    def forward(self, images):
        plane = images.mean(1)
        return torch.stack(
            [plane[:, 0, 0], plane[:, 0, -1], plane[:, -1, 0], plane[:, -1, -1]], 1
        )


def test_images_are_turned_by_quarter_turns_exactly():
    images = type(
        "Images",
        (),
        {
            "images": torch.zeros(1, 3, 4, 4, dtype=torch.uint8),
            "__len__": lambda self: 1,
        },
    )()
    images.images[0, :, 0, 0] = 9
    classifier = Classifier(Corner(), torch.Tensor.float, "cpu", 8)
    turned = prediction.rotated_probabilities(classifier, images)
    assert turned.argmax(2)[:, 0].tolist() == [
        2,
        3,
        1,
    ]  # anticlockwise: lower left, lower right, upper right


def test_margins_by_hand():
    logits = torch.tensor([[3.0, 1.0, 0.0], [0.0, 2.0, 5.0], [1.0, 1.0, 0.0]])
    assert prediction.margins(logits, torch.tensor([0, 1, 0])).tolist() == [
        2.0,
        -3.0,
        0.0,
    ]
    with pytest.raises(ValueError, match="has one output, and a margin needs two"):
        prediction.margins(logits[:, :1], torch.zeros(3, dtype=torch.int64))


def test_the_margin_of_the_norms_is_the_kth_smallest_in_size():
    values = RNG.permutation(
        np.arange(-3, 22, dtype=float)
    )  # 25 margins, so k = 2: the second smallest is -2
    assert prediction.margin(values) == 2.0
    assert prediction.margin(values) == abs(
        float(torch.tensor(values).kthvalue(2).values)
    )
    assert np.isnan(prediction.margin(np.zeros(20)))
    with pytest.raises(ValueError, match="9 training images; the 10th percentile"):
        prediction.margin(values[:9])


def test_margin_percentiles_and_moments_equal_numpys():
    values = RNG.gamma(2, size=500)
    found = prediction.output_margin(values)
    assert found["10th percentile"] == np.quantile(values, 0.1)
    assert found["5th percentile"] == np.quantile(values, 0.05)
    scaled = (values - values.mean()) / values.std()
    assert found["skewness"] == pytest.approx((scaled**3).mean())
    assert found["kurtosis"] == pytest.approx((scaled**4).mean() - 3)
    constant = prediction.output_margin(np.ones(5))
    assert (constant["mean"], constant["standard deviation"]) == (1, 0)
    assert np.isnan(constant["skewness"])


def test_loss_accuracy_and_entropy():
    logits = torch.randn(50, 4, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(50) % 4
    p = logits.double().softmax(1)
    assert prediction.training_loss(logits, labels).mean() == pytest.approx(
        log_loss(labels, p.numpy()), rel=1e-6
    )
    assert (
        prediction.training_accuracy(logits, labels)
        == (logits.numpy().argmax(1) == labels.numpy()).mean()
    )
    assert prediction.prediction_entropy(p).mean() == pytest.approx(
        float(-(p * p.log()).sum(1).mean())
    )
    assert not prediction.prediction_entropy(torch.eye(3, dtype=torch.float64)).any()
    assert prediction.prediction_entropy(
        torch.full((2, 4), 0.25, dtype=torch.float64)
    ) == pytest.approx(np.log(4))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_tell_no_accuracy(tiny_given, value):
    network = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    ).eval()
    nn.init.constant_(network[3].bias, value)
    table, _ = evidence.score(
        [MEASURES["training_accuracy"]],
        tiny_given | {"network": network},
        evidence.MeasureSettings(),
    )
    (row,) = table.itertuples()
    assert np.isnan(row.value)
    assert row.reason == "logits are not finite"

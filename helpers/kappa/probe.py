"""Linear probes: a logistic regression on frozen features, and the steps in which classes are added."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

_Array = NDArray[np.float64]

# Huang, Yu and Zhang 2025: 0, 10, 20, 30, 40 and 50 classes added to 50.
UNSEEN_FRACTIONS = (0.0, 0.167, 0.286, 0.375, 0.444, 0.5)

# The published fractions are rounded to three decimals.
_ROUNDING = 0.0005


def fit_probe(features: ArrayLike, labels: ArrayLike, *, l2: float = 1e-2, max_iterations: int = 2000, tolerance: float = 1e-5) -> Pipeline:
    """Multinomial logistic regression on standardised features, by scikit-learn's L-BFGS.

    It minimises ``mean over i of -ln softmax(W x_i + b)_(y_i) + l2 / 2 ||W||_F^2``, the bias free, x standardised by the mean and
    standard deviation of ``features``. The objective has one minimum, up to a constant added to all of b.

    Args:
        features: (N, D), an array or a tensor.
        labels: (N,) integers; at least two different ones.
        l2: strength of the penalty, above 0.
        max_iterations: after which the solver stops, with a ConvergenceWarning.
        tolerance: largest entry of the gradient at which the fit counts as converged.

    Returns:
        A StandardScaler and a LogisticRegression, fitted; ``probe_layer`` gives both as one linear layer.

    Raises:
        ValueError: shapes do not match, a feature is not finite, labels are of one class only, or l2 is not above 0.
    """
    if not l2 > 0:
        raise ValueError(f"l2 is {l2}; it must be above 0, or classes that can be told apart have no finite solution")
    x, y = _finite(features), np.asarray(labels)
    scaler = StandardScaler().fit(x)
    # What varies by no more than float32 rounds is constant; divided by its deviation it would be noise as large as a feature.
    scaler.scale_[scaler.scale_ <= 1e-6 * np.abs(x).max(0)] = 1.0
    # Of two classes scikit-learn fits the difference of the rows of W, of which the penalty is half as large.
    strength = (2 if len(np.unique(y)) == 2 else 1) / (l2 * len(x))
    regression = LogisticRegression(C=strength, tol=tolerance, max_iter=max_iterations).fit(scaler.transform(x), y)
    return make_pipeline(scaler, regression)


def _finite(features: ArrayLike) -> _Array:
    x = np.asarray(features, dtype=float)
    if x.ndim == 2 and not (finite := np.isfinite(x).all(1)).all():
        raise ValueError(f"{int((~finite).sum())} of {len(x)} images have features that are not finite")
    return x


def probe_layer(probe: Pipeline) -> nn.Linear:
    """A probe as one linear layer from features to logits, float32; its standardisation enters the weights."""
    scaler, regression = (step for _, step in probe.steps)
    weight, bias = regression.coef_, regression.intercept_
    if len(weight) == 1:  # of two classes
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    layer = nn.Linear(weight.shape[1], len(weight)).requires_grad_(False)
    layer.weight.copy_(torch.from_numpy(weight / scaler.scale_))
    layer.bias.copy_(torch.from_numpy(bias - (weight * scaler.mean_ / scaler.scale_).sum(1)))
    return layer


def predicted_labels(probe: Pipeline, features: ArrayLike) -> NDArray[np.int64]:
    """Labels that a probe gives to images, (N,), from their features (N, D); ValueError where one is not finite."""
    return np.asarray(probe.predict(_finite(features)), dtype=np.int64)


def class_steps(class_ids: Sequence[str], seen: int, fractions: Sequence[float] = UNSEEN_FRACTIONS) -> list[list[str]]:
    """Choose the classes of each step: the first ``seen`` ones, and n more so that n / (seen + n) is the fraction wanted.

    The fraction is the "ZeroShot%" of Huang, Yu and Zhang 2025. The probe is fitted to all classes of a step, so the added ones are
    unseen by the backbone only. Each step holds the classes of every smaller one.

    Args:
        class_ids: all classes, the seen ones first.
        seen: classes that the backbone was adapted to, at least 1.
        fractions: in [0, 1); met within 0.0005, since the published ones are rounded.

    Returns:
        One list of classes per fraction, in the order of ``fractions``.

    Raises:
        ValueError: a class stands twice, ``seen`` is out of range, or a fraction cannot be had; the message names those that can.
    """
    if len(set(class_ids)) != len(class_ids):
        raise ValueError(f"class_ids names a class twice: {list(class_ids)}")
    if not 1 <= seen <= len(class_ids):
        raise ValueError(f"seen is {seen}; it must be from 1 to the number of classes, {len(class_ids)}")
    possible = np.array([added / (seen + added) for added in range(len(class_ids) - seen + 1)])
    steps = []
    for fraction in fractions:
        added = int(np.abs(possible - fraction).argmin())
        if not abs(possible[added] - fraction) <= _ROUNDING:
            choice = ", ".join(f"{value:.3f}" for value in possible)
            raise ValueError(f"the fraction {fraction} cannot be had of {len(class_ids)} classes with {seen} seen; possible are {choice}")
        steps.append(list(class_ids[: seen + added]))
    return steps

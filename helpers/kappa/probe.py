"""Linear probes: a logistic regression on frozen features, its confusion matrix, and the steps in which classes are added."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

_Array = NDArray[np.float64]


# Huang, Yu and Zhang 2025: 0, 10, 20, 30, 40 and 50 classes added to 50.
UNSEEN_FRACTIONS = (0.0, 0.167, 0.286, 0.375, 0.444, 0.5)


# Above this many values the fit moves to torch, and to the device: 10,000 images of 2,048 features.
ELEMENT_LIMIT = 20_480_000


# The published fractions are rounded to three decimals.
_ROUNDING = 0.0005


@dataclass(frozen=True)
class Probe:
    """A linear classifier on standardised features."""

    classes: NDArray[np.int64]  # (K,) labels, ascending
    mean: _Array  # (D,) of the training features
    scale: _Array  # (D,) their standard deviation, 1 for a constant feature
    weight: _Array  # (K, D)
    bias: _Array  # (K,)
    solver: str  # "scikit-learn" or "torch"
    iterations: int
    gradient: float  # largest entry of the objective's gradient where the solver stopped
    converged: bool  # gradient at most the tolerance asked for


def fit_probe(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    l2: float = 1e-2,
    seed: int = 0,
    max_iterations: int = 2000,
    tolerance: float = 1e-5,
    device: torch.device | str = "cpu",
    element_limit: int = ELEMENT_LIMIT,
) -> Probe:
    """Fit a multinomial logistic regression to standardised features, by L-BFGS.

    It minimises ``mean over i of -ln softmax(W x_i + b)_(y_i) + l2 / 2 ||W||_F^2``, the bias free, x standardised by the mean and
    standard deviation of ``features``. Up to ``element_limit`` values scikit-learn's LogisticRegression does it (C = 1 / (l2 N), and
    2 / (l2 N) for two classes, where it fits the difference of the two rows of W), beyond that torch's L-BFGS in float64 on ``device``.
    The objective has one minimum, up to a constant added to all of b.

    Args:
        features: (N, D), an array or a tensor.
        labels: (N,) integers; at least two different ones.
        l2: strength of the penalty, above 0.
        seed: handed to scikit-learn, whose L-BFGS draws nothing: no result depends on it.
        max_iterations: after which the solver stops; a fit that has not converged by then warns and says so in ``converged``.
        tolerance: largest entry of the gradient at which the fit counts as converged.
        device: for torch's solver.
        element_limit: largest N * D that is left to scikit-learn.

    Raises:
        ValueError: shapes do not match, a feature is not finite, labels are no integers or of one class only, or l2 is not above 0.
    """
    x, y = _checked(features, labels)
    if not l2 > 0:
        raise ValueError(f"l2 is {l2}; it must be above 0, or classes that can be told apart have no finite solution")
    classes, targets = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"the labels hold {len(classes)} class ({', '.join(map(str, classes))}); a probe needs at least 2")
    mean, scale = x.mean(0), x.std(0)
    # What varies by no more than float32 rounds is constant; divided by its deviation it would be noise as large as a feature.
    scale[scale <= 1e-6 * np.abs(x).max(0)] = 1.0
    standard = (x - mean) / scale
    if x.size <= element_limit:
        solver, (weight, bias, iterations) = "scikit-learn", _scikit_learn(standard, targets, l2, seed, max_iterations, tolerance)
    else:
        solver, (weight, bias, iterations) = "torch", _torch(standard, targets, l2, max_iterations, tolerance, device)
    gradient = max(float(part.abs().max()) for part in _gradient(*map(torch.from_numpy, (standard, targets, weight, bias)), l2)[1:])
    if gradient > tolerance:
        advice = "raise max_iterations, l2 or the tolerance"
        warnings.warn(
            f"the probe stopped after {iterations} iterations at a gradient of {gradient:.1e}, above {tolerance:g}; {advice}",
            ConvergenceWarning,
            stacklevel=2,
        )
    return Probe(classes, mean, scale, weight, bias, solver, iterations, gradient, gradient <= tolerance)


def _checked(features: ArrayLike, labels: ArrayLike) -> tuple[_Array, NDArray[np.int64]]:
    x, y = np.asarray(features, dtype=float), np.asarray(labels)
    if x.ndim != 2 or y.ndim != 1 or len(x) != len(y) or not x.size:
        raise ValueError(f"features must be (N, D) and labels (N,), N and D at least 1; got shapes {x.shape} and {y.shape}")
    if not np.isfinite(x).all():
        raise ValueError(f"{int((~np.isfinite(x)).any(1).sum())} of {len(x)} images have features that are not finite")
    if not np.issubdtype(y.dtype, np.integer):
        raise ValueError(f"labels are {y.dtype}; they must be integers")
    return x, y.astype(np.int64)


def _scikit_learn(
    x: _Array, targets: NDArray[np.intp], l2: float, seed: int, max_iterations: int, tolerance: float
) -> tuple[_Array, _Array, int]:
    two = targets.max() == 1
    model = LogisticRegression(C=(2 if two else 1) / (l2 * len(x)), tol=tolerance, max_iter=max_iterations, random_state=seed)
    with warnings.catch_warnings():
        # Said by fit_probe for both solvers, from the gradient.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(x, targets)
    weight, bias = model.coef_, model.intercept_
    if two:
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return weight, bias, int(model.n_iter_.max())


def _torch(
    x: _Array, targets: NDArray[np.intp], l2: float, max_iterations: int, tolerance: float, device: torch.device | str
) -> tuple[_Array, _Array, int]:
    with torch.inference_mode(False), torch.no_grad():
        given = torch.from_numpy(x).to(device), torch.from_numpy(targets).to(device)
        classes = int(targets.max()) + 1
        weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, device=device)
        bias = torch.zeros(classes, dtype=torch.float64, device=device)
        optimizer = torch.optim.LBFGS(
            [weight, bias],
            max_iter=max_iterations,
            tolerance_grad=tolerance,
            tolerance_change=1e-15,
            max_eval=10 * max_iterations,
            line_search_fn="strong_wolfe",
        )

        def closure() -> float:
            loss, weight.grad, bias.grad = _gradient(*given, weight, bias, l2)
            return loss

        optimizer.step(closure)
    iterations = next(iter(optimizer.state.values()))["n_iter"]
    return weight.cpu().numpy(), bias.cpu().numpy(), iterations


def _gradient(
    x: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, l2: float
) -> tuple[float, torch.Tensor, torch.Tensor]:
    """The objective and its gradient in closed form: ``(P - Y)' X / N + l2 W`` and the mean of ``P - Y``."""
    log_probabilities = torch.log_softmax(x @ weight.T + bias, 1)
    loss = -log_probabilities.gather(1, targets[:, None]).mean() + l2 / 2 * weight.square().sum()
    residual = log_probabilities.exp()
    residual[torch.arange(len(x), device=x.device), targets] -= 1
    residual /= len(x)
    return float(loss), residual.T @ x + l2 * weight, residual.sum(0)


def probe_probabilities(probe: Probe, features: ArrayLike) -> _Array:
    """Probability of each class: ``softmax(W (x - mean) / scale + b)``.

    Args:
        probe: of D features and K classes.
        features: (N, D).

    Returns:
        (N, K) in [0, 1], rows sum to 1, columns in the order of ``probe.classes``; NaN for an image with a feature that is not finite.

    Raises:
        ValueError: another number of features.
    """
    x = np.asarray(features, dtype=float)
    if x.ndim != 2 or x.shape[1] != len(probe.mean):
        raise ValueError(f"features have shape {x.shape}; the probe takes (N, {len(probe.mean)})")
    x = np.where(np.isfinite(x).all(1, keepdims=True), x, np.nan)
    logits = (x - probe.mean) / probe.scale @ probe.weight.T + probe.bias
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def predicted_labels(probe: Probe, features: ArrayLike) -> NDArray[np.int64]:
    """Label of the most probable class, the smallest of equals.

    Returns:
        (N,) labels as they were fitted.

    Raises:
        ValueError: another number of features, or a feature that is not finite.
    """
    found = probe_probabilities(probe, features)
    if np.isnan(found).any():
        raise ValueError(f"{int(np.isnan(found).any(1).sum())} of {len(found)} images have features that are not finite")
    return probe.classes[found.argmax(1)]


def probe_confusion(probe: Probe, features: ArrayLike, labels: ArrayLike, classes: Sequence[int]) -> NDArray[np.int64]:
    """Count n_ij, images of class i that the probe takes for class j; the n_ij of Huang, Yu and Zhang 2025.

    Args:
        probe: see ``fit_probe``.
        features: (N, D) of the test images.
        labels: (N,) true labels.
        classes: labels in the order of rows and columns; they hold every label of the images and every class of the probe.

    Returns:
        (K, K) counts, rows the true and columns the predicted class; they sum to N. A class without test images has a row of zeros.

    Raises:
        ValueError: shapes do not match, a label stands twice in ``classes`` or is missing from it, or a feature is not finite.
    """
    predicted, true = predicted_labels(probe, features), np.asarray(labels)
    if true.shape != predicted.shape:
        raise ValueError(f"labels have shape {true.shape}, features are of {len(predicted)} images")
    place = {label: number for number, label in enumerate(classes)}
    missing = sorted({*true.tolist(), *probe.classes.tolist()} - set(place))
    if len(place) != len(classes) or missing:
        raise ValueError(f"classes must name every label once; missing: {', '.join(map(str, missing)) or 'none'}, got {list(classes)}")
    rows, columns = (np.array([place[label] for label in found.tolist()], dtype=np.int64) for found in (true, predicted))
    return np.bincount(rows * len(place) + columns, minlength=len(place) ** 2).reshape(len(place), len(place))


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

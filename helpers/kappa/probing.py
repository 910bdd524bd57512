"""Linear probes on frozen features at every level of noise; Huang et al. 2025.

The predicted class of each test image is stored, and Error and Kappa of each class
follow from it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from helpers.data.images import StudyData
from helpers.files import json_digest
from helpers.kappa.noise import Degradation, Generator, Level, degrade
from helpers.kappa.statistics import error_and_loss
from helpers.scores.classification import logits_of
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet, classes_in_turn
from helpers.scores.store import Records, Store

_ROUNDING = 0.0005  # published fractions of unseen classes have three decimals
_FACTS = ("family", "model", "architecture", "origin")


def class_steps(
    data: StudyData, wanted: Sequence[str], seen: int, fractions: Sequence[float]
) -> list[int]:
    """Number of classes of each step: the seen ones and n more.

    Args:
        data: the study's images, with the unseen classes.
        wanted: names of the seen classes, then of the unseen ones.
        seen: number of seen classes.
        fractions: n / (seen + n) of each step, "ZeroShot%" of Huang et al. 2025.

    Returns:
        seen + n of each step.

    Raises:
        ValueError: where a class has no images, a fraction is not possible, or 0 is not
            among the fractions.
    """
    names = set(data.classes["class_id"])
    missing = [name for name in wanted if name not in names]
    if missing:
        raise ValueError(
            f"{len(missing)} classes have no usable images: {', '.join(missing[:5])}; "
            "check unseen_class_ids and data_source"
        )
    added = np.arange(len(wanted) - seen + 1)
    possible = added / (seen + added)
    distances = np.abs(possible - np.array(fractions)[:, None])  # (steps, possible)
    if 0 not in fractions or (distances.min(axis=1) > _ROUNDING).any():
        choice = ", ".join(f"{value:.3f}" for value in possible)
        raise ValueError(
            f"unseen_fractions is {list(fractions)}; it needs 0, and of {len(wanted)} "
            f"classes, {seen} seen, can have {choice}"
        )
    return [seen + int(number) for number in distances.argmin(axis=1)]


class Probe(NamedTuple):
    """A linear layer from features to logits."""

    weight: NDArray[np.float64]  # (K, D)
    bias: NDArray[np.float64]  # (K,)

    def predict(self, features: ArrayLike) -> NDArray[np.int16]:
        """Predicted class of each image: (N, D) features -> (N,).

        Args:
            features: (N, D).
        """
        logits = np.asarray(features) @ self.weight.T + self.bias
        return logits.argmax(1).astype(np.int16)


def fit_probe(
    features: ArrayLike, labels: ArrayLike, *, l2: float = 1e-2, tolerance: float = 1e-5
) -> Probe:
    """Multinomial logistic regression on standardised features, by L-BFGS.

    It minimises ``mean over i of -ln softmax(W x_i + b)_(y_i) + l2 / 2 ||W||_F^2`` of
    standardised x; the standardisation is then put into W and b.

    Args:
        features: (N, D).
        labels: (N,) from 0 to K - 1, each at least once.
        l2: strength of the penalty.
        tolerance: largest entry of the gradient at the end.
    """
    x = np.asarray(features, dtype=float)
    scaler = StandardScaler().fit(x)
    # A feature that varies by float32 rounding alone counts as constant; divided by its
    # deviation, the rounding would be as large as other features.
    scaler.scale_[scaler.scale_ <= 1e-6 * np.abs(x).max(0)] = 1.0
    inverse_penalty = 1 / (l2 * len(x))
    is_binary = len(np.unique(labels)) == 2
    if is_binary:
        # scikit-learn fits the difference d of the rows of W = (-d / 2, d / 2), and
        # ||W||_F^2 = ||d||^2 / 2: half the penalty.
        inverse_penalty *= 2
    regression = LogisticRegression(C=inverse_penalty, tol=tolerance, max_iter=2000)
    regression.fit(scaler.transform(x), np.asarray(labels))
    weight = regression.coef_
    bias = regression.intercept_
    if is_binary:
        weight = np.concatenate([-weight, weight]) / 2
        bias = np.concatenate([-bias, bias]) / 2
    shift = (weight * scaler.mean_ / scaler.scale_).sum(1)
    return Probe(weight / scaler.scale_, bias - shift)


def probes(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    degradation: Degradation,
    steps: Sequence[int],
    l2: float,
) -> Records:
    """Linear probes, fitted to clean training images and tested at each noise level.

    Args:
        store: of the study, which holds the features too.
        models: backbones.
        data: images of all classes.
        degradation: of the test images.
        steps: number of classes of each probe.
        l2: see ``fit_probe``.

    Returns:
        A part "probes": predicted (steps, levels, N), -1 for images whose class is not
        in the step; weight and bias of the smallest step; weights, the number of
        weights of the backbone.
    """
    generator, levels = degradation
    noisy = {f"features-{level.ssim:g}": level.strength for level in levels}
    parts = {"features-train": {"data": data.fingerprint}}
    for part, strength in noisy.items():
        parts[part] = {
            "data": data.fingerprint,
            "noise": [generator.name, generator.seed, strength] if strength else [],
        }
    features = store.each(
        models,
        parts,
        partial(_features, generator=generator, noisy=noisy, device=store.device),
    )
    settings = {
        # Keys hold digests of all that the features depend on.
        "features": list(features.keys.values()),
        "steps": list(steps),
        "l2": l2,
    }
    return store.each(
        models,
        {"probes": settings},
        partial(_probes, features=features, steps=steps, l2=l2),
    )


def _features(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    generator: Generator,
    noisy: Mapping[str, float],
    device: str,
) -> dict[str, dict[str, Any]]:
    """Features of training images, and of test images at each level of noise."""
    network = model.load(device)
    weight_count = sum(parameter.numel() for parameter in network.parameters())
    values = {}
    for part in parts:
        if part in noisy:
            images = degrade(data.test.images.to(device), generator, noisy[part])
        else:
            images = data.train.images
        # The backbone has no head, so that its outputs are features: (N, D).
        features = logits_of(network, images, device, model.normalise)
        values[part] = {"features": features.numpy(), "weights": np.array(weight_count)}
    return values


def _probes(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    features: Records,
    steps: Sequence[int],
    l2: float,
) -> dict[str, dict[str, Any]]:
    """The part "probes" of a network, see ``probes``.

    Args:
        model: a backbone.
        data: images of all classes.
        parts: "probes" alone.
        features: a part of the training images, and one for each level of noise.
        steps: number of classes of each probe.
        l2: see ``fit_probe``.
    """
    noisy = [part for part in features.keys if part != "features-train"]
    clean = features.record("features-train", model.model_id)
    labels = data.train.labels.numpy()
    probe_of = {}  # by number of classes
    for count in set(steps):
        is_fitted = labels < count  # classes are numbered with the seen ones first
        probe_of[count] = fit_probe(
            clean["features"][is_fitted], labels[is_fitted], l2=l2
        )
    predicted = np.full((len(steps), len(noisy), len(data.test)), -1, dtype=np.int16)
    for level, part in enumerate(noisy):
        of_level = features.record(part, model.model_id)["features"]
        for step, count in enumerate(steps):
            is_tested = data.test.labels.numpy() < count
            predictions = probe_of[count].predict(of_level[is_tested])
            predicted[step, level, is_tested] = predictions
    smallest = probe_of[min(steps)]
    values = {
        "predicted": predicted,
        "weights": clean["weights"],
        "weight": smallest.weight.astype(np.float32),
        "bias": smallest.bias.astype(np.float32),
    }
    return {"probes": values}


def kappa_of_classes(
    records: Records,
    models: Sequence[Model],
    data: StudyData,
    levels: Sequence[Level],
    steps: Sequence[int],
) -> pd.DataFrame:
    """Error and Kappa of each class.

    Args:
        records: of ``probes``.
        models: backbones.
        data: images of all classes.
        levels: of noise, in the order of ``records``.
        steps: number of classes of each probe, in the order of ``records``.

    Returns:
        A row per network, step, level and class: facts of the network; ssim (the
        target), ssim_reached and unseen_fraction; n test images, error, kappa and
        kappa_loss.
    """
    names = data.classes["class_id"].to_numpy()
    labels = data.test.labels.numpy()
    tables = []
    for model in models:
        record = records.record("probes", model.model_id)
        network = {name: model.facts[name] for name in _FACTS}
        network["model_id"] = model.model_id
        network["weights"] = int(record["weights"])
        cells = product(enumerate(steps), enumerate(levels))
        for (step, count), (place, level) in cells:
            is_tested = labels < count
            predicted = record["predicted"][step, place, is_tested]
            # (classes, 1) each: a column per draw of images, here one, of themselves.
            error, loss = error_and_loss(labels[is_tested], predicted, count)
            of_classes = {
                **network,
                "ssim": level.ssim,
                "ssim_reached": level.ssim_reached,
                "unseen_fraction": (count - min(steps)) / count,
                "class_id": names[:count],
                "class_index": range(count),
                "n": np.bincount(labels[is_tested], minlength=count),
                "error": error[:, 0],
                "kappa": 1 - loss[:, 0],
                "kappa_loss": loss[:, 0],
            }
            tables.append(pd.DataFrame(of_classes))
    return pd.concat(tables, ignore_index=True)


def images_of_seen(
    data: StudyData, seen: int, most: int = 0, seed: int = 0
) -> ScoringSet:
    """Training images for complexity measures of a network with its probe.

    Args:
        data: images of all classes.
        seen: number of classes, from each of which images are taken in turn.
        most: largest number of images; 0 takes all.
        seed: of their order.
    """
    labels = data.train.labels.numpy()
    random = np.random.default_rng(seed)
    shuffled = random.permutation(np.flatnonzero(labels < seen))
    in_turn = shuffled[classes_in_turn(labels[shuffled])]
    rows = tuple(in_turn[: most or None].tolist())
    name = f"{len(rows)}-{json_digest([data.fingerprint, rows])}"
    # shared: number of images of which the rows are taken.
    return ScoringSet(rows, name, shared=len(in_turn))

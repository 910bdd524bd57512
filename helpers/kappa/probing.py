"""Linear probes on frozen features at every level of noise; Huang et al. 2025.

The predicted class of each test image is stored, and Error and Kappa of each class
follow from it.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from helpers.data.images import StudyData
from helpers.files import json_digest
from helpers.kappa.noise import Degradation, Level, degrade
from helpers.kappa.statistics import error_and_loss
from helpers.scores.classification import logits_of
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet, classes_in_turn
from helpers.scores.store import Records, Store

_ROUNDING = 0.0005  # published fractions of unseen classes have three decimals
_FACTS = ("family", "model", "origin")


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
        seen + n of each step, ascending.

    Raises:
        ValueError: where a class has no images, a fraction is not possible, or 0 is not
            among the fractions.
    """
    missing = sorted({*wanted} - {*data.classes["class_id"]})
    if missing:
        raise ValueError(
            f"{len(missing)} classes have no usable images: {', '.join(missing[:5])}; "
            "check unseen_class_ids and data_source"
        )
    fractions = np.sort(fractions)
    steps = np.rint(seen / (1 - fractions)).astype(int)
    is_possible = np.abs(1 - seen / steps - fractions) <= _ROUNDING
    if steps[0] != seen or steps[-1] > len(wanted) or not is_possible.all():
        raise ValueError(
            f"unseen_fractions is {fractions.tolist()}; it needs 0, and may have n / "
            f"({seen} + n) to three decimals, n up to {len(wanted) - seen}"
        )
    return steps.tolist()


def fit_probe(
    features: ArrayLike, labels: ArrayLike, l2: float = 1e-2, tolerance: float = 1e-5
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Multinomial logistic regression on standardised features, by L-BFGS.

    It minimises ``mean over i of -ln softmax(W x_i + b)_(y_i) + l2 / 2 ||W||_F^2`` of
    standardised x; the standardisation is then put into W and b. Of two classes the
    penalty is that of the difference of their rows.

    Args:
        features: (N, D).
        labels: (N,) from 0 to K - 1, each at least once.
        l2: strength of the penalty.
        tolerance: largest entry of the gradient at the end.

    Returns:
        W, (K, D), and b, (K,): logits are ``features @ W.T + b``.
    """
    x = np.asarray(features, dtype=float)
    scaler = StandardScaler().fit(x)
    regression = LogisticRegression(C=1 / (l2 * len(x)), tol=tolerance, max_iter=2000)
    regression.fit(scaler.transform(x), np.asarray(labels))
    weight = regression.coef_ / scaler.scale_
    bias = regression.intercept_ - weight @ scaler.mean_
    if len(weight) == 1:  # of two classes it is the difference
        return np.concatenate([0 * weight, weight]), np.append(0, bias)
    return weight, bias


def probes(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    noise: Degradation,
    steps: Sequence[int],
    l2: float,
) -> Records:
    """Linear probes, fitted to clean training images and tested at each noise level.

    Args:
        store: of the study.
        models: backbones.
        data: images of all classes.
        noise: of the test images.
        steps: number of classes of each probe, ascending.
        l2: see ``fit_probe``.

    Returns:
        A part "probes": predicted (steps, levels, N), -1 for images whose class is not
        in the step; weight and bias of the first step; weights, the number of
        weights of the backbone.
    """
    device, strengths = store.device, [level.strength for level in noise.levels]
    settings = {
        "data": data.fingerprint,
        "noise": ["autoencoder", noise.seed, *strengths],
        "steps": list(steps),
        "l2": l2,
    }

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The part of a network."""
        network = model.load(device)

        def features_of(images: Tensor) -> NDArray[np.float32]:
            """Outputs of the backbone, (N, D)."""
            return logits_of(network, images, device, model.normalise).numpy()

        clean = features_of(data.train.images)
        images = data.test.images.to(device)
        degraded = (degrade(images, noise.network, strength) for strength in strengths)
        features = np.array([*map(features_of, degraded)])  # (levels, N, D)
        labels = data.train.labels.numpy()
        predicted = []
        # Classes are numbered with the seen ones first; the last probe is of these.
        for count in reversed(steps):
            is_fitted = labels < count
            weight, bias = fit_probe(clean[is_fitted], labels[is_fitted], l2)
            classes = (features @ weight.T + bias).argmax(-1)  # (levels, N)
            predicted.append(np.where(data.test.labels.numpy() < count, classes, -1))
        part = {
            "predicted": np.array(predicted[::-1], np.int16),
            "weights": np.array(sum(each.numel() for each in network.parameters())),
            "weight": weight.astype(np.float32),
            "bias": bias.astype(np.float32),
        }
        return {"probes": part}

    return store.each(models, {"probes": settings}, compute)


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
        target) and unseen_fraction; n test images, error and kappa_loss.
    """
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
            error, loss = error_and_loss(labels[is_tested], predicted, count)
            of_classes = {
                **network,
                "ssim": level.ssim,
                "unseen_fraction": (count - steps[0]) / count,
                "class_id": data.classes["class_id"].iloc[:count],
                "n": np.bincount(labels[is_tested], minlength=count),
                "error": error[:, 0],
                "kappa_loss": loss[:, 0],
            }
            tables.append(pd.DataFrame(of_classes))
    return pd.concat(tables, ignore_index=True)


def images_of_seen(data: StudyData, seen: int, most: int, seed: int) -> ScoringSet:
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
    return ScoringSet(rows, json_digest([data.fingerprint, rows]), len(in_turn))

"""Frozen features of every network at every level of noise, and linear probes on them: which class each test image is taken for."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from helpers.data.images import StudyData
from helpers.files import digest
from helpers.kappa.noise import Generator, Level, degrade
from helpers.kappa.statistics import error_and_loss
from helpers.scoring.classification import logits_of
from helpers.scoring.models import Model
from helpers.scoring.scoring_set import ScoringSet, classes_in_turn
from helpers.scoring.store import Kept, Store

_ROUNDING = 0.0005  # published fractions of unseen classes have three decimals


def class_steps(
    data: StudyData, wanted: Sequence[str], seen: int, fractions: Sequence[float]
) -> list[int]:
    """How many of the first classes each step has: the seen ones and n more, so that n / (seen + n) is the fraction ("ZeroShot%")."""
    if missing := [
        name for name in wanted if name not in set(data.classes["class_id"])
    ]:
        raise ValueError(
            f"{len(missing)} classes have no usable images: {', '.join(missing[:5])}; check unseen_class_ids and data_source"
        )
    possible = np.array(
        [added / (seen + added) for added in range(len(wanted) - seen + 1)]
    )
    if 0 not in fractions or any(
        np.abs(possible - fraction).min() > _ROUNDING for fraction in fractions
    ):
        choice = ", ".join(f"{value:.3f}" for value in possible)
        raise ValueError(
            f"unseen_fractions is {list(fractions)}; it needs 0, and of {len(wanted)} classes, {seen} seen, can have {choice}"
        )
    return [seen + int(np.abs(possible - fraction).argmin()) for fraction in fractions]


class Probe(NamedTuple):
    """A linear layer from features to logits: (K, D) and (K,)."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]

    def predict(self, features: ArrayLike) -> NDArray[np.int16]:
        """The class that each image is taken for."""
        return (
            (np.asarray(features) @ self.weight.T + self.bias)
            .argmax(1)
            .astype(np.int16)
        )


def fit_probe(
    features: ArrayLike, labels: ArrayLike, *, l2: float = 1e-2, tolerance: float = 1e-5
) -> Probe:
    """Multinomial logistic regression on standardised features, by scikit-learn's L-BFGS.

    It minimises ``mean over i of -ln softmax(W x_i + b)_(y_i) + l2 / 2 ||W||_F^2``, x standardised, which is then put into W and b.
    Features (N, D), labels (N,) 0 to K - 1, each at least once; ``tolerance`` is the largest entry of the gradient at the end.
    """
    x, y = np.asarray(features, dtype=float), np.asarray(labels)
    scaler = StandardScaler().fit(x)
    # What varies by no more than float32 rounds is constant; divided by its deviation it would be noise as large as a feature.
    scaler.scale_[scaler.scale_ <= 1e-6 * np.abs(x).max(0)] = 1.0
    # Of two classes scikit-learn fits the difference of the rows of W, of which the penalty is half as large.
    strength = (2 if len(np.unique(y)) == 2 else 1) / (l2 * len(x))
    regression = LogisticRegression(C=strength, tol=tolerance, max_iter=2000).fit(
        scaler.transform(x), y
    )
    weight, bias = regression.coef_, regression.intercept_
    if len(weight) == 1:
        weight, bias = (
            np.concatenate([-weight, weight]) / 2,
            np.concatenate([-bias, bias]) / 2,
        )
    return Probe(
        weight / scaler.scale_, bias - (weight * scaler.mean_ / scaler.scale_).sum(1)
    )


def probes(
    store: Store,
    models: Sequence[Model],
    data: StudyData,
    generator: Generator,
    levels: Sequence[Level],
    steps: Sequence[int],
    l2: float,
) -> Kept:
    """Linear probes, one per step of classes, fitted to clean training features, which are kept too, and tested at every level of noise.

    A part "probes": predicted (steps, levels, N), -1 outside of the step; weight and bias of the smallest step; weights, the backbone's.
    """
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
    decisive = {
        "features": [folder.name for folder in features.folders.values()],
        "steps": list(steps),
        "l2": l2,
    }
    return store.each(
        models,
        {"probes": decisive},
        partial(_probes, features=features, noisy=list(noisy), steps=steps, l2=l2),
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
    network, found = model.load(device), {}
    count = np.array(sum(parameter.numel() for parameter in network.parameters()))
    for part in parts:
        images = (
            degrade(data.test.images.to(device), generator, noisy[part])
            if part in noisy
            else data.train.images
        )
        found[part] = {
            "features": logits_of(network, images, device, model.normalise).numpy(),
            "weights": count,
        }
    return found


def _probes(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    features: Kept,
    noisy: Sequence[str],
    steps: Sequence[int],
    l2: float,
) -> dict[str, dict[str, Any]]:
    clean, labels, fitted = (
        features.record("features-train", model.model_id),
        data.train.labels.numpy(),
        {},
    )
    for count in set(steps):
        fitted[count] = fit_probe(
            clean["features"][labels < count], labels[labels < count], l2=l2
        )
    predicted = np.full((len(steps), len(noisy), len(data.test)), -1, dtype=np.int16)
    for level, part in enumerate(noisy):
        found = features.record(part, model.model_id)["features"]
        for step, count in enumerate(steps):
            tested = data.test.labels.numpy() < count
            predicted[step, level, tested] = fitted[count].predict(found[tested])
    head = fitted[min(steps)]._asdict()
    return {
        "probes": {
            "predicted": predicted,
            "weights": clean["weights"],
            **{key: x.astype(np.float32) for key, x in head.items()},
        }
    }


def kappa_of_classes(
    kept: Kept,
    models: Sequence[Model],
    data: StudyData,
    levels: Sequence[Level],
    steps: Sequence[int],
) -> pd.DataFrame:
    """Error and Kappa from what ``probes`` keeps, a row per network, step, level and class; n test images, ssim is the target."""
    names, true, tables = (
        data.classes["class_id"].tolist(),
        data.test.labels.numpy(),
        [],
    )
    for model in models:
        record = kept.record("probes", model.model_id)
        place = {
            name: model.facts[name]
            for name in ("family", "model", "architecture", "origin")
        }
        place |= {"model_id": model.model_id, "weights": int(record["weights"])}
        for step, count in enumerate(steps):
            tested = true < count
            for number, level in enumerate(levels):
                error, loss = error_and_loss(
                    true[tested], record["predicted"][step, number, tested], count
                )
                of_class = {
                    "class_id": names[:count],
                    "class_index": range(count),
                    "n": np.bincount(true[tested], minlength=count),
                }
                of_class |= {
                    "error": error[:, 0],
                    "kappa": 1 - loss[:, 0],
                    "kappa_loss": loss[:, 0],
                }
                at = {
                    "ssim": level.ssim,
                    "ssim_reached": level.ssim_reached,
                    "unseen_fraction": (count - min(steps)) / count,
                }
                tables.append(pd.DataFrame({**place, **at, **of_class}))
    return pd.concat(tables, ignore_index=True)


def images_of_seen(
    data: StudyData, seen: int, most: int = 0, seed: int = 0
) -> ScoringSet:
    """Training images of the first classes, in turn, on which complexity measures read a network with its probe; ``most`` 0 takes all."""
    labels = data.train.labels.numpy()
    drawn = np.random.default_rng(seed).permutation(np.flatnonzero(labels < seen))
    chosen = drawn[classes_in_turn(labels[drawn])]
    rows = tuple(chosen[: most or None].tolist())
    return ScoringSet(
        rows, f"{len(rows)}-{digest([data.fingerprint, rows])}", len(chosen)
    )

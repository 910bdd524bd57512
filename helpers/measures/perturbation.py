"""Accuracy under mixed and transformed training images, and how classes cluster."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from helpers.measures import response
from helpers.measures.evidence import provides
from helpers.measures.passes import Classifier, Pass, Sample
from helpers.measures.registry import Value, measure
from helpers.measures.transforms import (
    HORIZONTAL,
    TRANSFORMS,
    VERTICAL,
    accuracies_at_random_magnitudes,
    transformed_hits,
    transforms_of,
    translations,
)
from helpers.networks.faults import Undefined

INPUT = "input"
FIRST_LAYER = "first layer"
MIXUPS = tuple(
    f"{kind} {place}" for kind in response.KINDS for place in (INPUT, FIRST_LAYER)
)
PERTURBATIONS = (*MIXUPS, *TRANSFORMS)
# Largest number of pairs for the mixup of Natekar and Sharma, who take all pairs: 200
# give the accuracy of a class with a standard error below 0.04.
PAIRS_PER_CLASS = 200
_SMALL_SHIFT = 0.12  # of the side, at most
_AT = " @ "  # between the name of a perturbation and its magnitude
# The Davies-Bouldin index of the first layer is a mean over random subsets of images.
_CLUSTERED_IMAGES = 120  # of a subset
_CLUSTERED_DRAWS = 10  # subsets
_CLUSTERED_STREAM = 4  # second number of the seed, see ``response``

_NO_FIRST_LAYER = "the network has no first layer with maps that carry all of the image"

Places = dict[str, response.Place]  # where images are mixed
Curves = dict[str, pd.Series]  # accuracy by alpha in [0, 1] of each perturbation


@provides
def response_sample(images: Any, perturbation_fraction: float) -> int:
    """Number n of images that are perturbed: the first n of the training images.

    Args:
        images: all training images.
        perturbation_fraction: of all images, in [0, 1].

    Returns:
        This fraction of the images; more where the first two of each class (the only
        one, if it has one) are not yet among them.
    """
    labels = pd.Series(images.labels.cpu().numpy())
    is_first_or_second = labels.groupby(labels).cumcount() < 2
    count = round(perturbation_fraction * len(images))
    last = int(max(labels.index[is_first_or_second], default=-1))
    return max(count, last + 1)


@provides
def places(
    fused_network: nn.Module, perturbed_sample: Sample, batch_size: int
) -> Places:
    """Places where images are mixed: the input, and the end of a first layer.

    Args:
        fused_network: the network with batch normalisation folded into it.
        perturbed_sample: training images and labels.
        batch_size: images of a pass.
    """
    inputs = perturbed_sample.inputs
    places = {INPUT: response.Place(inputs, fused_network)}
    with suppress(Undefined):
        first = response.first_layer(fused_network, inputs, batch_size)
        places[FIRST_LAYER] = first
    return places


@provides
def response_curves(
    perturbed_sample: Sample,
    places: Places,
    classifier: Classifier,
    transform_ranges: str,
    perturbation_points: int,
    seed: int,
) -> Curves:
    """Accuracy under growing mixup and transforms; Schiff et al. 2021, Algorithm 1.

    Args:
        perturbed_sample: n images.
        places: where they are mixed.
        classifier: the network, and how it takes images.
        transform_ranges: of ``transforms.RANGES``.
        perturbation_points: magnitudes of a curve.
        seed: of the partners, which all alphas and places of a kind share.

    Returns:
        A curve for each of ``PERTURBATIONS`` that the network allows; an alpha of 1 is
        a mixture of halves, or the largest magnitude of a transform.
    """
    labels = perturbed_sample.labels.cpu()
    magnitudes = np.linspace(0, 0.5, perturbation_points)
    size = classifier.batch_size
    curves = {}
    for kind in response.KINDS:
        pairs = response.mixup_partners(labels, kind, seed)
        for name, place in places.items():
            mixed = partial(response.mixed_hits, place, labels, pairs, size)
            curves[f"{kind} {name}"] = _curve(mixed, magnitudes)
    for name, transform in transforms_of(transform_ranges).items():
        moved = partial(transformed_hits, classifier, perturbed_sample, transform)
        magnitudes = np.linspace(transform.low, transform.high, perturbation_points)
        curves[name] = _curve(moved, magnitudes)
    return curves


def _curve(
    hits_at: Callable[[float], Tensor], magnitudes: NDArray[np.float64]
) -> pd.Series:
    """Accuracy at each magnitude, by alpha.

    Args:
        hits_at: magnitude -> (n,) whether each changed image is classified correctly.
        magnitudes: (points,) ascending.
    """
    accuracies = [float(hits_at(value).double().mean()) for value in magnitudes]
    return pd.Series(accuracies, np.linspace(0, 1, len(magnitudes)))


@measure("perturbation", 0, "Schiff et al. 2021, Algorithm 1")
def response_curve(response_curves: Curves) -> Mapping[str, float]:
    """Accuracy on perturbed training images, a variant per magnitude; for figures.

    Args:
        response_curves: accuracies by perturbation and magnitude.
    """
    points = pd.concat(response_curves)
    return {f"{name}{_AT}{alpha:.6f}": value for (name, alpha), value in points.items()}


def pair_of_equal_mixup(models: pd.DataFrame) -> pd.DataFrame:
    """Two models alike in mixup accuracy that differ most in their Gi-score.

    Schiff et al. 2021, Figure 2: one point of a response curve cannot tell such models
    apart, the whole curve does.

    Args:
        models: with columns mixup_accuracy and gi_score, in [0, 1]; rows without a
            value of either are passed over.

    Returns:
        Their two rows, the smaller Gi-score first; none where no two have the same
        mixup accuracy in whole percent.
    """
    defined = models.dropna(subset=["mixup_accuracy", "gi_score"])
    percent = (defined["mixup_accuracy"] / 0.01).round()
    scores = defined["gi_score"].groupby(percent)
    spans = (scores.max() - scores.min())[scores.size() > 1]
    if not len(spans):
        return models.iloc[:0]
    alike = defined[percent == spans.idxmax()].sort_values("gi_score", kind="stable")
    return alike.iloc[[0, -1]]


def curves_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Response curves of all models, read out of their scores.

    Args:
        scores: a row per model, measure and variant, see ``Records.scores``.

    Returns:
        A row per point of a curve: model_id, perturbation, alpha in [0, 1], accuracy
        in [0, 1] and score, the Gi-score of the whole curve; no rows without the
        family "perturbation".
    """
    scores = scores.assign(variant=scores["variant"].astype(str))
    points = scores[scores["measure"] == "response_curve"]
    names = points["variant"].str.extract(f"(?P<perturbation>.*){_AT}(?P<alpha>.*)")
    points = points.join(names).rename(columns={"value": "accuracy"})
    points = points.dropna(subset="alpha").astype({"alpha": float})
    gi = scores[scores["measure"] == "gi_score"]
    gi = gi.rename(columns={"variant": "perturbation", "value": "score"})
    keys = ["model_id", "perturbation"]
    points = points[[*keys, "alpha", "accuracy"]]
    return points.merge(gi[[*keys, "score"]], how="left", on=keys)


@measure(
    "perturbation",
    -1,
    "Schiff et al. 2021, Algorithm 2",
    title="Gi-score",
    variants=PERTURBATIONS,
)
def gi_score(response_curves: Curves) -> Value:
    """Deficit of accuracy under growing perturbation, in [0, 1].

    See ``response.gi_of_curve``; one value for each perturbation.

    Args:
        response_curves: accuracies by perturbation and magnitude.
    """
    return {
        name: response.gi_of_curve(curve.index, curve)
        for name, curve in response_curves.items()
    }


@measure(
    "perturbation",
    1,
    "after Schiff et al. 2021; not its Algorithm 4",
    title="Pal-score (working definition)",
    variants=PERTURBATIONS,
)
def pal_score(response_curves: Curves) -> Value:
    """Ratio of areas of a response curve; a WORKING DEFINITION.

    See ``response.pal_of_curve``; NaN for 0 / 0.

    Args:
        response_curves: accuracies by perturbation and magnitude.
    """
    return {
        name: response.pal_of_curve(curve.index, curve)
        for name, curve in response_curves.items()
    }


@measure(
    "perturbation",
    1,
    "after Schiff et al. 2021, Pal l=0 * l=1",
    title="Pal-score (working definition), product",
)
def pal_product(pal_score: Mapping[str, float]) -> float:
    """Pal-score of intra-class mixup at the input times that at the first layer.

    A WORKING DEFINITION, in which the kind of mixup is a guess.

    Args:
        pal_score: by perturbation.
    """
    if "intra first layer" not in pal_score:
        raise Undefined(_NO_FIRST_LAYER)
    return pal_score["intra input"] * pal_score["intra first layer"]


@measure(
    "perturbation",
    1,
    "after Schiff et al. 2021, Pal inter+intra",
    title="Pal-score (working definition), sum",
)
def pal_sum(pal_score: Mapping[str, float]) -> float:
    """Pal-score of inter-class plus that of intra-class mixup at the input.

    A WORKING DEFINITION, in which the layer is a guess.

    Args:
        pal_score: by perturbation.
    """
    return pal_score["inter input"] + pal_score["intra input"]


@measure(
    "perturbation",
    1,
    "Schiff et al. 2021, Table 2",
    title="mean of the response curve",
    variants=PERTURBATIONS,
)
def curve_mean(response_curves: Curves) -> Value:
    """Mean accuracy over the magnitudes of a response curve, in [0, 1].

    Args:
        response_curves: accuracies by perturbation and magnitude.
    """
    return {name: curve.mean() for name, curve in response_curves.items()}


@measure("perturbation", 1, "Schiff et al. 2021, Table 2", variants=tuple(TRANSFORMS))
def accuracy_under_augmentation(
    classifier: Classifier, perturbed_sample: Sample, transform_ranges: str, seed: int
) -> Mapping[str, float]:
    """Accuracy on images transformed by a random magnitude each, in [0, 1].

    Args:
        classifier: the network, and how it takes images.
        perturbed_sample: training images and labels.
        transform_ranges: name of the ranges of magnitudes, see ``transforms_of``.
        seed: of the random numbers.
    """
    ranges = transforms_of(transform_ranges)
    return accuracies_at_random_magnitudes(classifier, perturbed_sample, ranges, seed)


@measure("perturbation", 1, "Natekar and Sharma 2020", variants=(INPUT, FIRST_LAYER))
def mixup_accuracy(
    perturbed_sample: Sample, places: Places, seed: int, batch_size: int
) -> Value:
    """Accuracy on halfway mixtures of two training images of a class, in [0, 1].

    Mean over the pairs of a class, and then over classes.

    Args:
        perturbed_sample: training images and labels.
        places: where images are mixed.
        seed: of the random numbers.
        batch_size: images of a pass.
    """
    labels = perturbed_sample.labels.cpu()
    pairs = response.class_pairs(labels, PAIRS_PER_CLASS, seed)
    classes = labels[pairs[0]].numpy()
    accuracies = {}
    for name, place in places.items():
        hits = response.mixed_hits(place, labels, pairs, batch_size, 0.5)
        of_classes = pd.Series(hits.double().numpy()).groupby(classes).mean()
        accuracies[name] = float(of_classes.mean())
    return accuracies


@measure(
    "perturbation",
    -1,
    "Natekar and Sharma 2020",
    title="Davies-Bouldin index",
    variants=("initial", "penultimate"),
)
def davies_bouldin_index(
    perturbed_sample: Sample, places: Places, forward_pass: Pass, seed: int
) -> Value:
    """Spread of classes over their distance, at least 0; small is apart.

    Initial: in the maps of the first layer; penultimate: in what the linear layer takes
    that gives the logits.

    Args:
        perturbed_sample: training images and labels.
        places: where images are mixed.
        forward_pass: of the training images.
        seed: of the random numbers.
    """
    labels = perturbed_sample.labels.cpu().numpy()
    indices = {}
    first = places.get(FIRST_LAYER)
    if first and first.values.ndim == 4:
        indices["initial"] = _dispersion_of_maps(first.values, labels, seed)
    if forward_pass.features is not None:
        features = forward_pass.features[: len(labels)].double().numpy()
        indices["penultimate"] = _dispersion(features, labels)
    return indices


def _dispersion(points: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """Davies-Bouldin index of points (n, D) with labels (n,)."""
    # Late: its import takes a second, and most kernels do without.
    from sklearn.metrics import davies_bouldin_score

    classes = len(np.unique(labels))
    if not 1 < classes < len(labels):
        raise Undefined(f"{len(labels)} images of {classes} classes do not cluster")
    if not np.isfinite(points).all():
        raise Undefined("outputs of a layer are not finite")
    return float(davies_bouldin_score(points, labels))


def _dispersion_of_maps(maps: Tensor, labels: NDArray[np.integer], seed: int) -> float:
    """Davies-Bouldin index of maps (n, C, h, w), as in Natekar and Sharma's code.

    Maps are max-pooled by 4 x 4 and flattened. With more than 120 images it is the mean
    over 10 random subsets of 120.
    """
    window = [min(4, side) for side in maps.shape[2:]]
    points = max_pool2d(maps, window).flatten(1).double().cpu().numpy()
    if len(labels) <= _CLUSTERED_IMAGES:
        return _dispersion(points, labels)
    generator = np.random.default_rng((seed, _CLUSTERED_STREAM))
    values = []
    for _ in range(_CLUSTERED_DRAWS):
        images = generator.permutation(len(labels))[:_CLUSTERED_IMAGES]
        values.append(_dispersion(points[images], labels[images]))
    return float(np.mean(values))


@measure(
    "perturbation",
    -1,
    "Natekar and Sharma 2020; Schiff et al. 2021, DBI*Mixup",
    title="DBI * (1 - mixup accuracy)",
)
def dbi_times_mixup(
    davies_bouldin_index: Mapping[str, float], mixup_accuracy: Mapping[str, float]
) -> float:
    """Davies-Bouldin index of the first layer times the error on mixtures.

    Mixed at the input; the winner of the PGDL competition.

    Args:
        davies_bouldin_index: by place.
        mixup_accuracy: by place.
    """
    if "initial" not in davies_bouldin_index:
        raise Undefined(_NO_FIRST_LAYER)
    return davies_bouldin_index["initial"] * (1 - mixup_accuracy[INPUT])


@provides
def train_accuracy(training_accuracy: float) -> float:
    """Accuracy of all training images, which a run has recorded.

    Args:
        training_accuracy: of the given images, which stands in where no run is known.
    """
    return training_accuracy


def _accuracy_lost(accuracy: float, under_change: float, labels: Tensor) -> float:
    """Training accuracy less that on changed images, where it is above twice chance."""
    twice_chance = 2 / len(labels.unique())
    if not accuracy >= twice_chance:
        raise Undefined(
            f"the training accuracy of {accuracy:.2f} is below twice chance, "
            f"{twice_chance:.2f}: there is too little that a change could take away"
        )
    return accuracy - under_change


def _mean_of_shifts(accuracies: Mapping[str, float]) -> float:
    return (accuracies[HORIZONTAL] + accuracies[VERTICAL]) / 2


@measure(
    "perturbation",
    -1,
    "Aithal, Kashyap and Subramanyam 2021; Schiff et al. 2021",
    title="accuracy lost by shifts",
)
def drop(
    train_accuracy: float,
    accuracy_under_augmentation: Mapping[str, float],
    labels: Tensor,
) -> float:
    """Training accuracy less that on shifted training images, in [-1, 1].

    ``A - (A_h + A_v) / 2``: each image is shifted horizontally, or vertically, by a
    random fraction of the side up to a half. 0 for a network that does not see the
    shift; NaN where A is below twice chance.

    Args:
        train_accuracy: A.
        accuracy_under_augmentation: by transform.
        labels: (N,) of the training images.
    """
    shifted = _mean_of_shifts(accuracy_under_augmentation)
    return _accuracy_lost(train_accuracy, shifted, labels)


@measure(
    "perturbation",
    -1,
    "Aithal, Kashyap and Subramanyam 2021; Schiff et al. 2021",
    title="accuracy lost by small shifts",
)
def drop_small_shift(
    train_accuracy: float,
    classifier: Classifier,
    perturbed_sample: Sample,
    labels: Tensor,
    seed: int,
) -> float:
    """Like ``drop``, with shifts of at most 12 % of the side.

    Args:
        train_accuracy: of all training images.
        classifier: the network, and how it takes images.
        perturbed_sample: training images and labels.
        labels: (N,) of all training images.
        seed: of the shifts.
    """
    accuracies = accuracies_at_random_magnitudes(
        classifier, perturbed_sample, translations(_SMALL_SHIFT), seed
    )
    return _accuracy_lost(train_accuracy, _mean_of_shifts(accuracies), labels)


@measure(
    "perturbation",
    -1,
    "Natekar and Sharma 2020; Aithal, Kashyap and Subramanyam 2021",
    title="accuracy lost by mixing",
)
def drop_mixup(
    train_accuracy: float, mixup_accuracy: Mapping[str, float], labels: Tensor
) -> float:
    """Training accuracy less that on halfway mixtures of a class, in [-1, 1].

    NaN where training accuracy is below twice chance.

    Args:
        train_accuracy: of all training images.
        mixup_accuracy: by place; images are mixed at the input.
        labels: (N,) of the training images.
    """
    return _accuracy_lost(train_accuracy, mixup_accuracy[INPUT], labels)

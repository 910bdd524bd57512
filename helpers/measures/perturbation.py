"""Accuracy under mixed and transformed training images, and how classes cluster.

Response curves are accuracy against the magnitude of a change; Gi and Pal summarise
them.
"""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.integrate import cumulative_trapezoid
from scipy.interpolate import BSpline, make_interp_spline
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from helpers.data.images import ImageSet
from helpers.measures.passes import Classifier, Sample
from helpers.measures.registry import Value, measure, provides
from helpers.measures.transforms import (
    HORIZONTAL,
    KINDS,
    TRANSFORMS,
    VERTICAL,
    Pairs,
    accuracies_at_random_magnitudes,
    class_pairs,
    mixed_hits,
    mixup_partners,
    transformed_accuracy,
    transforms_of,
    translations,
)
from helpers.networks import Undefined, hooks

INPUT = "input"
FIRST_LAYER = "first layer"
MIXUPS = tuple(f"{kind} {place}" for kind in KINDS for place in (INPUT, FIRST_LAYER))
PERTURBATIONS = (*MIXUPS, *TRANSFORMS)
# Largest number of pairs for the mixup of Natekar and Sharma, who take all pairs: 200
# give the accuracy of a class with a standard error below 0.04.
PAIRS_PER_CLASS = 200
_SMALL_SHIFT = 0.12  # of the side, at most
_AT = " @ "  # between the name of a perturbation and its magnitude
# The Davies-Bouldin index of the first layer is a mean over random subsets of images.
_CLUSTERED_IMAGES = 120  # of a subset
_CLUSTERED_DRAWS = 10  # subsets
_CLUSTERED_STREAM = 4  # second number of the seed, see ``transforms``

# By place: pairs of images, and the share of the second -> are mixtures the first's?
Mixed = dict[str, Callable[[Pairs, float], NDArray[np.bool_]]]
Curves = pd.DataFrame  # accuracy, a row per alpha in [0, 1], a column per perturbation


@provides
def perturbed_sample(
    classifier: Classifier, images: ImageSet, perturbation_fraction: float
) -> Sample:
    """Images that are mixed and transformed: the first n of the training images.

    Args:
        classifier: the network, and how it takes images.
        images: all training images.
        perturbation_fraction: of all images, in [0, 1].

    Returns:
        This fraction of the images; more where the first two of each class (the only
        one, if it has one) are not yet among them.
    """
    labels = pd.Series(images.labels.cpu().numpy())
    (first_two,) = np.nonzero(labels.groupby(labels).cumcount() < 2)
    fraction = round(perturbation_fraction * len(labels))
    return classifier.sample(images, max(fraction, first_two[-1] + 1))


@provides
def mixed(fused_network: nn.Module, perturbed_sample: Sample) -> Mixed:
    """Correctness of mixtures at the input, and at the end of a first layer.

    Args:
        fused_network: the network with batch normalisation folded into it.
        perturbed_sample: images that are mixed, with labels.

    Returns:
        See ``transforms.mixed_hits``; without a first layer, at the input alone.
    """
    start = nn.Identity()
    network = nn.Sequential(start, fused_network)
    # At the end of a ResNet's first layer; None of another network.
    places = {INPUT: start, FIRST_LAYER: getattr(fused_network, "maxpool", None)}
    return {
        name: partial(mixed_hits, network, place, perturbed_sample)
        for name, place in places.items()
        if place
    }


@provides
def response_curves(
    perturbed_sample: Sample,
    mixed: Mixed,
    classifier: Classifier,
    transform_ranges: str,
    perturbation_points: int,
    seed: int,
) -> Curves:
    """Accuracy under growing mixup and transforms; Schiff et al. 2021, Algorithm 1.

    Args:
        perturbed_sample: n images.
        mixed: correctness of mixtures, by place.
        classifier: the network, and how it takes images.
        transform_ranges: of ``transforms.RANGES``.
        perturbation_points: magnitudes of a curve.
        seed: of the partners, which all alphas and places of a kind share.

    Returns:
        A curve for each of ``PERTURBATIONS`` that the network allows; an alpha of 1 is
        a mixture of halves, or the largest magnitude of a transform.
    """
    labels = perturbed_sample.labels.cpu()
    alphas = np.linspace(0, 1, perturbation_points)
    curves = {}
    for kind in KINDS:
        pairs = mixup_partners(labels, kind, seed)
        for name, hits_of in mixed.items():
            hits = [hits_of(pairs, alpha / 2) for alpha in alphas]
            curves[f"{kind} {name}"] = np.mean(hits, axis=1)
    for name, transform in transforms_of(transform_ranges).items():
        moved = partial(transformed_accuracy, classifier, perturbed_sample, transform)
        magnitudes = np.linspace(transform.low, transform.high, perturbation_points)
        curves[name] = [moved(magnitude) for magnitude in magnitudes]
    return pd.DataFrame(curves, alphas)


@measure("perturbation", 0, "Schiff et al. 2021, Algorithm 1")
def response_curve(response_curves: Curves) -> Value:
    """Accuracy on perturbed training images, a variant per magnitude; for figures.

    Args:
        response_curves: accuracies by perturbation and magnitude.
    """
    points = response_curves.unstack().items()
    return {f"{name}{_AT}{alpha:.6f}": value for (name, alpha), value in points}


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
    models = models.dropna(subset=["mixup_accuracy", "gi_score"])
    models = models.sort_values("gi_score", kind="stable")
    percent = (models["mixup_accuracy"] / 0.01).round()
    spans = models["gi_score"].groupby(percent).transform(np.ptp)
    widest = models[(spans > 0) & (spans == spans.max())]
    return widest.iloc[[0, -1]] if len(widest) else widest


def curves_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Response curves of all models, read out of their scores.

    Args:
        scores: a row per model, measure and variant, see ``Records.scores``.

    Returns:
        A row per point of a curve: model_id, perturbation, alpha in [0, 1] and accuracy
        in [0, 1]; no rows without the family "perturbation".
    """
    points = scores[scores["measure"] == "response_curve"]
    pattern = f"(?P<perturbation>.*){_AT}(?P<alpha>.*)"
    names = points["variant"].astype(str).str.extract(pattern).astype({"alpha": float})
    points = points[["model_id"]].join(names).assign(accuracy=points["value"])
    return points.dropna(subset="alpha")


def _area_up_to(curves: Curves) -> BSpline:
    """Area under each response curve up to an alpha, linear between its points."""
    areas = cumulative_trapezoid(curves, curves.index, axis=0, initial=0)
    return make_interp_spline(curves.index, areas, k=1, check_finite=False)


@measure(
    "perturbation",
    -1,
    "Schiff et al. 2021, Algorithm 2",
    title="Gi-score",
    variants=PERTURBATIONS,
)
def gi_score(response_curves: Curves) -> Value:
    """Deficit of accuracy under growing perturbation, after Gini, in [0, 1].

    ``Gi = 2 * integral of (alpha - t(alpha))``, with t the area under the curve up to
    alpha: ``1 - a`` for a constant a. One value for each perturbation.

    Args:
        response_curves: accuracies by perturbation and magnitude.

    Example:
        >>> gi_score(pd.DataFrame({"rotation": [0.75, 0.75, 0.75]}, [0, 0.5, 1]))
        {'rotation': 0.25}
    """
    deficits = 1 - 2 * _area_up_to(response_curves).integrate(0, 1)
    return dict(zip(response_curves, deficits.tolist(), strict=True))


@measure(
    "perturbation",
    1,
    "after Schiff et al. 2021; not its Algorithm 4",
    title="Pal-score (working definition)",
    variants=PERTURBATIONS,
)
def pal_score(response_curves: Curves) -> Value:
    """Ratio of areas of a response curve, after Palma; a WORKING DEFINITION.

    Algorithm 4 of Schiff et al. 2021 was not at hand. ``Pal = integral of t over
    [0.4, 1] / integral of t over [0, 0.1]``, with t as in ``gi_score``, linear between
    points. A factor on all accuracies does not change it; NaN for 0 / 0.

    Args:
        response_curves: accuracies by perturbation and magnitude.
    """
    area = _area_up_to(response_curves)
    ratios = area.integrate(0.4, 1) / area.integrate(0, 0.1)
    return dict(zip(response_curves, ratios.tolist(), strict=True))


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
    return pal_score["intra input"] * pal_score.get("intra first layer", np.nan)


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
    return response_curves.mean().to_dict()


@measure("perturbation", 1, "Schiff et al. 2021, Table 2", variants=tuple(TRANSFORMS))
def accuracy_under_augmentation(
    classifier: Classifier, perturbed_sample: Sample, transform_ranges: str, seed: int
) -> Value:
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
def mixup_accuracy(perturbed_sample: Sample, mixed: Mixed, seed: int) -> Value:
    """Accuracy on halfway mixtures of two training images of a class, in [0, 1].

    Mean over the pairs of a class, and then over classes.

    Args:
        perturbed_sample: training images and labels.
        mixed: correctness of mixtures, by place.
        seed: of the random numbers.
    """
    labels = perturbed_sample.labels.cpu()
    pairs = class_pairs(labels, PAIRS_PER_CLASS, seed)
    classes = labels[pairs[0]].numpy()
    return {
        name: pd.Series(hits_of(pairs, 0.5)).groupby(classes).mean().mean()
        for name, hits_of in mixed.items()
    }


@measure(
    "perturbation",
    -1,
    "Natekar and Sharma 2020",
    title="Davies-Bouldin index",
    variants=("initial",),
)
def davies_bouldin_index(
    classifier: Classifier, perturbed_sample: Sample, seed: int
) -> Value:
    """Spread of classes over their distance in maps of the first layer, at least 0.

    Small is apart. Maps are max-pooled by 4 x 4; the index is a mean over random
    subsets of 120 images; as in the authors' code.

    Args:
        classifier: the network, and how it takes images.
        perturbed_sample: training images and labels.
        seed: of the random numbers.

    Raises:
        Undefined: without such maps, or where drawn images are of one class each.
    """
    # Late: its import takes a second, and most kernels do without.
    from sklearn.metrics import davies_bouldin_score

    first = getattr(classifier.network, "maxpool", None)
    if first is None:
        raise Undefined("only the first layer of a ResNet is known")
    pooled = []
    with hooks.captured_output(first) as outputs:
        for pixels in perturbed_sample.pixels.split(classifier.batch_size):
            classifier.logits(pixels)
            pooled.append(max_pool2d(outputs.pop(), 4).flatten(1))
    points = torch.cat(pooled).double().cpu().numpy()
    labels = perturbed_sample.labels.cpu().numpy()
    generator = np.random.default_rng((seed, _CLUSTERED_STREAM))
    indices = []
    for _ in range(_CLUSTERED_DRAWS):
        drawn = generator.permutation(len(labels))[:_CLUSTERED_IMAGES]
        try:
            indices.append(davies_bouldin_score(points[drawn], labels[drawn]))
        except ValueError as fault:
            raise Undefined(
                f"maps of the first layer do not cluster: {fault}"
            ) from fault
    return {"initial": np.mean(indices)}


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
    return davies_bouldin_index["initial"] * (1 - mixup_accuracy[INPUT])


@provides
def train_accuracy(training_accuracy: float) -> float:
    """Accuracy of all training images, which a run has recorded.

    Args:
        training_accuracy: of the given images, which stands in where no run is known.
    """
    return training_accuracy


@provides
def learnt_accuracy(train_accuracy: float, labels: Tensor) -> float:
    """Training accuracy of which a change can take something away.

    Args:
        train_accuracy: of all training images.
        labels: (N,) of the training images.

    Raises:
        Undefined: where it is below twice chance.
    """
    least = twice_chance(len(labels.unique()))
    if not train_accuracy >= least:
        raise Undefined(
            f"the training accuracy of {train_accuracy:.2f} is below twice chance, "
            f"{least:.2f}: there is too little that a change could take away"
        )
    return train_accuracy


def twice_chance(classes: int) -> float:
    """Twice the accuracy of chance; of two classes 3/4, halfway from chance to 1.

    Args:
        classes: number of classes, at least 2.
    """
    return min(2 / classes, (1 + 1 / classes) / 2)


@measure(
    "perturbation",
    -1,
    "Aithal, Kashyap and Subramanyam 2021; Schiff et al. 2021",
    title="accuracy lost by shifts",
)
def drop(
    learnt_accuracy: float, accuracy_under_augmentation: Mapping[str, float]
) -> float:
    """Training accuracy less that on shifted training images, in [-1, 1].

    ``A - (A_h + A_v) / 2``: each image is shifted horizontally, or vertically, by a
    random fraction of the side up to a half. 0 for a network that does not see the
    shift; NaN where A is below twice chance.

    Args:
        learnt_accuracy: A.
        accuracy_under_augmentation: by transform.
    """
    shifted = accuracy_under_augmentation
    return learnt_accuracy - (shifted[HORIZONTAL] + shifted[VERTICAL]) / 2


@measure(
    "perturbation",
    -1,
    "Aithal, Kashyap and Subramanyam 2021; Schiff et al. 2021",
    title="accuracy lost by small shifts",
)
def drop_small_shift(
    learnt_accuracy: float,
    classifier: Classifier,
    perturbed_sample: Sample,
    seed: int,
) -> float:
    """Like ``drop``, with shifts of at most 12 % of the side.

    Args:
        learnt_accuracy: of all training images.
        classifier: the network, and how it takes images.
        perturbed_sample: training images and labels.
        seed: of the shifts.
    """
    accuracies = accuracies_at_random_magnitudes(
        classifier, perturbed_sample, translations(_SMALL_SHIFT), seed
    )
    return drop(learnt_accuracy, accuracies)


@measure(
    "perturbation",
    -1,
    "Natekar and Sharma 2020; Aithal, Kashyap and Subramanyam 2021",
    title="accuracy lost by mixing",
)
def drop_mixup(learnt_accuracy: float, mixup_accuracy: Mapping[str, float]) -> float:
    """Training accuracy less that on halfway mixtures of a class, in [-1, 1].

    NaN where training accuracy is below twice chance.

    Args:
        learnt_accuracy: of all training images.
        mixup_accuracy: by place; images are mixed at the input.
    """
    return learnt_accuracy - mixup_accuracy[INPUT]

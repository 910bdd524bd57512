"""How accuracy stands up to mixed and transformed training images, as curves and scores, and how the classes cluster."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from helpers.measures import response
from helpers.measures.evidence import provides
from helpers.measures.registry import measure
from helpers.measures.transforms import TRANSFORMS, Transform, drawn_accuracies, transform_curves, transforms_of
from helpers.networks.hooks import evaluation_mode, last_linear, prepared

_AT = " @ "


@measure("perturbation", 0, "Schiff et al. 2021, Algorithm 1")
def response_curve(response_curves: pd.DataFrame) -> Mapping[str, float]:
    """Accuracy on perturbed training images at every magnitude; a record for figures, with a variant per point."""
    names = response_curves["perturbation"] + _AT + response_curves["alpha"].map("{:.6f}".format)
    return dict(zip(names, response_curves["accuracy"], strict=True))


def curves_of(scores: pd.DataFrame) -> pd.DataFrame:
    """Read the response curves out of scores: model_id, perturbation, alpha in [0, 1], accuracy, score (the curve's Gi-score)."""
    points = scores[scores["measure"] == "response_curve"]
    points = points[points["variant"].str.contains(_AT, regex=False)]
    named = points["variant"].str.rsplit(_AT, n=1, expand=True).reindex(columns=[0, 1])
    columns = {"model_id": points["model_id"], "perturbation": named[0], "alpha": named[1].astype(float), "accuracy": points["value"]}
    gi = scores[scores["measure"] == "gi_score"].rename(columns={"variant": "perturbation", "value": "score"})
    return pd.DataFrame(columns).merge(gi[["model_id", "perturbation", "score"]], how="left", on=["model_id", "perturbation"])


def alike_but_for_gi(curves: pd.DataFrame, perturbation: str, tolerance: float = 0.01) -> list[str]:
    """Two models of equal accuracy at the end of a response curve whose Gi-scores differ most: what a single magnitude does not see.

    On "intra input" that end is mixup accuracy; Schiff et al. 2021, slides, Figure 2.

    Args:
        curves: see ``curves_of``.
        perturbation: whose curve.
        tolerance: largest difference of accuracies that counts as equal; where no two models are as near, the nearest two are taken.

    Returns:
        Their model_ids, the one with the lower Gi-score first; none for fewer than two models with a curve.
    """
    rows = curves[(curves["perturbation"] == perturbation) & curves["score"].notna()]
    ends = rows.sort_values("alpha").drop_duplicates("model_id", keep="last").dropna(subset="accuracy")
    if len(ends) < 2:
        return []
    accuracy, score = ends["accuracy"].to_numpy(), ends["score"].to_numpy()
    first, second = np.triu_indices(len(ends), 1)
    apart = np.abs(accuracy[first] - accuracy[second])
    gained = np.where(apart <= max(tolerance, apart.min()), np.abs(score[first] - score[second]), -1)
    pair = [first[gained.argmax()], second[gained.argmax()]]
    return ends["model_id"].to_numpy()[sorted(pair, key=score.__getitem__)].tolist()


INPUT, FIRST_LAYER = "input", "first layer"
MIXUPS = tuple(f"{kind} {place}" for kind in response.KINDS for place in (INPUT, FIRST_LAYER))
PERTURBATIONS = (*MIXUPS, *TRANSFORMS)

# Of one class at most, for the mixup of Natekar and Sharma, who take all: 200 give an accuracy to 0.04, the mean of classes to less.
PAIRS_PER_CLASS = 200


class PerturbedSample(NamedTuple):
    """The training images that are perturbed, on the network's device."""

    pixels: Tensor  # (n, 3, S, S) uint8
    inputs: Tensor  # (n, 3, S, S) as the network expects them
    labels: Tensor  # (n,) int64
    layer: response.FirstLayer | None  # None where the network has no end of a first layer
    no_layer: str  # why there is none


@provides
def response_sample(images: Any, perturbation_fraction: float) -> int:
    """Count the first images that are perturbed: the fraction of all, or more, until every class that has two images stands in it twice.

    The order of the images was drawn with the classes in turn, see ``common_set.classes_in_turn``.

    Raises:
        ValueError: a fraction outside (0, 1], or no images.
    """
    if not 0 < perturbation_fraction <= 1:
        raise ValueError(f"perturbation_fraction {perturbation_fraction} must be above 0 and at most 1")
    if not len(images):
        raise ValueError("there are no training images to perturb")
    labels = pd.Series(images.labels.cpu().numpy())
    paired = np.flatnonzero(labels.groupby(labels).cumcount() < 2)[-1] + 1
    return max(round(perturbation_fraction * len(images)), int(paired))


@provides
def perturbed_sample(
    network: nn.Module, images: Any, normalise: Any, response_sample: int, device: Any, batch_size: int
) -> PerturbedSample:
    """Put the first images on the device, with what the first layer makes of them, so that no curve computes it again."""
    pixels, labels = (tensor[:response_sample].to(device) for tensor in (images.images, images.labels))
    inputs = prepared(pixels, normalise, device)
    try:
        return PerturbedSample(pixels, inputs, labels, response.first_layer(network, inputs, batch_size), "")
    except ValueError as fault:
        return PerturbedSample(pixels, inputs, labels, None, str(fault))


def _places(sample: PerturbedSample) -> dict[str, response.FirstLayer | None]:
    return {INPUT: None} | ({FIRST_LAYER: sample.layer} if sample.layer is not None else {})


def mixup_curves(network: nn.Module, sample: PerturbedSample, points: int, seed: int, batch_size: int = 256) -> dict[str, response.Curve]:
    """Response curves of mixup, alpha from 0 to 0.5, for each of ``MIXUPS``, less the first layer's where there is none.

    Partners are drawn once per kind, so that all alphas mix the same images, at the input and at the first layer.
    """
    curves = {}
    for kind in response.KINDS:
        partners = response.mixup_partners(sample.labels, kind, seed)
        for place, layer in _places(sample).items():
            mixed = partial(response.mixed_accuracy, network, sample.inputs, sample.labels, partners, layer=layer, batch_size=batch_size)
            curves[f"{kind} {place}"] = response.accuracy_curve(mixed, 0, 0.5, points)
    return curves


@provides
def input_transforms(transform_ranges: str, own_transforms: tuple[str, ...]) -> dict[str, Transform]:
    """Transforms of the input by name: the built-in ones, then the reader's."""
    return transforms_of(transform_ranges, own_transforms)


@provides
def response_curves(
    network: nn.Module,
    normalise: Any,
    perturbed_sample: PerturbedSample,
    input_transforms: dict[str, Transform],
    perturbation_points: int,
    seed: int,
    batch_size: int,
) -> pd.DataFrame:
    """Response curves of ``MIXUPS`` and all transforms: perturbation, alpha in [0, 1], accuracy; Schiff et al. 2021, Algorithm 1."""
    sample, points = perturbed_sample, perturbation_points
    curves = mixup_curves(network, sample, points, seed, batch_size)
    curves |= transform_curves(network, sample.pixels, sample.labels, normalise, input_transforms, points, batch_size)
    tables = [pd.DataFrame({"perturbation": name, "alpha": curve.alphas, "accuracy": curve.accuracies}) for name, curve in curves.items()]
    return pd.concat(tables, ignore_index=True)


@provides
def augmented_accuracy(
    network: nn.Module,
    normalise: Any,
    perturbed_sample: PerturbedSample,
    input_transforms: dict[str, Transform],
    seed: int,
    batch_size: int,
) -> dict[str, float]:
    """Accuracy of the sample under each transform, with a random magnitude for every image."""
    return drawn_accuracies(network, perturbed_sample.pixels, perturbed_sample.labels, normalise, input_transforms, seed, batch_size)


def class_pairs(labels: Tensor, limit: int, seed: int) -> response.Pairs:
    """List the unordered pairs i > j of one class: all, or ``limit`` different ones drawn at random where a class has more. (P,) twice."""
    generator, firsts, seconds = np.random.default_rng((seed, 3)), [], []
    for label in labels.unique():
        own = (labels == label).nonzero()[:, 0].cpu().numpy()
        count = len(own) * (len(own) - 1) // 2
        number = generator.choice(count, limit, replace=False) if count > limit else np.arange(count)
        # Pairs are numbered 10, 20, 21, 30, ...: i (i - 1) / 2 of them come before those of i.
        i = ((1 + np.sqrt(1 + 8 * number)) / 2).astype(np.int64)
        firsts.append(own[i])
        seconds.append(own[number - i * (i - 1) // 2])
    return torch.from_numpy(np.concatenate(firsts)), torch.from_numpy(np.concatenate(seconds))


@provides
def pair_accuracies(network: nn.Module, perturbed_sample: PerturbedSample, seed: int, batch_size: int) -> dict[str, float]:
    """Accuracy on halfway mixtures of two images of a class, mean over pairs and then over classes, at input and first layer."""
    sample, values = perturbed_sample, {}
    pairs = class_pairs(sample.labels, PAIRS_PER_CLASS, seed)
    classes = sample.labels.cpu()[pairs[0]].numpy()
    for place, layer in _places(sample).items():
        hits = response.mixed_hits(network, sample.inputs, sample.labels, pairs, 0.5, layer, batch_size)
        values[place] = float(pd.Series(hits.double().numpy()).groupby(classes).mean().mean())
    return values


def _of_curves(curves: pd.DataFrame, score: Callable[[ArrayLike, ArrayLike], float]) -> dict[str, float]:
    return {name: score(rows["alpha"], rows["accuracy"]) for name, rows in curves.groupby("perturbation", sort=False)}


@measure("perturbation", -1, "Schiff et al. 2021, Algorithm 2", title="Gi-score", variants=PERTURBATIONS)
def gi_score(response_curves: pd.DataFrame) -> Mapping[str, float]:
    """Deficit of accuracy under growing perturbation, in [0, 1], see ``response.gi_score``; for each perturbation."""
    return _of_curves(response_curves, response.gi_of_curve)


@measure("perturbation", 1, "after Schiff et al. 2021; not its Algorithm 4", title="Pal-score (working definition)", variants=PERTURBATIONS)
def pal_score(response_curves: pd.DataFrame) -> Mapping[str, float]:
    """Ratio of areas of a response curve, WORKING DEFINITION (see ``response.pal_score``); 0 / 0 is undefined."""
    return _of_curves(response_curves, response.pal_of_curve)


@measure("perturbation", 1, "after Schiff et al. 2021, Pal l=0 * l=1", title="Pal-score (working definition), product")
def pal_product(response_curves: pd.DataFrame, perturbed_sample: PerturbedSample) -> float:
    """Pal-score of intra-class mixup at the input times that at the first layer; WORKING DEFINITION, and the kind of mixup is a guess."""
    if perturbed_sample.layer is None:
        raise ValueError(perturbed_sample.no_layer)
    scores = pal_score(response_curves)
    return scores["intra input"] * scores["intra first layer"]


@measure("perturbation", 1, "after Schiff et al. 2021, Pal inter+intra", title="Pal-score (working definition), sum")
def pal_sum(response_curves: pd.DataFrame) -> float:
    """Pal-score of inter-class plus that of intra-class mixup at the input; WORKING DEFINITION, and the layer is a guess."""
    return sum(pal_score(response_curves)[name] for name in ("inter input", "intra input"))


@measure("perturbation", 1, "Schiff et al. 2021, Table 2", title="mean of the response curve", variants=PERTURBATIONS)
def curve_mean(response_curves: pd.DataFrame) -> Mapping[str, float]:
    """Mean accuracy over the magnitudes of a response curve, in [0, 1]."""
    return dict(response_curves.groupby("perturbation", sort=False)["accuracy"].mean())


@measure("perturbation", 1, "Schiff et al. 2021, Table 2", title="accuracy under augmentation", variants=tuple(TRANSFORMS))
def accuracy_under_augmentation(augmented_accuracy: Mapping[str, float]) -> Mapping[str, float]:
    """Accuracy on transformed training images, a random magnitude for each, in [0, 1]."""
    return augmented_accuracy


@measure("perturbation", 1, "Natekar and Sharma 2020", title="mixup accuracy", variants=(INPUT, FIRST_LAYER))
def mixup_accuracy(pair_accuracies: Mapping[str, float]) -> Mapping[str, float]:
    """Accuracy on halfway mixtures of two training images of a class, mean over pairs and then over classes, in [0, 1]."""
    return pair_accuracies


@measure("perturbation", -1, "Natekar and Sharma 2020", title="Davies-Bouldin index", variants=("initial", "penultimate"))
def davies_bouldin_index(cluster_indices: Mapping[str, float]) -> Mapping[str, float]:
    """``mean over k of max over j of (s_k + s_j) / |c_k - c_j|``: spread of classes over their distance, at least 0; small is apart."""
    return cluster_indices


@measure("perturbation", -1, "Natekar and Sharma 2020; Schiff et al. 2021, DBI*Mixup", title="DBI * (1 - mixup accuracy)")
def dbi_times_mixup(cluster_indices: Mapping[str, float], pair_accuracies: Mapping[str, float], perturbed_sample: PerturbedSample) -> float:
    """Davies-Bouldin index of the first layer times the error on mixtures at the input; the winner of the PGDL competition."""
    if np.isnan(cluster_indices["initial"]):
        raise ValueError(perturbed_sample.no_layer or "the network's first layer puts out no maps (n, C, h, w) to pool")
    return cluster_indices["initial"] * (1 - pair_accuracies[INPUT])


def _davies_bouldin(points: Tensor, labels: np.ndarray) -> float:
    """Ratio of the scatter within clusters to the distance between them, in double precision; ValueError for one cluster only."""
    from sklearn.metrics import davies_bouldin_score  # here: its import takes a second, and most kernels never come here

    return float(davies_bouldin_score(points.double().numpy(), labels))


def initial_index(sample: PerturbedSample, seed: int) -> float:
    """Davies-Bouldin index of the first layer's maps, max-pooled by 4 x 4 (smaller ones whole) and flattened; NaN without maps.

    Mean of 10 draws of 120 images (Natekar and Sharma 2020, code); of the whole sample when it has no more. ValueError for one class only.
    """
    if sample.layer is None or sample.layer.activations.ndim != 4:
        return np.nan
    maps, labels, generator = sample.layer.activations, sample.labels.cpu().numpy(), np.random.default_rng((seed, 4))
    pooled = max_pool2d(maps, [min(4, side) for side in maps.shape[2:]]).flatten(1).cpu()
    draws = [generator.permutation(len(labels))[:120] for _ in range(10)] if len(labels) > 120 else [np.arange(len(labels))]
    return float(np.mean([_davies_bouldin(pooled[draw], labels[draw]) for draw in draws]))


@torch.no_grad()
def penultimate_index(network: nn.Module, sample: PerturbedSample, batch_size: int = 256) -> float:
    """Davies-Bouldin index of what the last linear layer is given, over the sample; NaN where no linear layer gives the logits."""
    linear, given = last_linear(network, sample.inputs[:1]), []
    if linear is None:
        return np.nan
    hook = linear.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
    try:
        with evaluation_mode(network):
            outputs = {network(batch).shape[1:] for batch in sample.inputs.split(batch_size)}
    finally:
        hook.remove()
    if outputs != {(linear.out_features,)} or given[0].ndim != 2:
        return np.nan
    return _davies_bouldin(torch.cat(given).cpu(), sample.labels.cpu().numpy())


@provides
def cluster_indices(network: nn.Module, perturbed_sample: PerturbedSample, seed: int, batch_size: int) -> dict[str, float]:
    """Davies-Bouldin index at the start and at the end of the network."""
    return {"initial": initial_index(perturbed_sample, seed), "penultimate": penultimate_index(network, perturbed_sample, batch_size)}

"""How the classes of the perturbed training images cluster at the start and at the end of a network."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

from helpers.cams import evaluation_mode
from helpers.measures.evidence import provides
from helpers.measures.passes import last_linear
from helpers.measures.perturbation import Sample


def _davies_bouldin(points: Tensor, labels: np.ndarray) -> float:
    """Ratio of the scatter within clusters to the distance between them, in double precision; ValueError for one cluster only."""
    from sklearn.metrics import davies_bouldin_score  # here: its import takes a second, and most kernels never come here

    return float(davies_bouldin_score(points.double().numpy(), labels))


def initial_index(sample: Sample, seed: int) -> float:
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
def penultimate_index(network: nn.Module, sample: Sample, batch_size: int = 256) -> float:
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
def cluster_indices(network: nn.Module, perturbed_sample: Sample, seed: int, batch_size: int) -> dict[str, float]:
    """Give the Davies-Bouldin index at the start and at the end of the network."""
    return {"initial": initial_index(perturbed_sample, seed), "penultimate": penultimate_index(network, perturbed_sample, batch_size)}

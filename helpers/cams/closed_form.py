"""Where a network looks: class activation maps, in closed form where that is exact."""

import torch
from torch import Tensor, nn

from helpers.networks.hooks import features_and_logits

CLOSED_FORM_METHODS = ("cam", "grad_cam", "grad_cam_plus_plus", "layer_cam")


def closed_form_weights(method: str, class_weights: Tensor, pooled: Tensor) -> Tensor:
    """Weight of each channel in the map of a class, up to a positive factor that is common to an image's channels.

    Where the maps A are averaged and fed to one linear layer, the gradient of logit c is ``dz_c / dA_kij = W_ck / (h w)``, the
    same at every pixel, so the methods reduce to:

    - "cam" (Zhou et al. 2016) and "grad_cam" (Selvaraju et al. 2017): ``W_ck``;
    - "grad_cam_plus_plus" (Chattopadhay et al. 2018): ``relu(W_ck) / (2 + W_ck a_k)``, where a_k is the mean of map k;
    - "layer_cam" (Jiang et al. 2021): ``relu(W_ck)``.

    Args:
        method: one of ``METHODS``.
        class_weights: (B, C) the row of the linear layer's weight that belongs to each image's class.
        pooled: (B, C) mean of each feature map. At least 0 after a ReLU; where it is negative, Grad-CAM++ has a pole at -2 / W_ck.

    Returns:
        (B, C) weights of either sign.

    Raises:
        ValueError: an unknown method.
    """
    if method in ("cam", "grad_cam"):
        return class_weights
    positive = class_weights.relu()
    if method == "layer_cam":
        return positive
    if method == "grad_cam_plus_plus":
        # With relu(W) below as well, a channel of negative weight is 0 / 2 and never 0 / 0.
        return positive / (2 + positive * pooled)
    raise ValueError(f"CAM method {method!r} is unknown; choose one of {', '.join(CLOSED_FORM_METHODS)}")


def closed_form_cam(method: str, features: Tensor, classifier_weight: Tensor, classes: Tensor) -> Tensor:
    """Compute maps without a backward pass: ``M = relu(sum over k of w_k A_k)``; Du et al. 2024, equation (1).

    Equal to the gradient's definition when ``check_closed_form`` accepts the network, after ``normalise``.

    Args:
        method: one of ``METHODS``.
        features: (B, C, h, w) output of the layer that is averaged.
        classifier_weight: (K, C) weight of the linear layer.
        classes: (B,) int64, the class whose evidence is shown; Du et al. take the predicted one.

    Returns:
        (B, h, w) maps, at least 0, not normalised.

    Raises:
        ValueError: an unknown method.
    """
    weights = closed_form_weights(method, classifier_weight[classes], features.mean((2, 3)))
    return torch.einsum("bk,bkhw->bhw", weights, features).relu()


def normalise_maps(maps: Tensor) -> Tensor:
    """Scale each map to [0, 1): ``M <- M - min M``, then ``M <- M / (max M + 1e-8)``, as in the code of Du et al. 2024.

    Args:
        maps: (B, h, w).

    Returns:
        (B, h, w); all zeros for a constant map, NaN for a map that holds a NaN or an infinity.
    """
    shifted = maps - maps.amin((1, 2), keepdim=True)
    return shifted / (shifted.amax((1, 2), keepdim=True) + 1e-8)


def lowest_of(maps: Tensor) -> Tensor:
    """What ``normalise_maps`` takes away, in units of the normalised map: ``min M / (max M - min M + 1e-8)``; (B, h, w) -> (B,).

    Added to the normalised map it gives one that is proportional to the map before, so that shares of its sum are known.
    """
    low = maps.amin((1, 2))
    return low / (maps.amax((1, 2)) - low + 1e-8)


@torch.no_grad()
def check_closed_form(model: nn.Module, layer: nn.Module, sample: Tensor) -> nn.Linear:
    """Make sure that the closed form is exact for a layer, and give the linear layer whose weight it needs.

    It is exact when the layer's output goes through global average pooling and one linear layer only, which is tested on a sample:
    the network's last ``nn.Linear``, applied to the mean of the maps, must give the logits.

    Args:
        model: a classifier.
        layer: the layer whose maps are to be weighted.
        sample: (B, 3, H, W) a few images as the network expects them. A sample whose maps are all zero or NaN proves nothing.

    Raises:
        ValueError: no linear layer, one of another width, or other logits; take maps by the gradient then, ``gradient.layer_maps``.
    """
    return closed_form_classifier(model, *features_and_logits(model, layer, sample))


def closed_form_classifier(model: nn.Module, features: Tensor, logits: Tensor) -> nn.Linear:
    """The linear layer whose weight the closed form needs, after a check that it gives the logits of a pass.

    Args:
        model: a classifier.
        features: (B, C, h, w) what a layer of it puts out in a pass.
        logits: (B, K) of the same pass.

    Raises:
        ValueError: as for ``check_closed_form``.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    advice = "the closed form does not hold, take maps by the gradient"
    if not linear:
        raise ValueError(f"the network has no nn.Linear; {advice}")
    width, channels = linear[-1].in_features, features.shape[1]
    if width != channels:
        raise ValueError(f"the last nn.Linear takes {width} features, but the layer puts out {channels} maps; {advice}")
    expected = linear[-1](features.mean((2, 3)))
    # Float32 sums of some thousand terms differ by 1e-6 of the largest; another head differs by its whole size.
    tolerance = 1e-3 * float(logits.nan_to_num(0, 0, 0).abs().max())
    if expected.shape != logits.shape or not torch.allclose(expected, logits, rtol=0, atol=tolerance, equal_nan=True):
        raise ValueError(f"the last nn.Linear of the layer's averaged maps does not give the logits; {advice}")
    return linear[-1]

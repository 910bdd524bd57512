"""Class activation maps: in closed form where that is exact, by differentiation at any layer, and as bytes to be kept."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from helpers.networks import hooks

CLOSED_FORM_METHODS = ("cam", "grad_cam", "grad_cam_plus_plus", "layer_cam")
GRADIENT_METHODS = (
    "grad_cam",
    "grad_cam_plus_plus",
    "smooth_grad_cam_plus_plus",
    "layer_cam",
    "eigen_cam",
    "score_cam",
)


def closed_form_cam(
    method: str, features: Tensor, classifier_weight: Tensor, classes: Tensor
) -> Tensor:
    """Maps without a backward pass, up to a positive factor: ``M = relu(sum over k of w_k A_k)``; Du et al. 2024, equation (1).

    Exact where ``closed_form_classifier`` holds: there ``dz_c / dA_kij = W_ck / (h w)``, so that w_k is ``W_ck`` for "cam" (Zhou et al.
    2016) and "grad_cam", ``relu(W_ck) / (2 + W_ck a_k)`` with the mean a_k of map k, at least 0, for "grad_cam_plus_plus", and
    ``relu(W_ck)`` for "layer_cam". (B, C, h, w) features, (K, C) weight and (B,) classes -> (B, h, w) at least 0, not normalised.
    """
    weights = classifier_weight[classes]
    if method in ("layer_cam", "grad_cam_plus_plus"):
        weights = weights.relu()
    if method == "grad_cam_plus_plus":
        # relu(W) below as well, so that a channel of negative weight is 0 / 2 and never 0 / 0.
        weights = weights / (2 + weights * features.mean((2, 3)))
    return _weighted(weights, features)


def _weighted(weights: Tensor, activations: Tensor) -> Tensor:
    return torch.einsum("bk,bkhw->bhw", weights, activations).relu()


def normalise_maps(maps: Tensor) -> Tensor:
    """Scale each map (B, h, w) to [0, 1): less its minimum, over its maximum + 1e-8, as Du et al. 2024 (code); NaN where not finite."""
    shifted = maps - maps.amin((1, 2), keepdim=True)
    return shifted / (shifted.amax((1, 2), keepdim=True) + 1e-8)


def to_integers(maps_normalised: Tensor, bits: int = 8) -> NDArray[np.unsignedinteger]:
    """Turn normalised maps into integers, the largest of which is 1.

    The largest values of a map are larger than all others after rounding too, so that
    the place of its maximum is kept.

    Args:
        maps_normalised: (B, h, w) in [0, 1].
        bits: 8 or 16.

    Returns:
        (B, h, w) uint8 or uint16: values are kept to 1/510 or 1/131070, those next to
        the maximum to twice that. A map that is not finite has the largest number all
        over, which no normalised map has.

    Example:
        >>> to_integers(torch.tensor([[[0.0, 0.4], [0.999, 1.0]]])).tolist()
        [[[0, 102], [254, 255]]]
    """
    top = 2**bits - 1
    undefined = ~maps_normalised.isfinite().all((1, 2), keepdim=True)
    maps = maps_normalised.double().masked_fill(undefined, 1)
    largest = maps.amax((1, 2), keepdim=True)
    rounded = (top * maps).round()
    below = (top * largest).round() - (maps < largest).double()
    integers = rounded.minimum(below).clamp(0, top).cpu().numpy()
    return integers.astype(np.uint8 if bits == 8 else np.uint16)


def from_integers(maps: NDArray[np.unsignedinteger]) -> Tensor:
    """Turn integers of ``to_integers`` into normalised maps.

    Args:
        maps: (..., h, w) uint8 or uint16.

    Returns:
        (..., h, w) float32 in [0, 1]; NaN for a map that was not finite.

    Example:
        >>> from_integers(np.array([[0, 51], [204, 255]], dtype=np.uint8))
        tensor([[0.0000, 0.2000],
                [0.8000, 1.0000]])
    """
    top = np.iinfo(maps.dtype).max
    undefined = torch.from_numpy((maps == top).all((-2, -1), keepdims=True))
    return torch.from_numpy(maps.astype(np.float32) / top).masked_fill(
        undefined, torch.nan
    )


@torch.no_grad()
def closed_form_classifier(
    model: nn.Module, features: Tensor, logits: Tensor
) -> nn.Linear:
    """The linear layer whose weight the closed form needs, which is exact for global average pooling and one linear layer.

    Tested: the last ``nn.Linear`` of the mean of the maps (B, C, h, w) of a pass must give its logits (B, K), else ValueError.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if linear and linear[-1].in_features == features.shape[1]:
        expected = linear[-1](features.mean((2, 3)))
        # Float32 sums of some thousand terms differ by 1e-6 of the largest; another head differs by its whole size.
        tolerance = 1e-3 * float(logits.nan_to_num(0, 0, 0).abs().max())
        if expected.shape == logits.shape and torch.allclose(
            expected, logits, rtol=0, atol=tolerance, equal_nan=True
        ):
            return linear[-1]
    raise ValueError(
        "the last nn.Linear of the layer's averaged maps does not give the logits: take maps by the gradient"
    )


def layer_maps(
    method: str,
    model: nn.Module,
    layer: nn.Module,
    images: Tensor,
    classes: Tensor,
    *,
    torchcam_compat: bool = False,
    noise_samples: int = 4,
    noise_std: float = 0.3,
    seed: int = 0,
    channels: int = 32,
) -> Tensor:
    """Where a layer sees the evidence for a class: ``M = relu(sum over k of w_k A_k)``; Du et al. 2024, equation (1).

    With ``g_kij = dz_c / dA_kij`` of the logit z_c, and ``S_k = sum over ij of A_kij``:

    - "grad_cam" (Selvaraju et al. 2017): ``w_k = mean over ij of g_kij``;
    - "grad_cam_plus_plus" (Chattopadhay et al. 2018): ``w_k = sum over ij of alpha_kij relu(g_kij)``, see ``_alpha``; a negative S_k
      (before a ReLU) has a pole at g = -2 / S_k;
    - "smooth_grad_cam_plus_plus" (Omeiza et al. 2019): g^2 and g^3 are means over images with Gaussian noise;
    - "layer_cam" (Jiang et al. 2021): w is ``relu(g_kij)``, one weight for each pixel;
    - "eigen_cam" (Muhammad and Yeasin 2020): w is the first right singular vector of A as pixels by channels, not centred;
    - "score_cam" (Wang et al. 2020, Algorithm 1): w is the softmax over k of the logit of the image times A_k, scaled to [0, 1), of the
      ``channels`` of the largest energy.

    ``torchcam_compat`` reproduces torchcam 0.4.0 to 0.5.0, with which the maps of Du et al. were probably made: Grad-CAM++ without the
    division, the smooth variant with g and A of the last noisy image. Noise is drawn for the batch as a whole, ``noise_std`` in units of
    the input. The layer puts out (B, C, h, w), of several calls the last counts; classes (B,) int64 -> (B, h, w) at least 0, not
    normalised, detached, NaN where a gradient is. The model is left as it was. ValueError where the logits do not depend on the layer.
    """
    with torch.inference_mode(False), torch.enable_grad(), hooks.evaluation_mode(model):
        images, classes = (
            images.detach().clone(),
            classes.detach().clone(),
        )  # one made in inference mode cannot enter a graph
        if method in ("eigen_cam", "score_cam"):
            activations = _run(model, layer, images)[0].detach()
            return (
                _eigen_cam(activations)
                if method == "eigen_cam"
                else _score_cam(model, activations, images, classes, channels)
            )
        activations, gradient = _differentiate(model, layer, images, classes)
        if method == "layer_cam":
            return (gradient.relu() * activations).sum(1).relu()
        if method == "grad_cam":
            return _weighted(gradient.mean((2, 3)), activations)
        squares, cubes = gradient**2, gradient**3
        alpha = squares if torchcam_compat else _alpha(squares, cubes, activations)
        if method == "smooth_grad_cam_plus_plus":
            squares, cubes, *last = _over_noise(
                model, layer, images, classes, noise_samples, noise_std, seed
            )
            alpha = _alpha(squares, cubes, activations)
            if torchcam_compat:
                alpha = squares / (
                    2 * squares + (cubes * activations).sum((2, 3), keepdim=True) + 1e-8
                )
                activations, gradient = last
        return _weighted((alpha * gradient.relu()).sum((2, 3)), activations)


def _alpha(squares: Tensor, cubes: Tensor, activations: Tensor) -> Tensor:
    """``alpha = g^2 / (2 g^2 + S g^3)`` of Grad-CAM++, 0 where g is 0."""
    total = activations.sum((2, 3), keepdim=True)
    return torch.where(squares == 0, 0, squares / (2 * squares + total * cubes))


def _over_noise(
    model: nn.Module,
    layer: nn.Module,
    images: Tensor,
    classes: Tensor,
    samples: int,
    std: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Means of g^2 and of g^3 over noisy images; activations and gradient of the last."""
    # Drawn on the CPU in single precision, so that a seed means the same noise on every device, and in torchcam.
    generator, squares, cubes = torch.Generator().manual_seed(seed), 0, 0
    for _ in range(samples):
        noise = std * torch.randn(images.shape, generator=generator)
        activations, gradient = _differentiate(
            model, layer, images + noise.to(images), classes
        )
        squares, cubes = squares + gradient**2 / samples, cubes + gradient**3 / samples
    return squares, cubes, activations, gradient


def _eigen_cam(activations: Tensor) -> Tensor:
    undefined = ~activations.isfinite().flatten(1).all(1)
    activations = activations.nan_to_num(0, 0, 0)
    direction = torch.linalg.svd(activations.flatten(2), full_matrices=False).U[:, :, 0]
    direction = torch.where(
        direction.sum(1, keepdim=True) < 0, -direction, direction
    )  # map times the channels' mean has this sign
    return _weighted(direction, activations).masked_fill(
        undefined[:, None, None], torch.nan
    )


@torch.no_grad()
def _score_cam(
    model: nn.Module,
    activations: Tensor,
    images: Tensor,
    classes: Tensor,
    channels: int,
) -> Tensor:
    strongest = (
        activations.square()
        .sum((2, 3))
        .topk(min(channels, activations.shape[1]))
        .indices
    )
    chosen = activations.take_along_dim(strongest[:, :, None, None], 1)
    scores = []
    for maps in chosen.split(max(1, 64 // max(1, len(images))), 1):
        masks = nn.functional.interpolate(
            maps, size=images.shape[2:], mode="bilinear", align_corners=False
        ).flatten(0, 1)
        masked = images.repeat_interleave(maps.shape[1], 0) * normalise_maps(
            masks
        ).unsqueeze(1)
        scores.append(
            model(masked)
            .gather(1, classes.repeat_interleave(maps.shape[1])[:, None])
            .view(maps.shape[:2])
        )
    # The score of the empty image, which the paper subtracts, cancels in the softmax.
    return _weighted(torch.cat(scores, 1).softmax(1), chosen)


def _run(model: nn.Module, layer: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's output, (B, C, h, w), as the leaf of the graph that leads to the logits, (B, K); nothing before it is recorded."""
    leaves: list[Tensor] = []

    def cut(module: nn.Module, given: tuple, output: Tensor) -> Tensor:
        if not isinstance(output, Tensor) or output.ndim != 4:
            found = (
                tuple(output.shape)
                if isinstance(output, Tensor)
                else type(output).__name__
            )
            raise ValueError(
                f"the layer {type(layer).__name__} puts out {found}; a CAM needs (B, C, h, w)"
            )
        leaves.append(output.detach().clone().requires_grad_())
        return leaves[
            -1
        ].clone()  # because an in-place layer behind this one may not overwrite a leaf

    # Stand-ins that need no gradient for the weights; buffers that are not saved too.
    state = {
        name: tensor.detach()
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    with layer.register_forward_hook(cut):
        logits = functional_call(model, state, (images,))
    if not leaves:
        raise ValueError(
            f"the layer {type(layer).__name__} is not called in the network's forward pass; choose one of its own modules"
        )
    return leaves[-1], logits


def _differentiate(
    model: nn.Module, layer: nn.Module, images: Tensor, classes: Tensor
) -> tuple[Tensor, Tensor]:
    """A layer's output and the gradient of the chosen logits by it, both (B, C, h, w)."""
    leaf, logits = _run(model, layer, images)
    chosen = logits.gather(1, classes[:, None]).sum()
    (gradient,) = (
        torch.autograd.grad(chosen, leaf, allow_unused=True)
        if chosen.requires_grad
        else (None,)
    )
    if gradient is None:
        raise ValueError(
            f"the logits do not depend on the last output of the layer {type(layer).__name__}; choose a layer before the head"
        )
    return leaf.detach(), gradient

"""Class activation maps: in closed form, by differentiation, and as integers.

Maps are ``M = relu(sum over k of w_k A_k)``. With ``g_kij = dz_c / dA_kij`` of the
logit z_c, and ``S_k = sum over ij of A_kij``:

- "grad_cam" (Selvaraju et al. 2017): ``w_k = mean over ij of g_kij``;
- "grad_cam_plus_plus" (Chattopadhay et al. 2018): ``w_k = sum over ij of alpha_kij
  relu(g_kij)``, see ``_plus_plus``; a negative S_k (before a ReLU) has a pole at
  g = -2 / S_k;
- "smooth_grad_cam_plus_plus" (Omeiza et al. 2019): g^2 and g^3 are means over
  images with Gaussian noise;
- "layer_cam" (Jiang et al. 2021): w is ``relu(g_kij)``, one weight for each pixel;
- "eigen_cam" (Muhammad and Yeasin 2020): w is the first right singular vector of A
  as pixels by channels, not centred;
- "score_cam" (Wang et al. 2020, Algorithm 1): w is the softmax over k of the logit
  of the image times A_k, scaled to [0, 1).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from helpers.networks import Undefined, hooks

CLOSED_FORM_METHODS = ("grad_cam", "grad_cam_plus_plus", "layer_cam")
GRADIENT_METHODS = (
    "grad_cam",
    "grad_cam_plus_plus",
    "smooth_grad_cam_plus_plus",
    "layer_cam",
    "eigen_cam",
    "score_cam",
)


def closed_form_cam(
    method: str,
    features: Tensor,
    classifier_weight: Tensor,
    classes: Tensor,
    torchcam_compat: bool = False,
) -> Tensor:
    """Maps without a backward pass, up to a positive factor; Du et al. 2024, (1).

    ``M = relu(sum over k of w_k A_k)``, exact where ``closed_form_classifier`` holds:
    there ``dz_c / dA_kij = W_ck / (h w)``, so that w_k is

    - ``W_ck`` for "grad_cam", which is then CAM (Zhou et al. 2016);
    - ``relu(W_ck) / (2 + W_ck a_k)`` for "grad_cam_plus_plus", with the mean a_k of map
      k, at least 0;
    - ``relu(W_ck)`` for "layer_cam".

    Args:
        method: one of ``CLOSED_FORM_METHODS``.
        features: (B, C, h, w).
        classifier_weight: (K, C).
        classes: (B,).
        torchcam_compat: whether to reproduce Grad-CAM++ of torchcam 0.4.0, which leaves
            out a division: w_k is ``h w (relu(W_ck) / (h w))^3``. The constant factors
            matter, since normalisation adds 1e-8 to the denominator.

    Returns:
        (B, h, w) at least 0, not normalised.

    Example:
        >>> features = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]]]])
        >>> weight = torch.tensor([[2.0, -1.0]])
        >>> closed_form_cam("grad_cam", features, weight, torch.tensor([0]))
        tensor([[[2., 0.]]])
    """
    weights = classifier_weight[classes]
    if method in ("layer_cam", "grad_cam_plus_plus"):
        weights = weights.relu()
    if torchcam_compat:
        pixels = features[0, 0].numel()
        weights = pixels * (weights / pixels) ** 3
    elif method == "grad_cam_plus_plus":
        # relu(W) below as well, so that a channel of negative weight is 0 / 2, not 0 /
        # 0.
        weights = weights / (2 + weights * features.mean((2, 3)))
    return _weighted(weights, features)


def _weighted(weights: Tensor, activations: Tensor) -> Tensor:
    """Rectified sum of channels: (B, C) and (B, C, h, w) -> (B, h, w)."""
    return torch.einsum("bk,bkhw->bhw", weights, activations).relu()


def normalise_maps(maps: Tensor) -> Tensor:
    """Scale each map to [0, 1), as Du et al. 2024 (code).

    Less its minimum, over its maximum + 1e-8.

    Args:
        maps: (B, h, w).

    Returns:
        (B, h, w); NaN where a map is not finite.
    """
    shifted = maps - maps.amin((1, 2), keepdim=True)
    return shifted / (shifted.amax((1, 2), keepdim=True) + 1e-8)


def to_integers(maps_normalised: Tensor, bits: int = 8) -> NDArray[np.unsignedinteger]:
    """Turn normalised maps in [0, 1] into integers; 1 becomes the largest integer.

    The maximum of a map stays larger than all other values after rounding, so that its
    position does not change.

    Args:
        maps_normalised: (B, h, w) in [0, 1].
        bits: 8 or 16.

    Returns:
        (B, h, w) uint8 or uint16. The error of a value is at most 1/510 or 1/131070,
        or twice that for values close to the maximum. A map that is not finite becomes
        the largest integer in all pixels, which no normalised map does.

    Example:
        >>> to_integers(torch.tensor([[[0.0, 0.4], [0.999, 1.0]]])).tolist()
        [[[0, 102], [254, 255]]]
    """
    top = 2**bits - 1
    undefined = ~maps_normalised.isfinite().all((1, 2), keepdim=True)
    maps = top * maps_normalised.double().masked_fill(undefined, 1)
    largest = maps.amax((1, 2), keepdim=True)
    # A value below the maximum that would round up to it becomes one less.
    limit = torch.where(maps < largest, largest.round() - 1, largest.round())
    integers = maps.round().minimum(limit).clamp(0, top).cpu().numpy()
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
    normalised = torch.from_numpy(maps.astype(np.float32) / top)
    return normalised.masked_fill(undefined, torch.nan)


@torch.no_grad()
def closed_form_classifier(
    model: nn.Module, features: Tensor, logits: Tensor
) -> nn.Linear:
    """Find the linear layer whose weight the closed form needs.

    The closed form is exact for a network that ends with global average pooling and
    one linear layer. To check that, the last ``nn.Linear`` is applied to the averaged
    maps and compared with the logits.

    Args:
        model: a network in evaluation mode.
        features: (B, C, h, w) maps of a pass.
        logits: (B, K) of the same pass.

    Raises:
        ValueError: if it does not give the logits.
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if linear and linear[-1].in_features == features.shape[1]:
        expected = linear[-1](features.mean((2, 3)))
        # Float32 sums of some thousand terms differ by 1e-6 of the largest; another
        # head differs by its whole size.
        tolerance = 1e-3 * float(logits.nan_to_num(0, 0, 0).abs().max())
        if expected.shape == logits.shape and torch.allclose(
            expected, logits, rtol=0, atol=tolerance, equal_nan=True
        ):
            return linear[-1]
    raise ValueError(
        "the last nn.Linear of the layer's averaged maps does not give the logits: "
        "take maps by the gradient"
    )


class _MapTarget(NamedTuple):
    """Images and classes whose logits a layer's maps explain."""

    model: nn.Module  # in evaluation mode
    layer: nn.Module
    images: Tensor  # (B, 3, S, S) input
    classes: Tensor  # (B,) int64


@dataclass(frozen=True)
class MapOptions:
    """Options of some methods of ``GRADIENT_METHODS``."""

    noise_samples: int = 4  # noisy images of Smooth Grad-CAM++
    noise_std: float = 0.3  # of its noise, in units of the network's input
    seed: int = 0  # of the noise of a whole batch
    channels: int = 32  # that Score-CAM uses: those with the largest sum of squares
    # Whether to reproduce torchcam 0.4.0 to 0.5.0, with which the maps of Du et al.
    # were probably made: alpha = g^2 in Grad-CAM++, and in its smooth variant g and A
    # of the last noisy image.
    torchcam_compat: bool = False


_USUAL = MapOptions()


def layer_maps(
    method: str,
    model: nn.Module,
    layer: nn.Module,
    images: Tensor,
    classes: Tensor,
    options: MapOptions = _USUAL,
) -> Tensor:
    """Compute the class activation maps of a layer; Du et al. 2024, equation (1).

    The docstring of this module describes the methods.

    Args:
        method: one of ``GRADIENT_METHODS``.
        model: a network; it is not changed.
        layer: a module with output (B, C, h, w); of several calls the last counts.
        images: (B, 3, S, S) input.
        classes: (B,) int64, whose logits the maps explain.
        options: of methods that have options.

    Returns:
        (B, h, w) at least 0, not normalised, detached; NaN where a gradient is NaN.

    Raises:
        ValueError: if the logits do not depend on the layer.
    """
    with torch.inference_mode(False), torch.enable_grad(), hooks.evaluation_mode(model):
        # Copies, since a tensor of inference mode cannot enter a graph.
        explained = _MapTarget(
            model, layer, images.detach().clone(), classes.detach().clone()
        )
        if method == "eigen_cam":
            return _eigen_cam(_run(explained)[0].detach())
        if method == "score_cam":
            return _score_cam(explained, _run(explained)[0].detach(), options.channels)
        activations, gradient = _differentiate(explained)
        if method == "layer_cam":
            return (gradient.relu() * activations).sum(1).relu()
        if method == "grad_cam":
            return _weighted(gradient.mean((2, 3)), activations)
        return _plus_plus(method, explained, activations, gradient, options)


def _plus_plus(
    method: str,
    explained: _MapTarget,
    activations: Tensor,
    gradient: Tensor,
    options: MapOptions,
) -> Tensor:
    """Map of Grad-CAM++, plain or smooth: ``alpha = g^2 / (2 g^2 + S g^3)``.

    alpha is 0 where g is 0.
    """
    squares = gradient**2
    cubes = gradient**3
    is_smooth = method == "smooth_grad_cam_plus_plus"
    if is_smooth:
        squares, cubes, last = _over_noise(explained, options)
    if not options.torchcam_compat:
        total = activations.sum((2, 3), keepdim=True)
        alpha = torch.where(squares == 0, 0, squares / (2 * squares + total * cubes))
    elif is_smooth:
        total = (cubes * activations).sum((2, 3), keepdim=True)
        alpha = squares / (2 * squares + total + 1e-8)
        activations, gradient = last
    else:
        alpha = squares
    return _weighted((alpha * gradient.relu()).sum((2, 3)), activations)


def _over_noise(
    explained: _MapTarget, options: MapOptions
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """Means of g^2 and g^3 over noisy images, and A and g of the last of them."""
    # Drawn on the CPU in single precision, so that a seed means the same noise on every
    # device, and in torchcam.
    generator = torch.Generator().manual_seed(options.seed)
    images = explained.images
    squares = cubes = 0.0
    for _ in range(options.noise_samples):
        noise = options.noise_std * torch.randn(images.shape, generator=generator)
        noisy = explained._replace(images=images + noise.to(images))
        last = _differentiate(noisy)
        squares = squares + last[1] ** 2 / options.noise_samples
        cubes = cubes + last[1] ** 3 / options.noise_samples
    return squares, cubes, last


def _eigen_cam(activations: Tensor) -> Tensor:
    """Map of the first singular vector, NaN where an activation is not finite."""
    undefined = ~activations.isfinite().flatten(1).all(1)
    activations = activations.nan_to_num(0, 0, 0)
    vectors = torch.linalg.svd(activations.flatten(2), full_matrices=False).U
    direction = vectors[:, :, 0]  # (B, C)
    # A singular vector has no sign of its own: it takes that of its sum.
    points_down = direction.sum(1, keepdim=True) < 0
    direction = torch.where(points_down, -direction, direction)
    maps = _weighted(direction, activations)
    return maps.masked_fill(undefined[:, None, None], torch.nan)


@torch.no_grad()
def _score_cam(explained: _MapTarget, activations: Tensor, channels: int) -> Tensor:
    """Map of channels weighted by the logit that their part of the image has."""
    images = explained.images
    energies = activations.square().sum((2, 3))
    strongest = energies.topk(min(channels, activations.shape[1])).indices
    chosen = activations.take_along_dim(strongest[:, :, None, None], 1)
    scores = []
    for maps in chosen.split(1, 1):  # (B, 1, h, w)
        masks = nn.functional.interpolate(maps, images.shape[2:], mode="bilinear")
        masks = normalise_maps(masks.squeeze(1)).unsqueeze(1)  # (B, 1, S, S)
        logits = explained.model(images * masks)
        scores.append(logits.gather(1, explained.classes[:, None]))
    # The score of the empty image, which the paper subtracts, cancels in the softmax.
    return _weighted(torch.cat(scores, 1).softmax(1), chosen)


def _run(explained: _MapTarget) -> tuple[Tensor, Tensor]:
    """A layer's output, and the logits that depend on it.

    Returns:
        (B, C, h, w), the leaf of the graph that leads to the logits (B, K); nothing
        before it is recorded.
    """
    model = explained.model
    leaves: list[Tensor] = []

    def cut(module: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        leaves.append(output.detach().clone().requires_grad_())
        # A copy, since an in-place layer behind this one may not overwrite a leaf.
        return leaves[-1].clone()

    # Detached parameters and buffers (also non-persistent ones), so that no gradient of
    # the weights is recorded.
    tensors = [*model.named_parameters(), *model.named_buffers()]
    state = {name: tensor.detach() for name, tensor in tensors}
    with explained.layer.register_forward_hook(cut):
        logits = functional_call(model, state, (explained.images,))
    return leaves[-1], logits


def _differentiate(explained: _MapTarget) -> tuple[Tensor, Tensor]:
    """A layer's output, and the gradient of the chosen logits by it, (B, C, h, w)."""
    leaf, logits = _run(explained)
    chosen = logits.gather(1, explained.classes[:, None]).sum()
    gradient = None
    if chosen.requires_grad:
        (gradient,) = torch.autograd.grad(chosen, leaf, allow_unused=True)
    if gradient is None:
        raise Undefined(
            "the logits do not depend on the last output of the layer "
            f"{type(explained.layer).__name__}; choose a layer before the head"
        )
    return leaf.detach(), gradient

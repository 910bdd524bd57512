"""Class activation maps of any layer of any classifier, by differentiation, and the layers that are worth looking at."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call

from helpers.cams import closed_form
from helpers.networks import hooks

GRADIENT_METHODS = ("grad_cam", "grad_cam_plus_plus", "smooth_grad_cam_plus_plus", "layer_cam", "eigen_cam", "score_cam")
TORCHCAM_METHODS = GRADIENT_METHODS[:4]  # what torchcam_compat is for
_MASKED_IMAGES = 64  # of Score-CAM in one batch


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
    """Compute where a layer sees the evidence for a class: ``M = relu(sum over k of w_k A_k)``; Du et al. 2024, equation (1).

    With ``g_kij = dz_c / dA_kij`` of the logit z_c, and ``S_k = sum over ij of A_kij``:

    - "grad_cam" (Selvaraju et al. 2017): ``w_k = mean over ij of g_kij``;
    - "grad_cam_plus_plus" (Chattopadhay et al. 2018): ``w_k = sum over ij of alpha_kij relu(g_kij)``, where
      ``alpha = g^2 / (2 g^2 + S_k g^3)``, and 0 where g is 0; a negative S_k (before a ReLU) has a pole at g = -2 / S_k;
    - "smooth_grad_cam_plus_plus" (Omeiza et al. 2019): g^2 and g^3 are means over images with Gaussian noise, the rest is of the image;
      a negative mean of g^3 can bring a pole before the last layer;
    - "layer_cam" (Jiang et al. 2021): w is ``relu(g_kij)``, one weight for each pixel;
    - "eigen_cam" (Muhammad and Yeasin 2020): w is the first right singular vector of A as a matrix of pixels by channels, not
      centred, with the sign that makes the map agree with the mean of the channels. It knows neither class nor gradient;
    - "score_cam" (Wang et al. 2020, Algorithm 1): w is the softmax over k of the logit z_c of the image times A_k, where A_k is enlarged
      and scaled to [0, 1); only the ``channels`` of the largest energy ``sum of A_kij^2`` are asked.

    One forward and one backward pass; smooth 1 + noise_samples of each, Eigen-CAM one forward pass, Score-CAM 1 + channels of them.
    Modes, hooks, gradients and weights are left as they were.

    Args:
        method: one of ``METHODS``.
        model: a classifier, (B, 3, H, W) -> (B, K).
        layer: one of its modules, with output (B, C, h, w); when it is called more than once, its last output counts.
        images: (B, 3, H, W) as the network expects them.
        classes: (B,) int64, the class whose logit is explained, fixed before any noise; Du et al. take the predicted one.
        torchcam_compat: reproduce torchcam 0.4.0 to 0.5.0, with which the maps of Du et al. were probably made. Its Grad-CAM++
            loses the division (alpha = g^2); its smooth variant takes relu(g) and A of the map from the last noisy image, and
            sums A_kij g_kij^3. With ``torch.manual_seed(seed)`` before it, torchcam draws the same noise.
        noise_samples: noisy images for each image, at least 1.
        noise_std: standard deviation of the noise, in units of the network's input (normalised pixels), at least 0.
        seed: of the noise, which is drawn for the batch as a whole: give every batch its own.
        channels: of Score-CAM, at least 1; all where the layer has fewer.

    Returns:
        (B, h, w) maps, at least 0, not normalised (see ``closed_form.normalise_maps``), detached. All zeros where nothing speaks for it;
        NaN where an activation or gradient is NaN.

    Raises:
        ValueError: an argument is out of range, torchcam has no such method, or the layer has no maps that the logits depend on.
    """
    _check(method, images, classes, torchcam_compat, noise_samples, noise_std, channels)
    with torch.inference_mode(False), torch.enable_grad(), hooks.evaluation_mode(model):
        images, classes = images.detach().clone(), classes.detach().clone()  # one made in inference mode cannot enter a graph
        if method in GRADIENT_METHODS[4:]:
            activations = _run(model, layer, images)[0].detach()
            return _eigen_cam(activations) if method == "eigen_cam" else _score_cam(model, activations, images, classes, channels)
        if method == "smooth_grad_cam_plus_plus":
            return _smooth(model, layer, images, classes, noise_samples, noise_std, seed, torchcam_compat)
        activations, gradient = _differentiate(model, layer, images, classes)
        if method == "layer_cam":
            return (gradient.relu() * activations).sum(1).relu()
        if method == "grad_cam":
            return _weighted(gradient.mean((2, 3)), activations)
        squares = gradient**2
        alpha = squares if torchcam_compat else _alpha(squares, gradient**3, activations)
        return _weighted((alpha * gradient.relu()).sum((2, 3)), activations)


def _check(method: str, images: Tensor, classes: Tensor, compat: bool, samples: int, std: float, channels: int) -> None:
    if method not in GRADIENT_METHODS:
        raise ValueError(f"CAM method {method!r} is unknown; choose one of {', '.join(GRADIENT_METHODS)}")
    if compat and method not in TORCHCAM_METHODS:
        raise ValueError(f"torchcam_compat is not for {method!r}; it is for {', '.join(TORCHCAM_METHODS)}")
    if classes.shape != images.shape[:1] or classes.dtype != torch.int64:
        raise ValueError(f"classes need one int64 for each of {len(images)} images, got {classes.dtype} of shape {tuple(classes.shape)}")
    if samples < 1 or channels < 1 or not 0 <= std < torch.inf:
        raise ValueError(f"noise_samples {samples} and channels {channels} must be at least 1, noise_std {std} at least 0 and finite")


def _weighted(weights: Tensor, activations: Tensor) -> Tensor:
    return torch.einsum("bk,bkhw->bhw", weights, activations).relu()


def _alpha(squares: Tensor, cubes: Tensor, activations: Tensor) -> Tensor:
    """Weigh the pixels as Grad-CAM++ does: ``g^2 / (2 g^2 + S g^3)``, and 0 where no gradient arrives."""
    total = activations.sum((2, 3), keepdim=True)
    return torch.where(squares == 0, 0, squares / (2 * squares + total * cubes))


def _smooth(
    model: nn.Module, layer: nn.Module, images: Tensor, classes: Tensor, samples: int, std: float, seed: int, compat: bool
) -> Tensor:
    activations, gradient = _differentiate(model, layer, images, classes)
    # Drawn on the CPU in single precision, so that a seed means the same noise on every device, and in torchcam.
    generator = torch.Generator().manual_seed(seed)
    squares, cubes = torch.zeros_like(gradient), torch.zeros_like(gradient)
    for _ in range(samples):
        noise = std * torch.randn(images.shape, generator=generator)
        last_activations, last_gradient = _differentiate(model, layer, images + noise.to(images), classes)
        squares, cubes = squares + last_gradient**2 / samples, cubes + last_gradient**3 / samples
    if not compat:
        return _weighted((_alpha(squares, cubes, activations) * gradient.relu()).sum((2, 3)), activations)
    alpha = squares / (2 * squares + (cubes * activations).sum((2, 3), keepdim=True) + 1e-8)
    return _weighted((alpha * last_gradient.relu()).sum((2, 3)), last_activations)


def _eigen_cam(activations: Tensor) -> Tensor:
    undefined = ~activations.isfinite().all(3).all(2).all(1)
    activations = activations.nan_to_num(0, 0, 0)
    direction = torch.linalg.svd(activations.flatten(2), full_matrices=False).U[:, :, 0]
    direction = torch.where(direction.sum(1, keepdim=True) < 0, -direction, direction)  # map times the channels' mean has this sign
    return _weighted(direction, activations).masked_fill(undefined[:, None, None], torch.nan)


@torch.no_grad()
def _score_cam(model: nn.Module, activations: Tensor, images: Tensor, classes: Tensor, channels: int) -> Tensor:
    strongest = activations.square().sum((2, 3)).topk(min(channels, activations.shape[1])).indices
    chosen = activations.take_along_dim(strongest[:, :, None, None], 1)
    scores = []
    for maps in chosen.split(max(1, _MASKED_IMAGES // max(1, len(images))), 1):
        masks = nn.functional.interpolate(maps, size=images.shape[2:], mode="bilinear", align_corners=False).flatten(0, 1)
        masked = images.repeat_interleave(maps.shape[1], 0) * closed_form.normalise_maps(masks).unsqueeze(1)
        scores.append(_chosen_logits(model(masked), classes.repeat_interleave(maps.shape[1])).unflatten(0, maps.shape[:2]))
    # The score of the empty image, which the paper subtracts, cancels in the softmax.
    return _weighted(torch.cat(scores, 1).softmax(1), chosen)


def _chosen_logits(logits: Tensor, classes: Tensor) -> Tensor:
    if len(classes) and not 0 <= int(classes.min()) <= int(classes.max()) < logits.shape[1]:
        raise ValueError(f"classes reach from {int(classes.min())} to {int(classes.max())}; the network knows 0 to {logits.shape[1] - 1}")
    return logits.gather(1, classes.unsqueeze(1)).squeeze(1)


@contextmanager
def _cut(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Let the graph begin at a layer's output, so that nothing before it is recorded."""
    leaves: list[Tensor] = []

    def replace(module: nn.Module, given: tuple, output: Tensor) -> Tensor:
        if not isinstance(output, Tensor) or output.ndim != 4:
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"the layer {type(layer).__name__} puts out {found}; a CAM needs (B, C, h, w)")
        leaves.append(output.detach().clone().requires_grad_())
        return leaves[-1].clone()  # because an in-place layer behind this one may not overwrite a leaf

    hook = layer.register_forward_hook(replace)
    try:
        yield leaves
    finally:
        hook.remove()


def _run(model: nn.Module, layer: nn.Module, images: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's output, (B, C, h, w), as the leaf of the graph that leads to the logits, (B, K)."""
    # Stand-ins that need no gradient for the weights; a weight made in inference mode has to be copied.
    own = [*model.named_parameters(), *model.named_buffers()]
    state = {name: (tensor.clone() if tensor.is_inference() else tensor).detach() for name, tensor in own}
    with _cut(layer) as leaves:
        logits = functional_call(model, state, (images,))
    if not leaves:
        raise ValueError(f"the layer {type(layer).__name__} is not called in the network's forward pass; choose one of its own modules")
    return leaves[-1], logits


def _differentiate(model: nn.Module, layer: nn.Module, images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """A layer's output and the gradient of the chosen logits with respect to it, both (B, C, h, w), by one backward pass."""
    leaf, logits = _run(model, layer, images)
    chosen = _chosen_logits(logits, classes).sum()
    (gradient,) = torch.autograd.grad(chosen, leaf, allow_unused=True) if chosen.requires_grad else (None,)
    if gradient is None:
        raise ValueError(f"the logits do not depend on the last output of the layer {type(layer).__name__}; choose a layer before the head")
    return leaf.detach(), gradient

"""Attributions of a logit to the pixels, by Captum: rivals of class activation maps that look through no layer, or through one."""

import copy
import operator
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from helpers.networks import hooks

ATTRIBUTIONS = ("saliency", "input_x_gradient", "integrated_gradients", "guided_grad_cam", "occlusion", "deep_lift")
_RELUS = (torch.relu, torch.relu_, nn.functional.relu, nn.functional.relu_, "relu", "relu_")  # as functions and as methods of a tensor
_BATCH = 64  # images of integrated gradients in one pass, at least
_WINDOWS = 4  # of occlusion, along a side; each is moved by half of its own


class Attribution(NamedTuple):
    """Maps of some images, and what they took."""

    maps: Tensor  # (B, S, S) at least 0, not normalised, detached
    forward_passes: float  # per image
    backward_passes: float


def with_own_activations(network: nn.Module) -> nn.Module:
    """Copy of a network, in evaluation mode, in which each ReLU is a module of its own that is called once and not in place.

    Captum's guided gradients and DeepLift hook modules: a ReLU that is called twice gives them wrong numbers or none, and a function no
    hook. The logits are those of the network, which is left alone; the copy's weights need no gradient.

    Raises:
        ValueError: the forward pass depends on values and cannot be traced.
    """
    tracer = fx.Tracer()
    tracer.is_leaf_module = lambda module, name: not any(module.children())
    with torch.inference_mode(False):
        copied = copy.deepcopy(network).eval().requires_grad_(False)
    try:
        graph = tracer.trace(copied)
    except (fx.proxy.TraceError, TypeError) as fault:
        raise ValueError(f"the forward pass of {type(network).__name__} depends on values and cannot be traced: {fault}") from fault
    traced = fx.GraphModule(copied, graph)
    for number, node in enumerate(graph.nodes):
        called = traced.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(called, nn.ReLU) or (node.op in ("call_function", "call_method") and node.target in _RELUS):
            node.op, node.target, node.args, node.kwargs = "call_module", f"relu_{number}", tuple(node.all_input_nodes[:1]), {}
            traced.add_submodule(node.target, nn.ReLU())
        elif node.target is operator.iadd:
            node.target = operator.add
    traced.recompile()
    return traced.eval()


@contextmanager
def _counted(network: nn.Module) -> Iterator[dict[str, int]]:
    """Count the images that go through a network forward, and backward from its logits, while the context is open."""
    passes = {"forward": 0, "backward": 0}

    def back(gradient: Tensor) -> None:
        passes["backward"] += len(gradient)

    def forth(module: nn.Module, given: tuple, output: Tensor) -> None:
        passes["forward"] += len(output)
        if output.requires_grad:
            output.register_hook(back)

    hook = network.register_forward_hook(forth)
    try:
        yield passes
    finally:
        hook.remove()


def attribution_maps(method: str, network: nn.Module, images: Tensor, classes: Tensor, steps: int = 16) -> Attribution:
    """Which pixels speak for a class: the attribution of its logit, by Captum.

    - "saliency" (Simonyan et al. 2014): largest absolute gradient over the channels;
    - "input_x_gradient" (Shrikumar et al. 2016): gradient times input;
    - "integrated_gradients" (Sundararajan et al. 2017): input times the mean gradient on the way from a baseline;
    - "guided_grad_cam" (Selvaraju et al. 2017): guided gradient times the enlarged Grad-CAM of the last maps;
    - "occlusion" (Zeiler and Fergus 2014): what the logit loses when a window, a quarter of the side, is put to the baseline;
    - "deep_lift" (Shrikumar et al. 2017, rescale rule): differences from the baseline shared out, which must add up to the logit's.

    All but the first are signed: they are summed over the channels and what speaks against the class is cut off, as in a class activation
    map. The baseline is 0, the mean colour for networks that take normalised images.

    Args:
        method: one of ``ATTRIBUTIONS``.
        network: see ``with_own_activations``.
        images: (B, 3, S, S) as the network expects them.
        classes: (B,) int64, whose logit is attributed.
        steps: of integrated gradients on the way.

    Raises:
        ValueError: an unknown method, or DeepLift's shares do not add up, within 1 %, in this network.
    """
    if method not in ATTRIBUTIONS:
        raise ValueError(f"attribution {method!r} is unknown; choose one of {', '.join(ATTRIBUTIONS)}")
    layer = hooks.last_maps_layer(network, images[:1]) if method == "guided_grad_cam" else None
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings(), _counted(network) as passes:
        warnings.filterwarnings("ignore", module="captum")  # that it sets hooks and removes them
        inputs = images.detach().clone().requires_grad_()
        found = _attributed(method, network, layer, inputs, classes.clone(), steps).detach()
    maps = found.amax(1) if method == "saliency" else found.sum(1).relu()
    return Attribution(maps, *(count / len(images) for count in passes.values()))


def _attributed(method: str, network: nn.Module, layer: nn.Module | None, inputs: Tensor, classes: Tensor, steps: int) -> Tensor:
    """Captum's attribution, (B, 3, S, S)."""
    from captum import attr  # here: its import takes as long as that of pandas, and the closed form does without

    if method == "saliency":
        return attr.Saliency(network).attribute(inputs, target=classes)
    if method == "input_x_gradient":
        return attr.InputXGradient(network).attribute(inputs, target=classes)
    if method == "integrated_gradients":
        options = {"n_steps": steps, "internal_batch_size": max(_BATCH, len(inputs))}
        return attr.IntegratedGradients(network).attribute(inputs, target=classes, **options)
    if method == "guided_grad_cam":
        return attr.GuidedGradCam(network, layer).attribute(inputs, target=classes, interpolate_mode="bilinear")
    if method == "occlusion":
        side = max(2, inputs.shape[-1] // _WINDOWS)
        options = {"sliding_window_shapes": (3, side, side), "strides": (3, side // 2, side // 2), "perturbations_per_eval": 4}
        return attr.Occlusion(network).attribute(inputs, target=classes, **options)
    found, error = attr.DeepLift(network).attribute(inputs, target=classes, return_convergence_delta=True)
    difference = found.sum((1, 2, 3)) - error
    if not error.abs().max() <= 0.01 * difference.abs().max():
        raise ValueError(f"DeepLift's shares miss the difference of the logits by up to {float(error.abs().max()):.2g} in this network")
    return found

"""Attributions of a logit to the pixels, by Captum: rivals of class activation maps that look through no layer, or through one."""

import copy
import operator
import warnings
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from helpers.networks import hooks

ATTRIBUTIONS = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "guided_grad_cam",
    "occlusion",
    "deep_lift",
)
_RELUS = (
    torch.relu,
    torch.relu_,
    nn.functional.relu,
    nn.functional.relu_,
    "relu",
    "relu_",
)  # as functions and as methods of a tensor
_BATCH = 64  # images of integrated gradients in one pass, at least
_WINDOWS = 4  # of occlusion, along a side; each is moved by half of its own


class Attribution(NamedTuple):
    """Maps of some images, and what they took."""

    maps: Tensor  # (B, S, S) at least 0, not normalised, detached
    forward_passes: float  # per image
    backward_passes: float


def with_own_activations(network: nn.Module) -> nn.Module:
    """Copy of a network, in evaluation mode, in which each ReLU is a module of its own called once and not in place, as Captum needs.

    The logits are those of the network; the copy's weights need no gradient. ValueError where the forward pass cannot be traced.
    """
    tracer = fx.Tracer()
    tracer.is_leaf_module = lambda module, name: not any(module.children())
    with torch.inference_mode(False):
        copied = copy.deepcopy(network).eval().requires_grad_(False)
    try:
        graph = tracer.trace(copied)
    except (fx.proxy.TraceError, TypeError) as fault:
        raise ValueError(
            f"the forward pass of {type(network).__name__} depends on values and cannot be traced: {fault}"
        ) from fault
    traced = fx.GraphModule(copied, graph)
    for number, node in enumerate(graph.nodes):
        called = traced.get_submodule(node.target) if node.op == "call_module" else None
        if isinstance(called, nn.ReLU) or (
            node.op in ("call_function", "call_method") and node.target in _RELUS
        ):
            node.op, node.target, node.args, node.kwargs = (
                "call_module",
                f"relu_{number}",
                tuple(node.all_input_nodes[:1]),
                {},
            )
            traced.add_submodule(node.target, nn.ReLU())
        elif node.target is operator.iadd:
            node.target = operator.add
    traced.recompile()
    return traced.eval()


def attribution_maps(
    method: str, network: nn.Module, images: Tensor, classes: Tensor, steps: int = 16
) -> Attribution:
    """Which pixels speak for a class: the attribution of its logit, by Captum.

    "saliency" (Simonyan et al. 2014) is the largest absolute gradient over the channels; the others are summed over the channels, and what
    speaks against the class is cut off: "input_x_gradient" (Shrikumar et al. 2016), "integrated_gradients" (Sundararajan et al. 2017) in
    some steps, "guided_grad_cam" (Selvaraju et al. 2017) of the last maps, "occlusion" (Zeiler and Fergus 2014) by a window of a quarter of
    the side, and "deep_lift" (Shrikumar et al. 2017, rescale rule), ValueError where its shares miss the logit's difference.

    The baseline is 0, the mean colour for normalised images, (B, 3, S, S). The network is one of ``with_own_activations``.
    """
    from captum import (
        attr,
    )  # here: its import takes as long as that of pandas, and the closed form does without

    layer = (
        hooks.last_maps_layer(network, images[:1])
        if method == "guided_grad_cam"
        else None
    )
    side, passes = max(2, images.shape[-1] // _WINDOWS), {"forward": 0, "backward": 0}
    window = {
        "sliding_window_shapes": (3, side, side),
        "strides": (3, side // 2, side // 2),
    }
    captum, options = {
        "saliency": (attr.Saliency, {}),
        "input_x_gradient": (attr.InputXGradient, {}),
        "integrated_gradients": (
            attr.IntegratedGradients,
            {"n_steps": steps, "internal_batch_size": max(_BATCH, len(images))},
        ),
        "guided_grad_cam": (
            lambda model: attr.GuidedGradCam(model, layer),
            {"interpolate_mode": "bilinear"},
        ),
        "occlusion": (attr.Occlusion, window | {"perturbations_per_eval": 4}),
        "deep_lift": (attr.DeepLift, {"return_convergence_delta": True}),
    }[method]

    def count(module: nn.Module, given: tuple, output: Tensor) -> None:
        passes["forward"] += len(output)
        if output.requires_grad:
            output.register_hook(
                lambda gradient: passes.update(
                    backward=passes["backward"] + len(gradient)
                )
            )

    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        warnings.catch_warnings(),
        network.register_forward_hook(count),
    ):
        warnings.filterwarnings(
            "ignore", module="captum"
        )  # that it sets hooks and removes them
        inputs = images.detach().clone().requires_grad_()
        found = captum(network).attribute(inputs, target=classes.clone(), **options)
    if method == "deep_lift":
        found, error = found
        if not error.abs().max() <= 0.01 * (found.sum((1, 2, 3)) - error).abs().max():
            raise ValueError(
                f"DeepLift's shares miss the difference of the logits by up to {float(error.abs().max()):.2g} in this network"
            )
    found = found.detach()
    return Attribution(
        found.abs().amax(1) if method == "saliency" else found.sum(1).relu(),
        *(n / len(images) for n in passes.values()),
    )

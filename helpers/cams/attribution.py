"""Attributions of a logit to pixels by Captum, to compare with activation maps."""

import copy
import operator
import warnings
from typing import Any

import torch
from torch import Tensor, fx, nn

from helpers.networks import hooks

# Each is named as its class of captum.attr.
ATTRIBUTIONS = (
    "saliency",
    "input_x_gradient",
    "integrated_gradients",
    "guided_grad_cam",
    "occlusion",
)
_FEWEST_IN_PASS = 64  # images of integrated gradients in one pass, at least
# Windows of occlusion that fit along a side; a window moves by half of its side.
_OCCLUSION_WINDOWS = 4


def with_separate_relus(network: nn.Module) -> nn.Module:
    """Copy a ResNet so that each call of a ReLU is a module of its own.

    A ResNet calls one ReLU several times, which Captum's guided backpropagation does
    not allow.

    Args:
        network: whose ReLUs are modules.

    Returns:
        A copy in evaluation mode with the same logits, whose ReLUs are not in place and
        whose weights need no gradient.
    """
    tracer = fx.Tracer()
    tracer.is_leaf_module = lambda module, name: not any(module.children())
    with torch.inference_mode(False):
        copied = copy.deepcopy(network).eval().requires_grad_(False)
    traced = fx.GraphModule(copied, tracer.trace(copied))
    relus = {name for name, layer in copied.named_modules() if type(layer) is nn.ReLU}
    for number, node in enumerate(traced.graph.nodes):
        if node.target in relus:
            node.target = f"relu_{number}"
            traced.add_submodule(node.target, nn.ReLU())
        elif node.target is operator.iadd:  # x += y, which would overwrite x
            node.target = operator.add
    traced.recompile()
    return traced.eval()


def attribution_maps(
    method: str, network: nn.Module, images: Tensor, classes: Tensor, steps: int = 16
) -> Tensor:
    """Attribute the logit of a class to the pixels of an image, by Captum.

    - "saliency" (Simonyan et al. 2014): the largest absolute gradient over the
      channels.

    The attributions of the other methods are summed over the channels, and negative
    sums, which are evidence against the class, are set to 0:

    - "input_x_gradient" (Shrikumar et al. 2016);
    - "integrated_gradients" (Sundararajan et al. 2017);
    - "guided_grad_cam" (Selvaraju et al. 2017), of the last maps;
    - "occlusion" (Zeiler and Fergus 2014), by a window of a quarter of the side.

    The baseline is an input of 0, which is the mean colour in normalised images.

    Args:
        method: one of ``ATTRIBUTIONS``.
        network: result of ``with_separate_relus``.
        images: (B, 3, S, S) input.
        classes: (B,) int64, whose logits are attributed.
        steps: of integrated gradients.

    Returns:
        (B, S, S) at least 0, not normalised, detached.
    """
    # Imported here, since this import takes long and most measures do without.
    from captum import attr

    side = max(2, images.shape[-1] // _OCCLUSION_WINDOWS)
    options: dict[str, dict[str, Any]] = {
        "integrated_gradients": {
            "n_steps": steps,
            "internal_batch_size": max(_FEWEST_IN_PASS, len(images)),
        },
        "guided_grad_cam": {"interpolate_mode": "bilinear"},
        "occlusion": {
            "sliding_window_shapes": (3, side, side),
            "strides": (3, side // 2, side // 2),
            "perturbations_per_eval": 4,
        },
    }
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        warnings.catch_warnings(),
    ):
        # Captum warns that it sets hooks and removes them.
        warnings.filterwarnings("ignore", module="captum")
        inputs = images.detach().clone().requires_grad_()
        arguments = [network]
        if method == "guided_grad_cam":
            arguments.append(hooks.last_maps_layer(network, inputs[:1]))
        explained_by = getattr(attr, method.title().replace("_", ""))
        explain = explained_by(*arguments).attribute
        values = explain(inputs, target=classes.clone(), **options.get(method, {}))
    values = values.detach()
    return values.abs().amax(1) if method == "saliency" else values.sum(1).relu()

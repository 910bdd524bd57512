"""The one pass over the training images that most measures live on, as many images at once as memory takes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from helpers.cams.maps import closed_form_cam, closed_form_classifier, layer_maps, normalise_maps
from helpers.measures.evidence import provides
from helpers.networks import fused, hooks
from helpers.networks.hooks import _no_layer, last_called, prepared


@dataclass(frozen=True)
class Pass:
    """What one forward pass over N training images gives; everything on the CPU, in the order of the images."""

    logits: Tensor  # (N, K) float32
    features: Tensor | None  # (N, D) float32, what the last linear layer is given; None where none is called
    maps: Tensor | None  # (N, h, w) normalised maps of the predicted class; None where there are none
    no_maps: str  # why there are none


@provides
def example(images: Any, normalise: Any, device: Any) -> Tensor:
    """The first training image as the network expects it: (1, 3, S, S).

    Raises:
        ValueError: there is none.
    """
    if not len(images.images):
        raise ValueError("there are no training images, so the network can be neither traced nor scored")
    return prepared(images.images[:1], normalise, device)


@provides
def fused_network(network: nn.Module, example: Tensor) -> nn.Module:
    """What images are passed through: the network's copy with folded batch norms, see ``fused.fused``."""
    return fused.fused(network, example)


@provides
@torch.inference_mode()
def forward_pass(
    fused_network: nn.Module,
    images: Any,
    normalise: Any,
    device: Any,
    example: Tensor,
    cam_method: str,
    batch_size: int,
    precision: str = "float32",
) -> Pass:
    """Run the training images through the network once, see ``Pass``.

    In bfloat16 the products of its layers are of that precision, all but those of the last linear layer; what follows is float32.

    Raises:
        ValueError: the network's output is no (B, K) matrix of logits.
    """
    layer, linear = last_called(fused_network, example)
    network, passed = fused_network, partial(maps_and_logits, fused_network, linear)
    classifier, no_maps = None, "" if layer is not None else _no_layer(network)
    # In bfloat16 a head that fits could not be told from one that nearly does.
    exact = passed(layer, example, "float32") if layer is not None and precision == "bfloat16" else None
    kept: dict[str, list[Tensor]] = {"logits": [], "features": [], "maps": []}
    given: list[Tensor] = []
    hook = linear.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0])) if linear is not None else None
    try:
        for start in range(0, len(images), batch_size):
            pixels = prepared(images.images[start : start + batch_size], normalise, device)
            given.clear()
            # Of the first images both, to see whether the closed form holds.
            closed = layer is not None and (start == 0 or classifier is not None)
            maps, logits = passed(layer if closed else None, pixels, precision)
            if logits.ndim != 2:
                raise ValueError(f"the network puts out shape {tuple(logits.shape)}; a classifier puts out (B, K) logits")
            if given:  # before the closed form is tried, which calls the layer once more
                kept["features"].append(given[-1].flatten(1).float().cpu())
            if start == 0 and closed:
                classifier = _closed_form(network, *(exact or (maps, logits)))
            kept["logits"].append(logits.float().cpu())
            if classifier is not None:
                weighted = closed_form_cam(cam_method, maps, classifier.weight, logits.argmax(1))
            elif not no_maps:
                weighted, no_maps = _by_gradient(cam_method, network, layer, pixels, logits)
            if not no_maps:
                kept["maps"].append(normalise_maps(weighted).float().cpu())
    finally:
        if hook is not None:
            hook.remove()
    joined = {name: torch.cat(parts) if parts else None for name, parts in kept.items()}
    return Pass(**joined, no_maps=no_maps)


def maps_and_logits(
    network: nn.Module, head: nn.Linear | None, layer: nn.Module | None, pixels: Tensor, precision: str
) -> tuple[Tensor | None, Tensor]:
    """Maps of a layer, None without one, and the logits, of one pass; what was computed in bfloat16 comes back in float32.

    Args:
        network: what the images are passed through, see ``fused_network``.
        head: its last linear layer, which computes in float32 in any case.
        layer: whose output is wanted.
        pixels: (B, 3, S, S) as the network expects them.
        precision: of the products of its other layers: float32 or bfloat16.
    """
    with torch.autocast(pixels.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"), fused.exact_head(head):
        maps, logits = (None, network(pixels)) if layer is None else hooks.features_and_logits(network, layer, pixels)
    if precision == "float32":
        return maps, logits
    return None if maps is None else maps.float(), logits.float()


def _closed_form(network: nn.Module, maps: Tensor, logits: Tensor) -> nn.Linear | None:
    """The linear layer behind the maps of a pass; None where there is no closed form of their class activation map."""
    try:
        return closed_form_classifier(network, maps, logits)
    except ValueError:
        return None


def _by_gradient(method: str, network: nn.Module, layer: nn.Module, pixels: Tensor, logits: Tensor) -> tuple[Tensor | None, str]:
    """Compute the maps of the predicted class by differentiation, or say why that fails; that of "cam" is Grad-CAM's."""
    try:
        return layer_maps("grad_cam" if method == "cam" else method, network, layer, pixels, logits.argmax(1)), ""
    except (ValueError, RuntimeError) as fault:
        return None, f"there is no class activation map: {str(fault).splitlines()[0]}"


@provides
def logits(forward_pass: Pass) -> Tensor:
    """(N, K) float32 logits of the training images."""
    return forward_pass.logits


@provides
def labels(images: Any) -> Tensor:
    """(N,) int64 labels of the training images, as the network was fitted to them."""
    return images.labels.cpu()


@provides
def features(forward_pass: Pass) -> Tensor:
    """(N, D) float32, what the last linear layer is given.

    Raises:
        ValueError: no linear layer is called.
    """
    if forward_pass.features is None:
        raise ValueError("no nn.Linear is called in the network's pass, so it has no features in front of one")
    return forward_pass.features


@provides
def maps(forward_pass: Pass) -> Tensor:
    """(N, h, w) normalised class activation maps of the predicted class.

    Raises:
        ValueError: the closed form does not hold for the network.
    """
    if forward_pass.maps is None:
        raise ValueError(forward_pass.no_maps)
    return forward_pass.maps


@provides
def training_images(images: Any) -> int:
    """Number of training images."""
    return len(images)


_MOST = 256  # images: beyond, neither a processor nor a GPU gains
_FORWARD, _BACKWARD = 2**28, 2**31  # bytes on a processor, where tensors of more than some MB gain nothing
_SHARE = 0.5  # of the memory that is free on a GPU


@provides
@torch.inference_mode()
def output_bytes(network: nn.Module, example: Tensor) -> list[int]:
    """Measure what each layer without layers of its own puts out for an example of one image, bytes, by a trace."""
    found: list[int] = []

    def note(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            found.append(output.nbytes)

    hooks.observe(network, example, note)
    return found


@provides
def batch_size(output_bytes: list[int], device: Any) -> int:
    """Choose how many images a forward pass takes: its largest layer reads and writes a few maps of that size at a time."""
    return _fitting(4 * max(output_bytes, default=0), device, _FORWARD)


@provides
def gradient_batch_size(output_bytes: list[int], device: Any, batch_size: int) -> int:
    """Choose how many images a pass with gradients takes, which keeps what every layer puts out; at most ``batch_size``."""
    return min(batch_size, _fitting(2 * sum(output_bytes), device, _BACKWARD))


def _fitting(image: int, device: Any, processor: int) -> int:
    """Largest number of images of so many bytes each that fits, at least 1."""
    place = torch.device(device)
    free = int(_SHARE * torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else processor
    return max(1, min(_MOST, free // max(1, image)))

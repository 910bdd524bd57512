"""The one pass over the training images that most measures live on, as many images at once as memory takes."""

from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from helpers.cams.maps import (
    closed_form_cam,
    closed_form_classifier,
    layer_maps,
    normalise_maps,
)
from helpers.measures.evidence import PROVIDERS, provides
from helpers.networks import hooks
from helpers.networks.batches import fitting_batch
from helpers.networks.faults import is_of_machine

_MOST = {
    "cpu": 64,
    "cuda": 256,
}  # images per pass: beyond, a processor's maps leave its cache, and a GPU gains nothing
_FORWARD, _BACKWARD = (
    2**28,
    2**31,
)  # bytes of a pass on a processor, without and with gradients; on a GPU half of what is free


class Sample(NamedTuple):
    """The first training images, whose order was drawn, on the network's device."""

    pixels: Tensor  # (n, 3, S, S) uint8
    inputs: Tensor  # (n, 3, S, S) float32 as the network expects them, channels last
    labels: Tensor  # (n,) int64


def sample_of(images: Any, normalise: Any, device: Any, at_most: int) -> Sample:
    """Take the first of the images, or all if there are no more."""
    pixels, labels = (
        tensor[:at_most].to(device) for tensor in (images.images, images.labels)
    )
    return Sample(pixels, hooks.prepared(pixels, normalise, device), labels)


@dataclass(frozen=True)
class Pass:
    """What one forward pass over N training images gives; everything on the CPU, in the order of the images."""

    logits: Tensor  # (N, K) float32
    features: (
        Tensor | None
    )  # (N, D) float32, what the linear layer that gives the logits is given; None where there is none
    maps: (
        Tensor | None
    )  # (N, h, w) normalised maps of the predicted class; None where they have no closed form


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
) -> Pass:
    """Run the training images through the network once."""
    layer, linear = hooks.last_called(fused_network, example)
    classifier, given = None, []
    kept: dict[str, list[Tensor]] = {"logits": [], "features": [], "maps": []}
    with (
        linear.register_forward_pre_hook(lambda module, inputs: given.append(inputs[0]))
        if linear is not None
        else nullcontext()
    ):
        for pixels in images.images.split(batch_size):
            # Of the first images both, to see whether the closed form holds.
            closed = layer is not None and (
                not kept["logits"] or classifier is not None
            )
            inputs = hooks.prepared(pixels, normalise, device)
            maps, logits = (
                hooks.features_and_logits(fused_network, layer, inputs)
                if closed
                else (None, fused_network(inputs))
            )
            if logits.ndim != 2:
                raise ValueError(
                    f"the network puts out shape {tuple(logits.shape)}; a classifier puts out (B, K) logits"
                )
            kept["logits"].append(logits.float().cpu())
            if (
                given and given[-1].ndim == 2 and linear.out_features == logits.shape[1]
            ):  # the check below calls the layer too
                kept["features"].append(given[-1].float().cpu())
            if closed and classifier is None:
                with suppress(
                    ValueError
                ):  # there is no closed form of this network's maps
                    classifier = closed_form_classifier(fused_network, maps, logits)
            if classifier is not None:
                weighted = closed_form_cam(
                    cam_method, maps, classifier.weight, logits.argmax(1)
                )
                kept["maps"].append(normalise_maps(weighted).float().cpu())
    return Pass(
        **{name: torch.cat(parts) if parts else None for name, parts in kept.items()}
    )


@provides
def maps(
    forward_pass: Pass,
    fused_network: nn.Module,
    images: Any,
    normalise: Any,
    example: Tensor,
    cam_method: str,
    batch_size: int,
) -> Tensor:
    """(N, h, w) normalised class activation maps of the predicted class: in closed form, or else by differentiation."""
    if forward_pass.maps is not None:
        return forward_pass.maps
    layer, method, parts = (
        hooks.last_maps_layer(fused_network, example),
        "grad_cam" if cam_method == "cam" else cam_method,
        [],
    )
    for pixels, logits in zip(
        images.images.split(batch_size),
        forward_pass.logits.split(batch_size),
        strict=True,
    ):
        inputs = hooks.prepared(pixels, normalise, example.device)
        try:
            weighted = layer_maps(
                method,
                fused_network,
                layer,
                inputs,
                logits.argmax(1).to(example.device),
            )
        except (ValueError, RuntimeError) as fault:
            if is_of_machine(fault):
                raise
            raise ValueError(
                f"there is no class activation map: {str(fault).splitlines()[0]}"
            ) from fault
        parts.append(normalise_maps(weighted).float().cpu())
    return torch.cat(parts)


PROVIDERS |= {
    "example": lambda images, normalise, device: (
        sample_of(images, normalise, device, 1).inputs
    ),  # the first image, (1, 3, S, S)
    "logits": lambda forward_pass: forward_pass.logits,  # (N, K) float32
    "labels": lambda images: (
        images.labels.cpu()
    ),  # (N,) int64, the data set's, wrong labels of a run or not
    "training_images": lambda images: len(images),
    "flatness_sample": lambda images, normalise, device, flatness_images: sample_of(
        images, normalise, device, flatness_images
    ),
    "sharpness_sample": lambda images, normalise, device, sharpness_images: sample_of(
        images, normalise, device, sharpness_images
    ),
    "perturbed_sample": lambda images, normalise, device, response_sample: sample_of(
        images, normalise, device, response_sample
    ),
}


@provides
@torch.inference_mode()
def output_bytes(network: nn.Module, example: Tensor) -> list[int]:
    """Bytes that each layer without layers of its own puts out for an example of one image."""
    found: list[int] = []

    def note(module: nn.Module, given: Any, output: Any) -> None:
        if isinstance(output, Tensor) and not list(module.children()):
            found.append(output.nbytes)

    hooks.observe(network, example, note)
    return found


def fitting(image: int, device: Any, processor: int) -> int:
    """Number of images of so many bytes each that a pass takes, at least 1."""
    place = torch.device(device)
    free = torch.cuda.mem_get_info(place)[0] // 2 if place.type == "cuda" else processor
    most = min(_MOST.get(place.type, 64), free // max(1, image))
    return fitting_batch(max(1, most))


# A layer reads and writes a few maps of its size at a time; a pass with gradients keeps what every layer puts out.
PROVIDERS |= {
    "batch_size": lambda output_bytes, device: fitting(
        4 * max(output_bytes, default=0), device, _FORWARD
    ),
    "gradient_batch_size": lambda output_bytes, device, batch_size: min(
        batch_size, fitting(2 * sum(output_bytes), device, _BACKWARD)
    ),
}

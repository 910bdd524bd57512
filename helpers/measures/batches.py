"""How many images go through a network at once: as many as memory takes, and no more than are of use."""

from typing import Any

import torch
from torch import Tensor, nn

from helpers import cams
from helpers.measures.evidence import provides

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

    cams.observe(network, example, note)
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
    """Give the largest number of images of so many bytes each that fits, at least 1."""
    place = torch.device(device)
    free = int(_SHARE * torch.cuda.mem_get_info(place)[0]) if place.type == "cuda" else processor
    return max(1, min(_MOST, free // max(1, image)))

"""The GPUs that torch can use, and its messages if it can use none.

``python -m helpers.networks.devices`` prints them.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def usable_gpus(number: int | None = None) -> dict[str, Any]:
    """List the GPUs that torch can use in this process, with torch's messages.

    Args:
        number: of a GPU that computes one sum as a trial. Only a trial shows some
            faults, such as a card for which this torch was not built. None computes
            nothing, and takes no memory of a GPU.

    Returns:
        ``names``: the model of each usable GPU; ``words``: torch's warnings and error,
        "" without any; ``torch``: its version.
    """
    names = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.init()
            count = torch.cuda.device_count()
            models = [torch.cuda.get_device_name(index) for index in range(count)]
            if number is not None:
                torch.zeros(1, device=f"cuda:{number}").add_(1).item()
            names = models
            messages = []
        except (RuntimeError, AssertionError) as fault:
            # AssertionError: this torch was built without CUDA.
            messages = [str(fault)]
    messages += [str(warning.message) for warning in caught]
    in_one_line = [" ".join(message.split())[:600] for message in messages]
    distinct = dict.fromkeys(in_one_line)
    return {
        "names": names,
        "words": "; ".join(distinct),
        "torch": torch.__version__,
    }


def why_refused(device: str) -> str:
    """Say why torch cannot use the GPU that a device names; "" if it can.

    Args:
        device: name of a device, such as "cuda:1".

    Example:
        >>> why_refused("cpu")
        ''
    """
    requested = torch.device(device)
    if requested.type != "cuda":
        return ""
    gpus = usable_gpus()
    count = len(gpus["names"])
    if not count:
        return (
            f"device {device!r} is asked for and torch {gpus['torch']} can use no GPU "
            f"here: {gpus['words']}; set device to auto or cpu"
        )
    if (requested.index or 0) >= count:
        return (
            f"device {device!r} is asked for and torch {gpus['torch']} sees {count} "
            f"GPU(s) here, counted from cuda:0; set device to cuda"
        )
    return ""


@contextmanager
def fastest_convolutions(device: torch.device) -> Iterator[None]:
    """Let cuDNN time its kernels for each new shape and keep the fastest, on a GPU.

    That pays where many batches have one shape, as in training.

    Args:
        device: where the convolutions run; on the CPU nothing changes.
    """
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


if __name__ == "__main__":
    print(json.dumps(usable_gpus(int(sys.argv[1]) if sys.argv[1:] else None)))

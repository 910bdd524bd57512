"""Which GPUs torch can use, and in its own words why it can use none.

``python -m helpers.networks.devices`` prints it.
"""

import json
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def usable_gpus(number: int | None = None) -> dict[str, Any]:
    """Which GPUs torch can use in this process, and what it says of them.

    Args:
        number: of a GPU that is to compute one sum, which shows what only a kernel
            shows, such as a card for which this torch was not built; None computes
            nothing, and takes no memory of a GPU.

    Returns:
        ``names``: the model of each GPU, none where torch can use none; ``words``:
        torch's warnings and its error, "" where it has nothing to say; ``torch``: its
        version.
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
            words = []
        except (RuntimeError, AssertionError) as fault:  # the latter: built for CPUs
            words = [str(fault)]
    words += [str(warning.message) for warning in caught]
    first_lines = [" ".join(text.split())[:600] for text in words]
    return {
        "names": names,
        "words": "; ".join(dict.fromkeys(first_lines)),
        "torch": torch.__version__,
    }


def why_refused(device: str) -> str:
    """Say why torch cannot use the GPU that a device names; "" where it can.

    Example:
        >>> why_refused("cpu")
        ''
    """
    chosen = torch.device(device)
    if chosen.type != "cuda":
        return ""
    seen = usable_gpus()
    count = len(seen["names"])
    if not count:
        return (
            f"device {device!r} is asked for and torch {seen['torch']} can use no GPU "
            f"here: {seen['words']}; set device to auto or cpu"
        )
    if (chosen.index or 0) >= count:
        return (
            f"device {device!r} is asked for and torch {seen['torch']} sees {count} "
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

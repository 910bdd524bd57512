"""Tell failures of the machine from failures of the network that it computes."""

import re

import torch

_MACHINE_FAULT = re.compile(
    r"cuda|cublas|cudnn|cufft|cusolver|cusparse|nccl|nvrtc|nvml|hip error"
    r"|device-side assert|out of memory|can't allocate memory"
    r"|on the same device|found at least two devices",
    re.IGNORECASE,
)


class Undefined(ValueError):
    """The reason why a value cannot be had of a network or of images.

    It stands beside the NaN in tables. Any other error stops what computes the value.
    """


def is_of_machine(fault: BaseException) -> bool:
    """Tell a failure of the machine, or of how it is used, from one of the network.

    The reason why a network cannot be run is recorded, as it will hold again. A GPU
    that fails, exhausted memory, and tensors on different devices are not about the
    network, so they are raised and not recorded.

    Args:
        fault: the exception.

    Returns:
        True if the same network might be scored at another time or on another machine.

    Example:
        >>> is_of_machine(RuntimeError("CUDA error: uncorrectable ECC error"))
        True
        >>> is_of_machine(RuntimeError("shape '[2, 3]' is invalid for input of 5"))
        False
    """
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    return isinstance(fault, RuntimeError) and bool(_MACHINE_FAULT.search(str(fault)))

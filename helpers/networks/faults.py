"""Which failures are of the machine, and not of the network that is computed on it."""

import re

import torch

_MACHINE = re.compile(
    r"cuda|cublas|cudnn|cufft|cusolver|cusparse|nccl|nvrtc|nvml|hip error"
    r"|device-side assert|out of memory|can't allocate memory"
    r"|on the same device|found at least two devices",
    re.IGNORECASE,
)
# Of those, the ones after which the same process may go on to the next network.
_PASSING = re.compile(
    r"out of memory|allocate memory|same device|two devices|device type tensor"
    r"|should be the same|expected on|alloc_failed|not implemented for",
    re.IGNORECASE,
)


def is_of_machine(fault: BaseException) -> bool:
    """Tell a failure of the machine, or of how it is used, from one of the network.

    A network that cannot be scored has a reason that stays true. A GPU that fails,
    memory that is used up, and tensors on different devices say nothing about the
    network, so they are raised and never recorded.

    Args:
        fault: what was raised.

    Returns:
        True where the same network might well be scored at another time or elsewhere.

    Example:
        >>> is_of_machine(RuntimeError("CUDA error: uncorrectable ECC error"))
        True
        >>> is_of_machine(RuntimeError("shape '[2, 3]' is invalid for input of 5"))
        False
    """
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)):
        return True
    if isinstance(fault, TypeError):  # NumPy is asked for a tensor of a GPU
        return "device type tensor to numpy" in str(fault)
    return isinstance(fault, RuntimeError) and bool(_MACHINE.search(str(fault)))


def breaks_process(fault: BaseException) -> bool:
    """Tell a failure after which CUDA answers each call of this process by an error.

    Example:
        >>> breaks_process(RuntimeError("CUDA error: uncorrectable ECC error"))
        True
        >>> breaks_process(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
        False
    """
    return is_of_machine(fault) and not (
        isinstance(fault, (MemoryError, TypeError, torch.OutOfMemoryError))
        or _PASSING.search(str(fault))
    )

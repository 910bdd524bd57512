"""Batches that become smaller where the memory of a GPU does not suffice."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

_MOST_HALVINGS = 2
_halvings = {"count": 0}  # of this process, for as long as it lives


def fitting_batch(count: int) -> int:
    """Number of images of a pass, halved as often as memory ran out in this process.

    Example:
        >>> fitting_batch(256)
        256
    """
    return max(1, count >> _halvings["count"])


def halving_batches(compute: Callable[[], Result], name: str) -> Result:
    """Compute in batches; where memory runs out, again with half of each.

    A process halves its batches twice at most, and stays with what sufficed. Only for
    what does not depend on the batch beyond rounding, and asks ``fitting_batch``.

    Args:
        compute: is called anew after each halving.
        name: of what is computed, for the warning.

    Returns:
        What ``compute`` returns.

    Raises:
        torch.OutOfMemoryError: where a quarter of the batch does not suffice.
    """
    while True:
        try:
            return compute()
        except torch.OutOfMemoryError:
            if _halvings["count"] == _MOST_HALVINGS:
                raise
        # Out of the handler, so that no traceback holds the tensors of the failed pass.
        _halvings["count"] += 1
        torch.cuda.empty_cache()
        warnings.warn(
            f"{name}: not enough GPU memory; computing again "
            f"with 1/{2 ** _halvings['count']} of the images in a pass",
            stacklevel=2,
        )

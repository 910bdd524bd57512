"""Smaller batches after a GPU has run out of memory."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")

_MOST_HALVINGS = 2
_halvings = {"count": 0}  # in this process so far; it never falls


def fitting_batch(count: int) -> int:
    """Number of images of a pass, halved as often as memory ran out in this process.

    Args:
        count: number of images where memory suffices.

    Example:
        >>> fitting_batch(256)
        256
    """
    return max(1, count // 2 ** _halvings["count"])


def halving_batches(compute: Callable[[], Result], name: str) -> Result:
    """Compute something in batches, again with half of the batch if memory runs out.

    A process halves its batches at most twice, and does not enlarge them again.

    Args:
        compute: takes its batch size from ``fitting_batch``. Its result must not depend
            on the batch size beyond rounding. It is called again after each halving.
        name: of what is computed, for the warning.

    Returns:
        The result of ``compute``.

    Raises:
        torch.OutOfMemoryError: if a quarter of the batch does not fit either.
    """
    while True:
        try:
            return compute()
        except torch.OutOfMemoryError:
            if _halvings["count"] == _MOST_HALVINGS:
                raise
        # Outside of the except block, where the traceback of the failed pass, and with
        # it its tensors, are released.
        _halvings["count"] += 1
        torch.cuda.empty_cache()
        warnings.warn(
            f"{name}: not enough GPU memory; computing again "
            f"with 1/{2 ** _halvings['count']} of the images in a pass",
            stacklevel=2,
        )

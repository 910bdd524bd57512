"""Messages as torch writes them: what is of the machine, and what is of a network."""

import pytest

from helpers.networks.faults import is_of_machine


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (
            RuntimeError("Tensor for argument weight is on cpu but expected on cuda"),
            True,
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("found at least two devices"), True),
        (MemoryError(), True),
        (RuntimeError("shape '[2, 3]' is invalid for input of size 5"), False),
        (RuntimeError("Input type (unsigned char) and bias type (float)"), False),
        (ValueError("the file names cuda as its device"), False),
    ],
)
def test_failures_of_gpus_and_memory_are_of_the_machine(fault, expected):
    assert is_of_machine(fault) == expected

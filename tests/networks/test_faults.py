"""Messages as torch writes them: what is of the machine, and what is of a network."""

import pytest

from helpers.networks.faults import is_of_machine


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: uncorrectable ECC error encountered",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: device-side assert triggered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "cuFFT error: CUFFT_EXEC_FAILED",
        "cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR",
        "Expected all tensors to be on the same device, but found at least two devices",
        "Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) "
        "should be the same",
        "Tensor for argument weight is on cpu but expected on cuda",
        "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes",
    ],
)
def test_failures_of_gpus_and_memory_are_of_the_machine(message):
    assert is_of_machine(RuntimeError(message))


@pytest.mark.parametrize(
    "fault",
    [
        RuntimeError("shape '[2, 3]' is invalid for input of size 5"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x8 and 4x2)"),
        RuntimeError(
            "Input type (unsigned char) and bias type (float) should be the same"
        ),
        ValueError("the file names cuda as its device"),
        TypeError("forward() takes 2 positional arguments but 3 were given"),
    ],
)
def test_what_a_network_cannot_do_is_of_the_network(fault):
    assert not is_of_machine(fault)

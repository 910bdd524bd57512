"""What happens where the memory of a GPU does not suffice."""

import pytest
import torch

from helpers.measures.passes import images_that_fit
from helpers.networks import batches


@pytest.fixture(autouse=True)
def first_pass(monkeypatch):
    monkeypatch.setitem(batches._halvings, "count", 0)


def in_memory(most, sizes):
    """A computation for which there is memory for so many images, 512 at first."""

    def compute():
        sizes.append(batches.fitting_batch(512))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "values"

    return compute


def test_a_batch_is_halved_twice_at_most_and_stays_small():
    sizes = []
    with pytest.warns(UserWarning, match=r"^m1: .* 1/2 of the images in a pass$"):
        assert batches.halving_batches(in_memory(256, sizes), "m1") == "values"
    assert sizes == [512, 256]
    assert (
        images_that_fit(0, "cpu", 2**28) == 32
    )  # instead of 64, in all that is scored
    with (
        pytest.warns(UserWarning, match=r"^m2: .* 1/4 of"),
        pytest.raises(torch.OutOfMemoryError),
    ):
        batches.halving_batches(in_memory(100, sizes), "m2")
    assert sizes == [512, 256, 256, 128]
    batches.halving_batches(in_memory(128, sizes), "m3")
    assert sizes[-1] == 128


def test_other_failures_are_raised_at_once():
    def fails():
        raise RuntimeError("CUDA error: uncorrectable ECC error")

    with pytest.raises(RuntimeError, match="ECC"):
        batches.halving_batches(fails, "m1")
    assert batches.fitting_batch(512) == 512

"""Which GPUs torch can use, and what it says where it can use none."""

import re
import warnings

import pytest
import torch

from helpers.networks import devices


def test_a_gpu_that_fails_at_its_first_kernel_is_not_usable(monkeypatch):
    def old_card():
        warnings.warn("capability sm_37 is not compatible", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "init", old_card)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Kepler")
    assert devices.usable_gpus()["names"] == ["Kepler"]
    assert devices.usable_gpus()["words"] == "capability sm_37 is not compatible"

    def no_kernel(*shape, device):
        raise RuntimeError("CUDA error: no kernel image\nis available")

    monkeypatch.setattr(torch, "zeros", no_kernel)
    seen = devices.usable_gpus(0)
    assert seen["names"] == []
    assert seen["words"].startswith("CUDA error: no kernel image is available; cap")


@pytest.mark.parametrize(
    ("count", "device", "message"),
    [
        (0, "cuda", r"'cuda' .* can use no GPU here: No driver; set device to auto"),
        (1, "cuda:1", r"'cuda:1' .* sees 1 GPU\(s\) here, counted from cuda:0; set"),
        (1, "cuda:0", "^$"),
        (0, "cpu", "^$"),
    ],
)
def test_a_refused_device_is_named_with_the_words_of_torch(
    monkeypatch, count, device, message
):
    words = "" if count else "No driver"
    seen = {"names": ["H100"] * count, "words": words, "torch": "2"}
    monkeypatch.setattr(devices, "usable_gpus", lambda: seen)
    assert re.search(message, devices.why_refused(device))


def test_cudnn_times_its_kernels_on_a_gpu_alone():
    before = torch.backends.cudnn.benchmark
    with devices.fastest_convolutions(torch.device("cpu")):
        assert torch.backends.cudnn.benchmark == before
    with pytest.raises(KeyError), devices.fastest_convolutions(torch.device("cuda")):
        assert torch.backends.cudnn.benchmark
        raise KeyError
    assert torch.backends.cudnn.benchmark == before

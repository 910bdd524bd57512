"""The strided 1x1 convolutions of narrow networks, whose gradient oneDNN computes outside of its memory (its issue 6035)."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers import models, own_checkpoints, resnet

UPSTREAM = """
import torch
torch.set_num_threads(1)
convolution = torch.nn.Conv2d(8, 16, 1, stride=2, bias=False).to(memory_format=torch.channels_last)
for batch in (8, 16, 32):
    images = torch.randn(batch, 8, 56, 56).contiguous(memory_format=torch.channels_last)
    convolution(images).sum().backward()
"""
ONE_STEP = """
import torch
from helpers import captured_step, models
torch.set_num_threads(1)
network = models.build("resnet18", 20, width=0.125, seed=0).to(memory_format=torch.channels_last).train()
pixels = torch.randint(0, 256, (8, 224, 224, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
optimizer = torch.optim.SGD(network.parameters(), lr=0.01)
for _ in range(3):
    captured_step.step(network, optimizer, pixels, torch.arange(8), None)
print(all(bool(weights.isfinite().all()) for weights in network.parameters()))
"""
CPU = torch.backends.cpu.get_cpu_capability()


def in_a_process_of_its_own(program):
    environment = {name: value for name, value in os.environ.items() if name != "ONEDNN_MAX_CPU_ISA"}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.skipif(CPU != "AVX512", reason=f"the fault was seen on CPUs with AVX-512, and torch uses {CPU} here")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")
def test_the_fault_upstream_is_still_there():
    """8 to 16 channels, stride 2, channels last, maps of 56 x 56: the process dies of the gradient of the weights."""
    code = in_a_process_of_its_own(UPSTREAM).returncode
    assert code in (-signal.SIGSEGV, -signal.SIGABRT), (
        f"torch {torch.__version__} ended with {code}: if oneDNN's issue 6035 is closed, resnet.SampledConvolution and this test may go"
    )


def test_the_network_that_died_of_it_trains():
    ended = in_a_process_of_its_own(ONE_STEP)
    assert (ended.returncode, ended.stdout) == (0, "True\n"), ended.stderr


class Convolutions(TorchDispatchMode):
    """Notes every convolution that is carried out, forward and backward: kernel, stride, input channels per group."""

    def __init__(self):
        super().__init__()
        self.forward, self.backward = [], []

    def __torch_dispatch__(self, function, types, given=(), named=None):
        name = function.overloadpacket.__name__
        if name == "convolution":
            self.forward.append((tuple(given[1].shape[2:]), tuple(given[3]), given[1].shape[1]))
        if name == "convolution_backward":
            self.backward.append((tuple(given[2].shape[2:]), tuple(given[4]), given[2].shape[1]))
        return function(*given, **(named or {}))


def carried_out(network, size=32):
    with Convolutions() as seen:
        network.train()(torch.randn(2, 3, size, size).contiguous(memory_format=torch.channels_last)).sum().backward()
    assert len(seen.forward) == len(seen.backward) == sum(isinstance(module, nn.Conv2d) for module in network.modules())
    return [(stride, inputs) for kernel, stride, inputs in seen.forward + seen.backward if kernel == (1, 1) and stride != (1, 1)]


@pytest.mark.parametrize("architecture", models.ARCHITECTURES)
@pytest.mark.parametrize("stem", models.STEMS)
@pytest.mark.parametrize("width", [0.0625, 0.125, 0.1875, 0.25])
def test_no_network_carries_out_a_strided_1x1_convolution_of_few_channels(architecture, stem, width):
    network = models.build(architecture, 5, stem=stem, width=width, seed=0).to(memory_format=torch.channels_last)
    strided = carried_out(network)
    assert all(inputs >= 16 for _, inputs in strided)
    # Three shortcuts have a stride, each seen forward and backward but where it is avoided.
    avoided = sum(isinstance(module, resnet.SampledConvolution) for module in network.modules())
    assert len(strided) == 2 * (3 - avoided)
    assert avoided == {0.0625: 2, 0.125: 1, 0.1875: 1, 0.25: 0}[width] * (architecture in ("resnet18", "resnet34"))


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("options", [{"stride": 2}, {"stride": (3, 1)}, {"stride": 2, "bias": False}, {"stride": 2, "groups": 2}])
def test_it_is_the_convolution_that_it_stands_for(layout, options):
    plain = nn.Conv2d(6, 10, 1, **options).double().to(memory_format=layout)
    sampled = nn.Conv2d(6, 10, 1, **options).double().to(memory_format=layout)
    sampled.load_state_dict(plain.state_dict())
    assert type(resnet.sample_first(sampled)) is resnet.SampledConvolution
    images = torch.randn(3, 6, 9, 8, dtype=torch.float64).contiguous(memory_format=layout)
    pairs = []
    for convolution in (plain, sampled):
        given = images.clone().requires_grad_(True)
        output = convolution(given)
        output.pow(3).sum().backward()
        pairs.append([output, given.grad, *(weights.grad for weights in convolution.parameters())])
    for expected, found in zip(*pairs, strict=True):
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)  # sums of at most 108 products in another order


def test_other_convolutions_are_left_alone():
    kept = [nn.Conv2d(16, 8, 1, 2), nn.Conv2d(32, 8, 1, 2, groups=2)]  # a block of channels and more
    kept += [nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, 2), nn.Conv2d(8, 8, 1, 2, padding=1)]
    assert {type(module) for module in resnet.sample_first(nn.Sequential(*kept))} == {nn.Conv2d}


def users_network(classes=4):
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 12, 1, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, classes))


def test_a_users_network_is_spared_it_too(tmp_path):
    torch.save(users_network().state_dict(), tmp_path / "mine.pth")
    network = own_checkpoints.load(tmp_path / "mine.pth", f"{__name__}:users_network").network
    assert carried_out(network) == []
    assert carried_out(users_network()) == [((2, 2), 6)] * 2

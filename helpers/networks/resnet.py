"""ResNets of torchvision's blocks, with a stem for small images, a width for quick studies, and a last stage of larger maps."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
_BLOCK = (
    16  # input channels that oneDNN takes at once where a CPU has AVX-512; 8 with AVX2
)


class SampledConvolution(nn.Conv2d):
    """A strided 1x1 convolution that takes the pixels it needs first, and then is one of stride 1: the same sums.

    On a CPU, with fewer input channels than a block, channels last, the gradient of the weights in oneDNN writes past its workspace (its
    issue 6035; 3.13 of torch 2.15 too): the process dies, or goes on with spoilt memory. Taking the pixels first, it has nothing to gather.
    """

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, channels, H / stride, W / stride), rounded up."""
        rows, columns = self.stride
        return conv2d(
            images[..., ::rows, ::columns], self.weight, self.bias, groups=self.groups
        )


def sample_first(network: nn.Module) -> nn.Module:
    """Turn the strided 1x1 convolutions of a network that have few input channels into ``SampledConvolution``, in place; give it back."""
    for module in network.modules():
        if (
            type(module) is nn.Conv2d
            and module.kernel_size == (1, 1)
            and module.stride != (1, 1)
        ):
            few = module.in_channels // module.groups < _BLOCK
            if few and module.padding == (0, 0):
                module.__class__ = SampledConvolution
    return network


def build(
    architecture: str,
    classes: int,
    *,
    stem: str = "imagenet",
    width: float = 1.0,
    last_stride: int = 2,
    seed: int,
) -> nn.Module:
    """Make an untrained network; the same arguments give the same weights. With the defaults it is torchvision's model, weights and all.

    The stem is "imagenet" (7x7 stride 2, max-pool), "small" (3x3 stride 1, no max-pool: He et al.'s for CIFAR), or "strided" (3x3 stride
    2, no max-pool: a quarter of the work of "small"). ``width`` multiplies the channels of every layer. ``last_stride`` is that of the last
    stage, 2 as published, or 1, which doubles the side of its map.
    """
    from helpers.networks.stages import (
        ResNet,
    )  # here: torchvision's import takes two seconds

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return sample_first(ResNet(architecture, classes, stem, width, last_stride))


def normalise_images(images: Tensor) -> Tensor:
    """Turn (B, 3, H, W) pixels in [0, 255] into what torchvision's weights expect: (x / 255 - mean) / std with ImageNet's statistics."""
    mean, std = _statistics(images.device)
    return (images.float() - mean) / std


@lru_cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """ImageNet's mean and standard deviation of pixels, RGB; copied to a device once, as each copy makes the host wait for a GPU."""
    with torch.inference_mode(False):
        channels = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
        mean, std = (
            torch.tensor(values).mul(255).view(1, 3, 1, 1).to(device)
            for values in channels
        )
        return mean, std

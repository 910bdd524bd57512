"""ResNets of torchvision's blocks, of any stem, width and stride of the last stage."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
# Input channels that oneDNN takes at once where a CPU has AVX-512; 8 with AVX2.
_BLOCK = 16
# ImageNet's statistics of pixels in [0, 1], RGB.
_MEAN = (0.485, 0.456, 0.406)
_STANDARD_DEVIATION = (0.229, 0.224, 0.225)


class SampledConvolution(nn.Conv2d):
    """A strided 1x1 convolution that takes the pixels it needs first: the same sums.

    On a CPU, with fewer input channels than a block, channels last, the gradient of the
    weights in oneDNN writes past its workspace (its issue 6035; 3.13 of torch 2.15
    too): the process dies, or goes on with spoilt memory. Taking the pixels first, it
    has nothing to gather.
    """

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, channels, H / stride, W / stride), rounded up."""
        rows, columns = self.stride
        sampled = images[..., ::rows, ::columns]
        return conv2d(sampled, self.weight, self.bias, groups=self.groups)


def sample_first(network: nn.Module) -> nn.Module:
    """Make strided 1x1 convolutions of few channels ``SampledConvolution``, in place.

    Args:
        network: any.

    Returns:
        The network.
    """
    for module in network.modules():
        if type(module) is nn.Conv2d and _is_affected(module):
            module.__class__ = SampledConvolution
    return network


def _is_affected(convolution: nn.Conv2d) -> bool:
    """Whether a convolution is strided, 1x1, without padding, and of few channels."""
    return (
        convolution.kernel_size == (1, 1)
        and convolution.stride != (1, 1)
        and convolution.padding == (0, 0)
        and convolution.in_channels // convolution.groups < _BLOCK
    )


def build(
    architecture: str,
    classes: int,
    *,
    stem: str = "imagenet",
    width: float = 1.0,
    last_stride: int = 2,
    seed: int,
) -> nn.Module:
    """Make an untrained network; the same arguments give the same weights.

    With the defaults it is torchvision's model, weights and all.

    Args:
        architecture: one of ``ARCHITECTURES``.
        classes: number of classes.
        stem: "imagenet" (7x7 stride 2, max-pool), "small" (3x3 stride 1, no max-pool:
            He et al.'s for CIFAR), or "strided" (3x3 stride 2, no max-pool: a quarter
            of the work of "small").
        width: factor on the channels of every layer.
        last_stride: of the last stage, 2 as published, or 1, which doubles the side of
            its map.
        seed: of the weights.
    """
    # Late: torchvision's import takes two seconds.
    from helpers.networks.stages import ResNet

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return sample_first(ResNet(architecture, classes, stem, width, last_stride))


def normalise_images(images: Tensor) -> Tensor:
    """Turn pixels into input of torchvision's weights: ``(x / 255 - mean) / std``.

    Args:
        images: (B, 3, H, W) in [0, 255].

    Returns:
        (B, 3, H, W) float32, by ImageNet's statistics.
    """
    mean, standard_deviation = _statistics(images.device)
    return (images.float() - mean) / standard_deviation


@lru_cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixels in [0, 255], (1, 3, 1, 1) each.

    They are copied to a device once, as each copy makes the host wait for a GPU.
    """

    def on_device(values: tuple[float, ...]) -> Tensor:
        return torch.tensor(values).mul(255).view(1, 3, 1, 1).to(device)

    with torch.inference_mode(False):
        return on_device(_MEAN), on_device(_STANDARD_DEVIATION)

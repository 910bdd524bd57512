"""The networks: ResNets, with a stem for small images and a width for quick studies, and their weights, torchvision's among them."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

# Expansion of the channels within a block, and blocks per stage, He et al. 2016, Table 1.
STAGES = {
    "resnet18": (1, (2, 2, 2, 2)),
    "resnet34": (1, (3, 4, 6, 3)),
    "resnet50": (4, (3, 4, 6, 3)),
    "resnet101": (4, (3, 4, 23, 3)),
}

# Kernel, stride and padding of the first convolution.
STEM_LAYERS = {"imagenet": (7, 2, 3), "small": (3, 1, 1), "strided": (3, 2, 1)}
_BLOCK = 16  # input channels that oneDNN takes at once where a CPU has AVX-512; 8 with AVX2


class SampledConvolution(nn.Conv2d):
    """A strided 1x1 convolution that takes the pixels it needs first, and then is one of stride 1: the same sums.

    On a CPU, with fewer input channels than a block, channels last, the gradient of the weights in oneDNN writes past its workspace (its
    issue 6035; 3.13 of torch 2.15 too): the process dies, or goes on with spoilt memory. Taking the pixels first, it has nothing to gather.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Take (B, inputs, H, W) and give (B, channels, H / stride, W / stride), rounded up."""
        rows, columns = self.stride
        return conv2d(images[..., ::rows, ::columns], self.weight, self.bias, groups=self.groups)


def sample_first(network: nn.Module) -> nn.Module:
    """Turn the strided 1x1 convolutions of a network that have few input channels into ``SampledConvolution``, in place; give it back."""
    for module in network.modules():
        if type(module) is nn.Conv2d and _gathers_few_channels(module):
            module.__class__ = SampledConvolution
    return network


def _gathers_few_channels(convolution: nn.Conv2d) -> bool:
    strided = convolution.kernel_size == (1, 1) and convolution.stride != (1, 1) and convolution.padding == (0, 0)
    return strided and convolution.in_channels // convolution.groups < _BLOCK


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int, downsample: nn.Module | None) -> None:
        """Make it for a number of input channels; the shortcut goes through ``downsample`` where the shapes differ."""
        super().__init__()
        self.conv1 = _convolution(inputs, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = _convolution(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = downsample

    def forward(self, images: Tensor) -> Tensor:
        """Take (B, inputs, H, W) and give (B, channels, H / stride, W / stride)."""
        shortcut = images if self.downsample is None else self.downsample(images)
        found = self.relu(self.bn1(self.conv1(images)))
        found = self.bn2(self.conv2(found))
        found += shortcut
        return self.relu(found)


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1, beside a shortcut; the stride is that of the 3x3, as in torchvision's networks."""

    def __init__(self, inputs: int, channels: int, stride: int, downsample: nn.Module | None) -> None:
        """Make it for a number of input channels; it puts out four times ``channels``."""
        super().__init__()
        self.conv1 = _convolution(inputs, channels, 1)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = _convolution(channels, channels, 3, stride)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = _convolution(channels, channels * 4, 1)
        self.bn3 = nn.BatchNorm2d(channels * 4)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, images: Tensor) -> Tensor:
        """Take (B, inputs, H, W) and give (B, 4 channels, H / stride, W / stride)."""
        shortcut = images if self.downsample is None else self.downsample(images)
        found = self.relu(self.bn1(self.conv1(images)))
        found = self.relu(self.bn2(self.conv2(found)))
        found = self.bn3(self.conv3(found))
        found += shortcut
        return self.relu(found)


class ResNet(nn.Module):
    """A residual network: stem, four stages, the mean over the map of the last one, and one linear layer."""

    def __init__(self, architecture: str, classes: int, stem: str = "imagenet", width: float = 1.0, last_stride: int = 2) -> None:
        """Lay out the stages of ``architecture`` with ``round(64 * width)`` channels after the stem; weights are drawn."""
        super().__init__()
        expansion, blocks = STAGES[architecture]
        channels = round(64 * width)
        self.conv1 = nn.Conv2d(3, channels, *STEM_LAYERS[stem], bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        self.layer1 = _stage(channels, channels, expansion, blocks[0], 1)
        self.layer2 = _stage(channels * expansion, channels * 2, expansion, blocks[1], 2)
        self.layer3 = _stage(channels * 2 * expansion, channels * 4, expansion, blocks[2], 2)
        self.layer4 = _stage(channels * 4 * expansion, channels * 8, expansion, blocks[3], last_stride)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels * 8 * expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        sample_first(self)

    def forward(self, images: Tensor) -> Tensor:
        """Take (B, 3, H, W) and give (B, classes) logits."""
        maps = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        maps = self.layer4(self.layer3(self.layer2(self.layer1(maps))))
        return self.fc(self.avgpool(maps).flatten(1))


def _stage(inputs: int, channels: int, expansion: int, blocks: int, stride: int) -> nn.Sequential:
    """Make the blocks of a stage; the first has the stride, and a projection as its shortcut where the shapes differ."""
    made, block, outputs = [], BasicBlock if expansion == 1 else Bottleneck, channels * expansion
    for number in range(blocks):
        step, projection = stride if number == 0 else 1, None
        if step != 1 or inputs != outputs:
            projection = nn.Sequential(_convolution(inputs, outputs, 1, step), nn.BatchNorm2d(outputs))
        made.append(block(inputs, channels, step, projection))
        inputs = outputs
    return nn.Sequential(*made)


ARCHITECTURES, STEMS = tuple(STAGES), tuple(STEM_LAYERS)
CAM_LAYER = "layer4"
_LEAST_WIDTH = 0.0625

# The statistics that torchvision's weights expect, in units of a pixel in [0, 255], RGB.
_MEAN = torch.tensor([0.485, 0.456, 0.406]).mul(255).view(1, 3, 1, 1)
_STD = torch.tensor([0.229, 0.224, 0.225]).mul(255).view(1, 3, 1, 1)


def build(architecture: str, classes: int, *, stem: str = "imagenet", width: float = 1.0, last_stride: int = 2, seed: int) -> ResNet:
    """Make an untrained network; the same arguments give the same weights.

    With width 1 and the ImageNet stem it is torchvision's model: same keys, same weights, same outputs.

    Args:
        architecture: one of ``ARCHITECTURES``.
        classes: number of outputs.
        stem: "imagenet" (7x7 stride 2, max-pool), "small" (3x3 stride 1, no max-pool: He et al.'s CIFAR stem),
            or "strided" (3x3 stride 2, no max-pool: a quarter of "small"'s work).
        width: factor on the number of channels of every layer, at least 0.0625.
        last_stride: of the last stage, 2 as published, or 1, which doubles the side of its map: at 64 px with the "strided" stem
            8x8 cells instead of 4x4, so that a map can tell where in the image it looks.
        seed: of the initial weights.

    Raises:
        ValueError: an unknown architecture or stem, a width below 0.0625, or a last stride other than 1 and 2.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"architecture {architecture!r} is unknown; choose one of {', '.join(ARCHITECTURES)}")
    if stem not in STEMS:
        raise ValueError(f"stem {stem!r} is unknown; choose one of {', '.join(STEMS)}")
    if last_stride not in (1, 2):
        raise ValueError(f"last_stride {last_stride!r} must be 2, as published, or 1, for a map of twice the side")
    # A choice, not a need of the convolutions: one channel can be trained too, and hardly anything of an image passes through it.
    if not width >= _LEAST_WIDTH:
        raise ValueError(f"width {width} must be at least {_LEAST_WIDTH}, which is 4 channels after the stem (1 is the published width)")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return ResNet(architecture, classes, stem, width, last_stride)


def normalise_images(images: Tensor) -> Tensor:
    """Turn uint8 pixels into what the networks expect: (x / 255 - mean) / std with ImageNet's statistics.

    Args:
        images: (B, 3, H, W) RGB in [0, 255], uint8 or already float (after augmentation).
    """
    mean, std = _statistics(images.device)
    return (images.float() - mean) / std


@lru_cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation on a device: copied once, because a copy at every step would make the host wait for a GPU."""
    with torch.inference_mode(False):
        return _MEAN.to(device), _STD.to(device)

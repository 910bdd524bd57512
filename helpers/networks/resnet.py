"""ResNets of torchvision's blocks with any stem, width and stride of the last stage."""

from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

ARCHITECTURES = ("resnet18", "resnet34", "resnet50", "resnet101")
# Kernel, stride and padding of the first convolution.
STEMS = {
    "imagenet": (7, 2, 3),
    "small": (3, 1, 1),
    "strided": (3, 2, 1),
}
# Input channels in a block of oneDNN on a CPU with AVX-512; 8 with AVX2.
_ONEDNN_BLOCK = 16
# Mean and standard deviation of ImageNet's pixels in [0, 1], RGB.
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class SampledConvolution(nn.Conv2d):
    """A strided 1x1 convolution that first selects every s-th pixel; the same sums.

    This avoids a fault of oneDNN on CPUs (its issue 6035; also in 3.13, of torch 2.15).
    For a strided 1x1 convolution in channels-last layout, with fewer input channels
    than a block, the gradient of the weights gathers pixels into a workspace that is
    too small: the process dies, or goes on with corrupt memory. Without a stride
    nothing is gathered.
    """

    def forward(self, images: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, channels, H / stride, W / stride), rounded up."""
        rows, columns = self.stride
        sampled = images[..., ::rows, ::columns]
        return conv2d(sampled, self.weight, self.bias, groups=self.groups)


def sample_first(network: nn.Module) -> nn.Module:
    """Turn affected convolutions of a network into ``SampledConvolution``, in place.

    Those that are strided, 1x1, without padding, and of few channels.

    Args:
        network: any.

    Returns:
        The same network.
    """
    for module in network.modules():
        if type(module) is not nn.Conv2d or module.kernel_size != (1, 1):
            continue
        has_few = module.in_channels // module.groups < _ONEDNN_BLOCK
        if has_few and module.stride != (1, 1) and module.padding == (0, 0):
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
    """Make an untrained network; the same arguments give the same weights.

    With the defaults it is torchvision's model, weights and all.

    Args:
        architecture: one of ``ARCHITECTURES``.
        classes: number of classes.
        stem: "imagenet" (7x7 stride 2, max-pool), "small" (3x3 stride 1, no max-pool:
            He et al.'s for CIFAR), or "strided" (3x3 stride 2, no max-pool: a quarter
            of the work of "small").
        width: factor on the channels of every layer.
        last_stride: stride of the last stage: 2 as published, or 1, which doubles the
            side of its map.
        seed: of the random weights.
    """
    # Imported here, since torchvision's import takes two seconds.
    from torchvision.models import get_model

    with torch.device("meta"):  # without numbers: layers with weights are made below
        network = get_model(architecture)
    channels = round(64 * width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network.inplanes = channels  # which torchvision's ``_make_layer`` counts up
        network.conv1 = nn.Conv2d(3, channels, *STEMS[stem], bias=False)
        network.bn1 = nn.BatchNorm2d(channels)
        if stem != "imagenet":
            network.maxpool = nn.Identity()
        for number, stride in enumerate((1, 2, 2, last_stride)):
            name = f"layer{number + 1}"
            stage = getattr(network, name)
            form = type(stage[0]), channels * 2**number, len(stage), stride
            setattr(network, name, network._make_layer(*form))
        network.fc = nn.Linear(network.inplanes, classes)
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )
    return sample_first(network)


def normalise_images(images: Tensor) -> Tensor:
    """Normalise pixels as torchvision's weights expect: ``(x / 255 - mean) / std``.

    Args:
        images: (B, 3, H, W) in [0, 255].

    Returns:
        (B, 3, H, W) float32, with ImageNet's mean and standard deviation.
    """
    mean, standard_deviation = _statistics(images.device)
    return (images.float() - mean) / standard_deviation


@lru_cache
def _statistics(device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of pixels in [0, 255], (1, 3, 1, 1) each.

    Cached, since each copy to a GPU makes the host wait for it.
    """
    with torch.inference_mode(False):
        statistics = torch.tensor([IMAGENET_MEAN, IMAGENET_STD]).mul(255)
        mean, standard_deviation = statistics.view(2, 1, 3, 1, 1).to(device)
        return mean, standard_deviation

"""A ResNet of torchvision's blocks with any stem, width and stride of the last stage.

A module of its own, since torchvision's import takes two seconds.
"""

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

# Kind of block, and number of blocks in each stage: He et al. 2016, Table 1.
_STAGES = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}
# Kernel, stride and padding of the first convolution.
_STEMS = {"imagenet": (7, 2, 3), "small": (3, 1, 1), "strided": (3, 2, 1)}


class ResNet(torchvision.models.ResNet):
    """torchvision's ResNet with any stem, and ``round(64 * width)`` channels behind."""

    def __init__(
        self,
        architecture: str,
        classes: int,
        stem: str = "imagenet",
        width: float = 1.0,
        last_stride: int = 2,
    ) -> None:
        """Make the layers and draw their weights, in torchvision's order.

        torchvision's constructor is not called, since it fixes stem and channels.

        Args:
            architecture: "resnet18", "resnet34", "resnet50" or "resnet101".
            classes: number of classes.
            stem: "imagenet", "small" or "strided", see ``resnet.build``.
            width: factor on the channels of every layer.
            last_stride: stride of the last stage.
        """
        nn.Module.__init__(self)
        block, blocks = _STAGES[architecture]
        channels = round(64 * width)
        # Attributes that torchvision's ``_make_layer`` reads.
        self._norm_layer = nn.BatchNorm2d
        self.groups = 1
        self.base_width = 64
        self.dilation = 1
        self.inplanes = channels
        self.conv1 = nn.Conv2d(3, channels, *_STEMS[stem], bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        self.layer1 = self._make_layer(block, channels, blocks[0], 1)
        self.layer2 = self._make_layer(block, 2 * channels, blocks[1], 2)
        self.layer3 = self._make_layer(block, 4 * channels, blocks[2], 2)
        self.layer4 = self._make_layer(block, 8 * channels, blocks[3], last_stride)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.inplanes, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )

"""The layers of a ResNet, of torchvision's blocks."""

import torchvision
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck

# Block, and how many of it a stage has: He et al. 2016, Table 1.
_STAGES = {
    "resnet18": (BasicBlock, (2, 2, 2, 2)),
    "resnet34": (BasicBlock, (3, 4, 6, 3)),
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet101": (Bottleneck, (3, 4, 23, 3)),
}
# Kernel, stride and padding of the first convolution.
_STEMS = {"imagenet": (7, 2, 3), "small": (3, 1, 1), "strided": (3, 2, 1)}


class ResNet(torchvision.models.ResNet):
    """torchvision's ResNet with ``round(64 * width)`` channels after a stem of choice."""

    def __init__(
        self,
        architecture: str,
        classes: int,
        stem: str = "imagenet",
        width: float = 1.0,
        last_stride: int = 2,
    ) -> None:
        """Lay out the stages and draw the weights, in torchvision's order; its own constructor fixes channels and stem."""
        nn.Module.__init__(self)
        block, blocks = _STAGES[architecture]
        self._norm_layer, self.groups, self.base_width, self.dilation = (
            nn.BatchNorm2d,
            1,
            64,
            1,
        )
        self.inplanes = channels = round(64 * width)
        self.conv1 = nn.Conv2d(3, channels, *_STEMS[stem], bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if stem == "imagenet" else nn.Identity()
        for stage, (count, stride) in enumerate(
            zip(blocks, (1, 2, 2, last_stride), strict=True)
        ):
            setattr(
                self,
                f"layer{stage + 1}",
                self._make_layer(block, channels * 2**stage, count, stride),
            )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(self.inplanes, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(
                    module.weight, mode="fan_out", nonlinearity="relu"
                )

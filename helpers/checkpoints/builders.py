"""Build untrained networks by the name of their architecture, and describe them."""

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import torch
import torchvision
from torch import nn

# Architectures that are recognised by the names and shapes of a state dict, which
# differ between all of them.
RESNETS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "wide_resnet50_2",
    "wide_resnet101_2",
    "resnext50_32x4d",
)
_BLOCK = re.compile(r"((?:.+\.)?layer\d+\.\d+)\.")
Builder = Callable[[int], nn.Module]  # number of classes -> untrained network
Shapes = Mapping[str, tuple[int, ...]]  # of tensors, by their names


@lru_cache
def builder_of(architecture: str) -> Builder:
    """Find the function that builds an untrained network of an architecture.

    "module:function" runs the code of that module. It may be given on the command line
    or in a cell; ``parameters.LIMITS`` refuses it in study files.

    Args:
        architecture: torchvision's name, "timm:NAME" or "module:function".

    Returns:
        A function of the number of classes.

    Raises:
        ValueError: for an unknown name, or a module that cannot be imported.
    """
    kind, colon, name = architecture.partition(":")
    if colon:
        return _of_timm(name) if kind == "timm" else _of_user(kind, name)
    if architecture not in torchvision.models.list_models(module=torchvision.models):
        raise ValueError(
            f"architecture {architecture!r} is unknown; name one of torchvision's "
            f"classifiers (such as {', '.join(RESNETS[:3])}), timm:NAME, or "
            "module:function"
        )
    return partial(_of_torchvision, architecture)


def _of_torchvision(architecture: str, classes: int, **options: bool) -> nn.Module:
    return torchvision.models.get_model(
        architecture, weights=None, num_classes=classes, **options
    )


def _of_timm(name: str) -> Builder:
    try:
        import timm
    except ImportError as fault:
        raise ValueError(
            f"architecture 'timm:{name}' needs timm, which is not installed: "
            "pip install timm"
        ) from fault
    if not timm.is_model(name):
        similar = ", ".join(timm.list_models(f"{name[:6]}*")[:5])
        raise ValueError(
            f"timm {timm.__version__} has no architecture {name!r}; it has {similar}"
        )
    return lambda classes: timm.create_model(
        name, pretrained=False, num_classes=classes
    )


def _of_user(module: str, name: str) -> Builder:
    """A builder that calls a user's function, with the number of classes if it asks."""
    try:
        function = getattr(importlib.import_module(module), name)
        arguments = inspect.signature(function).parameters.values()
    except Exception as fault:  # the module is run, and may fail in any way
        raise ValueError(
            f"architecture '{module}:{name}' cannot be imported "
            f"({type(fault).__name__}: {fault}); put the module where python finds it"
        ) from fault
    # A positional argument without a default is the number of classes.
    takes_classes = any(
        argument.default is argument.empty
        and argument.kind in (argument.POSITIONAL_ONLY, argument.POSITIONAL_OR_KEYWORD)
        for argument in arguments
    )

    def build(classes: int) -> nn.Module:
        # Not on the meta device of ``shapes_of``: the function may read values.
        with torch.device("cpu"):
            network = function(classes) if takes_classes else function()
        if not isinstance(network, nn.Module):
            raise ValueError(
                f"architecture '{module}:{name}' gives {type(network).__name__}, "
                "and must give a torch.nn.Module"
            )
        return network

    return build


@lru_cache(maxsize=256)
def shapes_of(builder: Builder, classes: int) -> Shapes:
    """List the names and shapes of a network's tensors, without computing weights.

    Args:
        builder: of the architecture.
        classes: number of classes.
    """
    with torch.device("meta"):
        state = builder(classes).state_dict()
    return {name: tuple(value.shape) for name, value in state.items()}


@lru_cache(maxsize=256)
def heads(builder: Builder) -> tuple[tuple[str, int], ...]:
    """Find the axes of tensors whose size is the number of classes: the head.

    They differ between networks of 2 and of 3 classes. Of a builder that ignores the
    number of classes the last linear layer is taken.

    Args:
        builder: of the architecture.

    Returns:
        Pairs of a tensor's name and an axis; empty for a builder that ignores the
        number of classes and has no linear layer.
    """
    shapes_of_3 = shapes_of(builder, 3)
    differing = []
    for key, shape in shapes_of(builder, 2).items():
        for axis, size in enumerate(shape):
            if size != shapes_of_3[key][axis]:
                differing.append((key, axis))
    if differing:
        return tuple(differing)
    linear = [
        name
        for name, module in builder(2).named_modules()
        if isinstance(module, nn.Linear)
    ]
    return tuple(
        (f"{name}.{part}", 0) for name in linear[-1:] for part in ("weight", "bias")
    )


def inputs_of_head(builder: Builder) -> tuple[str, tuple[int, ...]]:
    """Name the weights of a head, and give their shape without the axis of outputs.

    Args:
        builder: of an architecture with ``heads``.
    """
    key, axis = heads(builder)[0]
    shape = shapes_of(builder, 2)[key]
    return key, shape[:axis] + shape[axis + 1 :]


def describe(network: nn.Module) -> tuple[str, bool]:
    """Describe a network in words, and tell whether it is a ResNet.

    It is a ResNet if its blocks ("layer1.0") have two or three convolutions each, apart
    from those of shortcuts.

    Args:
        network: on any device.

    Returns:
        The description, and whether the network is a ResNet.
    """
    convolutions = {
        name: module
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d)
    }
    blocks: dict[str, list[nn.Conv2d]] = {}
    for name, module in convolutions.items():
        block = _BLOCK.match(name)
        if block and not re.search("downsample|shortcut", name):
            blocks.setdefault(block[1], []).append(module)
    if not blocks or not all(len(inside) in (2, 3) for inside in blocks.values()):
        weights = sum(parameter.numel() for parameter in network.parameters())
        return f"{type(network).__name__} of {weights / 1e6:.3g} million weights", False
    first = next(iter(convolutions.values()))
    last_stage = list(blocks)[-1].rpartition(".")[0]
    in_last_stage: list[nn.Conv2d] = []
    for name, inside in blocks.items():
        if name.startswith(f"{last_stage}."):
            in_last_stage += inside
    stride = max(convolution.stride[0] for convolution in in_last_stage)
    kernel_size = "x".join(map(str, first.kernel_size))
    stem = f"a {kernel_size} stem of stride {first.stride[0]}"
    if any(isinstance(module, nn.MaxPool2d) for module in network.modules()):
        stem += ", max-pool"
    # As in the paper's names, the stem and the linear layer count too.
    depth = sum(map(len, blocks.values())) + 2
    words = (
        f"ResNet{depth}, {first.out_channels} channels after {stem}, "
        f"last stage of stride {stride}"
    )
    return words, True

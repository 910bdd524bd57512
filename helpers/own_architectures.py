"""The architecture of a user's checkpoint: a network made by name, its number of outputs, and a guess from the tensors alone."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

import torch
import torchvision
from torch import Tensor, nn

# What a guess tries: the names and shapes of a state dict tell these apart.
RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "wide_resnet50_2", "wide_resnet101_2", "resnext50_32x4d")
State = Mapping[str, Tensor]
Builder = Callable[[int], nn.Module]  # number of classes -> untrained network


@lru_cache
def builder_of(architecture: str) -> Builder:
    """Find what makes an untrained network of a number of classes.

    Args:
        architecture: torchvision's name of a classifier ("resnet18"), "timm:NAME", or "module:function" of the user, whose function takes
            the number of classes, or nothing. A user's module is imported from where Python looks for modules: it is run, as it is named.

    Raises:
        ValueError: it is none of these, or timm is not installed.
    """
    kind, colon, name = architecture.partition(":")
    if not colon:
        if architecture not in classifiers():
            raise ValueError(
                f"architecture {architecture!r} is unknown; name one of torchvision's classifiers (such as {', '.join(RESNETS[:3])}), "
                "timm:NAME, or module:function"
            )
        return partial(_torchvision, architecture)
    return _timm(name) if kind == "timm" else _users(kind, name)


@lru_cache
def classifiers() -> tuple[str, ...]:
    """List the names of torchvision's image classifiers."""
    return tuple(torchvision.models.list_models(module=torchvision.models))


def _torchvision(name: str, classes: int) -> nn.Module:
    extra = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **extra)


def _timm(name: str) -> Builder:
    try:
        import timm
    except ImportError as fault:
        raise ValueError(f"architecture 'timm:{name}' needs timm, which is not installed: pip install timm") from fault
    if not timm.is_model(name):
        raise ValueError(f"timm {timm.__version__} has no architecture {name!r}; it has {', '.join(timm.list_models(f'{name[:6]}*')[:5])}")
    return partial(_timm_model, name)


def _timm_model(name: str, classes: int) -> nn.Module:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=classes)


def _users(module: str, name: str) -> Builder:
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as fault:
        raise ValueError(f"architecture '{module}:{name}' cannot be imported ({fault}); put the module where python finds it") from fault
    takes = any(item.default is inspect.Parameter.empty for item in inspect.signature(function).parameters.values())
    return function if takes else partial(_no_argument, function)


def _no_argument(function: Callable[[], nn.Module], classes: int) -> nn.Module:
    return function()


@lru_cache(maxsize=256)
def _shapes(builder: Builder, classes: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a network's tensors, without drawing weights where that can be helped."""
    if isinstance(builder, partial) and builder.func in (_torchvision, _timm_model):
        with torch.device("meta"):
            return {name: tuple(value.shape) for name, value in builder(classes).state_dict().items()}
    return {name: tuple(value.shape) for name, value in builder(classes).state_dict().items()}


def class_count(builder: Builder, state: State, name: str) -> int:
    """Read from the head how many outputs a checkpoint has: where the shapes of a network of 2 and of 3 classes differ.

    Raises:
        ValueError: the checkpoint has no such tensor.
    """
    two, three = _shapes(builder, 2), _shapes(builder, 3)
    differ = [(key, axis) for key, shape in two.items() for axis in range(len(shape)) if shape[axis] != three[key][axis]]
    if not differ:  # the user's function has one number of classes
        with torch.no_grad():
            heads = [module for module in builder(2).modules() if isinstance(module, nn.Linear)]
        return heads[-1].out_features if heads else 0
    key, axis = next(((key, axis) for key, axis in differ if key in state and state[key].ndim > axis), (None, 0))
    if key is None:
        raise ValueError(
            f"the checkpoint has no head of {name}: {differ[0][0]} is not in it; name the architecture that it was trained with"
        )
    return int(state[key].shape[axis])


def guess(state: State, file: str) -> str:
    """Tell which of torchvision's ResNets a state dict belongs to, by names and shapes of all but the head.

    Raises:
        ValueError: none of them.
    """
    found = _bodies({name: tuple(value.shape) for name, value in state.items()})
    for name in RESNETS:
        if _bodies(_shapes(builder_of(name), 2)) == found:
            return name
    raise ValueError(f"{file} is none of {', '.join(RESNETS)}; name its architecture: torchvision's name, timm:NAME or module:function")


def _bodies(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if not name.startswith("fc.") and not name.endswith("num_batches_tracked")}

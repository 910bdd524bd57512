"""The recorded training step of a shape: the one at hand or a new one, and none where it does not give what the plain step gives."""

import warnings
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from helpers import models
from helpers.augmentation import Draws, draw
from helpers.captured_step import CapturedStep, Shape, step

_RATE = 1e-3  # learning rate and weight decay where a recording is compared with the plain step
_LAST_DIGITS = 1e-7  # shares of weights by which a run starts off another, to see what rounding does
_TIMES_ROUNDING = 2.0  # as far apart as rounding alone takes two runs, replayed and plain ones may end
_SHARE = 0.1  # of the first loss, and of the way that the weights went, which is near enough in any case


@lru_cache(maxsize=1)
def for_shape(shape: Shape) -> CapturedStep | None:
    """Record the step of a shape, or give the recording at hand; None, with a warning, where it cannot be recorded or is not the same.

    Only the last shape is kept, because a recording holds the memory of its activations.
    """
    for_shape.cache_clear()  # before the next is made: two may not fit
    try:
        captured = CapturedStep(shape)
        if agrees(captured):
            return captured
        fault = "its steps differ from the plain ones"
    except RuntimeError as error:
        fault = str(error).splitlines()[0]
    warnings.warn(f"the training step of {shape} is not replayed but run: {fault}", stacklevel=2)
    return None


def agrees(captured: CapturedStep, steps: int = 3) -> bool:
    """Compare a captured step with the plain one: same start, same batch, same first loss and, after a few steps, same weights.

    How far rounding alone takes two runs apart is measured, by a plain run that starts a few last digits away: in bfloat16 that may be
    as far as both went. The weights may end up twice as far apart, after ways of the same length within a fifth. Later losses are not
    compared, because rounding decides them. The captured state is overwritten.
    """
    images, labels, draws = _batch(captured.shape, captured.learning_rate.device)

    def way(network: nn.Module, advance: Callable[..., Tensor]) -> tuple[Tensor, Tensor]:
        begun = _flat(network)
        losses = [advance(images, labels, draws)[0].clone() for _ in range(steps)]
        return losses[0], _flat(network) - begun

    plain, shaken = _plain_run(captured.shape), _plain_run(captured.shape, _LAST_DIGITS)
    captured.load(*plain, _RATE, _RATE)
    found, replayed = way(captured.model, captured)
    expected, went = way(plain[0], partial(step, *plain))
    _, strayed = way(shaken[0], partial(step, *shaken))
    apart = max(_SHARE * went.norm(), _TIMES_ROUNDING * (strayed - went).norm())
    same_length = 0.8 <= float(replayed.norm() / went.norm()) <= 1.25
    return torch.allclose(found, expected, rtol=_SHARE) and bool((replayed - went).norm() <= apart) and same_length


def _batch(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor, Draws | None]:
    """Make random images, labels and draws of a shape."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (shape.batch_size, 3, shape.image_size, shape.image_size), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, shape.classes, (shape.batch_size,), generator=generator)
    draws = draw(shape.batch_size, generator).to(device) if shape.augmentation else None
    return pixels.to(device, memory_format=torch.channels_last), labels.to(device), draws


def _plain_run(shape: Shape, shaken: float = 0.0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Make a network and its optimizer as a run has them, each weight off by about a share of itself."""
    model, generator = models.build(shape.architecture, shape.classes, stem=shape.stem, width=shape.width, seed=0), torch.Generator()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1 + shaken * torch.randn(parameter.shape, generator=generator))
    model = model.to(shape.device, memory_format=torch.channels_last).train()
    kind, options = (torch.optim.Adam, {}) if shape.optimizer == "adam" else (torch.optim.SGD, {"momentum": shape.momentum})
    return model, kind(model.parameters(), lr=_RATE, weight_decay=_RATE, **options)


def _flat(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])

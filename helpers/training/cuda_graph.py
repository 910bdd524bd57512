"""One training step, and two ways to take it with less to launch: recorded once per shape as a CUDA graph and replayed, or compiled."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.networks import resnet
from helpers.training.augmentation import Draws, augment, draw
from helpers.training.config import RunConfig

_WARM_UP = 3  # steps before recording: lazily made state and chosen algorithms must be there


@dataclass(frozen=True)
class Shape:
    """All that a recorded step is fixed to; runs that agree in it share the recording, whatever their weights and learning rates."""

    architecture: str
    classes: int
    stem: str
    width: float
    last_stride: int
    image_size: int  # pixels
    batch_size: int
    optimizer: str  # adam or sgd
    momentum: float  # of SGD
    augmentation: bool
    precision: str  # float32 or bfloat16
    device: str


def shape_of(config: RunConfig, classes: int, image_size: int, device: torch.device | str) -> Shape:
    """Shape of a run on images of a size (pixels)."""
    kept = {field.name: getattr(config, field.name) for field in fields(Shape) if hasattr(config, field.name)}
    return Shape(**kept, classes=classes, image_size=image_size, device=str(device))


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Let convolutions and the linear layer compute in a precision, "float32" or "bfloat16"; what they are given stays as it is."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")


def step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    draws: Draws | None,
    decay: Tensor | None = None,
    precision: str = "float32",
) -> Tensor:
    """Take one training step, without waiting for the device. Weights, statistics, loss and optimizer are float32 in either precision.

    Args:
        model: in train mode.
        optimizer: of its parameters.
        images: (B, 3, S, S) uint8.
        labels: (B,) int64, on the same device.
        draws: the augmentation of these images; None leaves them.
        decay: weight decay as a tensor of one number, added to the gradient as ``decay * weight``; None leaves it to the optimizer.
        precision: of the products of the network, forward and backward: float32 or bfloat16.

    Returns:
        (2,) float64 on the device: the sum of the cross-entropies, and the number of images classified correctly.
    """
    if draws is not None:
        images = augment(images, draws)
    with autocast(labels.device, precision):
        logits = model(resnet.normalise_images(images))
    loss = cross_entropy(logits.float() if precision == "bfloat16" else logits, labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    if decay is not None:
        _decay(list(model.parameters()), decay)
    optimizer.step()
    correct = (logits.detach().argmax(1) == labels).sum()
    return torch.stack([loss.detach().double() * len(labels), correct.double()])


@torch.no_grad()
def _decay(parameters: list[nn.Parameter], decay: Tensor) -> None:
    torch._foreach_add_([parameter.grad for parameter in parameters], torch._foreach_mul(parameters, decay))


class CapturedStep:
    """A network, its optimizer and one batch at fixed addresses, and the step that a CUDA graph replays on them.

    A run copies its state in with ``load``, takes an epoch's steps by calling, and copies the state out with ``unload``. Learning rate
    and weight decay are tensors that the step reads, so they change without a new recording. On a CPU nothing is recorded: the same
    code runs step by step, which is what tests compare with the plain step.
    """

    def __init__(self, shape: Shape) -> None:
        """Make what lies at fixed addresses, warm up, and record where the device is a GPU."""
        self.shape, device, count, size = shape, torch.device(shape.device), shape.batch_size, shape.image_size
        model = resnet.build(shape.architecture, shape.classes, stem=shape.stem, width=shape.width, last_stride=shape.last_stride, seed=0)
        self.model = self._network = model.to(device, memory_format=torch.channels_last).train()
        self.learning_rate, self.decay = torch.zeros((), device=device), torch.zeros((), device=device)
        self.optimizer = self._make_optimizer(device)
        self._pixels = torch.zeros(count, size, size, 3, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
        self._labels = torch.zeros(count, dtype=torch.int64, device=device)
        self._draws = draw(count, torch.Generator().manual_seed(0)).to(device) if shape.augmentation else None
        self._graph, self._sums = None, None
        if device.type == "cuda":
            with torch.cuda.device(device):  # streams belong to one GPU
                self._record()
        else:
            self._step()  # makes the optimizer's state

    def _make_optimizer(self, device: torch.device) -> torch.optim.Optimizer:
        if self.shape.optimizer == "adam":
            capturable = device.type == "cuda"
            return torch.optim.Adam(self.model.parameters(), lr=self.learning_rate, fused=True, capturable=capturable)
        return torch.optim.SGD(self.model.parameters(), lr=self.learning_rate, momentum=self.shape.momentum, fused=True)

    def _step(self) -> Tensor:
        return step(self._network, self.optimizer, self._pixels, self._labels, self._draws, self.decay, self.shape.precision)

    def _record(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*capturable=True.*")
            for _ in range(_WARM_UP):
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.optimizer.zero_grad(set_to_none=True)  # so that gradients get addresses of the recording's own
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._sums = self._step()
        self._graph = graph

    @torch.no_grad()
    def load(self, model: nn.Module, optimizer: torch.optim.Optimizer, learning_rate: float, weight_decay: float) -> None:
        """Copy in the state of a run: weights, buffers, optimizer, hyperparameters. What an optimizer has not made yet counts as 0."""
        _copy(self.model.state_dict().values(), model.state_dict().values())
        for own, theirs in _pairs(self.model, model):
            given = optimizer.state.get(theirs, {})
            for name, value in self.optimizer.state[own].items():
                value.copy_(given[name]) if name in given else value.zero_()
        self.learning_rate.fill_(learning_rate)
        self.decay.fill_(weight_decay)

    @torch.no_grad()
    def unload(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Copy weights, buffers and the optimizer's state out to a run; its optimizer is of the same kind."""
        _copy(model.state_dict().values(), self.model.state_dict().values())
        for own, theirs in _pairs(self.model, model):
            kept = optimizer.state[theirs]
            for name, value in self.optimizer.state[own].items():
                if isinstance(kept.get(name), Tensor):
                    kept[name].copy_(value)
                else:
                    kept[name] = value.clone()

    def __call__(self, images: Tensor, labels: Tensor, draws: Draws | None) -> Tensor:
        """Take one step, see ``step``; a batch of another size, the last of an epoch, is not replayed but run.

        Returns:
            (2,) sums; the next call may overwrite them.

        Raises:
            ValueError: images or draws do not fit the recording.
        """
        if images.shape[1:] != self._pixels.shape[1:] or (draws is None) == self.shape.augmentation:
            raise ValueError(
                f"a step recorded for {tuple(self._pixels.shape)} and augmentation {self.shape.augmentation} was given "
                f"{tuple(images.shape)} and {'no ' if draws is None else ''}draws"
            )
        if len(labels) != self.shape.batch_size:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*capturable=True.*")
                return step(self.model, self.optimizer, images, labels, draws, self.decay, self.shape.precision)
        self._pixels.copy_(images)
        self._labels.copy_(labels)
        if draws is not None:
            _copy(_tensors(self._draws), _tensors(draws))
        if self._graph is None:
            return self._step()
        self._graph.replay()
        return self._sums


class CompiledStep(CapturedStep):
    """The same with the network compiled, forward and backward, by ``torch.compile(mode="reduce-overhead")``; the optimizer is not."""

    def _record(self) -> None:
        self._network = torch.compile(self.model, mode="reduce-overhead")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*capturable=True.*")
            for _ in range(_WARM_UP):  # which compile it, record it, and replay it for the first time
                self._step()


def _copy(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _pairs(first: nn.Module, second: nn.Module) -> Iterable[tuple[nn.Parameter, nn.Parameter]]:
    return zip(first.parameters(), second.parameters(), strict=True)


def _tensors(draws: Draws) -> list[Tensor]:
    return [getattr(draws, field.name) for field in fields(draws)]


def random_batch(shape: Shape, device: torch.device, seed: int = 0) -> tuple[Tensor, Tensor, Draws | None]:
    """Make random images (B, 3, S, S) uint8, labels (B,) and draws of a shape on a device."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (shape.batch_size, 3, shape.image_size, shape.image_size), generator=generator, dtype=torch.uint8)
    labels = torch.randint(0, shape.classes, (shape.batch_size,), generator=generator)
    draws = draw(shape.batch_size, generator).to(device) if shape.augmentation else None
    return pixels.to(device, memory_format=torch.channels_last), labels.to(device), draws

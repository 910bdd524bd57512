"""Test images degraded to a structural similarity (SSIM) by blur or an auto-encoder."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pixel_shuffle

from helpers.data.images import StudyData
from helpers.data.shifts import blurred, in_chunks, ssim
from helpers.files import (
    json_digest,
    read_json,
    read_tensors,
    write_json,
    write_tensors,
)
from helpers.training.pool import torch_threads

_TOLERANCE = 0.01  # of the mean SSIM


class Level(NamedTuple):
    """One level of noise, the same for all networks."""

    ssim: float  # mean SSIM asked for, 1 is clean
    ssim_reached: float  # mean SSIM of the test images to the clean ones
    strength: float  # of the generator, see ``degrade``


class AutoEncoder(nn.Module):
    """Auto-encoder whose channels are ordered, the most informative ones first.

    By nested dropout (Rippel et al. 2014). The side of its bottleneck is a quarter of
    the image's.
    """

    def __init__(self, width: int = 8) -> None:
        """Build an untrained one.

        Args:
            width: number of channels of the bottleneck.
        """
        super().__init__()
        self.width = width
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(48, width, 3, 1, 1),
        )
        self.widen = nn.Sequential(
            nn.Conv2d(width, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 64, 3, 1, 1)
        )
        self.colour = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 12, 3, 1, 1))

    def forward(self, images: Tensor, channels: Tensor) -> Tensor:
        """Reconstruct images from the first channels of the bottleneck.

        Args:
            images: (B, 3, H, W) in [0, 1], H and W multiples of 4.
            channels: (B,) number of channels; 2.3 is two and 0.3 of the third.
        """
        code = self.encoder(images)  # (B, width, H / 4, W / 4)
        numbers = torch.arange(self.width, device=images.device)
        share = (channels[:, None] - numbers).clamp(0, 1)  # (B, width)
        wide = self.widen(code * share[:, :, None, None])  # (B, 64, H / 4, W / 4)
        halved = self.colour(pixel_shuffle(wide, 2))  # (B, 12, H / 2, W / 2)
        return torch.sigmoid(pixel_shuffle(halved, 2))


class Generator(NamedTuple):
    """Generator of degraded images: a blur, or a trained auto-encoder."""

    name: str  # blur or autoencoder
    seed: int = 0
    network: AutoEncoder | None = None


class Degradation(NamedTuple):
    """Generator of degraded test images, with its strength at each level of noise."""

    generator: Generator
    levels: Sequence[Level]


def generator(
    name: str, data: StudyData, folder: Path, seed: int = 0, device: str = "cpu"
) -> Generator:
    """A generator by its name.

    Args:
        name: "blur" or "autoencoder".
        data: whose training images an auto-encoder is trained on, once.
        folder: where the auto-encoder is stored.
        seed: of its training.
        device: of its training.
    """
    if name != "autoencoder":
        return Generator(name, seed)
    path = folder / f"autoencoder-{json_digest([data.fingerprint, seed])}.safetensors"
    state = read_tensors(path)
    if state is None:
        trained = train_autoencoder(data.train.images, seed=seed, device=device)
        state = trained.state_dict()
        write_tensors(path, state)
    network = AutoEncoder()
    network.load_state_dict(state)
    return Generator(name, seed, network.eval())


def levels(
    noise: Generator,
    targets: Sequence[float],
    data: StudyData,
    folder: Path,
    device: str = "cpu",
) -> list[Level]:
    """Levels of noise: the strengths at which test images have some mean SSIMs.

    Args:
        noise: the generator.
        targets: mean SSIM over the test images, one for each level.
        data: the study's images.
        folder: where the strengths that were tried are stored.
        device: where images are degraded.
    """
    path = folder / f"{noise.name}-{json_digest([data.fingerprint, noise.seed])}.json"
    tried = {}
    if path.is_file():
        tried = {float(strength): mean for strength, mean in read_json(path).items()}
    images = data.test.images.to(device)
    try:
        return [calibrate(noise, images, target, tried) for target in targets]
    finally:
        write_json(path, tried)  # also where a target is out of reach


def greatest_strength(noise: Generator, side: int) -> float:
    """Largest strength of a generator: side / 4 pixels, or 1 + width of bottleneck.

    Args:
        noise: the generator.
        side: of the images, pixels.
    """
    return side / 4 if noise.network is None else 1.0 + noise.network.width


def degrade(images: Tensor, noise: Generator, strength: float) -> Tensor:
    """Degrade images.

    Args:
        images: (N, 3, H, W) uint8.
        noise: the generator.
        strength: 0 is the identity. For a blur, its standard deviation in pixels. For
            an auto-encoder up to 1, the weight of the reconstruction in a mixture with
            the image; beyond 1, the reconstruction is from ``width + 1 - strength``
            channels.

    Returns:
        (N, 3, H, W) uint8.
    """
    if not strength:
        return images.clone()
    if noise.network is None:
        return in_chunks(images, lambda pixels: blurred(pixels, strength))
    return in_chunks(images, lambda pixels: _coded(pixels, noise.network, strength))


def _coded(pixels: Tensor, network: AutoEncoder, strength: float) -> Tensor:
    """Pixels (B, 3, H, W) in [0, 255], mixed with their reconstruction."""
    width = network.width - max(0.0, strength - 1)
    channels = torch.full((len(pixels),), width, device=pixels.device)
    reconstruction = network.to(pixels.device)(pixels / 255, channels) * 255
    return torch.lerp(pixels, reconstruction, min(strength, 1.0))


def calibrate(
    noise: Generator, images: Tensor, target: float, tried: dict[float, float]
) -> Level:
    """Find a strength whose mean SSIM is within 0.01 of a target, by Brent's method.

    Args:
        noise: the generator.
        images: (N, 3, H, W) uint8.
        target: mean SSIM.
        tried: mean SSIM by strength; strengths that are tried here are added.

    Raises:
        ValueError: where the target cannot be reached.
    """

    def distance(strength: float) -> float:
        """0 within the tolerance, which ends the search."""
        if strength not in tried:
            degraded = degrade(images, noise, strength)
            tried[strength] = float(ssim(images, degraded).double().mean())
        difference = tried[strength] - target
        return difference if abs(difference) > _TOLERANCE else 0.0

    tried[0.0] = 1.0
    nearest = min(tried, key=lambda strength: abs(tried[strength] - target))
    if distance(nearest):
        strongest = greatest_strength(noise, min(images.shape[-2:]))
        if distance(strongest) > 0:
            raise ValueError(
                f"a mean SSIM of {target} cannot be reached by {noise.name!r}: the "
                f"nearest is {tried[strongest]:.4f}, at strength {strongest:g}; change "
                "noise_ssim or noise_generator"
            )
        weaker = max(strength for strength, mean in tried.items() if mean > target)
        stronger = min(strength for strength in tried if strength > weaker)
        nearest = brentq(distance, weaker, stronger)
    return Level(target, tried[nearest], nearest)


def train_autoencoder(
    images: Tensor,
    *,
    width: int = 8,
    epochs: int = 8,
    seed: int,
    device: torch.device | str = "cpu",
) -> AutoEncoder:
    """Train an auto-encoder with nested dropout.

    Half of each batch has all channels, the other half the first u, uniform in
    [0, width]. It is trained by one thread, as runs are, so that its weights and the
    degraded images do not depend on the number of cores.

    Args:
        images: (N, 3, H, W) uint8, H and W multiples of 4.
        width: number of channels of the bottleneck.
        epochs: passes over the images.
        seed: of weights, order and u.
        device: of the training.
    """
    random = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoEncoder(width).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    with torch_threads(1):
        for _ in range(epochs):
            for indices in torch.randperm(len(images), generator=random).split(16):
                channels = torch.rand(len(indices), generator=random) * width
                channels[::2] = width
                batch = images[indices.to(images.device)].to(device) / 255
                optimizer.zero_grad()
                mse_loss(network(batch, channels.to(device)), batch).backward()
                optimizer.step()
    return network.eval()

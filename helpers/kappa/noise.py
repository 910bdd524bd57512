"""Test images degraded to a given structural similarity (SSIM), whatever degrades them: blur or an auto-encoder."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pixel_shuffle

from helpers.data.images import StudyData
from helpers.data.shifts import blurred, in_chunks, ssim
from helpers.files import digest, read_json, read_tensors, write_json, write_tensors

_TOLERANCE = 0.01  # of the mean SSIM


class Level(NamedTuple):
    """One level of noise, the same for all networks."""

    ssim: float  # mean SSIM asked for, 1 is clean
    ssim_reached: float  # mean SSIM of the test images to the clean ones
    strength: float  # in the generator's own unit


class AutoEncoder(nn.Module):
    """A bottleneck of ``width`` channels at a quarter of the side, ordered by nested dropout (Rippel et al. 2014): the last tell least."""

    def __init__(self, width: int = 8) -> None:
        """Untrained."""
        super().__init__()
        self.width = width
        halved = (
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 4, 2, 1),
            nn.ReLU(),
        )
        self.encoder = nn.Sequential(*halved, nn.Conv2d(48, width, 3, 1, 1))
        self.widen = nn.Sequential(
            nn.Conv2d(width, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 64, 3, 1, 1)
        )
        self.colour = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 12, 3, 1, 1))

    def forward(self, images: Tensor, kept: Tensor) -> Tensor:
        """Reconstruct (B, 3, H, W) images in [0, 1], H and W multiples of 4, from ``kept`` (B,) channels: 2.3 is two and 0.3 of a third."""
        code = self.encoder(images)
        scale = (kept[:, None] - torch.arange(self.width, device=images.device)).clamp(
            0, 1
        )
        wide = self.widen(code * scale[:, :, None, None])
        return torch.sigmoid(pixel_shuffle(self.colour(pixel_shuffle(wide, 2)), 2))


class Generator(NamedTuple):
    """What degrades images: a blur, or a trained auto-encoder."""

    name: str  # blur or autoencoder
    seed: int = 0
    network: AutoEncoder | None = None


def generator(
    name: str, data: StudyData, folder: Path, seed: int = 0, device: str = "cpu"
) -> Generator:
    """A generator by its name; an auto-encoder is trained on the training images, once, and then read."""
    if name != "autoencoder":
        return Generator(name, seed)
    path, network = (
        folder / f"autoencoder-{digest([data.fingerprint, seed])}.safetensors",
        AutoEncoder(),
    )
    if (state := read_tensors(path)) is None:
        write_tensors(
            path,
            state := train_autoencoder(
                data.train.images, seed=seed, device=device
            ).state_dict(),
        )
    network.load_state_dict(state)
    return Generator(name, seed, network.eval())


def levels(
    given: Generator,
    targets: Sequence[float],
    data: StudyData,
    folder: Path,
    device: str = "cpu",
) -> list[Level]:
    """The strength of each level, at which the mean SSIM of all test images hits its target; what was tried is kept in ``folder``."""
    path = folder / f"{given.name}-{digest([data.fingerprint, given.seed])}.json"
    tried = (
        {float(strength): reached for strength, reached in read_json(path).items()}
        if path.is_file()
        else {}
    )
    found = [
        calibrate(given, data.test.images.to(device), target, tried)
        for target in targets
    ]
    write_json(path, tried)
    return found


def greatest_strength(given: Generator, side: int) -> float:
    """The end of a generator's scale: side / 4 pixels, or 1 + the bottleneck's width."""
    return side / 4 if given.network is None else 1.0 + given.network.width


def degrade(images: Tensor, given: Generator, strength: float) -> Tensor:
    """Degrade (N, 3, H, W) uint8 images to as many; strength 0 is the identity.

    Of a blur it is the deviation in pixels; of an auto-encoder the share of what it makes, beyond 1 of ``width + 1 - strength`` channels.
    """
    return (
        in_chunks(images, lambda pixels: _degraded(pixels, given.network, strength))
        if strength
        else images.clone()
    )


def _degraded(pixels: Tensor, network: AutoEncoder | None, strength: float) -> Tensor:
    if network is None:
        return blurred(pixels, strength)
    kept = torch.full(
        (len(pixels),), network.width - max(0.0, strength - 1), device=pixels.device
    )
    return torch.lerp(
        pixels, network.to(pixels.device)(pixels / 255, kept) * 255, min(strength, 1.0)
    )


def calibrate(
    given: Generator, images: Tensor, target: float, tried: dict[float, float]
) -> Level:
    """Find a mean SSIM within 0.01 of a target, else ValueError; to ``tried``, mean SSIM by strength, is added what this finds."""
    tried[0.0] = 1.0
    limit = greatest_strength(given, min(images.shape[-2:]))
    for step in range(40):
        nearest = min(tried, key=lambda strength: abs(tried[strength] - target))
        if abs(tried[nearest] - target) <= _TOLERANCE:
            return Level(target, tried[nearest], nearest)
        if (
            strength := _next_strength(tried, target, limit, halve=step % 3 == 2)
        ) is None:
            break
        tried[strength] = float(
            ssim(images, degrade(images, given, strength)).double().mean()
        )
    found = f"the nearest is {tried[nearest]:.4f}, at strength {nearest:g}"
    raise ValueError(
        f"a mean SSIM of {target} cannot be reached by {given.name!r}: {found}; change noise_ssim or noise_generator"
    )


def _next_strength(
    tried: dict[float, float], target: float, limit: float, halve: bool
) -> float | None:
    """Between the first two neighbours around the target, or beyond all; None where the limit is on the wrong side."""
    known = sorted(tried)
    for low, high in itertools.pairwise(known):
        if tried[low] > target >= tried[high]:
            share = (
                0.5
                if halve
                else min(
                    0.9, max(0.1, (tried[low] - target) / (tried[low] - tried[high]))
                )
            )  # halved now and then: it ends
            return low + share * (high - low)
    # From below, because weak degradations are many times cheaper than the strongest blur.
    return None if known[-1] == limit else min(max(2 * known[-1], limit / 64), limit)


def train_autoencoder(
    images: Tensor,
    *,
    width: int = 8,
    epochs: int = 8,
    seed: int,
    device: torch.device | str = "cpu",
) -> AutoEncoder:
    """Train an auto-encoder on uint8 images: half of each batch keeps all channels, the other half the first u, uniform in [0, width]."""
    if any(side % 4 for side in images.shape[-2:]):
        raise ValueError(
            f"the auto-encoder takes sides that are multiples of 4, got {tuple(images.shape)}; take another image_size"
        )
    draws = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoEncoder(width).to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(epochs):
        for indices in torch.randperm(len(images), generator=draws).split(16):
            kept = torch.rand(len(indices), generator=draws) * width
            kept[::2] = width
            batch = images[indices.to(images.device)].to(device) / 255
            optimizer.zero_grad()
            mse_loss(network(batch, kept.to(device)), batch).backward()
            optimizer.step()
    return network.eval()

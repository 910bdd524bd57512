"""Test images degraded to a structural similarity (SSIM) by an auto-encoder."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from scipy.optimize import brentq
from threadpoolctl import threadpool_limits
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pixel_shuffle

from helpers.data.images import StudyData
from helpers.data.shifts import in_chunks, ssim
from helpers.files import json_digest, read_tensors, write_tensors

_TOLERANCE = 0.01  # of the mean SSIM
# Of the auto-encoder: channels of the bottleneck, and passes over the images.
_WIDTH = 8
_EPOCHS = 8


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

    def __init__(self) -> None:
        """Build an untrained one."""
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(24, 48, 4, 2, 1),
            nn.ReLU(),
            nn.Conv2d(48, _WIDTH, 3, 1, 1),
        )
        self.widen = nn.Sequential(
            nn.Conv2d(_WIDTH, 48, 3, 1, 1),
            nn.ReLU(),
            nn.Conv2d(48, 64, 3, 1, 1),
        )
        self.colour = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 12, 3, 1, 1))

    def forward(self, images: Tensor, channels: Tensor) -> Tensor:
        """Reconstruct images from the first channels of the bottleneck.

        Args:
            images: (B, 3, H, W) in [0, 1], H and W multiples of 4.
            channels: (B,) number of channels; 2.3 is two and 0.3 of the third.
        """
        code = self.encoder(images)  # (B, width, H / 4, W / 4)
        numbers = torch.arange(_WIDTH, device=images.device)
        share = (channels[:, None] - numbers).clamp(0, 1)  # (B, width)
        wide = self.widen(code * share[:, :, None, None])  # (B, 64, H / 4, W / 4)
        halved = self.colour(pixel_shuffle(wide, 2))  # (B, 12, H / 2, W / 2)
        return torch.sigmoid(pixel_shuffle(halved, 2))


class Degradation(NamedTuple):
    """Noise of the test images by a trained auto-encoder.

    Attributes:
        seed: of the auto-encoder's training.
        network: the auto-encoder.
        levels: of noise.
    """

    seed: int
    network: AutoEncoder
    levels: Sequence[Level] = ()


def degradation(
    targets: Sequence[float],
    data: StudyData,
    folder: Path,
    seed: int = 0,
    device: str = "cpu",
) -> Degradation:
    """Noise at which the test images have some mean SSIMs.

    Args:
        targets: mean SSIM over the test images, one for each level.
        data: whose training images the auto-encoder is trained on, once.
        folder: where the auto-encoder is stored.
        seed: of its training.
        device: of its training, and where images are degraded.

    Raises:
        ValueError: where a target cannot be reached.
    """
    path = folder / f"autoencoder-{json_digest([data.fingerprint, seed])}.safetensors"
    state = read_tensors(path)
    if state is None:
        trained = train_autoencoder(data.train.images, seed=seed, device=device)
        state = trained.state_dict()
        write_tensors(path, state)
    network = AutoEncoder()
    network.load_state_dict(state)
    levels = calibrated(network.eval(), data.test.images.to(device), targets)
    return Degradation(seed, network, levels)


def calibrated(
    network: AutoEncoder, images: Tensor, targets: Sequence[float]
) -> list[Level]:
    """Strengths with a mean SSIM within 0.01 of some targets, by Brent's method.

    Args:
        network: a trained auto-encoder.
        images: (N, 3, H, W) uint8.
        targets: mean SSIM of each level.

    Raises:
        ValueError: where a target cannot be reached.
    """

    @cache
    def mean_ssim(strength: float) -> float:
        degraded = degrade(images, network, strength)
        return float(ssim(images, degraded).double().mean())

    def distance(strength: float, target: float) -> float:
        """0 within the tolerance, which ends the search."""
        difference = mean_ssim(strength) - target
        return difference if abs(difference) > _TOLERANCE else 0.0

    strongest = 1.0 + _WIDTH
    levels = []
    for target in sorted(targets):
        if distance(strongest, target) > 0:
            raise ValueError(
                f"noise_ssim has {target}, and the auto-encoder reaches "
                f"{mean_ssim(strongest):.4f} at the strongest; take a larger one"
            )
        strength = brentq(distance, 0, strongest, args=(target,))
        levels.append(Level(target, mean_ssim(strength), strength))
    return levels


def degrade(images: Tensor, network: AutoEncoder, strength: float) -> Tensor:
    """Degrade images by an auto-encoder.

    Args:
        images: (N, 3, H, W) uint8.
        network: a trained auto-encoder.
        strength: 0 is the identity; up to 1 it is the weight of the reconstruction in a
            mixture with the image; beyond 1 the reconstruction is from
            ``width + 1 - strength`` channels, so that the strongest is 1 + width.

    Returns:
        (N, 3, H, W) uint8.
    """
    if not strength:
        return images.clone()
    network = network.to(images.device)
    width = torch.tensor(_WIDTH - max(0.0, strength - 1), device=images.device)

    def mixed(pixels: Tensor) -> Tensor:
        """Pixels (B, 3, H, W) in [0, 255], mixed with their reconstruction."""
        reconstruction = network(pixels / 255, width.expand(len(pixels))) * 255
        return torch.lerp(pixels, reconstruction, min(strength, 1.0))

    return in_chunks(images, mixed)


def train_autoencoder(
    images: Tensor, *, seed: int, device: torch.device | str = "cpu"
) -> AutoEncoder:
    """Train an auto-encoder with nested dropout.

    Half of each batch has all channels, the other half the first u, uniform in
    [0, width]. It is trained by one thread, as runs are, so that its weights and the
    degraded images do not depend on the number of cores.

    Args:
        images: (N, 3, H, W) uint8, H and W multiples of 4.
        seed: of weights, order and u.
        device: of the training.
    """
    random = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = AutoEncoder().to(device)
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    with threadpool_limits(1):
        for _ in range(_EPOCHS):
            for indices in torch.randperm(len(images), generator=random).split(16):
                channels = torch.rand(len(indices), generator=random) * _WIDTH
                channels[::2] = _WIDTH
                batch = images[indices.to(images.device)].to(device) / 255
                optimizer.zero_grad()
                mse_loss(network(batch, channels.to(device)), batch).backward()
                optimizer.step()
    return network.eval()

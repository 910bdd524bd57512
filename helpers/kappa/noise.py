"""Images degraded to a given structural similarity (SSIM), whatever degrades them: blur, Gaussian noise or an auto-encoder."""

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss, pixel_shuffle

from helpers.data.shifts import blurred, check_images, in_chunks, ssim, with_noise
from helpers.networks.hooks import evaluation_mode

GENERATORS = ("blur", "gaussian", "autoencoder")
_MOST_STEPS = 40


@dataclass(frozen=True)
class NoiseGenerator:
    """What degrades images."""

    name: str  # one of ``GENERATORS``
    network: nn.Module | None = None  # a trained ``AutoEncoder``, for "autoencoder" alone


class Calibrated(NamedTuple):
    """A strength and the mean SSIM that it gives on the images that it was calibrated on."""

    strength: float
    reached: float


class AutoEncoder(nn.Module):
    """Two strided convolutions to ``width`` channels at a quarter of the image's side, and two convolutions with pixel shuffles back.

    Its channels are ordered by nested dropout (Rippel et al. 2014): training keeps the first u of them, u drawn per image, so the last
    ones carry the least, and leaving them out one after the other makes reconstructions worse step by step.
    """

    def __init__(self, width: int) -> None:
        """Lay out the layers; ``width`` is the number of channels of the bottleneck."""
        super().__init__()
        self.width = width
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 4, 2, 1), nn.ReLU(), nn.Conv2d(48, width, 3, 1, 1)
        )
        self.widen = nn.Sequential(nn.Conv2d(width, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 64, 3, 1, 1))
        self.colour = nn.Sequential(nn.ReLU(), nn.Conv2d(16, 12, 3, 1, 1))

    def forward(self, images: Tensor, kept: Tensor) -> Tensor:
        """Reconstruct images.

        Args:
            images: (B, 3, H, W) in [0, 1], H and W multiples of 4.
            kept: (B,) channels kept, in [0, width]; of 2.3 the first two are kept whole and the third is scaled by 0.3.

        Returns:
            (B, 3, H, W) in [0, 1].
        """
        code = self.encoder(images)
        scale = (kept[:, None] - torch.arange(self.width, device=images.device)).clamp(0, 1)
        wide = self.widen(code * scale[:, :, None, None])
        return torch.sigmoid(pixel_shuffle(self.colour(pixel_shuffle(wide, 2)), 2))


def noise_generator(name: str, network: nn.Module | None = None) -> NoiseGenerator:
    """Make a generator by name.

    Raises:
        ValueError: an unknown name, or an auto-encoder without its network.
    """
    if name not in GENERATORS:
        raise ValueError(f"noise generator {name!r} is unknown; choose one of {', '.join(GENERATORS)}")
    if (name == "autoencoder") != isinstance(network, AutoEncoder):
        raise ValueError(f"noise generator {name!r} got {type(network).__name__}; 'autoencoder' takes an AutoEncoder, the others None")
    return NoiseGenerator(name, network)


def greatest_strength(generator: NoiseGenerator, side: int) -> float:
    """The end of a generator's scale, for images of this side: side / 4 pixels, 255 grey levels, or 1 + the bottleneck's width."""
    return {"blur": side / 4, "gaussian": 255.0, "autoencoder": 1.0 + getattr(generator.network, "width", 0)}[generator.name]


def degrade(images: Tensor, generator: NoiseGenerator, strength: float, seed: int = 0) -> Tensor:
    """Degrade images; strength 0 is the identity.

    - "blur": Gaussian blur, reflected at the edges; strength is its standard deviation in pixels.
    - "gaussian": independent noise per pixel and channel, clipped to [0, 255]; strength is its standard deviation in grey levels. The
      same seed draws the same noise at every strength.
    - "autoencoder": up to 1, ``(1 - strength) x + strength r`` with the reconstruction r; beyond 1, the reconstruction from the first
      ``width + 1 - strength`` channels of the bottleneck. Up to ``width + 1``, where nothing of the image is left.

    Args:
        images: (N, 3, H, W) uint8 RGB, sides at least 8; multiples of 4 for "autoencoder".
        generator: see ``noise_generator``.
        strength: in [0, ``greatest_strength``].
        seed: of the noise of "gaussian"; the others draw none.

    Returns:
        (N, 3, H, W) uint8, a new tensor on the images' device.

    Raises:
        ValueError: a strength out of range, or images of another kind.
    """
    _check(images, 4 if generator.name == "autoencoder" else 1)
    limit = greatest_strength(generator, min(images.shape[-2:]))
    if not 0 <= strength <= limit:
        raise ValueError(f"strength {strength} of {generator.name!r} must be in [0, {limit:g}]")
    if strength == 0:
        return images.clone()
    draws = torch.Generator().manual_seed(seed)
    return in_chunks(images, lambda pixels: _degraded(pixels, generator, strength, draws))


def _degraded(pixels: Tensor, generator: NoiseGenerator, strength: float, draws: torch.Generator) -> Tensor:
    if generator.name == "blur":
        return blurred(pixels, strength)
    if generator.name == "gaussian":
        return with_noise(pixels, strength, draws)
    network = generator.network
    device = next(network.parameters()).device
    kept = torch.full((len(pixels),), network.width - max(0.0, strength - 1), device=device)
    with evaluation_mode(network):
        reconstruction = network(pixels.to(device) / 255, kept).to(pixels.device) * 255
    return torch.lerp(pixels, reconstruction, min(strength, 1.0))


def calibrate(
    generator: NoiseGenerator,
    images: Tensor,
    target: float,
    tolerance: float = 0.01,
    seed: int = 0,
    tried: dict[float, float] | None = None,
) -> Calibrated:
    """Find the strength that gives a mean SSIM, by interpolation between strengths on both sides of it.

    The mean SSIM is a continuous function of the strength, up to the rounding of pixels, and 1 at strength 0. So every target between
    1 and the smallest value found is met, also where it does not fall throughout, as between two channels of the auto-encoder.

    Args:
        generator: see ``noise_generator``.
        images: (N, 3, H, W) uint8, those whose mean counts.
        target: mean SSIM wanted, in (0, 1]; 1 is the identity.
        tolerance: largest difference accepted, above 0.
        seed: as in ``degrade``; to hold for other calls they need the same images and seed.
        tried: mean SSIM by strength of earlier calls with the same generator, images and seed, which need not be computed again; what
            this call finds is added.

    Raises:
        ValueError: no images, a target or tolerance out of range, or a target that cannot be reached; the message says what was.
    """
    if not len(images):
        raise ValueError("images are none; a mean SSIM needs at least 1")
    if not 0 < target <= 1 or not tolerance > 0:
        raise ValueError(f"target {target} must be in (0, 1] and tolerance {tolerance} above 0")
    if target == 1:
        return Calibrated(0.0, 1.0)
    tried = {} if tried is None else tried
    tried[0.0] = 1.0
    limit = greatest_strength(generator, min(images.shape[-2:]))
    for step in range(_MOST_STEPS):
        nearest = min(tried, key=lambda strength: abs(tried[strength] - target))
        if abs(tried[nearest] - target) <= tolerance:
            return Calibrated(nearest, tried[nearest])
        if (strength := _next_strength(tried, target, limit, halve=step % 3 == 2)) is None:
            break
        tried[strength] = float(ssim(images, degrade(images, generator, strength, seed)).double().mean())
    raise ValueError(
        f"a mean SSIM of {target} within {tolerance} cannot be reached by {generator.name!r}: "
        f"the nearest is {tried[nearest]:.4f}, at strength {nearest:g}"
    )


def _next_strength(tried: dict[float, float], target: float, limit: float, halve: bool) -> float | None:
    """Between the first two neighbours with the target between them, or beyond all of them; None where the limit is on the wrong side."""
    known = sorted(tried)
    for low, high in itertools.pairwise(known):
        if tried[low] > target >= tried[high]:
            share = 0.5 if halve else min(0.9, max(0.1, (tried[low] - target) / (tried[low] - tried[high])))  # halved now and then: it ends
            return low + share * (high - low)
    # From below, because weak degradations are many times cheaper than the strongest blur.
    return None if known[-1] == limit else min(max(2 * known[-1], limit / 64), limit)


def train_autoencoder(images: Tensor, *, width: int = 8, epochs: int = 8, seed: int, device: torch.device | str = "cpu") -> AutoEncoder:
    """Train an auto-encoder to reconstruct images, by mean squared error, with nested dropout of its bottleneck.

    Half of each batch keeps all channels, the other half the first u, u uniform in [0, width]. Adam at 2e-3, batches of 16.

    Args:
        images: (N, 3, H, W) uint8 RGB of the training split, sides multiples of 4 and at least 8.
        width: channels of the bottleneck.
        epochs: passes over the images.
        seed: of the initial weights, the order and u.
        device: where it is trained.

    Returns:
        The network, on ``device``, in evaluation mode.

    Raises:
        ValueError: no images, images of another kind, or a width or number of epochs below 1.
    """
    _check(images, 4)
    for name, value in (("the number of images", len(images)), ("width", width), ("epochs", epochs)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.enable_grad():
        torch.manual_seed(seed)
        network = AutoEncoder(width).to(device)
        optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
        for _ in range(epochs):
            for indices in torch.randperm(len(images), generator=generator).split(16):
                kept = torch.rand(len(indices), generator=generator) * width
                kept[::2] = width
                batch = images[indices.to(images.device)].to(device) / 255
                optimizer.zero_grad()
                mse_loss(network(batch, kept.to(device)), batch).backward()
                optimizer.step()
    return network.eval()


def _check(images: Tensor, multiple: int = 1) -> None:
    check_images(images)
    if any(side % multiple for side in images.shape[-2:]):
        got = f"{tuple(images.shape)} {images.dtype}"
        raise ValueError(f"the auto-encoder takes images whose sides are multiples of {multiple}, got {got}")

"""Augmentation of the code of Du et al. 2024, on the device: each image's own draw of flips, brightness, contrast and order of channels."""

from typing import NamedTuple

import torch
from torch import Tensor


class Draws(NamedTuple):
    """One epoch's random numbers, one entry per image."""

    horizontal: Tensor  # (N,) bool
    vertical: Tensor  # (N,) bool
    brightness: Tensor  # (N,) float, added to pixels in [0, 255]; 0 leaves the image
    contrast: Tensor  # (N,) float, factor on pixels; 1 leaves the image
    channels: Tensor  # (N, 3) int64, a permutation of 0, 1, 2

    def to(self, device: torch.device | str) -> "Draws":
        """The draws on a device."""
        return Draws(*(values.to(device) for values in self))

    def of(self, images: Tensor | slice) -> "Draws":
        """Take the draws of some images (integer indices, or a slice, which copies nothing)."""
        return Draws(*(values[images] for values in self))


def draw(count: int, generator: torch.Generator) -> Draws:
    """Draw each change of ``count`` images with probability one half, from a CPU generator, so that every device sees the same."""
    horizontal, vertical, bright, contrasted, permuted = (
        torch.rand(5, count, generator=generator) < 0.5
    )
    brightness = torch.empty(count).uniform_(-32, 32, generator=generator)
    contrast = torch.empty(count).uniform_(0.5, 1.5, generator=generator)
    channels = torch.where(
        permuted.unsqueeze(1),
        torch.rand(count, 3, generator=generator).argsort(1),
        torch.arange(3),
    )
    return Draws(
        horizontal,
        vertical,
        torch.where(bright, brightness, 0.0),
        torch.where(contrasted, contrast, 1.0),
        channels,
    )


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Apply one draw per image, on one device: (B, 3, H, W) in [0, 255] -> float, clamped to [0, 255], in the memory layout it had."""
    per_image = (-1, 1, 1, 1)
    pixels = images.float()
    pixels = torch.where(draws.horizontal.view(per_image), pixels.flip(3), pixels)
    pixels = torch.where(draws.vertical.view(per_image), pixels.flip(2), pixels)
    pixels = (pixels + draws.brightness.view(per_image)) * draws.contrast.view(
        per_image
    )
    batch = torch.arange(len(pixels), device=pixels.device).unsqueeze(1)
    permuted = pixels.clamp_(0, 255)[batch, draws.channels]
    return (
        permuted.contiguous(memory_format=torch.channels_last)
        if images.is_contiguous(memory_format=torch.channels_last)
        else permuted
    )

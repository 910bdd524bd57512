"""Augmentation as in the code of Du et al. 2024, on the device."""

from typing import NamedTuple

import torch
from torch import Tensor


class Draws(NamedTuple):
    """Random numbers of an epoch, one entry per image."""

    horizontal: Tensor  # (N,) bool
    vertical: Tensor  # (N,) bool
    brightness: Tensor  # (N,) float, added to pixels in [0, 255]; 0 leaves the image
    contrast: Tensor  # (N,) float, factor on pixels; 1 leaves the image
    channels: Tensor  # (N, 3) int64, a permutation of 0, 1, 2

    def to(self, device: torch.device | str) -> "Draws":
        """The draws on a device."""
        return Draws(*(values.to(device) for values in self))

    def of(self, images: Tensor | slice) -> "Draws":
        """The draws of some images (integer indices, or a slice, without a copy)."""
        return Draws(*(values[images] for values in self))


def draw(count: int, generator: torch.Generator) -> Draws:
    """Draw flips, brightness, contrast and order of channels, each with chance 1/2.

    Args:
        count: images.
        generator: of a CPU, so that every device sees the same.
    """
    happens = torch.rand(5, count, generator=generator) < 0.5
    horizontal, vertical, is_bright, has_contrast, is_permuted = happens
    brightness = torch.empty(count).uniform_(-32, 32, generator=generator)
    contrast = torch.empty(count).uniform_(0.5, 1.5, generator=generator)
    permutations = torch.rand(count, 3, generator=generator).argsort(1)
    return Draws(
        horizontal,
        vertical,
        torch.where(is_bright, brightness, 0.0),
        torch.where(has_contrast, contrast, 1.0),
        torch.where(is_permuted.unsqueeze(1), permutations, torch.arange(3)),
    )


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Apply one draw per image.

    Args:
        images: (B, 3, H, W) in [0, 255].
        draws: of the B images, on their device.

    Returns:
        (B, 3, H, W) float in [0, 255], in the memory layout that it had.
    """
    per_image = (-1, 1, 1, 1)
    pixels = images.float()
    pixels = torch.where(draws.horizontal.view(per_image), pixels.flip(3), pixels)
    pixels = torch.where(draws.vertical.view(per_image), pixels.flip(2), pixels)
    pixels = pixels + draws.brightness.view(per_image)
    pixels = (pixels * draws.contrast.view(per_image)).clamp_(0, 255)
    batch = torch.arange(len(pixels), device=pixels.device).unsqueeze(1)
    permuted = pixels[batch, draws.channels]  # (B, 1) and (B, 3) -> (B, 3, H, W)
    if images.is_contiguous(memory_format=torch.channels_last):
        return permuted.contiguous(memory_format=torch.channels_last)
    return permuted

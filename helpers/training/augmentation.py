"""Augmentation as in the code of Du et al. 2024, on the device of the images."""

from typing import NamedTuple

import torch
from torch import Tensor


class Draws(NamedTuple):
    """Random numbers of an epoch, one entry per image."""

    horizontal: Tensor  # (N,) bool, whether left and right are swapped
    vertical: Tensor  # (N,) bool, whether top and bottom are swapped
    brightness: Tensor  # (N,) float, added to pixels in [0, 255]; 0 leaves the image
    contrast: Tensor  # (N,) float, factor on pixels; 1 leaves the image
    channels: Tensor  # (N, 3) int64, a permutation of 0, 1, 2


def draw(count: int, generator: torch.Generator) -> Draws:
    """Draw flips and changes of brightness, contrast and order of channels.

    Each happens to an image with probability 1/2.

    Args:
        count: number of images.
        generator: on the CPU, so that every device gets the same random numbers.
    """
    happens = torch.rand(5, count, generator=generator) < 0.5
    horizontal, vertical, is_brightened, has_contrast, is_permuted = happens
    brightness = torch.empty(count).uniform_(-32, 32, generator=generator)
    contrast = torch.empty(count).uniform_(0.5, 1.5, generator=generator)
    permutations = torch.rand(count, 3, generator=generator).argsort(1)
    return Draws(
        horizontal,
        vertical,
        torch.where(is_brightened, brightness, 0.0),
        torch.where(has_contrast, contrast, 1.0),
        torch.where(is_permuted.unsqueeze(1), permutations, torch.arange(3)),
    )


def augment(images: Tensor, draws: Draws) -> Tensor:
    """Augment images by the random numbers of each.

    Args:
        images: (B, 3, H, W) in [0, 255].
        draws: of the B images, on their device.

    Returns:
        (B, 3, H, W) float in [0, 255], channels last in memory.
    """
    per_image = (-1, 1, 1, 1)
    pixels = images.float()
    pixels = torch.where(draws.horizontal.view(per_image), pixels.flip(3), pixels)
    pixels = torch.where(draws.vertical.view(per_image), pixels.flip(2), pixels)
    pixels = pixels + draws.brightness.view(per_image)
    pixels = (pixels * draws.contrast.view(per_image)).clamp_(0, 255)
    batch = torch.arange(len(pixels), device=pixels.device).unsqueeze(1)
    permuted = pixels[batch, draws.channels]  # (B, 1) and (B, 3) -> (B, 3, H, W)
    return permuted.contiguous(memory_format=torch.channels_last)

"""Masks of salient objects by automatic methods, and their quality."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import scipy.ndimage
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from helpers.cams import localize
from helpers.data.images import ImageSet, box_masks
from helpers.files import from_root

MASK_PROVIDERS = ("spectral_residual", "grab_cut", "folder")
_LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)  # of ITU-R BT.601
_RESIDUAL_SIDE = 64  # pixels that the spectral residual is computed at
_GRAB_CUT_ROUNDS = 5
# Gaussians by which GrabCut models the colours of the object, and of the background.
_COLOUR_GAUSSIANS = 5


def make_masks(provider: str, images: ImageSet, path: str = "") -> Tensor:
    """Mark the salient object of every image.

    Args:
        provider: one of ``MASK_PROVIDERS``; "folder" reads masks that another program
            made.
        images: N images with their pixels.
        path: of the folder of masks for "folder", from the project's root.

    Returns:
        (N, S, S) bool on the CPU; a mask may be empty.
    """
    if provider == "folder":
        return masks_from_folder(path, images.names, images.images.shape[-1])
    if provider == "spectral_residual":
        return spectral_residual_masks(images.images)
    return grab_cut_masks(images.images)


def otsu_thresholds(maps: Tensor) -> Tensor:
    """Find the threshold that best splits the values of each map in two; Otsu 1979.

    It maximises ``w0 w1 (m0 - m1)^2``, with the shares w and means m of the two
    groups, over all possible splits.

    Args:
        maps: (N, ...).

    Returns:
        (N,) float64, the largest value of the lower group; NaN for a constant map.

    Example:
        >>> otsu_thresholds(torch.tensor([[0.0, 1.0, 8.0, 9.0]]))
        tensor([1.], dtype=torch.float64)
    """
    values = maps.flatten(1).double().sort(1).values
    total = values.shape[1]
    below = torch.arange(1, total, device=values.device)  # in the lower group
    above = total - below
    sums = values.cumsum(1)
    upper_sum = sums[:, -1:] - sums[:, :-1]
    between_variance = below * above * (sums[:, :-1] / below - upper_sum / above) ** 2
    # Equal values cannot be parted.
    between_variance.masked_fill_(values.diff() == 0, -1)
    best, place = between_variance.max(1)
    thresholds = values.gather(1, place.unsqueeze(1)).squeeze(1)
    return thresholds.masked_fill(best < 0, torch.nan)


def spectral_residual(images: Tensor) -> Tensor:
    """Compute saliency maps by the spectral residual; Hou and Zhang 2007.

    ``g * |F^-1[exp(log A - h * log A + i P)]|^2``, with the amplitude A and phase P of
    the Fourier transform of the grey image, a 3 x 3 mean h, and a Gaussian g of 2.5
    pixels. The image has a side of 64 pixels, or of S if that is smaller.

    Args:
        images: (N, 3, S, S) uint8.

    Returns:
        (N, S, S) float64, at least 0; zeros for an image of one colour.
    """
    grey = torch.einsum("nchw,c->nhw", images.cpu().double(), _LUMA)
    has_one_colour = grey.amax((1, 2)) - grey.amin((1, 2)) < 1e-6
    # Smaller images are not enlarged: their high frequencies would be 0, and logarithms
    # of 0 would dominate the residual.
    side = min(_RESIDUAL_SIDE, grey.shape[1])
    shrunk = F.interpolate(
        grey.unsqueeze(1), (side, side), mode="bilinear", antialias=True
    )
    spectrum = np.fft.fft2(shrunk.squeeze(1).numpy())
    amplitude = np.abs(spectrum)
    # Amplitudes of 0 have no logarithm: they are raised to the rounding error of the
    # largest one.
    largest = amplitude.max((1, 2), keepdims=True)
    logarithm = np.log(np.maximum(amplitude, 1e-15 * largest + np.finfo(float).tiny))
    mean = scipy.ndimage.uniform_filter(logarithm, (1, 3, 3), mode="nearest")
    residual = logarithm - mean + 1j * np.angle(spectrum)
    salient = np.abs(np.fft.ifft2(np.exp(residual))) ** 2
    blurred = scipy.ndimage.gaussian_filter(salient, (0, 2.5, 2.5), mode="nearest")
    maps = torch.from_numpy(blurred)
    maps = maps.masked_fill(has_one_colour.view(-1, 1, 1), 0)
    return localize.upsample(maps, images.shape[2])


def spectral_residual_masks(images: Tensor) -> Tensor:
    """Mark the pixels whose ``spectral_residual`` is above its Otsu threshold.

    Args:
        images: (N, 3, S, S) uint8.

    Returns:
        (N, S, S) bool on the CPU, empty for an image of one colour.
    """
    maps = map(spectral_residual, images.split(256))
    return torch.cat([each > otsu_thresholds(each).view(-1, 1, 1) for each in maps])


def grab_cut_masks(images: Tensor) -> Tensor:
    """Refine ``spectral_residual_masks`` by GrabCut of OpenCV; Rother et al. 2004.

    Colours of object and background are each a mixture of Gaussians. A mask that
    leaves either with too few pixels for it stays as it is.

    Args:
        images: (N, 3, S, S) uint8.

    Returns:
        (N, S, S) bool on the CPU.
    """
    import cv2  # of the extra "saliency"

    masks = spectral_residual_masks(images)
    in_bgr = images.permute(0, 2, 3, 1).flip(3).cpu().numpy()
    for mask, image in zip(masks, in_bgr, strict=True):
        if not _COLOUR_GAUSSIANS <= mask.sum() <= mask.numel() - _COLOUR_GAUSSIANS:
            continue
        cv2.setRNGSeed(0)  # so that no mask depends on those before it
        labels = np.where(mask, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8)
        cv2.grabCut(
            np.ascontiguousarray(image),
            labels,
            None,
            None,
            None,
            _GRAB_CUT_ROUNDS,
            cv2.GC_INIT_WITH_MASK,
        )
        mask[:] = torch.from_numpy(labels == cv2.GC_PR_FGD)
    return masks


def masks_from_folder(folder: str | Path, names: Sequence[str], size: int) -> Tensor:
    """Read the masks that another program made, one PNG for each image.

    A mask has the path of its image below the folder, with the ending .png. It is
    resized to (S, S) by nearest neighbours. Pixels of the object are not black.

    Args:
        folder: of masks, which may have any size.
        names: of the N images.
        size: side S of the images in pixels.

    Returns:
        (N, S, S) bool.

    Raises:
        FileNotFoundError: if a mask is missing.
    """
    masks = []
    for name in names:
        file = (from_root(folder) / name).with_suffix(".png")
        with Image.open(file, formats=["PNG"]) as image:
            is_object = np.asarray(image.convert("RGB")).any(2)
        resized = Image.fromarray(is_object).resize(
            (size, size), Image.Resampling.NEAREST
        )
        masks.append(np.asarray(resized))
    return torch.from_numpy(np.array(masks))


def mask_quality(masks: Tensor, images: ImageSet) -> dict[str, float]:
    """Quality of the masks of one provider; Du et al. 2024, Table 7.

    Args:
        masks: (N, S, S) bool.
        images: N images with boxes.

    Returns:
        By name: ``localize.mask_metrics`` over the images whose mask is not empty;
        images, their number N; dropped, the number of empty masks; and over images with
        a box the means of box_iou, the iou of mask and boxes, and whole_image_floor,
        the iou of a mask of all pixels. A provider with box_iou below the floor is
        worse than a mask of all pixels.
    """
    in_boxes = box_masks(images.boxes, images.images.shape[-1])
    has_mask, has_box = (pixels.flatten(1).any(1) for pixels in (masks, in_boxes))
    marked, boxed = masks[has_mask], in_boxes[has_mask]
    counts = [int(pixels.sum()) for pixels in (marked, boxed, marked & boxed)]
    box_iou = localize.mask_iou(masks[has_box], in_boxes[has_box])
    return localize.mask_metrics(*counts, marked.numel()) | {
        "images": len(masks),
        "dropped": int((~has_mask).sum()),
        "box_iou": float(box_iou.double().mean()),
        "whole_image_floor": float(in_boxes[has_box].double().mean()),
    }

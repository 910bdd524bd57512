"""Masks of the salient object made by a machine, in place of an annotation, and how good they are (Du et al. 2024, Table 7)."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import scipy.ndimage
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from helpers.cams import detection, overlap
from helpers.data.decode import FORMATS
from helpers.files import from_root

_OPENCV = {
    "spectral_residual_opencv": "SpectralResidual",
    "fine_grained": "FineGrained",
    "grab_cut": "FineGrained",
}
MASK_PROVIDERS = ("spectral_residual", *_OPENCV, "folder")
_LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)  # of ITU-R BT.601


def make_masks(provider: str, images: Any, path: str = "") -> Tensor:
    """Mark the salient object of every image: (N, S, S) bool on the CPU; a mask may be empty.

    By one of ``MASK_PROVIDERS``: "folder" reads masks that another program made, whose path is from the project's root.
    Raises ValueError for images without pixels.
    """
    if images.images.device.type == "meta":
        raise ValueError(
            "masks of objects are made of pixels, which records do not have: put the images "
            "where notebook 01 reads them (data_path) and run this notebook again"
        )
    if provider == "folder":
        return masks_from_folder(path, images.names, images.images.shape[-1])
    if provider == "spectral_residual":
        return spectral_residual_masks(images.images)
    return opencv_masks(provider, images.images)


def otsu_thresholds(maps: Tensor) -> Tensor:
    """Split the values of each map (N, ...) in two groups as far apart as can be; Otsu 1979: (N,) float64, NaN for a constant map.

    The largest value of the lower group maximises ``w0 w1 (m0 - m1)^2``, shares and means of both groups; every split is tried.
    """
    values = maps.flatten(1).double().sort(1).values
    total = values.shape[1]
    below = torch.arange(1, total, device=values.device)
    lower = values.cumsum(1)[:, :-1]
    difference = lower / below - (values.sum(1, keepdim=True) - lower) / (total - below)
    # Equal values cannot be parted, and nothing lies above the last.
    between = torch.where(
        values[:, 1:] > values[:, :-1], below * (total - below) * difference**2, -1
    )
    best, place = F.pad(between, (0, 1), value=-1).max(1)
    return (
        values.gather(1, place.unsqueeze(1)).squeeze(1).masked_fill(best < 0, torch.nan)
    )


def spectral_residual(images: Tensor) -> Tensor:
    """How much each place stands out, without weights: the spectral residual; Hou and Zhang 2007.

    ``S = g * |F^-1[exp(log A - h * log A + i P)]|^2`` of amplitude A and phase P of the grey image at 64 pixels (S where that is less), a 3
    x 3 mean h, and a Gaussian g of 2.5 pixels. (N, 3, S, S) uint8 -> (N, S, S) float64, at least 0; zeros for an image of one colour.
    """
    grey = torch.einsum("nchw,c->nhw", images.cpu().double(), _LUMA).unsqueeze(1)
    flat = grey.amax((1, 2, 3)) - grey.amin((1, 2, 3)) < 1e-6
    # An enlarged image would have nothing at the high frequencies, whose logarithms would then rule.
    side = min(64, images.shape[2])
    small = (
        F.interpolate(
            grey,
            size=(side, side),
            mode="bilinear",
            antialias=True,
            align_corners=False,
        )
        .squeeze(1)
        .numpy()
    )
    spectrum = np.fft.fft2(small)
    amplitude = np.abs(spectrum)
    # A frequency that is missing up to rounding has no logarithm; it is set to the rounding error of the largest.
    logarithm = np.log(
        np.maximum(
            amplitude,
            1e-15 * amplitude.max((1, 2), keepdims=True) + np.finfo(float).tiny,
        )
    )
    residual = logarithm - scipy.ndimage.uniform_filter(
        logarithm, (1, 3, 3), mode="nearest"
    )
    salient = np.abs(np.fft.ifft2(np.exp(residual + 1j * np.angle(spectrum)))) ** 2
    blurred = torch.from_numpy(
        scipy.ndimage.gaussian_filter(salient, (0, 2.5, 2.5), mode="nearest")
    )
    return overlap.upsample(
        blurred.masked_fill(flat.view(-1, 1, 1), 0), images.shape[2]
    )


def spectral_residual_masks(images: Tensor) -> Tensor:
    """Mark where the ``spectral_residual`` is above its Otsu threshold: (N, S, S) bool on the CPU, empty for an image of one colour."""
    maps = (spectral_residual(batch) for batch in images.split(256))
    return torch.cat(
        [salient > otsu_thresholds(salient).view(-1, 1, 1) for salient in maps]
    )


def opencv_masks(provider: str, images: Tensor) -> Tensor:
    """Masks of the salient object by OpenCV, without weights: (N, 3, S, S) uint8 -> (N, S, S) bool on the CPU.

    "spectral_residual_opencv" (Hou and Zhang 2007) or "fine_grained" (Montabone and Soto 2010) above its Otsu threshold; "grab_cut": the
    last one refined by the colours of object and ground (Rother et al. 2004), 5 rounds.
    """
    try:
        import cv2
        from cv2 import saliency
    except ImportError as fault:
        wanted = "OpenCV with its contributed modules, which are not installed: pip install 'generalization-workbook[saliency]'"
        raise ValueError(
            f"saliency provider {provider!r} needs {wanted}, or choose spectral_residual, which needs nothing"
        ) from fault
    detector = getattr(saliency, f"StaticSaliency{_OPENCV[provider]}_create")()
    masks = torch.zeros(len(images), *images.shape[2:], dtype=torch.bool)
    for mask, image in zip(
        masks, images.permute(0, 2, 3, 1).flip(3).cpu().numpy(), strict=True
    ):  # OpenCV takes blue first
        salient = torch.from_numpy(
            detector.computeSaliency(np.ascontiguousarray(image))[1]
        )
        mask |= salient > otsu_thresholds(salient.unsqueeze(0)).item()
        if (
            provider == "grab_cut" and 5 <= mask.sum() <= mask.numel() - 5
        ):  # by so many Gaussians of colour it describes each
            cv2.setRNGSeed(0)  # so that no mask depends on those before it
            labels, colours = (
                np.where(mask, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8),
                np.zeros((2, 1, 65)),
            )
            cv2.grabCut(
                np.ascontiguousarray(image),
                labels,
                None,
                *colours,
                5,
                cv2.GC_INIT_WITH_MASK,
            )
            mask.copy_(torch.from_numpy(labels == cv2.GC_PR_FGD))
    return masks


def masks_from_folder(folder: str | Path, names: Sequence[str], size: int) -> Tensor:
    """Read the masks that another program made, one image file for each image, of any size and any format that Pillow reads.

    Its path below the folder is the name of the image, without endings. It is squashed to (S, S) by the nearest pixel; object is what is
    not 0 in any channel but transparency, or not index 0 of a palette.
    """
    root = from_root(folder)
    if not root.is_dir():
        raise FileNotFoundError(
            f"the folder of masks {root} does not exist; set it to the folder that holds one mask for each image"
        )
    known = defaultdict(list)
    for file in (path for path in sorted(root.rglob("*")) if path.is_file()):
        known[file.relative_to(root).with_suffix("").as_posix()].append(file)
    found = {
        name: known.get(Path(name).with_suffix("").as_posix(), []) for name in names
    }
    if missing := [name for name, files in found.items() if not files]:
        raise FileNotFoundError(
            f"{len(missing)} of {len(names)} images have no mask in {root}, first {', '.join(missing[:3])}"
        )
    if several := [files for files in found.values() if len(files) > 1]:
        raise ValueError(
            f"{len(several[0])} masks fit one image, such as {several[0][0]} and {several[0][1]}"
        )
    masks = [_read_mask(found[name][0], size) for name in names]
    return torch.from_numpy(np.array(masks, dtype=bool).reshape(-1, size, size))


def _read_mask(file: Path, size: int) -> np.ndarray:
    try:
        with Image.open(file, formats=FORMATS) as image:
            pixels = np.asarray(
                image.convert("RGB") if image.mode in ("LA", "PA") else image
            )
    except Exception as fault:  # readers of damaged files raise nearly every kind
        raise ValueError(
            f"the mask {file} is no readable image ({type(fault).__name__}: {fault})"
        ) from fault
    inside = Image.fromarray(
        ((pixels if pixels.ndim == 2 else pixels[..., :3].any(2)) != 0).astype(np.uint8)
    )
    return np.asarray(inside.resize((size, size), Image.Resampling.NEAREST)) > 0


def image_quality(masks: Tensor, images: Any) -> pd.DataFrame:
    """Each mask (N, S, S) bool and the union of the boxes of its image: iou, NaN where both are empty, and floor, the share that is box."""
    truth = overlap.box_masks(images.boxes, images.images.shape[-1])
    return pd.DataFrame(
        {
            "iou": overlap.mask_iou(masks, truth).double().numpy(),
            "floor": truth.flatten(1).double().mean(1).numpy(),
        }
    )


def mask_quality(masks: Tensor, images: Any) -> dict[str, float]:
    """``detection.mask_metrics`` over all images whose mask is not empty, images (N), dropped (empty masks), box_iou and whole_image_floor.

    The last two are means of ``image_quality`` over the images with a box; below the floor a provider is worse than marking every pixel.
    """
    kept = masks.flatten(1).any(1)
    truth = overlap.box_masks(images.boxes, images.images.shape[-1])
    counts = (int(part[kept].sum()) for part in (masks, truth, masks & truth))
    metrics = detection.mask_metrics(*counts, masks[kept].numel())
    boxed = image_quality(masks, images).query("floor > 0")
    means = {
        "box_iou": float(boxed["iou"].mean()),
        "whole_image_floor": float(boxed["floor"].mean()),
    }
    return metrics | {"images": len(masks), "dropped": int((~kept).sum())} | means

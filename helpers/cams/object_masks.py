"""Masks of the salient object made by a machine, in place of an annotation, and how good they are (Du et al. 2024, Table 7)."""

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import pandas as pd
import scipy.ndimage
import torch
import torch.nn.functional as F
import torchvision
from PIL import Image
from torch import Tensor, nn

from helpers.cams import chance, detection, overlap
from helpers.data.images import ImageSet
from helpers.files import from_root
from helpers.networks import hooks, resnet, weights

SEGMENTATION_NETWORKS = tuple(torchvision.models.list_models(module=torchvision.models.segmentation))
_LUMA = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64)  # of ITU-R BT.601


def empty_masks(masks: Tensor) -> Tensor:
    """Whether a mask has no pixel, so that its image can be dropped and counted: (N, S, S) bool -> (N,) bool."""
    return ~masks.any(2).any(1)


def otsu_thresholds(maps: Tensor) -> Tensor:
    """Split the values of each map in two groups as far apart as can be; Otsu 1979.

    The threshold t maximises the variance between the groups, ``w0 w1 (m0 - m1)^2`` with the shares w and means m of the values
    <= t and > t. Every split is tried, so there is no histogram and no number of bins.

    Args:
        maps: (N, ...) values.

    Returns:
        (N,) float64, the largest value of the lower group; the object is what lies above it. NaN for a constant map.

    Raises:
        ValueError: a value is not finite.
    """
    if not maps.isfinite().all():
        raise ValueError("the maps hold a value that is not finite; no threshold can be found")
    values = maps.flatten(1).double().sort(1).values
    total = values.shape[1]
    below = torch.arange(1, total, device=values.device)
    lower = values.cumsum(1)[:, :-1]
    difference = lower / below - (values.sum(1, keepdim=True) - lower) / (total - below)
    # Equal values cannot be parted, and nothing lies above the last.
    between = torch.where(values[:, 1:] > values[:, :-1], below * (total - below) * difference**2, -1)
    best, place = F.pad(between, (0, 1), value=-1).max(1)
    return values.gather(1, place.unsqueeze(1)).squeeze(1).masked_fill(best < 0, torch.nan)


def spectral_residual(images: Tensor, side: int = 64) -> Tensor:
    """Compute how much each place stands out, without weights: the spectral residual; Hou and Zhang 2007.

    With amplitude A and phase P of the Fourier transform of the grey image at ``side`` pixels, and a 3 x 3 mean h:
    ``S = g * |F^-1[exp(log A - h * log A + i P)]|^2``, where g is a Gaussian of standard deviation 2.5 pixels. It answers to corners
    and edges more than to the inside of an even object.

    Args:
        images: (N, 3, S, S) uint8.
        side: pixels at which it is computed, S where that is less; the paper's 64. It sets the size of what counts as an object.

    Returns:
        (N, S, S) float64, at least 0, enlarged bilinearly; zeros for an image of one colour.

    Raises:
        ValueError: images that are not (N, 3, S, S) uint8.
    """
    _check(images)
    grey = torch.einsum("nchw,c->nhw", images.cpu().double(), _LUMA).unsqueeze(1)
    flat = grey.amax((1, 2, 3)) - grey.amin((1, 2, 3)) < 1e-6
    # An enlarged image would have nothing at the high frequencies, whose logarithms would then rule.
    side = min(side, images.shape[2])
    small = F.interpolate(grey, size=(side, side), mode="bilinear", antialias=True, align_corners=False).squeeze(1).numpy()
    spectrum = np.fft.fft2(small)
    amplitude = np.abs(spectrum)
    # A frequency that is missing up to rounding has no logarithm; it is set to the rounding error of the largest.
    logarithm = np.log(np.maximum(amplitude, 1e-15 * amplitude.max((1, 2), keepdims=True) + np.finfo(float).tiny))
    residual = logarithm - scipy.ndimage.uniform_filter(logarithm, (1, 3, 3), mode="nearest")
    salient = np.abs(np.fft.ifft2(np.exp(residual + 1j * np.angle(spectrum)))) ** 2
    blurred = torch.from_numpy(scipy.ndimage.gaussian_filter(salient, (0, 2.5, 2.5), mode="nearest"))
    blurred = blurred.masked_fill(flat.view(-1, 1, 1), 0)
    return F.interpolate(blurred.unsqueeze(1), size=images.shape[2:], mode="bilinear", align_corners=False).squeeze(1)


def spectral_residual_masks(images: Tensor, side: int = 64) -> Tensor:
    """Mark where the ``spectral_residual`` is above its Otsu threshold: (N, S, S) bool on the CPU, empty for an image of one colour."""
    maps = (spectral_residual(batch, side) for batch in images.split(256))
    return torch.cat([salient > otsu_thresholds(salient).view(-1, 1, 1) for salient in maps])


def _check(images: Tensor) -> None:
    if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] != images.shape[3] or images.dtype != torch.uint8:
        raise ValueError(f"images must be (N, 3, S, S) uint8, got {images.dtype} of shape {tuple(images.shape)}")


def masks_from_folder(folder: str | Path, names: Sequence[str], size: int, *, otsu: bool = False) -> Tensor:
    """Read the masks that another program made: one image file for each image, of any size and any format that Pillow reads.

    A mask belongs to an image when its path below ``folder`` is the image's name, or when its file name is the last part of it, both
    without their endings. It is squashed to the square like the images, by the nearest pixel.

    Args:
        folder: folder of masks, relative to the project's root, searched with all that lies in it.
        names: one for each image, such as ``ImageSet.names``.
        size: side S of the square masks, pixels.
        otsu: take what is brighter than the Otsu threshold (for grey saliency maps, and for JPEG, whose background is not exactly
            0); else what is not 0, in any channel but transparency, or not index 0 of a palette.

    Returns:
        (N, S, S) bool, in the order of the names; a mask may be empty.

    Raises:
        FileNotFoundError: the folder or some mask is missing; up to three are named.
        ValueError: two files fit one image, two images fit one file, a file lies outside the folder or is no image.
    """
    root = from_root(folder)
    if not root.is_dir():
        raise FileNotFoundError(f"the folder of masks {root} does not exist; set it to the folder that holds one mask for each image")
    files = _assign(root, names)
    return torch.from_numpy(np.array([_read_mask(file, size, otsu) for file in files], dtype=bool).reshape(-1, size, size))


def _assign(root: Path, names: Sequence[str]) -> list[Path]:
    """Find the one file of each name."""
    known: dict[str, set[Path]] = {}
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        for key in (file.relative_to(root).with_suffix("").as_posix(), file.stem):
            known.setdefault(key, set()).add(file)
    found = [next((known[key] for key in _keys(name) if key in known), set()) for name in names]
    missing = [name for name, fits in zip(names, found, strict=True) if not fits]
    if missing:
        raise FileNotFoundError(f"{len(missing)} of {len(names)} images have no mask in {root}, first {', '.join(missing[:3])}")
    for name, fits in zip(names, found, strict=True):
        if len(fits) > 1:
            raise ValueError(f"{len(fits)} masks fit the image {name}, such as {' and '.join(str(file) for file in sorted(fits)[:2])}")
    files = [file for fits in found for file in fits]
    outside = [file for file in files if not file.resolve().is_relative_to(root)]
    if outside:
        raise ValueError(f"the mask {outside[0]} is a link that leaves the folder; copy the file into it")
    if len(set(files)) < len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise ValueError(f"the mask {twice} fits several images; lay the masks in folders as the images are")
    return files


def _keys(name: str) -> tuple[str, ...]:
    """Names of a mask's file in the order of trust: by path or by last part, with the ending too, for a dot need not begin an ending."""
    path = PurePosixPath(name)
    return name, str(path.with_suffix("")), path.name, path.stem


def _read_mask(file: Path, size: int, otsu: bool) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(file) as image:
                levels = _levels(image, otsu)
    except (OSError, ValueError, SyntaxError, EOFError, Image.DecompressionBombError, Image.DecompressionBombWarning) as fault:
        raise ValueError(f"the mask {file} is no readable image ({type(fault).__name__}: {fault})") from fault
    above = float(otsu_thresholds(torch.from_numpy(levels)[None])) if otsu else 0
    inside = Image.fromarray((levels > above).astype(np.uint8))
    return np.asarray(inside.resize((size, size), Image.Resampling.NEAREST)) > 0


def _levels(image: Image.Image, grey: bool) -> np.ndarray:
    """One float64 for each pixel, 0 in the background: (H, W)."""
    if image.mode in ("1", "L", "F", "I") or image.mode.startswith("I;16") or (image.mode == "P" and not grey):
        return np.asarray(image).astype(float)
    channels = np.asarray(image.convert("RGB")).astype(float)
    return channels @ _LUMA.numpy() if grey else channels.max(2)


def segmentation_network(architecture: str, weights_path: str, classes: int = 21) -> nn.Module:
    """Build one of torchvision's segmentation networks with weights that the user has; nothing is downloaded or unpickled.

    Args:
        architecture: one of ``SEGMENTATION_NETWORKS``.
        weights_path: a state dict as ``.safetensors``, ``.pt`` or ``.pth``, relative to the project's root; an auxiliary head is left out.
        classes: outputs of the network: 21 of Pascal VOC with the background first, or 1 logit of the object.

    Raises:
        FileNotFoundError: no such file.
        ValueError: an unknown architecture, a file that is no state dict, or one that does not fit.
    """
    if architecture not in SEGMENTATION_NETWORKS:
        raise ValueError(f"architecture {architecture!r} is unknown; choose one of {', '.join(SEGMENTATION_NETWORKS)}")
    path = from_root(weights_path)
    if not path.is_file():
        raise FileNotFoundError(f"the weights {path} do not exist; save the state dict of a {architecture} there")
    state = {name: value for name, value in weights.read_weights(str(path), architecture).items() if not name.startswith("aux_classifier.")}
    network = torchvision.models.get_model(architecture, weights=None, weights_backbone=None, num_classes=classes)
    try:
        network.load_state_dict(state)
    except RuntimeError as fault:
        raise ValueError(f"{path} does not fit a {architecture} with {classes} classes: {str(fault).splitlines()[1].strip()}") from fault
    return network.eval()


@torch.no_grad()
def network_masks(
    network: nn.Module,
    images: Tensor,
    *,
    normalise_images: Callable[[Tensor], Tensor] = resnet.normalise_images,
    batch_size: int = 32,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Mark what a network takes for an object: ``logit > 0`` for one logit per pixel, else any class but the first, the background.

    Args:
        network: on ``device``, float images (B, 3, S, S) -> logits (B, 1, h, w) or (B, K, h, w), or a dict that has them as "out", as
            torchvision's segmentation networks give. Its mode is left as it was; it runs in evaluation mode.
        images: (N, 3, S, S) uint8.
        normalise_images: uint8 -> float images as the network expects them.
        batch_size: images per forward pass.
        device: where the network is.

    Returns:
        (N, S, S) bool on the CPU; logits are enlarged bilinearly before they are cut. NaN is background.

    Raises:
        ValueError: images that are not (N, 3, S, S) uint8, or other outputs.
    """
    _check(images)
    masks = []
    with hooks.evaluation_mode(network):
        for batch in images.split(batch_size):
            logits = _maps_of(network(normalise_images(batch.to(device))), len(batch))
            logits = F.interpolate(logits.float(), size=images.shape[2:], mode="bilinear", align_corners=False)
            object_logit = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1:].amax(1) - logits[:, 0]
            masks.append((object_logit > 0).cpu())
    return torch.cat(masks)


def _maps_of(output: Tensor | dict[str, Tensor], count: int) -> Tensor:
    logits = output.get("out") if isinstance(output, dict) else output
    if not isinstance(logits, Tensor) or logits.ndim != 4 or len(logits) != count:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(output).__name__}"
        raise ValueError(f"the network puts out {found}; masks need logits ({count}, K, h, w), or a dict that has them as 'out'")
    return logits


_OPENCV = {"spectral_residual_opencv": "SpectralResidual", "fine_grained": "FineGrained", "grab_cut": "FineGrained"}
_GRAB_CUT_ROUNDS, _LEAST_PIXELS = 5, 5  # GrabCut describes object and ground by 5 Gaussians of colour each


def opencv_masks(provider: str, images: Tensor) -> Tensor:
    """Masks of the salient object by OpenCV and its contributed modules, without weights.

    - "spectral_residual_opencv": Hou and Zhang 2007 as OpenCV computes it, above its Otsu threshold;
    - "fine_grained": differences of centre and surround at several scales (Montabone and Soto 2010), above its Otsu threshold;
    - "grab_cut": the last one refined by the colours of object and ground (GrabCut; Rother et al. 2004), 5 rounds.

    Args:
        provider: one of these.
        images: (N, 3, S, S) uint8.

    Returns:
        (N, S, S) bool on the CPU; a mask may be empty.

    Raises:
        ValueError: OpenCV is not installed with its contributed modules, or images that are not (N, 3, S, S) uint8.
    """
    _check(images)
    try:
        import cv2
        from cv2 import saliency
    except ImportError as fault:
        wanted = "OpenCV with its contributed modules, which are not installed: pip install 'generalization-workbook[saliency]'"
        raise ValueError(f"saliency provider {provider!r} needs {wanted}, or choose spectral_residual, which needs nothing") from fault
    detector = getattr(saliency, f"StaticSaliency{_OPENCV[provider]}_create")()
    masks = torch.zeros(len(images), *images.shape[2:], dtype=torch.bool)
    for mask, image in zip(masks, images.permute(0, 2, 3, 1).flip(3).cpu().numpy(), strict=True):  # OpenCV takes blue first
        salient = torch.from_numpy(detector.computeSaliency(np.ascontiguousarray(image))[1])
        mask |= salient > otsu_thresholds(salient.unsqueeze(0)).item()
        if provider == "grab_cut" and _LEAST_PIXELS <= mask.sum() <= mask.numel() - _LEAST_PIXELS:
            cv2.setRNGSeed(0)  # so that no mask depends on those before it
            labels, colours = np.where(mask, cv2.GC_PR_FGD, cv2.GC_PR_BGD).astype(np.uint8), np.zeros((2, 1, 65))
            cv2.grabCut(np.ascontiguousarray(image), labels, None, *colours, _GRAB_CUT_ROUNDS, cv2.GC_INIT_WITH_MASK)
            mask.copy_(torch.from_numpy(labels == cv2.GC_PR_FGD))
    return masks


MASK_PROVIDERS = ("spectral_residual", *_OPENCV, "folder", "network")


def make_masks(
    provider: str, images: ImageSet, *, path: str = "", architecture: str = "", classes: int = 21, device: torch.device | str = "cpu"
) -> Tensor:
    """Mark the salient object of every image.

    Args:
        provider: "spectral_residual" (Hou and Zhang 2007, needs nothing), one of ``opencv_masks``, "folder" (masks that another program
            made, such as MCCL's as in the paper), or "network" (one of torchvision's segmentation networks with weights of the user).
        images: N images.
        path: the folder of masks, or the weights' file; relative to the project's root.
        architecture: of the network, one of ``object_masks.SEGMENTATION_NETWORKS``.
        classes: outputs of the network, see ``object_masks.segmentation_network``.
        device: where the network runs.

    Returns:
        (N, S, S) bool on the CPU; a mask may be empty.

    Raises:
        ValueError: an unknown provider, or one that needs a path or a package and has none.
        FileNotFoundError: a mask or the weights are missing.
    """
    if provider not in MASK_PROVIDERS:
        raise ValueError(f"saliency provider {provider!r} is unknown; choose one of {', '.join(MASK_PROVIDERS)}")
    if provider == "spectral_residual":
        return spectral_residual_masks(images.images)
    if provider in _OPENCV:
        return opencv_masks(provider, images.images)
    if not path:
        wanted = "folder that holds one mask for each image" if provider == "folder" else "file of the network's weights"
        raise ValueError(f"saliency provider {provider!r} needs a path: the {wanted}")
    if provider == "folder":
        return masks_from_folder(path, images.names, images.images.shape[-1])
    network = segmentation_network(architecture, path, classes).to(device)
    return network_masks(network, images.images, device=device)


def image_quality(masks: Tensor, images: ImageSet, batch_size: int = 256) -> pd.DataFrame:
    """Compare each mask with the boxes of its image.

    Returns:
        One row per image: name, iou in [0, 1] with the union of its boxes (0 for an empty mask, NaN where there is no box either),
        empty (no pixel), share (of the image that is mask), floor (IoU of a mask over the whole image: the share that its boxes cover).
    """
    ious = _batched(masks, images, batch_size, overlap.mask_iou)
    iou = torch.cat(ious).double().numpy() if ious else np.empty(0)
    share = masks.flatten(1).double().mean(1).numpy()
    floor = chance.box_areas(images.boxes, images.images.shape[-1]).double().numpy()
    return pd.DataFrame({"name": images.names, "iou": iou, "empty": empty_masks(masks).numpy(), "share": share, "floor": floor})


def mask_quality(masks: Tensor, images: ImageSet, batch_size: int = 256) -> dict[str, float]:
    """Score the masks against the boxes by the metrics of segmentation, over the pixels of all images whose mask is not empty.

    Returns:
        What ``detection.mask_metrics`` gives, then images (N), dropped (empty masks), and means of ``image_quality`` over the images with
        a box: box_iou, whole_image_floor. A provider whose box_iou is below the floor is worse than marking every pixel.
    """
    kept = ~empty_masks(masks)
    parts = _batched(masks[kept], images.subset(np.flatnonzero(kept.numpy())), batch_size, detection.pixel_confusion)
    metrics = detection.mask_metrics(sum(parts, torch.zeros(2, 2, dtype=torch.int64)))
    boxed = image_quality(masks, images, batch_size).dropna(subset="iou").query("floor > 0")
    means = {"box_iou": float(boxed["iou"].mean()), "whole_image_floor": float(boxed["floor"].mean())}
    return metrics | {"images": len(masks), "dropped": int((~kept).sum())} | means


def _batched(masks: Tensor, images: ImageSet, batch_size: int, compare: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
    size = images.images.shape[-1]
    starts = range(0, len(masks), batch_size)
    return [
        compare(masks[start : start + batch_size], overlap.box_masks(images.boxes[start : start + batch_size], size)) for start in starts
    ]


def from_best_to_worst(quality: pd.DataFrame, count: int = 5) -> list[int]:
    """Choose images evenly from the best mask to the worst, as in the paper's Figure 6; those without an IoU are left out.

    Returns:
        Row numbers of ``image_quality``, at most ``count``, all different.
    """
    order = quality["iou"].dropna().sort_values(ascending=False, kind="stable").index.to_numpy()
    places = np.linspace(0, len(order) - 1, min(count, len(order))).round().astype(int)
    return order[places].tolist()

"""Where models look on some images, to be explored by hand: computed when it is asked for, or read from a report."""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from helpers.cams import chance, closed_form, gradient, overlap
from helpers.data.images import ImageSet, StudyData
from helpers.files import complete_or_absent
from helpers.measures import passes
from helpers.networks import hooks, resnet
from helpers.scoring.classification import confusion, read_logits
from helpers.scoring.common_set import ScoringSet, classes_in_turn
from helpers.training.catalogue import load_model, models_of, with_weights

LOOKS = "looks.npz"  # beside the stories of a report
IMAGE_SPLITS = ("training", "test")
PREDICTED_CLASS = -1  # instead of a class: the one that the model predicts, as in the reports
_KEPT = 32  # images of each split in the file of a report
_SIDE = 96  # of a thumbnail at most, pixels
_MODEL_BYTES = 300_000  # of what the file holds of models, before it is compressed
_OF_IMAGES = ("maps", "predicted", "probability", "iou", "energy")  # arrays of the file: a row for each model, in it for each image
_OF_MODELS = (*_OF_IMAGES, "confusion")
_STEPS, _UNDEFINED = 250, 255  # of a kept map from 0 to 1, and what stands for NaN


class ModelLooks(NamedTuple):
    """What one model makes of n images."""

    maps: NDArray[np.float32]  # (n, h, w) normalised maps of the predicted class, NaN where undefined
    predicted: NDArray[np.int64]  # (n,)
    probability: NDArray[np.float32]  # (n,) of the predicted class
    iou: NDArray[np.float32]  # (n,) at the study's threshold, NaN where undefined and without a box
    energy: NDArray[np.float32]  # (n,) in the box, less the box's share of the image; NaN without a box
    confusion: NDArray[np.int64]  # (K, K) of all test images: true class by predicted class


@dataclass(frozen=True)
class Looks:
    """Images of a study and what its models make of them."""

    images: pd.DataFrame  # a row per image: name, split (one of IMAGE_SPLITS), label
    pictures: tuple[bytes, ...]  # JPEG
    boxes: Tensor  # (n, M, 4) half-open pixels; zero rows are padding
    size: int  # side of the images that boxes are measured on, pixels
    class_names: tuple[str, ...]
    threshold: float  # of the maps, in the study
    model_ids: tuple[str, ...]
    of_model: Callable[[str], ModelLooks]
    layers: tuple[str, ...] = ()  # whose maps ``map_by`` gives; none where there are no networks
    map_by: Callable[[str, int, str, str, int], NDArray[np.float32]] | None = None  # (h, w) by model, image, CAM method, layer and class


def open_looks(
    work: Path,
    models: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    *,
    method: str,
    threshold: float,
    device: torch.device | str = "cpu",
    images: int = 120,
) -> Looks | None:
    """Looks of a study's models at its images; a model passes over them when it is first asked for. None without a model with weights.

    Args:
        work: the study's folder.
        models: rows of its catalogue, those to be looked at.
        data: its images.
        scored_on: training images in the order of scoring, classes in turn.
        method: of the maps at the last stage, one of ``closed_form.CLOSED_FORM_METHODS``.
        threshold: of the maps.
        device: where to compute.
        images: of each split, at most.
    """
    if not len(models := with_weights(work, models)):
        return None
    rows = {"training": list(scored_on.rows[:images]), "test": classes_in_turn(data.test.labels)[:images].tolist()}
    taken = [data.train.subset(rows["training"]), data.test.subset(rows["test"])]
    most = max(part.boxes.shape[1] for part in taken)
    boxes = torch.cat([torch.nn.functional.pad(part.boxes, (0, 0, 0, most - part.boxes.shape[1])) for part in taken])
    names, labels = sum((part.names for part in taken), ()), torch.cat([part.labels for part in taken])
    shown = ImageSet(torch.cat([part.images for part in taken]), labels, boxes, names)
    table = pd.DataFrame({"name": names, "split": np.repeat(IMAGE_SPLITS, [len(part) for part in taken]), "label": labels.numpy()})
    by_id = {model.model_id: model for model in models_of(models)}
    load = lru_cache(4)(lambda name: load_model(work, by_id[name], len(data.classes), device))
    seen = partial(_seen, work=work, load=load, images=shown, data=data, method=method, threshold=threshold, device=device)
    example = load(next(iter(by_id)))
    return Looks(
        images=table,
        pictures=tuple(_jpeg(image, image.shape[-1]) for image in shown.images),
        boxes=shown.boxes,
        size=shown.images.shape[-1],
        class_names=tuple(data.classes["class_name"]),
        threshold=threshold,
        model_ids=tuple(by_id),
        of_model=lru_cache(16)(seen),
        layers=tuple(hooks.stage_layers(example, shown.images.shape[-1])),
        map_by=lru_cache(256)(partial(_map_by, load, shown.images, device)),
    )


@torch.inference_mode()
def _seen(
    name: str, *, work: Path, load: Callable, images: ImageSet, data: StudyData, method: str, threshold: float, device: torch.device | str
) -> ModelLooks:
    network, size = load(name), images.images.shape[-1]
    example = hooks.prepared(images.images[:1], resnet.normalise_images, device)
    with hooks.evaluation_mode(network):
        seen = passes.forward_pass(network, images, resnet.normalise_images, device, example, method, 128)
    maps = passes.maps(seen)
    iou = ious_with_boxes(maps, images.boxes, size, threshold)
    found = chance.chance_scores(maps, passes.lowest(seen), images.boxes, size, threshold)
    energy = (found["energy"] - found["box_area"]).to_numpy(np.float32)
    probability, predicted = seen.logits.softmax(1).max(1)
    counts = confusion(read_logits(work, name), data.test.labels)
    return ModelLooks(maps.numpy(), predicted.numpy(), probability.numpy(), iou.numpy(), energy, counts)


def ious_with_boxes(maps: Tensor, boxes: Tensor, size: int, threshold: float) -> Tensor:
    """IoU of each map's mask with the boxes, see ``overlap.iou_and_iou_b``, and NaN for an image without a box: (n,)."""
    return overlap.iou_and_iou_b(maps, boxes, size, threshold)[0].masked_fill(~boxes.flatten(1).any(1), torch.nan)


def _map_by(
    load: Callable, images: Tensor, device: torch.device | str, name: str, image: int, method: str, layer: str, label: int
) -> NDArray[np.float32]:
    """(h, w) normalised map of any method, layer and class for one image; NaN where it is undefined."""
    network = load(name)
    pixels = hooks.prepared(images[[image]], resnet.normalise_images, device)
    with torch.no_grad():
        classes = network(pixels).argmax(1) if label == PREDICTED_CLASS else torch.tensor([label], device=pixels.device)
    maps = gradient.layer_maps(method, network, hooks.named_layer(network, layer), pixels, classes)
    return closed_form.normalise_maps(maps).detach().cpu().numpy()[0]


def _jpeg(image: Tensor, side: int) -> bytes:
    buffer = io.BytesIO()
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    picture.resize((side, side), Image.Resampling.LANCZOS).save(buffer, "jpeg", quality=88)
    return buffer.getvalue()


def keep_looks(looks: Looks, folder: Path) -> Path:
    """Write ``story/looks.npz`` of a report: some images of each split as thumbnails, and what models across all gaps make of them.

    Args:
        looks: of a study, its models sorted by their gap.
        folder: of the report, see ``open_report``.

    Returns:
        The file, of some hundred kilobytes: models are left out, evenly, where all of them would take more than 0.3 MB uncompressed.
    """
    split = looks.images["split"].to_numpy()
    rows = np.concatenate([np.flatnonzero(split == name)[:_KEPT] for name in IMAGE_SPLITS])
    sample = looks.of_model(looks.model_ids[0])
    room = _MODEL_BYTES // (len(rows) * (sample.maps[0].size + 8) + 2 * sample.confusion.size)
    chosen = np.unique(np.linspace(0, len(looks.model_ids) - 1, min(len(looks.model_ids), max(2, room))).round().astype(int))
    names = [looks.model_ids[place] for place in chosen]
    seen = [looks.of_model(name) for name in names]
    maps = np.stack([one.maps[rows] for one in seen])
    thumbnails = [_thumbnail(looks.pictures[row]) for row in rows]
    facts = {"images": looks.images.iloc[rows].to_dict("list"), "size": looks.size, "class_names": looks.class_names}
    facts |= {"threshold": looks.threshold, "model_ids": names}
    arrays = {
        "maps": np.where(np.isfinite(maps), np.nan_to_num(maps) * _STEPS, _UNDEFINED).round().astype(np.uint8),
        "predicted": np.stack([one.predicted[rows] for one in seen]).astype(np.int16),
        **{name: np.stack([getattr(one, name)[rows] for one in seen]).astype(np.float16) for name in ("probability", "iou", "energy")},
        "confusion": np.stack([one.confusion for one in seen]).astype(np.uint16),
        "boxes": looks.boxes[rows].numpy().astype(np.int16),
        "pictures": np.frombuffer(b"".join(thumbnails), np.uint8),
        "picture_bytes": np.array([len(thumbnail) for thumbnail in thumbnails]),
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
    }
    path = folder / "story" / LOOKS
    with complete_or_absent(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    return path


def _thumbnail(jpeg: bytes) -> bytes:
    picture = Image.open(io.BytesIO(jpeg))
    if picture.width <= _SIDE:
        return jpeg
    return _jpeg(torch.from_numpy(np.array(picture)).permute(2, 0, 1), _SIDE)


def read_looks(folder: Path) -> Looks | None:
    """Looks that a report keeps, see ``keep_looks``; None where it keeps none.

    Maps have 250 steps; IoU, energy and probability are those of the exact maps, to three digits.

    Raises:
        ValueError: the file is damaged.
    """
    path = folder / "story" / LOOKS
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as kept:
            arrays = {name: kept[name] for name in kept.files}
        facts = json.loads(arrays["facts"].tobytes())
        ends = arrays["picture_bytes"].cumsum()
        starts = ends - arrays["picture_bytes"]
        maps = np.where(arrays["maps"] == _UNDEFINED, np.nan, arrays["maps"] / np.float32(_STEPS)).astype(np.float32)
        names, images = tuple(facts["model_ids"]), pd.DataFrame(facts["images"])
        lengths = {len(images), len(ends), len(arrays["boxes"]), *(arrays[name].shape[1] for name in _OF_IMAGES)}
        if len(lengths) > 1 or ends[-1] != len(arrays["pictures"]) or any(len(arrays[name]) < len(names) for name in _OF_MODELS):
            raise ValueError("what it holds is not of the same images and models")
        of_models = _by_name(names, maps, arrays)
        return Looks(
            images=images,
            pictures=tuple(arrays["pictures"][low:high].tobytes() for low, high in zip(starts, ends, strict=True)),
            boxes=torch.from_numpy(arrays["boxes"]),
            size=facts["size"],
            class_names=tuple(facts["class_names"]),
            threshold=facts["threshold"],
            model_ids=names,
            of_model=of_models.__getitem__,
        )
    except Exception as fault:  # readers of damaged files raise nearly every kind
        raise ValueError(f"{path} is damaged ({fault}); take it from the repository again, or run 03_cam_scoring for it") from fault


def _by_name(names: Sequence[str], maps: NDArray[np.float32], arrays: dict[str, NDArray]) -> dict[str, ModelLooks]:
    floats = [arrays[name].astype(np.float32) for name in ("probability", "iou", "energy")]
    whole = [arrays[name].astype(np.int64) for name in ("predicted", "confusion")]
    return {
        name: ModelLooks(maps[at], whole[0][at], floats[0][at], floats[1][at], floats[2][at], whole[1][at]) for at, name in enumerate(names)
    }

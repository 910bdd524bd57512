"""Where does it look: two models on one image, by CAM method, layer, class and threshold, as rows of tiles in one PNG."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import matplotlib.colors
import numpy as np
import pandas as pd
import torch
from ipywidgets import Dropdown, FloatSlider, SelectionSlider
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from helpers.cams import closed_form, gradient, overlap
from helpers.data.dataset import StudyData
from helpers.networks import hooks, resnet
from helpers.report import cams
from helpers.report.explore.panel import Panel, View, control_layout, html_table, number, png
from helpers.report.style import percent
from helpers.training import catalogue

Pixels = NDArray[np.uint8]


BOX, CAM_BOX = "#ffd400", "#00d5ff"  # the annotated box, and the rectangle around the mask


OVERLAP = ("neither", "mask only", "box only", "both")


TILES = ("image and box", "map of the layer", "enlarged", "mask and its rectangle", "overlap with the box")


_SIDE = 190  # least side of a tile, pixels


_GAP, _HEAD, _FONT = 8, 22, 13


class Look(NamedTuple):
    """One model on one image."""

    image: Tensor  # (3, S, S) uint8
    boxes: Tensor  # (M, 4) half-open pixels; zero rows are padding
    heat_map: Tensor  # (h, w) normalised map, NaN where it is undefined
    enlarged: Tensor  # (S, S)
    mask: Tensor  # (S, S) bool
    box_mask: Tensor  # (S, S) bool
    cam_box: Tensor  # (4,) rectangle around the mask, zeros for an empty one
    iou: float  # NaN where it is undefined
    iou_b: float
    predicted: int
    probability: float  # of the predicted class


def overlap_colours() -> list[str]:
    """Colours of ``OVERLAP`` as hex, from dark to light, so that they differ in print as well."""
    return [matplotlib.colors.to_hex(matplotlib.colormaps["cividis"](value / 3)) for value in range(4)]


def mosaic(looks: Sequence[Look], titles: Sequence[str]) -> Pixels:
    """Draw a row of five tiles per model: image, map, enlarged map, mask, overlap.

    Args:
        looks: at least one, all on images of one size.
        titles: a heading for each row.

    Returns:
        (H, W, 3) pixels.
    """
    rows = [_tiles(look) for look in looks]
    side = rows[0][0].width
    size = (len(TILES) * (side + _GAP), _HEAD + len(rows) * (_HEAD + side + _GAP))
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    font = ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts/ttf/DejaVuSans.ttf"), _FONT)  # that of the figures
    for column, name in enumerate(TILES):
        pen.text((column * (side + _GAP), 2), name, "black", font)
    for row, (tiles, title) in enumerate(zip(rows, titles, strict=True)):
        top = _HEAD + row * (_HEAD + side + _GAP)
        pen.text((0, top + 2), title, "black", font)
        for column, tile in enumerate(tiles):
            sheet.paste(tile, (column * (side + _GAP), top + _HEAD))
    return np.asarray(sheet)


def _tiles(look: Look) -> list[Image.Image]:
    image = look.image.permute(1, 2, 0).numpy()
    factor = max(1, -(-_SIDE // len(image)))
    heat = _coloured(look.enlarged)
    dimmed = np.where(look.mask.numpy()[..., None], image, image // 4)
    overlap = _shades("cividis", (look.mask.int() + 2 * look.box_mask.int()).numpy() / 3)
    side = factor * len(image)
    tiles = [
        _enlarged(image, side),
        _enlarged(_coloured(look.heat_map), side),
        _enlarged((0.45 * image + 0.55 * heat).astype(np.uint8), side),
        _enlarged(dimmed, side),
        _enlarged(overlap, side),
    ]
    _outline(tiles[0], look.boxes, factor, BOX)
    _outline(tiles[3], look.boxes, factor, BOX)
    _outline(tiles[3], look.cam_box, factor, CAM_BOX)
    return tiles


def _coloured(heat: Tensor) -> Pixels:
    return _shades("viridis", heat.nan_to_num(0).numpy())


def _shades(name: str, values: NDArray) -> Pixels:
    return (255 * matplotlib.colormaps[name](values)[..., :3]).astype(np.uint8)


def _enlarged(pixels: Pixels, side: int) -> Image.Image:
    return Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST)  # pixels as they are


def _outline(tile: Image.Image, boxes: Tensor, factor: int, colour: str) -> None:
    pen = ImageDraw.Draw(tile)
    for x0, y0, x1, y1 in boxes.reshape(-1, 4).tolist():
        if x1 > x0 and y1 > y0:
            pen.rectangle((factor * x0, factor * y0, factor * x1 - 1, factor * y1 - 1), outline=colour, width=2)


PREDICTED_CLASS = -1  # instead of a class: the one that the model predicts, as in the reports


_NETWORKS, _FEATURES, _MAPS = 4, 32, 1024  # kept in memory


class Heat(NamedTuple):
    """What a model gives for one image."""

    maps: Tensor  # (1, h, w) normalised
    predicted: int
    probability: float


class Lens:
    """The models of a study and their images, with what was asked of them kept for as long as an explorer is open."""

    def __init__(self, work: Path, models: pd.DataFrame, data: StudyData, device: torch.device | str) -> None:
        """Take the models by their id."""
        self.models, self.data = models.set_index("model_id", drop=False), data
        self._work, self._device = work, device
        self._records = {model.model_id: model for model in catalogue.models_of(models)}
        self.network = lru_cache(_NETWORKS)(self._network)
        self.weight = lru_cache(_NETWORKS)(self._weight)
        self.features = lru_cache(_FEATURES)(self._features)
        self.heat = lru_cache(_MAPS)(self._heat)

    def _network(self, model_id: str) -> nn.Module:
        return catalogue.load_model(self._work, self._records[model_id], len(self.data.classes), self._device)

    def _pixels(self, image: int) -> Tensor:
        return resnet.normalise_images(self.data.train.images[[image]].to(self._device)).contiguous(memory_format=torch.channels_last)

    def _weight(self, model_id: str) -> Tensor:
        network = self.network(model_id)
        return closed_form.check_closed_form(network, hooks.named_layer(network, resnet.CAM_LAYER), self._pixels(0)).weight.detach()

    @torch.no_grad()
    def _features(self, model_id: str, image: int, layer: str) -> tuple[Tensor, Tensor]:
        network = self.network(model_id)
        return hooks.features_and_logits(network, hooks.named_layer(network, layer), self._pixels(image))

    def _heat(self, model_id: str, image: int, method: str, layer: str, label: int) -> Heat:
        features, logits = self.features(model_id, image, layer)
        predicted = logits.argmax(1)
        classes = predicted if label == PREDICTED_CLASS else torch.full_like(predicted, label)
        if layer == resnet.CAM_LAYER and method in closed_form.CLOSED_FORM_METHODS:  # as the reports compute it
            maps = closed_form.closed_form_cam(method, features, self.weight(model_id), classes)
        else:
            network = self.network(model_id)
            maps = gradient.layer_maps(method, network, hooks.named_layer(network, layer), self._pixels(image), classes)
        return Heat(closed_form.normalise_maps(maps).cpu(), int(predicted), float(logits.softmax(1).amax()))

    def look(self, model_id: str, image: int, method: str, layer: str, label: int, threshold: float) -> Look:
        """Take one model through one image.

        Args:
            model_id: one of the models.
            image: index of a training image.
            method: one of ``gradient.GRADIENT_METHODS``.
            layer: name of a module of the network.
            label: the class whose evidence is shown, or ``PREDICTED``.
            threshold: of the map, in (0, 1).
        """
        heat, images = self.heat(model_id, image, method, layer, label), self.data.train
        size, boxes = images.images.shape[-1], images.boxes[[image]]
        mask = overlap.cam_masks(heat.maps, size, threshold)
        iou, iou_b = overlap.iou_and_iou_b(heat.maps, boxes, size, threshold)
        return Look(
            image=images.images[image],
            boxes=boxes[0],
            heat_map=heat.maps[0],
            enlarged=overlap.upsample(heat.maps, size)[0],
            mask=mask[0],
            box_mask=overlap.box_masks(boxes, size)[0],
            cam_box=overlap.bounding_rectangles(mask)[0],
            iou=float(iou),
            iou_b=float(iou_b),
            predicted=heat.predicted,
            probability=heat.probability,
        )


def look_explorer(work: Path, models: pd.DataFrame, data: StudyData, *, method: str, threshold: float, device: torch.device | str) -> Panel:
    """Make the explorer; see ``explore.where_it_looks``."""
    models = models.dropna(subset="gap").sort_values("gap", kind="stable", ignore_index=True)
    if not len(models):
        raise ValueError("no model has a gap, so there is none to look at; every run diverged, or none is complete")
    method = "grad_cam" if method == "cam" else method
    if method not in gradient.GRADIENT_METHODS or not 0 < threshold < 1:
        raise ValueError(
            f"CAM method {method!r} must be one of {', '.join(gradient.GRADIENT_METHODS)}, threshold {threshold} between 0 and 1"
        )
    lens = Lens(work, models, data, device)
    layers = list(hooks.stage_layers(lens.network(models["model_id"].iloc[0]), data.train.images.shape[-1]))
    controls = _controls(models, data, layers, method, threshold)

    def images_of_class(change: dict[str, Any]) -> None:
        controls["image"].options = _images(data, change["new"])

    controls["shown"].observe(images_of_class, "value")

    def draw(left: str, right: str, shown: int, image: int, **asked: Any) -> View:
        looks = {name: lens.look(model, image, **asked) for name, model in (("left", left), ("right", right))}
        rows = [lens.models.loc[model] for model in (left, right)]
        picture = mosaic(list(looks.values()), [cams.model_title(row) for row in rows])
        names = data.classes["class_name"].tolist()
        reading = html_table([_row(row, look, names) for row, look in zip(rows, looks.values(), strict=True)])
        return View(png(picture), f"<p>{_legend()}</p>{reading}", looks)

    return Panel("Where does it look?", controls, draw)


def _controls(models: pd.DataFrame, data: StudyData, layers: list[str], method: str, threshold: float) -> dict[str, Any]:
    offered = [(f"{cams.model_title(model)} · {model['model_id']}", model["model_id"]) for _, model in models.iterrows()]
    classes = list(zip(data.classes["class_name"], data.classes["label"].tolist(), strict=True))
    pictured = set(data.train.labels.tolist())
    first = min(pictured)
    wide, usual = control_layout("52rem"), control_layout()
    return {
        "left": Dropdown(options=offered, value=offered[0][1], description="upper model", **wide),
        "right": Dropdown(options=offered, value=offered[-1][1], description="lower model", **wide),
        "shown": Dropdown(options=[item for item in classes if item[1] in pictured], value=first, description="images of class", **usual),
        "image": SelectionSlider(options=_images(data, first), description="image", **usual),
        "method": Dropdown(options=gradient.GRADIENT_METHODS, value=method, description="CAM method", **usual),
        "layer": Dropdown(options=layers, value=layers[-1], description="layer", **usual),
        "label": Dropdown(options=[("the predicted class", PREDICTED_CLASS), *classes], description="evidence for", **usual),
        "threshold": FloatSlider(value=threshold, min=0.01, max=0.99, step=0.01, description="threshold", **usual),
    }


def _images(data: StudyData, label: int) -> list[tuple[str, int]]:
    indices = (data.train.labels == label).nonzero().flatten().tolist()
    return [(Path(data.train.names[index]).name, index) for index in indices]


def _row(model: pd.Series, look: Look, names: list[str]) -> dict[str, str]:
    row = {
        "model": model["model_id"],
        "predicts": f"{names[look.predicted]} ({percent(look.probability)})",
        "IoU": number(look.iou),
        "IoU-B": number(look.iou_b),
        "mask covers": percent(float(look.mask.float().mean())),
        "box covers": percent(float(look.box_mask.float().mean())),
    }
    return row | ({"its mean IoU": number(model["iou"])} if "iou" in model else {})


def _legend() -> str:
    pairs = [
        ("box", BOX),
        ("rectangle around the mask", CAM_BOX),
        *zip(OVERLAP, overlap_colours(), strict=True),
    ]
    return " &nbsp; ".join(f"<span style='color: {colour}; -webkit-text-stroke: 1px grey'>&#9632;</span> {name}" for name, colour in pairs)

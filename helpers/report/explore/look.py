"""Where does it look: two models on one image, by CAM method, layer, class and threshold."""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from ipywidgets import Dropdown, FloatSlider, SelectionSlider
from torch import Tensor, nn

from helpers import cams, findings, layer_cams, localization, model_set
from helpers import models as networks
from helpers.datasets import StudyData
from helpers.explore import mosaic
from helpers.explore.mosaic import Look
from helpers.explore.panel import Panel, View, control_layout, number, png, table
from helpers.readings import percent

PREDICTED = -1  # instead of a class: the one that the model predicts, as in the reports
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
        self.network = lru_cache(_NETWORKS)(self._network)
        self.weight = lru_cache(_NETWORKS)(self._weight)
        self.features = lru_cache(_FEATURES)(self._features)
        self.heat = lru_cache(_MAPS)(self._heat)

    def _network(self, model_id: str) -> nn.Module:
        return model_set.load_model(self._work, self.models.loc[model_id], len(self.data.classes), self._device)

    def _pixels(self, image: int) -> Tensor:
        return networks.normalise(self.data.train.images[[image]].to(self._device)).contiguous(memory_format=torch.channels_last)

    def _weight(self, model_id: str) -> Tensor:
        network = self.network(model_id)
        return cams.check_closed_form(network, layer_cams.named_layer(network, networks.CAM_LAYER), self._pixels(0)).weight.detach()

    @torch.no_grad()
    def _features(self, model_id: str, image: int, layer: str) -> tuple[Tensor, Tensor]:
        network = self.network(model_id)
        return cams.features_and_logits(network, layer_cams.named_layer(network, layer), self._pixels(image))

    def _heat(self, model_id: str, image: int, method: str, layer: str, label: int) -> Heat:
        features, logits = self.features(model_id, image, layer)
        predicted = logits.argmax(1)
        classes = predicted if label == PREDICTED else torch.full_like(predicted, label)
        if layer == networks.CAM_LAYER and method in cams.METHODS:  # as the reports compute it
            maps = cams.closed_form_cam(method, features, self.weight(model_id), classes)
        else:
            network = self.network(model_id)
            maps = layer_cams.layer_maps(method, network, layer_cams.named_layer(network, layer), self._pixels(image), classes)
        return Heat(cams.normalise(maps).cpu(), int(predicted), float(logits.softmax(1).amax()))

    def look(self, model_id: str, image: int, method: str, layer: str, label: int, threshold: float) -> Look:
        """Take one model through one image.

        Args:
            model_id: one of the models.
            image: index of a training image.
            method: one of ``layer_cams.METHODS``.
            layer: name of a module of the network.
            label: the class whose evidence is shown, or ``PREDICTED``.
            threshold: of the map, in (0, 1).
        """
        heat, images = self.heat(model_id, image, method, layer, label), self.data.train
        size, boxes = images.images.shape[-1], images.boxes[[image]]
        mask = localization.cam_masks(heat.maps, size, threshold)
        iou, iou_b = localization.iou_and_iou_b(heat.maps, boxes, size, threshold)
        return Look(
            image=images.images[image],
            boxes=boxes[0],
            heat_map=heat.maps[0],
            enlarged=localization.upsample(heat.maps, size)[0],
            mask=mask[0],
            box_mask=localization.box_masks(boxes, size)[0],
            cam_box=localization.bounding_rectangles(mask)[0],
            iou=float(iou),
            iou_b=float(iou_b),
            predicted=heat.predicted,
            probability=heat.probability,
        )


def explorer(work: Path, models: pd.DataFrame, data: StudyData, *, method: str, threshold: float, device: torch.device | str) -> Panel:
    """Make the explorer; see ``explore.where_it_looks``."""
    models = models.dropna(subset="gap").sort_values("gap", kind="stable", ignore_index=True)
    if not len(models):
        raise ValueError("no model has a gap, so there is none to look at; every run diverged, or none is complete")
    method = "grad_cam" if method == "cam" else method
    if method not in layer_cams.METHODS or not 0 < threshold < 1:
        raise ValueError(f"CAM method {method!r} must be one of {', '.join(layer_cams.METHODS)}, threshold {threshold} between 0 and 1")
    lens = Lens(work, models, data, device)
    layers = list(layer_cams.stage_layers(lens.network(models["model_id"].iloc[0]), data.train.images.shape[-1]))
    controls = _controls(models, data, layers, method, threshold)

    def images_of_class(change: dict[str, Any]) -> None:
        controls["image"].options = _images(data, change["new"])

    controls["shown"].observe(images_of_class, "value")

    def draw(left: str, right: str, shown: int, image: int, **asked: Any) -> View:
        looks = {name: lens.look(model, image, **asked) for name, model in (("left", left), ("right", right))}
        rows = [lens.models.loc[model] for model in (left, right)]
        picture = mosaic.mosaic(list(looks.values()), [findings.model_title(row) for row in rows])
        names = data.classes["class_name"].tolist()
        reading = table([_row(row, look, names) for row, look in zip(rows, looks.values(), strict=True)])
        return View(png(picture), f"<p>{_legend()}</p>{reading}", looks)

    return Panel("Where does it look?", controls, draw)


def _controls(models: pd.DataFrame, data: StudyData, layers: list[str], method: str, threshold: float) -> dict[str, Any]:
    offered = [(f"{findings.model_title(model)} · {model['model_id']}", model["model_id"]) for _, model in models.iterrows()]
    classes = list(zip(data.classes["class_name"], data.classes["label"].tolist(), strict=True))
    pictured = set(data.train.labels.tolist())
    first = min(pictured)
    wide, usual = control_layout("52rem"), control_layout()
    return {
        "left": Dropdown(options=offered, value=offered[0][1], description="upper model", **wide),
        "right": Dropdown(options=offered, value=offered[-1][1], description="lower model", **wide),
        "shown": Dropdown(options=[item for item in classes if item[1] in pictured], value=first, description="images of class", **usual),
        "image": SelectionSlider(options=_images(data, first), description="image", **usual),
        "method": Dropdown(options=layer_cams.METHODS, value=method, description="CAM method", **usual),
        "layer": Dropdown(options=layers, value=layers[-1], description="layer", **usual),
        "label": Dropdown(options=[("the predicted class", PREDICTED), *classes], description="evidence for", **usual),
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
        ("box", mosaic.BOX),
        ("rectangle around the mask", mosaic.CAM_BOX),
        *zip(mosaic.OVERLAP, mosaic.overlap_colours(), strict=True),
    ]
    return " &nbsp; ".join(f"<span style='color: {colour}; -webkit-text-stroke: 1px grey'>&#9632;</span> {name}" for name, colour in pairs)

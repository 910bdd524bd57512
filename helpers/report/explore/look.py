"""Where does it look: a gallery of images, sorted by what models make of them, with one of them large beside up to four models."""

import base64
from collections.abc import Mapping, Sequence
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import Any

import contourpy
import numpy as np
import pandas as pd
import torch
from ipywidgets import Checkbox, Dropdown, FloatSlider, Widget
from numpy.typing import NDArray

from helpers.cams import overlap
from helpers.cams.maps import GRADIENT_METHODS
from helpers.networks import resnet
from helpers.report import cams
from helpers.report.explore.panel import Gallery, Panel, View, choice_of_several, control_layout, number
from helpers.report.style import count, percent
from helpers.scoring.looks import IMAGE_SPLITS, PREDICTED_CLASS, Looks, ModelLooks, ious_with_boxes

MOST_MODELS = 4
MODEL_COLOURS = ("#00d5ff", "#ff5da2", "#7bdc3c", "#ff9a1f")  # of the contours, by the place of the model
BOX_COLOUR = "#ffd400"
GRID_IMAGES = 20  # pictures that the grid shows at once
_FINE = 64  # side of the grid that contours are drawn and masks are compared on, at most
ORDERS = {
    "IoU, lowest first": ("iou", 1),
    "IoU, highest first": ("iou", -1),
    "energy in the box, lowest first": ("energy", 1),
    "energy in the box, highest first": ("energy", -1),
    "disagreement of the maps, largest first": ("disagreement", -1),
    "file name": ("name", 1),
}


def at_most(chosen: Sequence[str]) -> tuple[str, ...]:
    """The first of the chosen models, as many as have a colour."""
    return tuple(chosen)[:MOST_MODELS]


def outlines(heat: NDArray[np.floating], size: int, threshold: float) -> str:
    """SVG path around where an enlarged map reaches the threshold, in pixels of the image; "" where it does nowhere, or is undefined.

    Args:
        heat: (h, w) normalised map.
        size: side S of the image, pixels; up to 64 the path runs around the mask that is scored, above that within a pixel or so.
        threshold: in (0, 1).
    """
    if not np.isfinite(heat).all():
        return ""
    side = min(size, _FINE)
    values = np.pad(overlap.upsample(torch.as_tensor(heat)[None].float(), side)[0].numpy(), 1)  # so that paths close at the border
    places = (np.arange(-1, side + 1) + 0.5).clip(0, side) * size / side
    lines = contourpy.contour_generator(places, places, values).lines(threshold)
    return " ".join("M" + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) + "Z" for line in lines)


def image_table(looks: Looks, models: Sequence[str], threshold: float) -> pd.DataFrame:
    """What the chosen models make of every image, a row each, in the order of ``looks``.

    Returns:
        name, split, label; iou and energy, means over the models; disagreement, the mean over pairs of models of 1 less the IoU of their
        masks, NaN below two models or where no mask has a pixel; wrong, whether any model errs.
    """
    seen = [looks.of_model(name) for name in models]
    ious = np.stack([_ious(looks, one, threshold) for one in seen])
    side = min(looks.size, _FINE)
    masks = [overlap.cam_masks(torch.from_numpy(one.maps).nan_to_num(0), side, threshold) for one in seen]
    pairs = [1 - overlap.mask_iou(a, b).numpy() for place, a in enumerate(masks) for b in masks[place + 1 :]]
    wrong = np.stack([one.predicted for one in seen]) != looks.images["label"].to_numpy()
    found = {"iou": ious.mean(0), "energy": np.stack([one.energy for one in seen]).mean(0)}
    found |= {"disagreement": np.mean(pairs, axis=0) if pairs else np.nan, "wrong": wrong.any(0)}
    return looks.images.assign(**found)


def _ious(looks: Looks, seen: ModelLooks, threshold: float) -> NDArray[np.floating]:
    if threshold == looks.threshold:
        return seen.iou
    return ious_with_boxes(torch.from_numpy(seen.maps), looks.boxes, looks.size, threshold).numpy()


def in_order(table: pd.DataFrame, split: str, classes: Sequence[int], wrong_only: bool, order: str) -> list[int]:
    """Rows of ``image_table`` that pass the filters, sorted; what is undefined comes last.

    Args:
        table: see ``image_table``.
        split: one of ``IMAGE_SPLITS``, or "both".
        classes: labels; none keeps all.
        wrong_only: keep only images where a model errs.
        order: one of ``ORDERS``.
    """
    kept = table if split == "both" else table[table["split"] == split]
    kept = kept[kept["label"].isin(classes)] if len(classes) else kept
    kept = kept[kept["wrong"]] if wrong_only else kept
    column, sign = ORDERS[order]
    return kept.sort_values(column, ascending=sign > 0, kind="stable").index.tolist()


def look_explorer(models: pd.DataFrame, looks: Looks) -> Panel:
    """The gallery; see ``explore.where_it_looks``."""
    rows = models.drop_duplicates("model_id").set_index("model_id", drop=False)
    offered = [name for name in looks.model_ids if name in rows.index]
    if not offered:
        raise ValueError("no model has a gap and a map, so there is none to look at; every run diverged, or none is complete")
    controls, gallery = _controls(rows.loc[offered], looks), Gallery()

    @lru_cache(16)
    def table(chosen: tuple[str, ...], threshold: float) -> pd.DataFrame:
        return image_table(looks, chosen, threshold)

    @lru_cache(16)
    def grid(chosen: tuple[str, ...], threshold: float, first: int, shown: tuple[int, ...]) -> str:
        found = table(chosen, threshold)
        return "".join(_small(looks, chosen, found.loc[image], first + place, threshold) for place, image in enumerate(shown))

    def draw(
        models: Sequence[str], split: str, classes: Sequence[int], order: str, wrong_only: bool, threshold: float, at: int, **asked: Any
    ) -> View:
        chosen = at_most(models) or (offered[0],)
        found = table(chosen, threshold)
        shown = in_order(found, split, classes, wrong_only, order)
        at = min(at, max(0, len(shown) - 1))
        first = at // GRID_IMAGES * GRID_IMAGES
        with gallery.hold_sync():
            gallery.count, gallery.value = len(shown), at
            gallery.grid = grid(chosen, threshold, first, tuple(shown[first : first + GRID_IMAGES]))
            gallery.detail = _large(looks, rows, chosen, shown[at], threshold, asked) if shown else ""
        legend = " &nbsp; ".join(
            _key(colour, cams.model_title(rows.loc[name])) for name, colour in zip(chosen, MODEL_COLOURS, strict=False)
        )
        said = f"{at + 1} of {count(len(shown), 'image')}; the left and right keys go on." if shown else "No image passes the filters."
        reading = f"<p>{said} {_key(BOX_COLOUR, 'box')} &nbsp; {legend}. Contours: {threshold:g} of the map's maximum.</p>"
        return View(reading, {"images": shown, "table": found, "chosen": chosen, "at": at})

    def to_the_first(change: Mapping[str, Any]) -> None:
        gallery.value = 0

    for name in ("models", "split", "classes", "order", "wrong_only"):
        controls[name].observe(to_the_first, "value")
    return Panel("Where does it look?", controls | {"at": gallery}, draw, [gallery])


def _controls(models: pd.DataFrame, looks: Looks) -> dict[str, Widget]:
    titles = [(f"{cams.model_title(model)} · {name}", name) for name, model in models.iterrows()]
    first = tuple(dict.fromkeys([titles[0][1], titles[-1][1]]))
    classes = [(looks.class_names[label], label) for label in sorted(set(looks.images["label"]))]
    usual = control_layout()
    controls = {
        "models": choice_of_several(titles, f"up to {MOST_MODELS} models", first, rows=6, width="48rem"),
        "classes": choice_of_several(classes, "classes (none: all)", rows=6, width="20rem"),
        "split": Dropdown(options=[(f"{name} images", name) for name in IMAGE_SPLITS] + [("both", "both")], description="show", **usual),
        "order": Dropdown(options=list(ORDERS), description="sorted by", **usual),
        "wrong_only": Checkbox(description="wrong predictions only", indent=False, **control_layout("14rem")),
        "threshold": FloatSlider(value=looks.threshold, min=0.01, max=0.99, step=0.01, description="threshold", **usual),
    }
    if looks.map_by is not None:
        labels = [("the predicted class", PREDICTED_CLASS), *zip(looks.class_names, range(len(looks.class_names)), strict=True)]
        methods = [("the scored one", ""), *zip(GRADIENT_METHODS, GRADIENT_METHODS, strict=True)]
        controls["method"] = Dropdown(options=methods, description="large map by", **usual)
        controls["layer"] = Dropdown(options=looks.layers, value=looks.layers[-1], description="of layer", **usual)
        controls["label"] = Dropdown(options=labels, description="evidence for", **usual)
    return controls


def _small(looks: Looks, models: Sequence[str], row: pd.Series, place: int, threshold: float) -> str:
    maps = [looks.of_model(name).maps[row.name] for name in models]
    told = f"IoU {number(row['iou'], 2)}" if np.isfinite(row["iou"]) else ""
    wrong = " <span class='wrong'>✗</span>" if row["wrong"] else ""
    name, label = escape(Path(row["name"]).name), escape(looks.class_names[row["label"]])
    caption = f"<figcaption>{name}<br>{label}{wrong}<br>{told}</figcaption>"
    return f"<figure data-at='{place}'>{_svg(looks, row.name, maps, threshold)}{caption}</figure>"


def _large(looks: Looks, rows: pd.DataFrame, models: Sequence[str], image: int, threshold: float, asked: Mapping[str, Any]) -> str:
    facts = looks.images.loc[image]
    head = f"<p><b>{escape(str(facts['name']))}</b>, {escape(looks.class_names[facts['label']])}, {facts['split']} image</p>"
    parts = [f"<figure>{_svg(looks, image, [], threshold)}<figcaption>image and box</figcaption></figure>"]
    for name, colour in zip(models, MODEL_COLOURS, strict=False):
        seen = looks.of_model(name)
        heat, iou, energy = seen.maps[image], float(_ious(looks, seen, threshold)[image]), number(float(seen.energy[image]))
        default = asked.get("label", PREDICTED_CLASS) == PREDICTED_CLASS and asked.get("layer", resnet.CAM_LAYER) == resnet.CAM_LAYER
        if looks.map_by is not None and not (default and not asked["method"]):
            heat = looks.map_by(name, image, asked["method"] or "grad_cam", asked["layer"], asked["label"])
            iou, energy = _iou_of(looks, heat, image, threshold), "of the scored map only"
        right = seen.predicted[image] == facts["label"]
        told = f"predicts {escape(looks.class_names[seen.predicted[image]])} ({percent(float(seen.probability[image]))})"
        verdict = "✓" if right else "<span class='wrong'>✗</span>"
        caption = f"{_key(colour, cams.model_title(rows.loc[name]))}<br>{told} {verdict}<br>IoU {number(iou)}, energy in the box {energy}"
        picture = _svg(looks, image, [heat], threshold, [colour])
        parts.append(f"<figure>{picture}<figcaption>{caption}<br><small>{escape(name)}</small></figcaption></figure>")
    return head + "".join(parts)


def _iou_of(looks: Looks, heat: NDArray[np.floating], image: int, threshold: float) -> float:
    return float(ious_with_boxes(torch.from_numpy(heat)[None], looks.boxes[[image]], looks.size, threshold))


def _svg(looks: Looks, image: int, maps: Sequence[NDArray], threshold: float, colours: Sequence[str] = MODEL_COLOURS) -> str:
    """A photograph with its boxes and the contour of each map, whose lines keep their width however large it is drawn."""
    size, line = looks.size, "fill='none' vector-effect='non-scaling-stroke'"
    drawn = [f"<image href='data:image/jpeg;base64,{base64.b64encode(looks.pictures[image]).decode()}' width='{size}' height='{size}'/>"]
    for x0, y0, x1, y1 in looks.boxes[image].tolist():
        if x1 > x0 and y1 > y0:
            place = f"x='{x0}' y='{y0}' width='{x1 - x0}' height='{y1 - y0}'"
            drawn.append(f"<rect {place} {line} stroke='{BOX_COLOUR}' stroke-width='2'/>")
    for heat, colour in zip(maps, colours, strict=False):
        path = outlines(heat, size, threshold)
        drawn += [f"<path d='{path}' {line} stroke='{hue}' stroke-width='{width}'/>" for hue, width in (("black", 4), (colour, 2)) if path]
    return f"<svg viewBox='0 0 {size} {size}' role='img'>{''.join(drawn)}</svg>"


def _key(colour: str, text: str) -> str:
    return f"<span style='color: {colour}; -webkit-text-stroke: 1px grey'>&#9632;</span> {escape(text)}"

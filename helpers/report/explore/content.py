"""Content of the explorers, as values that explore.js draws.

Networks with their gap, kind and facts, and their measures, maps or curves.
"""

from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from numpy.typing import ArrayLike, NDArray

from helpers.cams import localize
from helpers.measures.registry import MEASURES
from helpers.report import tables
from helpers.report.markup import in_words, kind_words
from helpers.report.style import colours, in_order, short_name
from helpers.scores.measuring import with_measures
from helpers.scores.published_maps import read_maps
from helpers.statistics.primary import primary_rows
from helpers.training.config import PAPER_AXES

Content = dict[str, Any]
AXES = (*PAPER_AXES, "images_per_class", "label_noise", "repeat", "snapshot")
METRICS = {
    "train_loss": "training loss (nats)",
    "train_accuracy": "training accuracy (%)",
    "monitor_accuracy": "held-out accuracy (%)",
}
# Facts that a reader sees who clicks on a network.
_CARD = (
    *("kind", *AXES, "train_accuracy", "test_accuracy", "gap"),
    *("epoch", "stop_reason", "model_id"),
)
_PRIMARY = "of the primary analysis"
# Measures of a map that is cut at a threshold; and measures without a threshold, with
# the rule by which they cut it.
_AT_THRESHOLDS = ("iou_above_shuffled", "iou")
_BY_RULES = {"area_matched_iou": "area", "pointing_game": "maximum"}
_WITH_CHANCE = ", chance not subtracted"
_PICTURES = 12  # images in each row of the gallery
# First images, in which classes take turns, that overlaps are computed from.
_IMAGES = 200


def of_report(folder: Path) -> list[Content]:
    """The content of each explorer for which the report has the tables or maps."""
    catalogue = tables.read(folder, "catalogue")
    if catalogue is None:
        return []
    models = catalogue[catalogue["left_out"].isna()]
    contents = []
    scores = tables.read(folder, "scores", ".parquet")
    listing = tables.read(folder, "measures")
    if scores is not None and listing is not None:
        listing = listing[listing["direction"] != 0]
        models = with_measures(models, scores, listing)
        titles = listing.set_index("column")["title"].to_dict()
        primary = tables.read(folder, "primary")
        first = [] if primary is None else primary["measure"]
        order = dict.fromkeys([*first, *titles])
        titles = {name: titles[name] for name in order if name in titles}
        contents.append(measures(models, titles))
    published = read_maps(folder)
    if published is not None:
        contents.append(maps(models, published))
    histories = tables.read(folder, "histories", ".parquet")
    if histories is not None:
        contents.append(curves(catalogue, histories))
    return contents


def measures(models: pd.DataFrame, titles: Mapping[str, str]) -> Content:
    """Content of the explorer "measures".

    Args:
        models: rows of the catalogue with a column per measure.
        titles: of the measures by their columns, in their order.
    """
    models = models.dropna(subset="gap")
    listed = [
        {"title": title, "values": _numbers(models[name])}
        for name, title in titles.items()
        if name in models and models[name].notna().any()
    ]
    return {
        "kind": "measures",
        **_shared(models),
        "measures": listed,
        "targets": _targets(models),
    }


def maps(models: pd.DataFrame, published: Mapping[str, Any]) -> Content:
    """Content of the explorer "maps": pictures, maps of each model, and overlaps.

    Args:
        models: rows of the catalogue, with a column for each measure without a
            threshold that is to be shown.
        published: see ``published_maps.read_maps``.

    Returns:
        With overlaps by each cut, which are means over the first 200 images.
    """
    places = {name: place for place, name in enumerate(published["model_ids"])}
    models = models[models["model_id"].isin(places)]
    models = models.dropna(subset="gap").sort_values("gap")
    rows = [places[name] for name in models["model_id"]]
    maps_of_models = published["maps"][rows]
    boxes = published["boxes"][:_IMAGES]
    pictures = slice(_PICTURES)
    shown = _shared(models)
    for model, row in zip(shown["models"], rows, strict=True):
        of_model = published["maps"][row, pictures]
        model["maps"] = b64encode(of_model.tobytes()).decode()
        model["right"] = published["right"][row, pictures].tolist()
    names = np.asarray(published["class_names"])[published["labels"]]
    images = [
        {
            "src": b64encode(thumbnail).decode(),
            "label": str(name),
            "boxes": of_image[of_image[:, 2] > of_image[:, 0]].astype(int).tolist(),
        }
        for thumbnail, name, of_image in zip(
            published["thumbnails"][pictures], names, boxes, strict=False
        )
    ]
    size = int(published["image_size"])
    return {
        "kind": "maps",
        **shown,
        "size": size,
        "side": maps_of_models.shape[2:],
        "threshold": localize.PAPER_THRESHOLD,
        "images": images,
        "scored": len(boxes),
        "quantities": _quantities(models, maps_of_models[:, :_IMAGES], boxes, size),
        "targets": _targets(models),
    }


def _quantities(
    models: pd.DataFrame,
    maps_of_models: NDArray[np.uint8],
    boxes: NDArray[np.integer],
    size: int,
) -> list[Content]:
    """Measures of maps for each rule of cutting, by threshold and model."""
    thresholds = list(localize.THRESHOLDS)
    table = localize.at_thresholds(maps_of_models, boxes, size, thresholds)
    values = {}
    for name in _AT_THRESHOLDS:
        by_threshold = table.pivot(index="threshold", columns="model", values=name)
        values[name] = [_numbers(row) for row in by_threshold.to_numpy()]
    values |= {name: [_numbers(models[name])] for name in _BY_RULES if name in models}
    corrected = (*localize.CORRECTED, *_BY_RULES)
    return [
        {
            "title": MEASURES[name].title + ("" if name in corrected else _WITH_CHANCE),
            "rule": _BY_RULES.get(name, "threshold"),
            "thresholds": thresholds,
            "values": rows,
        }
        for name, rows in values.items()
    ]


def _targets(models: pd.DataFrame) -> list[Content]:
    """Vertical axes: values by model in percent; ``given`` is held fixed."""
    gap = _numbers(100 * models["gap"])
    training = _numbers(100 * models["train_accuracy"])
    test = _numbers(100 * models["test_accuracy"])
    equal_training = "gap at equal training accuracy (points)"
    return [
        {"title": "generalization gap (points)", "values": gap},
        {"title": equal_training, "values": gap, "given": training},
        {"title": "test accuracy (%)", "values": test},
    ]


def curves(models: pd.DataFrame, histories: pd.DataFrame) -> Content:
    """Content of the explorer "curves": loss and accuracies of each run by epoch.

    Args:
        models: rows of the catalogue.
        histories: run_id, epoch, ``METRICS``.
    """
    runs = models[models["run_id"].isin(histories["run_id"])]
    runs = runs.drop_duplicates("run_id", keep="last")
    shares = ["train_accuracy", "monitor_accuracy"]
    histories = histories.sort_values("epoch", ignore_index=True)
    histories[shares] *= 100
    by_run = dict(iter(histories.groupby("run_id")))
    shown = _shared(runs)
    for model, run in zip(shown["models"], runs["run_id"], strict=True):
        history = by_run[run]
        model["epochs"] = history["epoch"].tolist()
        model["curves"] = {name: _numbers(history[name]) for name in METRICS}
    return {"kind": "curves", **shown, "metrics": list(METRICS.items())}


def _shared(models: pd.DataFrame) -> Content:
    """Facts of models, colours of kinds of training, hyperparameters to filter by."""
    kinds = pd.Series([kind_words(row) for row in models.to_dict("records")])
    marks = [
        (kind, to_hex(colour)) for kind, colour in colours(in_order(kinds)).items()
    ]
    architectures = list(map(in_words, in_order(models["architecture"])))
    axes = [
        {
            "title": in_words(name),
            "levels": list(map(str, in_order(models[name]))),
            "of": models[name].astype(str).tolist(),
        }
        for name in AXES
        if name in models and models[name].nunique() > 1
    ]
    is_primary = primary_rows(models)
    if is_primary.any():
        networks = {
            "title": "networks",
            "levels": [_PRIMARY],
            "of": np.where(is_primary, _PRIMARY, "").tolist(),
            "start": _PRIMARY,  # the level that is chosen at first
        }
        axes.insert(0, networks)
    cards = tables.texts(models[[name for name in _CARD if name in models]])
    rows = models.to_dict("records")
    shown = [
        {
            "name": short_name(row),
            "kind": kind,
            "architecture": in_words(row["architecture"]),
            "gap": _numbers([100 * row["gap"]])[0],
            "card": {"network": short_name(row), **card},
        }
        for row, kind, card in zip(rows, kinds, cards.to_dict("records"), strict=True)
    ]
    return {
        "kinds": marks,
        "architectures": architectures,
        "models": shown,
        "axes": axes,
    }


def _numbers(values: ArrayLike) -> list[float | None]:
    return [
        float(f"{value:.5g}") if np.isfinite(value) else None
        for value in np.asarray(values, dtype=float)
    ]

"""Explorers of measures against the gap, and of maps: in JupyterLab and on a page.

Content is made once, as values that explore.js draws: networks with their gap, kind and
facts, and their measures or maps.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.colors import to_hex
from numpy.typing import ArrayLike

from helpers.cams import localize
from helpers.data.images import ImageSet
from helpers.files import write_json
from helpers.measures.registry import MEASURES
from helpers.report import tables
from helpers.report.style import (
    colours,
    in_order,
    in_words,
    interactive,
    kind_words,
    short_name,
)
from helpers.scores.pictures import MapsOfNetworks
from helpers.statistics.primary import primary_rows
from helpers.training import config

Content = dict[str, Any]
AXES = (*config.AXES, "repeat", "snapshot")
# Facts that a reader sees who clicks on a network.
_CARD = ["kind", *AXES, "train_accuracy", "test_accuracy", "gap", "epoch"]
_CARD += ["stop_reason", "model_id"]
_PRIMARY = "of the primary analysis"
_AT_THRESHOLDS = ("iou_above_shuffled", "iou")  # measures of a map that is cut
_PICTURES = 12  # images in each row of the gallery
# First images, in which classes take turns, that overlaps are computed from.
_IMAGES = 200


def show(folder: Path, content: Content) -> Any:
    """An explorer; outside of JupyterLab a line of text.

    Args:
        folder: of this execution, whose content a page shows.
        content: of ``measures`` or of ``maps``.
    """
    write_json(folder / f"explorers/{content['kind']}.json", content)
    if interactive():
        from helpers.report.widget import Explorer

        return Explorer(content)
    return Markdown(
        f"*{content['question']}* Explore it by hand in JupyterLab (`make lab`), or on "
        "the report's page *Explore by hand* (`make pages`)."
    )


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
    question = "Which measure correlates with the gap?"
    content = {"kind": "measures", "question": question, "measures": listed}
    return content | _shared(models)


def maps(
    models: pd.DataFrame,
    maps_of: MapsOfNetworks,
    images: ImageSet,
    jpegs: Sequence[bytes],
    class_names: Sequence[str],
) -> Content:
    """Content of the explorer "maps": pictures, maps of each model, and overlaps.

    Args:
        models: rows of the catalogue.
        maps_of: networks with the maps of images.
        images: the same images, with labels and boxes.
        jpegs: small pictures of the first images, see ``pictures.small_pictures``.
        class_names: by label.

    Returns:
        With overlaps by threshold, which are means over the first 200 images.
    """
    models = models.dropna(subset="gap").sort_values("gap")
    models = models[models["model_id"].isin(maps_of.model_ids)]
    rows = pd.Index(maps_of.model_ids).get_indexer(models["model_id"])
    boxes = images.boxes.numpy()[:_IMAGES]
    size = images.images.shape[-1]
    shown = _shared(models)
    for model, row in zip(shown["models"], rows, strict=True):
        of_model = maps_of.maps[row, :_PICTURES]
        model["maps"] = b64encode(of_model.tobytes()).decode()
        model["right"] = maps_of.right[row, :_PICTURES].tolist()
    gallery = [
        {
            "src": b64encode(jpeg).decode(),
            "label": class_names[label],
            "boxes": of_image[of_image[:, 2] > of_image[:, 0]].tolist(),
        }
        for jpeg, label, of_image in zip(
            jpegs[:_PICTURES], images.labels, boxes, strict=False
        )
    ]
    thresholds = [*localize.THRESHOLDS]
    scored = maps_of.maps[rows][:, :_IMAGES]
    table = localize.at_thresholds(scored, boxes, size, thresholds)
    quantities = []
    for name in _AT_THRESHOLDS:
        chance = "" if name in localize.CORRECTED else ", chance not subtracted"
        by_threshold = table.pivot(index="threshold", columns="model", values=name)
        values = [*map(_numbers, by_threshold.to_numpy())]
        quantities.append({"title": MEASURES[name].title + chance, "values": values})
    return {
        "kind": "maps",
        "question": "Where do the networks look?",
        **shown,
        "size": size,
        "side": scored.shape[2:],
        "threshold": localize.PAPER_THRESHOLD,
        "thresholds": thresholds,
        "images": gallery,
        "scored": len(boxes),
        "quantities": quantities,
    }


def _shared(models: pd.DataFrame) -> Content:
    """What explorers have in common: networks with their facts, colours, axes.

    Kinds of training have colours, ``axes`` are hyperparameters to filter by, and
    ``targets`` are vertical axes, of which ``given`` is held fixed.
    """
    rows = models.to_dict("records")
    kinds = [kind_words(row) for row in rows]
    shades = colours(in_order(pd.Series(kinds, dtype=str)))
    axes = [
        {
            "title": in_words(name),
            "levels": [*map(str, in_order(models[name]))],
            "of": models[name].astype(str).tolist(),
        }
        for name in AXES
        if name in models and models[name].nunique() > 1
    ]
    is_primary = primary_rows(models)
    if is_primary.any():
        of_models = np.where(is_primary, _PRIMARY, "").tolist()
        chosen = {"title": "networks", "levels": [_PRIMARY], "of": of_models}
        axes.insert(
            0, chosen | {"start": _PRIMARY}
        )  # the level that is chosen at first
    cards = tables.texts(models.filter(_CARD)).to_dict("records")
    gap, training, test = (
        _numbers(100 * models[name])
        for name in ("gap", "train_accuracy", "test_accuracy")
    )
    equal_training = "gap at equal training accuracy (points)"
    shown = [
        {
            "name": short_name(row),
            "kind": kind,
            "architecture": in_words(row["architecture"]),
            "gap": of_model,
            "card": {"network": short_name(row), **card},
        }
        for row, kind, of_model, card in zip(rows, kinds, gap, cards, strict=True)
    ]
    return {
        "kinds": [(kind, to_hex(shades[kind])) for kind in shades],
        "architectures": [*map(in_words, in_order(models["architecture"]))],
        "models": shown,
        "axes": axes,
        "targets": [
            {"title": "generalization gap (points)", "values": gap},
            {"title": equal_training, "values": gap, "given": training},
            {"title": "test accuracy (%)", "values": test},
        ],
    }


def _numbers(values: ArrayLike) -> list[float | None]:
    return [
        float(f"{value:.5g}") if np.isfinite(value) else None
        for value in np.asarray(values, dtype=float)
    ]

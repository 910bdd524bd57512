"""What the explorers show, as values that explore.js draws: networks with their gap, kind, card, and measures, maps or curves."""

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib.colors
import numpy as np
import pandas as pd

from helpers.report import tables
from helpers.report.explore import cuts
from helpers.report.markup import in_words
from helpers.report.style import colours, in_order, points, short_name
from helpers.statistics.primary import primary_rows

if TYPE_CHECKING:
    from helpers.scoring.maps_kept import KeptMaps

Content = dict[str, Any]
AXES = ("architecture", "pretrained", "augmentation", "images_per_class", "label_noise", "optimizer", "learning_rate", "weight_decay")
AXES += ("batch_size", "repeat", "snapshot")
METRICS = {"train_loss": "training loss (nats)", "train_accuracy": "training accuracy (%)", "monitor_accuracy": "held-out accuracy (%)"}
_SHARES = ("train_accuracy", "test_accuracy", "gap")
_PRIMARY = "of the primary analysis"
_PICTURES = 12  # images in each row of the gallery


def of_report(folder: Path) -> list[Content]:
    """The content of each explorer of a report; without models where the report lacks what it shows."""
    catalogue, scores = tables.read(folder, "catalogue"), tables.read(folder, "scores")
    listing, histories = tables.read(folder, "measures"), tables.read(folder, "histories")
    kept = catalogue[catalogue["left_out"].isna()]
    found: list[Content] = [{"kind": kind, "models": []} for kind in ("measures", "maps", "curves")]
    if scores is not None and listing is not None and "measure" in scores:
        found[0] = measures(*with_scores(kept, scores, listing, tables.read(folder, "primary")))
    if (folder / "tables/maps.npz").is_file():
        from helpers.scoring.maps_kept import read_maps

        found[1] = maps(kept, read_maps(folder))
    if histories is not None:
        found[2] = curves(catalogue, histories)
    return found


def with_scores(
    models: pd.DataFrame, scores: pd.DataFrame, listing: pd.DataFrame, primary: pd.DataFrame | None = None
) -> tuple[pd.DataFrame, dict[str, str]]:
    """The models with a column per measure, and the title of each: those of the primary analysis first.

    Args:
        models: rows of the catalogue.
        scores: model_id, measure, variant, value.
        listing: column, measure, variant, title and direction of every measure; without a direction it is no measure of the gap.
        primary: with the measures that stand first.
    """
    keys = ["measure", "variant"]
    named = listing[listing["direction"] != 0].fillna({"variant": ""})
    wide = scores.fillna({"variant": ""}).merge(named[[*keys, "column"]], on=keys).pivot_table("value", "model_id", "column")
    titles = {row.column: row.title for row in named.itertuples() if row.column in wide}
    first = [name for name in (primary["measure"] if primary is not None else ()) if name in titles]
    return models.merge(wide, left_on="model_id", right_index=True, how="left"), {name: titles[name] for name in [*first, *titles]}


def measures(models: pd.DataFrame, titles: Mapping[str, str]) -> Content:
    """Models, axes to filter by, and the values of each measure; see ``explore.what_predicts``."""
    models = models.dropna(subset="gap").reset_index(drop=True)
    listed = [{"title": title, "values": _numbers(models[name])} for name, title in titles.items() if models[name].notna().any()]
    return {"kind": "measures", **_models(models), "axes": _axes(models), "measures": listed}


def maps(models: pd.DataFrame, kept: "KeptMaps") -> Content:
    """Models, pictures with boxes, the maps of each model on them, and its overlap over all scored images by each cut."""
    places = {name: place for place, name in enumerate(kept.model_ids)}
    models = models[models["model_id"].isin(places)].dropna(subset="gap").sort_values("gap", ignore_index=True)
    rows = [places[name] for name in models["model_id"]]
    shown, few = _models(models), slice(0, min(_PICTURES, len(kept.thumbnails)))
    for model, row in zip(shown["models"], rows, strict=True):
        model |= {"maps": _letters(np.ascontiguousarray(kept.maps[row, few]).tobytes()), "right": kept.right[row, few].tolist()}
    images = [
        {
            "src": f"data:image/jpeg;base64,{_letters(kept.thumbnails[place])}",
            "label": str(kept.class_names[kept.labels[place]]),
            "boxes": [list(map(int, box)) for box in kept.boxes[place] if box[2] > box[0]],
        }
        for place in range(few.stop)
    ]
    by_cut = cuts.overlaps(kept.maps[rows], kept.boxes, kept.image_size)
    listed = [{"rule": rule, "threshold": threshold, "means": _numbers(means)} for (rule, threshold), means in by_cut.items()]
    facts = {"size": int(kept.image_size), "side": list(kept.maps.shape[2:]), "threshold": cuts.PAPER, "rules": cuts.RULES}
    return {"kind": "maps", **shown, **facts, "axes": _axes(models), "titles": cuts.TITLES, "images": images, "cuts": listed}


def curves(models: pd.DataFrame, histories: pd.DataFrame) -> Content:
    """Runs with loss and accuracies by epoch; see ``explore.training_curves``."""
    runs = models.drop_duplicates("run_id", keep="last")
    runs = runs[runs["run_id"].isin(histories["run_id"])].reset_index(drop=True)
    metrics = [name for name in METRICS if name in histories and histories[name].notna().any()]
    shown, parts = _models(runs), dict(iter(histories.sort_values("epoch").groupby("run_id")))
    for model, run in zip(shown["models"], runs["run_id"], strict=True):
        model["epochs"] = parts[run]["epoch"].tolist()
        model["curves"] = {name: _numbers(parts[run][name] * (100 if name.endswith("accuracy") else 1)) for name in metrics}
    return {"kind": "curves", **shown, "axes": _axes(runs), "metrics": [(name, METRICS[name]) for name in metrics]}


def _models(models: pd.DataFrame) -> Content:
    """What every explorer knows of a model, and the colour of each kind of training."""
    kinds = in_order(models["kind"])
    marks = [(in_words(kind), matplotlib.colors.to_hex(colour)) for kind, colour in colours(kinds).items()]
    return {"kinds": marks, "models": [_model(row) for row in models.to_dict("records")]}


def _model(row: Mapping[str, Any]) -> Content:
    gap, name = float(row["gap"]), short_name(row)
    card = {"network": name, "kind of training": in_words(row["kind"])} | {in_words(axis): str(row[axis]) for axis in AXES if axis in row}
    card |= {in_words(share): points(row[share]) for share in _SHARES if share in row}
    card |= {in_words(fact): str(row[fact]) for fact in ("epoch", "stop_reason", "model_id") if fact in row}
    return {
        "name": name,
        "kind": in_words(row["kind"]),
        "gap": round(100 * gap, 2) if np.isfinite(gap) else None,
        "hover": name,
        "card": card,
    }


def _axes(models: pd.DataFrame) -> list[Content]:
    """Hyperparameters with several levels to filter by, and first whether a network is of the primary analysis."""
    varied = [name for name in AXES if name in models and models[name].nunique() > 1]
    axes = [(in_words(name), [str(level) for level in in_order(models[name])], models[name].astype(str).tolist(), "") for name in varied]
    if (primary := primary_rows(models)).any():
        axes.insert(0, ("networks", [_PRIMARY], np.where(primary, _PRIMARY, "").tolist(), _PRIMARY))
    return [dict(zip(("title", "levels", "of", "start"), axis, strict=True)) for axis in axes]


def _numbers(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=float)]


def _letters(content: bytes) -> str:
    return base64.b64encode(content).decode()

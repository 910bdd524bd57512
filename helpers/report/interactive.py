"""What the page of figures that answer to the mouse rests on: the tables of a report, in the form that its script reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from helpers.report.scatter import IN_PERCENT, hover_texts, level_marks, shown_values
from helpers.report.tables import HYPERPARAMETERS

CURVES = "histories.parquet"  # beside the tables of a report: run_id, epoch, and what was measured in each
_CURVES = {
    "train_loss": "training loss (nats)",
    "train_accuracy": IN_PERCENT["train_accuracy"],
    "monitor_accuracy": "held-out accuracy (%)",
}


def interactive_content(tables: Path) -> dict[str, Any] | None:
    """Models, measures, hyperparameters and training curves of a report.

    Args:
        tables: folder with catalogue.csv, and scores.parquet or scores.csv, measures_ranking.csv and histories.parquet where there are any.

    Returns:
        models (id, cell, hover and whether each enters the analysis), columns (name, title, group, values, and the ranking's intervals of
        r with the targets), axes (hyperparameters with more than one level, that which tells most of the gap first: name, title, levels,
        colours, symbols, and the level of each model) and curves (see ``_curves``); None where no model has a gap.
    """
    if not (tables / "catalogue.csv").is_file():
        return None
    catalogue = pd.read_csv(tables / "catalogue.csv", keep_default_na=False, na_values=["", "nan"])
    models = catalogue.dropna(subset="gap").reset_index(drop=True)
    if not len(models):
        return None
    measures = _measures(tables)
    models = models.merge(measures["values"], on="model_id", how="left")
    axes = _by_share(models, [name for name in HYPERPARAMETERS if name in models and models[name].nunique() > 1])
    facts = {"id": models["model_id"].tolist(), "cell": models["cell"].astype(str).tolist(), "hover": hover_texts(models, axes)}
    facts["analysed"] = models["left_out"].isna().tolist() if "left_out" in models else [True] * len(models)
    columns = [_column(models, name, title, "targets and fit") for name, title in IN_PERCENT.items()]
    columns += [_column(models, name, title, group) | {"intervals": ends} for name, title, group, ends in measures["names"]]
    content = {"models": facts, "columns": [item for item in columns if len({*item["values"]} - {None}) > 1]}
    return content | {"axes": [_axis(models, name) for name in axes], "curves": _curves(tables / CURVES, catalogue, axes)}


def _by_share(models: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Order hyperparameters by the variance of the gap between their levels, the largest first; equal ones stay in order."""
    gap = models["gap"] if "left_out" not in models else models["gap"].where(models["left_out"].isna())
    return sorted(axes, key=lambda name: -gap.groupby(models[name]).transform("mean").var())


def _measures(tables: Path) -> dict[str, Any]:
    """Values per model of every measure with a rank, and of each column, title, family, and by target the interval of its r."""
    scores = pd.DataFrame({"model_id": []}, dtype=str)
    if (tables / "scores.parquet").is_file():
        long = pd.read_parquet(tables / "scores.parquet")
        names = long["measure"].where(long["variant"] == "", long["measure"] + " (" + long["variant"] + ")")
        scores = long.assign(column=names).pivot_table("value", "model_id", "column").reset_index()
    elif (tables / "scores.csv").is_file():
        table = pd.read_csv(tables / "scores.csv")
        known = {"iou", "iou_b", "iou_above_shuffled", "energy_in_box", "pointing_game", "area_matched_iou", "pixel_average_precision"}
        scores = table[["model_id", *(name for name in table if name in known)]]
    found = [name for name in scores if name != "model_id"]
    if (tables / "measures_ranking.csv").is_file():
        ranking = pd.read_csv(tables / "measures_ranking.csv").drop_duplicates("measure")
        rows = ranking[["measure", "title", "family"]].astype(str).itertuples(index=False)
        ends = zip(*(_ends(ranking, target) for target in ("gap", "test_accuracy")), strict=True)
        ranked = [(*row, {**gap, **accuracy}) for row, (gap, accuracy) in zip(rows, ends, strict=True) if row.measure in found]
    else:
        titles = {"iou": "IoU", "iou_b": "IoU-B"}
        ranked = [(name, titles.get(name, name.replace("_", " ")), "localization", {}) for name in found]
    return {"values": scores[["model_id", *(name for name, *_ in ranked)]], "names": ranked}


def _ends(ranking: pd.DataFrame, target: str) -> list[dict[str, list[float]]]:
    """Ends of the interval of r with a target for each row of the ranking, by the target; empty where there is none."""
    ends = ranking.reindex(columns=[f"r_{target}_low", f"r_{target}_high"]).astype(float)
    return [{target: [low, high]} if np.isfinite(low) else {} for low, high in ends.to_numpy().tolist()]


def _column(models: pd.DataFrame, name: str, title: str, group: str) -> dict[str, Any]:
    values = shown_values(models, name) if name in models else pd.Series(np.nan, models.index)
    return {"name": name, "title": title, "group": group, "values": _rounded(values)}


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


def _axis(models: pd.DataFrame, name: str) -> dict[str, Any]:
    marks = level_marks(models, name)
    levels = {level: place for place, level in enumerate(marks)}
    own = [levels[level] for level in models[name].astype(str)]
    colours, symbols = zip(*marks.values(), strict=True)
    return {"name": name, "title": name.replace("_", " "), "levels": [*levels], "colours": colours, "symbols": symbols, "of": own}


def _curves(path: Path, catalogue: pd.DataFrame, order: Sequence[str]) -> dict[str, Any] | None:
    """The training of every run: label, levels by axis, in the given order, epochs and one list per metric; None without histories."""
    if not path.is_file():
        return None
    table, runs = pd.read_parquet(path), catalogue.drop_duplicates("run_id").set_index("run_id")
    axes = [name for name in order if name in runs and name != "snapshot" and runs[name].nunique() > 1]
    metrics = {name: title for name, title in _CURVES.items() if name in table}
    if "monitor_accuracy" in metrics and "rule3_split" in runs and (runs["rule3_split"] == "test").all():
        metrics["monitor_accuracy"] = IN_PERCENT["test_accuracy"]
    found = []
    for run, rows in table.sort_values("epoch").groupby("run_id", sort=True):
        if run in runs.index:
            levels = {name: str(runs.at[run, name]) for name in axes}
            values = {name: _rounded(100 * rows[name] if name.endswith("accuracy") else rows[name]) for name in metrics}
            found.append({"id": str(run), "levels": levels, "epochs": rows["epoch"].tolist(), "values": values})
    marks = [{"name": name, "title": name.replace("_", " "), "marks": level_marks(runs, name)} for name in axes]
    return {"metrics": metrics, "axes": marks, "runs": found} if found else None

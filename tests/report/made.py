"""A small report as notebooks leave it: 36 networks of three kinds of training, two measures, maps that look at the object or beside it."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from helpers.files import write_table
from helpers.scores.published_maps import publish
from helpers.scores.values import add_record
from helpers.statistics import gap_tables
from helpers.statistics.claims import check_claims
from helpers.statistics.correlate import Bootstrap, with_log_train_loss
from helpers.statistics.gap_tables import kinds_table, primary_rows, primary_table
from helpers.statistics.verdicts import condition_table, verdict_table
from helpers.training.config import RunConfig, configuration_name, kind_name, run_id

SIZE, SIDE = 16, 4
HOSTILE = "<b>x</b>[y](http://z)"
TITLES = {
    "iou": "IoU",
    "pointing_game": "pointing game",
    "mixup_accuracy": "mixup accuracy",
}
CLAIMS = check_claims(
    [
        {
            "claim": "IoU goes with a smaller gap",
            "measure": "iou",
            "question": "r_gap",
            "side": "below",
            "primary": True,
            "published": -0.89,
        },
        {
            "claim": HOSTILE,
            "measure": "pointing_game",
            "question": "r_gap_within_kinds",
            "side": "below",
        },
    ]
)


def catalogue() -> pd.DataFrame:
    """Three kinds of 12 runs; the gap differs between kinds, and within them with the learning rate."""
    rows = []
    for kind, (pretrained, augmentation) in enumerate(
        [(True, True), (True, False), (False, False)]
    ):
        for number in range(12):
            run = RunConfig(
                architecture="resnet18",
                pretrained=pretrained,
                augmentation=augmentation,
                batch_size=16,
                learning_rate=0.001 * (1 + number),
                weight_decay=0.0,
                optimizer="adam",
                data="d",
                seed=number,
            )
            gap = 0.2 + 0.1 * kind + 0.004 * number
            fit = {
                "train_accuracy": 0.85 + 0.005 * ((5 * number) % 12),
                "train_loss": 0.3 - 0.01 * ((7 * number) % 12),
            }
            facts = {
                "model_id": f"{run_id(run)}@stop",
                "run_id": run_id(run),
                "cell": configuration_name(run),
                "kind": kind_name(run),
            }
            facts |= {
                "snapshot": "stop",
                "status": "complete",
                "stop_reason": "rules 1+2",
                "left_out": "",
                "device": "cpu",
                "epoch": 3,
            }
            rows.append(
                facts
                | fit
                | vars(run)
                | {"test_accuracy": fit["train_accuracy"] - gap, "gap": gap}
            )
    return pd.DataFrame(rows).sort_values("model_id", ignore_index=True)


def measures(models: pd.DataFrame) -> pd.DataFrame:
    """IoU that knows nothing of the gap, a pointing game that follows it, and mixup accuracy that is the gap but for a little."""
    noise = np.random.default_rng(0).normal(size=(3, len(models)))
    iou, pointing, mixup = (
        0.3 + 0.01 * noise[0],
        0.9 - models["gap"] + 0.02 * noise[1],
        1 - models["gap"] + 0.001 * noise[2],
    )
    return models.assign(iou=iou, pointing_game=pointing, mixup_accuracy=mixup)


def tables() -> dict[str, pd.DataFrame]:
    """The tables of the primary analysis, by the functions that notebook 04 calls."""
    models = measures(catalogue())
    rows = models[primary_rows(models)].reset_index(drop=True)
    # Kinds are units, and three are too few for an interval.
    more_kinds = rows["kind"] + " " + (rows.index // 2).astype(str)
    primary = primary_table(
        Bootstrap(with_log_train_loss(rows.assign(kind=more_kinds)), draws=200),
        list(TITLES),
        permutations=199,
    )
    titles = TITLES | gap_tables.TITLES
    primary.insert(1, "title", [titles[name] for name in primary["measure"]])
    gates = condition_table(
        rows,
        rows,
        classes=4,
        of_measures={
            "the mask can miss": {"iou": 0.8},
            "boxes leave room": {"iou": 0.2},
            "beats a fixed central map": {"iou": 0.0, "pointing_game": 1.0},
        },
    )
    known = {
        "catalogue": models[catalogue().columns],
        "primary": primary,
        "kinds": kinds_table(rows),
        "gates": gates,
    }
    return known | {"claims": verdict_table(CLAIMS, primary, primary, gates)}


def kept_maps() -> dict[str, Any]:
    """Six images with a box in a corner; the map of each network has its maximum in the box, or in the opposite corner."""
    models, images = catalogue()["model_id"], 6
    maps = np.zeros((len(models), images, SIDE, SIDE), np.uint8)
    maps[::2, :, 0, 0], maps[1::2, :, -1, -1] = 255, 255
    maps[:, :, 1, 1] = np.arange(0, 6 * images, 6)
    thumbnail = io.BytesIO()
    Image.fromarray(np.full((SIZE, SIZE, 3), 128, np.uint8)).save(thumbnail, "jpeg")
    boxes = np.tile([[0, 0, 8, 8], [0, 0, 0, 0]], (images, 1, 1)).astype(np.int16)
    facts = {
        "right": np.ones((len(models), images), bool),
        "labels": np.arange(images) % 4,
        "class_names": (HOSTILE, *"bcd"),
    }
    facts |= {
        "model_ids": list(models),
        "boxes": boxes,
        "image_size": SIZE,
        "thumbnails": [thumbnail.getvalue()] * images,
    }
    return {"maps": maps} | facts


def _write_maps(folder: Path) -> None:
    content = kept_maps() | {"study": folder.name, "part": "localization-0"}
    publish(folder, content)
    rows = zip(content["model_ids"], content["maps"], content["right"], strict=True)
    for name, maps, right in rows:
        record = {"maps": maps, "correct": right}
        add_record(folder / "records", name, "localization-0", record)


def write_report(folder: Path) -> Path:
    """Write the tables and maps of the report."""
    (folder / "tables").mkdir(parents=True)
    models = measures(catalogue())
    for name, table in tables().items():
        table.to_csv(folder / "tables" / f"{name}.csv", index=False)
    long = models.melt("model_id", list(TITLES), "measure").assign(variant="")
    write_table(folder / "tables/scores.parquet", long)
    listed = [
        {"column": name, "measure": name, "variant": "", "title": title, "direction": 1}
        for name, title in TITLES.items()
    ]
    pd.DataFrame(listed).to_csv(folder / "tables/measures.csv", index=False)
    epochs = pd.DataFrame(
        {
            "epoch": [1, 2, 3],
            "train_loss": [2.0, 1.0, 0.5],
            "train_accuracy": [0.3, 0.6, 0.9],
            "monitor_accuracy": [0.2, 0.5, 0.6],
        }
    )
    histories = [epochs.assign(run_id=name) for name in models["run_id"]]
    write_table(folder / "tables/histories.parquet", pd.concat(histories))
    _write_maps(folder)
    return folder

"""A small report as notebooks leave it: networks of three kinds, measures and maps."""

import io

import numpy as np
import pandas as pd
import torch
from PIL import Image

from helpers.data.images import ImageSet
from helpers.scores.pictures import MapsOfNetworks
from helpers.training.config import RunConfig, configuration_name, kind_name

SIZE, SIDE, IMAGES = 16, 4, 6
HOSTILE = "<b>x</b>[y](http://z)"
TITLES = {
    "iou": "IoU",
    "pointing_game": "pointing game",
    "mixup_accuracy": "mixup accuracy",
}
KINDS = [(True, True), (True, False), (False, False)]  # pretrained, augmented


def catalogue() -> pd.DataFrame:
    """Three kinds of 12 runs; gaps differ between kinds, and in them with the rate."""
    rows = []
    for kind, (pretrained, augmentation) in enumerate(KINDS):
        for number in range(12):
            trained = (0.001 * (1 + number), "adam", 0.0, pretrained, augmentation)
            run = RunConfig("resnet18", 16, *trained, data="d", seed=number)
            gap = 0.2 + 0.1 * kind + 0.004 * number
            accuracy = 0.85 + 0.005 * ((5 * number) % 12)
            facts = {
                "model_id": f"{run!s}@stop",
                "run_id": str(run),
                "cell": configuration_name(run),
                "kind": kind_name(run),
                "snapshot": "stop",
                "status": "complete",
                "stop_reason": "rules 1+2",
                "left_out": "",
                "device": "cpu",
                "epoch": 3,
                "train_accuracy": accuracy,
                "train_loss": 0.3 - 0.01 * ((7 * number) % 12),
                "test_accuracy": accuracy - gap,
                "gap": gap,
            }
            rows.append(facts | vars(run))
    return pd.DataFrame(rows).sort_values("model_id", ignore_index=True)


def measures(models: pd.DataFrame) -> pd.DataFrame:
    """IoU that knows nothing of the gap, and two measures that follow it."""
    noise = np.random.default_rng(0).normal(size=(3, len(models)))
    return models.assign(
        iou=0.3 + 0.01 * noise[0],
        pointing_game=0.9 - models["gap"] + 0.02 * noise[1],
        mixup_accuracy=1 - models["gap"] + 0.001 * noise[2],
    )


def maps_of_networks() -> tuple[MapsOfNetworks, ImageSet, list[bytes], list[str]]:
    """Images with a box in a corner; maps have their maximum there, or opposite."""
    models = [*catalogue()["model_id"]]
    maps = np.zeros((len(models), IMAGES, SIDE, SIDE), np.uint8)
    maps[::2, :, 0, 0], maps[1::2, :, -1, -1] = 255, 255
    maps[:, :, 1, 1] = np.arange(0, 6 * IMAGES, 6)
    jpeg = io.BytesIO()
    Image.fromarray(np.full((SIZE, SIZE, 3), 128, np.uint8)).save(jpeg, "jpeg")
    images = ImageSet(
        torch.zeros(IMAGES, 3, SIZE, SIZE, dtype=torch.uint8),
        torch.arange(IMAGES) % 4,
        torch.tensor([[[0, 0, 8, 8], [0] * 4]] * IMAGES, dtype=torch.int16),
        tuple(map(str, range(IMAGES))),
    )
    right = np.ones((len(models), IMAGES), bool)
    kept = MapsOfNetworks(models, maps, right)
    return kept, images, [jpeg.getvalue()] * IMAGES, [HOSTILE, *"bcd"]

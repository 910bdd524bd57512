"""What every model of a catalogue says about the test images: its logits, computed once and kept."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import safetensors.torch
import torch
from torch import Tensor

from helpers import classification, model_set, models
from helpers.datasets import StudyData
from helpers.files import complete_or_absent, inside


def logits_path(work: Path, model_id: str) -> Path:
    """Give the place of a model's logits."""
    return inside(work / "test_logits", f"{model_id}.safetensors")


@torch.inference_mode()
def keep_test_logits(
    work: Path, catalogue: pd.DataFrame, data: StudyData, device: torch.device | str, batch_size: int = 512
) -> Iterator[str]:
    """Run the test images through the models whose logits are not there yet; yield each model's id.

    Diverged runs without a model are passed over. The logits are float32, in eval mode, in the order of ``data.test``.
    """
    for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows():
        path = logits_path(work, model["model_id"])
        if not path.is_file():
            network = model_set.load_model(work, model, len(data.classes), device)
            batches = data.test.images.split(batch_size)
            logits = torch.cat([network(_prepared(pixels, device)).float().cpu() for pixels in batches])
            with complete_or_absent(path) as temporary:
                safetensors.torch.save_file({"logits": logits}, temporary)
        yield model["model_id"]


def _prepared(pixels: Tensor, device: torch.device | str) -> Tensor:
    return models.normalise(pixels.to(device)).contiguous(memory_format=torch.channels_last)


def read_logits(work: Path, model_id: str) -> Tensor:
    """(N, K) float32 logits of the test images.

    Raises:
        FileNotFoundError: they were not computed; run 02_grid_training.
    """
    path = logits_path(work, model_id)
    if not path.is_file():
        raise FileNotFoundError(f"the logits {path} are missing; run 02_grid_training again")
    return safetensors.torch.load_file(path)["logits"]


def metrics_of_models(work: Path, catalogue: pd.DataFrame, data: StudyData) -> pd.DataFrame:
    """Score every model on the test images, see ``classification.metrics_table``; models whose logits are not finite are left out."""
    said = {name: read_logits(work, name) for name in catalogue.loc[catalogue["snapshot"] != "none", "model_id"]}
    return classification.metrics_table({name: logits for name, logits in said.items() if logits.isfinite().all()}, data.test.labels)

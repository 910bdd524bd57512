"""Float32 or bfloat16 for the passes that maps and logits of training images come from: one for all scores of a study."""

from functools import partial
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.measures.passes import batch_size, maps_and_logits, output_bytes
from helpers.networks import fused, hooks, resnet
from helpers.training.config import PRECISIONS
from helpers.training.cuda_graph import Shape
from helpers.training.precision import seconds_in_turns, settled_precision, smallest_shape

_MOST_TIMED = 32  # images of a timed pass


@torch.inference_mode()
def pass_seconds(shape: Shape) -> dict[str, float]:
    """Seconds per image of the pass of scoring through an untrained network of a shape, by precision, see ``seconds_in_turns``."""
    size, device = shape.image_size, shape.device
    form = {"stem": shape.stem, "width": shape.width, "last_stride": shape.last_stride}
    network = resnet.build(shape.architecture, shape.classes, **form, seed=0).to(device, memory_format=torch.channels_last).eval()
    pixels = torch.randint(0, 256, (_MOST_TIMED, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    example = hooks.prepared(pixels[:1], resnet.normalise_images, device)
    pixels = pixels[: batch_size(output_bytes(network, example), device)]
    folded = fused.fused(network, example)
    calls = {name: partial(_pass, folded, *hooks.last_called(folded, example), pixels, device, name) for name in PRECISIONS}
    return {name: seconds / len(pixels) for name, seconds in seconds_in_turns(calls, device).items()}


@torch.inference_mode()
def _pass(network: nn.Module, layer: nn.Module | None, head: nn.Linear | None, pixels: Tensor, device: str, precision: str) -> Tensor:
    return maps_and_logits(network, head, layer, hooks.prepared(pixels, resnet.normalise_images, device), precision)[1].cpu()


def scoring_record(work: Path) -> Path:
    """File of a study in which the precision of its scores is kept."""
    return work / "scoring_precision.json"


def choose_scoring_precision(precision: str, work: Path, catalogue: pd.DataFrame, data: StudyData, device: str) -> str:
    """Turn "auto" into what all models of a study are scored in, see ``settled_precision``; their smallest network is measured.

    Args:
        precision: float32, bfloat16 or auto.
        work: the study's folder.
        catalogue: its models: architecture, stem, width, last_stride.
        data: its images.
        device: where models are scored.

    Returns:
        "float32" or "bfloat16".

    Raises:
        ValueError: the precision is unknown, or the study was scored in the other one.
    """

    def seconds() -> dict[str, float]:
        form, size = catalogue.iloc[0], data.train.images.shape[-1]
        options = {"stem": form["stem"], "width": float(form["width"]), "last_stride": int(form["last_stride"])}
        return pass_seconds(smallest_shape(list(catalogue["architecture"].unique()), [1], size, str(device), **options))

    record = scoring_record(work)
    return settled_precision(precision, record, device, seconds, f"delete {record} and run 03_cam_scoring and 04_baselines again")

"""What models say of images like those they will meet, the test images and shifted copies: logits kept, accuracies predicted.

One pass per model and target; labels of a target are used for one thing, the accuracy that is to be predicted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import safetensors.torch
import torch
from torch import Tensor, nn

from helpers.data.dataset import ImageSet, StudyData
from helpers.data.shifts import Shifted, at, kept
from helpers.files import complete_or_absent, inside
from helpers.measures import evidence, registry
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.scoring.classification import keep_test_logits, read_logits
from helpers.training.catalogue import load_model, read_scores, save_scores, scored_measures
from helpers.training.config import config_from
from helpers.training.run import images_of_run

TURNED_IMAGES = 1000  # of a target at most, for effective invariance


_AGREEMENT = "agreement_of_repeats"  # never kept: a repeat that is trained later changes it


def target_images(work: Path, data: StudyData, shift: str, seed: int = 0) -> Shifted:
    """The test images, shifted, with strength and mean SSIM: made once and kept as bytes in ``targets/<shift>``; "" shifts nothing."""
    return kept(work / "targets" / shift, data.test.images, shift, seed) if shift else Shifted(data.test.images, 0.0, 1.0)


def holdout_of(data: StudyData, model: pd.Series) -> ImageSet | None:
    """Training images that a model was not fitted to, with labels; None in a study that watches the test images (``rule3_split``)."""
    config = config_from(model)
    return images_of_run(data, config)[1] if config.rule3_split == "holdout" else None


def _path(work: Path, folder: str, model_id: str) -> Path:
    return inside(work / "target_logits", f"{folder}/{model_id}.safetensors")


def _folder(shift: str, seed: int) -> str:
    return f"{shift or 'test'}-{seed}"


def _prefix(count: int, seed: int) -> Tensor:
    return torch.as_tensor(np.random.default_rng(seed).permutation(count)[:TURNED_IMAGES])


@torch.inference_mode()
def _logits(network: nn.Module, images: Tensor, device: torch.device | str) -> Tensor:
    # A processor is faster while the maps of a batch stay in its cache.
    batches = images.split(512 if torch.device(device).type == "cuda" else 64)
    return torch.cat([network(prepared(pixels, resnet.normalise_images, device)).float().cpu() for pixels in batches]).half()


def keep_target_logits(
    work: Path, catalogue: pd.DataFrame, data: StudyData, shifts: Sequence[str], seed: int, device: torch.device | str
) -> Iterator[str]:
    """Run targets and holdout through the models whose logits are not there yet; yield each model's id.

    ``target_logits/<shift>-<seed>/<model>.safetensors`` holds float16 ``logits`` (N, K) of the target and ``turned`` (4, R, K) of at most
    1,000 of its images, drawn by the seed, as they are and turned by 90, 180 and 270 degrees; ``target_logits/holdout/...`` holds
    ``logits`` and ``labels``. Logits of the test images as they are are those of ``classification.keep_test_logits``. So a model takes one
    pass over each target and its holdout, and three over the 1,000. Diverged runs without a model are passed over.

    Args:
        work: the study's folder.
        catalogue: its models.
        data: its images.
        shifts: names of shifted targets, see ``shifts.parsed``; the test images as they are come first anyway.
        seed: of the shifts and of the images that are turned.
        device: where to compute.
    """
    for _ in keep_test_logits(work, catalogue, data, device):
        pass
    for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows():
        lacking = [shift for shift in ("", *shifts) if not _path(work, _folder(shift, seed), model["model_id"]).is_file()]
        holdout = holdout_of(data, model)
        if holdout is not None and not (path := _path(work, "holdout", model["model_id"])).is_file():
            network = load_model(work, model, len(data.classes), device)
            _write(path, {"logits": _logits(network, holdout.images, device), "labels": holdout.labels.cpu()})
        if lacking:
            network = load_model(work, model, len(data.classes), device)
        for shift in lacking:
            images = target_images(work, data, shift, seed).images
            logits = _logits(network, images, device) if shift else read_logits(work, model["model_id"]).half()
            rows = _prefix(len(images), seed)
            turned = [_logits(network, images[rows].rot90(turns, (2, 3)), device) for turns in (1, 2, 3)]
            _write(_path(work, _folder(shift, seed), model["model_id"]), {"logits": logits, "turned": torch.stack([logits[rows], *turned])})
        yield model["model_id"]


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with complete_or_absent(path) as temporary:
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary)


def read_target_logits(work: Path, folder: str, model_id: str) -> dict[str, Tensor]:
    """Read the logits of a model that ``keep_target_logits`` kept, by name; empty where there are none.

    Args:
        work: the study's folder.
        folder: "holdout", or ``<shift>-<seed>``, "test" where nothing is shifted.
        model_id: the model.
    """
    path = _path(work, folder, model_id)
    return safetensors.torch.load_file(path) if path.is_file() else {}


def with_target_accuracies(work: Path, table: pd.DataFrame, data: StudyData, shifts: Sequence[str], seed: int) -> pd.DataFrame:
    """Add what is to be predicted to a table of models: a column test_accuracy@<shift> per shift, fractions; NaN without logits.

    ``test_accuracy`` of the catalogue is that of the test images as they are.
    """
    added = {}
    for shift in shifts:
        found = [read_target_logits(work, _folder(shift, seed), name).get("logits") for name in table["model_id"]]
        right = [np.nan if logits is None else float((logits.argmax(1) == data.test.labels).double().mean()) for logits in found]
        added[at("test_accuracy", shift)] = right
    return table.assign(**added)


def score_on_target(work: Path, catalogue: pd.DataFrame, shift: str, settings: evidence.MeasureSettings) -> pd.DataFrame:
    """Measures of the family "unlabelled" of every model on one target, from kept logits: a row per model, measure and variant.

    What is computed is kept in ``scores/unlabelled-<target>-<settings>`` and read again, but for the agreement of repeats. A repeat is the
    same snapshot of a run of the same cell with another seed. A measure that needs a holdout is undefined where the study has none.

    Args:
        work: the study's folder.
        catalogue: its models; only those with logits are scored.
        shift: the target; "" is the test images as they are.
        settings: what else decides the values; ``seed`` is that of the target.
    """
    items = registry.of_families(["unlabelled"])
    target = _folder(shift, settings.seed)
    folder = f"unlabelled-{target}-{evidence.settings_name(items, settings)}"
    fresh = []
    for _, model in catalogue[catalogue["snapshot"] != "none"].iterrows():
        name = model["model_id"]
        there = scored_measures(work, folder, name)
        todo = [item for item in items if item.name not in there]
        given = _given(work, catalogue, model, target)
        if given["target_logits"] is None:
            continue
        scores = evidence.score(todo, given, settings)
        again = scores["measure"] == _AGREEMENT
        fresh.append(scores[again].assign(model_id=name))
        if (~again).any():
            save_scores(work, folder, name, scores[~again])
    found = read_scores(work, [folder], catalogue["model_id"])
    return pd.concat([found, *fresh], ignore_index=True)


def _given(work: Path, catalogue: pd.DataFrame, model: pd.Series, target: str) -> dict[str, object]:
    """What the measures are given of a model; None for what is not there."""
    own = read_target_logits(work, target, model["model_id"])
    holdout = read_target_logits(work, "holdout", model["model_id"])
    alike = (catalogue["cell"] == model["cell"]) & (catalogue["snapshot"] == model["snapshot"]) & (catalogue["run_id"] != model["run_id"])
    repeats = [read_target_logits(work, target, name).get("logits") for name in catalogue.loc[alike, "model_id"]]
    return {
        "network": nn.Identity(),
        "target_logits": own.get("logits"),
        "rotated_target_logits": own.get("turned"),
        "holdout_logits": holdout.get("logits"),
        "holdout_labels": holdout.get("labels"),
        "repeat_target_logits": [logits for logits in repeats if logits is not None],
    }

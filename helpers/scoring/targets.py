"""What models say of images like those they will meet, the test images and shifted copies: logits kept, accuracies predicted.

One pass per model and target, and three over turned images for effective invariance alone; labels of a target are used for one thing, the
accuracy that is to be predicted.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.data.images import ImageSet, StudyData
from helpers.data.shifts import Shifted, at, kept
from helpers.files import inside, is_sound, read_tensors, write_tensors
from helpers.measures import evidence, registry
from helpers.networks import resnet
from helpers.networks.hooks import prepared
from helpers.scoring.classification import keep_test_logits, logits_path, read_logits
from helpers.scoring.models import with_measures
from helpers.training.catalogue import Model, lacks_weights, load_model, models_of, read_scores, save_scores, scored_measures
from helpers.training.config import RunConfig
from helpers.training.run import images_of_run

TURNED_IMAGES = 1000  # of a target at most, for effective invariance
PLAIN_TARGET = "test images"  # the target that nothing shifts
_AGREEMENT = "agreement_of_repeats"  # never kept: a repeat that is trained later changes it


def target_images(work: Path, data: StudyData, shift: str, seed: int = 0) -> Shifted:
    """The test images, shifted, with strength and mean SSIM: made once and kept as bytes in ``targets/<shift>``; "" shifts nothing."""
    return kept(work / "targets" / shift, data.test.images, shift, seed) if shift else Shifted(data.test.images, 0.0, 1.0)


def holdout_of(data: StudyData, config: RunConfig) -> ImageSet | None:
    """Training images that a run was not fitted to, with labels; None in a study that watches the test images (``rule3_split``)."""
    return images_of_run(data, config)[1] if config.rule3_split == "holdout" else None


def _path(work: Path, folder: str, model_id: str) -> Path:
    return inside(work / "target_logits", f"{folder}/{model_id}.safetensors")


@torch.inference_mode()
def target_logits(
    network: nn.Module, images: Tensor, device: torch.device | str, normalise: Callable[[Tensor], Tensor] = resnet.normalise_images
) -> Tensor:
    """Logits of images by one pass in batches: uint8 (N, 3, H, W) -> (N, K) float16 on the CPU."""
    # A processor is faster while the maps of a batch stay in its cache.
    batches = images.split(512 if torch.device(device).type == "cuda" else 64)
    return torch.cat([network(prepared(pixels, normalise, device)).float().cpu() for pixels in batches]).half()


def keep_target_logits(
    work: Path, catalogue: pd.DataFrame, data: StudyData, shifts: Sequence[str], seed: int, device: torch.device | str
) -> Iterator[str]:
    """Run targets and holdout through the models whose logits are not there yet, once each; yield each model's id.

    ``target_logits/<shift>-<seed>/<model>.safetensors`` holds float16 ``logits`` (N, K) of the target, ``target_logits/holdout/...`` holds
    ``logits`` and ``labels``. Logits of the test images as they are are those of ``classification.keep_test_logits``. Diverged runs without
    a model are passed over.

    Args:
        work: the study's folder.
        catalogue: its models.
        data: its images.
        shifts: names of shifted targets, see ``shifts.parsed``; the test images as they are come first anyway.
        seed: of the shifts.
        device: where to compute.
    """
    for _ in keep_test_logits(work, catalogue, data, device):
        pass
    images = {shift: target_images(work, data, shift, seed).images for shift in shifts}
    for model in models_of(catalogue):
        name, network = model.model_id, cache(partial(load_model, work, model, len(data.classes), device))
        path = _path(work, "holdout", name)
        if not is_sound(path) and not lacks_weights(work, model) and (holdout := holdout_of(data, model.config)) is not None:
            write_tensors(path, {"logits": target_logits(network(), holdout.images, device), "labels": holdout.labels.cpu()})
        for shift in shifts:
            if not is_sound(path := _path(work, f"{shift}-{seed}", name)) and not lacks_weights(work, model):
                write_tensors(path, {"logits": target_logits(network(), images[shift], device)})
        yield name


def keep_turned_logits(
    work: Path, catalogue: pd.DataFrame, data: StudyData, shifts: Sequence[str], seed: int, device: torch.device | str
) -> Iterator[str]:
    """Run targets turned by 90, 180 and 270 degrees through the models: three passes of their own; arguments as ``keep_target_logits``.

    ``target_logits/turned-<target>-<seed>/<model>.safetensors`` holds float16 ``logits`` (4, R, K) of at most 1,000 images of the target,
    drawn by the seed: as they are, which ``keep_target_logits`` kept, and turned.
    """
    images = {shift: target_images(work, data, shift, seed).images for shift in ("", *shifts)}
    rows = torch.as_tensor(np.random.default_rng(seed).permutation(len(data.test))[:TURNED_IMAGES])
    for model in models_of(catalogue):
        network = cache(partial(load_model, work, model, len(data.classes), device))
        for shift, pixels in images.items():
            if not is_sound(path := _path(work, f"turned-{shift or 'test'}-{seed}", model.model_id)) and not lacks_weights(work, model):
                turned = [target_logits(network(), pixels[rows].rot90(turns, (2, 3)), device) for turns in (1, 2, 3)]
                write_tensors(path, {"logits": torch.stack([_logits_on(work, shift, seed, model.model_id)[rows], *turned])})
        yield model.model_id


def _read(work: Path, folder: str, model_id: str) -> dict[str, Tensor]:
    """Tensors that were kept of a model, by name; empty where there are none."""
    path = _path(work, folder, model_id)
    return read_tensors(path) or {}


def _logits_on(work: Path, shift: str, seed: int, model_id: str) -> Tensor | None:
    """Logits (N, K) of a model on one target, "" being the test images as they are; None where none were kept."""
    if shift:
        return _read(work, f"{shift}-{seed}", model_id).get("logits")
    return read_logits(work, model_id).half() if is_sound(logits_path(work, model_id)) else None


def correct_on_targets(
    work: Path, models: pd.DataFrame, data: StudyData, shifts: Sequence[str], seed: int
) -> dict[str, NDArray[np.float32]]:
    """Whether every model is right on every image of each shifted target, by the column test_accuracy@<shift> whose values they make.

    Returns:
        (models, images) of 0 and 1 each, NaN rows for models without logits.
    """
    found = {at("test_accuracy", shift): np.full((len(models), len(data.test)), np.nan, dtype=np.float32) for shift in shifts}
    for row, name in enumerate(models["model_id"]):
        for shift in shifts:
            if (logits := _logits_on(work, shift, seed, name)) is not None:
                found[at("test_accuracy", shift)][row] = (logits.argmax(1) == data.test.labels).numpy()
    return found


def with_target_accuracies(work: Path, table: pd.DataFrame, data: StudyData, shifts: Sequence[str], seed: int) -> pd.DataFrame:
    """Add what is to be predicted to a table of models: a column test_accuracy@<shift> per shift, fractions; NaN without logits.

    ``test_accuracy`` of the catalogue is that of the test images as they are.
    """
    right = correct_on_targets(work, table, data, shifts, seed)
    return table.assign(**{name: values.mean(1, dtype=float) for name, values in right.items()})


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
    folder = f"unlabelled-{shift or 'test'}-{settings.seed}-{evidence.settings_name(items, settings)}"
    fresh = []
    for model in models_of(catalogue):
        name = model.model_id
        there = scored_measures(work, folder, name)
        todo = [item for item in items if item.name not in there]
        given = _given(work, catalogue, model, shift, settings.seed)
        if given["target_logits"] is None:
            continue
        scores = evidence.score(todo, given, settings)
        again = scores["measure"] == _AGREEMENT
        fresh.append(scores[again].assign(model_id=name))
        if (~again).any():
            save_scores(work, folder, name, scores[~again])
    found = read_scores(work, [folder], catalogue["model_id"])
    return pd.concat([found, *fresh], ignore_index=True)


def _given(work: Path, catalogue: pd.DataFrame, model: Model, shift: str, seed: int) -> dict[str, object]:
    """What the measures are given of a model; None for what is not there."""
    name, holdout = model.model_id, _read(work, "holdout", model.model_id)
    cell = model.facts["cell"]
    alike = (catalogue["cell"] == cell) & (catalogue["snapshot"] == model.snapshot) & (catalogue["run_id"] != model.run_id)
    repeats = [_logits_on(work, shift, seed, other) for other in catalogue.loc[alike, "model_id"]]
    return {
        "network": nn.Identity(),
        "target_logits": _logits_on(work, shift, seed, name),
        "rotated_target_logits": _read(work, f"turned-{shift or 'test'}-{seed}", name).get("logits"),
        "holdout_logits": holdout.get("logits"),
        "holdout_labels": holdout.get("labels"),
        "repeat_target_logits": [logits for logits in repeats if logits is not None],
    }


def scores_on_targets(work: Path, models: pd.DataFrame, shifts: Sequence[str], settings: evidence.MeasureSettings) -> pd.DataFrame:
    """Predicted and true accuracy of every model on every target: a row per model and target, "test images" before the shifted ones.

    Args:
        work: the study's folder.
        models: with ``test_accuracy`` and that of each shift, see ``with_target_accuracies``.
        shifts: names of shifted targets.
        settings: see ``score_on_target``.

    Returns:
        model_id, cell, architecture, target, test_accuracy (the target's, a fraction), and a column per measure of the family "unlabelled".
    """
    facts = models[["model_id", "cell", "architecture"]]
    tables = []
    for shift in ("", *shifts):
        truth = {"target": shift or PLAIN_TARGET, "test_accuracy": models[at("test_accuracy", shift)]}
        tables.append(with_measures(facts.assign(**truth), score_on_target(work, models, shift, settings)))
    return pd.concat(tables, ignore_index=True)


def target_image_values(work: Path, models: pd.DataFrame, shift: str, settings: evidence.MeasureSettings) -> dict[str, NDArray[np.float32]]:
    """Values of single target images, (models, images) by column, of the measures that are means over them; from kept logits.

    A measure that some model has not is left out. Arguments as ``score_on_target``.
    """
    given = [_given(work, models, model, shift, settings.seed) for model in models_of(models)]
    found = [evidence.score_with_images([], each, settings, ["values_on_target"])[1].get("values_on_target", {}) for each in given]
    shared = [name for name in found[0] if all(name in values for values in found)] if found else []
    return {name: np.stack([values[name] for values in found]) for name in shared}

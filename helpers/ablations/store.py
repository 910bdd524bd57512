"""The ablations of every model of a catalogue, and untrained networks beside them (Du et al. 2024, Table 5): computed once and kept."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from helpers.ablations import compute
from helpers.ablations.attributions import ATTRIBUTION_COLUMNS, attribution_scores
from helpers.ablations.compute import AblationSettings, closed_form_scores, sampled_scores
from helpers.cams import overlap
from helpers.data.images import ImageSet, StudyData
from helpers.files import inside, is_sound, sealed
from helpers.measures import evidence, passes, registry
from helpers.networks import resnet
from helpers.scoring.common_set import ScoringSet
from helpers.scoring.models import with_measures
from helpers.scoring.side_by_side import each_model
from helpers.scoring.single_images import folder_name, stacked_values
from helpers.training.catalogue import load_model, models_of, read_scores

CLOSED, SAMPLED, ATTRIBUTED = "closed", "sampled", "attributed"  # parts: all images in closed form, a few by gradients, by Captum
_SINGLE = "single"  # the closed part's scores of single images
ABLATION_COLUMNS = ["model_id", *compute.OVERLAP_COLUMNS, "part"]
IMAGE_COLUMNS = ["model_id", "name", "iou", "iou_b", "right"]


def digest(**decisive: Any) -> str:
    """Digest of what decides some scores: 8 hex digits over names and values."""
    return hashlib.blake2b(json.dumps(decisive, sort_keys=True).encode(), digest_size=4).hexdigest()


def folder_names(settings: AblationSettings, masks: Mapping[str, Tensor], scored_on: ScoringSet) -> dict[str, str]:
    """Each part's folder, by what its scores depend on: other noise does not compute the closed forms again, nor other masks the noise.

    Masks are told apart by their pixels, wherever they came from, images by their names.
    """
    options = asdict(settings)
    threshold, *of_captum = (options.pop(name) for name in ("threshold", "attributions", "steps"))
    pixels = {name: hashlib.blake2b(np.packbits(made.cpu().numpy()).tobytes(), digest_size=8).hexdigest() for name, made in masks.items()}
    decisive = {
        CLOSED: digest(thresholds=settings.thresholds, threshold=threshold, masks=pixels),
        SAMPLED: digest(**options),
        ATTRIBUTED: digest(captum=of_captum, images=settings.images),
    }
    return {part: f"{part}-{name}-{scored_on.name}" for part, name in decisive.items()}


def score_missing_ablations(
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    settings: AblationSettings,
    masks: Mapping[str, Tensor],
    *,
    device: torch.device | str,
    jobs: int = 1,
) -> Iterator[str]:
    """Compute what is missing, model by model; yield each model's id when it has everything.

    Scores go to ``ablations/<folder>/<model_id>.parquet``; those of single images beside them in ``<model_id>.images.parquet``, which
    is written first. A killed run goes on where it stopped.

    Args:
        work: the study's folder.
        catalogue: the models; diverged runs without one are passed over.
        data: the study's images.
        scored_on: those that every model is scored on.
        settings: see there.
        masks: (N, S, S) bool of the scored images, made by a machine, by the name of what made them.
        device: where to compute.
        jobs: models side by side, see ``side_by_side.each_model``.
    """
    places = {part: inside(work / "ablations", name) for part, name in folder_names(settings, masks, scored_on).items()}
    todo = [model.model_id for model in models_of(catalogue) if _missing(_paths(places, model.model_id))]
    given = (places, scored_on, settings, masks, device)
    yield from each_model(_keep_ablations_of, work, catalogue, data, todo, given, device=device, jobs=jobs)


def _paths(places: Mapping[str, Path], model_id: str) -> dict[str, Path]:
    """Files of a model: one for each part, and one for the scores of single images."""
    paths = {part: inside(place, f"{model_id}.parquet") for part, place in places.items()}
    return paths | {_SINGLE: inside(places[CLOSED], f"{model_id}.images.parquet")}


def _missing(paths: Mapping[str, Path]) -> set[str]:
    """Parts that have to be computed."""
    missing = {part for part, path in paths.items() if not is_sound(path)}
    return missing | {CLOSED} if _SINGLE in missing else missing


def _keep_ablations_of(
    work: Path,
    row: pd.DataFrame,
    data: StudyData,
    places: Mapping[str, Path],
    scored_on: ScoringSet,
    settings: AblationSettings,
    masks: Mapping[str, Tensor],
    device: torch.device | str,
) -> None:
    images = scored_on.of(data)
    for model in models_of(row):
        name, network = model.model_id, load_model(work, model, len(data.classes), device)
        paths = _paths(places, name)
        missing = _missing(paths)
        if CLOSED in missing:
            scores = closed_form_scores(network, images, masks, settings, device)
            _keep(paths[_SINGLE], scores.single.assign(model_id=name)[IMAGE_COLUMNS])
            _keep(paths[CLOSED], scores.table.assign(model_id=name, part=CLOSED)[ABLATION_COLUMNS])
        if SAMPLED in missing:
            _keep(paths[SAMPLED], sampled_scores(network, images, settings, device).assign(model_id=name, part=SAMPLED)[ABLATION_COLUMNS])
        if ATTRIBUTED in missing:
            _keep(paths[ATTRIBUTED], attribution_scores(network, images, settings, device).assign(model_id=name)[ATTRIBUTION_COLUMNS])


def _keep(path: Path, table: pd.DataFrame) -> None:
    with sealed(path) as temporary:
        table.to_parquet(temporary, index=False)


class Ablations(NamedTuple):
    """What is kept of some models."""

    scores: pd.DataFrame  # ABLATION_COLUMNS
    single: pd.DataFrame  # IMAGE_COLUMNS, at the paper's setting
    attributed: pd.DataFrame  # ATTRIBUTION_COLUMNS


def load_ablations(
    work: Path, catalogue: pd.DataFrame, scored_on: ScoringSet, settings: AblationSettings, masks: Mapping[str, Tensor]
) -> Ablations:
    """Scores, scores of single images and attributions that are kept of some models."""
    names, ids = folder_names(settings, masks, scored_on), sorted(catalogue["model_id"])
    folders = {part: work / "ablations" / name for part, name in names.items()}
    scores = [table for part in (CLOSED, SAMPLED) for table in _read(folders[part], ids, ".parquet")]
    single, attributed = _read(folders[CLOSED], ids, ".images.parquet"), _read(folders[ATTRIBUTED], ids, ".parquet")
    kept = ((scores, ABLATION_COLUMNS), (single, IMAGE_COLUMNS), (attributed, ATTRIBUTION_COLUMNS))
    return Ablations(*(_stacked(tables, columns) for tables, columns in kept))


def _read(folder: Path, ids: Iterable[str], ending: str) -> list[pd.DataFrame]:
    return [pd.read_parquet(path) for name in ids if is_sound(path := inside(folder, f"{name}{ending}"))]


def _stacked(tables: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=columns)


def measure_folders(work: Path, settings: evidence.MeasureSettings, scored_on: ScoringSet) -> list[str]:
    """Find the scores of 04_baselines on these images: of each family the folder for these settings, or the only one there is.

    Where there are several and none is for these settings, it cannot be known which is meant, and the family is left out.
    """
    chosen = []
    for family in registry.FAMILIES:
        form = re.compile(f"{family}-[0-9a-f]{{8}}-{re.escape(scored_on.name)}")
        there = sorted(path.name for path in (work / "scores").glob(f"{family}-*") if form.fullmatch(path.name))
        wanted = folder_name(family, settings, scored_on)
        chosen += [wanted] if wanted in there else there if len(there) == 1 else []
    return chosen


def single_images(single: pd.DataFrame, models: pd.DataFrame) -> dict[str, NDArray[np.float16]]:
    """iou and iou_b of single images at the paper's setting, (models, images) each, in half precision as those of 03 are kept.

    Args:
        single: see ``load_ablations``.
        models: rows with model_id; NaN for those that were not scored.
    """
    names = single["name"].drop_duplicates()  # in the order in which they are scored, on which draws of images depend
    wide = {measure: single.pivot(index="model_id", columns="name", values=measure) for measure in ("iou", "iou_b")}
    return {measure: table.reindex(models["model_id"], columns=names).to_numpy(dtype=np.float16) for measure, table in wide.items()}


def with_other_measures(
    work: Path, models: pd.DataFrame, scored_on: ScoringSet, settings: evidence.MeasureSettings
) -> tuple[pd.DataFrame, dict[str, int], dict[str, NDArray[np.float32]]]:
    """Join the measures that 04_baselines kept to a table of models that has iou and iou_b.

    Returns:
        The table; the direction of iou, iou_b and every other ranked measure that is defined for some model; and values of single images
        of these others, see ``single_images.image_values``.
    """
    folders, values = measure_folders(work, settings, scored_on), {}
    scores = read_scores(work, folders, models["model_id"])
    for folder in folders:
        values |= stacked_values(work, models, folder)
    joined = with_measures(models.drop(columns=["iou", "iou_b"]), scores)
    joined = joined.assign(iou=models["iou"].to_numpy(), iou_b=models["iou_b"].to_numpy())
    found = {name: item.direction for name, item in registry.ranked().items() if name in joined and joined[name].notna().any()}
    directions = {"iou": 1, "iou_b": 1} | found
    return joined, directions, {name: found for name, found in values.items() if name in directions and name not in ("iou", "iou_b")}


UNTRAINED_COLUMNS = [
    *("architecture", "seed", "train_accuracy", "test_accuracy", "gap"),
    *("iou", "iou_b", "whole_image_floor", "train_images", "test_images"),
]


def some_images(images: ImageSet, count: int, seed: int) -> ImageSet:
    """Choose at most ``count`` images, seeded and in their order; 0 takes all."""
    return images.subset(np.sort(np.random.default_rng(seed).permutation(len(images))[: count or None]))


def random_network_score(
    architecture: str,
    train: ImageSet,
    test: ImageSet,
    classes: int,
    *,
    stem: str,
    width: float,
    last_stride: int = 2,
    seed: int,
    method: str = "grad_cam",
    threshold: float = 0.1,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
) -> dict[str, float | int | str]:
    """Score one untrained network: initial weights of its seed, batch statistics of mean 0 and variance 1, evaluation mode.

    Args:
        architecture: see ``resnet.build``, as stem, width and last_stride.
        train: images for the training accuracy and the overlap.
        test: images for the test accuracy.
        classes: outputs.
        stem: of the network.
        width: of the network.
        last_stride: of the network.
        seed: of the initial weights; the same seed gives the same numbers.
        method: of the map, one of ``maps.CLOSED_FORM_METHODS``.
        threshold: of the map.
        device: where to compute.
        batch_size: images per pass.

    Returns:
        ``COLUMNS``: accuracies and gap (train minus test) as fractions, near 1 / classes and 0; iou, iou_b and the floor in [0, 1].
    """
    network = resnet.build(architecture, classes, stem=stem, width=width, last_stride=last_stride, seed=seed)
    network = network.to(device, memory_format=torch.channels_last).eval()
    example = passes.example(train, resnet.normalise_images, device)
    given = (resnet.normalise_images, device, example, method, batch_size)
    seen, unseen = (passes.forward_pass(network, images, *given) for images in (train, test))
    accuracies = [float((run.logits.argmax(1) == images.labels).double().mean()) for run, images in ((seen, train), (unseen, test))]
    boxes = overlap.box_masks(train.boxes, train.images.shape[-1])
    overlaps = [float(part.double().nanmean()) for part in overlap.overlaps(passes.maps(seen), overlap.annotated(boxes), [threshold])]
    values = [*accuracies, accuracies[0] - accuracies[1], *overlaps, float(boxes.double().mean())]
    return dict(zip(UNTRAINED_COLUMNS, [architecture, seed, *values, len(train), len(test)], strict=True))


def random_network_scores(
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    count: int,
    *,
    images: int = 0,
    method: str = "grad_cam",
    threshold: float = 0.1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[dict[str, float | int | str]]:
    """Score ``count`` untrained networks of every architecture that a catalogue has, of its form; yield them one by one.

    Each is kept in ``ablations/random-<digest>/<architecture>-<seed>.parquet`` and never computed again; more networks are added to
    those that are there.

    Args:
        work: the study's folder.
        catalogue: architecture, stem, width, last_stride.
        data: the study's images.
        scored_on: training images that the trained networks are scored on.
        count: networks per architecture; Du et al. take 50.
        images: the first of the scored images, and some test images, the same for all networks; 0 takes all.
        method: of the map.
        threshold: of the map.
        seed: of the first network and of the choice of test images.
        device: where to compute.
    """
    train, test = scored_on.of(data), some_images(data.test, images, seed)
    train = train.subset(range(min(len(train), images or len(train))))
    decisive = {
        "data": data.fingerprint,
        "scored": scored_on.name,
        "images": images,
        "method": method,
        "threshold": threshold,
        "chosen": seed if images else 0,
    }
    forms = catalogue[["architecture", "stem", "width", "last_stride"]].drop_duplicates("architecture")
    for architecture, stem, width, last_stride in forms.itertuples(index=False):
        form = {"stem": stem, "width": float(width), "last_stride": int(last_stride)}
        folder = f"ablations/random-{digest(**decisive, **form)}"
        for number in range(seed, seed + count):
            path = inside(work, f"{folder}/{architecture}-{number}.parquet")
            if not is_sound(path):
                settings = form | {"seed": number, "method": method, "threshold": threshold}
                row = random_network_score(architecture, train, test, len(data.classes), device=device, **settings)
                _keep(path, pd.DataFrame([row]))
            yield pd.read_parquet(path).iloc[0].to_dict()

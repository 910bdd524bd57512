"""Every model of a catalogue on the scoring set: every measure once, values of single images kept, several models side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from helpers.data.images import ImageSet, StudyData
from helpers.files import read_tensors
from helpers.measures import evidence, registry
from helpers.measures.evidence import closure
from helpers.networks import resnet
from helpers.scoring.common_set import ScoringSet
from helpers.scoring.side_by_side import each_model
from helpers.scoring.single_images import PROVIDED_BY, folder_name, kept_measures, save_image_values
from helpers.training.catalogue import Model, load_model, models_of, read_scores, save_scores, start_path, with_weights
from helpers.training.config import RunConfig
from helpers.training.run import fitted_rows, initial_model


def initial_network(work: Path, config: RunConfig, classes: int) -> torch.nn.Module | None:
    """The network of a run as it was before its first step; None when its pretrained start was not kept."""
    if not config.pretrained:
        return initial_model(config, classes)
    path = start_path(work, config.weights)
    start = read_tensors(path)
    return None if start is None else initial_model(config, classes, start)


def score_missing(
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    *,
    device: torch.device | str,
) -> Iterator[str]:
    """Compute what is missing of some families of measures, for every model; yield each model's id when it has all of them.

    What several measures need, such as the forward pass, is worked out once per model. Diverged runs without a model are passed over.
    Scores go to ``scores/<folder_name>``, one file per model and family, so that a killed run goes on where it stopped; values of single
    images are written first, see ``single_images.image_values``.
    """
    folders = {family: folder_name(family, settings, scored_on) for family in families}
    images = scored_on.of(data)
    for model in models_of(catalogue):
        there = {family: kept_measures(work, folder, model.model_id) for family, folder in folders.items()}
        todo = [item for item in registry.of_families(list(families)) if item.name not in there[item.family]]
        if todo:
            scores, single = _scores(work, model, data, images, todo, settings, device)
            for family, rows in scores.groupby(scores["measure"].map({item.name: item.family for item in todo})):
                if found := single.get(PROVIDED_BY.get(family)):
                    save_image_values(work, folders[family], model.model_id, found)
                save_scores(work, folders[family], model.model_id, rows)
        yield model.model_id


def _scores(
    work: Path,
    model: Model,
    data: StudyData,
    images: ImageSet,
    todo: Sequence[registry.Measure],
    settings: evidence.MeasureSettings,
    device: torch.device | str,
) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    given = {
        "network": load_model(work, model, len(data.classes), device),
        "images": images,
        "normalise": resnet.normalise_images,
        "device": device,
        "training_images": len(fitted_rows(data, model.config)),  # a bound's m is of the training, not of the scoring
    }
    if "initial_network" in closure(name for item in todo for name in item.needs):
        given["initial_network"] = initial_network(work, model.config, len(data.classes))
    single = {PROVIDED_BY[family] for family in {item.family for item in todo} & set(PROVIDED_BY)}
    return evidence.score_with_images(todo, given, settings, single)


# Whose values are the noise that was found and nothing else.
_OF_NOISE = ("pacbayes_flatness", "pacbayes_mag_flatness")


def spread_over_seeds(
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    settings: evidence.MeasureSettings,
    *,
    device: torch.device | str,
    seeds: int = 5,
) -> pd.DataFrame:
    """Flatness of one model, that of the middle gap, by other draws of the noise: what the search leaves to chance.

    Args:
        work: the study's folder.
        catalogue: its models that are analysed.
        data: its images.
        scored_on: images that they were scored on.
        settings: under which they were scored; its seed is the first of the seeds.
        device: where to compute.
        seeds: how many.

    Returns:
        measure, model_id, n seeds with a value, mean and spread (standard deviation) over them; NaN for fewer than two. No row without
        models, or where the weights of all are elsewhere.
    """
    todo = [item for item in registry.of_families(["flatness"]) if item.name in _OF_NOISE]
    catalogue = with_weights(work, catalogue)
    drawn = [replace(settings, seed=settings.seed + more) for more in range(seeds)]
    tables = [pd.DataFrame(columns=["measure", "value", "model_id"])]
    for model in models_of(catalogue.sort_values("gap").iloc[len(catalogue) // 2 :][:1]):
        tables += [
            _scores(work, model, data, scored_on.of(data), todo, given, device)[0].assign(model_id=model.model_id) for given in drawn
        ]
    values = pd.concat(tables[1:] or tables).groupby(["measure", "model_id"], sort=False)["value"]
    return values.agg(n="count", mean="mean", spread="std").reset_index()


def load_scores(
    work: Path, catalogue: pd.DataFrame, scored_on: ScoringSet, families: Sequence[str], settings: evidence.MeasureSettings
) -> pd.DataFrame:
    """Read the scores of some families on these images, under these settings: a row per model, measure and variant, see ``read_scores``."""
    return read_scores(work, [folder_name(family, settings, scored_on) for family in families], catalogue["model_id"])


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Join scores to the catalogue: one column per measure and variant (see ``registry.columns``), NaN where a model has none."""
    known = registry.columns().merge(scores, on=["measure", "variant"])
    wide = known.pivot(index="model_id", columns="column", values="value")
    return catalogue.merge(wide[list(dict.fromkeys(known["column"]))], how="left", left_on="model_id", right_index=True)


def score_side_by_side(
    work: Path,
    catalogue: pd.DataFrame,
    scored_on: ScoringSet,
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    *,
    device: str,
    jobs: int = 0,
) -> Iterator[str]:
    """Do what ``models.score_missing`` does in several processes, each with one thread on a CPU; yield ids as they come.

    Args:
        work: the study's folder; each process reads the images by ``manifest.of_study``.
        catalogue: its models.
        scored_on: images that all of them are scored on.
        families: families of measures.
        settings: what else decides the values.
        device: where to compute.
        jobs: processes; 0 takes one per core on a CPU, and one on a GPU. 1 works in this process, which alone knows a measure that was
            defined in a notebook and not in a module.

    Raises:
        RuntimeError: as ``side_by_side.each_model``.
    """
    names = catalogue.loc[catalogue["snapshot"] != "none", "model_id"]
    todo = [name for name in names if _lacks(work, name, scored_on, families, settings)]
    yield from each_model(_score_one, work, catalogue, None, todo, (scored_on, list(families), settings, device), device=device, jobs=jobs)


def _lacks(work: Path, model_id: str, scored_on: ScoringSet, families: Sequence[str], settings: evidence.MeasureSettings) -> bool:
    """Whether a model lacks a measure of some families."""
    return any(
        {item.name for item in registry.of_families([family])} - kept_measures(work, folder_name(family, settings, scored_on), model_id)
        for family in families
    )


def _score_one(
    work: Path,
    row: pd.DataFrame,
    data: StudyData,
    scored_on: ScoringSet,
    families: list[str],
    settings: evidence.MeasureSettings,
    device: str,
) -> None:
    for _ in score_missing(work, row, data, scored_on, families, settings, device=device):
        pass

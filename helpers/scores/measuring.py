"""Measure every network on the scored images; values are computed once and stored."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn
from tqdm.auto import tqdm

from helpers.measures import evidence, localization, registry
from helpers.networks.faults import Undefined
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import NOT_RECORDED, Records, Store
from helpers.training.pool import side_by_side

# Settings that decide the values of a family.
DECISIVE: dict[str, tuple[str, ...]] = {
    "localization": ("cam_method", "cam_threshold", "cam_cut"),
    "prediction": (),
    "reliance": (),
    "norms": (),
    "flatness": (
        "flatness_images",
        "flatness_draws",
        "flatness_halvings",
        "sharpness_images",
        "sharpness_steps",
        "seed",
    ),
    "perturbation": (
        "perturbation_fraction",
        "perturbation_points",
        "transform_ranges",
        "seed",
    ),
    "unlabelled": ("transport_images", "seed"),
}
# Providers of the values of single images of a family, see ``evidence.PROVIDERS``.
IMAGE_VALUES = {
    "localization": ("localization_values", "predictions_of_images"),
    "prediction": ("prediction_values",),
    "reliance": ("reliance_values",),
}
# Localization that no threshold decides: what is recorded of it is more exact than what
# recorded maps of 8 bits give.
THRESHOLD_FREE = (
    "energy_in_box",
    "pointing_game",
    "area_matched_iou",
    "pixel_average_precision",
    "whole_image_floor",
    "images_scored",
    "images_with_empty_map",
)
# Measures that depend much on which images are drawn: an image has the value -1, 0 or
# 1, and most have 0. Drawing images makes the interval of their r over 40 networks 0.27
# wider, and that of other measures at most 0.02.
OF_UNEQUAL_IMAGES = ("object_reliance",)
NO_INTERVAL = (
    "Reliance on the object has no interval here: it depends on the draw of the scored "
    "images, and their single values are not recorded."
)


def settings_of(
    family: str, settings: evidence.MeasureSettings, scored_on: ScoringSet
) -> dict[str, Any]:
    """Everything that the values of a family depend on, except the network.

    Args:
        family: of ``registry.FAMILIES``.
        settings: of the measures.
        scored_on: images that all models are scored on.
    """
    decisive = {name: getattr(settings, name) for name in DECISIVE[family]}
    version = registry.VALUES_VERSIONS.get(family, 1)
    return decisive | {"images": scored_on.name, "version": version}


def score(
    store: Store,
    models: Sequence[Model],
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
) -> Records:
    """Compute every measure of some families for every model.

    Values of networks that are not here are computed of their records, where these
    suffice. Measures of a notebook cell are computed each time, and not stored.

    Args:
        store: of the study.
        models: to be scored.
        families: of ``registry.FAMILIES``.
        settings: of the measures.
        scored_on: images that all models are scored on.

    Returns:
        Records with a part per family: its scores, and arrays of single images.
    """
    task = Task(families, settings, scored_on)
    compute = partial(_measure_model, task=task, device=store.device)
    _measure_records(store, models, task)
    records = store.each(models, task.parts, compute, wanted=task.kept)
    if task.from_outside:
        results = side_by_side(
            partial(_values_from_outside, task=task, store=store),
            models,
            shared=store.shared,
            device=store.device,
            jobs=store.jobs,
        )
        for model, rows in results:
            records.further[model.model_id] = rows
    return records


class Task:
    """Measures to compute for each model.

    It carries the measures themselves, since the registry of another process lacks
    those that are defined in a notebook.
    """

    def __init__(
        self,
        families: Sequence[str],
        settings: evidence.MeasureSettings,
        scored_on: ScoringSet,
    ) -> None:
        """See ``score``."""
        self.settings = settings
        self.scored_on = scored_on
        self.parts = {
            family: settings_of(family, settings, scored_on) for family in families
        }
        measures = registry.measures_of_families(families)
        self.measures = [
            item for item in measures if not registry.is_from_outside(item.function)
        ]
        self.from_outside = [item for item in measures if item not in self.measures]
        self.sources = evidence.sources_by_name()

    @property
    def kept(self) -> dict[str, list[str]]:
        """Names of the measures that are stored, by family."""
        return {
            family: [item.name for item in self.measures if item.family == family]
            for family in self.parts
        }

    def needs_network(self, item: registry.Measure, inputs: Mapping[str, Any]) -> bool:
        """Whether a measure needs more than what is recorded of a network.

        Args:
            item: the measure.
            inputs: what is known of the network, by name.
        """
        needed = evidence.transitive_needs([item.name], self.sources, inputs)
        return "network" in needed


def _measure_model(
    model: Model,
    shared: Any,
    families: Sequence[str],
    *,
    task: Task,
    device: str,
) -> dict[str, dict[str, Any]]:
    """Records of the missing families of a model, computed from its network."""
    inputs = _inputs(model, shared, task, device)
    measures = [item for item in task.measures if item.family in families]
    providers = [IMAGE_VALUES.get(family, ()) for family in families]
    scores, arrays = evidence.score(
        measures,
        inputs,
        task.settings,
        chain.from_iterable(providers),
        task.sources,
    )
    records = {}
    for family in families:
        rows = scores[scores["measure"].isin(task.kept[family])]
        record: dict[str, Any] = {"scores": rows}
        for name in IMAGE_VALUES.get(family, ()):
            record |= arrays.get(name, {})
        records[family] = record
    return records


def _inputs(model: Model, shared: Any, task: Task, device: str) -> dict[str, Any]:
    return _facts_of_run(model) | {
        "network": model.load(device),
        "initial_network": model.initial(),
        "images": task.scored_on.images_of(shared),
        "normalise": model.normalise,
        "device": device,
    }


def _facts_of_run(model: Model) -> dict[str, Any]:
    """What a run says of all its training images, of which some are scored."""
    if model.training_images is None:
        return {}
    return {
        "training_images": model.training_images,  # m in a bound
        "train_accuracy": model.facts["train_accuracy"],
    }


def _measure_records(store: Store, models: Sequence[Model], task: Task) -> None:
    """Compute what records of networks that are not here suffice for, and store it."""
    lacking = store.records(models, task.parts, task.kept).missing
    todo = [model for model in models if lacking[model.model_id]]
    for model in tqdm(store.not_computable(todo), "from records", disable=not todo):
        families = lacking[model.model_id]
        of_families = [item for item in task.measures if item.family in families]
        inputs, of_images = _recorded_inputs(store, model, task)
        scores, arrays = _scores_of_records(of_families, inputs, task)
        for family in families:
            rows = scores[scores["measure"].isin(task.kept[family])]
            if rows["reason"].ne(NOT_RECORDED).any():
                record: dict[str, Any] = {"scores": rows}
                if family == "localization":
                    record |= arrays | of_images
                store.write(model, family, task.parts[family], record)


def _recorded_inputs(
    store: Store, model: Model, task: Task
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is recorded of a network.

    Returns:
        Values of measures and maps, by name; and values of single images that no
        threshold decides.
    """
    settings = {
        family: settings_of(family, task.settings, task.scored_on)
        for family in DECISIVE
    }
    maps = _recorded_maps(store, model, settings.pop("localization"))
    scores = store.records([model], settings).scores()
    inputs = {
        "network": nn.Identity(),  # stands for the absent one, and is not called
        "images": task.scored_on.images_of(store.shared()),
        "device": "cpu",
        **_facts_of_run(model),
        **recorded_values(scores),
    }
    if not maps:
        return inputs, {}
    is_free = maps["scores"]["measure"].isin(THRESHOLD_FREE)
    inputs |= localization.inputs_from_record(maps)
    inputs |= recorded_values(maps["scores"][is_free])
    return inputs, {name: maps[name] for name in THRESHOLD_FREE if name in maps}


def _recorded_maps(
    store: Store, model: Model, wanted: Mapping[str, Any]
) -> dict[str, Any]:
    """Record with maps of all scored images by a CAM method, cut by any threshold."""
    for settings in store.settings_of("localization"):
        if all(
            settings.get(name) == wanted[name]
            for name in ("cam_method", "images", "version")
        ):
            records = store.records([model], {"localization": settings})
            record = records.record("localization", model.model_id)
            if len(record.get("maps", ())) == len(record.get("correct", [None])):
                return record
    return {}


def recorded_values(scores: pd.DataFrame) -> dict[str, Any]:
    """Values of measures by name, as their functions return them.

    Args:
        scores: of one network. In place of a measure without any value stands an error
            with the reason.
    """
    values: dict[str, Any] = {}
    for name, rows in scores.groupby("measure", sort=False):
        if rows["reason"].ne("").all():
            values[name] = Undefined(rows["reason"].iloc[0])
            continue
        of_variants = rows.set_index("variant")["value"].to_dict()
        values[name] = of_variants.get("", of_variants)
    return values


def _scores_of_records(
    measures: Sequence[registry.Measure], inputs: Mapping[str, Any], task: Task
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Scores of measures of a network that is not here, and values of single images."""
    possible = [item for item in measures if not task.needs_network(item, inputs)]
    families = {item.family for item in possible} & {"localization"}
    providers = chain.from_iterable(IMAGE_VALUES[family] for family in families)
    scores, arrays = evidence.score(
        possible, inputs, task.settings, providers, task.sources
    )
    tables = [scores]
    for item in measures:
        if item not in possible:
            variants = pd.DataFrame({"variant": list(item.variants or ("",))})
            tables.append(
                variants.assign(measure=item.name, value=np.nan, reason=NOT_RECORDED)
            )
    of_images: dict[str, Any] = {}
    for of_provider in arrays.values():
        of_images |= of_provider
    return pd.concat(tables, ignore_index=True), of_images


def _values_from_outside(
    model: Model, shared: Any, *, task: Task, store: Store
) -> pd.DataFrame:
    """Scores of measures of a notebook cell, of the network or of its records."""
    if store.not_computable([model]):
        inputs, _ = _recorded_inputs(store, model, task)
        return _scores_of_records(task.from_outside, inputs, task)[0]
    inputs = _inputs(model, shared, task, store.device)
    scores, _ = evidence.score(
        task.from_outside, inputs, task.settings, sources=task.sources
    )
    return scores


def with_measures(
    catalogue: pd.DataFrame, scores: pd.DataFrame, listing: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Join scores to a table of models.

    Args:
        catalogue: a row per model.
        scores: of ``Records.scores``.
        listing: measures that get a column, as ``registry.columns`` lists them; None
            takes all.

    Returns:
        The catalogue with a column per measure and variant, see ``registry.columns``;
        NaN where a model has none.
    """
    listing = registry.columns() if listing is None else listing
    named = listing.merge(scores, on=["measure", "variant"])
    wide = named.pivot(index="model_id", columns="column", values="value")
    in_order = wide[named["column"].unique()]
    return catalogue.merge(in_order, how="left", left_on="model_id", right_index=True)


def without_interval(
    models: pd.DataFrame, of_images: Mapping[str, NDArray[np.floating]]
) -> list[str]:
    """Measures that have no interval, since values of single images are not recorded.

    Args:
        models: with a column per measure.
        of_images: values of single images by column.

    Returns:
        Those of ``OF_UNEQUAL_IMAGES`` that have a column and no values of images.
    """
    return [
        name for name in OF_UNEQUAL_IMAGES if name in models and name not in of_images
    ]

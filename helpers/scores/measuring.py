"""Measure every network on the scored images; values are computed once and stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pandas as pd

from helpers.cams.localize import LESS_CHANCE
from helpers.measures import evidence, localization, registry, spectra
from helpers.networks import Undefined
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import NotInRecords, Parts, Records, Store

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
OF_CUT = ("cam_threshold", "cam_cut")  # what maps do not depend on
# Reason of a score that records do not suffice for.
NOT_RECORDED = "not recorded, and the network or its images are not here"
# Further arrays of a family than a measure's own values: of images, and of layers.
IMAGE_VALUES = {
    "localization": ("recorded_maps", "predictions_of_images"),
    "prediction": (),
    "reliance": (),
    "norms": ("singular_values",),
}
# Localization that no threshold decides: what is recorded of it is more exact than what
# recorded maps of 8 bits give.
THRESHOLD_FREE = (*LESS_CHANCE, "whole_image_floor")
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

    Of networks that are not here measures are computed from records, where these
    suffice. These values, and those of measures of a notebook cell, are not stored.

    Args:
        store: of the study.
        models: to be scored.
        families: of ``registry.FAMILIES``.
        settings: of the measures.
        scored_on: images that all models are scored on.

    Returns:
        Records with a part per family: its scores, and arrays of single images.

    Raises:
        NotInRecords: where nothing of a family is stored or can be computed here.
    """
    measures = registry.measures_of_families(families)
    parts = {family: settings_of(family, settings, scored_on) for family in families}
    sources = registry.SOURCES
    task = _Task(store, parts, scored_on, settings, measures, sources)
    records = store.each(models, parts, task.of_network, needed=False)
    stored = records.scores().groupby("model_id")["measure"].agg(set)
    names = {item.name for item in measures}
    todo = [item for item in models if names - stored.get(item.model_id, set())]
    for model, of_model in store.side_by_side(task.further, todo, ", ".join(parts)):
        records.add(model.model_id, of_model)
    scores = records.scores()
    is_unknown = scores["reason"] == NOT_RECORDED
    if is_unknown.groupby([scores["model_id"], scores["part"]]).all().any():
        raise NotInRecords(records.left_out)
    return records


@dataclass(frozen=True)
class _Task:
    """Measures to compute of each model.

    It carries the measures themselves, since the registry of another process lacks
    those that are defined in a notebook.
    """

    store: Store
    parts: Parts
    scored_on: ScoringSet
    settings: evidence.MeasureSettings
    measures: Sequence[registry.Measure]
    sources: Mapping[str, registry.Source]  # functions by what they compute

    def of_network(
        self, model: Model, shared: Any, families: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Records of the missing families of a model, but of measures of a cell."""
        measures = [
            item
            for item in self.measures
            if item.family in families and not registry.is_from_outside(item.function)
        ]
        return self._records(measures, self._inputs(model, shared), families)

    def further(self, model: Model, shared: Any) -> dict[str, dict[str, Any]]:
        """Records of measures that are not stored, of the network or of its records."""
        records = self.store.records([model], self.parts)
        scores = records.scores()
        measures = [
            item for item in self.measures if item.name not in {*scores["measure"]}
        ]
        if model.at_hand and shared.train.has_pixels:
            return self._records(measures, self._inputs(model, shared))
        of_layers = records.record("norms", model.model_id)
        inputs = {
            **dict.fromkeys(evidence.INPUTS, Undefined(NOT_RECORDED)),
            **_facts_of_run(model),
            **_recorded_values(scores),
            **spectra.inputs_from_record(of_layers),
            "images": self.scored_on.images_of(shared),
            "device": "cpu",
        }
        maps = {}
        if "localization" in {item.family for item in measures}:
            maps = self._recorded_maps(model)
        if not maps:
            return self._records(measures, inputs)
        # What no threshold decides is recorded more exactly than maps are.
        is_free = maps["scores"]["measure"].isin(THRESHOLD_FREE)
        inputs |= localization.inputs_from_record(maps)
        inputs |= _recorded_values(maps["scores"][is_free])
        records = self._records(measures, inputs, ["localization"])
        free = {name: maps[name] for name in THRESHOLD_FREE if name in maps}
        return records | {"localization": records["localization"] | free}

    def _inputs(self, model: Model, shared: Any) -> dict[str, Any]:
        return _facts_of_run(model) | {
            "network": model.load(self.store.device),
            "initial_network": model.initial(),
            "images": self.scored_on.images_of(shared),
            "normalise": model.normalise,
            "device": self.store.device,
        }

    def _recorded_maps(self, model: Model) -> dict[str, Any]:
        """Record with maps of all scored images by a method, cut by any threshold."""
        wanted = self.parts["localization"]
        for settings in self.store.settings_of("localization"):
            if wanted == settings | {name: wanted[name] for name in OF_CUT}:
                records = self.store.records([model], {"localization": settings})
                record = records.record("localization", model.model_id)
                if len(record.get("maps", ())) == len(record.get("correct", [None])):
                    return record
        return {}

    def _records(
        self,
        measures: Sequence[registry.Measure],
        inputs: Mapping[str, Any],
        families: Sequence[str] = (),
    ) -> dict[str, dict[str, Any]]:
        """Scores of measures by family, and of some families values of images."""
        providers = {family: IMAGE_VALUES.get(family, ()) for family in families}
        scores, arrays = evidence.score(
            measures,
            inputs,
            self.settings,
            chain.from_iterable(providers.values()),
            self.sources,
        )
        records: dict[str, dict[str, Any]] = {}
        family_of = {item.name: item.family for item in measures}
        for family, rows in scores.groupby(scores["measure"].map(family_of)):
            records[family] = {"scores": rows}
            for name in (*providers.get(family, ()), *rows["measure"].unique()):
                records[family] |= arrays.get(name, {})
        return records


def _facts_of_run(model: Model) -> dict[str, Any]:
    """What a run says of all its training images, of which some are scored."""
    if model.training_images is None:
        return {}
    return {
        "training_images": model.training_images,  # m in a bound
        "train_accuracy": model.facts["train_accuracy"],
    }


def _recorded_values(scores: pd.DataFrame) -> dict[str, Any]:
    """Values of measures by name, as their functions return them.

    In place of a measure without any value stands an error with the reason.
    """
    values: dict[str, Any] = {}
    for name, rows in scores.groupby("measure", sort=False):
        of_variants = rows.set_index("variant")["value"].to_dict()
        values[name] = of_variants.get("", of_variants)
        if rows["reason"].ne("").all():
            values[name] = Undefined(rows["reason"].iloc[0])
    return values


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Join scores to a table of models.

    Args:
        catalogue: a row per model.
        scores: of ``Records.scores``.

    Returns:
        The catalogue with a column per measure and variant, see ``registry.columns``;
        NaN where a model has none.
    """
    named = registry.columns().merge(scores, on=["measure", "variant"])
    wide = named.pivot(index="model_id", columns="column", values="value")
    in_order = wide[named["column"].unique()]
    return catalogue.merge(in_order, how="left", left_on="model_id", right_index=True)

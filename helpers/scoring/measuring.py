"""Measure every model on the scored images; values are computed once and stored."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import nn
from tqdm.auto import tqdm

from helpers.files import json_digest, read_json, write_json
from helpers.measures import evidence, localization, registry
from helpers.measures.outside import source_of
from helpers.networks.faults import Undefined
from helpers.scoring.models import Model
from helpers.scoring.records import SETTINGS
from helpers.scoring.scoring_set import ScoringSet
from helpers.scoring.store import Records, Store

SCORE_COLUMNS = ["model_id", "measure", "variant", "value", "seconds", "reason"]
# Providers of the values of single images of a family, see ``evidence.PROVIDERS``.
IMAGE_VALUES = {
    "localization": ("localization_values", "predictions_of_images"),
    "prediction": ("prediction_values",),
    "reliance": ("reliance_values",),
}
# Measures that depend much on which images are drawn: an image has the value -1, 0 or
# 1, and most have 0. Drawing images makes the interval of their r over 40 networks 0.27
# wider, and that of other measures at most 0.02.
OF_UNEQUAL_IMAGES = ("object_reliance",)
NO_INTERVAL = (
    "Reliance on the object has no interval here: it depends on the draw of the scored "
    "images, and their single values are not recorded."
)
NOT_RECORDED = "not recorded, and the network or its images are not here"
# Settings that affect values computed from maps, but not the maps themselves.
_MAP_INDEPENDENT_SETTINGS = ("cam_threshold", "cam_cut", "measures", "sources")
# Settings that were added later, with the value that was used before. Cache keys leave
# a setting out at this value, so that values of earlier versions stay readable.
_DEFAULTS_OF_LATER_SETTINGS = {"cam_cut": "maximum"}


def score(
    store: Store,
    models: Sequence[Model],
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
    only: Collection[str] = (),
) -> Records:
    """Compute every measure of some families for every model.

    Intermediate results that several measures need are computed once.

    Args:
        store: of the study.
        models: to be scored.
        families: of ``registry.FAMILIES``.
        settings: of the measures.
        scored_on: images that all models are scored on.
        only: names of the measures that are wanted; all where it is empty.

    Returns:
        Records by part. A part is what is stored in one file per model: a table
        "scores" of measure, variant, value (NaN is undefined), seconds, reason.

        With ``only``, each family is one part. Without it, the part "family" has the
        measures of ``registry.STORED_TOGETHER`` and arrays of values of single images;
        each further measure has a part "family.measure", so that a new one leaves the
        stored values of all others as they are.
    """
    measures = measures_by_part(families, only)
    parts = _keys(measures, settings, scored_on)
    names = [item.name for item in chain.from_iterable(measures.values())]
    # Functions of notebook cells are passed along: worker processes cannot import them.
    from_outside = evidence.sources_from_outside(names)
    task = _MeasuringTask(
        measures, from_outside, settings, scored_on, with_image_values=not only
    )
    # Checkpoints, for which single measures are asked, have no stored values.
    if not only:
        _measure_from_records(store, models, parts, task)
    compute = partial(_measure_model, task=task, device=store.device)
    # A study of which only records are left lacks what was added to the workbook later.
    optional = [
        part
        for part, items in measures.items()
        if "." in part and not registry.is_from_outside(items[0].function)
    ]
    return store.each(models, parts, compute, optional=optional)


def _keys(
    measures: Mapping[str, Sequence[registry.Measure]],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
) -> dict[str, dict[str, Any]]:
    """What decides the values of some parts, except the model."""
    keys = {}
    for part, items in measures.items():
        names = [item.name for item in items]
        keys[part] = cache_key(_family(part), settings, names)
        keys[part]["images"] = scored_on.name
    return keys


def _family(part: str) -> str:
    """Family of a part: "localization" of "localization" and "localization.iou"."""
    return part.partition(".")[0]


def measures_by_part(
    families: Sequence[str], only: Collection[str] = ()
) -> dict[str, list[registry.Measure]]:
    """Measures of some families by the part of the store that keeps their values.

    Args:
        families: of ``registry.FAMILIES``.
        only: names of the measures that are wanted, in one part per family; all where
            it is empty.

    Returns:
        Measures by part, see ``score``.
    """
    parts: dict[str, list[registry.Measure]] = {}
    for family in families:
        parts[family] = _measures(family, only or registry.STORED_TOGETHER)
        if not only:
            for item in registry.measures_of_families([family]):
                if item.name not in registry.STORED_TOGETHER:
                    parts[f"{family}.{item.name}"] = [item]
    return parts


def _measures(family: str, only: Collection[str]) -> list[registry.Measure]:
    return [
        item
        for item in registry.measures_of_families([family])
        if not only or item.name in only
    ]


def cache_key(
    family: str, settings: evidence.MeasureSettings, only: Collection[str] = ()
) -> dict[str, Any]:
    """Everything that the values of a family depend on, except model and images.

    Args:
        family: of ``registry.FAMILIES``.
        settings: of the measures.
        only: names of the measures that are wanted; all where it is empty.

    Returns:
        In types of JSON: the settings that the measures read, their names, the version
        of the formulas, and the source of functions from outside the workbook.
    """
    measures = _measures(family, only)
    used = evidence.transitive_needs(item.name for item in measures)
    used -= {"batch_size"}  # values do not depend on it
    relevant = {
        item.name: getattr(settings, item.name)
        for item in fields(settings)
        if item.name in used
        and getattr(settings, item.name) != _DEFAULTS_OF_LATER_SETTINGS.get(item.name)
    }
    from_outside = evidence.sources_from_outside(item.name for item in measures)
    if from_outside:
        # The texts of their code: a changed cell is computed again.
        relevant["sources"] = {
            name: source_of(source) for name, source in from_outside.items()
        }
    return relevant | {
        "measures": [item.name for item in measures],
        "version": registry.VALUES_VERSIONS.get(family, 1),
    }


@dataclass(frozen=True)
class _MeasuringTask:
    """Measures to compute for each model.

    It carries the measures themselves, since the registry of another process lacks
    those that are defined in a notebook.
    """

    measures: Mapping[str, Sequence[registry.Measure]]  # by part
    from_outside: Mapping[str, evidence.Source]  # see ``sources_from_outside``
    settings: evidence.MeasureSettings
    scored_on: ScoringSet
    with_image_values: bool  # whether values of single images are wanted too

    def needs(
        self, parts: Sequence[str], inputs: Mapping[str, Any] | None = None
    ) -> set[str]:
        """Names of values that measures of some parts need.

        A value that is given as an input is not followed to what it is computed from.
        """
        items = self._measures_of(parts)
        sources = evidence.sources_by_name(items, self.from_outside)
        return evidence.transitive_needs(
            (item.name for item in items), sources, inputs or {}
        )

    def _measures_of(self, parts: Sequence[str]) -> list[registry.Measure]:
        return list(chain.from_iterable(self.measures[part] for part in parts))

    def records(
        self, parts: Sequence[str], inputs: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Records of some parts of one model, computed from its inputs by name."""
        providers = {}
        if self.with_image_values:
            providers = {part: IMAGE_VALUES.get(part, ()) for part in parts}
        scores, arrays = evidence.score(
            self._measures_of(parts),
            inputs,
            self.settings,
            chain.from_iterable(providers.values()),
            self.from_outside,
        )
        records = {}
        for part in parts:
            names = [item.name for item in self.measures[part]]
            table = scores[scores["measure"].isin(names)]
            lacking = sorted(set(names) - set(table["measure"]))
            if lacking:
                raise RuntimeError(
                    f"no row of {', '.join(lacking)}; nothing of {part} is kept"
                )
            records[part] = {"scores": table}
            for name in providers.get(part, ()):
                records[part] |= arrays.get(name, {})
        return records


def _measure_model(
    model: Model,
    shared: Any,
    parts: Sequence[str],
    *,
    task: _MeasuringTask,
    device: str,
) -> dict[str, dict[str, Any]]:
    """Records of the missing parts of a model, computed from its network.

    Args:
        model: of the study.
        shared: the study's images, which each worker process loads once.
        parts: names of the missing parts.
        task: measures to compute.
        device: "cpu" or "cuda".
    """
    inputs = {
        "network": model.load(device),
        "images": task.scored_on.images_of(shared),
        "normalise": model.normalise,
        "device": device,
    }
    inputs |= _facts_of_run(model)
    if "initial_network" in task.needs(parts):
        inputs["initial_network"] = model.initial()
    return task.records(parts, inputs)


def _facts_of_run(model: Model) -> dict[str, Any]:
    """What a run says of all its training images, of which some are scored."""
    if model.training_images is None:
        return {}
    return {
        "training_images": model.training_images,  # m in a bound
        "train_accuracy": model.facts["train_accuracy"],
    }


def _measure_from_records(
    store: Store,
    models: Sequence[Model],
    parts: Mapping[str, Mapping[str, Any]],
    task: _MeasuringTask,
) -> None:
    """Compute measures of stored maps and of other measures, without the network.

    Parts that need more are skipped.

    Args:
        store: of the study.
        models: to be scored.
        parts: of the store, with their cache keys.
        task: measures to compute for each model.
    """
    target = Records(_folders(store, parts), models, store.published)
    missing = {model.model_id: target.missing(model.model_id) for model in models}
    todo = [model for model in models if missing[model.model_id]]
    if not todo:
        return
    lacking = set().union(*missing.values())
    inputs = {model.model_id: _facts_of_run(model) for model in todo}
    if any(_family(part) == "localization" for part in lacking):
        maps = _maps_of_models(store, todo, parts["localization"], task.scored_on)
        for model_id, record in maps:
            inputs[model_id] |= localization.inputs_from_record(record)
    needed = _parts_with(task.needs(lacking))
    known = _keys(needed, task.settings, task.scored_on)
    values = Records(_folders(store, known), todo, store.published)
    for part in known:
        for model_id, record in values.records(part):
            inputs[model_id] |= _recorded_values(record["scores"])
    images = None
    label = f"{', '.join(sorted(lacking))} from records"
    for model_id, of_model in tqdm(inputs.items(), desc=label, delay=1):
        possible = [
            part
            for part in missing[model_id]
            if "network" not in task.needs([part], of_model)
        ]
        if not possible:
            continue
        if images is None:
            images = task.scored_on.images_of(store.shared())
        placeholder = {"network": nn.Identity(), "device": "cpu", "images": images}
        for part, record in task.records(possible, placeholder | of_model).items():
            write_json(target.folders[part] / SETTINGS, parts[part])
            target.write(part, model_id, record)


def _folders(store: Store, parts: Mapping[str, Mapping[str, Any]]) -> dict[str, Path]:
    return {
        part: store.folder / f"{part}-{json_digest(settings)}"
        for part, settings in parts.items()
    }


def _parts_with(names: Collection[str]) -> dict[str, list[registry.Measure]]:
    """Families that hold some measures, with all that they store together."""
    families = [
        family
        for family in registry.FAMILIES
        if any(item.name in names for item in _measures(family, ()))
    ]
    parts = measures_by_part(families)
    return {part: parts[part] for part in families}


def _recorded_values(scores: pd.DataFrame) -> dict[str, Any]:
    """Values of measures by name, as their functions return them.

    Args:
        scores: a row per measure and variant. In place of a measure without any value
            stands an error with the reason.
    """
    values: dict[str, Any] = {}
    for name, rows in scores.groupby("measure", sort=False):
        if rows["reason"].ne("").all():
            values[name] = Undefined(rows["reason"].iloc[0])
            continue
        of_variants = rows.set_index("variant")["value"].to_dict()
        values[name] = of_variants.get("", of_variants)
    return values


def _maps_of_models(
    store: Store,
    models: Sequence[Model],
    settings: Mapping[str, Any],
    scored_on: ScoringSet,
) -> Iterator[tuple[str, Mapping]]:
    """Ids of models with a record of their maps; others are skipped.

    Published maps have 8 bits. They are used only for models that cannot be computed
    here, and only if all scored images have one, see ``records.IMAGES_WITH_MAPS``.
    """
    if not models:
        return
    sources = [
        Records({"localization": store.folder / name}, models, store.published)
        for name in _folders_of_maps(store, settings)
    ]
    not_computable = {model.model_id for model in store.not_computable(models)}
    for model in models:
        for source in sources:
            record = source.record("localization", model.model_id)
            has_full_maps = localization.MAPS in record  # 16 bits; "maps" has 8
            is_complete = len(record.get("maps", ())) == len(scored_on.rows)
            may_use_8_bits = model.model_id in not_computable and is_complete
            if has_full_maps or may_use_8_bits:
                yield model.model_id, record
                break


def _folders_of_maps(store: Store, part: Mapping[str, Any]) -> list[str]:
    """Names of folders whose values come from the same maps, cut at any threshold."""
    decisive = {key: part[key] for key in part if key not in _MAP_INDEPENDENT_SETTINGS}
    names = []
    for root in (store.folder, store.published):
        for path in sorted(root.glob(f"localization-*/{SETTINGS}")):
            other = read_json(path)
            if all(other.get(key) == value for key, value in decisive.items()):
                names.append(path.parent.name)
    return list(dict.fromkeys(names))


def score_table(records: Records) -> pd.DataFrame:
    """Scores of all parts.

    Args:
        records: of ``score``.

    Returns:
        ``SCORE_COLUMNS``, a row per model, measure and variant.
    """
    tables = [records.table(part, "scores") for part in records.folders]
    tables += [_not_recorded(records, part) for part in records.optional]
    tables = [table for table in tables if len(table)]
    if not tables:
        return pd.DataFrame(columns=SCORE_COLUMNS)
    return pd.concat(tables, ignore_index=True)[SCORE_COLUMNS]


def _not_recorded(records: Records, part: str) -> pd.DataFrame:
    """Rows without a value, of the models that lack a part of one measure."""
    item = registry.MEASURES[part.partition(".")[2]]
    rows = [
        (model_id, item.name, variant, np.nan, 0.0, NOT_RECORDED)
        for model_id in records.model_ids
        if part in records.missing(model_id)
        for variant in item.variants or ("",)
    ]
    return pd.DataFrame(rows, columns=SCORE_COLUMNS)


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


def with_measures(
    catalogue: pd.DataFrame, scores: pd.DataFrame, listing: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Join scores to a table of models.

    Args:
        catalogue: a row per model.
        scores: of ``score_table``.
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

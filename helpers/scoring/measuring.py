"""Measure every model on the scored images; values are computed once and stored."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from helpers.files import json_digest, read_json, write_json
from helpers.measures import evidence, localization, registry
from helpers.measures.outside import source_of
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
    parts = {}
    names = []
    for part, items in measures.items():
        names_of_part = [item.name for item in items]
        parts[part] = cache_key(_family(part), settings, names_of_part)
        parts[part]["images"] = scored_on.name
        names += names_of_part
    # Functions of notebook cells are passed along: worker processes cannot import them.
    from_outside = evidence.sources_from_outside(names)
    task = _MeasuringTask(
        measures, from_outside, settings, scored_on, with_image_values=not only
    )
    # Checkpoints, for which single measures are asked, have no stored maps.
    if "localization" in parts and not only:
        _localize_from_maps(store, models, parts, task)
    compute = partial(_measure_model, task=task, device=store.device)
    return store.each(models, parts, compute)


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
    if model.training_images is not None:
        # m in a bound is the number of training images, not of scored ones.
        inputs["training_images"] = model.training_images
    if "initial_network" in task.needs(parts):
        inputs["initial_network"] = model.initial()
    return task.records(parts, inputs)


def _localize_from_maps(
    store: Store,
    models: Sequence[Model],
    parts: Mapping[str, Mapping[str, Any]],
    task: _MeasuringTask,
) -> None:
    """Compute localization from stored maps, without network and pixels.

    Parts that need more than maps, boxes and predictions are skipped.

    Args:
        store: of the study.
        models: to be scored.
        parts: of the store, with their cache keys.
        task: measures to compute for each model.
    """
    folders = {
        part: store.folder / f"{part}-{json_digest(settings)}"
        for part, settings in parts.items()
        if _family(part) == "localization"
    }
    target = Records(folders, models, store.published)
    missing = {model.model_id: target.missing(model.model_id) for model in models}
    todo = [model for model in models if missing[model.model_id]]
    if not todo:
        return
    images = task.scored_on.images_of(store.shared())
    maps = _maps_of_models(store, todo, parts["localization"], task.scored_on)
    for model_id, record in maps:
        inputs = localization.inputs_from_record(record)
        possible = [
            part
            for part in missing[model_id]
            if "network" not in task.needs([part], inputs)
        ]
        if not possible:
            continue
        inputs["images"] = images
        for part, values in task.records(possible, inputs).items():
            write_json(folders[part] / SETTINGS, parts[part])
            target.write(part, model_id, values)


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
    tables = [table for table in tables if len(table)]
    if not tables:
        return pd.DataFrame(columns=SCORE_COLUMNS)
    return pd.concat(tables, ignore_index=True)[SCORE_COLUMNS]


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

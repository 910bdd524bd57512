"""Every measure of every model on the scored images: computed once, as tables."""

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
# What gives the values of single images of a family, see ``evidence.PROVIDERS``.
IMAGE_VALUES = {
    "localization": ("localization_values", "predictions_of_images"),
    "prediction": ("prediction_values",),
    "reliance": ("reliance_values",),
}
# Means over images of -1, 0 and 1, of which few are not 0: r of 40 networks has an
# interval that is 0.27 wider if images are drawn too. That of other measures is 0.02
# wider at most.
OF_UNEQUAL_IMAGES = ("object_reliance",)
NO_INTERVAL = (
    "Reliance on the object has no interval here: it depends on the draw of the scored "
    "images, and their single values are not recorded."
)
# Settings of which maps do not depend, but what is computed from them.
_OF_NO_MAP = ("cam_threshold", "cam_cut", "measures", "sources")
# Settings that values of earlier versions do not name, with what these were computed
# by.
_LATER = {"cam_cut": "maximum"}


def score(
    store: Store,
    models: Sequence[Model],
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
    only: Collection[str] = (),
) -> Records:
    """Compute every measure of some families for every model; what several need, once.

    Args:
        store: of the study.
        models: to be scored.
        families: of ``registry.FAMILIES``.
        settings: of the measures.
        scored_on: images that all models are scored on.
        only: names of the measures that are wanted; all where it is empty.

    Returns:
        Records by part. A part has a table "scores": measure, variant, value (NaN is
        undefined), seconds, reason. The part of a family has its measures of
        ``registry.KEPT_TOGETHER``, and arrays of values of single images where all
        measures are wanted. Each further measure has a part "family.measure", so
        that a new one leaves the values of all others as they are.
    """
    measures = measures_by_part(families, only)
    parts = {}
    names = []
    for part, items in measures.items():
        of_part = [item.name for item in items]
        parts[part] = deciding(_family(part), settings, of_part)
        parts[part]["images"] = scored_on.name
        names += of_part
    from_outside = evidence.sources_from_outside(names)
    scoring = _Scoring(measures, from_outside, settings, scored_on, of_images=not only)
    if "localization" in parts and not only:
        _localize_from_maps(store, models, parts, scoring)
    compute = partial(_scores, scoring=scoring, device=store.device)
    return store.each(models, parts, compute)


def _family(part: str) -> str:
    """Family of a part: of "localization.iou", too, "localization"."""
    return part.partition(".")[0]


def measures_by_part(
    families: Sequence[str], only: Collection[str] = ()
) -> dict[str, list[registry.Measure]]:
    """Measures of some families by the part of the store that keeps their values.

    Args:
        families: of ``registry.FAMILIES``.
        only: names of the measures that are wanted, one part a family; all where it
            is empty.

    Returns:
        Measures by part, see ``score``.
    """
    parts: dict[str, list[registry.Measure]] = {}
    for family in families:
        parts[family] = _measures(family, only or registry.KEPT_TOGETHER)
        if not only:
            for item in registry.of_families([family]):
                if item.name not in registry.KEPT_TOGETHER:
                    parts[f"{family}.{item.name}"] = [item]
    return parts


def _measures(family: str, only: Collection[str]) -> list[registry.Measure]:
    return [
        item for item in registry.of_families([family]) if not only or item.name in only
    ]


def deciding(
    family: str, settings: evidence.MeasureSettings, only: Collection[str] = ()
) -> dict[str, Any]:
    """What the values of a family depend on.

    Args:
        family: of ``registry.FAMILIES``.
        settings: of the measures.
        only: names of the measures that are wanted; all where it is empty.

    Returns:
        As JSON has it: settings that the measures read, their names, the version of
        the formulas, and of functions from outside of the workbook their source.
    """
    measures = _measures(family, only)
    used = evidence.closure(item.name for item in measures) - {"batch_size"}
    relevant = {
        item.name: getattr(settings, item.name)
        for item in fields(settings)
        if item.name in used and getattr(settings, item.name) != _LATER.get(item.name)
    }
    from_outside = evidence.sources_from_outside(item.name for item in measures)
    if from_outside:
        relevant["sources"] = {
            name: source_of(source.function) for name, source in from_outside.items()
        }
    return relevant | {
        "measures": [item.name for item in measures],
        "version": registry.VALUES_VERSIONS.get(family, 1),
    }


@dataclass(frozen=True)
class _Scoring:
    """What is computed of each model.

    Measures come with it: another process does not have those of a notebook cell in its
    registry.
    """

    measures: Mapping[str, Sequence[registry.Measure]]  # by part
    from_outside: Mapping[str, evidence.Source]  # see ``sources_from_outside``
    settings: evidence.MeasureSettings
    scored_on: ScoringSet
    of_images: bool  # whether values of single images are wanted too

    def needs(
        self, parts: Sequence[str], inputs: Mapping[str, Any] | None = None
    ) -> set[str]:
        """Everything that the measures of some parts need; inputs need nothing."""
        items = self._measures_of(parts)
        sources = evidence.sources_by_name(items, self.from_outside)
        return evidence.closure((item.name for item in items), sources, inputs or {})

    def _measures_of(self, parts: Sequence[str]) -> list[registry.Measure]:
        return list(chain.from_iterable(self.measures[part] for part in parts))

    def records(
        self, parts: Sequence[str], inputs: Mapping[str, Any]
    ) -> dict[str, dict[str, Any]]:
        """Records of some parts of one model, by what is known of it."""
        providers = {}
        if self.of_images:
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


def _scores(
    model: Model,
    shared: Any,
    parts: Sequence[str],
    *,
    scoring: _Scoring,
    device: str,
) -> dict[str, dict[str, Any]]:
    """Records of the parts that a model lacks, by its network."""
    inputs = {
        "network": model.load(device),
        "images": scoring.scored_on.of(shared),
        "normalise": model.normalise,
        "device": device,
    }
    if model.training_images is not None:
        # A bound's m is of the training, not of the scoring.
        inputs["training_images"] = model.training_images
    if "initial_network" in scoring.needs(parts):
        inputs["initial_network"] = model.initial()
    return scoring.records(parts, inputs)


def _localize_from_maps(
    store: Store,
    models: Sequence[Model],
    parts: Mapping[str, Mapping[str, Any]],
    scoring: _Scoring,
) -> None:
    """Keep localization of models whose maps were kept, without network and pixels.

    Parts that need more than maps, boxes and predictions are passed over.

    Args:
        store: of the study.
        models: to be scored.
        parts: of the store, with what decides their values.
        scoring: what is computed of each model.
    """
    folders = {
        part: store.folder / f"{part}-{json_digest(settings)}"
        for part, settings in parts.items()
        if _family(part) == "localization"
    }
    target = Records(folders, models, store.published)
    missing = {model.model_id: target.missing(model.model_id) for model in models}
    todo = [model for model in models if missing[model.model_id]]
    maps = _maps_of_models(store, todo, parts["localization"], scoring.scored_on)
    for model_id, record in maps:
        inputs = localization.of_record(record)
        possible = [
            part
            for part in missing[model_id]
            if "network" not in scoring.needs([part], inputs)
        ]
        if not possible:
            continue
        inputs["images"] = scoring.scored_on.of(store.shared())
        for part, values in scoring.records(possible, inputs).items():
            write_json(folders[part] / SETTINGS, parts[part])
            target.write(part, model_id, values)


def _maps_of_models(
    store: Store,
    models: Sequence[Model],
    settings: Mapping[str, Any],
    scored_on: ScoringSet,
) -> Iterator[tuple[str, Mapping]]:
    """Ids of models with a record of their maps; others are passed over.

    Maps of 8 bits, which are published, serve where nothing can be computed here, and
    only where they are of all scored images, see ``records.IMAGES_WITH_MAPS``.
    """
    if not models:
        return
    sources = [
        Records({"localization": store.folder / name}, models, store.published)
        for name in _folders_of_maps(store, settings)
    ]
    recorded = {model.model_id for model in store.not_computable(models)}
    for model in models:
        for source in sources:
            record = source.record("localization", model.model_id)
            is_complete = len(record.get("maps", ())) == len(scored_on.rows)
            if localization.MAPS in record or (
                model.model_id in recorded and is_complete
            ):
                yield model.model_id, record
                break


def _folders_of_maps(store: Store, part: Mapping[str, Any]) -> list[str]:
    """Names of folders with the same maps, cut at other thresholds."""
    decisive = {key: part[key] for key in part if key not in _OF_NO_MAP}
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


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Join scores to a table of models.

    Args:
        catalogue: a row per model.
        scores: of ``score_table``.

    Returns:
        The catalogue with a column per measure and variant, see ``registry.columns``;
        NaN where a model has none.
    """
    listing = registry.columns().merge(scores, on=["measure", "variant"])
    wide = listing.pivot(index="model_id", columns="column", values="value")
    in_order = wide[listing["column"].unique()]
    return catalogue.merge(in_order, how="left", left_on="model_id", right_index=True)

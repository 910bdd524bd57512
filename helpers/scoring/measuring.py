"""Every measure of every model on the scored images: computed once, as tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import pandas as pd
from numpy.typing import NDArray

from helpers.files import digest, read_json, write_json
from helpers.measures import evidence, localization, registry
from helpers.measures.outside import source_of
from helpers.scoring.models import Model
from helpers.scoring.records import SETTINGS
from helpers.scoring.scoring_set import ScoringSet
from helpers.scoring.store import Kept, Store

SCORE_COLUMNS = ["model_id", "measure", "variant", "value", "seconds", "reason"]
# What gives the values of single images of a family, see ``evidence.PROVIDERS``.
IMAGE_VALUES = {
    "localization": ("localization_values", "predictions_of_images"),
    "prediction": ("prediction_values",),
    "reliance": ("reliance_values",),
}
# Settings of which maps do not depend, but what is computed from them.
_OF_NO_MAP = ("cam_threshold", "cam_cut", "measures", "sources")
# Settings that values of earlier versions do not name, with what these were computed by.
_LATER = {"cam_cut": "maximum"}


def score(
    store: Store,
    models: Sequence[Model],
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
    only: Collection[str] = (),
) -> Kept:
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
    parts = {
        part: deciding(part.partition(".")[0], settings, [item.name for item in items])
        | {"images": scored_on.name}
        for part, items in measures.items()
    }
    if "localization" in parts and not only:
        _localize_kept_maps(
            store, models, parts["localization"], measures["localization"], scored_on
        )
    return store.each(
        models,
        parts,
        partial(
            _scores,
            measures=measures,
            from_outside=evidence.sources_from_outside(
                item.name for items in measures.values() for item in items
            ),
            settings=settings,
            scored_on=scored_on,
            of_images=not only,
            device=store.device,
        ),
    )


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


def _scores(
    model: Model,
    shared: Any,
    parts: Sequence[str],
    *,
    measures: Mapping[str, Sequence[registry.Measure]],
    from_outside: Mapping[str, evidence.Source],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
    of_images: bool,
    device: str,
) -> dict[str, dict[str, Any]]:
    """Records of the parts that a model lacks; measures come with the call.

    Another process does not have the measures of a notebook cell in its registry.
    """
    asked = [item for part in parts for item in measures[part]]
    given = {
        "network": model.load(device),
        "images": scored_on.of(shared),
        "normalise": model.normalise,
        "device": device,
    }
    if model.training_images is not None:
        # A bound's m is of the training, not of the scoring.
        given["training_images"] = model.training_images
    sources = evidence.sources_by_name(asked, from_outside)
    if "initial_network" in evidence.closure((item.name for item in asked), sources):
        given["initial_network"] = model.initial()
    wanted = [name for part in parts for name in IMAGE_VALUES.get(part, ())]
    scores, single = evidence.score(
        asked, given, settings, wanted if of_images else (), from_outside
    )
    records = {}
    for part in parts:
        names = [item.name for item in measures[part]]
        table = scores[scores["measure"].isin(names)]
        lacking = sorted(set(names) - set(table["measure"]))
        if lacking:
            raise RuntimeError(
                f"no row of {', '.join(lacking)}; nothing of {part} is kept"
            )
        records[part] = {"scores": table} | _of_part(part, single)
    return records


def _of_part(
    part: str, single: Mapping[str, Mapping[str, Any]]
) -> dict[str, NDArray[Any]]:
    """Arrays of single images of a part, of those of all parts by their provider."""
    arrays: dict[str, NDArray[Any]] = {}
    for name in IMAGE_VALUES.get(part, ()):
        arrays |= single.get(name, {})
    return arrays


def _localize_kept_maps(
    store: Store,
    models: Sequence[Model],
    part: Mapping[str, Any],
    measures: Sequence[registry.Measure],
    scored_on: ScoringSet,
) -> None:
    """Keep localization of models whose maps were kept at another threshold.

    Neither network nor pixels are needed. Maps of 8 bits, which are published, serve
    where nothing can be computed here.

    Args:
        store: of the study.
        models: to be scored.
        part: settings of the part "localization".
        measures: of the part.
        scored_on: the images.
    """
    name = f"localization-{digest(part)}"
    target = Kept({"localization": store.folder / name}, models, store.published)
    todo = [model for model in models if target.missing(model.model_id)]
    sources = [
        Kept({"localization": store.folder / source}, todo, store.published)
        for source in (_folders_of_maps(store, part) if todo else ())
    ]
    recorded = {model.model_id for model in store.not_computable(todo)}
    for model in todo:
        records = [one.record("localization", model.model_id) for one in sources]
        records = [
            record
            for record in records
            if localization.MAPS in record
            or (model.model_id in recorded and _has_all_maps(record, scored_on))
        ]
        if records:
            images = scored_on.of(store.shared())
            given = localization.of_record(records[0]) | {"images": images}
            cut = {
                name: part[name]
                for name in ("cam_threshold", "cam_cut")
                if name in part
            }
            settings = evidence.MeasureSettings(**cut)
            scores, single = evidence.score(
                measures, given, settings, IMAGE_VALUES["localization"]
            )
            arrays = _of_part("localization", single)
            write_json(target.folders["localization"] / SETTINGS, part)
            target.write("localization", model.model_id, {"scores": scores} | arrays)


def _has_all_maps(record: Mapping[str, Any], scored_on: ScoringSet) -> bool:
    """Whether maps of all scored images were published, see IMAGES_WITH_MAPS."""
    return len(record.get("maps", ())) == len(scored_on.rows)


def _folders_of_maps(store: Store, part: Mapping[str, Any]) -> list[str]:
    """Names of folders with the same maps, cut at other thresholds."""
    names = []
    for root in (store.folder, store.published):
        for path in sorted(root.glob(f"localization-*/{SETTINGS}")):
            other = read_json(path)
            same = {key: other.get(key) for key in part if key not in _OF_NO_MAP}
            if same.items() <= part.items():
                names.append(path.parent.name)
    return list(dict.fromkeys(names))


def score_table(kept: Kept) -> pd.DataFrame:
    """Scores of all parts: ``SCORE_COLUMNS``."""
    tables = [kept.table(part, "scores") for part in kept.folders]
    return pd.concat(
        [table for table in tables if len(table)]
        or [pd.DataFrame(columns=SCORE_COLUMNS)],
        ignore_index=True,
    )[SCORE_COLUMNS]


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Join scores to the catalogue: one column per measure and variant (see ``registry.columns``), NaN where a model has none."""
    known = registry.columns().merge(scores, on=["measure", "variant"])
    wide = known.pivot(index="model_id", columns="column", values="value")
    return catalogue.merge(
        wide[list(dict.fromkeys(known["column"]))],
        how="left",
        left_on="model_id",
        right_index=True,
    )

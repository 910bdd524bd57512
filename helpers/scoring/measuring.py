"""Every measure of every model on the scored images: computed once, as tables."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import pandas as pd

from helpers.measures import evidence, registry
from helpers.measures.outside import source_of
from helpers.scoring.models import Model
from helpers.scoring.scoring_set import ScoringSet
from helpers.scoring.store import Kept, Store

SCORE_COLUMNS = ["model_id", "measure", "variant", "value", "seconds", "reason"]
# What gives the values of single images of a family, see ``evidence.PROVIDERS``.
IMAGE_VALUES = {
    name: f"{name}_values" for name in ("localization", "prediction", "reliance")
}


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
        if item.name in used
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
    wanted = [
        IMAGE_VALUES[part] for part in parts if part in IMAGE_VALUES and of_images
    ]
    scores, single = evidence.score(asked, given, settings, wanted, from_outside)
    records = {}
    for part in parts:
        names = [item.name for item in measures[part]]
        table = scores[scores["measure"].isin(names)]
        lacking = sorted(set(names) - set(table["measure"]))
        if lacking:
            raise RuntimeError(
                f"no row of {', '.join(lacking)}; nothing of {part} is kept"
            )
        records[part] = {"scores": table} | single.get(IMAGE_VALUES.get(part), {})
    return records


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

"""Every measure of every model on the scored images: computed once, as tables."""

from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

import pandas as pd

from helpers.measures import evidence, registry
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
    """Every measure of some families for every model; what several measures need is worked out once.

    Each family is a part of the store with a table "scores": measure, variant, value (NaN is undefined), seconds, reason; and arrays of
    values of single images, but where ``only`` some measures are wanted.
    """
    parts = {
        family: deciding(family, settings, only) | {"images": scored_on.name}
        for family in families
    }
    return store.each(
        models,
        parts,
        partial(
            _scores,
            settings=settings,
            scored_on=scored_on,
            only=only,
            device=store.device,
        ),
    )


def _measures(family: str, only: Collection[str]) -> list[registry.Measure]:
    return [
        item for item in registry.of_families([family]) if not only or item.name in only
    ]


def deciding(
    family: str, settings: evidence.MeasureSettings, only: Collection[str] = ()
) -> dict[str, Any]:
    """Settings that the values of a family depend on, its measures, and the version of the formulas."""
    measures = _measures(family, only)
    used = evidence.closure(name for item in measures for name in item.needs) - {
        "batch_size"
    }
    relevant = {
        item.name: getattr(settings, item.name)
        for item in fields(settings)
        if item.name in used
    }
    return relevant | {
        "measures": [item.name for item in measures],
        "version": registry.VALUES_VERSIONS.get(family, 1),
    }


def _scores(
    model: Model,
    shared: Any,
    families: Sequence[str],
    *,
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
    only: Collection[str],
    device: str,
) -> dict[str, dict[str, Any]]:
    measures = {family: _measures(family, only) for family in families}
    every = [item for items in measures.values() for item in items]
    given = {
        "network": model.load(device),
        "images": scored_on.of(shared),
        "normalise": model.normalise,
        "device": device,
    }
    if model.training_images is not None:
        given["training_images"] = (
            model.training_images
        )  # a bound's m is of the training, not of the scoring
    if "initial_network" in evidence.closure(
        name for item in every for name in item.needs
    ):
        given["initial_network"] = model.initial()
    wanted = [
        IMAGE_VALUES[family]
        for family in families
        if family in IMAGE_VALUES and not only
    ]
    scores, single = evidence.score(every, given, settings, wanted)
    found = {}
    for family, items in measures.items():
        own = scores[scores["measure"].isin([item.name for item in items])]
        found[family] = {"scores": own} | single.get(IMAGE_VALUES.get(family), {})
    return found


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

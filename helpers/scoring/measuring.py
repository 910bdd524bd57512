"""Every measure of every model on the scored images: computed once, as tables."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
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
        kept_maps = _KeptMaps(store, models, parts["localization"], scored_on)
        for part in parts:
            if part.partition(".")[0] == "localization":
                kept_maps.localize(part, parts[part], measures[part])
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


@dataclass(frozen=True)
class _KeptMaps:
    """Maps that were kept of models, of which localization needs neither network nor pixels.

    Maps of 8 bits, which are published, serve where nothing can be computed here.
    """

    store: Store  # of the study
    models: Sequence[Model]  # to be scored
    settings: Mapping[str, Any]  # of the part "localization"
    scored_on: ScoringSet  # the images

    def localize(
        self,
        part: str,
        settings: Mapping[str, Any],
        measures: Sequence[registry.Measure],
    ) -> None:
        """Keep a part of localization of models whose maps were kept.

        Args:
            part: "localization", or "localization.NAME" of a measure that stands by
                itself.
            settings: of the part.
            measures: of the part; where they need more than maps, boxes and
                predictions, nothing is kept.
        """
        folder = self.store.folder / f"{part}-{digest(settings)}"
        target = Kept({part: folder}, self.models, self.store.published)
        todo = [model for model in self.models if target.missing(model.model_id)]
        names = [item.name for item in measures]
        from_outside = evidence.sources_from_outside(names)
        sources = evidence.sources_by_name(measures, from_outside)
        cut = {
            name: settings[name]
            for name in ("cam_threshold", "cam_cut")
            if name in settings
        }
        for model_id, record in self._records(todo):
            given = localization.of_record(record)
            if "network" in evidence.closure(names, sources, given):
                return
            scores, single = evidence.score(
                measures,
                given | {"images": self.scored_on.of(self.store.shared())},
                evidence.MeasureSettings(**cut),
                IMAGE_VALUES.get(part, ()),
                from_outside,
            )
            arrays = _of_part(part, single)
            write_json(target.folders[part] / SETTINGS, settings)
            target.write(part, model_id, {"scores": scores} | arrays)

    def _records(self, models: Sequence[Model]) -> Iterator[tuple[str, Mapping]]:
        """Ids of models with a record of their maps; others are passed over."""
        folders = _folders_of_maps(self.store, self.settings) if models else ()
        sources = [
            Kept(
                {"localization": self.store.folder / folder},
                models,
                self.store.published,
            )
            for folder in folders
        ]
        recorded = {model.model_id for model in self.store.not_computable(models)}
        for model in models:
            for source in sources:
                record = source.record("localization", model.model_id)
                if localization.MAPS in record or (
                    model.model_id in recorded and _has_all_maps(record, self.scored_on)
                ):
                    yield model.model_id, record
                    break


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

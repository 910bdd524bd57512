"""A network that can be loaded, with what is known of it, and every measure of it on the scored images."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor, nn

from helpers.data.images import StudyData
from helpers.files import read_tensors
from helpers.measures import evidence, registry
from helpers.networks import resnet
from helpers.scoring.scoring_set import DECISIVE, ScoringSet
from helpers.training.catalogue import load_network, start_path
from helpers.training.config import RunConfig, config_from
from helpers.training.run import initial_network, rows_of_run

if TYPE_CHECKING:
    from helpers.scoring.store import Kept, Store

SCORE_COLUMNS = ["model_id", "measure", "variant", "value", "seconds", "reason"]
# What gives the values of single images of a family, see ``evidence.PROVIDERS``.
IMAGE_VALUES = {"localization": "localization_values", "prediction": "prediction_values"}


def _not_known() -> None:
    """What a network was before its first step, where that is not known."""


@dataclass(frozen=True)
class Model:
    """A snapshot of a study's run, or a checkpoint of one's own."""

    model_id: str
    load: Callable[..., nn.Module] = field(repr=False)  # on a device, in eval mode
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)  # its row of the catalogue, or what is known of a checkpoint
    initial: Callable[[], nn.Module | None] = field(default=_not_known, repr=False)  # before its first step; None where not known
    normalise: Callable[[Tensor], Tensor] = field(default=resnet.normalise_images, repr=False)  # uint8 images to network input
    training_images: int | None = field(default=None, repr=False)  # that it was fitted to, where known

    def __str__(self) -> str:
        """Its id, as messages name it."""
        return self.model_id


def models_of(work: Path, catalogue: pd.DataFrame, data: StudyData) -> list[Model]:
    """The models of a catalogue, or of a table with its columns, row by row; a diverged run without a snapshot is none."""
    found, fitted = [], {}
    for row in catalogue[catalogue["snapshot"] != "none"].to_dict("records"):
        key = tuple(row[name] for name in DECISIVE)
        if key not in fitted:
            fitted[key] = len(rows_of_run(data, config_from(row))[0])
        load = partial(load_network, work, row, len(data.classes))
        initial = partial(_initial, work, config_from(row), len(data.classes))
        found.append(Model(row["model_id"], load, row, initial, training_images=fitted[key]))
    return found


def _initial(work: Path, config: RunConfig, classes: int) -> nn.Module | None:
    """The network of a run as it was before its first step; None when its pretrained start was not kept."""
    start = read_tensors(start_path(work, config.weights)) if config.pretrained else None
    return None if config.pretrained and start is None else initial_network(config, classes, start)


def score(
    store: "Store",
    models: Sequence[Model],
    families: Sequence[str],
    settings: evidence.MeasureSettings,
    scored_on: ScoringSet,
    only: Collection[str] = (),
) -> "Kept":
    """Every measure of some families for every model, and values of single images; what several measures need is worked out once.

    Each of ``registry.FAMILIES`` is a part of the store, so that a change of one's settings leaves the others as they are, with a table
    "scores": measure, variant, value (NaN is undefined), seconds, reason; and arrays of values of single images, but where ``only`` some
    measures of the families are wanted. ``scored_on.of`` takes the images from what the store's ``shared`` loads.
    """
    parts = {family: deciding(family, settings, only) | {"images": scored_on.name} for family in families}
    return store.each(models, parts, partial(_scores, settings=settings, scored_on=scored_on, only=only, device=store.device))


def _measures(family: str, only: Collection[str]) -> list[registry.Measure]:
    return [item for item in registry.of_families([family]) if not only or item.name in only]


def deciding(family: str, settings: evidence.MeasureSettings, only: Collection[str] = ()) -> dict[str, Any]:
    """Settings that the values of a family depend on, its measures, and the version of the formulas."""
    measures = _measures(family, only)
    used = evidence.closure(name for item in measures for name in item.needs) - {"batch_size"}
    relevant = {item.name: getattr(settings, item.name) for item in fields(settings) if item.name in used}
    return relevant | {"measures": [item.name for item in measures], "version": registry.VALUES_VERSION}


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
    given = {"network": model.load(device), "images": scored_on.of(shared), "normalise": model.normalise, "device": device}
    if model.training_images is not None:
        given["training_images"] = model.training_images  # a bound's m is of the training, not of the scoring
    if "initial_network" in evidence.closure(name for item in every for name in item.needs):
        given["initial_network"] = model.initial()
    wanted = [IMAGE_VALUES[family] for family in families if family in IMAGE_VALUES and not only]
    scores, single = evidence.score_with_images(every, given, settings, wanted)
    found = {}
    for family, items in measures.items():
        own = scores[scores["measure"].isin([item.name for item in items])]
        found[family] = {"scores": own} | single.get(IMAGE_VALUES.get(family), {})
    return found


def score_table(kept: "Kept") -> pd.DataFrame:
    """Scores of all parts: model_id, measure, variant, value, seconds, reason."""
    tables = [kept.table(part, "scores") for part in kept.folders]
    return pd.concat([table for table in tables if len(table)] or [pd.DataFrame(columns=SCORE_COLUMNS)], ignore_index=True)[SCORE_COLUMNS]


def with_measures(catalogue: pd.DataFrame, scores: pd.DataFrame) -> pd.DataFrame:
    """Join scores to the catalogue: one column per measure and variant (see ``registry.columns``), NaN where a model has none."""
    known = registry.columns().merge(scores, on=["measure", "variant"])
    wide = known.pivot(index="model_id", columns="column", values="value")
    return catalogue.merge(wide[list(dict.fromkeys(known["column"]))], how="left", left_on="model_id", right_index=True)

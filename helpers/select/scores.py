"""Every affordable measure of a user's checkpoints on their training images, and how many images the time allows."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from helpers.measures import evidence, registry
from helpers.measures.evidence import closure
from helpers.networks import resnet
from helpers.networks.hooks import evaluation_mode, prepared
from helpers.scoring.targets import target_logits
from helpers.select.images import OwnImages, check_outputs, in_turn
from helpers.select.load import Candidate

OWN_SCORE_COLUMNS = ["checkpoint", "measure", "variant", "value", "seconds", "reason"]
FACTS = ["checkpoint", "architecture", "stem", "width", "outputs", "fault"]

# What takes hundreds of passes or minutes of linear algebra on a network of full width, and the start that a user rarely has kept.
COSTLY = {
    "spectral_norms",
    "spectral_distances",
    "flat_network",
    "flatness_sample",
    "response_curves",
    "pair_accuracies",
    "initial_network",
}

# What takes passes of its own beside the one over the training images.
EXTRA = {"rotated_probabilities", "perturbed_sample"}
_PASSES = 4.5  # over the images, with the extra ones and the linear algebra
_FEWEST = 48  # images on which the extra passes are still worth their time
Normalise = Callable[[torch.Tensor], torch.Tensor]


class Plan(NamedTuple):
    """What is computed within a time."""

    images: int  # to take
    extra: bool  # whether measures with passes of their own are computed


def affordable(extra: bool = True) -> list[registry.Measure]:
    """List the measures that need weights, one pass, or a few more, by what they ask for; a measure of the reader's own is among them.

    Args:
        extra: also those with passes of their own.
    """
    left_out, families = COSTLY | (set() if extra else EXTRA), [name for name in registry.FAMILIES if name != "unlabelled"]
    return [item for item in registry.of_families(families) if not closure(item.needs) & left_out]


class Pace(NamedTuple):
    """How fast this machine is with one checkpoint, in seconds."""

    fixed: float  # loading and the linear algebra on its weights
    image: float  # one pass, per image


def plan(pace: Pace, checkpoints: int, minutes: float, most: int, beside: int = 0) -> Plan:
    """Choose how many images to take so that all checkpoints are scored within a time.

    Where fewer than 48 images could be taken with all measures, those with passes of their own are left out: a mean over few images is a
    worse guide than one measure less. At least 16 images are taken, however long it takes.

    Args:
        pace: of this machine.
        checkpoints: how many there are.
        minutes: for all of them.
        most: images that there are, or that are wanted at most.
        beside: images that every checkpoint passes once beside these: target and labelled ones.
    """
    passes = max(0.0, 60 * minutes - checkpoints * (pace.fixed + beside * pace.image)) / max(pace.image * checkpoints, 1e-9)
    if passes / _PASSES >= min(_FEWEST, most):
        return Plan(max(1, min(most, int(passes / _PASSES))), True)
    return Plan(max(1, min(most, max(16, int(passes / 1.5)))), False)


def pace(candidates: Sequence[Candidate], images: OwnImages, device: torch.device | str = "cpu") -> Pace:
    """Time the first checkpoint that can be loaded; zeros when none can. The first pass, which is slow, does not count as one."""
    for candidate in [candidate for candidate in candidates if not candidate.passed_over]:
        started = time.perf_counter()
        try:
            network = candidate.load().network.to(device)
            pixels = prepared(images.images[:8], resnet.normalise_images, device)
            with torch.inference_mode(), evaluation_mode(network):
                network(pixels).sum().item()
                warm = time.perf_counter()
                network(pixels).sum().item()
        except MemoryError:
            raise
        except Exception:  # a network of the user's own may fail in any way, which scoring then says
            continue
        # Tracing the layers and their norms take about as long as loading.
        return Pace(2 * (warm - started), (time.perf_counter() - warm) / len(pixels))
    return Pace(0.0, 0.0)


def normaliser(mean: Sequence[float], std: Sequence[float]) -> Normalise:
    """Make the function that turns uint8 images into network input: ``(x / 255 - mean) / std`` for each channel.

    Raises:
        ValueError: not three numbers each, of channels in [0, 1], or a standard deviation of 0.
    """
    fits = [0 <= value <= 1 for value in mean] + [0 < value <= 1 for value in std]
    if len(mean) != 3 or len(std) != 3 or not all(fits):
        raise ValueError(
            f"mean {list(mean)} and std {list(std)} must be three numbers each of channels in [0, 1], std above 0, as in training"
        )
    return partial(_normalised, tuple(mean), tuple(std))


def _normalised(mean: tuple[float, ...], std: tuple[float, ...], images: torch.Tensor) -> torch.Tensor:
    centre, width = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (mean, std))
    return (images.float() / 255 - centre) / width


class Scored(NamedTuple):
    """What was found of one checkpoint."""

    facts: dict[str, object]  # ``FACTS``; outputs is 0 and fault says why where it could not be scored
    scores: pd.DataFrame  # ``OWN_SCORE_COLUMNS``, one row per measure and variant, NaN with a reason where undefined
    logits: dict[str, torch.Tensor]  # (N, K) on the images that it met beside those of its training, by what these are


def score_checkpoints(
    candidates: Sequence[Candidate],
    images: OwnImages,
    settings: evidence.MeasureSettings,
    *,
    met: Mapping[str, OwnImages | None] | None = None,
    extra: bool = True,
    normalise: Normalise = resnet.normalise_images,
    device: torch.device | str = "cpu",
) -> Iterator[Scored]:
    """Score checkpoints one after the other; one that cannot be had, or fails, is a row with its fault and no scores.

    Args:
        candidates: see ``load.find``.
        images: the training images.
        settings: what else decides the values; the calibration's, so that values compare.
        met: images that are passed once more, beside the measures: the "target" and the "labelled" ones; None is none.
        extra: see ``affordable``.
        normalise: uint8 images -> network input, as in training.
        device: where to compute.

    Yields:
        What was found of each.
    """
    images, there = in_turn(images), {name: each for name, each in (met or {}).items() if each is not None}
    for candidate in candidates:
        facts: dict[str, object] = {
            "checkpoint": candidate.name,
            "architecture": "",
            "stem": "",
            "width": np.nan,
            "outputs": 0,
            "fault": "",
        }
        scores, logits = pd.DataFrame(columns=OWN_SCORE_COLUMNS[1:]), {}
        try:
            if candidate.passed_over:
                raise ValueError(candidate.passed_over)
            loaded = candidate.load()
            for each in (images, *there.values()):
                check_outputs(each, loaded.classes)
            facts |= {name: getattr(loaded.form, name) for name in ("architecture", "stem", "width")} | {"outputs": loaded.classes}
            given = {"network": loaded.network.to(device), "normalise": normalise, "device": device}
            with evaluation_mode(given["network"]):
                logits = {name: target_logits(given["network"], each.images, device, normalise) for name, each in there.items()}
            scores = evidence.score(affordable(extra), given | {"images": images}, settings)
        except MemoryError:
            raise
        except Exception as fault:  # a network of the user's own may fail on these images in any way
            line = (str(fault).splitlines() or [type(fault).__name__])[0]
            facts["fault"] = line.encode("utf-8", "backslashreplace").decode("utf-8")  # it may hold a file's name, which may be no text
        yield Scored(facts, scores.assign(checkpoint=candidate.name)[OWN_SCORE_COLUMNS], logits if not facts["fault"] else {})


def score_tables(scored: Sequence[Scored]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Facts of the checkpoints, one row each, and all their scores."""
    facts = pd.DataFrame([each.facts for each in scored], columns=FACTS)
    parts = [each.scores for each in scored if len(each.scores)]
    return facts, pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=OWN_SCORE_COLUMNS)


class Met(NamedTuple):
    """What the checkpoints say of images that are not of their training; a row per checkpoint with logits."""

    on_target: pd.DataFrame | None  # a column per measure of the family "unlabelled"; None where there is no target
    on_labelled: pd.DataFrame | None  # the same, of the labelled images taken as a target; None where there are none
    right: pd.DataFrame | None  # checkpoint x labelled image, bool


def scores_met(scored: Sequence[Scored], labelled: OwnImages | None, settings: evidence.MeasureSettings) -> Met:
    """Measures of images without labels, the labelled images being the holdout of those that need one.

    Args:
        scored: see ``score_checkpoints``, with ``met``.
        labelled: held-out images with labels; None where there are none.
        settings: see ``score_checkpoints``.
    """
    there = [each for each in scored if each.logits]
    tables: dict[str, pd.DataFrame] = {}
    for what in ("target", "labelled"):
        own = {each.facts["checkpoint"]: _unlabelled(each.logits, what, labelled, settings) for each in there if what in each.logits}
        if own:
            tables[what] = wide(pd.concat([table.assign(checkpoint=name) for name, table in own.items()], ignore_index=True), list(own))
    right = {each.facts["checkpoint"]: (each.logits["labelled"].argmax(1) == labelled.labels).numpy() for each in there} if labelled else {}
    return Met(tables.get("target"), tables.get("labelled"), pd.DataFrame(right).T if right else None)


def _unlabelled(
    logits: Mapping[str, torch.Tensor], what: str, labelled: OwnImages | None, settings: evidence.MeasureSettings
) -> pd.DataFrame:
    given = {"network": nn.Identity(), "target_logits": logits[what], "holdout_logits": logits.get("labelled")}
    given["holdout_labels"] = labelled.labels if labelled else None
    return evidence.score(registry.of_families(["unlabelled"]), given, settings)


def wide(scores: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Lay scores out with one row per checkpoint, in the order of ``names``, and a column per measure and variant; NaN where there is none.

    Columns are named as in a study's tables, see ``registry.columns``; counts are left out.
    """
    known = registry.columns().query("direction != 0").merge(scores, on=["measure", "variant"])
    table = known.pivot(index="checkpoint", columns="column", values="value")
    return table.reindex(index=list(names), columns=list(dict.fromkeys(known["column"]))).astype(float)

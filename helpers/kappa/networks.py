"""The networks whose frozen features are probed: published ones, made ones, and models of the study's own catalogue."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.pipeline import Pipeline
from torch import nn

from helpers.data.images import ImageSet
from helpers.files import is_sound, read_tensors, sealed
from helpers.kappa import backbones, making
from helpers.kappa.backbones import RANDOM, Backbone
from helpers.kappa.probe import probe_layer
from helpers.measures import evidence, registry
from helpers.training.catalogue import load_model, models_of
from helpers.training.pretraining import MADE

MODEL_SET = "model set"
COMPLEXITY_FAMILIES = ("norms", "flatness", "prediction")


@dataclass(frozen=True)
class Member:
    """One network of a study of noise and unseen classes."""

    backbone: Backbone  # ``name`` is unique in the study
    family: str  # of ``backbones.NETWORK_FAMILIES``, of ``making.family_made``, or "model set"
    architecture: str  # models of one architecture have equally many weights, so their cells are averaged
    model_id: str = ""  # in the catalogue, for the model set
    start: nn.Module | None = None  # the same backbone before it was trained, where that is known


def check_asked(names: Sequence[str], weights: str, seen: int, classes: int) -> None:
    """Refuse a choice of networks that cannot be had before anything runs.

    Args:
        names: members of ``backbones.NETWORK_FAMILIES``, names of ``constraints.MADE_NETWORKS``, and "model set".
        weights: of the first kind; "made" says that none of them is asked for.
        seen: classes that the backbones are adapted to.
        classes: classes of the study.

    Raises:
        ValueError: no network, one asked for twice, an unknown one, one that is known by its weights without them, or the model set with
            fewer seen classes than it was trained on.
    """
    if not names or len(set(names)) != len(names):
        raise ValueError(f"kappa_families is {list(names)}; name at least one network, each once")
    published = [name for name in names if name != MODEL_SET and not making.family_made(name) and backbones.family_of(name)]
    if published and weights in (MADE, RANDOM):
        raise ValueError(
            f"kappa_weights is {weights!r}, and {', '.join(published)} stand for the weights that they were published with: name these "
            "(openai, IMAGENET1K_V1, or a path with {architecture}); what is trained here has a name of its own, such as 'resnet18 w0.25'"
        )
    if MODEL_SET in names and seen != classes:
        raise ValueError(f"the model set was trained on all {classes} classes of the study, so seen_classes must be 0 (all) and not {seen}")


def chosen_models(catalogue: pd.DataFrame, per_architecture: int, include_pretrained: bool) -> pd.DataFrame:
    """Choose models of the catalogue, by their training loss, so that no test image has a say in the choice.

    Args:
        catalogue: with ``left_out``, see ``catalogue.analysed``.
        per_architecture: the best fitted ones of each architecture; 0 takes all.
        include_pretrained: take models that start from pretrained weights as well. Their pretraining may have seen the classes that are
            called backbone-unseen; only who knows that it has not may include them.

    Returns:
        Rows of the catalogue with a column ``model``, such as "resnet18 no. 1", which is short enough for a figure. Where the analysis
        keeps none of them, those that it leaves out are taken.

    Raises:
        ValueError: the catalogue has no such model at all.
    """
    allowed = catalogue[(catalogue["snapshot"] != "none") & (include_pretrained | ~catalogue["pretrained"].astype(bool))]
    if not len(allowed):
        raise ValueError("the model set has no model trained from scratch; set include_pretrained, or name other networks")
    kept = allowed[allowed["left_out"] == ""] if (allowed["left_out"] == "").any() else allowed
    kept = kept.sort_values(["architecture", "train_loss", "model_id"], ignore_index=True)
    number = kept.groupby("architecture").cumcount() + 1
    named = kept.assign(model=kept["architecture"] + " no. " + number.astype(str))
    return named[number <= per_architecture] if per_architecture else named


def published_members(names: Sequence[str], weights: str, seed: int, side: int) -> Iterator[Member]:
    """Load the networks that are known by their weights, one after the other; other names are passed over.

    Args:
        names: see ``check_asked``.
        weights: as ``backbones.backbone`` takes it.
        seed: see there.
        side: of the study's images, pixels.

    Raises:
        ImportError, FileNotFoundError, ValueError: as ``backbones.backbone``.
    """
    for name in (name for name in names if name != MODEL_SET and not making.family_made(name)):
        size = side if backbones.family_of(name) == "clip" else None
        found = backbones.backbone(name, weights=weights, seed=seed, image_size=size)
        yield Member(found, found.family, name)


def made_members(made: pd.DataFrame, folder: Path, side: int) -> Iterator[Member]:
    """Load networks that were made on the spot, one after the other, each with its start.

    Args:
        made: rows of ``making.make_missing``.
        folder: where they are kept.
        side: of the study's images, pixels.
    """
    for row in made.to_dict("records"):
        network = making.untrained(row["model"], row["classes"], side, row["seed"])
        start = backbones.own_backbone(row["model"], network, origin=RANDOM)
        network.load_state_dict(read_tensors(folder / row["kept_as"] / making.WEIGHTS))
        found = backbones.own_backbone(row["model"], network, origin=f"made on {row['classes']} classes")
        yield Member(found, making.family_made(row["model"]), row["model"], start=start.network)


def own_members(work: Path, chosen: pd.DataFrame, classes: int) -> Iterator[Member]:
    """Load models of the catalogue one after the other.

    Args:
        work: the study's folder.
        chosen: see ``chosen_models``.
        classes: number of classes that they were trained on.
    """
    for model in models_of(chosen):
        origin = f"trained on {classes} classes" + (", pretrained" if model.config.pretrained else "")
        found = backbones.own_backbone(model.facts["model"], load_model(work, model, classes), origin=origin)
        yield Member(found, MODEL_SET, model.config.architecture, model_id=model.model_id)


def classifier(network: nn.Module, head: nn.Linear) -> nn.Module:
    """A backbone with a linear layer behind it, as one network from prepared images to logits.

    Args:
        network: (B, 3, S, S) -> (B, D); it is copied.
        head: of D features and K classes, see ``probe.probe_layer``; it is copied.

    Returns:
        In evaluation mode, (B, K) logits equal to the probe's up to float32.
    """
    return nn.Sequential(copy.deepcopy(network), copy.deepcopy(head)).eval()


def complexities(
    member: Member, probe: Pipeline, images: ImageSet, settings: evidence.MeasureSettings, device: torch.device | str, folder: Path
) -> pd.DataFrame:
    """Score the ``COMPLEXITY_FAMILIES`` of a network with its probe of the seen classes (the measures of notebook 04); once, then read.

    The start, for distances, is the backbone before it was trained with a head of zeros, where a probe's solver begins; without it
    they are undefined.

    Args:
        member: a published or a made network.
        probe: fitted to the clean training images of the seen classes.
        images: those images, or a part of them, with labels that the probe was fitted to, 0 to K - 1.
        settings: of the measures.
        device: where the network runs.
        folder: where scores are kept.

    Returns:
        See ``evidence.score``, with a column ``model``.
    """
    head = probe_layer(probe)
    digest = blake2b(f"{member.backbone.identity} {COMPLEXITY_FAMILIES} {settings}".encode(), digest_size=8)
    for part in (images.images, images.labels, head.weight, head.bias):
        digest.update(part.numpy().tobytes())
    path = folder / f"complexity-{digest.hexdigest()}.parquet"
    if is_sound(path):
        return pd.read_parquet(path)
    given: dict[str, Any] = {"network": classifier(member.backbone.network, head).to(device), "images": images, "device": device}
    given["normalise"] = partial(backbones.backbone_input, given=member.backbone)
    if member.start is not None:
        given["initial_network"] = classifier(member.start, head).to(device)
        for parameter in given["initial_network"][-1].parameters():
            nn.init.zeros_(parameter)
    scores = evidence.score(registry.of_families(COMPLEXITY_FAMILIES), given, settings).assign(model=member.backbone.name)
    with sealed(path) as temporary:
        scores.to_parquet(temporary)
    return scores


def as_complexity(scores: pd.DataFrame) -> pd.DataFrame:
    """Turn scores into complexities, of which a larger one promises a larger error: the value against its measure's direction.

    Args:
        scores: rows of model, measure, variant, value and reason; a measure that was not asked for is no row of a table.

    Returns:
        Index model, a column per measure of a direction (its first variant), NaN where it is undefined.
    """
    asked = scores[~scores["reason"].astype(str).str.startswith("not computed")]
    once = asked.drop_duplicates(["model", "measure", "variant"])  # two processes that score at once leave a value twice
    wide = once.merge(registry.columns().query("direction != 0 and column == measure"), on=["measure", "variant"])
    return wide.assign(value=-wide["direction"] * wide["value"]).pivot(index="model", columns="measure", values="value")

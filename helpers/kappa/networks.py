"""The networks whose frozen features are probed: members of the published families, and models of the study's own catalogue."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from sklearn.pipeline import Pipeline
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from helpers.data.dataset import ImageSet
from helpers.files import is_sound, write_tensors
from helpers.kappa import backbones
from helpers.kappa.backbones import RANDOM, Backbone
from helpers.kappa.probe import probe_layer
from helpers.measures import evidence, registry
from helpers.training.catalogue import load_model, models_of
from helpers.training.pretraining import MADE

MODEL_SET = "model set"
COMPLEXITY_FAMILIES = ("norms", "prediction")

# Largest learning rate of Adam and images a step; at this rate all families learn from a random start within a few passes.
_LEARNING_RATE = 1e-3
_BATCH = 32


@dataclass(frozen=True)
class Member:
    """One network of a study of noise and unseen classes."""

    backbone: Backbone  # ``name`` is unique in the study
    family: str  # "clip", "efficientnet", "resnet" or "model set"
    architecture: str  # models of one architecture have equally many weights, so their cells are averaged
    model_id: str = ""  # in the catalogue, for the model set
    start: nn.Module | None = None  # the same backbone before it was trained, where that is known


def check_asked(names: Sequence[str], seen: int, classes: int) -> None:
    """Refuse a choice of networks that cannot be had before anything runs.

    Args:
        names: members of ``backbones.NETWORK_FAMILIES``, and "model set".
        seen: classes that the backbones are adapted to.
        classes: classes of the study.

    Raises:
        ValueError: no network, one asked for twice, an unknown one, or the model set with fewer seen classes than it was trained on.
    """
    if not names or len(set(names)) != len(names):
        raise ValueError(f"kappa_families is {list(names)}; name at least one network, each once")
    for name in names:
        if name != MODEL_SET:
            backbones.family_of(name)
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


def published_members(
    names: Sequence[str], weights: str, images: ImageSet, folder: Path, *, epochs: int, seed: int, device: torch.device | str
) -> Iterator[Member]:
    """Build the named networks one after the other, training them first when they are to be made on the spot.

    Args:
        names: members of ``backbones.NETWORK_FAMILIES``; "model set" is passed over.
        weights: "made", or as ``backbones.backbone`` takes it.
        images: training images of the seen classes; their size is what the networks are made for.
        folder: where made weights are kept.
        epochs: passes over the images, for "made".
        seed: of random weights and of the order of the images.
        device: where they are trained.

    Raises:
        ImportError, FileNotFoundError, ValueError: as ``backbones.backbone``.
    """
    side = images.images.shape[-1]
    for name in (name for name in names if name != MODEL_SET):
        options = {"seed": seed, "image_size": side if backbones.family_of(name) == "clip" else None}
        start = backbones.backbone(name, weights=RANDOM, **options) if weights in (RANDOM, MADE) else None
        found = start or backbones.backbone(name, weights=weights, **options)
        if weights == MADE:
            path = made_weights(start, images, folder, epochs=epochs, seed=seed, device=device)
            origin = f"made on {len(images.labels.unique())} classes"
            found = replace(backbones.backbone(name, weights=str(path), **options), origin=origin)
        yield Member(found, found.family, name, start=start.network if start else None)


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


def made_weights(start: Backbone, images: ImageSet, folder: Path, *, epochs: int, seed: int, device: torch.device | str) -> Path:
    """Train a network on the seen classes from its random start, with a linear head that is thrown away; once, then it is there.

    Adam with decoupled weight decay 0.01, batches of 32, half of the images mirrored; the learning rate rises to 1e-3 within the first
    quarter of the steps and falls to 0.

    Args:
        start: a member of ``backbones.NETWORK_FAMILIES`` with random weights; it is left as it was.
        images: training images of the seen classes, labels from 0 without a gap.
        folder: where the weights are kept, under a name that says what they depend on.
        epochs: passes over the images, at least 1.
        seed: of the head, the order and the mirroring.
        device: where it is trained.

    Returns:
        A state dict of the backbone as a safetensors file.

    Raises:
        ValueError: epochs below 1, or the loss is no longer finite.
    """
    if epochs < 1:
        raise ValueError(f"made_epochs is {epochs}; training on the spot needs at least 1")
    recipe = f"{start.identity} {_digest(images)} {epochs} {seed} {start.image_size} {_LEARNING_RATE} {_BATCH}"
    path = folder / f"made-{start.name}-{blake2b(recipe.encode(), digest_size=8).hexdigest()}.safetensors"
    if not is_sound(path):
        state = _trained(start, images, epochs, seed, device)
        write_tensors(path, state)
    return path


def _digest(images: ImageSet) -> str:
    digest = blake2b(images.images.numpy().tobytes(), digest_size=8)
    digest.update(images.labels.numpy().tobytes())
    return digest.hexdigest()


def _trained(start: Backbone, images: ImageSet, epochs: int, seed: int, device: torch.device | str) -> dict[str, Tensor]:
    network = copy.deepcopy(start.network).requires_grad_(True)
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        width = backbones.backbone_features(start, images.images[:2], device, 2).shape[1]
        model = nn.Sequential(network, nn.Linear(width, int(images.labels.max()) + 1)).to(device, memory_format=torch.channels_last).train()
        optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
        # A last batch of one image is left out, since batch normalisation is undefined on it.
        steps = epochs * (len(images) // _BATCH + (len(images) % _BATCH > 1))
        rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=max(steps, 2), pct_start=0.25)
        for _ in range(epochs):
            for chosen in torch.randperm(len(images), generator=generator).split(_BATCH):
                if len(chosen) > 1:
                    pixels = backbones.backbone_input(images.images[chosen].to(device), start)
                    mirrored = torch.rand(len(chosen), 1, 1, 1, generator=generator).to(device) < 0.5
                    batch = torch.where(mirrored, pixels.flip(3), pixels).contiguous(memory_format=torch.channels_last)
                    loss = cross_entropy(model(batch), images.labels[chosen].to(device))
                    optimizer.zero_grad(set_to_none=True)
                    loss.backward()
                    optimizer.step()
                    rate.step()
            if not torch.isfinite(loss):
                raise ValueError(f"{start.name} diverged when it was made (loss {float(loss)}); take fewer classes or weights 'random'")
    return {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}


def classifier(network: nn.Module, probe: Pipeline) -> nn.Module:
    """A backbone with a linear probe behind it, as one network from prepared images to logits.

    Args:
        network: (B, 3, S, S) -> (B, D); it is copied.
        probe: of D features and K classes.

    Returns:
        In evaluation mode, (B, K) logits equal to the probe's up to float32.
    """
    return nn.Sequential(copy.deepcopy(network), probe_layer(probe)).eval()


def complexities(
    member: Member, probe: Pipeline, images: ImageSet, settings: evidence.MeasureSettings, device: torch.device | str
) -> pd.DataFrame:
    """Score the norms and the predictions of a published network with its probe of the seen classes (the measures of notebook 04).

    The start, for distances, is the backbone before it was trained with a head of zeros, where a probe's solver begins; without it
    they are undefined.

    Args:
        member: a member of ``backbones.NETWORK_FAMILIES``.
        probe: fitted to the clean training images of the seen classes.
        images: those images, or a part of them, with labels that the probe was fitted to, 0 to K - 1.
        settings: of the measures.
        device: where the network runs.

    Returns:
        See ``evidence.score``, with a column ``model``.
    """
    given: dict[str, Any] = {"network": classifier(member.backbone.network, probe).to(device), "images": images, "device": device}
    given["normalise"] = partial(backbones.backbone_input, given=member.backbone)
    if member.start is not None:
        given["initial_network"] = classifier(member.start, probe).to(device)
        for parameter in given["initial_network"][-1].parameters():
            nn.init.zeros_(parameter)
    scores = evidence.score(registry.of_families(COMPLEXITY_FAMILIES), given, settings)
    return scores.assign(model=member.backbone.name)


def as_complexity(scores: pd.DataFrame) -> pd.DataFrame:
    """Turn scores into complexities, of which a larger one promises a larger error: the value against its measure's direction.

    Args:
        scores: rows of model, measure, variant and value.

    Returns:
        Index model, a column per measure of a direction (its first variant), NaN where it is undefined.
    """
    once = scores.drop_duplicates(["model", "measure", "variant"])  # two processes that score at once leave a value twice
    wide = once.merge(registry.columns().query("direction != 0 and column == measure"), on=["measure", "variant"])
    return wide.assign(value=-wide["direction"] * wide["value"]).pivot(index="model", columns="measure", values="value")

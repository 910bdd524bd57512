"""Frozen features of every network at every level of noise, linear probes on them, and the cells of error and Kappa they give."""

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from sklearn.metrics import confusion_matrix
from sklearn.pipeline import Pipeline
from torch import Tensor

from helpers.data.images import ImageSet, StudyData
from helpers.files import is_sound, read_json, read_tensors, write_json, write_tensors
from helpers.kappa import backbones, probe, statistics
from helpers.kappa.backbones import Backbone
from helpers.kappa.networks import Member
from helpers.kappa.noise import AutoEncoder, NoiseGenerator, calibrate, degrade, noise_generator, train_autoencoder

_PLACE = ["family", "model", "architecture", "model_id", "origin", "weights", "ssim", "ssim_reached", "unseen_fraction"]


class Level(NamedTuple):
    """One level of noise, the same for all networks."""

    target: float  # mean SSIM asked for, 1 is clean
    reached: float  # mean SSIM of the test images to the clean ones
    strength: float  # in the generator's own unit


class Noise(NamedTuple):
    """The generator of a study with its levels."""

    generator: NoiseGenerator
    levels: list[Level]
    identity: str  # 16 hex digits over what the levels depend on
    seed: int


def of_classes(images: ImageSet, classes: int, most: int = 0, seed: int = 0) -> ImageSet:
    """Take the images of the first classes, those with a label below ``classes``; ``most`` of them drawn at random, 0 takes all."""
    chosen = np.flatnonzero(images.labels.numpy() < classes)
    return images.subset(np.sort(np.random.default_rng(seed).permutation(chosen)[: most or None]))


def check_classes(data: StudyData, wanted: Sequence[str]) -> None:
    """Make sure that every class asked for has images.

    Raises:
        ValueError: classes are missing; the message names them.
    """
    missing = [name for name in wanted if name not in set(data.classes["class_id"])]
    if missing:
        raise ValueError(f"{len(missing)} classes have no usable images: {', '.join(missing[:5])}; check unseen_class_ids and data_source")


def noise_levels(
    name: str, targets: Sequence[float], data: StudyData, folder: Path, *, seed: int, device: torch.device | str, tolerance: float = 0.01
) -> Noise:
    """Calibrate a generator on all test images, so that their mean SSIM hits each target; once, then it is read.

    An auto-encoder is trained on the training images first. What part of the images a step of classes has differs a little from the mean.

    Args:
        name: one of ``noise.GENERATORS``.
        targets: mean SSIM of each level, in (0, 1].
        data: all classes, seen and unseen.
        folder: where the levels and the auto-encoder are kept.
        seed: of the noise and of the auto-encoder.
        device: where the auto-encoder is trained and the images are degraded.
        tolerance: largest difference accepted.

    Raises:
        ValueError: no targets, one twice, an unknown generator, or a target that cannot be reached; the message says what was.
    """
    if not targets or len(set(targets)) != len(targets):
        raise ValueError(f"noise_ssim is {list(targets)}; it needs at least one level, each once")
    identity = blake2b(f"{name} {data.fingerprint} {seed} {tolerance}".encode(), digest_size=8).hexdigest()
    network = None
    if name == "autoencoder":
        path = folder / f"autoencoder-{identity}.safetensors"
        if (state := read_tensors(path)) is None:
            trained = train_autoencoder(data.train.images, seed=seed, device=device)
            write_tensors(path, state := trained.state_dict())
        network = AutoEncoder(len(state["encoder.4.bias"])).eval()
        network.load_state_dict(state)
        network.to(device)
    generator = noise_generator(name, network)
    record = folder / f"noise-{identity}.json"
    known = read_json(record) if is_sound(record) else {}
    tried = {level["strength"]: level["reached"] for level in known.values()}
    for target in targets:
        if str(target) not in known:
            known[str(target)] = calibrate(generator, data.test.images.to(device), target, tolerance, seed, tried)._asdict()
            write_json(record, known, seal=True)
    levels = [Level(target, known[str(target)]["reached"], known[str(target)]["strength"]) for target in targets]
    return Noise(generator, levels, identity, seed)


def kept_features(given: Backbone, images: ImageSet, strength: float, noise: Noise, folder: Path, device: torch.device | str) -> Tensor:
    """Features of images at one strength of noise: computed once per network and level, then read.

    Returns:
        (N, D) float32 on the CPU, in the order of the images.
    """
    what = [given.image_size, given.mean, given.std, strength, *((noise.identity, noise.seed) if strength else ())]
    digest = blake2b(json.dumps(what).encode(), digest_size=8)
    digest.update(images.images.numpy().tobytes())
    path = folder / f"{given.name.replace(' ', '-')}-{given.identity}" / f"{digest.hexdigest()}.safetensors"
    if (found := read_tensors(path)) is None:
        degraded = degrade(images.images.to(device), noise.generator, strength, noise.seed)
        write_tensors(path, found := {"features": backbones.backbone_features(given, degraded, device, 64)})
    return found["features"].cpu()


class Probed(NamedTuple):
    """What probing one network gives."""

    classes: pd.DataFrame  # see ``probe_member``
    first: Pipeline  # of the seen classes
    predicted: NDArray[np.int16]  # (steps, levels, N) class that each test image was taken for, -1 outside of the step


def probe_member(
    member: Member, data: StudyData, noise: Noise, steps: Sequence[Sequence[str]], seen: int, folder: Path, *, l2: float, device: str
) -> Probed:
    """Fit a linear probe per step of classes to clean training features, and test it at every level of noise.

    The probe has seen every class that it is tested on; the classes beyond the first ``seen`` are unseen by the backbone alone.

    Args:
        member: the network.
        data: all classes, the seen ones first.
        noise: see ``noise_levels``.
        steps: see ``probe.class_steps``.
        seen: classes that the backbone was adapted to.
        folder: where features are kept.
        l2: penalty of the probe, see ``probe.fit_probe``.
        device: where features are computed.

    Returns:
        A row per step, level and class: family, model, architecture, model_id, origin, weights (their number, without a head), ssim (the
        target), ssim_reached, unseen_fraction, class_id, and the columns of ``statistics.per_class``; the probe of the seen classes; and
        every prediction.
    """
    given = member.backbone
    clean = kept_features(given, data.train, 0.0, noise, folder, device)
    noisy = [kept_features(given, data.test, level.strength, noise, folder, device) for level in noise.levels]
    place = {"family": member.family, "model": given.name, "architecture": member.architecture, "model_id": member.model_id}
    place |= {"origin": given.origin, "weights": round(given.millions * 1e6)}
    tables, probes = [], {}
    for count in dict.fromkeys([seen, *map(len, steps)]):
        kept = data.train.labels < count
        probes[count] = probe.fit_probe(clean[kept], data.train.labels[kept], l2=l2)
    predicted = np.full((len(steps), len(noise.levels), len(data.test)), -1, dtype=np.int16)
    for step, count in enumerate(map(len, steps)):
        tested = data.test.labels < count
        for number, (level, features) in enumerate(zip(noise.levels, noisy, strict=True)):
            found = probe.predicted_labels(probes[count], features[tested])
            predicted[step, number, tested.numpy()] = found
            counts = confusion_matrix(data.test.labels[tested].numpy(), found, labels=range(count))
            at = place | {"ssim": level.target, "ssim_reached": level.reached, "unseen_fraction": (count - seen) / count}
            tables.append(statistics.per_class(counts).assign(class_id=data.classes["class_id"].tolist()[:count], **at))
    table = pd.concat(tables, ignore_index=True)
    ordered = table[[*_PLACE, "class_id", *table.columns.difference([*_PLACE, "class_id"], sort=False)]]
    return Probed(ordered, probes[seen], predicted)


def cells(classes: pd.DataFrame) -> pd.DataFrame:
    """Sum the classes of every cell up, and say how far it has moved from the model's clean cell.

    Args:
        classes: rows of ``probe_member``, of any number of models.

    Returns:
        One row per model, SSIM and unseen fraction: those columns, those of ``statistics.cell_statistics``, and divergence, nats, from
        the cell of the largest SSIM and the smallest unseen fraction, see ``statistics.kappa_error_divergence``.
    """
    rows = []
    for _, own in classes.groupby("model", sort=False):
        clean = own[(own["ssim"] == own["ssim"].max()) & (own["unseen_fraction"] == own["unseen_fraction"].min())]
        for place, cell in own.groupby(_PLACE, sort=True):
            divergence = statistics.kappa_error_divergence(cell, clean)
            rows.append(dict(zip(_PLACE, place, strict=True)) | statistics.cell_statistics(cell) | {"divergence": divergence})
    return pd.DataFrame(rows)


def at_few_levels(classes: pd.DataFrame) -> pd.DataFrame:
    """Take the classes of the largest step at the clean, a middle and the noisiest level, for a figure that shows every class."""
    levels = np.unique(classes["ssim"])
    few = levels[[0, len(levels) // 2, -1]]
    return classes[(classes["unseen_fraction"] == classes["unseen_fraction"].max()) & classes["ssim"].isin(few)]


def averaged(table: pd.DataFrame) -> pd.DataFrame:
    """Average the cells of the models of one architecture, which have equally many weights; other networks stay as they are.

    Returns:
        As ``cells``, ``model`` being the architecture, and ``models`` how many were averaged. NaN where one of them is undefined.
    """
    keys = ["family", "architecture", "weights", "ssim", "unseen_fraction"]
    values = [*statistics.CELL_STATISTICS, "divergence"]
    means = table.groupby(keys, sort=False)[values].agg(lambda column: column.mean(skipna=False))
    rest = table.groupby(keys, sort=False).agg(origin=("origin", "first"), classes=("classes", "first"), models=("model", "nunique"))
    return means.join(rest).reset_index().assign(model=lambda joined: joined["architecture"])


def by_family(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Part cells by family, in the order in which the families come."""
    return {str(name): part for name, part in table.groupby("family", sort=False)}

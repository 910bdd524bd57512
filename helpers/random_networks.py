"""Networks that learnt nothing: their IoU must tell nothing about their gap (Du et al. 2024, Table 5)."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from helpers import localization, models
from helpers.ablations import digest
from helpers.datasets import ImageSet, StudyData
from helpers.files import complete_or_absent, inside
from helpers.measures import passes

COLUMNS = ["architecture", "seed", "train_accuracy", "test_accuracy", "gap", "iou", "iou_b", "train_images", "test_images"]


def some_images(images: ImageSet, count: int, seed: int) -> ImageSet:
    """Choose at most ``count`` images, seeded and in their order; 0 takes all."""
    return images.subset(np.sort(np.random.default_rng(seed).permutation(len(images))[: count or None]))


def random_network_score(
    architecture: str,
    train: ImageSet,
    test: ImageSet,
    classes: int,
    *,
    stem: str,
    width: float,
    seed: int,
    method: str = "grad_cam",
    threshold: float = 0.1,
    device: torch.device | str = "cpu",
    batch_size: int = 256,
) -> dict[str, float | int | str]:
    """Score one untrained network: initial weights of its seed, batch statistics of mean 0 and variance 1, evaluation mode.

    Args:
        architecture: see ``models.build``, as stem and width.
        train: images for the training accuracy and the overlap.
        test: images for the test accuracy.
        classes: outputs.
        stem: of the network.
        width: of the network.
        seed: of the initial weights; the same seed gives the same numbers.
        method: of the map, one of ``cams.METHODS``.
        threshold: of the map.
        device: where to compute.
        batch_size: images per pass.

    Returns:
        ``COLUMNS``: accuracies and gap (train minus test) as fractions, near 1 / classes and 0; iou and iou_b in [0, 1].
    """
    network = models.build(architecture, classes, stem=stem, width=width, seed=seed)
    network = network.to(device, memory_format=torch.channels_last).eval()
    example = passes.example(train, models.normalise, device)
    given = (models.normalise, device, example, method, batch_size)
    seen, unseen = (passes.forward_pass(network, images, *given) for images in (train, test))
    accuracies = [float((run.logits.argmax(1) == images.labels).double().mean()) for run, images in ((seen, train), (unseen, test))]
    overlaps = localization.image_scores(seen.maps, train.boxes, train.images.shape[-1], threshold, device=device)
    values = [*accuracies, accuracies[0] - accuracies[1], float(overlaps["iou"].mean()), float(overlaps["iou_b"].mean())]
    return dict(zip(COLUMNS, [architecture, seed, *values, len(train), len(test)], strict=True))


def random_network_scores(
    work: Path,
    catalogue: pd.DataFrame,
    data: StudyData,
    count: int,
    *,
    images: int = 0,
    method: str = "grad_cam",
    threshold: float = 0.1,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Iterator[dict[str, float | int | str]]:
    """Score ``count`` untrained networks of every architecture that a catalogue has, with its stem and width; yield them one by one.

    Each is kept in ``ablations/random-<digest>/<architecture>-<seed>.parquet`` and never computed again; more networks are added to
    those that are there.

    Args:
        work: the study's folder.
        catalogue: architecture, stem, width.
        data: the study's images.
        count: networks per architecture; Du et al. take 50.
        images: training and test images at most, the same for all networks; 0 takes all.
        method: of the map.
        threshold: of the map.
        seed: of the first network and of the choice of images.
        device: where to compute.
    """
    train, test = (some_images(split, images, seed) for split in (data.train, data.test))
    decisive = {"data": data.fingerprint, "images": images, "method": method, "threshold": threshold, "chosen": seed if images else 0}
    for architecture, stem, width in catalogue[["architecture", "stem", "width"]].drop_duplicates("architecture").itertuples(index=False):
        folder = f"ablations/random-{digest(**decisive, stem=stem, width=float(width))}"
        for number in range(seed, seed + count):
            path = inside(work, f"{folder}/{architecture}-{number}.parquet")
            if not path.is_file():
                settings = {"stem": stem, "width": float(width), "seed": number, "method": method, "threshold": threshold}
                row = random_network_score(architecture, train, test, len(data.classes), device=device, **settings)
                with complete_or_absent(path) as temporary:
                    pd.DataFrame([row]).to_parquet(temporary, index=False)
            yield pd.read_parquet(path).iloc[0].to_dict()

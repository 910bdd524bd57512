"""Overlap of one network under other choices: method, class, layer, threshold, size.

A choice is a way to make maps and an annotation that they are compared with: columns of
the scores, see ``helpers.scores.values.CHOICE``. All ways go through one loop,
``scores_of_ways``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.cams import attribution, localize
from helpers.cams.maps import (
    GRADIENT_METHODS,
    MapOptions,
    closed_form_cam,
    closed_form_classifier,
    layer_maps,
    normalise_maps,
)
from helpers.cams.masks import make_masks
from helpers.data.boxes import box_masks
from helpers.data.images import ImageSet, StudyData
from helpers.files import json_digest
from helpers.measures.passes import Classifier
from helpers.networks import hooks, resnet
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Records, Store

# Formulas: that of the method's paper, and torchcam's.
CORRECT = "correct"
TORCHCAM = "torchcam"
# Classes that a map explains.
PREDICTED = "predicted"
TRUE = "true"
NO_CLASS = "none"
# What a map is compared with: annotated boxes, or masks by the name of their provider.
BOXES = "boxes"
# Subsets of images: all, those classified as labelled, the others.
ALL_IMAGES = "all"
RIGHT = "correct"
WRONG = "wrong"
# Parts of the store: maps of all images in closed form, maps of a sample by gradients
# and by Captum, scores of untrained networks, and masks by programs.
CLOSED = "closed"
SAMPLED = "sampled"
ATTRIBUTED = "attributed"
UNTRAINED = "untrained"
MASKS = "masks"

# Columns of the paper's choice, but for layer and image size.
PAPER = {
    "method": "grad_cam",
    "formula": CORRECT,
    "class_used": PREDICTED,
    "annotation": BOXES,
}
# Methods and formulas whose maps are computed from one forward pass; the first is the
# paper's. In closed form "cam" equals "grad_cam".
CLOSED_FORMS = (
    ("grad_cam", CORRECT),
    ("grad_cam_plus_plus", CORRECT),
    ("grad_cam_plus_plus", TORCHCAM),
    ("layer_cam", CORRECT),
)
# Methods that torchcam computes by another formula.
TORCHCAM_DIFFERS = {"grad_cam_plus_plus", "smooth_grad_cam_plus_plus"}
LAYER_METHODS = ("grad_cam", "layer_cam")  # computed at every stage
# Computed at the last stage alone.
SAMPLED_METHODS = tuple(
    method for method in GRADIENT_METHODS if method not in LAYER_METHODS
)
_BATCH = 256  # images per pass; the noise of Smooth Grad-CAM++ depends on it
_CAPTUM_BATCH = 16
_VERSION = 1  # of the values
# Settings that decide the part "sampled".
_OF_SAMPLE = (
    "thresholds",
    "threshold",
    "images",
    "methods",
    "noise",
    "scales",
    "seed",
)
Way = Mapping[str, Any]  # values of columns of ``CHOICE``


@dataclass(frozen=True)
class Settings:
    """Everything but the network that the scores depend on."""

    scored_on: ScoringSet  # N images
    masks: Mapping[str, Tensor]  # (N, S, S) bool by provider
    thresholds: tuple[float, ...]  # of the map, in (0, 1); the paper's is one of them
    threshold: float = 0.1  # the paper's
    images: int = 48  # the first, for gradients, noise and other image sizes; 0 is all
    methods: tuple[str, ...] = SAMPLED_METHODS  # beside Grad-CAM and Layer-CAM
    # noise_samples, noise_std and channels of ``maps.MapOptions``.
    noise: Mapping[str, float] = field(default_factory=dict)
    scales: tuple[float, ...] = (0.5, 2.0)  # image sizes, as multiples of the study's
    attributions: tuple[str, ...] = attribution.ATTRIBUTIONS  # by Captum
    steps: int = 16  # of integrated gradients
    seed: int = 0  # of the noise

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """What the values of each part depend on; masks by a digest of their pixels."""
        masks = {
            name: json_digest(np.packbits(mask.numpy()).tobytes().hex())
            for name, mask in self.masks.items()
        }
        decisive = {
            CLOSED: {"thresholds": self.thresholds, "masks": masks},
            SAMPLED: {"settings": {name: getattr(self, name) for name in _OF_SAMPLE}},
            ATTRIBUTED: {
                "attributions": self.attributions,
                "steps": self.steps,
                "first": self.images,
            },
        }
        images = {"images": self.scored_on.name, "version": _VERSION}
        shared = images | {"threshold": self.threshold}
        return {part: shared | of_part for part, of_part in decisive.items()}


def masks_of_images(
    store: Store, scored_on: ScoringSet, providers: Sequence[str], path: str = ""
) -> dict[str, Tensor]:
    """Masks of the salient object of each scored image, made once and published.

    Args:
        store: of the study.
        scored_on: the images.
        providers: of ``masks.MASK_PROVIDERS``.
        path: folder of masks that another program made, for the provider "folder".

    Returns:
        (N, S, S) bool by provider; a provider is absent where neither pixels nor
        records are here.
    """
    settings = {"images": scored_on.name, "path": path, "version": _VERSION}
    images = scored_on.images_of(store.shared())
    size = images.images.shape[-1]
    masks = {}
    for provider in providers:
        compute = partial(_mask_bits, provider, images, path)
        record = store.of_study(f"{MASKS}-{provider}", MASKS, settings, compute)
        if record:
            is_object = np.unpackbits(record["bits"], axis=-1, count=size) > 0
            masks[provider] = torch.from_numpy(is_object)
    return masks


def _mask_bits(provider: str, images: ImageSet, path: str) -> dict[str, np.ndarray]:
    masks = make_masks(provider, images, path)
    return {"bits": np.packbits(masks.numpy(), axis=-1)}


def score_choices(store: Store, models: Sequence[Model], settings: Settings) -> Records:
    """Scores of each model under all choices.

    Args:
        store: of the study.
        models: to be examined.
        settings: of the choices.

    Returns:
        Parts ``CLOSED``, ``SAMPLED`` and ``ATTRIBUTED``: scores, and values of single
        images by ``name_of_images``.
    """
    compute = partial(_choices, settings=settings, device=store.device)
    return store.each(models, settings.parts, compute)


def _choices(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    settings: Settings,
    device: str,
) -> dict[str, dict[str, Any]]:
    classifier = Classifier(model.load(device), model.normalise, device, _BATCH)
    images = settings.scored_on.images_of(data)
    # A random sample: the first images stand in random order.
    sample = images.subset(range(len(images))[: settings.images or None])
    of_images, of_sample = (
        cache(partial(subject_of, classifier, chosen)) for chosen in (images, sample)
    )
    ways = {
        CLOSED: (of_images, closed_form_ways),
        SAMPLED: (of_sample, sampled_ways),
        ATTRIBUTED: (of_sample, attributed_ways),
    }
    records = {}
    for part in parts:
        of_part, ways_of = ways[part]
        subject = of_part()  # one pass for both parts of the sample
        records[part] = scores_of_ways(ways_of(subject, settings), subject, settings)
    if ATTRIBUTED in records:  # the method alone differs, and no threshold counts
        scores = records[ATTRIBUTED]["scores"]
        scores = scores[scores["measure"].isin(localize.LESS_CHANCE)]
        records[ATTRIBUTED]["scores"] = scores[["measure", "method", "n", "value"]]
    return records


@dataclass(frozen=True)
class Subject:
    """A network, N images, and what one pass over them shows.

    Attributes:
        classifier: network in evaluation mode, and how it takes images.
        images: the N images.
        layer: name of the last stage, whose maps have a closed form.
        linear: the network's last layer.
        maps: (N, h, w) in [0, 1) by method, formula and class.
        predicted: (N,) predicted classes, on the device.
    """

    classifier: Classifier
    images: ImageSet
    layer: str
    linear: nn.Linear
    maps: Mapping[tuple[str, str, str], Tensor]
    predicted: Tensor

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return self.images.images.shape[-1]

    @property
    def is_right(self) -> Tensor:
        """Whether each image is classified as labelled, (N,) on the CPU."""
        return self.predicted.cpu() == self.images.labels

    @property
    def way_of_paper(self) -> dict[str, Any]:
        """Columns of the paper's choice: Grad-CAM of the predicted class."""
        return PAPER | {"layer": self.layer, "image_size": self.size}

    @cached_property
    def with_separate_relus(self) -> nn.Module:
        """The network as Captum's guided backpropagation needs it."""
        return attribution.with_separate_relus(self.classifier.network)


@torch.inference_mode()
def subject_of(classifier: Classifier, images: ImageSet) -> Subject:
    """All maps in closed form, of the predicted and of the true class, by one pass.

    Args:
        classifier: the network.
        images: N images.

    Raises:
        ValueError: where the closed form does not hold, as for maps of one pixel.
    """
    network = classifier.network
    example = classifier.input(images.images[:1])
    layer = hooks.last_maps_layer(network, example)
    names = {module: name for name, module in network.named_modules()}
    linear = closed_form_classifier(
        network, *hooks.features_and_logits(network, layer, example)
    )
    batches: dict[tuple[str, str, str], list[Tensor]] = {}
    predicted = []
    size = classifier.batch_size
    for pixels, labels in zip(
        images.images.split(size), images.labels.split(size), strict=True
    ):
        inputs = classifier.input(pixels)
        features, logits = hooks.features_and_logits(network, layer, inputs)
        predicted.append(logits.argmax(1))
        classes = {PREDICTED: predicted[-1], TRUE: labels.to(classifier.device)}
        for form, class_used in product(CLOSED_FORMS, classes):
            of_class = classes[class_used]
            maps = closed_form_maps(*form, features, linear.weight, of_class)
            batches.setdefault((*form, class_used), []).append(maps)
    maps = {key: torch.cat(of_key) for key, of_key in batches.items()}
    return Subject(classifier, images, names[layer], linear, maps, torch.cat(predicted))


def closed_form_maps(
    method: str,
    formula: str,
    features: Tensor,
    classifier_weight: Tensor,
    classes: Tensor,
) -> Tensor:
    """Normalised maps without a backward pass, see ``maps.closed_form_cam``.

    Grad-CAM++ of torchcam 0.4.0 leaves out a division: a channel's weight is
    ``h w (relu(W_ck) / (h w))^3``. The constant factors matter, since normalisation
    adds 1e-8 to the denominator.

    Args:
        method: with the formula one of ``CLOSED_FORMS``.
        formula: ``CORRECT`` or ``TORCHCAM``.
        features: (B, C, h, w).
        classifier_weight: (K, C).
        classes: (B,).

    Returns:
        (B, h, w) in [0, 1).
    """
    if formula == CORRECT:
        maps = closed_form_cam(method, features, classifier_weight, classes)
        return normalise_maps(maps)
    pixels = features.shape[2] * features.shape[3]
    weights = pixels * (classifier_weight[classes].relu() / pixels) ** 3
    return normalise_maps(torch.einsum("bk,bkhw->bhw", weights, features).relu())


def closed_form_ways(subject: Subject, settings: Settings) -> list[Way]:
    """Choices that one forward pass suffices for.

    Args:
        subject: with maps in closed form.
        settings: with masks, which the paper's maps are compared with beside boxes.
    """
    of_paper = subject.way_of_paper
    keys = ("method", "formula", "class_used")
    ways = [of_paper | dict(zip(keys, key, strict=True)) for key in subject.maps]
    return [*ways, *(of_paper | {"annotation": name} for name in settings.masks)]


def sampled_ways(subject: Subject, settings: Settings) -> list[Way]:
    """Choices that need gradients, noise, further stages, or images of another size.

    Args:
        subject: the network, a ResNet, with a few images.
        settings: of the choices.
    """
    of_paper = subject.way_of_paper
    ways = []
    for method in settings.methods:
        way = of_paper | {"method": method}
        if method == "eigen_cam":
            way["class_used"] = NO_CLASS
        ways.append(way)
        if method in TORCHCAM_DIFFERS:
            ways.append(way | {"formula": TORCHCAM})
    stages = hooks.stage_layers(subject.classifier.network)
    for layer, method in product(stages, LAYER_METHODS):
        ways.append(of_paper | {"method": method, "layer": layer})
    sides = [max(8, round(scale * subject.size)) for scale in settings.scales]
    for side in dict.fromkeys(sides):
        if side != subject.size:
            ways.append(of_paper | {"image_size": side})
    return ways


def attributed_ways(subject: Subject, settings: Settings) -> list[Way]:
    """Attributions by Captum, and Grad-CAM beside them.

    Args:
        subject: the network, a ResNet, with a few images.
        settings: of the choices.
    """
    names = ("grad_cam", *settings.attributions)
    return [subject.way_of_paper | {"method": name, "formula": ""} for name in names]


@torch.no_grad()  # enabled again where a method needs gradients
def scores_of_ways(
    ways: Iterable[Way], subject: Subject, settings: Settings
) -> dict[str, Any]:
    """Score maps by IoU, and beside boxes by measures above chance.

    Args:
        ways: how maps are made, and what they are compared with.
        subject: network and N images.
        settings: of the choices. An image with an empty mask is left out.

    Returns:
        Scores, and scores of single images by ``name_of_images``: at the last stage and
        the study's image size, of all classes but the true one.
    """
    boxes = subject.images.boxes
    annotations = {BOXES: box_masks(boxes, subject.size), **settings.masks}
    is_right = subject.is_right.numpy()
    subsets = {ALL_IMAGES: is_right | ~is_right, RIGHT: is_right, WRONG: ~is_right}
    tables = []
    of_images = {}
    for way in ways:
        maps = _maps_of(way, subject, settings)
        annotated = annotations[way["annotation"]]
        iou = localize.iou_at(maps, annotated, settings.thresholds)  # (T, N)
        iou = pd.DataFrame(iou.T.double().cpu(), columns=[*settings.thresholds])
        for subset, rows in subsets.items():
            means = _means(iou[rows], "threshold")
            tables.append(means.assign(measure="iou", subset=subset, **way))
        if way["annotation"] != BOXES:
            continue
        scores = localize.chance_scores(maps, boxes, subject.size, settings.threshold)
        means = _means(scores[[*localize.CORRECTED]], "measure")
        # That of the IoU; the other measures have none.
        means["threshold"] = [settings.threshold, *[np.nan] * len(localize.LESS_CHANCE)]
        tables.append(means.assign(subset=ALL_IMAGES, **way))
        if _is_of_last_stage(way, subject) and way["class_used"] != TRUE:
            for measure in ("iou", *localize.LESS_CHANCE):
                name = name_of_images(measure, way["method"], way["formula"])
                of_images[name] = scores[measure].to_numpy(np.float16)
    return {"scores": pd.concat(tables, ignore_index=True), **of_images}


def _means(scores: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean (value) over n images of each column, which stands in a column of a name."""
    means = scores.agg(["count", "mean"]).T.rename_axis(name).reset_index()
    return means.rename(columns={"count": "n", "mean": "value"})


def _is_of_last_stage(way: Way, subject: Subject) -> bool:
    return way["layer"] == subject.layer and way["image_size"] == subject.size


def _maps_of(way: Way, subject: Subject, settings: Settings) -> Tensor:
    """Normalised maps of one way: (N, h, w), in closed form where there is one."""
    method = way["method"]
    key = (method, way["formula"] or CORRECT, way["class_used"])
    if key in subject.maps and _is_of_last_stage(way, subject):
        return subject.maps[key]
    classifier = subject.classifier
    is_attribution = method in attribution.ATTRIBUTIONS
    layer = classifier.network.get_submodule(way["layer"])
    batches = []
    size = _CAPTUM_BATCH if is_attribution else _BATCH
    all_pixels = subject.images.images.split(size)
    of_batches = zip(all_pixels, subject.predicted.split(size), strict=True)
    for number, (pixels, classes) in enumerate(of_batches):
        if way["image_size"] != subject.size:
            maps = _at_size(way["image_size"], pixels, layer, subject)
        elif is_attribution:
            inputs = classifier.input(pixels)
            network = subject.with_separate_relus
            maps = attribution.attribution_maps(
                method, network, inputs, classes, settings.steps
            )
        else:
            options = MapOptions(
                **settings.noise,
                seed=settings.seed + number,
                torchcam_compat=way["formula"] == TORCHCAM,
            )
            inputs = classifier.input(pixels)
            maps = layer_maps(
                method, classifier.network, layer, inputs, classes, options
            )
        batches.append(maps)
    return normalise_maps(torch.cat(batches))


def _at_size(side: int, pixels: Tensor, layer: nn.Module, subject: Subject) -> Tensor:
    """Grad-CAM of images of another size, for the class that is predicted there."""
    classifier = subject.classifier
    resized = F.interpolate(
        pixels.to(classifier.device).float(),
        size=(side, side),
        mode="bilinear",
        antialias=True,
        align_corners=False,
    )
    features, logits = hooks.features_and_logits(
        classifier.network, layer, classifier.input(resized)
    )
    weight = subject.linear.weight
    return closed_form_cam("grad_cam", features, weight, logits.argmax(1))


def name_of_images(*columns: str) -> str:
    """Name of the array with values of single images.

    Args:
        columns: measure, method, and formula where the method has several.
    """
    return ", ".join(filter(None, columns))


def untrained_networks(
    store: Store, catalogue: pd.DataFrame, count: int, settings: Settings
) -> pd.DataFrame:
    """Accuracies, gap and IoU of untrained networks; Du et al. 2024, Table 5.

    Args:
        store: of the study.
        catalogue: of networks; the first one of an architecture gives stem, width and
            last stride.
        count: networks of an architecture; Du et al. take 50.
        settings: largest number of training images, and of test images; threshold of
            the map; and seed of the choice of test images and of the first network, the
            next ones count up from it.

    Returns:
        A row per network: model_id, architecture, train_accuracy, test_accuracy, gap
        (fractions) and iou.
    """
    data = store.shared()
    forms = catalogue[["architecture", "stem", "width", "last_stride"]]
    forms = forms.drop_duplicates("architecture").to_dict("records")
    models = []
    for form, number in product(forms, range(count)):
        seed = settings.seed + number
        build = partial(resnet.build, classes=len(data.classes), **form, seed=seed)
        name = "-".join(str(value) for value in (*form.values(), seed))
        models.append(Model(name, partial(_untrained, build), form))
    decisive = {
        "images": settings.images,
        "threshold": settings.threshold,
        "seed": settings.seed,
        "scored": settings.scored_on.name,
        "data": data.fingerprint,
    }
    compute = partial(_untrained_scores, settings=settings, device=store.device)
    scores = store.each(models, {UNTRAINED: decisive}, compute).scores()
    wide = scores.pivot(index="model_id", columns="measure", values="value")
    facts = [(model.model_id, model.facts["architecture"]) for model in models]
    table = pd.DataFrame(facts, columns=["model_id", "architecture"])
    return table.join(wide, on="model_id")


def _untrained(build: Callable[[], nn.Module], device: torch.device | str) -> nn.Module:
    return build().to(device, memory_format=torch.channels_last).eval()


def _untrained_scores(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    settings: Settings,
    device: str,
) -> dict[str, dict[str, Any]]:
    order = np.random.default_rng(settings.seed).permutation(len(data.test))
    first = slice(settings.images or None)
    classifier = Classifier(model.load(device), model.normalise, device, _BATCH)
    train = subject_of(classifier, data.train.subset(settings.scored_on.rows[first]))
    test = subject_of(classifier, data.test.subset(np.sort(order[first])))
    maps = train.maps["grad_cam", CORRECT, PREDICTED]
    overlaps = localize.chance_scores(
        maps, train.images.boxes, train.size, settings.threshold
    )
    values = {
        "train_accuracy": float(train.is_right.double().mean()),
        "test_accuracy": float(test.is_right.double().mean()),
        "iou": overlaps["iou"].mean(),
    }
    values["gap"] = values["train_accuracy"] - values["test_accuracy"]
    return {UNTRAINED: {"scores": values}}

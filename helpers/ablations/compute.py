"""Overlap of one network under other choices: method, class, layer, threshold, size."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.ablations import attributions
from helpers.cams import attribution, localize
from helpers.cams.maps import (
    GRADIENT_METHODS,
    MapOptions,
    closed_form_cam,
    closed_form_classifier,
    layer_maps,
    normalise_maps,
)
from helpers.data.boxes import box_masks
from helpers.data.images import ImageSet, StudyData
from helpers.files import json_digest
from helpers.networks import hooks, resnet
from helpers.scoring.classification import logits_of
from helpers.scoring.models import Model
from helpers.scoring.scoring_set import ScoringSet

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
# and by Captum, and scores of untrained networks.
CLOSED = "closed"
SAMPLED = "sampled"
ATTRIBUTED = "attributed"
UNTRAINED = "untrained"

# Methods and formulas whose maps are computed from one forward pass; the first is the
# paper's. In closed form "cam" equals "grad_cam".
CLOSED_FORMS = (
    ("grad_cam", CORRECT),
    ("grad_cam_plus_plus", CORRECT),
    ("grad_cam_plus_plus", TORCHCAM),
    ("layer_cam", CORRECT),
)
# Method, formula and class of the paper's maps.
PAPER_MAPS = ("grad_cam", CORRECT, PREDICTED)
# Methods that torchcam computes by another formula.
TORCHCAM_DIFFERS = {"grad_cam_plus_plus", "smooth_grad_cam_plus_plus"}
LAYER_METHODS = ("grad_cam", "layer_cam")  # computed at every stage
# Computed at the last stage alone.
SAMPLED_METHODS = tuple(
    method for method in GRADIENT_METHODS if method not in LAYER_METHODS
)
# The way in which maps were computed, and what they are compared with: columns.
WAY = ["method", "formula", "layer", "class_used", "annotation", "image_size"]
_BATCH = 256  # images per pass; the noise of Smooth Grad-CAM++ depends on it
_CAPTUM_BATCH = 16
_VERSION = 1  # of the values


@dataclass(frozen=True)
class AblationSettings:
    """Everything but network, images and masks that the scores depend on."""

    thresholds: tuple[float, ...]  # of the map, in (0, 1); the paper's is added
    threshold: float = 0.1  # the paper's
    images: int = 48  # the first, for gradients, noise and other image sizes; 0 is all
    methods: tuple[str, ...] = SAMPLED_METHODS  # beside Grad-CAM and Layer-CAM
    # noise_samples, noise_std and channels of ``maps.MapOptions``.
    noise: Mapping[str, float] = field(default_factory=dict)
    scales: tuple[float, ...] = (0.5, 2.0)  # image sizes, as multiples of the study's
    attributions: tuple[str, ...] = attribution.ATTRIBUTIONS  # by Captum
    steps: int = 16  # of integrated gradients
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        """Put the paper's threshold among the sorted thresholds."""
        thresholds = tuple(sorted({*self.thresholds, self.threshold}))
        object.__setattr__(self, "thresholds", thresholds)

    def parts(self, annotated: "Annotations") -> dict[str, dict[str, Any]]:
        """Everything that the values of each part depend on, except the network.

        A part lists its own settings only: a change of the noise keeps the values in
        closed form.

        Args:
            annotated: images, and masks, which are identified by a digest of pixels.
        """
        shared = {
            "images": annotated.scored_on.name,
            "threshold": self.threshold,
            "version": _VERSION,
        }
        pixels = {
            name: json_digest(np.packbits(mask.numpy()).tobytes().hex())
            for name, mask in annotated.masks.items()
        }
        # "layers" is no longer a setting, but the digests of existing files have it.
        settings = asdict(self) | {"layers": ()}
        of_captum = {
            "attributions": settings.pop("attributions"),
            "steps": settings.pop("steps"),
            "first": self.images,
        }
        return {
            CLOSED: shared | {"thresholds": self.thresholds, "masks": pixels},
            SAMPLED: shared | {"settings": settings},
            ATTRIBUTED: shared | of_captum,
        }


class Annotations(NamedTuple):
    """Images, and masks of their salient object that programs have made.

    Attributes:
        scored_on: N images.
        masks: (N, S, S) bool by provider.
    """

    scored_on: ScoringSet
    masks: Mapping[str, Tensor]


class Subject(NamedTuple):
    """A network, and the images that its maps are computed of."""

    network: nn.Module  # in evaluation mode
    images: ImageSet
    normalise: Callable[[Tensor], Tensor]  # turns pixels into the network's input
    device: torch.device | str

    @property
    def size(self) -> int:
        """Side of the images in pixels."""
        return self.images.images.shape[-1]

    def first(self, count: int) -> "Subject":
        """The network with the first images alone, a random sample for all models.

        Args:
            count: number of images; 0 takes all.
        """
        count = min(len(self.images), count or len(self.images))
        return self._replace(images=self.images.subset(range(count)))

    def batches(self, size: int = _BATCH) -> Iterator[Tensor]:
        """Pixels as floats in [0, 255], (B, 3, S, S) on the device.

        Args:
            size: images of a batch, B.
        """
        for pixels in self.images.images.split(size):
            yield pixels.to(self.device).float()

    def input(self, pixels: Tensor) -> Tensor:
        """Pixels as the network expects them.

        Args:
            pixels: (B, 3, S, S) in [0, 255].
        """
        return hooks.prepared(pixels, self.normalise, self.device)


def ablations_of(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    settings: AblationSettings,
    annotated: Annotations,
    device: str,
) -> dict[str, dict[str, Any]]:
    """Compute parts of a model's ablations, as ``Store.each`` takes them.

    Args:
        model: to be examined.
        data: images of the study.
        parts: of ``CLOSED``, ``SAMPLED`` and ``ATTRIBUTED``.
        settings: of the ablations.
        annotated: images and masks.
        device: where the network computes.

    Returns:
        A record by part.
    """
    images = annotated.scored_on.images_of(data)
    subject = Subject(model.load(device), images, model.normalise, device)
    sample = subject.first(settings.images)
    records = {}
    if CLOSED in parts:
        records[CLOSED] = closed_form_scores(subject, annotated.masks, settings)
    if SAMPLED in parts:
        records[SAMPLED] = sampled_scores(sample, settings)
    if ATTRIBUTED in parts:
        closed = closed_form(sample)
        inputs = [sample.input(pixels) for pixels in sample.batches(_CAPTUM_BATCH)]
        records[ATTRIBUTED] = attributions.attribution_scores(
            closed.maps[PAPER_MAPS],  # scored beside the attributions
            sample.network,
            inputs,
            closed.predicted,
            sample.images,
            settings,
        )
    return records


class Stage(NamedTuple):
    """The last stage of a network, where maps have a closed form."""

    name: str
    layer: nn.Module
    classifier: nn.Linear


@torch.inference_mode()
def last_stage(subject: Subject) -> Stage:
    """The layer whose maps the network averages and classifies.

    Args:
        subject: network and images.

    Raises:
        ValueError: where the closed form does not hold, as for maps of one pixel.
    """
    example = subject.input(subject.images.images[:1])
    network = subject.network
    layer = hooks.last_maps_layer(network, example)
    names = {module: name for name, module in network.named_modules()}
    name = names[layer]
    features, logits = hooks.features_and_logits(network, layer, example)
    try:
        classifier = closed_form_classifier(network, features, logits)
    except ValueError as fault:
        raise ValueError(
            f"the maps of {name}, the last of more than one pixel, are not what the "
            f"network averages for {example.shape[-1]} pixels ({fault}); take a larger "
            "image_size (01), a stem that halves less or last_stride 1 (02)"
        ) from fault
    return Stage(name, layer, classifier)


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


class ClosedForm(NamedTuple):
    """Maps and predictions of one forward pass over images."""

    stage: Stage
    maps: dict[tuple[str, str, str], Tensor]  # (N, h, w) by method, formula and class
    predicted: Tensor  # (N,)


@torch.inference_mode()
def closed_form(subject: Subject) -> ClosedForm:
    """All maps in closed form, of the predicted and of the true class, by one pass.

    Args:
        subject: network and images.
    """
    stage = last_stage(subject)
    weight = stage.classifier.weight
    batches: dict[tuple[str, str, str], list[Tensor]] = {}
    predicted = []
    labels = subject.images.labels.split(_BATCH)
    for pixels, true_classes in zip(subject.batches(), labels, strict=True):
        features, logits = hooks.features_and_logits(
            subject.network, stage.layer, subject.input(pixels)
        )
        predicted.append(logits.argmax(1))
        classes = {PREDICTED: predicted[-1], TRUE: true_classes.to(subject.device)}
        for method, formula in CLOSED_FORMS:
            for class_used, of_class in classes.items():
                maps = closed_form_maps(method, formula, features, weight, of_class)
                key = (method, formula, class_used)
                batches.setdefault(key, []).append(maps)
    maps = {key: torch.cat(of_key) for key, of_key in batches.items()}
    return ClosedForm(stage, maps, torch.cat(predicted))


def closed_form_scores(
    subject: Subject, masks: Mapping[str, Tensor], settings: AblationSettings
) -> dict[str, Any]:
    """Overlap of all maps that are computed from one forward pass.

    Args:
        subject: network and N images.
        masks: (N, S, S) bool by provider, which the paper's maps are compared with too;
            an image with an empty mask is left out.
        settings: of the ablations.

    Returns:
        Tables "scores" and "corrected", see ``overlap_rows`` and ``corrected_row``; and
        IoUs of single images for the predicted class, by ``name_of_images``.
    """
    closed = closed_form(subject)
    scores = _Scores(subject, closed, settings)
    way_of_paper = grad_cam_way(closed.stage.name, subject.size)
    for key, maps in closed.maps.items():
        method, formula, class_used = key
        way = way_of_paper | {
            "method": method,
            "formula": formula,
            "class_used": class_used,
        }
        scores.add(maps, way)
        if key == PAPER_MAPS:
            for name, annotated in masks.items():
                scores.add_overlap(maps, annotated, way | {"annotation": name})
    return scores.record()


def grad_cam_way(layer: str, size: int) -> dict[str, Any]:
    """Values of the columns ``WAY`` for the paper's maps, beside annotated boxes.

    Args:
        layer: name of the last stage.
        size: side of the images in pixels.
    """
    return {
        "method": "grad_cam",
        "formula": CORRECT,
        "layer": layer,
        "class_used": PREDICTED,
        "annotation": BOXES,
        "image_size": size,
    }


class _Scores:
    """Scores of the maps of a network, collected for one ``WAY`` after the other."""

    def __init__(
        self, subject: Subject, closed: ClosedForm, settings: AblationSettings
    ) -> None:
        self._subject = subject
        self._settings = settings
        self._last_stage = closed.stage.name
        self._is_right = closed.predicted.cpu() == subject.images.labels
        self._in_boxes = box_masks(subject.images.boxes, subject.size)
        self._scores: list[pd.DataFrame] = []
        self._corrected: list[pd.DataFrame] = []
        self._of_images: dict[str, NDArray[np.float16]] = {}

    def add(self, maps: Tensor, way: Mapping[str, str | int]) -> None:
        """Score maps (N, h, w) against boxes.

        IoUs of single images are kept at the last stage and the study's image size, of
        all classes but the true one.
        """
        iou = self.add_overlap(maps, self._in_boxes, way)  # (T, N)
        threshold = self._settings.threshold
        row = corrected_row(maps, self._subject, threshold)
        self._corrected.append(with_way(row, way))
        place = (way["layer"], way["image_size"])
        is_usual = place == (self._last_stage, self._subject.size)
        if is_usual and way["class_used"] != TRUE:
            name = name_of_images(way["method"], way["formula"])
            of_images = iou[self._settings.thresholds.index(threshold)]
            self._of_images[name] = of_images.numpy().astype(np.float16)

    def add_overlap(
        self, maps: Tensor, annotated: Tensor, way: Mapping[str, str | int]
    ) -> Tensor:
        """Score maps (N, h, w) against masks (N, S, S); see ``image_overlaps``."""
        thresholds = self._settings.thresholds
        iou = image_overlaps(maps, annotated, thresholds)
        rows = overlap_rows(iou, self._is_right, thresholds)
        self._scores.append(with_way(rows, way))
        return iou

    def record(self) -> dict[str, Any]:
        """Tables "scores" and "corrected", and IoU of images by ``name_of_images``."""
        return self._of_images | {
            "scores": pd.concat(self._scores, ignore_index=True),
            "corrected": pd.concat(self._corrected, ignore_index=True),
        }


def name_of_images(method: str, formula: str) -> str:
    """Name of the array with the IoU of single images by a CAM method.

    Args:
        method: such as "grad_cam".
        formula: ``CORRECT``, or as torchcam has it.
    """
    return f"iou, {method}, {formula}"


def image_overlaps(
    maps: Tensor, annotated: Tensor, thresholds: Sequence[float]
) -> Tensor:
    """IoU of each map with the annotation of its image, at T thresholds.

    Args:
        maps: (N, h, w) in [0, 1].
        annotated: (N, S, S) bool.
        thresholds: of the map.

    Returns:
        (T, N) on the CPU; NaN where an image has no annotation, or a map is not finite.
    """
    return localize.iou_at(maps, annotated, thresholds).cpu()


def with_way(rows: pd.DataFrame, way: Mapping[str, str | int]) -> pd.DataFrame:
    """Rows of scores with the columns ``WAY`` in front.

    Args:
        rows: of scores.
        way: values of the columns ``WAY``.
    """
    return rows.assign(**way)[[*WAY, *rows]]


def overlap_rows(
    iou: Tensor, is_right: Tensor, thresholds: Sequence[float]
) -> pd.DataFrame:
    """Mean IoU of some maps by threshold, for subsets of the images.

    Args:
        iou: (T, N) of ``image_overlaps``; images where it is NaN are left out.
        is_right: (N,), whether an image is classified as labelled.
        thresholds: T of them, of the map.

    Returns:
        threshold, subset (all images, those classified right, the others), n (images)
        and iou, NaN where there are none.
    """
    subsets = {
        ALL_IMAGES: torch.ones_like(is_right),
        RIGHT: is_right,
        WRONG: ~is_right,
    }
    tables = []
    for subset, images in subsets.items():
        values = iou[:, images].double()  # (thresholds, images)
        count = values.isfinite().sum(1)
        columns = {
            "threshold": thresholds,
            "subset": subset,
            "n": count.numpy(),
            "iou": (values.nansum(1) / count).numpy(),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def corrected_row(maps: Tensor, subject: Subject, threshold: float) -> pd.DataFrame:
    """Means of the localization measures above chance.

    Args:
        maps: (N, h, w) in [0, 1].
        subject: whose N images have boxes.
        threshold: of the map.

    Returns:
        A row: n and ``localize.CORRECTED``.
    """
    single = attributions.above_chance(maps, subject.images, threshold, subject.device)
    return pd.DataFrame([{"n": len(single)} | single.mean().to_dict()])


@torch.no_grad()  # enabled again where a method needs gradients
def sampled_scores(subject: Subject, settings: AblationSettings) -> dict[str, Any]:
    """Overlap of maps that need gradients, noise, or images of another size.

    Args:
        subject: network and a few images.
        settings: of the ablations.

    Returns:
        Tables "scores" and "corrected", see ``overlap_rows`` and ``corrected_row``; and
        IoUs of single images at the last stage, by ``name_of_images``.
    """
    closed = closed_form(subject)
    scores = _Scores(subject, closed, settings)
    for way, layer in _other_ways(subject, closed.stage, settings):
        scores.add(_maps_of(way, layer, subject, closed, settings), way)
    return scores.record()


def _other_ways(
    subject: Subject, stage: Stage, settings: AblationSettings
) -> Iterator[tuple[dict[str, str | int], nn.Module]]:
    """Ways to compute maps, as values of the columns ``WAY``, with their layer."""
    grad_cam = grad_cam_way(stage.name, subject.size)
    for method in settings.methods:
        way = grad_cam | {"method": method}
        if method == "eigen_cam":
            way["class_used"] = NO_CLASS
        yield way, stage.layer
        if method in TORCHCAM_DIFFERS:
            yield way | {"formula": TORCHCAM}, stage.layer
    for name, layer in hooks.stage_layers(subject.network).items():
        for method in LAYER_METHODS:
            yield grad_cam | {"method": method, "layer": name}, layer
    sides = [max(8, round(scale * subject.size)) for scale in settings.scales]
    for side in dict.fromkeys(sides):
        if side != subject.size:
            yield grad_cam | {"image_size": side}, stage.layer


def _maps_of(
    way: Mapping[str, Any],
    layer: nn.Module,
    subject: Subject,
    closed: ClosedForm,
    settings: AblationSettings,
) -> Tensor:
    """Normalised maps of one way of ``_other_ways``: (N, h, w)."""
    options = MapOptions(**settings.noise, torchcam_compat=way["formula"] == TORCHCAM)
    classes = closed.predicted.split(_BATCH)
    batches = []
    for number, pixels in enumerate(subject.batches()):
        if way["image_size"] == subject.size:
            maps = layer_maps(
                way["method"],
                subject.network,
                layer,
                subject.input(pixels),
                classes[number],
                replace(options, seed=settings.seed + number),
            )
        else:
            maps = _at_size(way["image_size"], pixels, subject, closed.stage)
        batches.append(maps)
    return normalise_maps(torch.cat(batches))


def _at_size(side: int, pixels: Tensor, subject: Subject, stage: Stage) -> Tensor:
    """Grad-CAM of images of another size, for the class that is predicted there."""
    resized = F.interpolate(
        pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False
    )
    features, logits = hooks.features_and_logits(
        subject.network, stage.layer, subject.input(resized)
    )
    return closed_form_cam(
        "grad_cam", features, stage.classifier.weight, logits.argmax(1)
    )


def untrained_models(
    catalogue: pd.DataFrame, classes: int, count: int, seed: int
) -> list[Model]:
    """Networks with initial weights, of every architecture of a catalogue.

    Args:
        catalogue: of networks; the first one of an architecture gives stem, width and
            last stride.
        classes: number of classes.
        count: networks of an architecture; Du et al. take 50.
        seed: of the first network; the next ones count up from it.
    """
    forms = catalogue[["architecture", "stem", "width", "last_stride"]]
    forms = forms.drop_duplicates("architecture").to_dict("records")
    models = []
    for form in forms:
        words = "-".join(str(value) for value in form.values())
        for number in range(seed, seed + count):
            build = partial(resnet.build, classes=classes, **form, seed=number)
            facts = {"architecture": form["architecture"], "seed": number}
            models.append(Model(f"{words}-{number}", partial(_untrained, build), facts))
    return models


def _untrained(build: Callable[[], nn.Module], device: torch.device | str) -> nn.Module:
    return build().to(device, memory_format=torch.channels_last).eval()


def untrained_scores(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    settings: AblationSettings,
    scored_on: ScoringSet,
    device: str,
) -> dict[str, dict[str, pd.DataFrame]]:
    """Accuracies, gap and IoU of an untrained network.

    Du et al. 2024, Table 5.

    Args:
        model: of ``untrained_models``.
        data: images of the study.
        parts: ``UNTRAINED`` alone.
        settings: largest number of training images, and of test images; threshold of
            the map; and seed of the choice of test images.
        scored_on: training images.
        device: where the network computes.

    Returns:
        A record by part, with a table "scores" of one row.
    """
    images = scored_on.images_of(data)
    subject = Subject(model.load(device), images, model.normalise, device)
    subject = subject.first(settings.images)
    train = subject.images
    order = np.random.default_rng(settings.seed).permutation(len(data.test))
    test = data.test.subset(np.sort(order[: settings.images or None]))
    closed = closed_form(subject)
    maps = closed.maps[PAPER_MAPS]
    in_boxes = box_masks(train.boxes, subject.size)
    (iou,) = localize.iou_at(maps, in_boxes, [settings.threshold])
    on_train = closed.predicted.cpu() == train.labels
    logits = logits_of(subject.network, test.images, device, subject.normalise)
    on_test = logits.argmax(1) == test.labels
    train_accuracy = float(on_train.double().mean())
    test_accuracy = float(on_test.double().mean())
    row = {
        **model.facts,
        "train_accuracy": train_accuracy,
        "train_images": len(train),
        "iou": float(iou.double().nanmean()),
        "test_accuracy": test_accuracy,
        "test_images": len(test),
        "gap": train_accuracy - test_accuracy,
    }
    return {part: {"scores": pd.DataFrame([row])} for part in parts}

"""Overlap of one network under other choices: method, class, layer, threshold, size.

Each choice is columns of the scores, see ``helpers.scores.store.CHOICE``.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

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
from helpers.networks import hooks, resnet
from helpers.scores.classification import logits_of
from helpers.scores.models import Model
from helpers.scores.scoring_set import ScoringSet
from helpers.scores.store import Store

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
COSTS = ("seconds", "forward_passes", "backward_passes")  # per image
_BATCH = 256  # images per pass; the noise of Smooth Grad-CAM++ depends on it
_CAPTUM_BATCH = 16
_VERSION = 1  # of the values
Way = Mapping[str, Any]  # values of columns of ``CHOICE``


@dataclass(frozen=True)
class Settings:
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

        Args:
            annotated: images, and masks, which are identified by a digest of pixels.
        """
        settings = asdict(self)
        of_captum = {name: settings.pop(name) for name in ("attributions", "steps")}
        shared = {
            "images": annotated.scored_on.name,
            "threshold": self.threshold,
            "version": _VERSION,
        }
        masks = {
            name: json_digest(np.packbits(mask.numpy()).tobytes().hex())
            for name, mask in annotated.masks.items()
        }
        return {
            CLOSED: shared | {"thresholds": self.thresholds, "masks": masks},
            SAMPLED: shared | {"settings": settings},
            ATTRIBUTED: shared | of_captum | {"first": self.images},
        }


class Annotations(NamedTuple):
    """Images, and masks of their salient object that programs have made.

    Attributes:
        scored_on: N images.
        masks: (N, S, S) bool by provider.
    """

    scored_on: ScoringSet
    masks: Mapping[str, Tensor]


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
    # Programs stand in place of networks.
    makers = [Model(f"{MASKS}-{provider}", type(None)) for provider in providers]
    compute = partial(_masks, scored_on=scored_on, path=path)
    on_cpu = Store(store.folder, store.shared, jobs=1)
    records = on_cpu.each(makers, {MASKS: settings}, compute, needed=False)
    size = scored_on.images_of(store.shared()).images.shape[-1]
    masks = {}
    for name in records.complete:
        bits = records.record(MASKS, name)["bits"]
        is_object = np.unpackbits(bits, axis=-1, count=size) > 0
        masks[name.removeprefix(f"{MASKS}-")] = torch.from_numpy(is_object)
    return masks


def _masks(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    scored_on: ScoringSet,
    path: str,
) -> dict[str, dict[str, Any]]:
    provider = model.model_id.removeprefix(f"{MASKS}-")
    masks = make_masks(provider, scored_on.images_of(data), path)
    return {MASKS: {"bits": np.packbits(masks.numpy(), axis=-1)}}


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


def choices_of(
    model: Model,
    data: StudyData,
    parts: Sequence[str],
    *,
    settings: Settings,
    annotated: Annotations,
    device: str,
) -> dict[str, dict[str, Any]]:
    """Scores of a model under other choices, as ``Store.each`` takes them.

    Args:
        model: to be examined.
        data: images of the study.
        parts: of ``CLOSED``, ``SAMPLED`` and ``ATTRIBUTED``.
        settings: of the choices.
        annotated: images and masks.
        device: where the network computes.

    Returns:
        A record by part: scores, and IoU of single images by ``name_of_images``.
    """
    images = annotated.scored_on.images_of(data)
    subject = Subject(model.load(device), images, model.normalise, device)
    sample = subject.first(settings.images)
    compute = {
        CLOSED: partial(closed_form_scores, subject, annotated.masks, settings),
        SAMPLED: partial(sampled_scores, sample, settings),
        ATTRIBUTED: partial(attribution_scores, sample, settings),
    }
    return {part: compute[part]() for part in parts}


class ClosedForm(NamedTuple):
    """The last stage, whose maps have a closed form, and what one pass shows."""

    name: str
    layer: nn.Module
    classifier: nn.Linear
    maps: dict[tuple[str, str, str], Tensor]  # (N, h, w) by method, formula and class
    predicted: Tensor  # (N,)

    @property
    def of_paper(self) -> Tensor:
        """Maps of the paper: Grad-CAM of the predicted class."""
        return self.maps["grad_cam", CORRECT, PREDICTED]


@torch.inference_mode()
def closed_form(subject: Subject) -> ClosedForm:
    """All maps in closed form, of the predicted and of the true class, by one pass.

    Args:
        subject: network and images.

    Raises:
        ValueError: where the closed form does not hold, as for maps of one pixel.
    """
    example = subject.input(subject.images.images[:1])
    layer = hooks.last_maps_layer(subject.network, example)
    names = {module: name for name, module in subject.network.named_modules()}
    features, logits = hooks.features_and_logits(subject.network, layer, example)
    try:
        classifier = closed_form_classifier(subject.network, features, logits)
    except ValueError as fault:
        raise ValueError(
            f"the maps of {names[layer]}, the last of more than one pixel, are not "
            f"what the network averages for {subject.size} pixels ({fault}); take a "
            "larger image_size (01), a stem that halves less or last_stride 1 (02)"
        ) from fault
    batches: dict[tuple[str, str, str], list[Tensor]] = {}
    predicted = []
    labels = subject.images.labels.split(_BATCH)
    for pixels, true_classes in zip(subject.batches(), labels, strict=True):
        features, logits = hooks.features_and_logits(
            subject.network, layer, subject.input(pixels)
        )
        predicted.append(logits.argmax(1))
        classes = {PREDICTED: predicted[-1], TRUE: true_classes.to(subject.device)}
        for method, formula in CLOSED_FORMS:
            for class_used, of_class in classes.items():
                maps = closed_form_maps(
                    method, formula, features, classifier.weight, of_class
                )
                batches.setdefault((method, formula, class_used), []).append(maps)
    maps = {key: torch.cat(of_key) for key, of_key in batches.items()}
    return ClosedForm(names[layer], layer, classifier, maps, torch.cat(predicted))


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


def way_of_paper(layer: str, size: int) -> dict[str, Any]:
    """Columns of the paper's choice: Grad-CAM of the predicted class beside boxes.

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


def closed_form_scores(
    subject: Subject, masks: Mapping[str, Tensor], settings: Settings
) -> dict[str, Any]:
    """Scores of all maps that are computed from one forward pass.

    Args:
        subject: network and N images.
        masks: (N, S, S) bool by provider, which the paper's maps are compared with too;
            an image with an empty mask is left out.
        settings: of the choices.

    Returns:
        Scores, and IoUs of single images for the predicted class.
    """
    closed = closed_form(subject)
    of_paper = way_of_paper(closed.name, subject.size)
    ways = []
    for (method, formula, class_used), maps in closed.maps.items():
        way = {"method": method, "formula": formula, "class_used": class_used}
        ways.append((of_paper | way, maps))
    for name in masks:
        ways.append((of_paper | {"annotation": name}, closed.of_paper))
    return scores_of_ways(ways, subject, closed, settings, masks)


@torch.no_grad()  # enabled again where a method needs gradients
def sampled_scores(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Scores of maps that need gradients, noise, or images of another size.

    Args:
        subject: network and a few images.
        settings: of the choices.

    Returns:
        Scores, and IoUs of single images at the last stage.
    """
    closed = closed_form(subject)
    ways = (
        (way, _maps_of(way, layer, subject, closed, settings))
        for way, layer in _other_ways(subject, closed, settings)
    )
    return scores_of_ways(ways, subject, closed, settings, {})


def scores_of_ways(
    ways: Iterable[tuple[Way, Tensor]],
    subject: Subject,
    closed: ClosedForm,
    settings: Settings,
    masks: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Score maps by IoU, and beside boxes by measures above chance.

    Args:
        ways: how maps were made, with the maps (N, h, w).
        subject: the N images.
        closed: of the network.
        settings: of the choices.
        masks: (N, S, S) bool by annotation; boxes are those of the images.

    Returns:
        Scores, and IoUs of single images by ``name_of_images``: at the last stage and
        the study's image size, of all classes but the true one.
    """
    is_right = closed.predicted.cpu() == subject.images.labels
    annotations = {BOXES: box_masks(subject.images.boxes, subject.size), **masks}
    tables = []
    of_images = {}
    for way, maps in ways:
        annotated = annotations[way["annotation"]]
        iou = localize.iou_at(maps, annotated, settings.thresholds).cpu()  # (T, N)
        tables.append(iou_rows(iou, is_right, settings.thresholds).assign(**way))
        if way["annotation"] != BOXES:
            continue
        above = above_chance(maps, subject, settings.threshold)
        rows = above.mean().rename_axis("measure").rename("value").reset_index()
        rows = rows.assign(n=len(above), subset=ALL_IMAGES, **way)
        has_threshold = rows["measure"] == "iou_above_shuffled"
        rows["threshold"] = np.where(has_threshold, settings.threshold, np.nan)
        tables.append(rows)
        is_usual = (way["layer"], way["image_size"]) == (closed.name, subject.size)
        if is_usual and way["class_used"] != TRUE:
            name = name_of_images(way["method"], way["formula"])
            at_threshold = iou[settings.thresholds.index(settings.threshold)]
            of_images[name] = at_threshold.numpy().astype(np.float16)
    return {"scores": pd.concat(tables, ignore_index=True), **of_images}


def name_of_images(method: str, formula: str) -> str:
    """Name of the array with the IoU of single images by a CAM method.

    Args:
        method: such as "grad_cam".
        formula: ``CORRECT``, or as torchcam has it.
    """
    return f"iou, {method}, {formula}"


def iou_rows(
    iou: Tensor, is_right: Tensor, thresholds: Sequence[float]
) -> pd.DataFrame:
    """Mean IoU of some maps by threshold, for subsets of the images.

    Args:
        iou: (T, N) of ``localize.iou_at``; images where it is NaN are left out.
        is_right: (N,), whether an image is classified as labelled.
        thresholds: T of them, of the map.

    Returns:
        measure, threshold, subset (all images, those classified right, the others), n
        (images) and value, NaN where there are none.
    """
    subsets = {
        ALL_IMAGES: torch.ones_like(is_right),
        RIGHT: is_right,
        WRONG: ~is_right,
    }
    rows = []
    for subset, images in subsets.items():
        values = iou[:, images].double()  # (thresholds, images)
        counts = values.isfinite().sum(1)
        means = values.nansum(1) / counts
        for row in zip(thresholds, counts.tolist(), means.tolist(), strict=True):
            rows.append(("iou", subset, *row))
    return pd.DataFrame(rows, columns=["measure", "subset", "threshold", "n", "value"])


def above_chance(maps: Tensor, subject: Subject, threshold: float) -> pd.DataFrame:
    """Localization of each map minus that with boxes of other images.

    Args:
        maps: (N, h, w) in [0, 1].
        subject: whose N images have boxes.
        threshold: of the map.

    Returns:
        A row per image with ``localize.CORRECTED``, each in [-1, 1].
    """
    boxes = subject.images.boxes
    scores = localize.chance_scores(maps, boxes, subject.size, threshold)
    return pd.DataFrame(
        {name: localize.above_shuffled(scores, name) for name in localize.CORRECTED}
    )


def _other_ways(
    subject: Subject, closed: ClosedForm, settings: Settings
) -> Iterator[tuple[dict[str, Any], nn.Module]]:
    """Ways to compute maps, each with its layer."""
    of_paper = way_of_paper(closed.name, subject.size)
    for method in settings.methods:
        way = of_paper | {"method": method}
        if method == "eigen_cam":
            way["class_used"] = NO_CLASS
        yield way, closed.layer
        if method in TORCHCAM_DIFFERS:
            yield way | {"formula": TORCHCAM}, closed.layer
    for name, layer in hooks.stage_layers(subject.network).items():
        for method in LAYER_METHODS:
            yield of_paper | {"method": method, "layer": name}, layer
    sides = [max(8, round(scale * subject.size)) for scale in settings.scales]
    for side in dict.fromkeys(sides):
        if side != subject.size:
            yield of_paper | {"image_size": side}, closed.layer


def _maps_of(
    way: Way,
    layer: nn.Module,
    subject: Subject,
    closed: ClosedForm,
    settings: Settings,
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
            maps = _at_size(way["image_size"], pixels, subject, closed)
        batches.append(maps)
    return normalise_maps(torch.cat(batches))


def _at_size(side: int, pixels: Tensor, subject: Subject, closed: ClosedForm) -> Tensor:
    """Grad-CAM of images of another size, for the class that is predicted there."""
    resized = F.interpolate(
        pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False
    )
    features, logits = hooks.features_and_logits(
        subject.network, closed.layer, subject.input(resized)
    )
    weight = closed.classifier.weight
    return closed_form_cam("grad_cam", features, weight, logits.argmax(1))


def attribution_scores(subject: Subject, settings: Settings) -> dict[str, Any]:
    """Localization of Grad-CAM and of each attribution by Captum, and their costs.

    Args:
        subject: network and a few images.
        settings: of the choices.

    Returns:
        Scores, a reason where a network does not allow the method; ``COSTS`` among
        them. Grad-CAM needs only the pass that predicts the class (closed form),
        counted here as 1; the others need theirs in addition to it. Values of single
        images are "<measure>, <method>".
    """
    closed = closed_form(subject)
    # Guided backpropagation needs a module per call of a ReLU.
    network = attribution.with_separate_relus(subject.network)
    copied = subject._replace(network=network)
    nothing = torch.full_like(closed.of_paper, torch.nan)
    record: dict[str, Any] = {}
    rows = []
    for method in ("grad_cam", *settings.attributions):
        maps = closed.of_paper
        costs = {"forward_passes": 1.0, "backward_passes": 0.0}
        reason = ""
        if method != "grad_cam":
            try:
                maps, costs = _attributed(method, copied, closed, settings.steps)
            except ValueError as fault:
                maps, costs, reason = nothing, {}, str(fault)
        above = above_chance(maps, subject, settings.threshold)
        for measure in localize.LESS_CHANCE:
            record[f"{measure}, {method}"] = above[measure].to_numpy()
        values = above[[*localize.LESS_CHANCE]].mean().to_dict() | costs
        of_method = pd.DataFrame(values.items(), columns=["measure", "value"])
        rows.append(of_method.assign(method=method, n=len(above), reason=reason))
    return record | {"scores": pd.concat(rows, ignore_index=True)}


def _attributed(
    method: str, subject: Subject, closed: ClosedForm, steps: int
) -> tuple[Tensor, dict[str, float]]:
    """Normalised maps of an attribution, (N, S, S), and ``COSTS`` per image."""
    started = time.perf_counter()
    batches = [
        attribution.attribution_maps(
            method, subject.network, subject.input(pixels), classes, steps
        )
        for pixels, classes in zip(
            subject.batches(_CAPTUM_BATCH),
            closed.predicted.split(_CAPTUM_BATCH),
            strict=True,
        )
    ]
    costs = {
        "seconds": (time.perf_counter() - started) / len(subject.images),
        "forward_passes": batches[0].forward_passes,
        "backward_passes": batches[0].backward_passes,
    }
    return normalise_maps(torch.cat([batch.maps for batch in batches])), costs


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
    settings: Settings,
    scored_on: ScoringSet,
    device: str,
) -> dict[str, dict[str, pd.DataFrame]]:
    """Accuracies, gap and IoU of an untrained network; Du et al. 2024, Table 5.

    Args:
        model: of ``untrained_models``.
        data: images of the study.
        parts: ``UNTRAINED`` alone.
        settings: largest number of training images, and of test images; threshold of
            the map; and seed of the choice of test images.
        scored_on: training images.
        device: where the network computes.

    Returns:
        A record by part.
    """
    images = scored_on.images_of(data)
    subject = Subject(model.load(device), images, model.normalise, device)
    subject = subject.first(settings.images)
    train = subject.images
    order = np.random.default_rng(settings.seed).permutation(len(data.test))
    test = data.test.subset(np.sort(order[: settings.images or None]))
    closed = closed_form(subject)
    in_boxes = box_masks(train.boxes, subject.size)
    (iou,) = localize.iou_at(closed.of_paper, in_boxes, [settings.threshold])
    logits = logits_of(subject.network, test.images, device, subject.normalise)
    values = {
        "train_accuracy": (closed.predicted.cpu() == train.labels).double().mean(),
        "train_images": len(train),
        "iou": iou.double().nanmean(),
        "test_accuracy": (logits.argmax(1) == test.labels).double().mean(),
        "test_images": len(test),
    }
    values["gap"] = values["train_accuracy"] - values["test_accuracy"]
    scores = pd.DataFrame(values.items(), columns=["measure", "value"])
    return {part: {"scores": scores.astype({"value": float})} for part in parts}

"""Overlap of one network under other choices: method, class, layer, threshold, size.

A choice is a way to make maps and an annotation that they are compared with: columns of
the scores, see ``helpers.scores.values.CHOICE``. ``maps_of_ways`` makes the maps, batch
by batch, and ``scores_of_ways`` compares them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from helpers.cams import attribution, localize
from helpers.cams.localize import PAPER_THRESHOLD
from helpers.cams.maps import (
    CLOSED_FORM_METHODS,
    MapOptions,
    closed_form_cam,
    closed_form_classifier,
    layer_maps,
    normalise_maps,
)
from helpers.cams.masks import make_masks
from helpers.data.images import ImageSet, StudyData, box_masks
from helpers.files import json_digest
from helpers.measures.evidence import score_network
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

# Methods and formulas whose maps are computed from one forward pass; the first is the
# paper's.
CLOSED_FORMS = (
    ("grad_cam", CORRECT),
    ("grad_cam_plus_plus", CORRECT),
    ("grad_cam_plus_plus", TORCHCAM),
    ("layer_cam", CORRECT),
)
# Methods that torchcam computes by another formula.
TORCHCAM_DIFFERS = {"grad_cam_plus_plus", "smooth_grad_cam_plus_plus"}
LAYER_METHODS = ("grad_cam", "layer_cam")  # computed at every stage
_BATCH = 256  # images per pass; the noise of Smooth Grad-CAM++ depends on it
_CAPTUM_BATCH = 16
_VERSION = 1  # of the values
# Fields of ``Settings`` that do not decide the part "sampled".
_BESIDE_SAMPLE = {"scored_on", "masks", "attributions", "steps"}
Way = Mapping[str, Any]  # values of columns of ``CHOICE``


@dataclass(frozen=True)
class Settings:
    """Everything but the network that the scores depend on."""

    scored_on: ScoringSet  # N images
    masks: Mapping[str, Tensor]  # (N, S, S) bool by provider
    thresholds: Sequence[float]  # of the map, in (0, 1); the paper's is one of them
    images: int  # the first, for gradients, noise and other image sizes; 0 is all
    methods: Sequence[str]  # at the last stage, beside Grad-CAM and Layer-CAM
    noise: Mapping[str, float]  # noise_samples, noise_std, channels of ``MapOptions``
    scales: Sequence[float]  # image sizes, as multiples of the study's
    attributions: Sequence[str]  # by Captum
    threshold: float = PAPER_THRESHOLD
    steps: int = 16  # of integrated gradients
    seed: int = 0  # of the noise

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """What the values of each part depend on; masks by a digest of their pixels."""
        masks = {
            name: json_digest(np.packbits(mask.numpy()).tobytes().hex())
            for name, mask in self.masks.items()
        }
        of_sample = {
            name: value
            for name, value in vars(self).items()
            if name not in _BESIDE_SAMPLE
        }
        decisive = {
            CLOSED: {"thresholds": self.thresholds, "masks": masks},
            SAMPLED: {"settings": of_sample},
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

    def compute(maker: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The masks of a provider."""
        images = scored_on.images_of(data)
        masks = make_masks(maker.facts["provider"], images, path)
        return {MASKS: {"bits": np.packbits(masks.numpy(), axis=-1)}}

    masks = {}
    for provider in providers:
        maker = Model(f"{MASKS}-{provider}", type(None), {"provider": provider})
        records = store.each([maker], {MASKS: settings}, compute, needed=False)
        if record := records.record(MASKS, str(maker)):
            bits = record["bits"]  # (N, S, S / 8)
            masks[provider] = np.unpackbits(bits, axis=-1, count=bits.shape[1])
    return {name: torch.from_numpy(mask > 0) for name, mask in masks.items()}


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
    device = store.device

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The parts of a network."""
        classifier = Classifier(model.load(device), model.normalise, device, _BATCH)
        images = settings.scored_on.images_of(data)
        # A random sample: the first images stand in random order.
        sample = images.subset(range(len(images))[: settings.images or None])
        of_paper = way_of_paper(classifier, images)
        by_captum = replace(classifier, batch_size=_CAPTUM_BATCH)
        sampled = sampled_ways(of_paper, classifier.network, settings)
        ways = {
            CLOSED: (closed_form_ways(of_paper, settings), classifier, images),
            SAMPLED: (sampled, classifier, sample),
            ATTRIBUTED: (attributed_ways(of_paper, settings), by_captum, sample),
        }
        records = {
            part: scores_of_ways(of_paper, *ways[part], settings) for part in parts
        }
        if ATTRIBUTED in records:  # the method alone differs, and no threshold counts
            scores = records[ATTRIBUTED]["scores"]
            scores = scores[scores["measure"].isin(localize.LESS_CHANCE)]
            records[ATTRIBUTED]["scores"] = scores[["measure", "method", "n", "value"]]
        return records

    return store.each(models, settings.parts, compute)


def way_of_paper(classifier: Classifier, images: ImageSet) -> Way:
    """The paper's choice: Grad-CAM of the predicted class at the last stage.

    Args:
        classifier: the network.
        images: at the size of the study.
    """
    network = classifier.network
    layer = hooks.last_maps_layer(network, classifier.input(images.images[:1]))
    names = {module: name for name, module in network.named_modules()}
    return {
        "method": "grad_cam",
        "formula": CORRECT,
        "layer": names[layer],
        "class_used": PREDICTED,
        "annotation": BOXES,
        "image_size": images.images.shape[-1],
    }


@torch.no_grad()  # enabled again where a method needs gradients
def maps_of_ways(
    ways: Sequence[Way], classifier: Classifier, images: ImageSet, settings: Settings
) -> tuple[list[Tensor], Tensor]:
    """Maps of images, made in some ways; one pass serves all that have a closed form.

    Args:
        ways: how maps are made.
        classifier: the network.
        images: N images.
        settings: of the choices.

    Returns:
        Normalised maps of each way, (N, h, w) in [0, 1), and predicted classes, (N,).

    Raises:
        ValueError: where the closed form does not hold, as for maps of one pixel.
    """
    network = classifier.network
    example = classifier.input(images.images[:1])
    last = hooks.last_maps_layer(network, example)
    linear = closed_form_classifier(
        network, *hooks.features_and_logits(network, last, example)
    )
    # Made once, where a way needs it.
    separated = cache(partial(attribution.with_separate_relus, network))
    size = images.images.shape[-1]
    sides = {size, *(way["image_size"] for way in ways)}
    maps: list[list[Tensor]] = [[] for _ in ways]
    predicted = []
    parts = (
        each.split(classifier.batch_size) for each in (images.images, images.labels)
    )
    batches = zip(*parts, strict=True)
    for number, (pixels, labels) in enumerate(batches):
        passes = {side: _pass(pixels, side, classifier, last) for side in sides}
        _, _, logits = passes[size]
        predicted.append(logits.argmax(1))
        true = labels.to(classifier.device)
        for way, of_way in zip(ways, maps, strict=True):
            inputs, features, logits = passes[way["image_size"]]
            classes = true if way["class_used"] == TRUE else logits.argmax(1)
            method = way["method"]
            layer = network.get_submodule(way["layer"])
            options = MapOptions(
                **settings.noise,
                seed=settings.seed + number,
                torchcam_compat=way["formula"] == TORCHCAM,
            )
            if method in attribution.ATTRIBUTIONS:
                of_batch = attribution.attribution_maps(
                    method, separated(), inputs, classes, settings.steps
                )
            elif layer is last and method in CLOSED_FORM_METHODS:
                of_batch = closed_form_cam(
                    method, features, linear.weight, classes, options.torchcam_compat
                )
            else:
                of_batch = layer_maps(method, network, layer, inputs, classes, options)
            of_way.append(normalise_maps(of_batch))
    return [torch.cat(of_way) for of_way in maps], torch.cat(predicted)


def _pass(
    pixels: Tensor, side: int, classifier: Classifier, layer: nn.Module
) -> tuple[Tensor, Tensor, Tensor]:
    """Input of images at a size, the maps of a layer, and logits."""
    resized = F.interpolate(
        pixels.to(classifier.device).float(),
        size=(side, side),
        mode="bilinear",
        antialias=True,
    )
    inputs = classifier.input(resized)
    return inputs, *hooks.features_and_logits(classifier.network, layer, inputs)


def closed_form_ways(of_paper: Way, settings: Settings) -> list[Way]:
    """Choices that one forward pass suffices for.

    Args:
        of_paper: see ``way_of_paper``.
        settings: with masks, which the paper's maps are compared with beside boxes.
    """
    ways = [
        of_paper | {"method": method, "formula": formula, "class_used": class_used}
        for (method, formula), class_used in product(CLOSED_FORMS, (PREDICTED, TRUE))
    ]
    return [*ways, *(of_paper | {"annotation": name} for name in settings.masks)]


def sampled_ways(of_paper: Way, network: nn.Module, settings: Settings) -> list[Way]:
    """Choices that need gradients, noise, further stages, or images of another size.

    Args:
        of_paper: see ``way_of_paper``.
        network: a ResNet.
        settings: of the choices.
    """
    ways = []
    for method in settings.methods:
        way = of_paper | {"method": method}
        if method == "eigen_cam":
            way["class_used"] = NO_CLASS
        ways.append(way)
        if method in TORCHCAM_DIFFERS:
            ways.append(way | {"formula": TORCHCAM})
    for layer, method in product(hooks.stage_layers(network), LAYER_METHODS):
        ways.append(of_paper | {"method": method, "layer": layer})
    size = of_paper["image_size"]
    sides = dict.fromkeys(max(8, round(scale * size)) for scale in settings.scales)
    return ways + [of_paper | {"image_size": side} for side in sides if side != size]


def attributed_ways(of_paper: Way, settings: Settings) -> list[Way]:
    """Attributions by Captum, and Grad-CAM beside them.

    Args:
        of_paper: see ``way_of_paper``.
        settings: of the choices.
    """
    names = ("grad_cam", *settings.attributions)
    return [of_paper | {"method": name, "formula": ""} for name in names]


def scores_of_ways(
    of_paper: Way,
    ways: Sequence[Way],
    classifier: Classifier,
    images: ImageSet,
    settings: Settings,
) -> dict[str, Any]:
    """Score maps by IoU, and beside boxes by measures above chance.

    Args:
        of_paper: see ``way_of_paper``.
        ways: how maps are made, and what they are compared with.
        classifier: the network.
        images: N images.
        settings: of the choices. An image with an empty mask is left out.

    Returns:
        Scores, and scores of single images by ``name_of_images``: at the last stage and
        the study's image size, of all classes but the true one.
    """
    all_maps, predicted = maps_of_ways(ways, classifier, images, settings)
    size = of_paper["image_size"]
    annotations = {BOXES: box_masks(images.boxes, size), **settings.masks}
    is_right = (predicted.cpu() == images.labels).numpy()
    subsets = {ALL_IMAGES: is_right | ~is_right, RIGHT: is_right, WRONG: ~is_right}
    tables = []
    of_images = {}
    for way, maps in zip(ways, all_maps, strict=True):
        annotated = annotations[way["annotation"]]
        iou = localize.iou_at(maps, annotated, settings.thresholds)[..., 0]  # (T, N)
        iou = pd.DataFrame(iou.T.double().cpu(), columns=[*settings.thresholds])
        for subset, rows in subsets.items():
            means = _means(iou[rows], "threshold")
            tables.append(means.assign(measure="iou", subset=subset, **way))
        if way["annotation"] != BOXES:
            continue
        scores = localize.chance_scores(maps, images.boxes, size, settings.threshold)
        means = _means(scores[[*localize.CORRECTED]], "measure")
        # The other measures have none.
        threshold = {"iou_above_shuffled": settings.threshold}
        means["threshold"] = means["measure"].map(threshold)
        tables.append(means.assign(subset=ALL_IMAGES, **way))
        is_here = way["layer"] == of_paper["layer"] and way["image_size"] == size
        if is_here and way["class_used"] != TRUE:
            for measure in ("iou", *localize.LESS_CHANCE):
                name = name_of_images(measure, way["method"], way["formula"])
                of_images[name] = scores[measure].to_numpy(np.float16)
    return {"scores": pd.concat(tables, ignore_index=True), **of_images}


def _means(scores: pd.DataFrame, name: str) -> pd.DataFrame:
    """Mean (value) over n images of each column, which stands in a column of a name."""
    means = scores.agg(["count", "mean"]).T.rename_axis(name).reset_index()
    return means.rename(columns={"count": "n", "mean": "value"})


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
        A row per network: model_id, train_accuracy, test_accuracy, gap (fractions), iou
        and architecture.
    """
    data = store.shared()
    forms = catalogue[["architecture", "stem", "width", "last_stride"]]
    forms = forms.drop_duplicates("architecture").to_dict("records")
    models = []
    for form, number in product(forms, range(count)):
        seed = settings.seed + number
        build = partial(resnet.build, classes=len(data.classes), **form, seed=seed)
        name = "-".join(map(str, (*form.values(), seed)))
        models.append(Model(name, build, form))
    decisive = {
        "images": settings.images,
        "threshold": settings.threshold,
        "seed": settings.seed,
        "scored": settings.scored_on.name,
        "data": data.fingerprint,
    }

    def compute(model: Model, data: StudyData, parts: Sequence[str]) -> dict[str, Any]:
        """The part of a network."""
        order = np.random.default_rng(settings.seed).permutation(len(data.test))
        first = slice(settings.images or None)
        train = data.train.subset(settings.scored_on.rows[first])
        test = data.test.subset(order[first])
        network = model.load()
        options = {"device": store.device, "cam_threshold": settings.threshold}
        scores = score_network(network, train, ["iou", "training_accuracy"], **options)
        of_train = scores.set_index("measure")["value"]
        of_test = score_network(network, test, ["training_accuracy"], **options)
        values = {
            "train_accuracy": of_train["training_accuracy"],
            "test_accuracy": of_test["value"].item(),
            "iou": of_train["iou"],
        }
        values["gap"] = values["train_accuracy"] - values["test_accuracy"]
        return {UNTRAINED: {"scores": values}}

    values = store.each(models, {UNTRAINED: decisive}, compute).table(UNTRAINED)
    architectures = {str(model): model.facts["architecture"] for model in models}
    values = values.loc[[*architectures]].assign(architecture=architectures.values())
    return values.reset_index()

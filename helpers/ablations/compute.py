"""The overlap of one network under every choice that could have been made otherwise: method, class, layer, threshold, size."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from helpers.ablations import attributions
from helpers.cams import attribution, overlap
from helpers.cams.maps import (
    GRADIENT_METHODS,
    closed_form_cam,
    closed_form_classifier,
    layer_maps,
    normalise_maps,
)
from helpers.files import digest
from helpers.networks import hooks, resnet
from helpers.scoring.classification import logits_of
from helpers.scoring.models import Model
from helpers.scoring.scoring_set import ScoringSet

CORRECT, TORCHCAM = "correct", "torchcam"  # formulas
PREDICTED, TRUE, NO_CLASS = "predicted", "true", "none"  # classes that a map explains
BOXES = "boxes"  # what it is compared with: annotated boxes, or masks by the name of their provider
ALL_IMAGES, RIGHT, WRONG = (
    "all",
    "correct",
    "wrong",
)  # images: all, those classified as labelled, the others
CLOSED, SAMPLED, ATTRIBUTED = (
    "closed",
    "sampled",
    "attributed",
)  # parts: all images in closed form, a few by gradients, by Captum
UNTRAINED = "untrained"

# What one forward pass gives in closed form; the first is the paper's. "cam" is the same as "grad_cam" here.
CLOSED_FORMS = (
    ("grad_cam", CORRECT),
    ("grad_cam_plus_plus", CORRECT),
    ("grad_cam_plus_plus", TORCHCAM),
    ("layer_cam", CORRECT),
)
LAYER_METHODS = ("grad_cam", "layer_cam")  # at every layer
SAMPLED_METHODS = tuple(
    method for method in GRADIENT_METHODS if method not in LAYER_METHODS
)  # at the last stage
WAY = ["method", "formula", "layer", "class_used", "annotation", "image_size"]
KEYS = [*WAY, "threshold", "subset"]
_BATCH = 256  # images per pass; of what is drawn, the noise alone depends on it
_VERSION = 1  # of the values


@dataclass(frozen=True)
class AblationSettings:
    """Everything that decides the scores beside the network, its images and the machine's masks."""

    thresholds: tuple[float, ...]  # of the map, in (0, 1); the paper's is added
    threshold: float = 0.1  # the paper's
    images: int = 48  # the first images, for what needs gradients, noise or other image sizes; 0 takes all
    methods: tuple[str, ...] = (
        SAMPLED_METHODS  # at the last stage, beside Grad-CAM and Layer-CAM
    )
    noise: Mapping[str, float] = field(
        default_factory=dict
    )  # noise_samples, noise_std and channels of ``maps.layer_maps``
    scales: tuple[float, ...] = (0.5, 2.0)  # image sizes, as multiples of the study's
    attributions: tuple[str, ...] = attribution.ATTRIBUTIONS  # by Captum
    steps: int = 16  # of integrated gradients
    seed: int = 0  # of the noise

    def __post_init__(self) -> None:
        """Put the paper's threshold among the sorted thresholds."""
        object.__setattr__(
            self, "thresholds", tuple(sorted({*self.thresholds, self.threshold}))
        )

    def parts(
        self, scored_on: ScoringSet, masks: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Any]]:
        """What decides each part: other noise does not compute the closed forms again, nor other masks (told apart by pixels) the noise."""
        options = (
            asdict(self) | {"layers": ()}
        )  # a key that is always so: digests of files that earlier versions kept have it
        of_captum = {name: options.pop(name) for name in ("attributions", "steps")}
        shared = {
            "images": scored_on.name,
            "threshold": self.threshold,
            "version": _VERSION,
        }
        pixels = {
            name: digest(np.packbits(made.numpy()).tobytes().hex())
            for name, made in masks.items()
        }
        return {
            CLOSED: shared | {"thresholds": self.thresholds, "masks": pixels},
            SAMPLED: {"settings": options} | shared,
            ATTRIBUTED: of_captum | {"first": self.images} | shared,
        }


class Given(NamedTuple):
    """A network in evaluation mode on its device, and images with how they become its input."""

    network: nn.Module
    images: Any
    normalise: Callable[[Tensor], Tensor]
    device: torch.device | str

    def first(self, count: int) -> "Given":
        """With the first images, which are the same of every model and in an order that was drawn; 0 takes all."""
        return self._replace(
            images=self.images.subset(
                range(min(len(self.images), count or len(self.images)))
            )
        )

    def batches(self, size: int = _BATCH) -> Iterator[Tensor]:
        """Pixels as floats in [0, 255], (B, 3, S, S) on the device."""
        return (
            pixels.to(self.device).float() for pixels in self.images.images.split(size)
        )

    def input(self, pixels: Tensor) -> Tensor:
        """Pixels as the network expects them."""
        return hooks.prepared(pixels, self.normalise, self.device)


def ablations_of(
    model: Model,
    data: Any,
    parts: Sequence[str],
    *,
    settings: AblationSettings,
    scored_on: ScoringSet,
    masks: Mapping[str, Tensor],
    device: str,
) -> dict[str, dict[str, Any]]:
    """Parts of a model's ablations, as ``Store.each`` takes them: ``closed_form_scores``, ``sampled_scores``, ``attribution_scores``."""
    given = Given(model.load(device), scored_on.of(data), model.normalise, device)
    few, found = given.first(settings.images), {}
    if CLOSED in parts:
        found[CLOSED] = closed_form_scores(given, masks, settings)
    if SAMPLED in parts:
        found[SAMPLED] = sampled_scores(few, settings)
    if ATTRIBUTED in parts:
        closed = closed_form(few)
        maps = closed.maps[(*CLOSED_FORMS[0], PREDICTED)]
        made = attributions.maps_by_captum(
            given.network, map(few.input, few.batches(16)), closed.predicted, settings
        )
        found[ATTRIBUTED] = attributions.attribution_scores(
            maps, made, few.images, settings.threshold, device
        )
    return found


class Stage(NamedTuple):
    """The last stage of a network, where maps have a closed form."""

    name: str
    layer: nn.Module
    classifier: nn.Linear


@torch.inference_mode()
def last_stage(given: Given) -> Stage:
    """The layer whose maps are averaged and classified; ValueError where the closed form does not hold, as for maps of one pixel."""
    example = given.input(given.images.images[:1])
    layer = hooks.last_maps_layer(given.network, example)
    name = next(
        name for name, module in given.network.named_modules() if module is layer
    )
    try:
        return Stage(
            name,
            layer,
            closed_form_classifier(
                given.network, *hooks.features_and_logits(given.network, layer, example)
            ),
        )
    except ValueError as fault:
        told = f"the maps of {name}, the last of more than one pixel, are not what the network averages for {example.shape[-1]} pixels"
        raise ValueError(
            f"{told} ({fault}); take a larger image_size (01), a stem that halves less or last_stride 1 (02)"
        ) from fault


def closed_form_maps(
    method: str,
    formula: str,
    features: Tensor,
    classifier_weight: Tensor,
    classes: Tensor,
) -> Tensor:
    """Normalised maps without a backward pass, one of ``CLOSED_FORMS``, see ``maps.closed_form_cam``: (B, h, w) in [0, 1).

    Grad-CAM++ as torchcam 0.4.0 computes it loses a division: a channel's weight is ``h w (relu(W_ck) / (h w))^3``, whose factor decides
    how much the 1e-8 of the normalisation weighs.
    """
    if formula == CORRECT:
        return normalise_maps(
            closed_form_cam(method, features, classifier_weight, classes)
        )
    pixels = features.shape[2] * features.shape[3]
    weights = pixels * (classifier_weight[classes].relu() / pixels) ** 3
    return normalise_maps(torch.einsum("bk,bkhw->bhw", weights, features).relu())


class ClosedForm(NamedTuple):
    """What one pass over images gives."""

    stage: Stage
    maps: dict[tuple[str, str, str], Tensor]  # (N, h, w) by method, formula and class
    predicted: Tensor  # (N,)


@torch.inference_mode()
def closed_form(given: Given) -> ClosedForm:
    """All maps in closed form, of the predicted and of the true class, by one pass."""
    stage, parts, predicted = last_stage(given), {}, []
    labels = given.images.labels.split(_BATCH)
    for pixels, true in zip(given.batches(), labels, strict=True):
        features, logits = hooks.features_and_logits(
            given.network, stage.layer, given.input(pixels)
        )
        predicted.append(logits.argmax(1))
        for key, (used, classes) in product(
            CLOSED_FORMS, ((PREDICTED, predicted[-1]), (TRUE, true.to(given.device)))
        ):
            made = closed_form_maps(*key, features, stage.classifier.weight, classes)
            parts.setdefault((*key, used), []).append(made)
    return ClosedForm(
        stage,
        {key: torch.cat(maps) for key, maps in parts.items()},
        torch.cat(predicted),
    )


def closed_form_scores(
    given: Given, masks: Mapping[str, Tensor], settings: AblationSettings
) -> dict[str, Any]:
    """Tables "scores" and "corrected" of all that one pass gives; masks (N, S, S) are bool, and an empty one drops its image."""
    found, size = closed_form(given), given.images.images.shape[-1]
    right, scores, corrected = found.predicted.cpu() == given.images.labels, [], []
    single = {}
    inside = {BOXES: overlap.box_masks(given.images.boxes, size), **masks}
    for (method, formula, used), maps in found.maps.items():
        keys = {
            "method": method,
            "formula": formula,
            "layer": found.stage.name,
            "class_used": used,
            "image_size": size,
        }
        of_paper = (method, formula, used) == (*CLOSED_FORMS[0], PREDICTED)
        for name in inside if of_paper else [BOXES]:
            scores.append(
                overlap_rows(
                    maps,
                    inside[name],
                    right,
                    settings.thresholds,
                    **keys,
                    annotation=name,
                )
            )
        corrected.append(
            corrected_row(maps, given, settings.threshold, **keys, annotation=BOXES)
        )
        if used == PREDICTED:
            name = name_of_images(method, formula)
            single[name] = iou_of_images(maps, inside[BOXES], settings.threshold)
    return single | {
        "scores": pd.concat(scores, ignore_index=True),
        "corrected": pd.concat(corrected, ignore_index=True),
    }


def name_of_images(method: str, formula: str) -> str:
    """Name of the array with the IoU of single images by a CAM method."""
    return f"iou, {method}, {formula}"


def iou_of_images(
    maps: Tensor, inside: Tensor, threshold: float
) -> NDArray[np.float16]:
    """IoU of each map (N, h, w) in [0, 1] with its boxes (N, S, S) bool: (N,) float16.

    NaN where an image has no box, or a map is not finite.
    """
    (iou,) = overlap.overlaps(maps, inside, [threshold]).cpu()
    iou[~inside.flatten(1).any(1)] = torch.nan
    return iou.numpy().astype(np.float16)


def overlap_rows(
    maps: Tensor,
    inside: Tensor,
    right: Tensor,
    thresholds: Sequence[float],
    **keys: str | int,
) -> pd.DataFrame:
    """IoU by threshold, averaged over all images with an annotation, those of them classified right (N,) bool, and the others."""
    found = overlap.overlaps(maps, inside, thresholds).cpu().double()
    found[:, ~inside.flatten(1).any(1)] = torch.nan
    tables = []
    for subset, chosen in (
        (ALL_IMAGES, torch.ones_like(right)),
        (RIGHT, right),
        (WRONG, ~right),
    ):
        values = found[:, chosen]
        n = values.isfinite().sum(1)
        values = {
            "threshold": thresholds,
            "subset": subset,
            "n": n.numpy(),
            "iou": (values.nansum(1) / n).numpy(),
        }
        tables.append(pd.DataFrame(keys | values))
    return pd.concat(tables, ignore_index=True)[[*KEYS, "n", "iou"]]


def corrected_row(
    maps: Tensor, given: Given, threshold: float, **keys: str | int
) -> pd.DataFrame:
    """Means of the localization measures from which chance is taken off (``chance.CORRECTED``)."""
    single = attributions.above_chance(maps, given.images, threshold, given.device)
    return pd.DataFrame([keys | {"n": len(single)} | single.mean().to_dict()])


@torch.no_grad()
def sampled_scores(given: Given, settings: AblationSettings) -> dict[str, Any]:
    """Tables "scores" and "corrected" of what needs gradients or noise at the last stage, of every layer, and of other image sizes."""
    closed, size = closed_form(given), given.images.images.shape[-1]
    right = closed.predicted.cpu() == given.images.labels
    boxes = overlap.box_masks(given.images.boxes, size)
    scores, corrected, single = [], [], {}
    for keys, maps_of in _jobs(given, closed.stage, settings, size):
        batches = zip(given.batches(), closed.predicted.split(_BATCH), strict=True)
        made = [
            maps_of(pixels, classes, settings.seed + number)
            for number, (pixels, classes) in enumerate(batches)
        ]
        maps = normalise_maps(torch.cat(made))
        scores.append(overlap_rows(maps, boxes, right, settings.thresholds, **keys))
        corrected.append(corrected_row(maps, given, settings.threshold, **keys))
        if keys["layer"] == closed.stage.name and keys["image_size"] == size:
            name = name_of_images(keys["method"], keys["formula"])
            single[name] = iou_of_images(maps, boxes, settings.threshold)
    return single | {
        "scores": pd.concat(scores, ignore_index=True),
        "corrected": pd.concat(corrected, ignore_index=True),
    }


def _jobs(
    given: Given, stage: Stage, settings: AblationSettings, size: int
) -> Iterator[tuple[dict[str, Any], Callable[..., Tensor]]]:
    """Keys of rows, and what computes their maps (B, h, w) of (B, 3, S, S) pixels, (B,) classes and a seed."""
    keys = {
        "formula": CORRECT,
        "layer": stage.name,
        "class_used": PREDICTED,
        "annotation": BOXES,
        "image_size": size,
    }
    for method in settings.methods:
        used = NO_CLASS if method == "eigen_cam" else PREDICTED
        yield (
            keys | {"method": method, "class_used": used},
            partial(_by_gradient, given, stage.layer, method, settings.noise),
        )
        if method.endswith("plus_plus"):  # what torchcam computes otherwise
            compatible = {**settings.noise} | {"torchcam_compat": True}
            yield (
                keys | {"method": method, "formula": TORCHCAM},
                partial(_by_gradient, given, stage.layer, method, compatible),
            )
    layers = hooks.stage_layers(given.network, given.input(given.images.images[:1]))
    for (name, layer), method in product(layers.items(), LAYER_METHODS):
        yield (
            keys | {"method": method, "layer": name},
            partial(_by_gradient, given, layer, method, settings.noise),
        )
    for side in dict.fromkeys(max(8, round(scale * size)) for scale in settings.scales):
        if side != size:
            yield (
                keys | {"method": "grad_cam", "image_size": side},
                partial(_at_size, given, stage, side),
            )


def _by_gradient(
    given: Given,
    layer: nn.Module,
    method: str,
    options: Mapping[str, Any],
    pixels: Tensor,
    classes: Tensor,
    seed: int,
) -> Tensor:
    return layer_maps(
        method, given.network, layer, given.input(pixels), classes, seed=seed, **options
    )


def _at_size(
    given: Given, stage: Stage, side: int, pixels: Tensor, classes: Tensor, seed: int
) -> Tensor:
    """Grad-CAM of images of another size, for the class that is predicted at that size."""
    resized = F.interpolate(
        pixels, size=(side, side), mode="bilinear", antialias=True, align_corners=False
    )
    features, logits = hooks.features_and_logits(
        given.network, stage.layer, given.input(resized)
    )
    return closed_form_cam(
        "grad_cam", features, stage.classifier.weight, logits.argmax(1)
    )


def untrained_models(
    catalogue: pd.DataFrame, classes: int, count: int, seed: int
) -> list[Model]:
    """Networks with the initial weights of a seed, so many of every architecture of a catalogue, in its form; Du et al. take 50."""
    forms = (
        catalogue[["architecture", "stem", "width", "last_stride"]]
        .drop_duplicates("architecture")
        .to_dict("records")
    )
    found = []
    for form, number in product(forms, range(seed, seed + count)):
        load = partial(
            _untrained, partial(resnet.build, classes=classes, **form, seed=number)
        )
        facts = {"architecture": form["architecture"], "seed": number}
        found.append(
            Model(f"{'-'.join(map(str, form.values()))}-{number}", load, facts)
        )
    return found


def _untrained(build: Callable[[], nn.Module], device: torch.device | str) -> nn.Module:
    return build().to(device, memory_format=torch.channels_last).eval()


def untrained_scores(
    model: Model,
    data: Any,
    parts: Sequence[str],
    *,
    images: int,
    threshold: float,
    seed: int,
    scored_on: ScoringSet,
    device: str,
) -> dict[str, dict[str, pd.DataFrame]]:
    """Accuracies, gap and overlap of a network that learnt nothing; Du et al. 2024, Table 5. The seed chooses test images, 0 takes all."""
    given = Given(
        model.load(device), scored_on.of(data), model.normalise, device
    ).first(images)
    chosen = np.sort(
        np.random.default_rng(seed).permutation(len(data.test))[: images or None]
    )
    train, test, found = given.images, data.test.subset(chosen), closed_form(given)
    right = found.predicted.cpu() == train.labels
    row = dict(model.facts) | {
        "train_accuracy": float(right.double().mean()),
        "train_images": len(train),
    }
    maps = found.maps[(*CLOSED_FORMS[0], PREDICTED)]
    (iou,) = overlap.overlaps(
        maps, overlap.box_masks(train.boxes, train.images.shape[-1]), [threshold]
    )
    row |= {"iou": float(iou.double().nanmean())} | attributions.above_chance(
        maps, train, threshold, device
    ).mean().to_dict()
    right = (
        logits_of(given.network, test.images, device, given.normalise).argmax(1)
        == test.labels
    )
    row |= {"test_accuracy": float(right.double().mean()), "test_images": len(test)}
    table = pd.DataFrame([row]).eval("gap = train_accuracy - test_accuracy")
    return {part: {"scores": table} for part in parts}

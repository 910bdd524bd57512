"""Where networks look, by us and by the libraries a user would pick instead, beside the bare forward pass that nobody can avoid.

Install the rivals where they are wanted: pip install torchcam grad-cam. Those that are missing are named and left out.
"""

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import interleaved
from helpers.ablations.compute import CLOSED_FORMS, closed_form_maps
from helpers.cams import chance, overlap
from helpers.cams.closed_form import closed_form_cam, lowest_of, normalise_maps
from helpers.cams.overlap import annotated, overlaps
from helpers.data import synthetic
from helpers.data.dataset import ImageSet
from helpers.measures import evidence, prediction, registry
from helpers.networks import hooks, resnet

THRESHOLDS = tuple(number / 21 for number in range(1, 21))
CLASSES = 20


def images_of(count: int, size: int) -> ImageSet:
    """Render scenes with boxes."""
    pixels, labels, boxes = synthetic.scenes(len(synthetic.CLASS_NAMES), -(-count // len(synthetic.CLASS_NAMES)), size, 0, "train")
    chosen = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:count]
    tensors = [torch.as_tensor(values)[chosen] for values in (pixels, labels, boxes)]
    return ImageSet(tensors[0], tensors[1].long(), tensors[2].to(torch.int16), tuple(map(str, range(count))))


def in_batches(images: ImageSet, size: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Normalised images, channels last, and boxes, ready on the device: what every rival and the limit are given."""
    starts = range(0, len(images), size)
    given = [(images.images[start : start + size], images.boxes[start : start + size]) for start in starts]
    return [(hooks.prepared(pixels, resnet.normalise_images, device), boxes.to(device)) for pixels, boxes in given]


@torch.inference_mode()
def bare(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The limit: the forward pass alone, on images that lie ready."""
    for pixels, _ in batches:
        network(pixels)


@torch.inference_mode()
def closed_form(network: nn.Module, images: ImageSet, batch: int, device: str) -> Tensor:
    """Ours, IoU and IoU-B at one threshold, from uint8 images."""
    layer, scores = network.get_submodule(resnet.CAM_LAYER), []
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        features, logits = hooks.features_and_logits(network, layer, hooks.prepared(images.images[part], resnet.normalise_images, device))
        maps = normalise_maps(closed_form_cam("grad_cam", features, network.fc.weight, logits.argmax(1)))
        scores.append(torch.stack(overlap.iou_and_iou_b(maps, images.boxes[part].to(device), side(images))))
    return torch.cat(scores, 1)


def side(images: ImageSet) -> int:
    """Give the side of the images, pixels."""
    return images.images.shape[-1]


@torch.inference_mode()
def everything(network: nn.Module, images: ImageSet, batch: int, device: str) -> Tensor:
    """Ours, all of one pass: logits, features, every closed-form CAM, IoU and IoU-B at 20 thresholds, chance, and measures of logits."""
    layer, scores, logits, pooled, maps, lowest = network.get_submodule(resnet.CAM_LAYER), [], [], [], [], []
    for start in range(0, len(images), batch):
        part = slice(start, start + batch)
        features, out = hooks.features_and_logits(network, layer, hooks.prepared(images.images[part], resnet.normalise_images, device))
        annotation = annotated(overlap.box_masks(images.boxes[part].to(device), side(images)))
        found = [closed_form_maps(*form, features, network.fc.weight, out.argmax(1)) for form in CLOSED_FORMS]
        scores.append(torch.stack([torch.stack(overlaps(each, annotation, THRESHOLDS)) for each in found]).cpu())
        maps.append(found[0])
        lowest.append(lowest_of(closed_form_cam("grad_cam", features, network.fc.weight, out.argmax(1))))
        logits.append(out.cpu())
        pooled.append(features.mean((2, 3)).cpu())
    from_logits(torch.cat(logits), images.labels)
    chance.chance_scores(torch.cat(maps), torch.cat(lowest), images.boxes, side(images), device=device)
    return torch.cat(scores, 3)


def from_logits(logits: Tensor, labels: Tensor) -> list[Any]:
    """Accuracy, loss, margins, entropy and nuclear norm."""
    probabilities, margins = logits.double().softmax(1), prediction.margins(logits, labels)
    of = prediction
    return [
        of.clean_accuracy(logits, labels),
        of.training_loss(logits, labels),
        of.output_margin(margins),
        of.nuclear_norm(probabilities),
        of.prediction_entropy(probabilities),
    ]


def score_families(network: nn.Module, images: ImageSet, batch: int, device: str) -> Any:
    """Ours, as notebooks call it: every measure of the families localization and prediction, Effective Invariance among them."""
    given = {"network": network, "images": images, "normalise": resnet.normalise_images, "device": device}
    return evidence.score(registry.of_families(["localization", "prediction"]), given, evidence.MeasureSettings(batch_size=batch))


def by_gradient(network: nn.Module, batches: list[tuple[Tensor, Tensor]], size: int, maps_of: Callable[[Tensor], Tensor]) -> None:
    """A rival: its maps, then the same normalisation, enlargement and overlap as ours."""
    for pixels, boxes in batches:
        overlap.iou_and_iou_b(normalise_maps(maps_of(pixels)), boxes, size)


def captum_maps(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """Captum's LayerGradCam, one pass for the class and one for the map, as its users write it."""
    from captum.attr import LayerGradCam

    attribution = LayerGradCam(network, network.get_submodule(resnet.CAM_LAYER))

    def maps(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            classes = network(pixels).argmax(1)
        return attribution.attribute(pixels, target=classes, relu_attributions=True).squeeze(1).detach()

    return maps


def torchcam_maps(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """torchcam's GradCAM, whose hooks are there only while it runs, so that no other way pays for them."""
    from torchcam.methods import GradCAM

    def maps(pixels: Tensor) -> Tensor:
        with GradCAM(network, target_layer=resnet.CAM_LAYER) as extractor:
            logits = network(pixels)
            return extractor(logits.argmax(1).tolist(), logits, normalized=False)[0].detach()

    return maps


def grad_cam_maps(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """pytorch-grad-cam, which returns maps at the size of the images."""
    from pytorch_grad_cam import GradCAM

    def maps(pixels: Tensor) -> Tensor:
        with GradCAM(model=network, target_layers=[network.get_submodule(resnet.CAM_LAYER)]) as cam:
            return torch.from_numpy(cam(input_tensor=pixels, targets=None)).to(pixels.device)

    return maps


RIVALS = {"Captum LayerGradCam": captum_maps, "torchcam": torchcam_maps, "pytorch-grad-cam": grad_cam_maps}


def rivals(network: nn.Module, batches: list[tuple[Tensor, Tensor]], single: list, size: int) -> dict[str, Callable[[], None]]:
    """Make the rivals that are installed, and say which are not."""
    ways = {}
    for name, make in RIVALS.items():
        try:
            maps_of = make(network)
            maps_of(batches[0][0][:1])
        except ImportError as fault:
            print(f"- {name} is not installed and left out ({fault})")
            continue
        ways[f"{name}, batched"] = partial(by_gradient, network, batches, size, maps_of)
        if name == "torchcam":
            ways[f"{name}, one image at a time"] = partial(by_gradient, network, single, size, maps_of)
    return ways


def main() -> None:
    """Time everything for one architecture after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    gpu = torch.cuda.is_available()
    parser.add_argument("--architectures", nargs="+", default=["resnet18", "resnet50"], choices=resnet.ARCHITECTURES)
    parser.add_argument("--images", type=int, default=2048 if gpu else 64)
    parser.add_argument("--batch", type=int, default=256 if gpu else 32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    interleaved.print_machine("captum", "torchcam", "grad-cam")
    images = images_of(given.images, given.size)
    for architecture in given.architectures:
        network = resnet.build(architecture, CLASSES, seed=0).eval().to(given.device, memory_format=torch.channels_last)
        compare(network, images, given, architecture)


def compare(network: nn.Module, images: ImageSet, given: argparse.Namespace, title: str) -> None:
    """Print three tables for one network: IoU beside the rivals, everything of a pass, and Effective Invariance with its four passes."""
    batches, single = in_batches(images, given.batch, given.device), in_batches(images, 1, given.device)
    ours = (network, images, given.batch, given.device)
    limit = {"bare forward pass (the limit)": partial(bare, network, batches)}
    four = {"four bare passes (the limit)": partial(four_passes, network, batches)}
    tables = {
        "IoU and IoU-B": limit | {"ours, closed form": partial(closed_form, *ours)} | rivals(network, batches, single, given.size),
        "Everything of one pass": limit | {"ours": partial(everything, *ours)},
        "Localization and prediction, with Effective Invariance": four | {"ours": partial(score_families, *ours)},
    }
    for name, ways in tables.items():
        table = interleaved.compared(interleaved.rounds(ways, given.rounds), next(iter(ways)), len(images), "images")
        interleaved.show(f"{name}, {title}, {given.size} px, {len(images)} images, batch {given.batch}", table)


def four_passes(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The limit of Effective Invariance: the images as they are and turned three times."""
    for _ in range(4):
        bare(network, batches)


if __name__ == "__main__":
    main()

"""Where networks look, by us and by the libraries a user would pick instead, beside the bare forward pass, eager, in float32.

Other limits stand beside it: the pass through the copy with folded batch norms, and both in bfloat16. Rivals are given each precision.

Install the rivals where they are wanted: pip install torchcam grad-cam. Those that are missing are named and left out.
"""

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import interleaved
from helpers.cams import localize
from helpers.cams.maps import closed_form_cam, normalise_maps
from helpers.choices.compute import CLOSED_FORMS, TORCHCAM
from helpers.data import synthetic
from helpers.data.images import ImageSet, box_masks, image_set
from helpers.measures import evidence, passes, registry
from helpers.measures.norms import fused_network
from helpers.networks import hooks, resnet
from helpers.training.config import PRECISIONS

THRESHOLDS = tuple(number / 21 for number in range(1, 21))
CLASSES = 20


def images_of(count: int, size: int) -> ImageSet:
    """Render scenes with boxes."""
    classes = len(synthetic.CLASS_IDS)
    scenes = synthetic.scenes("train", -(-count // classes), size, 0)
    label = np.repeat(np.arange(classes), len(scenes) // classes)
    order = torch.randperm(len(scenes), generator=torch.Generator().manual_seed(0))
    chosen = scenes.assign(label=label, name=scenes.index.astype(str))
    return image_set(chosen.iloc[order[:count].numpy()])


def in_batches(images: ImageSet, size: int, device: str) -> list[tuple[Tensor, Tensor]]:
    """Normalised images, channels last, and boxes, ready on the device: what every rival and the limit are given."""
    starts = range(0, len(images), size)
    given = [
        (images.images[start : start + size], images.boxes[start : start + size])
        for start in starts
    ]
    return [
        (hooks.prepared(pixels, resnet.normalise_images, device), boxes.to(device))
        for pixels, boxes in given
    ]


class Ours(NamedTuple):
    """What our ways are given."""

    network: nn.Module
    images: ImageSet
    batch: int
    device: str
    precision: str = "float32"
    folded: nn.Module | None = (
        None  # the network's copy with folded batch norms; it is made where there is none
    )

    def pass_through(self) -> nn.Module:
        """What images pass through."""
        return self.folded or fused_network(self.network)

    def passed(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Each batch with its maps and logits, from uint8 images, as scoring makes them."""
        network = self.pass_through()
        last_block = (
            len(self.network.layer4) - 1
        )  # its last call of ReLU gives the maps
        layer = network.get_submodule(f"layer4.{last_block}.relu")
        for start in range(0, len(self.images), self.batch):
            part = slice(start, start + self.batch)
            pixels = hooks.prepared(
                self.images.images[part], resnet.normalise_images, self.device
            )
            with torch.autocast(
                pixels.device.type,
                dtype=torch.bfloat16,
                enabled=self.precision == "bfloat16",
            ):
                maps, logits = hooks.features_and_logits(network, layer, pixels)
            yield part, maps.float(), logits.float()


@torch.inference_mode()
def bare(
    network: nn.Module, batches: list[tuple[Tensor, Tensor]], precision: str = "float32"
) -> None:
    """The limit: the forward pass alone, on images that lie ready."""
    for pixels, _ in batches:
        with torch.autocast(
            pixels.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"
        ):
            network(pixels)


@torch.inference_mode()
def closed_form(*given: Any) -> Tensor:
    """Ours, IoU and IoU-B at one threshold, from uint8 images; ``given`` are the fields of ``Ours``."""
    ours, scores = Ours(*given), []
    for part, features, logits in ours.passed():
        maps = normalise_maps(
            closed_form_cam(
                "grad_cam", features, ours.network.fc.weight, logits.argmax(1)
            )
        )
        scores.append(
            iou_and_iou_b(
                maps, ours.images.boxes[part].to(ours.device), side(ours.images)
            )
        )
    return torch.cat(scores, 1)


def iou_and_iou_b(maps: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Overlap of the masks of maps, and of the rectangles around them, with the boxes: (2, B)."""
    masks, annotated = (
        localize.upsample(maps, size) >= 0.1,
        box_masks(boxes, size),
    )
    around = box_masks(localize.bounding_rectangles(masks).unsqueeze(1), size)
    return torch.stack([localize.mask_iou(part, annotated) for part in (masks, around)])


def side(images: ImageSet) -> int:
    """Give the side of the images, pixels."""
    return images.images.shape[-1]


@torch.inference_mode()
def everything(*given: Any) -> tuple[Tensor, Any]:
    """Ours, all of one pass: every closed-form CAM's IoU at 20 thresholds, and the measures and values of single images that notebooks keep.

    These are of the families localization, with boxes of other images, and prediction, but for Effective Invariance, which turns the
    images, and of unlabelled images those that need their logits alone. ``given`` are the fields of ``Ours``.
    """
    ours = Ours(*given)
    ours = ours._replace(folded=ours.pass_through())
    logits, maps, weight = [], [], ours.network.fc.weight
    for _, features, out in ours.passed():
        found = [
            normalise_maps(
                closed_form_cam(
                    method, features, weight, out.argmax(1), formula == TORCHCAM
                )
            )
            for method, formula in CLOSED_FORMS
        ]
        logits.append(out)
        maps.append(torch.stack(found))
    of_forms = torch.cat(maps, 1)
    masks = box_masks(ours.images.boxes.to(ours.device), side(ours.images))
    scores = [localize.iou_at(each, masks, THRESHOLDS)[..., 0] for each in of_forms]
    seen = passes.Pass(torch.cat(logits).cpu(), of_forms[0].cpu())
    known = given_of(ours) | {"forward_pass": seen, "target_logits": seen.logits}
    return torch.stack(scores).cpu(), evidence.score(
        of_one_pass(), known, evidence.MeasureSettings(), ["recorded_maps"]
    )


def of_one_pass() -> list[registry.Measure]:
    """Measures that one pass over the images is enough for."""
    own = registry.measures_of_families(["localization", "prediction"])
    target = [
        item
        for item in registry.measures_of_families(["unlabelled"])
        if set(registry.needs(item.function)) <= {"target", "temperature"}
    ]
    further = ("effective_invariance", "hidden_margin")
    return [item for item in own if item.name not in further] + target


def given_of(ours: Ours) -> dict[str, Any]:
    """What measures are given."""
    normalise = resnet.normalise_images
    through = ours.pass_through()
    return {
        "network": ours.network,
        "classifier": passes.Classifier(through, normalise, ours.device, ours.batch),
        "images": ours.images,
        "device": ours.device,
    }


def score_families(*given: Any) -> Any:
    """Ours, as notebooks call it: every measure of the families localization and prediction, Effective Invariance among them."""
    ours = Ours(*given)
    return evidence.score(
        registry.measures_of_families(["localization", "prediction"]),
        given_of(ours),
        evidence.MeasureSettings(),
    )[0]


def by_gradient(
    batches: list[tuple[Tensor, Tensor]],
    size: int,
    maps_of: Callable[[Tensor], Tensor],
    precision: str,
) -> None:
    """A rival: its maps, in float32 or under autocast, then the same normalisation, enlargement and overlap as ours."""
    for pixels, boxes in batches:
        with torch.autocast(
            pixels.device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16"
        ):
            maps = maps_of(pixels).float()
        iou_and_iou_b(normalise_maps(maps), boxes, size)


def captum_maps(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """Captum's LayerGradCam, one pass for the class and one for the map, as its users write it."""
    from captum.attr import LayerGradCam

    attribution = LayerGradCam(network, network.get_submodule("layer4"))

    def maps(pixels: Tensor) -> Tensor:
        with torch.no_grad():
            classes = network(pixels).argmax(1)
        return (
            attribution.attribute(pixels, target=classes, relu_attributions=True)
            .squeeze(1)
            .detach()
        )

    return maps


def torchcam_maps(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """torchcam's GradCAM, whose hooks are there only while it runs, so that no other way pays for them."""
    from torchcam.methods import GradCAM

    def maps(pixels: Tensor) -> Tensor:
        with GradCAM(network, target_layer="layer4") as extractor:
            logits = network(pixels)
            return extractor(logits.argmax(1).tolist(), logits, normalized=False)[
                0
            ].detach()

    return maps


def grad_cam_maps(network: nn.Module) -> Callable[[Tensor], Tensor]:
    """pytorch-grad-cam, which returns maps at the size of the images."""
    from pytorch_grad_cam import GradCAM

    def maps(pixels: Tensor) -> Tensor:
        with GradCAM(
            model=network, target_layers=[network.get_submodule("layer4")]
        ) as cam:
            return torch.from_numpy(cam(input_tensor=pixels, targets=None)).to(
                pixels.device
            )

    return maps


RIVALS = {
    "Captum LayerGradCam": captum_maps,
    "torchcam": torchcam_maps,
    "pytorch-grad-cam": grad_cam_maps,
}


def rivals(
    network: nn.Module, batches: list[tuple[Tensor, Tensor]], single: list, size: int
) -> dict[str, Callable[[], None]]:
    """Make the rivals that are installed, in each precision that they can, and say which are left out."""
    ways = {}
    for name, make in RIVALS.items():
        for precision in PRECISIONS:
            try:
                maps_of = make(network)
                by_gradient(batches[:1], size, maps_of, precision)
            except (ImportError, TypeError, RuntimeError) as fault:
                print(
                    f"- {name} is left out in {precision} ({type(fault).__name__}: {str(fault).splitlines()[0]})"
                )
                continue
            ways[f"{name}, batched, {precision}"] = partial(
                by_gradient, batches, size, maps_of, precision
            )
            if name == "torchcam" and precision == "float32":
                ways[f"{name}, one image at a time"] = partial(
                    by_gradient, single, size, maps_of, precision
                )
    return ways


def main() -> None:
    """Time everything for one architecture after another."""
    parser = argparse.ArgumentParser(description=__doc__)
    gpu = torch.cuda.is_available()
    parser.add_argument(
        "--architectures",
        nargs="+",
        default=["resnet18", "resnet50"],
        choices=resnet.ARCHITECTURES,
    )
    parser.add_argument("--images", type=int, default=2048 if gpu else 64)
    parser.add_argument("--batch", type=int, default=256 if gpu else 32)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--tables", nargs="*", help="names of tables; all where none is given"
    )
    parser.add_argument("--device", default="cuda" if gpu else "cpu")
    given = parser.parse_args()
    warnings.filterwarnings("ignore", category=UserWarning)
    interleaved.print_machine("captum", "torchcam", "grad-cam")
    images = images_of(given.images, given.size)
    for architecture in given.architectures:
        network = (
            resnet.build(architecture, CLASSES, seed=0)
            .eval()
            .to(given.device, memory_format=torch.channels_last)
        )
        compare(network, images, given, architecture)


def compare(
    network: nn.Module, images: ImageSet, given: argparse.Namespace, title: str
) -> None:
    """Print three tables for one network: IoU beside the rivals, everything of a pass, and Effective Invariance with its four passes."""
    batches, single = (
        in_batches(images, given.batch, given.device),
        in_batches(images, 1, given.device),
    )
    folded = fused_network(network)
    took = interleaved.spent(lambda: fused_network(network))
    print(
        f"- folding the batch norms of {title}, once per network: {took.cpu:.2f} s of processor time, in no row"
    )
    ours = {
        name: Ours(network, images, given.batch, given.device, name, folded)
        for name in PRECISIONS
    }
    places = {"eager": network, "batch norms folded": folded}
    limits = {
        f"bare pass, {place}, {name}": partial(bare, made, batches, name)
        for name in PRECISIONS
        for place, made in places.items()
    }
    four = {"four bare passes, eager, float32": partial(four_passes, network, batches)}
    tables = {
        "IoU and IoU-B": limits
        | of_each(closed_form, ours)
        | rivals(network, batches, single, given.size),
        "Everything of one pass": limits | of_each(everything, ours),
        "Localization and prediction, with Effective Invariance": four
        | of_each(score_families, ours),
    }
    for name in given.tables or tables:
        ways = tables[name]
        table = interleaved.compared(
            interleaved.rounds(ways, given.rounds),
            next(iter(ways)),
            len(images),
            "images",
        )
        interleaved.show(
            f"{name}, {title}, {given.size} px, {len(images)} images, batch {given.batch}",
            table,
        )


def of_each(
    way: Callable[..., Any], ours: Mapping[str, Ours]
) -> dict[str, Callable[[], Any]]:
    """One of our ways in each precision."""
    return {f"ours, {name}": partial(way, *item) for name, item in ours.items()}


def four_passes(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    """The limit of Effective Invariance: the images as they are and turned three times."""
    for _ in range(4):
        bare(network, batches)


if __name__ == "__main__":
    main()

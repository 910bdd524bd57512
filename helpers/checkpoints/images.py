"""Images of a folder as a network of any size takes them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import confusion_matrix
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torchvision.transforms.functional import normalize

from helpers.data import layouts
from helpers.data.annotations import Record
from helpers.data.decode import decode_all
from helpers.data.images import ImageSet, image_set
from helpers.data.sources import Source
from helpers.networks.hooks import prepared
from helpers.scores.scoring_set import classes_in_turn

MOST_IMAGES = 1000  # that are scored, as in the studies
SIDES = (32, 64, 96, 128, 160, 224)  # usual sizes in training, pixels
Channels = Sequence[float]  # red, green and blue in [0, 1]
# Usual normalisations, the mean and standard deviation: ImageNet's, -1 to 1, 0 to 1.
NORMALISATIONS: tuple[tuple[Channels, Channels], ...] = (
    ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
)
_COMPARED_IMAGES = 100  # on which sizes and normalisations are compared


class Preparation(NamedTuple):
    """How images become the input of a network."""

    side: int  # of the squares, pixels
    mean: Channels
    std: Channels

    def normalise(self, pixels: Tensor) -> Tensor:
        """Turn pixels into input, ``(x / 255 - mean) / std``.

        Args:
            pixels: (B, 3, S, S) uint8.
        """
        return normalize(pixels.float() / 255, list(self.mean), list(self.std))

    def __str__(self) -> str:
        """Size and normalisation in words."""
        return f"{self.side} px, mean {self.mean[0]:.3g}, std {self.std[0]:.3g}"


class Pictures:
    """Images of a folder or .zip, the same ones at any size.

    Attributes:
        classes: ids in the order of the outputs.
        class_images: images of a class in the folder, on average.
    """

    def __init__(
        self, source: Source, records: Sequence[Record], classes: Sequence[str]
    ) -> None:
        """Choose at random equally many images of each class.

        Args:
            source: of the images.
            records: of images of these classes.
            classes: ids in the order of the outputs.
        """
        self._source = source
        self._sets: dict[int, ImageSet] = {}
        self.classes = tuple(classes)
        self.class_images = len(records) / len(classes)
        labels = [self.classes.index(item.class_id) for item in records]
        shuffled = np.random.default_rng(0).permutation(len(records))
        in_turn = shuffled[classes_in_turn(np.array(labels)[shuffled])]
        self._records = [records[row] for row in in_turn[:MOST_IMAGES]]

    @classmethod
    def of_classes(cls, source: Source, classes: Sequence[str] = ()) -> "Pictures":
        """Training images with classes, in a layout of docs/images.md.

        Args:
            source: of the images.
            classes: ids in the order of the outputs; empty for all, sorted.

        Raises:
            ValueError: if there are fewer than two classes.
        """
        listing = layouts.scan(source, layouts.RECOGNISED)
        classes = classes or listing.classes
        usable = [
            item
            for item in listing.records
            if item.class_id in classes and item.split == "train"
        ]
        present = {item.class_id for item in usable}
        missing = [name for name in classes if name not in present]
        if missing or len(present) < 2:
            raise ValueError(
                f"{source.root} has images of {len(present)} of {len(classes)} classes "
                f"(missing: {', '.join(missing[:5]) or 'none'}); at least two are "
                "needed, and all that --classes names"
            )
        return cls(source, usable, classes)

    @classmethod
    def without_classes(cls, source: Source) -> "Pictures":
        """All images of a folder, as of one class without a name.

        Args:
            source: of the images.
        """
        return cls(source, [Record(name, "", "test") for name in source.images], [""])

    def at(self, side: int) -> ImageSet:
        """The images as squares.

        Args:
            side: pixels.

        Raises:
            ValueError: if no image can be decoded.
        """
        if side not in self._sets:
            decoded = decode_all(self._source, self._records, side)
            usable = [item for item in decoded if item.pixels is not None]
            if not usable:
                raise ValueError(f"no image of {self._source.root} can be decoded")
            labels = [self.classes.index(item.record.class_id) for item in usable]
            self._sets[side] = image_set(usable, labels)
        return self._sets[side]


@torch.inference_mode()
def logits_of(
    network: nn.Module, images: Tensor, preparation: Preparation, device: str
) -> Tensor:
    """Logits (N, K) of uint8 images (N, 3, S, S), on the CPU.

    Args:
        network: on the device, in evaluation mode, with (B, K) outputs.
        images: of the size of the preparation.
        preparation: of which the normalisation is used.
        device: of the network.
    """
    outputs = [
        network(prepared(pixels, preparation.normalise, device)).float().cpu()
        for pixels in images.split(64)
    ]
    return torch.cat(outputs)


def best_order(
    predicted: NDArray[np.int64], labels: NDArray[np.int64]
) -> tuple[float, NDArray[np.int64]]:
    """The order of the classes in which most predictions are right.

    It is fitted to the first half of the images and tried on the second, since with few
    images of a class some order always fits.

    Args:
        predicted: (N,) output of each image.
        labels: (N,) class numbers.

    Returns:
        The share of the second half that is right, and the output of each class.
    """
    half = len(labels) // 2
    classes = np.arange(max(labels.max(), predicted.max()) + 1)
    confusion = confusion_matrix(labels[:half], predicted[:half], labels=classes)
    _, outputs = linear_sum_assignment(confusion, maximize=True)
    return float((outputs[labels] == predicted)[half:].mean()), outputs


def choose_preparation(
    network: nn.Module,
    pictures: Pictures,
    sides: Sequence[int],
    normalisations: Sequence[tuple[Channels, Channels]],
    device: str,
) -> Preparation:
    """The size, and then the normalisation, with the highest training accuracy.

    That in another order of the classes counts where it is higher, since the order that
    is given may be wrong. Among equal accuracies the smallest loss decides.

    Args:
        network: on the device, in evaluation mode, with logits as output.
        pictures: its training images.
        sides: to compare, pixels.
        normalisations: to compare; sizes are compared with the first.
        device: of the network.

    Raises:
        ValueError: if the network takes none of the sizes.
    """

    def fit(preparation: Preparation) -> tuple[float, float]:
        images = pictures.at(preparation.side)
        images = images.subset(range(min(_COMPARED_IMAGES, len(images))))
        logits = logits_of(network, images.images, preparation, device)
        predicted, labels = logits.argmax(1).numpy(), images.labels.numpy()
        accuracy = max((predicted == labels).mean(), best_order(predicted, labels)[0])
        return accuracy, -float(cross_entropy(logits, images.labels))

    fits = {}
    for side in sides:
        preparation = Preparation(side, *normalisations[0])
        try:
            fits[preparation] = fit(preparation)
        except torch.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError, ValueError) as error:
            fault = f"{side} px: {error}"
    if not fits:
        raise ValueError(f"the network takes none of these sizes ({fault})")
    side = max(fits, key=fits.__getitem__).side
    return max((Preparation(side, *one) for one in normalisations), key=fit)

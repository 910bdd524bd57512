"""The embedded data: rendered scenes with one object of the class and its exact box.

The background may give the class away.
"""

from collections.abc import Callable

import numpy as np

# Each shape on object coordinates u, v in [-1, 1] (u to the right, v down).
_SHAPES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "disc": lambda u, v: u**2 + v**2 < 1,
    "square": lambda u, v: np.maximum(abs(u), abs(v)) < 0.85,
    "triangle": lambda u, v: (v < 0.8) & (v > 2 * abs(u) - 0.95),
    "cross": lambda u, v: (
        (np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 0.95)
    ),
    "ring": lambda u, v: abs(np.hypot(u, v) - 0.72) < 0.25,
    "star": lambda u, v: np.hypot(u, v) < 0.62 + 0.36 * np.cos(5 * np.arctan2(u, -v)),
    "hourglass": lambda u, v: (abs(u) < abs(v) * 0.9 + 0.08) & (abs(v) < 0.9),
    "crescent": lambda u, v: (u**2 + v**2 < 1) & ((u - 0.5) ** 2 + v**2 > 0.6),
    "frame": lambda u, v: abs(np.maximum(abs(u), abs(v)) - 0.68) < 0.2,
    # Three bars, so that each is still more than a pixel wide when the object is small.
    "bars": lambda u, v: (
        (np.maximum(abs(u), abs(v)) < 0.9) & (np.cos(3.2 * np.pi * u) > -0.2)
    ),
    "corner": lambda u, v: (
        (np.maximum(abs(u), abs(v)) < 0.9) & ((u < -0.3) | (v > 0.3))
    ),
    "checker": lambda u, v: (
        (np.maximum(abs(u), abs(v)) < 0.9) & (np.sign(u) * np.sign(v) > 0)
    ),
}

CLASS_NAMES = tuple(_SHAPES)
_SPLITS = ("train", "test")


def scenes(
    classes: int,
    per_class: int,
    size: int,
    seed: int,
    split: str,
    background_cue: float = 0.5,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Render scenes, class by class.

    Image i of a class is the same however many are asked for. The background may carry
    stripes whose direction belongs to a class: in the training split to the image's
    class, in the test split to a random one, so that a network which looks beside the
    object pays for it on unseen images. Of the object, which is lighter than any
    background, only the shape says anything of the class.

    Args:
        classes: their number, at most that of ``CLASS_NAMES``.
        per_class: images of each.
        size: side, pixels; from 16 on all classes show.
        seed: of all draws.
        split: "train" or "test".
        background_cue: probability of stripes.

    Returns:
        Images (N, 3, size, size) uint8 RGB; labels (N,) int64; boxes (N, 1, 4) int16,
        half-open x0, y0, x1, y1, tight around the object.

    Example:
        >>> images, labels, boxes = scenes(2, 1, 16, seed=0, split="train")
        >>> images.shape, labels, boxes.shape
        ((2, 3, 16, 16), array([0, 1]), (2, 1, 4))
    """
    images = np.empty((classes * per_class, 3, size, size), dtype=np.uint8)
    boxes = np.empty((classes * per_class, 1, 4), dtype=np.int16)
    for label in range(classes):
        for number in range(per_class):
            generator = np.random.default_rng(
                [seed, _SPLITS.index(split), label, number]
            )
            image, mask = _scene(label, size, split, background_cue, generator)
            row = label * per_class + number
            rows = np.flatnonzero(mask.any(1))
            columns = np.flatnonzero(mask.any(0))
            images[row] = image
            boxes[row, 0] = (columns[0], rows[0], columns[-1] + 1, rows[-1] + 1)
    labels = np.repeat(np.arange(classes, dtype=np.int64), per_class)
    return images, labels, boxes


def _scene(
    label: int,
    size: int,
    split: str,
    background_cue: float,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    y, x = np.mgrid[0:size, 0:size] / size
    cue = label if split == "train" else int(generator.integers(len(CLASS_NAMES)))
    image = _background(x, y, generator)
    if generator.random() < background_cue:
        image += _stripes(x, y, np.pi * cue / len(CLASS_NAMES), 9, generator) * 14
    image = _clutter(image, x, y, generator)
    mask = _object_mask(label, x, y, generator)
    image = np.where(mask, _object_colour(x, y, generator), image)
    image = image * generator.uniform(0.75, 1.2) + generator.normal(0, 8, image.shape)
    return image.clip(0, 255).astype(np.uint8), mask


def _background(
    x: np.ndarray, y: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Smooth dark colour: a level and three slow waves a channel, 132 at most."""
    image = generator.uniform(40, 105, (3, 1, 1)) + np.zeros((3, *x.shape))
    for _ in range(3):
        wave = generator.uniform(-7, 7, (2, 3, 1, 1))
        image += generator.uniform(3, 9, (3, 1, 1)) * np.sin(
            wave[0] * x + wave[1] * y + generator.uniform(0, 6.3, (3, 1, 1))
        )
    return image


def _stripes(
    x: np.ndarray,
    y: np.ndarray,
    angle: float,
    frequency: float,
    generator: np.random.Generator,
) -> np.ndarray:
    phase = generator.uniform(0, 2 * np.pi)
    return np.sin(
        2 * np.pi * frequency * (np.cos(angle) * x + np.sin(angle) * y) + phase
    )


def _clutter(
    image: np.ndarray, x: np.ndarray, y: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Lines and blots that are no class."""
    for _ in range(int(generator.integers(2, 6))):
        angle = generator.uniform(0, np.pi)
        offset = generator.uniform(-0.5, 1)
        along = np.cos(angle) * x + np.sin(angle) * y - offset
        across = -np.sin(angle) * x + np.cos(angle) * y
        near = (abs(along) < generator.uniform(0.01, 0.03)) & (
            abs(across - generator.uniform(-0.5, 1)) < 0.15
        )
        image = np.where(near, generator.uniform(0, 255, (3, 1, 1)), image)
    return image


def _object_mask(
    label: int, x: np.ndarray, y: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Place the class's shape, wholly inside.

    About 30 to 65 % of the side, stretched by up to 35 %, turned by up to 20 degrees.
    """
    half = generator.uniform(0.18, 0.33) * np.exp(generator.uniform(-0.15, 0.15, 2))
    angle = generator.uniform(-0.35, 0.35)
    # A turned square of half width 0.9 reaches to 0.9 (cos 0.35 + sin 0.35) = 1.16.
    reach = half.max() * 1.2
    centre = generator.uniform(reach, 1 - reach, 2)
    dx = x - centre[0]
    dy = y - centre[1]
    u = (np.cos(angle) * dx + np.sin(angle) * dy) / half[0]
    v = (-np.sin(angle) * dx + np.cos(angle) * dy) / half[1]
    mask = _SHAPES[CLASS_NAMES[label]](u, v)
    # The shapes live in [-1, 1]; a periodic one must not return outside.
    return mask & (np.maximum(abs(u), abs(v)) <= 1)


def _object_colour(
    x: np.ndarray, y: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Any light colour, plain or textured, above 150 in all channels.

    So it is above the background with its stripes.
    """
    angle = generator.uniform(0, np.pi)
    frequency = generator.uniform(8, 20)
    stripes = _stripes(x, y, angle, frequency, generator)
    texture = stripes * generator.choice([0, 0, 20])
    return generator.uniform(170, 255, (3, 1, 1)) + texture

"""Rendered scenes with one object of a class and its exact box, as a source of images.

The stripes of the background may be a cue for the class.
"""

from collections.abc import Callable

import numpy as np
from numpy import ndarray
from numpy.random import Generator, default_rng

# For each shape, whether it covers the points with object coordinates u (to the right)
# and v (down) in [-1, 1].
_SHAPES: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
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
) -> tuple[ndarray, ndarray, ndarray]:
    """Render scenes, class by class.

    Image i of a class does not depend on how many are rendered. The background may
    have stripes, whose direction stands for a class: in the training split for the
    class of the image, in the test split for a random class. So a network that looks
    at the background instead of the object errs on test images. The object is lighter
    than any background; its class is told by its shape alone.

    Args:
        classes: number of classes, at most that of ``CLASS_NAMES``.
        per_class: number of images per class.
        size: side of the images in pixels; shapes can be told apart from 16 on.
        seed: of all random numbers.
        split: "train" or "test".
        background_cue: probability that the background has stripes.

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
            generator = default_rng([seed, _SPLITS.index(split), label, number])
            image, mask = _scene(label, size, split, background_cue, generator)
            row = label * per_class + number
            v, u = np.nonzero(mask)
            images[row] = image
            boxes[row, 0] = (u.min(), v.min(), u.max() + 1, v.max() + 1)
    labels = np.repeat(np.arange(classes, dtype=np.int64), per_class)
    return images, labels, boxes


def _scene(
    label: int,
    size: int,
    split: str,
    background_cue: float,
    generator: Generator,
) -> tuple[ndarray, ndarray]:
    """Render one image (3, size, size) uint8 and the mask (size, size) of its object.

    Below, x and y are the coordinates (size, size) of the pixels, in [0, 1).
    """
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


def _background(x: ndarray, y: ndarray, generator: Generator) -> ndarray:
    """Smooth dark colours: in each channel a level and three waves, 132 at most."""
    image = generator.uniform(40, 105, (3, 1, 1)) + np.zeros((3, *x.shape))
    for _ in range(3):
        wave = generator.uniform(-7, 7, (2, 3, 1, 1))
        image += generator.uniform(3, 9, (3, 1, 1)) * np.sin(
            wave[0] * x + wave[1] * y + generator.uniform(0, 6.3, (3, 1, 1))
        )
    return image


def _stripes(
    x: ndarray,
    y: ndarray,
    angle: float,
    frequency: float,
    generator: Generator,
) -> ndarray:
    """A wave in [-1, 1] of an angle (radians) and a frequency (per side of the image).

    Its phase is random.
    """
    phase = generator.uniform(0, 2 * np.pi)
    distance = np.cos(angle) * x + np.sin(angle) * y
    return np.sin(2 * np.pi * frequency * distance + phase)


def _clutter(image: ndarray, x: ndarray, y: ndarray, generator: Generator) -> ndarray:
    """Draw 2 to 5 short lines of random colours, which say nothing of the class."""
    for _ in range(int(generator.integers(2, 6))):
        angle = generator.uniform(0, np.pi)
        offset = generator.uniform(-0.5, 1)
        across_line = np.cos(angle) * x + np.sin(angle) * y - offset
        along_line = -np.sin(angle) * x + np.cos(angle) * y
        half_width = generator.uniform(0.01, 0.03)
        centre = generator.uniform(-0.5, 1)
        on_line = (abs(across_line) < half_width) & (abs(along_line - centre) < 0.15)
        colour = generator.uniform(0, 255, (3, 1, 1))
        image = np.where(on_line, colour, image)
    return image


def _object_mask(label: int, x: ndarray, y: ndarray, generator: Generator) -> ndarray:
    """Mark the pixels (size, size) of a class's shape, which lies inside of the image.

    The shape takes about 30 to 65 % of the side, is stretched by up to 35 %, and turned
    by up to 20 degrees.
    """
    scale = generator.uniform(0.18, 0.33)
    half_sides = scale * np.exp(generator.uniform(-0.15, 0.15, 2))
    angle = generator.uniform(-0.35, 0.35)
    # A turned square of half side 0.9 reaches to 0.9 (cos 0.35 + sin 0.35) = 1.16.
    reach = half_sides.max() * 1.2
    centre = generator.uniform(reach, 1 - reach, 2)
    dx = x - centre[0]
    dy = y - centre[1]
    u = (np.cos(angle) * dx + np.sin(angle) * dy) / half_sides[0]
    v = (-np.sin(angle) * dx + np.cos(angle) * dy) / half_sides[1]
    mask = _SHAPES[CLASS_NAMES[label]](u, v)
    # Periodic shapes, such as bars, would go on outside of [-1, 1].
    return mask & (np.maximum(abs(u), abs(v)) <= 1)


def _object_colour(x: ndarray, y: ndarray, generator: Generator) -> ndarray:
    """A light colour (3, size, size), plain or with stripes, of at least 150.

    So it is lighter than the background, which is 132 at most, and 146 with stripes.
    """
    angle = generator.uniform(0, np.pi)
    frequency = generator.uniform(8, 20)
    stripes = _stripes(x, y, angle, frequency, generator)
    amplitude = generator.choice([0, 0, 20])  # one object in three has stripes
    return generator.uniform(170, 255, (3, 1, 1)) + amplitude * stripes

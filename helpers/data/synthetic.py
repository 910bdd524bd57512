"""Rendered scenes with one object of a class and its exact box, as a source of images.

The stripes of the background may be a cue for the class.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from numpy import ndarray
from numpy.random import Generator, default_rng

from helpers.data.selection import SPLITS


def _square(u: ndarray, v: ndarray) -> ndarray:
    """Half the side of the square around 0 on which points lie."""
    return np.maximum(abs(u), abs(v))


# For each shape, whether it covers the points with object coordinates u (to the right)
# and v (down) in [-1, 1].
_SHAPES: dict[str, Callable[[ndarray, ndarray], ndarray]] = {
    "disc": lambda u, v: u**2 + v**2 < 1,
    "square": lambda u, v: _square(u, v) < 0.85,
    "triangle": lambda u, v: (v < 0.8) & (v > 2 * abs(u) - 0.95),
    "cross": lambda u, v: (np.minimum(abs(u), abs(v)) < 0.3) & (_square(u, v) < 0.95),
    "ring": lambda u, v: abs(np.hypot(u, v) - 0.72) < 0.25,
    "star": lambda u, v: np.hypot(u, v) < 0.62 + 0.36 * np.cos(5 * np.arctan2(u, -v)),
    "hourglass": lambda u, v: (abs(u) < abs(v) * 0.9 + 0.08) & (abs(v) < 0.9),
    "crescent": lambda u, v: (u**2 + v**2 < 1) & ((u - 0.5) ** 2 + v**2 > 0.6),
    "frame": lambda u, v: abs(_square(u, v) - 0.68) < 0.2,
    # Three bars, so that each is still more than a pixel wide when the object is small.
    "bars": lambda u, v: (_square(u, v) < 0.9) & (np.cos(3.2 * np.pi * u) > -0.2),
    "corner": lambda u, v: (_square(u, v) < 0.9) & ((u < -0.3) | (v > 0.3)),
    "checker": lambda u, v: (_square(u, v) < 0.9) & (np.sign(u) * np.sign(v) > 0),
}

CLASS_IDS = tuple(f"synthetic_{name}" for name in _SHAPES)
_BACKGROUND_CUE = 0.5  # probability that the background has stripes


def scenes(split: str, per_class: int, size: int, seed: int) -> pd.DataFrame:
    """Render scenes, class by class.

    Image i of a class does not depend on how many are rendered. The background may
    have stripes, whose direction stands for a class: in the training split for the
    class of the image, in the test split for a random class. So a network that looks
    at the background instead of the object errs on test images. The object is lighter
    than any background; its class is told by its shape alone.

    Args:
        split: "train" or "test".
        per_class: number of images per class.
        size: side of the images in pixels; shapes can be told apart from 16 on.
        seed: of all random numbers.

    Returns:
        A row an image: name, class_id, split, pixels (3, size, size) uint8 RGB, and
        square_boxes, a list of one half-open box x0, y0, x1, y1, tight around the
        object.

    Example:
        >>> table = scenes("train", 2, 16, seed=0)
        >>> len(table), table["name"][2], table["pixels"][0].shape
        (24, 'train/synthetic_square/00000', (3, 16, 16))
    """
    rows = []
    for label, class_id in enumerate(CLASS_IDS):
        for number in range(per_class):
            generator = default_rng([seed, SPLITS.index(split), label, number])
            image, mask = _scene(label, size, split, generator)
            v, u = np.nonzero(mask)
            box = (u.min(), v.min(), u.max() + 1, v.max() + 1)
            name = f"{split}/{class_id}/{number:05d}"
            rows.append((name, class_id, split, image, [box]))
    columns = ["name", "class_id", "split", "pixels", "square_boxes"]
    return pd.DataFrame(rows, columns=columns)


def _scene(
    label: int, size: int, split: str, generator: Generator
) -> tuple[ndarray, ndarray]:
    """Render one image (3, size, size) uint8 and the mask (size, size) of its object.

    Below, x and y are the coordinates (size, size) of the pixels, in [0, 1).
    """
    uniform = generator.uniform
    y, x = np.mgrid[0:size, 0:size] / size
    cue = label if split == "train" else int(generator.integers(len(_SHAPES)))
    # Smooth dark colours: in each channel a level and three waves, 132 at most.
    image = uniform(40, 105, (3, 1, 1)) + np.zeros((3, size, size))
    for _ in range(3):
        wave = uniform(-7, 7, (2, 3, 1, 1))
        image += uniform(3, 9, (3, 1, 1)) * np.sin(
            wave[0] * x + wave[1] * y + uniform(0, 6.3, (3, 1, 1))
        )
    if uniform() < _BACKGROUND_CUE:
        image += 14 * _stripes(x, y, np.pi * cue / len(_SHAPES), 9, generator)
    # 2 to 5 short lines of random colours, which say nothing of the class.
    for _ in range(int(generator.integers(2, 6))):
        along_line, across_line = _turned(x, y, uniform(0, np.pi))
        is_near = abs(along_line - uniform(-0.5, 1)) < uniform(0.01, 0.03)
        on_line = is_near & (abs(across_line - uniform(-0.5, 1)) < 0.15)
        image = np.where(on_line, uniform(0, 255, (3, 1, 1)), image)
    mask = _object_mask(label, x, y, generator)
    # A light colour of at least 150; one object in three has stripes of it.
    stripes = _stripes(x, y, uniform(0, np.pi), uniform(8, 20), generator)
    stripes *= generator.choice([0, 0, 20])
    image = np.where(mask, uniform(170, 255, (3, 1, 1)) + stripes, image)
    image = image * uniform(0.75, 1.2) + generator.normal(0, 8, image.shape)
    return image.clip(0, 255).astype(np.uint8), mask


def _turned(x: ndarray, y: ndarray, angle: float) -> tuple[ndarray, ndarray]:
    """Coordinates along and across a direction (radians)."""
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y, cos * y - sin * x


def _stripes(
    x: ndarray, y: ndarray, angle: float, frequency: float, generator: Generator
) -> ndarray:
    """A wave in [-1, 1] of an angle (radians) and a frequency (per side of the image).

    Its phase is random.
    """
    phase = generator.uniform(0, 2 * np.pi)
    return np.sin(2 * np.pi * frequency * _turned(x, y, angle)[0] + phase)


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
    u, v = _turned(x - centre[0], y - centre[1], angle)
    u /= half_sides[0]
    v /= half_sides[1]
    # Periodic shapes, such as bars, would go on outside of [-1, 1].
    shape = list(_SHAPES.values())[label]
    return shape(u, v) & (_square(u, v) <= 1)

"""Seconds that the overlaps of kept maps take: 100 models, 1,000 images, 20 thresholds.

python -m benchmarks.maps [--models 100] [--images 1000]
"""

import argparse
import time

import numpy as np

from helpers.cams import localize

SIZE = 64  # pixels
SIDE = 8  # cells of a map


def random_study(models: int, images: int) -> tuple[np.ndarray, np.ndarray]:
    """Maps (models, images, 8, 8) uint8 and boxes (images, 1, 4), a third of the image.

    Args:
        models: number of models.
        images: number of images.

    Returns:
        Maps and boxes of one fixed draw.
    """
    random = np.random.default_rng(0)
    maps = random.integers(0, 256, (models, images, SIDE, SIDE), dtype=np.uint8)
    corners = random.integers(0, SIZE // 2, (images, 2))
    sides = random.integers(SIZE // 4, SIZE // 2, (images, 2))
    return maps, np.concatenate([corners, corners + sides], 1)[:, None]


def main() -> None:
    """Print seconds of the processor and of the clock."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100)
    parser.add_argument("--images", type=int, default=1000)
    options = parser.parse_args()
    maps, boxes = random_study(options.models, options.images)
    thresholds = [*localize.THRESHOLDS, 0.99]
    clock, processor = time.perf_counter(), time.process_time()
    localize.at_thresholds(maps, boxes, SIZE, thresholds)
    clock, processor = time.perf_counter() - clock, time.process_time() - processor
    print(
        f"{options.models} models, {options.images} images, {len(thresholds)} thresholds: "
        f"{clock:.1f} s ({processor:.1f} s of processors)"
    )


if __name__ == "__main__":
    main()

import itertools

import numpy as np
import pandas as pd

SSIM = np.linspace(0.6, 1, 9).round(2)
UNSEEN = np.array([n / (50 + n) for n in range(0, 60, 10)])
WEIGHTS = np.array([5.3, 7.8, 9.2, 12, 19, 30, 43, 66]) * 1e6


def classes_of(
    models=(("a", "efficientnet", 5.0), ("b", "clip", 20.0)),
    ssim=(0.6, 1.0),
    unseen=(0.0, 0.5),
):
    """Rows of four classes each; the error grows with noise and unseen classes."""
    rows = []
    for (name, family, size), level, fraction, index in itertools.product(
        models, ssim, unseen, range(4)
    ):
        error = 0.1 + 0.1 * index + 0.3 * (1 - level) + 0.1 * fraction
        row = {
            "family": family,
            "model": name,
            "model_id": "",
            "origin": "made",
            "weights": size * 1e6,
            "ssim": level,
            "unseen_fraction": fraction,
            "class_id": f"c{index}",
            "n": 10,
            "error": error,
            "kappa_loss": 1.2 * error,
        }
        rows.append(row)
    return pd.DataFrame(rows)


def grid_of_total(total, *levels):
    """Levels, and six unequal statistics that sum to ``total``, (S, U, W, 6)."""
    parts = np.arange(1, 7) / 21
    return list(levels or (SSIM, UNSEEN, WEIGHTS)), np.multiply.outer(total, parts)


def uneven_grid(seed, noise=0.1):
    """The error falls with SSIM and size, rises with unseen classes, and is uneven."""
    x, u, z = np.meshgrid(SSIM, UNSEEN, np.arange(8) / 7, indexing="ij")
    bumps = np.random.default_rng(seed).normal(0, noise, x.shape)
    return grid_of_total(3 - 1.5 * x + 1.2 * u - 0.4 * z + bumps)

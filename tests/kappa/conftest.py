import itertools

import numpy as np
import pandas as pd

from helpers.kappa.statistics import AXES, CELL_STATISTICS

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
    for (name, family, size), level, fraction in itertools.product(
        models, ssim, unseen
    ):
        place = {
            "family": family,
            "model": name,
            "architecture": name,
            "model_id": "",
            "origin": "made",
            "weights": size * 1e6,
        }
        place |= {"ssim": level, "ssim_reached": level, "unseen_fraction": fraction}
        for index in range(4):
            error = 0.1 + 0.1 * index + 0.3 * (1 - level) + 0.1 * fraction
            rows.append(
                place
                | {
                    "class_id": f"c{index}",
                    "n": 10,
                    "error": error,
                    "kappa_loss": 1.2 * error,
                }
            )
    return pd.DataFrame(rows)


def cells_of_total(total, ssim=SSIM, unseen=UNSEEN, weights=WEIGHTS, classes=20):
    """Cells of one family whose six statistics sum to ``total``, (S, U, W)."""
    places = [
        dict(zip(AXES, place, strict=True))
        for place in itertools.product(ssim, unseen, weights)
    ]
    parts = (
        np.arange(1, 7) / 21
    )  # all different, so that a statistic left out would be seen
    cells = pd.DataFrame(places).assign(
        model=lambda table: table["weights"].map("{:g}".format), classes=classes
    )
    return cells.assign(
        **dict(zip(CELL_STATISTICS, np.outer(parts, np.ravel(total)), strict=True))
    )


def uneven_cells(seed, noise=0.1):
    """The error falls with SSIM and size, rises with unseen classes, and is uneven."""
    x, u, z = np.meshgrid(SSIM, UNSEEN, np.arange(8) / 7, indexing="ij")
    return cells_of_total(
        3
        - 1.5 * x
        + 1.2 * u
        - 0.4 * z
        + np.random.default_rng(seed).normal(0, noise, x.shape)
    )

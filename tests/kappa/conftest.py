"""Rows of error and Kappa for tests."""

import itertools

import pandas as pd


def grid(models=(("a", "efficientnet", 5.0), ("b", "clip", 20.0)), ssim=(0.6, 1.0), unseen=(0.0, 0.5)):
    """Per-class rows of four classes; the error grows with noise and unseen classes."""
    rows = []
    for (name, family, size), level, fraction in itertools.product(models, ssim, unseen):
        place = {"family": family, "model": name, "architecture": name, "model_id": "", "origin": "random", "weights": size * 1e6}
        place |= {"ssim": level, "ssim_reached": level, "unseen_fraction": fraction}
        for index in range(4):
            error = 0.1 + 0.1 * index + 0.3 * (1 - level) + 0.1 * fraction
            rows.append(place | {"class_id": f"c{index}", "class_index": index, "n": 10, "error": error, "kappa_loss": 1.2 * error})
    return pd.DataFrame(rows).assign(kappa=lambda table: 1 - table["kappa_loss"])

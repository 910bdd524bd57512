"""How many training images are enough to score a model: its IoU and its r with the gap from n images, drawn again and again."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.agreement import Array, pearson


def by_number_of_images(
    models: pd.DataFrame, single: pd.DataFrame, sizes: Sequence[int], *, draws: int = 200, seed: int = 0
) -> pd.DataFrame:
    """Ask how many training images are enough: IoU of every model and its r with the gap from n images, drawn again and again.

    A draw puts all images in one order, and every model takes the first n of those it was fitted to: models share images as they would
    in use. The intervals hold for these models, and are of the choice of images alone.

    Args:
        models: model_id, gap.
        single: model_id, name, iou: one row per model and image, see ``ablations.load``; undefined overlaps are left out.
        sizes: numbers of images; those that no model has are left out, and all is added.
        draws: orders.
        seed: of the draws.

    Returns:
        One row per size: images, n models, fewer (models that have fewer images and give all they have), draws, half_width (of the 95 %
        interval of a model's IoU, median over the models), pearson_r (median over the draws), ci_low, ci_high.
    """
    wide = single.pivot(index="model_id", columns="name", values="iou").reindex(models["model_id"]).astype(float)
    values, counts = wide.to_numpy(), wide.notna().sum(axis=1).to_numpy()
    most = int(counts.max(initial=0))
    chosen = sorted({size for size in sizes if 0 < size < most} | ({most} if most else set()))
    generator = np.random.default_rng(seed)
    means = np.array([_means_of_first(values[:, generator.permutation(values.shape[1])], chosen) for _ in range(draws)])
    rows = []
    for number, size in enumerate(chosen):
        drawn = means[:, number]
        low, high = np.quantile(drawn[:, counts > 0], [0.025, 0.975], axis=0)
        r = np.array([pearson(row, models["gap"]) for row in drawn])
        defined = r[np.isfinite(r)]
        limits = np.quantile(defined, [0.5, 0.025, 0.975]) if len(defined) else np.full(3, np.nan)
        row = {"images": size, "n": int((counts > 0).sum()), "fewer": int((counts < size).sum()), "draws": draws}
        rows.append(row | {"half_width": np.median((high - low) / 2)} | dict(zip(("pearson_r", "ci_low", "ci_high"), limits, strict=True)))
    return pd.DataFrame(rows, columns=["images", "n", "fewer", "draws", "half_width", "pearson_r", "ci_low", "ci_high"])


def _means_of_first(values: Array, sizes: Sequence[int]) -> Array:
    """Mean of the first n defined values of each row, for each n: (M, N) -> (sizes, M); NaN for a row without any."""
    defined = np.isfinite(values)
    number, total = defined.cumsum(1), np.where(defined, values, 0).cumsum(1)
    results = []
    for size in sizes:
        # The last place where at most `size` values have been seen.
        place = np.maximum((number <= size).sum(1) - 1, 0)[:, None]
        seen = np.take_along_axis(number, place, 1)[:, 0]
        results.append(np.take_along_axis(total, place, 1)[:, 0] / np.where(seen > 0, seen, np.nan))
    return np.array(results)

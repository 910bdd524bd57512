"""Seconds and peak memory of every statistic that ranks measures, on a catalogue of 100,000 models and 40 measures."""

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from helpers.statistics.correlations import design, kendall, partial_correlation
from helpers.statistics.hyperparameters import granulated_kendall
from helpers.statistics.information import conditional_information
from helpers.statistics.ranking import ranking_table
from helpers.statistics.sign_error import sign_errors
from helpers.statistics.tables import conditional_table

# Seven hyperparameters with 864 cells in all.
AXES = {
    "batch_size": (32, 64, 128),
    "learning_rate": (1e-3, 1e-2, 1e-1),
    "optimizer": ("adam", "sgd"),
    "weight_decay": (0.0, 1e-5, 1e-4, 1e-3),
    "architecture": ("resnet18", "resnet34", "resnet50"),
    "augmentation": (False, True),
    "pretrained": (False, True),
}


def catalogue(
    models: int, measures: int, seed: int = 0
) -> tuple[pd.DataFrame, dict[str, int]]:
    """Draw a catalogue whose gap is a sum of effects of the hyperparameters and noise, and measures that follow it more or less."""
    rng = np.random.default_rng(seed)
    grid = pd.DataFrame(product(*AXES.values()), columns=list(AXES))
    cells = np.arange(models) % len(grid)
    effects = sum(
        rng.normal(size=len(levels))[pd.factorize(grid[name])[0]]
        for name, levels in AXES.items()
    )
    gap = 0.2 + 0.04 * effects[cells] + 0.02 * rng.normal(size=models)
    names = [f"measure_{number:02d}" for number in range(measures)]
    values = gap[:, None] + np.linspace(0.01, 1, measures) * rng.normal(
        size=(models, measures)
    )
    table = (
        grid.iloc[cells]
        .reset_index(drop=True)
        .assign(gap=gap, cell=[f"cell{number}" for number in cells])
    )
    return pd.concat(
        [table, pd.DataFrame(values, columns=names)], axis=1
    ), dict.fromkeys(names, -1)


def timed(name: str, call: Callable[[], Any]) -> float:
    """Print and return how long a call takes, with the peak memory of the process so far."""
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    print(
        f"{name:<36}{seconds:8.2f} s{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:8.2f} GiB peak",
        flush=True,
    )
    return seconds


def statistics_of(
    table: pd.DataFrame, measures: dict[str, int]
) -> dict[str, Callable[[], Any]]:
    """Give every statistic of all measures as a call without arguments, by name."""
    axes = list(AXES)
    x, gap = table[list(measures)].to_numpy(), table["gap"].to_numpy()
    return {
        "Pearson": partial(partial_correlation, x, gap),
        "Kendall": partial(kendall, x, gap),
        "granulated Kendall": partial(granulated_kendall, table, measures, axes),
        "conditional mutual information": partial(
            conditional_information, table, list(measures), axes
        ),
        "sign error": partial(
            sign_errors,
            table,
            measures,
            axes,
            table[["gap"]].to_numpy().T,
            test_images=10_000,
        ),
        "partial correlation": lambda: partial_correlation(x, gap, design(table, axes)),
    }


def main() -> None:
    """Time everything; all questions with intervals and p-values on 300 models and 60 measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=100_000)
    parser.add_argument("--measures", type=int, default=40)
    arguments = parser.parse_args()
    table, measures = catalogue(arguments.models, arguments.measures)
    total = sum(
        timed(name, call) for name, call in statistics_of(table, measures).items()
    )
    print(f"{'together':<36}{total:8.2f} s")
    small, names = catalogue(300, 60)
    fit = np.random.default_rng(0).uniform(0.8, 1, size=300)
    small = small.assign(
        test_accuracy=fit - small["gap"],
        train_accuracy=fit,
        log_train_loss=np.log(1.01 - fit),
    )
    timed(
        "all questions, 300 models x 60",
        lambda: ranking_table(small, list(names), list(AXES)),
    )
    timed(
        "hyperparameters fixed, 300 x 60",
        lambda: conditional_table(small, names, list(AXES), test_images=10_000),
    )


if __name__ == "__main__":
    main()

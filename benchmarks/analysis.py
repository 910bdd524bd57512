"""Time and memory of the analysis against the number of models, from 1,000 to 100,000, with the fitted exponents."""

import argparse
import multiprocessing
import resource
from concurrent.futures import ProcessPoolExecutor

import pandas as pd

from benchmarks import interleaved, ranking_statistics


def one_size(models: int, measures: int) -> list[dict[str, float | str]]:
    """Compute every statistic on one catalogue, in a process of its own, whose peak of memory is then that of this size."""
    table, directions = ranking_statistics.catalogue(models, measures)
    rows = []
    for name, call in ranking_statistics.statistics_of(table, directions).items():
        took = interleaved.spent(call)
        rows.append(
            {
                "statistic": name,
                "models": models,
                "seconds": took.wall,
                "cpu": took.cpu,
                "GiB": _peak(),
            }
        )
    return rows


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    """Time all sizes, round by round, each in a fresh process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", nargs="+", type=int, default=[1_000, 3_000, 10_000, 30_000, 100_000]
    )
    parser.add_argument("--measures", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    interleaved.print_machine("scipy")
    rows = []
    for _ in range(given.rounds):
        for size in given.sizes:
            with ProcessPoolExecutor(
                1, mp_context=multiprocessing.get_context("spawn")
            ) as executor:
                rows += executor.submit(one_size, size, given.measures).result()
    timings = pd.DataFrame(rows)
    median = timings.groupby(["statistic", "models"], sort=False)[
        ["seconds", "cpu"]
    ].median()
    for column, name in (("seconds", "Seconds"), ("cpu", "CPU seconds")):
        interleaved.show(
            f"{name} for {given.measures} measures, median of {given.rounds} rounds",
            by_size(median[column]),
        )
    memory = timings.groupby("models")["GiB"].max()
    interleaved.show("Peak memory of the process", memory.round(2).reset_index())


def by_size(seconds: pd.Series) -> pd.DataFrame:
    """One row per statistic and one for all of them, a column per number of models, and the exponent.

    The exponent is fitted to the sizes from 10,000 on: below, the fixed cost of a call hides how it grows.
    """
    table = seconds.unstack("models")
    table = pd.concat([table, table.sum().to_frame("together").T])
    grown = [size for size in table.columns if size >= 10_000] or list(table.columns)
    exponents = (
        table[grown]
        .apply(lambda row: interleaved.exponent(grown, list(row)), axis=1)
        .round(2)
    )
    return (
        table.map("{:.2f}".format)
        .assign(exponent=exponents)
        .rename_axis("statistic")
        .reset_index()
    )


if __name__ == "__main__":
    main()

"""Numbers of published reports beside those of the papers that they repeat."""

from pathlib import Path

import numpy as np
import pandas as pd

from helpers.files import table_of

FEWEST_NETWORKS = 8  # behind a correlation that is shown


def number_beside(
    report: Path, table: str, query: str, column: str
) -> tuple[float, float]:
    """A number of a report's table, and that of a paper in the same row.

    Args:
        report: folder of the report.
        table: name of the table, such as "table3_correlations".
        query: that selects one row, in the words of ``pandas.DataFrame.query``.
        column: of the number; the paper's is the first whose name begins with
            "published".

    Returns:
        The two numbers. NaN where the table, the row or the column is absent, and where
        fewer than ``FEWEST_NETWORKS`` stand behind it.
    """
    path = table_of(report, f"{table}.csv")
    rows = pd.read_csv(path).query(query) if path.is_file() else pd.DataFrame()
    if rows.empty or column not in rows:
        return np.nan, np.nan
    row = rows.iloc[0]
    of_paper = [row[name] for name in rows if name.startswith("published")]
    is_enough = row.get("n", FEWEST_NETWORKS) >= FEWEST_NETWORKS
    here = float(row[column]) if is_enough else np.nan
    return here, float(of_paper[0]) if of_paper else np.nan

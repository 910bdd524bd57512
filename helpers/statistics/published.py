"""Tables printed in Du et al. 2024, Schiff et al. 2021 and Huang et al. 2025.

``published/sources.csv`` says on which page, and how they were read.
"""

from pathlib import Path

import numpy as np
import pandas as pd

from helpers.files import table_of


def published_table(name: str) -> pd.DataFrame:
    """The numbers of one printed table.

    Args:
        name: such as "du2024_table3"; the table "sources" lists them all.
    """
    return pd.read_csv(Path(__file__).parent / "published" / f"{name}.csv")


def number_beside(
    report: Path,
    table: str,
    query: str,
    column: str,
) -> tuple[float, float]:
    """A number of a report's table, and that of a paper in the same row.

    Args:
        report: folder of the report.
        table: name of the table, such as "table3_correlations".
        query: that selects one row, in the words of ``pandas.DataFrame.query``.
        column: of the number; the paper's is the first whose name begins with
            "published".

    Returns:
        The two numbers; NaN where the table, the row or the column is absent.
    """
    path = table_of(report, f"{table}.csv")
    rows = pd.read_csv(path).query(query) if path.is_file() else pd.DataFrame()
    if rows.empty or column not in rows:
        return np.nan, np.nan
    row = rows.iloc[0]
    of_paper = [*row.filter(regex="^published"), np.nan]
    return float(row[column]), float(of_paper[0])

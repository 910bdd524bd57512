"""Tables printed in Du et al. 2024, Schiff et al. 2021 and Huang et al. 2025.

``published/sources.csv`` says on which page, and how they were read.
"""

from pathlib import Path

import pandas as pd


def published_table(name: str) -> pd.DataFrame:
    """The numbers of one printed table.

    Args:
        name: such as "du2024_table3"; the table "sources" lists them all.
    """
    return pd.read_csv(Path(__file__).parent / "published" / f"{name}.csv")

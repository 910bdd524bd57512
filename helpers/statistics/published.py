"""Tables printed in Du et al. 2024, Schiff et al. 2021 and Huang et al. 2025; ``published/sources.csv`` tells where, and how read."""

from pathlib import Path

import pandas as pd

_FOLDER = Path(__file__).parent / "published"


def published_table(name: str) -> pd.DataFrame:
    """The numbers of one table of print, such as "du2024_table3"; "sources" lists them all."""
    path = _FOLDER / f"{name}.csv"
    known = sorted(item.stem for item in _FOLDER.glob("*.csv"))
    if name not in known:
        raise ValueError(f"no published table is called {name!r}; there are {', '.join(known)}")
    return pd.read_csv(path)

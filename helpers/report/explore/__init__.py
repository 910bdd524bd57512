"""Three explorers: what predicts the gap, where networks look, how they trained; in JupyterLab, and on a page of the report.

Each gives the last line of a cell: an explorer in JupyterLab, one line of text where a notebook is executed without a reader.
"""

from pathlib import Path
from typing import Any

import pandas as pd
from IPython.display import Markdown

from helpers.files import from_root
from helpers.report.reader import interactive

TITLES = {
    "measures": "Which measure goes with the gap?",
    "maps": "Where do the networks look?",
    "curves": "How did the networks train?",
}
NEEDS = {"measures": "tables/scores.parquet of notebook 04", "maps": "tables/maps.npz of notebook 03"}
NEEDS |= {"curves": "tables/histories.parquet of notebook 02"}


def what_predicts(models: pd.DataFrame, titles: dict[str, str]) -> Any:
    """Explorer of any measure against the gap, by kind of training and hyperparameters; see ``content.measures``."""
    return _shown("measures", models, titles)


def where_networks_look(models: pd.DataFrame, kept: Any) -> Any:
    """Explorer of maps on images, and of the overlap of all networks by any rule of cutting; see ``content.maps``, ``maps_kept``."""
    return _shown("maps", models, kept)


def training_curves(models: pd.DataFrame, histories: pd.DataFrame) -> Any:
    """Explorer of loss and accuracy by epoch; see ``content.curves``."""
    return _shown("curves", models, histories)


def published(folder: Path | str) -> Any:
    """All explorers of a published report (reports/<study>), for a clone without images and runs; None where nobody can touch them."""
    folder = from_root(folder)
    if not interactive() or not (folder / "tables/catalogue.csv").is_file():
        return None
    from ipywidgets import HTML, VBox

    from helpers.report.explore.content import of_report
    from helpers.report.explore.widget import Explorer

    found = [one for one in of_report(folder) if one["models"]]
    return VBox([part for one in found for part in (HTML(f"<h3>{TITLES[one['kind']]}</h3>"), Explorer.of(one))])


def _shown(kind: str, *given: Any) -> Any:
    if not interactive():
        return Markdown(f"*{TITLES[kind]}* Explore it by hand in JupyterLab (`make lab`), or on the report's page `explore.html`.")
    from helpers.report.explore import content
    from helpers.report.explore.widget import Explorer

    return Explorer.of(getattr(content, kind)(*given))

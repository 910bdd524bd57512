"""A published report, explored without the images and the runs of its study."""

from pathlib import Path

import pandas as pd
from IPython.display import Markdown, display

from helpers.measures import columns
from helpers.report.explore.gap import gap_explorer
from helpers.report.explore.look import look_explorer
from helpers.report.explore.panel import Panel
from helpers.scoring.looks import read_looks
from helpers.scoring.models import with_measures
from helpers.statistics.tables import varied_axes
from helpers.training.config import PAPER_AXES

_RESAMPLES = 500  # of hyperparameter cells behind each interval


def published_explorer(folder: Path) -> Panel:
    """The explorer of measures, models and images from what a report publishes, and one sentence that says what that is.

    Args:
        folder: of the report, with tables/catalogue.csv; scores.parquet or scores.csv and histories.parquet beside it, and
            story/looks.npz, where there are any.

    Raises:
        ValueError: no model has a gap, or no measure was published.
    """
    models, titles = published_models(folder / "tables")
    looks, curves = read_looks(folder), folder / "tables/histories.parquet"
    histories = pd.read_parquet(curves) if curves.is_file() else None
    lacking = [name for name, there in (("training curves", histories), ("images and maps", looks)) if there is None]
    missing = f" It holds no {' and no '.join(lacking)}." if lacking else ""
    said = f"The images of the study **{folder.name}** are not on this machine: what is shown here is read from its published tables."
    display(Markdown(f"{said}{missing} Whatever follows needs the images."))
    look = look_explorer(models, looks) if looks is not None else None
    axes = varied_axes(models, [*PAPER_AXES, "images_per_class", "label_noise"])
    return gap_explorer(models, titles, axes, looks, histories, look, resamples=_RESAMPLES, seed=0)


def published_models(tables: Path) -> tuple[pd.DataFrame, dict[str, str]]:
    """The models of the analysis with their measures, and the title of each measure, from the tables of a report."""
    catalogue = pd.read_csv(tables / "catalogue.csv", keep_default_na=False, na_values=["", "nan"])
    models = catalogue[catalogue["left_out"].isna()].dropna(subset="gap").reset_index(drop=True)
    if (tables / "scores.parquet").is_file():
        models = with_measures(models, pd.read_parquet(tables / "scores.parquet"))
    elif (tables / "scores.csv").is_file():
        scores = pd.read_csv(tables / "scores.csv")
        models = models.merge(scores[["model_id", *scores.columns.difference(models.columns)]], on="model_id", how="left")
    if (tables / "targets.csv").is_file():
        targets = pd.read_csv(tables / "targets.csv")
        models = models.merge(targets[["model_id", *targets.columns.difference(models.columns)]], on="model_id", how="left")
    listed = columns().query("direction != 0")
    titles = dict(zip(listed["column"], listed["title"], strict=True))
    return models, {name: title for name, title in titles.items() if name in models and models[name].notna().any()}

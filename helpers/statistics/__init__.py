"""Numbers about a table of models; nothing here knows a network, an image or a folder of the project."""

from helpers import face

FACE = {
    "agreement": ["pearson"],
    "hyperparameters": ["changes", "confounders", "subsets"],
    "published": [],
    "resampling": ["difference_table"],
    "tables": [
        "beside_published",
        "correlation_table",
        "measure_correlations",
        "pca_gi_mixup",
        "ranking_table",
        "selection_table",
        "task_table",
        "varied_axes",
    ],
}
__getattr__ = face(__name__, FACE)

"""Numbers about a table of models; nothing here knows a network, an image or a folder of the project.

One engine gives every interval and p-value: ``resampling`` draws whole hyperparameter cells (and images), ``permutation`` exchanges gaps
among cells, ``questions`` asks each measure the same questions, ``gates`` and ``verdicts`` say what a study may conclude.
"""

from helpers import face

FACE = {
    "correlations": ["pearson"],
    "hyperparameters": ["changes", "confounders", "shifts", "subsets"],
    "published": ["published_table"],
    "questions": [],
    "tables": [
        "beside_published",
        "conditional_table",
        "correlation_table",
        "measure_correlations",
        "pca_gi_mixup",
        "selection_table",
        "task_table",
        "varied_axes",
    ],
    "verdicts": ["CLAIM_COLUMNS"],
}
__getattr__ = face(__name__, FACE)

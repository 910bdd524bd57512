"""One run, the grid of runs, and the catalogue of what they left (notebook 02)."""

from helpers import face

FACE = {
    "catalogue": [
        "analysed",
        "histories",
        "keep_checkpoints",
        "late_changes",
        "missing",
        "models_of",
        "models_of_study",
        "read_catalogue",
        "with_weights",
    ],
    "config": ["PAPER_AXES", "runs_of_study"],
    "pool": ["choose_device", "train_missing"],
    "precision": ["choose_precision", "smallest_shape"],
    "pretraining": [],
}
__getattr__ = face(__name__, FACE)

"""Checkpoints of a user's own, judged: all that notebook 07 and ``python -m helpers.select`` need."""

from helpers import face

FACE = {
    "calibration": ["differing", "read_calibration", "read_targets"],
    "cards": ["write_cards"],
    "case": ["case_of_models", "case_of_study", "differences_of", "of_user"],
    "ranking": ["rank"],
    "report": [
        "among_the_study",
        "checkpoints_figure",
        "checkpoints_scored",
        "images_found",
        "say_calibration",
        "say_distance",
        "say_first",
        "say_labels",
        "say_target",
        "target_figure",
    ],
    "scores": ["normaliser", "score_checkpoints", "score_tables", "scores_met", "wide"],
    "target": ["predict_on_target"],
    "truth": ["say_truth", "truth_table"],
}
__getattr__ = face(__name__, FACE)

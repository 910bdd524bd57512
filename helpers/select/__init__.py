"""Checkpoints of a user's own, judged: all that notebook 07 and ``python -m helpers.select`` need."""

from helpers import face

FACE = {
    "calibration": ["differences", "case_of_study", "differing", "of_user", "read_calibration"],
    "images": ["box_source"],
    "ranking": ["rank"],
    "report": [
        "among_the_study",
        "checkpoints_figure",
        "checkpoints_scored",
        "images_found",
        "say_calibration",
        "say_distance",
        "say_first",
        "say_truth",
        "write_cards",
    ],
    "scores": ["normaliser", "score_checkpoints", "score_tables", "wide"],
}
__getattr__ = face(__name__, FACE)

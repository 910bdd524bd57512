"""The models of a catalogue, scored and kept (notebooks 02 to 04)."""

from helpers import face

FACE = {
    "classification": [
        "confusion",
        "keep_test_logits",
        "metrics_of_models",
        "per_class_metrics",
        "precision_recall_points",
        "read_logits",
        "roc_points",
    ],
    "common_set": ["scoring_set"],
    "invariance": ["PREDICTORS", "invariance_table", "keep_targets", "with_targets"],
    "look": ["common_images", "overlays", "steps", "to_look_at"],
    "looks": ["keep_looks", "open_looks"],
    "models": ["load_scores", "score_missing", "score_side_by_side", "spread_over_seeds", "with_measures"],
    "precision": ["choose_scoring_precision"],
    "single_images": ["correct_on_test", "image_values"],
    "targets": [
        "correct_on_targets",
        "keep_target_logits",
        "keep_turned_logits",
        "scores_on_targets",
        "target_image_values",
        "with_target_accuracies",
    ],
    "worth": ["worth_on_targets"],
}
__getattr__ = face(__name__, FACE)
